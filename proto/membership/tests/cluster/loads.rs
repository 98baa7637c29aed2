//! Load that differs from bucket to bucket, and from second to second.

use evergate_base::Micros;
use evergate_membership::{Bucket, Mode, NodeId, Role};

use crate::scenarios::{default_timers, served, settled};
use crate::simulation::config;
use crate::world::World;

const BUCKETS: u16 = 60;

fn owner(world: &World, bucket: u16) -> Option<usize> {
    (0..world.hosts.len()).find(|id| world.hosts[*id].node.gate_listed(Bucket(bucket)).is_some())
}

/// What each node has to do, in microseconds a second.
fn loads(world: &World) -> Vec<u64> {
    let mut loads = vec![0; world.hosts.len()];
    for (bucket, work) in (0..BUCKETS).zip(&world.work) {
        if let Some(id) = owner(world, bucket) {
            loads[id] += work;
        }
    }
    loads
}

/// No node has more than `percent` of its fair share.
fn within(world: &World, percent: u64) -> bool {
    let loads = loads(world);
    let fair = loads.iter().sum::<u64>() / loads.len() as u64;
    world.is_settled() && loads.iter().all(|load| load * 100 <= fair * percent)
}

fn busy_and_idle(seed: u64) -> World {
    settled(seed, config(3, BUCKETS, 1, Mode::Witness))
}

#[test]
fn buckets_move_from_who_has_more_work_than_the_others_and_then_stay() {
    for seed in 0..4 {
        let mut world = busy_and_idle(seed);
        // All of what node 0 owns is busy, the rest idle.
        world.work =
            (0..BUCKETS).map(|bucket| if owner(&world, bucket) == Some(0) { 30_000 } else { 0 }).collect();
        assert!(!within(&world, 200), "seed {seed}: {:?}", loads(&world));
        let done = world.run_until(60_000_000, |world| within(world, 126));
        assert_eq!(done, Ok(true), "seed {seed}: {:?}\n{}", loads(&world), world.describe());
        // What every second brings differs by half, and that moves next to nothing.
        world.run_for(20_000_000).unwrap();
        let upgrades = world.upgrades;
        world.run_for(60_000_000).unwrap();
        let moved = world.upgrades - upgrades;
        assert!(moved <= 3 && within(&world, 130), "seed {seed}: {moved} moves, {:?}", loads(&world));
    }
}

#[test]
fn one_bucket_with_most_of_the_work_stays_and_its_neighbours_leave() {
    for seed in 0..4 {
        let mut world = busy_and_idle(seed);
        world.work = (0..BUCKETS).map(|bucket| if bucket == 7 { 400_000 } else { 2000 }).collect();
        let before = owner(&world, 7);
        let alone = |world: &World| {
            let its = before.map_or(0, |id| (0..BUCKETS).filter(|b| owner(world, *b) == Some(id)).count());
            world.is_settled() && its == 1
        };
        let done = world.run_until(60_000_000, alone);
        assert_eq!(done, Ok(true), "seed {seed}: {:?}\n{}", loads(&world), world.describe());
        assert_eq!(owner(&world, 7), before, "seed {seed}: it was of no use to move it");
        let upgrades = world.upgrades;
        world.run_for(60_000_000).unwrap();
        assert!(world.upgrades - upgrades <= 3, "seed {seed}: {} moves", world.upgrades - upgrades);
    }
}

#[test]
fn little_work_moves_nothing() {
    for seed in 0..4 {
        let mut world = busy_and_idle(seed);
        let upgrades = world.upgrades;
        // All of it at one node.
        world.work =
            (0..BUCKETS).map(|bucket| if owner(&world, bucket) == Some(1) { 1000 } else { 0 }).collect();
        world.run_for(30_000_000).unwrap();
        assert_eq!(world.upgrades, upgrades, "seed {seed}: {:?}", loads(&world));
    }
}

#[test]
fn work_counts_at_a_node_that_took_over_and_at_one_that_was_given_a_bucket() {
    for seed in 0..4 {
        let mut world = busy_and_idle(seed);
        world.work = (0..BUCKETS).map(|bucket| 5_000 + 1000 * u64::from(bucket % 7)).collect();
        assert_eq!(world.run_until(60_000_000, |world| within(world, 130)), Ok(true), "seed {seed}");
        world.crash(0);
        let two = |world: &World| {
            let loads = loads(world);
            world.is_settled() && loads[1].abs_diff(loads[2]) * 4 <= loads[1] + loads[2]
        };
        assert_eq!(world.run_until(60_000_000, two), Ok(true), "seed {seed}: {:?}", loads(&world));
        world.run_for(20_000_000).unwrap();
        let upgrades = world.upgrades;
        world.run_for(30_000_000).unwrap();
        assert!(world.upgrades - upgrades <= 2, "seed {seed}: {:?}", loads(&world));
    }
}

#[test]
fn a_node_says_what_work_its_buckets_make() {
    let mut world = busy_and_idle(1);
    world.work = vec![20_000; usize::from(BUCKETS)];
    world.run_for(30_000_000).unwrap();
    let reported: Vec<u64> = world.hosts.iter().map(|host| host.node.own_work()).collect();
    for (reported, really) in reported.iter().zip(loads(&world)) {
        assert!(reported.abs_diff(really) * 10 < really, "{reported} of {really}");
    }
    // Nobody owns what does not exist, and what is not ours is not our work.
    let node = &mut world.hosts[0].node;
    let before = node.own_work();
    node.handle_work(Bucket(BUCKETS), Micros(1_000_000));
    let foreign = (0..BUCKETS).map(Bucket).find(|bucket| node.gate_listed(*bucket).is_none()).unwrap();
    node.handle_work(foreign, Micros(1_000_000));
    world.run_for(2_000_000).unwrap();
    assert!(world.hosts[0].node.own_work().abs_diff(before) * 5 < before);
}

#[test]
fn a_drained_node_that_serves_again_gets_its_share_of_the_work() {
    let mut world = busy_and_idle(3);
    world.work = vec![20_000; usize::from(BUCKETS)];
    let drain = |world: &mut World, draining: bool| {
        let clock = world.hosts[2].clock(world.now);
        world.hosts[2].node.set_draining(clock, draining);
    };
    drain(&mut world, true);
    let drained = |world: &World| world.is_settled() && (0..BUCKETS).all(|b| owner(world, b) != Some(2));
    assert_eq!(world.run_until(30_000_000, drained), Ok(true), "{:?}", loads(&world));
    drain(&mut world, false);
    assert_eq!(world.run_until(60_000_000, |world| within(world, 118)), Ok(true), "{:?}", loads(&world));
}

#[test]
fn what_a_bucket_weighs_goes_along_and_is_assumed_after_a_death() {
    for seed in 0..4 {
        // Between two averages there is a second: what is said now was not measured there.
        let mut world = settled(seed, default_timers(3, BUCKETS, 1, Mode::Witness));
        let moving = (0..BUCKETS).find(|b| owner(&world, *b) == Some(0)).unwrap();
        world.work = (0..BUCKETS).map(|bucket| if bucket == moving { 90_000 } else { 20_000 }).collect();
        world.run_for(30_000_000).unwrap();
        let from = owner(&world, moving).unwrap();
        let to = (0..3)
            .find(|id| {
                matches!(world.hosts[*id].node.role(Bucket(moving)), Role::Backup { in_sync: true, .. })
            })
            .unwrap();
        let clock = world.hosts[from].clock(world.now);
        let before = world.hosts[to].node.own_work();
        world.hosts[from].node.move_bucket(clock, Bucket(moving), NodeId(to as u8));
        let moved = world.run_until(500_000, |world| owner(world, moving) == Some(to));
        assert_eq!(moved, Ok(true), "seed {seed}");
        let more = world.hosts[to].node.own_work().saturating_sub(before);
        assert!((70_000..110_000).contains(&more), "seed {seed}: {more} more, of about 91,000");

        world.run_for(5_000_000).unwrap();
        world.crash(0);
        let taken = world.run_until(500_000, |world| served(world, BUCKETS));
        assert_eq!(taken, Ok(true), "seed {seed}");
        let reported: u64 = (1..3).map(|id| world.hosts[id].node.own_work()).sum();
        let really: u64 = loads(&world).iter().sum();
        assert!(reported.abs_diff(really) * 5 < really, "seed {seed}: {reported} of {really}");
    }
}

#[test]
fn a_node_that_joins_gets_its_share_of_the_work_and_of_what_rests() {
    for seed in 0..4 {
        let mut world = World::new(seed, 3, config(3, BUCKETS, 1, Mode::Witness));
        world.crash(2);
        assert_eq!(world.run_until(4_000_000, World::is_settled), Ok(true), "seed {seed}");
        world.work = (0..BUCKETS).map(|bucket| if bucket % 3 == 0 { 40_000 } else { 0 }).collect();
        world.run_for(11_000_000).unwrap();
        world.restart(2);
        let owned = |world: &World, id: usize| (0..BUCKETS).filter(|b| owner(world, *b) == Some(id)).count();
        let even =
            |world: &World| within(world, 122) && (0..3).all(|id| (16..=23).contains(&owned(world, id)));
        let done = world.run_until(60_000_000, even);
        let counts: Vec<usize> = (0..3).map(|id| owned(&world, id)).collect();
        assert_eq!(done, Ok(true), "seed {seed}: {counts:?} {:?}\n{}", loads(&world), world.describe());
    }
}
