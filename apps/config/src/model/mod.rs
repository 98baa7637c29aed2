//! The validated configuration: everything resolved, every value in a type that cannot hold a wrong one.
//!
//! References between parts are ids into the lists of [`Config`]; the checks guarantee that they are in
//! range. Durations and sizes of 0 that mean "none" in the file are `None` here.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evergate_base::ProxyHeader;
use evergate_base::net::Network;
use evergate_connection::AuditScope;
use evergate_http::ForwardedTrust;
use evergate_rules::{RuleSpec, Ruleset};
use serde::{Deserialize, Serialize};

mod audit;
mod balancing;
mod cluster;
mod ids;

pub use evergate_base::Protocol;

pub use audit::{Audit, Feed, OnLoss};
pub use balancing::{CostSource, HandshakeCosts, Policy, Renewal, SessionFallback, Sessions};
pub use cluster::{Cluster, ClusterMode, ClusterNode, ClusterTiming, NodeNumber, Steering};
pub use ids::{CertificateId, ListenAddress, PoolId, TlsId};

/// A configuration that passed all checks.
#[derive(Clone, Debug)]
pub struct Config {
    /// The process on this machine.
    pub node: Node,
    /// Listeners; never two on the same address.
    pub listeners: Vec<Listener>,
    /// Server certificates.
    pub certificates: Vec<Certificate>,
    /// TLS settings; the first are the built-in ones ([`TlsId::BUILT_IN`]).
    pub tls: Vec<TlsSettings>,
    /// Sets of servers.
    pub pools: Vec<Pool>,
    /// Which request goes where.
    pub rules: Rules,
    /// Bounds on the duration of each state.
    pub timeouts: Timeouts,
    /// Bounds on resources of the process.
    pub limits: NodeLimits,
    /// The access log.
    pub logs: Logs,
    /// The admin API and the metrics.
    pub admin: Admin,
    /// Several nodes that share addresses; `None` = this node is on its own.
    pub cluster: Option<Cluster>,
    /// Audited capture; `None` = nothing is sealed.
    pub audit: Option<Audit>,
    /// Digest of the text of this configuration, to recognise another text.
    pub digest: u64,
    /// Base folder of relative paths.
    pub folder: PathBuf,
}

/// The rules of a configuration.
#[derive(Clone, Debug)]
pub struct Rules {
    /// As written, in file order; a `RuleId` is an index into this.
    pub specs: Vec<RuleSpec>,
    /// Compiled.
    pub ruleset: Arc<Ruleset>,
}

impl Rules {
    /// No rules: every request goes to its listener's pool.
    pub(crate) fn none() -> Self {
        Self { specs: Vec::new(), ruleset: Arc::new(Ruleset::empty()) }
    }
}

impl Config {
    /// The pool with this id, which must come from this configuration.
    pub fn pool(&self, id: PoolId) -> &Pool {
        &self.pools[id.0]
    }

    /// The id of the pool of this name; rules name pools by text.
    pub fn pool_named(&self, name: &str) -> Option<PoolId> {
        self.pools.iter().position(|p| p.name == name).map(PoolId)
    }

    /// The certificate with this id, which must come from this configuration.
    pub fn certificate(&self, id: CertificateId) -> &Certificate {
        &self.certificates[id.0]
    }

    /// The TLS settings with this id, which must come from this configuration.
    pub fn tls_settings(&self, id: TlsId) -> &TlsSettings {
        &self.tls[id.0]
    }
}

/// `[node]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Worker threads; `None` = one per core.
    pub workers: Option<NonZeroUsize>,
    /// User to become after binding.
    pub user: Option<String>,
    /// Group to become after binding; `None` = the primary group of `user`.
    pub group: Option<String>,
    /// File to write the process id to.
    pub pid_file: Option<PathBuf>,
}

impl Node {
    /// The number of workers to start on this machine.
    pub fn worker_count(&self) -> NonZeroUsize {
        self.workers.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }
}

/// `[[listeners]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Unique among listeners.
    pub name: String,
    /// Address to bind.
    pub address: ListenAddress,
    /// Protocol with clients.
    pub protocol: Protocol,
    /// Present exactly for [`Protocol::Https`] and [`Protocol::Tls`].
    pub tls: Option<ListenerTls>,
    /// Pool for what no rule routes; always present for [`Protocol::Tcp`] and [`Protocol::Tls`].
    pub pool: Option<PoolId>,
    /// Peers whose `X-Forwarded-For`, `Forwarded` and their like are forwarded as they sent them.
    pub trust_forwarded: ForwardedTrust,
    /// Networks of proxies whose PROXY header begins each connection; `None`: no header.
    pub trusted_proxies: Option<Vec<Network>>,
    /// What audited capture records of its connections.
    pub audit: AuditScope,
    /// Redirect every request to https on this port.
    pub redirect_to_https: Option<u16>,
    /// The node's limits with the listener's own ones in their place.
    pub limits: ListenerLimits,
}

/// TLS on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// Versions, ALPN, client certificates, tickets.
    pub settings: TlsId,
    /// Certificates to choose from by SNI, at least one; the first is the default.
    pub certificates: Vec<CertificateId>,
}

/// `[[certificates]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Unique among certificates.
    pub name: String,
    /// Source of the certificate.
    pub source: CertificateSource,
}

/// Source of a server certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// PEM files, which were readable and contained a certificate and a key when checked.
    Files {
        /// The certificate and its issuers.
        chain: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// Made at start, for tests.
    SelfSigned {
        /// DNS names and IP addresses, at least one.
        names: Vec<String>,
    },
}

/// `[tls.NAME]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The NAME; empty for the built-in settings.
    pub name: String,
    /// Oldest version accepted, not above `max_version`.
    pub min_version: TlsVersion,
    /// Newest version offered.
    pub max_version: TlsVersion,
    /// Application protocols, preferred first; 1 to 255 bytes each.
    pub alpn: Vec<String>,
    /// Whether clients are asked for a certificate.
    pub client_certificates: ClientCertificates,
    /// Authorities of client certificates; present unless `client_certificates` is `None`.
    pub client_ca: Option<PathBuf>,
    /// Session tickets; `None` = no resumption by ticket.
    pub tickets: Option<Tickets>,
    /// How long a TLS 1.2 client without tickets can resume a session by its id; 0 = not at all.
    pub session_id_lifetime_s: u32,
}

/// Session tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tickets {
    /// File with the shared secret; `None` = random keys of this process.
    pub keys: Option<PathBuf>,
    /// How long a key encrypts new tickets; it decrypts for as long again.
    pub rotate: Duration,
}

/// A TLS protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum TlsVersion {
    /// RFC 5246
    #[serde(rename = "1.2")]
    V1_2,
    /// RFC 8446
    #[serde(rename = "1.3")]
    V1_3,
}

/// Whether clients are asked for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// Clients are not asked for a certificate.
    None,
    /// Asked; a client without one is served.
    Optional,
    /// Asked; a client without one is refused.
    Required,
}

/// `[[pools]]`
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Unique among pools.
    pub name: String,
    /// Policy that chooses a server.
    pub policy: Policy,
    /// Whether a client returns to its server.
    pub sticky: Sticky,
    /// Name of the cookie of [`Sticky::Cookie`], an RFC 6265 cookie-name.
    pub sticky_cookie: String,
    /// Bound on a server's share of the outstanding requests for clients that return by address, in percent.
    pub sticky_load_percent_max: Option<u32>,
    /// Present exactly for policies that go by session.
    pub sessions: Option<Sessions>,
    /// At least one.
    pub servers: Vec<Server>,
    /// Requests that may wait for a server; 0 = none.
    pub queue_max: usize,
    /// Longest wait there.
    pub queue_timeout: Duration,
    /// Service classes in the order in which they leave the queue; the others follow.
    pub queue_classes: Vec<String>,
    /// Idle connections kept per server and worker; 0 = none.
    pub keep_alive_idle_max: usize,
    /// Longest idle time of a connection.
    pub keep_alive_idle: Duration,
    /// Address from which connections to servers start.
    pub source: ServerSource,
    /// PROXY header that begins each connection to a server; `None`: no header.
    pub proxy_protocol: Option<ProxyHeader>,
    /// Tries after the first of a request that was not executed, or may be executed again; each counts.
    pub retries: u32,
    /// Longest TCP and TLS connect.
    pub connect_timeout: Duration,
    /// Longest wait for a response head, and longest pause in a response.
    pub response_timeout: Duration,
    /// TLS towards the servers; `None` = plain TCP.
    pub tls: Option<PoolTls>,
    /// Active checks; `None` = none.
    pub health: Option<Health>,
}

/// Stickiness of clients to their servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sticky {
    /// No stickiness.
    None,
    /// By a cookie that this node sets.
    Cookie,
    /// By a hash of its address.
    Source,
}

/// Address from which connections to servers start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerSource {
    /// An address of the node.
    Node,
    /// The address of the client (IP_TRANSPARENT).
    Client,
}

/// `[[pools.servers]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Unique in its pool.
    pub name: String,
    /// The host as written: an IP address or a name, without port and brackets.
    pub host: String,
    /// Addresses of the host, at least one, in order of preference.
    pub addresses: Vec<SocketAddr>,
    /// Share of the load, 1 to 1000.
    pub weight: u32,
    /// Requests at a time from all workers together; `None` = no limit.
    pub connections_max: Option<NonZeroU32>,
    /// Its handshake costs; `None` = the pool's costs by weight. All servers of a pool have them, or none.
    pub costs: Option<HandshakeCosts>,
}

impl Server {
    /// The address to try first.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }
}

/// `[pools.tls]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTls {
    /// Whether the server's certificate must be valid.
    pub verify: bool,
    /// SNI and expected name; `None` = the server's host.
    pub server_name: Option<String>,
    /// Authorities to trust; `None` = system roots.
    pub ca: Option<PathBuf>,
    /// Certificate shown to servers.
    pub client: Option<ClientIdentity>,
}

/// A client certificate with its key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate and its issuers.
    pub chain: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// `[pools.health]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Kind of check.
    pub check: HealthCheck,
    /// From one check to the next; at least `timeout`.
    pub interval: Duration,
    /// Longest time of a check.
    pub timeout: Duration,
    /// Successes in a row after which a server gets requests again.
    pub rise: u32,
    /// Failures in a row after which it gets none.
    pub fall: u32,
}

/// Kind of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    /// Connects.
    Tcp,
    /// Sends a GET and looks at the status.
    Http {
        /// Begins with `/`, no white space or control characters.
        path: String,
        /// Host header; `None` = the server's address.
        host: Option<String>,
        /// Statuses of a healthy server, at least one range.
        expect: Vec<StatusRange>,
    },
}

/// The `kind` of a health check in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HealthKind {
    Http,
    Tcp,
}

/// HTTP statuses from `first` to `last`, both included, within 100 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// Lowest status.
    pub first: u16,
    /// Highest status, not below `first`.
    pub last: u16,
}

impl StatusRange {
    /// Whether the status is in the range.
    pub fn contains(&self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

/// `[timeouts]`; the meaning of each is in the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Accept to the end of the TLS handshake.
    pub handshake: Duration,
    /// First to last byte of a request head.
    pub request_head: Duration,
    /// Longest pause in a request body.
    pub request_body: Duration,
    /// Longest wait for the next request.
    pub keep_alive: Duration,
    /// Longest wait for a response head, and longest pause in a response; pools carry their own value.
    pub response: Duration,
    /// Longest silence of a tunnel in both directions.
    pub tunnel_idle: Duration,
    /// Longest time a peer may accept no bytes.
    pub write_stall: Duration,
    /// Longest wait for open connections at shutdown.
    pub drain: Duration,
    /// Silence of a peer before TCP probes it; zero is never.
    pub tcp_keepalive: Duration,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Limits of listeners that have no own ones; `connections_max` counts the whole process.
    pub listener: ListenerLimits,
    /// TLS handshakes a worker computes before it serves established connections again.
    pub handshakes_per_turn: NonZeroUsize,
    /// Time for which a busy worker batches events before it polls again; zero disables batching.
    pub event_batching: Duration,
    /// Bytes waiting to be written, all workers together.
    pub buffers_bytes_max: NonZeroUsize,
    /// Memory for TLS 1.2 sessions that are resumed by their ids, of the whole process; 0 keeps none.
    pub session_cache_bytes_max: usize,
}

/// The limits that a listener can have for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Client connections at a time.
    pub connections_max: usize,
    /// Client connections at a time from one address; `None` = no limit.
    pub connections_per_source_max: Option<NonZeroU32>,
    /// Size of a head.
    pub head_bytes_max: usize,
    /// Number of headers in a head.
    pub headers_max: usize,
    /// Size of a request body; `None` = no limit.
    pub body_bytes_max: Option<NonZeroU64>,
    /// Bytes of a body that rules may read.
    pub body_prefix_bytes: usize,
    /// Requests on one client connection; `None` = no limit.
    pub requests_per_connection_max: Option<NonZeroU32>,
    /// Slowest average of a request body; `None` = no floor.
    pub bytes_per_s_min: Option<NonZeroU32>,
}

/// `[logs]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logs {
    /// Destination of the access log (JSON lines).
    pub access: AccessLog,
    /// Additional fields of a line.
    pub fields: LogFields,
    /// Format of a line's time.
    pub time: LogTime,
}

/// Additional fields of access log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFields {
    /// Subject of the client's certificate.
    pub client_subject: bool,
    /// `User-Agent` of the request.
    pub user_agent: bool,
    /// `Referer` of the request.
    pub referer: bool,
}

/// Format of the time in access log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogTime {
    /// Seconds since 1970, with a fraction.
    Unix,
    /// RFC 3339 in UTC, with milliseconds.
    Iso,
}

/// Destination of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Standard output.
    Stdout,
    /// Nowhere.
    Off,
    /// A file, reopened on SIGUSR1.
    File(PathBuf),
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Path of the admin API's Unix socket; `None` = no admin API.
    pub socket: Option<PathBuf>,
    /// Address of the metrics; `None` = not served.
    pub metrics_listen: Option<ListenAddress>,
}
