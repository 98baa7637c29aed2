//! Upgrades, raw streams, and their ends.

use super::harness::peer::Peer;
use super::harness::rig::Rig;
use super::harness::setup::{self, snapshot};
use super::{TLS12, TLS13, noise, on_each, same};
use evergate_connection::{Connection, Failure, Timer};

const UPGRADE: &[u8] =
    b"GET /ws HTTP/1.1\r\nHost: test.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";

/// A raw stream of each kind.
fn on_each_raw(test: impl Fn(Rig)) {
    test(Rig::new(&snapshot(|_| {}), setup::TCP, Peer::plain()));
    for version in [TLS12, TLS13] {
        test(Rig::new(&snapshot(|_| {}), setup::TLS, Peer::rustls(version)));
    }
}

#[test]
fn an_upgrade_becomes_a_tunnel_of_opaque_bytes() {
    let (up, down) = (noise(100_000), noise(150_001));
    for segment in [usize::MAX, 3000, 11] {
        on_each(|mut rig, _| {
            rig.segment = segment;
            rig.send(UPGRADE);
            assert!(rig.server_got(1).starts_with(b"GET /ws HTTP/1.1\r\n"));
            // Bytes of the client that come too early wait for the server's consent.
            rig.send(b"early");
            same(&rig.server_got(1), b"");
            rig.serve(1, SWITCHED);
            assert_eq!(rig.conn.timer(), Timer::Tunnel);
            rig.serve(1, b"hello");
            same(&rig.received(), &[SWITCHED, b"hello"].concat());
            same(&rig.server_got(1), b"early");
            rig.send(&up);
            rig.serve(1, &down);
            same(&rig.server_got(1), &up);
            same(&rig.received(), &down);
            assert_eq!(rig.conn.timer(), Timer::Tunnel);
        });
    }
}

#[test]
fn a_refused_upgrade_is_an_ordinary_response() {
    on_each(|mut rig, _| {
        rig.send(UPGRADE);
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno");
        assert_eq!(rig.legs[&1].released, Some(true));
        rig.send(b"GET / HTTP/1.1\r\nHost: test.example\r\n\r\n");
        rig.serve(2, SWITCHED);
        assert!(rig.received().starts_with(b"HTTP/1.1 502 Bad Gateway\r\n"), "an upgrade without an offer");
    });
}

#[test]
fn each_side_of_a_tunnel_may_end_first() {
    let start = |rig: &mut Rig| {
        rig.send(UPGRADE);
        rig.serve(1, SWITCHED);
        rig.received();
        rig.server_got(1);
    };
    on_each(|mut rig, _| {
        start(&mut rig);
        rig.end_client();
        assert!(rig.legs[&1].fin && !rig.client_fin);
        rig.serve(1, b"last words");
        same(&rig.received(), b"last words");
        rig.end_server(1);
        rig.wait(1);
        assert_eq!((rig.closed, rig.client_fin, rig.legs[&1].released), (Some(false), true, Some(false)));
        let tls = !matches!(rig.peer, Peer::Plain(_));
        assert_eq!(rig.peer.saw_close_notify(), tls);
    });
    on_each(|mut rig, _| {
        start(&mut rig);
        rig.end_server(1);
        assert!(rig.client_fin && !rig.legs[&1].fin);
        rig.send(b"last words");
        same(&rig.server_got(1), b"last words");
        rig.end_client();
        rig.wait(1);
        assert!(rig.legs[&1].fin);
        assert_eq!((rig.closed, rig.legs[&1].released), (Some(false), Some(false)));
        let tls = !matches!(rig.peer, Peer::Plain(_));
        assert_eq!(rig.peer.saw_close_notify(), tls);
    });
}

/// A truncated transfer must not look like a whole one, to either side.
#[test]
fn a_break_on_one_side_of_a_tunnel_is_a_break_on_the_other() {
    let upgraded = |test: &dyn Fn(Rig)| {
        on_each(|mut rig, _| {
            rig.send(UPGRADE);
            rig.serve(1, SWITCHED);
            rig.received();
            test(rig);
        });
    };
    let on_both = |test: &dyn Fn(Rig)| {
        on_each_raw(test);
        upgraded(test);
    };
    let breaks = |rig: &mut Rig| rig.call(|conn, io| conn.handle_abort(io, "client_reset"));
    let broken = |rig: &Rig| {
        let leg = &rig.legs[&1];
        assert_eq!((rig.closed, leg.released, leg.reset), (Some(true), Some(false), true));
    };
    on_both(&|mut rig| {
        rig.send(b"half of it");
        breaks(&mut rig);
        broken(&rig);
    });
    on_both(&|mut rig| {
        rig.end_server(1);
        rig.send(b"half of it");
        breaks(&mut rig);
        broken(&rig);
    });
    on_both(&|mut rig| {
        rig.serve(1, b"half of it");
        rig.reset_server(1);
        assert_eq!(rig.closed, Some(true));
    });
    // The server has ended its side, and then takes no more.
    on_both(&|mut rig| {
        rig.end_server(1);
        rig.send(b"half of it");
        rig.call(|conn, io| conn.handle_server_reset(io, 1));
        assert_eq!(rig.closed, Some(true));
    });
    // A request is framed: its server sees that it is not whole.
    on_each(|mut rig, _| {
        rig.send(b"POST / HTTP/1.1\r\nHost: test.example\r\nContent-Length: 9\r\n\r\nhalf");
        breaks(&mut rig);
        assert!(!rig.legs[&1].reset);
    });
}

/// Only the client itself can mark its stream as whole; an attacker that changes or cuts its records cannot.
#[test]
fn failed_records_of_a_tunnel_reset_the_server_and_alert() {
    for version in [TLS12, TLS13] {
        for upgrade in [false, true] {
            for bytes in [
                vec![23, 3, 3, 0, 40].into_iter().chain(noise(40)).collect(),
                vec![23, 3, 3, 255, 255],
                vec![20, 3, 3, 0, 1, 1],
            ] {
                let listener = if upgrade { setup::HTTPS } else { setup::TLS };
                let (peer, hello) = Peer::ours(version, 3);
                let mut rig = Rig::new(&snapshot(|_| {}), listener, Peer::plain());
                rig.peer = peer;
                rig.wire(&hello);
                rig.run();
                if upgrade {
                    rig.send(UPGRADE);
                    rig.serve(1, SWITCHED);
                }
                rig.send(b"half of it");
                rig.wire(&bytes);
                rig.run();
                let leg = &rig.legs[&1];
                assert!(leg.to_server.ends_with(b"half of it"), "{upgrade} {bytes:?}");
                assert_eq!((leg.fin, leg.reset, leg.released), (false, true, Some(false)), "{bytes:?}");
                assert!(rig.peer.as_ours().alert.is_some() && rig.client_fin, "{bytes:?}");
                assert_eq!(rig.logs.last().map(|log| log.reason), Some("tls_record"), "{bytes:?}");
            }
        }
    }
}

#[test]
fn the_last_bytes_of_a_tunnel_reach_a_slow_server() {
    on_each_raw(|mut rig| {
        rig.end_server(1);
        rig.server_room = 10;
        let bytes = [rig.peer.send(&[7; 5000]), rig.peer.close()].concat();
        rig.wire(&bytes);
        rig.cut_client();
        assert_eq!((rig.closed, rig.legs[&1].released), (None, None));
        for _ in 0..10 {
            rig.server_room += 1000;
            rig.wait(10);
        }
        same(&rig.server_got(1), &[7; 5000]);
        assert_eq!((rig.closed, rig.legs[&1].fin), (Some(false), true));
    });
}

#[test]
fn raw_streams_pass_both_ways() {
    let (up, down) = (noise(400_000), noise(300_001));
    on_each_raw(|mut rig| {
        rig.serve(1, b"220 server sends first\r\n");
        same(&rig.received(), b"220 server sends first\r\n");
        rig.send(&up);
        rig.serve(1, &down);
        same(&rig.server_got(1), &up);
        same(&rig.received(), &down);
        rig.end_client();
        rig.end_server(1);
        rig.wait(1);
        assert_eq!((rig.closed, rig.legs[&1].fin, rig.client_fin), (Some(false), true, true));
        assert_eq!(rig.logs.len(), 1);
    });
}

#[test]
fn a_raw_stream_waits_for_its_server_and_tries_others() {
    on_each_raw(|mut rig| {
        rig.opens = false;
        rig.send(b"hello");
        same(&rig.server_got(1), b"hello");
        rig.reset_server(1);
        // Bytes were sent: the stream is never repeated elsewhere.
        assert_eq!((rig.closed, rig.dials.len()), (Some(true), 0));
    });
    let mut rig = Rig::new_closed(&snapshot(|_| {}), setup::TCP, Peer::plain());
    rig.refuse_next(Failure::Refused);
    rig.refuse_next(Failure::TimedOut);
    rig.refuse_next(Failure::Refused);
    assert_eq!(rig.dials.len(), 0);
    assert_eq!(rig.closed, Some(true), "all tries are used up");
    let mut rig = Rig::new_closed(&snapshot(|_| {}), setup::TCP, Peer::plain());
    rig.wire(b"first");
    rig.cut_client();
    assert_eq!(rig.closed, None);
    rig.refuse_next(Failure::Refused);
    rig.open_next();
    rig.run();
    same(&rig.server_got(2), b"first");
    assert!(rig.legs[&2].fin);
}

#[test]
fn a_tunnel_without_a_byte_ends() {
    on_each_raw(|mut rig| {
        for _ in 0..3 {
            rig.wait(3 * 3_600_000);
            rig.serve(1, b"x");
        }
        assert_eq!(rig.closed, None);
        rig.wait(3 * 3_600_000);
        rig.send(b"y");
        rig.wait(4 * 3_600_000 + 10_000);
        assert_eq!(rig.closed, Some(false));
        assert_eq!(rig.logs[0].reason, "tunnel_idle");
    });
}

#[test]
fn a_tunnel_that_has_carried_a_byte_is_not_tried_elsewhere() {
    type Carried = fn(&mut Rig);
    let carried: [(&str, Carried); 4] = [
        ("up", |rig| rig.send(b"x")),
        ("down", |rig| rig.serve(1, b"x")),
        ("spliced up", |rig| rig.call(|conn, io| conn.handle_spliced_up(io, 1, 0))),
        ("spliced down", |rig| rig.call(|conn, io| conn.handle_spliced_down(io, 1, 0))),
    ];
    for (way, carry) in carried {
        let mut rig = Rig::new(&snapshot(|_| {}), setup::TCP, Peer::plain());
        carry(&mut rig);
        rig.call(|conn, io| conn.handle_leg_failed(io, 1, Failure::Lost));
        assert_eq!((rig.legs.len(), rig.closed), (1, Some(true)), "after a byte {way}");
    }
    let mut rig = Rig::new(&snapshot(|_| {}), setup::TCP, Peer::plain());
    rig.call(|conn, io| conn.handle_leg_failed(io, 1, Failure::Lost));
    assert_eq!((rig.legs.len(), rig.closed), (2, None), "nothing was carried");
}

#[test]
fn a_server_that_takes_no_more_breaks_its_tunnel() {
    let fails = |rig: &mut Rig| rig.call(|conn, io| conn.handle_server_write_error(io));
    on_each_raw(|mut rig| {
        // It has ended its side: nothing more can arrive from it.
        rig.end_server(1);
        rig.send(b"swallowed");
        fails(&mut rig);
        assert_eq!((rig.closed, rig.legs[&1].reset), (Some(true), true));
        assert_eq!(rig.logs[0].reason, "upstream_lost");
    });
    on_each_raw(|mut rig| {
        // Its last bytes are still to be read; its end is then not an orderly one.
        fails(&mut rig);
        assert_eq!(rig.closed, None);
        rig.wire(b"no server reads this");
        rig.serve(1, b"last words");
        same(&rig.received(), b"last words");
        same(&rig.server_got(1), b"");
        rig.end_server(1);
        assert_eq!((rig.closed, rig.client_fin), (Some(true), false));
    });
}

#[test]
fn tunnel_with_an_ended_server_times_out_before_a_quiet_one() {
    on_each_raw(|mut rig| {
        rig.end_server(1);
        rig.wait(74_000);
        rig.send(b"x");
        rig.wait(74_000);
        assert_eq!(rig.closed, None);
        rig.wait(10_000);
        assert_eq!((rig.closed, rig.logs[0].reason), (Some(false), "tunnel_idle"));
    });
}

#[test]
fn another_process_knows_that_a_write_to_the_server_failed() {
    let mut rig = Rig::new(&snapshot(|_| {}), setup::TCP, Peer::plain());
    rig.call(|conn, io| conn.handle_server_write_error(io));
    let upgrade_state = rig.conn.export(&rig.node.snapshot).unwrap();
    rig.conn = Connection::import(&rig.node.snapshot, &upgrade_state).unwrap().0;
    rig.end_server(1);
    assert_eq!((rig.closed, rig.client_fin), (Some(true), false), "no end in order");
}

#[test]
fn a_server_switches_to_what_the_client_offered_or_is_refused() {
    for (offered, taken, passes) in [
        ("websocket", "websocket", true),
        ("websocket", "WebSocket", true),
        ("foo, websocket", "websocket", true),
        ("h2c, foo/2", "foo/2", true),
        ("websocket", "other", false),
        ("websocket", "h2c", false),
        ("h2c, websocket", "h2c", false),
        ("foo, bar", "websocket", false),
        ("websocket", "websocket, other", false),
        ("foo/2", "foo/3", false),
    ] {
        on_each(|mut rig, _| {
            let ask = format!("GET /ws HTTP/1.1\r\nHost: test.example\r\nUpgrade: {offered}\r\n");
            rig.send(format!("{ask}Connection: Upgrade\r\n\r\n").as_bytes());
            rig.serve(1, format!("HTTP/1.1 101 X\r\nUpgrade: {taken}\r\n").as_bytes());
            rig.serve(1, b"Connection: upgrade\r\n\r\n");
            let expected: &[u8] =
                if passes { b"HTTP/1.1 101 X\r\n" } else { b"HTTP/1.1 502 Bad Gateway\r\n" };
            assert!(rig.received().starts_with(expected), "{taken} of {offered}");
        });
    }
}

/// What does not fit is not offered, so that no server can take it.
#[test]
fn a_long_offer_is_cut_where_a_protocol_begins() {
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTP, Peer::plain());
    let long = "x".repeat(250);
    let ask = format!("GET /ws HTTP/1.1\r\nHost: test.example\r\nUpgrade: {long}, websocket, y\r\n");
    rig.send(format!("{ask}Connection: Upgrade\r\n\r\n").as_bytes());
    let asked = String::from_utf8(rig.server_got(1)).unwrap();
    assert!(asked.contains(&format!("\r\nUpgrade: {long}, y\r\n")), "{asked}");
    rig.serve(1, SWITCHED);
    assert!(rig.received().starts_with(b"HTTP/1.1 502 Bad Gateway\r\n"));
}

#[test]
fn plain_tunnel_is_spliced_while_its_transfers_are_bulk() {
    let start = || Rig::new(&snapshot(|_| {}), setup::TCP, Peer::plain());
    let ways = |rig: &Rig| (rig.conn.splice_down(), rig.conn.splice_up());
    let mut rig = start();
    assert_eq!(ways(&rig), (0, 0));
    rig.serve(1, &noise(4_096));
    rig.send(&noise(4_096));
    assert_eq!(ways(&rig), (0, 0), "small messages are copied");
    rig.serve(1, &noise(16_384));
    assert_eq!(ways(&rig), (u64::MAX, 0), "a read filled its room");
    rig.send(&noise(40_000));
    assert_eq!(ways(&rig), (u64::MAX, u64::MAX));
    rig.call(|conn, io| conn.handle_spliced_down(io, 100, 0));
    rig.call(|conn, io| conn.handle_spliced_up(io, 100, 0));
    assert_eq!(ways(&rig), (u64::MAX, u64::MAX));
    rig.call(|conn, io| conn.handle_spliced_down(io, 100, 0));
    rig.call(|conn, io| conn.handle_spliced_up(io, 100, 0));
    assert_eq!(ways(&rig), (0, 0), "two small transfers each way");
}

#[test]
fn tunnel_bytes_inside_a_pipe_leave_before_any_is_copied() {
    let mut rig = Rig::new(&snapshot(|_| {}), setup::TCP, Peer::plain());
    rig.serve(1, &noise(16_384));
    rig.send(&noise(16_384));
    rig.call(|conn, io| conn.handle_spliced_down(io, 0, 100));
    rig.call(|conn, io| conn.handle_spliced_up(io, 0, 100));
    // Transfers that only empty the pipe take nothing from the source.
    for _ in 0..5 {
        rig.call(|conn, io| conn.handle_spliced_down(io, 10, 100));
        rig.call(|conn, io| conn.handle_spliced_up(io, 10, 100));
    }
    assert_eq!((rig.conn.splice_down(), rig.conn.splice_up()), (u64::MAX, u64::MAX), "the pipes hold bytes");
    rig.call(|conn, io| conn.handle_spliced_down(io, 100, 0));
    rig.call(|conn, io| conn.handle_spliced_up(io, 100, 0));
    assert_eq!((rig.conn.splice_down(), rig.conn.splice_up()), (0, 0));
    // Another process continues with the pipes, in any mode.
    rig.conn.handle_piped(1, 1);
    assert_eq!((rig.conn.splice_down(), rig.conn.splice_up()), (u64::MAX, u64::MAX));
}

#[test]
fn tunnel_over_tls_is_never_spliced() {
    for version in [TLS12, TLS13] {
        let mut rig = Rig::new(&snapshot(|_| {}), setup::TLS, Peer::rustls(version));
        rig.serve(1, &noise(100_000));
        rig.send(&noise(100_000));
        assert_eq!((rig.conn.splice_down(), rig.conn.splice_up()), (0, 0));
    }
}
