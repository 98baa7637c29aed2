//! The configuration file as serde reads it, after `structure` has made it fit the schema and
//! filled in the defaults. No meaning yet: names are not resolved, addresses are text.
//!
//! Everything is `Option` where a file with mistakes may lack it, so that the checks can continue.

use std::collections::BTreeMap;

use evergate_base::ProxyVersion;
use evergate_rules::RuleSpec;
use serde::{Deserialize, Serialize};

use crate::model::{
    ClientCertificates, ClusterMode, ClusterTiming, CostSource, HealthKind, LogTime, OnLoss, Policy,
    Protocol, Renewal, ServerSource, SessionFallback, Steering, Sticky, TlsVersion,
};

/// The whole file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConfig {
    pub(crate) node: RawNode,
    pub(crate) timeouts: RawTimeouts,
    pub(crate) limits: RawLimits,
    pub(crate) logs: RawLogs,
    pub(crate) admin: RawAdmin,
    pub(crate) cluster: Option<RawCluster>,
    pub(crate) audit: Option<RawAudit>,
    #[serde(default)]
    pub(crate) listeners: Vec<RawListener>,
    #[serde(default)]
    pub(crate) certificates: Vec<RawCertificate>,
    #[serde(default)]
    pub(crate) tls: BTreeMap<String, RawTls>,
    #[serde(default)]
    pub(crate) pools: Vec<RawPool>,
    #[serde(default)]
    pub(crate) rules: Vec<RuleSpec>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNode {
    pub(crate) workers: Option<usize>,
    pub(crate) user: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) pid_file: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawListener {
    pub(crate) name: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) certificates: Option<Vec<String>>,
    pub(crate) tls: Option<String>,
    pub(crate) pool: Option<String>,
    pub(crate) trust_forwarded: RawTrust,
    pub(crate) proxy_protocol: bool,
    pub(crate) trusted_proxies: Vec<String>,
    pub(crate) audit: bool,
    pub(crate) redirect_to_https: bool,
    pub(crate) limits: Option<RawLimits>,
}

/// `true`, `false`, or the networks of trusted proxies.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum RawTrust {
    All(bool),
    Networks(Vec<String>),
}

/// `[limits]` with all keys, `[listeners.limits]` with some.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLimits {
    pub(crate) connections_max: Option<u32>,
    pub(crate) connections_per_source_max: Option<u32>,
    pub(crate) handshakes_per_turn: Option<u32>,
    pub(crate) event_batching_us: Option<u32>,
    pub(crate) head_bytes_max: Option<u32>,
    pub(crate) headers_max: Option<u32>,
    pub(crate) body_bytes_max: Option<u64>,
    pub(crate) body_prefix_bytes: Option<u32>,
    pub(crate) requests_per_connection_max: Option<u32>,
    pub(crate) bytes_per_s_min: Option<u32>,
    pub(crate) buffers_max_mb: Option<u32>,
    pub(crate) session_cache_mb: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCertificate {
    pub(crate) name: Option<String>,
    pub(crate) chain: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) self_signed: Option<Vec<String>>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAudit {
    pub(crate) epochs: Option<String>,
    pub(crate) log_key: Option<String>,
    pub(crate) feed: String,
    pub(crate) recorder: Option<String>,
    pub(crate) certificate: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) on_loss: OnLoss,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTls {
    pub(crate) min_version: TlsVersion,
    pub(crate) max_version: TlsVersion,
    pub(crate) alpn: Vec<String>,
    pub(crate) client_certificates: ClientCertificates,
    pub(crate) client_ca: Option<String>,
    pub(crate) tickets: bool,
    pub(crate) ticket_keys: Option<String>,
    pub(crate) ticket_rotate_s: u64,
    pub(crate) session_id_lifetime_s: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPool {
    pub(crate) name: Option<String>,
    pub(crate) policy: Policy,
    pub(crate) sticky: Sticky,
    pub(crate) sticky_cookie: Option<String>,
    pub(crate) sticky_load_percent_max: Option<u32>,
    pub(crate) queue_max: u32,
    pub(crate) queue_timeout_ms: u64,
    pub(crate) queue_classes: Vec<String>,
    pub(crate) keep_alive_idle_max: u32,
    pub(crate) keep_alive_idle_ms: u64,
    pub(crate) retries: u32,
    pub(crate) source: ServerSource,
    pub(crate) proxy_protocol: Option<ProxyVersion>,
    pub(crate) proxy_protocol_tlvs: Vec<String>,
    pub(crate) connect_timeout_ms: u64,
    pub(crate) response_timeout_ms: Option<u64>,
    #[serde(default)]
    pub(crate) servers: Vec<RawServer>,
    /// `None` only where it has no effect and is not shown.
    pub(crate) sessions: Option<RawSessions>,
    pub(crate) tls: Option<RawPoolTls>,
    pub(crate) health: Option<RawHealth>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSessions {
    pub(crate) lifetime_s: u64,
    pub(crate) fallback: SessionFallback,
    pub(crate) renewal: Renewal,
    pub(crate) remembered_max: u32,
    pub(crate) handshake_costs: CostSource,
    pub(crate) full_us: u32,
    pub(crate) resumed_us: u32,
    pub(crate) slice_ms: u64,
    pub(crate) alpha: [f64; 2],
    pub(crate) lambda: [f64; 2],
    pub(crate) lard_low: u32,
    pub(crate) lard_high: u32,
    pub(crate) bounded_load_percent: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawServer {
    pub(crate) name: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) weight: u32,
    pub(crate) connections_max: u32,
    pub(crate) full_us: Option<u32>,
    pub(crate) resumed_us: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPoolTls {
    pub(crate) verify: bool,
    pub(crate) server_name: Option<String>,
    pub(crate) ca: Option<String>,
    pub(crate) client_chain: Option<String>,
    pub(crate) client_key: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHealth {
    pub(crate) kind: HealthKind,
    pub(crate) path: String,
    pub(crate) host: Option<String>,
    pub(crate) expect_status: RawStatuses,
    pub(crate) interval_ms: u64,
    pub(crate) timeout_ms: u64,
    pub(crate) rise: u32,
    pub(crate) fall: u32,
}

/// `"200-299, 401"` or `[200, "300-399"]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum RawStatuses {
    Text(String),
    List(Vec<RawStatus>),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum RawStatus {
    Code(i64),
    Text(String),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTimeouts {
    pub(crate) handshake_ms: u64,
    pub(crate) request_head_ms: u64,
    pub(crate) request_body_ms: u64,
    pub(crate) keep_alive_ms: u64,
    pub(crate) response_ms: u64,
    pub(crate) tunnel_idle_ms: u64,
    pub(crate) write_stall_ms: u64,
    pub(crate) drain_ms: u64,
    pub(crate) tcp_keepalive_s: u16,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLogs {
    pub(crate) access: String,
    pub(crate) format: LogFormat,
    pub(crate) fields: Vec<String>,
    pub(crate) time: LogTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Json,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAdmin {
    pub(crate) socket: String,
    pub(crate) metrics_listen: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCluster {
    pub(crate) name: Option<String>,
    pub(crate) node: Option<u8>,
    pub(crate) key_file: Option<String>,
    pub(crate) addresses: Option<Vec<String>>,
    pub(crate) server_source: Option<Vec<String>>,
    pub(crate) inside_interface: Option<String>,
    pub(crate) outside_interface: Option<String>,
    pub(crate) virtual_mac: Option<String>,
    pub(crate) backups: RawCount,
    pub(crate) mode: ClusterMode,
    pub(crate) witness: Vec<String>,
    pub(crate) steering: Steering,
    pub(crate) port: u16,
    pub(crate) server_ports_first: u16,
    pub(crate) ports_per_bucket: u16,
    pub(crate) pins: String,
    pub(crate) timing: ClusterTiming,
    pub(crate) flows_max: u32,
    pub(crate) stateless_accept: bool,
    pub(crate) weight: u16,
    #[serde(default)]
    pub(crate) nodes: Vec<RawClusterNode>,
}

/// A number, or `"all"`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum RawCount {
    Number(u8),
    /// The only string that the schema accepts is `"all"`.
    All(String),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawClusterNode {
    pub(crate) number: Option<u8>,
    pub(crate) inside: Option<String>,
    pub(crate) outside: Option<String>,
}
