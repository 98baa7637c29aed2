//! Schema of what clients meet: listeners, certificates, TLS settings, rules.

use super::audit::LISTENER_AUDIT;
use super::node;
use super::{Default, Key, Kind, Section, optional, required, with_default};

/// `[[listeners]]`
pub(crate) static LISTENER: Section = Section {
    header: "[[listeners]]",
    about: "An address where clients connect.",
    keys: &[
        required("name", Kind::Text, "\"public\"", "The name used by rules, logs and metrics."),
        required(
            "address",
            Kind::Text,
            "\":443\"",
            "`\":443\"` for IPv4 and IPv6, `\"0.0.0.0:443\"` for IPv4 only, `\"[::]:443\"` for IPv6 only, or one \
             address of this machine.",
        ),
        required(
            "protocol",
            Kind::Choice(&["https", "http", "tls", "tcp", "passthrough"]),
            "\"https\"",
            "`https` and `http` route each request. `tls` terminates TLS and forwards bytes; `tcp` \
                forwards bytes; `passthrough` routes by the ClientHello and leaves TLS to the servers.",
        ),
        optional(
            "certificates",
            Kind::Texts,
            "all certificates",
            "[\"example\"]",
            "Names of `[[certificates]]`, chosen by SNI. The first one serves clients without a matching \
                SNI.",
        ),
        optional("tls", Kind::Text, "built-in settings", "\"modern\"", "Name of a `[tls.NAME]` table."),
        optional(
            "pool",
            Kind::Text,
            "none: 404 without a matching rule",
            "\"web\"",
            "Pool for requests and connections that no rule routes. Required for `tcp` and `tls`.",
        ),
        with_default(
            "trust_forwarded",
            Kind::BoolOrTexts,
            "false",
            "Whether `X-Forwarded-For`, `Forwarded` and similar headers are forwarded as the client sent \
                them, and visible to rules: of all clients, or of those in networks such as \
                `[\"10.0.0.0/8\"]`. Only behind another proxy: any client can forge them. See below.",
        ),
        with_default(
            "proxy_protocol",
            Kind::Bool,
            "false",
            "Whether each connection begins with a PROXY header, version 1 or 2, whose address counts as the \
                client's everywhere. See below.",
        ),
        with_default(
            "trusted_proxies",
            Kind::Texts,
            "[]",
            "Networks of the proxies that send this header, as `[\"10.0.0.0/8\"]`; required with \
                `proxy_protocol`. Every other peer is refused.",
        ),
        LISTENER_AUDIT,
        with_default(
            "redirect_to_https",
            Kind::Bool,
            "false",
            "Answer every request with a redirect (308) to the https listener, before any rule (`http` \
                only). To answer some requests differently, see [rules](rules.md#redirects).",
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
pub(crate) static LISTENER_LIMITS: Section = Section {
    header: "[listeners.limits]",
    about: "Limits of one listener, in place of those in `[limits]`.",
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
pub(crate) static CERTIFICATE: Section = Section {
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
            "Create a certificate for these names at start, for tests. Clients do not trust it.",
        ),
    ],
};

/// `[tls.NAME]`
pub(crate) static TLS: Section = Section {
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
            "Offered application protocols, preferred first; `[]` offers none. `https` listeners support \
                these two only.",
        ),
        with_default(
            "client_certificates",
            Kind::Choice(&["none", "optional", "required"]),
            "\"none\"",
            "Whether clients are asked for a certificate. A resumed session keeps that of its full \
                handshake while it is valid, at most 12 hours.",
        ),
        optional(
            "client_ca",
            Kind::Text,
            "none",
            "\"certs/clients-ca.pem\"",
            "PEM file of the authorities that issue client certificates. See below.",
        ),
        with_default(
            "tickets",
            Kind::Bool,
            "true",
            "Whether sessions can be resumed with tickets: for 12 hours after the full handshake, and not after the \
             client's certificate expires.",
        ),
        optional(
            "ticket_keys",
            Kind::Text,
            "random keys of this process; in a cluster, keys that all nodes derive",
            "\"certs/ticket.keys\"",
            "File with the keys that encrypt tickets, the newest first, at most 3. Nodes with the same \
                keys resume each other's sessions. See below.",
        ),
        with_default(
            "ticket_rotate_s",
            Kind::Integer(60, 604_800),
            "43200",
            "How long a ticket key encrypts new tickets. It decrypts for as long again. Keys of a file \
                stay until the file changes.",
        ),
        with_default(
            "session_id_lifetime_s",
            Kind::Integer(0, 43_200),
            "3600",
            "How long a TLS 1.2 client without tickets can resume a session by id; 0 = not at all. A \
                session always ends with its client's certificate. `limits.session_cache_mb` bounds the \
                memory.",
        ),
    ],
};

/// `[[rules]]`
pub(crate) static RULE: Section = Section {
    header: "[[rules]]",
    about: "A condition, with the action to perform when it matches. [rules.md](rules.md) describes \
        conditions and the evaluation.",
    keys: &[
        required("name", Kind::Text, "\"api\"", "The name used in logs, metrics and explanations."),
        rule(
            "when",
            Kind::Text,
            "always",
            "'path.path_prefix(\"/api\")'",
            "The condition, in the language of [rules.md](rules.md). Single quotes need no escapes.",
        ),
        rule(
            "priority",
            Kind::Integer(i64::MIN, i64::MAX),
            "`0`",
            "10",
            "Rules with a higher priority are evaluated first; rules of equal priority in file order.",
        ),
        rule(
            "listeners",
            Kind::Texts,
            "all that read requests",
            "[\"public\"]",
            "Names of the listeners that the rule applies to: requests of `https` and `http`, or connections of \
                `tls`, `tcp` and `passthrough`. Without the key: all `https` and `http` listeners.",
        ),
        rule("route", Kind::Text, "none", "\"web\"", "Send the request, or the connection, to this pool."),
        rule(
            "sticky",
            Kind::Choice(&["none", "cookie", "source"]),
            "as in the pool",
            "\"cookie\"",
            "With `route`: how the client returns to its server.",
        ),
        rule(
            "deny",
            Kind::IntegerOr(400, 599, &["access_denied", "unrecognized_name", "reset"]),
            "none",
            "403",
            "Answer the request with this status. A connection ends with the TLS alert of this name, or with RST.",
        ),
        rule(
            "redirect",
            Kind::Text,
            "none",
            "\"https://example.com${path}\"",
            "Answer with a redirect to this location. `${host}`, `${path}` and `${query}` are filled in.",
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
            "Headers set on the request, in place of those with the same name.",
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
            "Headers set on the response, in place of those with the same name.",
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
            "Mark the access-log lines of matching requests (`audit`); with `[audit]` also record these requests.",
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
            "Result of a condition that cannot be decided: the body is malformed, or longer than rules read.",
        ),
    ],
};

/// `[rules.rate_limit]`
pub(crate) static RATE_LIMIT: Section = Section {
    header: "[rules.rate_limit]",
    about: "A token bucket per value of `key`.",
    keys: &[
        required("requests_per_s", Kind::Integer(1, 4_294_967_295), "10", "Sustained rate."),
        required("burst", Kind::Integer(1, 4_294_967_295), "20", "Requests that may arrive at once."),
        rule(
            "key",
            Kind::Choice(&["source", "host", "global"]),
            "`\"source\"`",
            "\"source\"",
            "Owner of a bucket: each client (an IPv4 address or an IPv6 network of 64 bits), each host, \
                or the rule.",
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
