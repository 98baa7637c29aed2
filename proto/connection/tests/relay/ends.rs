//! How connections end: clients that go, timers, drain.

use super::harness::peer::{Peer, deterministic_config};
use super::harness::rig::Rig;
use super::harness::setup::{self, snapshot};
use super::{GET, TLS13, noise, on_each, plain, same, text};
use evergate_base::Micros;
use evergate_connection::{Activity, Timer};
use std::sync::Arc;

#[test]
fn a_client_may_leave_in_any_phase() {
    // Idle: an orderly end.
    on_each(|mut rig, _| {
        rig.cut_client();
        assert_eq!((rig.closed, rig.logs.len()), (Some(false), 0));
    });
    // Inside a head, inside a body: no client is left to answer.
    for start in ["GET /a HT", "PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 10\r\n\r\nabc"] {
        on_each(|mut rig, _| {
            rig.send(start.as_bytes());
            rig.cut_client();
            assert_eq!(rig.closed, Some(true));
            assert!(rig.legs.values().all(|leg| leg.released == Some(false)));
        });
    }
    // Half-closed after its request: it gets the answer.
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab");
        rig.end_client();
        rig.serve(1, b"cd");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd");
        rig.wait(1);
        assert_eq!((rig.closed, rig.client_fin), (Some(false), true));
    });
    // While the server is being dialled: the worker may report the end early. Nothing comes after the answer.
    let mut rig = Rig::new_closed(&snapshot(|_| {}), setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    rig.call(|conn, io| conn.handle_client_end(io));
    rig.open_next();
    rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    rig.wait(1);
    assert_eq!(rig.closed, Some(false));
    // During the handshake.
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    rig.send(&[22, 3, 1, 2, 0, 1, 0]);
    rig.cut_client();
    assert_eq!(rig.closed, Some(true));
    // Behind our end: it has lost nothing.
    on_each(|mut rig, _| {
        rig.send(format!("{GET}Connection: close\r\n\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        rig.call(|conn, io| conn.handle_abort(io, "client_reset"));
        assert_eq!((rig.closed, rig.logs.len()), (Some(true), 1));
        assert_eq!(rig.reasons, [""]);
    });
}

#[test]
fn a_handshake_that_fails_has_a_line_in_the_log() {
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    rig.wire(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00");
    rig.run();
    let lines: Vec<_> = rig.logs.iter().map(|log| (log.reason, log.detail.as_str())).collect();
    assert_eq!(
        lines,
        [(
            "tls_handshake",
            "handshake refused: received a malformed message: missing data(\"protocol version\")"
        )]
    );
    // A client that wants another protocol.
    let config = deterministic_config(super::TLS13);
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (_, hello) = Peer::ours_with(&Arc::new(config), 1);
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    rig.wire(&hello);
    rig.run();
    assert!(
        rig.logs[0].detail.starts_with("handshake refused: no application protocol (ALPN) in common"),
        "{}",
        rig.logs[0].detail
    );
    // A client that does not trust our certificate.
    let (_, hello) = Peer::ours(super::TLS12, 1);
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    rig.wire(&hello);
    rig.wire(b"\x15\x03\x03\x00\x02\x02\x30");
    rig.run();
    assert_eq!(
        rig.logs[0].detail,
        "handshake refused: received fatal alert: unknown_ca; the client asked for \"test.example\""
    );
}

#[test]
fn a_body_that_rules_wait_for_may_come_slowly() {
    let rule = evergate_rules::RuleSpec {
        name: "body".to_owned(),
        when: r#"json("/kind") == "x""#.to_owned(),
        route: Some("other".to_owned()),
        ..evergate_rules::RuleSpec::default()
    };
    let mut rig = plain(|snapshot| setup::set_rules(snapshot, std::slice::from_ref(&rule)));
    let body = format!("{{\"fill\":\"{}\",\"kind\":\"x\"}}", "x".repeat(40));
    let length = body.len();
    let head = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
    rig.send(format!("{head}Content-Length: {length}\r\n\r\n").as_bytes());
    for byte in body.as_bytes() {
        assert!(rig.legs.is_empty() && !rig.client_fin);
        rig.wait(29_000);
        rig.send(&[*byte]);
    }
    assert_eq!(rig.legs[&1].pool, 1);
}

#[test]
fn client_bytes_after_our_end_are_dropped() {
    for version in [super::TLS12, TLS13] {
        let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::rustls(version));
        rig.send(format!("{GET}Connection: close\r\n\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(rig.client_fin && rig.peer.saw_close_notify());
        rig.segment = 100;
        for _ in 0..10 {
            rig.send(&noise(1000));
        }
        rig.wire(b"garbage that is no record at all");
        rig.run();
        assert!(rig.closed.is_none_or(|abort| abort));
        rig.wait(3000);
        assert!(rig.closed.is_some());
        assert_eq!(rig.legs.len(), 1);
    }
}

/// A later byte of the client could cause a reset, which would destroy what it has not read.
#[test]
fn only_a_silent_client_that_asked_for_the_end_is_left_at_once() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let ends = |start: &str, more: &str, close: bool| {
        on_each(|mut rig, _| {
            rig.send(format!("{start}\r\n{more}").as_bytes());
            assert!(!rig.conn.closes_at_once());
            rig.serve(1, answer);
            same(&rig.received()[..15], &answer[..15]);
            assert_eq!((rig.client_fin, rig.closed), (true, None), "{start:?} {more:?}");
            assert_eq!(rig.conn.closes_at_once(), close, "{start:?} {more:?}");
        });
    };
    ends("GET /a HTTP/1.0\r\n", "", true);
    ends(&format!("{GET}Connection: close\r\n"), "", true);
    ends(&format!("{GET}Connection: close\r\n"), GET, false);
    ends("PUT /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n", "up", true);
    ends("PUT /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 9\r\n", "up", false);
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok");
        rig.end_server(1);
        assert!(!rig.conn.closes_at_once(), "whose client did not ask for the end");
        rig.wait(80_000);
        assert!(!rig.conn.closes_at_once());
    });
}

#[test]
fn every_timer_ends_what_it_bounds() {
    // Handshake.
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    rig.wire(&[22, 3, 1]);
    rig.run();
    assert_eq!(rig.conn.timer(), Timer::Handshake);
    rig.wait(9_999);
    assert_eq!(rig.closed, None);
    rig.wait(2);
    assert_eq!(rig.closed, Some(true));
    on_each(|mut rig, _| {
        // Nothing asked at all.
        assert_eq!(rig.conn.timer(), Timer::KeepAlive);
        rig.wait(74_999);
        assert!(!rig.client_fin);
        rig.wait(1);
        assert!(rig.client_fin && rig.received().is_empty());
        assert_eq!(rig.conn.timer(), Timer::Linger);
        rig.wait(2_000);
        assert_eq!(rig.closed, Some(false));
    });
    on_each(|mut rig, _| {
        // A head that comes drop by drop gets no more time for it; what was silence before counts for nothing.
        rig.wait(60_000);
        for _ in 0..14 {
            rig.send(b"G");
            rig.wait(1_000);
        }
        assert!(!rig.client_fin);
        rig.wait(1_100);
        assert!(rig.client_fin);
        assert!(text(&rig.received()).starts_with("HTTP/1.1 408 Request Timeout\r\n"));
    });
    on_each(|mut rig, _| {
        // Keep-alive, then a second head.
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        rig.received();
        assert_eq!(rig.conn.timer(), Timer::KeepAlive);
        rig.wait(70_000);
        rig.send(b"GET");
        assert_eq!(rig.conn.timer(), Timer::RequestHead);
        rig.wait(15_000);
        assert!(text(&rig.received()).starts_with("HTTP/1.1 408 "));
    });
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        rig.received();
        rig.wait(75_000);
        assert!(rig.client_fin && rig.received().is_empty());
    });
    on_each(|mut rig, _| {
        // A body without progress; progress extends it.
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 10\r\n\r\n");
        assert_eq!(rig.conn.timer(), Timer::RequestBody);
        for _ in 0..5 {
            rig.wait(29_000);
            rig.send(b"x");
        }
        assert!(!rig.client_fin);
        rig.wait(30_000);
        assert!(text(&rig.received()).starts_with("HTTP/1.1 408 "));
        assert_eq!(rig.legs[&1].released, Some(false));
    });
    on_each(|mut rig, _| {
        // A response that does not come, and one that stops in the middle.
        rig.send(format!("{GET}\r\n").as_bytes());
        assert_eq!(rig.conn.timer(), Timer::Response);
        rig.wait(20_000);
        assert!(text(&rig.received()).starts_with("HTTP/1.1 504 Gateway Timeout\r\n"));
    });
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        for _ in 0..4 {
            rig.wait(19_000);
            rig.serve(1, b"HTTP/1.1 103 Early Hints\r\n\r\n");
        }
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab");
        rig.wait(20_000);
        assert_eq!(rig.closed, Some(true));
    });
    on_each(|mut rig, _| {
        // A client that takes nothing.
        rig.client_room = 100;
        rig.client_reads = false;
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, &[b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n", &noise(90_000)[..]].concat());
        assert_eq!(rig.conn.timer(), Timer::WriteStall);
        rig.wait(29_999);
        assert_eq!(rig.closed, None);
        rig.wait(2_000);
        assert_eq!(rig.closed, Some(true));
    });
    let mut rig = Rig::new_closed(&snapshot(|_| {}), setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    assert_eq!(rig.conn.timer(), Timer::Connect);
    rig.wait(3_000);
    assert_eq!(rig.dials.len(), 1, "another server is tried");
    rig.wait(3_000);
    rig.wait(3_000);
    assert!(text(&rig.received()).starts_with("HTTP/1.1 504 Gateway Timeout\r\n"));
}

/// Of what the kernel still holds for a peer we see only what the peer has acknowledged.
#[test]
fn peer_at_the_minimum_rate_is_never_dropped() {
    const HELD: u64 = 160_000;
    let blocked = |to_client: bool| {
        let mut rig = plain(|snapshot| snapshot.listeners[1].limits.rate_min = 100);
        rig.client_reads = false;
        (rig.client_room, rig.server_room) = (170_000, 170_000);
        match to_client {
            true => {
                rig.send(format!("{GET}\r\n").as_bytes());
                rig.serve(
                    1,
                    &[b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n", &noise(900_000)[..]].concat(),
                );
            }
            false => {
                rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 900000\r\n\r\n");
                rig.send(&noise(900_000));
            }
        }
        assert_eq!(rig.conn.timer(), Timer::WriteStall);
        rig
    };
    let look = |rig: &mut Rig, held: u64| {
        rig.now = rig.conn.deadline();
        rig.conn.handle_unacknowledged(held, held);
        rig.call(|conn, io| conn.handle_timeout(io));
        rig.closed
    };
    for to_client in [true, false] {
        let mut rig = blocked(to_client);
        for step in 0..50 {
            assert_eq!(look(&mut rig, HELD - step * 3000), None, "look {step}");
        }
        let closed = look(&mut rig, HELD - 49 * 3000 - 2999); // a byte less than the floor
        assert_eq!(rig.logs[0].reason, "write_stall");
        // A server that reads no request is late like one that does not answer: its client gets an answer.
        assert_eq!(closed, to_client.then_some(true));
        assert_eq!(rig.to_client.starts_with(b"HTTP/1.1 504 "), !to_client);
    }
    // All is written, and the server is still taking it: it cannot answer yet.
    let mut rig = blocked(false);
    rig.server_room = usize::MAX;
    rig.run();
    assert_eq!(rig.conn.timer(), Timer::Response);
    for step in 0..50 {
        assert_eq!(look(&mut rig, HELD - step * 3000), None);
        assert!(rig.to_client.is_empty(), "look {step}");
    }
    look(&mut rig, HELD - 49 * 3000);
    assert!(rig.to_client.starts_with(b"HTTP/1.1 504 "));
}

#[test]
fn a_body_slower_than_the_floor_is_cut_off() {
    let mut rig = plain(|snapshot| snapshot.listeners[1].limits.rate_min = 100);
    rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 100000\r\n\r\n");
    for _ in 0..29 {
        rig.wait(1_000);
        rig.send(b"x");
    }
    assert!(!rig.client_fin);
    rig.wait(2_000);
    assert!(text(&rig.received()).starts_with("HTTP/1.1 408 "));
}

#[test]
fn a_draining_node_lets_go_of_its_clients_in_order() {
    on_each(|mut rig, _| {
        rig.call(|conn, io| conn.handle_drain(io));
        assert!(rig.client_fin, "an idle connection ends at once");
    });
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.node.draining = true;
        rig.call(|conn, io| conn.handle_drain(io));
        assert!(!rig.client_fin);
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        assert!(rig.client_fin);
    });
    on_each(|mut rig, _| {
        rig.node.draining = true;
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        assert!(rig.client_fin);
    });
}

#[test]
fn evicted_connection_ends_in_order_unless_it_is_active() {
    on_each(|mut rig, _| {
        assert_ne!(rig.conn.activity(), Activity::Active);
        rig.call(|conn, io| assert!(conn.handle_eviction(io)));
        assert!(rig.client_fin && rig.received().is_empty());
        assert_eq!(
            (rig.conn.activity(), rig.logs.len()),
            (Activity::Active, 0),
            "a closing one is no candidate"
        );
        rig.call(|conn, io| assert!(!conn.handle_eviction(io)));
    });
    on_each(|mut rig, _| {
        rig.send(b"GET / HT");
        rig.call(|conn, io| assert!(!conn.handle_eviction(io), "a request head has begun"));
        rig.send(b"TP/1.1\r\nHost: test.example\r\n\r\n");
        rig.call(|conn, io| assert!(!conn.handle_eviction(io), "the response is awaited"));
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
        rig.call(|conn, io| assert!(!conn.handle_eviction(io), "the response is not whole"));
        rig.serve(1, b"k");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(rig.conn.activity(), Activity::Idle);
        rig.call(|conn, io| assert!(conn.handle_eviction(io)));
        assert!(rig.client_fin && !rig.logs.iter().any(|log| log.reason == "evicted"));
    });
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    assert_eq!(rig.conn.activity(), Activity::Silent);
    rig.wire(&[22, 3, 1]);
    rig.run();
    rig.call(|conn, io| assert!(!conn.handle_eviction(io), "a handshake has begun"));
}

#[test]
fn response_of_a_crowded_node_has_connection_close() {
    on_each(|mut rig, _| {
        rig.node.crowded = true;
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        assert!(rig.client_fin);
    });
}

#[test]
fn last_allowed_response_has_connection_close() {
    let mut rig = plain(|snapshot| snapshot.listeners[1].limits.requests_max = 2);
    for (leg, close) in [(1, ""), (2, "Connection: close\r\n")] {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(leg, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        same(&rig.received(), format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{close}\r\n").as_bytes());
    }
    assert!(rig.client_fin);
    // Answers of our own count as well.
    let mut rig = plain(|snapshot| {
        snapshot.listeners[1].limits.requests_max = 2;
        snapshot.listeners[1].pool = None;
    });
    for last in [false, true] {
        rig.send(format!("{GET}\r\n").as_bytes());
        let got = text(&rig.received());
        assert!(got.starts_with("HTTP/1.1 404 ") && got.contains("Connection: close") == last, "{got}");
    }
    assert!(rig.client_fin);
}

#[test]
fn server_with_unsent_output_gets_an_rst() {
    let upload = |room: usize, test: &dyn Fn(&mut Rig)| {
        on_each(|mut rig, _| {
            rig.server_room = room;
            rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3000\r\n\r\n");
            rig.send(&noise(2000));
            test(&mut rig);
        });
    };
    let end = |rig: &mut Rig| {
        rig.call(|conn, io| conn.handle_abort(io, "client_reset"));
        let leg = &rig.legs[&1];
        assert_eq!(leg.released, Some(false));
        leg.reset
    };
    upload(1000, &|rig| assert!(end(rig), "part of it waits"));
    upload(usize::MAX, &|rig| assert!(!end(rig), "it has all there was"));
    upload(1000, &|rig| {
        // It answers before it has everything.
        rig.serve(1, b"HTTP/1.1 413 Too Much\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert!(text(&rig.received()).starts_with("HTTP/1.1 413 "));
        assert_eq!((rig.legs[&1].released, rig.legs[&1].reset), (Some(false), true));
    });
}

#[test]
fn port_scan_leaves_no_log_line() {
    for listener in [setup::HTTP, setup::HTTPS] {
        let mut rig = Rig::new(&snapshot(|_| {}), listener, Peer::plain());
        rig.cut_client();
        assert!(rig.closed.is_some() && rig.logs.is_empty());
    }
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    rig.wire(&[22, 3, 1]);
    rig.cut_client();
    assert_eq!(rig.logs[0].reason, "client_gone");
}

#[test]
fn log_line_counts_all_bytes_from_the_first_one() {
    let times = |rig: &Rig| {
        let log = rig.logs.last().unwrap();
        (log.first_byte, log.total, log.bytes_in)
    };
    let ms = Micros::from_ms;
    on_each(|mut rig, _| {
        // A slow head; a body in the same read, and another one.
        rig.wait(5_000);
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.exa");
        rig.wait(1_000);
        rig.send(b"mple\r\nContent-Length: 10\r\n\r\nabcd");
        rig.send(b"efghij");
        rig.wait(2_000);
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
        rig.wait(3_000);
        rig.serve(1, b"ok");
        let head = b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 10\r\n\r\n".len();
        assert_eq!(times(&rig), (ms(3_000), ms(6_000), head as u64 + 10));
        // An answer of ours.
        rig.wait(7_000);
        rig.send(b"GET /a HTTP/1.1\r\n");
        rig.wait(1_000);
        rig.send(b"\r\n");
        assert_eq!(times(&rig), (ms(1_000), ms(1_000), b"GET /a HTTP/1.1\r\n\r\n".len() as u64));
    });
    let mut rig = Rig::new(&snapshot(|_| {}), setup::TCP, Peer::plain());
    rig.send(b"hello");
    rig.wait(4_000);
    rig.call(|conn, io| conn.handle_spliced_down(io, 100, 0));
    rig.call(|conn, io| conn.handle_abort(io, "shutdown"));
    assert_eq!(times(&rig), (ms(4_000), ms(4_000), 5));
}

#[test]
fn sending_client_has_bounded_time_to_read_its_answer() {
    on_each(|mut rig, _| {
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 100000\r\n\r\n");
        rig.serve(1, b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        assert!(rig.client_fin && rig.received().starts_with(b"HTTP/1.1 413 "));
        for second in 0..30 {
            rig.wait(1_000);
            assert_eq!(rig.closed, None, "after {second} s");
            rig.send(b"more");
        }
        (0..2).for_each(|_| {
            rig.wait(1_000);
            if rig.closed.is_none() {
                rig.send(b"more");
            }
        });
        assert_eq!(rig.closed, Some(false));
    });
    // A silent peer has no more time than before.
    on_each(|mut rig, _| {
        rig.send(format!("{GET}Connection: close\r\n\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        rig.wait(2_000);
        assert_eq!(rig.closed, Some(false));
    });
}

/// Small records that answer the client pile up where it reads none of them.
#[test]
fn client_that_leaves_answers_unread_is_read_no_further() {
    let mut rig = plain(|_| {});
    rig.send(
        format!("POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 9\r\n\r\n{}", "abc").as_bytes(),
    );
    assert!(rig.conn.wants_client());
    (0..65).for_each(|_| rig.conn.down().push(vec![0; 31], 0));
    assert!(!rig.conn.wants_client());
    rig.conn.down().advance(31);
    assert!(rig.conn.wants_client(), "it reads again");
}

#[test]
fn crowded_node_ends_no_authenticated_connection() {
    let mut rig = plain(|_| {});
    rig.node.crowded = true;
    rig.send(format!("{GET}Authorization: NTLM VFlQRTE=\r\n\r\n").as_bytes());
    rig.serve(1, b"HTTP/1.1 401 X\r\nWWW-Authenticate: NTLM VFlQRTI=\r\nContent-Length: 0\r\n\r\n");
    assert!(!text(&rig.received()).to_lowercase().contains("connection: close"));
    assert_eq!(rig.conn.bound_leg(), Some(1));
}
