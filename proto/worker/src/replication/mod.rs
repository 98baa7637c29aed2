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

mod ack_timers;
mod activate;
mod backup;
mod channel_table;
mod connection;
mod connection_index;
mod early_segments;
mod failover;
mod failovers;
mod gated_leg;
mod handoff;
mod handoffs;
mod inspect;
mod load;
mod loss_notice;
mod outgoing;
mod owner;
mod placement;
mod probe;
mod recovering;
mod replicas;
mod replication_listener;
mod reprotect;
mod session_ids;
mod stats;
mod teardown;
mod timers;

pub(crate) use connection::ConnectionReplication;
pub(crate) use gated_leg::GatedLeg;
pub use inspect::LegInUse;

use crate::host::{Channels, Gate, Host, Poll, Reports};
use crate::layout::Layout;
use crate::report::Report;
use crate::slab::{Key, Source};
use crate::worker::Worker;
use ack_timers::AckTimers;
use channel_table::ChannelTable;
use connection_index::ConnectionIndex;
use evergate_base::Micros;
use evergate_base::net::{Flow, GateEvents};
use evergate_membership::{Bucket, Role};
use evergate_replication::{Entry, FrameBatcher};
use failovers::Failovers;
use handoffs::Handoffs;
use replicas::Replicas;
use stats::Figures;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use teardown::Teardowns;

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

/// One worker's part of the cluster. It has more fields than most types: each but the last eight is a component with a
/// file of its own.
pub(crate) struct Cluster<H: Host> {
    pub(crate) channels: ChannelTable<H>,
    pub(crate) replicas: Replicas,
    pub(crate) failovers: Failovers<H>,
    pub(crate) handoffs: Handoffs,
    timers: AckTimers,
    teardowns: Teardowns<H>,
    index: ConnectionIndex,
    news: session_ids::News,
    figures: Figures,
    /// Frames waiting to leave together.
    batcher: FrameBatcher,
    /// Events of the gate that are not handled yet.
    events: GateEvents,
    /// Memory for the entries of one call.
    entries: Vec<Entry>,
    roles: Vec<Role>,
    host: H,
    transport: H::Channels,
    pub(crate) gate: H::Gate,
    pub(crate) layout: Arc<Layout>,
    worker: usize,
    reports: Box<dyn Reports>,
}

impl<H: Host> Worker<H> {
    /// Makes this worker, in its own thread, a member of the cluster.
    pub(crate) fn join_cluster(&mut self, joining: Joining<H>) -> io::Result<()> {
        let events = joining.events;
        let cluster = Cluster::new(self.host.clone(), joining);
        self.poll.add_input(events, Source::Lane.token())?;
        if let Some(listener) = cluster.transport.listener() {
            self.poll.add_input(listener, Source::Channels.token())?;
        }
        self.cluster = Some(Box::new(cluster));
        Ok(())
    }
}

/// All so many ports of a bucket, from all source addresses, are in use for one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFreePort(usize);

impl NoFreePort {
    /// Whether this is why a dial failed.
    pub(crate) fn is_cause(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|cause| cause.is::<NoFreePort>())
    }
}

impl std::fmt::Display for NoFreePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "all {} ports of the bucket for connections to this server are in use, some of them for a minute after \
             their end: add addresses to cluster.server_source, or raise cluster.ports_per_bucket",
            self.0
        )
    }
}

impl std::error::Error for NoFreePort {}

impl<H: Host> Cluster<H> {
    fn new(host: H, joining: Joining<H>) -> Cluster<H> {
        let Joining { gate, channels: transport, layout, worker, reports, .. } = joining;
        Cluster {
            channels: ChannelTable::default(),
            replicas: Replicas::default(),
            failovers: Failovers::default(),
            handoffs: Handoffs::default(),
            timers: AckTimers::default(),
            teardowns: Teardowns::default(),
            index: ConnectionIndex::default(),
            news: session_ids::News::default(),
            figures: Figures::default(),
            batcher: FrameBatcher::default(),
            events: GateEvents::default(),
            entries: Vec::new(),
            roles: vec![Role::NOTHING; usize::from(evergate_membership::BUCKETS)],
            host,
            transport,
            gate,
            layout,
            worker,
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

    /// Starts connecting to a server, from a port of the bucket. Without a free port the error is [`NoFreePort`].
    pub(crate) fn connect_server(&self, bucket: Bucket, to: SocketAddr) -> io::Result<H::Socket> {
        let missing = |what| io::Error::new(io::ErrorKind::AddrNotAvailable, what);
        let ports = self.gate.ports(bucket).ok_or_else(|| missing("no such bucket"))?;
        // This node's share of all addresses first, then any port of the bucket.
        for range in self.layout.share_of(&ports).into_iter().chain([ports.clone()]) {
            for from in self.layout.sources_for(to, bucket) {
                match self.host.connect_from(from, range.clone(), to) {
                    Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
                    done => return done,
                }
            }
        }
        match ports.len() * self.layout.sources_for(to, bucket).count() {
            0 => Err(missing("no server_source of this family")),
            count => Err(io::Error::new(io::ErrorKind::AddrNotAvailable, NoFreePort(count))),
        }
    }

    /// The worker that recovers connections of the bucket, on every node.
    fn worker_of(&self, bucket: Bucket) -> usize {
        usize::from(bucket.0) % self.layout.workers
    }

    fn report(&self, report: Report) {
        self.reports.send(report);
    }

    /// Milliseconds that the loop may sleep.
    pub(crate) fn wait_ms(&self, now: Micros) -> i32 {
        let idle = self.failovers.is_probing() || self.failovers.has_idle();
        if self.timers.is_due_now() || idle || self.has_news() {
            0
        } else if self.batcher.is_expected()
            || !self.timers.short.is_empty()
            || !self.handoffs.closing.is_empty()
        {
            1
        } else {
            let wait_ms = |due: Micros, least| due.since(now).0.div_ceil(1000).clamp(least, WAIT_MAX_MS);
            // A peer whose last ACK is late sends a probe with the same data after 8 ms (RFC 8985, 7).
            let pooled = self.timers.pooled.front().map(|(due, _)| *due + POOLED_TOGETHER);
            let final_acks = self.teardowns.final_acks.first().map(|(due, ..)| *due);
            let expected = pooled.into_iter().chain(final_acks).map(|due| wait_ms(due, 1));
            let later = self.timers.medium.front().map(|(due, _)| wait_ms(*due, WAIT_MIN_MS));
            let held = self.batcher.is_waiting().then_some(WAIT_MIN_MS);
            expected.chain(later).chain(held).min().unwrap_or(WAIT_MAX_MS) as i32
        }
    }

    /// Whether frames wait for the next turn only: that turn comes soon, with or without events.
    pub(crate) fn has_urgent_frames(&self) -> bool {
        self.batcher.is_urgent()
    }
}
