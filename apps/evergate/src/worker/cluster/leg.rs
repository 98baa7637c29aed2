//! One gated leg: stream positions against sequence numbers, and how much of what is safe is acknowledged.
//!
//! Invariants: nothing above `target` is committed, and nothing above what the backups hold becomes `target`; both only
//! rise. While a stream runs a little is held back on purpose: a node that takes over must have an acknowledgement left
//! that moves the peer on, or the peer waits for its retransmission timer.

use evergate_base::Micros;
use evergate_bpf::{LaneId, Origin, Slot};
use evergate_mirror::LegFacts;
use evergate_sys::{Stamp, TcpFacts};

/// Most that is held back of what may be acknowledged, in bytes.
const HELD_BACK_MAX: u64 = 65_536;
/// What is held back is let go when nothing came for so long.
const RIPE_AFTER: Micros = Micros::from_ms(1);
/// Input that waits unacknowledged is stashed after so long without progress.
const STASH_AFTER: Micros = Micros::from_ms(1);
/// ... and after so long even while more arrives.
const STASH_AT_LAST: Micros = Micros::from_ms(100);

/// A leg whose acknowledgements wait for the backups.
pub(crate) struct Gated {
    pub(crate) slot: Slot,
    pub(crate) facts: TcpFacts,
    pub(crate) interface: u8,
    origin: Origin,
    /// Input that the backups hold.
    target: u64,
    target_at: Micros,
    /// Input that may be acknowledged.
    committed: u64,
    /// Input taken from the socket.
    read: u64,
    read_at: Micros,
    /// When the oldest input that waits began to wait.
    waits_since: Micros,
    /// The peer's FIN was read; whether the backups know.
    end: End,
    /// Output given to the socket, and what the peer acknowledged of it.
    written: u64,
    acked: u64,
    /// Output that the peer had before this node took over.
    surplus: u64,
}

/// Where a leg stands that was taken over.
#[derive(Clone, Copy)]
pub(crate) struct Stands {
    /// What is mirrored of the peer's stream.
    pub(crate) received: u64,
    /// The peer's FIN counts as received.
    pub(crate) ended: bool,
    /// Where the connection's output begins again.
    pub(crate) sent: u64,
    /// What the peer turned out to have.
    pub(crate) acked: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Read,
    Committed,
}

impl Gated {
    /// A leg that was just established.
    pub(crate) fn new(slot: Slot, facts: TcpFacts, interface: u8, now: Micros) -> Gated {
        let origin = slot.origin();
        Gated {
            slot,
            facts,
            interface,
            origin,
            target: 0,
            target_at: now,
            committed: 0,
            read: 0,
            read_at: now,
            waits_since: now,
            end: End::Open,
            written: 0,
            acked: 0,
            surplus: 0,
        }
    }

    /// A leg taken over.
    pub(crate) fn resumed(slot: Slot, facts: &LegFacts, stands: Stands, now: Micros) -> Gated {
        let Stands { received, ended, sent, acked } = stands;
        Gated {
            slot,
            facts: tcp_facts(facts),
            interface: facts.interface,
            origin: Origin { sent: facts.sent, received: facts.received },
            target: received,
            target_at: now,
            committed: received,
            read: received,
            read_at: now,
            waits_since: now,
            end: if ended { End::Committed } else { End::Open },
            written: acked,
            acked,
            surplus: acked.saturating_sub(sent),
        }
    }

    /// Counts positions from here on: the leg carries another request.
    pub(crate) fn restart(&mut self, now: Micros) {
        self.origin.sent = self.origin.sent.wrapping_add(self.written as u32);
        self.origin.received = self.origin.received.wrapping_add(self.read as u32);
        (self.target, self.committed, self.read) = (0, 0, 0);
        (self.written, self.acked, self.surplus) = (0, 0, 0);
        (self.target_at, self.read_at, self.waits_since) = (now, now, now);
    }

    /// What another node needs to continue the leg.
    pub(crate) fn mirrored(&self) -> LegFacts {
        let facts = &self.facts;
        LegFacts {
            local: facts.local,
            remote: facts.remote,
            sent: self.origin.sent,
            received: self.origin.received,
            mss: facts.mss,
            window_scales: facts.window_scales,
            sack: facts.sack,
            timestamp: facts.stamp.map(|stamp| (stamp.value, stamp.at_ms)),
            interface: self.interface,
            next_hop: self.slot.next_hop(),
        }
    }

    /// Input was read.
    pub(crate) fn handle_read(&mut self, bytes: usize, now: Micros) {
        if self.read == self.target {
            self.waits_since = now;
        }
        self.read += bytes as u64;
        self.read_at = now;
    }

    /// The peer's end was read.
    pub(crate) fn handle_end(&mut self) {
        if self.end == End::Open {
            self.end = End::Read;
        }
    }

    /// Output was given to the socket.
    pub(crate) fn handle_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// How many of the next `bytes` of output the peer has already: they must not be sent.
    pub(crate) fn take_surplus(&mut self, bytes: usize) -> usize {
        let skip = self.surplus.min(bytes as u64);
        self.surplus -= skip;
        skip as usize
    }

    /// Whether the peer has output that is yet to be made again.
    pub(crate) fn has_surplus(&self) -> bool {
        self.surplus > 0
    }

    /// What the peer acknowledged, if it is more than before.
    pub(crate) fn newly_acked(&mut self) -> Option<u64> {
        let ahead =
            self.slot.peer_acked().wrapping_sub(self.origin.sent.wrapping_add(self.acked as u32)) as i32;
        if ahead <= 0 || self.acked >= self.written {
            return None;
        }
        self.acked = (self.acked + ahead as u64).min(self.written); // our FIN counts one
        Some(self.acked)
    }

    /// Asks for an event when the peer has acknowledged half of what is on its way. True when it has meanwhile.
    pub(crate) fn wake(&self, lane: LaneId) -> bool {
        let flying = self.written.saturating_sub(self.acked);
        if flying == 0 {
            return false;
        }
        let at = if flying > 65_536 { self.acked + flying / 2 } else { self.written };
        !self.slot.wake_at(lane, self.origin.sent.wrapping_add(at as u32))
    }

    /// The backups hold the input up to `position`. True when more may be acknowledged now.
    pub(crate) fn release(&mut self, position: u64, now: Micros) -> bool {
        if position == u64::MAX {
            self.slot.open(); // the leg is not carried over
            return false;
        }
        if position <= self.target {
            return false;
        }
        self.target = position.min(self.read);
        self.target_at = now;
        self.waits_since = now;
        let held_back = ((self.read - self.committed) / 2).min(HELD_BACK_MAX);
        self.commit(self.target.saturating_sub(held_back))
    }

    /// Lets go of what is held back once the stream rests. True when more may be acknowledged now.
    pub(crate) fn ripen(&mut self, now: Micros) -> bool {
        self.committed < self.target && now.since(self.target_at) >= RIPE_AFTER && self.commit(self.target)
    }

    /// The leg goes to the pool, where nobody watches the time: nothing is held back any more. False when the backups lack
    /// some of what was read.
    pub(crate) fn rest(&mut self) -> bool {
        self.commit(self.target);
        self.committed == self.read
    }

    /// Whether something is held back that time alone will release, or input may have to be stashed.
    pub(crate) fn rests_on_time(&self) -> bool {
        self.committed < self.target || self.target < self.read
    }

    /// Whether input has waited so long that it must be stashed with the backups.
    /// `incomplete`: it ends inside something that only more of it completes.
    pub(crate) fn is_stalled(&self, incomplete: bool, now: Micros) -> bool {
        let rests = now.since(self.read_at.max(self.target_at)) >= STASH_AFTER;
        self.target < self.read && ((incomplete && rests) || now.since(self.waits_since) >= STASH_AT_LAST)
    }

    /// The peer's end may be acknowledged: the backups know of it. True when it was waiting.
    pub(crate) fn release_end(&mut self) -> bool {
        if self.end != End::Read || self.target < self.read {
            return false;
        }
        self.end = End::Committed;
        self.committed = self.read;
        self.slot.set_committed(self.origin.received.wrapping_add(self.read as u32).wrapping_add(1));
        true
    }

    fn commit(&mut self, position: u64) -> bool {
        if position <= self.committed {
            return false;
        }
        self.committed = position;
        self.slot.set_committed(self.origin.received.wrapping_add(position as u32));
        true
    }

    /// Sequence number after everything written, and our FIN.
    pub(crate) fn end_sequence(&self) -> u32 {
        self.origin.sent.wrapping_add(self.written as u32).wrapping_add(1)
    }
}

/// The kernel's facts out of mirrored ones.
pub(crate) fn tcp_facts(facts: &LegFacts) -> TcpFacts {
    TcpFacts {
        local: facts.local,
        remote: facts.remote,
        mss: facts.mss,
        window_scales: facts.window_scales,
        sack: facts.sack,
        stamp: facts.timestamp.map(|(value, at_ms)| Stamp { value, at_ms }),
    }
}
