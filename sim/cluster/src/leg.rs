//! One gated leg: positions of streams against sequence numbers, and how much of what is safe is acknowledged.
//!
//! The model of the daemon's `worker/cluster/leg.rs`, with the same rules and constants. Invariants: nothing above
//! `target` is committed, and nothing above what the backups hold becomes `target`; both only rise.

use crate::agenda::Time;
use crate::gate::Slot;
use crate::segment::{FIRST, Flow};
use evergate_mirror::LegFacts;

/// Most that is held back of what may be acknowledged, in bytes.
const HELD_BACK_MAX: u64 = 65_536;
/// What is held back is let go when nothing came for so long.
const RIPE_AFTER: Time = 1_000;
/// Input that waits unacknowledged is stashed after so long without progress, and after so long in any case.
const STASH_AFTER: Time = 1_000;
const STASH_AT_LAST: Time = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Read,
    Committed,
}

/// See the module. Positions count from the begin of the leg's use.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) flow: Flow,
    /// Numbers of the bytes at position 0.
    origin_sent: u64,
    origin_received: u64,
    target: u64,
    target_at: Time,
    committed: u64,
    read: u64,
    read_at: Time,
    waits_since: Time,
    end: End,
    written: u64,
    acked: u64,
    /// Output that the peer had before this node took over.
    surplus: u64,
}

impl Leg {
    /// A leg that was just established.
    pub(crate) fn new(flow: Flow, now: Time) -> Leg {
        Leg {
            flow,
            origin_sent: FIRST,
            origin_received: FIRST,
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

    /// A leg taken over: `received` is mirrored of the peer's stream, the connection's output begins again at `sent`, and
    /// the peer turned out to have `acked`.
    pub(crate) fn resumed(
        flow: Flow,
        facts: &LegFacts,
        received: u64,
        sent: u64,
        acked: u64,
        now: Time,
    ) -> Leg {
        Leg {
            origin_sent: u64::from(facts.sent),
            origin_received: u64::from(facts.received),
            target: received,
            committed: received,
            read: received,
            written: acked,
            acked,
            surplus: acked.saturating_sub(sent),
            ..Leg::new(flow, now)
        }
    }

    /// Counts positions from here on: the leg carries another request.
    pub(crate) fn restart(&mut self, now: Time) {
        let (sent, received) = (self.origin_sent + self.written, self.origin_received + self.read);
        *self = Leg { origin_sent: sent, origin_received: received, ..Leg::new(self.flow, now) };
    }

    /// What another node needs to continue it.
    pub(crate) fn facts(&self) -> LegFacts {
        LegFacts {
            local: self.flow.ours,
            remote: self.flow.theirs,
            sent: self.origin_sent as u32,
            received: self.origin_received as u32,
            acknowledged: self.origin_received as u32,
            mss: crate::tcp::SEGMENT as u16,
            window_scales: None,
            sack: false,
            timestamp: None,
            interface: 0,
            next_hop: [0; 6],
        }
    }

    /// Number after all output and our FIN.
    pub(crate) fn end(&self) -> u64 {
        self.origin_sent + self.written + 1
    }

    /// Number of the byte at input position 0.
    pub(crate) fn origin_received(&self) -> u64 {
        self.origin_received
    }

    /// Number after the last byte that was read.
    pub(crate) fn read_sequence(&self) -> u64 {
        self.origin_received + self.read
    }

    pub(crate) fn handle_read(&mut self, bytes: usize, now: Time) {
        if self.read == self.target {
            self.waits_since = now;
        }
        self.read += bytes as u64;
        self.read_at = now;
    }

    pub(crate) fn handle_end(&mut self) {
        if self.end == End::Open {
            self.end = End::Read;
        }
    }

    pub(crate) fn handle_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// How many of the next bytes of output the peer has already.
    pub(crate) fn take_surplus(&mut self, bytes: usize) -> usize {
        let skip = self.surplus.min(bytes as u64);
        self.surplus -= skip;
        skip as usize
    }

    pub(crate) fn has_surplus(&self) -> bool {
        self.surplus > 0
    }

    /// What the peer acknowledged, if it is more than before.
    pub(crate) fn newly_acked(&mut self, slot: &Slot) -> Option<u64> {
        let ahead = slot.snd_una.saturating_sub(self.origin_sent + self.acked);
        if ahead == 0 || self.acked >= self.written {
            return None;
        }
        self.acked = (self.acked + ahead).min(self.written); // our FIN counts one
        Some(self.acked)
    }

    /// The backups hold the input up to `position`; the ACK that may now leave.
    pub(crate) fn release(&mut self, position: u64, now: Time) -> Option<u64> {
        if position == u64::MAX {
            self.target = self.read;
            let read = self.commit(self.read);
            return self.release_end().or(read);
        }
        if position <= self.target {
            return None;
        }
        self.target = position.min(self.read);
        self.target_at = now;
        self.waits_since = now;
        let held_back = ((self.read - self.committed) / 2).min(HELD_BACK_MAX);
        self.commit(self.target.saturating_sub(held_back))
    }

    /// What is held back goes once the stream rests.
    pub(crate) fn ripen(&mut self, now: Time) -> Option<u64> {
        let ripe = self.committed < self.target && now >= self.target_at + RIPE_AFTER;
        if ripe { self.commit(self.target) } else { None }
    }

    /// The leg rests for long: what is held back goes at once. A server whose last bytes are never acknowledged could
    /// not send the next response.
    pub(crate) fn settle(&mut self) -> Option<u64> {
        self.commit(self.target)
    }

    /// Everything that was read may be acknowledged, whoever holds it: nobody needs it any more. Else a mutation.
    pub(crate) fn release_early(&mut self) -> Option<u64> {
        self.commit(self.read)
    }

    fn commit(&mut self, position: u64) -> Option<u64> {
        if position <= self.committed {
            return None;
        }
        self.committed = position;
        Some(self.origin_received + position)
    }

    /// The peer's end may be acknowledged: the backups know of it.
    pub(crate) fn release_end(&mut self) -> Option<u64> {
        if self.end != End::Read || self.target < self.read {
            return None;
        }
        self.end = End::Committed;
        self.committed = self.read;
        Some(self.origin_received + self.read + 1)
    }

    /// Whether time alone will release something, or input may have to be stashed.
    pub(crate) fn rests_on_time(&self) -> bool {
        self.committed < self.target || self.target < self.read
    }

    /// Whether input has waited so long that it must be stashed. `incomplete`: only more of it completes it.
    pub(crate) fn is_stalled(&self, incomplete: bool, now: Time) -> bool {
        let rests = now >= self.read_at.max(self.target_at) + STASH_AFTER;
        self.target < self.read && ((incomplete && rests) || now >= self.waits_since + STASH_AT_LAST)
    }
}
