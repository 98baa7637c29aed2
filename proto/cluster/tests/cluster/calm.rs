//! Calm heartbeats: on one network after the other, while there is nothing new to say and both networks carry them.

use evergate_base::Micros;
use evergate_cluster::{
    ClusterId, Config, Incarnation, KeyId, Keyring, Mode, Node, NodeId, Path, Standing, Timing, Transmit,
    is_calm,
};

const STEP_US: u64 = 100;

/// Two nodes on two networks, of which one may be cut.
struct Pair {
    nodes: [Node; 2],
    now: u64,
    cut: Option<Path>,
}

impl Pair {
    fn joined(timing: Timing) -> Pair {
        let nodes = [0, 1].map(|id| {
            let config = Config { timing, mode: Mode::Majority, ..Config::new(ClusterId(5), NodeId(id), 2) };
            let keys = Keyring::new(KeyId(1), [9; 32]);
            Node::new(config, keys, Incarnation(100 + u64::from(id)), Micros(1)).unwrap()
        });
        let mut pair = Pair { nodes, now: 1, cut: None };
        pair.run(8_000_000);
        assert!(pair.nodes.iter().all(|node| node.standing() == Standing::Active));
        pair
    }

    /// What was said in the meantime. A calm datagram waits for its receiver's next turn.
    fn run(&mut self, span_us: u64) -> Vec<Transmit> {
        let (mut said, mut inboxes) = (Vec::new(), [Vec::<Transmit>::new(), Vec::new()]);
        for _ in 0..span_us / STEP_US {
            self.now += STEP_US;
            for id in 0..2 {
                let (node, now) = (&mut self.nodes[id], Micros(self.now));
                let wakes = inboxes[id].iter().any(|transmit| !is_calm(&transmit.bytes));
                if !wakes && node.poll_timeout() > now {
                    continue;
                }
                for transmit in inboxes[id].drain(..) {
                    node.handle_datagram(now, transmit.path, &transmit.bytes);
                }
                node.handle_timer(now);
                while node.poll_event().is_some() {}
                while let Some(transmit) = node.poll_transmit() {
                    said.push(transmit.clone());
                    if self.cut != Some(transmit.path) {
                        inboxes[1 - id].push(transmit);
                    }
                }
            }
        }
        said
    }
}

/// Heartbeats of both nodes in a second, on a network.
fn beats(timing: Timing) -> usize {
    2 * (1_000_000 / timing.heartbeat.0) as usize
}

#[test]
fn what_is_not_new_goes_on_one_network_after_the_other() {
    for timing in [Timing::BARE_METAL, Timing::VIRTUAL_MACHINE] {
        let mut pair = Pair::joined(timing);
        let said = pair.run(1_000_000);
        assert!(said.iter().all(|transmit| is_calm(&transmit.bytes)), "nothing new happened");
        assert!(said.len().abs_diff(beats(timing)) <= 4, "{} heartbeats", said.len());
        for path in Path::ALL {
            let count = said.iter().filter(|transmit| transmit.path == path).count();
            assert!(
                count.abs_diff(said.len() / 2) <= said.len() / 10,
                "{count} of {} on {path:?}",
                said.len()
            );
        }
    }
}

#[test]
fn when_one_network_is_silent_the_other_carries_every_heartbeat() {
    for cut in Path::ALL {
        let timing = Timing::VIRTUAL_MACHINE;
        let mut pair = Pair::joined(timing);
        pair.cut = Some(cut);
        pair.run(100_000);
        let said = pair.run(1_000_000);
        assert!(said.iter().all(|transmit| !is_calm(&transmit.bytes)));
        for path in Path::ALL {
            let count = said.iter().filter(|transmit| transmit.path == path).count();
            assert!(count.abs_diff(beats(timing)) <= 4, "{count} on {path:?} without {cut:?}");
        }
        assert!(pair.nodes.iter().all(|node| node.standing() == Standing::Active), "without {cut:?}");
        pair.cut = None;
        pair.run(100_000);
        assert!(pair.run(1_000_000).iter().all(|transmit| is_calm(&transmit.bytes)), "it is back");
    }
}

#[test]
fn what_is_new_goes_on_both_at_once_and_wakes() {
    let mut pair = Pair::joined(Timing::VIRTUAL_MACHINE);
    pair.run(3_000);
    let now = Micros(pair.now);
    pair.nodes[0].set_carrier(now, Path::Outside, false);
    let said = pair.run(10_000);
    let news: Vec<&Transmit> = said.iter().filter(|transmit| transmit.to == NodeId(1)).collect();
    assert_eq!(news.iter().map(|transmit| transmit.path).collect::<Vec<_>>(), Path::ALL);
    assert!(news.iter().all(|transmit| !is_calm(&transmit.bytes)));
    assert!(!is_calm(b"\x03\x01") && !is_calm(b""), "what is not a message is looked at");
}
