//! Nodes that are half gone: others hear them, but they cannot do what is asked of them, and somebody else dies.

use evergate_base::Micros;
use evergate_membership::{Bucket, Config, Mode, NodePhase, Path, Timing};

use crate::random::Random;
use crate::scenarios::{default_timers, served, settled};
use crate::simulation::{config, seeds};
use crate::world::{FAIR, Weather, World};

/// How long a death may be felt while somebody lives who can go on, in spans of [`Timing::take`]: the silence, a proposal that
/// nobody can promise, leases of those who are left out, and what is lost on the way.
const TAKES: u64 = 5;

fn bound(config: &Config) -> u64 {
    config.timing.take.0 * TAKES
}

/// Three nodes that all hold everything, with the default timers.
fn three() -> Config {
    default_timers(3, 16, 2, Mode::Witness)
}

/// Whether this node alone serves everything.
fn serves(world: &World, id: usize, buckets: u16) -> bool {
    let host = &world.hosts[id];
    host.up && (0..buckets).all(|bucket| host.node.gate_open(Bucket(bucket), host.clock(world.now)))
}

/// Node 1 dies; node 0 must go on with everything.
fn outlives(seed: u64, world: &mut World) {
    let before = world.takeovers;
    world.run_for(Random::new(seed).below(30_000)).unwrap();
    world.crash(1);
    let again = world.run_until(bound(&three()), |world| serves(world, 0, 16));
    assert_eq!(again, Ok(true), "seed {seed}\n{}", world.describe());
    assert!(world.takeovers > before, "seed {seed}: nothing was resumed");
    world.run_for(3_000_000).unwrap();
    assert!(serves(world, 0, 16), "seed {seed}: not for long\n{}", world.describe());
}

#[test]
fn a_node_without_a_witness_does_not_keep_the_others_from_taking_over() {
    for seed in 0..20 {
        let mut world = settled(seed, three());
        let view = world.hosts[0].node.view();
        world.hosts[2].witness = false;
        world.run_for(1_000_000).unwrap();
        assert_eq!(world.hosts[0].node.view(), view, "all agree: nobody needs a witness");
        outlives(seed, &mut world);
        world.hosts[2].witness = true;
        world.restart(1);
        assert_eq!(world.run_until(8_000_000, World::is_settled), Ok(true), "{}", world.describe());
    }
}

#[test]
fn a_node_cut_off_outside_does_not_keep_the_others_from_taking_over() {
    // The witness is outside too, or inside.
    for (seed, witness) in (0..20).map(|seed| (seed, seed % 4 == 0)) {
        let mut world = settled(seed, three());
        world.cut_between(&[2], &[0, 1], &[Path::Outside], true);
        world.hosts[2].witness = witness;
        let gone = |world: &World| world.hosts[0].node.members().0.len() == 2 && served(world, 16);
        assert_eq!(world.run_until(400_000, gone), Ok(true), "seed {seed}\n{}", world.describe());
        world.run_for(2_000_000).unwrap();
        let before = world.takeovers;
        world.crash(1);
        let again = world.run_until(bound(&three()), |world| served(world, 16));
        assert_eq!(again, Ok(true), "seed {seed}\n{}", world.describe());
        assert!(world.takeovers > before, "seed {seed}: nothing was resumed");
    }
}

#[test]
fn a_node_without_a_witness_does_not_keep_another_from_founding() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, three());
        world.crash(1);
        world.hosts[2].witness = false;
        let listens = Timing::BARE_METAL.listen_start.0;
        let again = world.run_until(listens + bound(&three()), |world| serves(world, 0, 16));
        assert_eq!(again, Ok(true), "seed {seed}\n{}", world.describe());
        // Whoever was left out joins when it has its witness.
        world.hosts[2].witness = true;
        assert_eq!(world.run_until(8_000_000, World::is_settled), Ok(true), "{}", world.describe());
    }
}

#[test]
fn a_node_that_hears_nobody_any_more_is_replaced_although_it_is_heard() {
    for seed in 0..20 {
        let mut world = settled(seed, three());
        world.run_for(Random::new(seed).below(30_000)).unwrap();
        world.cut_between(&[0, 1], &[2], &Path::ALL, false);
        world.hosts[2].witness = false;
        let others = |world: &World| {
            let set = world.hosts[0].node.members().0.len();
            set == 2 && served(world, 16)
        };
        assert_eq!(world.run_until(bound(&three()), others), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

#[test]
fn a_member_that_has_lost_its_witness_for_good_is_replaced() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(4, 16, 3, Mode::Witness));
        world.crash(3);
        assert_eq!(world.run_until(3_000_000, World::is_settled), Ok(true), "seed {seed}");
        world.hosts[2].witness = false;
        let others = |world: &World| world.hosts[0].node.members().0.len() == 2 && served(world, 16);
        let again = world.run_until(2 * bound(&three()), others);
        assert_eq!(again, Ok(true), "seed {seed}\n{}", world.describe());
    }
}

#[test]
fn a_member_whose_witness_blinks_keeps_its_place() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(4, 16, 3, Mode::Witness));
        world.crash(3);
        assert_eq!(world.run_until(3_000_000, World::is_settled), Ok(true), "seed {seed}");
        let life = world.hosts[2].node.me();
        world.hosts[2].witness = false;
        world.run_for(60_000).unwrap();
        assert_eq!(world.hosts[2].node.standing(), NodePhase::Fenced);
        world.hosts[2].witness = true;
        assert_eq!(world.run_until(1_000_000, World::is_settled), Ok(true), "{}", world.describe());
        assert_eq!(world.hosts[2].node.me(), life, "seed {seed}: it was given up");
    }
}

#[test]
fn a_witness_that_answers_now_and_then_at_one_node_does_not_hinder_the_others() {
    for seed in 0..20 {
        let mut world = settled(seed, three());
        world.run_for(100_000).unwrap();
        world.crash(1);
        // Enough to be taken for sound now and then, too little to see a view through.
        let until = world.now + bound(&three()) * 4;
        let mut done = false;
        while world.now < until && !done {
            world.hosts[2].witness = !world.hosts[2].witness;
            done = world.run_until(37_000, |world| serves(world, 0, 16)).unwrap();
        }
        assert!(done || served(&world, 16), "seed {seed}\n{}", world.describe());
    }
}

/// Runs for a while; all the time somebody that nobody understands speaks to these nodes.
fn run_estranged(world: &mut World, ids: &[usize], span_us: u64, done: impl Fn(&World) -> bool) -> bool {
    let end = world.now + span_us;
    while world.now < end && !done(world) {
        for id in ids {
            let clock = world.hosts[*id].clock(world.now);
            world.hosts[*id].node.set_estranged(clock, clock + Micros::from_ms(50));
        }
        world.run_for(10_000).unwrap();
    }
    done(world)
}

#[test]
fn a_node_that_does_not_understand_a_neighbour_founds_nothing_but_joins() {
    for seed in 0..10 {
        let mut world = settled(seed, three());
        world.crash(1);
        world.crash(2);
        world.run_for(200_000).unwrap();
        world.restart(2);
        let joined = |world: &World| world.hosts[0].node.members().0.len() == 2 && world.is_settled();
        assert!(run_estranged(&mut world, &[2], 3_000_000, joined), "seed {seed}\n{}", world.describe());
        world.crash(0);
        world.restart(2);
        let founded = |world: &World| world.hosts[2].node.view().is_some();
        assert!(!run_estranged(&mut world, &[2], 6_000_000, founded), "seed {seed}\n{}", world.describe());
        assert_eq!(world.run_until(1_000_000, founded), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// In the middle of a roll of programs that do not understand each other, say.
#[test]
fn a_majority_founds_a_cluster_whatever_the_rest_says() {
    for seed in 0..10 {
        let mut world = settled(seed, config(3, 16, 1, Mode::Majority));
        for id in 0..3 {
            world.crash(id);
        }
        world.run_for(200_000).unwrap();
        world.restart(1);
        let founded = |world: &World| world.hosts[1].node.view().is_some();
        let alone = run_estranged(&mut world, &[1], 6_000_000, founded);
        assert!(!alone, "seed {seed}: one of three\n{}", world.describe());
        world.restart(2);
        let most = run_estranged(&mut world, &[1, 2], 6_000_000, founded);
        assert!(most, "seed {seed}\n{}", world.describe());
    }
}

/// What is wrong with a node for good; others hear it, or it them.
fn fall_ill(world: &mut World, id: usize, random: &mut Random) {
    let others: Vec<usize> = (0..world.hosts.len()).filter(|other| *other != id).collect();
    let ailment = random.below(4);
    world.state_text(format_args!("node {id} has ailment {ailment}"));
    world.hosts[id].witness = false;
    match ailment {
        0 => {}
        1 => world.cut_between(&[id], &others, &[Path::Outside], true),
        2 => world.cut_between(&others, &[id], &Path::ALL, false),
        _ => world.cut_between(&others, &[id], &[Path::Inside], true),
    }
}

/// One node stays, one is ill from some moment on, and the others come and go, and are gone at the end: the one that stays
/// must serve everything soon after that.
fn decline(seed: u64, nodes: u8, cold: bool) -> Result<u64, String> {
    let mut random = Random::new(seed.wrapping_mul(37) + u64::from(nodes));
    let template = config(nodes, 4, nodes - 1, Mode::Witness);
    let mut world = World::new(seed, nodes, template.clone());
    let (housekeeper, ill) = (0, 1 + random.below(u64::from(nodes) - 1) as usize);
    if random.chance(1, 3) {
        world.weather = Weather { loss_per_mille: random.below(30), late_one_in: 50, ..FAIR };
    }
    let mut run = |world: &mut World| -> Result<(), String> {
        if !cold {
            world.run_until(2_000_000, World::is_settled)?;
        }
        let ill_after = random.below(4);
        for step in 0..4 {
            if step == ill_after {
                fall_ill(world, ill, &mut random);
            }
            let id = 1 + random.below(u64::from(nodes) - 1) as usize;
            match random.below(4) {
                0 => world.crash(id),
                1 if !world.hosts[id].up => world.restart(id),
                1 => world.pause(id),
                2 => world.resume(id)?,
                _ => {}
            }
            let span = [10_000, 40_000, 150_000, 600_000][random.below(4) as usize];
            world.run_for(random.below(span))?;
        }
        if !world.hosts[ill].up {
            world.restart(ill);
        }
        world.resume(ill)?;
        (1..usize::from(nodes)).filter(|id| *id != ill).for_each(|id| world.crash(id));
        // Whoever has just begun listens first, and whoever was just replaced waits.
        let patient = template.timing.listen_start.0 + template.timing.hold_down_max.0;
        let span = if world.hosts[housekeeper].node.view().is_some() { bound(&template) } else { patient };
        match world.run_until(span + bound(&template), |world| serves(world, housekeeper, 4))? {
            true => Ok(()),
            false => Err(format!("node {housekeeper}, the last one that is well, does not serve")),
        }
    };
    let outcome = run(&mut world);
    outcome.map(|()| world.takeovers).map_err(|what| format!("{what}\n{}", world.describe()))
}

fn declines(name: &str, nodes: u8, cold: bool) {
    let mut takeovers = 0;
    for seed in seeds(400) {
        match decline(seed, nodes, cold) {
            Ok(count) => takeovers += count,
            Err(what) => panic!(
                "{name}, seed {seed}: {what}\nreplay: CLUSTER_SEED={seed} cargo test -p evergate-cluster {name}"
            ),
        }
    }
    assert!(takeovers > 100, "{takeovers} take-overs");
}

#[test]
fn the_last_of_three_that_is_well_serves_soon_whatever_ails_another() {
    declines("the_last_of_three", 3, false);
}

#[test]
fn the_last_of_four_that_is_well_serves_soon_whatever_ails_another() {
    declines("the_last_of_four", 4, false);
}

#[test]
fn the_last_of_three_that_have_just_begun_serves_soon_whatever_ails_another() {
    declines("the_last_of_three_that_have_just_begun", 3, true);
}

#[test]
fn the_bound_is_what_the_guide_says() {
    assert_eq!(bound(&three()), 200_000);
    assert_eq!(Micros(bound(&Config { timing: Timing::VIRTUAL_MACHINE, ..three() })), Micros::from_ms(750));
}
