//! ACK gate of one leg: maps stream positions to sequence numbers, and decides how much safe input is acknowledged.
//!
//! Invariants: nothing above `target` is committed, and nothing above the input at the backups becomes `target`; both
//! only rise. While a stream runs, some safe input stays unacknowledged on purpose. After a failover the new owner
//! needs an acknowledgement that lets the peer continue, or the peer waits for its retransmission timer. A request and
//! its response need no packets for acknowledgements alone: they leave with the next data, and alone only when no data
//! leaves for a while. This module sends nothing; the packet filter's state comes through [`AckSlot`].

use evergate_base::Micros;

/// Most safe input that is withheld from acknowledgement, in bytes.
const WITHHELD_BYTES_MAX: u64 = 65_536;
/// Withheld input is acknowledged after this time without new input.
const COMMIT_AFTER: Micros = Micros::from_ms(1);
/// Segments that stay withheld even then, while later input of the peer lacks backups. The first segment that the peer
/// counts as unacknowledged is the one that its timer has retransmitted needlessly, and that it would not retransmit
/// after a loss notice (docs/decisions/0023).
const WITHHELD_SEGMENTS: u64 = 4;
/// Input of fewer segments is acknowledged with output that leaves soon (RFC 9293, 3.8.6.3).
const SMALL_SEGMENTS: u64 = 2;
/// Delay after which an owed ACK leaves without output.
const ACK_DELAY_MAX: Micros = Micros::from_ms(5);
/// Owed input that is acknowledged at once even while more of the stream lacks backups, in bytes.
const ACK_AT_ONCE_BYTES: u64 = 65_536;
/// Bytes in flight above which the gate watches for acknowledgements. Fewer are checked later: most often the
/// acknowledgement comes with the peer's next bytes.
const FLIGHT_SMALL: u64 = 65_536;
/// How long a small flight is checked by timers: a peer may never answer.
const FLIGHT_CHECKS_FOR: Micros = Micros::from_ms(5);
/// Unacknowledged input is stashed after this time without progress.
const STASH_AFTER: Micros = Micros::from_ms(1);
/// Partial input is stashed after this time even while more arrives.
const STASH_PARTIAL_MAX: Micros = Micros::from_ms(100);
/// Whole messages are stashed after this time: most clients have their response by then, and the timers of servers have
/// grown.
const STASH_WHOLE_AFTER: Micros = Micros::from_ms(1000);
/// Input that waits longer than this is checked only now and then: it was stashed, or may not be.
const POLLED_FOR: Micros = Micros::from_ms(200);

/// Packet filter's slot of one flow: lets ACKs leave, and reports the peer's. All values are sequence numbers.
pub trait AckSlot {
    /// The highest ACK that may leave.
    fn committed(&self) -> u32;

    /// Lets ACKs up to `ack` leave. The value never goes backwards, and nothing is sent by itself.
    fn set_committed(&mut self, ack: u32);

    /// The highest ACK that has left.
    fn sent_ack(&self) -> u32;

    /// The peer's newest acknowledgement of our output, our FIN included.
    fn peer_acked(&self) -> u32;

    /// Whether less has been acknowledged than may be.
    fn owes_ack(&self) -> bool {
        self.sent_ack() != self.committed()
    }
}

/// Sequence numbers from which positions in the two streams are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Sequence number of the first byte that we send.
    pub sent: u32,
    /// Sequence number of the first byte that the peer sends.
    pub received: u32,
}

/// Boundary at which the input of a leg ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputBoundary {
    /// Inside a unit that only more input completes. The peer may be unable to send more before an acknowledgement.
    Partial,
    /// More may come.
    Open,
    /// After a whole message: the peer has sent everything for now.
    Whole,
}

/// Delay until the next check of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Delay {
    /// In a moment: input is withheld, or may have to be stashed.
    Short,
    /// In a while: an acknowledgement is yet to be sent or received.
    Medium,
    /// Now and then: a peer has accepted nothing for long, and its next ACK causes an event.
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

/// Position from which a recovered leg resumes.
#[derive(Clone, Copy, Debug)]
pub struct ResumePoint {
    /// Replicated input of the peer.
    pub received: u64,
    /// The peer's FIN counts as received.
    pub ended: bool,
    /// Position from which the connection produces output again.
    pub sent: u64,
    /// Output that the peer has acknowledged.
    pub acked: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Read,
    Committed,
}

/// ACK gate of one leg. Positions count bytes from the begin of the leg's use.
#[derive(Clone, Debug)]
pub struct AckGate {
    origin: Origin,
    /// Bytes of a full segment.
    mss: u16,
    /// The peer's FIN was read; whether the backups know.
    end: End,
    /// The peer sends more before all its data is acknowledged: acknowledgements may be delayed.
    sends_ahead: bool,
    /// Input that the backups hold.
    target: u64,
    target_at: Micros,
    /// Input that may be acknowledged.
    committed: u64,
    /// Since when an acknowledgement is owed.
    owed_since: Micros,
    /// Input taken from the socket.
    read: u64,
    read_at: Micros,
    /// Since when the oldest waiting input waits.
    waits_since: Micros,
    /// Output given to the socket, and the part that the peer has acknowledged.
    written: u64,
    acked: u64,
    written_at: Micros,
    /// Output of the former owner that the peer has, and that is yet to be produced again.
    undelivered_skip: u64,
}

impl AckGate {
    /// Gate of a leg just established. `mss`: bytes of a full segment.
    pub fn new(origin: Origin, mss: u16, now: Micros) -> AckGate {
        AckGate {
            origin,
            mss,
            end: End::Open,
            sends_ahead: false,
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
            undelivered_skip: 0,
        }
    }

    /// Gate of a recovered leg.
    pub fn resumed(origin: Origin, mss: u16, resume_point: ResumePoint, now: Micros) -> AckGate {
        let ResumePoint { received, ended, sent, acked } = resume_point;
        AckGate {
            end: if ended { End::Committed } else { End::Open },
            target: received,
            committed: received,
            read: received,
            written: acked,
            acked,
            undelivered_skip: acked.saturating_sub(sent),
            ..AckGate::new(origin, mss, now)
        }
    }

    /// Counts positions from here on: the leg carries another request.
    pub fn restart(&mut self, now: Micros) {
        self.origin.sent = self.origin.sent.wrapping_add(self.written as u32);
        self.origin.received = self.origin.received.wrapping_add(self.read as u32);
        (self.target, self.committed, self.read) = (0, 0, 0);
        (self.written, self.acked, self.undelivered_skip) = (0, 0, 0);
        (self.target_at, self.read_at, self.waits_since) = (now, now, now);
    }

    /// Sequence numbers at position 0.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Sequence numbers of the first byte received, and after the last one read.
    pub fn received(&self) -> (u32, u32) {
        (self.origin.received, self.incoming(self.read))
    }

    /// Sequence number after all output, and our FIN.
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

    /// More input is about to be read that follows no output of ours, while earlier input may be unacknowledged. A peer
    /// that waits for acknowledgements before it sends more (RFC 9293, 3.7.4) does not do that.
    pub fn note_next(&mut self, gate: &impl AckSlot) {
        self.sends_ahead |= is_after(self.incoming(self.read), gate.sent_ack());
    }

    /// The peer has sent nothing while input is unacknowledged: it may wait for the acknowledgement after all.
    pub fn note_silence(&mut self) {
        self.sends_ahead = false;
    }

    /// Whether the peer may wait for an acknowledgement before it sends more.
    pub fn can_wait_for_ack(&self) -> bool {
        !self.sends_ahead
    }

    // ---- output ----

    /// Output was given to the socket.
    pub fn handle_written(&mut self, bytes: usize, now: Micros) {
        self.written += bytes as u64;
        self.written_at = now;
    }

    /// How many of the next `bytes` of output the peer already has: they must not be sent.
    pub fn skip_delivered(&mut self, bytes: usize) -> usize {
        let skip = self.undelivered_skip.min(bytes as u64);
        self.undelivered_skip -= skip;
        skip as usize
    }

    /// Whether the peer has output that is yet to be produced again.
    pub fn has_undelivered_skip(&self) -> bool {
        self.undelivered_skip > 0
    }

    /// Position that the peer has acknowledged, if it is new.
    pub fn newly_acked(&mut self, gate: &impl AckSlot) -> Option<u64> {
        let ahead = gate.peer_acked().wrapping_sub(self.outgoing(self.acked)) as i32;
        if ahead <= 0 || self.acked >= self.written {
            return None;
        }
        self.acked = (self.acked + ahead as u64).min(self.written); // our FIN counts one
        Some(self.acked)
    }

    /// Sequence number whose acknowledgement the gate must report, unless a later check suffices
    /// ([`AckGate::next_ack_check`]). `eager`: something waits for it.
    pub fn watched(&self, eager: bool, now: Micros) -> Option<u32> {
        let flying = self.written.saturating_sub(self.acked);
        if flying == 0 || (!eager && self.is_checked(now)) {
            return None;
        }
        let at = if flying > FLIGHT_SMALL { self.acked + flying / 2 } else { self.written };
        Some(self.outgoing(at))
    }

    /// Whether a small flight is young enough for later checks.
    fn is_checked(&self, now: Micros) -> bool {
        let flying = self.written.saturating_sub(self.acked);
        flying > 0 && flying <= FLIGHT_SMALL && now.since(self.written_at) < FLIGHT_CHECKS_FOR
    }

    // ---- acknowledgements ----

    /// The backups hold the input up to `position`. True when so much is owed now that an ACK should leave even without
    /// output.
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
        let withheld = if open <= self.small() { 0 } else { (open / 2).min(WITHHELD_BYTES_MAX) };
        if !self.commit(gate, self.target.saturating_sub(withheld), now) {
            return false;
        }
        let owed = self.owed(gate);
        // In the middle of a stream, an ACK for each segment or two would double the number of packets.
        owed >= ACK_AT_ONCE_BYTES || (owed >= self.small() && self.target == self.read)
    }

    fn small(&self) -> u64 {
        SMALL_SEGMENTS * u64::from(self.mss)
    }

    /// Bytes that may be acknowledged and are not yet.
    fn owed(&self, gate: &impl AckSlot) -> u64 {
        let owed = self.incoming(self.committed).wrapping_sub(gate.sent_ack());
        u64::try_from(owed as i32).unwrap_or(0)
    }

    /// Records the time of a new debt. An existing debt keeps its time.
    fn note_owed(&mut self, gate: &impl AckSlot, now: Micros) {
        if !gate.owes_ack() {
            self.owed_since = now;
        }
    }

    /// Whether the owed acknowledgement is due because no output has carried it.
    pub fn is_overdue(&self, gate: &impl AckSlot, now: Micros) -> bool {
        now.since(self.owed_since) >= ACK_DELAY_MAX && gate.owes_ack()
    }

    /// Commits withheld input once the stream idles. True when more may be acknowledged now.
    pub fn ack_if_due(&mut self, gate: &mut impl AckSlot, now: Micros) -> bool {
        now.since(self.target_at) >= COMMIT_AFTER && self.commit(gate, self.idle_target(), now)
    }

    /// Position up to which an idle stream is acknowledged.
    fn idle_target(&self) -> u64 {
        let withheld = WITHHELD_SEGMENTS * u64::from(self.mss);
        self.target.saturating_sub(withheld.min(self.read - self.target))
    }

    /// Commits all withheld input when the leg goes to the pool, where no timer runs. False when the backups lack part
    /// of the input.
    pub fn on_idle(&mut self, gate: &mut impl AckSlot, now: Micros) -> bool {
        self.commit(gate, self.target, now);
        self.committed == self.read
    }

    /// Lets input up to this sequence number be acknowledged, whatever the leg carries by now.
    pub fn allow_ack(&mut self, gate: &mut impl AckSlot, sequence: u32, now: Micros) {
        if is_after(sequence, gate.committed()) {
            self.note_owed(gate, now);
            gate.set_committed(sequence);
        }
    }

    /// Delay until the next timed check. `inside`: the input ends inside a unit, so its peer has more to send and may
    /// wait for an acknowledgement. Whole messages are mostly acknowledged with output.
    pub fn next_ack_check(&self, gate: &impl AckSlot, inside: bool, now: Micros) -> Option<Delay> {
        let waits = self.target < self.read;
        let polled = waits && now.since(self.waits_since.max(self.read_at)) < POLLED_FOR;
        if self.committed < self.idle_target() || (polled && inside) {
            Some(Delay::Short)
        } else if polled || self.is_checked(now) || gate.owes_ack() {
            Some(Delay::Medium)
        } else {
            waits.then_some(Delay::Long)
        }
    }

    /// Whether input has waited so long that it must be stashed at the backups.
    pub fn is_stalled(&self, boundary: InputBoundary, now: Micros) -> bool {
        let waited = now.since(self.waits_since);
        let is_long = match boundary {
            InputBoundary::Partial => {
                waited >= STASH_PARTIAL_MAX || now.since(self.read_at.max(self.target_at)) >= STASH_AFTER
            }
            InputBoundary::Open => waited >= STASH_PARTIAL_MAX,
            InputBoundary::Whole => waited >= STASH_WHOLE_AFTER,
        };
        self.target < self.read && is_long
    }

    /// The backups hold the peer's end, which may be acknowledged. True when it was waiting.
    pub fn release_end(&mut self, gate: &mut impl AckSlot) -> bool {
        self.target >= self.read && self.commit_end(gate)
    }

    /// Whether both streams are complete: the peer's end was read, and the peer has acknowledged ours.
    pub fn is_complete(&self, gate: &impl AckSlot) -> bool {
        self.end != End::Open && !is_after(self.end_sequence(), gate.peer_acked())
    }

    /// The connection is over. True when the peer waits for the ACK of its end: that end came after ours, so no output
    /// of the kernel carries the ACK, and the kernel's own ACK was withheld.
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

    /// Panics when an invariant is broken that holds after every call.
    pub fn check_invariants(&self) {
        assert!(self.committed <= self.target && self.target <= self.read, "{self:?}");
        assert!(self.acked <= self.written, "{self:?}");
        assert!(self.end != End::Committed || self.committed == self.read, "{self:?}");
    }
}

/// Compares two sequence numbers less than half the range apart.
fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) as i32 > 0
}

#[cfg(test)]
mod tests;
