//! What goes wrong, and laws (`docs/internals/failover.md`) broken on purpose.

use crate::event_queue::Time;

/// Which node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The one that owns the bucket of the first connection at that moment.
    Owner,
    /// The one that takes its connections over at that moment; nobody when none does.
    Taking,
    /// The one that gives its buckets away; nobody when none does.
    Drained,
    /// One of the others, counted from the owner on.
    Other(u8),
    /// This one, whatever it is at that moment.
    Node(u8),
}

/// Something that happens to a node or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No packet leaves or enters any more. `lossy`: what is on its way to other nodes is lost too.
    Power {
        /// See above.
        lossy: bool,
    },
    /// The process ends; its kernel goes on, and would end every connection.
    Process,
    /// The process does nothing for so long, then goes on.
    Pause(Time),
    /// The machine stands still for so long, its kernel too; its clock has gone on when it does.
    Halt(Time),
    /// No packet between the node and clients passes for so long.
    CutOutside(Time),
    /// No packet between the node and servers or other nodes passes for so long.
    CutInside(Time),
    /// Nothing that the node says to other nodes arrives for so long, on either network.
    Mute(Time),
    /// The witness does not answer the node for so long; its links are well.
    Unwitnessed(Time),
    /// The node's mirror channels to others break, and what is on its way in them is lost.
    Channels,
    /// What goes over the node's mirror channels arrives after so long at the earliest; all else passes.
    Stuck(Time),
    /// A new process starts on this node, or wherever none runs when the node is named by what it is.
    Restart,
    /// The node gives all its buckets away, or takes some again.
    Drain(bool),
}

/// A law broken on purpose: the checks must see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    None,
    /// ACKs leave for whatever has been read.
    EarlyAck,
    /// Output does not wait for the backups.
    EarlyOutput,
    /// Record boundaries are not mirrored.
    LostBoundary,
    /// Routes are not mirrored.
    LostRoute,
    /// The gate does not look at leases.
    NoFence,
    /// FINs and RSTs of sockets that nobody holds pass the gate.
    EndsPass,
    /// Sockets are restored as if their peers had more than they have.
    SendAbove,
    /// Who takes over goes on before the other backups have its state.
    EagerFailover,
    /// What is said after a lost channel follows whatever the backup has.
    GapsFollow,
    /// A backup that was told everything counts as one in sync, whatever was let go without it meanwhile.
    HastyBackup,
    /// What is said to connections that have no socket yet is answered by RST, unless it carries data.
    ResetsPending,
    /// Who has handed a bucket over keeps nothing of it for the case that its next owner never speaks.
    ForgetsFrozen,
    /// A backup is waited for however long it answers nothing.
    PatientForever,
    /// That a client broke its connection off is not noticed.
    DeafToResets,
    /// A server connection carries another client's request before the backups have heard that the one before is done with it.
    SharesEarly,
}
