//! A worker's part of a cluster: its connections are mirrored to other nodes, and it holds connections for others.
//!
//! - [`leg`]: a socket whose acknowledgements wait for the backups;
//! - [`mirroring`]: what a mirrored connection is beside its state machine;
//! - [`owner`]: entries of our connections go out, what they make safe comes back;
//! - [`channel`]: the encrypted connection to one worker of another node;
//! - [`copies`]: which nodes hold what of our buckets, and what they have yet to be told;
//! - [`incoming`]: who may make a channel to this worker;
//! - [`backup`]: entries of others come in;
//! - [`ending`]: connections that are over, but whose clients may not know it yet;
//! - [`figures`]: how much is mirrored and held, and how far backups are behind;
//! - [`freeze`]: connections that move to another node on purpose become quiet here;
//! - [`asking`]: what the peers of connections to be continued have;
//! - [`resume`]: connections whose owner is gone, or has frozen them for us, get sockets here;
//! - [`take`]: one of them, from its copy to its sockets;
//! - [`awake`]: ... and go on;
//! - [`knocks`]: clients of those that speak before their turn;
//! - [`sessions`]: TLS 1.2 sessions that clients resume by their ids;
//! - [`tending`]: what falls due with time;
//! - [`told`]: what must be known elsewhere before they say anything;
//! - [`unheard`]: peers that go on saying nothing are told what is lost;
//! - [`work`]: what buckets cost.
//!
//! Which node serves which bucket is decided elsewhere (`crate::cluster`) and told as roles. Without a cluster none of
//! this exists in a worker.

mod activate;
mod backup;
mod connection;
mod early_segments;
mod failover;
mod gated_leg;
mod handoff;
mod load;
mod loss_notice;
mod owner;
mod placement;
mod probe;
mod recovering;
mod replication_channel;
mod replication_listener;
mod reprotect;
#[cfg(test)]
#[path = "../../../tests/worker/scene/mod.rs"]
mod scene;
mod session_ids;
mod stats;
mod teardown;
mod timers;

pub(crate) use connection::ConnectionReplication;
pub(crate) use gated_leg::GatedLeg;

use super::Worker;
use super::slab::{Key, Source};
use crate::agent::{FrozenConnections, Layout, Report, Reporter};
use backup::Incoming;
use evergate_base::Micros;
use evergate_bpf::{Events, Flow, PacketGate, Slot, WorkerPort, WorkerPortId};
use evergate_membership::{Bucket, HandoffId, MemberSet, NodeId, Role, Term};
use evergate_replication::{Entry, FrameBatcher, ReplicaStore};
use replication_channel::Outgoing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// When a pooled server connection is acknowledged that owes an ACK, and how much later so that several are at once: far
/// below a server's shortest retransmission time.
const POOLED_AFTER_MS: u64 = 5;
const POOLED_TOGETHER: Micros = Micros::from_ms(2);
/// Longest sleep of the loop, and the shortest before something that time brings and nobody waits for. A sleep that may end before the
/// kernel's next tick, which often is 4 ms away at most, programs a timer when it begins and again when an event ends it: 5 us each
/// on a virtual machine.
const WAIT_MAX_MS: u64 = 50;
const WAIT_MIN_MS: u64 = 4;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

/// What a worker needs to be one of a cluster's.
pub struct Joining {
    /// The node's gate.
    pub gate: Arc<PacketGate>,
    /// What does not change.
    pub layout: Arc<Layout>,
    /// Number of the worker.
    pub worker: usize,
    /// Where reports go.
    pub reports: Reporter,
}

/// One worker's part of the cluster.
pub(crate) struct Cluster {
    pub(crate) gate: Arc<PacketGate>,
    pub(crate) lane: WorkerPort,
    pub(crate) layout: Arc<Layout>,
    worker: usize,
    /// When the log was last told of connections under a configuration that is not here.
    generation_logged_at: Option<Micros>,
    /// The same of connections that could not be continued, by the steady clock in milliseconds.
    lost_logged_ms: Option<u64>,
    roles: Vec<Role>,
    outgoing: BTreeMap<(NodeId, usize), Outgoing>,
    /// Channels that broke: when to try again.
    broken: BTreeMap<(NodeId, usize), Micros>,
    /// ... and when they did.
    broken_at: BTreeMap<(NodeId, usize), Micros>,
    channels_at: Micros,
    /// When other nodes hear next what this one's clock shows.
    clock_at: Micros,
    incoming: Vec<Option<Incoming>>,
    newest: backup::Newest,
    /// No channels are taken for a moment.
    channels_paused: bool,
    holder: ReplicaStore,
    /// Take-overs that are not done, and nodes that must get the state of their buckets first.
    waiting: Vec<reprotect::Failover>,
    unreported: BTreeMap<(reprotect::Activity, Bucket), (u64, MemberSet)>,
    /// Buckets that this node has got, whose take-over is yet to come: this worker may hold connections of them.
    arriving: BTreeSet<Bucket>,
    /// Take-overs that have begun, and when the last one did.
    rounds: u64,
    taken_at: Option<Micros>,
    /// Copies of which some workers of the owner have said everything.
    complete: BTreeMap<Bucket, (Term, BTreeSet<u16>)>,
    /// Buckets of which something was given up, and when nothing of that can come any more.
    forgetting: BTreeMap<Bucket, Micros>,
    /// Mirrored connections of each bucket, and some that are gone.
    by_bucket: Vec<Vec<Key>>,
    /// Whose flow a slot of the gate is, by the slot's number.
    by_slot: Vec<Option<Key>>,
    /// Connections that are over here, oldest first.
    endings: VecDeque<teardown::Ending>,
    /// Slots of connections that are over, whose clients wait for the ACK of their end: when it leaves at the latest, and the
    /// sequence number after our own end.
    final_acks: Vec<(Micros, Slot, u32)>,
    /// Legs of which more may be acknowledged.
    dirty: Vec<(Key, End)>,
    /// Server connections that went to the pool: when each is looked at, for the next request may have taken along the ACK
    /// that it owed.
    pooled: VecDeque<(Micros, Key)>,
    /// Connections whose entries were acknowledged.
    acknowledged: Vec<Key>,
    /// Buckets that a backup is not waited for any more: what waited for it goes on.
    unawaited: BTreeSet<Bucket>,
    /// Peers that may not notice by themselves what is lost.
    loss_notices: Vec<loss_notice::LossNotice>,
    /// Connections of which something is due in a moment, in a while, or at last, and when each is looked at.
    timed: VecDeque<(Micros, Key)>,
    timed_later: VecDeque<(Micros, Key)>,
    timed_at_last: VecDeque<(Micros, Key)>,
    /// What the gate said, and connections without a socket whose clients have spoken.
    events: Events,
    early: early_segments::EarlySegments,
    news: session_ids::News,
    census: stats::Census,
    /// Frames that wait for others.
    company: FrameBatcher,
    /// Memory for the entries of one call.
    entries: Vec<Entry>,
    /// Buckets that let nobody new in, to become quiet then.
    closing: BTreeMap<Bucket, handoff::Closing>,
    /// Buckets that are to become quiet, for which move, and in which term.
    freezing: BTreeMap<Bucket, (HandoffId, Term)>,
    /// Those that are quiet, and were reported: the next owner may go on at any moment.
    frozen: BTreeSet<Bucket>,
    /// Connections of buckets whose moves were called off: something may have happened to them meanwhile.
    thawed: Vec<Key>,
    /// When the log last told of a channel that was refused.
    refused_at: Option<Micros>,
    /// Some froze just now: what the kernel has accepted of them is still in its queues.
    unaccepted: bool,
    /// What other workers had of them when they became quiet, where this one holds their copies.
    kept: BTreeMap<Bucket, Vec<Arc<FrozenConnections>>>,
    /// Backups that the agent was told are complete, while our role does not say so yet.
    named: BTreeSet<(Bucket, NodeId)>,
    /// What our buckets cost since the agent was told last.
    work: load::Work,
    reports: Reporter,
    prober: evergate_sys::Prober,
}

impl Worker {
    /// Becomes one of a cluster's workers, in its own thread.
    pub(super) fn join_cluster(&mut self) -> anyhow::Result<()> {
        let Some(joining) = self.joining.take() else { return Ok(()) };
        let cluster = Cluster::new(joining)?;
        self.epoll.add_input(cluster.lane.events_fd(), Source::Lane.token())?;
        if let Some(listener) = cluster.replication_listener() {
            self.epoll.add_input(listener, Source::Channels.token())?;
        }
        self.cluster = Some(Box::new(cluster));
        Ok(())
    }
}

impl Cluster {
    fn new(Joining { gate, layout, worker, reports }: Joining) -> anyhow::Result<Cluster> {
        let lane = gate.worker_port(WorkerPortId::new(worker)?)?;
        Ok(Cluster {
            gate,
            lane,
            layout,
            worker,
            generation_logged_at: None,
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
            events: Events::default(),
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
            kept: BTreeMap::new(),
            named: BTreeSet::new(),
            work: load::Work::default(),
            reports,
            prober: evergate_sys::Prober::new()?,
        })
    }

    /// Whether connections to this address move between nodes.
    pub(crate) fn is_movable(&self, local: SocketAddr) -> bool {
        self.layout.addresses.contains(&local.ip())
    }

    /// Whether a client is of a bucket that this node does not serve.
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

    /// Starts connecting to a server, from a port that belongs to the bucket.
    pub(crate) fn connect_server(&self, bucket: Bucket, to: SocketAddr) -> io::Result<OwnedFd> {
        let missing = |what| io::Error::new(io::ErrorKind::AddrNotAvailable, what);
        let from = self.layout.source_for(to).ok_or_else(|| missing("no server_source of this family"))?;
        let ports = self.gate.ports().of(bucket).ok_or_else(|| missing("no such bucket"))?;
        if let Some(own) = self.layout.share_of(&ports) {
            match evergate_sys::connect_from(from, own, to) {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {} // all in use: any of the bucket
                done => return done,
            }
        }
        let count = ports.clone().count();
        evergate_sys::connect_from(from, ports, to).map_err(|error| match error.kind() {
            io::ErrorKind::AddrNotAvailable => io::Error::new(
                error.kind(),
                format!(
                    "all {count} ports that its bucket has for connections to this server are in use, some of them for a \
                     minute after their end: raise cluster.ports_per_bucket"
                ),
            ),
            _ => error,
        })
    }

    /// The worker that continues connections of the bucket, on every node.
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
        let at_once = !self.acknowledged.is_empty() || !self.dirty.is_empty();
        if at_once || !self.unawaited.is_empty() || self.has_idle() || self.has_news() {
            0
        } else if self.company.is_expected() || !self.timed.is_empty() || !self.closing.is_empty() {
            1
        } else {
            let wait_ms = |due: Micros, least| due.since(now).0.div_ceil(1000).clamp(least, WAIT_MAX_MS);
            // Peers say what they said again when their last ACK is late: a probe follows after 8 ms (RFC 8985, 7).
            let pooled = self.pooled.front().map(|(due, _)| *due + POOLED_TOGETHER);
            let final_acks = self.final_acks.first().map(|(due, ..)| *due);
            let expected = pooled.into_iter().chain(final_acks).map(|due| wait_ms(due, 1));
            let later = self.timed_later.front().map(|(due, _)| wait_ms(*due, WAIT_MIN_MS));
            let held = self.company.is_waiting().then_some(WAIT_MIN_MS);
            expected.chain(later).chain(held).min().unwrap_or(WAIT_MAX_MS) as i32
        }
    }

    /// Frames wait for the next turn only: it comes soon, whether there are events or not.
    pub(crate) fn has_urgent_frames(&self) -> bool {
        self.company.is_urgent()
    }
}
