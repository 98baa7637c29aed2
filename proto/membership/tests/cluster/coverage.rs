//! Coverage of the table of phases: each row is taken by a model or by a simulated network.

use evergate_membership::{TRANSITIONS, TransitionSet};

use crate::{checker, simulation};

/// Transitions that no model and no simulated network takes, 16,000 seeds of `nodes_under_all_faults` included. The
/// rule asks no lease: a view may block a bootstrap for long while its last lease runs.
const UNSEEN: [&str; 1] = ["Active on GaveUp to Listening"];

#[test]
fn every_transition_of_the_phase_is_taken() {
    let sum = |all: TransitionSet, some: TransitionSet| all.union(some);
    let models = checker::ALL.iter().map(|model| model.transitions()).fold(TransitionSet::EMPTY, sum);
    let storms = simulation::ALL.iter().map(|storm| storm.transitions()).fold(TransitionSet::EMPTY, sum);
    let has = |set: TransitionSet, row| set.iter().any(|taken| taken == row);
    let mut missing = Vec::new();
    println!("{:50} models storms", "transition");
    for row in TRANSITIONS {
        let mark = |set| if has(set, row) { "yes" } else { "-" };
        println!("{:50} {:6} {:6}", row.to_string(), mark(models), mark(storms));
        if !has(models.union(storms), row) {
            missing.push(row.to_string());
        }
    }
    assert_eq!(missing, UNSEEN, "transitions never taken");
}
