//! Nodes that join, leave and die.

use crate::world::{ADDRESS, PORT, VIRTUAL_MAC, World, entry, inside, outside, privileged, settled};
use evergate_netns::Namespace;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

#[test]
fn buckets_spread_fail_over_and_return_with_their_nodes() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let mut nodes = world.cluster(3, "backups = 2");
    for status in settled(&nodes) {
        assert!((300..=400).contains(&status.buckets.owned), "{:?}", status.buckets);
        assert_eq!(status.buckets.owned + status.buckets.backup, 1024, "{:?}", status.buckets);
        assert!(status.gate.contains_key("fenced"));
    }

    nodes.remove(0).kill();
    settled(&nodes);
    for node in &nodes {
        node.process.line_after(0, "nodes 2, 3; node 1 has left, or its process has ended");
        let status =
            node.eventually("continues everything", |status| status.failovers.iter().all(|one| !one.running));
        let taken: u64 = status.failovers.iter().map(|one| one.failed_over).sum();
        assert!(taken > 0 && status.counts.failovers == 1, "{:?}", status.failovers);
        assert_eq!(status.counts.connections_lost, 0);
    }

    nodes.remove(1).kill();
    let last = settled(&nodes).remove(0);
    assert_eq!((last.buckets.owned, last.buckets.without_backup), (1024, 1024));

    let config = world.config(&World::entries(3), "backups = 2");
    nodes.insert(0, world.start(1, &config));
    let back = nodes[0].eventually("gets buckets back", |status| status.buckets.owned > 0);
    assert!(back.counts.handoffs > 0 && back.counts.failovers == 0, "{:?}", back.counts);
    assert_eq!(back.view.map(|view| view.members), Some(vec![1, 2]));
}

#[test]
fn cluster_address_moves_with_the_owner_of_its_bucket() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let mut nodes = world.cluster(2, "");
    assert_eq!(question(&world.switch).as_deref(), Some(VIRTUAL_MAC));
    let place = crate::world::eventually("the switch knows where", || place(&world.switch));
    let announcer: u8 = place.trim_start_matches("out").parse().unwrap();
    assert!((1..=2).contains(&announcer), "{place}");

    nodes.remove(usize::from(announcer) - 1).kill();
    settled(&nodes);
    let survivor = format!("out{}", nodes[0].number);
    crate::world::eventually("the switch sends to the survivor", || {
        (self::place(&world.switch).as_deref() == Some(survivor.as_str())).then_some(())
    });
    world.switch.ip("neigh flush all").unwrap();
    assert_eq!(question(&world.switch).as_deref(), Some(VIRTUAL_MAC), "the survivor answers");
}

/// Both nodes live on in the same view, and the replicas are filled again.
#[test]
fn replicas_are_refilled_after_channels_were_lost() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    let before = nodes[0].status();
    for _ in 0..2 {
        let lost = nodes[0].status().counts.channels_lost;
        // The status may be older than the previous loss.
        crate::world::eventually("there are channels", || {
            (destroy_channels(world.host(1)) > 0).then_some(())
        });
        nodes[0].eventually("notices", |status| status.counts.channels_lost > lost);
        settled(&nodes);
    }
    let after = nodes[0].status();
    assert_eq!(after.counts.views, before.counts.views);
    assert_eq!(after.counts.failovers + after.counts.handoffs, 0);
}

/// Destroys all replication channels from this host to other nodes; their number.
fn destroy_channels(host: &Namespace) -> usize {
    host.run(|| {
        let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let end = |text: &str| {
            let (ip, port) = text.split_once(':')?;
            let ip = u32::from_str_radix(ip, 16).ok()?.to_le_bytes();
            Some(SocketAddr::from((ip, u16::from_str_radix(port, 16).ok()?)))
        };
        let ends = sockets.lines().filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            Some((end(fields.next()?)?, end(fields.next()?)?))
        });
        // One port for each worker.
        let to_others = ends.filter(|(_, to)| (1..=2).contains(&(i32::from(to.port()) - i32::from(PORT))));
        to_others.filter(|(from, to)| evergate_sys::destroy(*from, *to).unwrap()).count()
    })
}

/// MAC address that answers for the cluster's address, as the switch's kernel resolves it.
fn question(switch: &Namespace) -> Option<String> {
    crate::world::eventually("a node answers for the address", || {
        switch.run(|| {
            let socket = UdpSocket::bind((outside(254), 0)).unwrap();
            let _ = socket.send_to(b"?", (ADDRESS, 9));
            let interface = evergate_bpf::interface_index("out").unwrap();
            evergate_sys::neighbour(interface, ADDRESS.parse().unwrap()).unwrap()
        })
    })
    .map(|byte: u8| format!("{byte:02x}"))
    .join(":")
    .into()
}

/// Port behind which the switch has seen the virtual MAC.
fn place(switch: &Namespace) -> Option<String> {
    let table = switch.run(|| Command::new("bridge").args(["fdb", "show", "br", "out"]).output().unwrap());
    let text = String::from_utf8(table.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with(VIRTUAL_MAC))?;
    line.split_whitespace().skip_while(|word| *word != "dev").nth(1).map(str::to_owned)
}

/// The new node starts before the other nodes list it.
#[test]
fn unlisted_node_does_not_bootstrap_a_second_cluster() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let mut nodes = world.cluster(2, "");
    let config = world.config(&World::entries(3), "");
    let third = world.start(3, &config);
    nodes[0].process.line_after(0, "received a heartbeat of node 3 with this cluster's key from 10.71.0.3");
    // The node has listened for long enough to bootstrap a cluster if nothing blocked it.
    let (_, seen) = third.process.line_after(0, "is it in [[cluster.nodes]] there");
    third.process.line_after(seen, "is it in [[cluster.nodes]] there");
    let status = third.status();
    assert!(status.phase == "listening" && status.view.is_none(), "{status:?}");
    for status in settled(&nodes) {
        assert_eq!(status.counts.state_dropped, 0);
    }
    nodes.remove(0).kill();
    settled(&nodes);
    nodes.insert(0, world.start(1, &config));
    settled(&nodes);
    nodes.remove(1).kill();
    nodes.push(third);
    settled(&nodes);
    nodes.insert(1, world.start(2, &config));
    settled(&nodes);
}

/// One file has a wrong address for the serving node.
#[test]
fn node_with_a_wrong_peer_address_does_not_bootstrap() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = world.config(&World::entries(2), "");
    let second = world.start(2, &config);
    second.eventually("serves", |status| status.buckets.owned == 1024);
    let wrong = World::entries(1) + &entry(2, inside(22), outside(22));
    let first = world.start(1, &world.config(&wrong, ""));
    let (_, seen) = first.process.line_after(0, "received a heartbeat of node 2 with this cluster's key");
    let (_, seen) = first.process.line_after(seen, "received a heartbeat of node 2 with this cluster's key");
    let status = first.status();
    assert!(status.phase == "listening" && status.view.is_none(), "{status:?}");
    assert_eq!(second.status().buckets.owned, 1024);
    assert!(seen > 0);
    first.kill();
    settled(&[world.start(1, &config), second]);
}
