//! Bad configurations: each is refused with a problem at the right place that says what to do.
//!
//! In the texts, `@@` marks the place of the expected problem; `{L}`, `{C}` and `{P}` stand for a good
//! listener, certificate and pool.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use evergate::config::{Problem, Severity, World, parse_with};

const LISTENER: &str =
    "[[listeners]]\nname = \"public\"\naddress = \":9443\"\nprotocol = \"https\"\npool = \"web\"\n";
const CERTIFICATE: &str = "[[certificates]]\nname = \"local\"\nself_signed = [\"localhost\"]\n";
const POOL: &str = "[[pools]]\nname = \"web\"\n[[pools.servers]]\naddress = \"127.0.0.1:8080\"\n";

const CLUSTER: &str = "[node]\nworkers = 2\n\
    [[listeners]]\nname = \"l\"\naddress = \"203.0.113.10:80\"\nprotocol = \"tcp\"\npool = \"p\"\n\
    [[pools]]\nname = \"p\"\nservers = [{ address = \"10.0.1.50:80\" }]\n\
    [cluster]\nname = \"edge\"\nkey_file = \"cluster.key\"\naddresses = [\"203.0.113.10\"]\n\
    server_source = [\"10.0.1.100\"]\ninside_interface = \"eth1\"\noutside_interface = \"eth0\"\n\
    witness = [\"10.0.1.254\"]\n\
    [[cluster.nodes]]\nnumber = 1\ninside = \"10.0.1.1\"\noutside = \"203.0.113.1\"\n\
    [[cluster.nodes]]\nnumber = 2\ninside = \"10.0.1.2\"\noutside = \"203.0.113.2\"\n";

/// A machine with a few files and one host name.
struct Small;

impl World for Small {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let pem =
            |label: &str| Ok(format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n").into_bytes());
        match path.to_str() {
            Some("/base/c.pem") => pem("CERTIFICATE"),
            Some("/base/k.pem" | "/base/open.pem") => pem("PRIVATE KEY"),
            Some("/base/encrypted.pem") => pem("ENCRYPTED PRIVATE KEY"),
            Some("/base/empty") => Ok(Vec::new()),
            Some("/base/cluster.key") => Ok(b"0123456789abcdef".repeat(4)),
            Some("/base/short.key") => Ok(b"0123456789abcdef".repeat(3)),
            Some("/base/denied.pem") => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn is_readable_by_all(&self, path: &Path) -> bool {
        path.ends_with("open.pem")
    }

    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match host {
            "app.internal" => Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]),
            "nobody.internal" => Ok(Vec::new()),
            _ => Err(io::Error::other("unknown host")),
        }
    }
}

/// The text without its marker, and line and column of the marker, or (0, 0).
fn unmark(text: &str) -> (String, (usize, usize)) {
    let text = text.replace("{L}", LISTENER).replace("{C}", CERTIFICATE).replace("{P}", POOL);
    let Some(at) = text.find("@@") else { return (text, (0, 0)) };
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (text.replacen("@@", "", 1), (line, column))
}

fn problems_of(text: &str) -> Vec<Problem> {
    match parse_with(text, "test.toml", Path::new("/base"), &Small) {
        Ok(loaded) => loaded.warnings,
        Err(problems) => {
            assert!(problems.iter().any(|p| p.severity == Severity::Error), "refused without an error");
            problems
        }
    }
}

/// A text, the key of its only problem, and a part of what the problem says.
type Case<'a> = (&'a str, &'a str, &'a str);

/// Checks that each text has exactly one problem of this severity, with this key, place and advice.
fn expect(severity: Severity, cases: &[Case<'_>]) {
    let failures: Vec<String> = cases.iter().filter_map(|case| failure(severity, case)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n----\n"));
}

fn failure(severity: Severity, (text, key, advice): &Case<'_>) -> Option<String> {
    let (text, place) = unmark(text);
    let problems = problems_of(&text);
    let found: Vec<&Problem> = problems.iter().filter(|p| p.severity == severity).collect();
    let said = |p: &Problem| format!("{} {} {}", p.what, p.consequence, p.remedy);
    let complaint = match found[..] {
        [p] if p.key != *key => format!("the key is {:?}, not {key:?}", p.key),
        [p] if (p.line, p.column) != place => format!("the place is {}:{}, not {place:?}", p.line, p.column),
        [p] if !said(p).contains(advice) => format!("{advice:?} is not said"),
        [p] if p.remedy.is_empty() || p.consequence.is_empty() => "consequence or remedy is empty".to_owned(),
        [_] if severity == Severity::Warning && problems.len() > 1 => "there are errors".to_owned(),
        [_] => return None,
        _ => format!("{} problems of {severity:?} for {key}", found.len()),
    };
    let shown: String = problems.iter().map(|p| format!("{p}\n")).collect();
    Some(format!("{complaint}\n{text}\n{shown}"))
}

#[test]
fn a_file_that_does_not_fit_the_schema_is_refused_at_the_place_with_advice() {
    let cases: &[Case] = &[
        // Syntax.
        ("[node@@\n", "", "not TOML"),
        ("{L}{C}{P}workers = @@oops\n", "", "in double quotes"),
        ("{L}{C}{P}[node]\nworkers = 1\n@@workers = 2\n", "", "duplicate key"),
        // Unknown keys.
        ("@@listener = 1\n{L}{C}{P}", "listener", "did you mean `listeners`?"),
        ("{L}@@adress = \":1\"\n{C}{P}", "listeners[0].adress", "did you mean `address`?"),
        ("{L}@@weight = 1\n{C}{P}", "listeners[0].weight", "`weight` is a key of `[[pools.servers]]`"),
        (
            "{L}{C}{P}@@max_connections = 1\n",
            "pools[0].servers[0].max_connections",
            "did you mean `connections_max`?",
        ),
        ("{L}{C}{P}[timeouts]\n@@handshake = 1\n", "timeouts.handshake", "did you mean `handshake_ms`?"),
        ("{L}{C}{P}[@@zzz]\n", "zzz", "the top level has no key `zzz`"),
        ("{L}{C}{P}[tls.a]\n@@versions = 1\n[tls.b]\n", "tls.a.versions", "Keys of `[tls.NAME]`"),
        (
            "{L}{C}{P}[pools.health]\n@@expect = 200\n",
            "pools[0].health.expect",
            "did you mean `expect_status`?",
        ),
        ("{L}{C}{P}[[rules]]\nname = \"r\"\n@@wehn = \"true\"\n", "rules[0].wehn", "did you mean `when`?"),
        // Types.
        ("{L}{C}{P}[node]\nworkers = @@\"4\"\n", "node.workers", "write `workers = 4`"),
        (
            "{L}{C}{P}[timeouts]\nhandshake_ms = @@\"10s\"\n",
            "timeouts.handshake_ms",
            "write `handshake_ms = 10000`",
        ),
        (
            "{L}{C}{P}[limits]\nhead_bytes_max = @@\"16k\"\n",
            "limits.head_bytes_max",
            "`head_bytes_max = 16384`",
        ),
        (
            "{L}{C}{P}[limits]\nheaders_max = @@1.5\n",
            "limits.headers_max",
            "integer 8 to 1000; this is a number with a fraction",
        ),
        (
            "{L}certificates = @@\"local\"\n{C}{P}",
            "listeners[0].certificates",
            "`certificates = [\"local\"]`",
        ),
        (
            "{L}certificates = [\"local\", @@7]\n{C}{P}",
            "listeners[0].certificates[1]",
            "put the element in quotes",
        ),
        (
            "{L}trust_forwarded = @@\"yes\"\n{C}{P}",
            "listeners[0].trust_forwarded",
            "`trust_forwarded = true`",
        ),
        ("listeners = @@\"x\"\n{C}{P}", "listeners", "`[[listeners]]`"),
        ("@@[listeners]\nname = \"x\"\n{C}{P}", "listeners", "double brackets"),
        ("node = @@3\n{L}{C}{P}", "node", "under the header `[node]`"),
        ("{L}{C}{P}[tls]\nx = @@3\n", "tls.x", "under the header `[tls.x]`"),
        ("{L}@@pools = [1]\n{C}{P}", "listeners[0].pools", "did you mean `pool`?"),
        ("pools = [@@1]\n{L}{C}", "pools[0]", "an element of `pools` is a table"),
        ("{L}{C}{P}[logs]\nformat = @@7\n", "logs.format", "with quotes"),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nset_request_headers = { a = @@1 }\n",
            "rules[0].set_request_headers.a",
            "in quotes",
        ),
        // Bounds and words.
        ("{L}{C}{P}[node]\nworkers = @@0\n", "node.workers", "between 1 and 1024"),
        ("{L}{C}{P}[timeouts]\nkeep_alive_ms = @@-1\n", "timeouts.keep_alive_ms", "between 1 and"),
        ("{L}{C}{P}[timeouts]\ndrain_ms = @@99999999999999999999999\n", "timeouts.drain_ms", "between 1 and"),
        ("{L}{C}{P}weight = @@1001\n", "pools[0].servers[0].weight", "between 1 and 1000"),
        ("{L}{C}{P}[limits]\nbuffers_max_mb = @@0x1\n", "limits.buffers_max_mb", "between 16"),
        (
            "[[listeners]]\nname = \"a\"\naddress = \":1\"\nprotocol = @@\"htps\"\npool = \"web\"\n{C}{P}",
            "listeners[0].protocol",
            "did you mean `https`?",
        ),
        ("{L}{C}{P}[pools.health]\nkind = @@\"ping\"\n", "pools[0].health.kind", "use one of `http`, `tcp`"),
        ("{L}{C}{P}[logs]\nformat = @@\"csv\"\n", "logs.format", "`json`"),
        ("{L}{C}{P}[[rules]]\nname = \"r\"\ndeny = @@200\n", "rules[0].deny", "between 400 and 599"),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\n@@[rules.rate_limit]\nburst = 1\n",
            "rules[0].rate_limit.requests_per_s",
            "add it, such as `requests_per_s = 10`",
        ),
    ];
    expect(Severity::Error, cases);
}

#[test]
fn a_file_that_contradicts_itself_is_refused_at_the_place_with_advice() {
    let cases: &[Case] = &[
        // Listeners.
        ("{C}{P}", "listeners", "add `[[listeners]]`"),
        (
            "@@[[listeners]]\naddress = \":1\"\nprotocol = \"https\"\n{C}{P}",
            "listeners[0].name",
            "`name = \"public\"`",
        ),
        (
            "@@[[listeners]]\nname = \"a\"\nprotocol = \"https\"\n{C}{P}",
            "listeners[0].address",
            "`address = \":443\"`",
        ),
        (
            "@@[[listeners]]\nname = \"a\"\naddress = \":1\"\n{C}{P}",
            "listeners[0].protocol",
            "`protocol = \"https\"`",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"[::]:9443\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "`listeners[0]` listens on that address",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"0.0.0.0:9443\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "own port",
        ),
        (
            "{L}[[listeners]]\nname = @@\"public\"\naddress = \":1\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].name",
            "taken by `listeners[0]`",
        ),
        (
            "{L}[[listeners]]\nname = @@\"a b\"\naddress = \":1\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].name",
            "1 to 64 letters",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"9000\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "`:9000`",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"127.0.0.1\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "has no port",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\":0\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "1 to 65535",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = @@\"example.com:80\"\nprotocol = \"http\"\n{C}{P}",
            "listeners[1].address",
            "`:80`",
        ),
        (
            "{L}@@[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"tcp\"\n{C}{P}",
            "listeners[1].pool",
            "`tcp` connection would have no server",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"http\"\npool = @@\"wbe\"\n{C}{P}",
            "listeners[1].pool",
            "did you mean `web`?",
        ),
        ("{L}certificates = [@@\"locl\"]\n{C}{P}", "listeners[0].certificates[0]", "did you mean `local`?"),
        ("{L}certificates = @@[]\n{C}{P}", "listeners[0].certificates", "name at least one"),
        ("{L}certificates = [\"local\", @@\"local\"]\n{C}{P}", "listeners[0].certificates[1]", "twice"),
        (
            "[[listeners]]\nname = \"public\"\naddress = \":9443\"\nprotocol = @@\"https\"\npool = \"web\"\n{P}",
            "listeners[0].protocol",
            "self_signed",
        ),
        ("{L}tls = @@\"modern\"\n{C}{P}", "listeners[0].tls", "`[tls.NAME]`"),
        (
            "{L}tls = @@\"h2\"\n{C}{P}[tls.h2]\nalpn = [\"h2\", \"http/1.1\"]\n",
            "listeners[0].tls",
            "remove \"h2\" from `alpn`",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"http\"\ncertificates = @@[\"local\"]\n{C}{P}",
            "listeners[1].certificates",
            "does not speak TLS",
        ),
        ("{L}redirect_to_https = @@true\n{C}{P}", "listeners[0].redirect_to_https", "only `http` listeners"),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"tcp\"\npool = \"web\"\ntrust_forwarded = @@true\n{C}{P}",
            "listeners[1].trust_forwarded",
            "HTTP headers",
        ),
        (
            "{L}[[listeners]]\nname = \"b\"\naddress = \":1\"\nprotocol = \"tcp\"\npool = @@\"c\"\n{C}{P}[[pools]]\nname = \"c\"\nsticky = \"cookie\"\n[[pools.servers]]\naddress = \"10.0.0.1:80\"\n",
            "listeners[1].pool",
            "`sticky = \"source\"`",
        ),
        // Certificates.
        ("{L}@@[[certificates]]\nname = \"a\"\n{P}", "certificates[0]", "neither files nor names"),
        ("{L}@@[[certificates]]\nname = \"a\"\nchain = \"c.pem\"\n{P}", "certificates[0].key", "add `key`"),
        ("{L}@@[[certificates]]\nname = \"a\"\nkey = \"k.pem\"\n{P}", "certificates[0].chain", "add `chain`"),
        (
            "{L}[[certificates]]\nname = \"a\"\nself_signed = @@[\"a\"]\nkey = \"k.pem\"\n{P}",
            "certificates[0].self_signed",
            "not both",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nself_signed = @@[]\n{P}",
            "certificates[0].self_signed",
            "empty",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nself_signed = [@@\"a:80\"]\n{P}",
            "certificates[0].self_signed[0]",
            "without port",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"x.pem\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "relative paths begin at the folder",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"denied.pem\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "cannot be read",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"k.pem\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "exchanged",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = \"c.pem\"\nkey = @@\"c.pem\"\n{P}",
            "certificates[0].key",
            "exchanged",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = \"c.pem\"\nkey = @@\"encrypted.pem\"\n{P}",
            "certificates[0].key",
            "decrypt",
        ),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = @@\"empty\"\nkey = \"k.pem\"\n{P}",
            "certificates[0].chain",
            "BEGIN CERTIFICATE",
        ),
        // TLS.
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nmin_version = @@\"1.3\"\nmax_version = \"1.2\"\n",
            "tls.a.min_version",
            "newer than `max_version`",
        ),
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nmax_version = @@\"1.1\"\n",
            "tls.a.max_version",
            "use one of `1.2`, `1.3`",
        ),
        (
            "{L}tls = \"a\"\n{C}{P}@@[tls.a]\nclient_certificates = \"required\"\n",
            "tls.a.client_ca",
            "authorities",
        ),
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nclient_ca = @@\"c.pem\"\n",
            "tls.a.client_ca",
            "`client_certificates = \"required\"`",
        ),
        ("{L}tls = \"a\"\n{C}{P}[tls.a]\nalpn = [@@\"\"]\n", "tls.a.alpn[0]", "registered ids"),
        (
            "{L}tls = \"a\"\n{C}{P}[tls.a]\nticket_keys = @@\"empty\"\n",
            "tls.a.ticket_keys",
            "fewer than 32 bytes",
        ),
    ];
    expect(Severity::Error, cases);
}

#[test]
fn bad_pools_rules_and_settings_are_refused_at_the_place_with_advice() {
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
            "{L}{C}{P}[[pools.servers]]\naddress = @@\"nobody.internal:80\"\n",
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
            "{L}{C}[[pools]]\nname = \"web\"\nsticky = \"cookie\"\nsticky_cookie = @@\"a b\"\n[[pools.servers]]\naddress = \"app.internal:80\"\n",
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
            "{L}{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\nlisteners = [@@\"pubic\"]\n",
            "rules[0].listeners[0]",
            "did you mean `public`?",
        ),
        (
            "{L}[[listeners]]\nname = \"t\"\naddress = \":1\"\nprotocol = \"tcp\"\npool = \"web\"\n{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\nlisteners = [@@\"t\"]\n",
            "rules[0].listeners[0]",
            "does not read requests",
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
    ];
    expect(Severity::Error, cases);
}

#[test]
fn a_doubtful_file_is_used_with_a_warning() {
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
        ("{L}{C}{P}@@[tls.old]\n", "tls.old", "no listener uses"),
        (
            "{L}{C}{P}[[pools.servers]]\naddress = @@\"10.0.0.1:443\"\n",
            "pools[0].servers[1].address",
            "`[pools.tls]`",
        ),
        ("{L}{C}{P}[pools.tls]\nverify = @@false\n", "pools[0].tls.verify", "name the authority"),
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
            "{L}{C}[[pools]]\nname = \"web\"\nqueue_max = @@5\n[[pools.servers]]\naddress = \"app.internal:80\"\n",
            "pools[0].queue_max",
            "`connections_max`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nkeep_alive_idle_max = 0\nkeep_alive_idle_ms = @@5\n[[pools.servers]]\naddress = \"app.internal:80\"\n",
            "pools[0].keep_alive_idle_ms",
            "no effect",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nsticky_cookie = @@\"A\"\n[[pools.servers]]\naddress = \"app.internal:80\"\n",
            "pools[0].sticky_cookie",
            "`sticky = \"cookie\"`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\nsticky_load_percent_max = @@125\n[[pools.servers]]\naddress = \"app.internal:80\"\n",
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
        ("{L}{C}{P}[timeouts]\nkeep_alive_ms = @@1000\n", "timeouts.keep_alive_ms", "request_head_ms"),
    ];
    expect(Severity::Warning, cases);
}

#[test]
fn all_problems_of_a_file_are_reported_at_once_in_file_order() {
    let text = "[node]\nworkers = 0\nusr = \"x\"\n\
        [[listeners]]\nname = \"a\"\naddress = \"80\"\nprotocol = \"tcp\"\npool = \"nowhere\"\n\
        [[pools]]\nname = \"web\"\nretries = \"2\"\n[pools.health]\npath = \"x\"\n";
    let problems = problems_of(text);
    let errors: Vec<&str> =
        problems.iter().filter(|p| p.severity == Severity::Error).map(|p| p.key.as_str()).collect();
    let expected = [
        "node.workers",
        "node.usr",
        "listeners[0].address",
        "listeners[0].pool",
        "pools[0]",
        "pools[0].retries",
        "pools[0].health.path",
    ];
    assert_eq!(errors, expected);
    assert!(problems.is_sorted_by_key(|p| (p.line, p.column)));
}

#[test]
fn one_mistake_gives_one_message() {
    // The mistyped keys explain why the right ones are missing.
    let text = "[[listeners]]\nnme = \"a\"\nadress = \":1\"\nprotcol = \"http\"\n";
    let errors: Vec<Problem> =
        problems_of(text).into_iter().filter(|p| p.severity == Severity::Error).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
}

#[test]
fn a_problem_reads_well_and_serialises_for_machines() {
    let (text, _) = unmark("{L}{C}{P}weight = 0\n");
    let problems = problems_of(&text);
    assert_eq!(
        problems[0].to_string(),
        "error: test.toml:13:10: pools[0].servers[0].weight = 0\n\
         \x20 problem:     `weight` must be between 1 and 1000\n\
         \x20 consequence: the configuration is refused; a running node keeps its previous one\n\
         \x20 remedy:      choose a value in that range, such as `weight = 1`"
    );
    let json = serde_json::to_value(&problems[0]).unwrap();
    assert_eq!(json["severity"], "error");
    assert_eq!(json["key"], "pools[0].servers[0].weight");
    assert_eq!((json["line"].as_u64(), json["column"].as_u64()), (Some(13), Some(10)));
    assert_eq!(json["value"], "0");
}

/// Replaces a part of a good cluster's file, and expects what [`expect`] does.
fn expect_in_cluster(severity: Severity, cases: &[(&str, &str, &str, &str)]) {
    let texts: Vec<String> = cases
        .iter()
        .map(|(part, by, ..)| {
            assert!(CLUSTER.contains(part), "{part}");
            CLUSTER.replacen(part, by, 1)
        })
        .collect();
    let all: Vec<Case<'_>> =
        texts.iter().zip(cases).map(|(text, (_, _, key, advice))| (text.as_str(), *key, *advice)).collect();
    expect(severity, &all);
}

#[test]
fn a_cluster_that_could_not_work_or_would_not_be_safe_is_refused() {
    let (more, witness) = ("witness = [\"10.0.1.254\"]\n", "witness = [\"10.0.1.254\"]\n");
    let with = |line: &str| format!("{witness}{line}\n");
    let second = "number = 2\ninside = \"10.0.1.2\"";
    let cases: &[(&str, &str, &str, &str)] = &[
        ("workers = 2\n", "workers = 2\nuser = @@\"evergate\"\n", "node.user", "AmbientCapabilities"),
        ("name = \"edge\"", "name = @@\"a b\"", "cluster.name", "letters"),
        ("\"cluster.key\"", "@@\"short.key\"", "cluster.key_file", "evergate cluster key"),
        ("\"cluster.key\"", "@@\"none.key\"", "cluster.key_file", "create it"),
        ("[\"203.0.113.10\"]", "@@[]", "cluster.addresses", "203.0.113.10"),
        ("[\"203.0.113.10\"]", "[@@\"203.0.113.10:80\"]", "cluster.addresses[0]", "without port"),
        ("[\"203.0.113.10\"]", "[@@\"127.0.0.1\"]", "cluster.addresses[0]", "cannot be reached"),
        ("[\"203.0.113.10\"]", "[@@\"fe80::1\"]", "cluster.addresses[0]", "fd00:1::1"),
        ("[\"203.0.113.10\"]", "[@@\"203.0.113.1\"]", "cluster.addresses[0]", "cluster.nodes[0].outside"),
        ("[\"10.0.1.100\"]", "[\"10.0.1.100\", @@\"10.0.1.101\"]", "cluster.server_source[1]", "one IPv4"),
        ("[\"10.0.1.100\"]", "[@@\"10.0.1.2\"]", "cluster.server_source[0]", "cluster.nodes[1].inside"),
        ("\"eth1\"", "@@\"eth1.with.a.long.name\"", "cluster.inside_interface", "ip link"),
        ("\"eth0\"", "@@\"eth/0\"", "cluster.outside_interface", "ip link"),
        (more, &with("virtual_mac = @@\"02:00:5e:00:00\""), "cluster.virtual_mac", "six pairs"),
        (more, &with("virtual_mac = @@\"03:00:5e:00:00:01\""), "cluster.virtual_mac", "even"),
        (more, &with("backups = @@7"), "cluster.backups", "between 1 and 6, or \"all\""),
        (more, &with("backups = @@\"many\""), "cluster.backups", "\"all\""),
        (more, &with("backups = @@true"), "cluster.backups", "\"all\""),
        (more, &with("mode = @@\"quorum\""), "cluster.mode", "majority"),
        (witness, "witness = @@[]\n", "cluster.witness", "mode = \"majority\""),
        (witness, "witness = [@@\"10.0.1.1\"]\n", "cluster.witness[0]", "gateway"),
        (witness, "witness = [@@\"gateway\"]\n", "cluster.witness[0]", "host name"),
        (more, &with("steering = @@\"copy\""), "cluster.steering", "flood"),
        (more, &with("port = @@65535"), "cluster.port", "lower port"),
        (more, &with("ports_per_bucket = @@40"), "cluster.ports_per_bucket", "at most 32"),
        (more, &with("node = @@3"), "cluster.node", "one of the nodes"),
        (more, &with("node = @@33"), "cluster.node", "between 1 and 32"),
        (more, &with("weight = @@-1"), "cluster.weight", "between 0 and 1000"),
        (more, &with("@@timeing = \"bare_metal\""), "cluster.timeing", "`timing`"),
        (second, "number = @@1\ninside = \"10.0.1.2\"", "cluster.nodes[1].number", "its own number"),
        (second, "number = 2\ninside = @@\"10.0.1.1\"", "cluster.nodes[1].inside", "its own address"),
        (second, "number = @@0\ninside = \"10.0.1.2\"", "cluster.nodes[1].number", "between 1 and 32"),
    ];
    expect_in_cluster(Severity::Error, cases);
}

#[test]
fn what_a_cluster_lacks_is_named_with_an_example() {
    for (line, key, advice) in [
        ("workers = 2\n", "cluster", "workers = 4"),
        ("name = \"edge\"\n", "cluster.name", "name = \"edge\""),
        ("key_file = \"cluster.key\"\n", "cluster.key_file", "key_file = \"cluster.key\""),
        ("addresses = [\"203.0.113.10\"]\n", "cluster.addresses", "203.0.113.10"),
        ("server_source = [\"10.0.1.100\"]\n", "cluster.server_source", "10.0.1.100"),
        ("inside_interface = \"eth1\"\n", "cluster.inside_interface", "eth1"),
        ("witness = [\"10.0.1.254\"]\n", "cluster.witness", "10.0.1.254"),
        ("number = 1\n", "cluster.nodes[0].number", "number = 1"),
        ("inside = \"10.0.1.1\"\n", "cluster.nodes[0].inside", "10.0.1.1"),
    ] {
        assert!(CLUSTER.contains(line), "{line}");
        let problems = problems_of(&CLUSTER.replacen(line, "", 1));
        let errors: Vec<&Problem> = problems.iter().filter(|p| p.severity == Severity::Error).collect();
        assert_eq!(errors.iter().map(|p| p.key.as_str()).collect::<Vec<_>>(), [key], "{errors:#?}");
        let said = format!("{} {} {}", errors[0].what, errors[0].consequence, errors[0].remedy);
        assert!(said.contains(advice), "{said}");
    }
    let nodes = CLUSTER.split("[[cluster.nodes]]").next().unwrap();
    assert_eq!(problems_of(nodes).iter().map(|p| p.key.as_str()).collect::<Vec<_>>(), ["cluster.nodes"]);
}

#[test]
fn a_cluster_that_probably_is_not_meant_so_is_told() {
    let witness = "witness = [\"10.0.1.254\"]\n";
    let with = |line: &str| format!("{witness}{line}\n");
    let elsewhere = CLUSTER.replace("203.0.113.10:80", "203.0.113.1:80");
    let cases: &[(&str, &str, &str, &str)] = &[
        ("\"eth1\"", "@@\"eth0\"", "cluster.inside_interface", "two interfaces"),
        (witness, &with("virtual_mac = @@\"00:1b:21:00:00:01\""), "cluster.virtual_mac", "second bit"),
        (witness, &with("backups = @@3"), "cluster.backups", "\"all\""),
        (witness, "mode = \"majority\"\nwitness = @@[\"10.0.1.254\"]\n", "cluster.witness", "remove one"),
        (CLUSTER, &elsewhere.replace("addresses = [", "addresses = @@["), "cluster.addresses", "no listener"),
        ("\"10.0.1.50:80\"", "@@\"[fd00::1]:80\"", "pools[0].servers[0].address", "family"),
    ];
    expect_in_cluster(Severity::Warning, cases);
}

#[test]
fn nodes_of_a_cluster_must_show_clients_the_same_certificate() {
    let text = CLUSTER.replace("protocol = \"tcp\"", "protocol = \"tls\"\ncertificates = [\"c\"]")
        + "[[certificates]]\nname = \"c\"\nself_signed = [\"localhost\"]\n";
    let problems = problems_of(&text);
    let found = problems.iter().find(|p| p.key == "listeners[0]").unwrap_or_else(|| panic!("{problems:#?}"));
    assert!(found.remedy.contains("`chain` and `key`"), "{found}");
}

#[test]
fn what_a_session_policy_cannot_work_with_is_refused() {
    let cases: &[Case] = &[
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"sslsard\"\nsticky = @@\"cookie\"\nservers = [{ address = \"app.internal:80\" }]\n",
            "pools[0].sticky",
            "remove `sticky`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"session_only\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [[rules]]\nname = \"r\"\nwhen = 'path == \"/\"'\nroute = \"web\"\nsticky = @@\"source\"\n",
            "rules[0].sticky",
            "remove `sticky` from the rule",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = @@\"session-only\"\nservers = [{ address = \"app.internal:80\" }]\n",
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
fn what_a_session_policy_does_not_look_at_is_warned_of() {
    let cases: &[Case] = &[
        (
            "{L}{C}[[pools]]\nname = \"web\"\nservers = [{ address = \"app.internal:80\" }]\n@@[pools.sessions]\nlifetime_s = 60\n",
            "pools[0].sessions",
            "does not go by session",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"session_only\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nalpha = @@[5, 1]\nlambda = [1.0, 2]\n",
            "pools[0].sessions.alpha",
            "it is for `policy = \"sslsard\"`; remove it",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"bounded_hash\"\nservers = [{ address = \"app.internal:80\" }]\n\
             [pools.sessions]\nremembered_max = @@5\n",
            "pools[0].sessions.remembered_max",
            "`policy = \"sslsard\"`",
        ),
        (
            "{L}{C}[[pools]]\nname = \"web\"\npolicy = \"lard\"\nservers = [{ address = \"app.internal:80\", full_us = @@9, resumed_us = 1 }]\n",
            "pools[0].servers[0].full_us",
            "does not look at costs",
        ),
    ];
    expect(Severity::Warning, cases);
}
