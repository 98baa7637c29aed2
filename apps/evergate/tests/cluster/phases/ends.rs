//! Closing connections whose node dies meanwhile.

use super::server::{HALF, LONG};
use super::wire::Wire;
use super::{connect, filter, owner, prepare, socket_state};
use crate::support::eventually;
use crate::traffic::{Server, Transport, content};
use crate::world::{Node, World, privileged};

/// Removes the node with the client's connection from the list.
fn carrier(world: &World, nodes: &mut Vec<Node>, port: u16) -> Node {
    let number = eventually("a node carries the connection", || owner(world, port));
    nodes.remove(nodes.iter().position(|node| node.number == number).unwrap())
}

fn open(node: &Node) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
    status["connections"]["open"].as_u64().unwrap()
}

/// The node has sent everything, and its FIN was lost: the next node sends it again. With TLS the close_notify leaves
/// with the FIN and is lost as well, so the node still has the connection. Without TLS the node has already dropped
/// it.
#[test]
fn lost_fin_is_sent_again_by_the_next_node() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _desk) = prepare();
    for carrying in [Transport::Http, Transport::Tls13] {
        let (port, mut wire) = connect(&world, carrying);
        wire.shake().unwrap();
        let lost = format!(
            "tcp sport {} tcp dport {port} tcp flags & fin == fin counter drop",
            carrying.port(Server::Plain)
        );
        filter(&world, "input", &lost);
        wire.send(b"GET /ended HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
        wire.expect_head(200).unwrap();
        wire.expect_content(0..LONG).unwrap();
        let node = carrier(&world, &mut nodes, port);
        eventually("the end is lost", || (world.counted() > 0).then_some(()));
        if carrying == Transport::Http {
            eventually("the node has done with the connection", || (open(&node) == 0).then_some(()));
        }
        node.kill();
        world.filter("delete table bridge ends\n");
        wire.expect_end().unwrap();
        wire.finish().unwrap();
        if nodes.len() > 1 {
            crate::world::settled(&nodes);
        }
    }
}

/// A client with the FIN of the previous node closes in order: the FIN has the same sequence number on both nodes.
#[test]
fn end_that_was_acknowledged_keeps_its_place() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, desk) = prepare();
    let (port, mut wire) = connect(&world, Transport::Tcp);
    wire.send(b"GET /tunnel HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    wire.expect_content(0..LONG).unwrap();
    wire.expect_end().unwrap();
    // The kernel answers unexpected segments for a closed socket with a RST.
    let refused = format!("tcp sport {port} tcp flags & rst == rst counter");
    filter(&world, "output", &refused);
    carrier(&world, &mut nodes, port).kill();
    wire.send(content(0, LONG)).unwrap();
    wire.finish().unwrap();
    drop(wire);
    eventually("the server has received everything", || (*desk.whole.lock().unwrap() == 1).then_some(()));
    const TIME_WAIT: u8 = 6;
    let over = |node: &Node| socket_state(&world, node.number, port).is_none_or(|state| state == TIME_WAIT);
    eventually("the connection is over", || nodes.iter().all(over).then_some(()));
    assert_eq!((world.counted(), desk.wrong()), (0, Vec::new()));
}

/// The client lacks the answer and the end, and its server has closed: only the backups have both.
#[test]
fn tunnel_whose_server_is_gone_is_finished_by_the_next_node() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, desk) = prepare();
    for (carrying, path, length) in
        [(Transport::Tcp, "/n/7", 0), (Transport::Relayed13, "/n/7", 0), (Transport::Tcp, "/ended", LONG)]
    {
        let (port, mut wire) = connect(&world, carrying);
        wire.shake().unwrap();
        wire.ask(0..1).unwrap();
        let node = eventually("a node carries the connection", || owner(&world, port));
        let from = carrying.port(carrying.server());
        filter(&world, "input", &format!("tcp sport {from} tcp dport {port} counter drop"));
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")).unwrap();
        wire.end().unwrap();
        std::thread::sleep(world.chance.moment(400));
        nodes.remove(nodes.iter().position(|other| other.number == node).unwrap()).kill();
        world.filter("delete table bridge ends\n");
        match length {
            0 => wire.expect_text("7").unwrap_or_else(|error| panic!("{carrying:?}: {error}")),
            _ => {
                wire.expect_head(200).unwrap_or_else(|error| panic!("{carrying:?} {path}: {error}"));
                wire.expect_content(0..length).unwrap_or_else(|error| panic!("{carrying:?} {path}: {error}"));
            }
        }
        wire.expect_end().unwrap();
        let config = std::fs::read_to_string(world.folder.path("node-1.toml")).unwrap();
        nodes.push(world.start(node, &config));
        nodes.sort_by_key(|node| node.number);
        crate::world::settled(&nodes);
    }
    assert_eq!(desk.wrong(), Vec::<String>::new());
}

/// Tunnels at once whose clients have ended, and whose servers end when the node dies.
const TUNNELS: usize = 60;

#[test]
fn tunnels_that_end_while_their_node_dies_lose_nothing() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, desk) = prepare();
    let mut open: Vec<_> = (0..TUNNELS).map(|_| connect(&world, Transport::Tcp).1).collect();
    for wire in &mut open {
        wire.send(b"GET /half HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
        wire.expect_head(200).unwrap();
        wire.expect_content(0..HALF).unwrap();
        wire.end().unwrap();
    }
    desk.proceed();
    let finish = |(number, mut wire): (usize, Wire)| {
        std::thread::spawn(move || {
            let done = wire.expect_content(HALF..LONG).and_then(|()| wire.expect_end());
            done.err().map(|error| format!("{number}: {error}"))
        })
    };
    let going: Vec<_> = open.into_iter().enumerate().map(finish).collect();
    std::thread::sleep(world.chance.moment(40));
    nodes.remove(0).kill();
    let broken: Vec<String> = going.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
    assert_eq!((broken, desk.wrong()), (Vec::new(), Vec::new()));
}
