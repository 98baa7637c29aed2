//! Input that is not acknowledged yet, retained so that it can be stashed.
//!
//! Invariant: the stash follows without a gap on the replicated input, because an acknowledgement covers all that comes
//! before it.

use std::collections::VecDeque;

/// Memory that a stream may keep between two messages, in bytes.
const IDLE_BYTES_MAX: usize = 65_536;
const RETAINED_BETWEEN: usize = 4_096;
/// Bytes of one stash entry at most; more becomes several entries.
const STASH_BYTES: u64 = 65_536;
/// Bytes stashed of one direction at most: the state of a connection has to fit into a frame. More waits for its peer.
const STASH_MAX: u64 = 1 << 20;
/// Bytes that a request may take, head and body with their framing, until its rules have decided: less than the stash,
/// because records have framing too. A longer request is acknowledged no further, and never decided.
pub const UNDECIDED_MAX: usize = (STASH_MAX - STASH_MAX / 32) as usize;
/// Bytes retained of a body that is forwarded in any case. Its server receives loss notices although the client is far
/// away, and by then knows the round trip of an acknowledgement.
const STASH_BYTES_MAX: u64 = 262_144;
/// Bytes retained of such a body's end, more than two records. A loss notice cannot report a lost segment that nothing
/// follows (docs/decisions/0023), and the server's timer has grown with its client's slowness.
pub(crate) const TAIL_BYTES: u64 = 49_152;

/// Input of one peer. Bound: what it may send beyond our ACKs.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    start: u64,
    bytes: VecDeque<u8>,
    /// The end of what was stashed.
    stashed: u64,
}

impl Retained {
    /// Nothing is retained yet of a stream whose next byte is at `at`; the bytes before it are replicated.
    pub(crate) fn starting_at(at: u64) -> Retained {
        Retained { start: at, stashed: at, ..Retained::default() }
    }

    pub(crate) fn append(&mut self, at: u64, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.start = at;
        }
        if at == self.end() {
            self.bytes.extend(bytes);
        }
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn slice(&self, from: u64, to: u64) -> Vec<u8> {
        let end = to.saturating_sub(self.start).min(self.bytes.len() as u64) as usize;
        let start = (from.saturating_sub(self.start) as usize).min(end);
        self.bytes.range(start..end).copied().collect()
    }

    pub(crate) fn drop_before(&mut self, at: u64) {
        if at > self.start {
            let cut = (at - self.start).min(self.bytes.len() as u64) as usize;
            self.bytes.drain(..cut);
            self.start = at;
        }
        if self.bytes.capacity() > IDLE_BYTES_MAX {
            self.shrink_to(0);
        }
    }

    /// Position and bytes of the next stash below `to`.
    pub(crate) fn next_stash(&mut self, to: u64) -> Option<(u64, Vec<u8>)> {
        let from = self.stashed.max(self.start);
        let to = to.min(self.start.saturating_add(STASH_MAX)).min(from.saturating_add(STASH_BYTES));
        let bytes = self.slice(from, to);
        self.stashed = from + bytes.len() as u64;
        (!bytes.is_empty()).then_some((from, bytes))
    }

    /// Nothing so far is needed any more: what comes next is at `at`.
    fn begin_again(&mut self, at: u64) {
        self.bytes.clear();
        self.start = at;
        self.shrink();
    }

    /// A message has ended; the next one may follow soon.
    pub(crate) fn shrink(&mut self) {
        self.shrink_to(RETAINED_BETWEEN);
    }

    /// No message follows soon.
    pub(crate) fn on_idle(&mut self) {
        self.shrink_to(0);
    }

    fn shrink_to(&mut self, kept: usize) {
        if self.bytes.is_empty() && self.bytes.capacity() > kept {
            self.bytes = VecDeque::new();
        }
    }
}

/// Input of the server leg in use.
#[derive(Debug, Default)]
pub(crate) struct ServerInput {
    leg: u32,
    kept: Retained,
    /// The end of a body of which no more is kept: it follows on what is kept when the client has all between the two.
    tail: Retained,
    /// Where the response that is kept begins.
    begun: u64,
    /// The leg whose input is passed on in any case, and the one of which no more is kept for that; 0 for none.
    passed_on: u32,
    unkept: u32,
}

impl ServerInput {
    /// A restored leg: its bytes before `at` are replicated, then the stash follows.
    pub(crate) fn restore(&mut self, leg: u32, at: u64, stash: &[u8]) {
        self.leg = leg;
        (self.kept, self.tail, self.begun) = (Retained::starting_at(at), Retained::default(), at);
        self.kept.append(at, stash);
        self.kept.stashed = self.kept.end();
    }

    /// A response begins, which is passed on in any case if it is of this leg; 0 for none.
    pub(crate) fn pass_on(&mut self, leg: u32) {
        self.passed_on = leg;
    }

    /// Retains bytes of a leg at a position of its stream. `left`: the remaining bytes of a body of known length, these
    /// included; `None` elsewhere.
    pub(crate) fn retain(&mut self, leg: u32, at: u64, bytes: &[u8], left: Option<u64>) {
        if self.leg != leg {
            self.restore(leg, 0, &[]);
        }
        let follows = at == self.kept.end();
        if left.is_none() && follows && self.kept.bytes.is_empty() {
            (self.begun, self.unkept) = (at, 0);
        }
        if self.passed_on == leg && self.kept.end() - self.begun >= STASH_BYTES_MAX {
            self.unkept = leg;
        }
        let ends = left.is_none_or(|left| left <= TAIL_BYTES + bytes.len() as u64);
        if follows && (ends || self.unkept != leg) {
            self.kept.append(at, bytes);
        } else if ends {
            if at != self.tail.end() {
                self.tail.begin_again(at);
            }
            self.tail.append(at, bytes);
        }
    }

    /// The backups know that all before `at` was passed on.
    pub(crate) fn drop_before(&mut self, leg: u32, at: u64) {
        if leg != self.leg {
            return;
        }
        self.kept.drop_before(at);
        if !self.tail.bytes.is_empty() && self.tail.start <= self.kept.start {
            self.tail.drop_before(self.kept.start);
            let stashed = self.kept.stashed;
            self.kept = Retained { stashed, ..std::mem::take(&mut self.tail) };
        }
    }

    /// The client has all bytes of this leg so far, which end at `at`.
    pub(crate) fn forget(&mut self, leg: u32, at: u64) {
        if leg == self.leg {
            self.kept.begin_again(at.max(self.kept.end()));
            self.tail.begin_again(0);
        }
    }

    /// Position and bytes of the next stash of a leg, below `to`.
    pub(crate) fn next_stash(&mut self, leg: u32, to: u64) -> Option<(u64, Vec<u8>)> {
        if leg == self.leg { self.kept.next_stash(to) } else { None }
    }

    pub(crate) fn end(&self) -> u64 {
        self.kept.end()
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len() + self.tail.len()
    }

    /// No message follows soon.
    pub(crate) fn rest(&mut self) {
        self.kept.on_idle();
        self.tail.on_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of what is stashed when all that may be is.
    fn stash(input: &mut ServerInput, leg: u32) -> (u64, usize) {
        let mut bytes = 0;
        while let Some((_, piece)) = input.next_stash(leg, u64::MAX) {
            bytes += piece.len();
        }
        (input.kept.stashed, bytes)
    }

    #[test]
    fn memory_is_kept_between_messages_but_not_at_rest() {
        let kept = |length: usize| {
            let mut retained = Retained::default();
            retained.append(0, &vec![7; length]);
            retained.on_idle();
            assert!(retained.bytes.capacity() >= length, "it is needed");
            retained.drop_before(length as u64);
            retained.shrink();
            let between = retained.bytes.capacity();
            retained.on_idle();
            (between >= length, retained.bytes.capacity())
        };
        assert_eq!([kept(1_300), kept(5_000)], [(true, 0), (false, 0)]);
    }

    #[test]
    fn a_stash_is_bounded() {
        let mut input = ServerInput::default();
        input.retain(1, 0, &vec![7; 3 << 20], None);
        assert_eq!([stash(&mut input, 1), stash(&mut input, 1)], [(STASH_MAX, 1 << 20), (STASH_MAX, 0)]);
        input.drop_before(1, 1000);
        assert_eq!(stash(&mut input, 1), (STASH_MAX + 1000, 1000), "what is passed on makes room");
    }

    /// Takes a body of `length` bytes from `at` on, in reads of 100,000.
    fn take_body(input: &mut ServerInput, at: u64, length: u64) {
        for from in (0..length).step_by(100_000) {
            let left = length - from;
            input.retain(1, at + from, &vec![7; left.min(100_000) as usize], Some(left));
        }
    }

    #[test]
    fn middle_of_a_forwarded_body_is_not_retained() {
        let mut input = ServerInput::default();
        input.pass_on(1);
        take_body(&mut input, 0, 1_000_000);
        assert_eq!(stash(&mut input, 1), (300_000, 300_000), "the first");
        assert!(input.len() <= 400_000 + TAIL_BYTES as usize);
        for had in [300_000, 500_000, 899_999] {
            input.drop_before(1, had);
            assert_eq!(stash(&mut input, 1), (had.max(300_000), 0), "the end does not follow");
        }
        input.drop_before(1, 950_000);
        assert_eq!(stash(&mut input, 1), (1_000_000, 50_000), "now it does");
        // The next response on the same leg, of a client that has all of this one.
        input.drop_before(1, 1_000_000);
        input.retain(1, 1_000_000, b"head", None);
        take_body(&mut input, 1_000_004, 1_000_000);
        assert_eq!(stash(&mut input, 1), (1_300_004, 300_004), "its first");
        input.retain(2, 0, b"head", None);
        assert_eq!((stash(&mut input, 1), stash(&mut input, 2)), ((0, 0), (4, 4)));
    }

    #[test]
    fn unread_response_is_retained_from_both_ends() {
        let mut input = ServerInput::default();
        input.pass_on(1);
        take_body(&mut input, 0, 310_000);
        assert_eq!(stash(&mut input, 1), (310_000, 310_000), "there is no middle");
        // One behind another, of which not all has arrived.
        input.retain(1, 310_000, b"head", None);
        assert_eq!(stash(&mut input, 1), (310_004, 4));
        take_body(&mut input, 310_004, 500_000);
        assert_eq!(stash(&mut input, 1), (310_004, 0));
        input.drop_before(1, 780_000);
        assert_eq!(stash(&mut input, 1), (810_004, 30_004));
    }

    #[test]
    fn released_input_leaves_no_gap() {
        let mut input = ServerInput::default();
        input.pass_on(1);
        take_body(&mut input, 0, 1_000_000);
        input.forget(1, 1_000_000);
        input.retain(1, 1_000_000, b"head", None);
        assert_eq!(stash(&mut input, 1), (1_000_004, 4));
        input.restore(2, 70, b"stash");
        assert_eq!((stash(&mut input, 2), input.end()), ((75, 0), 75));
        input.retain(2, 80, b"later", None);
        assert_eq!(stash(&mut input, 2), (75, 0), "something is missing before it");
    }
}
