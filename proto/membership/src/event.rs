//! Outputs of a node for its shell: roles of buckets, leases for the gate, and the phase of the node.
//!
//! Roles are reported as values, not as steps. A shell that polls late receives the newest role of a bucket once, and
//! reconciles. So the number of buckets bounds the queue of events.

use evergate_base::Micros;

use crate::{Bucket, DataEpoch, MemberSet, Members, NODES_MAX, NodeId, Path, Term, ViewId};

/// An output that the shell must act on. Events are polled, and acted on, before transmits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// All state was dropped: close the gate, drop replicas and connections. Precedes any role gained later.
    StateDropped,
    /// A view was installed: all leases begin again.
    Installed {
        /// The view.
        view: ViewId,
        /// Its members.
        members: Members,
    },
    /// The role of this node for a bucket changed.
    Role {
        /// Which bucket.
        bucket: Bucket,
        /// The role now.
        role: Role,
    },
    /// The node's phase changed.
    Phase(NodePhase),
    /// The drain is complete: this node owns no bucket.
    Drained,
}

/// A node's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodePhase {
    /// Without state. The node waits to join or to bootstrap a cluster.
    Listening,
    /// Member of a view, with valid leases.
    Active,
    /// Member of a view without valid leases: the gate is closed, the state is kept.
    Fenced,
    /// Left the cluster; final.
    Left,
}

/// The way in which an owner obtained a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnershipStart {
    /// The bucket begins empty, as a new data epoch: unknown connections are reset.
    Empty,
    /// This node owned it in the previous view, and continues.
    Unchanged,
    /// The previous owner failed: hold the bucket and recover its connections from the own replica.
    Failover,
    /// The previous owner moved it here and is frozen: resume from the own replica.
    Handoff,
}

/// This node's role for a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// No role: drop frames of terms before `since`. Packets go to `owner`, which may already send frames of a later
    /// term to this node: a frame can arrive before the operation that lists the node.
    Outside {
        /// The owner, if known.
        owner: Option<NodeId>,
        /// The first term whose frames count.
        since: Term,
    },
    /// Keeps a replica, which the owner fills. Until it is in sync, frames of earlier terms are to be dropped.
    Backup {
        /// The term whose frames count.
        term: Term,
        /// The owner.
        owner: NodeId,
        /// The data epoch of the replica.
        data_epoch: DataEpoch,
        /// Whether the replica can be resumed. Until then it catches up.
        in_sync: bool,
    },
    /// Serves the bucket.
    Owner {
        /// The ownership period; every replication frame of the bucket belongs to it.
        term: Term,
        /// The data epoch of the bucket.
        data_epoch: DataEpoch,
        /// How the ownership began.
        begin: OwnershipStart,
        /// Backups that must acknowledge an entry before it is committed. Empty in a valid view means degraded:
        /// acknowledgements may be released.
        required: MemberSet,
        /// Backups to fill with snapshot and log; then call [`crate::Node::handle_caught_up`].
        syncing: MemberSet,
        /// Freeze the bucket for this move, then call [`crate::Node::handle_frozen`].
        freeze_for: Option<HandoffId>,
    },
}

impl Role {
    /// No role, no known owner: the role before the first view.
    pub const NOTHING: Role = Role::Outside { owner: None, since: Term { view: ViewId::NONE, moves: 0 } };
}

/// One attempt to move a bucket to another node. It may be cancelled, and another attempt begun in the same term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandoffId {
    /// The next owner.
    pub to: NodeId,
    /// Counts the attempts of a term.
    pub number: u32,
}

/// The leases, as the gate compares them with the node's clock. A bucket may emit while the clock is below `own` and
/// below the expiry of every backup that [`crate::Node::gate_listed`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leases {
    /// End of the lease from each node, on this node's clock.
    pub member: [Micros; NODES_MAX],
    /// End of the node's own lease.
    pub own: Micros,
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transmit {
    /// To which node.
    pub to: NodeId,
    /// On which network.
    pub path: Path,
    /// The datagram.
    pub bytes: Vec<u8>,
}

/// Reason for which a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rejected {
    /// Not a message.
    Malformed,
    /// Another version of the wire format.
    Version,
    /// Under a key that is not accepted.
    UnknownKey,
    /// The tag is wrong.
    Forged,
    /// From another cluster.
    WrongCluster,
    /// From a node that is not in the list, or from this node's own id.
    UnknownSender,
    /// To another node, or to an earlier incarnation of this node.
    WrongReceiver,
    /// From an earlier incarnation of its sender, or from a new one that has not proved that it receives this node now.
    StaleSender,
    /// Received before.
    Duplicate,
    /// So late that it cannot be distinguished from a replay.
    TooOld,
    /// Well-formed, but not valid at this point of the protocol.
    Unexpected,
}

impl Rejected {
    /// All reasons, for metrics.
    pub const ALL: [Rejected; 11] = [
        Rejected::Malformed,
        Rejected::Version,
        Rejected::UnknownKey,
        Rejected::Forged,
        Rejected::WrongCluster,
        Rejected::UnknownSender,
        Rejected::WrongReceiver,
        Rejected::StaleSender,
        Rejected::Duplicate,
        Rejected::TooOld,
        Rejected::Unexpected,
    ];
}
