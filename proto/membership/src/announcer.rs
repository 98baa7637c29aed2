//! Schedule of the heartbeats, and what they report about the process itself.

use evergate_base::Micros;

use crate::{Incarnation, Path};

/// Heartbeats of this node: when, and on which network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Announcer {
    /// The first incarnation of this process.
    born: Incarnation,
    /// Time of the next heartbeats.
    pub(crate) next_at: Micros,
    /// Whether the next calm heartbeats go outside.
    outside_next: bool,
    /// Time of the last report that the workers make progress.
    progress_at: Option<Micros>,
}

impl Announcer {
    /// Heartbeats begin at once.
    pub(crate) fn new(born: Incarnation, now: Micros) -> Announcer {
        Announcer { born, next_at: now, outside_next: false, progress_at: None }
    }

    /// Records that the workers made progress.
    pub(crate) fn note_progress(&mut self, now: Micros) {
        self.progress_at = Some(self.progress_at.map_or(now, |at| at.max(now)));
    }

    /// Ends the supervision of the workers.
    pub(crate) fn forget_progress(&mut self) {
        self.progress_at = None;
    }

    /// Whether the workers made no progress for longer than `stall_max`.
    pub(crate) fn is_stalled(&self, now: Micros, stall_max: Micros) -> bool {
        self.progress_at.is_some_and(|at| now.since(at) > stall_max)
    }

    /// Chooses the network of the next calm heartbeats, which alternates.
    pub(crate) fn next_path(&mut self) -> Path {
        self.outside_next = !self.outside_next;
        if self.outside_next { Path::Outside } else { Path::Inside }
    }

    /// First and last of the incarnations before `current`, whose gates are permanently closed; unknown for none.
    pub(crate) fn closed(&self, current: Incarnation) -> (Incarnation, Incarnation) {
        if current == self.born {
            return (Incarnation::UNKNOWN, Incarnation::UNKNOWN);
        }
        (self.born, Incarnation(current.0.wrapping_sub(1).max(1)))
    }
}
