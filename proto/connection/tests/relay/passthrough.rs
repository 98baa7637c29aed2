//! Passthrough: a hello decides, and the bytes pass as they came.

use super::harness::peer::Peer;
use super::harness::rig::Rig;
use super::harness::setup::{self, client_hello, set_rules, snapshot};
use super::{noise, same};
use evergate_connection::{Snapshot, Timer};
use evergate_rules::{Deny, RuleSpec};

fn rig(edit: impl FnOnce(&mut Snapshot)) -> Rig {
    Rig::new(&snapshot(edit), setup::PASSTHROUGH, Peer::plain())
}

fn ruled(snapshot: &mut Snapshot, rules: &[RuleSpec]) {
    let listeners = vec!["passthrough".to_owned()];
    let rules: Vec<RuleSpec> = rules
        .iter()
        .map(|rule| RuleSpec { listeners: listeners.clone(), of_connections: true, ..rule.clone() })
        .collect();
    snapshot.listeners[setup::PASSTHROUGH as usize].asks_rules = true;
    set_rules(snapshot, &rules);
}

fn rule(name: &str, when: &str) -> RuleSpec {
    RuleSpec { name: name.to_owned(), when: when.to_owned(), ..RuleSpec::default() }
}

#[test]
fn hello_opens_a_tunnel_whatever_its_segments_are() {
    let (up, down) = (noise(100_000), noise(150_001));
    for segment in [usize::MAX, 700, 1] {
        for record in [16_384, 1, 30] {
            let mut rig = rig(|_| {});
            rig.segment = segment;
            let hello = client_hello("shop.example", &["h2"], record);
            let (last, first) = hello.split_last().unwrap();
            rig.send(first);
            assert!(rig.legs.is_empty(), "nothing is decided before the hello is whole");
            assert_eq!(rig.conn.timer(), Timer::Handshake);
            rig.send(&[*last]);
            same(&rig.server_got(1), &hello);
            rig.send(&up);
            rig.serve(1, &down);
            same(&rig.server_got(1), &up);
            same(&rig.received(), &down);
            assert_eq!(rig.conn.timer(), Timer::Tunnel);
        }
    }
}

#[test]
fn rules_see_the_hello_and_choose_the_pool() {
    for (host, alpn, when, routed) in [
        ("a.example", &["h2", "http/1.1"][..], r#"tls.sni == "a.example""#, true),
        ("b.a.example", &[], r#"tls.sni.ends_with(".a.example")"#, true),
        ("a.example", &[], r#"tls.sni.ends_with(".a.example")"#, false),
        ("a.example", &["h2", "http/1.1"], r#"tls.alpn.contains("h2")"#, true),
        ("a.example", &["http/1.1"], r#"tls.alpn.contains("h2")"#, false),
        ("a.example", &[], r#"tls.version == "TLSv1.3" && client.ip in ["192.0.2.0/24"]"#, true),
        ("a.example", &[], "local.port == 8443", false),
        ("", &[], "tls.sni.exists()", false),
    ] {
        let to_other = RuleSpec { route: Some("other".to_owned()), ..rule("r", when) };
        let mut rig = rig(|snapshot| ruled(snapshot, &[to_other]));
        rig.send(&client_hello(host, alpn, 16_384));
        let (pool, _) = rig.conn.leg_server().unwrap();
        assert_eq!(pool == 1, routed, "{when} for {host:?} and {alpn:?}");
    }
}

#[test]
fn denied_hello_gets_its_alert_or_a_reset() {
    for (deny, answer) in [
        (Deny::AccessDenied, &[21, 3, 3, 0, 2, 2, 49][..]),
        (Deny::UnrecognizedName, &[21, 3, 3, 0, 2, 2, 112]),
        (Deny::Reset, b""),
    ] {
        let mut rig = rig(|snapshot| ruled(snapshot, &[RuleSpec { deny: Some(deny), ..rule("no", "true") }]));
        rig.send(&client_hello("a.example", &[], 16_384));
        same(&rig.received(), answer);
        assert!(rig.legs.is_empty());
        assert_eq!(rig.client_fin, deny != Deny::Reset, "{deny}");
        assert_eq!(rig.closed == Some(true), deny == Deny::Reset, "{deny}");
        assert_eq!(rig.logs.last().unwrap().reason, "denied_by_rule");
        assert_eq!(rig.logs.last().unwrap().host, "a.example");
    }
}

#[test]
fn hello_without_a_pool_is_refused_by_name() {
    let mut rig = rig(|snapshot| snapshot.listeners[setup::PASSTHROUGH as usize].pool = None);
    rig.send(&client_hello("a.example", &[], 16_384));
    same(&rig.received(), &[21, 3, 3, 0, 2, 2, 112]);
    assert_eq!(rig.logs.last().unwrap().reason, "no_route");
}

#[test]
fn first_bytes_without_tls_are_refused_with_a_reason() {
    let mut malformed = client_hello("a.example", &[], 16_384);
    malformed[5 + 4 + 34] = 200; // length of the session id
    for (bytes, reason, answer) in [
        (b"SSH-2.0-x\r\n".to_vec(), "not_tls", &[21][..]),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "plain_http_on_tls_port", b"HTTP/1.1 400 "),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n".to_vec(), "proxy_protocol_unexpected", b""),
        (vec![22, 3, 1, 0xff, 0xff, 1], "tls_handshake", &[21]),
        (malformed, "tls_handshake", &[21, 3, 3, 0, 2, 2, 50]),
    ] {
        let mut rig = rig(|_| {});
        rig.send(&bytes);
        assert!(rig.received().starts_with(answer), "{reason}");
        assert!(rig.legs.is_empty());
        assert_eq!(rig.logs.last().unwrap().reason, reason);
    }
}

#[test]
fn hello_that_does_not_end_is_refused_at_its_limit() {
    let mut rig = rig(|snapshot| {
        snapshot.listeners[setup::PASSTHROUGH as usize].limits.hello_bytes_max = 100;
    });
    rig.send(&client_hello("a.example", &[], 16_384));
    assert!(rig.received().starts_with(&[21]));
    assert_eq!(rig.logs.last().unwrap().reason, "tls_handshake");
}
