//! The end of a worker's wait.

use evergate_base::Wake;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the wait is to end.
#[derive(Debug, Default)]
pub(crate) struct ModelWaker(AtomicBool);

impl ModelWaker {
    pub(crate) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Wake for ModelWaker {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
