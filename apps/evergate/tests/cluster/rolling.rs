//! A new program on every node, one after the other, as docs/reference/log-reasons.md says: nothing breaks.

use crate::traffic::{self, Carrier, PATIENCE, Server, Traffic};
use crate::world::{Node, World, privileged, settled};
use evergate::agent::status::ClusterStatus;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

#[test]
fn every_process_is_replaced_one_after_the_other_and_no_transfer_breaks() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (nodes, config) = traffic::three(&world);
    let traffic = Traffic::start(&world, &traffic::PLAIN);
    let nodes = replace_all(&world, nodes, &config, &traffic);
    traffic.end();
    drop(nodes);
}

/// Only nodes that have been there since know the configuration that they began under.
#[test]
fn transfers_from_before_a_reload_survive_new_processes_on_all_nodes() {
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

/// A request that its server has not answered yet, before a reload. The node that it came to is killed, and the other one was
/// started with the new configuration: other rules, and this listener.
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
        SocketAddr::new(world.family.address(), Carrier::Http.port(Server::Plain)),
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

/// Both of its ends hear of its end: they only wait.
#[test]
fn a_request_is_reset_where_what_decided_about_it_is_not_known() {
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

/// Its response is edited as it would have been.
#[test]
fn a_request_from_before_a_reload_is_answered_where_the_rules_that_matched_it_are_known() {
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

/// It would have to go on with requests that began under a configuration that it never had.
#[test]
fn a_node_with_a_new_configuration_gets_buckets_when_the_others_have_it_too() {
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
    let first = nodes[0].eventually("would have given buckets away", aged);
    let (one, two) = (&first.nodes[0], &first.nodes[1]);
    assert_eq!((one.config_compatible, two.config_compatible), (Some(true), Some(false)));
    assert!(one.generation.is_some() && two.generation.is_some() && one.generation != two.generation);
    assert!(nodes[0].cli(&["cluster", "status"]).out.contains("(lacks ours)"));
    assert_eq!(nodes[1].status().buckets.owned, 0);
    world.write_config(1, &new);
    assert_eq!(nodes[0].cli(&["reload"]).code, Some(0));
    let second = nodes[1].eventually("has its share", |status| status.buckets.owned > 400);
    assert!(second.nodes.iter().all(|node| node.config_compatible == Some(true)), "{:?}", second.nodes);
    assert_eq!(second.nodes[0].generation, second.nodes[1].generation);
}

#[test]
fn a_node_of_a_cluster_says_how_it_is_upgraded() {
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

/// Its handshake need not be made again, which other files would not allow.
#[test]
fn a_request_whose_body_is_long_outlives_a_renewed_certificate() {
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
    let to = SocketAddr::new(world.family.address(), Carrier::Tls13.port(Server::Plain));
    let mut uploads: Vec<_> = (0..8)
        .map(|_| {
            let trusted = trusted.clone();
            let mut client =
                world.switch.run(move || traffic::connect(Carrier::Tls13, to, &trusted).unwrap());
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
