//! Nodes that have lost one of the two networks: which steps down, which stays, and whose vote is needed.

use crate::scenarios::{default_timers, served, settled};
use crate::simulation::config;
use crate::world::World;
use evergate_base::Micros;
use evergate_membership::{Bucket, Config, Mode, NodePhase, Path, Reach, Timing};

/// Cuts everything between these hosts and all other ones on one path.
pub(crate) fn cut(world: &mut World, hosts: &[usize], path: Path) {
    let all = world.hosts.len();
    for host in hosts {
        for other in (0..all).filter(|other| other != host) {
            world.cut.insert((*host, other, path));
            world.cut.insert((other, *host, path));
        }
    }
}

#[test]
fn node_with_the_only_replica_steps_down_late() {
    let hold_down_min = Micros::from_ms(10_000);
    let timing = Timing { hold_down_min, hold_down_max: hold_down_min, ..Timing::BARE_METAL };
    for seed in 0..5 {
        let mut world = settled(seed, Config { timing, ..config(3, 1, 2, Mode::Witness) });
        let owner = (0..3).find(|id| world.hosts[*id].node.gate_listed(Bucket(0)).is_some()).unwrap();
        let others = [(owner + 1) % 3, (owner + 2) % 3];
        others.iter().for_each(|other| world.drop_backup(owner, *other));
        world.run_for(30_000).unwrap();
        cut(&mut world, &[owner], Path::Outside);
        world.run_for(3 * timing.suspect.0).unwrap();
        assert!(world.hosts[owner].node.gate_listed(Bucket(0)).is_some(), "seed {seed}: stepped down early");
        world.run_for(10 * timing.suspect.0).unwrap();
        assert!(world.hosts[owner].node.gate_listed(Bucket(0)).is_none(), "seed {seed}: never stepped down");
    }
}

#[test]
fn node_that_loses_a_network_steps_down_and_rejoins() {
    for seed in 0..40 {
        for path in Path::ALL {
            let mut world = settled(seed, default_timers(3, 16, 1, Mode::Witness));
            world.run_for(100_000).unwrap();
            let cut_at = world.now;
            cut(&mut world, &[1], path);
            let others = |world: &World| world.is_served_by(&[0, 2]);
            assert_eq!(world.run_until(400_000, others), Ok(true), "seed {seed}\n{}", world.describe());
            let stall = world.now - cut_at;
            assert!(stall < 120_000, "seed {seed}: {stall} us");
            let view = world.hosts[0].node.view();
            world.run_for(3_000_000).unwrap();
            assert_eq!(world.hosts[0].node.view(), view, "seed {seed}: it came back without its network");
            assert_eq!(world.hosts[1].node.cut_off(), Some(path));
            world.cut.clear();
            let whole = |world: &World| world.is_settled() && world.hosts[0].node.members().0.len() == 3;
            assert_eq!(world.run_until(8_000_000, whole), Ok(true), "seed {seed}\n{}", world.describe());
        }
    }
}

/// Two of three nodes are a majority, and one of them is on one network only: it votes, and the other one serves.
#[test]
fn isolated_node_with_a_needed_vote_votes_and_serves_nothing() {
    for seed in 0..40 {
        for path in Path::ALL {
            let mut world = settled(seed, default_timers(3, 16, 1, Mode::Majority));
            world.crash(2);
            let two = |world: &World| world.is_settled() && world.hosts[0].node.members().0.len() == 2;
            assert_eq!(world.run_until(2_000_000, two), Ok(true), "seed {seed}\n{}", world.describe());
            world.run_for(1_000_000).unwrap();
            let failovers = world.failovers;
            cut(&mut world, &[1], path);
            let clock = world.hosts[1].clock(world.now);
            world.hosts[1].node.set_reach(clock, path, Reach::Gone);
            let first = |world: &World| world.is_served_by(&[0]);
            let cut_at = world.now;
            assert_eq!(world.run_until(400_000, first), Ok(true), "seed {seed}\n{}", world.describe());
            assert!(world.now - cut_at < 120_000, "seed {seed}: {} us", world.now - cut_at);
            assert!(world.failovers > failovers, "seed {seed}: with all state");
            let (view, incarnation) = (world.hosts[0].node.view(), world.hosts[1].node.me());
            for _ in 0..30 {
                world.run_for(100_000).unwrap();
                assert!(first(&world), "seed {seed}\n{}", world.describe());
            }
            assert_eq!(
                (world.hosts[0].node.view(), world.hosts[1].node.me()),
                (view, incarnation),
                "seed {seed}"
            );
            assert_eq!(world.hosts[1].node.phase(), NodePhase::Active);
            // On both networks again, it gets its share.
            world.cut.clear();
            let clock = world.hosts[1].clock(world.now);
            world.hosts[1].node.set_reach(clock, path, Reach::Works);
            let shares = |world: &World| {
                let host = &world.hosts[1];
                let open = |b| host.node.gate_open(Bucket(b), host.clock(world.now));
                world.is_settled() && (0..16).filter(|bucket| open(*bucket)).count() >= 7
            };
            assert_eq!(world.run_until(8_000_000, shares), Ok(true), "seed {seed}\n{}", world.describe());
        }
    }
}

/// A node that stepped down is needed when another one crashes, although its rejoin delay is long.
#[test]
fn stepped_down_node_votes_again_when_it_is_needed() {
    for seed in 0..40 {
        let mut world = settled(seed, default_timers(5, 16, 1, Mode::Majority));
        let members =
            |count| move |world: &World| world.is_settled() && world.hosts[0].node.members().0.len() == count;
        world.crash(4);
        assert_eq!(world.run_until(2_000_000, members(4)), Ok(true), "seed {seed}\n{}", world.describe());
        cut(&mut world, &[3], Path::Inside);
        let away = |world: &World| {
            let listening = world.hosts[3].node.phase() == NodePhase::Listening;
            listening && served(world, 16) && world.hosts[0].node.members().0.len() == 3
        };
        assert_eq!(world.run_until(2_000_000, away), Ok(true), "seed {seed}\n{}", world.describe());
        let clock = world.hosts[3].clock(world.now);
        assert!(world.hosts[3].node.rejoin_delay(clock).is_some(), "seed {seed}");
        let incarnations = [0, 1].map(|id| world.hosts[id].node.me());
        world.crash(2);
        let served = |world: &World| {
            let open =
                |id: usize, b| world.hosts[id].node.gate_open(Bucket(b), world.hosts[id].clock(world.now));
            (0..16).all(|bucket| open(0, bucket) || open(1, bucket))
        };
        assert_eq!(world.run_until(500_000, served), Ok(true), "seed {seed}\n{}", world.describe());
        world.run_for(3_000_000).unwrap();
        assert!(served(&world), "seed {seed}\n{}", world.describe());
        assert_eq!(
            incarnations,
            [0, 1].map(|id| world.hosts[id].node.me()),
            "seed {seed}: state was dropped"
        );
    }
}

/// Several nodes lose the same network and still receive each other on the other one. The complete nodes serve all the
/// time.
#[test]
fn isolated_nodes_vote_for_complete_ones() {
    let cases: [(u8, &[usize], &[usize]); 6] = [
        (3, &[], &[1, 2]),
        (3, &[2], &[1]),
        (4, &[], &[2, 3]),
        (4, &[3], &[2]),
        (5, &[], &[2, 3, 4]),
        (5, &[4], &[2, 3]),
    ];
    for (seed, (nodes, dead, cut_off)) in (0..).zip(cases) {
        for (path, carriers) in Path::ALL.into_iter().flat_map(|path| [(path, true), (path, false)]) {
            if !carriers && usize::from(nodes) - dead.len() - cut_off.len() < 2 {
                continue; // no node receives a third one there: none can know which side is broken
            }
            let mut world = settled(seed, default_timers(nodes, 16, 1, Mode::Majority));
            for id in dead {
                world.crash(*id);
                world.run_for(1_500_000).unwrap();
            }
            world.run_for(1_000_000).unwrap();
            cut(&mut world, cut_off, path);
            for id in cut_off.iter().filter(|_| carriers) {
                let clock = world.hosts[*id].clock(world.now);
                world.hosts[*id].node.set_reach(clock, path, Reach::Gone);
            }
            world.run_for(1_500_000).unwrap();
            let (view, what) =
                (world.hosts[0].node.view(), format!("{nodes} nodes, {cut_off:?} off {path:?}, {carriers}"));
            for _ in 0..500 {
                world.run_for(10_000).unwrap();
                assert!(served(&world, 16), "{what}\n{}", world.describe());
            }
            assert_eq!(world.hosts[0].node.view(), view, "{what}");
        }
    }
}

/// A node has stepped down, and no node is received for some seconds. Then its vote restores the majority that
/// remembers.
#[test]
fn remembered_vote_survives_a_total_outage() {
    for (seed, dark_us) in [(1, 500_000), (2, 1_500_000), (3, 3_000_000)] {
        let mut world = settled(seed, default_timers(3, 16, 1, Mode::Majority));
        world.crash(2);
        world.run_for(2_000_000).unwrap();
        cut(&mut world, &[1], Path::Inside);
        let clock = world.hosts[1].clock(world.now);
        world.hosts[1].node.set_reach(clock, Path::Inside, Reach::Gone);
        world.run_for(25_000).unwrap();
        assert_eq!(world.hosts[1].node.phase(), NodePhase::Listening);
        let cut_before = world.cut.clone();
        cut(&mut world, &[0, 1], Path::Outside);
        world.run_for(dark_us).unwrap();
        let incarnation = world.hosts[0].node.me();
        world.cut = cut_before;
        assert_eq!(world.run_until(10_000_000, |world| served(world, 16)), Ok(true), "{}", world.describe());
        assert_eq!(world.hosts[0].node.me(), incarnation, "dark for {dark_us} us: state was dropped");
    }
}

/// No node can continue the remembered view: a cluster is bootstrapped all the same.
#[test]
fn memory_of_an_isolated_node_blocks_no_bootstrap() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(3, 16, 1, Mode::Majority));
        cut(&mut world, &[1], Path::Inside);
        let away = |world: &World| world.hosts[1].node.phase() == NodePhase::Listening;
        assert_eq!(world.run_until(2_000_000, away), Ok(true), "seed {seed}\n{}", world.describe());
        world.crash(0);
        world.crash(2);
        world.run_for(500_000).unwrap();
        world.restart(0);
        let served_again = |world: &World| served(world, 16);
        assert_eq!(world.run_until(6_000_000, served_again), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// The view has lapsed for some seconds. The first node that returns remembers nothing; those that do come later.
#[test]
fn members_keep_their_state_while_their_majority_may_return() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(5, 16, 1, Mode::Majority));
        world.crash(2);
        world.crash(3);
        let three = |world: &World| world.is_settled() && world.hosts[0].node.members().0.len() == 3;
        assert_eq!(world.run_until(2_000_000, three), Ok(true), "seed {seed}\n{}", world.describe());
        let incarnations: Vec<_> = [0, 1].map(|id| world.hosts[id].node.me()).into();
        for path in Path::ALL {
            cut(&mut world, &[4], path);
        }
        world.run_for(3_000_000).unwrap();
        world.restart(2);
        let wait = default_timers(5, 16, 1, Mode::Majority).timing.listen_lapse;
        world.run_for(wait.0 / 2).unwrap();
        world.cut.clear();
        let whole = |world: &World| world.is_settled() && world.hosts[0].node.members().0.len() == 4;
        assert_eq!(world.run_until(4_000_000, whole), Ok(true), "seed {seed}\n{}", world.describe());
        assert_eq!(
            incarnations,
            [0, 1].map(|id| world.hosts[id].node.me()),
            "seed {seed}: state was dropped"
        );
    }
}

#[test]
fn network_lost_by_all_nodes_drops_no_state() {
    for seed in 0..40 {
        for (nodes, path) in [(2, Path::Inside), (3, Path::Inside), (3, Path::Outside), (5, Path::Inside)] {
            let mut world = settled(seed, default_timers(nodes, 16, 1, Mode::Witness));
            let view = world.hosts[0].node.view();
            let all: Vec<usize> = (0..usize::from(nodes)).collect();
            cut(&mut world, &all, path);
            world.run_for(3_000_000).unwrap();
            let views: Vec<_> = world.hosts.iter().map(|host| host.node.view()).collect();
            assert!(views.iter().all(|other| *other == view), "seed {seed}, {nodes} nodes: {views:?}");
        }
    }
}

#[test]
fn one_of_two_nodes_steps_down_when_its_cable_is_pulled() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(2, 16, 1, Mode::Witness));
        world.run_for(100_000).unwrap();
        cut(&mut world, &[1], Path::Inside);
        let pulled_at = world.now;
        let clock = world.hosts[1].clock(world.now);
        world.hosts[1].node.set_reach(clock, Path::Inside, Reach::Gone);
        let other = |world: &World| world.is_served_by(&[0]);
        assert_eq!(world.run_until(400_000, other), Ok(true), "seed {seed}\n{}", world.describe());
        assert!(world.now - pulled_at < 60_000, "seed {seed}: {} us", world.now - pulled_at);
    }
}

#[test]
fn two_nodes_on_one_pulled_cable_both_stay() {
    let mut world = settled(1, default_timers(2, 16, 1, Mode::Witness));
    let view = world.hosts[0].node.view();
    cut(&mut world, &[1], Path::Inside);
    for id in 0..2 {
        let clock = world.hosts[id].clock(world.now);
        world.hosts[id].node.set_reach(clock, Path::Inside, Reach::Gone);
    }
    world.run_for(2_000_000).unwrap();
    assert!(world.hosts.iter().all(|host| host.node.view() == view), "{}", world.describe());
}

pub(crate) fn carriers(world: &mut World, ids: &[usize], path: Path, up: bool) {
    for id in ids {
        let clock = world.hosts[*id].clock(world.now);
        let reach = if up { Reach::Works } else { Reach::Gone };
        world.hosts[*id].node.set_reach(clock, path, reach);
    }
}

/// One switch carries both networks, and restarts.
#[test]
fn restart_of_a_switch_for_both_networks_drops_no_state() {
    for (nodes, mode) in [(2, Mode::Witness), (3, Mode::Witness), (3, Mode::Majority)] {
        let mut world = settled(1, default_timers(nodes, 16, 1, mode));
        world.run_for(1_000_000).unwrap();
        let all: Vec<usize> = (0..usize::from(nodes)).collect();
        let incarnations = world.incarnations();
        for path in Path::ALL {
            cut(&mut world, &all, path);
            carriers(&mut world, &all, path, false);
        }
        world.hosts.iter_mut().for_each(|host| host.witness = false);
        world.run_for(2_000_000).unwrap();
        world.cut.clear();
        world.hosts.iter_mut().for_each(|host| host.witness = true);
        Path::ALL.into_iter().for_each(|path| carriers(&mut world, &all, path, true));
        assert_eq!(world.run_until(4_000_000, World::is_settled), Ok(true), "{}", world.describe());
        assert_eq!(world.incarnations(), incarnations, "{nodes} nodes, {mode:?}");
    }
}

/// Both nodes lose the outside network. One of them detects the loss, or reports it, late.
#[test]
fn late_detection_of_a_loss_proves_no_working_network() {
    for late in [10_000, 20_000, 25_000] {
        let mut world = settled(1, default_timers(2, 16, 1, Mode::Witness));
        world.run_for(1_000_000).unwrap();
        let incarnations = world.incarnations();
        cut(&mut world, &[0, 1], Path::Outside);
        carriers(&mut world, &[0], Path::Outside, false);
        world.pause(1);
        world.run_for(late).unwrap();
        carriers(&mut world, &[1], Path::Outside, false);
        world.resume(1).unwrap();
        world.run_for(1_000_000).unwrap();
        assert_eq!(world.incarnations(), incarnations, "{late} us late");
    }
}

/// Two of three nodes lose the outside network for a moment. Some buckets have both replicas there.
#[test]
fn nodes_with_all_replicas_wait_together_for_their_network() {
    let mut world = settled(1, default_timers(3, 16, 1, Mode::Witness));
    world.run_for(1_000_000).unwrap();
    let incarnations = world.incarnations();
    cut(&mut world, &[0, 1], Path::Outside);
    carriers(&mut world, &[0, 1], Path::Outside, false);
    world.run_for(100_000).unwrap(); // with replicas elsewhere a node waits 15 ms, here ten times as long
    world.cut.clear();
    carriers(&mut world, &[0, 1], Path::Outside, true);
    world.run_for(1_000_000).unwrap();
    assert_eq!(world.incarnations(), incarnations, "{}", world.describe());
}

/// The reason for stepping down ends when the network is back, even when no other node is left to report it.
#[test]
fn isolated_node_continues_alone_once_its_network_is_back() {
    for nodes in [2, 3] {
        for (carrier, back_first) in [(true, false), (true, true), (false, false), (false, true)] {
            if nodes == 2 && !carrier {
                continue; // neither knows which side is broken
            }
            let mut world = settled(1, default_timers(nodes, 16, 1, Mode::Witness));
            world.run_for(1_000_000).unwrap();
            cut(&mut world, &[1], Path::Inside);
            if carrier {
                carriers(&mut world, &[1], Path::Inside, false);
            }
            world.run_for(5_000_000).unwrap();
            assert_eq!(world.hosts[1].node.phase(), NodePhase::Listening);
            let back = |world: &mut World| {
                world.cut.clear();
                carriers(world, &[1], Path::Inside, true);
            };
            if back_first {
                back(&mut world);
            }
            for id in (0..usize::from(nodes)).filter(|id| *id != 1) {
                world.crash(id);
            }
            world.run_for(5_000_000).unwrap();
            if carrier && !back_first {
                assert!(!world.is_served_by(&[1]), "without its cable: {}", world.describe());
            }
            back(&mut world);
            let serves = world.run_until(2_000_000, |world| world.is_served_by(&[1])).unwrap();
            assert!(serves, "{nodes} nodes, {carrier}, {back_first}: {}", world.describe());
        }
    }
}

/// A switch that carries both networks restarts while a node is late to read. An old report gains nothing by that.
#[test]
fn old_report_read_late_does_not_count() {
    for late in [12_000, 16_000, 20_000, 25_000, 35_000, 55_000] {
        for gap in [2_000, 5_000, 10_000] {
            let mut world = settled(1, default_timers(2, 16, 1, Mode::Witness));
            world.run_for(1_000_000).unwrap();
            let incarnations = world.incarnations();
            cut(&mut world, &[0, 1], Path::Inside);
            carriers(&mut world, &[0], Path::Inside, false);
            world.pause(0);
            world.resume(0).unwrap(); // it has detected that
            world.pause(0);
            world.run_for(gap).unwrap();
            cut(&mut world, &[0, 1], Path::Outside);
            carriers(&mut world, &[1], Path::Inside, false);
            carriers(&mut world, &[0, 1], Path::Outside, false);
            world.hosts.iter_mut().for_each(|host| host.witness = false);
            world.run_for(late - gap).unwrap();
            world.resume(0).unwrap();
            world.run_for(2_000_000).unwrap();
            world.cut.clear();
            world.hosts.iter_mut().for_each(|host| host.witness = true);
            Path::ALL.into_iter().for_each(|path| carriers(&mut world, &[0, 1], path, true));
            world.run_until(4_000_000, World::is_settled).unwrap();
            assert_eq!(world.incarnations(), incarnations, "late by {late}, both gone after {gap} us");
        }
    }
}

/// One cable of two nodes is out, so the other node receives nothing there. Its witness on that network is dead, which
/// it detected before, or detects now.
#[test]
fn node_without_a_carrier_yields_to_one_with_a_dead_witness() {
    for path in Path::ALL {
        for noticed in [0, 20_000, 120_000, 400_000] {
            let mut world = settled(1, default_timers(2, 16, 1, Mode::Witness));
            world.run_for(1_000_000).unwrap();
            cut(&mut world, &[0], path);
            carriers(&mut world, &[0], path, false);
            let silent = |world: &mut World, id: usize, reach: Reach| {
                let clock = world.hosts[id].clock(world.now);
                world.hosts[id].node.set_reach(clock, path, reach);
            };
            world.run_for(noticed).unwrap();
            silent(&mut world, 1, Reach::Silent);
            let other = |world: &World| world.is_served_by(&[1]);
            assert_eq!(
                world.run_until(400_000, other),
                Ok(true),
                "{path:?}, {noticed}\n{}",
                world.describe()
            );
            let incarnations = world.incarnations();
            for _ in 0..50 {
                world.run_for(100_000).unwrap();
                assert!(other(&world), "{path:?}, {noticed}\n{}", world.describe());
            }
            assert_eq!(
                world.incarnations(),
                incarnations,
                "{path:?}, {noticed}: it came back without its network"
            );
            // The cable is back, the witness is not.
            world.cut.clear();
            carriers(&mut world, &[0], path, true);
            silent(&mut world, 1, Reach::Works);
            let whole = |world: &World| world.is_settled() && world.hosts[1].node.members().0.len() == 2;
            assert_eq!(world.run_until(8_000_000, whole), Ok(true), "{path:?}\n{}", world.describe());
            // Where neither node receives the other, nor a witness, neither knows which side is broken.
            let incarnations = world.incarnations();
            cut(&mut world, &[0], path);
            [0, 1].iter().for_each(|id| silent(&mut world, *id, Reach::Silent));
            world.run_for(3_000_000).unwrap();
            assert_eq!(world.incarnations(), incarnations, "{path:?}\n{}", world.describe());
        }
    }
}

/// Majority mode with five nodes: one is down, two others do not receive each other, and a third one loses a network.
/// Of the rest only two can be in one view, so its vote is needed.
#[test]
fn vote_is_needed_where_other_nodes_cannot_share_a_view() {
    for carrier in [true, false] {
        let mut world = settled(1, default_timers(5, 4, 1, Mode::Majority));
        world.crash(1);
        world.run_for(3_000_000).unwrap();
        world.cut_between(&[0], &[4], &Path::ALL, true);
        world.run_for(3_000_000).unwrap();
        cut(&mut world, &[3], Path::Outside);
        if !carrier {
            carriers(&mut world, &[3], Path::Outside, false);
        }
        let whole = |world: &World| world.is_served_by(&[0, 2, 4]);
        assert_eq!(world.run_until(3_000_000, whole), Ok(true), "{carrier}: {}", world.describe());
        world.run_for(1_000_000).unwrap();
        let (incarnations, view) = (world.incarnations(), world.hosts[2].node.view());
        for _ in 0..50 {
            world.run_for(100_000).unwrap();
            assert!(whole(&world), "{carrier}: {}", world.describe());
        }
        assert_eq!(
            (world.incarnations(), world.hosts[2].node.view()),
            (incarnations, view),
            "{carrier}: the state is stable"
        );
    }
}

/// A loss that one node detects late is detected late by other nodes as well. A shared loss, noticed by each node in
/// its own second, makes no node step down. A loss of one node alone does, but not sooner.
#[test]
fn late_detected_loss_waits_for_the_loss_timeout() {
    const LOSS_TIMEOUT: Micros = Micros::from_ms(2500);
    for (seed, notice_after_ms) in (0..10).flat_map(|seed| [(seed, &[0, 900, 1800][..]), (seed, &[0][..])]) {
        let mut world = settled(seed, default_timers(3, 16, 1, Mode::Witness));
        world.run_for(1_000_000).unwrap();
        let (incarnations, began) = ([0, 1, 2].map(|id| world.hosts[id].node.me()), world.now);
        for (id, after_ms) in notice_after_ms.iter().enumerate() {
            world.run_for(began + after_ms * 1000 - world.now).unwrap();
            let clock = world.hosts[id].clock(world.now);
            world.hosts[id].node.set_loss_timeout(Path::Outside, LOSS_TIMEOUT);
            world.hosts[id].node.set_reach(clock, Path::Outside, Reach::Gone);
        }
        let is_unchanged = |world: &World| incarnations == [0, 1, 2].map(|id| world.hosts[id].node.me());
        world.run_for(began + 2_400_000 - world.now).unwrap();
        assert!(is_unchanged(&world), "seed {seed}\n{}", world.describe());
        world.run_for(2_000_000).unwrap();
        if notice_after_ms.len() == 3 {
            assert!(is_unchanged(&world) && world.is_settled(), "seed {seed}\n{}", world.describe());
            continue;
        }
        assert!(world.is_served_by(&[1, 2]), "seed {seed}\n{}", world.describe());
        // Without a place it takes none, even while it could.
        world.run_for(5_000_000).unwrap();
        assert!(world.is_served_by(&[1, 2]), "seed {seed}\n{}", world.describe());
    }
}
