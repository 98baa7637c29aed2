//! One gated leg: stream positions against sequence numbers, and how much of what is safe is acknowledged.
//!
//! Invariants: nothing above `target` is committed, and nothing above what the backups hold becomes `target`; both only
//! rise. While a stream runs a little is held back on purpose: a node that takes over must have an acknowledgement left
//! that moves the peer on, or the peer waits for its retransmission timer. A request and its response need no packets for
//! acknowledgements alone: what is safe goes with the next data, and by itself only when none goes for a while.
//! What the gate knows is asked of it ([`Gate`]); this module sends nothing.

use evergate_base::Micros;

/// Most that is held back of what may be acknowledged, in bytes.
const WITHHELD_BYTES_MAX: u64 = 65_536;
/// What is held back is let go when nothing came for so long,
const RIPE_AFTER: Micros = Micros::from_ms(1);
/// but for so many segments, while the peer said more that waits here: the first segment that it counts as unacknowledged is the one
/// that its timer has sent again, for nothing, and that it would not send again when it hears what is lost (docs/decisions/0023).
const SPARED_SEGMENTS: u64 = 4;
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
const CHECK_FOR: Micros = Micros::from_ms(5);
/// Input that waits unacknowledged is stashed after so long without progress.
const STASH_AFTER: Micros = Micros::from_ms(1);
/// ... after so long even while more arrives,
const STASH_AT_LAST: Micros = Micros::from_ms(100);
/// ... and after so long when nothing more will: most clients have it by then, the timers of servers have grown.
const STASH_ALL_AFTER: Micros = Micros::from_ms(1000);
/// Input that waits longer than this is looked at only now and then: it was stashed, or may not be.
const POLLED_FOR: Micros = Micros::from_ms(200);

/// What lets the ACKs of one flow leave, and hears its peer. All are sequence numbers.
pub trait AckSlot {
    /// The highest ACK that may leave.
    fn committed(&self) -> u32;

    /// ACKs up to here may leave. It never goes backwards, and sends nothing by itself.
    fn set_committed(&mut self, ack: u32);

    /// The highest ACK that has left.
    fn sent_ack(&self) -> u32;

    /// What the peer has acknowledged of what we sent, our FIN included.
    fn peer_acked(&self) -> u32;

    /// Whether less has been acknowledged than may be.
    fn owes_ack(&self) -> bool {
        self.sent_ack() != self.committed()
    }
}

/// Sequence numbers from which positions in the two streams are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Of the first byte that we send.
    pub sent: u32,
    /// Of the first byte that the peer sends.
    pub received: u32,
}

/// What the peer of a leg has yet to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputBoundary {
    /// What it said ends inside something that only more of it completes. It may be unable to say more before what it said is
    /// acknowledged.
    Partial,
    /// More may come.
    Open,
    /// It has said all for now.
    Whole,
}

/// When a leg must be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delay {
    /// In a moment: something is held back, or may have to be stashed.
    Short,
    /// In a while: an acknowledgement has yet to go, or to come.
    Medium,
    /// Now and then: a peer has taken nothing for long, and what it does is heard of at once.
    Long,
}

impl Delay {
    /// After how long that is.
    pub const fn span(self) -> Micros {
        match self {
            Delay::Short => Micros::from_ms(1),
            Delay::Medium => Micros::from_ms(5),
            Delay::Long => Micros::from_ms(500),
        }
    }
}

/// Where a leg stands that was taken over.
#[derive(Clone, Copy, Debug)]
pub struct ResumePoint {
    /// What is mirrored of the peer's stream.
    pub received: u64,
    /// The peer's FIN counts as received.
    pub ended: bool,
    /// Where the connection's output begins again.
    pub sent: u64,
    /// What the peer turned out to have.
    pub acked: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Read,
    Committed,
}

/// See the module. Positions count bytes from the begin of the leg's use.
#[derive(Clone, Debug)]
pub struct AckGate {
    origin: Origin,
    /// Bytes of a full segment.
    mss: u16,
    /// The peer's FIN was read; whether the backups know.
    end: End,
    /// The peer says more before all that it said is acknowledged: no acknowledgement need hurry for it.
    talks_ahead: bool,
    /// Input that the backups hold.
    target: u64,
    target_at: Micros,
    /// Input that may be acknowledged.
    committed: u64,
    /// Since when something may be acknowledged that is not yet.
    owed_since: Micros,
    /// Input taken from the socket.
    read: u64,
    read_at: Micros,
    /// When the oldest input that waits began to wait.
    waits_since: Micros,
    /// Output given to the socket, and what the peer acknowledged of it.
    written: u64,
    acked: u64,
    written_at: Micros,
    /// Output that the peer had before this node took over.
    surplus: u64,
}

impl AckGate {
    /// Of a leg that was just established. `mss`: bytes of a full segment.
    pub fn new(origin: Origin, mss: u16, now: Micros) -> AckGate {
        AckGate {
            origin,
            mss,
            end: End::Open,
            talks_ahead: false,
            target: 0,
            target_at: now,
            committed: 0,
            owed_since: now,
            read: 0,
            read_at: now,
            waits_since: now,
            written: 0,
            acked: 0,
            written_at: now,
            surplus: 0,
        }
    }

    /// Of a leg taken over.
    pub fn resumed(origin: Origin, mss: u16, stands: ResumePoint, now: Micros) -> AckGate {
        let ResumePoint { received, ended, sent, acked } = stands;
        AckGate {
            end: if ended { End::Committed } else { End::Open },
            target: received,
            committed: received,
            read: received,
            written: acked,
            acked,
            surplus: acked.saturating_sub(sent),
            ..AckGate::new(origin, mss, now)
        }
    }

    /// Counts positions from here on: the leg carries another request.
    pub fn restart(&mut self, now: Micros) {
        self.origin.sent = self.origin.sent.wrapping_add(self.written as u32);
        self.origin.received = self.origin.received.wrapping_add(self.read as u32);
        (self.target, self.committed, self.read) = (0, 0, 0);
        (self.written, self.acked, self.surplus) = (0, 0, 0);
        (self.target_at, self.read_at, self.waits_since) = (now, now, now);
    }

    /// Sequence numbers at position 0.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Sequence numbers of the first byte that was received, and after the last one that was read.
    pub fn received(&self) -> (u32, u32) {
        (self.origin.received, self.incoming(self.read))
    }

    /// Sequence number after everything written, and our FIN.
    pub fn end_sequence(&self) -> u32 {
        self.outgoing(self.written).wrapping_add(1)
    }

    fn incoming(&self, position: u64) -> u32 {
        self.origin.received.wrapping_add(position as u32)
    }

    fn outgoing(&self, position: u64) -> u32 {
        self.origin.sent.wrapping_add(position as u32)
    }

    // ---- input ----

    /// Input was read.
    pub fn handle_read(&mut self, bytes: usize, now: Micros) {
        if self.read == self.target {
            self.waits_since = now;
        }
        self.read += bytes as u64;
        self.read_at = now;
    }

    /// The peer's end was read.
    pub fn handle_end(&mut self) {
        if self.end == End::Open {
            self.end = End::Read;
        }
    }

    /// More is about to be read that nothing of ours asked for, while something may be unacknowledged. Who waits for
    /// acknowledgements before saying more (RFC 9293, 3.7.4) does not do that.
    pub fn note_next(&mut self, gate: &impl AckSlot) {
        self.talks_ahead |= is_after(self.incoming(self.read), gate.sent_ack());
    }

    /// Nothing came from the peer although something is unacknowledged: it may wait for that after all.
    pub fn note_silence(&mut self) {
        self.talks_ahead = false;
    }

    /// Whether the peer may wait for an acknowledgement before it says more.
    pub fn can_wait_for_ack(&self) -> bool {
        !self.talks_ahead
    }

    // ---- output ----

    /// Output was given to the socket.
    pub fn handle_written(&mut self, bytes: usize, now: Micros) {
        self.written += bytes as u64;
        self.written_at = now;
    }

    /// How many of the next `bytes` of output the peer has already: they must not be sent.
    pub fn skip_delivered(&mut self, bytes: usize) -> usize {
        let skip = self.surplus.min(bytes as u64);
        self.surplus -= skip;
        skip as usize
    }

    /// Whether the peer has output that is yet to be made again.
    pub fn has_undelivered_skip(&self) -> bool {
        self.surplus > 0
    }

    /// What the peer acknowledged, if it is more than before.
    pub fn newly_acked(&mut self, gate: &impl AckSlot) -> Option<u64> {
        let ahead = gate.peer_acked().wrapping_sub(self.outgoing(self.acked)) as i32;
        if ahead <= 0 || self.acked >= self.written {
            return None;
        }
        self.acked = (self.acked + ahead as u64).min(self.written); // our FIN counts one
        Some(self.acked)
    }

    /// The sequence number of which the gate must tell when the peer acknowledges it, unless looking at it before long is
    /// enough ([`Positions::next_ack_check`]). `eager`: something waits for it.
    pub fn watched(&self, eager: bool, now: Micros) -> Option<u32> {
        let flying = self.written.saturating_sub(self.acked);
        if flying == 0 || (!eager && self.is_looked_at(now)) {
            return None;
        }
        let at = if flying > FLIGHT_SMALL { self.acked + flying / 2 } else { self.written };
        Some(self.outgoing(at))
    }

    /// A small flight, for as long as looking at it now and then is enough.
    fn is_looked_at(&self, now: Micros) -> bool {
        let flying = self.written.saturating_sub(self.acked);
        flying > 0 && flying <= FLIGHT_SMALL && now.since(self.written_at) < CHECK_FOR
    }

    // ---- acknowledgements ----

    /// The backups hold the input up to `position`. True when so much may be acknowledged now that it should be, whether
    /// something goes to the peer or not.
    pub fn release(&mut self, gate: &mut impl AckSlot, position: u64, now: Micros) -> bool {
        if position == u64::MAX {
            self.target = self.read;
            return self.commit(gate, self.read, now) | self.release_end(gate);
        }
        if position <= self.target {
            return false;
        }
        self.target = position.min(self.read);
        self.target_at = now;
        self.waits_since = now;
        let open = self.read - self.committed;
        let held_back = if open <= self.small() { 0 } else { (open / 2).min(WITHHELD_BYTES_MAX) };
        if !self.commit(gate, self.target.saturating_sub(held_back), now) {
            return false;
        }
        let owed = self.owed(gate);
        // In the middle of a stream a packet for each segment or two would be as many as the stream's own.
        owed >= ACKED_AT_ONCE || (owed >= self.small() && self.target == self.read)
    }

    fn small(&self) -> u64 {
        SMALL_SEGMENTS * u64::from(self.mss)
    }

    /// What may be acknowledged and is not yet, in bytes.
    fn owed(&self, gate: &impl AckSlot) -> u64 {
        let owed = self.incoming(self.committed).wrapping_sub(gate.sent_ack());
        u64::try_from(owed as i32).unwrap_or(0)
    }

    /// More is about to be owed. What is owed already is not owed later for that.
    fn note_owed(&mut self, gate: &impl AckSlot, now: Micros) {
        if !gate.owes_ack() {
            self.owed_since = now;
        }
    }

    /// Whether nothing has taken the acknowledgement along that this leg owes.
    pub fn is_overdue(&self, gate: &impl AckSlot, now: Micros) -> bool {
        now.since(self.owed_since) >= OWED_AFTER && gate.owes_ack()
    }

    /// Lets go of what is held back once the stream rests. True when more may be acknowledged now.
    pub fn ack_if_due(&mut self, gate: &mut impl AckSlot, now: Micros) -> bool {
        now.since(self.target_at) >= RIPE_AFTER && self.commit(gate, self.ripe(), now)
    }

    /// How much may be acknowledged when the stream rests.
    fn ripe(&self) -> u64 {
        let spared = SPARED_SEGMENTS * u64::from(self.mss);
        self.target.saturating_sub(spared.min(self.read - self.target))
    }

    /// The leg goes to the pool, where nobody watches the time: nothing is held back any more. False when the backups lack
    /// some of what was read.
    pub fn on_idle(&mut self, gate: &mut impl AckSlot, now: Micros) -> bool {
        self.commit(gate, self.target, now);
        self.committed == self.read
    }

    /// Input up to this sequence number may be acknowledged, whatever the leg carries by now.
    pub fn allow_ack(&mut self, gate: &mut impl AckSlot, sequence: u32, now: Micros) {
        if is_after(sequence, gate.committed()) {
            self.note_owed(gate, now);
            gate.set_committed(sequence);
        }
    }

    /// When something is due that time alone brings. `inside`: the input ends inside something, so its peer has more to say and
    /// may wait for an acknowledgement before; what is whole is acknowledged most often with what goes the other way.
    pub fn next_ack_check(&self, gate: &impl AckSlot, inside: bool, now: Micros) -> Option<Delay> {
        let waits = self.target < self.read;
        let polled = waits && now.since(self.waits_since.max(self.read_at)) < POLLED_FOR;
        if self.committed < self.ripe() || (polled && inside) {
            Some(Delay::Short)
        } else if polled || self.is_looked_at(now) || gate.owes_ack() {
            Some(Delay::Medium)
        } else {
            waits.then_some(Delay::Long)
        }
    }

    /// Whether input has waited so long that it must be stashed with the backups.
    pub fn is_stalled(&self, extent: InputBoundary, now: Micros) -> bool {
        let waited = now.since(self.waits_since);
        let is_long = match extent {
            InputBoundary::Partial => {
                waited >= STASH_AT_LAST || now.since(self.read_at.max(self.target_at)) >= STASH_AFTER
            }
            InputBoundary::Open => waited >= STASH_AT_LAST,
            InputBoundary::Whole => waited >= STASH_ALL_AFTER,
        };
        self.target < self.read && is_long
    }

    /// The peer's end may be acknowledged: the backups know of it. True when it was waiting.
    pub fn release_end(&mut self, gate: &mut impl AckSlot) -> bool {
        self.target >= self.read && self.commit_end(gate)
    }

    /// The connection is over. True when the peer waits for the acknowledgement of its end: it came after ours, so nothing
    /// that our kernel says will take it along, and what our kernel said was withheld.
    pub fn finish_end(&mut self, gate: &mut impl AckSlot) -> bool {
        self.commit_end(gate) && gate.owes_ack()
    }

    fn commit_end(&mut self, gate: &mut impl AckSlot) -> bool {
        if self.end != End::Read {
            return false;
        }
        self.end = End::Committed;
        (self.target, self.committed) = (self.read, self.read);
        gate.set_committed(self.incoming(self.read).wrapping_add(1));
        true
    }

    fn commit(&mut self, gate: &mut impl AckSlot, position: u64, now: Micros) -> bool {
        if position <= self.committed {
            return false;
        }
        self.committed = position;
        self.allow_ack(gate, self.incoming(position), now);
        true
    }

    /// Panics when one of the invariants that hold after every call does not.
    pub fn check_invariants(&self) {
        assert!(self.committed <= self.target && self.target <= self.read, "{self:?}");
        assert!(self.acked <= self.written, "{self:?}");
        assert!(self.end != End::Committed || self.committed == self.read, "{self:?}");
    }
}

/// Of two sequence numbers that are less than half of all apart.
fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) as i32 > 0
}

#[cfg(test)]
mod tests;
