//! The process: its start, and the state that the control plane works on.

pub(crate) mod fd_limit;
mod generation_drop;
mod reload;
mod start;
mod worker_exit;

pub(crate) use start::{becomes, keepalive, settings};

use crate::access_log::{Target, Writer};
use crate::agent;
use crate::audit::Audit;
use crate::generation::CarriedState;
use crate::upgrade::{Offer, Offered, OperatorState, Progress, offered_servers};
use crate::worker::{Command, ListenerSocket, UpgradeCommand, end_stream};
use anyhow::{Context, Result};
use evergate_base::Wake;
use evergate_config::Config;
use evergate_config::model::{ListenAddress, Listener};
use evergate_crypto::CertifiedName;
use evergate_worker::pools::Generation;
use evergate_worker::{Counters, Shared, Watchdog};
use generation_drop::Retired;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Sessions that a new process gets along, in bytes: the newest.
const OFFERED_SESSIONS_BYTES: usize = 1 << 20;

/// One running worker.
#[derive(Debug)]
pub struct WorkerHandle {
    commands: Sender<Command>,
    waker: Arc<dyn Wake>,
    /// Its counters.
    pub counters: Arc<Counters>,
    pulse: Arc<Watchdog>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl WorkerHandle {
    pub(crate) fn notify(&self, command: Command) {
        // A worker that has ended receives nothing more.
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
    /// Address of the metrics; the control plane serves them.
    pub metrics: Option<ListenAddress>,
    /// State that the workers share.
    pub shared: Arc<Shared>,
    /// Audited capture, if it is configured.
    pub audit: Option<Arc<Audit>>,
    retired: Retired,
    keep: CarriedState,
    writer: Option<Writer>,
    agent: Option<agent::Running>,
    /// The other nodes take the connections first; then the workers end.
    leaving: AtomicBool,
    /// Copies of the workers' listening sockets, by worker, for an upgrade.
    sockets: Mutex<Vec<Vec<ListenerSocket>>>,
    /// Where the old process passes its connections, by worker, until they begin to come.
    streams: Vec<UnixStream>,
}

impl Daemon {
    /// Takes the connections of the old process from now on.
    pub fn inherit(&mut self) {
        for (worker, stream) in self.workers.iter().zip(std::mem::take(&mut self.streams)) {
            worker.notify(UpgradeCommand::Inherit(stream).into());
        }
    }

    /// Takes connections from now on.
    pub fn listen(&self) -> Result<()> {
        let all = self.duplicate_sockets()?;
        for (worker, add) in self.workers.iter().zip(all) {
            worker.notify(Command::Listeners { add, remove: Vec::new() });
        }
        Ok(())
    }

    /// The listening sockets once more, by worker.
    fn duplicate_sockets(&self) -> Result<Vec<Vec<ListenerSocket>>> {
        copies(&self.sockets())
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<Vec<ListenerSocket>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The offer to a new process, with its descriptors, and this process's ends of the workers' streams.
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
        for (worker, sockets) in self.duplicate_sockets()?.into_iter().enumerate() {
            for ListenerSocket { name, socket, .. } in sockets {
                let bound = self.bound.iter().find(|(known, _)| *known == name);
                let Some((_, address)) = bound else { continue };
                // One socket per worker there, even where a worker here has those of a worker that has ended.
                let next = seen.entry(name.clone()).or_default();
                let worker = std::mem::replace(next, *next + 1);
                offer.sockets.push(Offered::Listener { name, worker, address: *address });
                descriptors.push(socket.0);
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

    /// Settings that operators have changed so far.
    pub fn operator_state(&self) -> OperatorState {
        let servers = offered_servers(&self.generation).into_iter().filter(|server| server.draining);
        OperatorState { draining: servers.map(|server| (server.pool, server.name)).collect() }
    }

    /// Applies changes of operators that the old process received while this one started.
    pub fn apply_operator_state(&self, changes: &OperatorState) {
        for pool in &self.generation.pools {
            for server in &pool.servers {
                let draining =
                    changes.draining.iter().any(|(of, name)| *of == pool.name && *name == server.name);
                server.draining.store(draining, Ordering::Relaxed);
            }
        }
    }

    /// Passes everything to the new process over these streams.
    pub fn transfer(&self, streams: Vec<UnixStream>, progress: &Arc<Progress>) {
        for (worker, stream) in self.workers.iter().zip(streams) {
            match worker.is_finished() {
                true => {
                    end_stream(stream); // it has nothing any more
                    progress.skip();
                }
                false => worker.notify(UpgradeCommand::Handoff(stream, progress.clone()).into()),
            }
        }
    }

    /// Serves again: the new process is gone.
    pub fn take_back(&self) -> Result<()> {
        for (worker, sockets) in self.workers.iter().zip(self.duplicate_sockets()?) {
            worker.notify(UpgradeCommand::TakeBack(sockets).into());
        }
        Ok(())
    }

    /// Ends connections that cannot move to the new process, as at the end of a drain. The listening sockets stay,
    /// because the new process may still end.
    pub fn end_remaining(&self) {
        self.workers.iter().for_each(|worker| worker.notify(Command::Drain));
    }

    /// Whether connections of the old process still come.
    pub fn is_inheriting(&self) -> bool {
        self.shared.inheriting.load(Ordering::Relaxed) > 0
    }

    /// Addresses on which this process accepts connections: of clients, and of readers of the metrics.
    pub fn listens_on(&self) -> Vec<ListenAddress> {
        let as_bound = |(name, socket): &(String, SocketAddr)| {
            let is_it = |listener: &&Listener| listener.name == *name;
            let meant = self.config.listeners.iter().find(is_it).map(|listener| listener.address);
            let both_families = socket.is_ipv6() && meant.is_some_and(|meant| meant.both_families);
            ListenAddress { socket: *socket, both_families }
        };
        self.bound.iter().map(as_bound).chain(self.metrics).collect()
    }

    /// Lines of the access log that its writer could not write; the count continues.
    pub fn log_lines_unwritten(&self) -> Arc<AtomicU64> {
        self.writer.as_ref().map(Writer::lost).unwrap_or_default()
    }

    /// Whether the access log has another target than the configuration in force: it cannot change while running.
    pub fn logs_elsewhere(&self) -> bool {
        Target::of(&self.config.logs.access).as_ref() != self.writer.as_ref().map(Writer::target)
    }

    /// Reopens the access log after its file was renamed; the target, if there is an access log.
    pub fn reopen_log(&self) -> Option<&Target> {
        self.writer.as_ref().map(|writer| {
            writer.reopen();
            writer.target()
        })
    }

    /// Rotates ticket keys that are due; keys from files are rotated by changing the file. `rotated_unix_s`: the last
    /// rotation by name.
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

    /// Accepts no new connections and lets the open ones finish; in a cluster the other nodes get them first.
    pub fn drain(&self) {
        match self.agent() {
            Some(agent) if agent.has_takers() => {
                self.leaving.store(true, Ordering::Relaxed);
                agent.send(agent::AgentCommand::Drain(true));
            }
            _ => self.drain_workers(),
        }
    }

    /// Effect of draining, for the log.
    pub fn draining_means(&self, open: usize, limit: Duration) -> String {
        let limit = limit.as_millis();
        match self.agent().is_some_and(|agent| agent.has_takers()) {
            true => format!("the other nodes get {open} connections and all new ones, within {limit} ms"),
            false => format!("no new connections; {open} open ones may take up to {limit} ms"),
        }
    }

    fn drain_workers(&self) {
        self.sockets().iter_mut().for_each(Vec::clear); // the workers close theirs
        for worker in &self.workers {
            worker.notify(Command::Drain);
        }
    }

    /// Whether the agent of the cluster has ended: the gate stays closed from now on.
    pub fn has_lost_agent(&self) -> bool {
        self.agent.as_ref().is_some_and(agent::Running::is_finished)
    }

    /// The agent of the cluster, if there is one.
    pub fn agent(&self) -> Option<agent::Handle> {
        self.agent.as_ref().map(agent::Running::handle)
    }

    /// Whether every worker has ended.
    pub fn is_finished(&self) -> bool {
        // Connections that no other node accepts, because all of them end too, end here.
        if self.agent().is_some_and(|agent| agent.is_drained() || !agent.has_takers())
            && self.leaving.swap(false, Ordering::Relaxed)
        {
            self.drain_workers();
        }
        self.workers.iter().all(WorkerHandle::is_finished)
    }

    /// Ends the remaining connections and waits for the workers. The caller finishes the returned writer of the access
    /// log.
    pub fn stop(mut self) -> Option<Writer> {
        // First: another node continues the connections that are closed here.
        if let Some(Err(error)) = self.agent.take().map(agent::Running::stop) {
            crate::control::console::error(format_args!("the agent of the cluster has ended: {error}"));
        }
        for worker in &self.workers {
            worker.notify(Command::Stop);
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
        if let Some(audit) = &self.audit {
            audit.feed.drain(crate::access_log::PATIENCE);
        }
        self.writer.take()
    }
}

/// Whether `every` seconds have passed since `last`, which is then set to now. A clock that was ahead once must not
/// block the timer until that time comes again.
fn is_due(last: &mut u64, now: u64, every: u64) -> bool {
    *last = now.min(*last);
    let due = now - *last >= every;
    if due {
        *last = now;
    }
    due
}

fn copies(sockets: &[Vec<ListenerSocket>]) -> Result<Vec<Vec<ListenerSocket>>> {
    let copy = |socket: &ListenerSocket| {
        let (name, local) = (socket.name.clone(), socket.local);
        Ok(ListenerSocket { name, socket: socket.socket.try_clone()?, local })
    };
    let all: std::io::Result<_> = sockets.iter().map(|of| of.iter().map(copy).collect()).collect();
    all.context("cannot copy the listening sockets: is the limit of open files reached?")
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
}
