//! Single scenarios with the default timers: the length of a failover, leaving, draining, joining, returning.

use evergate_membership::{
    Bucket, Config, DATAGRAM_BYTES_MAX, Event, MemberSet, Mode, NodeId, NodePhase, Path, Role, Timing,
};

use evergate_base::Micros;

use crate::random::Random;
use crate::simulation::config;
use crate::world::World;

pub(crate) fn default_timers(nodes: u8, buckets: u16, backups: u8, mode: Mode) -> Config {
    Config { timing: Timing::BARE_METAL, ..config(nodes, buckets, backups, mode) }
}

/// A world that has started and settled.
pub(crate) fn settled(seed: u64, config: Config) -> World {
    let nodes = config.nodes.len() as u8;
    let mut world = World::new(seed, nodes, config);
    let up = world.run_until(6_000_000, World::is_settled);
    assert_eq!(up, Ok(true), "seed {seed}\n{}", world.describe());
    world
}

pub(crate) fn served(world: &World, buckets: u16) -> bool {
    (0..buckets).all(|bucket| {
        world.hosts.iter().any(|host| host.up && host.node.gate_open(Bucket(bucket), host.clock(world.now)))
    })
}

/// Times from a crash until every bucket is served again, for many crashes at random moments.
fn stalls_us(nodes: u8, mode: Mode) -> Vec<u64> {
    let mut stalls = Vec::new();
    for seed in 0..60 {
        let mut world = settled(seed, default_timers(nodes, 16, 1, mode));
        let wait = Random::new(seed).below(30_000);
        world.run_for(200_000 + wait).unwrap();
        let victim = (seed % u64::from(nodes)) as usize;
        let (crashed_at, before) = (world.now, world.failovers);
        world.crash(victim);
        let served_again = world.run_until(400_000, |world| served(world, 16));
        assert_eq!(served_again, Ok(true), "seed {seed}\n{}", world.describe());
        assert!(world.failovers > before, "seed {seed}: nothing was resumed");
        stalls.push(world.now - crashed_at);
    }
    stalls.sort_unstable();
    stalls
}

#[test]
fn crashed_owner_is_replaced_within_60_ms() {
    for (nodes, mode) in [(2, Mode::Witness), (3, Mode::Witness), (3, Mode::Majority), (5, Mode::Majority)] {
        let stalls = stalls_us(nodes, mode);
        let (p50, max) = (stalls[stalls.len() / 2], stalls[stalls.len() - 1]);
        println!("{nodes} nodes, {mode:?}: failover p50 {p50} us, max {max} us");
        assert!(max <= 60_000, "{nodes} nodes, {mode:?}: p50 {p50} us, max {max} us");
    }
}

#[test]
fn leaving_node_is_replaced_without_waiting_for_its_leases() {
    for seed in 0..40 {
        let mut world = settled(seed, default_timers(3, 16, 1, Mode::Witness));
        world.run_for(100_000).unwrap();
        let left_at = world.now;
        let clock = world.hosts[1].clock(world.now);
        world.hosts[1].node.leave(clock);
        let others = |world: &World| world.is_served_by(&[0, 2]);
        assert_eq!(world.run_until(400_000, others), Ok(true), "seed {seed}\n{}", world.describe());
        let stall = world.now - left_at;
        assert!(stall < world.hosts[0].node.config().timing.take.0, "seed {seed}: {stall} us");
        assert_eq!(world.hosts[1].node.phase(), NodePhase::Left);
        assert!(world.failovers > 0);
    }
}

#[test]
fn prepared_leave_saves_the_wait_and_a_replay_is_harmless() {
    for seed in 0..40 {
        let mut world = settled(seed, default_timers(3, 16, 1, Mode::Witness));
        world.run_for(100_000).unwrap();
        let clock = world.hosts[1].clock(world.now);
        let leave_heartbeats = world.hosts[1].node.leave_heartbeats(clock);
        assert_eq!(world.hosts[1].node.phase(), NodePhase::Active, "the preparation changes nothing");
        world.run_for(Random::new(seed).below(100_000)).unwrap();
        let died_at = world.now;
        world.crash(1);
        world.send_leave(1, &leave_heartbeats);
        let served_again = world.run_until(400_000, |world| served(world, 16));
        assert_eq!(served_again, Ok(true), "seed {seed}\n{}", world.describe());
        let stall = world.now - died_at;
        assert!(stall < world.hosts[0].node.config().timing.take.0, "seed {seed}: {stall} us");
        world.restart(1);
        assert_eq!(world.run_until(8_000_000, World::is_settled), Ok(true), "seed {seed}");
        let failovers = world.failovers;
        world.send_leave(1, &leave_heartbeats);
        world.run_for(500_000).unwrap();
        assert!(world.is_settled() && world.failovers == failovers, "seed {seed}\n{}", world.describe());
    }
}

#[test]
fn drained_node_ends_with_nothing_and_no_bucket_stalls() {
    // Also where equal shares of the other nodes leave one bucket over.
    for (seed, nodes) in (0..10).map(|seed| (seed, 3 + (seed % 2) as u8)) {
        let mut world = settled(seed, config(nodes, 16, 1, Mode::Witness));
        let clock = world.hosts[2].clock(world.now);
        world.hosts[2].node.set_draining(clock, true);
        let empty = |world: &World| (0..16).all(|b| world.hosts[2].node.gate_listed(Bucket(b)).is_none());
        assert_eq!(world.run_until(8_000_000, empty), Ok(true), "seed {seed}\n{}", world.describe());
        // Its replicas are replaced as well, so that no bucket loses its backup when the node leaves.
        let alone = |world: &World| {
            world.is_settled()
                && (0..16).all(|b| matches!(world.hosts[2].node.role(Bucket(b)), Role::Outside { .. }))
        };
        assert_eq!(world.run_until(8_000_000, alone), Ok(true), "seed {seed}\n{}", world.describe());
        let (handoffs, failovers) = (world.handoffs, world.failovers);
        assert!(handoffs >= 4 && failovers == 0, "seed {seed}: {handoffs} handoffs, {failovers} failovers");
        let reported = world.events.iter().any(|(id, event)| *id == 2 && *event == Event::Drained);
        assert!(reported, "seed {seed}: no Drained event");
    }
}

#[test]
fn node_that_dropped_a_backup_drains_in_the_same_view() {
    for seed in 0..10 {
        let mut world = settled(seed, config(3, 16, 1, Mode::Witness));
        let view = world.hosts[0].node.view();
        world.drop_backup(0, 1);
        world.run_for(500_000).unwrap();
        let clock = world.hosts[0].clock(world.now);
        world.hosts[0].node.set_draining(clock, true);
        let empty = |world: &World| (0..16).all(|b| world.hosts[0].node.gate_listed(Bucket(b)).is_none());
        assert_eq!(world.run_until(4_000_000, empty), Ok(true), "seed {seed}\n{}", world.describe());
        assert_eq!(world.hosts[0].node.view(), view, "seed {seed}");
    }
}

#[test]
fn drained_node_that_serves_again_gets_buckets_and_replicas() {
    for seed in 0..10 {
        let mut world = settled(seed, config(3, 30, 1, Mode::Witness));
        let count = |world: &World, is: fn(Role) -> bool| {
            (0..30).filter(|bucket| is(world.hosts[2].node.role(Bucket(*bucket)))).count()
        };
        let replicas =
            |world: &World| count(world, |role| matches!(role, Role::Backup { in_sync: true, .. }));
        let owned = |world: &World| count(world, |role| matches!(role, Role::Owner { .. }));
        let view = world.hosts[0].node.view();
        for _ in 0..3 {
            for draining in [true, false] {
                let clock = world.hosts[2].clock(world.now);
                world.hosts[2].node.set_draining(clock, draining);
                let done = |world: &World| match draining {
                    true => owned(world) == 0 && replicas(world) == 0,
                    false => owned(world) >= 8 && replicas(world) >= 6,
                };
                assert_eq!(world.run_until(30_000_000, done), Ok(true), "seed {seed}\n{}", world.describe());
            }
        }
        world.run_for(5_000_000).unwrap();
        let handoffs = world.handoffs;
        world.run_for(5_000_000).unwrap();
        assert_eq!(world.handoffs, handoffs, "seed {seed}: moves without end");
        assert_eq!(world.hosts[0].node.view(), view, "seed {seed}");
    }
}

#[test]
fn member_that_fails_as_backup_does_not_block_a_drain() {
    for seed in 0..10 {
        let mut world = settled(seed, config(3, 16, 1, Mode::Witness));
        world.crash(1);
        world.run_for(3_000_000).unwrap();
        world.restart(1);
        let without_backup = |world: &mut World, span_us: u64, done: &dyn Fn(&World) -> bool| {
            let end = world.now + span_us;
            while world.now < end && !done(world) {
                world.run_for(20_000).unwrap();
                world.drop_backup(0, 1);
                world.drop_backup(2, 1);
            }
            done(world)
        };
        without_backup(&mut world, 4_000_000, &|_| false);
        let owned = |world: &World, id: usize| {
            (0..16).filter(|b| world.hosts[id].node.gate_listed(Bucket(*b)).is_some()).count()
        };
        assert!(owned(&world, 1) == 0 && world.hosts[0].node.members().0.len() == 3, "seed {seed}");
        let clock = world.hosts[0].clock(world.now);
        world.hosts[0].node.set_draining(clock, true);
        let empty = |world: &World| owned(world, 0) == 0;
        assert!(without_backup(&mut world, 20_000_000, &empty), "seed {seed}\n{}", world.describe());
        assert_eq!(owned(&world, 2), 16, "seed {seed}");
    }
}

#[test]
fn joining_node_gets_its_share_and_load_is_even() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3, config(3, 30, 1, Mode::Witness));
        world.crash(2);
        assert_eq!(world.run_until(4_000_000, World::is_settled), Ok(true), "seed {seed}");
        world.work = (0..30).map(|bucket| 10_000 + 1000 * (bucket % 3)).collect();
        world.work_varies_percent = 0;
        world.run_for(11_000_000).unwrap(); // until the work is known
        world.restart(2);
        let owned = |world: &World, id: usize| {
            (0..30).filter(|b| world.hosts[id].node.gate_listed(Bucket(*b)).is_some()).count()
        };
        let even =
            |world: &World| world.is_settled() && (0..3).all(|id| (8..=12).contains(&owned(world, id)));
        let done = world.run_until(10_000_000, even);
        let counts: Vec<usize> = (0..3).map(|id| owned(&world, id)).collect();
        assert_eq!(done, Ok(true), "seed {seed}: {counts:?}\n{}", world.describe());
        // The result is stable: no bucket returns.
        world.run_for(1_000_000).unwrap();
        let handoffs = world.handoffs;
        world.run_for(5_000_000).unwrap();
        assert_eq!(world.handoffs, handoffs, "seed {seed}: moves without end");
    }
}

/// The nodes with a complete replica of each bucket.
fn replicas(world: &World, buckets: u16) -> Vec<Vec<usize>> {
    let holds = |id: usize, bucket| {
        matches!(world.hosts[id].node.role(Bucket(bucket)), Role::Backup { in_sync: true, .. })
    };
    (0..buckets).map(|bucket| (0..world.hosts.len()).filter(|id| holds(*id, bucket)).collect()).collect()
}

#[test]
fn joining_node_gets_its_share_of_replicas_and_they_stay() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3, config(3, 60, 1, Mode::Witness));
        world.crash(2);
        assert_eq!(world.run_until(4_000_000, World::is_settled), Ok(true), "seed {seed}");
        world.restart(2);
        let share =
            |world: &World, id: usize| replicas(world, 60).iter().filter(|of| of.contains(&id)).count();
        let even = |world: &World| {
            world.is_settled()
                && replicas(world, 60).iter().all(|of| of.len() == 1)
                && (0..3).all(|id| share(world, id) >= 10)
        };
        let done = world.run_until(20_000_000, even);
        let shares: Vec<usize> = (0..3).map(|id| share(&world, id)).collect();
        assert_eq!(done, Ok(true), "seed {seed}: {shares:?}\n{}", world.describe());
        world.run_for(2_000_000).unwrap();
        let before = replicas(&world, 60);
        world.run_for(5_000_000).unwrap();
        assert_eq!(replicas(&world, 60), before, "seed {seed}: replicas move without end");
    }
}

#[test]
fn node_paused_for_ten_seconds_returns_empty_and_serves() {
    for (seed, mode) in [(1, Mode::Witness), (2, Mode::Majority)] {
        let mut world = settled(seed, default_timers(3, 8, 1, mode));
        world.pause(0);
        world.run_for(10_000_000).unwrap();
        assert!(served(&world, 8), "{}", world.describe());
        world.resume(0).unwrap();
        assert_eq!(world.run_until(8_000_000, World::is_settled), Ok(true), "{}", world.describe());
    }
}

#[test]
fn nodes_crash_in_sequence_until_one_is_left() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(4, 16, 1, Mode::Witness));
        for victim in [3, 1, 0] {
            world.run_for(200_000).unwrap();
            assert_eq!(
                world.run_until(3_000_000, World::is_settled),
                Ok(true),
                "seed {seed}\n{}",
                world.describe()
            );
            let data_epochs = |world: &World| -> Vec<_> {
                (0..16)
                    .map(|b| match world.hosts[2].node.role(Bucket(b)) {
                        Role::Owner { data_epoch, .. } => Some(data_epoch),
                        _ => None,
                    })
                    .collect()
            };
            world.crash(victim);
            assert_eq!(
                world.run_until(400_000, |w| served(w, 16)),
                Ok(true),
                "seed {seed}\n{}",
                world.describe()
            );
            if victim == 0 {
                assert!(
                    data_epochs(&world).iter().flatten().all(|g| g.0.epoch <= 2),
                    "seed {seed}: began empty"
                );
            }
        }
        assert!(world.failovers > 0);
    }
}

#[test]
fn whole_map_fits_into_a_datagram_below_16_kb() {
    let mut world = World::new(3, 7, config(7, 1024, 3, Mode::Witness));
    world.traffic = false;
    let all = |world: &World| world.hosts.iter().all(|host| host.node.view().is_some());
    assert_eq!(world.run_until(2_000_000, all), Ok(true), "{}", world.describe());
    // A promise with claims is larger than a commit.
    world.crash(6);
    let without =
        |world: &World| world.hosts.iter().filter(|host| host.node.members().0.len() == 6).count() == 6;
    assert_eq!(world.run_until(2_000_000, without), Ok(true), "{}", world.describe());
    println!("largest datagram: {} bytes", world.largest);
    assert!(world.largest > 1024 && world.largest < 16_384, "{} bytes", world.largest);
    assert!(world.largest < DATAGRAM_BYTES_MAX);
}

#[test]
fn cluster_of_one_serves_without_a_witness() {
    let mut world = World::new(1, 1, default_timers(1, 8, 1, Mode::Witness));
    world.hosts[0].witness = false;
    assert_eq!(world.run_until(500_000, World::is_settled), Ok(true), "{}", world.describe());
    world.run_for(2_000_000).unwrap();
    assert!(served(&world, 8));
}

#[test]
fn loss_of_one_network_by_all_changes_no_view() {
    let mut world = settled(5, default_timers(3, 8, 1, Mode::Majority));
    world.run_for(100_000).unwrap();
    let views: Vec<_> = world.hosts.iter().map(|host| host.node.view()).collect();
    world.cut_between(&[0], &[1, 2], &[Path::Outside], true);
    world.cut_between(&[1], &[2], &[Path::Outside], true);
    world.run_for(3_000_000).unwrap();
    assert_eq!(views, world.hosts.iter().map(|host| host.node.view()).collect::<Vec<_>>());
    assert!(served(&world, 8));
}

#[test]
fn node_whose_workers_hang_is_replaced() {
    let mut world = settled(6, default_timers(3, 8, 1, Mode::Witness));
    let clock = world.hosts[0].clock(world.now);
    world.hosts[0].node.handle_progress(clock);
    let replaced = |world: &World| {
        (0..8).all(|b| {
            [1, 2].iter().any(|id| {
                let host = &world.hosts[*id];
                host.node.gate_open(Bucket(b), host.clock(world.now))
            })
        })
    };
    assert_eq!(world.run_until(400_000, replaced), Ok(true), "{}", world.describe());
}

#[test]
fn outage_of_all_networks_is_survived_with_all_state() {
    let data_epochs = |world: &World| -> Vec<_> {
        let owner = |bucket| {
            world.hosts.iter().find_map(|host| match host.node.role(Bucket(bucket)) {
                Role::Owner { data_epoch, .. } => Some((host.node.me(), data_epoch)),
                _ => None,
            })
        };
        (0..8).map(owner).collect()
    };
    for (seed, nodes, mode) in [(7, 2, Mode::Witness), (8, 3, Mode::Witness), (9, 3, Mode::Majority)] {
        let mut world = settled(seed, default_timers(nodes, 8, 1, mode));
        world.run_for(300_000).unwrap();
        let before = data_epochs(&world);
        let all: Vec<usize> = (0..usize::from(nodes)).collect();
        world.cut_between(&all, &all, &Path::ALL, true);
        world.hosts.iter_mut().for_each(|host| host.witness = false);
        world.run_for(2_500_000).unwrap();
        assert!(
            world.hosts.iter().all(|host| host.node.phase() == NodePhase::Fenced),
            "{}",
            world.describe()
        );
        world.cut.clear();
        world.hosts.iter_mut().for_each(|host| host.witness = true);
        assert_eq!(world.run_until(1_000_000, World::is_settled), Ok(true), "{}", world.describe());
        assert_eq!(before, data_epochs(&world), "a bucket moved or began empty");
    }
}

#[test]
fn two_of_three_survive_a_blink_of_the_witness_with_all_state() {
    let mut world = settled(11, default_timers(3, 8, 1, Mode::Witness));
    world.crash(2);
    world.run_for(500_000).unwrap();
    let data_epochs = |world: &World| -> Vec<_> {
        (0..8)
            .map(|b| {
                world.hosts.iter().find_map(|host| match host.node.role(Bucket(b)) {
                    Role::Owner { data_epoch, .. } if host.up => Some(data_epoch),
                    _ => None,
                })
            })
            .collect()
    };
    let before = data_epochs(&world);
    [0, 1].iter().for_each(|id| world.hosts[*id].witness = false);
    world.run_for(80_000).unwrap();
    assert!([0, 1].iter().all(|id| world.hosts[*id].node.phase() == NodePhase::Fenced));
    [0, 1].iter().for_each(|id| world.hosts[*id].witness = true);
    assert_eq!(world.run_until(2_500_000, World::is_settled), Ok(true), "{}", world.describe());
    assert_eq!(before, data_epochs(&world), "connections were dropped");
}

/// Number of buckets of an owner with at least one backup and all backups in sync.
fn fully_backed(world: &World, owner: usize, buckets: u16) -> usize {
    let role = |bucket| world.hosts[owner].node.role(Bucket(bucket));
    let in_sync = |required: MemberSet, syncing: MemberSet| !required.is_empty() && syncing.is_empty();
    let whole = |role| matches!(role, Role::Owner { required, syncing, .. } if in_sync(required, syncing));
    (0..buckets).filter(|bucket| whole(role(*bucket))).count()
}

#[test]
fn dropped_backup_returns_in_the_same_view() {
    for (seed, nodes, backups) in [(1, 2, 1), (2, 3, 2), (3, 3, 1)] {
        let mut world = settled(seed, config(nodes, 16, backups, Mode::Witness));
        let (view, owned) = (world.hosts[0].node.view(), fully_backed(&world, 0, 16));
        assert!(owned > 0);
        for _ in 0..3 {
            world.drop_backup(0, 1);
            // Also while the backup catches up.
            world.run_for(Random::new(seed).below(100_000)).unwrap();
            world.drop_backup(0, 1);
            world.run_for(30_000).unwrap();
            assert_eq!(world.run_until(3_000_000, World::is_settled), Ok(true), "{}", world.describe());
        }
        assert_eq!(world.hosts[0].node.view(), view, "it took a new view");
        assert!(fully_backed(&world, 0, 16) >= owned);
        // The replica is complete: its holder continues as soon as it knows that it is in sync.
        world.run_for(20_000).unwrap();
        let before = world.failovers;
        world.crash(0);
        assert_eq!(world.run_until(400_000, |w| served(w, 16)), Ok(true), "{}", world.describe());
        assert!(world.failovers > before);
    }
}

#[test]
fn failing_backup_is_tried_less_and_less_often() {
    let mut world = settled(4, config(2, 1, 1, Mode::Witness));
    let owner = (0..2).find(|id| world.hosts[*id].node.gate_listed(Bucket(0)).is_some()).unwrap();
    let listed =
        |world: &World| world.hosts[owner].node.gate_listed(Bucket(0)).is_some_and(|all| !all.is_empty());
    let wait = |world: &mut World| {
        world.drop_backup(owner, 1 - owner);
        assert_eq!(world.run_until(1_000_000, |world| !listed(world)), Ok(true), "{}", world.describe());
        let from = world.now;
        assert_eq!(world.run_until(1_000_000, listed), Ok(true), "{}", world.describe());
        world.now - from
    };
    let waits: Vec<u64> = (0..5).map(|_| wait(&mut world)).collect();
    assert!(waits[4] > 2 * waits[0] && waits[4] < 400_000, "{waits:?}");
    // A node that crashed and restarted fails for the first time.
    world.crash(1 - owner);
    world.run_for(50_000).unwrap();
    world.restart(1 - owner);
    assert_eq!(world.run_until(3_000_000, World::is_settled), Ok(true), "{}", world.describe());
    let fresh_start = wait(&mut world);
    assert!(fresh_start < 2 * waits[0], "{fresh_start} after {waits:?}");
}

#[test]
fn report_of_a_cancelled_move_does_not_count_for_the_next() {
    let timing = Timing { freeze_max: Micros::from_ms(5), ..Timing::BARE_METAL };
    let mut world = settled(5, Config { timing, ..config(2, 1, 1, Mode::Witness) });
    world.run_for(100_000).unwrap();
    let owner = (0..2).find(|id| world.hosts[*id].node.gate_listed(Bucket(0)).is_some()).unwrap();
    let to = NodeId(1 - owner as u8);
    let clock = world.hosts[owner].clock(world.now);
    let node = &mut world.hosts[owner].node;
    let freeze_of = |node: &evergate_membership::Node| match node.role(Bucket(0)) {
        Role::Owner { term, freeze_for: Some(freeze), .. } => (term, freeze),
        role => panic!("{role:?}"),
    };
    node.move_bucket(clock, Bucket(0), to);
    let (term, first) = freeze_of(node);
    // The time limit expires, and the move is requested again.
    let later = clock + Micros::from_ms(16);
    node.handle_timer(later);
    assert!(matches!(node.role(Bucket(0)), Role::Owner { freeze_for: None, .. }));
    node.move_bucket(later, Bucket(0), to);
    let (same, second) = freeze_of(node);
    assert_eq!((same, second.to), (term, first.to));
    node.handle_frozen(later, Bucket(0), term, first, 1);
    assert!(node.gate_listed(Bucket(0)).is_some(), "moved by a report about another move");
    node.handle_frozen(later, Bucket(0), term, second, 1);
    assert!(node.gate_listed(Bucket(0)).is_none());
}

/// After an earlier handoff the next owner would count a backup that may not know its state. It could move the bucket
/// to that backup, which would refuse it.
#[test]
fn handoff_waits_while_a_backup_is_being_added() {
    for seed in 0..5 {
        let mut world = settled(seed, config(3, 1, 2, Mode::Witness));
        let owner = (0..3).find(|id| world.hosts[*id].node.gate_listed(Bucket(0)).is_some()).unwrap();
        let [to, other] = [(owner + 1) % 3, (owner + 2) % 3];
        world.drop_backup(owner, other);
        let is_filled = |world: &World| {
            let role = world.hosts[owner].node.role(Bucket(0));
            matches!(role, Role::Owner { syncing, .. } if syncing.contains(NodeId(other as u8)))
        };
        assert_eq!(world.run_until(1_000_000, is_filled), Ok(true), "{}", world.describe());
        let clock = world.hosts[owner].clock(world.now);
        let node = &mut world.hosts[owner].node;
        node.move_bucket(clock, Bucket(0), NodeId(to as u8));
        let Role::Owner { term, freeze_for: Some(freeze), .. } = node.role(Bucket(0)) else { panic!() };
        node.handle_caught_up(clock, Bucket(0), term, NodeId(other as u8), 0);
        node.handle_frozen(clock, Bucket(0), term, freeze, 0);
        assert!(node.gate_listed(Bucket(0)).is_some(), "moved too early");
        let is_moved =
            |world: &World| world.is_settled() && world.hosts[to].node.gate_listed(Bucket(0)).is_some();
        assert_eq!(world.run_until(1_000_000, is_moved), Ok(true), "seed {seed}\n{}", world.describe());
    }
}
