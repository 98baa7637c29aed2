//! Small scenarios, and a death at every moment of each.

use crate::run::{PAIR, Plan, Script, run};
use crate::scenario::{Scenario, Wire};
use crate::scripts::{before_tls_servers, fixed};
use evergate_sim_cluster::{Fault, Time, Whom};

/// Every moment at which something happens to the connection in an undisturbed run.
fn moments(script: &Script, plan: &Plan) -> Vec<Time> {
    run(script, plan).moments
}

fn everywhere(keep: impl Fn(&str, Wire) -> bool, fault: Fault) {
    let scenarios = fixed().into_iter().filter(|(name, scenario)| keep(name, scenario.wire));
    in_all(scenarios.map(|(_, scenario)| scenario), fault);
}

fn in_all(scenarios: impl Iterator<Item = Scenario>, fault: Fault) {
    let (mut points, mut resumed, mut worst) = (0, 0, 0);
    for scenario in scenarios {
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

#[test]
fn a_power_cut_at_every_moment_before_tls_servers() {
    in_all(before_tls_servers().into_iter().map(|(_, scenario)| scenario), Fault::Power { lossy: false });
}

#[test]
fn a_process_killed_at_every_moment_before_tls_servers() {
    in_all(before_tls_servers().into_iter().map(|(_, scenario)| scenario), Fault::Process);
}
