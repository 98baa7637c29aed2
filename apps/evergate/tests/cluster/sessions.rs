//! TLS sessions, which every node resumes. All nodes have the ticket keys, and all nodes know the ids of TLS 1.2
//! sessions, even after the creator's death. No node resumes an aborted session.

use crate::support::eventually;
use crate::traffic::{self, Server, Transport, head};
use crate::world::{Node, World, privileged, settled};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned, SupportedProtocolVersion};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// The hash chooses the node of each connection. This many visits reach each of three nodes.
const VISITS_MAX: usize = 100;

/// TLS 1.2 client without tickets.
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

/// Starts a server that answers every request with "ok" and closes.
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
    let to = SocketAddr::new(world.family.address(), Transport::Tls12.port(Server::Plain));
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

/// Sends one request on a new connection. `aborts`: the client then sends a record that no key has sealed.
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

/// Client that has the server's whole side of a resuming handshake, and has not answered.
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

pub(crate) fn await_sessions(nodes: &[Node], sessions: u64) {
    eventually(&format!("all keep {sessions} sessions"), || {
        nodes.iter().all(|node| count(node, "session_ids") == sessions).then_some(())
    });
}

/// Starts the node again, without state, and waits until it has its share of the buckets.
fn restart(world: &World, nodes: &mut Vec<Node>, number: u8, config: &str) {
    nodes.push(world.start(number, config));
    nodes.sort_by_key(|node| node.number);
    eventually("every node has its share", || {
        settled(nodes).iter().all(|status| status.buckets.owned > 0).then_some(())
    });
}

/// Visits until every node has resumed the session once more. No visit may make a full handshake.
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
        "a node had none of {VISITS_MAX} visits: resumed {before:?} before, {after:?} now; {full:?} full handshakes"
    );
}

#[test]
fn session_id_is_resumed_at_every_node_unless_aborted() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, config) = traffic::three(&world);
    serve(&world);
    let client = client(&world);
    assert_eq!(visit(&world, &client, false), HandshakeKind::Full);
    let maker = nodes.iter().position(|node| count(node, "handshakes_full") == 1).unwrap();
    await_sessions(&nodes, 1);
    resumed_everywhere(&world, &nodes, &client);
    let dead = nodes.remove(maker);
    let number = dead.number;
    dead.kill();
    settled(&nodes);
    resumed_everywhere(&world, &nodes, &client);
    // A node without state receives the sessions of the other nodes.
    restart(&world, &mut nodes, number, &config);
    await_sessions(&nodes, 1);
    resumed_everywhere(&world, &nodes, &client);
    assert_eq!(visit(&world, &client, true), HandshakeKind::Resumed);
    await_sessions(&nodes, 0);
    assert_eq!(visit(&world, &client, false), HandshakeKind::Full);
    await_sessions(&nodes, 1);
    resumed_everywhere(&world, &nodes, &client);
}

/// The client has the server's side of a handshake that resumes its session. Then every node drops the session. The
/// next node must use the replicated session, not its cache.
#[test]
fn resuming_handshake_continues_at_a_node_without_the_session() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, _) = traffic::three(&world);
    serve(&world);
    let client = client(&world);
    assert_eq!(visit(&world, &client, false), HandshakeKind::Full);
    await_sessions(&nodes, 1);
    let resumed = |node: &Node| count(node, "session_ids_found");
    let before: Vec<u64> = nodes.iter().map(resumed).collect();
    let begun = begin(&world, &client);
    let carrier = nodes.iter().zip(&before).position(|(node, before)| resumed(node) > *before).unwrap();
    assert_eq!(visit(&world, &client, true), HandshakeKind::Resumed);
    await_sessions(&nodes, 0);
    nodes.remove(carrier).kill();
    settled(&nodes);
    world.switch.run(move || {
        let mut stream = begun;
        ask(&mut stream);
        assert_eq!(stream.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    });
}

#[test]
fn client_without_requests_receives_tickets() {
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

/// The dead node has sealed the client's ticket, and the restarted node has never seen it.
fn tickets_are_accepted_everywhere(version: &'static SupportedProtocolVersion) {
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
    restart(&world, &mut nodes, number, &config);
    resumed_everywhere(&world, &nodes, &client);
    for node in &nodes {
        let by_id = count(node, "session_ids") + count(node, "session_ids_found");
        assert_eq!(by_id, 0, "node {} resumed without a ticket", node.number);
    }
}

#[test]
fn tls12_ticket_is_accepted_at_every_node_after_a_death() {
    tickets_are_accepted_everywhere(&rustls::version::TLS12);
}

#[test]
fn tls13_ticket_is_accepted_at_every_node_after_a_death() {
    tickets_are_accepted_everywhere(&rustls::version::TLS13);
}
