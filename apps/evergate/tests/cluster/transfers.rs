//! Transfers through a movable address while their node dies or is drained. Every byte arrives once and in order.

use crate::support::eventually;
use crate::traffic::{PATIENCE, Stream, byte, content, head};
use crate::world::{ADDRESS, Node, World, privileged, settled};
use evergate_crypto::{ClientSettings, Verify, client_config};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// More than all buffers between the two ends hold, so that the transfer is under way when the node dies.
const BYTES: usize = 48 << 20;
/// Bytes transferred when the node dies.
const SO_FAR: usize = BYTES / 4;
pub(crate) const SERVER: &str = "10.71.0.254:8000";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Tcp,
    Http,
    Https,
}

impl Listener {
    pub(crate) fn port(self) -> u16 {
        match self {
            Listener::Tcp => 9001,
            Listener::Http => 9002,
            Listener::Https => 9003,
        }
    }
}

/// Reads exactly the content from `from` to `to`.
pub(crate) fn check(stream: &mut impl Read, from: usize, to: usize) {
    let mut buffer = vec![0; 65_536];
    let mut at = from;
    while at < to {
        let most = buffer.len().min(to - at);
        let count =
            stream.read(&mut buffer[..most]).unwrap_or_else(|error| panic!("after {at} bytes: {error}"));
        assert!(count > 0, "the stream ended after {at} of {to} bytes");
        if buffer[..count] != content(at, at + count) {
            let wrong = (0..count).find(|place| buffer[*place] != byte(at + place)).unwrap();
            panic!("another byte at {}", at + wrong);
        }
        at += count;
    }
}

/// Serves downloads of the content and uploads to it, one thread per connection.
fn serve(listener: TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut input = BufReader::new(stream.try_clone().unwrap());
            let mut output = stream;
            loop {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if input.read_line(&mut head).unwrap_or(0) == 0 {
                        return;
                    }
                }
                if head.starts_with("POST ") {
                    check(&mut input, 0, BYTES);
                    let _ = output.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole");
                } else {
                    let _ = write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n");
                    let _ = output.write_all(&content(0, BYTES));
                }
            }
        });
    }
}

/// World of three hosts with that server.
pub(crate) fn serving() -> World {
    let world = World::new(3);
    world.switch.run(|| {
        let listener = TcpListener::bind(SERVER).unwrap();
        std::thread::spawn(move || serve(listener));
    });
    world
}

pub(crate) fn connect(listener: Listener) -> Box<dyn Stream> {
    let stream = TcpStream::connect((ADDRESS, listener.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    if listener != Listener::Https {
        return Box::new(stream);
    }
    let settings = ClientSettings { verify: Verify::InsecureNone, alpn: Vec::new(), certificate: None };
    let name = "shop.test".to_owned().try_into().unwrap();
    let connection = rustls::ClientConnection::new(client_config(settings).unwrap(), name).unwrap();
    Box::new(rustls::StreamOwned::new(connection, stream))
}

/// Client of one transfer. It signals after a quarter and waits for `proceed`.
fn transfer(listener: Listener, way: Way, quarter: &Sender<()>, proceed: &Receiver<()>) {
    let mut stream = connect(listener);
    let pause = || {
        quarter.send(()).unwrap();
        proceed.recv().unwrap();
    };
    match way {
        Way::Down => {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
            assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200"));
            check(&mut stream, 0, SO_FAR);
            pause();
            check(&mut stream, SO_FAR, BYTES);
        }
        Way::Up => {
            write!(stream, "POST / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: {BYTES}\r\n\r\n").unwrap();
            stream.write_all(&content(0, SO_FAR)).unwrap();
            pause();
            stream.write_all(&content(SO_FAR, BYTES)).unwrap();
            assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200"));
            let mut reported = [0; 5];
            stream.read_exact(&mut reported).unwrap();
            assert_eq!(&reported, b"whole");
        }
    }
}

pub(crate) fn config(world: &World) -> String {
    world.certificate();
    let mut text = world.config(&World::entries(3), "");
    text = text
        .replace("10.71.0.254:9\"", &format!("{SERVER}\""))
        .replace("flows_max = 1024", "flows_max = 4096");
    for (name, listener) in [("tcp", Listener::Tcp), ("http", Listener::Http), ("https", Listener::Https)] {
        let port = listener.port();
        text.push_str(&format!(
            "[[listeners]]\nname = \"{name}\"\naddress = \"{ADDRESS}:{port}\"\nprotocol = \"{name}\"\npool = \"web\"\n"
        ));
        if listener == Listener::Https {
            text.push_str("certificates = [\"shop\"]\n");
        }
    }
    text + "[[certificates]]\nname = \"shop\"\nchain = \"shop.pem\"\nkey = \"shop.key\"\n"
}

/// Number of client connections that a node has open.
pub(crate) fn open(node: &Node) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
    status["connections"]["open"].as_u64().unwrap_or_else(|| panic!("no count in {status}"))
}

/// Failure of the node that carries a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    Drained,
    /// Stopped until the transfer is over, then continued.
    Paused,
    /// Cut off from one network until the transfer is over.
    Unplugged(&'static str),
}

/// Pause of the client, long enough that the node checks for a stall meanwhile.
const REST: Duration = Duration::from_secs(2);
const WRITE_STALL_MS: u64 = 4800;

/// Runs one transfer, whose node fails after a quarter.
fn crosses(listener: Listener, way: Way, fate: Fate) {
    crosses_after(listener, way, fate, Duration::ZERO);
}

/// [`crosses`] with a client that pauses after the failure.
fn crosses_after(listener: Listener, way: Way, fate: Fate, rest: Duration) {
    if !privileged() {
        return;
    }
    let world = serving();
    let config = config(&world) + &format!("[timeouts]\nwrite_stall_ms = {WRITE_STALL_MS}\n");
    let mut nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let (quarter, is_through) = channel();
    let (notify, proceed) = channel();
    let client: JoinHandle<()> = world.switch.spawn(move || transfer(listener, way, &quarter, &proceed));
    if is_through.recv_timeout(PATIENCE).is_err() {
        client.join().unwrap();
        panic!("{listener:?} {way:?}: nothing moved");
    }
    let carrier =
        eventually("a node carries the connection", || nodes.iter().position(|node| open(node) > 0));
    let carrier = nodes.remove(carrier);
    let port = |net: &str| format!("{net}{}", carrier.number);
    let number = carrier.number;
    let mut lost = None;
    match fate {
        Fate::Killed => carrier.kill(),
        Fate::Paused => {
            carrier.process.signal("STOP");
            lost = Some(carrier);
        }
        Fate::Unplugged(net) => {
            world.switch.ip(&format!("link set {} down", port(net))).unwrap();
            lost = Some(carrier);
        }
        Fate::Drained => {
            assert_eq!(carrier.cli(&["node", "drain"]).code, Some(0));
            carrier.eventually("is drained", |status| status.drained);
            nodes.push(carrier); // alive, and can get the connection back as a backup only
        }
    }
    std::thread::sleep(rest);
    notify.send(()).unwrap();
    if client.join().is_err() {
        let lines: Vec<_> = nodes.iter().map(|node| node.process.lines()).collect();
        panic!("{listener:?} {way:?}: {lines:#?}");
    }
    if let Some(back) = lost {
        match fate {
            Fate::Unplugged(net) => world.switch.ip(&format!("link set {net}{number} up")).unwrap(),
            _ => back.process.signal("CONT"),
        }
        nodes.push(back);
        nodes.sort_by_key(|node| node.number);
        settled(&nodes);
    }
    let continued: u64 = nodes.iter().map(|node| node.status().counts.connections_continued).sum();
    assert_eq!(continued, 1, "the transfer was over before its node died");
}

#[test]
fn raw_download_outlives_its_node() {
    crosses(Listener::Tcp, Way::Down, Fate::Killed);
}

#[test]
fn raw_upload_outlives_its_node() {
    crosses(Listener::Tcp, Way::Up, Fate::Killed);
}

#[test]
fn http_download_outlives_its_node() {
    crosses(Listener::Http, Way::Down, Fate::Killed);
}

#[test]
fn http_upload_outlives_its_node() {
    crosses(Listener::Http, Way::Up, Fate::Killed);
}

#[test]
fn tls_download_outlives_its_node() {
    crosses(Listener::Https, Way::Down, Fate::Killed);
}

#[test]
fn tls_upload_outlives_its_node() {
    crosses(Listener::Https, Way::Up, Fate::Killed);
}

#[test]
fn raw_download_moves_when_its_node_is_drained() {
    crosses(Listener::Tcp, Way::Down, Fate::Drained);
}

#[test]
fn tls_download_moves_when_its_node_is_drained() {
    crosses(Listener::Https, Way::Down, Fate::Drained);
}

#[test]
fn paused_tls_download_outlives_its_node() {
    crosses_after(Listener::Https, Way::Down, Fate::Killed, REST);
}

#[test]
fn paused_tls_download_moves_when_its_node_is_drained() {
    crosses_after(Listener::Https, Way::Down, Fate::Drained, REST);
}

#[test]
fn http_upload_moves_when_its_node_is_drained() {
    crosses(Listener::Http, Way::Up, Fate::Drained);
}

#[test]
fn tls_upload_outlives_a_pause_of_its_node() {
    crosses(Listener::Https, Way::Up, Fate::Paused);
}

#[test]
fn tls_download_outlives_a_pause_of_its_node() {
    crosses(Listener::Https, Way::Down, Fate::Paused);
}

#[test]
fn http_download_outlives_a_cut_outside() {
    crosses(Listener::Http, Way::Down, Fate::Unplugged("out"));
}

#[test]
fn http_upload_outlives_a_cut_inside() {
    crosses(Listener::Http, Way::Up, Fate::Unplugged("in"));
}

#[test]
fn tls_upload_outlives_a_cut_inside() {
    crosses(Listener::Https, Way::Up, Fate::Unplugged("in"));
}
