//! Server connections from the addresses of clients (`source = "client"`).

mod support;

use evergate_base::Protocol;
use evergate_memory_host::{MemoryHost, Options, Peer, PoolOptions, Process, generation};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use support::{client, local, pool_options, snapshot};

const OTHER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 8)), 40_000);
const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A worker with a listener of this protocol, whose pool keeps idle connections.
fn process(host: &MemoryHost, protocol: Protocol, client_source: bool) -> Process {
    let mut snapshot = snapshot(None);
    snapshot.listeners[0].protocol = protocol;
    snapshot.pools[0].client_source = client_source;
    let pools = PoolOptions { idle_max: 8, idle: Duration::from_secs(60), ..pool_options() };
    let options = Options { connections_max: 100, buffered_max: 1 << 20, movable: Vec::new() };
    Process::new(host.clone(), &generation(&Arc::new(snapshot), &pools), &options)
}

fn sources(host: &MemoryHost) -> Vec<IpAddr> {
    host.servers().iter().map(|server| server.flow().local.ip()).collect()
}

/// Lets the client send a request, which the server with this number answers.
fn exchange(process: &mut Process, client: &Peer, server: usize) {
    let before = client.written().len();
    client.send(GET);
    assert!(process.run());
    process.host.servers()[server].send(OK);
    assert!(process.run());
    assert!(client.written().len() > before, "it is answered");
}

#[test]
fn tunnel_starts_from_its_clients_address() {
    let host = MemoryHost::default();
    let mut process = process(&host, Protocol::Tcp, true);
    let clients = [client(), OTHER].map(|address| process.arrive(0, local(), address));
    for peer in &clients {
        peer.send(b"ping");
    }
    assert!(process.run());
    let mut seen = sources(&host);
    seen.sort();
    assert_eq!(seen, [client().ip(), OTHER.ip()]);
    assert!(host.servers().iter().all(|server| server.written() == b"ping") && host.violations().is_empty());
}

/// Without the setting, the second client would use the idle connection of the first one.
#[test]
fn connection_from_a_clients_address_serves_it_alone() {
    for (client_source, expected) in [(true, vec![client().ip(), OTHER.ip()]), (false, vec![])] {
        let host = MemoryHost::default();
        let mut process = process(&host, Protocol::Http, client_source);
        let first = process.arrive(0, local(), client());
        let second = process.arrive(0, local(), OTHER);
        for _ in 0..3 {
            exchange(&mut process, &first, 0);
            exchange(&mut process, &second, usize::from(client_source));
        }
        match client_source {
            true => assert_eq!(sources(&host), expected),
            false => assert_eq!(host.servers().len(), 1),
        }
        assert!(host.violations().is_empty());
    }
}

#[test]
fn client_of_another_family_is_answered_with_the_cause() {
    let host = MemoryHost::default();
    let mut process = process(&host, Protocol::Http, true);
    let far: SocketAddr = "[2001:db8::7]:40000".parse().unwrap();
    let peer = process.arrive(0, "[2001:db8::1]:443".parse().unwrap(), far);
    peer.send(GET);
    assert!(process.run());
    assert!(peer.written().starts_with(b"HTTP/1.1 502 ") && host.servers().is_empty());
    let logs = process.take_logs();
    assert_eq!((logs[0].status, logs[0].reason), (502, "connect_failed"));
    assert!(
        logs[0].detail.contains("2001:db8::7") && logs[0].detail.contains("families"),
        "{}",
        logs[0].detail
    );
    let counters = process.worker.counters();
    assert_eq!(counters.reasons.lock().unwrap().get("connect_failed"), Some(&1));
    assert_eq!(counters.server_failures.get(), 0, "the server has not failed");
}
