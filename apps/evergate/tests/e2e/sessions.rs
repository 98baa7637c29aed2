//! Pools of TLS terminators: a client returns to the server that has its TLS session. Addresses in 127.0.0.0/8
//! distinguish the clients.

use super::backend::Backend;
use super::client::connect_from;
use super::node::{Folder, Node, eventually};
use super::pki::{issue, tls};
use super::upstream::secure_backend;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

/// Policies that distribute by session.
const POLICIES: [&str; 5] = ["session_only", "sticky_least_outstanding", "lard", "bounded_hash", "sslsard"];

/// Slice that covers the whole test, so that loads do not depend on the time of requests.
const LONG_SLICE: &str = "[pools.sessions]\nslice_ms = 3600000\n";

/// Bound that never applies. The node may see the end of a connection after the start of the next, and would then
/// choose another server.
const NO_BOUND: &str = "[pools.sessions]\nbounded_load_percent = 100000\n";

/// Listener `in` of this protocol, with a pool of these servers and weights; `pool`: further keys of the pool.
fn config(protocol: &str, policy: &str, servers: &[(SocketAddr, u32)], pool: &str) -> String {
    let servers: String = servers
        .iter()
        .enumerate()
        .map(|(index, (address, weight))| {
            format!("[[pools.servers]]\nname = \"s{index}\"\naddress = \"{address}\"\nweight = {weight}\n")
        })
        .collect();
    format!(
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\npool = \"web\"\n\
         [[pools]]\nname = \"web\"\npolicy = \"{policy}\"\n{servers}{pool}\n"
    )
}

fn three() -> [Backend; 3] {
    ["one", "two", "three"].map(Backend::new)
}

fn weighted(backends: &[Backend], weights: [u32; 3]) -> Vec<(SocketAddr, u32)> {
    backends.iter().map(Backend::address).zip(weights).collect()
}

/// Name of the server that answers this client.
fn ask(node: &Node, client: u8) -> String {
    let response = connect_from([127, 0, 0, client], node.address("in")).get("/x").unwrap();
    assert_eq!(response.status, 200);
    response.text()
}

/// Session counts of the pool in the status.
fn sessions(node: &Node) -> Value {
    let (ok, text) = node.cli(&["status", "--json"]);
    assert!(ok, "{text}");
    let status: Value = serde_json::from_str(&text).unwrap();
    status["pools"][0]["sessions"].clone()
}

fn counts(node: &Node) -> [u64; 4] {
    let sessions = sessions(node);
    ["known", "new", "returned", "missed"].map(|name| sessions[name].as_u64().unwrap())
}

#[test]
fn client_returns_to_its_server_with_every_session_policy() {
    for protocol in ["tcp", "http"] {
        for policy in POLICIES {
            let backends = three();
            let more = if policy == "bounded_hash" { NO_BOUND } else { "" };
            let node = Node::start(&config(protocol, policy, &weighted(&backends, [1, 1, 1]), more));
            let homes: Vec<String> = (2..14).map(|client| ask(&node, client)).collect();
            for round in 0..3 {
                for (client, home) in (2..14).zip(&homes) {
                    assert_eq!(
                        ask(&node, client),
                        *home,
                        "{protocol} {policy}: client {client}, round {round}"
                    );
                }
            }
            let used: BTreeSet<&String> = homes.iter().collect();
            assert!(used.len() > 1, "{protocol} {policy}: all clients are at {used:?}");
        }
    }
}

/// Handshakes of one client that visits two terminators without a shared session cache four times.
fn handshakes(policy: &str, version: &'static SupportedProtocolVersion) -> Vec<Option<HandshakeKind>> {
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "site", "ecdsa", "site.example", Some("ca"));
    let servers = [0; 2].map(|_| (secure_backend(&folder, "site"), 1));
    let mut roots = RootCertStore::empty();
    let authority = std::fs::read(folder.path("ca.pem")).unwrap();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(&authority).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(evergate_crypto::client_provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Arc::new(client);
    let node = Node::start_in(folder, &config("tcp", policy, &servers, ""));
    let connect = |_| {
        let mut wire = tls(node.address("in"), &client, "site.example");
        assert_eq!(wire.get("/").unwrap().text(), "secret");
        wire.stream.conn.handshake_kind()
    };
    (0..4).map(connect).collect()
}

#[test]
fn session_policies_resume_tls_sessions_round_robin_does_not() {
    let (full, resumed) = (Some(HandshakeKind::Full), Some(HandshakeKind::Resumed));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for policy in ["session_only", "sticky_least_outstanding", "lard", "sslsard"] {
            assert_eq!(
                handshakes(policy, version),
                [full, resumed, resumed, resumed],
                "{policy} {version:?}"
            );
        }
        // Two of three connections reach the same worker, which uses different servers for them.
        let blind = handshakes("round_robin", version);
        assert!(blind.iter().filter(|kind| **kind == full).count() >= 2, "{version:?}: {blind:?}");
    }
}

#[test]
fn newcomers_are_spread_by_weight_over_all_workers() {
    for policy in ["session_only", "sslsard"] {
        let backends = three();
        let more = if policy == "sslsard" { LONG_SLICE } else { "" };
        let node = Node::start(&config("tcp", policy, &weighted(&backends, [2, 1, 1]), more));
        let mut clients: BTreeMap<String, u32> = BTreeMap::new();
        for client in 2..18 {
            *clients.entry(ask(&node, client)).or_default() += 1;
        }
        let expected = [("one", 8), ("three", 4), ("two", 4)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(clients, BTreeMap::from(expected), "{policy}");
    }
}

#[test]
fn newcomers_go_to_the_server_with_the_fewest_outstanding() {
    let backends = three();
    let node = Node::start(&config("tcp", "sticky_least_outstanding", &weighted(&backends, [1, 1, 1]), ""));
    let mut held = Vec::new();
    for client in 2..11 {
        let mut wire = connect_from([127, 0, 0, client], node.address("in"));
        wire.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        held.push(wire);
        let arrived = || backends.iter().map(Backend::requests).sum::<u64>();
        eventually("the request arrives", || (arrived() == held.len() as u64).then_some(()));
    }
    assert_eq!(backends.each_ref().map(Backend::requests), [3, 3, 3]);
}

#[test]
fn admin_api_counts_sessions_by_outcome() {
    let backends = three();
    let node = Node::start(&config("tcp", "sslsard", &weighted(&backends, [1, 1, 1]), LONG_SLICE));
    assert_eq!(counts(&node), [0, 0, 0, 0]);
    for client in [2, 3, 4, 2, 3, 2] {
        ask(&node, client);
    }
    assert_eq!(counts(&node), [3, 3, 3, 0]);
    assert_eq!(node.metric("evergate_pool_sessions"), 3);
    assert_eq!(node.metric("evergate_pool_session_requests_total"), 6);
    let (_, text) = node.cli(&["metrics"]);
    let sample = "evergate_pool_session_requests_total{pool=\"web\",session=\"returned\"} 3";
    assert!(text.contains(sample), "{text}");
    let (_, text) = node.cli(&["status"]);
    assert!(text.contains("SESSIONS") && text.contains("sslsard"), "{text}");
}

#[test]
fn pool_without_sessions_reports_no_session_counts() {
    for (policy, servers_of_a_client) in [("round_robin", 3), ("bounded_hash", 1)] {
        let backends = three();
        let more = if policy == "bounded_hash" { NO_BOUND } else { "" };
        let node = Node::start(&config("tcp", policy, &weighted(&backends, [1, 1, 1]), more));
        let servers: BTreeSet<String> = (2..8).map(|_| ask(&node, 2)).collect();
        assert_eq!(servers.len(), servers_of_a_client, "{policy}");
        assert_eq!(sessions(&node), Value::Null, "{policy}");
        let (_, text) = node.cli(&["metrics"]);
        assert!(!text.lines().any(|line| line.starts_with("evergate_pool_session")), "{policy}: {text}");
    }
}

#[test]
fn remembered_session_is_dropped_beyond_the_limit() {
    let backends = three();
    let table = "[pools.sessions]\nremembered_max = 2\n";
    let node = Node::start(&config("tcp", "session_only", &weighted(&backends, [1, 1, 1]), table));
    for client in 2..8 {
        ask(&node, client);
    }
    assert_eq!(counts(&node), [2, 6, 0, 0]);
    assert_eq!(sessions(&node)["evicted"], 4);
}

/// Health checks that a slow machine does not fail by chance: a refused connect fails at once, but must fail twice.
const HEALTH: &str =
    "[pools.health]\nkind = \"tcp\"\ninterval_ms = 500\ntimeout_ms = 500\nrise = 1\nfall = 2\n";

#[test]
fn dead_server_loses_its_sessions_and_serves_after_its_return() {
    for policy in ["session_only", "sticky_least_outstanding", "lard", "sslsard"] {
        let backends = three();
        let node = Node::start(&config("tcp", policy, &weighted(&backends, [1, 1, 1]), HEALTH));
        let homes: Vec<String> = (2..8).map(|client| ask(&node, client)).collect();
        let (dead, name) = ["one", "two", "three"]
            .into_iter()
            .enumerate()
            .find(|(_, name)| homes.iter().any(|home| home == name))
            .unwrap();
        backends[dead].die();
        let line = node.line(&format!("server web/s{dead} "));
        assert!(line.contains(" is down: "), "{line}");
        let moved: Vec<String> = (2..8).map(|client| ask(&node, client)).collect();
        for (home, now) in homes.iter().zip(&moved) {
            assert!(now != name, "{policy}: sent to a dead server");
            assert!(home == name || home == now, "{policy}: a client of a living server moved");
        }
        let lost = homes.iter().filter(|home| *home == name).count() as u64;
        assert_eq!(counts(&node)[3], lost, "{policy}: each client of the dead server misses once");
        let again: Vec<String> = (2..8).map(|client| ask(&node, client)).collect();
        assert_eq!(again, moved, "{policy}: clients stay at their new server");

        let _risen = Backend::at(name, backends[dead].address());
        let line = node.line(&format!("server web/s{dead} "));
        assert!(line.contains(" is up: "), "{line}");
        let newcomers: Vec<String> = (20..40).map(|client| ask(&node, client)).collect();
        assert!(newcomers.iter().any(|home| home == name), "{policy}: no new client is sent to it");
        let after: Vec<String> = (2..8).map(|client| ask(&node, client)).collect();
        assert_eq!(after, moved, "{policy}: its return moves no client");
    }
}

#[test]
fn refused_connect_moves_the_client_to_another_server() {
    for protocol in ["tcp", "http"] {
        for policy in POLICIES {
            let backends = three();
            let more = if policy == "bounded_hash" { NO_BOUND } else { "" };
            let node = Node::start(&config(protocol, policy, &weighted(&backends, [1, 1, 1]), more));
            let home = ask(&node, 2);
            let dead = ["one", "two", "three"].iter().position(|name| *name == home).unwrap();
            backends[dead].die();
            let is_refused = || TcpStream::connect(backends[dead].address()).is_err().then_some(());
            eventually("connects are refused", is_refused);
            let next = ask(&node, 2);
            assert_ne!(next, home, "{protocol} {policy}");
            assert_eq!(ask(&node, 2), next, "{protocol} {policy}");
        }
    }
}

#[test]
fn drained_or_full_server_is_skipped() {
    for policy in ["session_only", "sslsard"] {
        let backends = three();
        let node = Node::start(&config("tcp", policy, &weighted(&backends, [1, 1, 1]), ""));
        let home = ask(&node, 2);
        let index = ["one", "two", "three"].iter().position(|name| *name == home).unwrap();
        assert!(node.cli(&["servers", "drain", &format!("web/s{index}")]).0);
        assert_ne!(ask(&node, 2), home, "{policy}: drained");
    }
    for policy in ["session_only", "sslsard"] {
        let backends = three();
        let text = config("tcp", policy, &weighted(&backends, [1, 1, 1]), "")
            .replace("weight = 1\n", "weight = 1\nconnections_max = 1\n");
        let node = Node::start(&text);
        let mut held = connect_from([127, 0, 0, 2], node.address("in"));
        held.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let home = eventually("the request arrives", || backends.iter().position(|one| one.requests() == 1));
        let name = ["one", "two", "three"][home];
        assert_ne!(ask(&node, 2), name, "{policy}: full");
    }
}

#[test]
fn reload_keeps_the_sessions_of_remaining_servers() {
    for policy in ["session_only", "sticky_least_outstanding", "lard", "sslsard"] {
        let backends = three();
        let all = weighted(&backends, [1, 1, 1]);
        let with = |servers: &[(SocketAddr, u32)]| config("tcp", policy, servers, "");
        // Servers are identified by name: s0 leaves, and s1 and s2 change places.
        let after = with(&[all[2], all[1]]).replace("\"s0\"", "\"s2\"");
        let node = Node::start(&with(&all));
        let homes: Vec<String> = (2..14).map(|client| ask(&node, client)).collect();
        node.write(&after);
        node.reload();
        for (client, home) in (2..14).zip(&homes).filter(|(_, home)| *home != "one") {
            assert_eq!(ask(&node, client), *home, "{policy}");
        }
        let stayed = homes.iter().filter(|home| *home != "one").count() as u64;
        assert!(stayed < 12 && stayed > 0, "{policy}: {homes:?}");
        assert_eq!(counts(&node)[1..], [0, stayed, 0], "{policy}");
    }
}

#[test]
fn reload_that_keeps_the_pool_keeps_its_sessions() {
    let backends = three();
    let text = config("tcp", "session_only", &weighted(&backends, [1, 1, 1]), "");
    let node = Node::start(&text);
    let homes: Vec<String> = (2..5).map(|client| ask(&node, client)).collect();
    assert_eq!(homes, ["one", "two", "three"]);
    node.write(&format!("{text}[timeouts]\nkeep_alive_ms = 60000\n"));
    node.reload();
    // Without the sessions, the first client would go to the first server.
    for client in [4, 3, 2] {
        assert_eq!(ask(&node, client), homes[usize::from(client) - 2]);
    }
    assert_eq!(counts(&node), [3, 3, 3, 0]);
}
