//! `evergate upgrade` under traffic: three new processes in a row, no visible change for clients and servers, every
//! byte correct.

use super::backend::{Backend, pattern};
use super::client::{Wire, connect, get, tcp};
use super::node::{DEADLINE, Folder, Node, eventually, has_ended, web};
use super::pki::{Tls, certificate, client, https, issue, shown, tls, tls12};
use super::upstream::keeping_secure_backend;
use rustls::{ClientConfig, HandshakeKind, StreamOwned};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

const UPGRADES: usize = 3;
/// More bytes than all buffers on the way hold.
const SLOW: usize = 48_000_000;
const BODY: usize = 400_000;

type Failed = Box<dyn std::error::Error + Send + Sync>;
type Round = Box<dyn FnMut() -> Result<(), Failed> + Send>;

fn check(what: &str, is_right: bool) -> Result<(), Failed> {
    if is_right { Ok(()) } else { Err(what.to_owned().into()) }
}

/// Action of a client, the number of its repetitions, and its thread.
type Client = (&'static str, Arc<AtomicU64>, JoinHandle<Result<(), Failed>>);

/// Clients of one kind each, which continue until `finish`.
struct Traffic {
    stop: Arc<AtomicBool>,
    clients: Vec<Client>,
}

impl Traffic {
    fn add(&mut self, kind: &'static str, mut round: Round) {
        let (stop, done) = (self.stop.clone(), Arc::new(AtomicU64::new(0)));
        let counted = done.clone();
        let run = move || {
            while !stop.load(Ordering::SeqCst) {
                round()?;
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        };
        self.clients.push((kind, done, std::thread::spawn(run)));
    }

    /// Waits until every client has done `rounds` more repetitions.
    fn more(&self, rounds: u64) {
        for (kind, done, thread) in &self.clients {
            let until = done.load(Ordering::SeqCst) + rounds;
            eventually(kind, || (done.load(Ordering::SeqCst) >= until || thread.is_finished()).then_some(()));
        }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::SeqCst);
        for (kind, done, thread) in self.clients {
            let result = thread.join().unwrap();
            assert!(result.is_ok(), "{kind} failed after {done:?} rounds: {result:?}");
        }
    }
}

fn exchange<S: Read + Write>(wire: &mut Wire<S>, body: &[u8]) -> Result<(), Failed> {
    check("download", wire.get(&format!("/bytes/{BODY}"))?.body == body)?;
    check("upload", wire.post("/echo", body)?.body == body)?;
    let short = wire.get("/x")?;
    check("short response", short.text() == "one")?;
    check("the node closes", short.head.field("connection").is_none_or(|value| value != "close"))
}

/// Tunnel over an HTTP upgrade: the server's first bytes, and then an echo of every byte.
fn tunnel<S: Read + Write + Send + 'static>(mut wire: Wire<S>) -> Round {
    wire.send("GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .unwrap();
    assert_eq!(wire.response().unwrap().status, 101);
    assert_eq!(wire.exactly(5).unwrap(), b"first");
    let mut number = 0u64;
    Box::new(move || {
        number += 1;
        let message = number.to_be_bytes().repeat(40);
        wire.send(&message)?;
        check("message", wire.exactly(message.len())? == message)
    })
}

/// Echo server.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
        }
    });
    address
}

/// Server that reads in steps, one for each stage, and checks every byte.
fn slow_server(stage: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let stage = stage.clone();
            std::thread::spawn(move || {
                let all = in_steps(&stage, |count| {
                    let mut part = vec![0; count];
                    stream.read_exact(&mut part).map(|()| part)
                });
                let right = all.is_ok_and(|all| all == pattern(SLOW)) && stream.read(&mut [0]).unwrap() == 0;
                stream.write_all(if right { b"right" } else { b"wrong" }).unwrap();
            });
        }
    });
    address
}

/// Reads as much as the stages allow, until the last one.
fn in_steps(
    stage: &AtomicUsize,
    mut read: impl FnMut(usize) -> std::io::Result<Vec<u8>>,
) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    for step in 0..=UPGRADES {
        eventually("the next stage", || (stage.load(Ordering::SeqCst) >= step).then_some(()));
        all.extend(read(SLOW / (UPGRADES + 1))?);
    }
    Ok(all)
}

struct Scene {
    backend: Backend,
    node: Node,
    stage: Arc<AtomicUsize>,
}

fn scene() -> Scene {
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "site", "ecdsa", "site.example", Some("ca"));
    let (backend, stage) = (Backend::new("one"), Arc::new(AtomicUsize::new(0)));
    let mut config = format!("{}{}{}", https(""), certificate("site"), web(&[backend.address()], ""));
    let secure = keeping_secure_backend(&folder, "site");
    for (name, protocol, pool) in [
        ("plain", "http", "web"),
        ("over", "http", "secure"),
        ("raw", "tcp", "echo"),
        ("slow", "tcp", "slow"),
    ] {
        config += &format!(
            "[[listeners]]\nname = \"{name}\"\naddress = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\n\
             pool = \"{pool}\"\n"
        );
    }
    let slow = slow_server(stage.clone());
    for (name, address, more) in
        [("secure", secure, "tls = { verify = false }"), ("echo", echo_server(), ""), ("slow", slow, "")]
    {
        config +=
            &format!("[[pools]]\nname = \"{name}\"\nservers = [{{ address = \"{address}\" }}]\n{more}\n");
    }
    Scene { backend, node: Node::start_in(folder, &config), stage }
}

impl Scene {
    fn at(&self, listener: &str) -> SocketAddr {
        self.node.address(listener)
    }

    fn traffic(&self) -> Traffic {
        let mut all = Traffic { stop: Arc::new(AtomicBool::new(false)), clients: Vec::new() };
        let body = Arc::new(pattern(BODY));
        let (plain, secure, raw) = (self.at("plain"), self.at("in"), self.at("raw"));
        let (tls13, tls12) = (Arc::new(client(None)), Arc::new(tls12(&self.node.folder)));
        for (kind, config) in [("TLS 1.3, kept", &tls13), ("TLS 1.2, kept", &tls12)] {
            let (mut wire, body) = (tls(secure, config, "site.example"), body.clone());
            all.add(kind, Box::new(move || exchange(&mut wire, &body)));
        }
        let (mut wire, bytes) = (connect(plain), body.clone());
        all.add("plain, kept", Box::new(move || exchange(&mut wire, &bytes)));
        let (mut wire, bytes) = (connect(self.at("over")), body.clone());
        let download = format!("/bytes/{BODY}");
        all.add("TLS to the server", Box::new(move || check("bytes", wire.get(&download)?.body == *bytes)));
        all.add("tunnel, TLS", tunnel(tls(secure, &tls13, "site.example")));
        all.add("tunnel, plain", tunnel(connect(plain)));
        let (mut wire, bytes) = (connect(raw), body.clone());
        let relay = move || {
            wire.send(&bytes[..100_000])?;
            check("relay", wire.exactly(100_000)? == bytes[..100_000])
        };
        all.add("raw relay", Box::new(relay));
        all.add("connections, plain", Box::new(move || check("response", get(plain, "/x").text() == "one")));
        all.add("connections, TLS 1.3", fresh(secure, tls13));
        all.add("connections, TLS 1.2", fresh(secure, tls12));
        let (url, bytes) = (format!("https://{secure}/bytes/{BODY}"), body);
        all.add("curl", Box::new(move || curl(&url, &bytes)));
        all
    }
}

/// Sends each request on a new connection.
fn fresh(at: SocketAddr, config: Arc<ClientConfig>) -> Round {
    Box::new(move || {
        let response = tls(at, &config, "site.example").get("/x")?;
        check("response", response.text() == "one")
    })
}

fn curl(url: &str, expected: &[u8]) -> Result<(), Failed> {
    let output = Command::new("curl").args(["-sSkf", "--http1.1", "--max-time", "20", url]).output()?;
    check(&String::from_utf8_lossy(&output.stderr), output.status.success())?;
    check("curl's bytes", output.stdout == expected)
}

/// Download over all upgrades that its client reads in steps. Most of the time all buffers are full.
fn slow_download<S: Read + Write + Send + 'static>(
    mut wire: Wire<S>,
    stage: Arc<AtomicUsize>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        wire.send(format!("GET /bytes/{SLOW} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        let head = wire.read_head().unwrap().unwrap();
        assert_eq!(head.field("content-length").unwrap(), SLOW.to_string());
        let all = in_steps(&stage, |count| wire.exactly(count)).unwrap();
        assert!(all == pattern(SLOW), "the slow download differs");
        assert_eq!(wire.get("/x").unwrap().text(), "one");
    })
}

fn slow_upload(at: SocketAddr) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut stream = tcp(at);
        stream.set_write_timeout(None).unwrap();
        stream.write_all(&pattern(SLOW)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"right");
    })
}

#[test]
fn three_upgrades_under_traffic_change_no_byte() {
    let scene = scene();
    let traffic = scene.traffic();
    let config = Arc::new(client(None));
    let idle: Vec<Wire<TcpStream>> = (0..100).map(|_| connect(scene.at("plain"))).collect();
    let mut kept: Vec<Tls> = (0..20).map(|_| tls(scene.at("in"), &config, "site.example")).collect();
    kept.iter_mut().for_each(|wire| assert_eq!(wire.get("/x").unwrap().text(), "one"));
    let slow = [
        slow_download(tls(scene.at("in"), &config, "site.example"), scene.stage.clone()),
        slow_download(connect(scene.at("plain")), scene.stage.clone()),
        slow_upload(scene.at("slow")),
    ];
    traffic.more(2);
    let mut pids = vec![scene.node.serving()];
    for stage in 1..=UPGRADES {
        let upgraded = scene.node.upgrade();
        assert!(upgraded.passed > 120, "{upgraded:?}");
        assert_eq!(scene.node.serving(), upgraded.pid);
        pids.push(upgraded.pid);
        assert!(scene.node.metric("evergate_connections_inherited_total") > 120);
        traffic.more(2);
        scene.stage.store(stage, Ordering::SeqCst);
    }
    traffic.more(3);
    traffic.finish();
    slow.into_iter().for_each(|client| client.join().unwrap());
    for mut wire in idle {
        assert_eq!(wire.get("/x").unwrap().text(), "one");
    }
    for mut wire in kept {
        assert_eq!(wire.get("/x").unwrap().text(), "one");
    }
    assert!(pids[..UPGRADES].iter().all(|pid| has_ended(*pid)));
    let lost: Vec<String> = scene.node.lines().into_iter().filter(|line| line.contains("lost")).collect();
    assert!(lost.is_empty(), "{lost:?}");
    // Clients with one request reset their connection when tickets arrive after it.
    let mut reasons = scene.node.status().reasons;
    reasons.remove("client_reset");
    assert!(reasons.is_empty(), "{reasons:?}");
}

#[test]
fn half_finished_exchanges_continue_in_the_new_process() {
    let mut scene = scene();
    let config = Arc::new(client(None));
    let mut half_head = connect(scene.at("plain"));
    half_head.send("GET /x HTTP/1.1\r\nHo").unwrap();
    let mut half_secure = tls(scene.at("in"), &config, "site.example");
    half_secure.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").unwrap();
    let mut held = tls(scene.at("in"), &config, "site.example");
    held.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut half_hello = tcp(scene.at("in"));
    let name = "site.example".try_into().unwrap();
    let mut handshake = rustls::ClientConnection::new(config.clone(), name).unwrap();
    let mut hello = Vec::new();
    handshake.write_tls(&mut hello).unwrap();
    half_hello.write_all(&hello[..hello.len() / 2]).unwrap();
    // Tunnel whose client has sent all its bytes.
    let mut ended = tcp(scene.at("raw"));
    ended.write_all(b"all there is").unwrap();
    eventually("all requests have come", || (scene.backend.requests() >= 2).then_some(()));
    let first = scene.node.serving();
    for _ in 0..2 {
        scene.node.upgrade();
    }
    assert_ne!(scene.node.serving(), first);
    half_head.send("st: a\r\n\r\n").unwrap();
    assert_eq!(half_head.response().unwrap().text(), "one");
    half_secure.send("def").unwrap();
    assert_eq!(half_secure.response().unwrap().text(), "abcdef");
    scene.backend.open_gate();
    assert_eq!(held.response().unwrap().text(), "one");
    assert_eq!(held.response().unwrap().text(), "one");
    half_hello.write_all(&hello[hello.len() / 2..]).unwrap();
    let mut wire = Wire::new(StreamOwned::new(handshake, half_hello));
    assert_eq!(wire.get("/x").unwrap().text(), "one");
    ended.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    ended.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"all there is");
    // The first process has exited successfully, and the last one ends at SIGTERM.
    assert!(scene.node.wait().success());
    scene.node.signal("TERM");
    let last = scene.node.pid();
    eventually("the last process ends", || has_ended(last).then_some(()));
}

/// Connections that began under an older configuration are passed on and keep their server. Exceptions are requests
/// whose responses need a rule that the new configuration does not have.
#[test]
fn upgrade_answers_requests_of_old_rules_and_passes_tunnels() {
    let backend = Backend::new("one");
    let rule = |name: &str, mark: &str| {
        let when = format!("header(\"x-kind\") == \"{name}\"");
        format!(
            "[[rules]]\nname = \"{name}\"\nwhen = '{when}'\nset_response_headers = {{ x-mark = \"{mark}\" }}\n"
        )
    };
    let marking = rule("edited", "old") + &rule("kept", "kept");
    let node = Node::start(&format!("{marking}{}", super::node::plain(&[backend.address()], "", "")));
    let mut message = tunnel(connect(node.address("in")));
    message().unwrap();
    let [mut held, mut kept] = ["edited", "kept"].map(|kind| {
        let mut wire = connect(node.address("in"));
        wire.send(format!("GET /hold HTTP/1.1\r\nHost: a\r\nX-Kind: {kind}\r\n\r\n")).unwrap();
        wire
    });
    eventually("the requests have come", || (backend.requests() == 3).then_some(()));
    let pools = "[[pools]]\nname = \"first\"\nservers = [{ address = \"127.0.0.1:1\" }]\n";
    let other = super::node::plain(&[backend.address()], "", "retries = 1");
    let marking = rule("first", "") + &rule("kept", "kept") + &rule("edited", "new");
    node.write(&format!("{marking}{pools}{other}"));
    node.reload();
    let first = node.pid();
    let upgraded = node.begin_upgrade();
    assert_eq!((upgraded.passed, upgraded.waiting["older_configuration"]), (2, 1), "{upgraded:?}");
    message().unwrap();
    let (ok, text) = node.cli(&["upgrade"]);
    assert!(!ok && text.contains("still passes connections"), "{text}");
    assert!(!has_ended(first));
    backend.open_gate();
    for (wire, mark) in [(&mut held, "old"), (&mut kept, "kept")] {
        let response = wire.response().unwrap();
        assert_eq!(
            (response.text(), response.head.field("x-mark").as_deref()),
            ("one".to_owned(), Some(mark))
        );
    }
    eventually("the old process ends", || has_ended(first).then_some(()));
    assert_eq!(held.get("/x").unwrap().text(), "one");
    node.upgrade();
    message().unwrap();
    assert_eq!(held.get("/x").unwrap().text(), "one");
}

#[test]
fn tickets_certificates_and_drains_survive_an_upgrade() {
    let backends = [Backend::new("one"), Backend::new("two")];
    let addresses: Vec<SocketAddr> = backends.iter().map(Backend::address).collect();
    let own = "[[certificates]]\nname = \"own\"\nself_signed = [\"site.example\"]\n";
    let node = Node::start(&format!("{}{own}{}", https(""), web(&addresses, "")));
    let config = Arc::new(client(None));
    let mut wire = tls(node.address("in"), &config, "site.example");
    assert_eq!(wire.get("/x").unwrap().status, 200);
    let before = shown(&wire);
    assert!(node.cli(&["servers", "drain", "web/s0"]).0);
    node.upgrade();
    let mut wire = tls(node.address("in"), &config, "site.example");
    assert_eq!(wire.get("/x").unwrap().text(), "two");
    assert_eq!(wire.stream.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    let mut wire = tls(node.address("in"), &Arc::new(client(None)), "site.example");
    for _ in 0..5 {
        assert_eq!(wire.get("/x").unwrap().text(), "two");
    }
    assert_eq!(shown(&wire), before, "another certificate");
    assert!(node.cli(&["servers", "ready", "web/s0"]).0);
    eventually("it serves again", || (wire.get("/x").unwrap().text() == "one").then_some(()));
    assert!(wire.stream.sock.read_timeout().unwrap() == Some(DEADLINE));
}
