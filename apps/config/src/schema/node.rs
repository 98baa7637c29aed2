//! Schema of what concerns the whole process: node, timeouts, limits, logs, admin.

use super::bounds::{COUNT_MAX, COUNT_OR_NONE, TIME_MS};
use super::{Key, Kind, Section, optional, with_default};

/// `[node]`
pub(crate) static NODE: Section = Section {
    header: "[node]",
    about: "The process on this machine.",
    keys: &[
        optional(
            "workers",
            Kind::Integer(1, 1024),
            "number of cores",
            "4",
            "Worker threads. Each one owns its connections and its listening sockets.",
        ),
        optional(
            "user",
            Kind::Text,
            "user of the process",
            "\"evergate\"",
            "User of the process after it has bound its sockets and read its keys, with all groups of \
                that user.",
        ),
        optional(
            "group",
            Kind::Text,
            "group of `user`",
            "\"evergate\"",
            "Group of the process, together with `user`. It replaces the user's first group; the other \
                groups stay.",
        ),
        optional(
            "pid_file",
            Kind::Text,
            "none",
            "\"/run/evergate/pid\"",
            "File for the process id. If it exists with other content than a number, it stays unchanged \
                and the node does not start.",
        ),
    ],
};

/// `[timeouts]`
pub(crate) static TIMEOUTS: Section = Section {
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
            "Longest wait for a request on an open connection. For the first request it counts from the \
                accept or the end of the TLS handshake.",
        ),
        with_default(
            "response_ms",
            TIME_MS,
            "60000",
            "From the end of the request to the whole response head, and the longest pause in the body. \
                An interim response (1xx, at most 100) restarts it. Answered with 504.",
        ),
        with_default(
            "tunnel_idle_ms",
            TIME_MS,
            "14400000",
            "Longest silence in both directions of a WebSocket, `tcp` or `tls` connection. Four hours, \
                because such connections are quiet by design. After the server's end at most \
                `keep_alive_ms`.",
        ),
        with_default(
            "write_stall_ms",
            TIME_MS,
            "30000",
            "Longest time without progress while bytes wait for a peer: it acknowledges none, or fewer \
                than `limits.bytes_per_s_min`.",
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
            "Silence of a client or server, in seconds, before TCP keep-alive probes it; 0 = off. A peer \
                without an answer for twice this time is gone. See below.",
        ),
    ],
};

/// `[limits]`
pub(crate) static LIMITS: Section = Section {
    header: "[limits]",
    about: "Bounds on connections, sizes and memory. A listener can override the limits of one connection.",
    keys: &[
        CONNECTIONS_MAX,
        CONNECTIONS_PER_SOURCE_MAX,
        with_default(
            "handshakes_per_turn",
            Kind::Integer(1, 1024),
            "8",
            "TLS handshakes that a worker computes before it serves established connections again.",
        ),
        with_default(
            "event_batching_us",
            Kind::Integer(0, 1000),
            "200",
            "Longest time, in microseconds, for which a worker that is above half load or only splices batches \
                events; 0 = never. See below.",
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
            "Memory of all workers for bytes that wait to be written or are stored (incomplete or \
                repeatable requests). From half of it on, workers read less for each connection. At the \
                bound a connection with more than 16 KB that needs more is closed and counted.",
        ),
        with_default(
            "session_cache_mb",
            Kind::Integer(0, 1024),
            "8",
            "Memory of the process for TLS 1.2 sessions that are resumed by id (about 2,500 per \
                megabyte). At the bound the oldest are dropped; 0 stores none.",
        ),
    ],
};

pub(crate) const CONNECTIONS_MAX: Key = with_default(
    "connections_max",
    Kind::Integer(1, COUNT_MAX),
    "100000",
    "Client connections at a time. At the bound a new one evicts the connection that has been idle \
        longest. Without an idle one it is reset and counted.",
);
pub(crate) const CONNECTIONS_PER_SOURCE_MAX: Key = with_default(
    "connections_per_source_max",
    COUNT_OR_NONE,
    "0",
    "Client connections at a time from one IPv4 address or one IPv6 network of 64 bits. 0 = no limit, \
        because many users may share one address. At the bound a new one evicts an idle one of the same \
        source.",
);
pub(crate) const HEAD_BYTES_MAX: Key = with_default(
    "head_bytes_max",
    Kind::Integer(1024, 1_048_576),
    "16384",
    "Size of a request or response head. Larger requests are answered with 431. A response head has at \
        most 16384 bytes in any case; otherwise the answer is 502.",
);
pub(crate) const HEADERS_MAX: Key = with_default(
    "headers_max",
    Kind::Integer(8, 128),
    "100",
    "Number of headers in a head. Answered with 431.",
);
pub(crate) const BODY_BYTES_MAX: Key = with_default(
    "body_bytes_max",
    Kind::Integer(0, i64::MAX),
    "0",
    "Size of a request body; 0 = no limit. Answered with 413.",
);
pub(crate) const BODY_PREFIX_BYTES: Key = with_default(
    "body_prefix_bytes",
    Kind::Integer(0, 16_777_216),
    "65536",
    "Bytes of a body that rules read; the rest is `unknown` to them. With `[cluster]`, twice this and a \
        head (`head_bytes_max`) must fit into 1,011,712 bytes.",
);
pub(crate) const REQUESTS_PER_CONNECTION_MAX: Key = with_default(
    "requests_per_connection_max",
    COUNT_OR_NONE,
    "0",
    "Requests on one client connection before it is closed; 0 = no limit.",
);
pub(crate) const BYTES_PER_S_MIN: Key = with_default(
    "bytes_per_s_min",
    Kind::Integer(0, 1_000_000_000),
    "100",
    "Slowest average rate; 0 = no floor. It applies to a request body after its first \
        `timeouts.request_body_ms`, and to bytes that wait for a peer longer than \
        `timeouts.write_stall_ms`. Without it, one byte now and then passes the pause limits forever.",
);

/// `[logs]`
pub(crate) static LOGS: Section = Section {
    header: "[logs]",
    about: "The access log: one line per request, or per connection for `tcp`, `tls` and `passthrough` listeners. \
        The host of a `passthrough` line is the server name of the ClientHello.",
    keys: &[
        with_default(
            "access",
            Kind::Text,
            "\"stdout\"",
            "`\"stdout\"`, `\"off\"` or the path of a file, which may be a character device but no pipe. \
                `evergate log reopen` and SIGUSR1 reopen the file, for log rotation.",
        ),
        with_default("format", Kind::Choice(&["json"]), "\"json\"", "Format of a line."),
        with_default(
            "fields",
            Kind::Texts,
            "[]",
            "Additional fields of a line: `\"client_subject\"`, `\"user_agent\"`, `\"referer\"`.",
        ),
        with_default(
            "time",
            Kind::Choice(&["unix", "iso"]),
            "\"unix\"",
            "Format of `time`: seconds since 1970, or RFC 3339 in UTC.",
        ),
    ],
};

/// `[admin]`
pub(crate) static ADMIN: Section = Section {
    header: "[admin]",
    about: "The admin API and the metrics.",
    keys: &[
        with_default(
            "socket",
            Kind::Text,
            "\"/run/evergate/admin.sock\"",
            "Path of the Unix socket of the admin API, or `\"off\"`. If only its folder is missing, it is \
                created with mode 0750 and the group of the process. Access to the socket allows changes \
                of this node.",
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
