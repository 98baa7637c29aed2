//! The phase of a node: its data, and the one table of legal transitions.
//!
//! A phase has exactly the data that it needs. So a combination that no node can be in cannot be built: only a member
//! of a view has leases, and only a node without state remembers the view of its predecessor.
//!
//! Invariant: [`PhaseMachine`](crate::phase_machine::PhaseMachine) alone changes a phase, and checks each change
//! against [`TRANSITIONS`].
//!
//! Not part of the phase: the change to the next view (`ballot.rs`), which any phase but the last can have, and the
//! delays of a join (`join.rs`), which outlast the phase.

use std::fmt;

use evergate_base::Micros;

use crate::NodePhase;
use crate::installed_view::InstalledView;
use crate::message::ClaimedState;

/// Name of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseName {
    /// Without state: the node waits to join, or to bootstrap a cluster.
    Listening,
    /// As `Listening`, in majority mode: promises still report the view that this node gave up.
    Remembering,
    /// Member of a view that has just been installed, and still without a lease.
    Opening,
    /// Member of a view, with a valid lease.
    Active,
    /// Member of a view, in witness mode: another node that is received replaces this one.
    Excluded,
    /// Member of a view whose lease has expired.
    Lapsed,
    /// Left the cluster; final.
    Left,
}

impl PhaseName {
    /// All phases.
    pub const ALL: [PhaseName; 7] = [
        PhaseName::Listening,
        PhaseName::Remembering,
        PhaseName::Opening,
        PhaseName::Active,
        PhaseName::Excluded,
        PhaseName::Lapsed,
        PhaseName::Left,
    ];

    /// The phase, as the shell knows it.
    pub const fn node_phase(self) -> NodePhase {
        match self {
            PhaseName::Listening | PhaseName::Remembering => NodePhase::Listening,
            PhaseName::Opening | PhaseName::Active => NodePhase::Active,
            PhaseName::Excluded | PhaseName::Lapsed => NodePhase::Fenced,
            PhaseName::Left => NodePhase::Left,
        }
    }
}

impl fmt::Display for PhaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Reason of a change of the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseEvent {
    /// The node installed a view that it had promised.
    Installed,
    /// The own lease became valid.
    Leased,
    /// The own lease expired, or did not begin for the length of a lease.
    Expired,
    /// A node that is received reports that it replaces this one, or acts without it.
    Excluded,
    /// No received node reports so any more.
    Readmitted,
    /// The other members continued without this incarnation (rule 9), or wait for its end.
    Superseded,
    /// The view can neither continue nor be followed, or it blocks a bootstrap.
    GaveUp,
    /// A network is lost, and other nodes can continue.
    SteppedDown,
    /// Without state: a promised view can no longer be installed, so the incarnation ends.
    PromiseLost,
    /// The remembered view can be of no use any more.
    Forgot,
    /// The operator, or the end of the process.
    Leave,
}

impl fmt::Display for PhaseEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A change of the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transition {
    /// The phase before.
    pub from: PhaseName,
    /// The reason.
    pub event: PhaseEvent,
    /// The phase after.
    pub to: PhaseName,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} to {}", self.from, self.event, self.to)
    }
}

const fn row(from: PhaseName, event: PhaseEvent, to: PhaseName) -> Transition {
    Transition { from, event, to }
}

/// All legal transitions.
pub const TRANSITIONS: [Transition; 42] = {
    use PhaseEvent as E;
    use PhaseName::{Active, Excluded, Lapsed, Left, Listening, Opening, Remembering};
    [
        row(Listening, E::Installed, Opening),
        row(Listening, E::PromiseLost, Listening),
        row(Listening, E::Leave, Left),
        row(Remembering, E::Installed, Opening),
        row(Remembering, E::PromiseLost, Remembering),
        row(Remembering, E::Forgot, Listening),
        row(Remembering, E::Leave, Left),
        row(Opening, E::Installed, Opening),
        row(Opening, E::Leased, Active),
        row(Opening, E::Expired, Lapsed),
        row(Opening, E::Excluded, Excluded),
        row(Opening, E::Superseded, Listening),
        row(Opening, E::SteppedDown, Listening),
        row(Opening, E::SteppedDown, Remembering),
        row(Opening, E::Leave, Left),
        row(Active, E::Installed, Opening),
        row(Active, E::Expired, Lapsed),
        row(Active, E::Excluded, Excluded),
        row(Active, E::Superseded, Listening),
        row(Active, E::GaveUp, Listening),
        row(Active, E::SteppedDown, Listening),
        row(Active, E::SteppedDown, Remembering),
        row(Active, E::Leave, Left),
        row(Excluded, E::Installed, Opening),
        row(Excluded, E::Leased, Excluded),
        row(Excluded, E::Expired, Lapsed),
        row(Excluded, E::Readmitted, Opening),
        row(Excluded, E::Readmitted, Active),
        row(Excluded, E::Superseded, Listening),
        row(Excluded, E::SteppedDown, Listening),
        row(Excluded, E::Leave, Left),
        row(Lapsed, E::Installed, Opening),
        row(Lapsed, E::Leased, Active),
        row(Lapsed, E::Leased, Excluded),
        row(Lapsed, E::Excluded, Lapsed),
        row(Lapsed, E::Readmitted, Lapsed),
        row(Lapsed, E::Superseded, Listening),
        row(Lapsed, E::GaveUp, Listening),
        row(Lapsed, E::SteppedDown, Listening),
        row(Lapsed, E::SteppedDown, Remembering),
        row(Lapsed, E::Leave, Left),
        row(Left, E::Leave, Left),
    ]
};

/// Wait of a node without state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Listening {
    /// Start of the wait.
    pub(crate) since: Micros,
    /// Time for which the node listens before it may bootstrap a cluster alone.
    pub(crate) span: Micros,
}

/// Phase of a node, with its data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Listening(Listening),
    Remembering {
        listening: Listening,
        /// The view that the predecessor of this incarnation gave up in order. Nothing of it is held.
        memory: ClaimedState,
        /// Since then the memory has been the only thing that blocks reachable nodes from bootstrapping.
        blocks_bootstrap_since: Option<Micros>,
    },
    Opening(InstalledView),
    Active(InstalledView),
    Excluded {
        view: InstalledView,
        /// The own lease has been valid in this view.
        was_leased: bool,
    },
    Lapsed {
        view: InstalledView,
        since: Micros,
        /// A member that is received also replaces this node.
        excluded: bool,
    },
    Left,
}

impl Phase {
    pub(crate) fn name(&self) -> PhaseName {
        match self {
            Phase::Listening(_) => PhaseName::Listening,
            Phase::Remembering { .. } => PhaseName::Remembering,
            Phase::Opening(_) => PhaseName::Opening,
            Phase::Active(_) => PhaseName::Active,
            Phase::Excluded { .. } => PhaseName::Excluded,
            Phase::Lapsed { .. } => PhaseName::Lapsed,
            Phase::Left => PhaseName::Left,
        }
    }

    /// The installed view.
    pub(crate) fn installed(&self) -> Option<&InstalledView> {
        match self {
            Phase::Opening(view)
            | Phase::Active(view)
            | Phase::Excluded { view, .. }
            | Phase::Lapsed { view, .. } => Some(view),
            Phase::Listening(_) | Phase::Remembering { .. } | Phase::Left => None,
        }
    }

    pub(crate) fn installed_mut(&mut self) -> Option<&mut InstalledView> {
        match self {
            Phase::Opening(view)
            | Phase::Active(view)
            | Phase::Excluded { view, .. }
            | Phase::Lapsed { view, .. } => Some(view),
            Phase::Listening(_) | Phase::Remembering { .. } | Phase::Left => None,
        }
    }

    /// Start of the time for which the view, or the memory of one, has been all that blocks a bootstrap; `None` for a
    /// phase that blocks nothing.
    pub(crate) fn blocks_bootstrap_since(&mut self) -> Option<&mut Option<Micros>> {
        match self {
            Phase::Remembering { blocks_bootstrap_since, .. } => Some(blocks_bootstrap_since),
            phase => phase.installed_mut().map(|view| &mut view.blocks_bootstrap_since),
        }
    }
}
