//! Calm heartbeats: they alternate between the networks while there is no news and both networks carry them.

use evergate_base::Micros;
use evergate_membership::{
    Body, ClusterId, Config, Event, Incarnation, KeyId, Keyring, Message, Mode, Node, NodeId, NodePhase,
    Path, Reach, Timing, Transmit, is_calm,
};

const STEP_US: u64 = 100;

/// Nodes on two networks, of which one may be cut.
struct Group {
    nodes: Vec<Node>,
    alive: Vec<bool>,
    now: u64,
    cut: Option<Path>,
    /// Nodes that installed a view, each with the number of datagrams that all nodes had sent before.
    installed: Vec<(usize, usize)>,
}

impl Group {
    fn joined(count: u8, timing: Timing) -> Group {
        let node = |id| {
            let config =
                Config { timing, mode: Mode::Majority, ..Config::new(ClusterId(5), NodeId(id), count) };
            let keys = Keyring::new(KeyId(1), [9; 32]);
            Node::new(config, keys, Incarnation(100 + u64::from(id)), Micros(1)).unwrap()
        };
        let nodes: Vec<Node> = (0..count).map(node).collect();
        let alive = vec![true; nodes.len()];
        let mut group = Group { nodes, alive, now: 1, cut: None, installed: Vec::new() };
        group.run(8_000_000);
        assert!(group.all_active());
        group
    }

    fn all_active(&self) -> bool {
        let mut running = self.nodes.iter().zip(&self.alive).filter(|(_, alive)| **alive);
        running.all(|(node, _)| node.phase() == NodePhase::Active)
    }

    /// Runs the nodes, and returns the datagrams with their senders. A calm datagram waits for its receiver's next
    /// turn.
    fn run(&mut self, span_us: u64) -> Vec<(usize, Transmit)> {
        let (mut sent, mut inboxes) = (Vec::new(), vec![Vec::<Transmit>::new(); self.nodes.len()]);
        for _ in 0..span_us / STEP_US {
            self.now += STEP_US;
            for id in (0..self.nodes.len()).filter(|id| self.alive[*id]) {
                let (node, now) = (&mut self.nodes[id], Micros(self.now));
                let wakes = inboxes[id].iter().any(|transmit| !is_calm(&transmit.bytes));
                if !wakes && node.poll_timeout() > now {
                    continue;
                }
                for transmit in inboxes[id].drain(..) {
                    node.handle_datagram(now, transmit.path, &transmit.bytes);
                }
                node.handle_timer(now);
                while let Some(event) = node.poll_event() {
                    if matches!(event, Event::Installed { .. }) {
                        self.installed.push((id, sent.len()));
                    }
                }
                while let Some(transmit) = node.poll_transmit() {
                    sent.push((id, transmit.clone()));
                    let to = usize::from(transmit.to.0);
                    if self.cut != Some(transmit.path) && self.alive[to] {
                        inboxes[to].push(transmit);
                    }
                }
            }
        }
        sent
    }
}

fn is_heartbeat(transmit: &Transmit) -> bool {
    matches!(Message::decode(&transmit.bytes), Ok(Message { body: Body::Heartbeat(_), .. }))
}

/// Heartbeats of both nodes in a second, on a network.
fn beats(timing: Timing) -> usize {
    2 * (1_000_000 / timing.heartbeat.0) as usize
}

#[test]
fn calm_heartbeats_alternate_between_networks_with_long_leases() {
    for (timing, networks) in [(Timing::BARE_METAL, 2), (Timing::VIRTUAL_MACHINE, 1)] {
        let mut group = Group::joined(2, timing);
        let sent = group.run(1_000_000);
        assert!(sent.iter().all(|(_, transmit)| is_calm(&transmit.bytes)), "no news");
        assert!(sent.len().abs_diff(networks * beats(timing)) <= 8, "{} heartbeats", sent.len());
        for path in Path::ALL {
            let count = sent.iter().filter(|(_, transmit)| transmit.path == path).count();
            assert!(count.abs_diff(sent.len() / 2) <= 2, "{count} of {} on {path:?}", sent.len());
        }
    }
}

#[test]
fn silent_network_moves_every_heartbeat_to_the_other() {
    for cut in Path::ALL {
        let timing = Timing::VIRTUAL_MACHINE;
        let mut group = Group::joined(2, timing);
        group.cut = Some(cut);
        group.run(100_000);
        let sent = group.run(1_000_000);
        assert!(sent.iter().all(|(_, transmit)| !is_calm(&transmit.bytes)));
        for path in Path::ALL {
            let count = sent.iter().filter(|(_, transmit)| transmit.path == path).count();
            assert!(count.abs_diff(beats(timing)) <= 4, "{count} on {path:?} without {cut:?}");
        }
        assert!(group.all_active(), "without {cut:?}");
        group.cut = None;
        group.run(100_000);
        assert!(
            group.run(1_000_000).iter().all(|(_, transmit)| is_calm(&transmit.bytes)),
            "the network is back"
        );
    }
}

#[test]
fn news_uses_both_networks_at_once_and_wakes() {
    let mut group = Group::joined(2, Timing::VIRTUAL_MACHINE);
    group.run(3_000);
    let now = Micros(group.now);
    group.nodes[0].set_reach(now, Path::Outside, Reach::Gone);
    let sent = group.run(10_000);
    let news: Vec<&Transmit> = sent.iter().filter(|(id, _)| *id == 0).map(|(_, transmit)| transmit).collect();
    assert_eq!(news.iter().map(|transmit| transmit.path).collect::<Vec<_>>(), Path::ALL);
    assert!(news.iter().all(|transmit| !is_calm(&transmit.bytes)));
    assert!(!is_calm(b"\x03\x01") && !is_calm(b""), "a malformed datagram is not calm");
}

/// The gates of a new view open with its first grants.
#[test]
fn first_heartbeats_of_a_view_are_news() {
    let mut group = Group::joined(3, Timing::VIRTUAL_MACHINE);
    group.installed.clear();
    group.alive[2] = false;
    let sent = group.run(600_000);
    assert!(group.all_active() && group.installed.len() >= 2, "{:?}", group.installed);
    for (id, from) in &group.installed {
        let to_other = |(by, transmit): &&(usize, Transmit)| {
            by == id && transmit.to != NodeId(2) && is_heartbeat(transmit)
        };
        let first: Vec<_> = sent[*from..].iter().filter(to_other).take(2).collect();
        assert!(first.iter().all(|(_, transmit)| !is_calm(&transmit.bytes)), "node {id}");
        assert_eq!(first.iter().map(|(_, transmit)| transmit.path).collect::<Vec<_>>(), Path::ALL);
    }
}

/// Each node checks its interfaces with every heartbeat, so the nodes notice a loss at different moments.
#[test]
fn network_lost_by_all_at_different_moments_drops_no_state() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        for (skew, path) in
            (0..=10).flat_map(|part| Path::ALL.map(|path| (timing.heartbeat.0 * part / 10, path)))
        {
            let mut group = Group::joined(3, timing);
            let incarnations: Vec<_> = group.nodes.iter().map(Node::me).collect();
            group.cut = Some(path);
            for id in [0, 1, 2] {
                let now = Micros(group.now);
                group.nodes[id].set_reach(now, path, Reach::Gone);
                group.run(skew / 2);
            }
            group.run(500_000);
            let still: Vec<_> = group.nodes.iter().map(Node::me).collect();
            assert_eq!(incarnations, still, "{path:?}, {skew} us apart");
        }
    }
}
