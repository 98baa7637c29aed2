//! A worker's part of a cluster: its connections are mirrored to other nodes, and it holds connections for others.
//!
//! - [`leg`]: a socket whose acknowledgements wait for the backups;
//! - [`owner`]: entries of our connections go out, what they make safe comes back;
//! - [`channel`]: the encrypted connection to one worker of another node;
//! - [`backup`]: entries of others come in;
//! - [`resume`]: connections whose owner is gone are continued here.
//!
//! Which node serves which bucket is decided elsewhere (`crate::cluster`) and told as roles. Without a cluster none of
//! this exists in a worker.

mod backup;
mod channel;
mod leg;
mod owner;
mod resume;

pub(crate) use leg::Gated;
pub(crate) use owner::Mirroring;
pub use resume::Round;

use super::slab::Key;
use crate::cluster::{Layout, Report};
use backup::Incoming;
use channel::Outgoing;
use evergate_bpf::{Flow, Gate, Lane, LaneId};
use evergate_cluster::{Bucket, NodeId, Role};
use evergate_mirror::{Holder, Office};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// What the agent tells a worker.
pub enum Instruction {
    /// Roles that changed.
    Roles(Vec<(Bucket, Role)>),
    /// The buckets are ours and on hold: continue their connections.
    TakeOver(Arc<Round>),
    /// Drop everything that is held or mirrored: this node has lost its place in the cluster.
    Void,
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

/// One worker's part of the cluster.
pub(crate) struct Cluster {
    pub(crate) gate: Arc<Gate>,
    pub(crate) lane: Lane,
    pub(crate) layout: Arc<Layout>,
    worker: usize,
    roles: Vec<Role>,
    outgoing: BTreeMap<(NodeId, usize), Outgoing>,
    incoming: Vec<Option<Incoming>>,
    holder: Holder,
    by_slot: HashMap<u32, (Key, End)>,
    /// Legs of which more may be acknowledged.
    dirty: Vec<(Key, End)>,
    /// Connections whose entries were acknowledged.
    acknowledged: Vec<Key>,
    /// Connections of which something is due in a moment.
    timed: Vec<Key>,
    woken: Vec<u32>,
    reports: Sender<Report>,
    prober: evergate_sys::Prober,
}

impl Cluster {
    /// To be called in the worker's thread.
    pub(crate) fn new(
        gate: Arc<Gate>,
        layout: Arc<Layout>,
        worker: usize,
        reports: Sender<Report>,
    ) -> anyhow::Result<Cluster> {
        let lane = gate.lane(LaneId::new(worker)?)?;
        Ok(Cluster {
            gate,
            lane,
            layout,
            worker,
            roles: vec![Role::Outside { owner: None }; usize::from(evergate_cluster::BUCKETS)],
            outgoing: BTreeMap::new(),
            incoming: Vec::new(),
            holder: Holder::default(),
            by_slot: HashMap::new(),
            dirty: Vec::new(),
            acknowledged: Vec::new(),
            timed: Vec::new(),
            woken: Vec::new(),
            reports,
            prober: evergate_sys::Prober::new()?,
        })
    }

    /// Whether connections to this address move between nodes.
    pub(crate) fn is_movable(&self, local: SocketAddr) -> bool {
        self.layout.addresses.contains(&local.ip())
    }

    pub(crate) fn bucket(&self, local: SocketAddr, remote: SocketAddr) -> Bucket {
        Bucket(self.gate.bucket(&Flow::new(local, remote)).number() as u16)
    }

    fn role(&self, bucket: Bucket) -> Role {
        self.roles.get(usize::from(bucket.0)).copied().unwrap_or(Role::Outside { owner: None })
    }

    /// Whether this node serves the bucket.
    pub(crate) fn owns(&self, bucket: Bucket) -> bool {
        matches!(self.role(bucket), Role::Owner { .. })
    }

    /// The worker that continues connections of the bucket, on every node.
    fn worker_of(&self, bucket: Bucket) -> usize {
        usize::from(bucket.0) % self.layout.workers
    }

    fn report(&self, report: Report) {
        // The agent ends after its workers.
        let _ = self.reports.send(report);
    }

    /// Milliseconds that the loop may sleep.
    pub(crate) fn wait_ms(&self) -> i32 {
        if !self.acknowledged.is_empty() || !self.dirty.is_empty() {
            0
        } else if self.timed.is_empty() {
            1000
        } else {
            1
        }
    }
}

/// The owner's term as the mirror frames carry it.
pub(crate) fn office(term: evergate_cluster::Term) -> Office {
    Office {
        epoch: term.view.epoch,
        proposer: term.view.proposer.0,
        incarnation: term.view.incarnation.0,
        moves: term.moves,
    }
}
