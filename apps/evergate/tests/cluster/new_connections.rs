//! Clients that open a connection for each request, as fast as they can, while nodes die one after the other. At any
//! moment some are in each phase of their short lives.

use crate::matrix::carrier;
use crate::resets::{client_stream, get_with, serve_all};
use crate::traffic::{self, PATIENCE, Server, Transport, content};
use crate::world::{World, eventually, privileged, settled};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CLIENTS: usize = 12;
/// Connections between two deaths.
const BETWEEN: usize = 400;
/// Drains, one node after the other.
const MOVES: usize = 6;

#[test]
fn connections_that_last_for_one_request_outlive_nodes() {
    if !privileged() {
        return;
    }
    for wire in [Transport::Tls13, Transport::Http] {
        let world = World::new(3);
        let (mut nodes, _) = traffic::three(&world);
        serve_all(&world);
        let roots = Arc::new(traffic::roots(&world));
        let to = SocketAddr::new(world.family.address(), wire.port(Server::Plain));
        let (made, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (roots, made, over) = (roots.clone(), made.clone(), over.clone());
                world.switch.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let stream = TcpStream::connect_timeout(&to, PATIENCE).expect("a connection");
                        stream.set_read_timeout(Some(PATIENCE)).unwrap();
                        let mut stream = client_stream(wire, &roots, stream);
                        get_with(&mut stream, "/brief", "Connection: close\r\n");
                        let mut body = Vec::new();
                        stream.read_to_end(&mut body).expect("a response to its end");
                        assert_eq!(body, content(0, 2));
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            await_more(&made);
            carrier(&mut nodes).kill();
        }
        await_more(&made);
        over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    }
}

/// Clients of a server that sends first send nothing that a node could ask for again. If a bucket moves without such
/// a client, it waits for ever. `EVERGATE_ROUNDS=n` sets the number of drains; the original error occurred in one
/// drain of about 80.
#[test]
fn clients_receive_greetings_while_their_buckets_move() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let config = world.config(&World::entries(3), "").replace("flows_max = 1024", "flows_max = 16384");
    let nodes: Vec<_> = (1..=3).map(|number| world.start(number, &config)).collect();
    let at = SocketAddr::new(world.family.inside(254), 9);
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"welcome")));
        });
    });
    settled(&nodes);
    let to = SocketAddr::new(world.family.address(), 8080);
    let (made, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (made, over) = (made.clone(), over.clone());
            world.switch.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("a connection");
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut greeting = String::new();
                    stream.read_to_string(&mut greeting).expect("a greeting");
                    assert_eq!(greeting, "welcome");
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let moves = std::env::var("EVERGATE_ROUNDS").map_or(MOVES, |text| text.parse().expect("a number"));
    for node in nodes.iter().cycle().take(moves) {
        await_more(&made);
        assert_eq!(node.cli(&["node", "drain"]).code, Some(0));
        node.eventually("is drained", |status| status.drained);
        await_more(&made);
        assert_eq!(node.cli(&["node", "undrain"]).code, Some(0));
        settled(&nodes);
    }
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
}

/// Waits until clients have made [`BETWEEN`] further connections.
fn await_more(made: &AtomicUsize) {
    let wanted = made.load(Ordering::Relaxed) + BETWEEN;
    eventually("clients are served", || (made.load(Ordering::Relaxed) >= wanted).then_some(()));
}
