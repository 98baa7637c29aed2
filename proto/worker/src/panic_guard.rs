//! Panic guards: a defect that one peer can trigger must not affect other connections, so each step for a connection is
//! guarded.

use crate::Counters;
use crate::host::{Host, Socket};
use crate::slab::{Key, Source};
use crate::worker::Worker;
use evergate_connection::Scratch;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one step of many. A panic loses the subject of this step only.
pub(super) fn catch_panic<R>(counters: &Counters, step: impl FnOnce() -> R) -> Option<R> {
    let outcome = catch_unwind(AssertUnwindSafe(step));
    if outcome.is_err() {
        counters.reason("internal_panic");
    }
    outcome.ok()
}

impl<H: Host> Worker<H> {
    /// Runs one step for `source`. A panic ends that connection, and the worker continues.
    pub(super) fn guarded(&mut self, source: Option<Source>, step: impl FnOnce(&mut Worker<H>)) {
        self.pulse.beat();
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_ok() {
            return;
        }
        self.counters.reason("internal_panic");
        self.scratch = Scratch::new(); // a buffer may have been borrowed
        self.effects.clear();
        if let Some(Source::Arrival(key)) = source {
            return self.break_off_arrival(key);
        }
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
            client.socket.reset_on_close();
            if let Some(replicated_state) = &mut client.replicated_state {
                replicated_state.break_off();
            }
        }
        self.stop_waiting(key);
        self.forget(key);
    }
}
