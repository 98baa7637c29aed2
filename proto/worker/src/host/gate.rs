//! The packet gate as one worker uses it: slots that withhold ACKs, holds of buckets, and segments past the sockets.

use evergate_base::Bucket;
use evergate_base::net::{Flow, GateEvents, Loss, Origin, PeerPosition, Probe, Restored, Strange, TcpParams};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The gate. A flow is gated from its first packet on; it stays gated when the process dies.
pub trait Gate {
    /// Handle of one gated flow. Exactly one exists per flow; it goes back by [`Gate::finish`].
    type Slot: Slot;

    /// ACKs that leave with one call for the price of one.
    const ACKS_AT_ONCE: usize;

    /// Nanoseconds of the clock of [`Gate::greeted_ns`] and of `since_ns`.
    fn now_ns(&self) -> u64;

    /// Bucket of a flow: the same on all nodes.
    fn bucket(&self, flow: &Flow) -> Bucket;

    /// Local ports of server legs of a bucket; `None` for a bucket outside the table.
    fn ports(&self, bucket: Bucket) -> Option<RangeInclusive<u16>>;

    /// The slot of a flow: after accept or connect. `None` when the flow is not gated or has another handle.
    fn slot(&mut self, flow: &Flow) -> Option<Self::Slot>;

    /// Gives a slot back. With `end`, the number after our FIN, packets pass until the peer has acknowledged it, at
    /// most a minute. Without, the flow is forgotten at once, and what its socket still sends is stopped.
    fn finish(&mut self, slot: Self::Slot, end: Option<u32>);

    /// Frees slots whose peers have acknowledged the end, or are gone.
    fn sweep(&mut self);

    /// Frees all slots that wait for their peers' acknowledgement of the end, in this bucket or in all: another node
    /// may continue these flows, and nothing that this node's sockets still hold may leave when the bucket returns.
    fn forget_finished(&mut self, bucket: Option<Bucket>);

    /// Sends an ACK at the committed position of each slot.
    fn emit_acks<'a>(&mut self, slots: impl IntoIterator<Item = &'a Self::Slot>) -> io::Result<()>
    where
        Self::Slot: 'a;

    /// Arms an event for the peer's ACK of `ack`. False when the peer has sent it already: then no event may come.
    fn wake_at(&self, slot: &Self::Slot, ack: u32) -> bool;

    /// Takes the events that have come.
    fn events(&mut self, into: &mut GateEvents) -> io::Result<()>;

    /// Sets whether segments of flows without a slot, in this bucket, come as events to this worker.
    fn set_pending(&self, bucket: Bucket, pending: bool);

    /// Gates a flow that lived elsewhere, before its socket exists. Its bucket must be on hold, or it is to be asleep.
    fn restore(&self, from: &Restored) -> io::Result<Self::Slot>;

    /// The same after the hold of its bucket, unless its peer has started another connection of the same ends here
    /// since then: nothing is changed about that one.
    fn restore_unless_begun(&self, from: &Restored, since_ns: u64) -> io::Result<Option<Self::Slot>>;

    /// The same for a flow with a slot.
    fn restore_again(&self, slot: Self::Slot, from: &Restored) -> Self::Slot;

    /// Position of a flow's peer, recorded while the flow was on hold or belonged to another node.
    fn peer_position(&self, flow: &Flow) -> Option<PeerPosition>;

    /// Forgets that position.
    fn forget_peer_position(&self, flow: &Flow);

    /// Whether the stateless accept has answered a SYN with this acknowledgement: the peer has another connection.
    fn has_answered_syn(&self, flow: &Flow, came: Strange) -> bool;

    /// Puts a bucket of this node on hold: its packets are recorded and dropped.
    fn hold(&self, bucket: Bucket);

    /// Stops answering SYNs of a bucket of this node.
    fn close(&self, bucket: Bucket);

    /// Ends a hold.
    fn release(&self, bucket: Bucket);

    /// Answers SYNs of the bucket again.
    fn open(&self, bucket: Bucket);

    /// When a SYN of the bucket was answered last.
    fn greeted_ns(&self, bucket: Bucket) -> Option<u64>;

    /// Enters the neighbour of a replicated leg into this node's kernel, so that a failover need not resolve it.
    fn add_neighbour(&self, interface: u32, remote: IpAddr, next_hop: [u8; 6]);

    /// Sends a probe to a peer. It never blocks; a full queue is an error, and the probe can be repeated.
    fn ask(&self, params: &TcpParams, probe: &Probe) -> io::Result<()>;

    /// Sends a notice of lost segments after `before` earlier ones. False when a notice does not help.
    fn notify_loss(&self, params: &TcpParams, loss: &Loss, before: u32) -> io::Result<bool>;
}

/// Handle of one gated flow. Numbers are sequence numbers of TCP.
pub trait Slot {
    /// Its flow.
    fn flow(&self) -> Flow;

    /// Its number.
    fn index(&self) -> u32;

    /// Where the positions of both streams begin.
    fn origin(&self) -> Origin;

    /// The highest ACK that may leave.
    fn committed(&self) -> u32;

    /// Lets ACKs up to this number leave.
    fn set_committed(&self, ack: u32);

    /// The newest ACK that left.
    fn sent_ack(&self) -> u32;

    /// What the peer has acknowledged.
    fn peer_acked(&self) -> u32;

    /// Whether the committed position is ahead of the ACK that left.
    fn owes_ack(&self) -> bool;

    /// Whether the peer has acknowledged everything up to `end`, or is gone.
    fn is_over(&self, end: u32) -> bool;

    /// An acknowledgement that came on hold and cannot be the peer's.
    fn strange(&self) -> Option<Strange>;

    /// Next link address of its packets; zeros when it is not known.
    fn next_hop(&self) -> [u8; 6];

    /// Lets FIN leave.
    fn allow_fin(&self);

    /// Lets RST leave.
    fn allow_rst(&self);

    /// Withholds nothing any more.
    fn open(&self);

    /// Sets whether its socket does not exist yet.
    fn set_asleep(&self, asleep: bool);
}
