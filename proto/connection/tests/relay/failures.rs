//! What fails behind a client whose request came whole costs it no connection.

use super::harness::setup::set_rules;
use super::{GET, on_each, plain, text};
use evergate_connection::Failure;
use evergate_rules::RuleSpec;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn a_client_asks_again_on_its_connection() {
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"hello\r\n\r\n");
        let got = text(&rig.received());
        assert!(got.starts_with("HTTP/1.1 502 ") && !got.contains("Connection:"), "{got}");
        // A body that came whole is no hindrance; a HEAD gets no body.
        rig.send(b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3\r\n\r\nabc");
        rig.reset_server(2);
        let got = text(&rig.received());
        assert!(got.starts_with("HTTP/1.1 502 ") && !got.contains("Connection:"), "{got}");
        rig.send(b"HEAD /a HTTP/1.1\r\nHost: test.example\r\n\r\n");
        rig.wait(20_000);
        let got = text(&rig.received());
        assert!(got.starts_with("HTTP/1.1 504 ") && got.ends_with("\r\n\r\n"), "{got}");
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(4, OK);
        assert!(text(&rig.received()).starts_with("HTTP/1.1 200 OK\r\n"));
        assert_eq!(rig.logs.iter().map(|log| log.status).collect::<Vec<_>>(), [502, 502, 504, 200]);
        assert!(!rig.client_fin && rig.closed.is_none());
    });
}

#[test]
fn requests_behind_the_failed_one_are_answered() {
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n{GET}\r\n").as_bytes());
        rig.serve(1, b"hello\r\n\r\n");
        rig.serve(2, OK);
        let got = text(&rig.received());
        assert!(got.starts_with("HTTP/1.1 502 ") && got.ends_with("\r\n\r\nok"), "{got}");
    });
}

#[test]
fn pool_without_servers_answers_and_keeps_the_connection() {
    on_each(|mut rig, _| {
        for leg in 1..3 {
            rig.send(format!("{GET}\r\n").as_bytes());
            rig.call(|conn, io| conn.handle_unavailable(io, leg, "no_server"));
            let got = text(&rig.received());
            assert!(got.starts_with("HTTP/1.1 503 ") && !got.contains("Connection:"), "{got}");
        }
    });
}

#[test]
fn connection_ends_where_the_request_is_incomplete() {
    on_each(|mut rig, _| {
        rig.send(b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3\r\n\r\nab");
        rig.reset_server(1);
        let got = text(&rig.received());
        assert!(got.starts_with("HTTP/1.1 502 ") && got.contains("\r\nConnection: close\r\n"), "{got}");
        assert!(rig.client_fin);
    });
    for (request, after) in [
        ("GET /a HTTP/1.1\r\nHost: test.example\r\nConnection: close\r\n\r\n", "close"),
        ("GET /a HTTP/1.0\r\nHost: test.example\r\n\r\n", "close"),
        ("GET /a HTTP/1.0\r\nHost: test.example\r\nConnection: keep-alive\r\n\r\n", "keep-alive"),
    ] {
        on_each(|mut rig, _| {
            rig.send(request.as_bytes());
            rig.serve(1, b"hello\r\n\r\n");
            let got = text(&rig.received());
            assert!(got.contains(&format!("\r\nConnection: {after}\r\n")), "{got}");
            assert_eq!(rig.client_fin, after == "close");
        });
    }
    on_each(|mut rig, _| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.call(|conn, io| conn.handle_drain(io));
        rig.serve(1, b"hello\r\n\r\n");
        assert!(text(&rig.received()).contains("\r\nConnection: close\r\n"));
        assert!(rig.client_fin);
    });
}

/// HSTS and the like belong to each response of a site.
#[test]
fn response_headers_of_rules_are_set_in_our_answers() {
    let rule = RuleSpec {
        name: "all".to_owned(),
        when: r#"path.path_prefix("/")"#.to_owned(),
        set_response_headers: [("X-C".to_owned(), "2".to_owned())].into(),
        ..RuleSpec::default()
    };
    let mut rig = plain(|snapshot| set_rules(snapshot, std::slice::from_ref(&rule)));
    rig.send(format!("{GET}\r\n").as_bytes());
    rig.serve(1, b"hello\r\n\r\n");
    assert!(text(&rig.received()).contains("\r\nx-c: 2\r\n"));
    let mut rig = plain(|snapshot| set_rules(snapshot, std::slice::from_ref(&rule)));
    rig.send(b"POST /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3\r\n\r\nab");
    rig.call(|conn, io| conn.handle_leg_failed(io, 1, Failure::Tls));
    let got = text(&rig.received());
    assert!(got.contains("\r\nx-c: 2\r\n") && got.contains("\r\nConnection: close\r\n"), "{got}");
}
