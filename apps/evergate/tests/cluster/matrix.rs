//! Everything that may happen to nodes, with all kinds of transfers under way: nothing breaks, every byte is the right one.
//!
//! `make test` runs every fate once, and the other network modes with one fate; `EVERGATE_MATRIX=full` runs all of them in
//! all modes.

use crate::traffic::{self, Traffic, Transfer};
use crate::world::{Family, Node, World, privileged, settled};
use std::time::{Duration, Instant};

/// What becomes of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its process is killed; its kernel lives.
    Killed,
    /// All its packets stop.
    HostDead,
    CutInside,
    CutOutside,
    /// Stopped, and let go on later.
    Paused,
    /// One after the other dies until one is left.
    Sequence,
    /// A node joins under load.
    Joins,
    /// Another one dies during the take-over of the first.
    DiesDuringTakeOver,
}

const FATES: [Fate; 8] = [
    Fate::Killed,
    Fate::HostDead,
    Fate::CutInside,
    Fate::CutOutside,
    Fate::Paused,
    Fate::Sequence,
    Fate::Joins,
    Fate::DiesDuringTakeOver,
];

/// How packets reach their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steering {
    Steer,
    Flood,
}

fn full() -> bool {
    std::env::var("EVERGATE_MATRIX").is_ok_and(|wanted| wanted == "full")
}

/// The node with the most client connections.
pub(crate) fn carrier(nodes: &mut Vec<Node>) -> Node {
    let open = |node: &Node| {
        let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
        status["connections"]["open"].as_u64().unwrap()
    };
    let index = (0..nodes.len()).max_by_key(|index| open(&nodes[*index])).unwrap();
    nodes.remove(index)
}

fn links(world: &World, number: u8, nets: &[&str], state: &str) {
    for net in nets {
        world.switch.ip(&format!("link set {net}{number} {state}")).unwrap();
    }
}

/// Loses one node in one of the ways that it can come back from, and waits until it is back.
fn lose(world: &World, nodes: &mut Vec<Node>, traffic: &Traffic, fate: Fate) {
    let lost = carrier(nodes);
    let number = lost.number;
    let nets: &[&str] = match fate {
        Fate::CutInside => &["in"],
        Fate::CutOutside => &["out"],
        Fate::HostDead => &["in", "out"],
        _ => &[],
    };
    links(world, number, nets, "down");
    if fate == Fate::Paused {
        lost.process.signal("STOP");
        let long = if full() { 10 } else { 2 };
        std::thread::sleep(Duration::from_secs(long));
    }
    traffic.goes_on("without the node");
    settled(nodes);
    links(world, number, nets, "up");
    if fate == Fate::Paused {
        lost.process.signal("CONT");
    }
    nodes.push(lost);
    nodes.sort_by_key(|node| node.number);
    settled(nodes);
}

fn kill(world: &World, nodes: &mut Vec<Node>, traffic: &Traffic) {
    std::thread::sleep(world.chance.moment(50));
    carrier(nodes).kill();
    traffic.goes_on("after a death");
    settled(nodes);
}

/// What the networks do to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fair,
    /// One in a hundred is lost.
    Lossy,
}

fn run(fate: Fate, steering: Steering, family: Family, weather: Weather) {
    run_with(&traffic::PLAIN, fate, steering, family, weather);
}

fn run_with(
    transfers: &'static [Transfer],
    fate: Fate,
    steering: Steering,
    family: Family,
    weather: Weather,
) {
    if !privileged() {
        return;
    }
    let servers = if transfers == traffic::PLAIN { "plain" } else { "TLS" };
    let name = format!("{fate:?} {steering:?} {family:?} {weather:?}, {servers} servers");
    let world = World::of(family, 3);
    let mode = if steering == Steering::Flood { "steering = \"flood\"" } else { "" };
    let backups = if fate == Fate::DiesDuringTakeOver { "backups = 2" } else { "" };
    let config = traffic::config(&world, 3, &format!("{mode}\n{backups}\n"));
    let first = if fate == Fate::Joins { 2 } else { 3 };
    let mut nodes: Vec<Node> = (1..=first).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    if weather == Weather::Lossy {
        world.lose_packets();
    }
    let traffic = Traffic::start(&world, transfers);
    traffic.silences();
    let began = Instant::now();
    match fate {
        Fate::Killed => kill(&world, &mut nodes, &traffic),
        Fate::HostDead | Fate::CutInside | Fate::CutOutside | Fate::Paused => {
            lose(&world, &mut nodes, &traffic, fate);
        }
        Fate::Sequence => {
            kill(&world, &mut nodes, &traffic);
            kill(&world, &mut nodes, &traffic);
        }
        Fate::Joins => {
            nodes.push(world.start(3, &config));
            settled(&nodes);
        }
        Fate::DiesDuringTakeOver => {
            carrier(&mut nodes).kill();
            std::thread::sleep(world.chance.moment(400));
            carrier(&mut nodes).kill();
        }
    }
    traffic.goes_on("afterwards");
    let silences = traffic.silences();
    let longest = silences.iter().max().unwrap();
    println!(
        "{name}: {:.1} s, longest silence {longest:?}, of all {silences:?}",
        began.elapsed().as_secs_f64()
    );
    traffic.end();
    if weather == Weather::Lossy {
        assert!(world.counted() > 0, "the weather was fair");
    }
}

macro_rules! fates {
    ($($test:ident: $fate:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            run(Fate::$fate, Steering::Steer, Family::V4, Weather::Fair);
        })+
    };
}

fates! {
    a_node_is_killed: Killed,
    a_host_is_dead_for_a_while: HostDead,
    a_node_is_cut_off_inside: CutInside,
    a_node_is_cut_off_outside: CutOutside,
    a_node_pauses: Paused,
    nodes_die_one_after_the_other: Sequence,
    a_node_joins_under_load: Joins,
    a_node_dies_during_a_take_over: DiesDuringTakeOver,
}

/// The same before servers that speak TLS.
fn secure(fate: Fate, steering: Steering, family: Family, weather: Weather) {
    run_with(&traffic::SECURE, fate, steering, family, weather);
}

macro_rules! fates_before_tls_servers {
    ($($test:ident: $fate:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            secure(Fate::$fate, Steering::Steer, Family::V4, Weather::Fair);
        })+
    };
}

fates_before_tls_servers! {
    a_node_before_tls_servers_is_killed: Killed,
    a_node_before_tls_servers_is_cut_off_inside: CutInside,
    a_node_before_tls_servers_is_cut_off_outside: CutOutside,
    a_node_before_tls_servers_pauses: Paused,
    nodes_before_tls_servers_die_one_after_the_other: Sequence,
    a_node_before_tls_servers_dies_during_a_take_over: DiesDuringTakeOver,
}

#[test]
fn before_tls_servers_while_packets_are_lost() {
    secure(Fate::Killed, Steering::Steer, Family::V4, Weather::Lossy);
    secure(Fate::Sequence, Steering::Steer, Family::V4, Weather::Lossy);
    if full() {
        for fate in FATES {
            secure(fate, Steering::Flood, Family::V6, Weather::Fair);
            secure(fate, Steering::Steer, Family::V6, Weather::Lossy);
        }
    }
}

fn in_other_modes(fates: &[Fate], modes: &[(Steering, Family)]) {
    for (steering, family) in modes {
        let fates = if full() { &FATES[..] } else { fates };
        fates.iter().for_each(|fate| run(*fate, *steering, *family, Weather::Fair));
    }
}

#[test]
fn on_a_network_that_floods() {
    in_other_modes(&[Fate::Killed], &[(Steering::Flood, Family::V4)]);
}

#[test]
fn with_ipv6() {
    in_other_modes(&[Fate::Killed], &[(Steering::Steer, Family::V6)]);
}

#[test]
fn with_ipv6_on_a_network_that_floods() {
    in_other_modes(&[Fate::Killed], &[(Steering::Flood, Family::V6)]);
}

#[test]
fn while_packets_are_lost() {
    run(Fate::Killed, Steering::Steer, Family::V4, Weather::Lossy);
    run(Fate::CutInside, Steering::Steer, Family::V4, Weather::Lossy);
    if full() {
        for fate in FATES {
            run(fate, Steering::Steer, Family::V4, Weather::Lossy);
            run(fate, Steering::Flood, Family::V6, Weather::Lossy);
        }
    }
}
