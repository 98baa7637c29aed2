//! Clients in every phase of a connection, each stopped exactly there, while their nodes die. All continue, and every
//! byte is correct.

mod all;
mod begins;
mod ends;
pub(crate) mod server;
mod wire;

use crate::sockets::sockets;
use crate::support::eventually;
use crate::traffic::{SERVERS, Transport, config, roots};
use crate::world::{Node, World, privileged, settled};
use all::{PHASES, Phase, Rest};
use server::Desk;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use wire::Wire;

/// Bound on the connections until one reaches a given node, far more than usual.
const TRIES: usize = 60;

/// Long timeouts: clients stand still for a long time, and this machine may be slow.
pub(crate) const PATIENT: &str = "[timeouts]\nhandshake_ms = 600000\nrequest_head_ms = 600000\n\
    request_body_ms = 600000\nkeep_alive_ms = 600000\nresponse_ms = 600000\nwrite_stall_ms = 600000\n";

/// Stopped client, by name.
type Stopped = (String, Rest);
/// Continued client, by name, and its result.
type Running = (String, JoinHandle<std::io::Result<()>>);

/// State of a node's socket for the client's port, as the kernel numbers states.
pub(crate) fn socket_state(world: &World, node: u8, port: u16) -> Option<u8> {
    let all = sockets(world.host(node));
    all.into_iter().find(|socket| socket.remote.port() == port).map(|socket| socket.state)
}

/// Number of the node that has a socket for the client's port.
pub(crate) fn owner(world: &World, port: u16) -> Option<u8> {
    (1..=3).find(|number| socket_state(world, *number, port).is_some())
}

/// New connection, and its client port.
fn connect(world: &World, transport: Transport) -> (u16, Wire) {
    let (to, roots) = (world.family.address(), Arc::new(roots(world)));
    let wire = world.switch.run(move || Wire::connect(transport, to, &roots)).unwrap();
    (wire.port(), wire)
}

/// Connection that this node carries.
fn connect_at(world: &World, node: u8, transport: Transport) -> Wire {
    for _ in 0..TRIES {
        let (port, wire) = connect(world, transport);
        if eventually("a node has the connection", || owner(world, port)) == node {
            return wire;
        }
    }
    panic!("{TRIES} connections, and none of them at node {node}");
}

/// Stops a client of this node in the phase.
fn stop(world: &World, node: u8, phase: Phase, transport: Transport) -> Stopped {
    let name = format!("{} over {transport:?}", phase.name);
    let stopped = (phase.stop)(connect_at(world, node, transport));
    let rest = stopped.unwrap_or_else(|error| panic!("{name}: {error} before anything happened"));
    (name, rest)
}

/// Moment of the deaths.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// While all clients stand still.
    Stopped,
    /// Directly after the clients continue.
    Continued,
}

/// Adds an nftables rule for the packets from or to the clients and the server.
pub(crate) fn filter(world: &World, hook: &str, rule: &str) {
    let chain = format!("chain {hook} {{ type filter hook {hook} priority 0; {rule}; }}");
    world.filter(&format!("table bridge ends {{\n{chain}\n}}\n"));
}

/// Cluster of three nodes in front of the server.
fn prepare() -> (World, Vec<Node>, Arc<Desk>) {
    let world = World::new(3);
    let config = format!("{PATIENT}{}", config(&world, 3, ""));
    let nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let desk = Arc::new(Desk::default());
    for server in SERVERS {
        let (at, tls, shared) = (server.address(&world), server.config(&world), desk.clone());
        world.switch.run(move || {
            let listener = TcpListener::bind(at).unwrap();
            std::thread::spawn(move || server::serve(&listener, tls.as_ref(), &shared));
        });
    }
    (world, nodes, desk)
}

/// Stops clients of the first victim in all phases, kills the victims one after the other, and continues all clients,
/// before or after the deaths.
fn outlive(victims: &[u8], when: When) {
    outlive_as(victims, when, Node::kill);
}

/// [`outlive`] of nodes that end in this way.
fn outlive_as(victims: &[u8], when: When, end: fn(Node)) {
    if !privileged() {
        return;
    }
    let (world, mut nodes, desk) = prepare();
    let all = PHASES.iter().flat_map(|phase| phase.over.iter().map(move |transport| (*phase, *transport)));
    let mut stopped: Vec<Stopped> =
        all.map(|(phase, transport)| stop(&world, victims[0], phase, transport)).collect();
    let tunnels = stopped.iter().filter(|(name, _)| name.starts_with("half_open")).count();
    let mut going = Vec::new();
    if when == When::Continued {
        going = proceed(&desk, std::mem::take(&mut stopped));
        std::thread::sleep(world.chance.moment(40));
    }
    for (number, victim) in victims.iter().enumerate() {
        if number > 0 {
            settled(&nodes);
        }
        let place = nodes.iter().position(|node| node.number == *victim).unwrap();
        end(nodes.remove(place));
    }
    going.extend(proceed(&desk, stopped));
    let mut broken = Vec::new();
    for (name, thread) in going {
        if let Err(error) = thread.join().unwrap() {
            broken.push(format!("{name}: {error}"));
        }
    }
    assert!(broken.is_empty() && desk.wrong().is_empty(), "{broken:#?}, the server: {:#?}", desk.wrong());
    eventually("every half-open tunnel ends", || (*desk.whole.lock().unwrap() == tunnels).then_some(()));
    let continued: u64 = nodes.iter().map(|node| node.status().counts.connections_continued).sum();
    assert!(continued > 0, "nothing was carried by the nodes that died");
}

/// Continues the server and these clients.
fn proceed(desk: &Desk, stopped: Vec<Stopped>) -> Vec<Running> {
    desk.proceed();
    stopped.into_iter().map(|(name, rest)| (name, std::thread::spawn(rest))).collect()
}

#[test]
fn clients_in_every_phase_outlive_their_node() {
    outlive(&[2], When::Stopped);
}

#[test]
fn clients_in_every_phase_outlive_two_nodes() {
    outlive(&[1, 3], When::Stopped);
}

#[test]
fn clients_that_continue_from_every_phase_outlive_their_node() {
    outlive(&[3], When::Continued);
}

/// Planned moves, as before an upgrade of the program.
fn drain_and_stop(mut node: Node) {
    let drained = node.cli(&["node", "drain", "--wait", "60"]);
    assert_eq!(drained.code, Some(0), "{drained:?}");
    node.process.signal("TERM");
    assert!(node.process.wait().success(), "{:#?}", node.process.lines());
}

#[test]
fn clients_in_every_phase_move_when_nodes_are_drained() {
    outlive_as(&[1, 2], When::Stopped, drain_and_stop);
}
