//! What the gate and its users know of a flow in numbers of TCP (RFC 9293).

use super::Flow;

/// Sequence numbers from which positions in the two streams are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Sequence number of the first byte that we send.
    pub sent: u32,
    /// Sequence number of the first byte that the peer sends.
    pub received: u32,
}

/// A flow that lived on another node, as the gate needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Addresses and ports of both ends.
    pub flow: Flow,
    /// Sequence number of the next byte to send: the peer is known to have all before it.
    pub send: u32,
    /// The peer's highest acknowledgement, when it is above `send`: our ACKs start there.
    pub peer_has: u32,
    /// Sequence number of the next byte to receive: all before it is replicated, and may be acknowledged.
    pub receive: u32,
    /// Receive window that the restored socket will offer, in bytes.
    pub window: u32,
    /// Our receive window's scale.
    pub window_scale: u8,
    /// The scale of the peer's window.
    pub peer_window_scale: u8,
    /// Our next timestamp and the peer's newest, when in use.
    pub timestamps: Option<(u32, u32)>,
    /// Interface of the flow.
    pub interface: u32,
    /// Link address of that interface's card.
    pub source_mac: [u8; 6],
    /// Next link address of its packets; zeros to learn it from the kernel's packets.
    pub next_hop: [u8; 6],
    /// Its socket does not exist yet: segments of its peer are buffered, or held, until the slot wakes.
    pub asleep: bool,
}

/// Acknowledgement that came on hold for a flow and cannot be its peer's: the peer may have started another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strange {
    /// The least sequence number of a segment with this acknowledgement.
    pub seq: u32,
    /// The acknowledged sequence number.
    pub ack: u32,
}

/// Most bytes in flight from a server through a node that has not replicated them yet: the size of its windows.
const UNREPORTED_MAX: u32 = 32 << 20;

/// Bound on the bytes that the peer may have above [`Restored::send`]: all that the previous owner can have sent. The
/// peer's window counts twice, because the peer may have consumed one window and offered it again. [`UNREPORTED_MAX`]
/// covers what the other end sent before the backups received its progress. A higher acknowledgement does not come from
/// the peer.
pub fn ahead_max(peer_window_scale: u8) -> u32 {
    (2 * (65_535 << peer_window_scale.min(13)) + UNREPORTED_MAX).min(1 << 30)
}

/// Positions of a flow's peer, recorded while the flow was on hold or belonged to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerPosition {
    /// Sequence number of the newest packet.
    pub seq: u32,
    /// The highest ACK: what the peer has of our stream.
    pub ack: u32,
    /// The newest window, as on the wire.
    pub window: u32,
    /// Packets received.
    pub count: u32,
    /// The newest timestamp and its echo; zero when the flow has none.
    pub timestamps: (u32, u32),
}

/// One segment with data that came for a flow without a slot, in a bucket that is
/// pending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DivertedSegment {
    /// Its flow.
    pub flow: Flow,
    /// Positions, window and timestamps of its header.
    pub position: PeerPosition,
    /// Its data; empty when it was too long for the ring.
    pub data: Vec<u8>,
}

/// Events of the gate for one worker.
#[derive(Debug, Default)]
pub struct GateEvents {
    /// Indexes of slots that were woken. One may be stale: look at the slot before acting.
    pub woken: Vec<u32>,
    /// Segments of flows without a slot, in buckets that are pending in this worker.
    pub early: Vec<DivertedSegment>,
}
