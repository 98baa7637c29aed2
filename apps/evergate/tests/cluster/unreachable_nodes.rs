//! Unreachable machines: the kernel queues packets for them for seconds and charges them to the sending socket.

use crate::world::{World, inside, privileged, settled};
use evergate_sys::{Datagrams, Pinger, Probe, Prober, TcpParams};
use std::net::{IpAddr, SocketAddr};

/// Pairs of an absent and a present peer, in both families.
fn peers() -> [(IpAddr, IpAddr); 2] {
    [(inside(200), inside(254)), ("fd71::200".parse().unwrap(), "fd71::254".parse().unwrap())]
}

/// Sends more packets to the absent peer than a socket buffer holds, and then one to the present peer; whether the
/// buffer had room for that one.
fn has_room(send: impl Fn(IpAddr) -> bool, (absent, present): (IpAddr, IpAddr)) -> bool {
    (0..1000).for_each(|_| {
        send(absent);
    });
    send(present)
}

#[test]
fn packets_to_an_absent_peer_do_not_block_the_socket() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    world.add_ipv6_inside();
    world.host(1).run(|| {
        let (prober, pinger) = (Prober::new().unwrap(), Pinger::new().unwrap());
        let probe = Probe { acknowledged: 1, ack: 1, window: 1000, timestamp: None };
        for pair in peers() {
            let own: IpAddr = if pair.0.is_ipv4() { inside(1) } else { "fd71::1".parse().unwrap() };
            let datagrams = Datagrams::bind(SocketAddr::new(own, 7400), 2).unwrap();
            let sends = |to| datagrams.urgent.send_to(&[0; 100], (to, 7400)).is_ok();
            assert!(has_room(sends, pair), "datagrams, {pair:?}");
            let asks = |to| {
                let (local, remote) = (SocketAddr::new(own, 80), SocketAddr::new(to, 5000));
                let (window_scales, stamp) = (None, None);
                let facts = TcpParams { local, remote, mss: 1460, window_scales, sack: false, stamp };
                prober.ask(&facts, &probe).is_ok()
            };
            assert!(has_room(asks, pair), "questions, {pair:?}");
            assert!(has_room(|to| pinger.ask(to, 1).is_ok(), pair), "pings, {pair:?}");
        }
    });
}

/// Datagrams that a node sends in about eight seconds. The kernel drops undeliverable packets before that.
const DATAGRAMS: u64 = 2400;

#[test]
fn nodes_send_to_each_other_beside_one_that_does_not_exist() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = world.config(&World::entries(3), "");
    let nodes = [1, 2].map(|number| world.start(number, &config));
    settled(&nodes);
    for node in &nodes {
        let now = node.eventually("has sent enough", |status| {
            status.counts.datagrams_sent + status.counts.datagrams_unsent > DATAGRAMS
        });
        assert_eq!((now.counts.datagrams_unsent, now.counts.state_dropped), (0, 0), "{now:?}");
    }
    settled(&nodes);
}
