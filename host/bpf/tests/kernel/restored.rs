//! One packet in, one packet out: flows that lived on another node.

use crate::frame::{ACK, FIN, RST, Segment, Tap};
use crate::packets::{DROP, PASS, STOLEN, accepted, client, enter, inward, leave, listener, out, stamps};
use crate::testrun::{Hook, TestRun};
use crate::world::{bench, eventually, node, privileged};
use evergate_bpf::{Flow, GateError, Mode, Owner, Restored, Slot, Strange, WorkerPortId, interface_index};
use std::net::SocketAddr;
use std::process::Command;

pub(crate) fn restored(v6: bool, timestamps: Option<(u32, u32)>) -> Restored {
    Restored {
        flow: Flow::new(listener(v6), client(v6)),
        send: u32::MAX - 49,
        peer_has: u32::MAX - 49,
        receive: 1000,
        window: 65_535 << 7,
        window_scale: 7,
        peer_window_scale: 4,
        timestamps,
        interface: 1,
        source_mac: [2, 0, 0, 0, 0, 1],
        next_hop: [2, 0, 0, 0, 0, 9],
        asleep: false,
    }
}

/// Bound on the bytes that the peer of [`restored`] may have above the known position.
const AHEAD_MAX: u32 = 2 * (65_535 << 4) + (32 << 20);

#[test]
fn ack_after_a_failover_is_translated_for_both_sides() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            let slot = gate.restore(&from).unwrap();
            // The peer has 150 bytes that only the dead node remembered.
            let ahead = Segment { seq: 1000, ack: 100, ..inward(v6) };
            let lowered = Segment { ack: from.send, ..ahead.clone() };
            assert_eq!(enter(gate, &ahead), Ok(lowered), "our kernel has not sent so much");
            assert_eq!(slot.peer_acked(), from.send);
            let ack = Segment { seq: from.send, ack: 1000, window: 4000, ..out(v6) };
            assert_eq!(
                leave(gate, &ack),
                Ok(Segment { seq: 100, ..ack.clone() }),
                "the peer would call it old"
            );
            // Once our kernel has sent as much again, nothing is touched.
            leave(gate, &Segment { data: vec![7; 150], ..ack.clone() }).unwrap();
            assert_eq!(enter(gate, &ahead), Ok(ahead));
            assert_eq!(slot.peer_acked(), 100);
        });
    }
}

#[test]
fn position_from_before_the_socket_applies_to_acks_only() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = Restored { peer_has: 100, ..restored(v6, None) };
            let slot = gate.restore(&from).unwrap();
            // A word of ours that only acknowledges, from where our kernel is.
            let ack = Segment { seq: from.send, ack: 1000, window: 4000, ..out(v6) };
            assert_eq!(leave(gate, &ack), Ok(Segment { seq: 100, ..ack.clone() }));
            assert_eq!(slot.sent(), from.send, "our kernel has sent nothing");
            // What the peer sends then must reach our kernel, which refuses acknowledgements of what it has not sent.
            let data = Segment { seq: 1000, ack: 100, data: vec![7; 9], ..inward(v6) };
            assert_eq!(enter(gate, &data), Ok(Segment { ack: from.send, ..data.clone() }));
        });
    }
}

#[test]
fn ack_beyond_the_previous_owners_bound_is_not_accepted() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            let slot = gate.restore(&from).unwrap();
            let more = |by: u32| from.send.wrapping_add(by);
            let ours = Segment { seq: from.send, ack: 1000, window: 4000, ..out(v6) };
            let ingress_ack = |ack| enter(gate, &Segment { seq: 1000, ack, ..inward(v6) }).unwrap().ack;
            let egress_seq = |seq| leave(gate, &Segment { seq, ..ours.clone() }).unwrap().seq;
            for by in [AHEAD_MAX + 1, 1 << 30, i32::MAX as u32] {
                assert_eq!(ingress_ack(more(by)), more(by), "our kernel refuses it");
                assert_eq!((slot.peer_acked(), egress_seq(from.send)), (from.send, from.send));
            }
            assert_eq!(ingress_ack(more(AHEAD_MAX)), from.send);
            assert_eq!(egress_seq(from.send), more(AHEAD_MAX));
            // Once our kernel has sent more than that it knows best, for the rest of the flow's life.
            let (step, mut sent) = (1u32 << 30, from.send);
            for _ in 0..9 {
                sent = sent.wrapping_add(step);
                leave(gate, &Segment { seq: sent, data: vec![7; 10], ..ours.clone() }).unwrap();
                sent = sent.wrapping_add(10);
                let forged = sent.wrapping_add(1);
                assert_eq!((ingress_ack(forged), ingress_ack(sent)), (forged, sent));
                assert_eq!((slot.peer_acked(), egress_seq(sent)), (sent, sent));
            }
        });
    }
}

/// What the window of [`inward`] holds, in the scale of the peer of [`restored`]: it is rounded down, and may have an
/// end behind it.
const ROOM: u32 = 1001 << 4;

#[test]
fn ack_beyond_the_peers_window_is_not_accepted() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            let slot = gate.restore(&from).unwrap();
            let more = |by: u32| from.send.wrapping_add(by);
            let ours = Segment { seq: from.send, ack: 1000, window: 4000, ..out(v6) };
            let ingress_ack = |ack| enter(gate, &Segment { seq: 1000, ack, ..inward(v6) }).unwrap().ack;
            let egress_seq = || leave(gate, &ours).unwrap().seq;
            // It was silent for minutes.
            gate.set_test_clock_ns(300_000_000_000);
            assert_eq!(ingress_ack(from.send), from.send);
            for by in [ROOM + 1, 1 << 24, AHEAD_MAX] {
                assert_eq!(ingress_ack(more(by)), more(by), "our kernel refuses it");
                assert_eq!((slot.peer_acked(), egress_seq()), (from.send, from.send));
            }
            // What was lost has come, and behind it all that waited for it.
            assert_eq!((ingress_ack(more(ROOM)), egress_seq()), (from.send, more(ROOM)));
            // The oldest segment arrives last.
            assert_eq!((ingress_ack(from.send), ingress_ack(more(2 * ROOM))), (from.send, from.send));
            // The first word after a silence counts, then no other.
            gate.set_test_clock_ns(310_000_000_000);
            assert_eq!((ingress_ack(more(2 * ROOM)), ingress_ack(more(3 * ROOM))), (from.send, from.send));
            assert_eq!(ingress_ack(more(3 * ROOM + 1)), more(3 * ROOM + 1));
            assert_eq!(
                egress_seq(),
                more(3 * ROOM),
                "its acknowledgement stays, however late our kernel sends"
            );
            gate.owners().set_all(Owner::new(node(1), &[]).unwrap().on_hold());
            let held = |ack| enter(gate, &Segment { seq: 1000, ack, ..inward(v6) });
            assert_eq!(held(more(3 * ROOM + 1)), Err(DROP));
            assert_eq!(
                (gate.peer_position(&slot.flow()), slot.strange()),
                (None, Some(Strange { seq: 1000, ack: more(3 * ROOM + 1) }))
            );
            gate.owners().set_all(Owner::new(node(1), &[]).unwrap());
            // Our kernel has caught up: it knows best.
            let data = Segment { seq: more(3 * ROOM), data: vec![7; 10], ..ours.clone() };
            leave(gate, &data).unwrap();
            let sent = more(3 * ROOM + 10);
            assert_eq!((ingress_ack(sent), ingress_ack(sent.wrapping_add(1))), (sent, sent.wrapping_add(1)));
            assert_eq!(
                (slot.peer_acked(), leave(gate, &Segment { seq: sent, ..ours.clone() }).unwrap().seq),
                (sent, sent)
            );
            // Another node had it meanwhile.
            let slot = gate.restore_again(slot, &from);
            assert_eq!((ingress_ack(more(AHEAD_MAX)), slot.peer_acked()), (from.send, from.send));
        });
    }
}

/// Packets that a card of the calling thread's network namespace has sent.
fn sent_by(card: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(card)?.strip_prefix(':')).unwrap();
    line.split_whitespace().nth(9).unwrap().parse().unwrap()
}

/// Two cards that send nothing of their own.
fn cards() -> [u32; 2] {
    let ip = |words: &str| {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
    };
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip("link add eth0 type veth peer name eth1");
    ip("link set eth0 up");
    ip("link set eth1 up");
    // Its peer has just come up: until the kernel has noticed that, a card drops what it sends.
    eventually("both have their carrier", || {
        let links = Command::new("ip").args(["-o", "link"]).output().unwrap().stdout;
        String::from_utf8_lossy(&links).matches("state UP").count() == 2
    });
    ["eth0", "eth1"].map(|card| interface_index(card).unwrap())
}

#[test]
fn acks_leave_where_our_kernel_sends_packets_of_the_flow() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let [first, second] = cards();
            // It came in on the first card; our kernel's route leads to the second.
            let from = Restored { interface: first, next_hop: [0; 6], ..restored(v6, None) };
            let slot = gate.restore(&from).unwrap();
            let mut worker_port = gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap();
            let hop = [2, 0, 0, 0, 0, 8];
            let data = Segment { to_mac: hop, seq: from.send, ack: 1000, data: vec![7; 9], ..out(v6) };
            gate.run_on(second, Hook::Egress, &data.bytes(), 0).unwrap();
            assert_eq!(slot.next_hop(), hop);
            let before = ["eth0", "eth1"].map(sent_by);
            worker_port.emit_acks([&slot]).unwrap();
            let sent = ["eth0", "eth1"].map(sent_by);
            assert_eq!([sent[0] - before[0], sent[1] - before[1]], [0, 1]);
        });
    }
}

#[test]
fn acks_follow_when_the_gateway_or_the_route_changes() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let [first, second] = cards();
            let (mut worker_port, slot) = accepted(gate, v6, 500, 1000);
            let ours = Segment { seq: 500, ack: 1000, ..out(v6) };
            let data = Segment { data: vec![7; 9], ..ours.clone() };
            // An ACK that is withheld from the peer: a client that only sends receives nothing else.
            let withheld = Segment { seq: 509, ack: 3000, ..ours };
            let cases = [(first, &data, PASS), (second, &data, PASS), (first, &withheld, STOLEN)];
            for (number, (card, segment, action)) in cases.into_iter().enumerate() {
                let hop = [2, 0, 0, 0, 0, 20 + number as u8];
                let frame = Segment { to_mac: hop, ..segment.clone() }.bytes();
                assert_eq!(gate.run_on(card, Hook::Egress, &frame, 0).unwrap().action, action);
                assert_eq!(slot.next_hop(), hop);
                let tap = Tap::of(if card == first { "eth1" } else { "eth0" });
                worker_port.emit_acks([&slot]).unwrap();
                let ack = Segment::read(&tap.next());
                assert_eq!((ack.to_mac, ack.from_mac, ack.from), (hop, data.from_mac, data.from));
            }
            worker_port.finish(slot, None, 0);
        });
    }
}

#[test]
fn a_restored_flow_that_is_given_up_ends_where_its_peer_stands() {
    if !privileged() {
        return;
    }
    for (v6, flags) in [(false, FIN), (true, FIN), (false, RST), (true, RST)] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            let slot = gate.restore(&from).unwrap();
            let ahead = Segment { seq: 1000, ack: 100, ..inward(v6) };
            enter(gate, &ahead).unwrap();
            let end = Segment { seq: from.send, ack: 1000, flags: flags | ACK, ..out(v6) };
            slot.allow_fin();
            slot.allow_rst();
            assert_eq!(leave(gate, &end), Ok(end.clone()), "not given up: what is missing is made again");
            slot.open();
            assert_eq!(leave(gate, &end), Ok(Segment { seq: 100, ..end.clone() }));
            // Our kernel learns that its FIN has arrived.
            let done = Segment { ack: 101, ..ahead };
            let wanted = from.send.wrapping_add(u32::from(flags == FIN));
            assert_eq!(enter(gate, &done), Ok(Segment { ack: wanted, ..done }));
        });
    }
}

#[test]
fn timestamp_counts_only_with_a_plausible_ack_and_whole_segment() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let (from, theirs) = (restored(v6, Some((10, 0x9000_0000))), 0x9000_0000u32);
            let slot = gate.restore(&from).unwrap();
            let data = Segment {
                seq: from.send,
                ack: 1000,
                options: stamps(12, theirs),
                data: vec![7; 100],
                ..out(v6)
            };
            leave(gate, &data).unwrap();
            let peer_ack = |stamp, ahead: u32| Segment {
                seq: 1000,
                ack: from.send.wrapping_add(ahead),
                options: stamps(stamp, 12),
                ..inward(v6)
            };
            let far = theirs.wrapping_add(1 << 30);
            for ahead in [AHEAD_MAX + 1, 1 << 31, u32::MAX] {
                enter(gate, &peer_ack(far, ahead)).unwrap();
            }
            // A right ACK on top of bytes that are not all there.
            let mut frame = Segment { data: vec![7; 100], ..peer_ack(far, 0) }.bytes();
            frame.truncate(frame.len() - 1);
            assert_eq!(gate.run(Hook::Ingress, &frame, 0).unwrap().action, DROP);
            enter(gate, &peer_ack(theirs + 1, 40)).unwrap();
            assert_eq!(slot.peer_acked(), from.send.wrapping_add(40), "the peer's own word");
            enter(gate, &peer_ack(theirs, 60)).unwrap();
            assert_eq!(slot.peer_acked(), from.send.wrapping_add(40), "its timestamp is older");
        });
    }
}

#[test]
fn zero_echo_of_a_restored_socket_is_not_the_peers_timestamp() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let from = restored(false, Some((10, 0x9000_0000)));
        let slot = gate.restore(&from).unwrap();
        let data =
            Segment { seq: from.send, ack: 1000, options: stamps(12, 0), data: vec![7; 9], ..out(false) };
        leave(gate, &data).unwrap();
        let ack = |stamp| Segment {
            seq: 1000,
            ack: from.send.wrapping_add(9),
            options: stamps(stamp, 12),
            ..inward(false)
        };
        enter(gate, &ack(0x8fff_ffff)).unwrap();
        assert_eq!(slot.peer_acked(), from.send, "an old timestamp moves nothing");
        enter(gate, &ack(0x9000_0001)).unwrap();
        assert_eq!(slot.peer_acked(), from.send.wrapping_add(9));
    });
}

#[test]
fn slots_of_restored_flows_are_bounded_and_come_back() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let mut worker_port = gate.worker_port(WorkerPortId::new(63).unwrap()).unwrap();
        let port = |port| Restored {
            flow: Flow::new(listener(true), SocketAddr::new(client(true).ip(), port)),
            ..restored(true, None)
        };
        for _ in 0..2 {
            let slots: Vec<Slot> = (1..=256).map(|n| gate.restore(&port(n)).unwrap()).collect();
            assert!(matches!(gate.restore(&port(257)), Err(GateError::NoSlot { flows_max: 256 })));
            assert_eq!(gate.slots_in_use(), 256);
            // One flow waits for its peer's last ACK; the other flows have it, or need none.
            for (n, slot) in slots.into_iter().enumerate() {
                let end = slot.peer_acked().wrapping_add(u32::from(n == 0));
                worker_port.finish(slot, (n % 2 == 0).then_some(end), 0);
            }
            assert_eq!((gate.slots_in_use(), worker_port.finishing()), (1, 1));
            worker_port.sweep(59_999_999_999);
            assert_eq!(worker_port.finishing(), 1);
            worker_port.sweep(60_000_000_000);
            assert_eq!((gate.slots_in_use(), worker_port.finishing()), (0, 0));
        }
        assert!(WorkerPortId::new(64).is_err());
    });
}

#[test]
fn on_hold_only_plausible_segments_of_a_restored_flow_count() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            gate.owners().set_all(Owner::new(node(1), &[]).unwrap().on_hold());
            let slot = gate.restore(&from).unwrap();
            let recorded = |seq: u32, ack: u32| {
                assert_eq!(enter(gate, &Segment { seq, ack, ..inward(v6) }), Err(DROP));
                gate.peer_position(&slot.flow()).map(|position| position.ack.wrapping_sub(from.send))
            };
            let sent = |ahead: u32| from.send.wrapping_add(ahead);
            let first = from.receive.wrapping_sub(65_536 + from.window);
            let last = from.receive + from.window;
            let old = 0u32.wrapping_sub(65_535 << 14);
            let forged = [(1000, AHEAD_MAX + 1), (1000, i32::MAX as u32), (1000, 1 << 31), (1000, old - 1)]
                .into_iter()
                .chain([(first.wrapping_sub(1), 0), (last + 1, 0)]);
            for (seq, ahead) in forged.clone() {
                assert_eq!(recorded(seq, sent(ahead)), None, "sequence number {seq}, {ahead} ahead");
            }
            assert_eq!(recorded(1000, sent(old)), Some(old));
            assert_eq!(recorded(first, sent(150)), Some(150), "the peer's own word");
            for (seq, ahead) in forged {
                assert_eq!(recorded(seq, sent(ahead)), Some(150));
            }
            assert_eq!(recorded(last, sent(AHEAD_MAX)), Some(AHEAD_MAX));
        });
    }
}

/// A client that reconnected while no node listened repeats lost segments behind the segments that arrived (RFC 8985,
/// 7).
#[test]
fn reconnecting_clients_first_segment_is_recorded_in_any_order() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, move |gate| {
        let from = restored(false, None);
        let slot = gate.restore(&from).unwrap();
        gate.owners().set_all(Owner::new(node(1), &[]).unwrap().on_hold());
        let strange = |ahead: u32| from.send.wrapping_add((3 << 29) + ahead);
        let recorded = |seq: u32, ack| {
            assert_eq!(enter(gate, &Segment { seq, ack, ..inward(false) }), Err(DROP));
            slot.strange()
        };
        let expected = |seq, ack| Some(Strange { seq, ack });
        assert_eq!(recorded(u32::MAX, strange(0)), expected(u32::MAX, strange(0)));
        assert_eq!(recorded(1400, strange(0)), expected(u32::MAX, strange(0)));
        assert_eq!(recorded(u32::MAX - 1400, strange(0)), expected(u32::MAX - 1400, strange(0)));
        assert_eq!(recorded(7000, strange(1)), expected(7000, strange(1)));
    });
}
