//! Schema of what concerns the whole process: node, timeouts, limits, logs, admin.

use super::schema::{COUNT_MAX, Key, Kind, Section, TIME_MS_MAX, optional, with_default};

/// Smallest and largest time of a state in milliseconds.
const TIME_MS: Kind = Kind::Integer(1, TIME_MS_MAX);
/// A count where 0 means "no limit".
const COUNT_OR_NONE: Kind = Kind::Integer(0, COUNT_MAX);

/// `[node]`
pub(super) static NODE: Section = Section {
    header: "[node]",
    about: "The process on this machine.",
    keys: &[
        optional(
            "workers",
            Kind::Integer(1, 1024),
            "number of cores",
            "4",
            "Worker threads; each owns its connections and its listening sockets.",
        ),
        optional(
            "user",
            Kind::Text,
            "user of the process",
            "\"evergate\"",
            "User to become after the sockets are bound and the keys are read, with all of its groups.",
        ),
        optional(
            "group",
            Kind::Text,
            "group of `user`",
            "\"evergate\"",
            "Group to become, together with `user`; it takes the place of the user's first group, the others stay.",
        ),
        optional(
            "pid_file",
            Kind::Text,
            "none",
            "\"/run/evergate/pid\"",
            "File to write the process id to. One that is there and holds anything else than a number is left alone, and the node does not start.",
        ),
    ],
};

/// `[timeouts]`
pub(super) static TIMEOUTS: Section = Section {
    header: "[timeouts]",
    about: "How long each state of a connection may last. Every state has an end.",
    keys: &[
        with_default("handshake_ms", TIME_MS, "10000", "From accept to the end of the TLS handshake."),
        with_default(
            "request_head_ms",
            TIME_MS,
            "15000",
            "From the first byte of a request head to its last. Answered with 408.",
        ),
        with_default("request_body_ms", TIME_MS, "30000", "Longest pause while a request body arrives."),
        with_default(
            "keep_alive_ms",
            TIME_MS,
            "75000",
            "Longest wait for a request on an open connection: the first one, counted from accept or the end of the TLS handshake, or the next one.",
        ),
        with_default(
            "response_ms",
            TIME_MS,
            "60000",
            "From the end of the request to the whole response head, or from an interim response (1xx, at most 100) to what follows, and the longest pause in the body. Answered with 504.",
        ),
        with_default(
            "tunnel_idle_ms",
            TIME_MS,
            "14400000",
            "Longest silence in both directions of a WebSocket, `tcp` or `tls` connection. Four hours, because such connections are quiet by design; once the server has ended, no longer than `keep_alive_ms`.",
        ),
        with_default(
            "write_stall_ms",
            TIME_MS,
            "30000",
            "Longest time a peer that bytes wait for may take none, or fewer than `limits.bytes_per_s_min`. What counts is what it acknowledges.",
        ),
        with_default(
            "drain_ms",
            TIME_MS,
            "30000",
            "Longest wait for open connections at shutdown, and of the old process after an upgrade.",
        ),
        with_default(
            "tcp_keepalive_s",
            Kind::Integer(0, 32_767),
            "60",
            "Silence of a client or server, in seconds, after which TCP keep-alive probes it; a quarter of it lies between two probes. A peer that acknowledges neither probes nor data for twice this time is gone: its connection breaks. Where a peer may take nothing for longer (`write_stall_ms`, for servers also `response_ms`), it is that time and this one. 0 = off. A reload changes it for new connections.",
        ),
    ],
};

/// `[limits]`
pub(super) static LIMITS: Section = Section {
    header: "[limits]",
    about: "How much of everything there may be. A listener can override the limits of one connection.",
    keys: &[
        CONNECTIONS_MAX,
        CONNECTIONS_PER_SOURCE_MAX,
        with_default(
            "handshakes_per_turn",
            Kind::Integer(1, 1024),
            "8",
            "TLS handshakes a worker computes before it serves established connections again.",
        ),
        with_default(
            "event_batching_us",
            Kind::Integer(0, 1000),
            "200",
            "How long a worker that is more than half busy lets events gather before it looks for more, in microseconds, as long as at least 90 % of the work is done that is done without it; 0 = never. Saves about a tenth of the worker's processor time, and delays an answer by up to twice this time.",
        ),
        HEAD_BYTES_MAX,
        HEADERS_MAX,
        BODY_BYTES_MAX,
        BODY_PREFIX_BYTES,
        REQUESTS_PER_CONNECTION_MAX,
        BYTES_PER_S_MIN,
        with_default(
            "buffers_max_mb",
            Kind::Integer(16, 1_048_576),
            "512",
            "Memory for bytes that wait to be written or are kept (requests that are not whole or may be repeated), all workers together. From half of it on workers read less for each connection; at the bound a connection that has more than 16 KB and needs more is closed and counted.",
        ),
        with_default(
            "session_cache_mb",
            Kind::Integer(0, 1024),
            "8",
            "Memory for TLS 1.2 sessions that are resumed by their ids, of the whole process (about 2,500 a megabyte). At the bound the oldest are forgotten; 0 keeps none.",
        ),
    ],
};

pub(super) const CONNECTIONS_MAX: Key = with_default(
    "connections_max",
    Kind::Integer(1, COUNT_MAX),
    "100000",
    "Client connections at a time. At the bound a new one takes the place of the one that has been idle for the longest time; without any it is reset and counted.",
);
pub(super) const CONNECTIONS_PER_SOURCE_MAX: Key = with_default(
    "connections_per_source_max",
    COUNT_OR_NONE,
    "0",
    "Client connections at a time from one IPv4 address or one IPv6 network of 64 bits; 0 = no limit, because many users may share one address. At the bound a new one takes the place of an idle one of the same source.",
);
pub(super) const HEAD_BYTES_MAX: Key = with_default(
    "head_bytes_max",
    Kind::Integer(1024, 1_048_576),
    "16384",
    "Size of a request or response head. Larger requests are answered with 431; a response head has 16384 bytes at most in any case, or 502 is the answer.",
);
pub(super) const HEADERS_MAX: Key = with_default(
    "headers_max",
    Kind::Integer(8, 128),
    "100",
    "Number of headers in a head. Answered with 431.",
);
pub(super) const BODY_BYTES_MAX: Key = with_default(
    "body_bytes_max",
    Kind::Integer(0, i64::MAX),
    "0",
    "Size of a request body; 0 = no limit. Answered with 413.",
);
pub(super) const BODY_PREFIX_BYTES: Key = with_default(
    "body_prefix_bytes",
    Kind::Integer(0, 16_777_216),
    "65536",
    "How much of a body rules may look at. What lies behind is `unknown` to them. With `[cluster]`, twice this and a head (`head_bytes_max`) must fit into 1,011,712 bytes.",
);
pub(super) const REQUESTS_PER_CONNECTION_MAX: Key = with_default(
    "requests_per_connection_max",
    COUNT_OR_NONE,
    "0",
    "Requests on one client connection before it is closed; 0 = no limit.",
);
pub(super) const BYTES_PER_S_MIN: Key = with_default(
    "bytes_per_s_min",
    Kind::Integer(0, 1_000_000_000),
    "100",
    "Slowest average at which a request body may arrive, counted after its first `timeouts.request_body_ms`, or a peer take bytes that wait for it longer than `timeouts.write_stall_ms`; 0 = no floor. A client that sends one byte now and then would pass the pause limit for ever.",
);

/// `[logs]`
pub(super) static LOGS: Section = Section {
    header: "[logs]",
    about: "The access log: one line per request, or per connection for `tcp` and `tls` listeners.",
    keys: &[
        with_default(
            "access",
            Kind::Text,
            "\"stdout\"",
            "`\"stdout\"`, `\"off\"` or the path of a file, which may be a character device but no pipe. The file is reopened on SIGHUP, for log rotation.",
        ),
        with_default("format", Kind::Choice(&["json"]), "\"json\"", "Form of a line."),
    ],
};

/// `[admin]`
pub(super) static ADMIN: Section = Section {
    header: "[admin]",
    about: "The admin API and the metrics.",
    keys: &[
        with_default(
            "socket",
            Kind::Text,
            "\"/run/evergate/admin.sock\"",
            "Path of the admin API's Unix socket, or `\"off\"`. Its folder is made, with mode 0750 and the group that the process gets, if only that is missing. Whoever may open it may change this node.",
        ),
        optional(
            "metrics_listen",
            Kind::Text,
            "off",
            "\"127.0.0.1:9090\"",
            "Address that serves `GET /metrics` (OpenMetrics) without authentication.",
        ),
    ],
};
