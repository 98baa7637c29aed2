//! What the agent asks of the kernel, both families.

use crate::world::{World, eventually, inside, privileged};
use evergate_bpf::interface_index;
use std::net::IpAddr;

#[test]
fn addresses_are_given_once_and_neighbours_are_known_when_they_have_answered() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    world.host(1).run(|| {
        let (lo, card) = (interface_index("lo").unwrap(), interface_index("in").unwrap());
        for ip in ["10.99.0.1", "fd99::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert!(evergate_sys::add_address(lo, ip).unwrap(), "{ip}");
            assert!(!evergate_sys::add_address(lo, ip).unwrap(), "{ip} is there already");
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
fn an_address_that_somebody_takes_away_comes_back() {
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
fn only_the_host_that_was_asked_answers_with_the_token() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    world.switch.ip("addr add fd71::254/64 dev in nodad").unwrap();
    world.host(1).ip("addr add fd71::1/64 dev in nodad").unwrap();
    world.host(1).run(|| {
        let pinger = evergate_sys::Pinger::new().unwrap();
        for (token, ip) in [(7, inside(254)), (u64::MAX, "fd71::254".parse().unwrap())] {
            let pong = eventually("an answer", || {
                // A first question may be lost while the address is being resolved.
                let _ = pinger.ask(ip, token);
                pinger.answer(ip.is_ipv6())
            });
            assert_eq!((pong.from, pong.token), (ip, token));
        }
    });
}
