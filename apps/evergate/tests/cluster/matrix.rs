//! Matrix of failures, transports and transfers: no transfer breaks, and every byte is correct.
//!
//! `make test` runs every fate once, and most of them in front of TLS servers as well. It adds the other network
//! modes with one fate each, some random cells, and deaths of the node that carries all transfers.
//! `EVERGATE_MATRIX=full` runs all fates with all transfers in all modes, and all fates with packet loss.

use crate::seed::Chance;
use crate::traffic::{self, Server, Traffic, Transfer, Transport};
use crate::world::{Family, Node, PORT, World, eventually, privileged, settled};
use evergate::agent::status::ClusterStatus;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Failure or change that nodes undergo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The process is killed; its kernel lives.
    Killed,
    /// All packets of the host stop.
    HostDead,
    CutInside,
    CutOutside,
    /// The switch drops the packets, but the cards keep their carriers.
    SilentInside,
    SilentOutside,
    /// The process is stopped and continued later.
    Paused,
    /// Nodes die one after the other until one is left.
    Sequence,
    /// A node joins under load.
    Joins,
    /// A second node dies during the failover after the first death.
    DiesDuringFailover,
}

const FATES: [Fate; 10] = [
    Fate::Killed,
    Fate::HostDead,
    Fate::CutInside,
    Fate::CutOutside,
    Fate::SilentInside,
    Fate::SilentOutside,
    Fate::Paused,
    Fate::Sequence,
    Fate::Joins,
    Fate::DiesDuringFailover,
];

impl Fate {
    /// Networks on which no packet of the node passes.
    fn nets(self) -> &'static [&'static str] {
        match self {
            Fate::HostDead => &["in", "out"],
            Fate::CutInside | Fate::SilentInside => &["in"],
            Fate::CutOutside | Fate::SilentOutside => &["out"],
            _ => &[],
        }
    }
}

/// Way in which packets reach the owner of their bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steering {
    Steer,
    Flood,
}

fn full() -> bool {
    std::env::var("EVERGATE_MATRIX").is_ok_and(|wanted| wanted == "full")
}

/// Removes the node with the most client connections from the list.
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

/// Length of a long pause.
const LONG_PAUSE: Duration = Duration::from_secs(10);

/// Cuts one node off in a way that it can come back from, and waits until it is back.
fn lose(world: &World, nodes: &mut Vec<Node>, traffic: &Traffic, fate: Fate, pause: Duration) {
    std::thread::sleep(world.chance.moment(50));
    let lost = carrier(nodes);
    let (number, nets) = (lost.number, fate.nets());
    let is_silent = matches!(fate, Fate::SilentInside | Fate::SilentOutside);
    match fate {
        Fate::Paused => {
            lost.process.signal("STOP");
            std::thread::sleep(pause);
        }
        _ if is_silent => world.silence(number, nets),
        Fate::HostDead => {
            // A slow machine may take both links down at different times. The stopped process cannot send LEAVE in
            // between.
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
        _ if is_silent => world.clear("silence"),
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

/// Idle connections while a node joins. So many make it practically certain that one of them moves.
const IDLE: u64 = 40;

/// Lets a node join and get its share of the buckets. It continues their connections, active and idle.
fn join(world: &World, nodes: &mut Vec<Node>, traffic: &Traffic, config: &str) {
    let to = SocketAddr::new(world.family.address(), Transport::Http.port(Server::Plain));
    let roots = Arc::new(traffic::roots(world));
    let mut idle: Vec<_> = world.switch.run(move || {
        let open = |request| {
            let mut stream = traffic::connect(Transport::Http, to, &roots).unwrap();
            traffic::ask(&mut stream, request, "").unwrap();
            stream
        };
        (0..IDLE).map(open).collect()
    });
    nodes.push(world.start(3, config));
    // Nodes in place keep up to a tenth more than their share.
    let joined = nodes[2].eventually("has its share of the buckets and of the connections", |status| {
        (250..=400).contains(&status.buckets.owned) && status.counts.connections_continued > 0
    });
    assert!(joined.counts.handoffs > 0 && joined.counts.failovers == 0, "{:?}", joined.counts);
    traffic.continues("while it joins");
    for (request, stream) in (IDLE..).zip(&mut idle) {
        traffic::ask(stream, request, "").unwrap();
    }
    settled(nodes);
}

/// Kills a node during its failover. The failover cannot finish while the third node lacks the recovered state, and a
/// filter drops all frames to that node.
fn die_during_failover(world: &World, nodes: &mut Vec<Node>) {
    let ports = format!("{}-{}", PORT + 1, PORT + 2);
    world.filter(&format!(
        "table bridge late {{\nchain forward {{\ntype filter hook forward priority 0;\n\
         tcp dport {ports} drop\ntcp sport {ports} drop\n}}\n}}\n"
    ));
    carrier(nodes).kill();
    let fails_over = |node: &Node| {
        let all = node.status().failovers;
        all.last().is_some_and(|last| last.running && last.failed_over > 0)
    };
    let place = eventually("a failover is running, and still runs a moment later", || {
        let place = nodes.iter().position(fails_over)?;
        std::thread::sleep(world.chance.moment(50));
        fails_over(&nodes[place]).then_some(place)
    });
    nodes.remove(place).kill();
    world.clear("late");
}

/// Packet loss on the networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    None,
    /// One packet in a hundred is dropped.
    OnePercent,
}

/// Checks the loss notices: peers of a silent node get them, and without a silence no peer gets one.
fn on_losses(fate: Fate, nodes: &[Node]) {
    let all: Vec<_> = nodes.iter().map(Node::status).collect();
    let reported: u64 = all.iter().map(|status| status.loss_notices).sum();
    let silent_ms =
        all.iter().flat_map(|status| &status.failovers).map(|one| one.silent_ms).fold(0.0, f64::max);
    if fate == Fate::HostDead {
        assert!(reported > 0, "no loss notice after a silence of {silent_ms} ms");
    }
    if silent_ms < 30.0 {
        assert_eq!(reported, 0, "loss notices after a silence of only {silent_ms} ms");
    }
}

/// Placement of the transfers at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// Any node, as the ports hash.
    ByChance,
    /// All at the first node, so that its death affects every kind of transfer.
    OnOne,
}

fn run(fate: Fate, steering: Steering, family: Family, loss: Loss) {
    run_with(&traffic::PLAIN, fate, steering, family, loss, Spread::ByChance);
}

fn run_with(
    transfers: &'static [Transfer],
    fate: Fate,
    steering: Steering,
    family: Family,
    loss: Loss,
    spread: Spread,
) {
    if !privileged() {
        return;
    }
    let servers = if transfers == traffic::PLAIN { "plain" } else { "TLS" };
    let name = format!("{fate:?} {steering:?} {family:?} {loss:?}, {servers} servers, {spread:?}");
    let world = World::of(family, 3);
    let mode = if steering == Steering::Flood { "steering = \"flood\"" } else { "" };
    let backups = if fate == Fate::DiesDuringFailover { "backups = 2" } else { "" };
    let config = traffic::config(&world, 3, &format!("{mode}\n{backups}\n"));
    let first = if fate == Fate::Joins { 2 } else { 3 };
    let backup_only = config.replace("[cluster]\n", "[cluster]\nweight = 0\n");
    let config_of = |number| if spread == Spread::OnOne && number > 1 { &backup_only } else { &config };
    let mut nodes: Vec<Node> = (1..=first).map(|number| world.start(number, config_of(number))).collect();
    settled(&nodes);
    if loss == Loss::OnePercent {
        world.lose_packets();
    }
    let traffic = Traffic::start(&world, transfers);
    if spread == Spread::OnOne {
        let kept = transfers.iter().filter(|(_, action, _)| *action != traffic::Action::Fresh).count() as u64;
        let carried = |status: &ClusterStatus| status.replication.replicated >= kept;
        nodes[0].eventually("carries all transfers, and another node has replicas", carried);
    }
    traffic.silences();
    let began = Instant::now();
    match fate {
        Fate::Killed => kill(&world, &mut nodes, &traffic),
        Fate::HostDead
        | Fate::CutInside
        | Fate::CutOutside
        | Fate::SilentInside
        | Fate::SilentOutside
        | Fate::Paused => {
            // A long pause in one combination; in all of them for a full run.
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
    if loss == Loss::OnePercent {
        assert!(world.counted() > 0, "no packet was dropped");
    }
}

macro_rules! fates {
    ($($test:ident: $fate:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            run(Fate::$fate, Steering::Steer, Family::V4, Loss::None);
        })+
    };
}

fates! {
    node_is_killed: Killed,
    host_is_dead_for_a_while: HostDead,
    node_is_cut_off_inside: CutInside,
    node_is_cut_off_outside: CutOutside,
    node_is_silent_inside: SilentInside,
    node_is_silent_outside: SilentOutside,
    node_pauses_for_ten_seconds: Paused,
    nodes_die_one_after_the_other: Sequence,
    node_joins_under_load: Joins,
    node_dies_during_a_failover: DiesDuringFailover,
}

/// [`run`] in front of servers with TLS.
fn secure(fate: Fate, steering: Steering, family: Family, loss: Loss) {
    run_with(&traffic::SECURE, fate, steering, family, loss, Spread::ByChance);
}

#[test]
fn node_that_carries_all_transfers_dies() {
    let both: [&'static [Transfer]; 2] = [&traffic::PLAIN, &traffic::SECURE];
    for transfers in both {
        for fate in [Fate::Killed, Fate::HostDead] {
            run_with(transfers, fate, Steering::Steer, Family::V4, Loss::None, Spread::OnOne);
        }
    }
}

/// A few random cells that no test above covers, different ones in each run.
#[test]
fn random_cells_of_the_matrix_survive() {
    let chance = Chance::new();
    for _ in 0..3 {
        let fate = FATES[chance.below(FATES.len() as u64) as usize];
        let (steering, family) = OTHER_MODES[chance.below(OTHER_MODES.len() as u64) as usize];
        match chance.below(2) {
            0 => run(fate, steering, family, Loss::None),
            _ => secure(fate, steering, family, Loss::None),
        }
    }
}

macro_rules! fates_before_tls_servers {
    ($($test:ident: $fate:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            secure(Fate::$fate, Steering::Steer, Family::V4, Loss::None);
        })+
    };
}

fates_before_tls_servers! {
    node_before_tls_servers_is_killed: Killed,
    node_before_tls_servers_is_cut_off_inside: CutInside,
    node_before_tls_servers_is_cut_off_outside: CutOutside,
    node_before_tls_servers_pauses: Paused,
    nodes_before_tls_servers_die_one_after_the_other: Sequence,
    node_before_tls_servers_dies_during_a_failover: DiesDuringFailover,
}

/// All fates in a full run; otherwise `some`.
fn fates(some: &[Fate]) -> &[Fate] {
    if full() { &FATES } else { some }
}

#[test]
fn nodes_before_tls_servers_fail_while_packets_are_lost() {
    for fate in fates(&[Fate::Killed, Fate::Sequence]) {
        secure(*fate, Steering::Steer, Family::V4, Loss::OnePercent);
    }
}

/// A full run only: the fates without a test of their own in front of TLS servers, and all fates in the other modes.
#[test]
fn nodes_before_tls_servers_fail_in_all_modes() {
    if !full() {
        return;
    }
    for fate in [Fate::HostDead, Fate::SilentInside, Fate::SilentOutside, Fate::Joins] {
        secure(fate, Steering::Steer, Family::V4, Loss::None);
    }
    for (steering, family) in OTHER_MODES {
        FATES.iter().for_each(|fate| secure(*fate, steering, family, Loss::None));
    }
}

const OTHER_MODES: [(Steering, Family); 3] =
    [(Steering::Flood, Family::V4), (Steering::Steer, Family::V6), (Steering::Flood, Family::V6)];

fn in_mode(steering: Steering, family: Family) {
    fates(&[Fate::Killed]).iter().for_each(|fate| run(*fate, steering, family, Loss::None));
}

#[test]
fn nodes_fail_on_a_flooding_network() {
    in_mode(Steering::Flood, Family::V4);
}

#[test]
fn nodes_fail_with_ipv6() {
    in_mode(Steering::Steer, Family::V6);
}

#[test]
fn nodes_fail_with_ipv6_on_a_flooding_network() {
    in_mode(Steering::Flood, Family::V6);
}

#[test]
fn nodes_fail_while_packets_are_lost() {
    for fate in fates(&[Fate::Killed, Fate::CutInside]) {
        run(*fate, Steering::Steer, Family::V4, Loss::OnePercent);
    }
    if full() {
        for fate in FATES {
            run(fate, Steering::Flood, Family::V6, Loss::OnePercent);
            secure(fate, Steering::Steer, Family::V6, Loss::OnePercent);
        }
    }
}
