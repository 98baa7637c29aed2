//! Requests and responses one after the other.

use super::harness::peer::Peer;
use super::harness::rig::Rig;
use super::harness::setup::{self, forwarded, set_rules, snapshot};
use super::{GET, noise, on_each, plain, same, text};
use evergate_connection::{ServerHint, Stickiness};
use evergate_rules::{RateLimit, RuleId, RuleSpec};

#[test]
fn requests_of_a_kept_connection_reach_servers_one_by_one() {
    on_each(|mut rig, scheme| {
        for request in 0..3 {
            let leg = request + 1;
            rig.send(format!("{GET}\r\n").as_bytes());
            same(&rig.server_got(leg), &forwarded(GET, scheme, request));
            rig.serve(leg, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: x\r\n\r\nhello");
            same(&rig.received(), b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello");
            assert_eq!(rig.legs[&leg].released, Some(true));
        }
        rig.end_client();
        assert_eq!((rig.closed, rig.client_fin), (Some(false), true));
        assert_eq!(rig.logs.len(), 3);
        assert!(rig.logs.iter().all(|log| log.status == 200 && log.reason.is_empty() && log.bytes_out > 0));
    });
}

#[test]
fn any_segmentation_gives_the_same_bytes() {
    for segment in [1, 2, 3, 7, 60, 1000] {
        on_each(|mut rig, scheme| {
            rig.segment = segment;
            rig.send(
                format!("POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3\r\n\r\nabc{GET}\r\n")
                    .as_bytes(),
            );
            let head = "POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3\r\n";
            let mut expected = forwarded(head, scheme, 0);
            expected.extend_from_slice(b"abc");
            same(&rig.server_got(1), &expected);
            rig.serve(
                1,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\nSum: t\r\n\r\n",
            );
            same(
                &rig.received(),
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\nSum: t\r\n\r\n",
            );
            same(&rig.server_got(2), &forwarded(GET, scheme, 1));
            rig.serve(2, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n");
            same(&rig.received(), b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n");
            assert_eq!(rig.legs[&2].released, Some(true));
        });
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_and_never_overlap() {
    on_each(|mut rig, scheme| {
        rig.send(format!("{GET}\r\n").repeat(4).as_bytes());
        for leg in 1..=4 {
            assert_eq!(rig.legs.len(), leg as usize, "a request started before its turn");
            same(&rig.server_got(leg), &forwarded(GET, scheme, leg - 1));
            rig.serve(leg, format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{leg}").as_bytes());
            same(&rig.received(), format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{leg}").as_bytes());
        }
    });
}

#[test]
fn responses_without_a_body_end_with_their_head() {
    on_each(|mut rig, _| {
        rig.send(b"HEAD /a HTTP/1.1\r\nHost: test.example\r\n\r\n");
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(2, b"HTTP/1.1 204 No Content\r\n\r\n");
        same(&rig.received(), b"HTTP/1.1 204 No Content\r\n\r\n");
        assert!(rig.legs.values().all(|leg| leg.released == Some(true)));
    });
}

#[test]
fn bytes_after_a_response_cost_the_server_its_connection() {
    let body = noise(16_384 * 3);
    for (head, body, surplus) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", &b""[..], &b"x"[..]),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ab", b"HTTP/1.1 200 OK\r\n"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 49152\r\n\r\n", &body, b"surplus"),
    ] {
        on_each(|mut rig, _| {
            rig.send(format!("{GET}\r\n").as_bytes());
            rig.serve(1, head.as_bytes());
            rig.serve(1, &[body, surplus].concat());
            same(&rig.received(), &[head.as_bytes(), body].concat());
            // Surplus in the same read is seen; surplus later is the worker's to find when it reuses the socket.
            if !body.is_empty() {
                assert_eq!(rig.legs[&1].released, Some(false), "{head}");
            }
            rig.send(format!("{GET}\r\n").as_bytes());
            rig.serve(2, &[head.as_bytes(), body, surplus].concat());
            same(&rig.received(), &[head.as_bytes(), body].concat());
            assert_eq!(rig.legs[&2].released, Some(false), "{head}");
        });
    }
}

#[test]
fn http_1_0_client_gets_one_response_unless_it_asks_for_more() {
    on_each(|mut rig, scheme| {
        rig.send(b"GET /a HTTP/1.0\r\nHost: test.example\r\nConnection: keep-alive\r\n\r\n");
        same(&rig.server_got(1), &forwarded(GET, scheme, 0));
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok");
        assert_eq!(rig.legs[&1].released, Some(true));
        rig.send(b"GET /a HTTP/1.0\r\nHost: test.example\r\n\r\n");
        same(&rig.server_got(2), &forwarded(GET, scheme, 1));
        rig.serve(2, b"HTTP/1.0 200 OK\r\n\r\nuntil the end");
        assert!(!rig.client_fin);
        rig.end_server(2);
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end");
        assert!(rig.client_fin);
        rig.end_client();
        assert_eq!(rig.closed, Some(false));
    });
    on_each(|mut rig, _| {
        // It does not know chunks: it gets their content, and the end of the connection marks the end.
        rig.send(b"GET /a HTTP/1.0\r\nHost: test.example\r\nConnection: keep-alive\r\n\r\n");
        rig.serve(
            1,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n",
        );
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde");
        assert!(rig.client_fin);
    });
}

#[test]
fn close_is_kept_on_both_sides() {
    on_each(|mut rig, _| {
        rig.send(b"GET /a HTTP/1.1\r\nHost: test.example\r\nConnection: close\r\n\r\n");
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        assert!(rig.client_fin && rig.closed.is_none());
        rig.wait(60_000);
        assert_eq!(rig.closed, Some(false), "the linger ends");
    });
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!((rig.legs[&1].released, rig.client_fin), (Some(false), false));
    });
}

#[test]
fn interim_responses_pass_to_whom_they_mean_something() {
    on_each(|mut rig, scheme| {
        rig.send(
            b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n",
        );
        let head = "POST /a HTTP/1.1\r\nHost: test.example\r\nExpect: 100-continue\r\nContent-Length: 4\r\n";
        same(&rig.server_got(1), &forwarded(head, scheme, 0));
        rig.serve(1, b"HTTP/1.1 100 Continue\r\n\r\n");
        same(&rig.received(), b"HTTP/1.1 100 Continue\r\n\r\n");
        rig.send(b"body");
        same(&rig.server_got(1), b"body");
        rig.serve(
            1,
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        );
        same(
            &rig.received(),
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        );
        assert_eq!(rig.legs[&1].released, Some(true));
        rig.send(b"GET /a HTTP/1.0\r\nHost: test.example\r\n\r\n");
        rig.serve(2, b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    });
}

#[test]
fn a_cookie_keeps_the_client_on_its_server() {
    let make = || plain(|snapshot| snapshot.pools[0].stickiness = Stickiness::Cookie);
    let mut rig = make();
    rig.send(format!("{GET}\r\n").as_bytes());
    rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    same(
        &rig.received(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: EG=c-a; Path=/; HttpOnly; SameSite=Lax\r\n\r\n",
    );
    rig.send(format!("{GET}Cookie: x=y; EG=c-c\r\n\r\n").as_bytes());
    assert_eq!(rig.legs[&2].server, 2);
    rig.serve(2, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    // The first that names a server counts, in quotes too.
    for lines in ["Cookie: EG=zz; EG=c-c", "Cookie: EG=\"\"\r\nCookie: EG=\"c-c\"; EG=c-a"] {
        let mut rig = make();
        rig.send(format!("{GET}{lines}\r\n\r\n").as_bytes());
        assert_eq!(rig.legs[&1].server, 2, "{lines}");
    }
    // A server that cannot be reached is replaced, and the cookie with it.
    let mut rig = make();
    rig.opens = false;
    rig.send(format!("{GET}Cookie: EG=c-c\r\n\r\n").as_bytes());
    assert_eq!(rig.dials[0].hint, ServerHint::Server(2));
    rig.refuse_next(evergate_connection::Failure::Refused);
    assert_eq!(rig.dials[0].hint, ServerHint::Policy);
    rig.open_next();
    rig.serve(2, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(text(&rig.received()).contains("Set-Cookie: EG=c-a;"));
    // So is one that breaks when the request has reached it.
    let mut rig = make();
    rig.send(format!("{GET}Cookie: EG=c-c\r\n\r\n").as_bytes());
    assert_eq!(rig.legs[&1].server, 2);
    rig.reset_server(1);
    rig.serve(2, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(text(&rig.received()).contains("Set-Cookie: EG=c-a;"));
}

fn rule(name: &str, when: &str) -> RuleSpec {
    RuleSpec { name: name.to_owned(), when: when.to_owned(), ..RuleSpec::default() }
}

#[test]
fn rules_route_deny_redirect_limit_and_edit() {
    let rules = [
        RuleSpec {
            set_request_headers: [("X-A".to_owned(), "1".to_owned())].into(),
            remove_request_headers: vec!["X-B".to_owned()],
            set_response_headers: [("X-C".to_owned(), "2".to_owned())].into(),
            remove_response_headers: vec!["Server".to_owned()],
            ..rule("edit", r#"path == "/edit""#)
        },
        RuleSpec { route: Some("other".to_owned()), ..rule("other", r#"path == "/other""#) },
        RuleSpec { deny: Some(403.into()), ..rule("deny", r#"path == "/deny""#) },
        RuleSpec { redirect: Some("https://x${path}".to_owned()), ..rule("move", r#"path == "/move""#) },
        RuleSpec {
            rate_limit: Some(RateLimit { requests_per_s: 1, burst: 1, key: Default::default() }),
            ..rule("limit", r#"path == "/limit""#)
        },
    ];
    let mut rig = plain(|snapshot| set_rules(snapshot, &rules));
    rig.send(b"GET /edit HTTP/1.1\r\nHost: test.example\r\nX-B: 9\r\nX-A: 7\r\n\r\n");
    let got = rig.server_got(1);
    assert!(
        text(&got).contains("x-a: 1\r\n") && !text(&got).contains("X-B") && !text(&got).contains("X-A: 7")
    );
    rig.serve(1, b"HTTP/1.1 200 OK\r\nServer: s\r\nContent-Length: 0\r\n\r\n");
    same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nx-c: 2\r\n\r\n");
    rig.send(b"GET /other HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert_eq!(rig.legs[&2].pool, 1);
    rig.serve(2, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    rig.received();
    // Answers of our own leave the connection open when the request had no body.
    rig.send(
        b"GET /deny HTTP/1.1\r\nHost: test.example\r\n\r\nGET /move HTTP/1.1\r\nHost: test.example\r\n\r\n",
    );
    let got = text(&rig.received());
    assert!(got.starts_with("HTTP/1.1 403 Forbidden\r\n") && got.contains("HTTP/1.1 302 Found\r\n"), "{got}");
    assert!(got.contains("Location: https://x/move\r\n") && !got.contains("Connection: close"), "{got}");
    rig.send(b"HEAD /deny HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert!(text(&rig.received()).ends_with("\r\n\r\n"));
    rig.node.refuses = true;
    rig.send(b"GET /limit HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert!(text(&rig.received()).contains("429 Too Many Requests\r\n"));
    let limited = rig.logs.last().unwrap();
    assert_eq!((limited.reason, limited.rule), ("rate_limited", Some(RuleId(4))), "the rule of the limit");
    assert_eq!(rig.matched.iter().map(|rule| rule.0).collect::<Vec<_>>(), [0, 1, 2, 3, 2, 4]);
    assert_eq!(rig.legs.len(), 2);
}

#[test]
fn rules_see_the_start_of_a_body() {
    let rules = [RuleSpec { route: Some("other".to_owned()), ..rule("body", r#"json("/kind") == "x""#) }];
    let make = || Rig::new(&snapshot(|snapshot| set_rules(snapshot, &rules)), setup::HTTP, Peer::plain());
    let short_sighted = || {
        let limited = snapshot(|snapshot| {
            set_rules(snapshot, &rules);
            snapshot.listeners[1].limits.body_prefix_bytes = 100;
        });
        Rig::new(&limited, setup::HTTP, Peer::plain())
    };
    for segment in [1, 5, usize::MAX] {
        let mut rig = make();
        rig.segment = segment;
        rig.send(
            b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Type: application/json\r\n\
              Content-Length: 12\r\n\r\n{\"kind\":\"x\"}",
        );
        assert_eq!(rig.legs[&1].pool, 1, "segment {segment}");
        assert!(rig.server_got(1).ends_with(b"\r\n\r\n{\"kind\":\"x\"}"));
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        // Chunked, with the client waiting for leave to send.
        rig.received();
        rig.send(
            b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Type: application/json\r\n\
              Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
        );
        same(&rig.received(), b"HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(rig.legs.len(), 1);
        rig.send(b"5\r\n{\"kin\r\n7\r\nd\":\"x\"}\r\n0\r\n\r\n");
        assert_eq!(rig.legs[&2].pool, 1, "segment {segment}");
        let got = rig.server_got(2);
        assert!(got.ends_with(b"\r\n\r\n5\r\n{\"kin\r\n7\r\nd\":\"x\"}\r\n0\r\n\r\n"));
        assert!(!text(&got).contains("Expect"), "the server would send 100 once more");
        rig.serve(2, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }
    // In the smallest chunks, each in a packet of its own: decided when it ends.
    let mut rig = make();
    rig.send(
        b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Type: application/json\r\n\
              Transfer-Encoding: chunked\r\n\r\n",
    );
    let chunks =
        |content: &str| content.bytes().map(|byte| format!("1\r\n{}\r\n", byte as char)).collect::<Vec<_>>();
    for chunk in chunks(r#"{"kind":"x"}"#) {
        rig.send(chunk.as_bytes());
        assert!(rig.legs.is_empty(), "more may follow");
    }
    rig.send(b"0\r\n\r\n");
    assert_eq!(rig.legs[&1].pool, 1);
    assert!(
        rig.server_got(1).ends_with(format!("{}0\r\n\r\n", chunks(r#"{"kind":"x"}"#).concat()).as_bytes())
    );
    // ... or when there is as much of it as rules may see.
    let mut rig = short_sighted();
    rig.send(
        b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Type: application/json\r\n\
              Transfer-Encoding: chunked\r\n\r\n",
    );
    let mut sent = 0;
    while rig.legs.is_empty() && sent < 900 {
        rig.send(b"1\r\n \r\n");
        sent += 1;
    }
    assert!((101..=110).contains(&sent), "decided after {sent} chunks of one byte");
    // A body longer than what rules may see is decided by its start.
    let mut rig = short_sighted();
    let body = noise(5000);
    rig.segment = 50;
    rig.send(
        b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Type: application/json\r\n\
              Content-Length: 5000\r\n\r\n",
    );
    rig.send(&body);
    assert_eq!(rig.legs[&1].pool, 0);
    assert!(rig.server_got(1).ends_with(&body));
}

#[test]
fn request_that_waits_for_its_body_keeps_its_configuration() {
    let when = r#"json("/kind") == "x""#;
    let to_other = [RuleSpec { route: Some("other".to_owned()), ..rule("old", when) }];
    let denied = [RuleSpec { deny: Some(403.into()), ..rule("new", when) }];
    let mut rig = Rig::new(&snapshot(|snapshot| set_rules(snapshot, &to_other)), setup::HTTP, Peer::plain());
    let head = "POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n";
    rig.send(format!("{head}{{\"kin").as_bytes());
    rig.node.snapshot = snapshot(|snapshot| {
        set_rules(snapshot, &denied);
        snapshot.generation += 1;
    });
    rig.send(b"d\":\"x\"}");
    assert_eq!(rig.legs[&1].pool, 1);
    rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert!(
        text(&rig.received()).starts_with("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"),
        "it stays open"
    );
    let log = &rig.logs[0];
    let names =
        log.snapshot.as_ref().map(|snapshot| snapshot.pools[log.pool.unwrap() as usize].name.as_str());
    assert_eq!(names, Some("other"));
    rig.send(format!("{head}{{\"kind\":\"x\"}}").as_bytes());
    assert!(text(&rig.received()).starts_with("HTTP/1.1 403 Forbidden\r\n"), "the next one");
}

#[test]
fn request_refused_by_one_limit_uses_up_no_other() {
    let limit = RateLimit { requests_per_s: 1, burst: 1, key: Default::default() };
    let rules = ["a", "b", "c"]
        .map(|name| RuleSpec { rate_limit: Some(limit.clone()), ..rule(name, r#"path.path_prefix("/")"#) });
    let mut rig = plain(|snapshot| set_rules(snapshot, &rules));
    rig.node.refused_by = Some(evergate_rules::RuleId(2));
    rig.send(b"GET / HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert!(text(&rig.received()).starts_with("HTTP/1.1 429 "));
    assert_eq!(rig.node.taken, 0);
    rig.node.refused_by = None;
    rig.send(b"GET / HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert_eq!((rig.legs.len(), rig.node.taken), (1, 3));
}
