//! The configuration file as serde reads it, after [`shape`](super::shape) has made it fit the schema and
//! filled in the defaults. No meaning yet: names are not resolved, addresses are text.
//!
//! Everything is `Option` where a file with mistakes may lack it, so that the checks can go on.

use std::collections::BTreeMap;

use evergate_rules::RuleSpec;
use serde::{Deserialize, Serialize};

use super::model::{
    ClientCertificates, ClusterMode, ClusterTiming, HealthKind, Policy, Protocol, Renewal, Steering, Sticky,
    TlsVersion,
};

/// The whole file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) node: RawNode,
    pub(super) timeouts: RawTimeouts,
    pub(super) limits: RawLimits,
    pub(super) logs: RawLogs,
    pub(super) admin: RawAdmin,
    pub(super) cluster: Option<RawCluster>,
    #[serde(default)]
    pub(super) listeners: Vec<RawListener>,
    #[serde(default)]
    pub(super) certificates: Vec<RawCertificate>,
    #[serde(default)]
    pub(super) tls: BTreeMap<String, RawTls>,
    #[serde(default)]
    pub(super) pools: Vec<RawPool>,
    #[serde(default)]
    pub(super) rules: Vec<RuleSpec>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub(super) workers: Option<usize>,
    pub(super) user: Option<String>,
    pub(super) group: Option<String>,
    pub(super) pid_file: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawListener {
    pub(super) name: Option<String>,
    pub(super) address: Option<String>,
    pub(super) protocol: Option<Protocol>,
    pub(super) certificates: Option<Vec<String>>,
    pub(super) tls: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) trust_forwarded: bool,
    pub(super) redirect_to_https: bool,
    pub(super) limits: Option<RawLimits>,
}

/// `[limits]` with all keys, `[listeners.limits]` with some.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) connections_max: Option<u32>,
    pub(super) connections_per_source_max: Option<u32>,
    pub(super) handshakes_per_turn: Option<u32>,
    pub(super) event_batching_us: Option<u32>,
    pub(super) head_bytes_max: Option<u32>,
    pub(super) headers_max: Option<u32>,
    pub(super) body_bytes_max: Option<u64>,
    pub(super) body_prefix_bytes: Option<u32>,
    pub(super) requests_per_connection_max: Option<u32>,
    pub(super) bytes_per_s_min: Option<u32>,
    pub(super) buffers_max_mb: Option<u32>,
    pub(super) session_cache_mb: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCertificate {
    pub(super) name: Option<String>,
    pub(super) chain: Option<String>,
    pub(super) key: Option<String>,
    pub(super) self_signed: Option<Vec<String>>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    pub(super) min_version: TlsVersion,
    pub(super) max_version: TlsVersion,
    pub(super) alpn: Vec<String>,
    pub(super) client_certificates: ClientCertificates,
    pub(super) client_ca: Option<String>,
    pub(super) tickets: bool,
    pub(super) ticket_keys: Option<String>,
    pub(super) ticket_rotate_s: u64,
    pub(super) session_id_lifetime_s: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPool {
    pub(super) name: Option<String>,
    pub(super) policy: Policy,
    pub(super) sticky: Sticky,
    pub(super) sticky_cookie: String,
    pub(super) sticky_load_percent_max: Option<u32>,
    pub(super) queue_max: u32,
    pub(super) queue_timeout_ms: u64,
    pub(super) queue_classes: Vec<String>,
    pub(super) keep_alive_idle_max: u32,
    pub(super) keep_alive_idle_ms: u64,
    pub(super) retries: u32,
    pub(super) connect_timeout_ms: u64,
    pub(super) response_timeout_ms: Option<u64>,
    #[serde(default)]
    pub(super) servers: Vec<RawServer>,
    /// `None` only where it has no effect and is not shown.
    pub(super) sessions: Option<RawSessions>,
    pub(super) tls: Option<RawPoolTls>,
    pub(super) health: Option<RawHealth>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSessions {
    pub(super) lifetime_s: u64,
    pub(super) renewal: Renewal,
    pub(super) remembered_max: u32,
    pub(super) full_us: u32,
    pub(super) resumed_us: u32,
    pub(super) slice_ms: u64,
    pub(super) alpha: [f64; 2],
    pub(super) lambda: [f64; 2],
    pub(super) lard_low: u32,
    pub(super) lard_high: u32,
    pub(super) bounded_load_percent: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawServer {
    pub(super) name: Option<String>,
    pub(super) address: Option<String>,
    pub(super) weight: u32,
    pub(super) connections_max: u32,
    pub(super) full_us: Option<u32>,
    pub(super) resumed_us: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPoolTls {
    pub(super) verify: bool,
    pub(super) server_name: Option<String>,
    pub(super) ca: Option<String>,
    pub(super) client_chain: Option<String>,
    pub(super) client_key: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHealth {
    pub(super) kind: HealthKind,
    pub(super) path: String,
    pub(super) host: Option<String>,
    pub(super) expect_status: RawStatuses,
    pub(super) interval_ms: u64,
    pub(super) timeout_ms: u64,
    pub(super) rise: u32,
    pub(super) fall: u32,
}

/// `"200-299, 401"` or `[200, "300-399"]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(super) enum RawStatuses {
    Text(String),
    List(Vec<RawStatus>),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(super) enum RawStatus {
    Code(i64),
    Text(String),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTimeouts {
    pub(super) handshake_ms: u64,
    pub(super) request_head_ms: u64,
    pub(super) request_body_ms: u64,
    pub(super) keep_alive_ms: u64,
    pub(super) response_ms: u64,
    pub(super) tunnel_idle_ms: u64,
    pub(super) write_stall_ms: u64,
    pub(super) drain_ms: u64,
    pub(super) tcp_keepalive_s: u16,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLogs {
    pub(super) access: String,
    pub(super) format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    Json,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAdmin {
    pub(super) socket: String,
    pub(super) metrics_listen: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCluster {
    pub(super) name: Option<String>,
    pub(super) node: Option<u8>,
    pub(super) key_file: Option<String>,
    pub(super) addresses: Option<Vec<String>>,
    pub(super) server_source: Option<Vec<String>>,
    pub(super) inside_interface: Option<String>,
    pub(super) outside_interface: Option<String>,
    pub(super) virtual_mac: Option<String>,
    pub(super) backups: RawCount,
    pub(super) mode: ClusterMode,
    pub(super) witness: Vec<String>,
    pub(super) steering: Steering,
    pub(super) port: u16,
    pub(super) server_ports_first: u16,
    pub(super) ports_per_bucket: u16,
    pub(super) pins: String,
    pub(super) timing: ClusterTiming,
    pub(super) flows_max: u32,
    pub(super) stateless_accept: bool,
    pub(super) weight: u16,
    #[serde(default)]
    pub(super) nodes: Vec<RawClusterNode>,
}

/// A number, or `"all"`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(super) enum RawCount {
    Number(u8),
    /// What the schema lets pass is `"all"`.
    All(String),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClusterNode {
    pub(super) number: Option<u8>,
    pub(super) inside: Option<String>,
    pub(super) outside: Option<String>,
}
