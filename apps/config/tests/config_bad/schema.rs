//! Syntax, keys, types, bounds and words.

use crate::case::{Case, expect};
use evergate_config::Severity;

#[test]
fn file_outside_the_schema_is_refused_at_the_place() {
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
        ("{L}{C}{P}[node]\npid_file = @@\"\"\n", "node.pid_file", "remove `pid_file`"),
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
            "integer 8 to 128; this is a number with a fraction",
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
        (
            "{L}trust_forwarded = [@@1]\n{C}{P}",
            "listeners[0].trust_forwarded[0]",
            "put the element in quotes",
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
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nset_request_headers = { Host = @@\"a b\\tc\" }\n",
            "rules[0].set_request_headers.Host",
            "as in `Host = ",
        ),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nset_request_headers = { host = @@\"\" }\n",
            "rules[0].set_request_headers.host",
            "with or without a port",
        ),
        ("{L}{C}{P}[[rules]]\nname = \"r\"\ndeny = @@200\n", "rules[0].deny", "between 400 and 599"),
        (
            "{L}{C}{P}[[rules]]\nname = \"r\"\nroute = \"web\"\n@@[rules.rate_limit]\nburst = 1\n",
            "rules[0].rate_limit.requests_per_s",
            "add it, such as `requests_per_s = 10`",
        ),
    ];
    expect(Severity::Error, cases);
}
