//! Schema of pools: servers, how one is chosen, TLS towards them, health checks.

use super::balancing::SESSIONS;
use super::bounds::{COST_US_MAX, TIME_MS_MAX};
use super::{Kind, Section, optional, required, table, with_default};

/// `[[pools]]`
pub(crate) static POOL: Section = Section {
    header: "[[pools]]",
    about: "A set of servers that can answer the same requests.",
    keys: &[
        required("name", Kind::Text, "\"web\"", "The name used by listeners, rules, logs and metrics."),
        with_default(
            "policy",
            Kind::Choice(&[
                "round_robin",
                "least_outstanding",
                "power_of_two",
                "least_expected_completion",
                "session_only",
                "sticky_least_outstanding",
                "lard",
                "bounded_hash",
                "sslsard",
            ]),
            "\"power_of_two\"",
            "How a server is chosen. See below.",
        ),
        with_default(
            "sticky",
            Kind::Choice(&["none", "cookie", "source"]),
            "\"none\"",
            "Whether a client returns to its server: by a cookie of evergate, or by a hash of its \
                address. See below.",
        ),
        optional(
            "sticky_cookie",
            Kind::Text,
            "`EVERGATE_` and the pool's name",
            "\"EVERGATE_web\"",
            "Name of that cookie. Two sticky pools of one site need two names.",
        ),
        optional(
            "sticky_load_percent_max",
            Kind::Integer(100, 100_000),
            "no bound",
            "125",
            "With `sticky = \"source\"`: a server above this percentage of its share of the outstanding \
                requests is skipped for the client's next best. See below.",
        ),
        required("servers", Kind::Tables(&SERVER), "", "The servers, see `[[pools.servers]]`."),
        with_default(
            "queue_max",
            Kind::Integer(0, 1_000_000),
            "1024",
            "Requests that may wait in each worker while all servers, or the client's own server, are at \
                their `connections_max`; beyond it 503. With 4 workers, four times as many may wait for \
                the pool in all.",
        ),
        with_default(
            "queue_timeout_ms",
            Kind::Integer(1, TIME_MS_MAX),
            "5000",
            "Longest wait in the queue; then 503.",
        ),
        with_default(
            "queue_classes",
            Kind::Texts,
            "[]",
            "Service classes (see `rules.class`) in the order in which they leave a worker's queue; all \
                other requests follow. In a full queue the last request makes room for one of a better \
                class, and is answered with 503.",
        ),
        with_default(
            "keep_alive_idle_max",
            Kind::Integer(0, 100_000),
            "256",
            "Idle connections per server and worker; 0 = a new connection for each request. Connections \
                authenticated for one client (NTLM, Negotiate) stay with that client and do not count.",
        ),
        with_default(
            "keep_alive_idle_ms",
            Kind::Integer(1, TIME_MS_MAX),
            "4000",
            "How long an idle connection stays open. Below the 5 s after which common servers close, so \
                that few requests meet a closing connection.",
        ),
        with_default(
            "retries",
            Kind::Integer(0, 10),
            "2",
            "Further tries of a request, at another server if there is one. With 2, at most three servers \
                execute it, or one does three times. See below.",
        ),
        with_default(
            "source",
            Kind::Choice(&["node", "client"]),
            "\"node\"",
            "Whose address connections to servers start from: the node's, or the client's own, so that \
                servers see it. See below.",
        ),
        optional(
            "proxy_protocol",
            Kind::Choice(&["v1", "v2"]),
            "no header",
            "\"v2\"",
            "Version of the PROXY header that begins each connection to a server. Such a connection serves \
                one client.",
        ),
        with_default(
            "proxy_protocol_tlvs",
            Kind::Texts,
            "[]",
            "Fields of a version 2 header: `\"authority\"` (SNI) and `\"alpn\"` of the client's TLS session, \
                `\"unique_id\"` of its connection.",
        ),
        with_default(
            "connect_timeout_ms",
            Kind::Integer(1, TIME_MS_MAX),
            "5000",
            "Longest TCP and TLS connect to a server.",
        ),
        optional(
            "response_timeout_ms",
            Kind::Integer(1, TIME_MS_MAX),
            "`timeouts.response_ms`",
            "60000",
            "`timeouts.response_ms` for this pool.",
        ),
        table("sessions", Kind::Table(&SESSIONS), "For session policies, see `[pools.sessions]`."),
        optional(
            "tls",
            Kind::OptionalTable(&POOL_TLS),
            "plain TCP",
            "",
            "TLS towards the servers, see `[pools.tls]`.",
        ),
        optional(
            "health",
            Kind::OptionalTable(&HEALTH),
            "no active checks",
            "",
            "Active checks, see `[pools.health]`.",
        ),
    ],
};

/// `[[pools.servers]]`
pub(crate) static SERVER: Section = Section {
    header: "[[pools.servers]]",
    about: "One server of the pool above it.",
    keys: &[
        optional(
            "name",
            Kind::Text,
            "the address",
            "\"web-1\"",
            "The name used in logs, metrics and the admin API.",
        ),
        required(
            "address",
            Kind::Text,
            "\"127.0.0.1:8080\"",
            "IP address or host name, and port. Names are resolved at load and reload. The first address \
                is used; a reload keeps it while the name has it.",
        ),
        with_default(
            "weight",
            Kind::Integer(1, 1000),
            "1",
            "Share of the load, relative to the pool's other servers.",
        ),
        with_default(
            "connections_max",
            Kind::Integer(0, 1_000_000),
            "0",
            "Requests at a time, from all workers together; 0 = no limit. Further ones wait in the pool's \
                queue. An idle connection authenticated for one client (NTLM, Negotiate) counts as one.",
        ),
        optional(
            "full_us",
            Kind::Integer(1, COST_US_MAX),
            "that of `[pools.sessions]` divided by the weight",
            "471",
            "Cost of a request with a full handshake at this server, for `policy = \"sslsard\"`. Either \
                all servers of a pool have it, or none.",
        ),
        optional(
            "resumed_us",
            Kind::Integer(1, COST_US_MAX),
            "that of `[pools.sessions]` divided by the weight",
            "20",
            "Cost of a request with a resumed session at this server, for `policy = \"sslsard\"`. Either \
                all servers of a pool have it, or none.",
        ),
    ],
};

/// `[pools.tls]`
pub(crate) static POOL_TLS: Section = Section {
    header: "[pools.tls]",
    about: "TLS from this node to the servers of the pool. The presence of the table enables it. The \
        offered application protocol is `http/1.1`; if only connections of `tls` and `tcp` listeners use \
        the pool, none is offered.",
    keys: &[
        with_default(
            "verify",
            Kind::Bool,
            "true",
            "Whether the server's certificate must be valid. `false` protects against eavesdropping only, \
                not against an impostor.",
        ),
        optional(
            "server_name",
            Kind::Text,
            "host of each server's own address",
            "\"app.internal\"",
            "Name sent as SNI and expected in the certificate, for all servers of the pool. Health checks \
                use the same name.",
        ),
        optional(
            "ca",
            Kind::Text,
            "system roots",
            "\"certs/internal-ca.pem\"",
            "PEM file of the trusted authorities. See below.",
        ),
        optional(
            "client_chain",
            Kind::Text,
            "none",
            "\"certs/client.pem\"",
            "PEM file of the certificate shown to servers.",
        ),
        optional("client_key", Kind::Text, "none", "\"certs/client.key\"", "PEM file of its private key."),
    ],
};

/// `[pools.health]`
pub(crate) static HEALTH: Section = Section {
    header: "[pools.health]",
    about: "Active checks of the pool's servers. The presence of the table enables them.",
    keys: &[
        with_default(
            "kind",
            Kind::Choice(&["http", "tcp"]),
            "\"http\"",
            "`http` sends a GET and checks the status; `tcp` only connects.",
        ),
        with_default("path", Kind::Text, "\"/\"", "Path of the GET."),
        optional("host", Kind::Text, "the server's address", "\"app.internal\"", "Host header of the GET."),
        with_default(
            "expect_status",
            Kind::StatusSet,
            "\"200-399\"",
            "Statuses of a healthy server: `\"200-299, 401\"` or `[200, 204]`.",
        ),
        with_default("interval_ms", Kind::Integer(100, 3_600_000), "2000", "From one check to the next."),
        with_default(
            "timeout_ms",
            Kind::Integer(1, 3_600_000),
            "1000",
            "Longest time of a check; not above `interval_ms`.",
        ),
        with_default(
            "rise",
            Kind::Integer(1, 100),
            "2",
            "Consecutive successes after which a server receives requests again.",
        ),
        with_default("fall", Kind::Integer(1, 100), "3", "Consecutive failures after which it gets none."),
    ],
};
