//! The model checker drives the nodes themselves, through [`Bounded`].
//!
//! `CLUSTER_MODEL_TICKS`, `CLUSTER_MODEL_FAULTS` and `CLUSTER_MODEL_LOSSES` enlarge the models beyond what CI runs.

use std::sync::{OnceLock, PoisonError};

use evergate_membership::{Mode, TransitionSet};
use stateright::{Checker, Model};

use crate::model::Bounded;

/// A model that is explored once in a process, by the first test that needs it.
pub(crate) struct Exploration {
    name: &'static str,
    model: fn() -> Bounded,
    /// Properties that some state must have.
    sometimes: &'static [&'static str],
    transitions: OnceLock<TransitionSet>,
}

impl Exploration {
    const fn new(
        name: &'static str,
        model: fn() -> Bounded,
        sometimes: &'static [&'static str],
    ) -> Exploration {
        Exploration { name, model, sometimes, transitions: OnceLock::new() }
    }

    /// Explores every state. Returns the transitions of the phase that the nodes took.
    pub(crate) fn transitions(&self) -> TransitionSet {
        *self.transitions.get_or_init(|| self.explore())
    }

    /// Explores every state. A violation is printed with the path to it.
    fn explore(&self) -> TransitionSet {
        let (name, model) = (self.name, (self.model)().enlarged());
        let checker = model.clone().checker().threads(1).spawn_dfs().join();
        println!("{name}: {} states, {} unique", checker.state_count(), checker.unique_state_count());
        let found = checker.discoveries();
        for property in ["safe", "heals", "continues"] {
            if let Some(path) = found.get(property) {
                let (bad, last) = (&path.last_state().bad, model.describe(path.last_state()));
                let healed = model.describe(&model.healed(path.last_state()));
                let alone = model.alone(path.last_state()).map(|state| model.describe(&state));
                let alone = alone.unwrap_or_default();
                let way = path.clone().into_actions();
                panic!(
                    "{name}: not {property}: {bad:?}\n{way:?}\n{last}when healed:\n{healed}when alone:\n{alone}"
                );
            }
        }
        for property in self.sometimes {
            let states = "the model explores too few states";
            assert!(found.contains_key(property), "{name}: never {property}: {states}");
        }
        *model.transitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const BOTH: [&str; 2] = ["fails over", "hands off"];

static TWO_NODES: Exploration =
    Exploration::new("two nodes", || Bounded { ticks: 10, ..Bounded::new(2, 2, 1, Mode::Witness) }, &BOTH);
static TWO_NODES_MISHAPS: Exploration = Exploration::new(
    "two nodes, mishaps",
    || Bounded { ticks: 7, faults: 1, losses: 1, ..Bounded::new(2, 1, 1, Mode::Witness) },
    &["fails over"],
);
static TWO_NODES_FREE: Exploration = Exploration::new(
    "two nodes, free",
    || Bounded { ticks: 5, faults: 1, free: true, ..Bounded::new(2, 1, 1, Mode::Witness) },
    &[],
);
static TWO_NODES_COLD: Exploration = Exploration::new(
    "two nodes, cold",
    || Bounded { ticks: 12, faults: 2, cold: true, ..Bounded::new(2, 1, 1, Mode::Witness) },
    &[],
);
static THREE_NODES_WITNESS: Exploration = Exploration::new(
    "three nodes, witness",
    || Bounded { ticks: 6, ..Bounded::new(3, 1, 1, Mode::Witness) },
    &BOTH,
);
static THREE_NODES_MAJORITY: Exploration = Exploration::new(
    "three nodes, majority",
    || Bounded { ticks: 6, ..Bounded::new(3, 1, 1, Mode::Majority) },
    &BOTH,
);
static THREE_NODES_TWO_BACKUPS: Exploration = Exploration::new(
    "three nodes, two backups",
    || Bounded { ticks: 6, ..Bounded::new(3, 1, 2, Mode::Majority) },
    &BOTH,
);

/// All models.
pub(crate) static ALL: [&Exploration; 7] = [
    &TWO_NODES,
    &TWO_NODES_MISHAPS,
    &TWO_NODES_FREE,
    &TWO_NODES_COLD,
    &THREE_NODES_WITNESS,
    &THREE_NODES_MAJORITY,
    &THREE_NODES_TWO_BACKUPS,
];

#[test]
fn two_nodes_are_safe_under_two_faults_and_heal() {
    TWO_NODES.transitions();
}

#[test]
fn two_nodes_are_safe_when_messages_are_lost_or_late() {
    TWO_NODES_MISHAPS.transitions();
}

#[test]
fn two_nodes_are_safe_when_messages_come_in_any_order() {
    TWO_NODES_FREE.transitions();
}

#[test]
fn two_nodes_that_have_just_started_are_safe_and_heal() {
    TWO_NODES_COLD.transitions();
}

#[test]
fn three_nodes_with_a_witness_are_safe_and_heal() {
    THREE_NODES_WITNESS.transitions();
}

#[test]
fn three_nodes_by_majority_are_safe_and_heal() {
    THREE_NODES_MAJORITY.transitions();
}

#[test]
fn three_nodes_with_two_backups_are_safe_and_heal() {
    THREE_NODES_TWO_BACKUPS.transitions();
}
