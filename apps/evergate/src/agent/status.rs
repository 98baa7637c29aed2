//! The cluster's status from this node's view, as the admin API returns it.
//!
//! The agent publishes a [`ClusterStatus`] a few times a second and after every event. Readers never block the agent.

use evergate_agent::FailoverStatus;
use evergate_membership::Rejected;
use evergate_worker::TimesStatus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /v1/cluster`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's name in the configuration.
    pub name: String,
    /// Number of this node.
    pub node: u8,
    /// `listening`, `active`, `fenced` or `left`.
    pub phase: String,
    /// Time until the node joins again after it lost its membership; each loss in a row lengthens it.
    #[serde(default)]
    pub rejoin_delay_ms: Option<u64>,
    /// The network that this node is cut off from while other nodes use it, if any: the node joins when it is back
    /// there.
    #[serde(default)]
    pub cut_off: Option<CutOff>,
    /// Whether this node hands its buckets off.
    pub draining: bool,
    /// Whether it has handed off all of them.
    pub drained: bool,
    /// `witness` or `majority`.
    pub mode: String,
    /// `bare_metal` or `virtual_machine`: the timing that this node runs with.
    #[serde(default)]
    pub timing: String,
    /// Source of the timing: `cluster.timing`, or with `auto` the sign of the machine.
    #[serde(default)]
    pub timing_reason: String,
    /// The view in force here, if any.
    pub view: Option<ViewStatus>,
    /// How long the node has waited for the next view, or the nodes have disagreed about this one.
    #[serde(default)]
    pub waits_for_view_ms: Option<u64>,
    /// Numbers of the nodes whose promise is missing for the view that this node proposes.
    #[serde(default)]
    pub waits_for: Vec<u8>,
    /// All configured nodes.
    pub nodes: Vec<NodeStatus>,
    /// The 1024 buckets by this node's role.
    pub buckets: BucketStatus,
    /// How long the node has not been active; null while it is.
    #[serde(default)]
    pub inactive_ms: Option<u64>,
    /// Mode `majority`: how many nodes are reachable, and needed.
    #[serde(default)]
    pub quorum: Option<Quorum>,
    /// Networks on which frames for the virtual MAC do not arrive, as probes show.
    #[serde(default)]
    pub unreachable_addresses: Vec<UnreachableAddress>,
    /// The witnesses, which vouch for this node's network.
    pub witnesses: Vec<WitnessStatus>,
    /// Connections with replicas elsewhere, and replicas of other nodes here, a second old at most.
    #[serde(default)]
    pub replication: ReplicationStatus,
    /// How long connections of failed nodes stood still before they resumed here.
    #[serde(default)]
    pub stalls: StallStatus,
    /// Loss notices to peers about segments that they had sent to a silent node, so that they send them again at once.
    #[serde(default)]
    pub loss_notices: u64,
    /// Loss notices to peers that did not send again by themselves: servers of slow clients.
    #[serde(default)]
    pub loss_notices_late: u64,
    /// Counters since the start.
    pub counts: ClusterCounts,
    /// The last failovers and handoffs, newest last.
    pub failovers: Vec<FailoverStatus>,
    /// Rejected datagrams by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Packets at the gate by outcome.
    pub gate: BTreeMap<String, u64>,
    /// TCP connections of clients and to servers that the gate tracks, counted every 10 s.
    #[serde(default)]
    pub flows: u64,
    /// Bound on `flows`.
    #[serde(default)]
    pub flows_max: u64,
}

/// Time for which a node that is not active may become active again at once.
const MOMENT_MS: u64 = 1000;

impl ClusterStatus {
    /// Whether there are nodes that accept this node's buckets. A fenced node can hand nothing off, but may be fenced
    /// for a moment only.
    pub fn has_takers(&self) -> bool {
        let acts = self.inactive_ms.is_none_or(|ms| ms < MOMENT_MS);
        acts && self
            .nodes
            .iter()
            .any(|node| node.member && node.number != self.node && node.draining != Some(true))
    }

    /// Why the other nodes could not continue without this node now, if so: without a member they need a witness, or
    /// enough members.
    pub fn must_stay(&self) -> Option<String> {
        if let Some(Quorum { needed, .. }) = self.quorum {
            let others = self.nodes.iter().filter(|node| node.member && node.number != self.node).count();
            let all = self.nodes.len();
            let serves = self.phase == "active" && others > 0 && others < needed;
            return serves.then(|| {
                format!("only {others} of {all} nodes would be left, of which {needed} are needed: no node serves \
                    once this node has ended")
            });
        }
        let others = self.nodes.iter().filter(|node| node.member && node.number != self.node);
        let lacking: Vec<String> = others
            .filter(|node| node.witnessed == Some(false))
            .map(|node| format!("node {}", node.number))
            .collect();
        (!lacking.is_empty()).then(|| {
            let whose = lacking.join(" and ");
            format!("no witness answers {whose}, and without one no node serves once this node has ended")
        })
    }

    /// Why no client should be sent to this node now, if so: its phase, or that it drains.
    pub fn serves_none(&self) -> Option<String> {
        match self.phase.as_str() {
            "active" => self.draining.then(|| "draining".to_owned()),
            other => Some(other.to_owned()),
        }
    }
}

/// Nodes of a majority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quorum {
    /// Reachable nodes, this one included.
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
    /// What the probes show.
    pub why: String,
}

/// A network that a node is cut off from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOff {
    /// `inside` or `outside`.
    pub network: String,
    /// What this node detects of it.
    pub why: String,
}

/// A view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewStatus {
    /// Number of the view.
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
    /// Inside address.
    pub inside: String,
    /// Outside address.
    pub outside: String,
    /// Whether it is a member of the view.
    pub member: bool,
    /// Time since the last heartbeat over the inside; null for never, and for this node.
    pub silent_inside_ms: Option<u64>,
    /// Time since the last heartbeat over the outside; null for never, and for this node.
    pub silent_outside_ms: Option<u64>,
    /// Networks that the node reports as lost: `inside`, `outside`. Empty while it is silent.
    #[serde(default)]
    pub lost: Vec<String>,
    /// Whether a witness vouches for the node, as it reports; null with mode `majority`, and while it is silent.
    #[serde(default)]
    pub witnessed: Option<bool>,
    /// `bare_metal` or `virtual_machine`: the timing that the node runs with; null while it is silent.
    #[serde(default)]
    pub timing: Option<String>,
    /// Whether the node hands its buckets off and accepts none, as it reports; null while it is silent.
    #[serde(default)]
    pub draining: Option<bool>,
    /// Load of its buckets, in microseconds of processor time per second; null while it is silent.
    #[serde(default)]
    pub load: Option<u64>,
    /// Its newest configuration generation, as it reports; null while it is silent.
    #[serde(default)]
    pub generation: Option<u64>,
    /// Whether the node has this node's newest generation too, and can continue requests that are under way here; null
    /// while it is silent.
    #[serde(default)]
    pub config_compatible: Option<bool>,
}

/// Buckets by this node's role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketStatus {
    /// Served here.
    pub owned: u64,
    /// Owned buckets with a backup that catches up.
    pub syncing: u64,
    /// Owned buckets without a complete replica elsewhere.
    pub without_backup: u64,
    /// Owned buckets after a failover or handoff whose connections have not resumed yet.
    pub recovering: u64,
    /// Complete replicas here.
    pub backup: u64,
    /// Replicas here that catch up.
    pub catching_up: u64,
    /// Buckets without an owner, as far as this node knows.
    pub unowned: u64,
}

/// Replication from and to this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicationStatus {
    /// Connections on the shared addresses that are served here.
    pub connections: u64,
    /// Those with a complete replica at another node.
    pub replicated: u64,
    /// Connections of other nodes with a replica here, complete or not.
    pub replicas: u64,
    /// Backups of connections here, in the order of their numbers.
    pub backups: Vec<LagStatus>,
}

/// Lag of a backup behind its owner, over all channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LagStatus {
    /// Number of the backup.
    pub node: u8,
    /// Frames that the backup has not acknowledged.
    pub frames: u64,
    /// Bytes of unsent frames.
    pub unsent_bytes: u64,
    /// Longest time from a frame to its acknowledgement among the frames timed in a second, in microseconds. A frame
    /// that is being timed counts with its time so far.
    pub behind_us: u64,
}

/// Stalls of connections of failed nodes: from the order to the worker until each connection resumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallStatus {
    /// Connections with data in flight.
    pub active: TimesStatus,
    /// Idle connections.
    pub idle: TimesStatus,
}

/// One witness.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessStatus {
    /// Its address.
    pub address: String,
    /// `inside` or `outside`, by this node's routes; null while none leads there over either interface.
    #[serde(default)]
    pub network: Option<String>,
    /// Time since its last answer; null for never.
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
    /// Failovers of buckets whose owner died.
    pub failovers: u64,
    /// Buckets of planned handoffs to this node.
    pub handoffs: u64,
    /// Connections that continued here after a failover or handoff.
    pub connections_continued: u64,
    /// Connections that could not continue.
    pub connections_lost: u64,
    /// Replication channels that broke or were too slow.
    pub channels_lost: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams that could not be sent.
    pub datagrams_unsent: u64,
    /// Longest delay of the agent's wake-ups, in microseconds.
    pub late_us_max: u64,
    /// Longest turn of the agent, in microseconds.
    pub turn_us_max: u64,
}

/// Rejected datagrams by reason: each reason is there, so that a reader sees zero instead of a missing name.
pub(super) fn rejected_counts(count: impl Fn(Rejected) -> u64, unlisted: u64) -> BTreeMap<String, u64> {
    let by_reason = Rejected::ALL.map(|reason| (name_of(reason).to_owned(), count(reason)));
    by_reason.into_iter().chain([("unlisted_address".to_owned(), unlisted)]).collect()
}

fn name_of(reason: Rejected) -> &'static str {
    match reason {
        Rejected::Malformed => "malformed",
        Rejected::Version => "version",
        Rejected::UnknownKey => "unknown_key",
        Rejected::Forged => "forged",
        Rejected::WrongCluster => "wrong_cluster",
        Rejected::UnknownSender => "unknown_sender",
        Rejected::WrongReceiver => "wrong_receiver",
        Rejected::StaleSender => "stale_sender",
        Rejected::Duplicate => "duplicate",
        Rejected::TooOld => "too_old",
        Rejected::Unexpected => "unexpected",
    }
}
