//! Ending the wait of another thread.

use std::fmt::Debug;

/// Ends the wait of a worker for events, from any thread.
pub trait Wake: Debug + Send + Sync {
    /// Lets the worker's present or next wait end at once.
    fn wake(&self);
}
