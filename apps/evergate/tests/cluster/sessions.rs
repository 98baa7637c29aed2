//! Sessions are resumed at every node: by tickets, whose keys all nodes have, and TLS 1.2 sessions by their ids, which every node
//! knows, also those of a node that is dead; and none resumes one that was aborted.

use crate::support::eventually;
use crate::traffic::{self, Carrier, Server, head};
use crate::world::{Node, World, privileged, settled};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned, SupportedProtocolVersion};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Each connection comes to a node of the hash's choice: so many come to every one of three nodes.
const VISITS_MAX: usize = 100;

/// One of TLS 1.2 without tickets.
pub(crate) fn client(world: &World) -> Arc<ClientConfig> {
    client_with(world, &rustls::version::TLS12, Tls12Resumption::SessionIdOnly)
}

fn client_with(
    world: &World,
    version: &'static SupportedProtocolVersion,
    tls12: Tls12Resumption,
) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(evergate_crypto::client_provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(traffic::roots(world))
        .with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(8).tls12_resumption(tls12);
    Arc::new(config)
}

/// Answers every request with "ok", and closes.
pub(crate) fn serve(world: &World) {
    let at = Server::Plain.address(world);
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if head(&mut stream).is_ok() {
                    let _ = stream
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
                }
            }
        });
    });
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn connect(world: &World, client: &Arc<ClientConfig>) -> impl FnOnce() -> Tls + Send + 'static {
    let to = SocketAddr::new(world.family.address(), Carrier::Tls12.port(Server::Plain));
    let client = client.clone();
    move || {
        let socket = TcpStream::connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let name = "shop.test".try_into().unwrap();
        StreamOwned::new(ClientConnection::new(client, name).unwrap(), socket)
    }
}

fn ask(stream: &mut Tls) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    assert!(head(stream).unwrap().starts_with("HTTP/1.1 200"));
    let mut body = [0; 2];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(&body, b"ok");
}

/// One request on a connection of its own. `aborts`: the client then sends what no key has sealed.
pub(crate) fn visit(world: &World, client: &Arc<ClientConfig>, aborts: bool) -> HandshakeKind {
    let connect = connect(world, client);
    world.switch.run(move || {
        let mut stream = connect();
        ask(&mut stream);
        if aborts {
            stream.sock.write_all(&[&[23, 3, 3, 0, 30][..], &[7; 30]].concat()).unwrap();
            let error = stream.read(&mut [0]).unwrap_err().to_string();
            assert!(error.contains("BadRecordMac"), "{error}");
        }
        stream.conn.handshake_kind().unwrap()
    })
}

/// A client that has all of the server's side of a resuming handshake, and has not answered.
fn begin(world: &World, client: &Arc<ClientConfig>) -> Tls {
    let connect = connect(world, client);
    world.switch.run(move || {
        let mut stream = connect();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).unwrap();
        }
        while stream.conn.is_handshaking() {
            assert!(stream.conn.read_tls(&mut stream.sock).unwrap() > 0);
            stream.conn.process_new_packets().unwrap();
        }
        stream
    })
}

pub(crate) fn count(node: &Node, what: &str) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
    let from = if what == "session_ids" { &status } else { &status["total"] };
    from[what].as_u64().unwrap()
}

pub(crate) fn all_keep(nodes: &[Node], sessions: u64) {
    eventually(&format!("all keep {sessions} sessions"), || {
        nodes.iter().all(|node| count(node, "session_ids") == sessions).then_some(())
    });
}

/// A node begins anew, with nothing, and gets its share of the buckets.
fn come_back(world: &World, nodes: &mut Vec<Node>, number: u8, config: &str) {
    nodes.push(world.start(number, config));
    nodes.sort_by_key(|node| node.number);
    eventually("every node has its share", || {
        settled(nodes).iter().all(|status| status.buckets.owned > 0).then_some(())
    });
}

/// Comes back until every node has resumed the session once more; never is it made anew.
fn resumed_everywhere(world: &World, nodes: &[Node], client: &Arc<ClientConfig>) {
    let resumed = |node: &Node| count(node, "handshakes_resumed");
    let before: Vec<u64> = nodes.iter().map(resumed).collect();
    for _ in 0..VISITS_MAX {
        assert_eq!(visit(world, client, false), HandshakeKind::Resumed);
        if nodes.iter().zip(&before).all(|(node, before)| resumed(node) > *before) {
            return;
        }
    }
    let after: Vec<u64> = nodes.iter().map(resumed).collect();
    let full: Vec<u64> = nodes.iter().map(|node| count(node, "handshakes_full")).collect();
    panic!(
        "a node was not asked in {VISITS_MAX} visits: resumed {before:?} before, {after:?} now; {full:?} made anew"
    );
}

#[test]
fn a_session_is_resumed_at_every_node_also_when_its_maker_is_dead_and_an_aborted_one_at_none() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, config) = traffic::three(&world);
    serve(&world);
    let client = client(&world);
    assert_eq!(visit(&world, &client, false), HandshakeKind::Full);
    let maker = nodes.iter().position(|node| count(node, "handshakes_full") == 1).unwrap();
    all_keep(&nodes, 1);
    resumed_everywhere(&world, &nodes, &client);
    let dead = nodes.remove(maker);
    let number = dead.number;
    dead.kill();
    settled(&nodes);
    resumed_everywhere(&world, &nodes, &client);
    // A node that begins with nothing is told what the others keep.
    come_back(&world, &mut nodes, number, &config);
    all_keep(&nodes, 1);
    resumed_everywhere(&world, &nodes, &client);
    assert_eq!(visit(&world, &client, true), HandshakeKind::Resumed);
    all_keep(&nodes, 0);
    assert_eq!(visit(&world, &client, false), HandshakeKind::Full);
    all_keep(&nodes, 1);
    resumed_everywhere(&world, &nodes, &client);
}

/// The client has our side of a handshake that resumes its session, and then no node keeps that session any more: whoever goes
/// on has what was found from the mirror, not from its cache.
#[test]
fn a_handshake_that_resumes_by_id_goes_on_at_a_node_that_does_not_know_the_session() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, _) = traffic::three(&world);
    serve(&world);
    let client = client(&world);
    assert_eq!(visit(&world, &client, false), HandshakeKind::Full);
    all_keep(&nodes, 1);
    let resumed = |node: &Node| count(node, "session_ids_found");
    let before: Vec<u64> = nodes.iter().map(resumed).collect();
    let begun = begin(&world, &client);
    let carrier = nodes.iter().zip(&before).position(|(node, before)| resumed(node) > *before).unwrap();
    assert_eq!(visit(&world, &client, true), HandshakeKind::Resumed);
    all_keep(&nodes, 0);
    nodes.remove(carrier).kill();
    settled(&nodes);
    world.switch.run(move || {
        let mut stream = begun;
        ask(&mut stream);
        assert_eq!(stream.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    });
}

#[test]
fn a_client_that_asks_nothing_gets_its_tickets_all_the_same() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let _nodes = traffic::three(&world);
    let client = client_with(&world, &rustls::version::TLS13, Tls12Resumption::SessionIdOrTickets);
    let mut stream = begin(&world, &client);
    while stream.conn.wants_write() {
        stream.conn.write_tls(&mut stream.sock).unwrap();
    }
    while stream.conn.tls13_tickets_received() < 2 {
        assert!(stream.conn.read_tls(&mut stream.sock).unwrap() > 0);
        stream.conn.process_new_packets().unwrap();
    }
}

/// The client has what the node that is dead by now has sealed, and a node that begins anew has never seen it.
fn tickets_are_taken_everywhere(version: &'static SupportedProtocolVersion) {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, config) = traffic::three(&world);
    serve(&world);
    let client = client_with(&world, version, Tls12Resumption::SessionIdOrTickets);
    assert_eq!(visit(&world, &client, false), HandshakeKind::Full);
    let maker = nodes.iter().position(|node| count(node, "handshakes_full") == 1).unwrap();
    let dead = nodes.remove(maker);
    let number = dead.number;
    dead.kill();
    settled(&nodes);
    resumed_everywhere(&world, &nodes, &client);
    come_back(&world, &mut nodes, number, &config);
    resumed_everywhere(&world, &nodes, &client);
    for node in &nodes {
        let by_id = count(node, "session_ids") + count(node, "session_ids_found");
        assert_eq!(by_id, 0, "node {} resumed without a ticket", node.number);
    }
}

#[test]
fn a_tls12_ticket_is_taken_at_every_node_also_when_its_maker_is_dead() {
    tickets_are_taken_everywhere(&rustls::version::TLS12);
}

#[test]
fn a_tls13_ticket_is_taken_at_every_node_also_when_its_maker_is_dead() {
    tickets_are_taken_everywhere(&rustls::version::TLS13);
}
