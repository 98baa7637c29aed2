//! Clients behind a trusted proxy: another node derives the same client from the resent head.

use crate::harness::setup::{self, CLIENT};
use crate::pair::Pair;
use evergate_connection::{Snapshot, Stickiness};
use evergate_http::ForwardedTrust;
use std::net::IpAddr;
use std::sync::Arc;

fn config() -> Arc<Snapshot> {
    setup::snapshot(|snapshot| {
        let networks = vec![CLIENT.parse().unwrap()];
        snapshot.listeners[setup::HTTP as usize].trust_forwarded = ForwardedTrust::Networks(networks);
        snapshot.pools[0].stickiness = Stickiness::Source;
    })
}

#[test]
fn restored_connection_derives_the_same_client() {
    let config = config();
    let ask = b"GET /a HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 203.0.113.9, 192.0.2.1\r\n\r\n";
    let client: IpAddr = "192.0.2.1".parse().unwrap();
    let mut pair = Pair::new(&config, setup::HTTP);
    pair.client_sends(ask);
    pair.open();
    assert_eq!(pair.conn.request_client(), client);
    for step in [1, 7, 1000] {
        let mut next = Pair::restore(&pair.replicated, &config);
        ask.chunks(step).for_each(|piece| next.client_sends(piece));
        assert_eq!((next.conn.request_client(), next.closed), (client, None));
        assert_eq!(next.to_server, pair.to_server, "the server receives the same head");
        next.server_sends(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let logged: Vec<_> = next.logs.iter().map(|log| (log.client, log.continued)).collect();
        assert_eq!(logged, [(Some(client), true)]);
    }
}

#[test]
fn exported_connection_keeps_the_client_of_its_request() {
    use evergate_connection::Connection;
    let config = config();
    let mut rig = crate::harness::rig::Rig::new(&config, setup::HTTP, crate::harness::peer::Peer::plain());
    rig.send(b"GET /a HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n");
    let state = rig.conn.export(&config).unwrap();
    let (next, _) = Connection::import(&config, &state).unwrap();
    assert_eq!(next.request_client(), "192.0.2.1".parse::<IpAddr>().unwrap());
}
