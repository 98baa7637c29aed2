//! A worker: one thread, one epoll instance, its own listeners, and the connections that they accepted.
//!
//! The loop takes events, lets each connection's state machine decide, and performs the results. A connection lives on
//! one worker from accept to close. ARCHITECTURE.md lists under "Threads" what workers share in the data path.
//!
//! Invariants: one `epoll_ctl` per socket for its whole life, except for changes of read interest ([`read_interest`]).
//! A descriptor's readiness is kept in flags until used up. One connection gets at most [`ROUNDS`] rounds before other
//! connections are served; the rest is done in the next turn.

mod accept;
mod audit;
mod bound;
mod call_context;
mod clients;
mod close_notify;
mod command;
mod dial;
mod effects;
mod event_batching;
mod evict;
#[cfg(test)]
#[path = "../../tests/worker/faults.rs"]
mod faults;
mod limits;
mod linux;
mod linux_gate;
mod panic_guard;
mod queue;
mod read_interest;
mod relay;
pub mod replication;
mod slab;
mod timer_wheel;
mod upgrade;
mod upgrade_frames;
mod upstreams;

pub use command::{Bounds, Command, ListenerSocket, Settings};
pub use upgrade::end_stream;

use crate::access_log::LineSender;
use crate::audit::{Audit, Sealer};
use call_context::{CallContext, Crowd};
use clients::{Client, Pipes};
use event_batching::{EventBatching, Mark};
use evergate_balance::{Picker, ServerLoad};
use evergate_base::Micros;
use evergate_base::net::Event;
use evergate_connection::{Connection, Effects, Io, Scratch};
use evergate_membership::Bucket;
use evergate_replication::NextTurn;
use evergate_sys::{Epoll, Waker};
use evergate_worker::host::Host;
use evergate_worker::pools::Generation;
use evergate_worker::{Counters, Peer, Shared, Watchdog};
use linux::{Linux, SplicePipe};
use slab::{Key, Slab, Source};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use timer_wheel::Wheel;
use upstreams::{Upstream, Waiting};

/// Most rounds of one connection before other connections get their turn.
const ROUNDS: usize = 8;
/// Interval of checks for room at a server while requests wait, in milliseconds.
const QUEUE_POLL_MS: i32 = 10;
/// Generations that a worker of a cluster keeps without connections bound to them, the newest included.
const GENERATIONS_MAX: usize = evergate_membership::CONFIGURATIONS;
/// Sleeps are not longer by more than this.
const SLACK: Duration = Duration::from_micros(5);
/// Events taken at once.
const EVENTS: usize = 512;
/// Most spare large buffers for blocked connections.
const SPARE_BUFFERS: usize = 16;

/// A generation as one worker uses it.
struct Current {
    generation: Generation,
    pickers: Vec<Picker>,
    waiting: Vec<VecDeque<Waiting>>,
}

/// A worker's state.
pub struct Worker {
    host: Linux,
    epoll: Epoll,
    batching: EventBatching,
    waker: Arc<Waker>,
    pulse: Arc<Watchdog>,
    commands: Receiver<Command>,
    listeners: Vec<Option<ListenerSocket>>,
    /// Listeners that are paused because no more connections could be accepted.
    paused: Vec<usize>,
    clients: Slab<Client>,
    upstreams: Slab<Upstream>,
    /// By server, and in a cluster by bucket.
    idle: HashMap<(u64, Option<Bucket>), Vec<Key>>,
    /// Idle server connections that are bound to one client connection each.
    bound: BTreeSet<Key>,
    current: Vec<Current>,
    scratch: Scratch,
    effects: Effects,
    wheel: Wheel,
    due: Vec<Key>,
    pending: Vec<Key>,
    spare_buffers: Vec<Vec<u8>>,
    spare_pipes: Vec<SplicePipe>,
    /// Memory for a choice among a pool's servers.
    loads: Vec<ServerLoad>,
    settings: Settings,
    limits: limits::Limits,
    /// All workers of the process, and the number of this one among them.
    peers: Vec<Peer>,
    number: usize,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    lines: Option<LineSender>,
    sealer: Option<Sealer>,
    now: Micros,
    next_second: Micros,
    random: u64,
    handshakes: usize,
    /// The last turn with new connections, and how many were tried.
    accepts: (u64, usize),
    /// Bytes that wait for slow peers.
    buffered: usize,
    draining: bool,
    stopping: bool,
    joining: Option<replication::Joining>,
    cluster: Option<Box<replication::Cluster>>,
    predecessor: Option<upgrade::Predecessor>,
    successor: Option<Box<upgrade::Successor>>,
}

impl Worker {
    /// A worker that will serve `generation`; its listeners come as a command.
    pub fn new(
        generation: &Generation,
        settings: Settings,
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        lines: Option<LineSender>,
    ) -> io::Result<Worker> {
        let epoll = Epoll::new(EVENTS)?;
        let waker = Arc::new(Waker::new()?);
        epoll.add_input(waker.fd(), Source::Waker.token())?;
        // The clock of the machine: a connection that moves to another process keeps its deadlines.
        let host = Linux;
        let now = Micros(host.monotonic_us());
        let counters = Arc::new(Counters::default());
        let number = shared.orders.enlist(Peer { waker: waker.clone(), counters: counters.clone() });
        let mut seed = [0; 8];
        host.fill_random(&mut seed);
        Ok(Worker {
            host,
            epoll,
            batching: EventBatching::new(now),
            waker,
            pulse: Arc::default(),
            commands,
            listeners: Vec::new(),
            paused: Vec::new(),
            clients: Slab::new(),
            upstreams: Slab::new(),
            idle: HashMap::new(),
            bound: BTreeSet::new(),
            current: vec![Current::new(generation)],
            scratch: Scratch::new(),
            effects: Effects::default(),
            wheel: Wheel::new(now),
            due: Vec::new(),
            pending: Vec::new(),
            spare_buffers: Vec::new(),
            spare_pipes: Vec::new(),
            loads: Vec::new(),
            settings,
            limits: limits::Limits::default(),
            peers: Vec::new(),
            number,
            sealer: None,
            shared,
            counters,
            lines,
            now,
            next_second: now,
            random: u64::from_le_bytes(seed) | 1,
            handshakes: 0,
            accepts: (0, 1),
            buffered: 0,
            draining: false,
            stopping: false,
            joining: None,
            cluster: None,
            predecessor: None,
            successor: None,
        })
    }

    /// Makes it one of a cluster's; before [`Worker::run`].
    pub fn join(&mut self, joining: replication::Joining) {
        self.joining = Some(joining);
    }

    /// Lets it seal the secrets of audited connections; before [`Worker::run`].
    pub fn set_audit(&mut self, audit: &Arc<Audit>) {
        self.sealer = Some(Sealer::new(audit.clone()));
    }

    /// Ends the worker's wait from another thread.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// Whether it gets on.
    pub fn watchdog(&self) -> Arc<Watchdog> {
        self.pulse.clone()
    }

    /// Counters of the worker.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Serves until stopped, or until drained.
    pub fn run(mut self) -> io::Result<()> {
        let _ = evergate_sys::sleep_within(SLACK); // without it some sleeps are 0.05 ms longer
        self.join_cluster().map_err(|error| io::Error::other(format!("{error:#}")))?;
        while !self.is_done() {
            self.turn()?;
        }
        self.finish_transfer();
        for key in self.clients.keys() {
            if self.clients.get(key).is_some_and(|client| client.replicated_state.is_some()) {
                continue; // another node resumes it, so nothing leaves here
            }
            self.guarded(Some(Source::Client(key)), |worker| {
                worker.with(key, |connection, io| connection.handle_abort(io, "shutdown"));
                worker.perform(key);
            });
        }
        self.guarded(None, Worker::close_idle);
        if let Some(lines) = &mut self.lines {
            lines.flush();
        }
        Ok(())
    }

    /// One turn of the loop: waits for events, handles them, and does timed work.
    fn turn(&mut self) -> io::Result<()> {
        let wait = if self.pending.is_empty() { self.wheel.wait_ms(self.now) } else { 0 };
        // Another worker may make room at a server, without an event here.
        let queued = self.counters.queued.get() > 0 && !self.is_sweeping();
        let wait = if queued { wait.min(QUEUE_POLL_MS) } else { wait };
        let wait = self.cluster.as_ref().map_or(wait, |cluster| wait.min(cluster.wait_ms(self.now)));
        let wait = self.successor.as_ref().map_or(wait, |successor| wait.min(successor.wait_ms()));
        let hastens = self.cluster.as_ref().is_some_and(|cluster| cluster.has_urgent_frames());
        self.pulse.rest();
        if wait > 0
            && let Some(pause) = self.batching.wait(self.settings.event_batching)
        {
            std::thread::sleep(pause);
            self.counters.batched.add(1);
        }
        let count = self.epoll.wait(if hastens { 0 } else { wait })?;
        self.pulse.beat();
        self.tick();
        self.poll_events(count);
        for index in 0..count {
            self.note_idle(self.epoll.event(index));
        }
        for index in 0..count {
            let event = self.epoll.event(index);
            self.guarded(Source::of(event.token), |worker| worker.dispatch(event));
        }
        self.run_pending();
        self.fire_timers();
        if self.shared.orders.are_there() {
            self.follow_orders();
        }
        if queued {
            self.serve_all_waiting();
        }
        if self.cluster.is_some() {
            self.run_timers();
            self.deliver_acknowledged();
            self.resume_idle(count > 0);
            self.report_frozen();
            self.tend_channels();
            let batches = self.batching.wait(self.settings.event_batching).is_some();
            self.end_turn(match count {
                0 => NextTurn::Idle,
                _ if batches => NextTurn::Batched,
                _ => NextTurn::AtOnce,
            });
        }
        if self.successor.is_some() {
            self.transfer();
        }
        if let Some(lines) = &mut self.lines {
            self.counters.log_lines_lost.add(lines.flush());
        }
        self.counters.turns.add(1);
        Ok(())
    }

    fn is_done(&self) -> bool {
        let drained = self.draining && self.clients.len() == 0;
        self.stopping || (drained && self.successor.is_none() && self.predecessor.is_none())
    }

    fn tick(&mut self) {
        #[cfg(test)]
        faults::inject_loop_panic(&self.counters, "turn");
        self.now = Micros(self.host.monotonic_us());
        self.handshakes = 0;
        if self.now >= self.next_second {
            self.next_second = self.now + Micros::from_ms(1000);
            self.guarded(None, Worker::every_second);
        }
    }

    /// Decides whether further turns batch events.
    fn poll_events(&mut self, count: usize) {
        if self.batching.note_turn(self.now, count) && !self.settings.event_batching.is_zero() {
            let (cpu_ns, work) = (evergate_sys::thread_cpu_ns(), self.counters.work());
            self.batching.end_window(Mark { at: self.now, cpu_ns, work });
        }
    }

    fn every_second(&mut self) {
        #[cfg(test)]
        faults::inject_loop_panic(&self.counters, "second");
        self.expire_idle();
        self.peers = self.shared.orders.workers();
        self.tend_bound();
        self.listen_again();
        self.resume_channels();
        self.serve_all_waiting();
        self.counters.cpu_ns.set(evergate_sys::thread_cpu_ns());
        self.report_work();
        // A generation goes when no connection has its snapshot. In a cluster the last ones stay, for connections of
        // other nodes whose requests began under them.
        let kept = if self.cluster.is_some() { GENERATIONS_MAX } else { 1 };
        let first_kept = self.current.len().saturating_sub(kept);
        let mut index = 0;
        self.current.retain(|current| {
            index += 1;
            index > first_kept
                || Arc::strong_count(&current.generation.snapshot) > 1
                || current.waiting.iter().any(|queue| !queue.is_empty())
        });
    }

    fn dispatch(&mut self, event: Event) {
        match Source::of(event.token) {
            Some(Source::Waker) => self.take_commands(),
            Some(Source::Listener(index)) => {
                self.accept_some(index as usize);
            }
            Some(Source::Client(key)) => {
                let Some(client) = self.clients.get_mut(key) else { return };
                client.readable |= event.readable;
                client.writable |= event.writable;
                client.ended |= event.ended;
                client.broken |= event.broken;
                self.pump(key);
            }
            Some(Source::Upstream(key)) => self.upstream_event(key, event),
            Some(Source::Channels) => self.accept_channels(),
            Some(Source::Incoming(index)) => self.incoming_event(index as usize, event.ended),
            Some(Source::Outgoing(node, worker)) => self.outgoing_event((node, worker.into()), event.ended),
            Some(Source::Lane) => self.lane_event(),
            Some(Source::Predecessor) => self.predecessor_event(),
            Some(Source::Successor) => self.successor_event(event),
            None => {}
        }
    }

    fn take_commands(&mut self) {
        self.waker.drain();
        self.handle_commands();
    }

    /// Handles the queued commands of control plane and agent.
    fn handle_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            // A panic in one command must not keep the worker from the next.
            self.guarded(None, |worker| worker.handle_command(command));
        }
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Reload(generation) => {
                self.current.push(Current::new(&generation));
                self.drop_outdated();
            }
            Command::Listeners { add, remove } => self.change_listeners(add, &remove),
            Command::Settings(settings) => self.use_settings(settings),
            Command::Drain => self.drain(),
            Command::Stop => self.stopping = true,
            Command::Cluster(instruction) => self.take_instruction(instruction),
            Command::Inherit(stream) => self.begin_inheriting(stream),
            Command::Handoff(stream, progress) => self.begin_transfer(stream, progress),
            Command::TakeBack(listeners) => self.take_back(listeners),
        }
    }

    fn drain(&mut self) {
        if self.successor.as_ref().is_some_and(|successor| !successor.is_broken()) {
            return; // everything goes to the new process
        }
        let names: Vec<String> =
            self.listeners.iter().flatten().map(|listener| listener.name.clone()).collect();
        self.change_listeners(Vec::new(), &names);
        self.draining = true;
        for key in self.clients.keys() {
            if let Some(client) = self.clients.get_mut(key) {
                client.readable = true; // its first event may not have arrived yet
            }
            self.guarded(Some(Source::Client(key)), |worker| {
                worker.pump(key); // answers a request that has arrived
                worker.drain_client(key);
                worker.pump(key);
            });
        }
    }

    /// Drains a connection; one in a handoff is drained if the handoff is cancelled.
    fn drain_client(&mut self, key: Key) {
        if !self.is_frozen(key) {
            self.with(key, |connection, io| connection.handle_drain(io));
            self.perform(key);
        }
    }

    /// Continues connections that had more work than one turn allows.
    fn run_pending(&mut self) {
        self.resume_thawed();
        let mut pending = std::mem::take(&mut self.pending);
        for key in pending.drain(..) {
            if let Some(client) = self.clients.get_mut(key) {
                client.pending = false;
                self.guarded(Some(Source::Client(key)), |worker| worker.pump(key));
            }
        }
        if self.pending.is_empty() {
            self.pending = pending;
        }
    }

    fn fire_timers(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.due(self.now, &mut due);
        for key in due.drain(..) {
            let Some(client) = self.clients.get_mut(key) else { continue };
            if client.scheduled_for > self.now {
                continue; // scheduled for another time since
            }
            client.scheduled_for = Micros(u64::MAX);
            let due = client.connection.deadline() <= self.now;
            if due && !self.is_frozen(key) {
                self.guarded(Some(Source::Client(key)), |worker| {
                    worker.check_peers(key);
                    worker.with(key, |connection, io| connection.handle_timeout(io));
                    worker.perform(key);
                    worker.pump(key);
                });
            } else {
                self.schedule(key);
            }
        }
        self.due = due;
    }

    /// Schedules the connection in the timer wheel, unless it is scheduled early enough.
    fn schedule(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key) {
            client.scheduled_for =
                self.wheel.schedule(key, client.connection.deadline(), client.scheduled_for);
        }
    }

    /// Calls a connection with everything it may use.
    fn with<R>(&mut self, key: Key, call: impl FnOnce(&mut Connection, &mut Io<'_>) -> R) -> Option<R> {
        let client = self.clients.get_mut(key)?;
        #[cfg(test)]
        faults::inject_panic(client.connection.client_address(), client.connection.deadline() <= self.now);
        let current = &self.current[self.current.len() - 1].generation;
        let mut view = CallContext {
            host: self.host,
            snapshot: &current.snapshot,
            current,
            draining: self.draining,
            logs: self.lines.as_ref().map(LineSender::logged_headers),
            now: self.now,
            sessions: &self.shared.sessions,
            counters: &self.counters,
            sealer: self.sealer.as_mut(),
            crowd: Crowd {
                shared: &self.shared,
                connections_max: self.settings.connections_max,
                peers: &self.peers,
                holds: client.share.holds(),
            },
        };
        let mut io =
            Io { now: self.now, scratch: &mut self.scratch, effects: &mut self.effects, node: &mut view };
        Some(call(&mut client.connection, &mut io))
    }

    /// Registers a connection's socket with epoll. Without events a connection is useless.
    fn register(&self, fd: RawFd, source: Source) -> io::Result<()> {
        let add = || {
            #[cfg(test)]
            faults::refuse(&self.counters, source)?;
            self.epoll.add(fd, source.token())
        };
        add().inspect_err(|_| self.counters.reason("epoll_failed"))
    }

    /// Fresh random bytes that no peer can guess.
    fn random_secret<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.host.fill_random(&mut bytes);
        bytes
    }

    fn next_random(&mut self) -> u64 {
        // xorshift64*: spreads load, decides nothing that must be secret.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Index of a generation by its number.
    fn current_of(&self, generation: u64) -> Option<usize> {
        self.current.iter().rposition(|current| current.generation.snapshot.generation == generation)
    }
}

impl Drop for Worker {
    /// Releases the counts of the connections that are left when a worker ends early, here and at the servers. Not in a
    /// cluster: another node resumes them.
    fn drop(&mut self) {
        self.counters.evictable.set(0);
        if self.cluster.is_some() {
            return;
        }
        self.end_transfers();
        for key in self.clients.keys() {
            // A panic here must not affect other workers.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.stop_waiting(key);
                self.forget(key);
            }));
        }
    }
}

impl Current {
    fn new(generation: &Generation) -> Current {
        let generation = generation.for_worker();
        let pickers =
            generation.pools.iter().map(|pool| Picker::new(pool.pick_rule, pool.servers.len())).collect();
        let waiting = generation.pools.iter().map(|_| VecDeque::new()).collect();
        Current { generation, pickers, waiting }
    }
}

/// The address, with an IPv4-mapped IPv6 address as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
