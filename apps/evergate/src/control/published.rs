//! What the admin API reads and asks for. The main loop owns the daemon; it publishes a [`StatusSnapshot`] after every
//! change, and takes requests as messages, so that no lock is held across anything slow.

use super::config_source::Source;
use super::status::{
    CertificateStatus, Certificates, Connections, Counts, ListenerStatus, MeasuredCosts, PoolStatus, Refused,
    Reloaded, Reloads, RuleStatus, Rules, ServerStatus, Servers, Status, Upgraded, WorkerStatus,
};
use crate::audit::Audit;
use crate::health::Record;
use evergate_base::rfc3339;
use evergate_config::Config;
use evergate_config::model::Listener;
use evergate_crypto::CertifiedName;
use evergate_rules::RuleSpec;
use evergate_worker::TimesStatus;
use evergate_worker::pools::ResponseCounts;
use evergate_worker::pools::{Generation, PoolRuntime, ServerRuntime};
use evergate_worker::{Counters, Shared};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// Caller of an upgrade, which gets the result.
pub(super) type UpgradeCaller = oneshot::Sender<Result<Upgraded, Refused>>;

/// A request to the main loop.
pub(super) enum Message {
    /// Read the configuration again and apply it.
    Reload(oneshot::Sender<Reloaded>),
    /// Reopen the access log; the answer names the file.
    ReopenLog(oneshot::Sender<String>),
    /// Accept no new connections, let the open ones finish, and end.
    Drain,
    /// The result of a read of the configuration.
    Read(Box<super::config_source::Read>),
    /// The current metadata of the watched files.
    Files(super::file_watch::Fingerprint),
    /// Let a new process take this one's place: this program, or the same.
    Upgrade(Option<std::path::PathBuf>, UpgradeCaller),
    /// The new process is ready, or there is none.
    Started(Box<Result<crate::upgrade::Successor, crate::upgrade::Failure>>),
}

/// The state in force. Replaced as a whole.
#[derive(Debug)]
pub(super) struct StatusSnapshot {
    pub(super) config: Config,
    pub(super) generation: Arc<Generation>,
    pub(super) since_unix_s: u64,
    pub(super) certificates: Vec<(String, CertifiedName)>,
    pub(super) bound: Vec<(String, SocketAddr)>,
    pub(super) metrics_listen: Option<SocketAddr>,
    /// Health by server id.
    pub(super) health: BTreeMap<u64, Arc<Record>>,
}

/// One worker, as seen from outside.
#[derive(Debug)]
pub(super) struct WorkerView {
    pub(super) counters: Arc<Counters>,
    pub(super) alive: AtomicBool,
}

/// State that the tasks of the control plane share.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) source: Source,
    pub(super) started: Instant,
    pub(super) started_unix_s: u64,
    pub(super) workers: Vec<WorkerView>,
    pub(super) shared: Arc<Shared>,
    pub(super) audit: Option<Arc<Audit>>,
    /// Lines of the access log that could not be written.
    pub(super) log_lines_unwritten: Arc<AtomicU64>,
    pub(super) draining: AtomicBool,
    pub(super) reloads_succeeded: AtomicU64,
    pub(super) reloads_failed: AtomicU64,
    pub(super) files_stale: AtomicBool,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) view: RwLock<Arc<StatusSnapshot>>,
    /// The agent of the cluster.
    pub(super) cluster: Option<crate::agent::Handle>,
}

impl Control {
    pub(super) fn view(&self) -> Arc<StatusSnapshot> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn publish(&self, view: StatusSnapshot) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn status(&self) -> Status {
        let view = self.view();
        let workers: Vec<WorkerStatus> = self.workers.iter().enumerate().map(worker_status).collect();
        let mut total = total(&workers);
        // Lost behind the workers, so that no worker's count has them.
        total.log_lines_lost += self.log_lines_unwritten.load(Ordering::Relaxed);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state: if self.is_draining() { "draining" } else { "running" }.to_owned(),
            started_unix_s: self.started_unix_s,
            uptime_s: self.started.elapsed().as_secs(),
            generation: view.generation.snapshot.generation,
            generation_unix_s: view.since_unix_s,
            configuration: self.source.to_string(),
            reloads: Reloads {
                succeeded: self.reloads_succeeded.load(Ordering::Relaxed),
                failed: self.reloads_failed.load(Ordering::Relaxed),
                files_stale: self.files_stale.load(Ordering::Relaxed),
            },
            listeners: view.listeners(),
            metrics_listen: view.metrics_listen.map(|address| address.to_string()),
            connections: Connections {
                open: self.shared.connections.load(Ordering::Relaxed) as u64,
                max: view.config.limits.listener.connections_max as u64,
            },
            session_ids: self.shared.sessions.len() as u64,
            aead: crate::aead::library_names(),
            resident_bytes: evergate_sys::resident_bytes(),
            total,
            reasons: self.reasons(),
            workers,
            pools: view.pools(),
        }
    }

    fn reasons(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for worker in &self.workers {
            let reasons = worker.counters.reasons.lock().unwrap_or_else(PoisonError::into_inner);
            for (reason, count) in reasons.iter() {
                *all.entry((*reason).to_owned()).or_default() += count;
            }
        }
        all
    }

    pub(super) fn servers(&self) -> Servers {
        Servers { servers: self.view().pools().into_iter().flat_map(|pool| pool.servers).collect() }
    }

    pub(super) fn rules(&self) -> Rules {
        let view = self.view();
        let ruleset = &view.config.rules.ruleset;
        let rule = |id: evergate_rules::RuleId| RuleStatus {
            name: ruleset.name(id).to_owned(),
            action: view.config.rules.specs.get(id.0 as usize).map_or_else(String::new, action),
            hits: view.generation.rule_hits.get(id.0 as usize).map_or(0, |hits| hits.load(Ordering::Relaxed)),
        };
        Rules {
            generation: view.generation.snapshot.generation,
            since_unix_s: view.generation.rule_hits.since_unix_s,
            rules: ruleset.precedence().map(rule).collect(),
        }
    }

    pub(super) fn certificates(&self) -> Certificates {
        let now = i64::try_from(evergate_sys::wall_clock_s()).unwrap_or(i64::MAX);
        let certificate = |(name, certificate): &(String, CertifiedName)| CertificateStatus {
            name: name.clone(),
            names: certificate.names.clone(),
            subject: certificate.subject.clone(),
            issuer: certificate.issuer.clone(),
            serial: certificate.serial.clone(),
            not_before: rfc3339(certificate.not_before_unix_s),
            not_after: rfc3339(certificate.not_after_unix_s),
            not_after_unix_s: certificate.not_after_unix_s,
            days_left: certificate.not_after_unix_s.saturating_sub(now).div_euclid(86_400),
        };
        Certificates { certificates: self.view().certificates.iter().map(certificate).collect() }
    }
}

impl StatusSnapshot {
    /// The server of a pool, by their names.
    pub(super) fn server(&self, pool: &str, server: &str) -> Option<&Arc<ServerRuntime>> {
        let pool = self.generation.pools.iter().find(|known| known.name == pool)?;
        pool.servers.iter().find(|known| known.name == server)
    }

    fn listeners(&self) -> Vec<ListenerStatus> {
        let status = |(listener, responses): (&Listener, &Arc<ResponseCounts>)| ListenerStatus {
            name: listener.name.clone(),
            protocol: listener.protocol.as_str().to_owned(),
            address: self
                .bound
                .iter()
                .find(|(name, _)| *name == listener.name)
                .map_or(listener.address.socket, |(_, address)| *address)
                .to_string(),
            responses: responses.by_class(),
        };
        self.config.listeners.iter().zip(&self.generation.listener_responses).map(status).collect()
    }

    fn pools(&self) -> Vec<PoolStatus> {
        let pairs = self.config.pools.iter().zip(&self.generation.pools);
        pairs
            .map(|(config, runtime)| PoolStatus {
                name: runtime.name.clone(),
                policy: config.policy.as_str().to_owned(),
                responses: runtime.client_responses.by_class(),
                unavailable: runtime.unavailable.load(Ordering::Relaxed),
                sessions: runtime.sessions.as_ref().and_then(|sessions| Some(sessions.counts()?.into())),
                servers: runtime
                    .servers
                    .iter()
                    .enumerate()
                    .map(|(index, server)| self.server_status(runtime, index, server))
                    .collect(),
            })
            .collect()
    }

    fn server_status(&self, pool: &PoolRuntime, index: usize, server: &ServerRuntime) -> ServerStatus {
        let draining = server.draining.load(Ordering::Relaxed);
        let healthy = server.healthy.load(Ordering::Relaxed);
        ServerStatus {
            pool: pool.name.clone(),
            name: server.name.clone(),
            address: server.address().to_string(),
            state: match (draining, healthy) {
                (true, _) => "draining",
                (false, true) => "up",
                (false, false) => "down",
            }
            .to_owned(),
            weight: server.weight.load(Ordering::Relaxed),
            connections_max: server.connections_max.load(Ordering::Relaxed),
            outstanding: server.outstanding.load(Ordering::Relaxed),
            requests: server.requests.load(Ordering::Relaxed),
            failures: server.failures.load(Ordering::Relaxed),
            response_times: TimesStatus::of(&[&server.responses]),
            handshakes: pool
                .sessions
                .as_ref()
                .and_then(|sessions| MeasuredCosts::of(&sessions.measured(index))),
            health: self.health.get(&server.id).and_then(|record| record.status()),
        }
    }
}

fn action(spec: &RuleSpec) -> String {
    match (&spec.route, spec.deny, &spec.redirect) {
        (Some(pool), _, _) => format!("route {pool}"),
        (_, Some(status), _) => format!("deny {status}"),
        (_, _, Some(_)) => format!("redirect {}", spec.redirect_status.unwrap_or(302)),
        _ => "continue".to_owned(),
    }
}

fn worker_status((index, worker): (usize, &WorkerView)) -> WorkerStatus {
    WorkerStatus { index, alive: worker.alive.load(Ordering::Relaxed), counts: worker.counters.counts() }
}

fn total(workers: &[WorkerStatus]) -> Counts {
    let mut total = Counts::default();
    workers.iter().for_each(|worker| total.add(&worker.counts));
    total
}
