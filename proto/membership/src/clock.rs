//! Time of a node: the clock of its calls, and the times from which silence counts.
//!
//! Invariant: the clock never goes back, so that no recorded time is later than it.

use evergate_base::Micros;

/// Time of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Clock {
    /// The newest clock of any call: never earlier than a time it is compared with.
    pub(crate) now: Micros,
    /// Start of the process.
    pub(crate) started_at: Micros,
    /// Clock of the last turn, read before the sockets were drained.
    pub(crate) last_timer_at: Option<Micros>,
    /// Silence counts from this time at the earliest.
    pub(crate) silence_floor: Micros,
    /// A turn is due at once.
    pub(crate) due: bool,
}

impl Clock {
    /// The clock of a process that starts.
    pub(crate) fn new(now: Micros) -> Clock {
        Clock { now, started_at: now, last_timer_at: None, silence_floor: now, due: true }
    }

    /// Records the clock of a call.
    pub(crate) fn note(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }

    /// The clock by which silence is measured: of the last turn.
    pub(crate) fn turn(&self) -> Micros {
        self.last_timer_at.unwrap_or(self.now)
    }

    /// Begins a turn. Returns whether the process was paused for longer than `pause_max` before it: the silence is then
    /// its own, not that of its peers.
    pub(crate) fn begin_turn(&mut self, now: Micros, pause_max: Micros) -> bool {
        let gap = self.last_timer_at.map_or(Micros(0), |at| now.since(at));
        self.last_timer_at = Some(self.last_timer_at.map_or(now, |at| at.max(now)));
        let was_paused = gap > pause_max;
        if was_paused {
            self.silence_floor = now;
        }
        was_paused
    }

    /// Time since `at`, as far as it counts as silence, at the clock `now`.
    pub(crate) fn silence_since(&self, at: Micros, now: Micros) -> Micros {
        now.since(at.max(self.silence_floor))
    }
}
