//! One packet in, one packet out: its owner, and the node that may send.

use crate::frame::{ACK, SYN, Segment};
use crate::packets::{DROP, PASS, REDIRECT, accepted, client, enter, inward, leave, listener, out, stamps};
use crate::testrun::{Hook, TestRun};
use crate::world::{VIRTUAL_MAC, at, bench, node, privileged, vip};
use evergate_base::Bucket;
use evergate_bpf::{Flow, Mode, Owner, WorkerPortId};
use std::net::SocketAddr;

#[test]
fn nothing_leaves_when_a_lease_is_over() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let (_lane, slot) = accepted(gate, false, 500, 1000);
        slot.open();
        let data = Segment { seq: 500, ack: 1000, data: b"x".to_vec(), ..out(false) };
        let (owners, leases) = (gate.owners(), gate.leases());
        let bucket = gate.bucket(&slot.flow());
        owners.set(bucket, Owner::new(node(1), &[node(2), node(3)]).unwrap());
        let at = |own, second, third, now| {
            leases.set_own(own);
            leases.set(node(2), second);
            leases.set(node(3), third);
            gate.set_test_clock_ns(now);
            leave(gate, &data).is_ok()
        };
        assert!(at(100, 100, 100, 99));
        assert!(!at(100, 100, 100, 100));
        assert!(!at(100, 200, 200, 150));
        assert!(!at(200, 100, 200, 150));
        assert!(!at(200, 200, 100, 150));
        assert!(at(200, 200, 200, 150));
        owners.set(bucket, Owner::new(node(1), &[node(2)]).unwrap());
        assert!(at(200, 200, 0, 150), "the lease of a node that is no backup does not matter");
        owners.set(bucket, Owner::new(node(2), &[]).unwrap());
        assert!(!at(200, 200, 200, 150), "another node's bucket");
        owners.set(bucket, Owner::NONE);
        assert!(!at(200, 200, 200, 150));
    });
}

#[test]
fn the_programs_and_bucket_of_agree() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let interface = 1; // test runs come in on the loopback interface
            gate.attach(interface, [2, 0, 0, 0, 0, 1]).unwrap();
            gate.set_peer(interface, node(2), [2, 0, 0, 0, 0, 2]).unwrap();
            let owners = gate.owners();
            let mut spread = std::collections::BTreeSet::new();
            let flows = (0..300u16).flat_map(|n| {
                let client = SocketAddr::new(at(v6, 10 + (n % 200) as u8, 0).ip(), 1024 + n * 97);
                let leg = SocketAddr::new(vip(v6), 32_768 + n * 90);
                [Segment::new(client, listener(v6)), Segment::new(at(v6, 20, 9000), leg)]
            });
            for segment in flows {
                let bucket = gate.bucket(&Flow::new(segment.to, segment.from));
                spread.insert(bucket);
                owners.set_all(Owner::new(node(1), &[]).unwrap());
                owners.set(bucket, Owner::new(node(2), &[]).unwrap());
                let outcome = gate.run(Hook::Ingress, &segment.bytes(), 0).unwrap();
                assert_eq!(outcome.action, REDIRECT, "{segment:?} is not in {bucket:?}");
                let passed_on = Segment::read(&outcome.frame);
                let macs = (passed_on.to_mac, passed_on.from_mac, passed_on.hops);
                assert_eq!(macs, ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], 63));
                owners.set_all(Owner::new(node(2), &[]).unwrap());
                owners.set(bucket, Owner::new(node(1), &[]).unwrap());
                assert!(enter(gate, &segment).is_ok());
            }
            assert!(spread.len() > 400, "{} buckets", spread.len());
        });
    }
}

/// Until a program has accepted the connection, only our kernel knows a client whose SYN it has answered.
#[test]
fn closed_bucket_admits_only_clients_with_an_answered_syn() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let (v6, own) = (false, node(1));
        let flow = Flow::new(listener(v6), client(v6));
        let bucket = gate.bucket(&flow);
        assert_eq!(gate.greeted_ns(bucket), None);
        gate.add_listener(listener(v6), false).unwrap();
        let syn = Segment { seq: 99, flags: SYN, ..inward(v6) };
        assert_eq!(enter(gate, &syn), Ok(syn.clone()));
        let synack = Segment { seq: 499, ack: 100, flags: SYN | ACK, window: 65_535, ..out(v6) };
        let again = Segment { seq: 799, ..synack.clone() };
        for (now_ns, sent) in [(7, &synack), (8, &synack), (9, &again)] {
            gate.set_test_clock_ns(now_ns);
            assert_eq!(leave(gate, sent), Ok(sent.clone()));
        }
        assert_eq!(gate.greeted_ns(bucket), Some(9), "an attempt that starts again counts once");
        gate.owners().close(bucket, node(2));
        assert_eq!(enter(gate, &syn), Ok(syn.clone()), "it is not that node's");
        gate.owners().close(bucket, own);
        assert_eq!(enter(gate, &syn), Err(DROP));
        let answer = Segment { seq: 100, ack: 800, ..inward(v6) };
        assert_eq!(enter(gate, &answer), Ok(answer));
        assert_eq!(gate.greeted_ns(bucket), Some(9), "no program has accepted it");
        let mut worker_port = gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap();
        let slot = worker_port.slot(&flow).unwrap();
        assert_eq!(gate.greeted_ns(bucket), None);
        worker_port.finish(slot, None, 0);
        assert_eq!(gate.greeted_ns(bucket), None);
        gate.owners().release(bucket);
        assert_eq!(enter(gate, &syn), Err(DROP), "closed is not on hold");
        gate.add_listener(listener(v6), true).unwrap();
        assert_eq!(enter(gate, &syn), Ok(syn.clone()), "the stateless accept answers");
        gate.add_listener(listener(v6), false).unwrap();
        gate.owners().open(bucket);
        assert_eq!(enter(gate, &syn), Ok(syn));
        assert_eq!(leave(gate, &again), Ok(again));
        assert_eq!(gate.reclaim(20, 5), 1);
        assert_eq!(gate.greeted_ns(bucket), None, "it never came to be");
    });
}

#[test]
fn on_hold_the_highest_ack_is_remembered_and_nothing_comes_in() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let flow = Flow::new(listener(v6), client(v6));
            gate.owners().set_all(Owner::new(node(1), &[]).unwrap().on_hold());
            let options = stamps(77, 66);
            for ack in [u32::MAX - 5, 10, 4] {
                let segment = Segment { seq: 1000, ack, window: 321, options: options.clone(), ..inward(v6) };
                assert_eq!(enter(gate, &segment), Err(DROP));
            }
            let peer_input = gate.peer_position(&flow).unwrap();
            assert_eq!(
                (peer_input.seq, peer_input.ack, peer_input.window, peer_input.count),
                (1000, 10, 321, 3)
            );
            assert_eq!(peer_input.timestamps, (77, 66));
            gate.forget_peer_position(&flow);
            assert_eq!(gate.peer_position(&flow), None);
        });
    }
}

#[test]
fn in_flood_mode_a_backup_remembers_and_others_drop() {
    if !privileged() {
        return;
    }
    bench(Mode::Flood, |gate| {
        let flow = Flow::new(listener(false), client(false));
        let segment = Segment { to_mac: VIRTUAL_MAC, ack: 9, ..inward(false) };
        gate.owners().set_all(Owner::new(node(2), &[]).unwrap());
        assert_eq!(enter(gate, &segment), Err(DROP));
        assert_eq!(gate.peer_position(&flow), None);
        gate.owners().set_all(Owner::new(node(2), &[node(3), node(1)]).unwrap());
        assert_eq!(enter(gate, &segment), Err(DROP));
        assert_eq!(gate.peer_position(&flow).unwrap().ack, 9);
    });
}

#[test]
fn fragments_and_extension_headers_do_not_pass_the_owner_table() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let mut fragment = inward(false).bytes();
        fragment[20] = 0x20; // more fragments
        assert_eq!(gate.run(Hook::Ingress, &fragment, 0).unwrap().action, DROP);
        let mut extended = inward(true).bytes();
        extended[20] = 60; // destination options
        assert_eq!(gate.run(Hook::Ingress, &extended, 0).unwrap().action, DROP);
        fragment[33] = 7; // not our address
        assert_eq!(gate.run(Hook::Ingress, &fragment, 0).unwrap().action, PASS);
    });
}

#[test]
fn a_packet_with_one_hop_left_is_passed_on_once() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        gate.attach(1, [2, 0, 0, 0, 0, 1]).unwrap();
        gate.set_peer(1, node(2), [2, 0, 0, 0, 0, 2]).unwrap();
        // Stray otherwise.
        gate.owners().set_all(Owner::new(node(2), &[]).unwrap());
        gate.owners().set(Bucket(0), Owner::new(node(1), &[]).unwrap());
        for v6 in [false, true] {
            for (hops, to_mac, left) in [
                (2, VIRTUAL_MAC, Some(1)),
                (1, VIRTUAL_MAC, Some(1)),
                (2, [0; 6], Some(1)),
                (1, [0; 6], None), // by another node
            ] {
                let segment = Segment { to_mac, hops, ..inward(v6) };
                let outcome = gate.run(Hook::Ingress, &segment.bytes(), 0).unwrap();
                let passed_on = (outcome.action == REDIRECT).then(|| Segment::read(&outcome.frame).hops);
                assert_eq!(passed_on, left, "IPv6 {v6}, {hops} hops to {to_mac:?}");
            }
        }
    });
}

#[test]
fn flooded_packet_without_tcp_is_taken_by_one_node() {
    if !privileged() {
        return;
    }
    for mode in [Mode::Steer, Mode::Flood] {
        bench(mode, |gate| {
            for v6 in [false, true] {
                let segment = Segment { to_mac: VIRTUAL_MAC, ..inward(v6) };
                let mut frame = segment.bytes();
                frame[if v6 { 20 } else { 23 }] = 17; // UDP
                let act = |frame: &[u8]| gate.run(Hook::Ingress, frame, 0).unwrap().action;
                gate.owners().set_all(Owner::new(node(2), &[]).unwrap());
                assert_eq!(act(&frame), DROP);
                gate.owners().set(Bucket(0), Owner::new(node(1), &[]).unwrap());
                assert_eq!(act(&frame), PASS, "the node that answers for the address");
                gate.owners().set_all(Owner::new(node(2), &[]).unwrap());
                frame[..6].fill(0);
                assert_eq!(act(&frame), PASS, "sent to our card");
            }
        });
    }
}
