//! Single stories: what the operating guide promises, at many moments each.

use crate::run::{PAIR, Plan, Ran, Script, Shape, TRIO, TWO_BACKUPS, run};
use crate::scenario::{Scenario, Wire};
use crate::scripts::{requests, tunnel};
use evergate_sim_cluster::{Fault, Tally, Time, Whom};

const MS: Time = 1_000;

/// Scenarios that last long enough to be hit more than once: a window of a few segments keeps them going.
fn long(wire: Wire) -> [Scenario; 3] {
    [
        requests(wire, &[(0, 150_000), (4, 3_000)], false),
        requests(wire, &[(4, 150_000), (0, 3_000)], false),
        tunnel(wire, false, &[60_000, 2_000, 50_000], None),
    ]
}

/// Runs every long scenario with faults at each of these moments.
fn stories(shape: Shape, starts: &[Time], faults: impl Fn(Time) -> Vec<(Time, Whom, Fault)>) -> Vec<Ran> {
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

fn went_on(runs: &[Ran]) -> u64 {
    runs.iter().map(|run| run.resumed).sum()
}

fn total(runs: &[Ran]) -> Tally {
    let mut tally = Tally::default();
    runs.iter().for_each(|run| tally += run.tally);
    tally
}

#[test]
fn a_process_or_a_machine_that_stands_still_for_ten_seconds_and_goes_on_does_no_harm() {
    for stands in [Fault::Pause, Fault::Halt] {
        for (shape, span) in [(PAIR, 10_000), (TRIO, 400), (TRIO, 60)] {
            let runs = stories(shape, &STARTS, |at| vec![(at, Whom::Owner, stands(span * MS))]);
            assert!(went_on(&runs) > 10);
            assert_eq!(total(&runs).resumptions, runs.len() as u64, "it went on when others had its place");
        }
    }
}

#[test]
fn a_link_that_is_cut_on_one_side_for_a_while_costs_time_only() {
    for span in [10 * MS, 30 * MS, 200 * MS] {
        stories(TRIO, &STARTS, |at| vec![(at, Whom::Owner, Fault::CutOutside(span))]);
        stories(TRIO, &STARTS, |at| vec![(at, Whom::Owner, Fault::CutInside(span))]);
    }
}

#[test]
fn a_node_that_is_heard_by_nobody_is_replaced() {
    for span in [20 * MS, 300 * MS] {
        stories(TRIO, &STARTS, |at| vec![(at, Whom::Owner, Fault::Mute(span))]);
    }
}

#[test]
fn a_node_without_a_witness_does_not_keep_the_last_one_from_going_on() {
    // One of three lacks its witness, or the outside, for good; the owner dies, or the third, and the owner goes on.
    for ails in [Fault::Unwitnessed(30_000 * MS), Fault::CutOutside(30_000 * MS)] {
        for (ill, dies) in [(0, Whom::Owner), (1, Whom::Owner), (0, Whom::Other(1))] {
            let power = Fault::Power { lossy: true };
            stories(TWO_BACKUPS, &STARTS, |at| vec![(1, Whom::Other(ill), ails), (at, dies, power)]);
        }
    }
}

#[test]
fn one_after_the_other_dies_until_one_is_left() {
    // One backup: the second dies when the first is replaced and copies are made again.
    let deaths = |at| {
        vec![(at, Whom::Owner, Fault::Power { lossy: true }), (at + 400 * MS, Whom::Owner, Fault::Process)]
    };
    stories((4, 1, 1, evergate_membership::Mode::Witness), &STARTS, deaths);
    // Two backups: both of three nodes at once, or the second while it takes over.
    for gap in [0, MS, 38 * MS, 41 * MS, 44 * MS, 47 * MS, 50 * MS, 60 * MS] {
        let deaths = |at| {
            let power = Fault::Power { lossy: true };
            vec![
                (at, Whom::Owner, power),
                (at + gap, Whom::Owner, power),
                (at + gap + 1, Whom::Taking, power),
            ]
        };
        let both = |at| deaths(at).into_iter().take(2).collect();
        assert!(went_on(&stories(TWO_BACKUPS, &STARTS[..3], both)) > 5);
    }
}

#[test]
fn a_death_during_a_take_over_is_survived_with_two_backups() {
    for gap in (36..60).step_by(2) {
        let deaths = |at| {
            let power = Fault::Power { lossy: gap % 4 == 0 };
            vec![(at, Whom::Owner, power), (at + gap * MS, Whom::Taking, power)]
        };
        stories(TWO_BACKUPS, &STARTS[..3], deaths);
    }
}

#[test]
fn mirror_channels_that_break_cost_time_only_and_the_copies_come_back() {
    let twice = |at| vec![(at, Whom::Owner, Fault::Channels), (at + 3 * MS, Whom::Owner, Fault::Channels)];
    for shape in [PAIR, TRIO, TWO_BACKUPS] {
        stories(shape, &STARTS, twice);
    }
    // When they are whole again, a death is survived as ever.
    let later = |at| vec![(at, Whom::Owner, Fault::Channels), (at + 600 * MS, Whom::Owner, Fault::Process)];
    stories(PAIR, &STARTS, later);
}

#[test]
fn a_backup_that_answers_nothing_is_given_up_after_two_seconds() {
    for (shape, who) in [(PAIR, Whom::Owner), (PAIR, Whom::Other(0)), (TRIO, Whom::Owner)] {
        let stuck = |at| vec![(at, who, Fault::Stuck(2_600 * MS))];
        let runs = stories(shape, &STARTS[..3], stuck);
        let tally = total(&runs);
        assert!(tally.channels_given_up >= runs.len() as u64, "{tally:?}");
    }
    // As long as it is waited for, nothing is let go that it lacks; a second backup that answers has everything besides.
    for gap in [1, 20 * MS, 300 * MS, 1_800 * MS] {
        let dies = |at| {
            let power = Fault::Power { lossy: gap > MS };
            vec![(at, Whom::Other(0), Fault::Stuck(2_600 * MS)), (at + gap, Whom::Owner, power)]
        };
        assert!(went_on(&stories(PAIR, &STARTS[..2], dies)) > 5);
        assert!(went_on(&stories(TWO_BACKUPS, &STARTS[..2], dies)) > 5);
    }
}

#[test]
fn a_death_after_a_lost_channel_breaks_connections_at_worst() {
    for wire in [Wire::Plain, Wire::Tls13] {
        for scenario in long(wire) {
            let script = Script::new(scenario);
            for gap in [0, 200, 400, 1_000, 5_000, 30_000, 60_000, 100_000, 150_000] {
                let at = STARTS[gap as usize % STARTS.len()];
                let power = Fault::Power { lossy: gap % 400 == 0 };
                let faults = vec![(at, Whom::Owner, Fault::Channels), (at + gap, Whom::Owner, power)];
                run(&script, &Plan { buffer: 12_000, lenient: true, faults, ..Plan::new(gap, PAIR) });
            }
        }
    }
}

#[test]
fn a_node_that_joins_under_load_does_no_harm() {
    let join = |at| {
        vec![
            (0, Whom::Other(0), Fault::Process),
            (at, Whom::Owner, Fault::Restart),
            (at + 900 * MS, Whom::Owner, Fault::Process),
        ]
    };
    stories(TRIO, &STARTS, join);
}

#[test]
fn a_drained_node_hands_its_connections_over() {
    let drain = |at| vec![(at, Whom::Owner, Fault::Drain(true))];
    assert!(went_on(&stories(PAIR, &STARTS, drain)) > 10);
    let dies = |at| vec![(at, Whom::Owner, Fault::Drain(true)), (at + 2 * MS, Whom::Owner, Fault::Process)];
    stories(TRIO, &STARTS, dies);
}
