//! Clients that resend a request after a failover: the server gets what the rules let pass, and nothing else.

use crate::harness::setup;
use crate::pair::Pair;
use crate::scenario::{Wire, config};
use evergate_connection::Snapshot;
use std::sync::Arc;

/// A form of which rules see so much.
fn form(seen: usize) -> Arc<Snapshot> {
    setup::snapshot(|snapshot| {
        snapshot.listeners.iter_mut().for_each(|listener| listener.limits.body_prefix_bytes = seen);
        let odd = evergate_rules::RuleSpec {
            name: "odd".to_owned(),
            when: r#"form("no") == "1""#.to_owned(),
            deny: Some(406.into()),
            ..Default::default()
        };
        setup::set_rules(snapshot, &[odd]);
    })
}

const FORM: &str =
    "POST /form HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: ";

/// Rules that look at bodies: the server gets what the rules let pass, also after a failover in which the client could
/// send another body.
#[test]
fn body_that_rules_saw_is_compared_when_it_is_resent() {
    let config = config(Wire::Plain);
    let ask = |framing: &str, body: &str| {
        format!("POST /json HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{framing}\r\n\r\n{body}")
    };
    let length = "Content-Length: 10";
    let [good, bad] = ["0", "1"].map(|no| ask(length, &format!("{{\"no\":\"{no}\"}}")));
    let mut refused = Pair::new(&config, setup::HTTP);
    refused.client_sends(bad.as_bytes());
    assert!(refused.to_client.starts_with(b"HTTP/1.1 406 "));
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends(good.as_bytes());
    pair.open();
    let (state, reported) = (pair.replicated, pair.to_server);
    assert_eq!(state.client_frontier(), 0, "nothing is acknowledged");
    let chunked = |body: &str| ask("Transfer-Encoding: chunked", body);
    for (again, continues) in [
        (good.clone(), true),
        (bad.clone(), false),
        (ask("Content-Length: 11", "{\"no\":\"0\"} "), false),
        (ask("Content-Length: 4", "null"), false),
        (chunked("a\r\n{\"no\":\"0\"}\r\n0\r\n\r\n"), false),
        (chunked("z"), false),
    ] {
        for step in [1, 7, 1000] {
            let mut pair = Pair::restore(&state, &config);
            for piece in again.as_bytes().chunks(step) {
                assert!(pair.to_server.is_empty(), "it is not whole yet");
                pair.client_sends(piece);
                if pair.closed.is_some() {
                    break;
                }
            }
            match continues {
                true => assert_eq!((pair.closed, &pair.to_server), (None, &reported), "by {step}"),
                false => {
                    assert_eq!(
                        (pair.closed, pair.reasons.last()),
                        (Some(true), Some(&"request_replay_mismatch"))
                    );
                    assert!(pair.to_server.is_empty(), "{again:?} by {step}");
                }
            }
        }
    }
}

/// Of two equal requests the hash is the same.
#[test]
fn request_is_repeated_only_at_the_answered_input() {
    let config = config(Wire::Plain);
    let ask = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends(ask.as_bytes());
    pair.open();
    assert_eq!(pair.replicated.answered, ask.len() as u64);
    for ahead in [0, 1] {
        let mut state = pair.replicated.clone();
        state.routes.values_mut().for_each(|route| route.answered += ahead);
        let mut next = Pair::restore(&state, &config);
        next.client_sends(ask.as_bytes());
        match ahead {
            0 => assert_eq!((next.closed, next.to_server), (None, pair.to_server.clone())),
            _ => {
                assert_eq!((next.closed, next.reasons.last()), (Some(true), Some(&"request_replay_mismatch")))
            }
        }
    }
}

/// Only as far as rules looked: the bytes behind that may be long, and are still the client's to send.
#[test]
fn body_behind_what_rules_saw_is_not_waited_for() {
    let config = form(100);
    let head = [FORM, "1000\r\n\r\n"].concat();
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends([&head, &*"a".repeat(100)].concat().as_bytes());
    assert!(pair.dialled.is_some());
    pair.open();
    let state = pair.replicated;
    let mut next = Pair::restore(&state, &config);
    next.client_sends([&head, &*"a".repeat(99)].concat().as_bytes());
    assert!(next.to_server.is_empty() && next.closed.is_none());
    next.client_sends(b"ab");
    assert!(next.to_server.ends_with(b"ab") && next.closed.is_none());
}

/// Nodes get another configuration one after the other.
#[test]
fn node_with_a_shorter_body_prefix_waits_for_the_seen_one() {
    let ask = [FORM, "60000\r\n\r\n", &"a".repeat(60_000)].concat();
    let mut pair = Pair::new(&form(65_536), setup::HTTP);
    pair.client_sends(ask.as_bytes());
    pair.open();
    let mut next = Pair::restore(&pair.replicated, &form(4_096));
    for piece in ask.as_bytes().chunks(1_448) {
        next.client_sends(piece);
    }
    assert_eq!((next.closed, next.to_server == pair.to_server), (None, true));
}

/// With other chunks a body ends elsewhere for a server that has part of it: the bytes behind would be a request to it,
/// seen by no rule. The server is asked to accept none.
#[test]
fn server_accepts_no_request_behind_a_body_of_variable_chunks() {
    let config = config(Wire::Plain);
    let (close, response) = ("\r\nConnection: close\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    for (framing, body, closes) in [
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n", true),
        ("Content-Length: 5", "hello", false),
    ] {
        let head = format!("POST /page HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n");
        let mut pair = Pair::new(&config, setup::HTTP);
        pair.client_sends([&head, body].concat().as_bytes());
        let leg = pair.open();
        let reported = String::from_utf8(pair.to_server.clone()).unwrap();
        assert_eq!((reported.contains(close), reported.ends_with(body)), (closes, true), "{reported}");
        let mut next = Pair::restore(&pair.replicated, &config);
        next.client_sends([&head, body].concat().as_bytes());
        assert_eq!(next.to_server, pair.to_server, "the next node makes the same head");
        // Nor does another client's request follow it.
        let sent = reported.len() as u64;
        pair.call(|conn, io| conn.handle_server_acked(io, leg, sent));
        pair.server_sends(response.as_bytes());
        let output = pair.conn.output_position();
        pair.call(|conn, io| conn.handle_client_acked(io, output));
        assert_eq!(pair.released, [(leg, true, closes)]);
    }
}
