//! Health checks of a node after it was cut off.

use crate::support::eventually;
use crate::traffic::{self, Server};
use crate::world::{Node, World, privileged, settled};
use std::net::TcpListener;

/// The node's results from that time may be its own fault, and the next periodic check is an hour away.
#[test]
fn rejoining_node_probes_down_servers_before_it_serves() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let at = Server::Plain.address(&world);
    let server = format!("servers = [{{ address = \"{at}\" }}]\n");
    let config = traffic::config(&world, 2, "").replacen(
        &server,
        &format!("{server}[pools.health]\nkind = \"tcp\"\ninterval_ms = 3600000\n"),
        1,
    );
    let nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let reported = |what: &str| nodes[1].process.lines().iter().any(|line| line.contains(what));
    eventually("the server is down", || reported("server plain/").then_some(()));
    let _server = world.switch.run(move || TcpListener::bind(at).unwrap());
    nodes[1].process.signal("STOP");
    nodes[0].eventually("is alone", |status| status.buckets.owned == 1024);
    nodes[1].process.signal("CONT");
    settled(&nodes);
    eventually("the server is up", || reported(" is up: ").then_some(()));
}
