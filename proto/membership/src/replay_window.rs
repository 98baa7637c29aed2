//! The received sequence numbers of a peer's incarnation: duplicates and replays are refused.

/// Width of the window, in messages: an older message is refused. Two paths with 5 ms heartbeats and a burst of bucket
/// operations stay well below.
const WIDTH: u64 = 1024;

const WORDS: usize = (WIDTH / 64) as usize;

/// A sliding window over sequence numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ReplayWindow {
    /// Highest number received; 0 for none, since numbers begin at 1.
    highest: u64,
    seen: [u64; WORDS],
}

/// Verdict of the window on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    New,
    Duplicate,
    TooOld,
}

impl ReplayWindow {
    /// Records `sequence`.
    pub(crate) fn note(&mut self, sequence: u64) -> Seen {
        if sequence == 0 || self.highest.saturating_sub(sequence) >= WIDTH {
            return Seen::TooOld;
        }
        if sequence > self.highest {
            self.slide(sequence);
        }
        let (word, bit) = ((sequence / 64) as usize % WORDS, 1u64 << (sequence % 64));
        match self.seen.get_mut(word) {
            Some(bits) if *bits & bit == 0 => {
                *bits |= bit;
                Seen::New
            }
            _ => Seen::Duplicate,
        }
    }

    fn slide(&mut self, to: u64) {
        if to - self.highest >= WIDTH {
            self.seen = [0; WORDS];
        } else {
            for sequence in self.highest + 1..=to {
                if let Some(bits) = self.seen.get_mut((sequence / 64) as usize % WORDS) {
                    *bits &= !(1u64 << (sequence % 64));
                }
            }
        }
        self.highest = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn no_number_is_new_twice_and_none_in_the_window_is_lost(
            steps in prop::collection::vec((0u64..3000, any::<bool>()), 1..400)
        ) {
            let (mut window, mut accepted, mut highest) = (ReplayWindow::default(), BTreeSet::new(), 0u64);
            for (step, back) in steps {
                let sequence = if back { highest.saturating_sub(step) } else { highest + step };
                let new = window.note(sequence) == Seen::New;
                prop_assert!(!new || accepted.insert(sequence));
                prop_assert!(new || sequence == 0 || accepted.contains(&sequence) || sequence + WIDTH <= highest);
                highest = highest.max(sequence);
            }
        }
    }

    #[test]
    fn largest_number_does_not_overflow() {
        let mut window = ReplayWindow::default();
        assert_eq!(window.note(u64::MAX), Seen::New);
        assert_eq!(window.note(u64::MAX), Seen::Duplicate);
    }
}
