//! A server connection that authenticates its client serves no other client.

use super::harness::rig::Rig;
use super::harness::setup::{self, set_rules};
use super::{GET, on_each, plain, text};
use evergate_connection::Failure;
use evergate_rules::RuleSpec;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const OFFER: &[u8] = b"HTTP/1.1 401 X\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n";
const CHALLENGE: &[u8] = b"HTTP/1.1 401 X\r\nWWW-Authenticate: NTLM VFlQRTI=\r\nContent-Length: 0\r\n\r\n";

/// The client sends a request, and the leg of this number gets it.
#[track_caller]
fn ask(rig: &mut Rig, fields: &str, leg: u32) {
    rig.send(format!("{GET}{fields}\r\n").as_bytes());
    assert!(text(&rig.server_got(leg)).starts_with("GET /a HTTP/1.1\r\n"), "leg {leg}");
}

#[track_caller]
fn answer(rig: &mut Rig, leg: u32, response: &[u8], status: &str) {
    rig.serve(leg, response);
    let got = text(&rig.received());
    assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{got}");
}

/// The leg of this number is on the same connection as the one before.
#[track_caller]
fn same(rig: &Rig, leg: u32) {
    assert_eq!(rig.legs[&leg].before, Some(leg - 1));
}

#[test]
fn a_handshake_and_what_follows_stay_on_one_server_connection() {
    on_each(|mut rig, _| {
        ask(&mut rig, "", 1);
        answer(&mut rig, 1, OFFER, "401");
        ask(&mut rig, "Authorization: NTLM VFlQRTE=\r\n", 2);
        answer(&mut rig, 2, CHALLENGE, "401");
        ask(&mut rig, "Authorization: NTLM VFlQRTM=\r\n", 3);
        answer(&mut rig, 3, OK, "200");
        ask(&mut rig, "", 4);
        answer(&mut rig, 4, OK, "200");
        (2..=4).for_each(|leg| same(&rig, leg));
        rig.end_client();
        let last = &rig.legs[&4];
        assert_eq!((last.released, last.spent), (Some(true), true), "it is closed with its client");
        assert!(rig.legs.values().all(|leg| leg.released != Some(true) || leg.spent), "none is shared");
    });
}

#[test]
fn a_leg_is_bound_by_each_sign_and_by_nothing_else() {
    let cases: [(&str, &str, bool); 7] = [
        ("", "Persistent-Auth: true\r\n", true),
        ("", "Proxy-Authenticate: Basic realm=x, negotiate\r\n", true),
        ("Authorization: negotiate YII=\r\n", "", true),
        ("Proxy-Authorization: NTLM TlRM\r\n", "", true),
        ("Authorization: Basic eDp5\r\n", "WWW-Authenticate: Basic realm=\"NTLM\"\r\n", false),
        ("", "Persistent-Auth: false\r\n", false),
        ("", "", false),
    ];
    for (fields, of_response, bound) in cases {
        let mut rig = plain(|_| {});
        ask(&mut rig, fields, 1);
        let response = format!("HTTP/1.1 200 OK\r\n{of_response}Content-Length: 0\r\n\r\n");
        answer(&mut rig, 1, response.as_bytes(), "200");
        assert_eq!(rig.conn.bound_leg().is_some(), bound, "{fields}{of_response}");
        assert_eq!(rig.legs[&1].released, (!bound).then_some(true));
    }
}

#[test]
fn a_response_with_an_end_leaves_no_bound_leg_to_others() {
    for fields in ["Connection: close\r\n", ""] {
        let mut rig = plain(|_| {});
        ask(&mut rig, &format!("Authorization: NTLM x\r\n{fields}"), 1);
        rig.serve(1, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        let leg = &rig.legs[&1];
        assert!(leg.released == Some(false) || leg.spent, "{fields}");
        assert_eq!(rig.client_fin, !fields.is_empty(), "the server's end is no end of an identified client");
    }
}

#[test]
fn a_request_for_another_pool_closes_the_bound_leg() {
    let mut rig = plain(|snapshot| {
        let rule = RuleSpec {
            name: "other".to_owned(),
            when: r#"path.path_prefix("/other")"#.to_owned(),
            route: Some("other".to_owned()),
            ..RuleSpec::default()
        };
        set_rules(snapshot, &[rule]);
    });
    ask(&mut rig, "Authorization: NTLM x\r\n", 1);
    answer(&mut rig, 1, OK, "200");
    rig.send(b"GET /other HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert_eq!((rig.legs[&1].released, rig.legs[&1].spent), (Some(true), true));
    answer(&mut rig, 2, OK, "200");
    assert_eq!((rig.legs[&2].released, rig.legs[&2].spent), (Some(true), false));
    ask(&mut rig, "", 3);
    assert_eq!(rig.legs[&3].before, None);
}

#[test]
fn an_answer_of_our_own_leaves_the_bound_leg_alone() {
    let mut rig = plain(|snapshot| {
        let rule = RuleSpec {
            name: "no".to_owned(),
            when: r#"path.path_prefix("/no")"#.to_owned(),
            deny: Some(403.into()),
            ..RuleSpec::default()
        };
        set_rules(snapshot, &[rule]);
    });
    ask(&mut rig, "Authorization: NTLM x\r\n", 1);
    answer(&mut rig, 1, OK, "200");
    rig.send(b"GET /no HTTP/1.1\r\nHost: test.example\r\n\r\n");
    assert!(text(&rig.received()).starts_with("HTTP/1.1 403 "));
    ask(&mut rig, "", 2);
    same(&rig, 2);
}

#[test]
fn a_bound_leg_that_its_server_closes_is_replaced() {
    on_each(|mut rig, _| {
        ask(&mut rig, "Authorization: Negotiate x\r\n", 1);
        answer(&mut rig, 1, OK, "200");
        rig.end_retained();
        assert_eq!((rig.legs[&1].released, rig.client_fin), (Some(true), false));
        ask(&mut rig, "", 2);
        assert_eq!(rig.legs[&2].before, None);
        answer(&mut rig, 2, OFFER, "401");
        assert_eq!(rig.conn.bound_leg(), Some(2));
    });
}

#[test]
fn a_worker_that_cannot_use_the_bound_leg_connects() {
    let mut rig = plain(|_| {});
    ask(&mut rig, "Authorization: Negotiate x\r\n", 1);
    answer(&mut rig, 1, OK, "200");
    rig.retained = None; // its end came in the same moment
    ask(&mut rig, "", 2);
    assert_eq!((rig.legs[&1].released, rig.legs[&2].before), (Some(true), None));
    answer(&mut rig, 2, OK, "200");
}

#[test]
fn a_stale_bound_leg_is_retried_for_idempotent_requests_alone() {
    for (method, retried) in [("GET", true), ("POST", false)] {
        let mut rig = plain(|_| {});
        ask(&mut rig, "Authorization: NTLM x\r\n", 1);
        answer(&mut rig, 1, OK, "200");
        rig.send(format!("{method} /a HTTP/1.1\r\nHost: test.example\r\n\r\n").as_bytes());
        rig.end_server(2);
        assert_eq!(rig.legs.contains_key(&3), retried, "{method}");
        if !retried {
            assert!(text(&rig.received()).starts_with("HTTP/1.1 502 "));
        }
    }
}

#[test]
fn handshake_on_a_lost_server_connection_is_not_continued() {
    // While the leg idles: the client begins again on another connection.
    on_each(|mut rig, _| {
        ask(&mut rig, "Authorization: NTLM x\r\n", 1);
        answer(&mut rig, 1, CHALLENGE, "401");
        rig.end_retained();
        assert!(rig.client_fin && rig.legs.len() == 1);
    });
    // When its request is here, or was sent.
    for sent in [false, true] {
        on_each(|mut rig, _| {
            ask(&mut rig, "Authorization: NTLM x\r\n", 1);
            answer(&mut rig, 1, CHALLENGE, "401");
            if !sent {
                rig.retained = None;
            }
            rig.send(format!("{GET}Authorization: NTLM y\r\n\r\n").as_bytes());
            if sent {
                rig.reset_server(2);
            }
            let got = text(&rig.received());
            assert!(got.starts_with("HTTP/1.1 502 ") && got.contains("\r\nConnection: close\r\n"), "{got}");
            assert!(rig.client_fin && !rig.legs.contains_key(&3), "{:?}", rig.legs.keys());
        });
    }
}

#[test]
fn first_message_of_a_handshake_is_retried_as_requests_are() {
    let mut rig = Rig::new_closed(&setup::snapshot(|_| {}), setup::HTTP, super::Peer::plain());
    rig.send(format!("{GET}Authorization: NTLM x\r\n\r\n").as_bytes());
    rig.refuse_next(Failure::Refused);
    rig.open_next();
    rig.run();
    answer(&mut rig, 2, CHALLENGE, "401");
    assert_eq!(rig.conn.bound_leg(), Some(2));
}

#[test]
fn a_bound_leg_ends_with_the_keep_alive_time_and_a_drain() {
    for drains in [false, true] {
        let mut rig = plain(|_| {});
        ask(&mut rig, "Authorization: NTLM x\r\n", 1);
        answer(&mut rig, 1, OK, "200");
        match drains {
            true => rig.call(|conn, io| conn.handle_drain(io)),
            false => rig.wait(600_000),
        }
        assert_eq!((rig.legs[&1].released, rig.legs[&1].spent), (Some(true), true));
    }
}

/// Its server sees the client's address, see `client_source`.
#[test]
fn a_leg_from_the_clients_address_serves_this_client_alone() {
    for client_source in [true, false] {
        let mut rig = plain(|snapshot| snapshot.pools[0].client_source = client_source);
        let server = "10.0.0.1".parse().unwrap();
        assert_eq!(rig.conn.leg_source(server), None, "there is no leg");
        rig.opens = false;
        rig.send(format!("{GET}\r\n").as_bytes());
        assert_eq!(rig.dials[0].reuse, !client_source);
        let expected = client_source.then(|| Ok(rig.conn.client_address().ip().to_canonical()));
        assert_eq!(rig.conn.leg_source(server), expected);
        if client_source {
            assert!(rig.conn.leg_source("fd00::1".parse().unwrap()).unwrap().is_err());
        }

        let mut rig = plain(|snapshot| snapshot.pools[0].client_source = client_source);
        ask(&mut rig, "", 1);
        answer(&mut rig, 1, OK, "200");
        assert_eq!(rig.conn.bound_leg(), client_source.then_some(1));
        ask(&mut rig, "", 2);
        answer(&mut rig, 2, OK, "200");
        assert_eq!(rig.legs[&2].before, client_source.then_some(1));
    }
}
