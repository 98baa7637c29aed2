//! Kernel state that the agent reads and sets, in both address families: addresses, routes, filters, neighbours.

use crate::world::{Node, World, eventually, inside, privileged, settled};
use evergate::agent::status::ClusterStatus;
use evergate_bpf::interface_index;
use std::net::{IpAddr, SocketAddr, TcpStream};

#[test]
fn address_is_added_once_and_neighbour_entry_can_be_set() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    world.host(1).run(|| {
        let (lo, card) = (interface_index("lo").unwrap(), interface_index("in").unwrap());
        for ip in ["10.99.0.1", "fd99::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert!(evergate_sys::add_address(lo, ip).unwrap(), "{ip}");
            assert!(!evergate_sys::add_address(lo, ip).unwrap(), "{ip} exists");
            assert!(std::net::UdpSocket::bind((ip, 0)).is_ok(), "{ip} can be used");
        }
        assert_eq!(evergate_sys::neighbour(card, inside(200)).unwrap(), None);
        assert!(evergate_sys::neighbour(card + 1000, inside(200)).is_err(), "no such interface");
        let mac = [2, 0, 0, 0, 0, 9];
        for ip in [inside(200), "fd71::200".parse().unwrap()] {
            evergate_sys::set_neighbour(card, ip, mac).unwrap();
            assert_eq!(evergate_sys::neighbour(card, ip).unwrap(), Some(mac), "{ip}");
        }
    });
}

#[test]
fn deleted_cluster_address_is_added_again() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    let nodes = world.cluster(1, "");
    let ip = world.family.address();
    world.host(1).ip(&format!("addr del {ip}/32 dev lo")).unwrap();
    eventually("the node has its address", || {
        world.host(1).run(move || std::net::UdpSocket::bind((ip, 0)).ok())
    });
    drop(nodes);
}

#[test]
fn deleted_packet_filter_is_attached_again() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    let mut seen = 0;
    for interface in ["out", "in"] {
        let tc = move |words: &str| {
            let output = std::process::Command::new("tc").args(words.split(' ')).output().unwrap();
            assert!(output.status.success(), "{words}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let programs = || {
            world.host(1).run(move || {
                ["ingress", "egress"].map(|way| {
                    tc(&format!("filter show dev {interface} {way}")).matches("direct-action").count()
                })
            })
        };
        let before = programs();
        assert_eq!(before, [if interface == "out" { 2 } else { 1 }, 1]);
        world.host(1).run(move || tc(&format!("qdisc del dev {interface} clsact")));
        seen = nodes[0].process.line_after(seen, "it is attached again").1;
        assert_eq!(programs(), before);
    }
    settled(&nodes);
    assert!(!nodes[0].process.lines().iter().any(|line| line.contains("cannot be attached")));
}

#[test]
fn offered_mss_follows_the_mtu_of_the_card() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    let config = world.config(&World::entries(1), "").replace("\"tcp\"", "\"http\"");
    let nodes = [world.start(1, &config)];
    settled(&nodes);
    let to = SocketAddr::new(world.family.address(), 8080);
    let offered = |bytes: u32| {
        eventually("a client is offered segments of this size", || {
            let _client = world.switch.run(move || TcpStream::connect(to)).ok()?;
            let sockets = world.sockets();
            let of_clients = sockets.split("node 1").next()?;
            of_clients.contains(&format!(" mss:{bytes} ")).then_some(())
        });
    };
    offered(1500 - 52); // with timestamps
    world.host(1).ip("link set out mtu 1400").unwrap();
    offered(1400 - 52);
    drop(nodes);
}

#[test]
fn node_exits_after_its_card_was_replaced_and_can_restart() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    // The bridge would take the address of one of its ports otherwise, and the witness would get another one.
    world.switch.ip("link set out address 02:00:00:00:ff:01").unwrap();
    let mut nodes = world.cluster(2, "");
    let mut first = nodes.remove(0);
    world.replace_card(1, "out");
    assert_eq!(first.process.wait().code(), Some(1));
    let lines = first.process.lines();
    assert!(lines.iter().any(|line| line.contains("the interface out was created again")), "{lines:#?}");
    settled(&nodes);
    nodes.insert(0, world.start(1, &world.config(&World::entries(2), "")));
    settled(&nodes);
}

/// The nodes share a link, so they reach each other without a default route.
#[test]
fn node_without_default_route_yields_its_buckets() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let route = |number: u8| world.host(number).ip("route add default via 10.72.0.254 dev out").unwrap();
    (1..=2).for_each(route);
    let nodes = world.cluster(2, "");
    let owned = |node: &Node| node.status().buckets.owned;
    assert!(owned(&nodes[0]) > 0);
    for state in ["down", "up"] {
        world.host(1).ip(&format!("link set out {state}")).unwrap();
    }
    nodes[0].eventually("has lost its route and yields its buckets", |status| {
        let lost = status.cut_off.as_ref();
        lost.is_some_and(|lost| lost.network == "outside" && lost.why.contains("default route"))
            && status.buckets.owned == 0
    });
    let (_, seen) = nodes[0].process.line_after(0, "default route (IPv4) over the outside network is gone");
    nodes[1].eventually("owns all buckets", |status| status.buckets.owned == 1024);
    // The nodes receive each other's heartbeats again, but no bucket moves to a node that clients do not reach.
    let receives_heartbeats =
        |status: &ClusterStatus| status.nodes[1].silent_outside_ms.is_some_and(|ago| ago < 50);
    nodes[0].eventually("receives heartbeats of node 2", receives_heartbeats);
    assert_eq!((owned(&nodes[0]), owned(&nodes[1])), (0, 1024));
    route(1);
    settled(&nodes);
    nodes[0].process.line_after(seen, "is back");
    nodes[0].eventually("has buckets again", |status| status.buckets.owned > 0);
}

/// The example configuration uses the documentation network as its outside network.
#[test]
fn documentation_network_on_the_link_is_no_default_route() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    for number in 1..=2 {
        world.host(number).ip(&format!("addr add 203.0.113.1{number}/24 dev out")).unwrap();
    }
    let nodes = world.cluster(2, "");
    let about_routes = || nodes[0].process.lines().iter().any(|line| line.contains("default route"));
    world.host(1).ip("link set out down").unwrap();
    nodes[0].eventually("has lost the outside network", |status| status.cut_off.is_some());
    // The thread that restores the address checks the routes at the same interval.
    let ip = world.family.address();
    for _ in 0..2 {
        world.host(1).ip(&format!("addr del {ip}/32 dev lo")).unwrap();
        eventually("the node has its address", || {
            world.host(1).run(move || std::net::UdpSocket::bind((ip, 0)).ok())
        });
    }
    assert!(!about_routes(), "{:#?}", nodes[0].process.lines());
    world.host(1).ip("link set out up").unwrap();
    settled(&nodes);
    assert!(!about_routes(), "{:#?}", nodes[0].process.lines());
}

#[test]
fn echo_reply_carries_the_token_and_the_address_asked() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    world.add_ipv6_inside();
    world.host(1).run(|| {
        let pinger = evergate_sys::Pinger::new().unwrap();
        for (token, ip) in [(7, inside(254)), (u64::MAX, "fd71::254".parse().unwrap())] {
            let pong = eventually("an answer", || {
                // The first request may get lost while the kernel resolves the address.
                let _ = pinger.ask(ip, token);
                pinger.answer(ip.is_ipv6())
            });
            assert_eq!((pong.from, pong.token), (ip, token));
        }
    });
}
