//! Answers for a virtual address, and the packets that leave in its name.

use crate::frame::{Tap, Wire, fold, sum};
use crate::packets::{DROP, PASS, STOLEN};
use crate::testrun::{Hook, Outcome, TestRun};
use crate::world::{VIRTUAL_MAC, World, at, bench, eventually, mac, node, privileged, vip};
use evergate_base::Bucket;
use evergate_bpf::{Counter, Mode, Owner, PacketGate};
use std::net::{IpAddr, UdpSocket};

const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const CARD: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn arp(operation: u8, sender: ([u8; 6], [u8; 4]), target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(sender.0);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(sender.0);
    frame.extend(sender.1);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

fn neighbour(kind: u8, from: [u8; 16], to: [u8; 16], target: [u8; 16], option: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target);
    message.extend(option);
    let check = !fold(sum(&message) + sum(&from) + sum(&to) + 58 + message.len() as u32);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0xff, 0, 1, 0];
    frame.extend(ASKER);
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([58, 255]);
    frame.extend(from);
    frame.extend(to);
    frame.extend(message);
    frame
}

/// Of itself, from the asker's card to a group.
fn advertisement(flags: u8, from: [u8; 16], to: [u8; 16], mac: [u8; 6]) -> Vec<u8> {
    let mut frame = neighbour(136, from, to, from, &[&[2, 1], &mac[..]].concat());
    frame[58] = flags;
    let check = u16::from_be_bytes([frame[56], frame[57]]);
    let check = !fold(u32::from(!check) + u32::from(flags) * 256);
    frame[56..58].copy_from_slice(&check.to_be_bytes());
    frame
}

fn vip4() -> [u8; 4] {
    octets(vip(false)).try_into().unwrap()
}

fn vip6() -> [u8; 16] {
    octets(vip(true)).try_into().unwrap()
}

const CLIENT6: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10];

/// What is answered to a question, and what our kernel gets in its place.
fn answered(gate: &PacketGate, question: &[u8]) -> (Vec<u8>, Outcome) {
    let tap = Tap::of("lo");
    let learned = gate.run(Hook::Ingress, question, 0).unwrap();
    (tap.next(), learned)
}

fn give_address_to(gate: &PacketGate, number: u8) {
    gate.owners().set(Bucket(0), Owner::new(node(number), &[]).unwrap());
}

#[test]
fn only_the_designated_node_answers_arp_with_the_virtual_mac() {
    if !privileged() {
        return;
    }
    for (mode, source) in [(Mode::Steer, VIRTUAL_MAC), (Mode::Flood, CARD)] {
        bench(mode, move |gate| {
            gate.attach(1, CARD).unwrap();
            let question = arp(1, (ASKER, [10, 77, 0, 10]), vip4());
            let (answer, learned) = answered(gate, &question);
            assert_eq!((&answer[..6], &answer[6..12]), (&ASKER[..], &source[..]));
            let mut body = vec![0, 1, 8, 0, 6, 4, 0, 2];
            body.extend(VIRTUAL_MAC);
            body.extend(vip4());
            body.extend(ASKER);
            body.extend([10, 77, 0, 10]);
            assert_eq!(answer[14..], body);
            let mut lesson = question[14..].to_vec();
            lesson[7] = 2; // as an answer
            assert_eq!((learned.action, &learned.frame[14..]), (PASS, &lesson[..]));
            let (_, unknown) = answered(gate, &arp(1, (ASKER, [0; 4]), vip4()));
            assert_eq!(unknown.action, DROP, "whose address is not known yet");
            let announcement = arp(1, (ASKER, vip4()), vip4());
            assert_eq!(gate.run(Hook::Ingress, &announcement, 0).unwrap().action, DROP);
            let other = arp(1, (ASKER, [10, 77, 0, 10]), [10, 77, 0, 1]);
            assert_eq!(gate.run(Hook::Ingress, &other, 0).unwrap().action, PASS);
            let held = gate.counters().unwrap().get(Counter::NeighbourHeld);
            gate.leases().set_own(0);
            assert_eq!(gate.run(Hook::Ingress, &question, 0).unwrap(), learned);
            gate.leases().set_own(u64::MAX);
            give_address_to(gate, 2);
            assert_eq!(gate.run(Hook::Ingress, &question, 0).unwrap(), learned);
            assert_eq!(gate.counters().unwrap().get(Counter::NeighbourHeld), held + 2);
        });
    }
}

#[test]
fn only_the_designated_node_answers_neighbour_solicitations() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let to = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 1, 0];
        let mut option = vec![1, 1];
        option.extend(ASKER);
        for option in [&option[..], &[]] {
            let (answer, learned) = answered(gate, &neighbour(135, CLIENT6, to, vip6(), option));
            let mut expected = advertisement(0x60, vip6(), CLIENT6, VIRTUAL_MAC); // solicited, override
            expected[..6].copy_from_slice(&ASKER);
            expected[6..12].copy_from_slice(&VIRTUAL_MAC);
            assert_eq!(answer, expected);
            assert_eq!(learned.action, if option.is_empty() { DROP } else { PASS });
        }
        let question = neighbour(135, CLIENT6, to, vip6(), &option);
        let (_, learned) = answered(gate, &question);
        let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let lesson = advertisement(0xa0, CLIENT6, all_nodes, ASKER); // of a router perhaps, override
        assert_eq!(learned.frame[14..], lesson[14..]);
        let duplicate_check = neighbour(135, [0; 16], to, vip6(), &[]);
        assert_eq!(gate.run(Hook::Ingress, &duplicate_check, 0).unwrap().action, DROP);
        let other = neighbour(135, CLIENT6, to, CLIENT6, &option);
        assert_eq!(gate.run(Hook::Ingress, &other, 0).unwrap().action, PASS);
        give_address_to(gate, 2);
        let held = gate.run(Hook::Ingress, &question, 0).unwrap();
        assert_eq!((held.action, &held.frame[14..]), (PASS, &lesson[14..]));
    });
}

/// Else it is sent to the old card until the kernel asks by itself, which it does later than this test waits.
#[test]
fn every_node_learns_where_who_asks_for_the_address_is_now() {
    if !privileged() {
        return;
    }
    for mode in [Mode::Steer, Mode::Flood] {
        let world = World::new(mode);
        let known = |node: usize, v6| {
            let (card, ip) = (world.nodes[node].card, at(v6, 10, 0).ip());
            world.nodes[node].namespace.run(move || evergate_sys::neighbour(card, ip).unwrap())
        };
        let ask = |v6| {
            let to = (vip(v6), 9);
            world.client.run(move || {
                let from: IpAddr = if v6 { [0; 16].into() } else { [0; 4].into() };
                UdpSocket::bind((from, 0)).unwrap().send_to(b"?", to).unwrap();
            });
        };
        for v6 in [false, true] {
            let was = mac(10).map(|byte| format!("{byte:02x}")).join(":");
            for node in &world.nodes {
                let entry = format!("{} lladdr {was} dev eth0 nud reachable", at(v6, 10, 0).ip());
                node.namespace.ip(&format!("neigh replace {entry}")).unwrap();
                // Of several answers the kernel takes the first of a second.
                node.namespace.sysctl("net.ipv4.neigh.eth0.locktime", "0").unwrap();
            }
        }
        world.client.ip("link set eth0 address 02:00:00:00:00:63").unwrap();
        for v6 in [false, true] {
            ask(v6);
            for node in [0, 1] {
                eventually("the node knows the new card", || known(node, v6) == Some(mac(0x63)));
            }
        }
    }
}

#[test]
fn solicitation_from_off_link_or_falsified_is_not_answered() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let to = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 1, 0];
        let with_option = [&[1, 1], &ASKER[..]].concat();
        let with_two = [&with_option[..], &[14, 1, 0, 0, 0, 0, 0, 0]].concat();
        for option in [&[], &with_option[..], &with_two] {
            let question = neighbour(135, CLIENT6, to, vip6(), option);
            let act = |change: &dyn Fn(&mut Vec<u8>)| {
                let mut frame = question.clone();
                change(&mut frame);
                gate.run(Hook::Ingress, &frame, 0).unwrap().action
            };
            assert_eq!(answered(gate, &question).0[54], 136);
            assert_eq!(act(&|_| {}) == PASS, !option.is_empty());
            assert_eq!(act(&|frame| frame[21] = 254), DROP, "a router passed it on");
            let coded = |frame: &mut Vec<u8>| {
                frame[55] = 1;
                let check = u16::from_be_bytes([frame[56], frame[57]]);
                let check = !fold(u32::from(!check) + 1);
                frame[56..58].copy_from_slice(&check.to_be_bytes());
            };
            assert_eq!(act(&coded), DROP);
            let falsified = act(&|frame| frame[23] ^= 1);
            assert_eq!(falsified == DROP, option.len() <= 8);
        }
    });
}

#[test]
fn questions_of_other_vlans_are_not_ours() {
    if !privileged() {
        return;
    }
    let world = World::new(Mode::Steer);
    let count = |counter| world.nodes[0].gate.counters().unwrap().get(counter);
    world.client.run(|| {
        let wire = Wire::of("eth0");
        for (tag, times) in [([0x20, 5], 3), ([0x20, 0], 1)] {
            let mut question = arp(1, (ASKER, [10, 77, 0, 9]), vip4());
            question.splice(12..12, [0x81, 0].into_iter().chain(tag));
            (0..times).for_each(|_| wire.put(&question));
        }
    });
    eventually("the last one is answered", || count(Counter::NeighbourAnswered) > 0);
    assert_eq!(count(Counter::NeighbourAnswered), 1, "a priority is no VLAN");
}

#[test]
fn nothing_else_leaves_in_the_name_of_the_address() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let announced = |mac| {
            let mut option = vec![2, 1];
            option.extend(mac);
            let frames = [arp(1, (mac, vip4()), vip4()), neighbour(136, vip6(), CLIENT6, vip6(), &option)];
            frames.map(|frame| gate.run(Hook::Egress, &frame, 0).unwrap().action)
        };
        assert_eq!(announced(VIRTUAL_MAC), [PASS, PASS]);
        assert_eq!(announced(CARD), [STOLEN, STOLEN], "the kernel's own answers carry the card's address");
        gate.leases().set_own(0);
        assert_eq!(announced(VIRTUAL_MAC), [STOLEN, STOLEN]);
        let ping = |from| neighbour(128, from, CLIENT6, [0; 16], &[]);
        assert_eq!(gate.run(Hook::Egress, &ping(vip6()), 0).unwrap().action, STOLEN);
        assert_eq!(gate.run(Hook::Egress, &ping(CLIENT6), 0).unwrap().action, PASS);
        gate.leases().set_own(u64::MAX);
        give_address_to(gate, 2);
        assert_eq!(announced(VIRTUAL_MAC), [STOLEN, STOLEN]);
        assert_eq!(gate.run(Hook::Egress, &ping(vip6()), 0).unwrap().action, PASS);
    });
}
