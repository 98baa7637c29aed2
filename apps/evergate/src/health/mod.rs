//! Active health checks: one task per server of a pool with `[pools.health]`.
//!
//! The first check of a server runs at once and decides alone, so that a new server that is dead gets no requests for
//! longer than one check. After that `rise` and `fall` results in a row are needed. Later checks are spread over the
//! interval, so that the servers of a large pool are not all checked at the same moment.
//!
//! A check that this machine cannot make, without a free descriptor or port, does not count: otherwise many clients
//! would take every healthy server down.
//!
//! A node that was cut off from its cluster checks all servers in state down once more before it gets clients again.
//!
//! A reload leaves the task of an unchanged server alone. Otherwise reloads more frequent than the timeout would hide a
//! check that hangs. Other tasks start again; a server that is carried over keeps its state and its record. After an
//! upgrade a server keeps its state, and its first check counts like later ones.

mod local_errors;
mod probe;
mod threshold;

pub(crate) use probe::is_of_machine;
pub use threshold::{HealthStatus, Record, Transition};

use crate::control::console;
use crate::upgrade::{OfferedServer, adopted};
use evergate_base::ProxyHeader;
use evergate_config::Config;
use evergate_config::model::Health;
use evergate_worker::pools::{Generation, ServerRuntime};
use local_errors::Shortage;
use probe::{Failure, Probe};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

/// Checks under way at one time. The others wait their turn; their time starts when it comes.
const PROBES_MAX: usize = 256;

/// How long the end of a check's connection may take, within the time of the check.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The checks of the generation in force.
#[derive(Debug)]
pub struct Checks {
    tasks: BTreeMap<u64, Task>,
    records: BTreeMap<u64, Arc<Record>>,
    permits: Arc<Semaphore>,
    shortage: Arc<Shortage>,
    /// Wakes checks that wait for their turn.
    again: Arc<Notify>,
}

impl Default for Checks {
    fn default() -> Checks {
        Checks {
            tasks: BTreeMap::new(),
            records: BTreeMap::new(),
            permits: Arc::new(Semaphore::new(PROBES_MAX)),
            shortage: Arc::default(),
            again: Arc::default(),
        }
    }
}

impl Checks {
    /// Checks that continue for the servers whose state comes from the old process.
    pub fn inherited(generation: &Generation, known: &[OfferedServer]) -> Checks {
        let servers = adopted(generation, known);
        let records = servers.map(|(server, _)| (server.id, Arc::new(Record::inherited()))).collect();
        Checks { records, ..Checks::default() }
    }

    /// Checks the servers of this generation from now on, and no others. Needs a runtime.
    pub fn follow(&mut self, config: &Config, generation: &Generation) {
        let mut tasks = std::mem::take(&mut self.tasks);
        let mut before = std::mem::take(&mut self.records);
        for (index, pool) in config.pools.iter().enumerate() {
            let Some(health) = &pool.health else { continue };
            let Some(pool_runtime) = generation.pools.get(index) else { continue };
            let Some(made) = generation.snapshot.pools.get(index) else { continue };
            for ((server, runtime), made_server) in
                pool.servers.iter().zip(&pool_runtime.servers).zip(&made.servers)
            {
                let tls = made.tls.clone().zip(made_server.tls_name.clone());
                let record = before.remove(&runtime.id).unwrap_or_default();
                self.records.insert(runtime.id, record.clone());
                let about = About {
                    pool: pool.name.clone(),
                    address: server.address(),
                    health: health.clone(),
                    proxy_protocol: pool.proxy_protocol,
                    tls_fingerprint: pool_runtime.tls_fingerprint,
                };
                if let Some(task) = tasks.remove(&runtime.id).filter(|task| task.about == about) {
                    self.tasks.insert(runtime.id, task);
                    continue;
                }
                let check = Check {
                    pool: pool.name.clone(),
                    server: runtime.clone(),
                    health: health.clone(),
                    probe: Probe::new(server, &health.check, tls, pool.proxy_protocol),
                    record,
                    permits: self.permits.clone(),
                    shortage: self.shortage.clone(),
                    again: self.again.clone(),
                };
                let handle = tokio::spawn(check.run()).abort_handle();
                self.tasks.insert(runtime.id, Task { about, handle });
            }
        }
        self.shortage.keep(|server| self.records.contains_key(&server));
    }

    /// Checks the servers in state down at once, and lets the first result decide: this node was cut off, and may
    /// itself have caused the failures. A running check is not repeated.
    pub fn ask_again(&self, generation: &Generation) {
        let servers = generation.pools.iter().flat_map(|pool| &pool.servers);
        let down = servers.filter(|server| !server.healthy.load(Ordering::Relaxed));
        down.filter_map(|server| self.records.get(&server.id)).for_each(|record| record.begin_again());
        self.again.notify_waiters();
    }

    /// The records by server id.
    pub fn records(&self) -> BTreeMap<u64, Arc<Record>> {
        self.records.clone()
    }
}

/// Settings that the checks of a server depend on, besides the server.
#[derive(Debug, PartialEq, Eq)]
struct About {
    pool: String,
    address: SocketAddr,
    health: Health,
    proxy_protocol: Option<ProxyHeader>,
    tls_fingerprint: u64,
}

/// A server's checks, for as long as this lives.
#[derive(Debug)]
struct Task {
    about: About,
    handle: AbortHandle,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// The checks of one server.
struct Check {
    pool: String,
    server: Arc<ServerRuntime>,
    health: Health,
    probe: Probe,
    record: Arc<Record>,
    permits: Arc<Semaphore>,
    shortage: Arc<Shortage>,
    again: Arc<Notify>,
}

impl Check {
    async fn run(self) {
        if !self.record.is_fresh() {
            self.wait(part_of(self.health.interval)).await;
        }
        let mut first = self.record.is_fresh();
        loop {
            let begun = Instant::now();
            if self.once().await {
                continue;
            }
            let pause = if first { part_of(self.health.interval) } else { self.health.interval };
            first = false;
            self.wait(pause.saturating_sub(begun.elapsed())).await;
        }
    }

    /// Waits for `span`, or until the results so far are discarded.
    async fn wait(&self, span: Duration) {
        let until = tokio::time::Instant::now() + span;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                () = self.again.notified() => if self.record.is_fresh() { return },
            }
        }
    }

    /// Whether the result became worthless while the connection of the check ended: the next check is due at once.
    async fn once(&self) -> bool {
        // The semaphore is never closed; without a permit the check would only be one more.
        let permit = self.permits.acquire().await.ok();
        let begun = Instant::now();
        let limit = self.health.timeout;
        let (result, rest) = match tokio::time::timeout(limit, self.probe.run()).await {
            Ok((Ok(detail), rest)) => (Ok(detail), rest),
            Ok((Err(Failure::OfServer(detail)), rest)) => (Err(detail), rest),
            Ok((Err(Failure::OfMachine(why)), _)) => {
                self.shortage.begin(self.server.id, &why);
                return false;
            }
            Err(_) => (Err(format!("no answer within {} ms", limit.as_millis())), None),
        };
        self.shortage.end(self.server.id);
        let up = self.server.healthy.load(Ordering::Relaxed);
        let transition = self.record.observe(up, &self.health, result, begun.elapsed());
        if let Some(transition) = transition {
            self.server.handle_checked(transition.up);
            self.log_transition(&transition);
        }
        drop(permit); // the result stands; the end of the connection keeps no other check waiting
        if let Some(rest) = rest {
            let left = limit.saturating_sub(begun.elapsed()).min(CLOSE_MAX);
            let _ = tokio::time::timeout(left, rest.close()).await; // then the connection closes as it is
        }
        self.record.is_fresh()
    }

    fn log_transition(&self, transition: &Transition) {
        let server = format!("server {}/{} ({})", self.pool, self.server.name, self.probe.address());
        let checks = match transition.in_a_row {
            1 => "1 check".to_owned(),
            count => format!("{count} checks in a row"),
        };
        if transition.up {
            console::info(format_args!("{server} is up: {} ({checks})", transition.detail));
        } else {
            console::warning(format_args!("{server} is down: {} ({checks})", transition.detail));
        }
    }
}

/// A random part of an interval.
fn part_of(interval: Duration) -> Duration {
    interval.mul_f64(f64::from(u16::from_le_bytes(evergate_crypto::random_bytes::<2>())) / 65_536.0)
}
