//! The process: binds, starts workers, and keeps what the control plane works on.

mod ended;
mod reload;

use crate::assemble::{Assembled, Keepsakes, assemble};
use crate::bind::bind_all;
use crate::cluster::{self, Ground};
use crate::config::Config;
use crate::config::model::{ListenAddress, Listener};
use crate::control::message;
use crate::handover::{
    Inheritance, Offer, Offered, Progress, Told, adopt_servers, offered_servers, prefer_known,
};
use crate::log::{self, Target, Writer};
use crate::runtime::Generation;
use crate::worker::cluster::Joining;
use crate::worker::{
    Bounds, Command, Counters, ListenerSocket, Pulse, Settings, Shared, Worker, end_stream, files_for_clients,
};
use anyhow::{Context, Result};
use evergate_crypto::CertifiedName;
use evergate_sys::{Account, Waker};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Sessions that a new process gets along, in bytes: the newest.
const OFFERED_SESSIONS_BYTES: usize = 1 << 20;

/// One running worker.
#[derive(Debug)]
pub struct WorkerHandle {
    commands: Sender<Command>,
    waker: Arc<Waker>,
    /// What it counts.
    pub counters: Arc<Counters>,
    pulse: Arc<Pulse>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl WorkerHandle {
    pub(crate) fn tell(&self, command: Command) {
        // A worker that is gone hears nothing more.
        let _ = self.commands.send(command);
        self.waker.wake();
    }

    /// Whether its thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

/// The running switch.
#[derive(Debug)]
pub struct Daemon {
    /// The configuration in force.
    pub config: Config,
    /// The generation in force.
    pub generation: Arc<Generation>,
    /// Its certificates by name.
    pub certificates: Vec<(String, CertifiedName)>,
    /// The workers.
    pub workers: Vec<WorkerHandle>,
    /// Where each listener is bound, by name: ports chosen by the kernel included.
    pub bound: Vec<(String, SocketAddr)>,
    /// Where the metrics are served, by somebody else.
    pub metrics: Option<ListenAddress>,
    /// What the workers share.
    pub shared: Arc<Shared>,
    keep: Keepsakes,
    writer: Option<Writer>,
    cluster: Option<cluster::Running>,
    /// The other nodes take the connections first; then the workers end.
    leaving: AtomicBool,
    /// The workers' listening sockets once more, by worker: what an upgrade passes on.
    sockets: Mutex<Vec<Vec<ListenerSocket>>>,
    /// Where the process before passes its connections, by worker, until they begin to come.
    streams: Vec<UnixStream>,
}

impl Daemon {
    /// Binds everything, becomes the configured user, and starts the workers. With an inheritance its sockets take the place
    /// of new ones. Serves once [`Daemon::listen`] is called.
    pub fn start(mut config: Config, inherited: Option<&mut Inheritance>) -> Result<Daemon> {
        let mut keep = Keepsakes::default();
        if let Some(inherited) = &inherited {
            keep.inherit(&inherited.offer)?;
        }
        evergate_crypto::warm_up();
        // Before anything listens: no packet of a movable address may get past the gate.
        let ground = config.cluster.as_ref().map(|cluster| Ground::prepare(&config, cluster)).transpose()?;
        if let Some(ground) = &ground {
            keep.share_tickets(ground.ticket_secret());
            keep.share_request_key(ground.request_key());
        }
        if let Some(inherited) = &inherited {
            prefer_known(&mut config, &inherited.offer.servers);
        }
        let Assembled { generation, certificates } = assemble(&config, None, &mut keep)?;
        keep.commit();
        let files = make_room_for_files(config.limits.listener.connections_max as u64);
        let count = config.node.worker_count().get();
        let is_first = inherited.is_none();
        let inherited_sessions =
            inherited.as_ref().map(|from| from.offer.sessions.clone()).unwrap_or_default();
        let announced = inherited.as_ref().map_or(0, |from| from.offer.descriptors);
        let (bound, sockets, streams) = match inherited {
            None => {
                let (bound, sockets) = bind_all(&config, count)?;
                (bound, sockets, Vec::new())
            }
            Some(inherited) => {
                adopt_servers(&generation, &inherited.offer.servers);
                let Inheritance { bound, listeners, streams, .. } = inherited;
                (std::mem::take(bound), std::mem::take(listeners), std::mem::take(streams))
            }
        };
        // A process that inherits was started by one that has become it.
        let account = if is_first { becomes(&config)? } else { None };
        let log = Target::of(&config.logs.access);
        if let (Some(account), Some(user)) = (account, &config.node.user) {
            if let Some(to) = &log {
                log::make(to, &account);
            }
            account.become_it().with_context(|| cannot_become(user))?;
        }
        let writer = log.map(|to| log::start_as(config.node.user.as_deref(), &to)).transpose()?;
        let shared = Arc::new(Shared::default());
        if let Some(limit) = files {
            shared.room.set_limit(limit);
        }
        shared.sessions.set_bytes_max(config.limits.session_cache_bytes_max);
        for session in inherited_sessions {
            shared.sessions.keep(session);
        }
        let settings = settings(&config, count);
        let workers = (0..count)
            .map(|index| {
                let joining = ground.as_ref().map(|ground| Joining {
                    gate: ground.gate(),
                    layout: ground.layout(),
                    worker: index,
                    reports: ground.reporter(index),
                });
                start_worker(index, &generation, &settings, &shared, writer.as_ref(), joining)
            })
            .collect::<Result<Vec<_>>>()?;
        shared.inheriting.store(streams.len(), Ordering::Relaxed);
        shared.room.hold_back(announced);
        let mut cluster = ground.map(|ground| start_agent(ground, &workers)).transpose()?;
        if let Some(cluster) = &mut cluster {
            cluster.has_configuration(generation.snapshot.generation);
        }
        let leaving = AtomicBool::new(false);
        Ok(Daemon {
            sockets: Mutex::new(sockets),
            streams,
            config,
            generation,
            certificates,
            workers,
            bound,
            metrics: None,
            shared,
            keep,
            writer,
            cluster,
            leaving,
        })
    }

    /// Takes the connections of the process before from now on.
    pub fn inherit(&mut self) {
        for (worker, stream) in self.workers.iter().zip(std::mem::take(&mut self.streams)) {
            worker.tell(Command::Inherit(stream));
        }
    }

    /// Takes connections from now on.
    pub fn listen(&self) -> Result<()> {
        let all = self.copies()?;
        for (worker, add) in self.workers.iter().zip(all) {
            worker.tell(Command::Listeners { add, remove: Vec::new() });
        }
        Ok(())
    }

    /// The listening sockets once more, by worker.
    fn copies(&self) -> Result<Vec<Vec<ListenerSocket>>> {
        copies(&self.sockets())
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<Vec<ListenerSocket>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a new process gets, with its descriptors, and our ends of the workers' streams.
    pub fn offer(
        &self,
        rotated_unix_s: &HashMap<String, u64>,
    ) -> Result<(Offer, Vec<OwnedFd>, Vec<UnixStream>)> {
        let mut offer = Offer {
            configuration: self.config.digest,
            generation: self.generation.snapshot.generation,
            workers: self.workers.len(),
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            servers: offered_servers(&self.generation),
            sessions: self.shared.sessions.newest(OFFERED_SESSIONS_BYTES).into_iter().flatten().collect(),
            ..Offer::default()
        };
        self.keep.bequeath(&mut offer, rotated_unix_s);
        let (mut descriptors, mut ours) = (Vec::new(), Vec::new());
        let mut seen: HashMap<String, usize> = HashMap::new();
        for (worker, sockets) in self.copies()?.into_iter().enumerate() {
            for ListenerSocket { name, socket, .. } in sockets {
                let bound = self.bound.iter().find(|(known, _)| *known == name);
                let Some((_, address)) = bound else { continue };
                // One for each worker there, also where a worker here listens on those of another that has ended.
                let next = seen.entry(name.clone()).or_default();
                let worker = std::mem::replace(next, *next + 1);
                offer.sockets.push(Offered::Listener { name, worker, address: *address });
                descriptors.push(socket);
            }
            let (near, far) = UnixStream::pair().context("cannot make a socket for the new process")?;
            near.set_nonblocking(true)?;
            far.set_nonblocking(true)?;
            offer.sockets.push(Offered::Worker(worker));
            descriptors.push(far.into());
            ours.push(near);
        }
        Ok((offer, descriptors, ours))
    }

    /// What operators have said so far.
    pub fn told(&self) -> Told {
        let servers = offered_servers(&self.generation).into_iter().filter(|server| server.draining);
        Told { draining: servers.map(|server| (server.pool, server.name)).collect() }
    }

    /// What operators told the process before while this one was set up.
    pub fn hear(&self, told: &Told) {
        for pool in &self.generation.pools {
            for server in &pool.servers {
                let draining =
                    told.draining.iter().any(|(of, name)| *of == pool.name && *name == server.name);
                server.draining.store(draining, Ordering::Relaxed);
            }
        }
    }

    /// Passes everything to the new process over these streams.
    pub fn hand_over(&self, streams: Vec<UnixStream>, progress: &Arc<Progress>) {
        for (worker, stream) in self.workers.iter().zip(streams) {
            match worker.is_finished() {
                true => {
                    end_stream(stream); // it has nothing any more
                    progress.skip();
                }
                false => worker.tell(Command::HandOver(stream, progress.clone())),
            }
        }
    }

    /// Serves again: the new process is gone.
    pub fn take_back(&self) -> Result<()> {
        for (worker, sockets) in self.workers.iter().zip(self.copies()?) {
            worker.tell(Command::TakeBack(sockets));
        }
        Ok(())
    }

    /// Ends what cannot go to the new process, as at the end of a drain. The listening sockets stay: it may still end.
    pub fn end_rest(&self) {
        self.workers.iter().for_each(|worker| worker.tell(Command::Drain));
    }

    /// Whether connections of the process before still come.
    pub fn is_inheriting(&self) -> bool {
        self.shared.inheriting.load(Ordering::Relaxed) > 0
    }

    /// Where this process takes connections of clients, and of who reads its metrics.
    pub fn listens_on(&self) -> Vec<ListenAddress> {
        let as_bound = |(name, socket): &(String, SocketAddr)| {
            let is_it = |listener: &&Listener| listener.name == *name;
            let meant = self.config.listeners.iter().find(is_it).map(|listener| listener.address);
            let both_families = socket.is_ipv6() && meant.is_some_and(|meant| meant.both_families);
            ListenAddress { socket: *socket, both_families }
        };
        self.bound.iter().map(as_bound).chain(self.metrics).collect()
    }

    /// Lines of the access log that its writer could not write, counted as it goes on.
    pub fn log_lines_unwritten(&self) -> Arc<AtomicU64> {
        self.writer.as_ref().map(Writer::lost).unwrap_or_default()
    }

    /// Whether the access log goes elsewhere than the configuration in force says: that cannot change while running.
    pub fn logs_elsewhere(&self) -> bool {
        Target::of(&self.config.logs.access).as_ref() != self.writer.as_ref().map(Writer::target)
    }

    /// Opens the access log anew, after it was rotated.
    pub fn reopen_logs(&self) {
        if let Some(writer) = &self.writer {
            writer.reopen();
        }
    }

    /// Rotates ticket keys that are due; those from files are rotated by whoever writes the file. `rotated_unix_s`: when,
    /// by name.
    pub fn rotate_tickets(&self, now_unix_s: u64, rotated_unix_s: &mut HashMap<String, u64>) {
        self.keep.renew_shared_tickets(now_unix_s);
        if self.keep.has_shared_tickets() {
            return;
        }
        for (name, (handle, file, every)) in self.keep.tickets() {
            let last = rotated_unix_s.entry(name.to_owned()).or_insert(now_unix_s);
            if file.is_none() && is_due(last, now_unix_s, every.as_secs().max(1)) {
                handle.replace(handle.current().rotated(now_unix_s));
            }
        }
    }

    /// Takes no new connections and lets the others finish; in a cluster the other nodes get them first.
    pub fn drain(&self) {
        match self.cluster() {
            Some(cluster) if cluster.has_takers() => {
                self.leaving.store(true, Ordering::Relaxed);
                cluster.order(cluster::Order::Drain(true));
            }
            _ => self.drain_workers(),
        }
    }

    /// What draining does, for a log.
    pub fn draining_means(&self, open: usize, limit: Duration) -> String {
        let limit = limit.as_millis();
        match self.cluster().is_some_and(|cluster| cluster.has_takers()) {
            true => format!("the other nodes take {open} connections and all new ones, within {limit} ms"),
            false => format!("no new connections; {open} open ones may take up to {limit} ms"),
        }
    }

    fn drain_workers(&self) {
        self.sockets().iter_mut().for_each(Vec::clear); // the workers close theirs
        for worker in &self.workers {
            worker.tell(Command::Drain);
        }
    }

    /// Whether the agent of the cluster has ended: the gate stays closed from now on.
    pub fn has_lost_agent(&self) -> bool {
        self.cluster.as_ref().is_some_and(cluster::Running::is_finished)
    }

    /// The agent of the cluster, if there is one.
    pub fn cluster(&self) -> Option<cluster::Handle> {
        self.cluster.as_ref().map(cluster::Running::handle)
    }

    /// Whether every worker has ended.
    pub fn is_finished(&self) -> bool {
        // What nobody takes, because the others end too, ends here.
        if self.cluster().is_some_and(|cluster| cluster.is_drained() || !cluster.has_takers())
            && self.leaving.swap(false, Ordering::Relaxed)
        {
            self.drain_workers();
        }
        self.workers.iter().all(WorkerHandle::is_finished)
    }

    /// Ends what is left and waits for the workers. The access log's writer may have lines left, and is to be finished.
    pub fn stop(mut self) -> Option<Writer> {
        // First: another node goes on with what is closed here.
        if let Some(Err(error)) = self.cluster.take().map(cluster::Running::stop) {
            crate::control::message::error(format_args!("the agent of the cluster has ended: {error}"));
        }
        for worker in &self.workers {
            worker.tell(Command::Stop);
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
        self.writer.take()
    }
}

/// Whom a process that starts under this configuration becomes, if it is to be somebody else.
pub(crate) fn becomes(config: &Config) -> Result<Option<Account>> {
    let Some(user) = &config.node.user else { return Ok(None) };
    let account = Account::named(user, config.node.group.as_deref());
    account.map(Some).with_context(|| cannot_become(user))
}

fn cannot_become(user: &str) -> String {
    format!("cannot become user \"{user}\": start as root, or leave node.user out")
}

/// Whether so many seconds have passed since `last`, which then is now. A clock that was ahead once must not stop it until
/// the time is there again.
fn is_due(last: &mut u64, now: u64, every: u64) -> bool {
    *last = now.min(*last);
    let due = now - *last >= every;
    if due {
        *last = now;
    }
    due
}

/// Descriptors beside those of connections, roughly: listeners, workers, checks, idle connections to servers.
const FILES_BESIDE: u64 = 1024;

/// `limits.connections_max` where the configuration does not say, and so many descriptors that nobody need hear that it cannot
/// all be had.
pub(crate) const CONNECTIONS_MAX_UNSAID: u64 = 100_000;
const FILES_PLENTY: u64 = 16_384;

/// Whether the operator hears that this process may have too few descriptors.
fn is_worth_telling(connections: u64, needed: u64, limit: u64) -> bool {
    needed > limit && (connections != CONNECTIONS_MAX_UNSAID || limit < FILES_PLENTY)
}

/// Descriptors for so many connections, and as many to servers: as far as the process may, and a table of 2 MB. How many it
/// may have; the operator is told when that is too few.
fn make_room_for_files(connections: u64) -> Option<u64> {
    const ROOM_MAX: u64 = 1 << 18;
    let limit = evergate_sys::raise_file_limit().ok()?;
    let needed = connections.saturating_mul(2).saturating_add(FILES_BESIDE);
    let _ = evergate_sys::make_room_for_files(needed.min(limit).min(ROOM_MAX));
    if is_worth_telling(connections, needed, limit) {
        let idle = files_for_clients(limit);
        let busy = idle.saturating_sub(FILES_BESIDE.min(idle / 2)) / 2;
        message::warning(format_args!(
            "limits.connections_max = {connections} needs up to {needed} file descriptors (one for a client, one for its \
             server, some for the rest), and this process may have {limit}: clients beyond about {busy} with a server \
             each, or {idle} that are idle, wait in the kernel's queue; raise the hard limit (LimitNOFILE={needed} in the \
             unit, or ulimit -Hn), or lower limits.connections_max"
        ));
    }
    Some(limit)
}

pub(crate) fn settings(config: &Config, workers: usize) -> Settings {
    Settings {
        handshakes_per_turn: config.limits.handshakes_per_turn.get(),
        gather: config.limits.gather,
        connections_max: config.limits.listener.connections_max,
        listeners: config
            .listeners
            .iter()
            .map(|listener| {
                let bounds = Bounds {
                    connections_max: listener.limits.connections_max,
                    per_source_max: listener.limits.connections_per_source_max.map_or(0, |max| max.get()),
                };
                (listener.name.clone(), bounds)
            })
            .collect(),
        buffered_max: config.limits.buffers_bytes_max.get() / workers.max(1),
    }
}

fn copies(sockets: &[Vec<ListenerSocket>]) -> Result<Vec<Vec<ListenerSocket>>> {
    let copy = |socket: &ListenerSocket| {
        let (name, local) = (socket.name.clone(), socket.local);
        Ok(ListenerSocket { name, socket: socket.socket.try_clone()?, local })
    };
    let all: std::io::Result<_> = sockets.iter().map(|of| of.iter().map(copy).collect()).collect();
    all.context("cannot copy the listening sockets: is the limit of open files reached?")
}

/// Starts the agent: it tells the workers what they are to do.
fn start_agent(ground: Ground, workers: &[WorkerHandle]) -> Result<cluster::Running> {
    let ways: Vec<_> = workers.iter().map(|worker| (worker.commands.clone(), worker.waker.clone())).collect();
    let mut pulses: Vec<_> = workers.iter().map(|worker| (worker.pulse.clone(), 0)).collect();
    let working = move || pulses.iter_mut().fold(true, |well, (pulse, last)| pulse.goes_on(last) && well);
    let tell = move |worker: usize, instruction| {
        if let Some((commands, waker)) = ways.get(worker) {
            // A worker that is gone hears nothing more.
            let _ = commands.send(Command::Cluster(instruction));
            waker.wake();
        }
    };
    ground.start(tell, working)
}

fn start_worker(
    index: usize,
    generation: &Arc<Generation>,
    settings: &Settings,
    shared: &Arc<Shared>,
    writer: Option<&Writer>,
    joining: Option<Joining>,
) -> Result<WorkerHandle> {
    let (commands, received) = channel();
    let lines = writer.map(Writer::sender);
    let mut worker = Worker::new(generation, settings.clone(), shared.clone(), received, lines)
        .context("cannot set up a worker: is epoll allowed here, and are there file descriptors left?")?;
    if let Some(joining) = joining {
        worker.join(joining);
    }
    let (waker, counters, pulse) = (worker.waker(), worker.counters(), worker.pulse());
    let end = End(pulse.clone());
    let run = move || {
        let _end = end;
        worker.run()
    };
    let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(run)?;
    Ok(WorkerHandle { commands, waker, counters, pulse, thread: Some(thread) })
}

/// Tells that a worker's thread has ended, however it did.
struct End(Arc<Pulse>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_rotate_on_after_the_clock_was_ahead() {
        let mut last = 5000;
        let due = [1000, 1059, 1060, 1061, 1120].map(|now| is_due(&mut last, now, 60));
        assert_eq!(due, [false, false, true, false, true]);
    }

    #[test]
    fn a_limit_that_nobody_set_is_told_of_only_where_little_can_be_had() {
        for (connections, limit, told) in [
            (100_000, 20_000, false),
            (100_000, 4096, true),
            (50_000, 20_000, true),
            (100_000, 1 << 20, false),
        ] {
            assert_eq!(
                is_worth_telling(connections, 2 * connections + 1024, limit),
                told,
                "{connections} {limit}"
            );
        }
    }
}
