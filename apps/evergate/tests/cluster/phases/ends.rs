//! Closing connections whose node dies meanwhile.

use super::server::LONG;
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
