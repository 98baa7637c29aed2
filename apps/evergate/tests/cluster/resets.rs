//! One client port for many connections. Some clients reset when they have their answer, and their server connection
//! moves to other clients. Other clients are closed by the node and reconnect at once.

use crate::matrix::carrier;
use crate::traffic::{self, PATIENCE, Server, Stream, Transport, content, head};
use crate::world::{World, eventually, privileged};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Fixed client port: all connections fall into one bucket, and server connections are shared within a bucket.
const PORT: u16 = 45_000;
const BRIEF: usize = 8;
const LONG: usize = 4 << 20;
const PIECE: usize = 16 << 10;

pub(crate) fn connect(from: std::net::IpAddr, to: SocketAddr) -> TcpStream {
    let socket = eventually("the end of the connection before is acknowledged", || {
        match evergate_sys::connect_from(from, PORT..=PORT, to) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => None,
            done => Some(done.unwrap()),
        }
    });
    let stream = TcpStream::from(socket);
    let until = Instant::now() + PATIENCE;
    while stream.peer_addr().is_err() {
        assert!(Instant::now() < until, "no connection");
        std::thread::sleep(Duration::from_millis(1));
    }
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn get(stream: &mut impl Stream, path: &str) {
    get_with(stream, path, "");
}

pub(crate) fn get_with(stream: &mut impl Stream, path: &str, fields: &str) {
    // Sent in one piece. Of several segments in a row, TCP would retransmit the last one after few milliseconds (RFC
    // 8985, 7).
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let reported = head(stream).unwrap();
    assert!(reported.starts_with("HTTP/1.1 200"), "{reported}");
}

/// Sends a brief answer in one piece, or a long one in several.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let asked = head(&mut stream)?;
        let length = if asked.starts_with("GET /long ") { LONG } else { 2 };
        let mut piece = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        for at in (0..length).step_by(PIECE) {
            piece.append(&mut content(at, length.min(at + PIECE)));
            stream.write_all(&piece)?;
            piece.clear();
            std::thread::sleep(Duration::from_millis(if length == LONG { 2 } else { 0 }));
        }
    }
}

/// Starts a server; the count of its accepted connections.
pub(crate) fn serve_all(world: &World) -> Arc<AtomicUsize> {
    let (accepted, at) = (Arc::new(AtomicUsize::new(0)), Server::Plain.address(world));
    let counted = accepted.clone();
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                stream.set_nodelay(true).unwrap();
                std::thread::spawn(move || serve(stream)); // ends with the connection
            }
        });
    });
    accepted
}

pub(crate) fn client_stream(
    wire: Transport,
    roots: &Arc<rustls::RootCertStore>,
    stream: TcpStream,
) -> Box<dyn Stream> {
    match wire {
        Transport::Tls13 => Box::new(rustls::StreamOwned::new(wire.client(roots).unwrap(), stream)),
        _ => Box::new(stream),
    }
}

#[test]
fn server_connection_of_a_reset_client_outlives_its_node() {
    if !privileged() {
        return;
    }
    for wire in [Transport::Http, Transport::Tls13] {
        let world = World::new(3);
        let (mut nodes, _) = traffic::three(&world);
        let accepted = serve_all(&world);
        let roots = Arc::new(traffic::roots(&world));
        let to = SocketAddr::new(world.family.address(), wire.port(Server::Plain));
        let from = world.family.outside(254);
        let (begin, begun) = channel();
        let client = world.switch.spawn(move || {
            let client_stream = |stream| client_stream(wire, &roots, stream);
            for _ in 0..BRIEF {
                let socket = connect(from, to);
                let fd = socket.as_raw_fd();
                let mut stream = client_stream(socket);
                get(&mut stream, "/brief");
                let mut body = [0; 2];
                stream.read_exact(&mut body).unwrap();
                assert_eq!(body[..], content(0, 2));
                evergate_sys::reset_on_close(fd);
            }
            let mut stream = client_stream(connect(from, to));
            get(&mut stream, "/long");
            let mut body = vec![0; LONG];
            stream.read_exact(&mut body[..LONG / 8]).unwrap();
            begin.send(()).unwrap();
            stream.read_exact(&mut body[LONG / 8..]).unwrap();
            assert!(body == content(0, LONG), "other bytes");
        });
        begun.recv_timeout(PATIENCE).expect("a download begins");
        carrier(&mut nodes).kill();
        client.join().unwrap();
        let accepted = accepted.load(Ordering::Relaxed);
        assert!(accepted <= BRIEF / 2, "{accepted} connections to the server for {} clients", BRIEF + 1);
    }
}

/// Number of TCP segments that this thread's network namespace has retransmitted.
fn segments_resent() -> usize {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "RetransSegs").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// The side that closes first keeps the flow for a minute, and its backup keeps the closed connection for a moment.
/// Neither blocks the next connection from the same port, nor its failover. The server connection serves the next
/// client: each one that the node closes occupies a port of the bucket for a minute.
#[test]
fn closed_client_reconnects_from_its_port_across_failovers() {
    if !privileged() {
        return;
    }
    for wire in [Transport::Http, Transport::Tls13] {
        let world = World::new(3);
        let (mut nodes, _) = traffic::three(&world);
        let accepted = serve_all(&world);
        let roots = Arc::new(traffic::roots(&world));
        let to = SocketAddr::new(world.family.address(), wire.port(Server::Plain));
        let from = world.family.outside(254);
        let (begin, begun) = channel();
        let client = world.switch.spawn(move || {
            let ask = |path, length: usize, midway: &dyn Fn()| {
                let mut socket = connect(from, to);
                let mut stream = client_stream(wire, &roots, socket.try_clone().unwrap());
                get_with(&mut stream, path, "Connection: close\r\n");
                let mut body = vec![0; length];
                stream.read_exact(&mut body[..length / 8]).unwrap();
                midway();
                stream.read_exact(&mut body[length / 8..]).unwrap();
                assert!(body == content(0, length), "other bytes");
                assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{wire:?}: it ends in order");
                assert_eq!(socket.read(&mut [0]).unwrap(), 0, "{wire:?}: the node closes first");
            };
            let before = segments_resent();
            for deaths in 0..3 {
                for _ in 0..BRIEF {
                    ask("/brief", 2, &|| {});
                }
                if deaths == 0 {
                    let again = segments_resent() - before;
                    assert!(
                        again < BRIEF / 2,
                        "{wire:?}: {again} retransmitted segments, such as clients' FINs"
                    );
                    let accepted = accepted.load(Ordering::Relaxed);
                    assert!(accepted <= BRIEF / 4, "{wire:?}: {accepted} connections to the server");
                }
                ask("/long", LONG, &|| begin.send(()).unwrap());
            }
        });
        for _ in 0..2 {
            begun.recv_timeout(PATIENCE).expect("a download begins");
            carrier(&mut nodes).kill();
        }
        begun.recv_timeout(PATIENCE).expect("the last download begins");
        client.join().unwrap();
    }
}

/// Clients that reset and reconnect from the same ports, all at once.
const AGAIN: u16 = 96;

/// SYNs of the new connections arrive while the next node probes the peers of the old ones.
#[test]
fn clients_that_reconnect_during_a_failover_are_served() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, _) = traffic::three(&world);
    serve_all(&world);
    let to = SocketAddr::new(world.family.address(), Transport::Http.port(Server::Plain));
    let from = world.family.outside(254);
    // A process that another test starts has copies of all descriptors until its exec: until then no port is free.
    let connect = move |port: u16| {
        let socket =
            eventually("the port is free", || match evergate_sys::connect_from(from, port..=port, to) {
                Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => None,
                connected => Some(connected.unwrap()),
            });
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let ports = PORT..PORT + AGAIN;
    let old: Vec<TcpStream> = world.switch.run({
        let ports = ports.clone();
        move || {
            let begin = |port| {
                let mut stream = connect(port);
                get(&mut stream, "/brief");
                stream.read_exact(&mut [0; 2]).unwrap();
                stream.write_all(b"GET /brief HTTP/1.1\r\nHo").unwrap(); // more is to come
                stream
            };
            ports.map(begin).collect()
        }
    });
    let dead = carrier(&mut nodes);
    let client = world.switch.spawn(move || {
        dead.kill();
        let mut new = Vec::new();
        for (port, old) in ports.zip(old) {
            evergate_sys::reset_on_close(old.as_raw_fd());
            drop(old);
            new.push(connect(port));
        }
        for stream in &mut new {
            eventually("it is connected", || stream.peer_addr().ok());
            stream.write_all(b"GET /brief HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
        }
        for stream in &mut new {
            assert!(head(stream).unwrap().starts_with("HTTP/1.1 200"));
        }
    });
    client.join().unwrap();
}
