//! The model checker drives the nodes themselves, through [`Bounded`].
//!
//! `CLUSTER_MODEL_TICKS`, `CLUSTER_MODEL_FAULTS` and `CLUSTER_MODEL_LOSSES` enlarge the models beyond what CI runs.

use evergate_membership::Mode;
use stateright::{Checker, Model};

use crate::model::Bounded;

/// Explores every state. A violation is printed with the path to it.
fn explore(name: &str, model: Bounded, sometimes: &[&'static str]) {
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
    for property in sometimes {
        assert!(found.contains_key(property), "{name}: never {property}: the model explores too few states");
    }
}

const BOTH: [&str; 2] = ["fails over", "hands off"];

#[test]
fn two_nodes_are_safe_under_two_faults_and_heal() {
    let model = Bounded::new(2, 2, 1, Mode::Witness);
    explore("two nodes", Bounded { ticks: 10, ..model }.enlarged(), &BOTH);
}

#[test]
fn two_nodes_are_safe_when_messages_are_lost_or_late() {
    let model = Bounded::new(2, 1, 1, Mode::Witness);
    explore(
        "two nodes, mishaps",
        Bounded { ticks: 7, faults: 1, losses: 1, ..model }.enlarged(),
        &["fails over"],
    );
}

#[test]
fn two_nodes_are_safe_when_messages_come_in_any_order() {
    let model = Bounded::new(2, 1, 1, Mode::Witness);
    explore("two nodes, free", Bounded { ticks: 5, faults: 1, free: true, ..model }.enlarged(), &[]);
}

#[test]
fn two_nodes_that_have_just_started_are_safe_and_heal() {
    let model = Bounded::new(2, 1, 1, Mode::Witness);
    explore("two nodes, cold", Bounded { ticks: 12, faults: 2, cold: true, ..model }.enlarged(), &[]);
}

#[test]
fn three_nodes_with_a_witness_are_safe_and_heal() {
    let model = Bounded::new(3, 1, 1, Mode::Witness);
    explore("three nodes, witness", Bounded { ticks: 6, ..model }.enlarged(), &BOTH);
}

#[test]
fn three_nodes_by_majority_are_safe_and_heal() {
    let model = Bounded::new(3, 1, 1, Mode::Majority);
    explore("three nodes, majority", Bounded { ticks: 6, ..model }.enlarged(), &BOTH);
}

#[test]
fn three_nodes_with_two_backups_are_safe_and_heal() {
    let model = Bounded::new(3, 1, 2, Mode::Majority);
    explore("three nodes, two backups", Bounded { ticks: 6, ..model }.enlarged(), &BOTH);
}
