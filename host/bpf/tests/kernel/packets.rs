//! One packet in, one packet out.

use crate::frame::{ACK, FIN, RST, SYN, Segment};
use crate::world::{PORT, VIRTUAL_MAC, at, bench, node, privileged, vip};
use evergate_bpf::{
    Counter, Events, Flow, Gate, GateError, Hook, Lane, LaneId, Leases, Mode, Owner, Restored, Slot,
    interface_index,
};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

pub(crate) const PASS: u32 = 0;
pub(crate) const NEXT: u32 = u32::MAX; // pass, after the stateless accept has looked
pub(crate) const DROP: u32 = 2;
pub(crate) const STOLEN: u32 = 4;
pub(crate) const REDIRECT: u32 = 7;

fn client(v6: bool) -> SocketAddr {
    at(v6, 10, 50_000)
}

fn listener(v6: bool) -> SocketAddr {
    SocketAddr::new(vip(v6), PORT)
}

fn out(v6: bool) -> Segment {
    Segment::new(listener(v6), client(v6))
}

fn inward(v6: bool) -> Segment {
    Segment::new(client(v6), listener(v6))
}

fn leave(gate: &Gate, segment: &Segment) -> Result<Segment, u32> {
    let outcome = gate.run(Hook::Egress, &segment.bytes(), 0).unwrap();
    if outcome.action == PASS { Ok(Segment::read(&outcome.frame)) } else { Err(outcome.action) }
}

fn enter(gate: &Gate, segment: &Segment) -> Result<Segment, u32> {
    let outcome = gate.run(Hook::Ingress, &segment.bytes(), 0).unwrap();
    if [PASS, NEXT].contains(&outcome.action) {
        Ok(Segment::read(&outcome.frame))
    } else {
        Err(outcome.action)
    }
}

/// Our SYN-ACK goes out with window scale 7, the client answers. Both sides start at the sequence numbers given.
fn accepted(gate: &Gate, v6: bool, sent: u32, received: u32) -> (Lane, Slot) {
    let synack = Segment {
        seq: sent.wrapping_sub(1),
        ack: received,
        flags: SYN | ACK,
        window: 65_535,
        options: vec![2, 4, 5, 180, 1, 3, 3, 7],
        ..out(v6)
    };
    assert_eq!(leave(gate, &synack), Ok(synack));
    let answer = Segment { seq: received, ack: sent, ..inward(v6) };
    assert_eq!(enter(gate, &answer), Ok(answer));
    let lane = gate.lane(LaneId::new(0).unwrap()).unwrap();
    let slot = lane.slot(&Flow::new(listener(v6), client(v6))).expect("the flow is registered");
    assert!(slot.is_established());
    (lane, slot)
}

#[test]
fn a_flow_is_gated_from_its_syn_ack_on_and_acks_never_pass_what_is_committed() {
    if !privileged() {
        return;
    }
    // The second start wraps around in the middle of the exchange.
    for (v6, start) in [(false, 1000), (true, 1000), (false, u32::MAX - 2000), (true, u32::MAX - 2000)] {
        bench(Mode::Steer, move |gate| {
            let (mut lane, slot) = accepted(gate, v6, 500, start);
            assert_eq!((slot.origin().sent, slot.origin().received), (500, start));
            let ack = start.wrapping_add(4000);
            let data = Segment { seq: 500, ack, window: 500, data: b"hello".to_vec(), ..out(v6) };
            let got = leave(gate, &data).unwrap();
            // The right edge stays where the kernel put it.
            assert_eq!(
                got,
                Segment { ack: start, window: ((4000 + (500 << 7)) >> 7) as u16, ..data.clone() }
            );
            slot.set_committed(start.wrapping_add(1500));
            assert_eq!(leave(gate, &data).unwrap().ack, start.wrapping_add(1500));
            slot.set_committed(ack);
            assert_eq!(leave(gate, &data), Ok(data.clone()));
            assert_eq!(slot.sent_ack(), ack);
            slot.set_committed(ack.wrapping_add(9000));
            assert_eq!(leave(gate, &data), Ok(data));
            lane.finish(slot, None, 0);
        });
    }
}

#[test]
fn fin_and_rst_leave_only_when_allowed() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let (_lane, slot) = accepted(gate, false, 500, 1000);
        let fin = Segment { seq: 500, ack: 1000, flags: FIN | ACK, ..out(false) };
        let last = Segment { data: b"x".to_vec(), ..fin.clone() };
        let rst = Segment { seq: 500, flags: RST, ..out(false) };
        assert_eq!(leave(gate, &fin), Err(STOLEN));
        assert_eq!(leave(gate, &last), Ok(Segment { flags: ACK, ..last.clone() }));
        assert_eq!(slot.sent(), 501, "a FIN that was withheld is not counted as sent");
        assert_eq!(leave(gate, &rst), Err(STOLEN));
        slot.allow_fin();
        assert_eq!(leave(gate, &last), Ok(last));
        assert_eq!(leave(gate, &rst), Err(STOLEN));
        slot.allow_rst();
        assert_eq!(leave(gate, &rst), Ok(rst));
    });
}

#[test]
fn selective_acks_are_hidden_while_an_ack_is_lowered() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let (_lane, slot) = accepted(gate, false, 500, 1000);
        for blocks in 1..=4usize {
            let mut options = vec![1, 1, 5, 2 + 8 * blocks as u8];
            (0..blocks as u32 * 2).for_each(|edge| options.extend((7000 + edge * 100).to_be_bytes()));
            let data =
                Segment { seq: 500, ack: 5000, options: options.clone(), data: b"x".to_vec(), ..out(false) };
            slot.set_committed(1000);
            assert_eq!(leave(gate, &data).unwrap().options, vec![1; options.len()]);
            slot.set_committed(5000);
            assert_eq!(leave(gate, &data).unwrap().options, options);
        }
    });
}

#[test]
fn an_ack_that_says_nothing_is_dropped_unless_the_peer_asks_again() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let (_lane, _slot) = accepted(gate, false, 500, 1000);
        let ack = Segment { seq: 500, ack: 3000, window: 500, ..out(false) };
        let mut passed = 0;
        for ms in 0..200 {
            gate.set_test_clock_ns(2_000_000_000 + ms * 1_000_000);
            match leave(gate, &ack) {
                Ok(segment) => {
                    assert_eq!(segment.ack, 1000);
                    passed += 1;
                }
                Err(action) => assert_eq!(action, STOLEN),
            }
        }
        assert_eq!(passed, 4, "repeated ACKs pass at most once per 50 ms");
    });
}

#[test]
fn a_window_update_passes_when_the_peer_runs_short_of_credit() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let (_lane, _slot) = accepted(gate, false, 500, 1000);
        // The SYN-ACK offered 65,535 bytes: the kernel has taken them all and offers a megabyte more.
        let ack = Segment { seq: 500, ack: 66_535, window: 8192, ..out(false) };
        let got = leave(gate, &ack).unwrap();
        // The right edge is the kernel's, though the ACK is lower.
        assert_eq!((got.ack, u32::from(got.window)), (1000, (65_535 + (8192 << 7)) >> 7));
        let repeated = Segment { window: 8191, ..ack };
        assert_eq!(leave(gate, &repeated), Err(STOLEN), "no credit is gained");
    });
}

#[test]
fn a_connection_that_only_the_server_remembers_may_be_reset_by_our_next_one() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let syn = Segment { seq: 500, flags: SYN, ..out(false) };
        let rst = Segment { seq: 77, flags: RST, ..out(false) };
        assert!(leave(gate, &syn).is_ok());
        assert_eq!(gate.reclaim_unanswered(u64::MAX, 1), 0, "it is we who wait");
        assert_eq!(gate.slots_counted().0, 1);
        let challenge = Segment { seq: 9000, ack: 77, ..inward(false) };
        assert!(enter(gate, &challenge).is_ok());
        assert_eq!(leave(gate, &rst), Ok(rst.clone()));
        assert_eq!(leave(gate, &Segment { flags: RST | ACK, ..rst.clone() }), Err(STOLEN));
        let answer = Segment { seq: 1000, ack: 501, flags: SYN | ACK, ..inward(false) };
        assert!(enter(gate, &answer).is_ok());
        assert_eq!(leave(gate, &rst), Err(STOLEN), "it is a connection now");
    });
}

#[test]
fn what_cannot_be_registered_does_not_start_and_what_is_unknown_stays_silent() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let data = Segment { seq: 1, ack: 1, data: b"x".to_vec(), ..out(false) };
        let rst = Segment { flags: RST, ..out(false) };
        assert_eq!(leave(gate, &data), Err(STOLEN));
        assert_eq!(leave(gate, &rst), Err(STOLEN));
        gate.set_reset_unknown(true).unwrap();
        // Nobody listens: the process is dead, and another node may go on with it.
        assert_eq!(leave(gate, &rst), Err(STOLEN));
        let _listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
        assert_eq!(leave(gate, &rst), Ok(rst));
        // What the kernel says to a SYN once the listener's process is dead: the next owner must get the next SYN.
        let refusal = Segment { seq: 0, ack: 501, flags: RST | ACK, ..out(false) };
        assert_eq!(leave(gate, &refusal), Err(STOLEN));
        let syn = |port| Segment {
            flags: SYN | ACK,
            ..Segment::new(listener(false), SocketAddr::new(client(false).ip(), port))
        };
        for port in 1..=256 {
            assert!(leave(gate, &syn(port)).is_ok(), "flow {port}");
        }
        assert_eq!(leave(gate, &syn(257)), Err(STOLEN));
        assert_eq!(gate.counters().unwrap().get(Counter::NoSlot), 1);
        // Connections that never came to be give their slots back.
        gate.set_test_clock_ns(100_000_000_000);
        assert_eq!(gate.reclaim(1, 75_000_000_000), 0);
        assert_eq!(gate.slots_counted(), (256, 256));
        assert_eq!(gate.reclaim(100_000_000_000, 75_000_000_000), 256);
        assert_eq!(gate.slots_counted(), (0, 256));
        assert!(leave(gate, &syn(257)).is_ok());
        // In a flood who never answers is given up early; who has answered is waited for.
        assert!(leave(gate, &syn(1)).is_ok());
        let from = SocketAddr::new(client(false).ip(), 1);
        assert!(enter(gate, &Segment { ack: 1, ..Segment::new(from, listener(false)) }).is_ok());
        assert_eq!(gate.reclaim_unanswered(102_000_000_000, 3_000_000_000), 0);
        assert_eq!(gate.reclaim_unanswered(103_000_000_000, 3_000_000_000), 1);
        assert_eq!(gate.slots_counted(), (1, 256));
        // Other ports, other addresses: not ours to touch.
        let ssh = Segment::new(at(false, 1, 22), client(false));
        for flags in [RST, FIN | ACK, SYN | ACK, ACK] {
            let segment = Segment { flags, ..ssh.clone() };
            assert_eq!(leave(gate, &segment), Ok(segment));
        }
    });
}

#[test]
fn only_a_plausible_segment_moves_what_the_peer_has() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let (_lane, slot) = accepted(gate, v6, 500, 1000);
            let data = Segment { seq: 500, ack: 1000, data: vec![7; 100], ..out(v6) };
            leave(gate, &data).unwrap();
            assert_eq!(slot.sent(), 600);
            for (seq, ack) in [(999, 550), (200_000_000, 550), (1000, 601), (1000, 499)] {
                let forged = Segment { seq, ack, ..inward(v6) };
                assert_eq!(enter(gate, &forged), Ok(forged), "the kernel judges it");
                assert_eq!(slot.peer_acked(), 500, "seq {seq} ack {ack}");
            }
            enter(gate, &Segment { seq: 1000, ack: 550, ..inward(v6) }).unwrap();
            assert_eq!(slot.peer_acked(), 550);
        });
    }
}

fn restored(v6: bool, timestamps: Option<(u32, u32)>) -> Restored {
    Restored {
        flow: Flow::new(listener(v6), client(v6)),
        send: u32::MAX - 49,
        receive: 1000,
        window: 65_535 << 7,
        window_scale: 7,
        peer_window_scale: 4,
        timestamps,
        interface: 1,
        source_mac: [2, 0, 0, 0, 0, 1],
        next_hop: [2, 0, 0, 0, 0, 9],
    }
}

#[test]
fn after_a_take_over_neither_side_is_told_what_it_does_not_know() {
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

/// The most that the peer of [`restored`] may have on top of what is known.
const AHEAD_MAX: u32 = 2 * (65_535 << 4) + (32 << 20);

#[test]
fn after_a_take_over_nobody_has_more_than_the_dead_node_can_have_sent() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            let slot = gate.restore(&from).unwrap();
            let more = |by: u32| from.send.wrapping_add(by);
            let ours = Segment { seq: from.send, ack: 1000, window: 4000, ..out(v6) };
            let heard = |ack| enter(gate, &Segment { seq: 1000, ack, ..inward(v6) }).unwrap().ack;
            let said = |seq| leave(gate, &Segment { seq, ..ours.clone() }).unwrap().seq;
            for by in [AHEAD_MAX + 1, 1 << 30, i32::MAX as u32] {
                assert_eq!(heard(more(by)), more(by), "our kernel refuses it");
                assert_eq!((slot.peer_acked(), said(from.send)), (from.send, from.send));
            }
            assert_eq!(heard(more(AHEAD_MAX)), from.send);
            assert_eq!(said(from.send), more(AHEAD_MAX));
            // Once our kernel has sent more than that it knows best, for the rest of the flow's life.
            let (step, mut sent) = (1u32 << 30, from.send);
            for _ in 0..9 {
                sent = sent.wrapping_add(step);
                leave(gate, &Segment { seq: sent, data: vec![7; 10], ..ours.clone() }).unwrap();
                sent = sent.wrapping_add(10);
                let forged = sent.wrapping_add(1);
                assert_eq!((heard(forged), heard(sent)), (forged, sent));
                assert_eq!((slot.peer_acked(), said(sent)), (sent, sent));
            }
        });
    }
}

#[test]
fn a_peer_that_refuses_is_heard_although_it_was_told_less() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let (_lane, _slot) = accepted(gate, v6, 500, 1000);
            // Our kernel has 25 bytes that the backups lack: the peer is told 1000.
            leave(gate, &Segment { seq: 500, ack: 1025, data: vec![7; 100], ..out(v6) }).unwrap();
            let refusal = Segment { seq: 1000, ack: 0, flags: RST, ..inward(v6) };
            assert_eq!(enter(gate, &refusal), Ok(Segment { seq: 1025, ..refusal.clone() }));
            let guess = Segment { seq: 1001, ..refusal };
            assert_eq!(enter(gate, &guess), Ok(guess));
        });
    }
}

#[test]
fn nobody_waits_for_the_acknowledgement_of_a_peer_that_has_refused() {
    if !privileged() {
        return;
    }
    for (v6, told) in [(false, true), (true, true), (false, false)] {
        bench(Mode::Steer, move |gate| {
            let (mut lane, slot) = accepted(gate, v6, 500, 1000);
            leave(gate, &Segment { seq: 500, ack: 1025, data: vec![7; 100], ..out(v6) }).unwrap();
            assert!(!slot.is_over(601));
            let refusal = Segment { seq: 1010, ack: 0, flags: RST, ..inward(v6) };
            enter(gate, &refusal).unwrap();
            assert!(!slot.is_over(601), "a guess");
            enter(gate, &Segment { seq: if told { 1000 } else { 1025 }, ..refusal }).unwrap();
            assert!(slot.is_over(601));
            lane.finish(slot, Some(601), 0);
            assert_eq!((gate.slots_in_use(), lane.finishing()), (0, 0));
            let (mut lane, slot) = accepted(gate, v6, 500, 1000);
            slot.allow_rst();
            leave(gate, &Segment { seq: 500, ack: 1000, flags: RST | ACK, ..out(v6) }).unwrap();
            assert!(slot.is_over(501));
            lane.finish(slot, Some(501), 0);
            assert_eq!((gate.slots_in_use(), lane.finishing()), (0, 0));
        });
    }
}

#[test]
fn nothing_reaches_a_socket_that_is_being_made() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            let mut lane = gate.lane(LaneId::new(0).unwrap()).unwrap();
            let said = Segment { seq: 1000, ack: from.send, data: b"GET /".to_vec(), ..inward(v6) };
            let mut knocks = || {
                let mut events = Events::default();
                lane.events(&mut events).unwrap();
                events.knocks.len()
            };
            let since_ns = Leases::now_ns();
            assert!(!gate.is_held(&from.flow, since_ns));
            let slot = gate.restore(&from).unwrap();
            assert!(gate.is_held(&from.flow, since_ns));
            assert!(!gate.is_held(&from.flow, Leases::now_ns() + 1), "what was here before does not count");
            slot.set_asleep(true);
            assert_eq!((enter(gate, &said), knocks()), (Err(DROP), 0), "the bucket is not pending");
            gate.set_pending(gate.bucket(&from.flow), Some(LaneId::new(0).unwrap()));
            assert_eq!((enter(gate, &said), knocks()), (Err(DROP), 1));
            slot.set_asleep(false);
            assert_eq!((enter(gate, &said), knocks()), (Ok(said), 0));
        });
    }
}

/// Packets that a card of the calling thread's network namespace has sent.
fn sent_by(card: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(card)?.strip_prefix(':')).unwrap();
    line.split_whitespace().nth(9).unwrap().parse().unwrap()
}

#[test]
fn acks_leave_where_our_kernel_sends_packets_of_the_flow() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let ip = |words: &str| {
                assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
            };
            // So that the cards say nothing of their own.
            std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
            ip("link add eth0 type veth peer name eth1");
            ip("link set eth0 up");
            ip("link set eth1 up");
            let [first, second] = ["eth0", "eth1"].map(|card| interface_index(card).unwrap());
            // It came in on the first card; our kernel's route leads to the second.
            let from = Restored { interface: first, next_hop: [0; 6], ..restored(v6, None) };
            let slot = gate.restore(&from).unwrap();
            let mut lane = gate.lane(LaneId::new(0).unwrap()).unwrap();
            let hop = [2, 0, 0, 0, 0, 8];
            let data = Segment { to_mac: hop, seq: from.send, ack: 1000, data: vec![7; 9], ..out(v6) };
            gate.run_on(second, Hook::Egress, &data.bytes(), 0).unwrap();
            assert_eq!(slot.next_hop(), hop);
            let before = ["eth0", "eth1"].map(sent_by);
            lane.emit_acks([&slot]).unwrap();
            let sent = ["eth0", "eth1"].map(sent_by);
            assert_eq!([sent[0] - before[0], sent[1] - before[1]], [0, 1]);
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

/// The timestamps option where all kernels have it.
fn stamps(value: u32, echo: u32) -> Vec<u8> {
    [vec![1, 1, 8, 10], value.to_be_bytes().to_vec(), echo.to_be_bytes().to_vec()].concat()
}

#[test]
fn a_timestamp_counts_only_with_an_ack_that_can_be_the_peers_and_a_segment_that_is_whole() {
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
            let said = |stamp, ahead: u32| Segment {
                seq: 1000,
                ack: from.send.wrapping_add(ahead),
                options: stamps(stamp, 12),
                ..inward(v6)
            };
            let far = theirs.wrapping_add(1 << 30);
            for ahead in [AHEAD_MAX + 1, 1 << 31, u32::MAX] {
                enter(gate, &said(far, ahead)).unwrap();
            }
            // A right ACK on top of bytes that are not all there.
            let mut frame = Segment { data: vec![7; 100], ..said(far, 0) }.bytes();
            frame.truncate(frame.len() - 1);
            assert_eq!(gate.run(Hook::Ingress, &frame, 0).unwrap().action, DROP);
            enter(gate, &said(theirs + 1, 40)).unwrap();
            assert_eq!(slot.peer_acked(), from.send.wrapping_add(40), "the peer's own word");
            enter(gate, &said(theirs, 60)).unwrap();
            assert_eq!(slot.peer_acked(), from.send.wrapping_add(40), "its timestamp is older");
        });
    }
}

#[test]
fn the_zero_that_a_restored_socket_echoes_first_is_not_the_peers_newest_timestamp() {
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
        let mut lane = gate.lane(LaneId::new(63).unwrap()).unwrap();
        let port = |port| Restored {
            flow: Flow::new(listener(true), SocketAddr::new(client(true).ip(), port)),
            ..restored(true, None)
        };
        for _ in 0..2 {
            let slots: Vec<Slot> = (1..=256).map(|n| gate.restore(&port(n)).unwrap()).collect();
            assert!(matches!(gate.restore(&port(257)), Err(GateError::NoSlot { flows_max: 256 })));
            assert_eq!(gate.slots_in_use(), 256);
            // One waits for the peer's last ACK; the others have it, or need none.
            for (n, slot) in slots.into_iter().enumerate() {
                let end = slot.peer_acked().wrapping_add(u32::from(n == 0));
                lane.finish(slot, (n % 2 == 0).then_some(end), 0);
            }
            assert_eq!((gate.slots_in_use(), lane.finishing()), (1, 1));
            lane.sweep(59_999_999_999);
            assert_eq!(lane.finishing(), 1);
            lane.sweep(60_000_000_000);
            assert_eq!((gate.slots_in_use(), lane.finishing()), (0, 0));
        }
        assert!(LaneId::new(64).is_err());
    });
}

#[test]
fn an_event_comes_once_and_only_when_asked_for() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let (mut lane, slot) = accepted(gate, false, 500, 1000);
        leave(gate, &Segment { seq: 500, ack: 1000, data: vec![7; 100], ..out(false) }).unwrap();
        let mut events = Events::default();
        enter(gate, &Segment { seq: 1000, ack: 510, ..inward(false) }).unwrap();
        lane.events(&mut events).unwrap();
        assert!(events.woken.is_empty());
        assert!(!slot.wake_at(lane.id(), 510), "already acknowledged");
        assert!(slot.wake_at(lane.id(), 540));
        for ack in [520, 540, 560, 600] {
            enter(gate, &Segment { seq: 1000, ack, ..inward(false) }).unwrap();
        }
        lane.events(&mut events).unwrap();
        assert_eq!(events.woken, [slot.index()]);
        assert!(events.knocks.is_empty());
    });
}

#[test]
fn what_comes_before_its_socket_is_handed_to_who_makes_it() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let flow = Flow::new(listener(v6), client(v6));
            let bucket = gate.bucket(&flow);
            let mut lane = gate.lane(LaneId::new(3).unwrap()).unwrap();
            let request = Segment { seq: 700, ack: 1, data: b"GET /".to_vec(), ..inward(v6) };
            let knocks = |lane: &mut evergate_bpf::Lane, segments: &[&Segment]| {
                segments.iter().for_each(|segment| drop(enter(gate, segment)));
                let mut events = Events::default();
                lane.events(&mut events).unwrap();
                assert!(events.woken.is_empty());
                events
                    .knocks
                    .into_iter()
                    .map(|knock| (knock.flow, knock.heard.seq, knock.data))
                    .collect::<Vec<_>>()
            };
            assert_eq!(knocks(&mut lane, &[&request]), [], "the bucket is not pending");
            assert_ne!(enter(gate, &request), Err(DROP));
            gate.set_pending(bucket, Some(lane.id()));
            // The kernel may find its socket by the time, which must not have it twice.
            assert_eq!(enter(gate, &request), Err(DROP));
            assert_eq!(knocks(&mut lane, &[]).len(), 1);
            let kept = (flow, 700, request.data.clone());
            assert_eq!(knocks(&mut lane, &[&request]), std::slice::from_ref(&kept));
            let owner = gate.owners().get(bucket);
            gate.owners().set(bucket, owner.held());
            assert_eq!(knocks(&mut lane, &[&request, &request]), [kept.clone(), kept.clone()], "on hold too");
            gate.owners().set(bucket, owner);
            let empty = Segment { data: Vec::new(), ..request.clone() };
            let refused = Segment { flags: RST | ACK, ..request.clone() };
            let fresh = Segment { flags: SYN, ..request.clone() };
            assert_eq!(knocks(&mut lane, &[&empty, &refused, &fresh]), []);
            assert_ne!(enter(gate, &empty), Err(DROP));
            let longest = Segment { data: vec![7; 3400], ..request.clone() };
            assert_eq!(knocks(&mut lane, &[&longest]), [(flow, 700, longest.data.clone())]);
            let elsewhere = Segment { seq: 9, ..Segment::new(client(!v6), listener(!v6)) };
            assert_eq!(knocks(&mut lane, &[&elsewhere]), [], "another bucket");
            assert_eq!(gate.counters().unwrap().get(Counter::Knocked), 5);
            // Events of live flows must find room: knocks stop when half of the ring is full.
            for _ in 0..1000 {
                drop(enter(gate, &request));
                drop(enter(gate, &longest));
            }
            assert!(gate.counters().unwrap().get(Counter::EventLost) > 0);
            assert_eq!(enter(gate, &request), Err(DROP), "nor when nobody is told");
            assert!(!knocks(&mut lane, &[]).is_empty());
            assert_eq!(knocks(&mut lane, &[&request]), [kept]);
            gate.set_pending(bucket, None);
            assert_eq!(knocks(&mut lane, &[&request]), []);
        });
    }
}

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
        assert!(at(200, 200, 0, 150), "a node that is no backup has no say");
        owners.set(bucket, Owner::new(node(2), &[]).unwrap());
        assert!(!at(200, 200, 200, 150), "another node's bucket");
        owners.set(bucket, Owner::NOBODY);
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

/// Who has been greeted by our kernel is known to nobody else until a program has accepted the connection.
#[test]
fn a_closed_bucket_lets_in_whom_our_kernel_has_greeted_and_nobody_new() {
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
        for (now_ns, said) in [(7, &synack), (8, &synack), (9, &again)] {
            gate.set_test_clock_ns(now_ns);
            assert_eq!(leave(gate, said), Ok(said.clone()));
        }
        assert_eq!(gate.greeted_ns(bucket), Some(9), "an attempt that begins anew counts once");
        gate.owners().close(bucket, node(2));
        assert_eq!(enter(gate, &syn), Ok(syn.clone()), "it is not that node's");
        gate.owners().close(bucket, own);
        assert_eq!(enter(gate, &syn), Err(DROP));
        let answer = Segment { seq: 100, ack: 800, ..inward(v6) };
        assert_eq!(enter(gate, &answer), Ok(answer));
        assert_eq!(gate.greeted_ns(bucket), Some(9), "nobody has accepted it");
        let mut lane = gate.lane(LaneId::new(0).unwrap()).unwrap();
        let slot = lane.slot(&flow).unwrap();
        assert_eq!(gate.greeted_ns(bucket), None);
        lane.finish(slot, None, 0);
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
            gate.owners().set_all(Owner::new(node(1), &[]).unwrap().held());
            let options = stamps(77, 66);
            for ack in [u32::MAX - 5, 10, 4] {
                let segment = Segment { seq: 1000, ack, window: 321, options: options.clone(), ..inward(v6) };
                assert_eq!(enter(gate, &segment), Err(DROP));
            }
            let heard = gate.heard(&flow).unwrap();
            assert_eq!((heard.seq, heard.ack, heard.window, heard.count), (1000, 10, 321, 3));
            assert_eq!(heard.timestamps, (77, 66));
            gate.forget_heard(&flow);
            assert_eq!(gate.heard(&flow), None);
        });
    }
}

#[test]
fn on_hold_only_the_peer_of_a_restored_flow_is_heard() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let from = restored(v6, None);
            gate.owners().set_all(Owner::new(node(1), &[]).unwrap().held());
            let slot = gate.restore(&from).unwrap();
            let say = |seq: u32, ack: u32| {
                assert_eq!(enter(gate, &Segment { seq, ack, ..inward(v6) }), Err(DROP));
                gate.heard(&slot.flow()).map(|heard| heard.ack.wrapping_sub(from.send))
            };
            let sent = |ahead: u32| from.send.wrapping_add(ahead);
            let first = from.receive.wrapping_sub(65_536 + from.window);
            let last = from.receive + from.window;
            let old = 0u32.wrapping_sub(65_535 << 14);
            let forged = [(1000, AHEAD_MAX + 1), (1000, i32::MAX as u32), (1000, 1 << 31), (1000, old - 1)]
                .into_iter()
                .chain([(first.wrapping_sub(1), 0), (last + 1, 0)]);
            for (seq, ahead) in forged.clone() {
                assert_eq!(say(seq, sent(ahead)), None, "sequence number {seq}, {ahead} ahead");
            }
            assert_eq!(say(1000, sent(old)), Some(old));
            assert_eq!(say(first, sent(150)), Some(150), "the peer's own word");
            for (seq, ahead) in forged {
                assert_eq!(say(seq, sent(ahead)), Some(150));
            }
            assert_eq!(say(last, sent(AHEAD_MAX)), Some(AHEAD_MAX));
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
        assert_eq!(gate.heard(&flow), None);
        gate.owners().set_all(Owner::new(node(2), &[node(3), node(1)]).unwrap());
        assert_eq!(enter(gate, &segment), Err(DROP));
        assert_eq!(gate.heard(&flow).unwrap().ack, 9);
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
