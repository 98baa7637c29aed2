//! Load that differs between buckets and between seconds.

use evergate_base::Micros;
use evergate_membership::{Bucket, Mode, NodeId, Role};

use crate::scenarios::{default_timers, served, settled};
use crate::simulation::config;
use crate::world::World;

const BUCKETS: u16 = 60;

fn owner(world: &World, bucket: u16) -> Option<usize> {
    (0..world.hosts.len()).find(|id| world.hosts[*id].node.gate_listed(Bucket(bucket)).is_some())
}

/// The work of each node, in microseconds per second.
fn loads(world: &World) -> Vec<u64> {
    let mut loads = vec![0; world.hosts.len()];
    for (bucket, work) in (0..BUCKETS).zip(&world.work) {
        if let Some(id) = owner(world, bucket) {
            loads[id] += work;
        }
    }
    loads
}

/// Whether no node has more than `percent` of its fair share.
fn within(world: &World, percent: u64) -> bool {
    let loads = loads(world);
    let fair = loads.iter().sum::<u64>() / loads.len() as u64;
    world.is_settled() && loads.iter().all(|load| load * 100 <= fair * percent)
}

fn three_nodes(seed: u64) -> World {
    settled(seed, config(3, BUCKETS, 1, Mode::Witness))
}

#[test]
fn buckets_leave_the_node_with_most_work_and_then_stay() {
    for seed in 0..4 {
        let mut world = three_nodes(seed);
        // The buckets of node 0 are active, all other ones idle.
        world.work =
            (0..BUCKETS).map(|bucket| if owner(&world, bucket) == Some(0) { 30_000 } else { 0 }).collect();
        assert!(!within(&world, 200), "seed {seed}: {:?}", loads(&world));
        let done = world.run_until(60_000_000, |world| within(world, 126));
        assert_eq!(done, Ok(true), "seed {seed}: {:?}\n{}", loads(&world), world.describe());
        // The work of a second varies by half, and that moves next to nothing.
        world.run_for(20_000_000).unwrap();
        let handoffs = world.handoffs;
        world.run_for(60_000_000).unwrap();
        let moved = world.handoffs - handoffs;
        assert!(moved <= 3 && within(&world, 130), "seed {seed}: {moved} moves, {:?}", loads(&world));
    }
}

#[test]
fn bucket_with_most_of_the_work_stays_and_others_leave() {
    for seed in 0..4 {
        let mut world = three_nodes(seed);
        world.work = (0..BUCKETS).map(|bucket| if bucket == 7 { 400_000 } else { 2000 }).collect();
        let before = owner(&world, 7);
        let alone = |world: &World| {
            let its = before.map_or(0, |id| (0..BUCKETS).filter(|b| owner(world, *b) == Some(id)).count());
            world.is_settled() && its == 1
        };
        let done = world.run_until(60_000_000, alone);
        assert_eq!(done, Ok(true), "seed {seed}: {:?}\n{}", loads(&world), world.describe());
        assert_eq!(owner(&world, 7), before, "seed {seed}: moving it was useless");
        let handoffs = world.handoffs;
        world.run_for(60_000_000).unwrap();
        assert!(world.handoffs - handoffs <= 3, "seed {seed}: {} moves", world.handoffs - handoffs);
    }
}

#[test]
fn little_work_moves_nothing() {
    for seed in 0..4 {
        let mut world = three_nodes(seed);
        let handoffs = world.handoffs;
        // All work is at one node.
        world.work =
            (0..BUCKETS).map(|bucket| if owner(&world, bucket) == Some(1) { 1000 } else { 0 }).collect();
        world.run_for(30_000_000).unwrap();
        assert_eq!(world.handoffs, handoffs, "seed {seed}: {:?}", loads(&world));
    }
}

#[test]
fn work_counts_at_the_new_owner_after_failover_and_handoff() {
    for seed in 0..4 {
        let mut world = three_nodes(seed);
        world.work = (0..BUCKETS).map(|bucket| 5_000 + 1000 * u64::from(bucket % 7)).collect();
        assert_eq!(world.run_until(60_000_000, |world| within(world, 130)), Ok(true), "seed {seed}");
        world.crash(0);
        let two = |world: &World| {
            let loads = loads(world);
            world.is_settled() && loads[1].abs_diff(loads[2]) * 4 <= loads[1] + loads[2]
        };
        assert_eq!(world.run_until(60_000_000, two), Ok(true), "seed {seed}: {:?}", loads(&world));
        world.run_for(20_000_000).unwrap();
        let handoffs = world.handoffs;
        world.run_for(30_000_000).unwrap();
        assert!(world.handoffs - handoffs <= 2, "seed {seed}: {:?}", loads(&world));
    }
}

#[test]
fn node_reports_the_work_of_its_buckets() {
    let mut world = three_nodes(1);
    world.work = vec![20_000; usize::from(BUCKETS)];
    world.run_for(30_000_000).unwrap();
    let reported: Vec<u64> = world.hosts.iter().map(|host| host.node.own_work()).collect();
    for (reported, actual) in reported.iter().zip(loads(&world)) {
        assert!(reported.abs_diff(actual) * 10 < actual, "{reported} of {actual}");
    }
    // A bucket that does not exist has no owner, and work of another node's bucket is not this node's work.
    let node = &mut world.hosts[0].node;
    let before = node.own_work();
    node.handle_work(Bucket(BUCKETS), Micros(1_000_000));
    let foreign = (0..BUCKETS).map(Bucket).find(|bucket| node.gate_listed(*bucket).is_none()).unwrap();
    node.handle_work(foreign, Micros(1_000_000));
    world.run_for(2_000_000).unwrap();
    assert!(world.hosts[0].node.own_work().abs_diff(before) * 5 < before);
}

#[test]
fn drained_node_that_serves_again_gets_its_share_of_work() {
    let mut world = three_nodes(3);
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
fn work_moves_with_a_handoff_and_is_assumed_after_a_failover() {
    for seed in 0..4 {
        // The averages are a second apart, so the reported work was not measured at the new owner.
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
        let failed_over = world.run_until(500_000, |world| served(world, BUCKETS));
        assert_eq!(failed_over, Ok(true), "seed {seed}");
        let reported: u64 = (1..3).map(|id| world.hosts[id].node.own_work()).sum();
        let actual: u64 = loads(&world).iter().sum();
        assert!(reported.abs_diff(actual) * 5 < actual, "seed {seed}: {reported} of {actual}");
    }
}

#[test]
fn joining_node_gets_its_share_of_active_and_idle_buckets() {
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
