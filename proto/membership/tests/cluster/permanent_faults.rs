//! Nodes with a permanent fault: they are received but cannot do their part, while another node fails.

use evergate_base::Micros;
use evergate_membership::{Bucket, Config, Mode, NodePhase, Path, Timing};

use crate::random::Random;
use crate::scenarios::{default_timers, served, settled};
use crate::simulation::{config, seeds};
use crate::world::{FAIR, Weather, World};

/// Longest effect of a failure while a node can continue, in spans of [`Timing::take`]: the silence, a proposal without
/// its promises, leases of nodes that are left out, and lost datagrams.
const TAKES: u64 = 5;

fn failover_bound(config: &Config) -> u64 {
    config.timing.take.0 * TAKES
}

/// Three nodes that all hold every bucket, with the default timers.
fn three() -> Config {
    default_timers(3, 16, 2, Mode::Witness)
}

/// Whether this node alone serves every bucket.
fn serves(world: &World, id: usize, buckets: u16) -> bool {
    let host = &world.hosts[id];
    host.up && (0..buckets).all(|bucket| host.node.gate_open(Bucket(bucket), host.clock(world.now)))
}

/// Node 1 crashes; node 0 must continue all buckets.
fn outlives(seed: u64, world: &mut World) {
    let before = world.failovers;
    world.run_for(Random::new(seed).below(30_000)).unwrap();
    world.crash(1);
    let served_again = world.run_until(failover_bound(&three()), |world| serves(world, 0, 16));
    assert_eq!(served_again, Ok(true), "seed {seed}\n{}", world.describe());
    assert!(world.failovers > before, "seed {seed}: nothing was resumed");
    world.run_for(3_000_000).unwrap();
    assert!(serves(world, 0, 16), "seed {seed}: not for long\n{}", world.describe());
}

#[test]
fn node_without_a_witness_does_not_block_a_failover() {
    for seed in 0..20 {
        let mut world = settled(seed, three());
        let view = world.hosts[0].node.view();
        world.hosts[2].witness = false;
        world.run_for(1_000_000).unwrap();
        assert_eq!(world.hosts[0].node.view(), view, "all agree: no node needs a witness");
        outlives(seed, &mut world);
        world.hosts[2].witness = true;
        world.restart(1);
        assert_eq!(world.run_until(8_000_000, World::is_settled), Ok(true), "{}", world.describe());
    }
}

#[test]
fn node_without_the_outside_does_not_block_a_failover() {
    // The witness is reachable only outside, or only inside.
    for (seed, witness) in (0..20).map(|seed| (seed, seed % 4 == 0)) {
        let mut world = settled(seed, three());
        world.cut_between(&[2], &[0, 1], &[Path::Outside], true);
        world.hosts[2].witness = witness;
        let gone = |world: &World| world.hosts[0].node.members().0.len() == 2 && served(world, 16);
        assert_eq!(world.run_until(400_000, gone), Ok(true), "seed {seed}\n{}", world.describe());
        world.run_for(2_000_000).unwrap();
        let before = world.failovers;
        world.crash(1);
        let served_again = world.run_until(failover_bound(&three()), |world| served(world, 16));
        assert_eq!(served_again, Ok(true), "seed {seed}\n{}", world.describe());
        assert!(world.failovers > before, "seed {seed}: nothing was resumed");
    }
}

#[test]
fn node_without_a_witness_does_not_block_a_bootstrap() {
    for seed in 0..20 {
        let mut world = World::new(seed, 3, three());
        world.crash(1);
        world.hosts[2].witness = false;
        let listens = Timing::BARE_METAL.listen_start.0;
        let served_again = world.run_until(listens + failover_bound(&three()), |world| serves(world, 0, 16));
        assert_eq!(served_again, Ok(true), "seed {seed}\n{}", world.describe());
        // A node that was left out joins when it has its witness.
        world.hosts[2].witness = true;
        assert_eq!(world.run_until(8_000_000, World::is_settled), Ok(true), "{}", world.describe());
    }
}

#[test]
fn node_that_sends_but_does_not_receive_is_replaced() {
    for seed in 0..20 {
        let mut world = settled(seed, three());
        world.run_for(Random::new(seed).below(30_000)).unwrap();
        world.cut_between(&[0, 1], &[2], &Path::ALL, false);
        world.hosts[2].witness = false;
        let others = |world: &World| {
            let set = world.hosts[0].node.members().0.len();
            set == 2 && served(world, 16)
        };
        assert_eq!(
            world.run_until(failover_bound(&three()), others),
            Ok(true),
            "seed {seed}\n{}",
            world.describe()
        );
    }
}

#[test]
fn member_without_a_witness_is_replaced_in_the_end() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(4, 16, 3, Mode::Witness));
        world.crash(3);
        assert_eq!(world.run_until(3_000_000, World::is_settled), Ok(true), "seed {seed}");
        world.hosts[2].witness = false;
        let others = |world: &World| world.hosts[0].node.members().0.len() == 2 && served(world, 16);
        let served_again = world.run_until(2 * failover_bound(&three()), others);
        assert_eq!(served_again, Ok(true), "seed {seed}\n{}", world.describe());
    }
}

#[test]
fn member_with_a_short_witness_outage_keeps_its_place() {
    for seed in 0..20 {
        let mut world = settled(seed, default_timers(4, 16, 3, Mode::Witness));
        world.crash(3);
        assert_eq!(world.run_until(3_000_000, World::is_settled), Ok(true), "seed {seed}");
        let incarnation = world.hosts[2].node.me();
        world.hosts[2].witness = false;
        world.run_for(60_000).unwrap();
        assert_eq!(world.hosts[2].node.phase(), NodePhase::Fenced);
        world.hosts[2].witness = true;
        assert_eq!(world.run_until(1_000_000, World::is_settled), Ok(true), "{}", world.describe());
        assert_eq!(world.hosts[2].node.me(), incarnation, "seed {seed}: it lost its state");
    }
}

#[test]
fn witness_that_flaps_at_one_node_does_not_block_a_failover() {
    for seed in 0..20 {
        let mut world = settled(seed, three());
        world.run_for(100_000).unwrap();
        world.crash(1);
        // Often enough to count as valid now and then, too rarely to complete a view.
        let until = world.now + failover_bound(&three()) * 4;
        let mut done = false;
        while world.now < until && !done {
            world.hosts[2].witness = !world.hosts[2].witness;
            done = world.run_until(37_000, |world| serves(world, 0, 16)).unwrap();
        }
        assert!(done || served(&world, 16), "seed {seed}\n{}", world.describe());
    }
}

/// Runs for a while, during which undecodable datagrams keep arriving at these nodes.
fn run_with_undecodable_peer(
    world: &mut World,
    ids: &[usize],
    span_us: u64,
    done: impl Fn(&World) -> bool,
) -> bool {
    let end = world.now + span_us;
    while world.now < end && !done(world) {
        for id in ids {
            let clock = world.hosts[*id].clock(world.now);
            world.hosts[*id].node.block_bootstrap(clock, clock + Micros::from_ms(50));
        }
        world.run_for(10_000).unwrap();
    }
    done(world)
}

#[test]
fn node_with_an_undecodable_peer_joins_but_does_not_bootstrap() {
    for seed in 0..10 {
        let mut world = settled(seed, three());
        world.crash(1);
        world.crash(2);
        world.run_for(200_000).unwrap();
        world.restart(2);
        let joined = |world: &World| world.hosts[0].node.members().0.len() == 2 && world.is_settled();
        assert!(
            run_with_undecodable_peer(&mut world, &[2], 3_000_000, joined),
            "seed {seed}\n{}",
            world.describe()
        );
        world.crash(0);
        world.restart(2);
        let founded = |world: &World| world.hosts[2].node.view().is_some();
        assert!(
            !run_with_undecodable_peer(&mut world, &[2], 6_000_000, founded),
            "seed {seed}\n{}",
            world.describe()
        );
        assert_eq!(world.run_until(1_000_000, founded), Ok(true), "seed {seed}\n{}", world.describe());
    }
}

/// For example in a rolling upgrade between programs with different wire versions.
#[test]
fn majority_bootstraps_beside_an_undecodable_peer() {
    for seed in 0..10 {
        let mut world = settled(seed, config(3, 16, 1, Mode::Majority));
        for id in 0..3 {
            world.crash(id);
        }
        world.run_for(200_000).unwrap();
        world.restart(1);
        let founded = |world: &World| world.hosts[1].node.view().is_some();
        let alone = run_with_undecodable_peer(&mut world, &[1], 6_000_000, founded);
        assert!(!alone, "seed {seed}: one of three\n{}", world.describe());
        world.restart(2);
        let most = run_with_undecodable_peer(&mut world, &[1, 2], 6_000_000, founded);
        assert!(most, "seed {seed}\n{}", world.describe());
    }
}

/// Injects a permanent fault: other nodes receive this one, or it receives them.
fn inject_permanent_fault(world: &mut World, id: usize, random: &mut Random) {
    let others: Vec<usize> = (0..world.hosts.len()).filter(|other| *other != id).collect();
    let fault = random.below(4);
    world.log_fault(format_args!("node {id} has fault {fault}"));
    world.hosts[id].witness = false;
    match fault {
        0 => {}
        1 => world.cut_between(&[id], &others, &[Path::Outside], true),
        2 => world.cut_between(&others, &[id], &Path::ALL, false),
        _ => world.cut_between(&others, &[id], &[Path::Inside], true),
    }
}

/// One node stays up, one has a permanent fault from some moment on, and the other ones come and go and are down at the
/// end. The node that stays must serve everything soon after that.
fn decline(seed: u64, nodes: u8, cold: bool) -> Result<u64, String> {
    let mut random = Random::new(seed.wrapping_mul(37) + u64::from(nodes));
    let template = config(nodes, 4, nodes - 1, Mode::Witness);
    let mut world = World::new(seed, nodes, template.clone());
    let (survivor, faulty) = (0, 1 + random.below(u64::from(nodes) - 1) as usize);
    if random.chance(1, 3) {
        world.weather = Weather { loss_per_mille: random.below(30), late_one_in: 50, ..FAIR };
    }
    let mut run = |world: &mut World| -> Result<(), String> {
        if !cold {
            world.run_until(2_000_000, World::is_settled)?;
        }
        let faulty_after = random.below(4);
        for step in 0..4 {
            if step == faulty_after {
                inject_permanent_fault(world, faulty, &mut random);
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
        if !world.hosts[faulty].up {
            world.restart(faulty);
        }
        world.resume(faulty)?;
        (1..usize::from(nodes)).filter(|id| *id != faulty).for_each(|id| world.crash(id));
        // A node that has just started listens first, and one that was just replaced waits.
        let listening = template.timing.listen_start.0 + template.timing.hold_down_max.0;
        let span =
            if world.hosts[survivor].node.view().is_some() { failover_bound(&template) } else { listening };
        match world.run_until(span + failover_bound(&template), |world| serves(world, survivor, 4))? {
            true => Ok(()),
            false => Err(format!("node {survivor}, the last good one, does not serve")),
        }
    };
    let outcome = run(&mut world);
    outcome.map(|()| world.failovers).map_err(|what| format!("{what}\n{}", world.describe()))
}

fn declines(name: &str, nodes: u8, cold: bool) {
    let mut failovers = 0;
    for seed in seeds(400) {
        match decline(seed, nodes, cold) {
            Ok(count) => failovers += count,
            Err(what) => panic!(
                "{name}, seed {seed}: {what}\nreplay: CLUSTER_SEED={seed} cargo test -p evergate-membership {name}"
            ),
        }
    }
    assert!(failovers > 100, "{failovers} failovers");
}

#[test]
fn last_good_node_of_three_serves_soon() {
    declines("last_good_node_of_three_serves_soon", 3, false);
}

#[test]
fn last_good_node_of_four_serves_soon() {
    declines("last_good_node_of_four_serves_soon", 4, false);
}

#[test]
fn last_good_node_of_three_serves_soon_after_a_cold_start() {
    declines("last_good_node_of_three_serves_soon_after_a_cold_start", 3, true);
}

#[test]
fn bound_matches_the_documented_values() {
    assert_eq!(failover_bound(&three()), 200_000);
    assert_eq!(
        Micros(failover_bound(&Config { timing: Timing::VIRTUAL_MACHINE, ..three() })),
        Micros::from_ms(750)
    );
}
