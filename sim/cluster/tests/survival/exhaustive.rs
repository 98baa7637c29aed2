//! Small scenarios, and a death at every moment of each.

use crate::run::{PAIR, Plan, Script, run};
use crate::scenario::Wire;
use crate::scripts::fixed;
use evergate_sim_cluster::{Fault, Time, Whom};

/// Every moment at which something happens to the connection in an undisturbed run.
fn moments(script: &Script, plan: &Plan) -> Vec<Time> {
    run(script, plan).moments
}

fn everywhere(keep: impl Fn(&str, Wire) -> bool, fault: Fault) {
    let (mut points, mut resumed, mut worst) = (0, 0, 0);
    for (name, scenario) in fixed() {
        if !keep(name, scenario.wire) {
            continue;
        }
        let script = Script::new(scenario);
        let plan = Plan::new(1, PAIR);
        let undisturbed = run(&script, &plan);
        for at in moments(&script, &plan) {
            let killed = Plan { faults: vec![(at, Whom::Owner, fault)], ..plan.clone() };
            let ran = run(&script, &killed);
            points += 1;
            resumed += ran.resumed;
            worst = worst.max(ran.elapsed.saturating_sub(undisturbed.elapsed));
        }
    }
    println!("{fault:?}: {points} deaths, {resumed} connections went on, longest delay {} ms", worst / 1000);
    assert!(resumed > 0);
}

#[test]
fn a_power_cut_at_every_moment_without_tls() {
    everywhere(|_, wire| wire == Wire::Plain, Fault::Power { lossy: false });
}

#[test]
fn a_power_cut_at_every_moment_with_tls() {
    everywhere(|_, wire| wire != Wire::Plain, Fault::Power { lossy: false });
}

#[test]
fn a_power_cut_that_takes_what_is_on_its_way_at_every_moment() {
    everywhere(|_, wire| wire != Wire::Tls12, Fault::Power { lossy: true });
}

#[test]
fn a_process_killed_at_every_moment() {
    everywhere(|_, wire| wire != Wire::Tls12, Fault::Process);
}
