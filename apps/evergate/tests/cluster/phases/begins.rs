//! Connections of which a node has only seen the SYN when it dies.

use super::{connect, filter, prepare};
use crate::support::eventually;
use crate::traffic::Transport;
use crate::world::{Node, privileged, settled};

/// Number of SYNs that a node has answered.
fn answered(node: &Node) -> u64 {
    node.status().gate["cookie_sent"]
}

/// The client has the SYN-ACK of a node that dies before any further segment arrives. Another node continues.
fn outlives_the_node_of_its_syn(transports: &[Transport]) {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _desk) = prepare();
    for transport in transports.iter().copied() {
        let before: Vec<u64> = nodes.iter().map(answered).collect();
        filter(
            &world,
            "output",
            &format!("tcp dport {} tcp flags & syn != syn counter drop", transport.port(transport.server())),
        );
        let (_, mut wire) = connect(&world, transport);
        let place = eventually("a node has answered", || {
            nodes.iter().zip(&before).position(|(node, before)| answered(node) > *before)
        });
        eventually("the rest is lost", || (world.counted() > 0).then_some(()));
        nodes.remove(place).kill();
        world.filter("delete table bridge ends\n");
        wire.shake().unwrap();
        wire.ask(0..3).unwrap();
        if nodes.len() > 1 {
            settled(&nodes);
        }
    }
}

#[test]
fn connection_outlives_the_node_that_answered_its_syn() {
    outlives_the_node_of_its_syn(&[Transport::Tls13, Transport::Http]);
}

#[test]
fn tls12_connection_outlives_the_node_that_answered_its_syn() {
    outlives_the_node_of_its_syn(&[Transport::Tls12]);
}

#[test]
fn relayed_connection_outlives_the_node_that_answered_its_syn() {
    outlives_the_node_of_its_syn(&[Transport::Relayed13, Transport::Relayed12]);
}
