//! A model worker: the daemon's loop around real `Connection`s, feeds and holders, with sockets of the model kernel.
//!
//! - [`perform`]: carries out what a connection answered;
//! - [`pump`]: flushes, reads, and tells what peers acknowledged;
//! - [`owner`]: entries go to the backups before what depends on them leaves;
//! - [`backup`]: entries of others come in;
//! - [`fail_over`]: connections of other nodes go on here;
//! - [`tending`]: what time brings.
//!
//! What it leaves out of the daemon's: splicing, several workers, logs and figures.

mod backup;
mod failover;
mod owner;
mod perform;
mod pump;
mod tending;

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
use failover::Round;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// What a connection may ask of its node.
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
    /// The connection's number of it.
    number: u32,
    pool: u32,
    server: u32,
    connecting: bool,
    ended: bool,
    /// It is to end with RST.
    resets: bool,
    /// Record layer of an idle connection to a server that speaks TLS.
    records: Option<Box<Records>>,
}

/// A server connection that was given back before the backups know that its last response has arrived.
#[derive(Debug)]
struct Unsettled {
    /// Whose leg it was, its number, and the sequence numbers of its first byte and after the last one that was read.
    key: ConnectionId,
    number: u32,
    origin: u64,
    end: u64,
    /// It is to be closed when they know.
    ends: bool,
}

/// A client connection, and what its backups know of it.
#[derive(Debug)]
struct Client {
    connection: Connection,
    leg: Leg,
    bucket: Bucket,
    fold: Box<ConnectionState>,
    legs: BTreeMap<u32, LegFacts>,
    queued: u64,
    acknowledged: BTreeMap<NodeId, u64>,
    /// When it is looked at, where that is due.
    timed: Option<(Delay, Time)>,
    client_end: Option<u64>,
    server_end: Option<(u32, u64)>,
    upstream: Option<Upstream>,
    fin_waits: bool,
    server_fin_waits: bool,
    end_reported: bool,
    /// The connection is over and done with its server connection, whose record layer this is.
    left: Option<Option<Box<Records>>>,
}

/// A connection of which only our FIN is on its way: whoever takes over says it again.
#[derive(Debug)]
struct Ending {
    key: ConnectionId,
    bucket: Bucket,
    /// Number after the FIN.
    end: u64,
    fold: Box<ConnectionState>,
    legs: BTreeMap<u32, LegFacts>,
}

/// See the module.
pub(crate) struct Worker {
    me: NodeId,
    /// Counts processes of the whole run.
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
    /// Server connections that went to the pool: when each is looked at.
    pooled: VecDeque<(Time, Flow)>,
    roles: Vec<Role>,
    pub(crate) outgoing: BTreeMap<NodeId, Outgoing>,
    broken: BTreeMap<NodeId, Time>,
    /// When a channel to the node broke last.
    broken_at: BTreeMap<NodeId, Time>,
    /// Channels that this process has closed, of which the other end is to hear.
    pub(crate) given_up: Vec<(NodeId, u64)>,
    channels_at: Time,
    pub(crate) incoming: BTreeMap<(NodeId, u64), Incoming>,
    /// Channels of others that were closed here: what still comes on them is answered by a reset.
    closed: BTreeSet<(NodeId, u64)>,
    pub(crate) holder: ReplicaStore,
    acknowledged: BTreeSet<ConnectionId>,
    dirty: BTreeSet<Flow>,
    again: BTreeSet<ConnectionId>,
    freezing: BTreeMap<Bucket, (HandoffId, Term)>,
    frozen: BTreeSet<Bucket>,
    /// Backups that the agent was told are complete, while our role does not say so yet.
    named: BTreeSet<(Bucket, NodeId)>,
    rounds: Vec<Round>,
    /// Frames that wait for others.
    pub(crate) company: FrameBatcher,
    /// What clients said to connections that have no socket yet.
    early: BTreeMap<Flow, Vec<Segment>>,
    /// Connections that are over but for our FIN, which their clients have not acknowledged.
    ending: BTreeMap<Flow, Ending>,
    pub(crate) reports: Vec<Report>,
    /// What went wrong in a way that it never may.
    pub(crate) failures: Vec<String>,
    ports: u16,
    channels: u64,
    dialled: u32,
    pub(crate) resumed: u64,
    /// Those of them that had nothing on its way, and those of these whose clients had spoken.
    pub(crate) rested: u64,
    pub(crate) knocked: u64,
    /// Tickets that left with an acknowledgement.
    pub(crate) tickets_along: u64,
    /// Calls after which entries waited for later ones.
    pub(crate) entries_kept: u64,
}

/// What is needed to start a process.
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
            given_up: Vec::new(),
            channels_at: 0,
            incoming: BTreeMap::new(),
            closed: BTreeSet::new(),
            holder: ReplicaStore::default(),
            acknowledged: BTreeSet::new(),
            dirty: BTreeSet::new(),
            again: BTreeSet::new(),
            freezing: BTreeMap::new(),
            frozen: BTreeSet::new(),
            named: BTreeSet::new(),
            rounds: Vec::new(),
            company: FrameBatcher::default(),
            early: BTreeMap::new(),
            ending: BTreeMap::new(),
            reports: Vec::new(),
            failures: Vec::new(),
            ports: 0,
            channels: 0,
            dialled: 0,
            resumed: 0,
            rested: 0,
            knocked: 0,
            tickets_along: 0,
            entries_kept: 0,
        }
    }

    fn role(&self, bucket: Bucket) -> Role {
        self.roles.get(bucket.index()).copied().unwrap_or(Role::NOTHING)
    }

    /// Who must hold an entry before anything follows from it: those that the role names, and those that are about to be
    /// named.
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

    /// The backups that may go on with the bucket: those that the role names, and those of which the agent was told.
    pub(crate) fn relied_on(&self, bucket: Bucket) -> MemberSet {
        let reported = self.named.iter().filter(|(of, _)| *of == bucket).map(|(_, node)| *node);
        reported.fold(self.required(bucket), MemberSet::with)
    }

    /// The backups that the role names.
    pub(super) fn required(&self, bucket: Bucket) -> MemberSet {
        match self.role(bucket) {
            Role::Owner { required, .. } => required,
            _ => MemberSet::EMPTY,
        }
    }

    /// A client's connection was made.
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

    /// A socket has news.
    pub(crate) fn news(&mut self, now: Time, kernel: &mut Kernel, flow: Flow) {
        if let Some(key) = self.by_flow.get(&flow).copied() {
            self.pump(now, kernel, key);
        } else {
            self.look_at_idle(kernel, flow);
        }
    }

    /// Timers, and what was put off.
    pub(crate) fn tick(&mut self, now: Time, kernel: &mut Kernel) {
        for key in std::mem::take(&mut self.again) {
            self.pump(now, kernel, key);
        }
        let due = |client: &&Client| client.connection.deadline() <= Micros(now);
        let late: Vec<ConnectionId> =
            self.clients.iter().filter(|(_, client)| due(client)).map(|(key, _)| *key).collect();
        for key in late.into_iter().filter(|key| !self.is_frozen(*key)).collect::<Vec<_>>() {
            if self.clients.get(&key).is_some_and(|client| client.connection.checks_peers()) {
                self.learn_from_peers(kernel, key);
                self.run_deferred(now, kernel, key);
            }
            self.call(now, kernel, key, |connection, io| connection.handle_timeout(io));
            self.pump(now, kernel, key);
        }
        self.tend_timed(now, kernel);
        self.tend_channels(now);
        self.proceed(now, kernel);
    }

    /// The end of a turn: what was acknowledged is acted on, and ACKs leave.
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

    /// When a turn is due without an event.
    pub(crate) fn next_at(&self, now: Time) -> Option<Time> {
        if !self.again.is_empty() {
            return Some(now);
        }
        let deadlines = self.clients.values().map(|client| client.connection.deadline().0);
        let tends = self.tends_at().map(|at| at.max(now));
        let rounds = self.rounds.iter().map(|round| round.next_at);
        let channels = self.wants_channels().then_some(self.channels_at.max(now));
        let soon = if self.company.is_urgent() { now } else { now + 1_000 };
        let frames = self.company.is_waiting().then_some(soon);
        let deadlines = deadlines.filter(|at| *at < u64::MAX).chain(tends);
        deadlines.chain(rounds).chain(channels).chain(frames).min()
    }

    /// Calls a connection, and performs what it answers.
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
        // What a handshake with a server draws: another value on each node, the same in each run.
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
            Instruction::Void => self.void(kernel),
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

    /// Which connection a flow belongs to: its name and bucket, the leg's number, and where its input begins.
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

    /// Take-overs that are under way look whether they can go on.
    pub(crate) fn tick_rounds(&mut self, now: Time, kernel: &mut Kernel) {
        self.proceed(now, kernel);
    }

    /// Where its connections stand.
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
        for (key, held) in self.holder.iter() {
            text += &format!("    holds {key:?} of {:?}\n", held.term);
        }
        for round in &self.rounds {
            text += &format!("    takes over {round:?}\n");
        }
        text
    }

    fn check(&self) {
        self.holder.check_invariants();
        self.holder.check_states();
        for client in self.clients.values() {
            client.fold.check_invariants();
            client.leg.positions.check_invariants();
            let server = client.upstream.iter();
            server.for_each(|upstream| upstream.leg.positions.check_invariants());
        }
    }

    /// Bytes that wait anywhere in this process, and entries that backups have not acknowledged.
    pub(crate) fn held_bytes(&mut self) -> usize {
        let waiting = |client: &mut Client| client.connection.down().len() + client.connection.up().len();
        let outlets: usize = self.clients.values_mut().map(waiting).sum();
        outlets + self.outgoing.values().map(|outgoing| outgoing.feed.unsent().len()).sum::<usize>()
    }
}

impl Client {
    fn new(connection: Connection, leg: Leg, bucket: Bucket, fold: Box<ConnectionState>) -> Client {
        Client {
            connection,
            leg,
            bucket,
            fold,
            legs: BTreeMap::new(),
            queued: 0,
            acknowledged: BTreeMap::new(),
            timed: None,
            client_end: None,
            server_end: None,
            upstream: None,
            fin_waits: false,
            server_fin_waits: false,
            left: None,
            end_reported: false,
        }
    }
}
