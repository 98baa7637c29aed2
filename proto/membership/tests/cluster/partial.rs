//! Nodes of which some do not hear each other, for longer than anybody waits: those that do must go on.

use evergate_membership::{Mode, Path};

use crate::scenarios::{default_timers, settled};
use crate::world::World;

/// Cuts both networks between pairs of nodes, both ways.
fn part(world: &mut World, pairs: &[(usize, usize)]) {
    pairs.iter().for_each(|(a, b)| world.cut_between(&[*a], &[*b], &Path::ALL, true));
}

/// Five nodes of which 0 and 2 were dead, and then 3, come back to 4 only: 1 hears nobody but 4.
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

/// A node hears more than half of the nodes, who hear each other, and one of its lapsed view that none of them hears.
#[test]
fn a_majority_that_hears_each_other_is_found_beside_a_former_member() {
    for seed in 0..5 {
        let mut world = apart_from_one(seed, false);
        let serve = |world: &World| world.is_served_by(&[0, 2, 4]);
        assert_eq!(world.run_until(8_000_000, serve), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// The same, and all of them hear that one, which does not hear them: it remembers a view with which nobody can go on.
#[test]
fn a_majority_without_state_does_not_wait_for_one_that_hears_too_few() {
    for seed in 0..5 {
        let mut world = apart_from_one(seed, true);
        let serve = |world: &World| world.is_served_by(&[0, 2, 4]);
        assert_eq!(world.run_until(8_000_000, serve), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// Nodes 0 and 2 hear only 3, which is active by their grants while they are not. Two others have begun anew, and hear 3 and each other.
#[test]
fn a_node_that_acts_by_grants_of_fenced_ones_gives_up_a_view_that_nobody_can_follow() {
    for seed in 0..5 {
        let mut world = settled(seed, default_timers(5, 16, 1, Mode::Majority));
        for id in [1, 4] {
            world.crash(id);
            world.run_for(1_000_000).unwrap();
        }
        part(&mut world, &[(0, 1), (0, 2), (0, 4), (2, 1), (2, 4)]);
        world.run_for(1_000_000).unwrap();
        [1, 4].iter().for_each(|id| world.restart(*id));
        let serve = |world: &World| world.is_served_by(&[1, 3, 4]);
        assert_eq!(world.run_until(12_000_000, serve), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// A node went on alone and has lost its witness. Another one comes back and has one; it hears the first, which does not hear it.
#[test]
fn a_lapsed_node_that_does_not_hear_one_with_a_witness_does_not_keep_it_from_founding() {
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
            let life = world.hosts[1].node.me();
            world.cut.clear();
            world.hosts[0].witness = true;
            let both =
                |world: &World| world.is_served_by(&[0, 1]) && world.hosts[1].node.members().0.len() == 2;
            assert_eq!(world.run_until(8_000_000, both), Ok(true), "seed {seed}\n{}", world.describe());
            assert_eq!(world.hosts[1].node.me(), life, "seed {seed}: what is newer stays");
        }
    }
}

/// Node 1 lapses, hears all again, and is asked for a view of all; whoever asked lapses before that came to anything.
#[test]
fn what_a_lapsed_node_proposed_is_not_waited_for() {
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
            part(&mut world, &[(0, 3), (1, 5)]);
            let serve = |world: &World| world.is_served_by(&[4, 5]);
            let place = format!("seed {seed}, {gap} us");
            assert_eq!(world.run_until(4_000_000, serve), Ok(true), "{place}\n{}", world.describe());
        }
    }
}

/// Node 2 joins, and loses its witness after it has promised the view and before it has it.
#[test]
fn a_node_that_took_its_promise_back_without_state_is_not_waited_for() {
    for seed in 0..5 {
        let mut world = settled(seed, default_timers(4, 16, 1, Mode::Witness));
        for id in [3, 2] {
            world.crash(id);
            world.run_for(1_000_000).unwrap();
        }
        world.restart(2);
        let commits = |world: &World| world.hosts[0].node.members().0.len() == 3;
        assert_eq!(world.run_until(5_000_000, commits), Ok(true), "seed {seed}\n{}", world.describe());
        assert_eq!(world.hosts[2].node.view(), None, "seed {seed}: it is under way");
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
