//! Start, the loop, and the end.

mod reload;
mod upgrade;

use super::config_source::{Origin, Source};
use super::console::{error, info, warning};
use super::file_watch::{Fingerprint, Watch, files};
use super::notify::Notify;
use super::pid_file::PidFile;
use super::published::{Control, Message, StatusSnapshot, WorkerView};
use super::server::{Serving, serve_admin, serve_metrics};
use super::signals::{EarlySignals, Signal, Signals};
use super::socket::AdminSocket;
use super::status::{Finding, Reloaded};
use crate::access_log::{PATIENCE, Target};
use crate::daemon::{self, Daemon};
use crate::health::Checks;
use crate::listen::{self, is_ours};
use crate::upgrade::Inheritance;
use anyhow::{Context, Result, bail};
use evergate_config::model::ListenAddress;
use evergate_config::{Config, Problem};
use evergate_sys::Account;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior, interval};
use upgrade::Upgrade;

/// Messages that may wait for the loop; beyond it their senders wait.
const MESSAGES_MAX: usize = 64;
/// Time between two checks for the end of draining.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// How long the access log is waited for after a second signal.
const STOP_GRACE: Duration = Duration::from_millis(100);
const METRICS_BACKLOG: i32 = 128;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time between two checks of certificate and key files.
    pub watch_interval: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { watch_interval: Duration::from_secs(10) }
    }
}

/// Serves until a stop signal. An error is why it could not start, or why it ended by itself. `inherited`: sockets and
/// state from the old process of an upgrade. `early`: signals received so far.
pub fn run(
    source: Source,
    config: Config,
    warnings: &[Problem],
    options: &Options,
    inherited: Option<Inheritance>,
    early: &EarlySignals,
) -> Result<()> {
    for problem in warnings {
        warning(Finding::from(problem));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the control plane")?;
    let result = runtime.block_on(serve(source, config, options, inherited, early));
    // A check on a file system that hangs must not keep the process alive.
    runtime.shutdown_background();
    result
}

async fn serve(
    source: Source,
    config: Config,
    options: &Options,
    mut inherited: Option<Inheritance>,
    early: &EarlySignals,
) -> Result<()> {
    // Before the workers exist, so that a signal during start is not lost and does not kill.
    let mut signals = Signals::new().context("cannot handle signals")?;
    let reload_asked = early.reload();
    let (mut main, doors) = match Main::start(source, config, inherited.as_mut()) {
        Ok(started) => started,
        Err(error) => {
            if let Some(inherited) = &mut inherited {
                inherited.fail(&format!("{error:#}"));
            }
            return Err(error);
        }
    };
    let is_successor = inherited.is_some();
    if let Some(inherited) = inherited {
        // Until then the old process serves, and it continues if this one ends.
        let changes = inherited.start_serving().context("the old process did not pass its state")?;
        main.daemon.apply_operator_state(&changes);
    }
    main.open(doors, is_successor)?;
    main.announce();
    if matches!(main.control.source.origin, Origin::Line { .. }) {
        main.warn_of_certificates();
    }
    if reload_asked {
        main.on_signal(Signal::Reload);
    }
    let mut second = ticker(Duration::from_secs(1));
    let mut look = ticker(options.watch_interval);
    let mut drain_look = ticker(DRAIN_POLL);
    while !main.is_over()? {
        tokio::select! {
            signal = signals.next() => main.on_signal(signal),
            Some(message) = main.inbox.recv() => main.handle(message),
            _ = second.tick() => main.every_second(),
            _ = look.tick() => main.check_files(),
            _ = drain_look.tick(), if main.drain_until.is_some() || main.deferred.is_some() => main.poll_ends(),
        }
    }
    let (admin, _pid_file) = main.end(&mut signals).await;
    if let Some((_, serving)) = &admin {
        serving.drain().await; // the caller of the stop gets its answer
    }
    Ok(())
}

fn ticker(period: Duration) -> Interval {
    let mut ticker = interval(period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker
}

/// Everything that the loop owns.
pub(super) struct Main {
    pub(super) daemon: Daemon,
    pub(super) control: Arc<Control>,
    pub(super) checks: Checks,
    pub(super) watch: Watch,
    pub(super) notify: Notify,
    pub(super) admin: Option<(AdminSocket, Serving)>,
    pub(super) metrics: Option<(SocketAddr, Serving)>,
    /// The socket of the metrics once more.
    pub(super) metrics_socket: Option<TcpListener>,
    upgrade: Option<Upgrade>,
    /// Callers that wait for the read of the configuration that is under way.
    pub(super) reading: Option<Vec<Asker>>,
    /// Callers that came after the read began, and therefore need another.
    pub(super) waiting: Vec<Asker>,
    /// Reloads that wait for the end of an upgrade.
    deferred: Option<reload::DeferredReload>,
    inbox: mpsc::Receiver<Message>,
    pub(super) drain_until: Option<Instant>,
    pub(super) stop_now: bool,
    /// The first stop signal is logged.
    pub(super) stop_reported: bool,
    looking: bool,
    /// In its cluster, a second ago; a node alone always.
    was_active: bool,
    pub(super) rotated: HashMap<String, u64>,
    pid_file: Option<PidFile>,
}

/// Where operators come in, once the node serves.
struct Doors {
    admin: Option<AdminSocket>,
    metrics: Option<TcpListener>,
}

/// Caller of a reload over the admin API; none after a signal.
type Asker = Option<oneshot::Sender<Reloaded>>;

impl Main {
    fn start(
        source: Source,
        config: Config,
        mut inherited: Option<&mut Inheritance>,
    ) -> Result<(Main, Doors)> {
        let notify = Notify::from_environment();
        let watch = Watch::new(Fingerprint::of(&files(&config)));
        let mut pid_file = None;
        let doors = match &mut inherited {
            Some(inherited) => Doors::inherited(inherited)?,
            None => {
                // Steps that may need root come before the daemon becomes another user.
                let account = daemon::becomes(&config)?;
                pid_file = config.node.pid_file.as_deref().map(write_pid).transpose()?;
                let metrics = config.admin.metrics_listen.map(|address| bind_metrics(address, &[]));
                let metrics = metrics.transpose()?;
                let admin = config.admin.socket.as_deref();
                Doors { admin: admin.and_then(|path| bind_admin(path, account.as_ref())), metrics }
            }
        };
        let rotated = inherited.as_ref().map(|inherited| rotated(inherited)).unwrap_or_default();
        let servers = inherited.as_ref().map(|inherited| inherited.offer.servers.clone()).unwrap_or_default();
        let daemon = Daemon::start(config, inherited)?;
        let (messages, inbox) = mpsc::channel(MESSAGES_MAX);
        let mut checks = Checks::inherited(&daemon.generation, &servers);
        checks.follow(&daemon.config, &daemon.generation);
        let metrics_listen = doors.metrics.as_ref().and_then(|listener| listener.local_addr().ok());
        let worker = |handle: &crate::daemon::WorkerHandle| WorkerView {
            counters: handle.counters.clone(),
            alive: AtomicBool::new(true),
        };
        let control = Arc::new(Control {
            source,
            started: Instant::now(),
            started_unix_s: evergate_sys::wall_clock_s(),
            workers: daemon.workers.iter().map(worker).collect(),
            shared: daemon.shared.clone(),
            audit: daemon.audit.clone(),
            log_lines_unwritten: daemon.log_lines_unwritten(),
            draining: AtomicBool::new(false),
            reloads_succeeded: AtomicU64::new(0),
            reloads_failed: AtomicU64::new(0),
            files_stale: AtomicBool::new(false),
            messages,
            cluster: daemon.agent(),
            view: RwLock::new(Arc::new(view(&daemon, &checks, metrics_listen))),
        });
        let main = Main {
            daemon,
            control,
            checks,
            watch,
            notify,
            admin: None,
            metrics: None,
            metrics_socket: None,
            upgrade: None,
            reading: None,
            waiting: Vec::new(),
            deferred: None,
            inbox,
            drain_until: None,
            stop_now: false,
            stop_reported: false,
            looking: false,
            was_active: true,
            rotated,
            pid_file,
        };
        Ok((main, doors))
    }

    /// Serves: clients, and operators.
    fn open(&mut self, doors: Doors, is_successor: bool) -> Result<()> {
        self.daemon.listen()?;
        if let Some(listener) = doors.metrics {
            self.serve_metrics(listener);
        }
        if let Some(socket) = doors.admin {
            self.serve_admin(socket.into_owned());
        }
        if is_successor {
            self.take_pid_file(); // only now: it must name the process that serves
            self.daemon.inherit(); // last: the connections may use all descriptors
        }
        Ok(())
    }

    fn take_pid_file(&mut self) {
        let Some(path) = self.daemon.config.node.pid_file.as_deref() else { return };
        // The user that the node became may not write there.
        let written = PidFile::replace(path).with_context(|| unwritten(path));
        self.pid_file = written.map_err(|error| warning(format_args!("{error:#}"))).ok();
    }

    /// The file names this process again, if another one has changed that.
    pub(super) fn return_pid_file(&mut self) {
        if !self.pid_file.as_ref().is_some_and(PidFile::is_ours) {
            self.pid_file = None;
            self.take_pid_file();
        }
    }

    /// Logs the node's addresses, and that it is ready.
    fn announce(&self) {
        let status = self.control.status();
        for listener in &status.listeners {
            info(format_args!("listener {} ({}) on {}", listener.name, listener.protocol, listener.address));
        }
        if let Some((socket, _)) = &self.admin {
            info(format_args!("admin API on {}", socket.path.display()));
        }
        if let Some((address, _)) = &self.metrics {
            info(format_args!("metrics on http://{address}/metrics"));
        }
        info(format_args!("encryption of TLS records: {}", crate::aead::list(&status.aead)));
        let summary = self.summary();
        info(format_args!("ready: evergate {} (pid {}), {summary}", status.version, status.pid));
        self.notify.ready(&self.status_line());
    }

    pub(super) fn summary(&self) -> String {
        let config = &self.daemon.config;
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        format!(
            "{} on {}, {}, {}, generation {}",
            count(config.listeners.len(), "listener"),
            count(self.control.workers.len(), "worker"),
            count(config.pools.len(), "pool"),
            count(config.rules.specs.len(), "rule"),
            self.daemon.generation.snapshot.generation,
        )
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Reload(reply) => self.ask_reload(Some(reply)),
            Message::ReopenLog(reply) => {
                let _ = reply.send(self.reopen_log("the admin API"));
            }
            Message::Upgrade(binary, asker) => self.ask_upgrade(binary, asker),
            Message::Started(started) => self.handle_started(*started),
            Message::Drain if self.drain_until.is_none() => self.drain("the admin API"),
            Message::Drain => {}
            Message::Read(read) => self.reload(*read),
            Message::Files(now) => {
                self.looking = false;
                self.compare_files(now);
            }
        }
    }

    /// Looks whether an upgrade has come to its end, and at the reloads that wait for that.
    fn poll_ends(&mut self) {
        self.poll_upgrade();
        self.poll_deferred_reload();
    }

    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::Reload => self.ask_reload(None),
            Signal::ReopenLog => drop(self.reopen_log("SIGUSR1")),
            Signal::Stop(by) => self.on_stop(by),
            Signal::Nothing(signal) => warning(format_args!(
                "{signal} does nothing here: SIGHUP reloads, SIGUSR1 reopens the access log, `evergate upgrade` \
                 starts a new binary, SIGTERM drains"
            )),
        }
    }

    /// Reopens the access log for rotation, without a reload; the result is for the operator.
    fn reopen_log(&self, by: &str) -> String {
        let result = match self.daemon.reopen_log() {
            Some(Target::File(path)) => format!("reopening {}", path.display()),
            Some(Target::Stdout) => "nothing to reopen: lines go to standard output".to_owned(),
            None => "nothing to reopen: `logs.access` is off".to_owned(),
        };
        info(format_args!("access log: {result} ({by})"));
        format!("access log: {result}")
    }

    fn on_stop(&mut self, by: &str) {
        let is_first = !std::mem::replace(&mut self.stop_reported, true);
        if is_first && self.is_passing() {
            let open = self.open_connections();
            info(format_args!(
                "{by}: {open} connections are still to be passed on; a second signal ends them"
            ));
        } else if self.drain_until.is_some() {
            info(format_args!("{by} again: ending {} open connections now", self.open_connections()));
            self.stop_now = true;
        } else {
            self.drain(by);
        }
    }

    fn drain(&mut self, by: &str) {
        let limit = self.daemon.config.timeouts.drain;
        let open = self.open_connections();
        info(format_args!(
            "draining ({by}): {}; a second signal ends what is left",
            self.daemon.draining_means(open, limit)
        ));
        if let Some(why) = self.daemon.agent().and_then(|cluster| cluster.must_stay()) {
            warning(format_args!("{why}"));
        }
        self.notify.stopping(&format!("draining {open} connections"));
        self.control.draining.store(true, Ordering::Relaxed);
        self.drain_until = Some(Instant::now() + limit);
        self.daemon.drain();
    }

    pub(super) fn open_connections(&self) -> usize {
        self.control.shared.connections.load(Ordering::Relaxed)
    }

    /// Whether there is nothing left to do; an error when the workers ended unasked.
    fn is_over(&self) -> Result<bool> {
        match self.drain_until {
            None if self.daemon.is_finished() => bail!("all workers have ended; see the messages before"),
            None if self.daemon.has_lost_agent() => {
                bail!("the agent of the cluster has ended: the other nodes continue its connections")
            }
            None => Ok(false),
            Some(until) => Ok(self.stop_now || self.has_ended() || Instant::now() >= until),
        }
    }

    fn has_ended(&self) -> bool {
        self.daemon.is_finished() || self.has_passed_all()
    }

    /// Ends the workers. The returned sockets and files show that this process lives until they are dropped.
    async fn end(mut self, signals: &mut Signals) -> (Option<(AdminSocket, Serving)>, Option<PidFile>) {
        let open = self.open_connections();
        let passed = self.passed_to().map(|passed| format!(": {passed}")).unwrap_or_default();
        if !self.has_ended() && !self.stop_now {
            let recipients = self.daemon.agent().filter(|cluster| cluster.has_takers());
            let left = match recipients.map(|cluster| cluster.status().buckets) {
                Some(buckets) if buckets.owned > 0 && buckets.without_backup == buckets.owned => {
                    "end: no other node has replicas"
                }
                Some(buckets) if buckets.without_backup > 0 => {
                    "are left to the replicas at other nodes, and end without one"
                }
                Some(_) => "are left to the replicas at other nodes",
                None => "end",
            };
            warning(format_args!(
                "draining took too long (timeouts.drain_ms): {open} open connections {left}"
            ));
        }
        if let Some(upgrade) = &self.upgrade {
            upgrade.give_up();
        }
        let patience = if self.stop_now { STOP_GRACE } else { PATIENCE };
        let writer = self.daemon.stop();
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.log_end(open);
        }
        if let Some(writer) = writer {
            let finish = tokio::task::spawn_blocking(move || writer.finish(patience));
            tokio::select! {
                _ = finish => {}
                () = signals.stop() => info("a second signal: ending now, what is left of the access log is lost"),
            }
        }
        info(format_args!("stopped{passed}"));
        (self.admin, self.pid_file)
    }

    fn every_second(&mut self) {
        if self.upgrade.is_none() {
            self.daemon.rotate_tickets(evergate_sys::wall_clock_s(), &mut self.rotated);
        }
        for (index, (handle, seen)) in self.daemon.workers.iter().zip(&self.control.workers).enumerate() {
            let ended = handle.is_finished() && seen.alive.swap(false, Ordering::Relaxed);
            if ended && self.drain_until.is_none() {
                let others = match self.control.cluster {
                    None => "its connections are lost, and the others take the new ones",
                    Some(_) => "the other nodes recover its connections",
                };
                error(format_args!(
                    "worker {index} has ended unexpectedly: {others}. Restart the process soon, and report it"
                ));
            }
        }
        self.daemon.sweep_retired();
        if self.drain_until.is_none() {
            let _ = self.daemon.pass_on_listeners(); // without a descriptor it is tried again in a second
        }
        let active = self.control.cluster.as_ref().is_none_or(|cluster| cluster.is_active());
        let was_active = std::mem::replace(&mut self.was_active, active);
        if !(active && was_active) {
            self.checks.ask_again(&self.daemon.generation);
        }
        if active != was_active && !self.is_draining() {
            self.notify.status(&self.status_line());
        }
    }

    /// Status for a service manager: listeners, pools, and the node's phase in its cluster.
    pub(super) fn status_line(&self) -> String {
        let phase = self.control.cluster.as_ref().map(|cluster| cluster.status().phase);
        let phase = phase.map(|phase| format!("; in its cluster: {phase}"));
        self.summary() + &phase.unwrap_or_default()
    }

    fn check_files(&mut self) {
        if std::mem::replace(&mut self.looking, true) {
            return; // the last look has not come back: a file system that hangs
        }
        let (paths, messages) = (files(&self.daemon.config), self.control.messages.clone());
        tokio::task::spawn_blocking(move || {
            let _ = messages.blocking_send(Message::Files(Fingerprint::of(&paths)));
        });
    }

    pub(super) fn is_draining(&self) -> bool {
        self.drain_until.is_some()
    }

    pub(super) fn publish(&self) {
        let metrics_listen = self.metrics.as_ref().map(|(address, _)| *address);
        self.control.publish(view(&self.daemon, &self.checks, metrics_listen));
    }

    pub(super) fn serve_admin(&mut self, socket: AdminSocket) {
        match socket.listener.try_clone().and_then(|listener| serve_admin(listener, self.control.clone())) {
            Ok(serving) => self.admin = Some((socket, serving)),
            Err(error) => warning(format_args!("cannot serve the admin API: {error}")),
        }
    }

    pub(super) fn serve_metrics(&mut self, listener: TcpListener) {
        let address = listener.local_addr();
        self.metrics_socket = listener.try_clone().ok();
        match address.and_then(|address| Ok((address, serve_metrics(listener, self.control.clone())?))) {
            Ok(serving) => {
                let meant = self.daemon.config.admin.metrics_listen;
                let both_families = serving.0.is_ipv6() && meant.is_some_and(|meant| meant.both_families);
                self.daemon.metrics = Some(ListenAddress { socket: serving.0, both_families });
                self.metrics = Some(serving);
            }
            Err(error) => warning(format_args!("cannot serve the metrics: {error}")),
        }
    }
}

impl Doors {
    fn inherited(inherited: &mut Inheritance) -> Result<Doors> {
        let admin = inherited.admin.take();
        let admin = admin.map(|(path, listener)| AdminSocket::inherited(&path, listener)).transpose();
        let admin = admin.context("cannot use the admin socket of the old process")?;
        Ok(Doors { admin, metrics: inherited.metrics.take().map(|(_, listener)| listener) })
    }
}

fn rotated(inherited: &Inheritance) -> HashMap<String, u64> {
    let tickets = inherited.offer.tickets.iter();
    tickets.filter_map(|tickets| Some((tickets.name.clone(), tickets.rotated_unix_s?))).collect()
}

fn write_pid(path: &Path) -> Result<PidFile> {
    PidFile::write(path).with_context(|| unwritten(path))
}

fn unwritten(path: &Path) -> String {
    format!("cannot write node.pid_file {}", path.display())
}

fn view(daemon: &Daemon, checks: &Checks, metrics_listen: Option<SocketAddr>) -> StatusSnapshot {
    StatusSnapshot {
        config: daemon.config.clone(),
        generation: daemon.generation.clone(),
        since_unix_s: evergate_sys::wall_clock_s(),
        certificates: daemon.certificates.clone(),
        bound: daemon.bound.clone(),
        metrics_listen,
        health: checks.records(),
    }
}

/// The socket of the admin API; without it the node serves all the same, after a warning.
fn bind_admin(path: &Path, becomes: Option<&Account>) -> Option<AdminSocket> {
    match AdminSocket::bind(path, becomes) {
        Ok(socket) => Some(socket),
        Err(error) => {
            let remedy = AdminSocket::remedy(&error);
            warning(format_args!("{}; the node serves without it; {remedy}", no_admin(path, &error)));
            None
        }
    }
}

/// The problem and its remedy, if the socket of the admin API cannot be created.
pub(super) fn no_admin(path: &Path, error: &std::io::Error) -> String {
    format!("no admin API on {}: {error}", path.display())
}

/// The socket of the metrics. `ours`: where this process listens already.
pub(super) fn bind_metrics(address: ListenAddress, ours: &[ListenAddress]) -> Result<TcpListener> {
    let is_first = !is_ours(address, ours);
    match listen::open(address, is_first, METRICS_BACKLOG, None) {
        Ok((socket, _)) => Ok(TcpListener::from(socket)),
        Err(refusal) => bail!("admin.metrics_listen: cannot serve metrics on \"{address}\": {refusal}"),
    }
}
