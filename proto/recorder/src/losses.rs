//! Account of the packets of one Recorder: seen = written + lost, and each loss has its reason.
//!
//! Totals of sockets and interfaces come in; [`Gap`]s go out as soon as a total has risen. Invariant: the sum of the
//! gaps is the total, so every packet that a socket counted is a packet record or part of a gap.

use evergate_evidence::record::{Gap, GapReason};
use evergate_evidence::statement::Counters;

/// Totals of the Recorder's sockets since they opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingTotals {
    /// Packets that matched the filter, the dropped ones included.
    pub packets: u64,
    /// Packets dropped because the ring was full.
    pub drops: u64,
}

/// Totals of the interface since the Recorder started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceTotals {
    /// Packets received.
    pub received: u64,
    /// Packets lost before the kernel had them.
    pub missed: u64,
}

/// The account.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    ring: RingTotals,
    interface: InterfaceTotals,
    written: u64,
    unwritten: Unwritten,
    checked_ns: u64,
}

/// Packets that reached the Recorder and were not written.
#[derive(Clone, Copy, Debug, Default)]
struct Unwritten {
    /// Without a gap yet.
    pending: u64,
    since_ns: u64,
    /// With a gap.
    declared: u64,
}

impl Losses {
    /// An empty account from this time on.
    pub fn new(now_ns: u64) -> Losses {
        Losses { checked_ns: now_ns, ..Losses::default() }
    }

    /// Takes the totals of the sockets. A gap stands before the packets of the block that was taken with them.
    pub fn on_ring(&mut self, totals: RingTotals, now_ns: u64) -> Option<Gap> {
        let count = totals.drops.saturating_sub(self.ring.drops);
        let from_ns = std::mem::replace(&mut self.checked_ns, now_ns);
        self.ring = RingTotals {
            packets: totals.packets.max(self.ring.packets),
            drops: totals.drops.max(self.ring.drops),
        };
        (count > 0).then_some(Gap {
            reason: GapReason::Ring,
            exact: true,
            count,
            from_ns: from_ns.min(now_ns),
            to_ns: now_ns,
        })
    }

    /// Takes the totals of the interface.
    pub fn on_interface(&mut self, totals: InterfaceTotals, now_ns: u64) -> Option<Gap> {
        let count = totals.missed.saturating_sub(self.interface.missed);
        self.interface = InterfaceTotals {
            received: totals.received.max(self.interface.received),
            missed: totals.missed.max(self.interface.missed),
        };
        let from_ns = self.checked_ns.min(now_ns);
        (count > 0).then_some(Gap {
            reason: GapReason::Interface,
            exact: true,
            count,
            from_ns,
            to_ns: now_ns,
        })
    }

    /// Counts a packet record.
    pub fn record_written(&mut self) {
        self.written += 1;
    }

    /// Counts packets that a full disk kept from being written.
    pub fn record_unwritten(&mut self, packets: u64, now_ns: u64) {
        if self.unwritten.pending == 0 {
            self.unwritten.since_ns = now_ns;
        }
        self.unwritten.pending += packets;
    }

    /// The gap of the packets that a full disk kept from being written, once there is room for it.
    pub fn poll_unwritten(&mut self, now_ns: u64) -> Option<Gap> {
        let count = std::mem::take(&mut self.unwritten.pending);
        self.unwritten.declared += count;
        let from_ns = self.unwritten.since_ns.min(now_ns);
        (count > 0).then_some(Gap { reason: GapReason::Disk, exact: true, count, from_ns, to_ns: now_ns })
    }

    /// Counters for a statement.
    pub fn counters(&self) -> Counters {
        let dropped = self.ring.drops + self.unwritten.declared;
        Counters {
            // A socket's total is read after the block that it covers, and so is never behind.
            seen: self.ring.packets.max(self.written + dropped),
            written: self.written,
            dropped,
            if_rx: self.interface.received,
            if_missed: self.interface.missed,
        }
    }

    /// Packets that a full disk kept from being written.
    pub fn unwritten(&self) -> u64 {
        self.unwritten.pending + self.unwritten.declared
    }

    /// Whether every packet that the sockets counted is written or declared lost.
    pub fn is_balanced(&self) -> bool {
        self.unwritten.pending == 0
            && self.ring.packets == self.written + self.ring.drops + self.unwritten.declared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rise_of_drops_is_one_gap() {
        let mut losses = Losses::new(10);
        assert_eq!(losses.on_ring(RingTotals { packets: 5, drops: 0 }, 20), None);
        let gap = losses.on_ring(RingTotals { packets: 9, drops: 3 }, 30).expect("drops rose");
        assert_eq!((gap.count, gap.from_ns, gap.to_ns), (3, 20, 30));
        assert_eq!(losses.on_ring(RingTotals { packets: 9, drops: 3 }, 40), None);
    }

    #[test]
    fn account_balances_with_a_full_disk() {
        let mut losses = Losses::new(0);
        losses.on_ring(RingTotals { packets: 10, drops: 2 }, 1);
        (0..5).for_each(|_| losses.record_written());
        losses.record_unwritten(3, 1);
        assert!(!losses.is_balanced());
        assert_eq!(losses.poll_unwritten(2).map(|gap| (gap.reason, gap.count)), Some((GapReason::Disk, 3)));
        assert!(losses.is_balanced());
        let counters = losses.counters();
        assert_eq!((counters.seen, counters.written, counters.dropped), (10, 5, 5));
    }
}
