//! Conditions that delay a node without state: its own history, and signs of a cluster that it should be in.
//!
//! They outlast every phase: a node that returns to listening meets the delay that it earned before.

use evergate_base::Micros;

use crate::Timing;

/// Delays of a join and of a bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JoinConditions {
    /// Time of the last heartbeat of an active node of another view.
    pub(crate) active_received_at: Option<Micros>,
    /// Time of the last heartbeat to another incarnation that announced a view.
    pub(crate) stray_at: Option<Micros>,
    /// The next rejoin delay.
    pub(crate) hold_down: Micros,
    /// Until then this node does not join, unless the cluster needs it.
    pub(crate) blocked_until: Micros,
    /// Until then this node does not bootstrap, because it may not understand the datagrams of an existing cluster.
    pub(crate) foreign_until: Micros,
}

impl JoinConditions {
    /// No delay.
    pub(crate) fn new(timing: &Timing) -> JoinConditions {
        JoinConditions {
            active_received_at: None,
            stray_at: None,
            hold_down: timing.hold_down_min,
            blocked_until: Micros(0),
            foreign_until: Micros(0),
        }
    }

    /// Delays the next join. The delay doubles each time.
    pub(crate) fn hold_down(&mut self, now: Micros, timing: &Timing) {
        self.blocked_until = now + self.hold_down;
        let doubled = Micros(self.hold_down.0.saturating_mul(2));
        self.hold_down = doubled.min(timing.hold_down_max);
    }

    /// Resets the delay of a node that stayed in its views long enough.
    pub(crate) fn reset_hold_down(&mut self, timing: &Timing) {
        self.hold_down = timing.hold_down_min;
    }
}
