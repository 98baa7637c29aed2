//! A node that holds no copies of another one's connections has no part in its mirror channels. It serves clients all the same,
//! and theirs are the same sessions.

use crate::support::eventually;
use crate::traffic::{self, Carrier, Server, head};
use crate::world::{Node, World, privileged, settled};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A light node has about ten of 1,024 buckets: so many visits, and it has a session to tell.
const VISITS_MAX: usize = 3000;

fn count(node: &Node, what: &str) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
    let from = if what == "session_ids" { &status } else { &status["total"] };
    from[what].as_u64().unwrap()
}

fn serve(world: &World) {
    let at = Server::Plain.address(world);
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if head(&mut stream).is_ok() {
                    let _ = stream
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                }
            }
        });
    });
}

/// A client that has no session yet; `aborts`: it ends with what no key has sealed.
fn visit(world: &World, roots: &rustls::RootCertStore, aborts: bool) {
    let mut config = ClientConfig::builder_with_provider(evergate_crypto::client_provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
    let to = SocketAddr::new(world.family.address(), Carrier::Tls12.port(Server::Plain));
    world.switch.run(move || {
        let socket = TcpStream::connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let name = "shop.test".try_into().unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket);
        stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
        assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200"));
        if aborts {
            stream.sock.write_all(&[&[23, 3, 3, 0, 30][..], &[7; 30]].concat()).unwrap();
            assert!(stream.read(&mut [0]).is_err());
        }
    });
}

#[test]
fn every_node_is_told_of_sessions_and_their_ends_also_where_no_copies_go() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let heavy = traffic::config(&world, 3, "weight = 100");
    let light = heavy.replace("weight = 100", "weight = 1");
    let nodes = vec![world.start(1, &heavy), world.start(2, &light), world.start(3, &light)];
    let shared = settled(&nodes);
    let owned: Vec<u64> = shared.iter().map(|status| status.buckets.owned).collect();
    serve(&world);
    let roots = traffic::roots(&world);
    let told = |sessions: u64| {
        eventually(&format!("all keep {sessions} sessions"), || {
            nodes.iter().all(|node| count(node, "session_ids") == sessions).then_some(())
        });
    };
    // The light nodes keep their copies at the heavy one: without a word of their own they would hear nothing of each other.
    let made = |aborts: bool| {
        let (before, mut visits) = (count(&nodes[2], "handshakes_full"), 0);
        while count(&nodes[2], "handshakes_full") == before {
            visit(&world, &roots, aborts);
            visits += 1;
            assert!(visits < VISITS_MAX, "a light node has no clients: {owned:?}");
        }
        visits as u64
    };
    let sessions = made(false);
    told(sessions);
    made(true);
    told(sessions);
    for node in &nodes {
        // Figures are a second old at most.
        node.eventually("a channel to each of the others", |status| status.mirroring.backups.len() == 2);
    }
}
