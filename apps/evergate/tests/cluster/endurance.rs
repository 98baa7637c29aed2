//! Any proper subset of the nodes fails, at moments and in ways that chance chooses, again and again: nothing breaks.
//!
//! `make test` runs a few rounds; `EVERGATE_ROUNDS=n` runs as many.

use crate::traffic::{self, Traffic};
use crate::world::{Family, Node, World, eventually, privileged, settled};
use std::time::{Duration, Instant};

const NODES: u8 = 4;
const ROUNDS: u64 = 3;
/// Failures of a round begin within this time, and are over after as much more as this, in milliseconds.
const FAILS_WITHIN: u64 = 800;
const LASTS_UP_TO: u64 = 2500;
/// How long a node may wait until it joins again.
const PATIENCE_MS: u64 = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Killed,
    HostDead,
    CutInside,
    CutOutside,
    Paused,
    /// It is drained, and stops in order.
    Stopped,
}

const FAILURES: [Failure; 6] = [
    Failure::Killed,
    Failure::HostDead,
    Failure::CutInside,
    Failure::CutOutside,
    Failure::Paused,
    Failure::Stopped,
];

impl Failure {
    fn nets(self) -> &'static [&'static str] {
        match self {
            Failure::HostDead => &["in", "out"],
            Failure::CutInside => &["in"],
            Failure::CutOutside => &["out"],
            Failure::Killed | Failure::Paused | Failure::Stopped => &[],
        }
    }
}

/// What happens to a node at a moment of its round.
#[derive(Clone, Copy, Debug)]
struct Turn {
    at: Duration,
    number: u8,
    failure: Failure,
    /// Whether it is over.
    over: bool,
}

/// One node stays; each of the others fails more often than not.
fn plan(world: &World) -> Vec<Turn> {
    let chance = &world.chance;
    let stays = 1 + chance.below(NODES.into()) as u8;
    let mut turns = Vec::new();
    for number in (1..=NODES).filter(|number| *number != stays) {
        if chance.below(4) == 0 {
            continue;
        }
        let failure = FAILURES[chance.below(FAILURES.len() as u64) as usize];
        let at = chance.moment(FAILS_WITHIN);
        turns.push(Turn { at, number, failure, over: false });
        turns.push(Turn { at: at + chance.moment(LASTS_UP_TO), number, failure, over: true });
    }
    turns.sort_by_key(|turn| turn.at);
    turns
}

/// The nodes by number; none where a process has ended.
struct Cluster<'a> {
    world: &'a World,
    config: String,
    nodes: Vec<Option<Node>>,
}

impl Cluster<'_> {
    fn carry_out(&mut self, turn: Turn) {
        let Turn { number, failure, over, .. } = turn;
        let node = &mut self.nodes[usize::from(number) - 1];
        for net in failure.nets() {
            let state = if over { "up" } else { "down" };
            self.world.switch.ip(&format!("link set {net}{number} {state}")).unwrap();
        }
        match (failure, over) {
            (Failure::Killed, false) => node.take().unwrap().kill(),
            (Failure::Paused, _) => node.as_ref().unwrap().process.signal(if over { "CONT" } else { "STOP" }),
            (Failure::Stopped, false) => node.as_ref().unwrap().process.signal("TERM"),
            (Failure::Stopped, true) => {
                let status = node.take().unwrap().process.wait();
                assert!(status.success(), "node {number}: {status}");
            }
            _ => {}
        }
        if over && node.is_none() {
            *node = Some(self.world.start(number, &self.config));
        }
    }

    /// Waits until all are members again. Nodes that failed often wait long before they join again; who does not want to
    /// wait starts them anew.
    fn settle(&mut self) {
        eventually("nobody waits", || {
            let waits = |node: &Option<Node>| {
                node.as_ref()
                    .is_none_or(|node| node.status().rejoin_delay_ms.is_some_and(|wait| wait > PATIENCE_MS))
            };
            let waiting: Vec<u8> =
                (1..).zip(&self.nodes).filter(|(_, node)| waits(node)).map(|(n, _)| n).collect();
            for number in &waiting {
                let node = &mut self.nodes[usize::from(*number) - 1];
                if let Some(node) = node.take() {
                    node.kill();
                }
                *node = Some(self.world.start(*number, &self.config));
            }
            let joined =
                |node: &Option<Node>| node.as_ref().is_some_and(|node| node.status().phase == "active");
            self.nodes.iter().all(joined).then_some(())
        });
        let nodes: Vec<Node> = self.nodes.drain(..).map(Option::unwrap).collect();
        settled(&nodes);
        self.nodes = nodes.into_iter().map(Some).collect();
    }
}

fn endure(family: Family, mode: &str, lossy: bool) {
    if !privileged() {
        return;
    }
    let rounds = std::env::var("EVERGATE_ROUNDS").map_or(ROUNDS, |text| text.parse().expect("a number"));
    let world = World::of(family, NODES);
    let config = traffic::config(&world, NODES, &format!("{mode}\nbackups = \"all\"\n"));
    let nodes = (1..=NODES).map(|number| Some(world.start(number, &config))).collect();
    let mut cluster = Cluster { world: &world, config, nodes };
    cluster.settle();
    if lossy {
        world.lose_packets();
    }
    let traffic = Traffic::start(&world, &traffic::MIXED);
    for round in 0..rounds {
        let turns = plan(&world);
        println!("round {round}: {turns:?}");
        traffic.silences();
        let began = Instant::now();
        for turn in turns {
            std::thread::sleep((began + turn.at).saturating_duration_since(Instant::now()));
            cluster.carry_out(turn);
        }
        traffic.continues_or("after a round", || println!("{}", world.sockets()));
        cluster.settle();
        let longest = traffic.silences().into_iter().max().unwrap();
        println!("round {round}: {:.1} s, longest silence {longest:?}", began.elapsed().as_secs_f64());
    }
    traffic.end();
}

#[test]
fn any_proper_subset_of_the_nodes_may_fail_again_and_again() {
    endure(Family::V4, "", false);
}

/// One packet in a hundred is lost too.
#[test]
fn any_proper_subset_may_fail_with_ipv6_on_a_network_that_floods() {
    endure(Family::V6, "steering = \"flood\"", true);
}
