//! Small scenarios with a failure at every moment.

use crate::run::{PAIR, Plan, Script, run};
use crate::scenario::{Scenario, Wire};
use crate::scripts::{before_tls_servers, fixed, requests};
use evergate_sim_cluster::{Coverage, Fault, Target, Time};

/// All moments at which the connection has an event in an undisturbed run.
fn moments(script: &Script, plan: &Plan) -> Vec<Time> {
    run(script, plan).moments
}

fn everywhere(keep: impl Fn(Wire) -> bool, fault: Fault, batches: bool) {
    in_all(fixed().into_iter().filter(|(_, scenario)| keep(scenario.wire)), fault, batches);
}

/// `batches`: frames are batched.
fn in_all(scenarios: impl IntoIterator<Item = (&'static str, Scenario)>, fault: Fault, batches: bool) {
    let (mut points, mut resumed, mut worst) = (0, 0, 0);
    for (name, scenario) in scenarios {
        let script = Script::named(name, scenario);
        let plan = Plan { batches, ..Plan::new(1, PAIR) };
        let undisturbed = run(&script, &plan);
        for at in moments(&script, &plan) {
            let killed = Plan { faults: vec![(at, Target::Owner, fault)], ..plan.clone() };
            let ran = run(&script, &killed);
            points += 1;
            resumed += ran.resumed;
            worst = worst.max(ran.elapsed.saturating_sub(undisturbed.elapsed));
        }
    }
    println!(
        "{fault:?}: {points} failures, {resumed} connections resumed, longest delay {} ms",
        worst / 1000
    );
    assert!(resumed > 0);
}

#[test]
fn power_cut_at_every_moment_without_tls() {
    everywhere(|wire| wire == Wire::Plain, Fault::Power { lossy: false }, false);
}

#[test]
fn power_cut_at_every_moment_with_tls() {
    everywhere(|wire| wire != Wire::Plain, Fault::Power { lossy: false }, false);
}

#[test]
fn power_cut_with_loss_in_flight_at_every_moment() {
    everywhere(|_| true, Fault::Power { lossy: true }, true);
}

#[test]
fn process_killed_at_every_moment() {
    everywhere(|_| true, Fault::Process, false);
}

#[test]
fn power_cut_at_every_moment_before_tls_servers() {
    in_all(before_tls_servers(), Fault::Power { lossy: false }, true);
}

#[test]
fn process_killed_at_every_moment_before_tls_servers() {
    in_all(before_tls_servers(), Fault::Process, false);
}

/// Their tickets leave when the first of them is acknowledged, long before the response begins.
#[test]
fn power_cut_at_every_moment_of_long_requests() {
    let uploads = [
        ("upload", requests(Wire::Tls13, &[(4, 60_000), (0, 3000)], false)),
        ("uploads, pipelined", requests(Wire::Tls13, &[(4, 20_000), (4, 9000)], true)),
        ("chunked upload", requests(Wire::Tls13, &[(5, 40_000)], false)),
    ];
    for (_, scenario) in &uploads {
        let coverage = run(&Script::new(scenario.clone()), &Plan::new(1, PAIR)).coverage;
        assert_eq!(coverage.tickets_with_acks, 1, "{coverage:?}");
    }
    in_all(uploads, Fault::Power { lossy: true }, true);
}

/// A drained node moves its connections to the other one. Either node may fail until the drained one counts for
/// nothing.
#[test]
fn failure_at_every_moment_of_a_drain() {
    let (mut points, mut resumed, mut coverage) = (0, 0, Coverage::default());
    for (index, (name, scenario)) in fixed().into_iter().enumerate() {
        let script = Script::named(name, scenario);
        let plan = Plan::new(1, PAIR);
        let all = moments(&script, &plan);
        // Each at another part of the scenario.
        let drain = (all[all.len() * (1 + index % 5) / 6], Target::Owner, Fault::Drain(true));
        let drained = Plan { faults: vec![drain], ..plan.clone() };
        let undisturbed = run(&script, &drained);
        let end = undisturbed.drained_at.unwrap_or(undisturbed.elapsed);
        let later = undisturbed.moments.into_iter().filter(|at| (drain.0..end).contains(at));
        // The handoff itself takes a few milliseconds.
        let dense = |(index, at): &(usize, Time)| *at < drain.0 + 4_000 || index % 16 == 0;
        for (_, at) in later.enumerate().filter(dense) {
            for node in [0, 1] {
                let fault = if points % 2 == 0 { Fault::Process } else { Fault::Power { lossy: true } };
                let faults = vec![drain, (at, Target::Node(node), fault)];
                let ran = run(&script, &Plan { faults, ..plan.clone() });
                points += 1;
                resumed += ran.resumed;
                coverage += ran.coverage;
            }
        }
    }
    println!("{points} failures, {resumed} connections resumed, {coverage:?}");
    assert!(coverage.failures_amid_drain > 500 && coverage.failures_amid_move > 100, "{coverage:?}");
}
