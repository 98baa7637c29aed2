//! Nodes that can do nothing by themselves must not keep those from going on that can: without a witness, without a cable, or
//! without either.

use evergate_membership::{Bucket, Config, Mode, NodePhase, Path, Timing};

use crate::reach::{carriers, cut};
use crate::scenarios::{default_timers, settled};
use crate::simulation::config;
use crate::world::World;

/// Node 0 has lost its outside, and its witness with it. The others die, and some of them come back.
#[test]
fn a_node_that_is_cut_off_and_has_no_witness_keeps_nobody_from_founding() {
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
            assert_eq!(world.hosts[0].node.standing(), NodePhase::Listening, "it gave way");
            (1..usize::from(nodes)).for_each(|id| world.crash(id));
            world.run_for(gap).unwrap();
            back.iter().for_each(|id| world.restart(*id));
            let serves = world.run_until(6_000_000, |world| world.is_served_by(back)).unwrap();
            assert!(serves, "{nodes} nodes, {back:?} back after {gap} us: {}", world.describe());
        }
    }
}

/// Three nodes, one of them dead: the witness is away for both others, and comes back for one.
#[test]
fn who_has_its_witness_back_does_not_wait_for_one_that_has_not() {
    for seed in 0..20 {
        for dark in [20_000, 100_000, 500_000, 3_000_000] {
            let mut world = settled(seed, default_timers(3, 4, 1, Mode::Witness));
            world.crash(0);
            world.run_for(2_000_000).unwrap();
            let (life, takeovers) = (world.hosts[2].node.me(), world.takeovers);
            [1, 2].iter().for_each(|id| world.hosts[*id].witness = false);
            world.run_for(dark).unwrap();
            world.hosts[2].witness = true;
            let continues = |world: &World| world.is_served_by(&[2]);
            let serves = world.run_until(3_000_000, |world| world.is_served_by(&[1, 2])).unwrap();
            assert!(serves, "seed {seed}, {dark}: {}", world.describe());
            if continues(&world) && world.hosts[2].node.members().0.len() == 1 {
                assert_eq!(world.hosts[2].node.me(), life, "seed {seed}: with all its state");
                assert!(world.takeovers > takeovers, "seed {seed}: and the other's, of which it has copies");
            }
            world.hosts[1].witness = true;
            let whole = |world: &World| world.is_settled() && world.hosts[2].node.members().0.len() == 2;
            assert_eq!(world.run_until(8_000_000, whole), Ok(true), "seed {seed}\n{}", world.describe());
        }
    }
}

/// The same where two of four are left that can go on, and agree about who cannot.
#[test]
fn those_who_have_their_witness_back_go_on_together() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(4, 16, 2, Mode::Witness));
        world.crash(0);
        world.run_for(2_000_000).unwrap();
        let lives = [2, 3].map(|id: usize| world.hosts[id].node.me());
        (1..4).for_each(|id: usize| world.hosts[id].witness = false);
        world.run_for(1_000_000).unwrap();
        [2, 3].iter().for_each(|id| world.hosts[*id].witness = true);
        let two = |world: &World| world.is_served_by(&[2, 3]) && world.hosts[2].node.members().0.len() == 2;
        assert_eq!(world.run_until(3_000_000, two), Ok(true), "seed {seed}\n{}", world.describe());
        assert_eq!([2, 3].map(|id: usize| world.hosts[id].node.me()), lives, "seed {seed}");
    }
}

/// An outage of the witness that ends at one node a little earlier than at the other costs nobody its place.
#[test]
fn a_witness_that_comes_back_for_one_after_the_other_leaves_both_in_place() {
    for seed in 0..20 {
        for between in [1_000, 20_000, 100_000] {
            let mut world = settled(seed, default_timers(3, 4, 1, Mode::Witness));
            world.crash(0);
            world.run_for(2_000_000).unwrap();
            let lives = [1, 2].map(|id: usize| world.hosts[id].node.me());
            [1, 2].iter().for_each(|id| world.hosts[*id].witness = false);
            world.run_for(2_000_000).unwrap();
            world.hosts[2].witness = true;
            world.run_for(between).unwrap();
            world.hosts[1].witness = true;
            let whole = |world: &World| world.is_settled() && world.hosts[2].node.members().0.len() == 2;
            assert_eq!(world.run_until(3_000_000, whole), Ok(true), "seed {seed}\n{}", world.describe());
            assert_eq!([1, 2].map(|id: usize| world.hosts[id].node.me()), lives, "seed {seed}, {between} us");
        }
    }
}

/// Nobody says that its process ended, and the new one is there before the old one's leases have run out.
#[test]
fn a_process_that_comes_back_at_once_without_a_cable_does_not_keep_its_buckets() {
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

/// A node that nobody hears on one network loses the other one for a while, and cannot go on alone.
#[test]
fn who_is_cut_off_is_not_taken_in_again_after_each_outage() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for away in [500_000, 1_500_000, 5_000_000] {
            let mut world = settled(1, Config { timing, ..config(3, 32, 1, Mode::Witness) });
            cut(&mut world, &[1], Path::Inside);
            world.run_for(20_000_000).unwrap();
            assert_eq!(world.hosts[1].node.standing(), NodePhase::Listening);
            let (lives, view) = (world.lives(), world.hosts[0].node.view());
            for round in 0..4 {
                cut(&mut world, &[1], Path::Outside);
                world.hosts[1].witness = false;
                world.run_for(away).unwrap();
                world.cut.clear();
                cut(&mut world, &[1], Path::Inside);
                world.hosts[1].witness = true;
                world.run_for(4_000_000).unwrap();
                assert_eq!(
                    (world.lives(), world.hosts[0].node.view()),
                    (lives.clone(), view),
                    "round {round}"
                );
                let clock = world.hosts[1].clock(world.now);
                assert!((0..32).all(|bucket| !world.hosts[1].node.gate_open(Bucket(bucket), clock)));
            }
            assert_eq!(world.hosts[1].node.cut_off(), Some(Path::Inside), "{away} us");
        }
    }
}

/// A node receives nothing any more, and says that it hears nobody; the witness is away for the others at the same time.
#[test]
fn a_node_that_hears_nobody_does_not_keep_those_waiting_whose_witness_was_away() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for nodes in [2, 3] {
            for (away_first, away) in
                [(true, 20_000), (true, 60_000), (true, 3_000_000), (false, 60_000), (false, 3_000_000)]
            {
                let mut world = settled(1, Config { timing, ..config(nodes, 4, 1, Mode::Witness) });
                world.run_for(1_000_000).unwrap();
                let others: Vec<usize> = (1..usize::from(nodes)).collect();
                let (lives, takeovers) = (world.lives(), world.takeovers);
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
                let place = format!("{nodes} nodes, {away_first}, {away} us");
                assert_eq!(world.run_until(2_000_000, serve), Ok(true), "{place}\n{}", world.describe());
                assert_eq!(world.lives()[1..], lives[1..], "{place}: with all their state");
                assert!(world.takeovers > takeovers, "{place}: and the other's, of which they have copies");
            }
        }
    }
}

/// One node went on alone and has lost its witness. Another one comes back, and has one; the third is dead, or kept out because its
/// cable is out.
#[test]
fn a_node_that_cannot_go_on_gives_its_state_up_for_one_that_can() {
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
            let life = world.hosts[1].node.me();
            world.restart(0);
            world.run_for(800_000).unwrap();
            assert_eq!(world.hosts[1].node.me(), life, "seed {seed}: its witness may come back");
            let serves = world.run_until(6_000_000, |world| world.is_served_by(&[0])).unwrap();
            assert!(serves, "seed {seed}, {third_is_dead}: {}", world.describe());
            world.hosts[1].witness = true;
            let both =
                |world: &World| world.is_served_by(&[0, 1]) && world.hosts[0].node.members().0.len() == 2;
            assert_eq!(world.run_until(8_000_000, both), Ok(true), "seed {seed}\n{}", world.describe());
        }
    }
}

/// The same where the witness of the one with the state comes back in time.
#[test]
fn a_node_whose_witness_comes_back_soon_gives_nothing_up() {
    let mut world = settled(1, default_timers(3, 4, 1, Mode::Witness));
    world.crash(2);
    world.run_for(2_000_000).unwrap();
    world.crash(0);
    world.run_for(2_000_000).unwrap();
    let life = world.hosts[1].node.me();
    world.hosts[1].witness = false;
    world.run_for(500_000).unwrap();
    world.restart(0);
    world.run_for(800_000).unwrap();
    world.hosts[1].witness = true;
    let both = |world: &World| world.is_served_by(&[0, 1]) && world.hosts[1].node.members().0.len() == 2;
    assert_eq!(world.run_until(4_000_000, both), Ok(true), "{}", world.describe());
    assert_eq!(world.hosts[1].node.me(), life);
}

/// Two of four wait for their witness, and a third one, which has just begun, waits for them. The witness comes back for one of the two
/// just before they would give up for that: it goes on with what both had.
#[test]
fn nobody_gives_up_for_a_newcomer_what_another_one_may_go_on_with() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for back in [300_000, 600_000, 900_000] {
            let mut world = settled(1, Config { timing, ..config(4, 16, 2, Mode::Witness) });
            world.crash(0);
            world.run_for(2_000_000).unwrap();
            world.crash(1);
            world.run_for(2_000_000).unwrap();
            let life = world.hosts[2].node.me();
            [2, 3].iter().for_each(|id| world.hosts[*id].witness = false);
            world.run_for(1_000_000).unwrap();
            world.restart(1);
            world.run_for(back).unwrap();
            world.hosts[2].witness = true;
            let serves = |world: &World| world.is_served_by(&[2, 1]);
            assert_eq!(world.run_until(3_000_000, serves), Ok(true), "{back} us\n{}", world.describe());
            assert_eq!(world.hosts[2].node.me(), life, "{back} us: with all its state");
        }
    }
}

/// Majority mode: one of three has just begun, and another one receives nothing any more. What that one remembers is of no use.
#[test]
fn a_majority_does_not_wait_for_the_memory_of_one_that_hears_nobody() {
    for deaf_first in [true, false] {
        for seed in 0..5 {
            let mut world = settled(seed, default_timers(3, 4, 1, Mode::Majority));
            world.crash(0);
            world.run_for(3_000_000).unwrap();
            assert!(world.is_served_by(&[1, 2]), "seed {seed}: {}", world.describe());
            if deaf_first {
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

/// One node receives nothing any more, and its view has lapsed. The other ones are started anew: it speaks to their former lives.
#[test]
fn a_node_that_hears_nobody_does_not_keep_those_from_founding_that_are_started_anew() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for (nodes, dead, back) in
            [(2, &[][..], &[1][..]), (3, &[], &[1]), (3, &[], &[1, 2]), (3, &[1], &[1])]
        {
            let mut world = settled(1, Config { timing, ..config(nodes, 4, 1, Mode::Witness) });
            dead.iter().for_each(|id| world.crash(*id)); // and its view is later than the first
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
            let lives = world.lives();
            world.cut.clear();
            world.hosts[0].witness = true;
            let joined =
                |world: &World| world.is_settled() && world.hosts[0].node.members().0.len() > back.len();
            assert_eq!(world.run_until(8_000_000, joined), Ok(true), "{nodes} nodes\n{}", world.describe());
            assert_eq!(world.lives()[1..], lives[1..], "{nodes} nodes, {back:?}: what is newer stays");
        }
    }
}

/// Two nodes do not hear each other, and have no witness: their view lapses. A third has none either, but all grant to it. The others have
/// one, and go on as soon as they need not wait for the third.
#[test]
fn who_acts_by_the_grants_of_all_does_not_keep_a_lapsed_node_s_buckets_from_those_with_a_witness() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for (nodes, with_witness) in [(4, &[3][..]), (5, &[3, 4]), (5, &[4])] {
            for both in [false, true] {
                let mut world = settled(1, Config { timing, ..config(nodes, 16, 2, Mode::Witness) });
                world.run_for(1_000_000).unwrap();
                let lives = world.lives();
                (0..usize::from(nodes)).for_each(|id| world.hosts[id].witness = with_witness.contains(&id));
                world.run_for(500_000).unwrap();
                assert_eq!(world.lives(), lives, "while all grant nobody needs a witness");
                world.cut_between(&[0], &[1], &Path::ALL, both);
                world.run_for(800_000).unwrap();
                assert_eq!(world.hosts[2].node.standing(), NodePhase::Active, "the cut may be a short one");
                let serve = |world: &World| world.is_served_by(with_witness);
                let place = format!("{nodes} nodes, {with_witness:?}, both ways {both}");
                assert_eq!(world.run_until(1_000_000, serve), Ok(true), "{place}\n{}", world.describe());
                let kept = |id: &usize| world.lives()[*id] == lives[*id];
                assert!(with_witness.iter().all(kept), "{place}: with all their state");
            }
        }
    }
}

/// The same, but the cut ends in time, or nobody has a witness that could go on.
#[test]
fn who_acts_by_the_grants_of_all_goes_on_where_that_helps_nobody() {
    for witness in [true, false] {
        let mut world = settled(1, default_timers(4, 16, 2, Mode::Witness));
        world.run_for(1_000_000).unwrap();
        (0..4).for_each(|id: usize| world.hosts[id].witness = witness && id == 3);
        world.run_for(500_000).unwrap();
        let life = world.hosts[2].node.me();
        for _ in 0..4 {
            world.cut_between(&[0], &[1], &Path::ALL, true);
            world.run_for(if witness { 60_000 } else { 3_000_000 }).unwrap();
            assert_eq!(world.hosts[2].node.standing(), NodePhase::Active, "{}", world.describe());
            world.cut.clear();
            world.run_for(300_000).unwrap();
        }
        assert_eq!(world.hosts[2].node.me(), life);
        assert_eq!(world.run_until(3_000_000, World::is_settled), Ok(true), "{}", world.describe());
    }
}
