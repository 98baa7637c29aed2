//! Source ports of server connections. After a failover a server still knows the connections of the dead node.

use crate::matrix::carrier;
use crate::raw_connection::{self, RawConnection};
use crate::resets::{connect, get};
use crate::sockets::{ESTABLISHED, sockets};
use crate::traffic::{self, PATIENCE, Server, Transport, head};
use crate::world::{Node, World, eventually, privileged, settled};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Fewer than a third of a bucket's 27 ports, so that a node's share lasts even if no port becomes free meanwhile.
const ASKED: usize = 8;

#[test]
fn next_node_dials_servers_from_other_ports() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, _) = traffic::three(&world);
    let at = Server::Plain.address(&world);
    let (seen, ports) = channel();
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            // Each connection serves one request, so that each request opens one.
            for mut stream in listener.incoming().flatten() {
                let from = stream.peer_addr().unwrap().port();
                if head(&mut stream).is_ok() {
                    let reported = stream
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
                    reported.unwrap();
                    seen.send(from).unwrap();
                }
            }
        });
    });
    let to = SocketAddr::new(world.family.address(), Transport::Http.port(Server::Plain));
    let from = world.family.outside(254);
    // The last connection stays open and shows which node carries them.
    let ask_some = || {
        let client = world.switch.spawn(move || {
            let mut last = None;
            for _ in 0..ASKED {
                drop(last.take());
                let mut stream = connect(from, to);
                get(&mut stream, "/brief");
                let mut body = [0; 2];
                stream.read_exact(&mut body).unwrap();
                evergate_sys::reset_on_close(stream.as_raw_fd());
                last = Some(stream);
            }
            last
        });
        let last = client.join().unwrap();
        let ports: Vec<u16> = (0..ASKED).map(|_| ports.recv_timeout(PATIENCE).unwrap()).collect();
        ((*ports.iter().min().unwrap(), *ports.iter().max().unwrap()), last)
    };
    let (first, open) = ask_some();
    carrier(&mut nodes).kill();
    drop(open);
    let (second, _) = ask_some();
    assert!(first.1 < second.0 || second.1 < first.0, "ports {first:?}, then {second:?}");
}

/// A bucket has two ports here. A port in TIME_WAIT would be unusable for a minute.
#[test]
fn closed_idle_server_connection_frees_its_port_at_once() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = traffic::config(&world, 2, "ports_per_bucket = 2\n")
        .replace("[[pools]]\nname = \"plain\"\n", "[[pools]]\nname = \"plain\"\nkeep_alive_idle_ms = 50\n");
    let nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let at = Server::Plain.address(&world);
    let (ended, ends) = channel();
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                while head(&mut stream).is_ok() {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
                }
                ended.send(()).unwrap();
            }
        });
    });
    let to = SocketAddr::new(world.family.address(), Transport::Http.port(Server::Plain));
    let from = world.family.outside(254);
    world.switch.run(move || {
        let mut client = connect(from, to);
        for _ in 0..5 {
            get(&mut client, "/brief");
            client.read_exact(&mut [0; 2]).unwrap();
            ends.recv_timeout(PATIENCE).unwrap(); // the node has closed the connection
        }
    });
}

/// The node sends its FIN to the server first. A port in TIME_WAIT would be unusable for a minute.
#[test]
fn tunnel_that_its_client_ends_frees_its_port_at_once() {
    if !privileged() {
        return;
    }
    let (world, nodes, _, ends) = raw_connection::prepare(2, "");
    let at = Server::Plain.address(&world);
    for _ in 0..3 {
        let mut client = RawConnection::open(&world).unwrap();
        client.continues("before the end");
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "the server's end comes");
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(None), "the server's connection ends in order");
    }
    let has_leg = |node: &Node| {
        sockets(world.host(node.number)).iter().any(|socket| SocketAddr::V4(socket.remote) == at)
    };
    eventually("no port to the server is in use", || (!nodes.iter().any(has_leg)).then_some(()));
}

/// Buckets begin at different source addresses. A server leg keeps its own in a failover.
#[test]
fn leg_of_each_source_address_survives_its_node() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let sources = [100, 101].map(|host| world.family.inside(host));
    let config = traffic::config(&world, 2, "ports_per_bucket = 1\n").replace(
        &format!("server_source = [\"{}\"]", sources[0]),
        &format!("server_source = [\"{}\", \"{}\"]", sources[0], sources[1]),
    );
    raw_connection::serve(&world);
    let nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let at = Server::Plain.address(&world);
    let sources_of = |node: &Node| -> Vec<IpAddr> {
        let legs = sockets(world.host(node.number)).into_iter();
        let legs = legs.filter(|socket| SocketAddr::V4(socket.remote) == at && socket.state == ESTABLISHED);
        legs.map(|socket| IpAddr::V4(*socket.local.ip())).collect()
    };
    let mut clients: Vec<RawConnection> = Vec::new();
    eventually("a node uses both source addresses", || {
        let mut client = RawConnection::open(&world).ok()?;
        client.continues("before the failure");
        clients.push(client);
        nodes.iter().any(|node| sources.iter().all(|source| sources_of(node).contains(source))).then_some(())
    });
    let (mut before, mut nodes) = (0, nodes);
    for node in &nodes {
        before += sources_of(node).len();
    }
    let dead = nodes.iter().position(|node| sources.iter().all(|source| sources_of(node).contains(source)));
    nodes.remove(dead.unwrap()).kill();
    for client in &mut clients {
        client.continues("after the failure");
    }
    assert_eq!((sources_of(&nodes[0]).len(), clients.len()), (before, before));
}

/// Tunnels whose bucket has no free port wait in the queue, and get the ports of the tunnels that end.
#[test]
fn tunnel_without_a_port_is_served_when_another_ends() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let pool = "[[pools]]\nname = \"plain\"\n";
    let config = traffic::config(&world, 2, "ports_per_bucket = 1\n");
    assert!(config.contains(pool));
    let config = config.replace(pool, &format!("{pool}queue_timeout_ms = 60000\n"));
    let _ends = raw_connection::serve(&world);
    let nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    // Of so many clients, two are in one bucket of 1024 but with a probability of 2 in 100,000.
    let mut clients: Vec<RawConnection> = (0..150).map(|_| RawConnection::open(&world).unwrap()).collect();
    clients.iter_mut().for_each(RawConnection::send_byte);
    let waits = |node: &Node| {
        let metrics = node.cli(&["metrics"]).out;
        let value = metrics.lines().find_map(|line| line.strip_prefix("evergate_port_waits_total "));
        value.unwrap().parse::<u64>().unwrap()
    };
    eventually("a tunnel waits for a port", || (nodes.iter().map(waits).sum::<u64>() > 0).then_some(()));
    let (served, waiting): (Vec<_>, Vec<_>) = clients.into_iter().partition(|client| {
        client.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        client.stream.peek(&mut [0]).is_ok()
    });
    assert!(!waiting.is_empty());
    for mut client in served {
        client.expect_echo("in its tunnel");
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "the server's end comes");
    }
    for mut client in waiting {
        client.expect_echo("when a port is free");
    }
}
