//! What a node tells its shell: roles of buckets, the gate, and what became of the node itself.
//!
//! Roles are told as values, not as steps: a shell that polls late sees the newest role of a bucket, once, and
//! reconciles. So the queue of events is bounded by the number of buckets.

use evergate_base::Micros;

use crate::{Bucket, DataEpoch, MemberSet, Members, NODES_MAX, NodeId, Path, Term, ViewId};

/// Something the shell must act on. Events are to be polled, and acted on, before transmits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// All state was dropped: close the gate, drop mirrors and connections. Comes before any role gained later.
    Voided,
    /// A view was installed: all leases begin anew.
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
    /// The node's own standing changed.
    Standing(NodePhase),
    /// Draining has succeeded: this node owns nothing any more.
    Drained,
}

/// A node's own standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodePhase {
    /// Without state; waits to join or to found a cluster.
    Listening,
    /// In a view.
    Active,
    /// In a view, but no longer sure of it: the gate is closed, state is kept.
    Fenced,
    /// Left for good.
    Left,
}

/// How an owner came to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnershipStart {
    /// It begins empty, as a new generation: unknown connections are reset.
    Empty,
    /// This node owned it in the view before, and goes on.
    Unchanged,
    /// The owner died: hold the bucket, take its connections over from the own mirror.
    Failover,
    /// The owner moved it here and is quiet: resume from the own mirror.
    Handoff,
}

/// What this node is to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Nothing: drop what was fed in terms before `since`. Packets go to `owner`, who may already feed this node in a later
    /// term: its frames can be faster than the news of it.
    Outside {
        /// Who serves it, if known.
        owner: Option<NodeId>,
        /// The first term in which a feed counts.
        since: Term,
    },
    /// Keeps a mirror, fed by the owner. While it is not in sync, what was fed in terms before this one is to be dropped.
    Backup {
        /// Whose feed counts.
        term: Term,
        /// The owner.
        owner: NodeId,
        /// Which state.
        generation: DataEpoch,
        /// Whether the mirror can be resumed; while not, it is being filled.
        in_sync: bool,
    },
    /// Serves it.
    Owner {
        /// The ownership period; every replication frame of the bucket belongs to it.
        term: Term,
        /// Which state.
        generation: DataEpoch,
        /// How it began.
        begin: OwnershipStart,
        /// Every one of these must acknowledge an entry before it is committed. Empty in a valid view: degraded,
        /// acknowledgements may be released.
        required: MemberSet,
        /// To be mirrored to: snapshot and log, then [`crate::Node::handle_caught_up`].
        syncing: MemberSet,
        /// Freeze the bucket for this move, then call [`crate::Node::handle_frozen`].
        freeze_for: Option<HandoffId>,
    },
}

impl Role {
    /// Before anything is known.
    pub const NOTHING: Role = Role::Outside { owner: None, since: Term { view: ViewId::NONE, moves: 0 } };
}

/// One attempt to move a bucket to another node. It may be called off, and another one begun in the same term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandoffId {
    /// The next owner.
    pub to: NodeId,
    /// Counts the attempts of a term.
    pub number: u32,
}

/// The leases, as the gate compares them with the node's clock: a bucket may emit while the clock is below `own` and
/// below the expiry of every backup that [`crate::Node::gate_listed`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leases {
    /// Until when each node has promised not to help replace this one.
    pub member: [Micros; NODES_MAX],
    /// Until when this node may believe in its view at all.
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

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rejected {
    /// Not a message.
    Malformed,
    /// Another version of the wire form.
    Version,
    /// Under a key that is not accepted.
    UnknownKey,
    /// The tag is wrong.
    Forged,
    /// Of another cluster.
    WrongCluster,
    /// From a node that is not in the list, or from ourselves.
    UnknownSender,
    /// To another node, or to an earlier life of this one.
    WrongReceiver,
    /// From an earlier life of its sender, or from a new one that has not shown that it hears us now.
    StaleSender,
    /// Seen before.
    Duplicate,
    /// So late that it cannot be told from a replay.
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
