//! Frame batching: decides whether frames leave now or wait for more.
//!
//! A record and a packet for each frame would cost more than the frames. The frames of a busy worker wait for those of
//! the next turn, and frames without dependent output a little longer. The caller passes the time, and turns of the
//! loop are counted.

use evergate_base::Micros;

/// Turns for which frames wait for more when the next turn begins at once.
const BATCHED_TURNS_MAX: u32 = 2;
/// How long frames about streams' acknowledgements wait; how long other frames without dependent output wait; and up to
/// how many bytes.
const STREAM_SPAN: Micros = Micros(300);
const LONG_SPAN: Micros = Micros::from_ms(2);
const WAITING_BYTES_MAX: usize = 16_384;

/// Start of the turn that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTurn {
    /// This turn had no event: the next one may be far away.
    Idle,
    /// There were events, and there may be more.
    AtOnce,
    /// The worker waits for more events before the next turn: frames wait for one such turn only.
    Batched,
}

/// How long a frame may wait for more frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Long: only peers wait for acknowledgements of it, between two messages.
    #[default]
    None,
    /// A little: these peers are in the middle of a stream.
    Some,
    /// Not at all: output waits for its acknowledgement.
    Full,
}

/// Batches the frames of a worker, to all backups together.
#[derive(Debug, Default)]
pub struct FrameBatcher {
    /// Turns for which frames have waited, since when, and their highest urgency.
    turns: u32,
    since: Micros,
    urgency: Urgency,
}

impl FrameBatcher {
    /// Raises the urgency of the waiting frames.
    pub fn hurry(&mut self, urgency: Urgency) {
        self.urgency = self.urgency.max(urgency);
    }

    /// Ends a turn: whether the frames leave now, of which `waiting` bytes wait.
    pub fn may_leave(&mut self, next: NextTurn, waiting: usize, now: Micros) -> bool {
        if self.turns == 0 {
            self.since = now;
        }
        let waits = match self.urgency {
            Urgency::Full => match next {
                NextTurn::Idle => false,
                NextTurn::AtOnce => self.turns < BATCHED_TURNS_MAX,
                NextTurn::Batched => self.turns == 0,
            },
            Urgency::Some => now.since(self.since) < STREAM_SPAN,
            Urgency::None => now.since(self.since) < LONG_SPAN,
        };
        let waits = waits && waiting > 0 && (self.urgency == Urgency::Full || waiting < WAITING_BYTES_MAX);
        self.turns = if waits { self.turns + 1 } else { 0 };
        !waits
    }

    /// All frames have left: the next ones begin without urgency. Frames that could not leave go with the next turn.
    pub fn note_gone(&mut self) {
        self.urgency = Urgency::None;
    }

    /// Whether frames wait.
    pub fn is_waiting(&self) -> bool {
        self.turns > 0
    }

    /// Whether some frames have urgency, if only for an acknowledgement.
    pub fn is_expected(&self) -> bool {
        self.turns > 0 && self.urgency != Urgency::None
    }

    /// Whether some frames wait for the next turn only, which must not wait for events.
    pub fn is_urgent(&self) -> bool {
        self.turns > 0 && self.urgency == Urgency::Full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When frames of that urgency leave that began to wait at 1 ms, checked every 100 us; in microseconds.
    fn waits_for(urgency: Urgency, next: NextTurn, waiting: usize) -> u64 {
        let mut batcher = FrameBatcher::default();
        batcher.hurry(urgency);
        (0..)
            .map(|turn| turn * 100)
            .find(|at| batcher.may_leave(next, waiting, Micros(1_000 + at)))
            .unwrap_or(0)
    }

    #[test]
    fn frames_wait_by_their_urgency() {
        let urgent = [NextTurn::Idle, NextTurn::AtOnce, NextTurn::Batched]
            .map(|next| waits_for(Urgency::Full, next, 9));
        assert_eq!(urgent, [0, 200, 100]);
        let next = NextTurn::AtOnce;
        assert_eq!([waits_for(Urgency::Some, next, 9), waits_for(Urgency::None, next, 9)], [300, 2_000]);
        assert_eq!(waits_for(Urgency::None, next, WAITING_BYTES_MAX), 0, "enough batcher");
        assert_eq!(waits_for(Urgency::Full, next, WAITING_BYTES_MAX), 200);
        assert_eq!(waits_for(Urgency::None, next, 0), 0, "no frame waits");
    }

    #[test]
    fn urgent_frame_takes_all_others_along() {
        let mut batcher = FrameBatcher::default();
        assert!(
            !batcher.may_leave(NextTurn::Idle, 9, Micros(0)) && batcher.is_waiting() && !batcher.is_urgent()
        );
        assert!(!batcher.is_expected());
        batcher.hurry(Urgency::Some);
        assert!(batcher.is_expected() && !batcher.is_urgent());
        batcher.hurry(Urgency::Full);
        batcher.hurry(Urgency::None);
        assert!(
            batcher.is_urgent() && batcher.may_leave(NextTurn::Idle, 18, Micros(1)) && !batcher.is_waiting()
        );
        batcher.note_gone();
        assert!(!batcher.may_leave(NextTurn::Idle, 9, Micros(2)));
    }
}
