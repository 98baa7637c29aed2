//! Schema of what clients meet: listeners, certificates, TLS settings, rules.

use super::schema::{Default, Key, Kind, Section, optional, required, with_default};
use super::schema_node as node;

/// `[[listeners]]`
pub(super) static LISTENER: Section = Section {
    header: "[[listeners]]",
    about: "An address where clients connect.",
    keys: &[
        required("name", Kind::Text, "\"public\"", "The name used by rules, logs and metrics."),
        required(
            "address",
            Kind::Text,
            "\":443\"",
            "`\":443\"` for IPv4 and IPv6, `\"0.0.0.0:443\"` for IPv4 only, `\"[::]:443\"` for IPv6 only, or one address of this machine.",
        ),
        required(
            "protocol",
            Kind::Choice(&["https", "http", "tls", "tcp"]),
            "\"https\"",
            "`https` and `http` route each request; `tls` terminates TLS and passes bytes on, `tcp` passes bytes on.",
        ),
        optional(
            "certificates",
            Kind::Texts,
            "all certificates",
            "[\"example\"]",
            "Names of `[[certificates]]` to choose from by SNI. The first is used for clients without a matching SNI.",
        ),
        optional("tls", Kind::Text, "built-in settings", "\"modern\"", "Name of a `[tls.NAME]` table."),
        optional(
            "pool",
            Kind::Text,
            "none: 404 without a matching rule",
            "\"web\"",
            "Pool for what no rule routes. Required for `tcp` and `tls`.",
        ),
        with_default(
            "trust_forwarded",
            Kind::Bool,
            "false",
            "Whether `X-Forwarded-For`, `Forwarded` and their like are passed on as the client sent them, and seen by rules as headers. Only behind another proxy: anyone else can write what they like. `client.ip`, `sticky = \"source\"`, rate limits and limits per source stay those of who connected.",
        ),
        with_default(
            "redirect_to_https",
            Kind::Bool,
            "false",
            "Answer every request with a redirect (308) to the https listener (`http` only), before any rule is asked. Where some requests are to be answered otherwise, see [rules](rules.md#redirects).",
        ),
        optional(
            "limits",
            Kind::OptionalTable(&LISTENER_LIMITS),
            "`[limits]`",
            "{ body_bytes_max = 1_000_000 }",
            "Limits of this listener, see `[listeners.limits]`.",
        ),
    ],
};

/// `[listeners.limits]`
pub(super) static LISTENER_LIMITS: Section = Section {
    header: "[listeners.limits]",
    about: "Limits of one listener, in the place of those in `[limits]`.",
    keys: &[
        inherited(node::CONNECTIONS_MAX),
        inherited(node::CONNECTIONS_PER_SOURCE_MAX),
        inherited(node::HEAD_BYTES_MAX),
        inherited(node::HEADERS_MAX),
        inherited(node::BODY_BYTES_MAX),
        inherited(node::BODY_PREFIX_BYTES),
        inherited(node::REQUESTS_PER_CONNECTION_MAX),
        inherited(node::BYTES_PER_S_MIN),
    ],
};

const fn inherited(key: Key) -> Key {
    Key {
        name: key.name,
        kind: key.kind,
        default: Default::Otherwise("as in `[limits]`"),
        example: key.example,
        meaning: "See `[limits]`.",
    }
}

/// `[[certificates]]`
pub(super) static CERTIFICATE: Section = Section {
    header: "[[certificates]]",
    about: "A server certificate with its key: either `chain` and `key`, or `self_signed`.",
    keys: &[
        required("name", Kind::Text, "\"example\"", "The name used by listeners, logs and metrics."),
        optional(
            "chain",
            Kind::Text,
            "none",
            "\"certs/example.com.pem\"",
            "PEM file: the certificate first, then its issuers.",
        ),
        optional(
            "key",
            Kind::Text,
            "none",
            "\"certs/example.com.key\"",
            "PEM file of the private key, not encrypted.",
        ),
        optional(
            "self_signed",
            Kind::Texts,
            "none",
            "[\"localhost\"]",
            "Make a certificate for these names at start, for tests. Clients will not trust it.",
        ),
    ],
};

/// `[tls.NAME]`
pub(super) static TLS: Section = Section {
    header: "[tls.NAME]",
    about: "TLS settings that listeners refer to by NAME. A listener without `tls` uses these defaults.",
    keys: &[
        with_default(
            "min_version",
            Kind::Choice(&["1.2", "1.3"]),
            "\"1.2\"",
            "Oldest protocol version accepted.",
        ),
        with_default(
            "max_version",
            Kind::Choice(&["1.2", "1.3"]),
            "\"1.3\"",
            "Newest protocol version offered.",
        ),
        with_default(
            "alpn",
            Kind::Texts,
            "[\"http/1.1\", \"http/1.0\"]",
            "Application protocols offered, preferred first; `[]` offers none. `https` listeners speak these two only.",
        ),
        with_default(
            "client_certificates",
            Kind::Choice(&["none", "optional", "required"]),
            "\"none\"",
            "Whether clients are asked for a certificate. A session that is resumed has that of its full handshake, while it is good and for 12 hours at most.",
        ),
        optional(
            "client_ca",
            Kind::Text,
            "none",
            "\"certs/clients-ca.pem\"",
            "PEM file of the authorities that issue client certificates. A certificate in it that is no authority's (basicConstraints CA:TRUE, keyCertSign where there is a keyUsage) is passed over: it vouches neither for others nor for itself. Clients are told the authorities' names if these have no more than 16128 bytes in all.",
        ),
        with_default(
            "tickets",
            Kind::Bool,
            "true",
            "Whether sessions can be resumed with tickets: for 12 hours after the full handshake, and not after the client's certificate expires.",
        ),
        optional(
            "ticket_keys",
            Kind::Text,
            "random keys of this process; in a cluster, keys that all nodes derive",
            "\"certs/ticket.keys\"",
            "File with the keys that tickets are encrypted with, the newest first, at most 3: 64 random bytes each, as `(umask 077; openssl rand -out FILE 64)` makes them, or a line each with these bytes in base64 and, optionally, the unix time from which the key encrypts. Nodes that share it resume each other's sessions.",
        ),
        with_default(
            "ticket_rotate_s",
            Kind::Integer(60, 604_800),
            "43200",
            "How long a ticket key encrypts new tickets. It decrypts for as long again. Keys of a file stay until the file changes.",
        ),
        with_default(
            "session_id_lifetime_s",
            Kind::Integer(0, 43_200),
            "3600",
            "How long a TLS 1.2 client without tickets can resume a session by its id; 0 = not at all. A session ends with its client's certificate in any case. Sessions are kept in `limits.session_cache_mb`.",
        ),
    ],
};

/// `[[rules]]`
pub(super) static RULE: Section = Section {
    header: "[[rules]]",
    about: "A condition with what to do when it holds. [rules.md](rules.md) describes conditions, and how a request is decided.",
    keys: &[
        required("name", Kind::Text, "\"api\"", "The name used in logs, metrics and explanations."),
        rule(
            "when",
            Kind::Text,
            "always",
            "'path.path_prefix(\"/api\")'",
            "The condition, in the language of [rules.md](rules.md). Single quotes spare escapes.",
        ),
        rule(
            "priority",
            Kind::Integer(i64::MIN, i64::MAX),
            "`0`",
            "10",
            "Rules with a higher priority are tried first; with the same, the one earlier in the file.",
        ),
        rule(
            "listeners",
            Kind::Texts,
            "all",
            "[\"public\"]",
            "Names of the `https` and `http` listeners it is for.",
        ),
        rule("route", Kind::Text, "none", "\"web\"", "Send the request to this pool."),
        rule(
            "sticky",
            Kind::Choice(&["none", "cookie", "source"]),
            "as the pool says",
            "\"cookie\"",
            "With `route`: how the client is kept on its server.",
        ),
        rule("deny", Kind::Integer(400, 599), "none", "403", "Answer with this status."),
        rule(
            "redirect",
            Kind::Text,
            "none",
            "\"https://example.com${path}\"",
            "Answer with a redirect to this location; `${host}`, `${path}` and `${query}` are filled in.",
        ),
        rule(
            "redirect_status",
            Kind::Integer(301, 308),
            "`302`",
            "301",
            "With `redirect`: 301, 302, 303, 307 or 308.",
        ),
        rule(
            "set_request_headers",
            Kind::TextTable,
            "none",
            "{ X-Tenant = \"a\" }",
            "Headers set on the request, in the place of those with the same name.",
        ),
        rule(
            "remove_request_headers",
            Kind::Texts,
            "none",
            "[\"X-Debug\"]",
            "Headers removed from the request.",
        ),
        rule(
            "set_response_headers",
            Kind::TextTable,
            "none",
            "{ Cache-Control = \"no-store\" }",
            "Headers set on the response, in the place of those with the same name.",
        ),
        rule(
            "remove_response_headers",
            Kind::Texts,
            "none",
            "[\"Server\"]",
            "Headers removed from the response.",
        ),
        rule(
            "rate_limit",
            Kind::OptionalTable(&RATE_LIMIT),
            "none",
            "{ requests_per_s = 10, burst = 20 }",
            "Answer with 429 beyond a rate, see `[rules.rate_limit]`.",
        ),
        rule(
            "audit",
            Kind::Bool,
            "`false`",
            "true",
            "Mark the access-log lines of matching requests (`audit`).",
        ),
        rule(
            "class",
            Kind::Text,
            "none",
            "\"gold\"",
            "Service class of matching requests, for the log and for `pools.queue_classes`.",
        ),
        rule(
            "unknown",
            Kind::Choice(&["no_match", "match", "deny"]),
            "`\"no_match\"`",
            "\"deny\"",
            "What holds when the condition cannot be decided (body malformed, or larger than rules look at).",
        ),
    ],
};

/// `[rules.rate_limit]`
pub(super) static RATE_LIMIT: Section = Section {
    header: "[rules.rate_limit]",
    about: "A token bucket per value of `key`.",
    keys: &[
        required("requests_per_s", Kind::Integer(1, 4_294_967_295), "10", "Sustained rate."),
        required("burst", Kind::Integer(1, 4_294_967_295), "20", "Requests that may come at once."),
        rule(
            "key",
            Kind::Choice(&["source", "host", "global"]),
            "`\"source\"`",
            "\"source\"",
            "What has a bucket of its own: each client (an IPv4 address or an IPv6 network of 64 bits), each host, or the rule.",
        ),
    ],
};

/// A key of a rule: its default belongs to the rules' own reader, here it is only described.
const fn rule(
    name: &'static str,
    kind: Kind,
    otherwise: &'static str,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    optional(name, kind, otherwise, example, meaning)
}
