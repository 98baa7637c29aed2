//! A worker's part of a cluster: replicates its connections to other nodes, and holds replicas of theirs.
//!
//! - [`gated_leg`]: a socket whose acknowledgements wait for the backups;
//! - [`connection`]: replication state of one connection;
//! - [`owner`]: owner side, which sends entries and handles their acknowledgements;
//! - [`outgoing`]: the encrypted connection to one worker of another node;
//! - [`placement`]: which nodes have replicas of the own buckets, and what they have yet to receive;
//! - [`replication_listener`]: accepts channels of other nodes' workers;
//! - [`backup`]: backup side, which receives entries;
//! - [`teardown`]: connections closed here whose clients may lack the end;
//! - [`stats`]: gauges of replication and of the backups' lag;
//! - [`handoff`]: freezes buckets that move to another node;
//! - [`failover`]: builds sockets for connections whose owner failed or froze them;
//! - [`probe`]: probes the peers of recovered connections for their positions;
//! - [`recovering`]: one connection being recovered, from replica to sockets;
//! - [`activate`]: ends the recovery of a connection and resumes it;
//! - [`reprotect`]: sends the recovered state to the other backups first;
//! - [`early_segments`]: segments that arrive before their connection has a socket;
//! - [`loss_notice`]: repeated SACKs for silent peers;
//! - [`session_ids`]: replicates TLS 1.2 sessions that clients resume by their ids;
//! - [`inspect`]: read-only views for simulators and tests;
//! - [`timers`]: delayed ACKs, stalls and other timed work;
//! - [`load`]: CPU cost of buckets.
//!
//! The agent (`crate::agent`) decides which node serves which bucket, and sends roles. A worker without a cluster has
//! none of this.

mod activate;
mod backup;
mod connection;
mod early_segments;
mod failover;
mod gated_leg;
mod handoff;
mod inspect;
mod load;
mod loss_notice;
mod outgoing;
mod owner;
mod placement;
mod probe;
mod recovering;
mod replication_listener;
mod reprotect;
mod session_ids;
mod stats;
mod teardown;
mod timers;

pub(crate) use connection::ConnectionReplication;
pub(crate) use gated_leg::GatedLeg;
pub use inspect::LegInUse;

use crate::host::{Channels, Gate, Host, Poll, Reports, SlotOf};
use crate::instruction::FrozenConnections;
use crate::layout::Layout;
use crate::report::Report;
use crate::slab::{Key, Source};
use crate::worker::Worker;
use backup::Incoming;
use evergate_base::Micros;
use evergate_base::net::{Flow, GateEvents};
use evergate_membership::{Bucket, HandoffId, MemberSet, NodeId, Role, Term};
use evergate_replication::{Entry, FrameBatcher, ReplicaStore};
use outgoing::Outgoing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// How long an ACK owed on a pooled server connection waits, and by how much more, so that several leave together: far
/// below a server's shortest retransmission time.
const POOLED_AFTER_MS: u64 = 5;
const POOLED_TOGETHER: Micros = Micros::from_ms(2);
/// Longest sleep of the loop, and the shortest before timed work without urgency. A sleep that may end before the
/// kernel's next tick (up to 4 ms away) programs a timer at its start and at its end: 5 us each on a virtual machine.
const WAIT_MAX_MS: u64 = 50;
const WAIT_MIN_MS: u64 = 4;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

/// Input of a worker that joins a cluster.
pub struct Joining<H: Host> {
    /// This worker's part of the node's gate.
    pub gate: H::Gate,
    /// Descriptor of the gate's events.
    pub events: i32,
    /// Its channels to workers of other nodes.
    pub channels: H::Channels,
    /// Constant settings of the node.
    pub layout: Arc<Layout>,
    /// Number of the worker.
    pub worker: usize,
    /// Sender of reports to the agent.
    pub reports: Box<dyn Reports>,
}

/// One worker's part of the cluster.
pub(crate) struct Cluster<H: Host> {
    host: H,
    channels: H::Channels,
    pub(crate) gate: H::Gate,
    pub(crate) layout: Arc<Layout>,
    worker: usize,
    /// When the last warning about an unknown configuration was logged.
    unknown_config_logged_at: Option<Micros>,
    /// When the last warning about lost connections was logged, by the steady clock in milliseconds.
    lost_logged_ms: Option<u64>,
    roles: Vec<Role>,
    pub(crate) outgoing: BTreeMap<(NodeId, usize), Outgoing<H>>,
    /// Channels that broke, and when to connect again.
    broken: BTreeMap<(NodeId, usize), Micros>,
    /// When each channel broke last.
    broken_at: BTreeMap<(NodeId, usize), Micros>,
    channels_at: Micros,
    /// When this node's clock is sent to other nodes next.
    clock_at: Micros,
    pub(crate) incoming: Vec<Option<Incoming<H>>>,
    newest: backup::Newest,
    /// No channels are accepted for a moment.
    channels_paused: bool,
    pub(crate) holder: ReplicaStore,
    /// Unfinished failovers, and nodes that must first receive the state of their buckets.
    waiting: Vec<reprotect::Failover<H>>,
    unreported: BTreeMap<(reprotect::Activity, Bucket), (u64, MemberSet)>,
    /// Buckets newly owned by this node whose failover has not begun: this worker may have replicas of them.
    arriving: BTreeSet<Bucket>,
    /// Number of failovers begun, and start of the last one.
    rounds: u64,
    taken_at: Option<Micros>,
    /// Replicas of which some workers of the owner have sent their full state.
    complete: BTreeMap<Bucket, (Term, BTreeSet<u16>)>,
    /// Buckets with dropped replicas, and when no frame of them can arrive any more.
    forgetting: BTreeMap<Bucket, Micros>,
    /// Replicated connections of each bucket, and some that are gone.
    by_bucket: Vec<Vec<Key>>,
    /// The connection of each slot of the gate, by the slot's number.
    by_slot: Vec<Option<Key>>,
    /// Connections closed here, oldest first.
    endings: VecDeque<teardown::Ending<H>>,
    /// Slots of closed connections whose clients wait for the ACK of their end: its deadline, and the sequence number
    /// after our own end.
    final_acks: Vec<(Micros, SlotOf<H>, u32)>,
    /// Legs with more input to acknowledge.
    dirty: Vec<(Key, End)>,
    /// Released server connections, and when each is checked for an owed ACK: the next request may have carried it.
    pooled: VecDeque<(Micros, Key)>,
    /// Connections whose entries were acknowledged.
    acknowledged: Vec<Key>,
    /// Buckets for which a backup is no longer awaited: output that waited for it continues.
    unawaited: BTreeSet<Bucket>,
    /// Peers that may not detect the loss of their segments.
    loss_notices: Vec<loss_notice::LossNotice>,
    /// Connections with a timer, by delay (short, medium, long), and the time of each.
    timed: VecDeque<(Micros, Key)>,
    timed_later: VecDeque<(Micros, Key)>,
    timed_at_last: VecDeque<(Micros, Key)>,
    /// Events of the gate, and input for connections without a socket.
    events: GateEvents,
    early: early_segments::EarlySegments,
    news: session_ids::News,
    census: stats::Census,
    /// Frames waiting to leave together.
    company: FrameBatcher,
    /// Memory for the entries of one call.
    entries: Vec<Entry>,
    /// Buckets that accept no new clients, and are frozen next.
    closing: BTreeMap<Bucket, handoff::Closing>,
    /// Buckets being frozen, with the handoff and the term.
    freezing: BTreeMap<Bucket, (HandoffId, Term)>,
    /// Buckets that are frozen and reported: the next owner may resume them at any moment.
    pub(crate) frozen: BTreeSet<Bucket>,
    /// Connections of buckets whose handoff was cancelled: events may have been missed meanwhile.
    thawed: Vec<Key>,
    /// When the last warning about a refused channel was logged.
    refused_at: Option<Micros>,
    /// Some buckets froze just now: accepted connections of them are still in the kernel's queues.
    unaccepted: bool,
    /// Frozen connections of other workers, for buckets whose replicas this worker has.
    frozen_elsewhere: BTreeMap<Bucket, Vec<Arc<FrozenConnections>>>,
    /// Backups reported to the agent as caught up that the role does not list as required yet.
    named: BTreeSet<(Bucket, NodeId)>,
    /// CPU costs of the buckets since the last report.
    work: load::Work,
    reports: Box<dyn Reports>,
}

impl<H: Host> Worker<H> {
    /// Makes this worker, in its own thread, a member of the cluster.
    pub(crate) fn join_cluster(&mut self, joining: Joining<H>) -> io::Result<()> {
        let events = joining.events;
        let cluster = Cluster::new(self.host.clone(), joining);
        self.poll.add_input(events, Source::Lane.token())?;
        if let Some(listener) = cluster.channels.listener() {
            self.poll.add_input(listener, Source::Channels.token())?;
        }
        self.cluster = Some(Box::new(cluster));
        Ok(())
    }
}

impl<H: Host> Cluster<H> {
    fn new(host: H, joining: Joining<H>) -> Cluster<H> {
        let Joining { gate, channels, layout, worker, reports, .. } = joining;
        Cluster {
            host,
            channels,
            gate,
            layout,
            worker,
            unknown_config_logged_at: None,
            lost_logged_ms: None,
            roles: vec![Role::NOTHING; usize::from(evergate_membership::BUCKETS)],
            outgoing: BTreeMap::new(),
            broken: BTreeMap::new(),
            broken_at: BTreeMap::new(),
            channels_at: Micros(0),
            clock_at: Micros(0),
            incoming: Vec::new(),
            newest: backup::Newest::default(),
            channels_paused: false,
            holder: ReplicaStore::default(),
            waiting: Vec::new(),
            unreported: BTreeMap::new(),
            arriving: BTreeSet::new(),
            rounds: 0,
            taken_at: None,
            complete: BTreeMap::new(),
            forgetting: BTreeMap::new(),
            by_bucket: vec![Vec::new(); usize::from(evergate_membership::BUCKETS)],
            by_slot: Vec::new(),
            loss_notices: Vec::new(),
            endings: VecDeque::new(),
            final_acks: Vec::new(),
            dirty: Vec::new(),
            pooled: VecDeque::new(),
            acknowledged: Vec::new(),
            unawaited: BTreeSet::new(),
            timed: VecDeque::new(),
            timed_later: VecDeque::new(),
            timed_at_last: VecDeque::new(),
            events: GateEvents::default(),
            early: early_segments::EarlySegments::default(),
            news: session_ids::News::default(),
            census: stats::Census::default(),
            company: FrameBatcher::default(),
            entries: Vec::new(),
            closing: BTreeMap::new(),
            freezing: BTreeMap::new(),
            frozen: BTreeSet::new(),
            thawed: Vec::new(),
            refused_at: None,
            unaccepted: false,
            frozen_elsewhere: BTreeMap::new(),
            named: BTreeSet::new(),
            work: load::Work::default(),
            reports,
        }
    }

    /// Whether connections to this address move between nodes.
    pub(crate) fn is_movable(&self, local: SocketAddr) -> bool {
        self.layout.addresses.contains(&local.ip())
    }

    /// Whether a client belongs to a bucket that this node does not serve.
    pub(crate) fn is_strange(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.is_movable(local) && !self.owns(self.bucket(local, remote))
    }

    pub(crate) fn bucket(&self, local: SocketAddr, remote: SocketAddr) -> Bucket {
        self.gate.bucket(&Flow::new(local, remote))
    }

    fn role(&self, bucket: Bucket) -> Role {
        self.roles.get(usize::from(bucket.0)).copied().unwrap_or(Role::NOTHING)
    }

    /// Whether this node serves the bucket.
    pub(crate) fn owns(&self, bucket: Bucket) -> bool {
        matches!(self.role(bucket), Role::Owner { .. })
    }

    /// Starts connecting to a server, from a port of the bucket.
    pub(crate) fn connect_server(&self, bucket: Bucket, to: SocketAddr) -> io::Result<H::Socket> {
        let missing = |what| io::Error::new(io::ErrorKind::AddrNotAvailable, what);
        let from = self.layout.source_for(to).ok_or_else(|| missing("no server_source of this family"))?;
        let ports = self.gate.ports(bucket).ok_or_else(|| missing("no such bucket"))?;
        if let Some(own) = self.layout.share_of(&ports) {
            match self.host.connect_from(from, own, to) {
                // all in use: try any port of the bucket
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
                done => return done,
            }
        }
        let count = ports.clone().count();
        self.host.connect_from(from, ports, to).map_err(|error| match error.kind() {
            io::ErrorKind::AddrNotAvailable => io::Error::new(
                error.kind(),
                format!(
                    "all {count} ports of the bucket for connections to this server are in use, some of them for a \
                     minute after their end: raise cluster.ports_per_bucket"
                ),
            ),
            _ => error,
        })
    }

    /// The worker that recovers connections of the bucket, on every node.
    fn worker_of(&self, bucket: Bucket) -> usize {
        usize::from(bucket.0) % self.layout.workers
    }

    fn note_slot(&mut self, slot: u32, key: Key) {
        let at = slot as usize;
        if at >= self.by_slot.len() {
            self.by_slot.resize(at + 1, None);
        }
        self.by_slot[at] = Some(key);
    }

    fn forget_slot(&mut self, slot: u32) {
        if let Some(place) = self.by_slot.get_mut(slot as usize) {
            *place = None;
        }
    }

    fn of_slot(&self, slot: u32) -> Option<Key> {
        self.by_slot.get(slot as usize).copied().flatten()
    }

    fn report(&self, report: Report) {
        self.reports.send(report);
    }

    /// Milliseconds that the loop may sleep.
    pub(crate) fn wait_ms(&self, now: Micros) -> i32 {
        let at_once = !self.acknowledged.is_empty() || !self.dirty.is_empty() || self.is_probing();
        if at_once || !self.unawaited.is_empty() || self.has_idle() || self.has_news() {
            0
        } else if self.company.is_expected() || !self.timed.is_empty() || !self.closing.is_empty() {
            1
        } else {
            let wait_ms = |due: Micros, least| due.since(now).0.div_ceil(1000).clamp(least, WAIT_MAX_MS);
            // A peer whose last ACK is late sends a probe with the same data after 8 ms (RFC 8985, 7).
            let pooled = self.pooled.front().map(|(due, _)| *due + POOLED_TOGETHER);
            let final_acks = self.final_acks.first().map(|(due, ..)| *due);
            let expected = pooled.into_iter().chain(final_acks).map(|due| wait_ms(due, 1));
            let later = self.timed_later.front().map(|(due, _)| wait_ms(*due, WAIT_MIN_MS));
            let held = self.company.is_waiting().then_some(WAIT_MIN_MS);
            expected.chain(later).chain(held).min().unwrap_or(WAIT_MAX_MS) as i32
        }
    }

    /// Whether frames wait for the next turn only: that turn comes soon, with or without events.
    pub(crate) fn has_urgent_frames(&self) -> bool {
        self.company.is_urgent()
    }
}
