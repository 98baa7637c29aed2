//! Clients that read slowly. Their servers have long retransmission timers, which must not decide how long a client
//! waits after a move.

use crate::support::eventually;
use crate::traffic::{PATIENCE, content, head};
use crate::transfers::{Listener, SERVER, check, config, connect, open, serving};
use crate::world::{ADDRESS, Node, World, privileged, settled};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Number of clients, of which a third moves. At the moment of the move at least one server sends, and its segments
/// are lost.
const CLIENTS: usize = 12;
/// Bytes per read. With the pause a client reads about 50 KB/s, so that bytes in flight last for seconds.
const BIT: usize = 4096;
const PAUSE: Duration = Duration::from_millis(80);
/// Bytes after which the servers have adapted to their slow clients.
const KNOWN: usize = 400_000;

/// Reads the content slowly until `enough` is set.
fn read_slowly(taken: &AtomicUsize, enough: &AtomicBool) {
    let mut stream = TcpStream::connect((ADDRESS, Listener::Http.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200"));
    let mut at = 0;
    while !enough.load(Ordering::Relaxed) {
        check(&mut Read::by_ref(&mut stream), at, at + BIT);
        at += BIT;
        taken.store(at, Ordering::Relaxed);
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn servers_of_slow_clients_get_loss_notices_after_a_drain() {
    if !privileged() {
        return;
    }
    let world = serving();
    let config = config(&world);
    let nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let enough = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (taken, enough) = (Arc::new(AtomicUsize::new(0)), enough.clone());
            let of_client = taken.clone();
            (taken, world.switch.spawn(move || read_slowly(&of_client, &enough)))
        })
        .collect();
    let have = |more: usize| {
        let all: Vec<usize> = clients.iter().map(|(taken, _)| taken.load(Ordering::Relaxed) + more).collect();
        eventually("the clients continue", || {
            clients
                .iter()
                .zip(&all)
                .all(|((taken, _), most)| taken.load(Ordering::Relaxed) >= *most)
                .then_some(())
        });
    };
    have(KNOWN);
    let carrier = nodes.iter().max_by_key(|node| open(node)).unwrap();
    assert_eq!(carrier.cli(&["node", "drain"]).code, Some(0));
    carrier.eventually("is drained", |status| status.drained);
    eventually("servers receive loss notices", || {
        let reported: u64 = nodes.iter().map(|node| node.status().loss_notices_late).sum();
        (reported > 0).then_some(())
    });
    have(KNOWN / 4);
    enough.store(true, Ordering::Relaxed);
    for (_, client) in clients {
        client.join().unwrap();
    }
}

/// More bytes than a node keeps of forwarded input.
const LONG: usize = 1_000_000;
/// Bytes that the client leaves unread: more than its buffer, and beyond that fewer than a node keeps of a response's
/// end.
const LEFT: usize = 40_000;

/// Sends the content to the first client, and returns when all of it is acknowledged.
fn send_once(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    head(&mut stream).unwrap();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n").unwrap();
    stream.write_all(&content(0, LONG)).unwrap();
    eventually("all is acknowledged", || {
        (evergate_sys::unacknowledged(stream.as_raw_fd()) == 0).then_some(())
    });
    stream
}

/// A server with nothing left to retransmit need not be waited for after a failover.
#[test]
fn server_input_is_acknowledged_although_its_client_stalls() {
    if !privileged() {
        return;
    }
    for kind in [Listener::Http, Listener::Https] {
        let world = World::new(3);
        world.switch.sysctl("net.ipv4.tcp_rmem", "4096 8192 8192").unwrap();
        let listener = world.switch.run(|| TcpListener::bind(SERVER).unwrap());
        let server = world.switch.spawn(move || send_once(&listener));
        let config = config(&world);
        let mut nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
        settled(&nodes);
        let (notify, proceed) = channel();
        let client = world.switch.spawn(move || {
            let mut stream = connect(kind);
            stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
            assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200"));
            check(&mut stream, 0, LONG - LEFT);
            proceed.recv().unwrap();
            check(&mut stream, LONG - LEFT, LONG);
        });
        let _server = server.join().unwrap();
        let carrier = nodes.iter().position(|node| open(node) > 0).unwrap();
        nodes.remove(carrier).kill();
        notify.send(()).unwrap();
        client.join().unwrap();
        let continued: u64 = nodes.iter().map(|node| node.status().counts.connections_continued).sum();
        assert_eq!(continued, 1, "{kind:?}");
    }
}
