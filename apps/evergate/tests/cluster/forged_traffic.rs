//! Forged traffic: datagrams and connections from outside the cluster change nothing.

use crate::matrix::carrier;
use crate::relay::{FOR_ONE, FOR_TWO, Relay};
use crate::traffic::{self, Traffic, Transport};
use crate::world::{Node, PORT, World, entry, eventually, inside, outside, privileged, settled};
use evergate::agent::status::{ClusterCounts, ClusterStatus};
use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;

/// More connections than a worker accepts at a time.
const MORE_THAN_CHANNELS: usize = 1100;

fn epoch(status: &ClusterStatus) -> Option<u64> {
    status.view.as_ref().map(|view| view.epoch)
}

#[test]
fn forged_and_replayed_datagrams_are_counted_and_ignored() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let relay = Relay::start(&world.switch);
    let nodes = [
        world.start(
            1,
            &world.config(&(entry(1, inside(1), outside(1)) + &entry(2, inside(2), outside(FOR_ONE))), ""),
        ),
        world.start(
            2,
            &world.config(&(entry(1, inside(1), outside(FOR_TWO)) + &entry(2, inside(2), outside(2))), ""),
        ),
    ];
    let before = settled(&nodes);
    relay.turn_hostile();
    for reason in ["duplicate", "too_old", "forged", "malformed"] {
        for node in &nodes {
            node.eventually(reason, |status| status.rejected[reason] > 20);
        }
    }
    eventually("many attacks", || (relay.attacks() > 1000).then_some(()));
    for (node, before) in nodes.iter().zip(before) {
        let now = node.status();
        assert_eq!(epoch(&now), epoch(&before), "{:#?}", node.process.lines());
        assert_eq!(
            (now.counts.state_dropped, now.counts.fenced),
            (before.counts.state_dropped, before.counts.fenced)
        );
        assert_eq!(now.buckets.owned, before.buckets.owned);
        let silent_ms = now
            .nodes
            .iter()
            .find(|other| other.number != node.number)
            .and_then(|other| other.silent_outside_ms);
        assert!(silent_ms.is_some(), "{:?}", now.nodes);
    }
}

#[test]
fn datagrams_of_unlisted_addresses_are_counted_unread() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    let node = world.start(1, &world.config(&World::entries(2), ""));
    world.switch.run(|| {
        let socket = UdpSocket::bind((outside(254), 0)).unwrap();
        for length in 0..500usize {
            let _ = socket.send_to(&vec![1; length], (outside(1), PORT));
        }
    });
    let status =
        node.eventually("counts unlisted addresses", |status| status.rejected["unlisted_address"] == 500);
    let others = status.rejected.iter().filter(|(reason, _)| *reason != "unlisted_address");
    assert_eq!(others.map(|(_, count)| count).sum::<u64>(), 0, "{:?}", status.rejected);
}

#[test]
fn floods_of_the_replication_ports_do_not_block_nodes() {
    if !privileged() {
        return;
    }
    let files = evergate_sys::raise_file_limit().unwrap();
    assert!(files > 3 * MORE_THAN_CHANNELS as u64, "this test needs more than {files} open files");
    let world = World::new(2);
    let config = world.config(&World::entries(2), "");
    let mut nodes: Vec<_> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let unlisted = world.switch.run(|| {
        let ports = [PORT + 1, PORT + 2]; // one for each worker
        let to = ports.into_iter().flat_map(|port| std::iter::repeat_n(port, MORE_THAN_CHANNELS));
        let connect = |port| std::net::TcpStream::connect((inside(2), port)).unwrap();
        to.map(connect).collect::<Vec<_>>()
    });
    nodes.remove(0).kill();
    nodes[0].eventually("is alone", |status| status.nodes.iter().filter(|node| node.member).count() == 1);
    nodes.insert(0, world.start(1, &config));
    settled(&nodes); // with a replica of everything at both
    drop(unlisted);
}

#[test]
fn node_with_different_settings_is_reported() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = world.config(&World::entries(2), "");
    let one = world.start(1, &config);
    let other = world.start(2, &config.replace("workers = 2", "workers = 3"));
    one.process.line_after(0, "node 2 runs 3 workers, this node 2");
    drop(other);
    let other = config.replace("[cluster]\n", "[cluster]\nsteering = \"flood\"\nports_per_bucket = 26\n");
    let other = world.start(2, &other);
    let (reported, _) =
        other.process.line_after(0, "cluster: refused a replication channel: `[cluster]` of node 1 differs");
    assert!(
        reported.contains(r#"`ports_per_bucket` is "27" there and "26" here, `steering` is "steer" there"#),
        "{reported}"
    );
    let status = one.eventually("counts it", |status| status.counts.channels_lost > 0);
    assert_eq!((status.buckets.owned, status.buckets.without_backup), (1024, 1024), "{:?}", status.buckets);
}

#[test]
fn node_with_another_key_neither_joins_nor_bootstraps() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let mut nodes = world.cluster(2, "");
    // The other nodes list a third node, which has the wrong key.
    for node in nodes.drain(..) {
        node.kill();
    }
    let config = world.config(&World::entries(3), "");
    let nodes: Vec<_> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    world.folder.write("other.key", &format!("{}\n", evergate::agent::fresh_key()));
    let other = world.start(3, &world.config(&World::entries(3), "key_file = \"other.key\""));
    other.process.line_after(0, "rejects heartbeats of node");
    // Longer than a lone node listens before it bootstraps a cluster. Heartbeats come 200 times a second.
    let mut seen = 0;
    eventually("the node has rejected thousands of heartbeats", || {
        let status = other.status();
        assert_eq!(
            (status.phase.as_str(), epoch(&status)),
            ("listening", None),
            "{:#?}",
            other.process.lines()
        );
        assert_eq!(status.buckets.owned, 0);
        seen = status.rejected["forged"];
        (seen > 4000).then_some(())
    });
    for status in settled(&nodes) {
        assert!(status.rejected["forged"] > 0);
        assert_eq!(status.nodes.iter().filter(|node| node.member).count(), 2);
    }
}

/// State that must not change on an undisturbed node: its view and all counters of losses. Buckets may still move to
/// balance load.
fn calm(node: &Node) -> (Option<u64>, [u64; 6]) {
    let status = node.status();
    let ClusterCounts { views, fenced, state_dropped, failovers, .. } = status.counts;
    let ClusterCounts { connections_lost, channels_lost, .. } = status.counts;
    (epoch(&status), [views, fenced, state_dropped, failovers, connections_lost, channels_lost])
}

/// Number of replication channels that a node has refused, or has closed in favour of another one.
fn refused(node: &Node) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
    let reasons = ["replication_channel_refused", "replication_channels_max"];
    reasons.iter().filter_map(|reason| status["reasons"][reason].as_u64()).sum()
}

#[test]
fn floods_of_the_replication_ports_disturb_no_transfer() {
    const NOISY: usize = 50;
    if !privileged() {
        return;
    }
    evergate_sys::raise_file_limit().unwrap();
    let world = World::new(3);
    let (mut nodes, _) = traffic::three(&world);
    let traffic = Traffic::start(&world, &traffic::PLAIN);
    let before: Vec<_> = nodes.iter().map(calm).collect();
    let mut hello = Vec::new();
    let mut tls = Transport::Tls13.client(&Arc::new(traffic::roots(&world))).unwrap();
    tls.write_tls(&mut hello).unwrap();
    hello.truncate(hello.len() / 2);
    let noise: Vec<u8> = (0..3000).map(traffic::byte).collect();
    let streams = world.switch.run(move || {
        let mut streams = Vec::new();
        for (host, port) in (1..=3).flat_map(|host| [(host, PORT + 1), (host, PORT + 2)]) {
            for number in 0..2 * NOISY {
                let mut stream = TcpStream::connect((inside(host), port)).unwrap();
                // The node may have closed this connection already.
                let _ = stream.write_all(if number < NOISY { &noise } else { &hello });
                streams.push(stream);
            }
        }
        streams
    });
    for node in &nodes {
        eventually("noise is refused", || (refused(node) >= 2 * NOISY as u64).then_some(()));
    }
    traffic.continues("beside noise");
    // One node at a time, because of this process's limit of open files.
    for host in 1..=3 {
        let flood = world.switch.run(move || {
            let ports = [PORT + 1, PORT + 2].into_iter();
            let to = ports.flat_map(|port| std::iter::repeat_n(port, MORE_THAN_CHANNELS));
            to.map(|port| TcpStream::connect((inside(host), port)).unwrap()).collect::<Vec<_>>()
        });
        traffic.continues("beside a flood");
        drop(flood);
    }
    let after: Vec<_> = nodes.iter().map(calm).collect();
    assert_eq!(after, before, "view and counts");
    // The replicas are complete.
    carrier(&mut nodes).kill();
    traffic.continues("after a death");
    drop(streams);
    traffic.end();
}

#[test]
fn forged_and_replayed_datagrams_disturb_no_transfer() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let relay = Relay::start(&world.switch);
    // With steering the switch would send datagrams to the relay.
    let config = traffic::config(&world, 2, "steering = \"flood\"");
    let node = |number, other: u8, relayed| {
        let at = |host| format!("outside = \"{}\"", outside(host));
        world.start(number, &config.replace(&at(other), &at(relayed)))
    };
    let nodes = vec![node(1, 2, FOR_ONE), node(2, 1, FOR_TWO)];
    settled(&nodes);
    let traffic = Traffic::start(&world, &traffic::PLAIN);
    let before: Vec<_> = nodes.iter().map(calm).collect();
    relay.turn_hostile();
    for reason in ["duplicate", "too_old", "forged", "malformed"] {
        for node in &nodes {
            node.eventually(reason, |status| status.rejected[reason] > 20);
        }
    }
    eventually("many attacks", || (relay.attacks() > 1000).then_some(()));
    for node in &nodes {
        node.process.line_after(0, "address and accepts others");
    }
    traffic.continues("beside forgeries");
    let after: Vec<_> = nodes.iter().map(calm).collect();
    assert_eq!(after, before, "view and counts");
    traffic.end();
}
