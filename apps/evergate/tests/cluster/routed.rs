//! Routes to a shared address outside all subnets. Each node is a next hop, and the router spreads packets over the
//! nodes (ECMP). BIRD and the script that controls it use the files of `examples/networks`.

use crate::support::{eventually, script};
use crate::traffic::content;
use crate::world::{Node, VIRTUAL_MAC, World, privileged, settled};
use evergate_netns::Namespace;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shared address, which no subnet of the world contains.
const SHARED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
const PORT: u16 = 8080;
const NODES: u8 = 3;
/// Concurrent connections, enough that each next hop forwards some connections of each node.
const CLIENTS: usize = 24;
const PIECE: usize = 1000;
const PAUSE: Duration = Duration::from_millis(5);
/// Silence after which a connection counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Limit far above the 0.3 s of BFD, and far below the 240 s of BGP alone.
const WITHDRAWAL_MAX: Duration = Duration::from_secs(5);

const NODE_CONF: &str = include_str!("../../../../examples/networks/bird-node.conf");
const ROUTER_CONF: &str = include_str!("../../../../examples/networks/bird-router.conf");
const ANNOUNCE: &str = include_str!("../../../../examples/networks/announce");

/// Running program in a namespace. Dropping it kills the program.
struct Program(Child);

impl Program {
    fn start(place: &Namespace, mut command: Command) -> Program {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let program = format!("{:?}", command.get_program());
        let child = place.run(move || command.spawn());
        Program(child.unwrap_or_else(|error| panic!("{program}: {error}; try scripts/setup test")))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// BIRD with this configuration, adapted to the addresses and interfaces of these tests.
fn bird(world: &World, place: &Namespace, name: &str, conf: &str) -> Program {
    let path = |end: &str| world.folder.path(&format!("{name}.{end}")).display().to_string();
    let conf = conf
        .replace("203.0.113.", "10.72.0.")
        .replace("\"eth0\"", "\"out\"")
        .replace("\"eth1\"", "\"out\"")
        .replace("log syslog all", &format!("log \"{}\" all", path("log")));
    world.folder.write(&format!("{name}.conf"), &conf);
    let mut command = Command::new("bird");
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    command.args(["-f", "-c", &path("conf"), "-s", &path("ctl"), "-P", &path("pid")]);
    Program::start(place, command)
}

/// Script that announces the address while this node is active.
fn announce(world: &World, node: u8) -> Program {
    let text = ANNOUNCE.split_once('\n').map(|(_, text)| text).unwrap();
    let path = script(&world.folder, &format!("announce-{node}"), text);
    let mut command = Command::new(path);
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    command.env("EVERGATE_SOCKET", world.folder.path(&format!("node-{node}.sock")));
    command.env("BIRD_SOCKET", world.folder.path(&format!("bird-{node}.ctl")));
    command.stderr(Stdio::null()); // BIRD may not be there yet
    Program::start(world.host(node), command)
}

/// Nodes that share [`SHARED`], in front of the server of [`World::echo`].
fn start(world: &World, count: u8) -> Vec<Node> {
    let config = world.config(&World::entries(count), "");
    let config = config.replace(&world.family.address().to_string(), &SHARED.to_string());
    world.echo();
    for number in 1..=count {
        world.host(number).ip("route add default via 10.72.0.254 dev out").unwrap();
    }
    let nodes: Vec<Node> = (1..=count).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    nodes
}

/// Client behind a router, which is the namespace of the switches.
fn client(world: &World) -> Namespace {
    let client = Namespace::new().unwrap();
    client.connect("eth0", "02:00:00:00:02:01", &world.switch, "clients").unwrap();
    client.ip("addr add 192.0.2.2/24 dev eth0").unwrap();
    world.switch.ip("addr add 192.0.2.1/24 dev clients").unwrap();
    client.ip("route add default via 192.0.2.1").unwrap();
    world.switch.sysctl("net.ipv4.ip_forward", "1").unwrap();
    // The hash uses only addresses and ports of a packet. Policy 1 would use the hash that the client's kernel leaves
    // with a packet between namespaces. That hash changes with each retransmission, and so would the next hop.
    world.switch.sysctl("net.ipv4.fib_multipath_hash_policy", "3").unwrap();
    world.switch.sysctl("net.ipv4.fib_multipath_hash_fields", "55").unwrap();
    client
}

/// Number of the router's next hops.
fn hops(world: &World) -> usize {
    let routes = world
        .switch
        .run(|| Command::new("ip").args(["route", "show", &SHARED.to_string()]).output().unwrap());
    String::from_utf8_lossy(&routes.stdout).matches("via ").count()
}

fn reaches(world: &World, count: usize) {
    eventually(&format!("the router has {count} next hops"), || (hops(world) == count).then_some(()));
}

/// Number of packets that a node has forwarded to other nodes.
fn steered(node: &Node) -> u64 {
    let metrics = node.cli(&["metrics"]).out;
    let line = metrics.lines().find(|line| line.starts_with("evergate_gate_total{event=\"steered\"}"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Connections that send pieces and compare the echo.
struct Clients {
    stop: Arc<AtomicBool>,
    moved: Arc<Vec<AtomicU64>>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Clients {
    fn start(place: &Namespace) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let moved: Arc<Vec<AtomicU64>> = Arc::new((0..CLIENTS).map(|_| AtomicU64::new(0)).collect());
        let threads = (0..CLIENTS)
            .map(|number| {
                let (stop, moved) = (stop.clone(), moved.clone());
                place.spawn(move || {
                    exchange(&stop, &moved[number]).map_err(|error| format!("connection {number}: {error}"))
                })
            })
            .collect();
        let clients = Clients { stop, moved, threads };
        clients.continues("at the beginning");
        clients
    }

    /// Waits until every connection has moved on.
    fn continues(&self, when: &str) {
        let counts = || self.moved.iter().map(|moved| moved.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let since = counts();
        let ended = || self.threads.iter().any(JoinHandle::is_finished);
        eventually(&format!("{when}: all connections move"), || {
            let moved = counts().iter().zip(&since).all(|(now, since)| *now > since + 3);
            (moved || ended()).then_some(())
        });
        assert!(!ended(), "{when}: a connection has ended");
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let broken: Vec<_> =
            self.threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

fn exchange(stop: &AtomicBool, moved: &AtomicU64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect((SHARED, PORT))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    for at in (0..).step_by(PIECE) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (piece, mut back) = (content(at, at + PIECE), [0; PIECE]);
        stream.write_all(&piece)?;
        stream.read_exact(&mut back)?;
        if back[..] != piece {
            return Err(std::io::Error::other(format!("another echo at {at}")));
        }
        moved.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Nodes, BIRD on each node and on the router, and clients. Fields are dropped in this order, so that programs end
/// before their namespaces.
struct Routed {
    world: World,
    _client: Namespace,
    _programs: Vec<Program>,
    nodes: Vec<Node>,
    clients: Clients,
}

impl Routed {
    fn new() -> Routed {
        let world = World::new(NODES);
        let client = client(&world);
        let nodes = start(&world, NODES);
        let mut programs = vec![bird(&world, &world.switch, "router", ROUTER_CONF)];
        for number in 1..=NODES {
            let own = |end: &str| (format!("203.0.113.1{end}"), format!("203.0.113.{number}{end}"));
            let conf = [";", " as"].iter().fold(NODE_CONF.to_owned(), |conf, end| {
                let (first, other) = own(end);
                conf.replace(&first, &other)
            });
            programs.push(bird(&world, world.host(number), &format!("bird-{number}"), &conf));
            programs.push(announce(&world, number));
        }
        reaches(&world, usize::from(NODES));
        let clients = Clients::start(&client);
        Routed { world, _client: client, _programs: programs, nodes, clients }
    }
}

/// The router sends packets to nodes that do not own their bucket, and these nodes forward them. The script withdraws
/// the route of a dead process, and BFD that of a dead machine.
#[test]
fn connections_over_routed_next_hops_outlive_two_nodes() {
    if !privileged() {
        return;
    }
    let Routed { world, _client, _programs, mut nodes, clients } = Routed::new();
    for node in &nodes {
        eventually("each node forwards packets", || (steered(node) > 0).then_some(()));
    }
    nodes.remove(2).kill();
    reaches(&world, 2);
    settled(&nodes);
    clients.continues("after the end of a process");
    let dead_at = Instant::now();
    for net in ["in", "out"] {
        world.switch.ip(&format!("link set {net}1 down")).unwrap();
    }
    reaches(&world, 1);
    let took = dead_at.elapsed();
    assert!(took < WITHDRAWAL_MAX, "the next hop stayed for {took:?}");
    println!("withdrawn after {took:?}");
    clients.continues("after the end of a machine");
    clients.end();
}

/// A fenced node forwards nothing, although its outside network still works.
#[test]
fn node_cut_off_inside_withdraws_its_route() {
    if !privileged() {
        return;
    }
    let Routed { world, _client, _programs, nodes, clients } = Routed::new();
    world.silence(2, &["in"]);
    reaches(&world, 2);
    clients.continues("after the cut");
    world.clear("silence");
    reaches(&world, 3);
    settled(&nodes);
    clients.continues("after the return");
    clients.end();
}

/// Port security that drops frames from the virtual MAC leaves ARP for the shared addresses unanswered. Routes over
/// the nodes' own addresses work without it, on both networks.
#[test]
fn routes_to_nodes_replace_a_blocked_virtual_mac() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    world.filter(&format!(
        "table bridge security {{ chain ports {{ type filter hook prerouting priority 0;\n\
         ether saddr {VIRTUAL_MAC} counter drop\n}}\n}}\n"
    ));
    let nodes = start(&world, 2);
    let connects = || {
        world.switch.run(|| {
            let at = SocketAddr::from((SHARED, PORT));
            let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1))?;
            stream.set_read_timeout(Some(SILENCE_MAX))?;
            stream.write_all(b"a")?;
            stream.read_exact(&mut [0])
        })
    };
    world.switch.ip(&format!("route add {SHARED}/32 dev out")).unwrap();
    assert!(connects().is_err(), "the answer to ARP came through");
    assert!(world.counted() > 0, "frames from the virtual MAC were dropped");
    let hops = |net: u8| format!("nexthop via 10.{net}.0.1 nexthop via 10.{net}.0.2");
    world.switch.ip(&format!("route replace {SHARED}/32 {}", hops(72))).unwrap();
    world.switch.ip(&format!("route add 10.71.0.100/32 {}", hops(71))).unwrap();
    for _ in 0..CLIENTS {
        connects().unwrap();
    }
    drop(nodes);
}
