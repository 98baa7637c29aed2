//! Answers of our own, and tries on other servers.

use super::harness::peer::Peer;
use super::harness::rig::Rig;
use super::harness::setup::{self, forwarded, snapshot};
use super::{GET, TLS13, noise, on_each, plain, same, text};
use evergate_base::Micros;
use evergate_connection::{Connection, Failure, LoggedHeaders, Snapshot, Timer};

fn status_of(bytes: &[u8]) -> u16 {
    text(bytes).split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

#[test]
fn malformed_request_is_refused_and_ends_the_connection() {
    for (bytes, status) in [
        ("GET /a HTTP/1.1\r\n\r\n", 400),
        ("GET  /a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /a HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        ("\u{1}\u{2}\u{3}", 400),
        ("GET /a%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    ] {
        on_each(|mut rig, _| {
            rig.send(bytes.as_bytes());
            let got = rig.received();
            assert_eq!(status_of(&got), status, "{bytes:?}: {:?}", text(&got));
            assert_eq!(rig.legs.len(), 0);
            assert_eq!(rig.logs.len(), 1);
            assert_eq!(rig.logs[0].status, status);
        });
    }
    on_each(|mut rig, _| {
        rig.send(format!("GET /a HTTP/1.1\r\nHost: a\r\nX: {}\r\n", "x".repeat(20_000)).as_bytes());
        assert_eq!(status_of(&rig.received()), 431);
        assert!(rig.client_fin);
    });
    on_each(|mut rig, _| {
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n");
        assert_eq!(status_of(&rig.received()), 400);
        assert_eq!((rig.legs[&1].released, rig.client_fin), (Some(false), true));
    });
}

#[test]
fn proxy_header_before_a_request_is_refused_with_its_own_reason() {
    for header in
        [&b"PROXY TCP6 ::1 ::1 40000 80\r\n"[..], b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"]
    {
        on_each(|mut rig, _| {
            rig.send(&[header, GET.as_bytes(), b"\r\n"].concat());
            assert_eq!(status_of(&rig.received()), 400);
            assert_eq!((rig.logs[0].status, rig.logs[0].reason), (400, "proxy_protocol_unexpected"));
            assert!(rig.client_fin);
        });
    }
    // A request may have that method.
    on_each(|mut rig, _| {
        rig.send(b"PROXY /TCP4 HTTP/1.1\r\nHost: test.example\r\n\r\n");
        assert_eq!((rig.logs.len(), rig.legs.len()), (0, 1));
    });
}

#[test]
fn tls_answer_of_a_server_in_a_plain_pool_is_explained() {
    let alert: &[u8] = &[21, 3, 1, 0, 2, 2, 70];
    for (sent, ends) in
        [(alert, true), (&alert[..1], true), (&alert[..3], false), (&[22, 3, 3, 0, 40, 2], false)]
    {
        let mut rig = plain(|snapshot| snapshot.pools[0].retries = 0);
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, sent);
        match ends {
            true => rig.end_server(1),
            false => rig.reset_server(1),
        }
        assert_eq!(status_of(&rig.received()), 502);
        let expected = if sent.len() < 3 { "" } else { "the server answered with TLS: set [pools.tls]" };
        assert_eq!(rig.logs[0].detail, expected, "{sent:?}: {}", rig.logs[0].reason);
    }
}

#[test]
fn headers_are_logged_only_if_the_log_wants_them() {
    let hostile = format!("a\"\t\u{85}\u{202e}{}", "x".repeat(4000));
    for (user_agent, referer) in [(false, false), (true, false), (false, true)] {
        let mut rig = plain(|_| {});
        rig.node.logged = LoggedHeaders { user_agent, referer };
        rig.send(format!("{GET}User-Agent: {hostile}\r\nReferer: /r\r\n\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let log = &rig.logs[0];
        assert_eq!(log.referer.as_deref(), referer.then_some("/r"));
        assert_eq!(log.user_agent.is_some(), user_agent);
        if let Some(shown) = &log.user_agent {
            assert!(shown.len() <= 2100 && shown.starts_with("a\"\t\u{fffd}\u{fffd}x"), "{shown}");
        }
    }
}

#[test]
fn bodies_beyond_the_limit_are_refused() {
    let make = || plain(|snapshot| snapshot.listeners[1].limits.body_bytes_max = 1000);
    let mut rig = make();
    rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 1001\r\n\r\n");
    assert_eq!(status_of(&rig.received()), 413);
    assert_eq!(rig.legs.len(), 0);
    let mut rig = make();
    rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nTransfer-Encoding: chunked\r\n\r\n");
    rig.send(b"300\r\n");
    rig.send(&noise(768));
    rig.send(b"\r\n300\r\n");
    rig.send(&noise(768));
    assert_eq!(status_of(&rig.received()), 413);
    assert_eq!(rig.legs[&1].released, Some(false));
    // What frames the body does not count.
    let mut rig = make();
    rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nTransfer-Encoding: chunked\r\n\r\n");
    rig.send("1\r\nx\r\n".repeat(1000).as_bytes());
    same(&rig.received(), b"");
    rig.send(b"1\r\nx\r\n");
    assert_eq!(status_of(&rig.received()), 413);
}

#[test]
fn no_pool_no_server_no_luck() {
    let mut rig = plain(|snapshot| snapshot.listeners[1].pool = None);
    rig.send(format!("{GET}\r\n").as_bytes());
    assert_eq!(status_of(&rig.received()), 404);
    assert!(!rig.client_fin);
    let mut rig = Rig::new_closed(&snapshot(|_| {}), setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    let leg = rig.dials.pop_front().unwrap().leg;
    rig.call(|conn, io| conn.handle_unavailable(io, leg, "no_server"));
    assert_eq!(status_of(&rig.received()), 503);
    assert_eq!(rig.logs[0].reason, "no_server");
    let mut rig = plain(|snapshot| snapshot.listeners[1].redirect_to_https = Some(443));
    rig.send(b"GET /a?b HTTP/1.1\r\nHost: test.example:80\r\n\r\n");
    let got = rig.received();
    assert_eq!(status_of(&got), 308);
    assert!(text(&got).contains("Location: https://test.example/a?b\r\n"));
}

#[test]
fn our_answer_to_a_whole_request_keeps_the_connection() {
    for (fields, body) in
        [("Content-Length: 5", "hello"), ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
    {
        let request = format!("PUT /a HTTP/1.1\r\nHost: test.example\r\n{fields}\r\n\r\n{body}");
        let mut rig = plain(|snapshot| snapshot.listeners[1].pool = None);
        rig.send(request.repeat(2).as_bytes());
        let got = text(&rig.received());
        assert_eq!(got.matches("HTTP/1.1 404 ").count(), 2, "{got}");
        assert!(!got.contains("Connection:") && !rig.client_fin, "{got}");
        let mut rig = plain(|_| {});
        for leg in 1..3 {
            rig.send(request.as_bytes());
            rig.call(|conn, io| conn.handle_unavailable(io, leg, "no_server"));
            let got = text(&rig.received());
            assert!(got.starts_with("HTTP/1.1 503 ") && !got.contains("Connection:"), "{got}");
        }
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(3, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert!(text(&rig.received()).ends_with("\r\n\r\nok"));
        for denied in [false, true] {
            let mut rig =
                plain(|snapshot| snapshot.listeners[1].pool = snapshot.listeners[1].pool.filter(|_| !denied));
            rig.send(request.as_bytes());
            rig.end_client();
            rig.call(|conn, io| conn.handle_unavailable(io, 1, "no_server"));
            let got = text(&rig.received());
            assert_eq!(got.matches("HTTP/1.1 ").count(), 1, "{denied}: {got}");
            assert_eq!(
                rig.closed,
                Some(false),
                "{denied}: a client whose request is whole gets its answer and the end"
            );
        }
    }
}

/// A client that waits for 100 (Continue) does not send a refused body, and other clients do: the next byte could be
/// either.
#[test]
fn our_answer_before_the_end_of_a_body_ends_the_connection() {
    for fields in
        ["Content-Length: 5", "Content-Length: 5\r\nExpect: 100-continue", "Transfer-Encoding: chunked"]
    {
        for version in ["1.0", "1.1"] {
            if version == "1.0" && fields.starts_with('T') {
                continue;
            }
            let mut rig = plain(|snapshot| snapshot.listeners[1].pool = None);
            let fields = format!("Host: test.example\r\nConnection: keep-alive\r\n{fields}");
            rig.send(format!("PUT /a HTTP/{version}\r\n{fields}\r\n\r\n").as_bytes());
            let got = text(&rig.received());
            assert!(got.starts_with("HTTP/1.1 404 ") && got.contains("\r\nConnection: close\r\n"), "{got}");
            assert!(rig.client_fin, "{fields}");
            rig.send(format!("{GET}\r\n").as_bytes());
            same(&rig.received(), b"");
        }
    }
}

#[test]
fn a_redirect_to_https_always_names_a_site_and_a_path() {
    for (request, location) in [
        ("OPTIONS * HTTP/1.1\r\nHost: test.example\r\n\r\n", "https://test.example:8443/"),
        ("GET /z HTTP/1.0\r\n\r\n", "https://203.0.113.1:8443/z"),
    ] {
        let mut rig = plain(|snapshot| snapshot.listeners[1].redirect_to_https = Some(8443));
        rig.send(request.as_bytes());
        let got = rig.received();
        assert_eq!(status_of(&got), 308);
        assert!(text(&got).contains(&format!("Location: {location}\r\n")), "{}", text(&got));
    }
    let mut rig = plain(|snapshot| snapshot.listeners[1].redirect_to_https = Some(443));
    rig.send(b"GET /a/../%zz HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert_eq!(status_of(&rig.received()), 400, "a path that is refused anywhere else");
}

#[test]
fn an_idempotent_request_is_tried_again_elsewhere() {
    on_each(|mut rig, scheme| {
        rig.send(format!("{GET}\r\n").as_bytes());
        same(&rig.server_got(1), &forwarded(GET, scheme, 0));
        rig.end_server(1);
        assert_eq!((rig.legs[&1].released, rig.legs[&2].server), (Some(false), 1));
        same(&rig.server_got(2), &forwarded(GET, scheme, 0));
        rig.serve(2, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(rig.logs[0].retries, 1);
    });
    on_each(|mut rig, _| {
        // In the middle of its body.
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 6\r\n\r\nabc");
        rig.reset_server(1);
        assert!(rig.server_got(2).ends_with(b"\r\n\r\nabc"));
        rig.send(b"def");
        same(&rig.server_got(2), b"def");
    });
    on_each(|mut rig, _| {
        // Until the tries are used up.
        rig.send(format!("{GET}\r\n").as_bytes());
        for leg in 1..=3 {
            rig.reset_server(leg);
        }
        assert_eq!(rig.legs.len(), 3);
        assert_eq!(status_of(&rig.received()), 502);
    });
}

#[test]
fn a_request_whose_head_is_too_long_to_be_kept_is_not_repeated() {
    let filler = format!("X-Filler: {}\r\n", "x".repeat(1000)).repeat(68);
    let head = format!("PUT /a HTTP/1.1\r\nHost: test.example\r\n{filler}Content-Length: 60\r\n\r\n");
    let large = |snapshot: &mut Snapshot| {
        for listener in &mut snapshot.listeners {
            listener.limits.http.head_bytes_max = 131_072;
        }
    };
    for (listener, peer) in [(setup::HTTP, Peer::plain()), (setup::HTTPS, Peer::rustls(TLS13))] {
        let mut rig = Rig::new(&snapshot(large), listener, peer);
        rig.send(head.as_bytes());
        rig.send(b"GET /admin HTTP/1.1\r\nHost: test.example\r\n\r\n"); // of its body
        rig.end_server(1);
        assert_eq!(
            (rig.legs.len(), status_of(&rig.received())),
            (1, 502),
            "its body reached a server as a request"
        );
    }
}

#[test]
fn a_request_that_may_have_been_executed_is_never_repeated() {
    on_each(|mut rig, _| {
        rig.send(b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3\r\n\r\nabc");
        rig.end_server(1);
        assert_eq!((rig.legs.len(), status_of(&rig.received())), (1, 502));
    });
    // Nothing was written: repeating it is safe.
    let mut rig = Rig::new_closed(&snapshot(|_| {}), setup::HTTP, Peer::plain());
    rig.send(b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3\r\n\r\nabc");
    rig.refuse_next(Failure::Refused);
    rig.open_next();
    assert!(rig.server_got(2).ends_with(b"\r\n\r\nabc"));
    rig.reset_server(2);
    assert_eq!((rig.dials.len(), status_of(&rig.received())), (0, 502));
    on_each(|mut rig, _| {
        // Part of a response was passed on.
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab");
        rig.reset_server(1);
        assert_eq!((rig.legs.len(), rig.closed), (1, Some(true)));
    });
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Le");
        rig.reset_server(1);
        assert_eq!((rig.legs.len(), status_of(&rig.received())), (1, 502));
    });
    on_each(|mut rig, _| {
        // More was sent than is kept for another try.
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 100000\r\n\r\n");
        rig.send(&noise(70_000));
        rig.reset_server(1);
        assert_eq!((rig.legs.len(), status_of(&rig.received())), (1, 502));
    });
}

#[test]
fn malformed_responses_are_answered_with_502() {
    for bytes in [
        "hello\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 2x0\r\n\r\n",
    ] {
        on_each(|mut rig, _| {
            rig.send(format!("{GET}\r\n").as_bytes());
            rig.serve(1, bytes.as_bytes());
            assert_eq!(status_of(&rig.received()), 502);
            assert_eq!((rig.legs.len(), rig.legs[&1].released), (1, Some(false)));
        });
    }
    for reset in [false, true] {
        on_each(|mut rig, _| {
            rig.send(format!("{GET}\r\n").as_bytes());
            rig.serve(1, b"<html>hi</html>");
            if reset {
                rig.reset_server(1)
            } else {
                rig.end_server(1)
            }
            let got = text(&rig.received());
            assert!(got.starts_with("HTTP/1.1 502 ") && got.contains("status_line_malformed"), "{got}");
            assert!(rig.dials.is_empty() && rig.legs.len() == 1, "it is not asked again");
        });
    }
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        rig.serve(1, b"zz");
        assert_eq!(rig.closed, Some(true), "a broken body cannot be taken back");
    });
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz");
        assert_eq!(status_of(&rig.received()), 502, "it has not begun");
    });
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        rig.end_server(1);
        assert_eq!(rig.closed, Some(true), "a truncated response must not look complete");
    });
}

#[test]
fn queued_request_has_the_timeout_of_the_queue() {
    let start = || {
        let mut rig = Rig::new_closed(
            &snapshot(|snapshot| snapshot.pools[0].connect = Micros::from_ms(100)),
            setup::HTTP,
            Peer::plain(),
        );
        rig.send(format!("{GET}\r\n").as_bytes());
        let until = rig.now + Micros::from_ms(500);
        rig.call(|conn, io| conn.handle_leg_queued(io.now, 1, until));
        rig
    };
    let mut rig = start();
    rig.wait(300);
    assert_eq!((rig.conn.timer(), rig.received().len()), (Timer::Queue, 0));
    let deadline = rig.conn.deadline();
    rig.conn.handle_blocked(rig.now);
    rig.call(|conn, io| conn.handle_flushed(io));
    assert_eq!((rig.conn.timer(), rig.conn.deadline()), (Timer::Queue, deadline), "blocked meanwhile");
    // Put into the queue once more, it has not more time.
    let later = rig.now + Micros::from_ms(10_000);
    rig.call(|conn, io| conn.handle_leg_queued(io.now, 1, later));
    rig.wait(200);
    assert_eq!(status_of(&rig.received()), 503);
    assert_eq!((rig.logs[0].reason, rig.dials.len()), ("queue_timeout", 0));

    let mut rig = start();
    rig.wait(450);
    rig.call(|conn, io| conn.handle_leg_connecting(io.now, 1, 2));
    rig.wait(99);
    assert_eq!((rig.conn.timer(), rig.dials.len()), (Timer::Connect, 1));
    rig.wait(1);
    let next = rig.dials.pop_front().expect("another server is asked for");
    assert_eq!((next.leg, next.tried), (2, vec![2]), "the server that could not be reached is known");
}

#[test]
fn failure_of_a_server_is_reported_once() {
    const NONE: [u32; 0] = [];
    let failed = |method: &str, serve: &[u8], then: fn(&mut Rig)| {
        let mut rig = plain(|snapshot| snapshot.pools[0].response = Micros::from_ms(100));
        rig.send(format!("{method} /a HTTP/1.1\r\nHost: test.example\r\n\r\n").as_bytes());
        rig.serve(1, serve);
        then(&mut rig);
        rig.failed
    };
    let end = |rig: &mut Rig| rig.end_server(1);
    let reset = |rig: &mut Rig| rig.reset_server(1);
    let wait = |rig: &mut Rig| rig.wait(200);
    let head = b"HTTP/1.1 200 OK\r\n";
    let short = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc";
    let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    let unframed = b"HTTP/1.1 200 OK\r\n\r\nabc";
    for then in [end, reset] {
        assert_eq!(failed("POST", b"", then), [1], "no answer");
        assert_eq!(failed("POST", head, then), [1], "half a head");
        assert_eq!(failed("POST", short, then), [1], "half a body");
        assert_eq!(failed("POST", whole, then), NONE, "it is done");
    }
    assert_eq!(failed("GET", b"", |rig| (1..=3).for_each(|leg| rig.reset_server(leg))), [1, 2, 3]);
    assert_eq!(failed("POST", b"", wait), [1], "no answer in time");
    assert_eq!(failed("POST", short, wait), [1], "not the whole in time");
    assert_eq!(failed("POST", b"nonsense\r\n\r\n", |_| ()), [1]);
    assert_eq!(failed("POST", unframed, end), NONE);
    assert_eq!(failed("POST", unframed, reset), [1]);
    assert_eq!(failed("GET", short, |rig| rig.cut_client()), NONE, "the client went away");
    let in_doubt = |rig: &mut Rig| {
        rig.call(|conn, io| conn.handle_server_write_error(io));
        rig.end_server(1);
        assert_eq!(rig.closed, Some(true), "what ends with the connection may have been cut");
    };
    assert_eq!(failed("POST", unframed, in_doubt), [1]);
    let upgrade = "GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
    let mut rig = plain(|_| {});
    rig.send(format!("{upgrade}Host: test.example\r\n\r\n").as_bytes());
    rig.serve(1, b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    rig.reset_server(1);
    assert_eq!(
        (rig.closed, &rig.failed[..]),
        (Some(true), &NONE[..]),
        "how a tunnel ends is its peers' affair"
    );
}

#[test]
fn interim_answers_leave_room_for_one_of_our_own() {
    for (served, wanted) in
        [("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 504), ("HTTP/1.1 200 OK\r\n", 504)]
    {
        let mut rig = Rig::new(
            &snapshot(|snapshot| snapshot.pools[0].response = Micros::from_ms(100)),
            setup::HTTP,
            Peer::plain(),
        );
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, served.as_bytes());
        let interim = rig.received();
        assert_eq!(interim.is_empty(), served.contains("200"), "half a head is nothing yet");
        rig.wait(200);
        assert_eq!(status_of(&rig.received()), wanted);
    }
    // Part of a response is more than that.
    let mut rig = Rig::new(
        &snapshot(|snapshot| snapshot.pools[0].response = Micros::from_ms(100)),
        setup::HTTP,
        Peer::plain(),
    );
    rig.send(format!("{GET}\r\n").as_bytes());
    rig.serve(1, b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
    rig.received();
    rig.wait(200);
    assert!(rig.received().is_empty());
    assert_eq!(rig.logs[0].reason, "response_timeout");
}

/// A head has to come as a whole in its time, however its bytes are spread.
#[test]
fn a_response_head_that_drips_does_not_hold_a_request() {
    let short = snapshot(|snapshot| snapshot.pools[0].response = Micros::from_ms(100));
    let mut rig = Rig::new(&short, setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    for byte in b"HTTP/1.1 200 OK".chunks(1) {
        rig.serve(1, byte);
        rig.wait(30);
        if !rig.logs.is_empty() {
            break;
        }
    }
    assert_eq!(status_of(&rig.received()), 504);
    // Each interim response restarts the deadline, and so does each part of the body; interim responses are bounded.
    let mut rig = Rig::new(&short, setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    for _ in 0..100 {
        rig.serve(1, b"HTTP/1.1 102 Processing\r\n\r\n");
        rig.wait(80);
        assert!(rig.received().starts_with(b"HTTP/1.1 102"));
    }
    rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
    for _ in 0..9 {
        rig.wait(80);
        rig.serve(1, b"x");
    }
    assert!(rig.received().ends_with(b"xxxxxxxxx"));
    let mut rig = Rig::new(&short, setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    (0..101).for_each(|_| rig.serve(1, b"HTTP/1.1 102 Processing\r\n\r\n"));
    assert_eq!(rig.logs[0].reason, "upstream_interim_responses");
}

/// Chunk extensions are passed on, and cost as much as content.
#[test]
fn framing_is_no_way_around_the_limit_of_a_body() {
    let asked = |line: &str, count: usize| {
        let mut rig = plain(|snapshot| snapshot.listeners[1].limits.body_bytes_max = 20_000);
        rig.send(b"POST /a HTTP/1.1\r\nHost: test.example\r\nTransfer-Encoding: chunked\r\n\r\n");
        (0..count).for_each(|_| rig.send(format!("1{line}\r\nx\r\n").as_bytes()));
        rig.logs.first().map(|log| (log.status, log.reason))
    };
    assert_eq!(asked("", 20_000), None, "the smallest chunks");
    assert_eq!(asked("", 20_001), Some((413, "body_too_long")));
    assert_eq!(asked(&format!(";{}", "e".repeat(200)), 300), None);
    assert_eq!(asked(&format!(";{}", "e".repeat(200)), 400), Some((400, "chunk_framing_too_long")));
}

/// HTTP/1.0 may name its host in the target alone, and rules see it as a line more than there are.
#[test]
fn no_header_is_out_of_the_rules_sight() {
    let rule = evergate_rules::RuleSpec {
        name: "last".to_owned(),
        when: r#"header("x-last") == "1""#.to_owned(),
        deny: Some(403.into()),
        ..evergate_rules::RuleSpec::default()
    };
    let mut rig = plain(|snapshot| {
        setup::set_rules(snapshot, std::slice::from_ref(&rule));
        snapshot.listeners[1].limits.http.headers_max = 128;
    });
    let others: String = (0..127).map(|n| format!("x-{n}: y\r\n")).collect();
    rig.send(format!("GET http://test.example/ HTTP/1.0\r\n{others}X-Last: 1\r\n\r\n").as_bytes());
    assert_eq!(status_of(&rig.received()), 403);
}

#[test]
fn http_1_0_client_gets_a_keep_alive_header() {
    for (line, reports) in
        [("Connection: keep-alive\r\n", "Connection: keep-alive"), ("", "Connection: close")]
    {
        let mut rig = plain(|snapshot| snapshot.listeners[1].pool = None);
        rig.send(format!("GET /a HTTP/1.0\r\n{line}\r\n").as_bytes());
        let got = rig.received();
        assert!(text(&got).contains(&format!("\r\n{reports}\r\n")), "{}", text(&got));
        assert_eq!(rig.client_fin, line.is_empty());
    }
}

#[test]
fn the_log_has_the_first_line_of_what_is_refused_for_its_form() {
    for (sent, method, target) in [
        (
            "GET /\u{9b}31m\u{2028}\u{e9} HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET",
            "/\u{fffd}31m\u{fffd}\u{e9}",
        ),
        ("GET /a?b HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET", "/a?b"),
        ("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "POST", "/x"),
        ("\u{16}\u{3}\u{1} x\r\n\r\n", "-", "-"),
    ] {
        let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTP, Peer::plain());
        rig.send(sent.as_bytes());
        let log = &rig.logs[0];
        assert_eq!((&log.method[..], &log.target[..]), (method, target), "{}", log.reason);
        assert_eq!(log.bytes_in, sent.len() as u64);
    }
    let short = snapshot(|snapshot| snapshot.timeouts.request_head = Micros::from_ms(100));
    let mut rig = Rig::new(&short, setup::HTTP, Peer::plain());
    rig.send(b"GET /slow HTTP/1.1\r\nHo");
    rig.wait(200);
    assert_eq!((&rig.logs[0].target[..], rig.logs[0].reason), ("/slow", "request_head_timeout"));
}

#[test]
fn a_head_request_that_is_refused_for_its_form_gets_no_body() {
    for (sent, status) in [("HEAD /a HTTP/1.1\nHost: a\r\n\r\n", 400), ("HEAD /a HTTP/1.1\r\nHo", 408)] {
        let short = snapshot(|snapshot| snapshot.timeouts.request_head = Micros::from_ms(100));
        let mut rig = Rig::new(&short, setup::HTTP, Peer::plain());
        rig.send(sent.as_bytes());
        rig.wait(200);
        let got = rig.received();
        assert_eq!(status_of(&got), status);
        assert!(got.ends_with(b"\r\n\r\n"), "{}", String::from_utf8_lossy(&got));
    }
}

#[test]
fn log_names_the_unreachable_server_and_the_cause() {
    let mut rig =
        Rig::new_closed(&snapshot(|snapshot| snapshot.pools[0].retries = 0), setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    let leg = rig.conn.leg_id().unwrap();
    rig.call(|conn, io| {
        conn.handle_leg_connecting(io.now, leg, 1);
        conn.handle_connect_failed(io, leg, &"Connection refused");
    });
    let log = &rig.logs[0];
    assert_eq!((log.reason, log.server, &log.detail[..]), ("connect_failed", Some(1), "Connection refused"));
}

#[test]
fn forwarded_part_of_a_broken_response_is_logged() {
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    rig.serve(1, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
    let sent = rig.received().len() as u64;
    assert!(sent > 0 && rig.logs[0].bytes_out == sent, "{sent} and {}", rig.logs[0].bytes_out);
}

#[test]
fn response_426_names_the_protocol() {
    let rule = evergate_rules::RuleSpec {
        name: "ws".to_owned(),
        when: r#"path == "/ws""#.to_owned(),
        deny: Some(426.into()),
        ..evergate_rules::RuleSpec::default()
    };
    let mut rig = plain(|snapshot| setup::set_rules(snapshot, std::slice::from_ref(&rule)));
    rig.send(b"GET /ws HTTP/1.1\r\nHost: test.example\r\n\r\n");
    let got = text(&rig.received());
    assert!(got.starts_with("HTTP/1.1 426 Upgrade Required\r\n"), "{got}");
    assert!(
        got.contains("\r\nConnection: Upgrade\r\n") && got.contains("\r\nUpgrade: websocket\r\n"),
        "{got}"
    );
    rig.send(b"GET /ws HTTP/1.1\r\nHost: test.example\r\nConnection: close\r\n\r\n");
    let got = text(&rig.received());
    assert!(got.contains("\r\nConnection: close, Upgrade\r\n"), "{got}");
}

/// A request on an idle connection of server 1, which takes `room` bytes of it.
fn on_idle(method: &str, retries: u32, room: usize) -> Rig {
    let config = snapshot(|snapshot| {
        snapshot.pools[0].stickiness = evergate_connection::Stickiness::Cookie;
        snapshot.pools[0].retries = retries;
    });
    let mut rig = Rig::new_closed(&config, setup::HTTP, Peer::plain());
    rig.server_room = room;
    rig.send(format!("{method} /a HTTP/1.1\r\nHost: test.example\r\nCookie: EG=c-b\r\n\r\n").as_bytes());
    rig.open_idle();
    rig.run();
    assert_eq!(rig.legs[&1].server, 1);
    rig
}

/// A server that closes an idle connection just when it is used has not failed.
#[test]
fn request_on_a_stale_connection_is_repeated_once_there() {
    let start = |method: &str| on_idle(method, 2, usize::MAX);
    let mut rig = start("GET");
    rig.reset_server(1);
    let dial = &rig.dials[0];
    assert_eq!(
        (dial.hint, &dial.tried[..], dial.reuse),
        (evergate_connection::ServerHint::Server(1), &[][..], false)
    );
    rig.open_next();
    rig.serve(2, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "no new cookie");
    assert_eq!((rig.legs[&2].server, rig.logs[0].retries), (1, 1));

    // Once: a new connection that fails is a failure of its server.
    let mut rig = start("GET");
    rig.end_server(1);
    rig.open_next();
    rig.reset_server(2);
    assert_eq!(
        (rig.dials[0].hint, &rig.dials[0].tried[..]),
        (evergate_connection::ServerHint::Policy, &[1][..])
    );

    // What may have been executed is not repeated, nor what was answered in part.
    let mut rig = start("POST");
    rig.reset_server(1);
    assert_eq!((status_of(&rig.received()), rig.dials.len()), (502, 0));
    let mut rig = start("GET");
    rig.serve(1, b"HTTP/1.1 200 OK\r\n");
    rig.reset_server(1);
    assert_eq!((status_of(&rig.received()), rig.dials.len()), (502, 0));
}

/// The kept connection may have carried the request to its server: that is an execution too.
#[test]
fn retries_count_every_execution() {
    for retries in 0..=3 {
        for idle in [false, true] {
            let mut rig = on_idle("GET", retries, usize::MAX);
            if !idle {
                rig = Rig::new_closed(
                    &snapshot(|snapshot| snapshot.pools[0].retries = retries),
                    setup::HTTP,
                    Peer::plain(),
                );
                rig.send(format!("{GET}\r\n").as_bytes());
                rig.open_next();
            }
            let mut executed = 0;
            while let Some(leg) = rig.conn.leg_id() {
                executed += usize::from(rig.server_got(leg).starts_with(b"GET "));
                rig.reset_server(leg);
                if !rig.dials.is_empty() {
                    rig.open_next();
                }
            }
            assert_eq!((executed, status_of(&rig.received())), (retries as usize + 1, 502), "idle: {idle}");
            assert_eq!((rig.logs[0].retries, rig.logs[0].reason), (retries, "upstream_lost"));
        }
    }
}

#[test]
fn a_request_of_which_nothing_left_is_repeated_without_count() {
    let reset = |rig: &mut Rig| rig.reset_server(1);
    let end = |rig: &mut Rig| rig.end_server(1);
    let write_fails = |rig: &mut Rig| {
        rig.call(|conn, io| conn.handle_server_write_error(io));
        rig.end_server(1);
    };
    let deaths: [fn(&mut Rig); 3] = [reset, end, write_fails];
    for (dies, method) in deaths.into_iter().flat_map(|dies| [(dies, "GET"), (dies, "POST")]) {
        let mut rig = on_idle(method, 0, 0);
        dies(&mut rig);
        assert_eq!((rig.dials.len(), rig.dials[0].reuse), (1, false));
        rig.server_room = usize::MAX;
        rig.open_next();
        assert!(rig.server_got(2).starts_with(format!("{method} /a HTTP/1.1\r\n").as_bytes()));
        // Once: nothing is left of the retries.
        rig.reset_server(2);
        assert_eq!((status_of(&rig.received()), rig.dials.len(), rig.logs[0].retries), (502, 0, 0));
        // The server may have all of which a byte has left.
        let mut rig = on_idle(method, 0, 1);
        dies(&mut rig);
        assert_eq!((status_of(&rig.received()), rig.dials.len()), (502, 0));
    }
}

#[test]
fn upgrade_state_carries_the_number_of_executions() {
    for generation in [1, 2] {
        let mut rig = on_idle("GET", 1, usize::MAX);
        rig.reset_server(1);
        rig.open_next();
        let newest = snapshot(|snapshot| {
            snapshot.generation = generation;
            snapshot.pools[0].retries = 1;
        });
        let upgrade_state = rig.conn.export(&newest).unwrap();
        rig.conn = Connection::import(&newest, &upgrade_state).unwrap().0;
        rig.reset_server(2);
        assert_eq!((status_of(&rig.received()), rig.dials.len()), (502, 0), "generation {generation}");
    }
}
