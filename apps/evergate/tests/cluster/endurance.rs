//! Random failures of any proper subset of the nodes, at random moments, round after round: no transfer breaks.
//!
//! `EVERGATE_ROUNDS=n` sets the number of rounds.

use crate::traffic::{self, Traffic};
use crate::world::{Family, Node, World, eventually, privileged, settled};
use std::time::{Duration, Instant};

const NODES: u8 = 4;
const ROUNDS: u64 = 3;
/// Latest start of a failure within a round, in milliseconds.
const FAILS_WITHIN: u64 = 800;
/// Longest duration of a failure, in milliseconds.
const LASTS_UP_TO: u64 = 2500;
/// Longest time that a node may wait before it rejoins, in milliseconds.
const PATIENCE_MS: u64 = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Killed,
    HostDead,
    CutInside,
    CutOutside,
    Paused,
    /// The node is drained and stops in order.
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

/// Failure of one node within a round.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: Duration,
    number: u8,
    failure: Failure,
    /// Whether the failure has ended.
    over: bool,
}

/// One node survives the round. Each other node fails with a probability above one half.
fn schedule(world: &World) -> Vec<Event> {
    let chance = &world.chance;
    let stays = 1 + chance.below(NODES.into()) as u8;
    let mut events = Vec::new();
    for number in (1..=NODES).filter(|number| *number != stays) {
        if chance.below(4) == 0 {
            continue;
        }
        let failure = FAILURES[chance.below(FAILURES.len() as u64) as usize];
        let at = chance.moment(FAILS_WITHIN);
        events.push(Event { at, number, failure, over: false });
        events.push(Event { at: at + chance.moment(LASTS_UP_TO), number, failure, over: true });
    }
    events.sort_by_key(|event| event.at);
    events
}

/// Nodes by number; `None` where the process has ended.
struct Cluster<'a> {
    world: &'a World,
    config: String,
    nodes: Vec<Option<Node>>,
}

impl Cluster<'_> {
    fn carry_out(&mut self, event: Event) {
        let Event { number, failure, over, .. } = event;
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

    /// Waits until all nodes are members again. Nodes that failed often have a long rejoin delay. `settle` restarts
    /// those instead of waiting.
    fn settle(&mut self) {
        eventually("no node waits to rejoin", || {
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
        let events = schedule(&world);
        println!("round {round}: {events:?}");
        traffic.silences();
        let began = Instant::now();
        for event in events {
            std::thread::sleep((began + event.at).saturating_duration_since(Instant::now()));
            cluster.carry_out(event);
        }
        traffic.continues_or("after a round", || println!("{}", world.sockets()));
        cluster.settle();
        let longest = traffic.silences().into_iter().max().unwrap();
        println!("round {round}: {:.1} s, longest silence {longest:?}", began.elapsed().as_secs_f64());
    }
    traffic.end();
}

#[test]
fn any_proper_subset_of_the_nodes_may_fail_repeatedly() {
    endure(Family::V4, "", false);
}

/// One packet in a hundred is lost as well.
#[test]
fn any_proper_subset_may_fail_with_ipv6_and_flooding() {
    endure(Family::V6, "steering = \"flood\"", true);
}
