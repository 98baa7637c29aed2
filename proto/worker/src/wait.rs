//! Waiting of a worker between two turns.

use crate::host::Host;
use crate::worker::Worker;
use std::time::Duration;

/// Interval of checks for room at a server while requests wait, in milliseconds.
const QUEUE_POLL_MS: i32 = 10;

/// How a worker waits for events before its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// A busy worker sleeps for so long first, so that more events are taken at once.
    pub batch_for: Option<Duration>,
    /// Most milliseconds to wait for the first event.
    pub at_most_ms: i32,
}

impl<H: Host> Worker<H> {
    /// How to wait for events before the next turn. The host itself has work in `host_limit_ms` milliseconds.
    pub fn wait(&self, host_limit_ms: i32) -> Wait {
        let wait = if self.pending.is_empty() { self.deadlines.wheel.wait_ms(self.now) } else { 0 };
        let wait = wait.min(host_limit_ms);
        // Another worker may make room at a server, without an event here.
        let wait = if self.has_queued() { wait.min(QUEUE_POLL_MS) } else { wait };
        let wait = self.cluster.as_ref().map_or(wait, |cluster| wait.min(cluster.wait_ms(self.now)));
        let hastens = self.cluster.as_ref().is_some_and(|cluster| cluster.has_urgent_frames());
        let batch_for = if wait > 0 { self.batching.wait(self.settings.event_batching) } else { None };
        Wait { batch_for, at_most_ms: if hastens { 0 } else { wait } }
    }
}
