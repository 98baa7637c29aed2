//! One packet in, one packet out: flows that began here.

use crate::frame::{ACK, FIN, RST, SYN, Segment};
use crate::testrun::{Hook, TestRun};
use crate::world::{PORT, at, bench, privileged, vip};
use evergate_bpf::{Counter, Flow, Mode, PacketGate, Slot, WorkerPort, WorkerPortId};
use std::net::{SocketAddr, TcpListener};

pub(crate) const PASS: u32 = 0;
pub(crate) const NEXT: u32 = u32::MAX; // pass, after the stateless accept has looked
pub(crate) const DROP: u32 = 2;
pub(crate) const STOLEN: u32 = 4;
pub(crate) const REDIRECT: u32 = 7;

pub(crate) fn client(v6: bool) -> SocketAddr {
    at(v6, 10, 50_000)
}

pub(crate) fn listener(v6: bool) -> SocketAddr {
    SocketAddr::new(vip(v6), PORT)
}

pub(crate) fn out(v6: bool) -> Segment {
    Segment::new(listener(v6), client(v6))
}

pub(crate) fn inward(v6: bool) -> Segment {
    Segment::new(client(v6), listener(v6))
}

pub(crate) fn leave(gate: &PacketGate, segment: &Segment) -> Result<Segment, u32> {
    let outcome = gate.run(Hook::Egress, &segment.bytes(), 0).unwrap();
    if outcome.action == PASS { Ok(Segment::read(&outcome.frame)) } else { Err(outcome.action) }
}

pub(crate) fn enter(gate: &PacketGate, segment: &Segment) -> Result<Segment, u32> {
    let outcome = gate.run(Hook::Ingress, &segment.bytes(), 0).unwrap();
    if [PASS, NEXT].contains(&outcome.action) {
        Ok(Segment::read(&outcome.frame))
    } else {
        Err(outcome.action)
    }
}

/// Our SYN-ACK goes out with window scale 7, the client answers. Both sides start at the sequence numbers given.
pub(crate) fn accepted(gate: &PacketGate, v6: bool, sent: u32, received: u32) -> (WorkerPort, Slot) {
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
    let worker_port = gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap();
    let slot = worker_port.slot(&Flow::new(listener(v6), client(v6))).expect("the flow is registered");
    assert!(slot.is_established());
    (worker_port, slot)
}

/// The timestamps option where all kernels have it.
pub(crate) fn stamps(value: u32, echo: u32) -> Vec<u8> {
    [vec![1, 1, 8, 10], value.to_be_bytes().to_vec(), echo.to_be_bytes().to_vec()].concat()
}

#[test]
fn flow_is_gated_from_its_syn_ack_and_acks_stay_committed() {
    if !privileged() {
        return;
    }
    // The second start wraps around in the middle of the exchange.
    for (v6, start) in [(false, 1000), (true, 1000), (false, u32::MAX - 2000), (true, u32::MAX - 2000)] {
        bench(Mode::Steer, move |gate| {
            let (mut worker_port, slot) = accepted(gate, v6, 500, start);
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
            worker_port.finish(slot, None, 0);
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
fn ack_without_news_is_dropped_unless_the_peer_repeats() {
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
fn connection_known_only_to_the_server_may_be_reset() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let syn = Segment { seq: 500, flags: SYN, ..out(false) };
        let rst = Segment { seq: 77, flags: RST, ..out(false) };
        assert!(leave(gate, &syn).is_ok());
        assert_eq!(gate.reclaim_unanswered(u64::MAX, 1), 0, "the server has not answered");
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
fn unregistered_connection_does_not_start_and_sends_nothing() {
    if !privileged() {
        return;
    }
    bench(Mode::Steer, |gate| {
        let data = Segment { seq: 1, ack: 1, data: b"x".to_vec(), ..out(false) };
        let rst = Segment { flags: RST, ..out(false) };
        assert_eq!(leave(gate, &data), Err(STOLEN));
        assert_eq!(leave(gate, &rst), Err(STOLEN));
        gate.set_reset_unknown(true).unwrap();
        // There is no listener: the process is dead, and another node may continue its connections.
        assert_eq!(leave(gate, &rst), Err(STOLEN));
        let _listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
        assert_eq!(leave(gate, &rst), Ok(rst.clone()));
        // The socket of its connection may not exist yet: a peer that sends a keep-alive or an end is not refused.
        let bucket = gate.bucket(&Flow::new(listener(false), client(false)));
        gate.set_pending(bucket, Some(WorkerPortId::new(3).unwrap()));
        assert_eq!(leave(gate, &rst), Err(STOLEN));
        gate.set_pending(bucket, None);
        assert_eq!(leave(gate, &rst), Ok(rst));
        // The kernel's answer to a SYN once the listener's process is dead: the next owner must receive the next SYN.
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
        // In a flood a slot without an answer is reclaimed early; a slot with an answer stays.
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

/// A probe has the number before the next one and no data: the test for a peer that is ahead must not take it for an
/// ACK.
#[test]
fn keepalive_probes_and_answers_pass_in_both_directions() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let (_lane, slot) = accepted(gate, v6, 500, 1000);
            leave(gate, &Segment { seq: 500, ack: 1000, data: vec![7; 100], ..out(v6) }).unwrap();
            enter(gate, &Segment { seq: 1000, ack: 600, ..inward(v6) }).unwrap();
            for probe in 1..=3 {
                gate.set_test_clock_ns(2_000_000_000 + probe * 1_000_000_000);
                let ours = Segment { seq: 599, ack: 1000, ..out(v6) };
                assert_eq!(leave(gate, &ours), Ok(ours));
                let answer = Segment { seq: 1000, ack: 600, ..inward(v6) };
                assert_eq!(enter(gate, &answer), Ok(answer));
                let theirs = Segment { seq: 999, ack: 600, ..inward(v6) };
                assert_eq!(enter(gate, &theirs), Ok(theirs));
                let answer = Segment { seq: 600, ack: 1000, ..out(v6) };
                assert_eq!(leave(gate, &answer), Ok(answer));
            }
            assert_eq!(slot.peer_acked(), 600);
            // The backups lack 25 bytes: probes pass, and acknowledge no more than the backups have.
            for _ in 0..2 {
                let got = leave(gate, &Segment { seq: 599, ack: 1025, ..out(v6) }).unwrap();
                assert_eq!((got.seq, got.ack), (599, 1000));
            }
        });
    }
}

#[test]
fn rst_of_a_peer_with_a_lowered_ack_is_accepted() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let (_lane, _slot) = accepted(gate, v6, 500, 1000);
            // Our kernel has 25 bytes that the backups lack: the peer receives ACK 1000.
            leave(gate, &Segment { seq: 500, ack: 1025, data: vec![7; 100], ..out(v6) }).unwrap();
            let refusal = Segment { seq: 1000, ack: 0, flags: RST, ..inward(v6) };
            assert_eq!(enter(gate, &refusal), Ok(Segment { seq: 1025, ..refusal.clone() }));
            let guess = Segment { seq: 1001, ..refusal };
            assert_eq!(enter(gate, &guess), Ok(guess));
        });
    }
}

/// The peer has not acknowledged the end, and the bucket moves to another node.
#[test]
fn finished_flow_of_a_lost_bucket_lets_nothing_out() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        bench(Mode::Steer, move |gate| {
            let (mut worker_port, slot) = accepted(gate, v6, 500, 1000);
            slot.open();
            let data = Segment { seq: 500, ack: 1000, data: vec![7; 100], ..out(v6) };
            leave(gate, &data).unwrap();
            worker_port.finish(slot, Some(601), 0);
            worker_port.forget_finished(|_| false);
            assert_eq!((gate.slots_in_use(), worker_port.finishing()), (1, 1), "of another bucket");
            leave(gate, &data).unwrap();
            worker_port.forget_finished(|_| true);
            assert_eq!((gate.slots_in_use(), worker_port.finishing()), (0, 0));
            assert!(leave(gate, &data).is_err(), "its socket repeats what it holds");
        });
    }
}

#[test]
fn flow_of_a_peer_that_reset_needs_no_last_ack() {
    if !privileged() {
        return;
    }
    for (v6, lowered) in [(false, true), (true, true), (false, false)] {
        bench(Mode::Steer, move |gate| {
            let (mut worker_port, slot) = accepted(gate, v6, 500, 1000);
            leave(gate, &Segment { seq: 500, ack: 1025, data: vec![7; 100], ..out(v6) }).unwrap();
            assert!(!slot.is_over(601));
            let refusal = Segment { seq: 1010, ack: 0, flags: RST, ..inward(v6) };
            enter(gate, &refusal).unwrap();
            assert!(!slot.is_over(601), "a guess");
            enter(gate, &Segment { seq: if lowered { 1000 } else { 1025 }, ..refusal }).unwrap();
            assert!(slot.is_over(601));
            worker_port.finish(slot, Some(601), 0);
            assert_eq!((gate.slots_in_use(), worker_port.finishing()), (0, 0));
            let (mut worker_port, slot) = accepted(gate, v6, 500, 1000);
            slot.allow_rst();
            leave(gate, &Segment { seq: 500, ack: 1000, flags: RST | ACK, ..out(v6) }).unwrap();
            assert!(slot.is_over(501));
            worker_port.finish(slot, Some(501), 0);
            assert_eq!((gate.slots_in_use(), worker_port.finishing()), (0, 0));
        });
    }
}
