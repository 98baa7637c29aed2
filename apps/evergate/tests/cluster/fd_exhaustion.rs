//! Nodes that have run out of file descriptors.

use crate::support::eventually;
use crate::traffic::{self, PATIENCE, Server, Transport};
use crate::world::{Node, World, privileged, settled};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

/// Limits the node to `more` further descriptors, or to nearly any number for `None`.
fn limit_descriptors(node: &Node, more: Option<usize>) {
    let pid = node.process.id().to_string();
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<usize> =
        open().map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let limit = match more {
        Some(more) => (0..).filter(|number| !open.contains(number)).nth(more).unwrap(),
        None => 10_000,
    };
    let status = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={limit}:20000")]).status();
    assert!(status.unwrap().success());
}

/// Whether the cluster answers a client at this port.
fn is_answered(world: &World, port: u16) -> bool {
    let to = SocketAddr::new(world.family.address(), port);
    world.switch.run(move || {
        let Ok(mut client) = TcpStream::connect_timeout(&to, PATIENCE) else { return false };
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"GET /closed HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).is_ok() && &answer == b"HTTP/1.1 403"
    })
}

/// The reload collects all that it needs before it changes the gate's listeners.
#[test]
fn refused_reload_without_descriptors_keeps_the_old_listener() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    let rule = "[[rules]]\nname = \"closed\"\nwhen = 'path == \"/closed\"'\ndeny = 403\n";
    let config = format!("{rule}{}", traffic::config(&world, 1, ""));
    let node = world.start(1, &config);
    settled(std::slice::from_ref(&node));
    let old = Transport::Http.port(Server::Plain);
    let new = old + 100;
    assert!(is_answered(&world, old));
    world.write_config(1, &config.replace(&format!(":{old}\""), &format!(":{new}\"")));
    let reported = |what: &str| node.process.lines().iter().filter(|line| line.contains(what)).count();
    let mut copied = false;
    for more in 0.. {
        let before = reported("reload");
        limit_descriptors(&node, Some(more));
        node.process.signal("HUP");
        eventually("the reload has failed or finished", || (reported("reload") > before).then_some(()));
        limit_descriptors(&node, None);
        if reported("reloaded ") > 0 {
            break;
        }
        assert!(is_answered(&world, old), "with {more} to spare: {:#?}", node.process.lines());
        copied |= reported("cannot copy the listening sockets") > 0;
    }
    assert!(copied, "{:#?}", node.process.lines());
    assert!(is_answered(&world, new));
    // A node without descriptors must not conclude that its filters are gone.
    assert_eq!(reported("packet filter is off"), 0, "{:#?}", node.process.lines());
}

#[test]
fn failover_without_descriptors_logs_losses_and_serves_on() {
    const CLIENTS: usize = 40;
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let rule = "[[rules]]\nname = \"closed\"\nwhen = 'path == \"/closed\"'\ndeny = 403\n";
    let config = format!("{rule}{}", traffic::config(&world, 2, ""));
    let mut nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let port = Transport::Http.port(Server::Plain);
    let to = SocketAddr::new(world.family.address(), port);
    let _clients = world.switch.run(move || {
        let clients = (0..CLIENTS).map(|_| {
            let mut client = TcpStream::connect(to).unwrap();
            client.write_all(b"GET /closed HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
            client.read_exact(&mut [0; 12]).unwrap();
            client
        });
        clients.collect::<Vec<_>>()
    });
    nodes[0].eventually("its connections are replicated", |status| {
        status.replication.connections > 4 && status.replication.replicated == status.replication.connections
    });
    limit_descriptors(&nodes[1], Some(3));
    nodes.remove(0).kill();
    let node = &nodes[0];
    let reported = |what: &str| node.process.lines().iter().any(|line| line.contains(what));
    eventually("the loss is logged", || reported("(`failover_socket_failed`)").then_some(()));
    assert!(!reported("packet filter is off"), "{:#?}", node.process.lines());
    limit_descriptors(node, None);
    eventually("it serves", || is_answered(&world, port).then_some(()));
    assert!(node.status().counts.connections_lost > 0);
}
