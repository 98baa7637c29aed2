//! Listeners that route by the ClientHello, in front of TLS servers, while nodes die. Behind PROXY headers, with a long
//! hello, with a hello that is refused, and with sessions that the cluster learned.
//!
//! `phases` stops other relayed clients at each step, and `matrix` has endless ones.

use crate::phases::{PATIENT, filter, socket_state};
use crate::support::eventually;
use crate::traffic::{PATIENCE, Server, Transport, config, roots, three};
use crate::world::{Node, World, privileged, settled};
use evergate::agent::status::ClusterStatus;
use evergate_proxy_protocol::{Decoded, Endpoints, Extras, V2_BYTES_MAX, decode, encode_v2};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection, StreamOwned};
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NODES: u8 = 3;
/// Connections of each kind: their buckets are spread over the nodes.
const CONNECTIONS: u16 = 8;

/// Listener of the tests in this file, behind a rule of `shop.test`.
const RELAYED: Transport = Transport::Relayed13;

fn client(world: &World, version: &'static rustls::SupportedProtocolVersion) -> ClientConfig {
    ClientConfig::builder_with_provider(evergate_crypto::client_provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots(world))
        .with_no_client_auth()
}

/// TLS client whose bytes on the wire the test sends one by one.
struct Greeter {
    stream: TcpStream,
    tls: ClientConnection,
    /// What comes first: a header perhaps, and the hello.
    first: Vec<u8>,
    sent: usize,
}

impl Greeter {
    fn open(world: &World, client: &Arc<ClientConfig>, name: &'static str, header: Vec<u8>) -> Greeter {
        let to = SocketAddr::new(world.family.address(), RELAYED.port(Server::Tls13));
        let stream = world.switch.run(move || TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut tls = ClientConnection::new(client.clone(), name.try_into().unwrap()).unwrap();
        let mut first = header;
        while tls.wants_write() {
            tls.write_tls(&mut first).unwrap();
        }
        Greeter { stream, tls, first, sent: 0 }
    }

    fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }

    /// Sends up to this length, in pieces of so many bytes.
    fn send(&mut self, length: usize, piece: usize) -> Result<()> {
        for piece in self.first[self.sent..length].chunks(piece) {
            self.stream.write_all(piece)?;
        }
        self.sent = length;
        Ok(())
    }

    fn send_all(&mut self) -> Result<()> {
        self.send(self.first.len(), usize::MAX)
    }

    /// Sends what is left, and makes the handshake.
    fn shake(&mut self) -> Result<()> {
        self.send_all()?;
        while self.tls.is_handshaking() || self.tls.wants_write() {
            self.tls.complete_io(&mut self.stream)?;
        }
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        rustls::Stream::new(&mut self.tls, &mut self.stream).read_exact(bytes)
    }

    fn echo(&mut self, byte: u8) -> Result<()> {
        rustls::Stream::new(&mut self.tls, &mut self.stream).write_all(&[byte])?;
        let mut seen = [0];
        self.read(&mut seen)?;
        assert_eq!(seen, [byte]);
        Ok(())
    }
}

/// Servers that echo. With `headers` they read a PROXY header first, and send it as their first bytes.
struct Echo {
    headers: bool,
    /// Whether handshakes wait.
    waits: AtomicBool,
}

impl Echo {
    fn start(world: &World, headers: bool) -> Arc<Echo> {
        let echo = Arc::new(Echo { headers, waits: AtomicBool::new(false) });
        let (at, tls) = (Server::Tls13.address(world), Server::Tls13.config(world).unwrap());
        let shared = echo.clone();
        world.switch.run(move || {
            let listener = TcpListener::bind(at).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (echo, tls) = (shared.clone(), tls.clone());
                    std::thread::spawn(move || echo.serve(stream, tls));
                }
            });
        });
        echo
    }

    /// Ends with the connection.
    fn serve(&self, mut stream: TcpStream, tls: Arc<ServerConfig>) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut header = Vec::new();
        if self.headers {
            header.resize(16, 0);
            stream.read_exact(&mut header)?;
            let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
            assert!(length < V2_BYTES_MAX, "{header:?} instead of a header");
            header.resize(16 + length, 0);
            stream.read_exact(&mut header[16..])?;
        }
        while self.waits.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut stream = StreamOwned::new(ServerConnection::new(tls).unwrap(), stream);
        stream.write_all(&header)?;
        let mut byte = [0];
        loop {
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
        }
    }
}

/// What each client has done when its node dies.
const STOPS: [&str; 8] = [
    "connected",
    "half a header",
    "header",
    "header and half a hello",
    "single bytes",
    "hello in segments",
    "hello",
    "server's flight unanswered",
];

/// A proxy in front of the cluster names this client.
fn source(number: u16) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], 1000 + number))
}

fn served() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 80], 443))
}

fn stop(world: &World, client: &Arc<ClientConfig>, kind: usize, number: u16) -> Greeter {
    let mut header = Vec::new();
    encode_v2(Some(&Endpoints::new(source(number), served())), &Extras::default(), &mut header).unwrap();
    let length = header.len();
    let mut greeter = Greeter::open(world, client, "shop.test", header);
    let whole = greeter.first.len();
    let half = length + (whole - length) / 2;
    match kind {
        0 => Ok(()),
        1 => greeter.send(length / 2, usize::MAX),
        2 => greeter.send(length, usize::MAX),
        3 => greeter.send(half, usize::MAX),
        4 => greeter.send(length, usize::MAX).and_then(|()| greeter.send(half, 1)),
        5 => greeter.send(length, usize::MAX).and_then(|()| greeter.send(whole, 50)),
        6 => greeter.send_all(),
        _ => greeter.send_all().and_then(|()| greeter.stream.peek(&mut [0]).map(drop)),
    }
    .unwrap();
    greeter
}

/// The handshake completes, and the server has received the header of this client.
fn expect_header(greeter: &mut Greeter, number: u16) -> Result<()> {
    greeter.shake()?;
    let expected = Endpoints::new(source(number), served());
    let mut header = vec![0; 16];
    greeter.read(&mut header)?;
    header.resize(16 + usize::from(u16::from_be_bytes([header[14], header[15]])), 0);
    greeter.read(&mut header[16..])?;
    let Ok(Decoded::Header(decoded)) = decode(&header) else { panic!("{header:?}") };
    assert_eq!((decoded.endpoints, decoded.len), (Some(expected), header.len()));
    assert_eq!(decoded.tlvs.authority(), Some(&b"shop.test"[..]));
    greeter.echo(b'e')
}

/// The first death also meets servers whose answer to the SYN is lost, and the second one servers that lack the header
/// and the hello: the next owner makes both again.
#[test]
fn hellos_behind_proxy_headers_survive_their_node() {
    if !privileged() {
        return;
    }
    let world = World::new(NODES);
    let config = config(&world, NODES, "")
        .replace(
            "protocol = \"passthrough\"\n",
            "protocol = \"passthrough\"\nproxy_protocol = true\ntrusted_proxies = [\"0.0.0.0/0\"]\n",
        )
        .replace(
            "name = \"relayed-tls13\"\nservers",
            "name = \"relayed-tls13\"\nproxy_protocol = \"v2\"\nproxy_protocol_tlvs = [\"authority\"]\nservers",
        );
    let config = format!("{PATIENT}{config}");
    let mut nodes: Vec<_> = (1..=NODES).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let servers = Echo::start(&world, true);
    let client = Arc::new(client(&world, &rustls::version::TLS13));
    let mut open: Vec<Greeter> = Vec::new();
    let port = Server::Tls13.address(&world).port();
    for (round, lost) in ["tcp flags & syn == syn", "tcp flags & psh == psh"].into_iter().enumerate() {
        let mut stopped: Vec<(usize, u16, Greeter)> = Vec::new();
        let number = |kind: usize, i: u16| 1000 * round as u16 + 100 * kind as u16 + i;
        let mut stop = |kind: usize, i: u16| {
            stopped.push((kind, number(kind, i), self::stop(&world, &client, kind, number(kind, i))));
        };
        let last = STOPS.len() - 1;
        (0..CONNECTIONS).for_each(|i| stop(last, i));
        servers.waits.store(true, Ordering::Relaxed);
        (0..CONNECTIONS / 2).for_each(|i| (0..last).for_each(|kind| stop(kind, i)));
        filter(&world, "input", &format!("tcp dport {port} {lost} counter drop"));
        (CONNECTIONS / 2..CONNECTIONS).for_each(|i| (0..last).for_each(|kind| stop(kind, i)));
        eventually("something is lost", || (world.counted() > 0).then_some(()));
        nodes.remove(0).kill();
        world.filter("delete table bridge ends\n");
        settled(&nodes);
        servers.waits.store(false, Ordering::Relaxed);
        for (i, greeter) in open.iter_mut().enumerate() {
            greeter.echo(b'o').unwrap_or_else(|error| panic!("open connection {i}: {error}"));
        }
        // All at once: each waits for its own retransmissions.
        let finish = |(kind, number, mut greeter): (usize, u16, Greeter)| {
            std::thread::spawn(move || {
                let done = expect_header(&mut greeter, number);
                done.map(|()| greeter).map_err(|error| format!("{}, {number}: {error}", STOPS[kind]))
            })
        };
        let finished: Vec<_> = stopped.into_iter().map(finish).collect();
        let results = finished.into_iter().map(|thread| thread.join().unwrap());
        let (whole, broken): (Vec<_>, Vec<_>) = results.partition(std::result::Result::is_ok);
        let broken: Vec<String> = broken.into_iter().filter_map(std::result::Result::err).collect();
        assert!(broken.is_empty(), "round {round}: {broken:#?}");
        open.extend(whole.into_iter().flatten());
    }
    let continued: u64 = nodes.iter().map(|node| node.status().counts.connections_continued).sum();
    assert!(continued > 0, "nothing was carried by the nodes that died");
}

/// Kills the node that has this client's connection. A connection that stands still resumes with the next segment of
/// its client: while no node has a socket of it, another one is killed.
fn kill_owner(world: &World, nodes: &mut Vec<Node>, port: u16) {
    let until = Instant::now() + Duration::from_secs(1);
    let place = loop {
        let place = nodes.iter().position(|node| socket_state(world, node.number, port).is_some());
        if place.is_some() || Instant::now() > until {
            break place.unwrap_or(0);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    nodes.remove(place).kill();
}

/// A hello longer than the first congestion window: the client cannot send all of it without an acknowledgement.
#[test]
fn long_hello_survives_its_nodes() {
    if !privileged() {
        return;
    }
    let world = World::new(NODES);
    let (mut nodes, _) = three(&world);
    let _servers = Echo::start(&world, false);
    let mut client = client(&world, &rustls::version::TLS13);
    client.alpn_protocols = (0..200u8).map(|number| vec![number; 200]).collect();
    let client = Arc::new(client);
    let began = Instant::now();
    let mut open = Vec::new();
    for (part, piece) in [(0.0, usize::MAX), (0.2, usize::MAX), (0.2, 100), (0.9, 1000), (0.9, 100)] {
        let mut greeter = Greeter::open(&world, &client, "shop.test", Vec::new());
        assert!(greeter.first.len() > 40_000);
        greeter.send((greeter.first.len() as f64 * part) as usize, piece).unwrap();
        open.push((part, piece, greeter));
    }
    let mut whole = Greeter::open(&world, &client, "shop.test", Vec::new());
    whole.shake().and_then(|()| whole.echo(1)).unwrap();
    let without_a_death = began.elapsed();
    while nodes.len() > 1 {
        kill_owner(&world, &mut nodes, open[3].2.port());
        settled(&nodes);
        whole.echo(2).unwrap();
    }
    for (part, piece, greeter) in &mut open {
        greeter
            .shake()
            .and_then(|()| greeter.echo(3))
            .unwrap_or_else(|error| panic!("{part} in pieces of {piece}: {error}"));
    }
    println!("whole after {without_a_death:?}, all after {:?}", began.elapsed());
}

/// unrecognized_name, fatal (RFC 8446 section 6.2).
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

#[test]
fn refusal_is_the_same_from_the_next_node() {
    if !privileged() {
        return;
    }
    let world = World::new(NODES);
    let (mut nodes, _) = three(&world);
    let client = Arc::new(client(&world, &rustls::version::TLS13));
    let expect_refusal = |greeter: &mut Greeter, when: &str| {
        let mut all = Vec::new();
        greeter.stream.read_to_end(&mut all).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(all, ALERT, "{when}");
    };
    // The alert and the end are lost with the node that has sent them.
    let mut greeter = Greeter::open(&world, &client, "other.test", Vec::new());
    let (from, to) = (RELAYED.port(Server::Tls13), greeter.port());
    filter(
        &world,
        "input",
        &format!("tcp sport {from} tcp dport {to} tcp flags & (psh|fin) != 0x0 counter drop"),
    );
    greeter.send_all().unwrap();
    eventually("the alert is lost", || (world.counted() > 0).then_some(()));
    kill_owner(&world, &mut nodes, greeter.port());
    world.filter("delete table bridge ends\n");
    expect_refusal(&mut greeter, "alert lost");
    settled(&nodes);
    // The node has half of the hello.
    let mut greeter = Greeter::open(&world, &client, "other.test", Vec::new());
    greeter.send(greeter.first.len() / 2, usize::MAX).unwrap();
    kill_owner(&world, &mut nodes, greeter.port());
    greeter.send_all().unwrap();
    expect_refusal(&mut greeter, "half a hello");
    // While nothing fails.
    let mut greeter = Greeter::open(&world, &client, "other.test", Vec::new());
    greeter.send_all().unwrap();
    expect_refusal(&mut greeter, "one node");
}

/// How a client ends that sends no more of its hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// FIN.
    Ended,
    /// Silence.
    Silent,
}

/// The time for the handshake of connections that begin with a hello.
const HANDSHAKE: Duration = Duration::from_secs(3);

/// The next owner ends these clients, and neither owner keeps anything of them.
#[test]
fn clients_that_leave_their_hello_unfinished_are_ended() {
    if !privileged() {
        return;
    }
    let world = World::new(NODES);
    let config = config(&world, NODES, "");
    let config = format!("[timeouts]\nhandshake_ms = {}\n{config}", HANDSHAKE.as_millis());
    let mut nodes: Vec<_> = (1..=NODES).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let client = Arc::new(client(&world, &rustls::version::TLS13));
    let mut open = Vec::new();
    for how in [Broken::Ended, Broken::Silent] {
        for part in [1, 100] {
            for _ in 0..CONNECTIONS {
                let mut greeter = Greeter::open(&world, &client, "shop.test", Vec::new());
                greeter.send(part, usize::MAX).unwrap();
                if how == Broken::Ended {
                    greeter.stream.shutdown(std::net::Shutdown::Write).unwrap();
                }
                open.push((how, part, greeter));
            }
        }
    }
    nodes.remove(0).kill();
    let died = Instant::now();
    for (how, part, greeter) in &mut open {
        let end = greeter.stream.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{how:?} after {part}: {end:?}");
    }
    assert!(died.elapsed() < 4 * HANDSHAKE, "all ended only after {:?}", died.elapsed());
    settled(&nodes);
    for node in &nodes {
        let none = |status: &ClusterStatus| status.replication.replicated + status.replication.replicas == 0;
        node.eventually("has no connection, and no replica of one", none);
    }
}

/// access_denied, fatal.
const DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// Nothing was decided before the hello was whole.
#[test]
fn half_a_hello_is_decided_by_the_rules_of_the_next_node() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let old = config(&world, 2, "");
    let denies = "[[rules]]\nname = \"new\"\nlisteners = [\"relayed-tls13\"]\nwhen = 'tls.version == \"TLSv1.3\"'\n\
        deny = \"access_denied\"\n";
    let new = format!("{denies}{old}");
    let mut nodes = vec![world.start(1, &old)];
    settled(&nodes);
    let client = Arc::new(client(&world, &rustls::version::TLS13));
    let mut greeter = Greeter::open(&world, &client, "shop.test", Vec::new());
    greeter.send(greeter.first.len() / 2, usize::MAX).unwrap();
    world.write_config(1, &new);
    assert_eq!(nodes[0].cli(&["reload"]).code, Some(0));
    nodes.push(world.start(2, &new));
    settled(&nodes);
    nodes.remove(0).kill();
    greeter.send_all().unwrap();
    let mut all = Vec::new();
    greeter.stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, DENIED);
}

/// Terminators with a session store each.
const TERMINATORS: [u16; 2] = [8101, 8102];
/// Addresses of clients. The pool remembers the last server of each, and new ones are spread.
const CLIENTS: [u8; 4] = [20, 21, 22, 23];
/// The hash chooses the node of each connection. This many visits reach each node.
const VISITS_MAX: usize = 100;

/// Client without tickets, and its session.
struct Visitor {
    address: u8,
    client: Arc<ClientConfig>,
    terminator: u16,
}

/// Visits from an address; the terminator's port, and how the handshake went.
fn visit(world: &World, address: u8, client: &Arc<ClientConfig>) -> (u16, HandshakeKind) {
    let (from, client) = (IpAddr::from([10, 72, 0, address]), client.clone());
    let to = SocketAddr::new(world.family.address(), RELAYED.port(Server::Tls13));
    world.switch.run(move || {
        let socket = TcpStream::from(evergate_sys::connect_from(from, 20_000..=60_000, to).unwrap());
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        eventually("it is connected", || socket.peer_addr().ok());
        let tls = ClientConnection::new(client, "shop.test".try_into().unwrap()).unwrap();
        let mut stream = StreamOwned::new(tls, socket);
        let mut port = [0; 2];
        stream.read_exact(&mut port).unwrap();
        (u16::from_be_bytes(port), stream.conn.handshake_kind().unwrap())
    })
}

fn learned(node: &Node, what: &str) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
    let pools = status["pools"].as_array().unwrap();
    let pool = pools.iter().find(|pool| pool["name"] == "relayed-tls13").unwrap();
    pool["sessions"]["learned"][what].as_u64().unwrap()
}

/// Each client resumes its session at its terminator through every node, from the address of a client of the other
/// terminator.
fn resumes_everywhere(world: &World, nodes: &[Node], visitors: &[Visitor]) {
    for visitor in visitors {
        let other = visitors.iter().find(|other| other.terminator != visitor.terminator).unwrap();
        let before: Vec<u64> = nodes.iter().map(|node| learned(node, "found")).collect();
        let reached = || nodes.iter().zip(&before).all(|(node, before)| learned(node, "found") > *before);
        for visits in 0.. {
            assert!(visits < VISITS_MAX, "a node had none of {VISITS_MAX} visits");
            let visited = visit(world, other.address, &visitor.client);
            assert_eq!(visited, (visitor.terminator, HandshakeKind::Resumed), "visit {visits}");
            if reached() {
                break;
            }
        }
    }
}

#[test]
fn sessions_of_servers_are_known_at_every_node() {
    if !privileged() {
        return;
    }
    let world = World::new(NODES);
    let servers: Vec<_> =
        TERMINATORS.iter().map(|port| format!("{{ address = \"10.71.0.254:{port}\" }}")).collect();
    let one = format!("servers = [{{ address = \"{}\" }}]", Server::Tls13.address(&world));
    let config = config(&world, NODES, "");
    let place = config.find("name = \"relayed-tls13\"\nservers").unwrap();
    let (head, tail) = config.split_at(place);
    let two = format!("policy = \"session_only\"\nservers = [{}]", servers.join(", "));
    let config = format!("{head}{}", tail.replacen(&one, &two, 1));
    let mut nodes: Vec<_> = (1..=NODES).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    for port in TERMINATORS {
        let (at, tls) =
            (SocketAddr::new(world.family.inside(254), port), Server::Tls12.config(&world).unwrap());
        world.switch.run(move || {
            let listener = TcpListener::bind(at).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let tls = ServerConnection::new(tls.clone()).unwrap();
                    let mut stream = StreamOwned::new(tls, stream);
                    let _ = stream.write_all(&port.to_be_bytes());
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            });
        });
    }
    let visitors: Vec<Visitor> = CLIENTS
        .iter()
        .map(|address| {
            world.switch.ip(&format!("addr add 10.72.0.{address}/24 dev out")).unwrap();
            let mut client = client(&world, &rustls::version::TLS12);
            client.resumption =
                Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
            let client = Arc::new(client);
            let (terminator, kind) = visit(&world, *address, &client);
            assert_eq!(kind, HandshakeKind::Full);
            Visitor { address: *address, client, terminator }
        })
        .collect();
    for port in TERMINATORS {
        assert!(visitors.iter().any(|visitor| visitor.terminator == port), "nothing went to {port}");
    }
    let learned_here: Vec<u64> = nodes.iter().map(|node| learned(node, "learned")).collect();
    let all_know = |nodes: &[Node], count: u64| {
        eventually("every node knows all sessions", || {
            nodes.iter().all(|node| learned(node, "entries") >= count).then_some(())
        });
    };
    let entries = 2 * CLIENTS.len() as u64; // sessions, and addresses
    all_know(&nodes, entries);
    resumes_everywhere(&world, &nodes, &visitors);
    // The node that learned most of them dies, then a node without state receives them.
    let place = (0..nodes.len()).max_by_key(|place| learned_here[*place]).unwrap();
    let dead = nodes.remove(place);
    let number = dead.number;
    dead.kill();
    settled(&nodes);
    resumes_everywhere(&world, &nodes, &visitors);
    nodes.push(world.start(number, &config));
    nodes.sort_by_key(|node| node.number);
    eventually("every node has its share", || {
        settled(&nodes).iter().all(|status| status.buckets.owned > 0).then_some(())
    });
    all_know(&nodes, CLIENTS.len() as u64);
    resumes_everywhere(&world, &nodes, &visitors);
}
