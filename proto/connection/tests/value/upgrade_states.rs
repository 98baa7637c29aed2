//! Connections that move to another process: peers see the same bytes, step for step.
//!
//! Two runs have the same schedule, and in one of them the connection is exported and imported, at every step or at
//! random ones. The schedule does not depend on that, so both runs must do the same with the same bytes to their end.

use crate::exhaustive::{requests, tunnel};
use crate::greetings::greeted;
use crate::scenario::{
    CONTINUES, ENDS, LOGIN, LOGIN_ENDS, Rng, Scenario, WHO, WHO_POSTS, Wire, config, random,
};
use crate::world::{Mutation, Outcome, World, reference};
use evergate_connection::{Scratch, Snapshot};
use std::sync::Arc;

/// One run in which the connection moves in `percent` of the steps: how often it did, the steps, and what all saw.
fn run(
    scenario: &Scenario,
    config: &Arc<Snapshot>,
    marks: &[usize],
    (seed, percent): (u64, usize),
    scratch: &mut Scratch,
) -> (u64, u64, Outcome) {
    let mut world = World::new(scenario, config, Some(marks), seed, Mutation::Alone, scratch);
    let (mut moves, mut rng) = (0, Rng::new(seed ^ 0x5555));
    while world.advance() {
        if rng.chance(percent) && world.pass() {
            moves += 1;
        }
    }
    assert!(world.is_through(), "stuck: {}", world.describe());
    (moves, world.step, world.outcome())
}

fn compare(scenario: &Scenario, config: &Arc<Snapshot>, seed: u64, scratch: &mut Scratch) -> u64 {
    let (marks, _) = reference(scenario, config, scratch);
    let (_, steps, expected) = run(scenario, config, &marks, (seed, 0), scratch);
    let mut all = 0;
    for percent in [100, 20] {
        let (moves, took, outcome) = run(scenario, config, &marks, (seed, percent), scratch);
        assert!(outcome == expected, "seed {seed}, {percent} %: other bytes, {scenario:?}");
        assert_eq!(took, steps, "seed {seed}, {percent} %: another schedule, {scenario:?}");
        all += moves;
    }
    all
}

/// Handshakes with servers draw fresh randomness, so that no two runs are the same; the daemon's tests have such
/// servers.
fn before_plain_servers(scenario: Scenario) -> Scenario {
    Scenario { behind: Wire::Plain, server_updates: false, ..scenario }
}

#[test]
fn imported_connection_continues_as_if_it_had_stayed() {
    let (config, mut scratch) = (config(Wire::Plain), Scratch::new());
    let mut moves = 0;
    for seed in 0..300_u64 {
        let scenario = before_plain_servers(random(&mut Rng::new(seed.wrapping_mul(0x0765_4321))));
        moves += compare(&scenario, &config, seed, &mut scratch);
    }
    assert!(moves > 10_000, "only {moves} moves");
}

#[test]
fn no_bits_of_an_upgrade_state_cause_a_panic() {
    let (config, mut scratch) = (config(Wire::Plain), Scratch::new());
    for seed in 0..60_u64 {
        let scenario = before_plain_servers(random(&mut Rng::new(seed.wrapping_mul(0x0765_4321))));
        let (marks, _) = reference(&scenario, &config, &mut scratch);
        let mut world = World::new(&scenario, &config, Some(&marks), seed, Mutation::Alone, &mut scratch);
        while world.advance() && world.step < 200 {
            world.spoil_upgrade_state(20);
        }
    }
}

#[test]
fn requests_and_tunnels_move_at_every_step() {
    let (config, mut scratch) = (config(Wire::Plain), Scratch::new());
    for wire in [Wire::Plain, Wire::Tls12, Wire::Tls13] {
        for seed in 0..3 {
            for kind in 0..CONTINUES {
                let scenario = requests(wire, &[(kind, 3000), (kind, 40_000), (0, 10)]);
                assert!(compare(&scenario, &config, seed, &mut scratch) > 0);
            }
            let identified =
                requests(wire, &[(LOGIN, 0), (LOGIN_ENDS, 0), (WHO, 300), (WHO_POSTS, 900), (0, 10)]);
            assert!(compare(&identified, &config, seed, &mut scratch) > 0);
            for kind in ENDS {
                assert!(compare(&requests(wire, &[(kind, 3000)]), &config, seed, &mut scratch) > 0);
            }
            for http in [false, true] {
                assert!(compare(&tunnel(wire, http, None), &config, seed, &mut scratch) > 0);
                assert!(compare(&tunnel(wire, http, Some(300)), &config, seed, &mut scratch) > 0);
            }
            assert!(compare(&greeted("a.example", 40, Some(300)), &config, seed, &mut scratch) > 0);
        }
    }
}
