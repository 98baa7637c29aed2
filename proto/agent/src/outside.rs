//! What the agent acts on: the gate's tables, and the workers.

use crate::failovers::FailoverStatus;
use evergate_base::Micros;
use evergate_membership::{Bucket, MemberSet, Members, NodeId, NodePhase, ViewId};
use evergate_worker::Instruction;

/// A bucket's owner as the gate knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerWord {
    /// The owner, if there is one.
    pub owner: Option<NodeId>,
    /// Of an own bucket: the nodes whose leases the gate checks before anything leaves. Of another's: this node, if it
    /// is to receive the peers' segments in flood mode.
    pub listed: MemberSet,
    /// Packets of the bucket are recorded and dropped.
    pub on_hold: bool,
}

/// Something that happened, for the log and the status.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// All buckets were handed off.
    Drained,
    /// This node recovered a bucket although it had handed all off.
    DrainedNoMore,
    /// All cluster state was dropped: this node has lost its membership.
    StateDropped,
    /// A view was installed.
    ViewInstalled {
        /// The view.
        view: ViewId,
        /// Its members.
        members: Members,
        /// Members of the view before that this one lacks.
        lost: MemberSet,
    },
    /// The phase of the protocol changed.
    Phase(NodePhase),
    /// A replication channel broke or is too slow.
    ChannelLost {
        /// The other end.
        node: NodeId,
        /// Cause.
        why: String,
    },
    /// All workers have finished a failover.
    FailoverEnded(FailoverStatus),
}

/// The gate's tables, the workers, and the receiver of notices. No call blocks.
pub trait Outside {
    /// Sets the owner of a bucket in the gate.
    fn set_owner(&mut self, bucket: Bucket, word: OwnerWord);

    /// Clears the owners of all buckets.
    fn clear_owners(&mut self);

    /// Whether the gate answers segments of unknown connections with RST.
    fn answer_unknown(&mut self, allowed: bool);

    /// Sets until when this node's own lease is valid, by the agent's clock.
    fn set_own_lease(&mut self, until: Micros);

    /// Sets until when the lease that a member granted is valid.
    fn set_lease(&mut self, node: NodeId, until: Micros);

    /// Sets until when the leases of all members of the view are valid; [`Micros::MAX`] without another member.
    fn set_lease_of_all(&mut self, until: Micros);

    /// Ends all leases.
    fn revoke_leases(&mut self);

    /// Sends an instruction to a worker, after earlier ones.
    fn instruct(&mut self, worker: usize, instruction: Instruction);

    /// Seconds since 1970.
    fn wall_clock_s(&self) -> u64;

    /// Reports something that happened.
    fn note(&mut self, notice: Notice);
}
