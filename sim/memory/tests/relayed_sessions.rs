//! Handshakes that a worker relays to a pool by session: what settles the choice of a server, and what is learned.

mod support;

use evergate_balance::{
    CostSource, NodeCost, PickRule, Renewal, Scope, SessionFallback, SessionPolicy, Settings,
};
use evergate_base::{Micros, Protocol};
use evergate_connection::{Server, Snapshot};
use evergate_memory_host::{MemoryHost, Options, Peer, Process, generation};
use evergate_worker::pools::{LearnedCounts, Recipe, Sessions};
use std::net::SocketAddr;
use std::sync::Arc;
use support::{client, local, pool_options, snapshot};

const SERVERS: usize = 3;
const LIFETIME: Micros = Micros(300_000_000);
/// Session id of the server.
const SESSION: [u8; 32] = [9; 32];
const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];

fn vector(width: usize, body: &[u8]) -> Vec<u8> {
    [&body.len().to_be_bytes()[8 - width..], body].concat()
}

/// A record of the handshake.
fn record(body: &[u8]) -> Vec<u8> {
    [&[22, 3, 3][..], &vector(2, body)].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    record(&[&[kind][..], &vector(3, body)].concat())
}

/// ClientHello of TLS 1.2 with this session id.
fn hello(session: &[u8]) -> Vec<u8> {
    let suites = vector(2, &[0xc0, 0x2b]);
    message(1, &[&[3, 3][..], &[7; 32], &vector(1, session), &suites, &vector(1, &[0])].concat())
}

fn server_hello() -> Vec<u8> {
    message(2, &[&[3, 3][..], &[8; 32], &vector(1, &SESSION), &[0xc0, 0x2b, 0]].concat())
}

/// ChangeCipherSpec and an encrypted Finished.
fn finished() -> Vec<u8> {
    [&CHANGE_CIPHER_SPEC[..], &record(&[5; 40])].concat()
}

/// A worker with a pool by session.
struct Rig {
    host: MemoryHost,
    process: Process,
    sessions: Arc<Sessions>,
    clients: u32,
}

fn relaying() -> Snapshot {
    let mut snapshot = snapshot(None);
    snapshot.listeners[0].protocol = Protocol::Passthrough;
    let server = |index| Server { name: format!("a{index}"), cookie: String::new(), tls_name: None };
    snapshot.pools[0].servers = (0..SERVERS).map(server).collect();
    snapshot.pools[0].by_session = true;
    snapshot
}

impl Rig {
    fn new() -> Rig {
        let mut generation = generation(&Arc::new(relaying()), &pool_options());
        let pool = Arc::get_mut(&mut generation.pools[0]).unwrap();
        let settings = Settings {
            policy: SessionPolicy::Sticky(PickRule::RoundRobin),
            scope: Scope::Node,
            slice: Micros(2_000_000),
            lifetime: LIFETIME,
            renewal: Renewal::Fixed,
            affinity: LIFETIME,
            sessions_max: 100,
        };
        let costs =
            pool.servers.iter().map(|server| NodeCost { name: server.name_hash, new: 20.0, resumed: 1.0 });
        let recipe = Recipe {
            settings,
            costs: costs.collect(),
            servers: pool.servers.iter().map(|server| server.id).collect(),
            fallback: SessionFallback::Address,
            cost_source: CostSource::Configured,
            unit_us: 20.0,
        };
        let sessions = Arc::new(Sessions::new(recipe, &pool.servers));
        pool.sessions = Some(sessions.clone());
        let host = MemoryHost::default();
        let options = Options { connections_max: 100, buffered_max: 1 << 20, movable: Vec::new() };
        let process = Process::new(host.clone(), &generation, &options);
        Rig { host, process, sessions, clients: 0 }
    }

    /// A client whose hello offers this session, and the server to which the worker connects.
    fn begin(&mut self, client: SocketAddr, session: &[u8]) -> (Peer, Peer, SocketAddr) {
        self.clients += 1;
        let client = SocketAddr::new(client.ip(), client.port() + self.clients as u16);
        let peer = self.process.arrive(0, local(), client);
        peer.send(&hello(session));
        assert!(self.process.run());
        let server = self.host.servers().pop().unwrap();
        assert_eq!(server.written(), hello(session));
        let address = server.flow().remote;
        (peer, server, address)
    }

    fn learned(&self) -> LearnedCounts {
        self.sessions.counts().unwrap().learned
    }
}

/// Another address.
fn other() -> SocketAddr {
    ([192, 0, 2, 8], 41_000).into()
}

#[test]
fn finished_handshake_settles_and_leads_other_addresses_back() {
    let mut rig = Rig::new();
    let (client, server, home) = rig.begin(client(), b"");
    server.send(&[server_hello(), message(11, &[6; 90]), message(14, b"")].concat());
    assert!(rig.process.run());
    client.send(&[message(16, &[4; 66]), finished()].concat());
    assert!(rig.process.run());
    assert_eq!(rig.learned().entries, 0, "the server's Finished is missing");
    server.send(&finished());
    assert!(rig.process.run());
    let learned = rig.learned();
    assert_eq!(
        (learned.learned, learned.entries),
        (1, 2),
        "the session and the address, while the tunnel is open"
    );
    assert!(client.is_open() && server.is_open());
    for _ in 0..SERVERS {
        let (_, _, at) = rig.begin(other(), &SESSION);
        assert_eq!(at, home);
    }
    assert_eq!((rig.learned().found, rig.learned().unoffered), (3, 1));
    assert_eq!(rig.sessions.measured(0).full.samples() + rig.sessions.measured(1).full.samples(), 1);
    assert!(rig.host.violations().is_empty());
}

#[test]
fn leg_that_closes_before_finished_teaches_nothing() {
    for resets in [false, true] {
        let mut rig = Rig::new();
        let (client, server, first) = rig.begin(self::client(), b"");
        server.send(&server_hello());
        assert!(rig.process.run());
        if resets {
            server.reset();
        } else {
            server.end();
            client.end();
        }
        assert!(rig.process.run());
        assert!(rig.process.worker.steps().clients().is_empty());
        let (_, _, second) = rig.begin(self::client(), b"");
        assert_ne!(first, second, "round robin: the client belongs nowhere");
        let learned = rig.learned();
        assert_eq!((learned.learned, learned.entries, learned.unoffered), (0, 0, 2), "resets: {resets}");
    }
}

#[test]
fn fatal_alert_forgets_the_resumed_session() {
    let mut rig = Rig::new();
    let (client, server, home) = rig.begin(self::client(), b"");
    server.send(&[server_hello(), message(11, &[6; 90]), message(14, b"")].concat());
    assert!(rig.process.run());
    client.send(&[message(16, &[4; 66]), finished()].concat());
    assert!(rig.process.run());
    server.send(&finished());
    assert!(rig.process.run());
    let (client, server, again) = rig.begin(other(), &SESSION);
    assert_eq!(again, home);
    server.send(&[server_hello(), finished()].concat());
    assert!(rig.process.run());
    assert_eq!(rig.learned().entries, 2);
    client.send(&[21, 3, 3, 0, 2, 2, 40]);
    assert!(rig.process.run());
    assert_eq!((rig.learned().forgotten, rig.learned().entries), (1, 1));
}
