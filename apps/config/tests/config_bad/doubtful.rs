//! Doubtful settings, which are used with a warning.

use crate::case::{Case, expect};
use evergate_config::Severity;

#[test]
fn doubtful_file_is_used_with_a_warning() {
    let cases: &[Case] = &[
        (
            "{L}{C}{P}@@[[pools]]\nname = \"b\"\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\n",
            "pools[1]",
            "no listener or rule uses",
        ),
        (
            "{L}certificates = [\"local\"]\n{C}@@[[certificates]]\nname = \"b\"\nself_signed = [\"b\"]\n{P}",
            "certificates[1]",
            "no listener uses",
        ),
        ("{L}{C}{P}[node]\nuser = @@\"unknown\"\n", "node.user", "useradd"),
        (
            "{L}[[certificates]]\nname = \"local\"\nchain = \"c.pem\"\nkey = @@\"k.pem\"\n\
             {P}[node]\nuser = \"guest\"\n",
            "certificates[0].key",
            "chgrp guest /base/k.pem",
        ),
        ("{L}{C}{P}[node]\npid_file = @@\"none/pid\"\n", "node.pid_file", "create the folder"),
        ("{L}{C}{P}[logs]\naccess = @@\"closed\"\n", "logs.access", "is a folder"),
        (
            "{L}{C}{P}[node]\nuser = \"guest\"\n[logs]\naccess = @@\"closed/access.json\"\n",
            "logs.access",
            "chown guest /base/closed",
        ),
        ("{L}{C}{P}@@[tls.old]\n", "tls.old", "no listener uses"),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"lard\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nfallback = @@\"sni\"\n",
            "pools[0].sessions.fallback",
            "no `passthrough` listener leads to this pool",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\n\
             servers = [{ address = \"app.internal:80\" }]\n[pools.sessions]\nhandshake_costs = @@\"measured\"\n",
            "pools[0].sessions.handshake_costs",
            "the configured costs stay in force",
        ),
        (
            "{L}{C}{P}@@[[pools]]\nname = \"b\"\nsticky_cookie = \"EVERGATE_web\"\n\
             [[pools.servers]]\naddress = \"10.0.0.1:80\"\n\
             [[rules]]\nname = \"r\"\nwhen = 'path == \"/r\"'\nroute = \"web\"\nsticky = \"cookie\"\n\
             [[rules]]\nname = \"s\"\nwhen = 'path == \"/s\"'\nroute = \"b\"\nsticky = \"cookie\"\n",
            "pools[1]",
            "placed again",
        ),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nwhen = @@'header(\"X_Forwarded_For\").exists()'\ndeny = 403\n",
            "rules[0].when",
            "trust_forwarded",
        ),
        (
            "{L}trust_forwarded = true\n{C}{P}[[rules]]\nname = \"r\"\n\
             when = @@'!header(\"x-forwarded-for\").exists() || header(\"keep-alive\") == \"1\"'\ndeny = 403\n",
            "rules[0].when",
            "the header \"keep-alive\" of any client",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nsource = @@\"client\"\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\n",
            "pools[0].source",
            "a right is missing",
        ),
        (
            "{L}{C}{P}[[pools.servers]]\naddress = @@\"10.0.0.1:443\"\n",
            "pools[0].servers[1].address",
            "`[pools.tls]`",
        ),
        (
            "{L}trusted_proxies = @@[\"10.0.0.0/8\"]\n{C}{P}",
            "listeners[0].trusted_proxies",
            "add `proxy_protocol = true`",
        ),
        ("{L}{C}{P}[pools.tls]\nverify = @@false\n", "pools[0].tls.verify", "name the authority"),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"http\"\npool = \"b\"\n\
             {C}[[pools]]\nname = \"web\"\nsticky = \"cookie\"\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\n\
             @@[[pools]]\nname = \"b\"\nsticky = \"cookie\"\nsticky_cookie = \"EVERGATE_web\"\n\
             [[pools.servers]]\naddress = \"10.0.0.2:80\"\n",
            "pools[1]",
            "placed again",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\":443\"\nprotocol = \"http\"\npool = \"web\"\n{C}{P}",
            "listeners[1].address",
            "port 80",
        ),
        (
            "{L}@@[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].pool",
            "404",
        ),
        (
            "[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"http\"\nredirect_to_https = @@true\n",
            "listeners[0].redirect_to_https",
            "port 443",
        ),
        (
            // The clients of this listener come from other networks than those of the first one.
            "[[listeners]]\nname = \"a\"\naddress = \"127.0.0.1:8443\"\nprotocol = \"https\"\npool = \"web\"\n\
             certificates = [\"local\"]\n[[listeners]]\nname = \"b\"\naddress = \":80\"\nprotocol = \"http\"\n\
             redirect_to_https = @@true\n{C}{P}",
            "listeners[1].redirect_to_https",
            "port 443",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nqueue_max = @@5\n[[pools.servers]]\naddress = \"app.internal:80\"\n",
            "pools[0].queue_max",
            "`connections_max`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nkeep_alive_idle_max = 0\nkeep_alive_idle_ms = @@5\n\
             [[pools.servers]]\naddress = \"app.internal:80\"\n",
            "pools[0].keep_alive_idle_ms",
            "no effect",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nsticky_cookie = @@\"A\"\n\
             [[pools.servers]]\naddress = \"app.internal:80\"\n",
            "pools[0].sticky_cookie",
            "`sticky = \"cookie\"`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nsticky_load_percent_max = @@125\n\
             [[pools.servers]]\naddress = \"app.internal:80\"\n",
            "pools[0].sticky_load_percent_max",
            "`sticky = \"source\"`",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = \"c.pem\"\nkey = @@\"open.pem\"\n{P}",
            "certificates[0].key",
            "chmod",
        ),
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\ntickets = false\nticket_rotate_s = @@60\n",
            "tls.a.ticket_rotate_s",
            "tickets = false",
        ),
        ("{L}{C}{P}[node]\ngroup = @@\"www\"\n", "node.group", "without `user`"),
        ("{L}{C}{P}[admin]\nmetrics_listen = @@\":9090\"\n", "admin.metrics_listen", "127.0.0.1:9090"),
        (
            "{L}{C}{P}[limits]\nbody_bytes_max = 100\nbody_prefix_bytes = @@200\n",
            "limits.body_prefix_bytes",
            "body_prefix_bytes = 100",
        ),
        (
            "{L}limits = { connections_max = 5, connections_per_source_max = @@10 }\n{C}{P}",
            "listeners[0].limits.connections_per_source_max",
            "no effect",
        ),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\ndeny = @@401\n",
            "rules[0].deny",
            "WWW-Authenticate = \"Bearer\"",
        ),
        ("{L}{C}{P}[[rules]]\nname = \"r\"\ndeny = @@405\n", "rules[0].deny", "Allow"),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\ndeny = @@407\nset_response_headers = { Allow = \"GET\" }\n",
            "rules[0].deny",
            "Proxy-Authenticate",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":80\"\nprotocol = \"http\"\nredirect_to_https = true\n\
             {C}{P}[[rules]]\nname = \"r\"\nlisteners = [\"public\", @@\"b\"]\ndeny = 403\n",
            "rules[0].listeners[1]",
            "`redirect = \"https://${host}${path}?${query}\"`",
        ),
        ("{L}{C}{P}[timeouts]\nkeep_alive_ms = @@1000\n", "timeouts.keep_alive_ms", "request_head_ms"),
    ];
    expect(Severity::Warning, cases);
}
