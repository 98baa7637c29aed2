//! One gated leg: stream positions against sequence numbers, and how much of what is safe is acknowledged.
//!
//! Invariants: nothing above `target` is committed, and nothing above what the backups hold becomes `target`; both only
//! rise. While a stream runs a little is held back on purpose: a node that takes over must have an acknowledgement left
//! that moves the peer on, or the peer waits for its retransmission timer. A request and its response need no packets for
//! acknowledgements alone: what is safe goes with the next data, and by itself only when none goes for a while.

use evergate_base::Micros;
use evergate_bpf::{LaneId, Origin, Slot};
use evergate_mirror::LegFacts;
use evergate_sys::{Stamp, TcpFacts};

/// Most that is held back of what may be acknowledged, in bytes.
const HELD_BACK_MAX: u64 = 65_536;
/// What is held back is let go when nothing came for so long.
const RIPE_AFTER: Micros = Micros::from_ms(1);
/// Input of less than so many segments is acknowledged with what goes the other way soon (RFC 9293, 3.8.6.3).
const SMALL_SEGMENTS: u64 = 2;
/// ... and by itself when nothing has gone for so long.
const OWED_AFTER: Micros = Micros::from_ms(5);
/// So much is acknowledged at once even while more of the stream waits here, in bytes.
const ACKED_AT_ONCE: u64 = 65_536;
/// More than this on its way is watched by the gate. Less is looked at when the time comes: most often its acknowledgement
/// comes with the peer's next bytes.
const FLIGHT_SMALL: u64 = 65_536;
/// ... but no longer than this: a peer may never answer.
const LOOK_FOR: Micros = Micros::from_ms(5);
/// Input that waits unacknowledged is stashed after so long without progress.
const STASH_AFTER: Micros = Micros::from_ms(1);
/// ... and after so long even while more arrives.
const STASH_AT_LAST: Micros = Micros::from_ms(100);
/// Input that waits longer than this is looked at only now and then: it was stashed, or may not be.
const POLLED_FOR: Micros = Micros::from_ms(200);

/// A leg whose acknowledgements wait for the backups.
pub(crate) struct Gated {
    pub(crate) slot: Slot,
    pub(crate) facts: TcpFacts,
    pub(crate) interface: u8,
    origin: Origin,
    /// Input that the backups hold.
    target: u64,
    target_at: Micros,
    /// Input that may be acknowledged, and since when.
    committed: u64,
    /// Since when something may be acknowledged that is not yet.
    owed_since: Micros,
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
    written_at: Micros,
    /// Output that the peer had before this node took over.
    surplus: u64,
    /// The peer says more before all that it said is acknowledged: no acknowledgement need hurry for it.
    talks_ahead: bool,
}

/// When a leg must be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Look {
    /// In a moment: something is held back, or may have to be stashed.
    Soon,
    /// In a while: an acknowledgement has yet to go, or to come.
    Later,
    /// Now and then: a peer has taken nothing for long, and what it does is heard of at once.
    AtLast,
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
            owed_since: now,
            read: 0,
            read_at: now,
            waits_since: now,
            end: End::Open,
            written: 0,
            acked: 0,
            written_at: now,
            surplus: 0,
            talks_ahead: false,
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
            owed_since: now,
            read: received,
            read_at: now,
            waits_since: now,
            end: if ended { End::Committed } else { End::Open },
            written: acked,
            acked,
            written_at: now,
            surplus: acked.saturating_sub(sent),
            talks_ahead: false,
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
            acknowledged: self.slot.committed(),
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

    /// More is about to be read that nothing of ours asked for, while something may be unacknowledged. Who waits for
    /// acknowledgements before saying more (RFC 9293, 3.7.4) does not do that.
    pub(crate) fn note_next(&mut self) {
        let read = self.origin.received.wrapping_add(self.read as u32);
        self.talks_ahead |= read.wrapping_sub(self.slot.sent_ack()) as i32 > 0;
    }

    /// Nothing came from the peer although something is unacknowledged: it may wait for that after all.
    pub(crate) fn note_silence(&mut self) {
        self.talks_ahead = false;
    }

    /// Whether the peer may wait for an acknowledgement before it says more.
    pub(crate) fn is_patient(&self) -> bool {
        !self.talks_ahead
    }

    /// The peer's end was read.
    pub(crate) fn handle_end(&mut self) {
        if self.end == End::Open {
            self.end = End::Read;
        }
    }

    /// Output was given to the socket.
    pub(crate) fn handle_written(&mut self, bytes: usize, now: Micros) {
        self.written += bytes as u64;
        self.written_at = now;
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

    /// Sees to it that what the peer acknowledges is noticed: by an event of the gate, or by a look before long.
    /// `eager`: something waits for it. True when it has acknowledged something meanwhile.
    pub(crate) fn watch(&self, lane: LaneId, eager: bool, now: Micros) -> bool {
        let flying = self.written.saturating_sub(self.acked);
        if flying == 0 || (!eager && self.is_looked_at(now)) {
            return false;
        }
        let at = if flying > FLIGHT_SMALL { self.acked + flying / 2 } else { self.written };
        !self.slot.wake_at(lane, self.origin.sent.wrapping_add(at as u32))
    }

    /// A small flight, for as long as looking at it now and then is enough.
    fn is_looked_at(&self, now: Micros) -> bool {
        let flying = self.written.saturating_sub(self.acked);
        flying > 0 && flying <= FLIGHT_SMALL && now.since(self.written_at) < LOOK_FOR
    }

    /// The backups hold the input up to `position`. True when so much may be acknowledged now that it should be, whether
    /// something goes to the peer or not.
    pub(crate) fn release(&mut self, position: u64, now: Micros) -> bool {
        if position == u64::MAX {
            self.target = self.read;
            return self.commit(self.read, now) | self.release_end();
        }
        if position <= self.target {
            return false;
        }
        self.target = position.min(self.read);
        self.target_at = now;
        self.waits_since = now;
        let open = self.read - self.committed;
        let held_back = if open <= self.small() { 0 } else { (open / 2).min(HELD_BACK_MAX) };
        if !self.commit(self.target.saturating_sub(held_back), now) {
            return false;
        }
        let owed = self.owed();
        // In the middle of a stream a packet for each segment or two would be as many as the stream's own.
        owed >= ACKED_AT_ONCE || (owed >= self.small() && self.target == self.read)
    }

    fn small(&self) -> u64 {
        SMALL_SEGMENTS * u64::from(self.facts.mss)
    }

    /// What may be acknowledged and is not yet, in bytes.
    fn owed(&self) -> u64 {
        let committed = self.origin.received.wrapping_add(self.committed as u32);
        u64::try_from(committed.wrapping_sub(self.slot.sent_ack()) as i32).unwrap_or(0)
    }

    /// More is about to be owed. What is owed already is not owed later for that.
    fn note_owed(&mut self, now: Micros) {
        if !self.slot.owes_ack() {
            self.owed_since = now;
        }
    }

    /// Whether nothing has taken the acknowledgement along that this leg owes.
    pub(crate) fn is_overdue(&self, now: Micros) -> bool {
        now.since(self.owed_since) >= OWED_AFTER && self.slot.owes_ack()
    }

    /// Lets go of what is held back once the stream rests. True when more may be acknowledged now.
    pub(crate) fn ripen(&mut self, now: Micros) -> bool {
        self.committed < self.target
            && now.since(self.target_at) >= RIPE_AFTER
            && self.commit(self.target, now)
    }

    /// The leg goes to the pool, where nobody watches the time: nothing is held back any more. False when the backups lack
    /// some of what was read.
    pub(crate) fn rest(&mut self, now: Micros) -> bool {
        self.commit(self.target, now);
        self.committed == self.read
    }

    /// Sequence numbers of the first byte that was received, and after the last one that was read.
    pub(crate) fn received(&self) -> (u32, u32) {
        (self.origin.received, self.origin.received.wrapping_add(self.read as u32))
    }

    /// Input up to this sequence number may be acknowledged, whatever the leg carries by now.
    pub(crate) fn settle(&mut self, sequence: u32, now: Micros) {
        if sequence.wrapping_sub(self.slot.committed()) as i32 > 0 {
            self.note_owed(now);
            self.slot.set_committed(sequence);
        }
    }

    /// When something is due that time alone brings. `inside`: the input ends inside something, so its peer has more to say and
    /// may wait for an acknowledgement before; what is whole is acknowledged most often with what goes the other way.
    pub(crate) fn rests_on_time(&self, inside: bool, now: Micros) -> Option<Look> {
        let waits = self.target < self.read;
        let polled = waits && now.since(self.waits_since.max(self.read_at)) < POLLED_FOR;
        if self.committed < self.target || (polled && inside) {
            Some(Look::Soon)
        } else if polled || self.is_looked_at(now) || self.slot.owes_ack() {
            Some(Look::Later)
        } else {
            waits.then_some(Look::AtLast)
        }
    }

    /// Whether input has waited so long that it must be stashed with the backups.
    /// `incomplete`: it ends inside something that only more of it completes.
    pub(crate) fn is_stalled(&self, incomplete: bool, now: Micros) -> bool {
        let rests = now.since(self.read_at.max(self.target_at)) >= STASH_AFTER;
        self.target < self.read && ((incomplete && rests) || now.since(self.waits_since) >= STASH_AT_LAST)
    }

    /// The peer's end may be acknowledged: the backups know of it. True when it was waiting.
    pub(crate) fn release_end(&mut self) -> bool {
        self.target >= self.read && self.commit_end()
    }

    fn commit_end(&mut self) -> bool {
        if self.end != End::Read {
            return false;
        }
        self.end = End::Committed;
        self.committed = self.read;
        self.slot.set_committed(self.origin.received.wrapping_add(self.read as u32).wrapping_add(1));
        true
    }

    /// The connection is over. True when the peer waits for the acknowledgement of its end: it came after ours, so nothing
    /// that our kernel says will take it along, and what our kernel said was withheld.
    pub(super) fn finish_end(&mut self) -> bool {
        self.commit_end() && self.slot.owes_ack()
    }

    fn commit(&mut self, position: u64, now: Micros) -> bool {
        if position <= self.committed {
            return false;
        }
        self.note_owed(now);
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
