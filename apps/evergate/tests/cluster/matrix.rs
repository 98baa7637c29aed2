//! Everything that may happen to nodes, with all kinds of transfers under way: nothing breaks, every byte is the right one.
//!
//! `make test` runs every fate once, most of them before TLS servers too, the other network modes with one fate, some cells by chance, and deaths of
//! the node that carries everything; `EVERGATE_MATRIX=full` runs all fates with all transfers in all modes, and all fates while packets are lost.

use crate::seed::Chance;
use crate::traffic::{self, Carrier, Server, Traffic, Transfer};
use crate::world::{Family, Node, PORT, World, eventually, privileged, settled};
use evergate::agent::status::ClusterStatus;
use std::net::SocketAddr;
use std::sync::Arc;
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
    /// The same, but its cards keep their carriers: packets vanish on the way.
    MuteInside,
    MuteOutside,
    /// Stopped, and let go on later.
    Paused,
    /// One after the other dies until one is left.
    Sequence,
    /// A node joins under load.
    Joins,
    /// Another one dies during the take-over of the first.
    DiesDuringFailover,
}

const FATES: [Fate; 10] = [
    Fate::Killed,
    Fate::HostDead,
    Fate::CutInside,
    Fate::CutOutside,
    Fate::MuteInside,
    Fate::MuteOutside,
    Fate::Paused,
    Fate::Sequence,
    Fate::Joins,
    Fate::DiesDuringFailover,
];

impl Fate {
    /// The networks on which nothing of the node passes.
    fn nets(self) -> &'static [&'static str] {
        match self {
            Fate::HostDead => &["in", "out"],
            Fate::CutInside | Fate::MuteInside => &["in"],
            Fate::CutOutside | Fate::MuteOutside => &["out"],
            _ => &[],
        }
    }
}

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

/// How long a pause is that must be long.
const LONG_PAUSE: Duration = Duration::from_secs(10);

/// Loses one node in one of the ways that it can come back from, and waits until it is back.
fn lose(world: &World, nodes: &mut Vec<Node>, traffic: &Traffic, fate: Fate, pause: Duration) {
    std::thread::sleep(world.chance.moment(50));
    let lost = carrier(nodes);
    let (number, nets) = (lost.number, fate.nets());
    let mute = matches!(fate, Fate::MuteInside | Fate::MuteOutside);
    match fate {
        Fate::Paused => {
            lost.process.signal("STOP");
            std::thread::sleep(pause);
        }
        _ if mute => world.mute(number, nets),
        Fate::HostDead => {
            // A busy machine takes its time between the two links: it must not tell on the other one that it gives way.
            lost.process.signal("STOP");
            links(world, number, nets, "down");
            lost.process.signal("CONT");
        }
        _ => links(world, number, nets, "down"),
    }
    traffic.continues("without the node");
    settled(nodes);
    match fate {
        Fate::Paused => lost.process.signal("CONT"),
        _ if mute => world.clear("mute"),
        _ => links(world, number, nets, "up"),
    }
    nodes.push(lost);
    nodes.sort_by_key(|node| node.number);
    settled(nodes);
}

fn kill(world: &World, nodes: &mut Vec<Node>, traffic: &Traffic) {
    std::thread::sleep(world.chance.moment(50));
    carrier(nodes).kill();
    traffic.continues("after a death");
    settled(nodes);
}

/// Connections on which nobody speaks while a node joins: so many that not one of them is moved by chance never happens.
const KEPT: u64 = 40;

/// A node joins, gets its share of the buckets, and goes on with their connections: those under way, and those that rest.
fn join(world: &World, nodes: &mut Vec<Node>, traffic: &Traffic, config: &str) {
    let to = SocketAddr::new(world.family.address(), Carrier::Http.port(Server::Plain));
    let roots = Arc::new(traffic::roots(world));
    let mut kept: Vec<_> = world.switch.run(move || {
        let open = |request| {
            let mut stream = traffic::connect(Carrier::Http, to, &roots).unwrap();
            traffic::ask(&mut stream, request, "").unwrap();
            stream
        };
        (0..KEPT).map(open).collect()
    });
    nodes.push(world.start(3, config));
    // Others keep a tenth more than their share.
    let joined = nodes[2].eventually("has its share of the buckets and of the connections", |status| {
        (250..=400).contains(&status.buckets.owned) && status.counts.connections_continued > 0
    });
    assert!(joined.counts.handoffs > 0 && joined.counts.failovers == 0, "{:?}", joined.counts);
    traffic.continues("while it joins");
    for (request, stream) in (KEPT..).zip(&mut kept) {
        traffic::ask(stream, request, "").unwrap();
    }
    settled(nodes);
}

/// A node takes over and must die before it is done: nothing goes on before the third node has what was taken over, and for so
/// long the third one hears none of it.
fn die_during_failover(world: &World, nodes: &mut Vec<Node>) {
    let ports = format!("{}-{}", PORT + 1, PORT + 2);
    world.filter(&format!(
        "table bridge late {{\nchain forward {{\ntype filter hook forward priority 0;\n\
         tcp dport {ports} drop\ntcp sport {ports} drop\n}}\n}}\n"
    ));
    carrier(nodes).kill();
    let takes_over = |node: &Node| {
        let all = node.status().failovers;
        all.last().is_some_and(|last| last.running && last.failed_over > 0)
    };
    let place = eventually("a node takes over, and still does after a moment", || {
        let place = nodes.iter().position(takes_over)?;
        std::thread::sleep(world.chance.moment(50));
        takes_over(&nodes[place]).then_some(place)
    });
    nodes.remove(place).kill();
    world.clear("late");
}

/// What the networks do to packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fair,
    /// One in a hundred is lost.
    Lossy,
}

/// What peers send to a silent node is lost, and they hear of it; where there was no such silence nobody is told of a loss.
fn on_losses(fate: Fate, nodes: &[Node]) {
    let all: Vec<_> = nodes.iter().map(Node::status).collect();
    let reported: u64 = all.iter().map(|status| status.loss_notices).sum();
    let silent_ms =
        all.iter().flat_map(|status| &status.failovers).map(|one| one.silent_ms).fold(0.0, f64::max);
    if fate == Fate::HostDead {
        assert!(reported > 0, "nobody was told what is lost after a silence of {silent_ms} ms");
    }
    if silent_ms < 30.0 {
        assert_eq!(reported, 0, "peers were told of a loss after a silence of {silent_ms} ms");
    }
}

/// Which nodes carry the transfers at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// Any, as their ports fall.
    ByChance,
    /// The first one all of them: whatever kind there is, it is among what is lost with that node.
    OnOne,
}

fn run(fate: Fate, steering: Steering, family: Family, weather: Weather) {
    run_with(&traffic::PLAIN, fate, steering, family, weather, Spread::ByChance);
}

fn run_with(
    transfers: &'static [Transfer],
    fate: Fate,
    steering: Steering,
    family: Family,
    weather: Weather,
    spread: Spread,
) {
    if !privileged() {
        return;
    }
    let servers = if transfers == traffic::PLAIN { "plain" } else { "TLS" };
    let name = format!("{fate:?} {steering:?} {family:?} {weather:?}, {servers} servers, {spread:?}");
    let world = World::of(family, 3);
    let mode = if steering == Steering::Flood { "steering = \"flood\"" } else { "" };
    let backups = if fate == Fate::DiesDuringFailover { "backups = 2" } else { "" };
    let config = traffic::config(&world, 3, &format!("{mode}\n{backups}\n"));
    let first = if fate == Fate::Joins { 2 } else { 3 };
    let copies_only = config.replace("[cluster]\n", "[cluster]\nweight = 0\n");
    let config_of = |number| if spread == Spread::OnOne && number > 1 { &copies_only } else { &config };
    let mut nodes: Vec<Node> = (1..=first).map(|number| world.start(number, config_of(number))).collect();
    settled(&nodes);
    if weather == Weather::Lossy {
        world.lose_packets();
    }
    let traffic = Traffic::start(&world, transfers);
    if spread == Spread::OnOne {
        let carried = |status: &ClusterStatus| status.replication.replicated == transfers.len() as u64;
        nodes[0].eventually("carries all, and another node has copies", carried);
    }
    traffic.silences();
    let began = Instant::now();
    match fate {
        Fate::Killed => kill(&world, &mut nodes, &traffic),
        Fate::HostDead
        | Fate::CutInside
        | Fate::CutOutside
        | Fate::MuteInside
        | Fate::MuteOutside
        | Fate::Paused => {
            // In one combination for long, in all of them where all is asked for.
            let long =
                full() || (transfers, steering, family) == (&traffic::PLAIN, Steering::Steer, Family::V4);
            let pause = if long { LONG_PAUSE } else { LONG_PAUSE / 5 };
            lose(&world, &mut nodes, &traffic, fate, pause);
        }
        Fate::Sequence => {
            kill(&world, &mut nodes, &traffic);
            kill(&world, &mut nodes, &traffic);
        }
        Fate::Joins => join(&world, &mut nodes, &traffic, &config),
        Fate::DiesDuringFailover => die_during_failover(&world, &mut nodes),
    }
    traffic.continues("afterwards");
    on_losses(fate, &nodes);
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
    a_node_is_silent_inside: MuteInside,
    a_node_is_silent_outside: MuteOutside,
    a_node_pauses_for_ten_seconds: Paused,
    nodes_die_one_after_the_other: Sequence,
    a_node_joins_under_load: Joins,
    a_node_dies_during_a_take_over: DiesDuringFailover,
}

/// The same before servers that speak TLS.
fn secure(fate: Fate, steering: Steering, family: Family, weather: Weather) {
    run_with(&traffic::SECURE, fate, steering, family, weather, Spread::ByChance);
}

#[test]
fn the_node_that_carries_everything_dies() {
    for transfers in [&traffic::PLAIN, &traffic::SECURE] {
        for fate in [Fate::Killed, Fate::HostDead] {
            run_with(transfers, fate, Steering::Steer, Family::V4, Weather::Fair, Spread::OnOne);
        }
    }
}

/// Cells of the whole that no test above has, another few in each run.
#[test]
fn some_cells_by_chance() {
    let chance = Chance::new();
    for _ in 0..3 {
        let fate = FATES[chance.below(FATES.len() as u64) as usize];
        let (steering, family) = OTHER_MODES[chance.below(OTHER_MODES.len() as u64) as usize];
        match chance.below(2) {
            0 => run(fate, steering, family, Weather::Fair),
            _ => secure(fate, steering, family, Weather::Fair),
        }
    }
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
    a_node_before_tls_servers_dies_during_a_take_over: DiesDuringFailover,
}

/// All of it, where that is asked for; else these.
fn fates(some: &[Fate]) -> &[Fate] {
    if full() { &FATES } else { some }
}

#[test]
fn before_tls_servers_while_packets_are_lost() {
    for fate in fates(&[Fate::Killed, Fate::Sequence]) {
        secure(*fate, Steering::Steer, Family::V4, Weather::Lossy);
    }
}

/// The fates before TLS servers that have no test of their own, and all of them in the other modes.
#[test]
fn before_tls_servers_in_all_modes() {
    if !full() {
        return;
    }
    for fate in [Fate::HostDead, Fate::MuteInside, Fate::MuteOutside, Fate::Joins] {
        secure(fate, Steering::Steer, Family::V4, Weather::Fair);
    }
    for (steering, family) in OTHER_MODES {
        FATES.iter().for_each(|fate| secure(*fate, steering, family, Weather::Fair));
    }
}

const OTHER_MODES: [(Steering, Family); 3] =
    [(Steering::Flood, Family::V4), (Steering::Steer, Family::V6), (Steering::Flood, Family::V6)];

fn in_mode(steering: Steering, family: Family) {
    fates(&[Fate::Killed]).iter().for_each(|fate| run(*fate, steering, family, Weather::Fair));
}

#[test]
fn on_a_network_that_floods() {
    in_mode(Steering::Flood, Family::V4);
}

#[test]
fn with_ipv6() {
    in_mode(Steering::Steer, Family::V6);
}

#[test]
fn with_ipv6_on_a_network_that_floods() {
    in_mode(Steering::Flood, Family::V6);
}

#[test]
fn while_packets_are_lost() {
    for fate in fates(&[Fate::Killed, Fate::CutInside]) {
        run(*fate, Steering::Steer, Family::V4, Weather::Lossy);
    }
    if full() {
        for fate in FATES {
            run(fate, Steering::Flood, Family::V6, Weather::Lossy);
            secure(fate, Steering::Steer, Family::V6, Weather::Lossy);
        }
    }
}
