//! Third-party clients (curl, `openssl s_client`, Python's http.client, Go's net/http, Chromium) while nodes are
//! killed until one is left. Everything arrives on the connections that were opened at the beginning.

mod browser;
mod cli_tools;
mod go;
mod server;

use crate::matrix::carrier;
use crate::seed::Chance;
use crate::sockets::{ESTABLISHED, sockets};
use crate::support::eventually;
use crate::traffic::{SERVERS, content, three};
use crate::world::{ADDRESS, World, privileged, settled};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Result, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const PIECE: usize = 16 << 10;
/// Bound on pauses between two pieces or before an answer, in milliseconds. The test decides when transfers end.
const PAUSE_MS: u64 = 10;
/// Requests on a persistent connection.
const REQUESTS: usize = 1500;
/// Request whose answer waits for the last death, if the clients come this far before it.
const LAST_EARLY_REQUEST: usize = 1400;

/// State that the server and the test share.
struct Desk {
    chance: Chance,
    /// Transfers may end.
    over: AtomicBool,
    /// Pieces and answers so far.
    moved: AtomicUsize,
    /// Bytes of each finished download.
    sent: Mutex<BTreeMap<String, usize>>,
    /// Result of the page in the browser.
    report: Mutex<Option<String>>,
    wrong: Mutex<Vec<String>>,
}

impl Desk {
    /// Pauses a little; whether transfers must continue.
    fn continues(&self, pauses: &Chance) -> bool {
        self.moved.fetch_add(1, Ordering::Relaxed);
        let continues = !self.over.load(Ordering::Relaxed);
        if continues {
            std::thread::sleep(pauses.moment(PAUSE_MS));
        }
        continues
    }

    /// Waits for some further pieces and answers.
    fn moves(&self) {
        let since = self.moved.load(Ordering::Relaxed);
        eventually("transfers continue", || (self.moved.load(Ordering::Relaxed) > since + 100).then_some(()));
    }
}

/// Success of a client, or its error.
type Verdict = std::result::Result<(), String>;

/// Running client.
struct Running {
    name: String,
    /// Number of its connections, from the beginning to the end.
    connections: usize,
    thread: JoinHandle<Verdict>,
}

/// Starts a client; `feed` writes its input, and `check` verifies its output.
fn run(
    world: &World,
    name: &str,
    connections: usize,
    mut command: Command,
    feed: impl FnOnce(&mut dyn Write) -> Result<usize> + Send + 'static,
    check: impl FnOnce(&[u8], usize) -> Verdict + Send + 'static,
) -> Running {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let thread = world.switch.spawn(move || {
        let mut child = start(&mut command)?;
        let mut input = child.stdin.take().unwrap();
        let feeding = std::thread::spawn(move || feed(&mut input));
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let fed = feeding.join().unwrap();
        if !output.status.success() {
            return Err(format!("{}, {} bytes, fed {fed:?}", end(&output), output.stdout.len()));
        }
        check(&output.stdout, fed.map_err(|error| format!("{error}: {}", end(&output)))?)
    });
    Running { name: name.to_owned(), connections, thread }
}

fn start(command: &mut Command) -> std::result::Result<Child, String> {
    command.spawn().map_err(|error| format!("{:?}: {error}; try scripts/setup test", command.get_program()))
}

/// Exit status and error output of a client.
fn end(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

fn nothing(_: &mut dyn Write) -> Result<usize> {
    Ok(0)
}

/// Writes the content as a client's input until transfers may end.
fn feed(desk: &Arc<Desk>, name: &str) -> impl FnOnce(&mut dyn Write) -> Result<usize> + use<> {
    let (desk, pauses) = (desk.clone(), desk.chance.of(name));
    move |input| {
        let mut at = 0;
        while desk.continues(&pauses) {
            input.write_all(&content(at, at + PIECE))?;
            at += PIECE;
        }
        Ok(at)
    }
}

/// Client ports of all open connections with the cluster.
fn ports(world: &World) -> BTreeSet<u16> {
    let address: Ipv4Addr = ADDRESS.parse().unwrap();
    let open = sockets(&world.switch)
        .into_iter()
        .filter(|socket| *socket.remote.ip() == address && socket.state == ESTABLISHED);
    open.map(|socket| socket.local.port()).collect()
}

/// Kills nodes until one is left, while these clients continue.
fn outlive(clients: impl FnOnce(&World, &Arc<Desk>) -> Vec<Running>) {
    let world = World::new(3);
    let (mut nodes, _) = three(&world);
    let desk = Arc::new(Desk {
        chance: world.chance.of("desk"),
        over: AtomicBool::new(false),
        moved: AtomicUsize::new(0),
        sent: Mutex::default(),
        report: Mutex::default(),
        wrong: Mutex::default(),
    });
    for server in SERVERS {
        let (at, tls, shared) = (server.address(&world), server.config(&world), desk.clone());
        world.switch.run(move || {
            let listener = TcpListener::bind(at).unwrap();
            std::thread::spawn(move || server::serve(&listener, tls.as_ref(), &shared));
        });
    }
    let all = clients(&world, &desk);
    let wanted: usize = all.iter().map(|client| client.connections).sum();
    let mut seen = BTreeSet::new();
    let opened = eventually("all clients are connected", || {
        if let Some(client) = all.iter().find(|client| client.thread.is_finished()) {
            panic!("{} has ended, with {seen:?} of {wanted} connections", client.name);
        }
        seen = ports(&world);
        (seen.len() == wanted).then(|| seen.clone())
    });
    desk.moves();
    while nodes.len() > 1 {
        std::thread::sleep(world.chance.moment(50));
        carrier(&mut nodes).kill();
        settled(&nodes);
        desk.moves();
    }
    let kept = ports(&world);
    desk.over.store(true, Ordering::Relaxed);
    let mut broken = Vec::new();
    for client in all {
        if let Err(error) = client.thread.join().unwrap() {
            broken.push(format!("{}: {error}", client.name));
        }
    }
    let (wrong, sent) = (desk.wrong.lock().unwrap().clone(), desk.sent.lock().unwrap().clone());
    assert!(broken.is_empty() && wrong.is_empty(), "{broken:#?}; the server: {wrong:#?}");
    assert_eq!(kept, opened, "the clients' ports after the deaths, and before");
    println!("{wanted} connections, downloads of {sent:?} bytes");
    let continued: u64 = nodes.iter().map(|node| node.status().counts.connections_continued).sum();
    assert!(continued > 0, "the nodes that died carried nothing");
}

#[test]
fn foreign_clients_outlive_all_nodes_but_one() {
    if privileged() {
        outlive(cli_tools::clients);
    }
}

#[test]
fn go_client_outlives_all_nodes_but_one() {
    if privileged() {
        let program = go::build();
        outlive(|world, desk| go::clients(&program, world, desk));
    }
}

#[test]
fn browser_outlives_all_nodes_but_one() {
    if privileged() {
        outlive(|world, desk| vec![browser::client(world, desk)]);
    }
}
