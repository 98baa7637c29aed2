//! Whether frames leave now or wait for others.
//!
//! A record and a packet for each frame would cost more than the frames. Those of a busy worker wait for the next turn's,
//! and those that nothing waits for a little longer. Time is told, and counted in turns of the loop.

use evergate_base::Micros;

/// Turns for which frames wait for company when the next ones begin at once.
const BATCHED_TURNS_MAX: u32 = 2;
/// How long frames wait of streams' acknowledgements, and of others that nothing is sent after; and how many bytes of them.
const STREAM_SPAN: Micros = Micros(300);
const LONG_SPAN: Micros = Micros::from_ms(2);
const WAITING_BYTES_MAX: usize = 16_384;

/// What is known of the turn that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTurn {
    /// There was no event in this one: nothing more may come for long.
    Rest,
    /// There were events, and there may be more.
    AtOnce,
    /// The same, and the worker lets them gather before it looks: who waits for one such turn has waited long enough.
    Gathered,
}

/// How long a frame may wait for company.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Long: nobody waits for it to be taken in but peers for acknowledgements, between two messages.
    #[default]
    None,
    /// A little: such peers are in the middle of a stream.
    Some,
    /// Not at all: something is sent after it.
    Full,
}

/// See the module.
#[derive(Debug, Default)]
pub struct FrameBatcher {
    /// Turns for which frames have waited, since when, and how much haste there is.
    turns: u32,
    since: Micros,
    urgency: Urgency,
}

impl FrameBatcher {
    /// Among what waits is something that may wait for so long only.
    pub fn hurry(&mut self, urgency: Urgency) {
        self.urgency = self.urgency.max(urgency);
    }

    /// The end of a turn: whether the frames leave, of which so many bytes wait.
    pub fn may_leave(&mut self, next: NextTurn, waiting: usize, now: Micros) -> bool {
        if self.turns == 0 {
            self.since = now;
        }
        let waits = match self.urgency {
            Urgency::Full => match next {
                NextTurn::Rest => false,
                NextTurn::AtOnce => self.turns < BATCHED_TURNS_MAX,
                NextTurn::Gathered => self.turns == 0,
            },
            Urgency::Some => now.since(self.since) < STREAM_SPAN,
            Urgency::None => now.since(self.since) < LONG_SPAN,
        };
        let waits = waits && waiting > 0 && (self.urgency == Urgency::Full || waiting < WAITING_BYTES_MAX);
        self.turns = if waits { self.turns + 1 } else { 0 };
        !waits
    }

    /// All of them have left: whoever comes next begins without haste. What is left otherwise goes with the next turn.
    pub fn note_gone(&mut self) {
        self.urgency = Urgency::None;
    }

    /// Whether frames wait.
    pub fn is_waiting(&self) -> bool {
        self.turns > 0
    }

    /// Whether somebody waits for some of them, if only for an acknowledgement.
    pub fn is_expected(&self) -> bool {
        self.turns > 0 && self.urgency != Urgency::None
    }

    /// Whether some of them wait for the next turn only, which must not wait for events.
    pub fn is_urgent(&self) -> bool {
        self.turns > 0 && self.urgency == Urgency::Full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When frames of that haste leave that began to wait at 1 ms, looked at once in 100 us; in microseconds.
    fn waits_for(urgency: Urgency, next: NextTurn, waiting: usize) -> u64 {
        let mut company = FrameBatcher::default();
        company.hurry(urgency);
        (0..)
            .map(|turn| turn * 100)
            .find(|at| company.may_leave(next, waiting, Micros(1_000 + at)))
            .unwrap_or(0)
    }

    #[test]
    fn frames_wait_as_long_as_nothing_waits_for_them() {
        let urgent = [NextTurn::Rest, NextTurn::AtOnce, NextTurn::Gathered]
            .map(|next| waits_for(Urgency::Full, next, 9));
        assert_eq!(urgent, [0, 200, 100]);
        let busy = NextTurn::AtOnce;
        assert_eq!([waits_for(Urgency::Some, busy, 9), waits_for(Urgency::None, busy, 9)], [300, 2_000]);
        assert_eq!(waits_for(Urgency::None, busy, WAITING_BYTES_MAX), 0, "enough company");
        assert_eq!(waits_for(Urgency::Full, busy, WAITING_BYTES_MAX), 200);
        assert_eq!(waits_for(Urgency::None, busy, 0), 0, "there is none");
    }

    #[test]
    fn one_in_haste_takes_the_others_along_and_leaves_none_behind() {
        let mut company = FrameBatcher::default();
        assert!(
            !company.may_leave(NextTurn::Rest, 9, Micros(0)) && company.is_waiting() && !company.is_urgent()
        );
        assert!(!company.is_expected());
        company.hurry(Urgency::Some);
        assert!(company.is_expected() && !company.is_urgent());
        company.hurry(Urgency::Full);
        company.hurry(Urgency::None);
        assert!(
            company.is_urgent() && company.may_leave(NextTurn::Rest, 18, Micros(1)) && !company.is_waiting()
        );
        company.note_gone();
        assert!(!company.may_leave(NextTurn::Rest, 9, Micros(2)));
    }
}
