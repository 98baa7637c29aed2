//! Access log of a connection that moves: each node logs its own part.

use crate::raw_connection::carrier;
use crate::support::eventually;
use crate::traffic::{self, PATIENCE, Server, Transport};
use crate::world::{Node, World, privileged, settled};
use rustls::{ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Parsed lines of a node's access log.
fn lines(world: &World, number: u8) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(world.folder.path(&format!("{number}.log"))).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn tunnel_that_moves_is_logged_at_each_of_its_nodes() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = world.config(&World::entries(2), "");
    let with_log = |number: u8| config.replace("access = \"off\"", &format!("access = \"{number}.log\""));
    let mut nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &with_log(number))).collect();
    settled(&nodes);
    world.echo();
    let to = SocketAddr::new(world.family.address(), 8080);
    let mut client = world.switch.run(move || TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let client_at = client.local_addr().unwrap().to_string();
    let mut echoes = |word: &[u8; 4]| {
        client.write_all(word).unwrap();
        let mut answer = [0; 4];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, word);
    };
    echoes(b"once");
    settled(&nodes);
    let first = carrier(&mut nodes);
    assert_eq!(first.cli(&["node", "drain"]).code, Some(0));
    first.eventually("is drained", |status| status.drained);
    let moved = eventually("the first node has logged its line", || lines(&world, first.number).pop());
    echoes(b"more");
    drop(client);
    let ended = eventually("the second node has logged its line", || lines(&world, nodes[0].number).pop());
    for (line, reason, continued) in [(&moved, "handoff_interrupted", None), (&ended, "", Some(true))] {
        assert_eq!(line["id"], moved["id"], "{line}");
        assert_eq!((&line["client"], &line["pool"]), (&client_at.as_str().into(), &"web".into()), "{line}");
        assert_eq!((line["reason"].as_str().unwrap_or(""), line["continued"].as_bool()), (reason, continued));
        assert_eq!((&line["bytes_in"], &line["bytes_out"]), (&4.into(), &4.into()), "{line}");
    }
    assert_eq!((lines(&world, first.number).len(), lines(&world, nodes[0].number).len()), (1, 1));
}

/// The server, behind TLS, closes first and exits, so that later input meets a reset.
#[test]
fn web_socket_that_closes_in_order_is_logged_without_reason() {
    if privileged() {
        [false, true].into_iter().for_each(web_socket_ends);
    }
}

fn web_socket_ends(moves: bool) {
    let world = World::new(2);
    let config = traffic::config(&world, 2, "");
    let with_log = |number: u8| config.replace("access = \"off\"", &format!("access = \"{number}.log\""));
    let mut nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &with_log(number))).collect();
    settled(&nodes);
    let (at, tls) = (Server::Tls13.address(&world), Server::Tls13.config(&world).unwrap());
    let (secure, roots) = (Transport::Tls13, Arc::new(traffic::roots(&world)));
    let to = SocketAddr::new(world.family.address(), secure.port(Server::Tls13));
    let (mut client, mut server) = world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        let serving = std::thread::spawn(move || {
            let mut server =
                StreamOwned::new(ServerConnection::new(tls).unwrap(), listener.accept().unwrap().0);
            traffic::head(&mut server).unwrap();
            server.write_all(SWITCHING).unwrap();
            server
        });
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = StreamOwned::new(secure.client(&roots).unwrap(), stream);
        client
            .write_all(
                b"GET /ws HTTP/1.1\r\nHost: shop.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            )
            .unwrap();
        assert!(traffic::head(&mut client).unwrap().starts_with("HTTP/1.1 101"));
        (client, serving.join().unwrap())
    });
    settled(&nodes);
    let first = carrier(&mut nodes);
    if moves {
        assert_eq!(first.cli(&["node", "drain", "--wait", "60"]).code, Some(0));
    }
    let last = if moves { nodes[0].number } else { first.number };
    // Close frames both ways (RFC 6455, 5.5.1), then the server closes.
    client.write_all(b"\x88\x80mask").unwrap();
    server.read_exact(&mut [0; 6]).unwrap();
    server.write_all(b"\x88\x00").unwrap();
    server.conn.send_close_notify();
    server.flush().unwrap();
    drop(server);
    client.read_exact(&mut [0; 2]).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    client.conn.send_close_notify();
    client.flush().unwrap();
    drop(client);
    let ended = eventually("the line is logged", || lines(&world, last).pop());
    assert_eq!(
        (ended["continued"].as_bool(), ended["reason"].as_str()),
        (moves.then_some(true), None),
        "{ended}"
    );
}

const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
