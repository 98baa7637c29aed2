//! Whether a worker gets on with its work, as others can see it.
//!
//! A worker that waits for events is well however long it waits; one that is at work must get on. One number tells both:
//! even while it waits, odd while it works, and another one after each step.

use std::sync::atomic::{AtomicU64, Ordering};

const ENDED: u64 = u64::MAX;

/// The pulse of one worker, which alone writes it.
#[derive(Debug, Default)]
pub struct Watchdog(AtomicU64);

impl Watchdog {
    /// The worker waits for events.
    pub(in crate::worker) fn rest(&self) {
        self.0.store((self.0.load(Ordering::Relaxed) | 1) + 1, Ordering::Relaxed);
    }

    /// The worker is at work, and has just finished a step.
    pub(in crate::worker) fn beat(&self) {
        self.0.store((self.0.load(Ordering::Relaxed) + 1) | 1, Ordering::Relaxed);
    }

    /// The worker's thread has ended, however it did.
    pub fn end(&self) {
        self.0.store(ENDED, Ordering::Relaxed);
    }

    /// Whether it got on since this was asked with the same `last`, or has nothing to do.
    pub fn continues(&self, last: &mut u64) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        let before = std::mem::replace(last, now);
        now != ENDED && (now.is_multiple_of(2) || now != before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_waits_or_gets_on_is_well_and_one_that_is_stuck_or_ended_is_not() {
        let (pulse, mut last) = (Watchdog::default(), 0);
        assert!(pulse.continues(&mut last) && pulse.continues(&mut last), "it waits for its first event");
        pulse.beat();
        assert!(pulse.continues(&mut last));
        assert!(!pulse.continues(&mut last), "the same step as before");
        pulse.beat();
        assert!(pulse.continues(&mut last));
        pulse.rest();
        assert!(pulse.continues(&mut last) && pulse.continues(&mut last));
        pulse.beat();
        pulse.end();
        assert!(!pulse.continues(&mut last));
    }
}
