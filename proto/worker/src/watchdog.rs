//! Watchdog counter: shows other threads whether a worker makes progress.
//!
//! A worker that waits for events is healthy however long it waits; a working one must make progress. One number shows
//! both: even while the worker waits, odd while it works, and a new value after each step.

use std::sync::atomic::{AtomicU64, Ordering};

const ENDED: u64 = u64::MAX;

/// The pulse of one worker, which alone writes it.
#[derive(Debug, Default)]
pub struct Watchdog(AtomicU64);

impl Watchdog {
    /// The worker waits for events.
    pub fn rest(&self) {
        self.0.store((self.0.load(Ordering::Relaxed) | 1) + 1, Ordering::Relaxed);
    }

    /// The worker has finished a step of its work.
    pub fn beat(&self) {
        self.0.store((self.0.load(Ordering::Relaxed) + 1) | 1, Ordering::Relaxed);
    }

    /// The worker's thread has ended, for any reason.
    pub fn end(&self) {
        self.0.store(ENDED, Ordering::Relaxed);
    }

    /// Whether the worker has made progress since the last call with the same `last`, or has nothing to do.
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
    fn stuck_or_ended_worker_makes_no_progress() {
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
