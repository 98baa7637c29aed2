//! Nodes that can do nothing by themselves, without a witness, a cable, or both: they must not block the nodes that can
//! continue.

use evergate_membership::{Bucket, Config, Mode, NodePhase, Path, Timing};

use crate::network_loss::{carriers, cut};
use crate::scenarios::{default_timers, settled};
use crate::simulation::config;
use crate::world::World;

/// Node 0 has lost its outside network, and with it its witness. The other nodes crash, and some of them restart.
#[test]
fn isolated_node_without_a_witness_blocks_no_bootstrap() {
    for (nodes, back, carrier) in [
        (3, &[1][..], true),
        (3, &[1], false),
        (4, &[1], true),
        (4, &[1], false),
        (4, &[1, 2], true),
        (4, &[1, 2], false),
    ] {
        for gap in [0, 20_000, 2_000_000] {
            let mut world = settled(1, default_timers(nodes, 4, 1, Mode::Witness));
            world.run_for(1_000_000).unwrap();
            cut(&mut world, &[0], Path::Outside);
            if carrier {
                carriers(&mut world, &[0], Path::Outside, false);
            }
            world.hosts[0].witness = false;
            world.run_for(3_000_000).unwrap();
            assert_eq!(world.hosts[0].node.phase(), NodePhase::Listening, "it stepped down");
            (1..usize::from(nodes)).for_each(|id| world.crash(id));
            world.run_for(gap).unwrap();
            back.iter().for_each(|id| world.restart(*id));
            let serves = world.run_until(6_000_000, |world| world.is_served_by(back)).unwrap();
            assert!(serves, "{nodes} nodes, {back:?} back after {gap} us: {}", world.describe());
        }
    }
}

/// Three nodes, one of them down. Both others lose the witness, and one gets it back.
#[test]
fn node_with_its_witness_back_does_not_wait_for_one_without() {
    for seed in 0..20 {
        for dark in [20_000, 100_000, 500_000, 3_000_000] {
            let mut world = settled(seed, default_timers(3, 4, 1, Mode::Witness));
            world.crash(0);
            world.run_for(2_000_000).unwrap();
            let (incarnation, failovers) = (world.hosts[2].node.me(), world.failovers);
            [1, 2].iter().for_each(|id| world.hosts[*id].witness = false);
            world.run_for(dark).unwrap();
            world.hosts[2].witness = true;
            let continues = |world: &World| world.is_served_by(&[2]);
            let serves = world.run_until(3_000_000, |world| world.is_served_by(&[1, 2])).unwrap();
            assert!(serves, "seed {seed}, {dark}: {}", world.describe());
            if continues(&world) && world.hosts[2].node.members().0.len() == 1 {
                assert_eq!(world.hosts[2].node.me(), incarnation, "seed {seed}: with all its state");
                assert!(
                    world.failovers > failovers,
                    "seed {seed}: and with the state that it had as a backup"
                );
            }
            world.hosts[1].witness = true;
            let whole = |world: &World| world.is_settled() && world.hosts[2].node.members().0.len() == 2;
            assert_eq!(world.run_until(8_000_000, whole), Ok(true), "seed {seed}\n{}", world.describe());
        }
    }
}

/// As before with two of four nodes that can continue, and agree about the one that cannot.
#[test]
fn nodes_with_their_witness_back_continue_together() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(4, 16, 2, Mode::Witness));
        world.crash(0);
        world.run_for(2_000_000).unwrap();
        let incarnations = [2, 3].map(|id: usize| world.hosts[id].node.me());
        (1..4).for_each(|id: usize| world.hosts[id].witness = false);
        world.run_for(1_000_000).unwrap();
        [2, 3].iter().for_each(|id| world.hosts[*id].witness = true);
        let two = |world: &World| world.is_served_by(&[2, 3]) && world.hosts[2].node.members().0.len() == 2;
        assert_eq!(world.run_until(3_000_000, two), Ok(true), "seed {seed}\n{}", world.describe());
        assert_eq!([2, 3].map(|id: usize| world.hosts[id].node.me()), incarnations, "seed {seed}");
    }
}

/// An outage of the witness ends at one node a little earlier than at the other. Both keep their place.
#[test]
fn witness_that_returns_at_two_times_costs_no_place() {
    for seed in 0..20 {
        for between in [1_000, 20_000, 100_000] {
            let mut world = settled(seed, default_timers(3, 4, 1, Mode::Witness));
            world.crash(0);
            world.run_for(2_000_000).unwrap();
            let incarnations = [1, 2].map(|id: usize| world.hosts[id].node.me());
            [1, 2].iter().for_each(|id| world.hosts[*id].witness = false);
            world.run_for(2_000_000).unwrap();
            world.hosts[2].witness = true;
            world.run_for(between).unwrap();
            world.hosts[1].witness = true;
            let whole = |world: &World| world.is_settled() && world.hosts[2].node.members().0.len() == 2;
            assert_eq!(world.run_until(3_000_000, whole), Ok(true), "seed {seed}\n{}", world.describe());
            assert_eq!(
                [1, 2].map(|id: usize| world.hosts[id].node.me()),
                incarnations,
                "seed {seed}, {between} us"
            );
        }
    }
}

/// The end of the old process is not announced, and the new one starts before the old one's leases have expired.
#[test]
fn process_restarted_without_a_cable_loses_its_buckets() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for gap in [1_000, 5_000, 17_000, 30_000, 60_000, 100_000, 200_000, 1_000_000] {
            for path in Path::ALL {
                let mut world = settled(1, Config { timing, ..config(2, 4, 1, Mode::Witness) });
                world.run_for(1_000_000).unwrap();
                world.crash(1);
                cut(&mut world, &[1], path);
                world.run_for(gap).unwrap();
                world.restart(1);
                carriers(&mut world, &[1], path, false);
                let serves = world.run_until(3_000_000, |world| world.is_served_by(&[0])).unwrap();
                assert!(serves, "{gap} us, {path:?}: {}", world.describe());
            }
        }
    }
}

/// A node that is isolated on one network loses the other one for a while, and cannot continue alone.
#[test]
fn isolated_node_does_not_rejoin_after_each_outage() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for away in [500_000, 1_500_000, 5_000_000] {
            let mut world = settled(1, Config { timing, ..config(3, 32, 1, Mode::Witness) });
            cut(&mut world, &[1], Path::Inside);
            world.run_for(20_000_000).unwrap();
            assert_eq!(world.hosts[1].node.phase(), NodePhase::Listening);
            let (incarnations, view) = (world.incarnations(), world.hosts[0].node.view());
            for round in 0..4 {
                cut(&mut world, &[1], Path::Outside);
                world.hosts[1].witness = false;
                world.run_for(away).unwrap();
                world.cut.clear();
                cut(&mut world, &[1], Path::Inside);
                world.hosts[1].witness = true;
                world.run_for(4_000_000).unwrap();
                assert_eq!(
                    (world.incarnations(), world.hosts[0].node.view()),
                    (incarnations.clone(), view),
                    "round {round}"
                );
                let clock = world.hosts[1].clock(world.now);
                assert!((0..32).all(|bucket| !world.hosts[1].node.gate_open(Bucket(bucket), clock)));
            }
            assert_eq!(world.hosts[1].node.cut_off(), Some(Path::Inside), "{away} us");
        }
    }
}

/// A node receives nothing any more and reports so. At the same time the other nodes lose the witness for a while.
#[test]
fn non_receiving_node_does_not_block_after_a_witness_outage() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for nodes in [2, 3] {
            for (away_first, away) in
                [(true, 20_000), (true, 60_000), (true, 3_000_000), (false, 60_000), (false, 3_000_000)]
            {
                let mut world = settled(1, Config { timing, ..config(nodes, 4, 1, Mode::Witness) });
                world.run_for(1_000_000).unwrap();
                let others: Vec<usize> = (1..usize::from(nodes)).collect();
                let (incarnations, failovers) = (world.incarnations(), world.failovers);
                let witness = |world: &mut World, answers: bool| {
                    others.iter().for_each(|id| world.hosts[*id].witness = answers);
                };
                if away_first {
                    witness(&mut world, false);
                    world.run_for(10_000).unwrap();
                }
                world.hosts[0].witness = false;
                world.cut_between(&others, &[0], &Path::ALL, false);
                world.run_for(2_000).unwrap();
                witness(&mut world, false);
                world.run_for(away).unwrap();
                witness(&mut world, true);
                let serve = |world: &World| world.is_served_by(&others);
                let case = format!("{nodes} nodes, {away_first}, {away} us");
                assert_eq!(world.run_until(2_000_000, serve), Ok(true), "{case}\n{}", world.describe());
                assert_eq!(world.incarnations()[1..], incarnations[1..], "{case}: with all their state");
                assert!(world.failovers > failovers, "{case}: and with the state that they had as backups");
            }
        }
    }
}

/// One node continued alone and has lost its witness. Another one restarts with a witness. The third is down, or kept
/// out because it has lost a network.
#[test]
fn node_that_cannot_continue_drops_its_state_for_one_that_can() {
    for third_is_dead in [true, false] {
        for seed in 0..5 {
            let mut world = settled(seed, default_timers(3, 4, 1, Mode::Witness));
            world.run_for(1_000_000).unwrap();
            if third_is_dead {
                world.crash(2);
            } else {
                cut(&mut world, &[2], Path::Inside);
                carriers(&mut world, &[2], Path::Inside, false);
            }
            world.run_for(3_000_000).unwrap();
            world.crash(0);
            world.run_for(3_000_000).unwrap();
            assert!(world.is_served_by(&[1]), "seed {seed}: {}", world.describe());
            world.hosts[1].witness = false;
            world.run_for(1_000_000).unwrap();
            let incarnation = world.hosts[1].node.me();
            world.restart(0);
            world.run_for(800_000).unwrap();
            assert_eq!(world.hosts[1].node.me(), incarnation, "seed {seed}: its witness may come back");
            let serves = world.run_until(6_000_000, |world| world.is_served_by(&[0])).unwrap();
            assert!(serves, "seed {seed}, {third_is_dead}: {}", world.describe());
            world.hosts[1].witness = true;
            let both =
                |world: &World| world.is_served_by(&[0, 1]) && world.hosts[0].node.members().0.len() == 2;
            assert_eq!(world.run_until(8_000_000, both), Ok(true), "seed {seed}\n{}", world.describe());
        }
    }
}

/// As before, but the node with the state gets its witness back in time.
#[test]
fn node_whose_witness_returns_soon_keeps_its_state() {
    let mut world = settled(1, default_timers(3, 4, 1, Mode::Witness));
    world.crash(2);
    world.run_for(2_000_000).unwrap();
    world.crash(0);
    world.run_for(2_000_000).unwrap();
    let incarnation = world.hosts[1].node.me();
    world.hosts[1].witness = false;
    world.run_for(500_000).unwrap();
    world.restart(0);
    world.run_for(800_000).unwrap();
    world.hosts[1].witness = true;
    let both = |world: &World| world.is_served_by(&[0, 1]) && world.hosts[1].node.members().0.len() == 2;
    assert_eq!(world.run_until(4_000_000, both), Ok(true), "{}", world.describe());
    assert_eq!(world.hosts[1].node.me(), incarnation);
}

/// Two of four nodes wait for their witness, and a third one, which has just started, waits for them. One of the two
/// gets the witness back just before they would drop their state: it continues with the state of both.
#[test]
fn state_that_another_node_may_continue_is_kept() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for back in [300_000, 600_000, 900_000] {
            let mut world = settled(1, Config { timing, ..config(4, 16, 2, Mode::Witness) });
            world.crash(0);
            world.run_for(2_000_000).unwrap();
            world.crash(1);
            world.run_for(2_000_000).unwrap();
            let incarnation = world.hosts[2].node.me();
            [2, 3].iter().for_each(|id| world.hosts[*id].witness = false);
            world.run_for(1_000_000).unwrap();
            world.restart(1);
            world.run_for(back).unwrap();
            world.hosts[2].witness = true;
            let serves = |world: &World| world.is_served_by(&[2, 1]);
            assert_eq!(world.run_until(3_000_000, serves), Ok(true), "{back} us\n{}", world.describe());
            assert_eq!(world.hosts[2].node.me(), incarnation, "{back} us: with all its state");
        }
    }
}

/// Majority mode: one of three nodes has just started, and another one receives nothing. Its memory is of no use.
#[test]
fn majority_ignores_the_memory_of_a_non_receiving_node() {
    for isolated_first in [true, false] {
        for seed in 0..5 {
            let mut world = settled(seed, default_timers(3, 4, 1, Mode::Majority));
            world.crash(0);
            world.run_for(3_000_000).unwrap();
            assert!(world.is_served_by(&[1, 2]), "seed {seed}: {}", world.describe());
            if isolated_first {
                world.cut_between(&[0, 1], &[2], &Path::ALL, false);
                world.run_for(1_000_000).unwrap();
            }
            world.restart(0);
            world.cut_between(&[0, 1], &[2], &Path::ALL, false);
            let serve = |world: &World| world.is_served_by(&[0, 1]);
            assert_eq!(world.run_until(6_000_000, serve), Ok(true), "seed {seed}\n{}", world.describe());
        }
    }
}

/// One node receives nothing any more, and its view has lapsed. The other ones restart, and it addresses their earlier
/// incarnations.
#[test]
fn non_receiving_node_does_not_block_restarted_nodes() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for (nodes, dead, back) in
            [(2, &[][..], &[1][..]), (3, &[], &[1]), (3, &[], &[1, 2]), (3, &[1], &[1])]
        {
            let mut world = settled(1, Config { timing, ..config(nodes, 4, 1, Mode::Witness) });
            dead.iter().for_each(|id| world.crash(*id)); // its view is later than the first
            world.run_for(1_000_000).unwrap();
            let others: Vec<usize> = (1..usize::from(nodes)).collect();
            world.hosts[0].witness = false;
            world.cut_between(&others, &[0], &Path::ALL, false);
            world.run_for(2_000_000).unwrap();
            others.iter().for_each(|id| world.crash(*id));
            world.run_for(2_000_000).unwrap();
            back.iter().for_each(|id| world.restart(*id));
            let serves = world.run_until(6_000_000, |world| world.is_served_by(back)).unwrap();
            assert!(serves, "{nodes} nodes, {back:?}: {}", world.describe());
            let incarnations = world.incarnations();
            world.cut.clear();
            world.hosts[0].witness = true;
            let joined =
                |world: &World| world.is_settled() && world.hosts[0].node.members().0.len() > back.len();
            assert_eq!(world.run_until(8_000_000, joined), Ok(true), "{nodes} nodes\n{}", world.describe());
            assert_eq!(
                world.incarnations()[1..],
                incarnations[1..],
                "{nodes} nodes, {back:?}: the newer state stays"
            );
        }
    }
}

/// Two nodes without a witness do not receive each other: their view lapses. A third has no witness either, but all
/// nodes grant to it. The other ones have a witness, and continue as soon as the third yields.
#[test]
fn unwitnessed_member_yields_its_lease_to_witnessed_ones() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for (nodes, with_witness) in [(4, &[3][..]), (5, &[3, 4]), (5, &[4])] {
            for both in [false, true] {
                let mut world = settled(1, Config { timing, ..config(nodes, 16, 2, Mode::Witness) });
                world.run_for(1_000_000).unwrap();
                let incarnations = world.incarnations();
                (0..usize::from(nodes)).for_each(|id| world.hosts[id].witness = with_witness.contains(&id));
                world.run_for(500_000).unwrap();
                assert_eq!(world.incarnations(), incarnations, "while all grant, no node needs a witness");
                world.cut_between(&[0], &[1], &Path::ALL, both);
                world.run_for(800_000).unwrap();
                assert_eq!(world.hosts[2].node.phase(), NodePhase::Active, "the cut may be a short one");
                let serve = |world: &World| world.is_served_by(with_witness);
                let case = format!("{nodes} nodes, {with_witness:?}, both ways {both}");
                assert_eq!(world.run_until(1_000_000, serve), Ok(true), "{case}\n{}", world.describe());
                let is_unchanged = |id: &usize| world.incarnations()[*id] == incarnations[*id];
                assert!(with_witness.iter().all(is_unchanged), "{case}: with all their state");
            }
        }
    }
}

/// As before, but the cut ends in time, or no node has a witness to continue with.
#[test]
fn unwitnessed_member_continues_where_yielding_is_useless() {
    for witness in [true, false] {
        let mut world = settled(1, default_timers(4, 16, 2, Mode::Witness));
        world.run_for(1_000_000).unwrap();
        (0..4).for_each(|id: usize| world.hosts[id].witness = witness && id == 3);
        world.run_for(500_000).unwrap();
        let incarnation = world.hosts[2].node.me();
        for _ in 0..4 {
            world.cut_between(&[0], &[1], &Path::ALL, true);
            world.run_for(if witness { 60_000 } else { 3_000_000 }).unwrap();
            assert_eq!(world.hosts[2].node.phase(), NodePhase::Active, "{}", world.describe());
            world.cut.clear();
            world.run_for(300_000).unwrap();
        }
        assert_eq!(world.hosts[2].node.me(), incarnation);
        assert_eq!(world.run_until(3_000_000, World::is_settled), Ok(true), "{}", world.describe());
    }
}
