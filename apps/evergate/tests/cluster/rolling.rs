//! Rolling upgrade: a new program on every node, one after the other, as docs/guide/upgrade.md describes. No transfer
//! breaks.

use crate::traffic::{self, PATIENCE, Server, Traffic, Transfer, Transport};
use crate::world::{Node, World, privileged, settled};
use evergate::agent::status::ClusterStatus;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

#[test]
fn transfers_survive_the_replacement_of_every_process() {
    survive_replacement(&traffic::PLAIN);
}

#[test]
fn secure_transfers_survive_the_replacement_of_every_process() {
    survive_replacement(&traffic::SECURE);
}

fn survive_replacement(transfers: &'static [Transfer]) {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (nodes, config) = traffic::three(&world);
    let traffic = Traffic::start(&world, transfers);
    let nodes = replace_all(&world, nodes, &config, &traffic);
    traffic.end();
    drop(nodes);
}

/// Only nodes that ran before the reload have the configuration under which the transfers began.
#[test]
fn transfers_from_before_a_reload_survive_new_processes() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (nodes, config) = traffic::three(&world);
    let traffic = Traffic::start(&world, &traffic::PLAIN);
    traffic.continues("before the reload");
    let config = format!("[[rules]]\nname = \"new\"\nwhen = 'path == \"/new\"'\ndeny = 403\n{config}");
    for node in &nodes {
        world.write_config(node.number, &config);
        let reload = node.cli(&["reload"]);
        assert_eq!(reload.code, Some(0), "{reload:?}");
    }
    let nodes = replace_all(&world, nodes, &config, &traffic);
    traffic.end();
    drop(nodes);
}

fn replace_all(world: &World, mut nodes: Vec<Node>, config: &str, traffic: &Traffic) -> Vec<Node> {
    traffic.silences();
    for number in 1..=3 {
        let mut old = nodes.remove(usize::from(number) - 1);
        let before = old.process.id();
        assert_eq!(old.cli(&["node", "drain", "--wait", "60"]).code, Some(0));
        traffic.continues("without the drained node");
        old.process.signal("TERM");
        assert!(old.process.wait().success(), "{:#?}", old.process.lines());
        let new = world.start(number, config);
        assert_ne!(new.process.id(), before);
        let waited = new.cli(&["cluster", "wait"]);
        assert_eq!(waited.code, Some(0), "{waited:?}");
        nodes.insert(usize::from(number) - 1, new);
        traffic.continues("with the new process");
    }
    let silences = traffic.silences();
    println!("longest silences {silences:?}");
    for status in settled(&nodes) {
        assert_eq!(status.counts.connections_lost + status.counts.failovers, 0, "{:?}", status.counts);
    }
    nodes
}

/// A request without an answer, before a reload. The node that received it is killed. The other node has started with
/// the new configuration, with other rules and this listener.
fn is_failed_over_with(rules: [&str; 2], listener: &str) -> (TcpStream, TcpStream, Vec<Node>, World) {
    let world = World::new(2);
    let plain = traffic::config(&world, 2, "");
    let [old, new] = rules.map(|rules| format!("{rules}{plain}"));
    assert!(new.contains(LISTENER));
    let new = new.replace(LISTENER, listener);
    let mut nodes = vec![world.start(1, &old)];
    settled(&nodes);
    let (at, to) = (
        Server::Plain.address(&world),
        SocketAddr::new(world.family.address(), Transport::Http.port(Server::Plain)),
    );
    let (mut client, mut server) = world.switch.run(move || {
        let server = TcpListener::bind(at).unwrap();
        let mut client = TcpStream::connect(to).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
        let (mut server, _) = server.accept().unwrap();
        traffic::head(&mut server).unwrap();
        (client, server)
    });
    for end in [&mut client, &mut server] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    world.write_config(1, &new);
    assert_eq!(nodes[0].cli(&["reload"]).code, Some(0));
    nodes.push(world.start(2, &new));
    settled(&nodes);
    nodes.remove(0).kill();
    (client, server, nodes, world)
}

const LISTENER: &str = "protocol = \"http\"\npool = \"plain\"\n";
const NEW: &str = "[[rules]]\nname = \"new\"\nwhen = 'path == \"/new\"'\ndeny = 403\n";
const MARKS: &str = "[[rules]]\nname = \"marks\"\nset_response_headers = { x-mark = \"set\" }\n";

/// Client and server both wait, so each of them must receive the end.
#[test]
fn request_is_reset_where_its_rules_are_unknown() {
    if !privileged() {
        return;
    }
    let limits = format!("{LISTENER}limits = {{ head_bytes_max = 2048 }}\n");
    for (new, listener) in [(NEW, LISTENER), (MARKS, &limits), (MARKS, &LISTENER.replace("http", "tcp"))] {
        let (mut client, mut server, nodes, _world) = is_failed_over_with([MARKS, new], listener);
        for end in [&mut client, &mut server] {
            assert_eq!(end.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        settled(&nodes);
        let reported = nodes[0].process.lines();
        assert!(
            reported.iter().any(|line| line.contains("(`failover_config_unknown`)")),
            "{listener}: {reported:#?}"
        );
    }
}

/// The response is edited as under the old configuration.
#[test]
fn request_from_before_a_reload_is_answered_with_its_rules() {
    if !privileged() {
        return;
    }
    let (mut client, mut server, nodes, _world) =
        is_failed_over_with([MARKS, &format!("{NEW}{MARKS}")], LISTENER);
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    let head = traffic::head(&mut client).unwrap();
    assert!(head.to_lowercase().contains("\r\nx-mark: set\r\n"), "{head}");
    settled(&nodes);
}

/// The node would continue requests that began under a configuration that it never had.
#[test]
fn node_with_a_new_configuration_waits_for_the_other_nodes() {
    const BALANCED_MS: u64 = 5000;
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = traffic::config(&world, 2, "");
    let new = format!("[[rules]]\nname = \"new\"\nwhen = 'path == \"/new\"'\ndeny = 403\n{config}");
    let mut nodes = vec![world.start(1, &config)];
    settled(&nodes);
    nodes.push(world.start(2, &new));
    settled(&nodes);
    let aged = |status: &ClusterStatus| status.view.as_ref().is_some_and(|view| view.age_ms > BALANCED_MS);
    let first = nodes[0].eventually("could have handed off buckets", aged);
    let (one, two) = (&first.nodes[0], &first.nodes[1]);
    assert_eq!((one.config_compatible, two.config_compatible), (Some(true), Some(false)));
    assert!(one.generation.is_some() && two.generation.is_some() && one.generation != two.generation);
    assert!(nodes[0].cli(&["cluster", "status"]).out.contains("(incompatible)"));
    assert_eq!(nodes[1].status().buckets.owned, 0);
    world.write_config(1, &new);
    assert_eq!(nodes[0].cli(&["reload"]).code, Some(0));
    let second = nodes[1].eventually("has its share", |status| status.buckets.owned > 400);
    assert!(second.nodes.iter().all(|node| node.config_compatible == Some(true)), "{:?}", second.nodes);
    assert_eq!(second.nodes[0].generation, second.nodes[1].generation);
}

#[test]
fn cluster_node_refuses_upgrade_and_names_drain() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    let output = nodes[0].cli(&["upgrade"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("`evergate node drain`"), "{output:?}");
    settled(&nodes);
}

/// A failover of this request replays no handshake, which other certificate files would prevent.
#[test]
fn request_with_a_long_body_outlives_a_renewed_certificate() {
    const PIECE: usize = 65_536;
    const PIECES: usize = 16;
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = traffic::config(&world, 2, "");
    let mut nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let trusted = Arc::new(traffic::roots(&world));
    let listener = world.switch.run({
        let at = Server::Plain.address(&world);
        move || TcpListener::bind(at).unwrap()
    });
    let to = SocketAddr::new(world.family.address(), Transport::Tls13.port(Server::Plain));
    let mut uploads: Vec<_> = (0..8)
        .map(|_| {
            let trusted = trusted.clone();
            let mut client =
                world.switch.run(move || traffic::connect(Transport::Tls13, to, &trusted).unwrap());
            let head =
                format!("POST / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: {}\r\n\r\n", PIECES * PIECE);
            client.write_all(head.as_bytes()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            server.set_read_timeout(Some(PATIENCE)).unwrap();
            traffic::head(&mut server).unwrap();
            (client, server)
        })
        .collect();
    let mut pass = |from: usize, to: usize| {
        for piece in from..to {
            for (client, server) in &mut uploads {
                let (sent, mut got) = (traffic::content(piece * PIECE, (piece + 1) * PIECE), vec![0; PIECE]);
                client.write_all(&sent).unwrap();
                server.read_exact(&mut got).unwrap();
                assert!(sent == got, "piece {piece}");
            }
        }
    };
    pass(0, PIECES / 2);
    world.certificate();
    for node in &nodes {
        assert_eq!(node.cli(&["reload"]).code, Some(0));
    }
    nodes.remove(0).kill();
    pass(PIECES / 2, PIECES);
    for (mut client, mut server) in uploads {
        server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        assert!(traffic::head(&mut client).unwrap().starts_with("HTTP/1.1 204 "));
    }
    settled(&nodes);
}
