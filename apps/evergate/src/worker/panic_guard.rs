//! A defect that one peer can reach must not reach the others: each step of a worker for somebody is guarded.

use super::slab::{Key, Source};
use super::{Counters, Worker};
use evergate_connection::Scratch;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one step of many. Should it panic, what it was about is lost, and the others go on.
pub(super) fn catch_panic<R>(counters: &Counters, step: impl FnOnce() -> R) -> Option<R> {
    let outcome = catch_unwind(AssertUnwindSafe(step));
    if outcome.is_err() {
        counters.reason("internal_panic");
    }
    outcome.ok()
}

impl Worker {
    /// Runs one step for `source`. Should it panic, that connection ends and the worker goes on: a defect that one peer
    /// can reach must not reach the others.
    pub(super) fn guarded(&mut self, source: Option<Source>, step: impl FnOnce(&mut Worker)) {
        self.pulse.beat();
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_ok() {
            return;
        }
        self.counters.reason("internal_panic");
        self.scratch = Scratch::new(); // a buffer may have been on loan
        self.effects.clear();
        let client = match source {
            Some(Source::Client(key)) => Some(key),
            Some(Source::Upstream(key)) => {
                self.upstreams.get_mut(key).and_then(|upstream| upstream.owner).map(|(client, _)| client)
            }
            _ => None,
        };
        if let Some(key) = client {
            self.break_off(key);
        }
    }

    /// Ends a client's connection at once, by a reset.
    pub(super) fn break_off(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key) {
            evergate_sys::reset_on_close(client.fd());
            if let Some(replicated_state) = &mut client.replicated_state {
                replicated_state.break_off();
            }
        }
        self.stop_waiting(key);
        self.forget(key);
    }
}
