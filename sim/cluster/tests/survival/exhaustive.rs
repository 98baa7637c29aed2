//! Small scenarios, and a death at every moment of each.

use crate::run::{PAIR, Plan, Script, run};
use crate::scenario::{Scenario, Wire};
use crate::scripts::{before_tls_servers, fixed, requests};
use evergate_sim_cluster::{Fault, Tally, Time, Whom};

/// Every moment at which something happens to the connection in an undisturbed run.
fn moments(script: &Script, plan: &Plan) -> Vec<Time> {
    run(script, plan).moments
}

fn everywhere(keep: impl Fn(Wire) -> bool, fault: Fault, gathers: bool) {
    in_all(fixed().into_iter().filter(|(_, scenario)| keep(scenario.wire)), fault, gathers);
}

/// `gathers`: frames wait for company.
fn in_all(scenarios: impl IntoIterator<Item = (&'static str, Scenario)>, fault: Fault, gathers: bool) {
    let (mut points, mut resumed, mut worst) = (0, 0, 0);
    for (name, scenario) in scenarios {
        let script = Script::named(name, scenario);
        let plan = Plan { gathers, ..Plan::new(1, PAIR) };
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
    everywhere(|wire| wire == Wire::Plain, Fault::Power { lossy: false }, false);
}

#[test]
fn a_power_cut_at_every_moment_with_tls() {
    everywhere(|wire| wire != Wire::Plain, Fault::Power { lossy: false }, false);
}

#[test]
fn a_power_cut_that_takes_what_is_on_its_way_at_every_moment() {
    everywhere(|_| true, Fault::Power { lossy: true }, true);
}

#[test]
fn a_process_killed_at_every_moment() {
    everywhere(|_| true, Fault::Process, false);
}

#[test]
fn a_power_cut_at_every_moment_before_tls_servers() {
    in_all(before_tls_servers(), Fault::Power { lossy: false }, true);
}

#[test]
fn a_process_killed_at_every_moment_before_tls_servers() {
    in_all(before_tls_servers(), Fault::Process, false);
}

/// Their tickets leave when the first of them is acknowledged, long before the response begins.
#[test]
fn a_power_cut_at_every_moment_of_long_requests() {
    let uploads = [
        ("upload", requests(Wire::Tls13, &[(4, 60_000), (0, 3000)], false)),
        ("uploads, pipelined", requests(Wire::Tls13, &[(4, 20_000), (4, 9000)], true)),
        ("chunked upload", requests(Wire::Tls13, &[(5, 40_000)], false)),
    ];
    for (_, scenario) in &uploads {
        let tally = run(&Script::new(scenario.clone()), &Plan::new(1, PAIR)).tally;
        assert_eq!(tally.tickets_along, 1, "{tally:?}");
    }
    in_all(uploads, Fault::Power { lossy: true }, true);
}

/// A drained node gives its connections to the other one; until it counts for nothing any more either may die.
#[test]
fn a_death_at_every_moment_of_a_drain() {
    let (mut points, mut resumed, mut tally) = (0, 0, Tally::default());
    for (index, (name, scenario)) in fixed().into_iter().enumerate() {
        let script = Script::named(name, scenario);
        let plan = Plan::new(1, PAIR);
        let all = moments(&script, &plan);
        // At another part of its life each.
        let drain = (all[all.len() * (1 + index % 5) / 6], Whom::Owner, Fault::Drain(true));
        let drained = Plan { faults: vec![drain], ..plan.clone() };
        let undisturbed = run(&script, &drained);
        let end = undisturbed.drained_at.unwrap_or(undisturbed.elapsed);
        let later = undisturbed.moments.into_iter().filter(|at| (drain.0..end).contains(at));
        // The hand-over itself takes a few milliseconds.
        let dense = |(index, at): &(usize, Time)| *at < drain.0 + 4_000 || index % 16 == 0;
        for (_, at) in later.enumerate().filter(dense) {
            for node in [0, 1] {
                let fault = if points % 2 == 0 { Fault::Process } else { Fault::Power { lossy: true } };
                let faults = vec![drain, (at, Whom::Node(node), fault)];
                let ran = run(&script, &Plan { faults, ..plan.clone() });
                points += 1;
                resumed += ran.resumed;
                tally += ran.tally;
            }
        }
    }
    println!("{points} deaths, {resumed} connections went on, {tally:?}");
    assert!(tally.deaths_amid_drain > 500 && tally.deaths_amid_move > 100, "{tally:?}");
}
