//! Answers of the admin API as types: the daemon writes them, the command line reads them.
//!
//! Fields are only added within `/v1`; readers ignore what they do not know.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

pub use crate::health::HealthStatus;
pub use evergate_worker::Counts;

use evergate_config::{Problem, Severity};
use evergate_worker::TimesStatus;

/// `GET /v1/status`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// `running` or `draining`.
    pub state: String,
    /// When the process started, in seconds since 1970.
    pub started_unix_s: u64,
    /// How long it has been running.
    pub uptime_s: u64,
    /// Counts up with every successful reload, from 1.
    pub generation: u64,
    /// When that generation came into force, in seconds since 1970.
    pub generation_unix_s: u64,
    /// The configuration file, or the command line in the place of one.
    pub configuration: String,
    /// How reloads went.
    pub reloads: Reloads,
    /// Where clients connect.
    pub listeners: Vec<ListenerStatus>,
    /// Address of the metrics, when they are served.
    pub metrics_listen: Option<String>,
    /// Client connections.
    pub connections: Connections,
    /// TLS 1.2 sessions that are kept for clients that resume them by their ids.
    #[serde(default)]
    pub session_ids: u64,
    /// Library that seals and opens TLS records (`aws-lc` or `ring`), by suite.
    #[serde(default)]
    pub aead: BTreeMap<String, String>,
    /// Resident memory of the process.
    pub resident_bytes: u64,
    /// All workers together.
    pub total: Counts,
    /// Requests and connections that ended with a reason of evergate's own, by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Each worker.
    pub workers: Vec<WorkerStatus>,
    /// Each pool with its servers.
    pub pools: Vec<PoolStatus>,
}

/// How reloads went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloads {
    /// Put another configuration in force.
    pub succeeded: u64,
    /// Changed nothing.
    pub failed: u64,
    /// Files have changed (certificates, keys, ticket keys) and cannot be used: the old ones are in use.
    #[serde(default)]
    pub files_stale: bool,
}

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// `https`, `http`, `tls` or `tcp`.
    pub protocol: String,
    /// Where it is bound.
    pub address: String,
    /// Responses by class, `1xx` to `5xx`.
    #[serde(default)]
    pub responses: BTreeMap<String, u64>,
}

/// Client connections of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Open now.
    pub open: u64,
    /// Bound.
    pub max: u64,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number, from 0.
    pub index: usize,
    /// Whether its thread runs.
    pub alive: bool,
    /// Counters.
    #[serde(flatten)]
    pub counts: Counts,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// How a server is chosen.
    pub policy: String,
    /// Responses to clients for requests of the pool by class, `1xx` to `5xx`.
    #[serde(default)]
    pub responses: BTreeMap<String, u64>,
    /// Requests that no server could take.
    pub unavailable: u64,
    /// Present for policies that remember sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionStatus>,
    /// Its servers.
    pub servers: Vec<ServerStatus>,
}

/// Sessions of a pool that chooses by session, and how its requests were sent; each attempt counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Sessions known now by the clients' addresses.
    pub known: u64,
    /// Sessions of `known` that were forgotten before their time because there were too many.
    pub evicted: u64,
    /// Requests of clients without a known session.
    pub new: u64,
    /// Requests sent to the server that has the client's session.
    pub returned: u64,
    /// Requests sent elsewhere although a session was known.
    pub missed: u64,
    /// What decided.
    #[serde(default)]
    pub decided: DecidedStatus,
    /// Sessions of relayed handshakes.
    #[serde(default)]
    pub learned: LearnedStatus,
}

/// What decided about the requests of a pool that chooses by session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedStatus {
    /// A session that the client offered.
    pub session: u64,
    /// The client's address.
    pub address: u64,
    /// The server name that the client asked for.
    pub sni: u64,
}

/// Sessions of foreign servers, learned from relayed handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedStatus {
    /// Entries now: sessions, and addresses or server names.
    pub entries: u64,
    /// Entries that were evicted before their expiry.
    pub evicted: u64,
    /// Memory of the table.
    pub memory_bytes: u64,
    /// Hellos that offered a known session.
    pub found: u64,
    /// Hellos that offered only unknown sessions.
    pub unknown: u64,
    /// Hellos that offered no session.
    pub unoffered: u64,
    /// Sessions stored from finished handshakes.
    pub learned: u64,
    /// Sessions forgotten after a fatal alert.
    pub forgotten: u64,
    /// Entries received from other nodes.
    pub received: u64,
}

impl From<evergate_worker::pools::SessionCounts> for SessionStatus {
    fn from(counts: evergate_worker::pools::SessionCounts) -> SessionStatus {
        let decided =
            DecidedStatus { session: counts.by_session, address: counts.by_address, sni: counts.by_sni };
        let evergate_worker::pools::LearnedCounts {
            entries,
            evicted,
            memory_bytes,
            found,
            unknown,
            unoffered,
            learned,
            forgotten,
            received,
        } = counts.learned;
        SessionStatus {
            known: counts.known,
            evicted: counts.evicted,
            new: counts.new,
            returned: counts.returned,
            missed: counts.missed,
            decided,
            learned: LearnedStatus {
                entries,
                evicted,
                memory_bytes,
                found,
                unknown,
                unoffered,
                learned,
                forgotten,
                received,
            },
        }
    }
}

/// Costs of relayed handshakes at a server, in microseconds; absent before enough were finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCosts {
    /// With a full handshake: p_new of SSLSARD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_us: Option<f64>,
    /// With a resumed session: p_reu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_us: Option<f64>,
    /// Full handshakes finished.
    pub full: u32,
    /// Resumed ones.
    pub resumed: u32,
}

impl MeasuredCosts {
    /// What was measured; `None` before the first handshake.
    pub fn of(meter: &evergate_balance::HandshakeMeter) -> Option<MeasuredCosts> {
        let costs = MeasuredCosts {
            full_us: meter.full.cost_us(),
            resumed_us: meter.resumed.cost_us(),
            full: meter.full.samples(),
            resumed: meter.resumed.samples(),
        };
        (costs.full > 0 || costs.resumed > 0).then_some(costs)
    }
}

/// `GET /v1/servers`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Servers {
    /// The servers of all pools, in file order.
    pub servers: Vec<ServerStatus>,
}

/// One server of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// `up`, `down` (failed its checks) or `draining` (taken out by an operator).
    pub state: String,
    /// Share of the load.
    pub weight: u32,
    /// Bound on requests at a time; 0 is none.
    pub connections_max: u32,
    /// Requests under way.
    pub outstanding: u32,
    /// Requests sent to it.
    pub requests: u64,
    /// Connects refused or timed out, and responses lost.
    pub failures: u64,
    /// How long it took from sending a request, or making its connection, to the beginning of the response.
    #[serde(default)]
    pub response_times: TimesStatus,
    /// Measured costs of relayed handshakes, in a pool by session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<MeasuredCosts>,
    /// The last health check; absent without checks, and before the first.
    pub health: Option<HealthStatus>,
}

/// `GET /v1/rules`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// The generation whose hits these are.
    pub generation: u64,
    /// Since when they are counted, in seconds since 1970.
    pub since_unix_s: u64,
    /// In the order they are tried.
    pub rules: Vec<RuleStatus>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Its name.
    pub name: String,
    /// Action: `route POOL`, `deny 403`, `redirect 302` or `continue`.
    pub action: String,
    /// Requests that it matched.
    pub hits: u64,
}

/// `GET /v1/certificates`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificates {
    /// In file order.
    pub certificates: Vec<CertificateStatus>,
}

/// One certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Host names it is good for.
    pub names: Vec<String>,
    /// Subject.
    pub subject: String,
    /// Issuer.
    pub issuer: String,
    /// Serial number, in hexadecimal.
    pub serial: String,
    /// Start of validity, RFC 3339 in UTC.
    pub not_before: String,
    /// End of validity, RFC 3339 in UTC.
    pub not_after: String,
    /// End of validity in seconds since 1970.
    pub not_after_unix_s: i64,
    /// Whole days left; negative after the end.
    pub days_left: i64,
}

/// `POST /v1/reload`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Whether the configuration is in force.
    pub ok: bool,
    /// The generation in force now.
    pub generation: u64,
    /// Problems, errors and warnings.
    pub problems: Vec<Finding>,
}

/// An answer that only confirms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The action that was done.
    pub done: String,
}

/// `POST /v1/upgrade`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// Version of the new process.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Connections that the new process had received when each had been handled once.
    pub passed: u64,
    /// Connections that could not be passed then, by reason: they follow as soon as possible.
    pub waiting: BTreeMap<String, u64>,
}

/// An answer with a status of 400 or more, except that of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The problem.
    pub error: String,
    /// The remedy.
    pub remedy: String,
}

/// A problem of the configuration, as [`Problem`] writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `error` or `warning`.
    pub severity: String,
    /// The file.
    pub file: String,
    /// Line, from 1; 0 without a place.
    pub line: usize,
    /// Column, from 1; 0 without a place.
    pub column: usize,
    /// The key, such as `listeners[1].address`.
    pub key: String,
    /// The value there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The problem.
    pub what: String,
    /// The consequence.
    pub consequence: String,
    /// The remedy.
    pub remedy: String,
}

impl Finding {
    /// A problem without a place in the text: the machine refuses a setting.
    pub fn of_machine(
        severity: Severity,
        file: &str,
        what: String,
        consequence: &str,
        remedy: &str,
    ) -> Finding {
        Finding {
            severity: severity_name(severity).to_owned(),
            file: file.to_owned(),
            line: 0,
            column: 0,
            key: String::new(),
            value: None,
            what,
            consequence: consequence.to_owned(),
            remedy: remedy.to_owned(),
        }
    }

    /// Whether it refuses the configuration.
    pub fn is_error(&self) -> bool {
        self.severity == severity_name(Severity::Error)
    }
}

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

impl From<&Problem> for Finding {
    fn from(problem: &Problem) -> Finding {
        Finding {
            severity: severity_name(problem.severity).to_owned(),
            file: problem.file.clone(),
            line: problem.line,
            column: problem.column,
            key: problem.key.clone(),
            value: problem.value.clone(),
            what: problem.what.clone(),
            consequence: problem.consequence.clone(),
            remedy: problem.remedy.clone(),
        }
    }
}

/// One line: place, problem, consequence, remedy. The log line around it has the severity.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        if let Some(value) = &self.value {
            write!(f, " = {value}")?;
        }
        write!(f, ": {}; {}; {}", self.what, self.consequence, self.remedy)
    }
}
