//! Faults, and laws (`docs/internals/failover.md`) that are broken on purpose.

use crate::event_queue::Time;

/// The node that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The owner of the first connection's bucket at that moment.
    Owner,
    /// The node that recovers its connections at that moment; none when no failover is in progress.
    Recovering,
    /// The draining node; none when no node drains.
    Drained,
    /// One of the other nodes, counted from the owner on.
    Other(u8),
    /// This node, whatever its role.
    Node(u8),
}

/// Fault or event at a node or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No packet leaves or enters any more. `lossy`: packets in flight to other nodes are lost too.
    Power {
        /// Whether packets in flight are lost.
        lossy: bool,
    },
    /// The process ends; its kernel continues, and would end every connection.
    Process,
    /// The process stops for so long, then continues.
    Pause(Time),
    /// The machine stops for so long, its kernel too; its clock has advanced when it continues.
    Halt(Time),
    /// No packet between the node and clients passes for so long.
    CutOutside(Time),
    /// No packet between the node and servers or other nodes passes for so long.
    CutInside(Time),
    /// Datagrams and frames of the node reach no other node for so long, on either network.
    OutputLost(Time),
    /// The witness does not answer the node for so long; its links are intact.
    Unwitnessed(Time),
    /// The node's replication channels to other nodes break, and frames in flight are lost.
    Channels,
    /// Data on the node's replication channels arrives after so long at the earliest. Other packets pass.
    Stuck(Time),
    /// A new process starts on this node, or on any node without one when the target is a role.
    Restart,
    /// The node starts or ends a drain.
    Drain(bool),
}

/// A law broken on purpose: the checks must find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    None,
    /// ACKs leave for all input that has been read.
    EarlyAck,
    /// Output does not wait for the backups.
    EarlyOutput,
    /// Record boundaries are not replicated.
    LostBoundary,
    /// Routes are not replicated.
    LostRoute,
    /// The gate ignores leases.
    NoFence,
    /// FINs and RSTs of sockets without a process pass the gate.
    EndsPass,
    /// Sockets are restored as if their peers had more than they have.
    SendAbove,
    /// The new owner resumes connections before the other backups have their state.
    EagerFailover,
    /// Frames after a lost channel follow whatever the backup has.
    GapsFollow,
    /// A backup with the full state counts as in sync, even if output was released without it meanwhile.
    EarlyInSync,
    /// Segments to connections without a socket yet are answered by RST, unless they carry data.
    ResetsPending,
    /// After a handoff the old owner keeps nothing for the case that the new owner fails before its first frame.
    DropsFrozen,
    /// The owner waits for a silent backup without limit.
    WaitsForever,
    /// A client's reset is not noticed.
    IgnoresResets,
    /// A server connection carries another client's request before the backups hold the end of the previous one.
    SharesEarly,
}
