//! Clients behind trusted proxies: rules, stickiness, rate limits and the log have the client of each request.

use super::harness::setup::{self, CLIENT, set_rules};
use super::{plain, text};
use evergate_connection::{ServerHint, Snapshot, Stickiness};
use evergate_http::ForwardedTrust;
use evergate_rules::RuleSpec;

fn trusting(snapshot: &mut Snapshot, network: &str) {
    let networks = vec![network.parse().unwrap()];
    snapshot.listeners[setup::HTTP as usize].trust_forwarded = ForwardedTrust::Networks(networks);
}

fn get(path: &str, client: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\n\r\n").into_bytes()
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn rules_and_stickiness_use_the_client_of_each_request() {
    let denied = RuleSpec {
        name: "denied".to_owned(),
        when: r#"client.ip == "192.0.2.99""#.to_owned(),
        deny: Some(403.into()),
        ..RuleSpec::default()
    };
    let mut rig = plain(|snapshot| {
        trusting(snapshot, CLIENT);
        set_rules(snapshot, &[denied]);
        snapshot.pools[0].stickiness = Stickiness::Source;
    });
    rig.opens = false;
    for client in ["192.0.2.1", "2001:db8::5"] {
        rig.send(&get("/a", client));
        let dial = rig.dials.front().unwrap();
        assert_eq!(dial.hint, ServerHint::Source(client.parse().unwrap()));
        let leg = dial.leg;
        rig.open_next();
        let got = text(&rig.server_got(leg));
        assert!(got.contains(&format!("X-Forwarded-For: {client}, {CLIENT}\r\n")), "{got}");
        rig.serve(leg, OK);
    }
    rig.received();
    rig.send(&get("/a", "192.0.2.99"));
    assert!(text(&rig.received()).starts_with("HTTP/1.1 403 "));
    let clients: Vec<String> =
        rig.logs.iter().map(|log| log.client.map_or(String::new(), |client| client.to_string())).collect();
    assert_eq!(clients, ["192.0.2.1", "2001:db8::5", "192.0.2.99"]);
}

#[test]
fn peer_outside_trusted_networks_is_the_client() {
    let denied = RuleSpec {
        name: "denied".to_owned(),
        when: format!(r#"client.ip == "{CLIENT}" || header("x-forwarded-for").exists()"#),
        deny: Some(403.into()),
        ..RuleSpec::default()
    };
    let mut rig = plain(|snapshot| {
        trusting(snapshot, "198.18.0.0/15");
        set_rules(snapshot, &[denied]);
    });
    rig.send(&get("/a", "192.0.2.1"));
    assert!(text(&rig.received()).starts_with("HTTP/1.1 403 "));
    assert_eq!(rig.logs[0].client, None);
    let mut rig = plain(|snapshot| trusting(snapshot, "198.18.0.0/15"));
    rig.send(&get("/a", "192.0.2.1"));
    let got = text(&rig.server_got(1));
    assert!(got.contains(&format!("\r\nX-Forwarded-For: {CLIENT}\r\n")), "{got}");
}

#[test]
fn client_of_one_request_is_not_that_of_the_next() {
    let mut rig = plain(|snapshot| trusting(snapshot, CLIENT));
    rig.send(&get("/a", "192.0.2.1"));
    rig.serve(1, OK);
    rig.send(b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(rig.conn.request_client(), CLIENT.parse::<std::net::IpAddr>().unwrap());
    let leg = *rig.legs.keys().last().unwrap();
    rig.serve(leg, OK);
    assert_eq!(rig.logs[1].client, None);
}
