//! Random scenarios under random schedules, with up to three failovers each.

use crate::exhaustive::requests_to;
use crate::scenario::{Rng, Scenario, Wire, config, random};
use crate::world::{Cut, Mutation, Outcome, World, reference};
use evergate_connection::{Scratch, Snapshot};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One run; the node dies at the steps of `crash`. Returns the number of steps.
pub(crate) fn run(
    scenario: &Scenario,
    config: &Arc<Snapshot>,
    expected: &(Vec<usize>, Outcome),
    seed: u64,
    crashes_at: &[(u64, Cut)],
    mutation: Mutation,
    scratch: &mut Scratch,
) -> u64 {
    let mut world = World::new(scenario, config, Some(&expected.0), seed, mutation, scratch);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut crashes = crashes_at.iter();
        let mut next = crashes.next();
        while world.advance() {
            while let Some((_, cut)) = next.filter(|(step, _)| *step <= world.step) {
                world.crash(*cut);
                next = crashes.next();
            }
        }
        let outcome = world.outcome();
        if crashes_at.is_empty() || !gives_up(scenario, &outcome, &expected.1) {
            assert!(world.is_through(), "stuck: {}", world.describe());
            compare(&outcome, &expected.1);
        }
    }));
    if let Err(panic) = outcome {
        if mutation == Mutation::None {
            eprintln!("seed {seed}, step {}, crashes {crashes_at:?}, {scenario:?}", world.step);
        }
        std::panic::resume_unwind(panic);
    }
    world.step
}

/// Number of steps of a run without a failover.
pub(crate) fn undisturbed(
    scenario: &Scenario,
    config: &Arc<Snapshot>,
    marks: &[usize],
    seed: u64,
    scratch: &mut Scratch,
) -> u64 {
    let mut world = World::new(scenario, config, Some(marks), seed, Mutation::None, scratch);
    while world.advance() {}
    world.step
}

/// Whether the connection breaks where the first node would have answered in the server's place: the next node does not
/// know whether the server's own answer has left.
fn gives_up(scenario: &Scenario, got: &Outcome, expected: &Outcome) -> bool {
    const OURS: [&[u8]; 4] = [b"HTTP/1.1 408", b"HTTP/1.1 502", b"HTTP/1.1 503", b"HTTP/1.1 504"];
    let missing = expected.client.strip_prefix(&got.client[..]).unwrap_or_default();
    let sealed = scenario.wire != Wire::Plain;
    sealed && got.aborted && !expected.aborted && OURS.iter().any(|answer| missing.starts_with(answer))
}

fn compare(got: &Outcome, expected: &Outcome) {
    if got == expected {
        return;
    }
    same("the client", &got.client, &expected.client);
    let ends = |outcome: &Outcome| (outcome.client_end, outcome.aborted);
    assert_eq!(ends(got), ends(expected), "the client's end, and whether it was a reset");
    assert_eq!(got.servers.len(), expected.servers.len(), "number of server legs");
    for (index, (got, expected)) in got.servers.iter().zip(&expected.servers).enumerate() {
        same(&format!("server {index}"), &got.0, &expected.0);
        assert_eq!(got.1, expected.1, "the end that server {index} saw");
    }
    panic!("outcomes differ");
}

fn same(peer: &str, got: &[u8], expected: &[u8]) {
    if got != expected {
        let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
        let show = |bytes: &[u8]| {
            String::from_utf8_lossy(&bytes[at.saturating_sub(80).min(bytes.len())..bytes.len().min(at + 80)])
                .into_owned()
        };
        panic!(
            "{peer} saw other bytes at {at} of {} and {}: {:?} instead of {:?}",
            got.len(),
            expected.len(),
            show(got),
            show(expected)
        );
    }
}

/// A scenario with responses of so many bytes that not all of them are kept for a stash, and that records are reserved.
fn large(rng: &mut Rng) -> Scenario {
    let wire = rng.pick(&[Wire::Tls12, Wire::Tls13]);
    let behind = rng.pick(&[Wire::Plain, Wire::Plain, Wire::Tls13]);
    let sizes: Vec<_> = (0..1 + rng.below(2)).map(|_| (0, rng.below(700_000))).collect();
    let mut scenario = requests_to(wire, behind, &sizes);
    scenario.window = rng.pick(&[3000, 20_000, 100_000, 400_000]);
    scenario
}

/// Runs with the seeds `from..to`, each undisturbed first and then with failovers.
fn seeds(from: u64, to: u64, make: fn(&mut Rng) -> Scenario) {
    let configs = [Wire::Plain, Wire::Tls12, Wire::Tls13].map(|behind| (behind, config(behind)));
    let mut scratch = Scratch::new();
    for seed in from..to {
        let mut rng = Rng::new(seed.wrapping_mul(0x1234_5677));
        let scenario = make(&mut rng);
        let (_, config) = configs.iter().find(|(behind, _)| *behind == scenario.behind).unwrap();
        let expected = reference(&scenario, config, &mut scratch);
        let steps = run(&scenario, config, &expected, seed, &[], Mutation::None, &mut scratch);
        for _ in 0..4 {
            let mut crashes: Vec<(u64, Cut)> = (0..1 + rng.below(3))
                .map(|_| {
                    (1 + rng.below(steps as usize) as u64, rng.pick(&[Cut::Least, Cut::Most, Cut::Random]))
                })
                .collect();
            crashes.sort_by_key(|(step, _)| *step);
            run(&scenario, config, &expected, seed, &crashes, Mutation::None, &mut scratch);
        }
    }
}

/// `SEEDS=7..9` runs others, `TRACE=1` shows what the backup gets.
fn seeds_or(from: u64, to: u64, make: fn(&mut Rng) -> Scenario) {
    let given = std::env::var("SEEDS").ok();
    let given = given.as_deref().and_then(|seeds| seeds.split_once(".."));
    match given.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?))) {
        Some((from, to)) => seeds(from, to, make),
        None => seeds(from, to, make),
    }
}

#[test]
fn restored_connection_continues_as_if_nothing_had_happened() {
    seeds_or(0, 200, random);
}

#[test]
fn restored_connection_continues_with_other_seeds() {
    seeds_or(1000, 1200, random);
}

#[test]
fn restored_connection_continues_with_large_responses() {
    seeds_or(0, 40, large);
}
