//! Coverage of the table of phases: each row is taken by a model or by a simulated network.

use evergate_membership::{TRANSITIONS, TransitionSet};

use crate::{checker, simulation};

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
    assert!(missing.is_empty(), "never taken: {missing:#?}");
}
