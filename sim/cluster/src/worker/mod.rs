//! A model worker: the daemon's loop around real `Connection`s, senders and replica stores, with sockets of the model
//! kernel.
//!
//! - `perform`: carries out the effects of a connection;
//! - `pump`: flushes, reads, and passes on the ACKs of peers;
//! - `owner`: replicates entries before output that depends on them leaves;
//! - `backup`: receives entries of other nodes;
//! - `failover`: resumes connections of other nodes;
//! - `timers`: timers.
//!
//! Not modelled: splicing, several workers, logs and metrics.

mod backup;
mod failover;
mod owner;
mod perform;
mod pump;
mod timers;

use crate::agent::{Instruction, Report};
use crate::channel::{Incoming, Outgoing};
use crate::event_queue::Time;
use crate::fault::Mutation;
use crate::kernel::Kernel;
use crate::leg::Leg;
use crate::segment::{Flow, Segment};
use evergate_base::Micros;
use evergate_base::seed::{Seed, scoped};
use evergate_connection::{Accepted, Connection, ConnectionHost, Effects, Io, Scratch, Snapshot};
use evergate_membership::{Bucket, HandoffId, MemberSet, NodeId, Role, Term};
use evergate_replication::{ConnectionId, ConnectionState, Delay, FrameBatcher, LegFacts, ReplicaStore};
use evergate_tls::Records;
use failover::Failover;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// Host services of a connection.
struct Config(Arc<Snapshot>);

impl ConnectionHost for Config {
    fn snapshot(&self) -> &Arc<Snapshot> {
        &self.0
    }
}

/// A server connection.
#[derive(Debug)]
struct Upstream {
    leg: Leg,
    /// Its number in the client's connection.
    number: u32,
    pool: u32,
    server: u32,
    connecting: bool,
    ended: bool,
    /// Whether it ends with RST.
    resets: bool,
    /// Record layer of an idle connection to a server with TLS.
    records: Option<Box<Records>>,
}

/// A released server connection whose last response the backups do not know yet.
#[derive(Debug)]
struct Unsettled {
    /// The connection that used the leg, the leg's number, and the sequence numbers of its first byte and after its
    /// last read byte.
    key: ConnectionId,
    number: u32,
    origin: u64,
    end: u64,
    /// Whether to close it when they know.
    ends: bool,
}

/// A client connection, and its state at the backups.
#[derive(Debug)]
struct Client {
    connection: Connection,
    leg: Leg,
    bucket: Bucket,
    replicated: Box<ConnectionState>,
    legs: BTreeMap<u32, LegFacts>,
    queued: u64,
    acknowledged: BTreeMap<NodeId, u64>,
    /// Its next timer.
    timed: Option<(Delay, Time)>,
    client_end: Option<u64>,
    server_end: Option<(u32, u64)>,
    upstream: Option<Upstream>,
    fin_waits: bool,
    server_fin_waits: bool,
    end_reported: bool,
    /// Set when the connection is over and has released its server connection: that connection's record layer.
    released: Option<Option<Box<Records>>>,
}

/// A finished connection whose FIN is unacknowledged: a new owner sends the FIN again.
#[derive(Debug)]
struct Ending {
    key: ConnectionId,
    bucket: Bucket,
    /// Number after the FIN.
    end: u64,
    replicated: Box<ConnectionState>,
    legs: BTreeMap<u32, LegFacts>,
}

/// One process of a node: see the module's description.
pub(crate) struct Worker {
    me: NodeId,
    /// Number of this process in the whole run.
    pub(crate) process: u64,
    config: Config,
    mutation: Mutation,
    /// A pool without servers.
    down_pool: u32,
    scratch: Scratch,
    effects: Effects,
    clients: BTreeMap<ConnectionId, Client>,
    by_flow: BTreeMap<Flow, ConnectionId>,
    idle: BTreeMap<(u32, u32, Bucket), Vec<Upstream>>,
    unsettled: BTreeMap<Flow, Unsettled>,
    /// Pooled server connections, each with the time of its next check.
    pooled: VecDeque<(Time, Flow)>,
    roles: Vec<Role>,
    pub(crate) outgoing: BTreeMap<NodeId, Outgoing>,
    broken: BTreeMap<NodeId, Time>,
    /// Time of the last break of a channel, by node.
    broken_at: BTreeMap<NodeId, Time>,
    /// Channels that this process closed and whose other end is to be notified.
    pub(crate) closed_outgoing: Vec<(NodeId, u64)>,
    channels_at: Time,
    pub(crate) incoming: BTreeMap<(NodeId, u64), Incoming>,
    /// Incoming channels that were closed here: further frames are answered by a reset.
    closed: BTreeSet<(NodeId, u64)>,
    pub(crate) store: ReplicaStore,
    acknowledged: BTreeSet<ConnectionId>,
    dirty: BTreeSet<Flow>,
    to_pump: BTreeSet<ConnectionId>,
    freezing: BTreeMap<Bucket, (HandoffId, Term)>,
    frozen: BTreeSet<Bucket>,
    /// Backups that the agent knows as complete, while this worker's role does not list them yet.
    named: BTreeSet<(Bucket, NodeId)>,
    failovers: Vec<Failover>,
    /// Frames that wait for further ones.
    pub(crate) batcher: FrameBatcher,
    /// Early segments: clients' segments to connections without a socket yet.
    early: BTreeMap<Flow, Vec<Segment>>,
    /// Connections that are over except for their unacknowledged FIN.
    ending: BTreeMap<Flow, Ending>,
    pub(crate) reports: Vec<Report>,
    /// Failures that must never occur.
    pub(crate) failures: Vec<String>,
    ports: u16,
    channels: u64,
    dialled: u32,
    pub(crate) resumed: u64,
    /// Of the resumed connections, the idle ones.
    pub(crate) idle_resumed: u64,
    /// Of the idle ones, connections whose client sent a segment first.
    pub(crate) early_resumed: u64,
    /// Tickets that left with an acknowledgement.
    pub(crate) tickets_with_acks: u64,
    /// Calls after which entries waited for later ones.
    pub(crate) entries_batched: u64,
}

/// Parameters of a new process.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) me: NodeId,
    pub(crate) process: u64,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) mutation: Mutation,
    pub(crate) down_pool: u32,
}

impl Worker {
    pub(crate) fn new(start: Start) -> Worker {
        Worker {
            me: start.me,
            process: start.process,
            config: Config(start.snapshot),
            mutation: start.mutation,
            down_pool: start.down_pool,
            scratch: Scratch::new(),
            effects: Effects::default(),
            clients: BTreeMap::new(),
            by_flow: BTreeMap::new(),
            idle: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            pooled: VecDeque::new(),
            roles: Vec::new(),
            outgoing: BTreeMap::new(),
            broken: BTreeMap::new(),
            broken_at: BTreeMap::new(),
            closed_outgoing: Vec::new(),
            channels_at: 0,
            incoming: BTreeMap::new(),
            closed: BTreeSet::new(),
            store: ReplicaStore::default(),
            acknowledged: BTreeSet::new(),
            dirty: BTreeSet::new(),
            to_pump: BTreeSet::new(),
            freezing: BTreeMap::new(),
            frozen: BTreeSet::new(),
            named: BTreeSet::new(),
            failovers: Vec::new(),
            batcher: FrameBatcher::default(),
            early: BTreeMap::new(),
            ending: BTreeMap::new(),
            reports: Vec::new(),
            failures: Vec::new(),
            ports: 0,
            channels: 0,
            dialled: 0,
            resumed: 0,
            idle_resumed: 0,
            early_resumed: 0,
            tickets_with_acks: 0,
            entries_batched: 0,
        }
    }

    fn role(&self, bucket: Bucket) -> Role {
        self.roles.get(bucket.index()).copied().unwrap_or(Role::NOTHING)
    }

    /// Backups that must hold an entry before it has an effect: those that the role requires, and those that are about
    /// to be required.
    pub(crate) fn awaited(&self, bucket: Bucket) -> MemberSet {
        let Role::Owner { required, syncing, .. } = self.role(bucket) else { return MemberSet::EMPTY };
        let awaited = |node: &NodeId| {
            let outgoing = self.outgoing.get(node);
            self.named.contains(&(bucket, *node))
                || outgoing.is_some_and(|outgoing| {
                    outgoing.follows.contains(&bucket) && outgoing.awaited.contains(&bucket)
                })
        };
        syncing.iter().filter(awaited).fold(required, MemberSet::with)
    }

    /// The backups that may continue the bucket: those that the role requires, and those that the agent knows as
    /// complete.
    pub(crate) fn relied_on(&self, bucket: Bucket) -> MemberSet {
        let named = self.named.iter().filter(|(of, _)| *of == bucket).map(|(_, node)| *node);
        named.fold(self.required(bucket), MemberSet::with)
    }

    /// The backups that the role requires.
    pub(super) fn required(&self, bucket: Bucket) -> MemberSet {
        match self.role(bucket) {
            Role::Owner { required, .. } => required,
            _ => MemberSet::EMPTY,
        }
    }

    /// Accepts a client's connection.
    pub(crate) fn accept(
        &mut self,
        now: Time,
        kernel: &mut Kernel,
        flow: Flow,
        bucket: Bucket,
        accepted: &Accepted,
    ) {
        if !matches!(self.role(bucket), Role::Owner { .. }) {
            return kernel.close(flow, true);
        }
        let mut connection = Connection::new(&self.config.0, accepted, Micros(now));
        connection.start_replication();
        let leg = Leg::new(flow, now);
        let facts = leg.facts();
        let client = Client::new(connection, leg, bucket, Box::default());
        self.by_flow.insert(flow, accepted.id);
        self.clients.insert(accepted.id, client);
        self.begin(accepted.id, facts);
        self.call(now, kernel, accepted.id, |connection, io| connection.handle_accepted(io));
        self.pump(now, kernel, accepted.id);
    }

    /// Handles an event of a socket.
    pub(crate) fn news(&mut self, now: Time, kernel: &mut Kernel, flow: Flow) {
        if let Some(key) = self.by_flow.get(&flow).copied() {
            self.pump(now, kernel, key);
        } else {
            self.check_idle(kernel, flow);
        }
    }

    /// Runs timers and deferred work.
    pub(crate) fn tick(&mut self, now: Time, kernel: &mut Kernel) {
        for key in std::mem::take(&mut self.to_pump) {
            self.pump(now, kernel, key);
        }
        let due = |client: &&Client| client.connection.deadline() <= Micros(now);
        let late: Vec<ConnectionId> =
            self.clients.iter().filter(|(_, client)| due(client)).map(|(key, _)| *key).collect();
        for key in late.into_iter().filter(|key| !self.is_frozen(*key)).collect::<Vec<_>>() {
            if self.clients.get(&key).is_some_and(|client| client.connection.checks_peers()) {
                self.pass_acks(kernel, key);
                self.run_deferred(now, kernel, key);
            }
            self.call(now, kernel, key, |connection, io| connection.handle_timeout(io));
            self.pump(now, kernel, key);
        }
        self.run_timers(now, kernel);
        self.run_channel_timers(now);
        self.proceed(now, kernel);
    }

    /// Ends a turn: handles acknowledgements, and sends ACKs.
    pub(crate) fn end_turn(&mut self, now: Time, kernel: &mut Kernel) {
        self.deliver_acknowledged(now, kernel);
        self.end_acknowledged(kernel);
        self.report_frozen();
        self.send_tickets_along(now, kernel);
        for flow in std::mem::take(&mut self.dirty) {
            kernel.emit_ack(flow);
        }
        self.check();
    }

    /// Time at which a turn is due without an event.
    pub(crate) fn next_at(&self, now: Time) -> Option<Time> {
        if !self.to_pump.is_empty() {
            return Some(now);
        }
        let deadlines = self.clients.values().map(|client| client.connection.deadline().0);
        let tends = self.next_timer_at().map(|at| at.max(now));
        let failovers = self.failovers.iter().map(|failover| failover.next_at);
        let channels = self.wants_channels().then_some(self.channels_at.max(now));
        let soon = if self.batcher.is_urgent() { now } else { now + 1_000 };
        let frames = self.batcher.is_waiting().then_some(soon);
        let deadlines = deadlines.filter(|at| *at < u64::MAX).chain(tends);
        deadlines.chain(failovers).chain(channels).chain(frames).min()
    }

    /// Calls a connection, and carries out its effects.
    fn call(
        &mut self,
        now: Time,
        kernel: &mut Kernel,
        key: ConnectionId,
        step: impl FnOnce(&mut Connection, &mut Io<'_>),
    ) {
        let Worker { clients, scratch, effects, config, .. } = self;
        let Some(client) = clients.get_mut(&key) else { return };
        let mut io = Io { now: Micros(now), scratch, effects, node: config };
        // Random values of a handshake with a server: they differ between nodes and are equal in each run.
        let mut secret = [self.me.0; 32];
        secret[..8].copy_from_slice(&now.to_le_bytes());
        let mut seed = Some(Seed::new(secret, 1_700_000_000));
        scoped(&mut seed, || step(&mut client.connection, &mut io));
        self.perform(now, kernel, key);
    }

    pub(crate) fn instruct(&mut self, now: Time, kernel: &mut Kernel, instruction: Instruction) {
        match instruction {
            Instruction::Roles(roles) => {
                for (bucket, role) in roles {
                    self.change_role(now, kernel, bucket, role);
                }
            }
            Instruction::Failover(buckets) => self.fail_over(now, kernel, buckets),
            Instruction::DropState => self.drop_state(kernel),
        }
    }

    /// A port for a server leg that no other node uses.
    fn source(&mut self, bucket: Bucket) -> SocketAddr {
        self.ports += 1;
        let port = 20_000
            + bucket.0 * 5_000
            + u16::from(self.me.0) * 1_000
            + (self.process % 10) as u16 * 100
            + self.ports;
        SocketAddr::from(([10, 0, 1, 100], port))
    }

    /// The connection of a flow: its id and bucket, the leg's number, and the start of its input.
    pub(crate) fn holds(&self, flow: Flow) -> Option<(ConnectionId, Bucket, u32, u64)> {
        let key = self.by_flow.get(&flow)?;
        let client = self.clients.get(key)?;
        let server = client.upstream.as_ref().filter(|upstream| upstream.leg.flow == flow);
        let (number, leg) = server.map_or((0, &client.leg), |upstream| (upstream.number, &upstream.leg));
        Some((*key, client.bucket, number, leg.received().0))
    }

    /// Whether the flow belongs to a connection.
    pub(crate) fn knows(&self, flow: Flow) -> bool {
        self.by_flow.contains_key(&flow)
    }

    /// Advances the failovers in progress.
    pub(crate) fn tick_failovers(&mut self, now: Time, kernel: &mut Kernel) {
        self.proceed(now, kernel);
    }

    /// The state of its connections.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (key, client) in &self.clients {
            text += &format!(
                "    {key:?} timer {:?} leg {:?} queued {} acknowledged {:?}\n      client {:?}\n      server {:?}\n",
                client.connection.timer(),
                client.connection.leg_id(),
                client.queued,
                client.acknowledged,
                client.leg,
                client.upstream,
            );
        }
        for (key, held) in self.store.iter() {
            text += &format!("    holds {key:?} of {:?}\n", held.term);
        }
        for failover in &self.failovers {
            text += &format!("    recovers {failover:?}\n");
        }
        text
    }

    fn check(&self) {
        self.store.check_invariants();
        self.store.check_states();
        for client in self.clients.values() {
            client.replicated.check_invariants();
            client.leg.positions.check_invariants();
            let server = client.upstream.iter();
            server.for_each(|upstream| upstream.leg.positions.check_invariants());
        }
    }

    /// Bytes that wait anywhere in this process, and entries without acknowledgement.
    pub(crate) fn held_bytes(&mut self) -> usize {
        let waiting = |client: &mut Client| client.connection.down().len() + client.connection.up().len();
        let outlets: usize = self.clients.values_mut().map(waiting).sum();
        outlets + self.outgoing.values().map(|outgoing| outgoing.feed.unsent().len()).sum::<usize>()
    }
}

impl Client {
    fn new(connection: Connection, leg: Leg, bucket: Bucket, replicated: Box<ConnectionState>) -> Client {
        Client {
            connection,
            leg,
            bucket,
            replicated,
            legs: BTreeMap::new(),
            queued: 0,
            acknowledged: BTreeMap::new(),
            timed: None,
            client_end: None,
            server_end: None,
            upstream: None,
            fin_waits: false,
            server_fin_waits: false,
            released: None,
            end_reported: false,
        }
    }
}
