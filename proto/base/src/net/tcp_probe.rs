//! Segments to the peer of a failed node's connection: a probe for its position in the stream, and a notice of lost
//! segments. How they work: `host/sys/src/tcp_probe.rs`.

use super::TcpParams;

/// A probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Sequence number up to which the peer is known to have the stream: the probe repeats the last byte but one.
    pub acknowledged: u32,
    /// An ACK without news for the peer: well below the replicated position. An ACK at that position would use up the
    /// advance that the restored socket's first ACK must make.
    pub ack: u32,
    /// The window that the restored socket will offer, in bytes: never more.
    pub window: u32,
    /// Timestamp of this end, if negotiated.
    pub timestamp: Option<u32>,
}

/// A notice of lost segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Sequence number of the next byte of this end: the position of the peer.
    pub send: u32,
    /// Sequence number up to which this end has received in order.
    pub receive: u32,
    /// Sequence number of the peer's next byte.
    pub until: u32,
    /// A window that was offered, in bytes: never more.
    pub window: u32,
    /// Timestamp of this end, no older than in any earlier segment, and the newest of the peer, if negotiated.
    pub timestamps: Option<(u32, u32)>,
}

impl Loss {
    /// Whether a notice helps the peer: more than a segment is lost, and the peer supports selective acknowledgements.
    pub fn is_worth_telling(&self, params: &TcpParams) -> bool {
        self.sack_block(params, 0).is_some()
    }

    /// The block to acknowledge selectively after `before` notices, if more than a segment is lost and the peer
    /// supports it: the part before the previous block. Linux ignores everything that a block shares with the previous
    /// one, and a segment that neither covers alone. When all but the first segment was acknowledged, the last block is
    /// repeated, because a notice may get lost.
    pub fn sack_block(&self, params: &TcpParams, before: u32) -> Option<(u32, u32)> {
        let lost = self.until.wrapping_sub(self.receive);
        let most = u32::from(params.mss);
        let in_window = lost <= self.window;
        let first = |before: u32| match before {
            0 => lost.saturating_sub(most),
            _ => (lost >> (2 * before).min(31)).max(most),
        };
        let further = before.checked_sub(1).map(|last| (first(before), first(last)));
        let is_whole = |(from, to): &(u32, u32)| from.saturating_add(most) <= *to;
        let (from, to) = further.filter(is_whole).unwrap_or((first(0), lost));
        let at = |offset| self.receive.wrapping_add(offset);
        (params.sack && in_window && lost > most).then(|| (at(from), at(to)))
    }
}
