//! Nodes with different configurations.

use evergate_membership::{Bucket, CONFIGURATIONS, Mode, NodeId, Path, ROLLOUT, Timing};

use crate::scenarios::settled;
use crate::simulation::config;
use crate::world::World;

const BUCKETS: u16 = 60;
const OLD: [u64; CONFIGURATIONS] = [1, 0, 0, 0];
const NEW: [u64; CONFIGURATIONS] = [2, 0, 0, 0];
const BOTH: [u64; CONFIGURATIONS] = [2, 1, 0, 0];

fn owned(world: &World, id: usize) -> usize {
    (0..BUCKETS).filter(|bucket| world.hosts[id].node.gate_listed(Bucket(*bucket)).is_some()).count()
}

/// Whether a node's buckets have all arrived at other nodes.
fn gave_all(world: &World, id: usize) -> bool {
    owned(world, id) == 0 && (0..3).map(|id| owned(world, id)).sum::<usize>() == usize::from(BUCKETS)
}

fn set_configurations(world: &mut World, id: usize, configurations: [u64; CONFIGURATIONS]) {
    let clock = world.hosts[id].clock(world.now);
    world.hosts[id].node.set_configurations(clock, configurations);
}

fn drains(world: &mut World, id: usize) {
    let clock = world.hosts[id].clock(world.now);
    world.hosts[id].node.set_draining(clock, true);
}

/// Three nodes of which one crashes and restarts with this configuration, while the other ones have the old one.
fn replaced(seed: u64, configurations: [u64; CONFIGURATIONS]) -> World {
    let mut world = settled(seed, config(3, BUCKETS, 1, Mode::Witness));
    for id in 0..3 {
        set_configurations(&mut world, id, OLD);
    }
    world.crash(2);
    world.run_for(3_000_000).unwrap();
    world.restart(2);
    set_configurations(&mut world, 2, configurations);
    world.run_for(20_000_000).unwrap();
    world
}

#[test]
fn node_without_the_configuration_gets_buckets_once_it_has_it() {
    for seed in 0..4 {
        let world = replaced(seed, OLD);
        assert!((15..=25).contains(&owned(&world, 2)), "seed {seed}: {}", owned(&world, 2));
        let mut world = replaced(seed, NEW);
        assert_eq!(owned(&world, 2), 0, "seed {seed}");
        assert_eq!(world.hosts[0].node.config_compatible(NodeId(2)), Some(false));
        assert_eq!(world.hosts[0].node.configuration_of(NodeId(2)), Some(2));
        // Node 2 can continue requests of nodes that have its configuration; an old one beside it does not matter.
        set_configurations(&mut world, 0, BOTH);
        set_configurations(&mut world, 1, BOTH);
        assert_eq!(world.run_until(20_000_000, |world| owned(world, 2) >= 15), Ok(true), "seed {seed}");
    }
}

#[test]
fn nodes_that_stay_different_share_the_work_after_a_while() {
    let mut world = replaced(7, NEW);
    world.run_for(ROLLOUT.0 - 40_000_000).unwrap();
    assert_eq!(owned(&world, 2), 0);
    assert_eq!(world.run_until(60_000_000, |world| owned(world, 2) >= 15), Ok(true));
}

#[test]
fn draining_node_prefers_nodes_with_its_configuration() {
    for seed in 0..4 {
        let mut world = settled(seed, config(3, BUCKETS, 1, Mode::Witness));
        set_configurations(&mut world, 0, BOTH);
        set_configurations(&mut world, 1, OLD);
        set_configurations(&mut world, 2, BOTH);
        world.run_for(2_000_000).unwrap();
        let before = owned(&world, 1);
        drains(&mut world, 0);
        assert_eq!(world.run_until(30_000_000, |world| gave_all(world, 0)), Ok(true), "seed {seed}");
        assert_eq!((owned(&world, 1), owned(&world, 2)), (before, usize::from(BUCKETS) - before));

        let mut world = settled(seed, config(3, BUCKETS, 1, Mode::Witness));
        set_configurations(&mut world, 0, NEW);
        set_configurations(&mut world, 1, OLD);
        set_configurations(&mut world, 2, OLD);
        world.run_for(2_000_000).unwrap();
        drains(&mut world, 0);
        assert_eq!(world.run_until(30_000_000, |world| gave_all(world, 0)), Ok(true), "seed {seed}");
        assert!(owned(&world, 1) > 20 && owned(&world, 2) > 20, "seed {seed}");
    }
}

/// A node with long leases continues for longer than nodes with short ones wait.
#[test]
fn nodes_of_different_timing_never_share_a_bucket() {
    for seed in 0..20 {
        let mut template = config(3, BUCKETS, 1, Mode::Witness);
        template.timing = Timing::BARE_METAL;
        let mut world = settled(seed, template);
        world.timings.insert(1, Timing::VIRTUAL_MACHINE);
        world.crash(1);
        world.run_for(3_000_000).unwrap();
        world.restart(1);
        world.run_for(6_000_000).unwrap();
        for span_us in [50_000, 85_000, 110_000, 130_000] {
            for paths in [&Path::ALL[..], &Path::ALL[..1]] {
                world.cut_between(&[1], &[0, 2], paths, true);
                world.run_for(span_us).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
                world.cut.clear();
                world.run_for(3_000_000).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            }
        }
    }
}
