//! The end of a worker's wait.

use evergate_base::Wake;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the wait is to end.
#[derive(Debug, Default)]
pub struct MemoryWaker(AtomicBool);

impl MemoryWaker {
    /// Whether the worker was woken since the last [`MemoryWaker::clear`].
    pub fn is_woken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the wake-ups.
    pub fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Wake for MemoryWaker {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
