//! A worker: its listeners, and the connections that they accepted.
//!
//! A turn takes events, lets each connection's state machine decide, and performs the results. A connection lives on
//! one worker from accept to close. ARCHITECTURE.md lists under "Threads" what workers share in the data path. The
//! program around a worker waits for events and calls [`Worker::turn`].
//!
//! Invariants: one registration per socket for its whole life, except for changes of read interest
//! (`read_interest`). A descriptor's readiness is kept in flags until used up. One connection gets at most [`ROUNDS`]
//! rounds before other connections are served; the rest is done in the next turn.

use crate::accept::Listening;
use crate::arrivals::Arrivals;
use crate::call_context::{CallContext, Crowd};
use crate::clients::Client;
use crate::command::{Command, Settings};
use crate::event_batching::{EventBatching, Mark};
use crate::host::{AccessLog, AuditedCapture, Host, Poll};
use crate::limits::Limits;
use crate::passing::{Lifecycle, Passing};
use crate::pools::Generation;
use crate::replication::{Cluster, Joining};
use crate::slab::{Key, Slab, Source};
use crate::timer_wheel::Wheel;
use crate::upstreams::{IdlePool, Upstream, Waiting};
use crate::{Counters, Peer, Shared, Watchdog};
use evergate_balance::{Picker, ServerLoad};
use evergate_base::net::Event;
use evergate_base::{Micros, Wake};
use evergate_connection::{Connection, Effects, Io, Scratch, Snapshot};
use evergate_replication::NextTurn;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Most rounds of one connection before other connections get their turn.
pub(crate) const ROUNDS: usize = 8;
/// Generations that a worker of a cluster keeps without connections bound to them, the newest included.
const GENERATIONS_MAX: usize = evergate_membership::CONFIGURATIONS;
/// Most spare large buffers for blocked connections.
pub(crate) const SPARE_BUFFERS: usize = 16;

/// A generation as one worker uses it.
pub(crate) struct Current {
    pub(crate) generation: Generation,
    pub(crate) pickers: Vec<Picker>,
    pub(crate) waiting: Vec<VecDeque<Waiting>>,
}

/// Source of events, time and commands for a new worker.
pub struct Parts<H: Host> {
    /// The machine below it.
    pub host: H,
    /// Registrations for events.
    pub poll: H::Poll,
    /// Ends its wait.
    pub waker: Arc<dyn Wake>,
    /// Commands of the control plane.
    pub commands: Receiver<Command<H>>,
    /// Its access log, if there is one.
    pub access_log: Option<Box<dyn AccessLog>>,
    /// Its audited capture, if there is one.
    pub audit: Option<Box<dyn AuditedCapture>>,
}

/// A worker's state. It has more fields than most types: clients and servers, components with a file or a type of their
/// own, what all workers share, and memory that calls reuse.
pub struct Worker<H: Host> {
    pub(crate) clients: Slab<Client<H>>,
    pub(crate) upstreams: Slab<Upstream<H>>,
    pub(crate) pool: IdlePool,
    pub(crate) listening: Listening<H>,
    pub(crate) arrivals: Arrivals<H>,
    pub(crate) current: Vec<Current>,
    pub(crate) limits: Limits,
    pub(crate) deadlines: Deadlines,
    /// Connections that had more work than one turn allows.
    pub(crate) pending: Vec<Key>,
    /// Bytes that wait for slow peers.
    pub(crate) buffered: usize,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) cluster: Option<Box<Cluster<H>>>,
    inbox: Inbox<H>,
    pub(crate) observers: Observers,
    pub(crate) settings: Settings,
    // The turn.
    pub(crate) batching: EventBatching,
    pub(crate) now: Micros,
    pub(crate) next_second: Micros,
    pub(crate) handshakes: usize,
    random: u64,
    // Shared with other threads.
    pub(crate) host: H,
    pub(crate) poll: H::Poll,
    pub(crate) waker: Arc<dyn Wake>,
    pub(crate) pulse: Arc<Watchdog>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    /// All workers of the process, and the number of this one among them.
    pub(crate) peers: Vec<Peer>,
    pub(crate) number: usize,
    // Memory for calls.
    pub(crate) scratch: Scratch,
    pub(crate) effects: Effects,
    pub(crate) spares: Spares<H>,
    pub(crate) loads: Vec<ServerLoad>,
}

/// Deadlines of connections.
pub(crate) struct Deadlines {
    pub(crate) wheel: Wheel,
    /// Memory for those that are due.
    due: Vec<Key>,
}

/// Commands to a worker.
struct Inbox<H: Host> {
    commands: Receiver<Command<H>>,
    /// Commands to the program around the worker. No later command is taken before they are.
    shell_commands: VecDeque<H::Command>,
}

/// Receivers of what a worker did.
pub(crate) struct Observers {
    pub(crate) access_log: Option<Box<dyn AccessLog>>,
    pub(crate) audit: Option<Box<dyn AuditedCapture>>,
}

/// Memory that connections give back.
pub(crate) struct Spares<H: Host> {
    pub(crate) buffers: Vec<Vec<u8>>,
    pub(crate) pipes: Vec<H::Pipe>,
}

impl<H: Host> Worker<H> {
    /// A worker that will serve `generation`; its listeners come as a command.
    pub fn new(
        parts: Parts<H>,
        generation: &Generation,
        settings: Settings,
        shared: Arc<Shared>,
    ) -> Worker<H> {
        let Parts { host, poll, waker, commands, access_log, audit } = parts;
        // The clock of the machine: a connection that moves to another process keeps its deadlines.
        let now = Micros(host.monotonic_us());
        let counters = Arc::new(Counters::default());
        let number = shared.orders.enlist(Peer { waker: waker.clone(), counters: counters.clone() });
        let mut seed = [0; 8];
        host.fill_random(&mut seed);
        Worker {
            clients: Slab::new(),
            upstreams: Slab::new(),
            pool: IdlePool::default(),
            listening: Listening { sockets: Vec::new(), paused: Vec::new(), accepts: (0, 1) },
            arrivals: Arrivals::default(),
            current: vec![Current::new(generation)],
            limits: Limits::default(),
            deadlines: Deadlines { wheel: Wheel::new(now), due: Vec::new() },
            pending: Vec::new(),
            buffered: 0,
            lifecycle: Lifecycle { draining: false, stopping: false, passing: Passing::No },
            cluster: None,
            inbox: Inbox { commands, shell_commands: VecDeque::new() },
            observers: Observers { access_log, audit },
            settings,
            batching: EventBatching::new(now),
            now,
            next_second: now,
            handshakes: 0,
            random: u64::from_le_bytes(seed) | 1,
            host,
            poll,
            waker,
            pulse: Arc::default(),
            shared,
            counters,
            peers: Vec::new(),
            number,
            scratch: Scratch::new(),
            effects: Effects::default(),
            spares: Spares { buffers: Vec::new(), pipes: Vec::new() },
            loads: Vec::new(),
        }
    }

    /// Makes it one of a cluster's; before its first turn.
    pub fn join(&mut self, joining: Joining<H>) -> io::Result<()> {
        self.join_cluster(joining)
    }

    /// Registrations for events.
    pub fn poll_mut(&mut self) -> &mut H::Poll {
        &mut self.poll
    }

    /// Ends the worker's wait from another thread.
    pub fn waker(&self) -> Arc<dyn Wake> {
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

    pub(crate) fn has_queued(&self) -> bool {
        self.counters.queued.get() > 0 && !self.is_sweeping()
    }

    /// One turn: handles the events, and does timed work.
    pub fn turn(&mut self, events: &[Event]) {
        let queued = self.has_queued();
        self.pulse.beat();
        self.tick();
        self.poll_events(events.len());
        for event in events {
            self.note_idle(*event);
        }
        for event in events {
            self.guarded(Source::of(event.token), |worker| worker.dispatch(*event));
        }
        self.run_pending();
        self.fire_timers();
        self.expire_arrivals();
        if self.shared.orders.are_there() {
            self.follow_orders();
        }
        if queued {
            self.serve_all_waiting();
        }
        if self.cluster.is_some() {
            self.run_timers();
            self.deliver_acknowledged();
            self.poll_probes();
            self.resume_idle(!events.is_empty());
            self.report_frozen();
            self.tend_channels();
            let batches = self.batching.wait(self.settings.event_batching).is_some();
            self.end_turn(match events.len() {
                0 => NextTurn::Idle,
                _ if batches => NextTurn::Batched,
                _ => NextTurn::AtOnce,
            });
        }
    }

    /// Ends a turn: log lines leave, and the turn is counted.
    pub fn flush_log(&mut self) {
        if let Some(access_log) = &mut self.observers.access_log {
            self.counters.log_lines_lost.add(access_log.flush());
        }
        self.counters.turns.add(1);
    }

    /// Ends all connections: the worker is stopped, or drained.
    pub fn end_all(&mut self) {
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
        if let Some(access_log) = &mut self.observers.access_log {
            access_log.flush();
        }
    }

    /// Whether it is one of a cluster's.
    pub fn is_clustered(&self) -> bool {
        self.cluster.is_some()
    }

    /// Whether it was stopped.
    pub fn is_stopping(&self) -> bool {
        self.lifecycle.stopping
    }

    /// Whether it drains.
    pub fn is_draining(&self) -> bool {
        self.lifecycle.draining
    }

    /// Whether it has drained.
    pub fn is_drained(&self) -> bool {
        self.lifecycle.draining && self.clients.len() == 0 && self.arrivals.is_empty()
    }

    fn tick(&mut self) {
        self.host.reached(&self.counters, "turn", None);
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
            let (cpu_ns, work) = (self.host.thread_cpu_ns(), self.counters.work());
            self.batching.end_window(Mark { at: self.now, cpu_ns, work });
        }
    }

    fn every_second(&mut self) {
        self.host.reached(&self.counters, "second", None);
        self.expire_idle();
        self.peers = self.shared.orders.workers();
        self.tend_bound();
        self.listen_again();
        self.resume_channels();
        self.serve_all_waiting();
        self.counters.cpu_ns.set(self.host.thread_cpu_ns());
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
            Some(Source::Arrival(key)) => self.arrival_event(key, event),
            Some(Source::Channels) => self.accept_channels(),
            Some(Source::Incoming(index)) => self.incoming_event(index as usize, event.ended),
            Some(Source::Outgoing(node, worker)) => self.outgoing_event((node, worker.into()), event.ended),
            Some(Source::Lane) => self.lane_event(),
            Some(Source::Shell(_)) | None => {}
        }
    }

    fn take_commands(&mut self) {
        self.poll.drain_wakes();
        self.handle_commands();
    }

    /// Handles the queued commands of control plane and agent, up to the first one for the program around the worker.
    pub fn handle_commands(&mut self) {
        while self.inbox.shell_commands.is_empty()
            && let Ok(command) = self.inbox.commands.try_recv()
        {
            // A panic in one command must not keep the worker from the next.
            self.guarded(None, |worker| worker.handle_command(command));
        }
    }

    /// The next command to the program around the worker; after it, [`Worker::handle_commands`] takes the next ones.
    pub fn take_shell_command(&mut self) -> Option<H::Command> {
        self.inbox.shell_commands.pop_front()
    }

    /// All commands to the program around the worker that are left; the worker ends.
    pub fn take_last_shell_commands(&mut self) -> Vec<H::Command> {
        let mut all: Vec<H::Command> = self.inbox.shell_commands.drain(..).collect();
        while let Ok(command) = self.inbox.commands.try_recv() {
            if let Command::Shell(command) = command {
                all.push(command);
            }
        }
        all
    }

    fn handle_command(&mut self, command: Command<H>) {
        match command {
            Command::Reload(generation) => {
                self.current.push(Current::new(&generation));
                self.drop_outdated();
            }
            Command::Listeners { add, remove } => self.change_listeners(add, &remove),
            Command::Settings(settings) => self.use_settings(settings),
            Command::Drain => self.drain(),
            Command::Stop => self.lifecycle.stopping = true,
            Command::Cluster(instruction) => self.take_instruction(instruction),
            Command::Shell(command) => self.inbox.shell_commands.push_back(command),
        }
    }

    pub(crate) fn drain(&mut self) {
        if matches!(self.lifecycle.passing, Passing::Sweeping | Passing::Swept) {
            return; // everything goes to the new process
        }
        let names: Vec<String> =
            self.listening.sockets.iter().flatten().map(|listener| listener.name.clone()).collect();
        self.change_listeners(Vec::new(), &names);
        self.lifecycle.draining = true;
        for key in self.clients.keys() {
            self.guarded(Some(Source::Client(key)), |worker| worker.drain_accepted(key));
        }
    }

    /// Drains a connection after it has answered a request that has arrived.
    pub(crate) fn drain_accepted(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key) {
            client.readable = true; // its first event may not have arrived yet
        }
        self.pump(key);
        self.drain_client(key);
        self.pump(key);
    }

    /// Drains a connection; one in a handoff is drained if the handoff is cancelled.
    pub(crate) fn drain_client(&mut self, key: Key) {
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
        let mut due = std::mem::take(&mut self.deadlines.due);
        self.deadlines.wheel.due(self.now, &mut due);
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
        self.deadlines.due = due;
    }

    /// Schedules the connection in the timer wheel, unless it is scheduled early enough.
    pub(crate) fn schedule(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key) {
            client.scheduled_for =
                self.deadlines.wheel.schedule(key, client.connection.deadline(), client.scheduled_for);
        }
    }

    /// Calls a connection with everything it may use.
    pub(crate) fn with<R>(
        &mut self,
        key: Key,
        call: impl FnOnce(&mut Connection, &mut Io<'_>) -> R,
    ) -> Option<R> {
        let client = self.clients.get_mut(key)?;
        let step = if client.connection.deadline() <= self.now { "due" } else { "call" };
        self.host.reached(&self.counters, step, Some(client.connection.client_address()));
        let current = &self.current[self.current.len() - 1].generation;
        let mut view = CallContext {
            host: &self.host,
            snapshot: &current.snapshot,
            current,
            draining: self.lifecycle.draining,
            logs: self.observers.access_log.as_ref().map(|log| log.logged_headers()),
            now: self.now,
            sessions: &self.shared.sessions,
            counters: &self.counters,
            audit: self.observers.audit.as_deref_mut(),
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

    /// A connection reaches a step that hosts may watch.
    pub(crate) fn reached_for(&self, key: Key, step: &'static str) {
        let client = self.clients.get(key).map(|client| client.connection.client_address());
        self.host.reached(&self.counters, step, client);
    }

    /// Registers a connection's socket for events. Without events a connection is useless.
    pub(crate) fn register(&self, descriptor: i32, source: Source) -> io::Result<()> {
        self.poll.add(descriptor, source.token()).inspect_err(|_| self.counters.reason("epoll_failed"))
    }

    /// Fresh random bytes that no peer can guess.
    pub(crate) fn random_secret<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.host.fill_random(&mut bytes);
        bytes
    }

    pub(crate) fn next_random(&mut self) -> u64 {
        // xorshift64*: spreads load, decides nothing that must be secret.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn set_passing(&mut self, passing: Passing) {
        self.lifecycle.passing = passing;
    }

    /// Whether room of connections that have only moved to another process is not free yet.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.lifecycle.passing == Passing::Sweeping
    }

    /// The newest configuration.
    pub(crate) fn newest_snapshot(&self) -> &Arc<Snapshot> {
        &self.current[self.current.len() - 1].generation.snapshot
    }

    /// Index of a generation by its number.
    pub(crate) fn current_of(&self, generation: u64) -> Option<usize> {
        self.current.iter().rposition(|current| current.generation.snapshot.generation == generation)
    }
}

impl<H: Host> Drop for Worker<H> {
    /// Releases the counts of the connections that are left when a worker ends early, here and at the servers. Not in a
    /// cluster: another node resumes them.
    fn drop(&mut self) {
        self.counters.evictable.set(0);
        if self.cluster.is_some() {
            return;
        }
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
    pub(crate) fn new(generation: &Generation) -> Current {
        let generation = generation.for_worker();
        let pickers =
            generation.pools.iter().map(|pool| Picker::new(pool.pick_rule, pool.servers.len())).collect();
        let waiting = generation.pools.iter().map(|_| VecDeque::new()).collect();
        Current { generation, pickers, waiting }
    }
}

/// The address, with an IPv4-mapped IPv6 address as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
