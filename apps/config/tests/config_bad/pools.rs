//! Pools, health checks, session policies, rules, and settings of the process.

use crate::case::{Case, expect};
use evergate_config::Severity;

#[test]
fn bad_pools_rules_and_settings_are_refused_with_advice() {
    let cases: &[Case] = &[
        // Pools.
        ("{L}{C}@@[[pools]]\nname = \"web\"\n", "pools[0]", "add `[[pools.servers]]`"),
        (
            "{L}{C}{P}@@[[pools.servers]]\nweight = 2\n",
            "pools[0].servers[1].address",
            "`address = \"127.0.0.1:8080\"`",
        ),
        (
            "{L}{C}{P}[[pools.servers]]\naddress = @@\"127.0.0.1:8080\"\n",
            "pools[0].servers[1].address",
            "`weight`",
        ),
        ("{L}{C}{P}[[pools.servers]]\naddress = @@\"http://app/\"\n", "pools[0].servers[1].address", "`app`"),
        (
            "{L}{C}{P}[[pools.servers]]\naddress = @@\"nowhere:80\"\n",
            "pools[0].servers[1].address",
            "does not resolve: unknown host",
        ),
        (
            "{L}{C}{P}[[pools.servers]]\naddress = @@\"empty.internal:80\"\n",
            "pools[0].servers[1].address",
            "no addresses",
        ),
        ("{L}{C}{P}[[pools.servers]]\naddress = @@\"::1:80\"\n", "pools[0].servers[1].address", "brackets"),
        (
            "{L}{C}{P}[[pools.servers]]\naddress = @@\"127.0.0.1:9443\"\n",
            "pools[0].servers[1].address",
            "own listener \"public\"",
        ),
        (
            "{L}{C}{P}name = \"a\"\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\nname = @@\"a\"\n",
            "pools[0].servers[1].name",
            "taken",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nsticky = \"cookie\"\nsticky_cookie = @@\"a b\"\n\
             [[pools.servers]]\naddress = \"app.internal:80\"\n",
            "pools[0].sticky_cookie",
            "RFC 9110",
        ),
        ("{L}{C}{P}[pools.tls]\nserver_name = @@\"a:80\"\n", "pools[0].tls.server_name", "without port"),
        ("{L}{C}{P}[pools.tls]\nverify = false\nca = @@\"c.pem\"\n", "pools[0].tls.ca", "`verify = false`"),
        ("{L}{C}{P}@@[pools.tls]\nclient_chain = \"c.pem\"\n", "pools[0].tls.client_key", "add `client_key`"),
        (
            "{L}{C}{P}@@[pools.tls]\nclient_key = \"k.pem\"\n",
            "pools[0].tls.client_chain",
            "add `client_chain`",
        ),
        ("{L}{C}{P}[pools.tls]\nca = @@\"k.pem\"\n", "pools[0].tls.ca", "not a certificate"),
        // The access log.
        (
            "{L}{C}{P}[logs]\nfields = [\"referer\", @@\"user-agent\"]\n",
            "logs.fields[1]",
            "did you mean `user_agent`?",
        ),
        ("{L}{C}{P}[logs]\nfields = [\"referer\", @@\"referer\"]\n", "logs.fields[1]", "already"),
        ("{L}{C}{P}[logs]\ntime = @@\"utc\"\n", "logs.time", "use one of `unix`, `iso`"),
        // Nothing is expanded.
        (
            "{L}{C}{P}[[pools.servers]]\naddress = @@\"${BACKEND}\"\n",
            "pools[0].servers[1].address",
            "evergate expands no environment variables",
        ),
        ("{L}{C}{P}[node]\nworkers = @@\"$WORKERS\"\n", "node.workers", "`envsubst`"),
        ("{L}{C}{P}[tls.a]\nalpn = [@@\"${ALPN}\"]\n", "tls.a.alpn[0]", "`${ALPN}`"),
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nmin_version = @@\"1.1\"\n",
            "tls.a.min_version",
            "write `min_version = \"1.2\"`",
        ),
        // Header values have no variables.
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nset_request_headers = @@{ X-Site = \"${host}\" }\n",
            "rules[0].set_request_headers",
            "${host}, ${path} and ${query}",
        ),
        // Health checks.
        ("{L}{C}{P}[pools.health]\npath = @@\"health\"\n", "pools[0].health.path", "`path = \"/health\"`"),
        ("{L}{C}{P}[pools.health]\npath = @@\"http://a/x\"\n", "pools[0].health.path", "`path = \"/x\"`"),
        ("{L}{C}{P}[pools.health]\npath = @@\"/a b\"\n", "pools[0].health.path", "%20"),
        ("{L}{C}{P}[pools.health]\nhost = @@\"a/b\"\n", "pools[0].health.host", "Host header"),
        (
            "{L}{C}{P}[pools.health]\ntimeout_ms = @@5000\n",
            "pools[0].health.timeout_ms",
            "longer than `interval_ms` (2000)",
        ),
        ("{L}{C}{P}[pools.health]\ninterval_ms = @@500\n", "pools[0].health.interval_ms", "at least as long"),
        (
            "{L}{C}{P}[pools.health]\nkind = \"tcp\"\npath = @@\"/x\"\n",
            "pools[0].health.path",
            "`kind = \"http\"`",
        ),
        (
            "{L}{C}{P}[pools.health]\nexpect_status = @@\"2xx\"\n",
            "pools[0].health.expect_status",
            "from 100 to 599",
        ),
        (
            "{L}{C}{P}[pools.health]\nexpect_status = @@\"299-200\"\n",
            "pools[0].health.expect_status",
            "backwards",
        ),
        (
            "{L}{C}{P}[pools.health]\nexpect_status = [200, @@99]\n",
            "pools[0].health.expect_status[1]",
            "not an HTTP status",
        ),
        (
            "{L}{C}{P}[pools.health]\nexpect_status = @@[]\n",
            "pools[0].health.expect_status",
            "no server would ever be healthy",
        ),
        // Rules.
        ("{L}{C}{P}@@[[rules]]\nroute = \"web\"\n", "rules[0].name", "`name = \"api\"`"),
        ("{L}{C}{P}[[rules]]\nname = \"r\"\nroute = @@\"webb\"\n", "rules[0].route", "did you mean `web`?"),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\nlisteners = @@[]\n",
            "rules[0].listeners",
            "remove the key for a rule of all listeners",
        ),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\nlisteners = [@@\"pubic\"]\n",
            "rules[0].listeners[0]",
            "did you mean `public`?",
        ),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\ndeny = 403\nsticky = @@\"cookie\"\n",
            "rules[0].sticky",
            "remove `sticky`",
        ),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\n[[rules]]\nname = @@\"r\"\nroute = \"web\"\n",
            "rules[1].name",
            "taken by `rules[0]`",
        ),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\nwhen = '@@pth == \"/\"'\n",
            "rules[0].when",
            "did you mean path?",
        ),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\nwhen = \"host == \\\"a\\\" &&@@\"\n",
            "rules[0].when",
            "",
        ),
        // Source of server connections.
        (
            "{L}{C}[[pools]]\nname = \"web\"\nsource = @@\"server\"\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\n",
            "pools[0].source",
            "`client`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nsource = \"client\"\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\n\
             [node]\nuser = @@\"guest\"\n",
            "node.user",
            "CAP_NET_RAW",
        ),
        // Process.
        ("{L}{C}{P}[node]\nuser = @@\"a b\"\n", "node.user", "existing user"),
        (
            "{L}{C}{P}[timeouts]\ntunnel_idle_ms = @@1000\n",
            "timeouts.tunnel_idle_ms",
            "the longer of the two",
        ),
        ("{L}{C}{P}[logs]\naccess = @@\"\"\n", "logs.access", "\"stdout\""),
        ("{L}{C}{P}[admin]\nsocket = @@\"\"\n", "admin.socket", "\"off\""),
        ("{L}{C}{P}[admin]\nmetrics_listen = @@\"9090\"\n", "admin.metrics_listen", "`:9090`"),
        ("{L}{C}{P}[admin]\nmetrics_listen = @@\":9443\"\n", "admin.metrics_listen", "port of their own"),
        (
            "{L}{C}{P}[admin]\nmetrics_listen = @@\"127.0.0.1:9443\"\n",
            "admin.metrics_listen",
            "already, \":9443\"",
        ),
        (
            "{L}[[listeners]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\nprotocol = \"https\"\npool = \"web\"\n\
             {C}{P}[admin]\nmetrics_listen = @@\"0.0.0.0:1\"\n",
            "admin.metrics_listen",
            "already, \"127.0.0.1:1\"",
        ),
    ];
    expect(Severity::Error, cases);
}

#[test]
fn settings_that_conflict_with_a_session_policy_are_refused() {
    let cases: &[Case] = &[
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\nsticky = @@\"cookie\"\n\
             servers = [{ address = \"app.internal:80\" }]\n",
            "pools[0].sticky",
            "remove `sticky`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"session_only\"\n\
             servers = [{ address = \"app.internal:80\" }]\n\
             [[rules]]\nname = \"r\"\nwhen = 'path == \"/\"'\nroute = \"web\"\nsticky = @@\"source\"\n",
            "rules[0].sticky",
            "remove `sticky` from the rule",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = @@\"session-only\"\n\
             servers = [{ address = \"app.internal:80\" }]\n",
            "pools[0].policy",
            "did you mean `session_only`?",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"lard\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nlard_high = @@20\n",
            "pools[0].sessions.lard_high",
            "25 and 65",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nalpha = @@[10]\n",
            "pools[0].sessions.alpha",
            "write it like `alpha = [10, 1]`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nlambda = @@[1, 0.0]\n",
            "pools[0].sessions.lambda",
            "two numbers between 0.001 and 100",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nlifetime_s = @@\"5 min\"\n",
            "pools[0].sessions.lifetime_s",
            "write `lifetime_s = 300`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nremembered_max = @@0\n",
            "pools[0].sessions.remembered_max",
            "between 1 and 100000000",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nfallback = @@\"sin\"\n",
            "pools[0].sessions.fallback",
            "did you mean `sni`?",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\n\
             [[pools.servers]]\naddress = \"app.internal:80\"\nfull_us = 500\nresumed_us = 20\n\
             @@[[pools.servers]]\naddress = \"app.internal:81\"\n",
            "pools[0].servers[1].full_us",
            "to every server of the pool, or to none",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\n\
             @@[[pools.servers]]\naddress = \"app.internal:80\"\nfull_us = 500\n",
            "pools[0].servers[0].resumed_us",
            "could not be compared",
        ),
    ];
    expect(Severity::Error, cases);
}

#[test]
fn settings_that_a_session_policy_ignores_are_warned_of() {
    let cases: &[Case] = &[
        (
            "{L}{C}[[pools]]\nname = \"web\"\nservers = [{ address = \"app.internal:80\" }]\n\
             @@[pools.sessions]\nlifetime_s = 60\n",
            "pools[0].sessions",
            "does not go by session",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"session_only\"\n\
             servers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nalpha = @@[5, 1]\nlambda = [1.0, 2]\n",
            "pools[0].sessions.alpha",
            "it is for `policy = \"sslsard\"`; remove it",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"bounded_hash\"\n\
             servers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nremembered_max = @@5\n",
            "pools[0].sessions.remembered_max",
            "`policy = \"sslsard\"`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"lard\"\n\
             servers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nhandshake_costs = @@\"measured\"\n",
            "pools[0].sessions.handshake_costs",
            "it is for `policy = \"sslsard\"`; remove it",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"lard\"\n\
             servers = [{ address = \"app.internal:80\", full_us = @@9, resumed_us = 1 }]\n",
            "pools[0].servers[0].full_us",
            "does not look at costs",
        ),
    ];
    expect(Severity::Warning, cases);
}
