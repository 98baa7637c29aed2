//! Machines that are not there: the kernel keeps what is sent to them for seconds, and takes the room for it from whoever sends.

use crate::world::{World, inside, privileged, settled};
use evergate_sys::{Datagrams, Pinger, Probe, Prober, TcpFacts};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Who is not there, and who is; of both families.
fn peers() -> [(IpAddr, IpAddr); 2] {
    [(inside(200), inside(254)), ("fd71::200".parse().unwrap(), "fd71::254".parse().unwrap())]
}

/// Sends more to the absent one than a socket usually has room for, and then once to the other.
fn is_reached(send: impl Fn(IpAddr) -> bool, (absent, present): (IpAddr, IpAddr)) -> bool {
    (0..1000).for_each(|_| {
        send(absent);
    });
    send(present)
}

#[test]
fn whoever_is_there_is_reached_beside_who_is_not() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    world.switch.ip("addr add fd71::254/64 dev in nodad").unwrap();
    world.host(1).ip("addr add fd71::1/64 dev in nodad").unwrap();
    world.host(1).run(|| {
        let (prober, pinger) = (Prober::new().unwrap(), Pinger::new().unwrap());
        let probe = Probe { acknowledged: 1, ack: 1, window: 1000, timestamp: None };
        for pair in peers() {
            let own: IpAddr = if pair.0.is_ipv4() { inside(1) } else { "fd71::1".parse().unwrap() };
            let datagrams = Datagrams::bind(SocketAddr::new(own, 7400), 2).unwrap();
            let sends = |to| datagrams.urgent.send_to(&[0; 100], (to, 7400)).is_ok();
            assert!(is_reached(sends, pair), "datagrams, {pair:?}");
            let asks = |to| {
                let (local, remote) = (SocketAddr::new(own, 80), SocketAddr::new(to, 5000));
                let (window_scales, stamp) = (None, None);
                let facts = TcpFacts { local, remote, mss: 1460, window_scales, sack: false, stamp };
                prober.ask(&facts, &probe).is_ok()
            };
            assert!(is_reached(asks, pair), "questions, {pair:?}");
            assert!(is_reached(|to| pinger.ask(to, 1).is_ok(), pair), "pings, {pair:?}");
        }
    });
}

/// Longer than the kernel keeps what it cannot deliver.
const WHILE: Duration = Duration::from_secs(8);

#[test]
fn nodes_hear_each_other_beside_one_that_does_not_exist() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = world.config(&World::entries(3), "");
    let nodes = [1, 2].map(|number| world.start(number, &config));
    let before = settled(&nodes);
    let until = Instant::now() + WHILE;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
        let heard = nodes[0].status().nodes[1].clone();
        assert!(heard.heard_inside_ms < Some(100) && heard.heard_outside_ms < Some(100), "{heard:?}");
    }
    for (before, now) in before.iter().zip(settled(&nodes)) {
        let counts = (now.counts.datagrams_unsent, now.counts.fenced, now.counts.voided);
        assert_eq!(counts, (0, before.counts.fenced, before.counts.voided));
        assert_eq!(before.view.as_ref().map(|view| view.epoch), now.view.map(|view| view.epoch));
    }
}
