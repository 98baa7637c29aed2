//! Nodes of which some do not receive each other, for longer than any timeout: those that do must continue.

use evergate_membership::{Mode, Path};

use crate::scenarios::{default_timers, settled};
use crate::world::World;

/// Cuts both networks between pairs of nodes, both ways.
fn cut_pairs(world: &mut World, pairs: &[(usize, usize)]) {
    pairs.iter().for_each(|(a, b)| world.cut_between(&[*a], &[*b], &Path::ALL, true));
}

/// Five nodes. Nodes 0 and 2 fail, then 3, and 0 and 2 restart beside 4: node 1 receives only node 4.
fn apart_from_one(seed: u64, one_is_received: bool) -> World {
    let mut world = settled(seed, default_timers(5, 4, 1, Mode::Majority));
    [0, 2].iter().for_each(|id| world.crash(*id));
    world.run_for(3_000_000).unwrap();
    world.crash(3);
    world.run_for(1_000_000).unwrap();
    world.cut_between(&[0, 2], &[1], &Path::ALL, !one_is_received);
    [0, 2].iter().for_each(|id| world.restart(*id));
    world
}

/// A node receives a majority whose nodes receive each other, and a member of its lapsed view that none of them
/// receives.
#[test]
fn majority_is_found_beside_a_former_member() {
    for seed in 0..5 {
        let mut world = apart_from_one(seed, false);
        let serve = |world: &World| world.is_served_by(&[0, 2, 4]);
        assert_eq!(world.run_until(8_000_000, serve), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// As before, but all of them receive the former member, which does not receive them. No node can continue its view.
#[test]
fn majority_without_state_ignores_an_isolated_memory() {
    for seed in 0..5 {
        let mut world = apart_from_one(seed, true);
        let serve = |world: &World| world.is_served_by(&[0, 2, 4]);
        assert_eq!(world.run_until(8_000_000, serve), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// Nodes 0 and 2 receive only 3, which is active by their grants while they are not. Two restarted nodes receive 3 and
/// each other.
#[test]
fn node_active_by_grants_of_fenced_nodes_gives_its_view_up() {
    for seed in 0..5 {
        let mut world = settled(seed, default_timers(5, 16, 1, Mode::Majority));
        for id in [1, 4] {
            world.crash(id);
            world.run_for(1_000_000).unwrap();
        }
        cut_pairs(&mut world, &[(0, 1), (0, 2), (0, 4), (2, 1), (2, 4)]);
        world.run_for(1_000_000).unwrap();
        [1, 4].iter().for_each(|id| world.restart(*id));
        let serve = |world: &World| world.is_served_by(&[1, 3, 4]);
        assert_eq!(world.run_until(12_000_000, serve), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// A node continues alone and loses its witness. Another one restarts with a witness and receives the first, which does
/// not receive it.
#[test]
fn lapsed_node_does_not_block_a_bootstrap_it_cannot_receive() {
    for nodes in [2, 3] {
        for seed in 0..5 {
            let mut world = settled(seed, default_timers(nodes, 4, 1, Mode::Witness));
            for id in 1..usize::from(nodes) {
                world.crash(id);
                world.run_for(1_000_000).unwrap();
            }
            world.hosts[0].witness = false;
            world.run_for(1_000_000).unwrap();
            world.hosts[1].witness = false;
            world.restart(1);
            world.run_for(500_000).unwrap();
            world.cut_between(&[1], &[0], &Path::ALL, false);
            world.run_for(500_000).unwrap();
            world.hosts[1].witness = true;
            let serves = |world: &World| world.is_served_by(&[1]);
            assert_eq!(world.run_until(6_000_000, serves), Ok(true), "seed {seed}\n{}", world.describe());
            let incarnation = world.hosts[1].node.me();
            world.cut.clear();
            world.hosts[0].witness = true;
            let both =
                |world: &World| world.is_served_by(&[0, 1]) && world.hosts[1].node.members().0.len() == 2;
            assert_eq!(world.run_until(8_000_000, both), Ok(true), "seed {seed}\n{}", world.describe());
            assert_eq!(world.hosts[1].node.me(), incarnation, "seed {seed}: the newer state stays");
        }
    }
}

/// Node 1 lapses, receives all nodes again, and is asked for a view of all. The proposer lapses before that view
/// commits.
#[test]
fn proposal_of_a_lapsed_node_does_not_block() {
    for seed in 0..5 {
        for gap in [42_000, 46_000, 50_000, 54_000, 58_000, 62_000, 70_000, 80_000, 100_000, 150_000] {
            let mut world = settled(seed, default_timers(6, 4, 1, Mode::Witness));
            world.run_for(1_000_000).unwrap();
            world.hosts[1].witness = false;
            world.cut_between(&[3], &[1], &Path::ALL, false);
            world.run_for(gap).unwrap();
            world.cut.clear();
            (0..4).for_each(|id: usize| world.hosts[id].witness = false);
            world.cut_between(&[0], &[2], &Path::ALL, false);
            cut_pairs(&mut world, &[(0, 3), (1, 5)]);
            let serve = |world: &World| world.is_served_by(&[4, 5]);
            let case = format!("seed {seed}, {gap} us");
            assert_eq!(world.run_until(4_000_000, serve), Ok(true), "{case}\n{}", world.describe());
        }
    }
}

/// Node 2 joins, and loses its witness between its promise of the view and the commit.
#[test]
fn withdrawn_promise_without_state_does_not_block() {
    for seed in 0..5 {
        let mut world = settled(seed, default_timers(4, 16, 1, Mode::Witness));
        for id in [3, 2] {
            world.crash(id);
            world.run_for(1_000_000).unwrap();
        }
        world.restart(2);
        let commits = |world: &World| world.hosts[0].node.members().0.len() == 3;
        assert_eq!(world.run_until(5_000_000, commits), Ok(true), "seed {seed}\n{}", world.describe());
        assert_eq!(world.hosts[2].node.view(), None, "seed {seed}: the commit is in flight");
        world.hosts[2].witness = false;
        let clock = world.hosts[2].clock(world.now);
        world.hosts[2].node.set_witness(clock, clock, false);
        let without =
            |world: &World| world.is_served_by(&[0, 1]) && world.hosts[0].node.members().0.len() == 2;
        assert_eq!(world.run_until(2_000_000, without), Ok(true), "seed {seed}\n{}", world.describe());
        world.hosts[2].witness = true;
        assert_eq!(
            world.run_until(4_000_000, World::is_settled),
            Ok(true),
            "seed {seed}\n{}",
            world.describe()
        );
    }
}
