//! Single scenarios: the guarantees of the operating guide, at many moments each.

use crate::run::{PAIR, Plan, Ran, Script, Shape, TRIO, TWO_BACKUPS, run};
use crate::scenario::{Scenario, Wire};
use crate::scripts::{broken_off, requests, tunnel};
use evergate_sim_cluster::{Coverage, Fault, Target, Time};

const MS: Time = 1_000;

/// Scenarios that last long enough for several faults: a window of a few segments slows them down.
fn long(wire: Wire) -> [Scenario; 3] {
    [
        requests(wire, &[(0, 150_000), (4, 3_000)], false),
        requests(wire, &[(4, 150_000), (0, 3_000)], false),
        tunnel(wire, false, &[60_000, 2_000, 50_000], None),
    ]
}

/// Runs every long scenario with faults at each of these moments.
fn stories(shape: Shape, starts: &[Time], faults: impl Fn(Time) -> Vec<(Time, Target, Fault)>) -> Vec<Ran> {
    let mut all = Vec::new();
    for wire in [Wire::Plain, Wire::Tls13] {
        for scenario in long(wire) {
            let script = Script::new(scenario);
            for (seed, start) in starts.iter().enumerate() {
                let plan = Plan { buffer: 12_000, faults: faults(*start), ..Plan::new(seed as u64, shape) };
                all.push(run(&script, &plan));
            }
        }
    }
    all
}

const STARTS: [Time; 6] = [7 * MS, 9 * MS, 13 * MS, 17 * MS, 23 * MS, 31 * MS];

fn resumed_in(runs: &[Ran]) -> u64 {
    runs.iter().map(|run| run.resumed).sum()
}

fn total(runs: &[Ran]) -> Coverage {
    let mut coverage = Coverage::default();
    runs.iter().for_each(|run| coverage += run.coverage);
    coverage
}

#[test]
fn process_or_machine_paused_for_ten_seconds_does_no_harm() {
    for stands in [Fault::Pause, Fault::Halt] {
        for (shape, span) in [(PAIR, 10_000), (TRIO, 400), (TRIO, 60)] {
            let runs = stories(shape, &STARTS, |at| vec![(at, Target::Owner, stands(span * MS))]);
            assert!(resumed_in(&runs) > 10);
            assert_eq!(
                total(&runs).resumptions,
                runs.len() as u64,
                "it continued after other nodes had its place"
            );
        }
    }
}

#[test]
fn one_sided_cut_costs_only_time() {
    for span in [10 * MS, 30 * MS, 200 * MS] {
        stories(TRIO, &STARTS, |at| vec![(at, Target::Owner, Fault::CutOutside(span))]);
        stories(TRIO, &STARTS, |at| vec![(at, Target::Owner, Fault::CutInside(span))]);
    }
}

#[test]
fn node_whose_output_is_lost_is_replaced() {
    for span in [20 * MS, 300 * MS] {
        stories(TRIO, &STARTS, |at| vec![(at, Target::Owner, Fault::OutputLost(span))]);
    }
}

#[test]
fn node_without_a_witness_does_not_block_the_last_good_one() {
    // One of three has no witness, or no outside network. The owner or the third node fails, and the other continues.
    for fault in [Fault::Unwitnessed(30_000 * MS), Fault::CutOutside(30_000 * MS)] {
        for (faulty, failing) in [(0, Target::Owner), (1, Target::Owner), (0, Target::Other(1))] {
            let power = Fault::Power { lossy: true };
            stories(TWO_BACKUPS, &STARTS, |at| vec![(1, Target::Other(faulty), fault), (at, failing, power)]);
        }
    }
}

#[test]
fn nodes_fail_in_sequence_until_one_is_left() {
    // One backup: the second node fails when the first is replaced and the replicas are complete again.
    let failures = |at| {
        vec![
            (at, Target::Owner, Fault::Power { lossy: true }),
            (at + 400 * MS, Target::Owner, Fault::Process),
        ]
    };
    stories((4, 1, 1, evergate_membership::Mode::Witness), &STARTS, failures);
    // Two backups: two of three nodes at once, or the second during its failover.
    for gap in [0, MS, 38 * MS, 41 * MS, 44 * MS, 47 * MS, 50 * MS, 60 * MS] {
        let failures = |at| {
            let power = Fault::Power { lossy: true };
            vec![
                (at, Target::Owner, power),
                (at + gap, Target::Owner, power),
                (at + gap + 1, Target::Recovering, power),
            ]
        };
        let both = |at| failures(at).into_iter().take(2).collect();
        assert!(resumed_in(&stories(TWO_BACKUPS, &STARTS[..3], both)) > 5);
    }
}

#[test]
fn failure_during_a_failover_is_survived_with_two_backups() {
    for gap in (36..60).step_by(2) {
        let failures = |at| {
            let power = Fault::Power { lossy: gap % 4 == 0 };
            vec![(at, Target::Owner, power), (at + gap * MS, Target::Recovering, power)]
        };
        stories(TWO_BACKUPS, &STARTS[..3], failures);
    }
}

#[test]
fn broken_channels_cost_only_time_and_replicas_return() {
    let twice =
        |at| vec![(at, Target::Owner, Fault::Channels), (at + 3 * MS, Target::Owner, Fault::Channels)];
    for shape in [PAIR, TRIO, TWO_BACKUPS] {
        stories(shape, &STARTS, twice);
    }
    // Once the replicas are complete again, a failure is survived as before.
    let later =
        |at| vec![(at, Target::Owner, Fault::Channels), (at + 600 * MS, Target::Owner, Fault::Process)];
    stories(PAIR, &STARTS, later);
}

#[test]
fn silent_backup_is_dropped_after_two_seconds() {
    for (shape, who) in [(PAIR, Target::Owner), (PAIR, Target::Other(0)), (TRIO, Target::Owner)] {
        let stuck = |at| vec![(at, who, Fault::Stuck(2_600 * MS))];
        let runs = stories(shape, &STARTS[..3], stuck);
        let coverage = total(&runs);
        assert!(coverage.channels_closed >= runs.len() as u64, "{coverage:?}");
    }
    // While entries wait for it, no output is released that it lacks. A second backup that answers has everything.
    for gap in [1, 20 * MS, 300 * MS, 1_800 * MS] {
        let dies = |at| {
            let power = Fault::Power { lossy: gap > MS };
            vec![(at, Target::Other(0), Fault::Stuck(2_600 * MS)), (at + gap, Target::Owner, power)]
        };
        assert!(resumed_in(&stories(PAIR, &STARTS[..2], dies)) > 5);
        assert!(resumed_in(&stories(TWO_BACKUPS, &STARTS[..2], dies)) > 5);
    }
}

#[test]
fn failure_after_a_lost_channel_breaks_connections_at_worst() {
    for wire in [Wire::Plain, Wire::Tls13] {
        for scenario in long(wire) {
            let script = Script::new(scenario);
            for gap in [0, 200, 400, 1_000, 5_000, 30_000, 60_000, 100_000, 150_000] {
                let at = STARTS[gap as usize % STARTS.len()];
                let power = Fault::Power { lossy: gap % 400 == 0 };
                let faults = vec![(at, Target::Owner, Fault::Channels), (at + gap, Target::Owner, power)];
                run(&script, &Plan { buffer: 12_000, lenient: true, faults, ..Plan::new(gap, PAIR) });
            }
        }
    }
}

#[test]
fn node_that_joins_under_load_does_no_harm() {
    let join = |at| {
        vec![
            (0, Target::Other(0), Fault::Process),
            (at, Target::Owner, Fault::Restart),
            (at + 900 * MS, Target::Owner, Fault::Process),
        ]
    };
    stories(TRIO, &STARTS, join);
}

#[test]
fn drained_node_moves_its_connections() {
    let drain = |at| vec![(at, Target::Owner, Fault::Drain(true))];
    assert!(resumed_in(&stories(PAIR, &STARTS, drain)) > 10);
    let dies =
        |at| vec![(at, Target::Owner, Fault::Drain(true)), (at + 2 * MS, Target::Owner, Fault::Process)];
    stories(TRIO, &STARTS, dies);
}

/// A paused owner closes server connections of a client that reset meanwhile, before it learns that its bucket has
/// moved. Then the bucket returns to it, while those servers still repeat segments.
#[test]
fn bucket_that_returns_does_not_revive_closed_flows() {
    let mut runs = Vec::new();
    for behind in [Wire::Tls12, Wire::Tls13] {
        let whole = requests(Wire::Tls12, &[(6, 0), (11, 911)], false);
        let script = Script::new(Scenario { behind, ..broken_off(whole) });
        for step in 0..160 {
            let at = 5_000 + step * 60;
            let faults = vec![
                (at, Target::Owner, Fault::Pause(60 * MS)),
                (at + 50 * MS, Target::Owner, Fault::Drain(true)),
                (700 * MS, Target::Other(0), Fault::Pause(MS)), // the run lasts until then
            ];
            let plan = Plan { buffer: 6_000, lenient: true, clients: 2, faults, ..Plan::new(step, PAIR) };
            runs.push(run(&script, &plan));
        }
    }
    assert!(resumed_in(&runs) > 20);
}
