//! The phase of a node, and the one place that changes it.
//!
//! Invariant: each change is a row of [`TRANSITIONS`]. A change that the table lacks panics in a debug build. Otherwise
//! it is made and counted, and [`crate::Node::check_invariants`] fails from then on.

use evergate_base::Micros;

use crate::installed_view::{InstalledView, has_lasted};
use crate::message::{Assignment, ClaimedState};
use crate::phase::{Listening, Phase, PhaseEvent, TRANSITIONS, Transition};
use crate::transition_set::TransitionSet;
use crate::{Members, NodePhase, ViewId};

/// Members of no view.
static NO_MEMBERS: Members = Members::NONE;

/// Change of the own lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseChange {
    None,
    /// The view lapsed.
    Lapsed,
    /// The lapse ended with the same view.
    Renewed,
}

/// The phase, and the record of its changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PhaseMachine {
    phase: Phase,
    taken: TransitionSet,
    illegal: u64,
}

impl PhaseMachine {
    /// The phase of a process that starts.
    pub(crate) fn new(listening: Listening) -> PhaseMachine {
        PhaseMachine { phase: Phase::Listening(listening), taken: TransitionSet::EMPTY, illegal: 0 }
    }

    /// Changes the phase: the only place.
    fn change(&mut self, event: PhaseEvent, next: impl FnOnce(Phase) -> Phase) {
        let from = self.phase.name();
        self.phase = next(std::mem::replace(&mut self.phase, Phase::Left));
        let transition = Transition { from, event, to: self.phase.name() };
        match TRANSITIONS.iter().position(|known| *known == transition) {
            Some(row) => self.taken.insert(row),
            None => {
                self.illegal += 1;
                debug_assert!(false, "illegal transition of the phase: {transition}; phase.rs has the table");
            }
        }
    }

    /// Installs a view.
    pub(crate) fn install(&mut self, view: InstalledView) {
        self.change(PhaseEvent::Installed, |_| Phase::Opening(view));
    }

    /// Applies the validity of the own lease at `now`. A view that never had a lease lapses `fence` after its
    /// installation.
    pub(crate) fn update_lease(&mut self, is_valid: bool, now: Micros, fence: Micros) -> LeaseChange {
        let event = if is_valid { PhaseEvent::Leased } else { PhaseEvent::Expired };
        let is_late = |view: &InstalledView| now.since(view.at) >= fence;
        let changes = match &self.phase {
            Phase::Listening(_) | Phase::Remembering { .. } | Phase::Left => false,
            Phase::Opening(view) => is_valid || is_late(view),
            Phase::Active(_) => !is_valid,
            Phase::Excluded { view, was_leased } => {
                if is_valid {
                    !was_leased
                } else {
                    *was_leased || is_late(view)
                }
            }
            Phase::Lapsed { .. } => is_valid,
        };
        if !changes {
            return LeaseChange::None;
        }
        let had_lapsed = self.lapsed_at().is_some();
        self.change(event, |phase| match phase {
            Phase::Opening(view) | Phase::Lapsed { view, excluded: false, .. } if is_valid => {
                Phase::Active(view)
            }
            Phase::Excluded { view, .. } | Phase::Lapsed { view, .. } if is_valid => {
                Phase::Excluded { view, was_leased: true }
            }
            Phase::Opening(view) | Phase::Active(view) => Phase::Lapsed { view, since: now, excluded: false },
            Phase::Excluded { view, .. } => Phase::Lapsed { view, since: now, excluded: true },
            phase => phase,
        });
        match (had_lapsed, is_valid) {
            (true, true) => LeaseChange::Renewed,
            (_, false) => LeaseChange::Lapsed,
            (false, true) => LeaseChange::None,
        }
    }

    /// Applies whether a node that is received replaces this one, or acts without it.
    pub(crate) fn update_exclusion(&mut self, is_excluded: bool) {
        if self.installed().is_none() || is_excluded == self.is_excluded() {
            return;
        }
        let event = if is_excluded { PhaseEvent::Excluded } else { PhaseEvent::Readmitted };
        self.change(event, |phase| match phase {
            Phase::Opening(view) => Phase::Excluded { view, was_leased: false },
            Phase::Active(view) => Phase::Excluded { view, was_leased: true },
            Phase::Excluded { view, was_leased: true } => Phase::Active(view),
            Phase::Excluded { view, was_leased: false } => Phase::Opening(view),
            Phase::Lapsed { view, since, .. } => Phase::Lapsed { view, since, excluded: is_excluded },
            phase => phase,
        });
    }

    /// Drops the state, and with it the view. `memory` is the view that the next promises still report.
    pub(crate) fn drop_view(
        &mut self,
        event: PhaseEvent,
        listening: Listening,
        memory: Option<ClaimedState>,
    ) {
        self.change(event, |_| match memory {
            Some(memory) => Phase::Remembering { listening, memory, blocks_bootstrap_since: None },
            None => Phase::Listening(listening),
        });
    }

    /// Drops the memory of a view. The wait continues.
    pub(crate) fn forget(&mut self) {
        self.change(PhaseEvent::Forgot, |phase| match phase {
            Phase::Remembering { listening, .. } => Phase::Listening(listening),
            phase => phase,
        });
    }

    /// Leaves the cluster.
    pub(crate) fn leave(&mut self) {
        self.change(PhaseEvent::Leave, |_| Phase::Left);
    }

    // ---- data ----

    /// The phase, as the shell knows it.
    pub(crate) fn node_phase(&self) -> NodePhase {
        self.phase.name().node_phase()
    }

    pub(crate) fn has_left(&self) -> bool {
        self.phase == Phase::Left
    }

    /// The installed view.
    pub(crate) fn installed(&self) -> Option<&InstalledView> {
        self.phase.installed()
    }

    /// The installed view, for its obstacles.
    pub(crate) fn installed_mut(&mut self) -> Option<&mut InstalledView> {
        self.phase.installed_mut()
    }

    /// Whether this node is a member of a view.
    pub(crate) fn is_established(&self) -> bool {
        self.installed().is_some()
    }

    /// The installed view's number; [`ViewId::NONE`] without a view.
    pub(crate) fn view(&self) -> ViewId {
        self.installed().map_or(ViewId::NONE, |installed| installed.view)
    }

    /// Members of the installed view; empty without one.
    pub(crate) fn members(&self) -> &Members {
        self.installed().map_or(&NO_MEMBERS, |installed| &installed.members)
    }

    /// The map of the installed view; empty without one.
    pub(crate) fn map(&self) -> &[Assignment] {
        self.installed().map_or(&[], |installed| &installed.map)
    }

    /// Start of the lapse of the view.
    pub(crate) fn lapsed_at(&self) -> Option<Micros> {
        match self.phase {
            Phase::Lapsed { since, .. } => Some(since),
            _ => None,
        }
    }

    /// Whether a member that is received replaces this node: its gate is closed, although its lease may be valid.
    pub(crate) fn is_excluded(&self) -> bool {
        matches!(self.phase, Phase::Excluded { .. } | Phase::Lapsed { excluded: true, .. })
    }

    /// The wait of a node without state.
    pub(crate) fn listening(&self) -> Option<Listening> {
        match self.phase {
            Phase::Listening(listening) | Phase::Remembering { listening, .. } => Some(listening),
            _ => None,
        }
    }

    /// The view that the predecessor of this incarnation gave up in order.
    pub(crate) fn memory(&self) -> Option<&ClaimedState> {
        match &self.phase {
            Phase::Remembering { memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// Since when the members have disagreed about the view.
    pub(crate) fn unsettled_since(&self) -> Option<Micros> {
        self.installed()?.unsettled_since
    }

    /// Records since when the view, or the memory of one, has been an obstacle. Returns whether it has lasted for
    /// `span`.
    pub(crate) fn has_blocked_for(&mut self, blocks: bool, now: Micros, span: Micros) -> bool {
        let since = self.phase.blocks_bootstrap_since();
        since.is_some_and(|since| has_lasted(since, blocks, now, span))
    }

    // ---- record ----

    /// The transitions since the last call.
    pub(crate) fn take_transitions(&mut self) -> TransitionSet {
        std::mem::replace(&mut self.taken, TransitionSet::EMPTY)
    }

    /// Number of changes that the table lacks.
    pub(crate) fn illegal(&self) -> u64 {
        self.illegal
    }
}
