//! What the cluster looks like from this node: what the admin API answers.
//!
//! The agent publishes a [`ClusterStatus`] a few times a second and after every event; readers never make it wait.

use crate::latency_histogram::TimesStatus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Take-overs that are remembered.
pub const FAILOVERS_MAX: usize = 16;

/// `GET /v1/cluster`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Number of this node.
    pub node: u8,
    /// `listening`, `active`, `fenced` or `left`.
    pub phase: String,
    /// How long it waits before it joins again, because it lost its place lately; the longer the more often.
    #[serde(default)]
    pub rejoin_delay_ms: Option<u64>,
    /// The network that it is cut off from while others use it, if any: it joins when it is back there.
    #[serde(default)]
    pub cut_off: Option<CutOff>,
    /// Whether this node gives its buckets away.
    pub draining: bool,
    /// Whether it has none left.
    pub drained: bool,
    /// `witness` or `majority`.
    pub mode: String,
    /// `bare_metal` or `virtual_machine`: the times that this node runs with.
    #[serde(default)]
    pub timing: String,
    /// What decided that: `cluster.timing`, or with `auto` the sign of the machine.
    #[serde(default)]
    pub timing_reason: String,
    /// The view in force here, if any.
    pub view: Option<ViewStatus>,
    /// For how long the next view has been waited for, or the nodes have disagreed about this one.
    #[serde(default)]
    pub waits_for_view_ms: Option<u64>,
    /// Numbers of the nodes whose word is missing for it, where this node proposes it.
    #[serde(default)]
    pub waits_for: Vec<u8>,
    /// All configured nodes.
    pub nodes: Vec<NodeStatus>,
    /// What the 1024 buckets are to this node.
    pub buckets: BucketStatus,
    /// For how long it has not been active; null while it is.
    #[serde(default)]
    pub inactive_ms: Option<u64>,
    /// Mode `majority`: how many nodes are heard, and needed.
    #[serde(default)]
    pub quorum: Option<Quorum>,
    /// Networks on which frames for the virtual MAC do not arrive where they should, as probes show.
    #[serde(default)]
    pub unreachable_addresses: Vec<UnreachableAddress>,
    /// Who vouches for this node's network.
    pub witnesses: Vec<WitnessStatus>,
    /// Connections with copies elsewhere, and copies of others here, a second old at most.
    #[serde(default)]
    pub replication: ReplicationStatus,
    /// How long connections of nodes that died stood still before they went on here.
    #[serde(default)]
    pub stalls: StallStatus,
    /// Peers that were told what they had sent to a node that was silent, so that they send it again at once.
    #[serde(default)]
    pub loss_notices: u64,
    /// Peers that were told because they did not send it again by themselves: servers of slow clients.
    #[serde(default)]
    pub loss_notices_late: u64,
    /// What has happened since the start.
    pub counts: ClusterCounts,
    /// The last take-overs, newest last.
    pub failovers: Vec<FailoverStatus>,
    /// Datagrams that were dropped, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// What happened to packets at the gate.
    pub gate: BTreeMap<String, u64>,
    /// TCP connections of clients and to servers that the gate carries, counted every 10 s.
    #[serde(default)]
    pub flows: u64,
    /// How many it can carry.
    #[serde(default)]
    pub flows_max: u64,
}

/// A node that is not active for less than this may be so again at once.
const MOMENT_MS: u64 = 1000;

impl ClusterStatus {
    /// Whether there are other nodes that take what this one gives away. A node that is fenced can give nothing away, but may be
    /// for a moment only.
    pub fn has_takers(&self) -> bool {
        let acts = self.inactive_ms.is_none_or(|ms| ms < MOMENT_MS);
        acts && self
            .nodes
            .iter()
            .any(|node| node.member && node.number != self.node && node.draining != Some(true))
    }

    /// Why the others could not go on without this node now, if so: who is no longer one of all nodes needs a witness, or
    /// enough others.
    pub fn must_stay(&self) -> Option<String> {
        if let Some(Quorum { needed, .. }) = self.quorum {
            let others = self.nodes.iter().filter(|node| node.member && node.number != self.node).count();
            let all = self.nodes.len();
            let serves = self.phase == "active" && others > 0 && others < needed;
            return serves.then(|| {
                format!("only {others} of {all} nodes would be left, of which {needed} are needed: nobody goes on there once this node has ended")
            });
        }
        let others = self.nodes.iter().filter(|node| node.member && node.number != self.node);
        let lacking: Vec<String> = others
            .filter(|node| node.witnessed == Some(false))
            .map(|node| format!("node {}", node.number))
            .collect();
        (!lacking.is_empty()).then(|| {
            let who = lacking.join(" and ");
            format!("no witness answers {who}, without which nobody goes on there once this node has ended")
        })
    }

    /// Why nobody should be sent to this node now, if so: its standing, or that it gives everything away.
    pub fn serves_none(&self) -> Option<String> {
        match self.phase.as_str() {
            "active" => self.draining.then(|| "draining".to_owned()),
            other => Some(other.to_owned()),
        }
    }
}

/// What a majority is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quorum {
    /// Nodes that are heard, this one included.
    pub reachable: usize,
    /// More than half of all nodes.
    pub needed: usize,
}

/// A network on which the virtual MAC does not work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachableAddress {
    /// `inside` or `outside`.
    pub network: String,
    /// Its interface.
    pub interface: String,
    /// The shared address that is probed there.
    pub address: String,
    /// How that shows.
    pub why: String,
}

/// A network that a node is cut off from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOff {
    /// `inside` or `outside`.
    pub network: String,
    /// How that shows.
    pub why: String,
}

/// A view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewStatus {
    /// Counts views.
    pub epoch: u64,
    /// Number of the node that proposed it.
    pub proposer: u8,
    /// Numbers of its members.
    pub members: Vec<u8>,
    /// How long it has been in force here.
    pub age_ms: u64,
}

/// One configured node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its number.
    pub number: u8,
    /// Its address on the inside.
    pub inside: String,
    /// Its address on the outside.
    pub outside: String,
    /// Whether it is a member of the view.
    pub member: bool,
    /// How long ago it was heard on the inside; null for never, and for this node.
    pub silent_inside_ms: Option<u64>,
    /// The same on the outside.
    pub silent_outside_ms: Option<u64>,
    /// Networks that do not work as far as it can see, as it says: `inside`, `outside`. Empty while it is not heard.
    #[serde(default)]
    pub lost: Vec<String>,
    /// Whether a witness vouches for it, as it says; null with mode `majority`, and while it is not heard.
    #[serde(default)]
    pub witnessed: Option<bool>,
    /// `bare_metal` or `virtual_machine`: the times that it runs with; null while it is silent.
    #[serde(default)]
    pub timing: Option<String>,
    /// Whether it gives its buckets away and takes none, as it says; null while it is not heard.
    #[serde(default)]
    pub draining: Option<bool>,
    /// The work that its buckets make, in microseconds of processor time a second; null while it is not heard.
    #[serde(default)]
    pub load: Option<u64>,
    /// Its newest generation, as it says; null while it is not heard.
    #[serde(default)]
    pub generation: Option<u64>,
    /// Whether it has this node's newest generation too, and can go on with requests that are under way here; null while it is
    /// not heard.
    #[serde(default)]
    pub config_compatible: Option<bool>,
}

/// Buckets by what they are to this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketStatus {
    /// Served here.
    pub owned: u64,
    /// Of those: being copied to one more backup.
    pub syncing: u64,
    /// Of those: without any complete copy elsewhere.
    pub without_backup: u64,
    /// Of those: taken over, and not yet going on.
    pub recovering: u64,
    /// Copied here completely.
    pub backup: u64,
    /// Being copied here.
    pub catching_up: u64,
    /// Served by nobody, as far as this node knows.
    pub unowned: u64,
}

/// What is mirrored from and to this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicationStatus {
    /// Connections on the shared addresses that are served here.
    pub connections: u64,
    /// Of those: with a complete copy at another node.
    pub replicated: u64,
    /// Connections of other nodes that this one holds copies of, complete or not.
    pub replicas: u64,
    /// Nodes that copies go to, in the order of their numbers.
    pub backups: Vec<LagStatus>,
}

/// How far a backup is behind what was said to it, over all channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LagStatus {
    /// Its number.
    pub node: u8,
    /// Frames said that it has not acknowledged.
    pub frames: u64,
    /// Bytes of frames that wait to be sent.
    pub unsent_bytes: u64,
    /// The longest that it took to acknowledge one of the frames that were timed in a second, or takes for one that is being timed,
    /// in microseconds.
    pub behind_us: u64,
}

/// Stalls of connections that were taken over from nodes that died: from when a worker is told that they are this node's until
/// each goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallStatus {
    /// Of connections with something on its way to somebody.
    pub active: TimesStatus,
    /// Of those that rested.
    pub idle: TimesStatus,
}

/// One witness.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessStatus {
    /// Its address.
    pub address: String,
    /// `inside` or `outside`, as this node's routes say; null while none leads there over either interface.
    #[serde(default)]
    pub network: Option<String>,
    /// How long ago it answered last; null for never.
    pub answered_ms: Option<u64>,
    /// Answers so far.
    pub answers: u64,
}

/// Counters of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterCounts {
    /// Views installed.
    pub views: u64,
    /// Times that this node was fenced.
    pub fenced: u64,
    /// Times that it dropped all its state.
    pub state_dropped: u64,
    /// Take-overs of buckets whose owner died.
    pub failovers: u64,
    /// Buckets that moved here by plan.
    pub handoffs: u64,
    /// Connections that were continued here.
    pub connections_continued: u64,
    /// Connections that could not be.
    pub connections_lost: u64,
    /// Mirror channels that broke or were too slow.
    pub channels_lost: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams that could not be sent.
    pub datagrams_unsent: u64,
    /// How late the agent woke up at worst, in microseconds.
    pub late_us_max: u64,
    /// How long its longest turn took, in microseconds.
    pub turn_us_max: u64,
}

/// One take-over or hand-over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailoverStatus {
    /// When it began, in seconds since 1970.
    pub began_unix_s: u64,
    /// Whether a worker is still at it.
    pub running: bool,
    /// Buckets whose owner died.
    pub failed_over: u64,
    /// Buckets that were handed over by plan.
    pub handed_off: u64,
    /// Connections that go on.
    pub connections: u64,
    /// Connections that could not be continued.
    pub lost: u64,
    /// How long nothing had been heard of the node that died when this began, in milliseconds; 0 without one. Of several: the longest.
    #[serde(default)]
    pub silent_ms: f64,
    /// Until the last worker was done, in milliseconds.
    pub took_ms: f64,
    /// The slowest worker's own figure, in milliseconds.
    pub worker_ms: f64,
}
