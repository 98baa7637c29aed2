//! Parameters of a TCP connection with which another node can continue it.

use std::net::SocketAddr;

/// Timestamp of this end of a flow at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The value. Its low bit is the unit: clear for milliseconds, set for microseconds (Linux 6.7 and newer).
    pub value: u32,
    /// Time of the value, in milliseconds of the machine's steady clock.
    pub at_ms: u64,
}

/// Largest error in the conversion of times between two nodes, while a connection between them is established.
const CLOCKS_DIFFER_MS: u64 = 1000;
/// Clocks drift apart by at most one part in this many: no crystal is worse.
const CLOCKS_DRIFT: u64 = 2000;

impl Stamp {
    /// Upper bound of the stamp at `now_ms`. The node that recorded the stamp may have had another clock, and a peer
    /// drops segments with older stamps than it has seen. A clock that runs backwards counts as standing still.
    pub fn at(self, now_ms: u64) -> u32 {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        let latest_ms = elapsed_ms + elapsed_ms / CLOCKS_DRIFT + CLOCKS_DIFFER_MS;
        let ticks = if self.value & 1 == 0 { latest_ms } else { latest_ms.wrapping_mul(1000) };
        (self.value.wrapping_add(ticks as u32).wrapping_add(1) & !1) | (self.value & 1)
    }

    /// The stamp to continue with: [`Stamp::at`], but later than `seen`, the newest that the peer echoed.
    pub fn after(self, now_ms: u64, seen: u32) -> u32 {
        let value = self.at(now_ms);
        if value.wrapping_sub(seen) as i32 > 0 {
            return value;
        }
        (seen.wrapping_add(2) & !1) | (self.value & 1)
    }
}

/// Negotiated parameters of a socket; they never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpParams {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address.
    pub remote: SocketAddr,
    /// Largest payload of a segment to the peer, in bytes, options included.
    pub mss: u16,
    /// Scales of the peer's window and of the local one; `None` when not negotiated.
    pub window_scales: Option<(u8, u8)>,
    /// Whether selective acknowledgement was negotiated.
    pub sack: bool,
    /// Timestamps, if negotiated.
    pub stamp: Option<Stamp>,
}

impl TcpParams {
    /// Scale of the peer's window.
    pub fn send_scale(&self) -> u8 {
        self.window_scales.map_or(0, |(send, _)| send)
    }

    /// Scale of the local window.
    pub fn receive_scale(&self) -> u8 {
        self.window_scales.map_or(0, |(_, receive)| receive)
    }
}

/// A socket to be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restore {
    /// Negotiated parameters.
    pub facts: TcpParams,
    /// Sequence number of the next byte to send: the position of the peer.
    pub send: u32,
    /// Sequence number of the next byte to receive: the acknowledged position, or a later one that may be acknowledged.
    pub receive: u32,
    /// Timestamp of this end, if negotiated: [`Stamp::after`].
    pub timestamp: Option<u32>,
    /// Receive window to offer, in bytes; at most 65,535 scaled.
    pub window: u32,
    /// The peer's window, in bytes.
    pub peer_window: u32,
    /// Send and receive buffers during the restoration, in bytes. Afterwards the kernel sizes them as for any socket.
    pub buffer: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_move_forward_and_keep_their_unit() {
        for unit in [0, 1] {
            let stamp = Stamp { value: 0xffff_fff0 | unit, at_ms: 1_000_000 };
            for now_ms in [1_000_000, 999_000, 1_000_001, 1_005_000] {
                let value = stamp.at(now_ms);
                assert!(value.wrapping_sub(stamp.value) as i32 >= 0, "{stamp:?} at {now_ms}: {value}");
                assert_eq!(value & 1, unit);
                let seen = value.wrapping_add(5);
                let after = stamp.after(now_ms, seen);
                assert!(after.wrapping_sub(seen) as i32 > 0, "{after} is not after {seen}");
                assert_eq!(after & 1, unit);
            }
        }
    }

    /// Nodes recover a connection one after the other, each with the stamp that the previous node sent.
    #[test]
    fn stamps_move_forward_across_nodes_with_different_clocks() {
        let hour_ms = 3_600_000;
        for (delay_ms, slow_ppm) in [(0, 0), (1000, 0), (0, 450), (900, 450)] {
            // On the clock of the first node; the clock of the next one is slower.
            let mut own = Stamp { value: 2_000, at_ms: 50_000_000 };
            let mut began_ms = 0; // by the true clock
            for _ in 0..4 {
                let dies_ms = began_ms + 5 * hour_ms;
                let newest = own.value.wrapping_add((dies_ms - began_ms) as u32); // the last stamp of its kernel
                // The next node converts all times of the channel to later ones, and its own clock is slow.
                let received = Stamp { at_ms: own.at_ms + delay_ms, ..own };
                let elapsed_ms = (dies_ms - began_ms) - (dies_ms - began_ms) * slow_ppm / 1_000_000;
                let now_ms = own.at_ms + elapsed_ms;
                let value = received.at(now_ms);
                assert!(value.wrapping_sub(newest) as i32 >= 0, "{value} after {newest}");
                (own, began_ms) = (Stamp { value, at_ms: now_ms }, dies_ms);
            }
        }
    }
}
