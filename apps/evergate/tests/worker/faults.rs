//! Tests of the panic guard around each step of a worker: one connection panics, and all others are undisturbed.
//!
//! In test builds the host panics at steps that the engine reports (`Host::reached`): at every call into a connection,
//! where every turn begins, outside the guard, where each second does, and at steps of recovery and upgrade.

use super::upgrade_frames::{CONFIRMED, END};
use super::{Linux, UpgradeCommand};
use crate::daemon::Daemon;
use crate::upgrade::{Link, Offered, Progress};
use evergate_config::{Config, parse};
use evergate_worker::pools::ServerRuntime;
use evergate_worker::{Counters, Source, Worker};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Clients whose connection panics in its next call; with `true` in the next call at a deadline, with `false` in the
/// next one before it.
static VICTIMS: Mutex<Vec<(SocketAddr, bool)>> = Mutex::new(Vec::new());

fn victims() -> MutexGuard<'static, Vec<(SocketAddr, bool)>> {
    VICTIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Workers that panic in their next turn, or second, by what they count with.
static DOOMED: Mutex<Vec<(usize, &str)>> = Mutex::new(Vec::new());

fn doomed() -> MutexGuard<'static, Vec<(usize, &'static str)>> {
    DOOMED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address_of(worker: &Arc<Counters>) -> usize {
    Arc::as_ptr(worker).addr()
}

/// The worker reaches a step, for the connection of `client` if it is for one.
pub(super) fn strike(worker: &Counters, step: &'static str, client: Option<SocketAddr>) {
    match (step, client) {
        ("turn" | "second", _) => strike_loop(worker, step),
        ("call" | "due", Some(client)) => strike_call(client, step == "due"),
        _ => strike_at(step, client),
    }
}

fn strike_loop(worker: &Counters, step: &str) {
    let mut doomed = doomed();
    let worker = std::ptr::from_ref(worker).addr();
    if let Some(index) = doomed.iter().position(|known| *known == (worker, step)) {
        doomed.swap_remove(index);
        drop(doomed);
        panic!("a worker panics on purpose");
    }
}

fn strike_call(client: SocketAddr, is_due: bool) {
    let mut victims = victims();
    if let Some(index) = victims.iter().position(|victim| *victim == (client, is_due)) {
        victims.swap_remove(index);
        drop(victims);
        panic!("struck on purpose: {client}");
    }
}

/// The engine, with counters that its registrations know.
pub(super) fn known(mut engine: Worker<Linux>) -> Worker<Linux> {
    engine.poll_mut().counters = Some(engine.counters());
    engine
}

/// The client's connection panics in its next call before its deadline.
pub(super) fn doom(client: SocketAddr) {
    victims().push((client, false));
}

/// Clients whose connection panics in a step that is named.
static STEPS: Mutex<Vec<(SocketAddr, &str)>> = Mutex::new(Vec::new());

pub(super) fn doom_at(client: SocketAddr, step: &'static str) {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner).push((client, step));
}

fn strike_at(step: &str, client: Option<SocketAddr>) {
    let mut steps = STEPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(index) = steps.iter().position(|(of, known)| client == Some(*of) && *known == step) {
        steps.swap_remove(index);
        drop(steps);
        panic!("struck on purpose: {step}");
    }
}

/// Sockets whose readiness a worker must not receive, by the worker's counters and the kind of socket.
static REFUSED: Mutex<Vec<(usize, &str)>> = Mutex::new(Vec::new());

pub(super) fn refuse_next(worker: &Arc<Counters>, kind: &'static str) {
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner).push((address_of(worker), kind));
}

pub(super) fn refuse(worker: Option<&Arc<Counters>>, token: u64) -> std::io::Result<()> {
    let (Some(worker), Some(source)) = (worker, Source::of(token)) else { return Ok(()) };
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    let source = format!("{source:?}");
    let is_it = |(of, kind): &(usize, &str)| *of == address_of(worker) && source.starts_with(kind);
    match refused.iter().position(is_it) {
        Some(index) => {
            refused.swap_remove(index);
            Err(ErrorKind::OutOfMemory.into())
        }
        None => Ok(()),
    }
}

/// A switch with one worker, its server, and a client that must not notice anything.
struct Scene {
    daemon: Daemon,
    backend: TcpListener,
    bystander: TcpStream,
    to_server: TcpStream,
}

impl Scene {
    fn new() -> Scene {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let config = format!(
            "[node]\nworkers = 1\n[logs]\naccess = \"off\"\n[timeouts]\nrequest_head_ms = 100\n\
             [[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:1\"\nprotocol = \"http\"\npool = \"web\"\n\
             [[pools]]\nname = \"web\"\nqueue_max = 10\nqueue_timeout_ms = 30000\n\
             servers = [{{ address = \"{}\", connections_max = 1 }}]\n",
            backend.local_addr().unwrap()
        );
        let mut config = parse(&config, "test.toml", Path::new(".")).unwrap().config;
        config.listeners[0].address.socket.set_port(0); // any free port; a file cannot ask for one
        let daemon = Daemon::start(config, None).unwrap();
        daemon.listen().unwrap();
        let mut bystander = connect(&daemon);
        ask(&mut bystander);
        let (mut to_server, _) = backend.accept().unwrap();
        answer(&mut to_server);
        expect_answer(&mut bystander);
        Scene { daemon, backend, bystander, to_server }
    }

    fn counters(&self) -> Arc<Counters> {
        self.daemon.workers[0].counters.clone()
    }

    fn server(&self) -> Arc<ServerRuntime> {
        self.daemon.generation.pools[0].servers[0].clone()
    }

    /// A client whose request waits for the server, which has no room.
    fn queued(&self) -> TcpStream {
        let mut client = connect(&self.daemon);
        ask(&mut client);
        eventually("it waits", || self.counters().queued.get() > 0);
        client
    }

    /// No connection to the server is left.
    fn close_server(&mut self) {
        ask(&mut self.bystander);
        expect(&mut self.to_server, b"\r\n\r\n");
        let last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        self.to_server.write_all(last).unwrap();
        expect_answer(&mut self.bystander);
        let outstanding = || self.server().outstanding.load(Ordering::Relaxed);
        eventually("the request is counted out", || outstanding() == 0);
    }

    /// The bystander is served on a new connection to the server.
    fn serve_again(&mut self) {
        ask(&mut self.bystander);
        self.to_server = self.backend.accept().unwrap().0;
        answer(&mut self.to_server);
        expect_answer(&mut self.bystander);
    }

    /// One client was reset. The worker serves all others, and nothing of the lost client is left.
    fn expect_unharmed(self) {
        let reasons = self.counters().reasons.lock().unwrap().clone();
        assert_eq!(reasons.get("internal_panic"), Some(&1), "{reasons:?}");
        self.expect_going_on();
    }

    fn expect_going_on(mut self) {
        let mut newcomer = connect(&self.daemon);
        for client in [&mut self.bystander, &mut newcomer] {
            ask(client);
            answer(&mut self.to_server);
            expect_answer(client);
        }
        let counters = self.counters();
        assert_eq!(counters.open.get(), 2, "the bystander and the newcomer are connected");
        let (shared, generation) = (self.daemon.shared.clone(), self.daemon.generation.clone());
        self.daemon.stop();
        assert_eq!(shared.connections.load(Ordering::Relaxed), 0, "connections are counted out");
        let server = &generation.pools[0].servers[0];
        assert_eq!(server.outstanding.load(Ordering::Relaxed), 0, "requests are counted out");
    }
}

fn connect(daemon: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(daemon.bound[0].1).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Waits for it, and not without end.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::yield_now();
    }
}

fn ask(client: &mut TcpStream) {
    client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
}

fn answer(server: &mut TcpStream) {
    expect(server, b"\r\n\r\n");
    server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
}

fn expect_answer(client: &mut TcpStream) {
    expect(client, b"\r\n\r\nok");
}

/// Reads up to and with `end`.
fn expect(stream: &mut TcpStream, end: &[u8]) {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(end) {
        stream.read_exact(&mut byte).unwrap_or_else(|error| {
            panic!(
                "{error} after {:?}, not {:?}",
                String::from_utf8_lossy(&seen),
                String::from_utf8_lossy(end)
            )
        });
        seen.push(byte[0]);
    }
}

fn expect_reset(client: &mut TcpStream) {
    let outcome = client.read(&mut [0; 100]).map_err(|error| error.kind());
    assert_eq!(outcome, Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_panic_over_a_clients_bytes_ends_that_client_alone() {
    let mut scene = Scene::new();
    let mut victim = connect(&scene.daemon);
    ask(&mut victim);
    // The bystander's connection to the server is idle: it serves the victim.
    answer(&mut scene.to_server);
    expect_answer(&mut victim);
    victims().push((victim.local_addr().unwrap(), false));
    ask(&mut victim);
    expect_reset(&mut victim);
    scene.expect_unharmed();
}

#[test]
fn panic_over_server_bytes_ends_its_client_and_the_server_leg() {
    let mut scene = Scene::new();
    let mut victim = connect(&scene.daemon);
    ask(&mut victim);
    expect(&mut scene.to_server, b"\r\n\r\n");
    victims().push((victim.local_addr().unwrap(), false));
    scene.to_server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    expect_reset(&mut victim);
    assert_eq!(scene.to_server.read(&mut [0]).unwrap_or(0), 0, "the server connection is closed");
    ask(&mut scene.bystander);
    scene.to_server = scene.backend.accept().unwrap().0;
    answer(&mut scene.to_server);
    expect_answer(&mut scene.bystander);
    scene.expect_unharmed();
}

#[test]
fn a_panic_at_a_deadline_ends_that_client_alone() {
    let scene = Scene::new();
    let mut victim = connect(&scene.daemon);
    victims().push((victim.local_addr().unwrap(), true));
    victim.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    expect_reset(&mut victim);
    scene.expect_unharmed();
}

#[test]
fn panic_over_a_queued_request_ends_that_client_alone() {
    let mut scene = Scene::new();
    ask(&mut scene.bystander);
    expect(&mut scene.to_server, b"\r\n\r\n");
    let mut victim = scene.queued();
    doom_at(victim.local_addr().unwrap(), "connect");
    scene.to_server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    expect_answer(&mut scene.bystander);
    expect_reset(&mut victim);
    scene.expect_unharmed();
}

#[test]
fn panic_over_a_request_freed_by_another_worker_ends_one_client() {
    let mut scene = Scene::new();
    scene.close_server();
    let server = scene.server();
    assert!(server.enter());
    let mut victim = scene.queued();
    doom_at(victim.local_addr().unwrap(), "connect");
    server.leave();
    expect_reset(&mut victim);
    scene.serve_again();
    scene.expect_unharmed();
}

#[test]
fn panic_in_the_work_of_each_second_ends_no_connection() {
    let scene = Scene::new();
    let counters = scene.counters();
    doomed().push((address_of(&counters), "second"));
    eventually("it is counted", || counters.reasons.lock().unwrap().contains_key("internal_panic"));
    scene.expect_unharmed();
}

#[test]
fn server_connection_without_readiness_fails_at_once() {
    let mut scene = Scene::new();
    scene.close_server();
    for _ in 0..10 {
        refuse_next(&scene.counters(), "Upstream"); // as often as the request is tried
    }
    let mut client = connect(&scene.daemon);
    ask(&mut client);
    expect(&mut client, b"HTTP/1.1 502 ");
    drop(client);
    REFUSED.lock().unwrap().retain(|(of, _)| *of != address_of(&scene.counters()));
    let tried = scene.counters().reasons.lock().unwrap()["epoll_failed"];
    for _ in 0..tried {
        let (mut server, _) = scene.backend.accept().unwrap();
        assert_eq!(server.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    }
    scene.serve_again();
    scene.expect_going_on();
}

#[test]
fn old_process_without_readiness_is_not_waited_for() {
    let scene = Scene::new();
    let never_ready = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    scene.daemon.shared.inheriting.store(1, Ordering::Relaxed);
    scene.daemon.workers[0].notify(UpgradeCommand::Inherit(UnixStream::from(never_ready)).into());
    eventually("nothing is waited for", || !scene.daemon.is_inheriting());
    scene.expect_going_on();
}

/// The streams on which a new process would get each worker's connections, and how far the old one is with that.
fn transfer(daemon: &Daemon) -> (Vec<Link>, Arc<Progress>) {
    let (offer, descriptors, ours) = daemon.offer(&Default::default()).unwrap();
    let progress = Arc::new(Progress::default());
    daemon.transfer(ours, &progress);
    let stream = |socket: OwnedFd| {
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false).unwrap();
        Link::new(stream)
    };
    let all = offer.sockets.iter().zip(descriptors);
    let streams = all.filter(|(what, _)| matches!(what, Offered::Worker(_)));
    (streams.map(|(_, socket)| stream(socket)).collect(), progress)
}

#[test]
fn panic_over_a_connection_in_an_upgrade_ends_that_client_alone() {
    let mut scene = Scene::new();
    let mut victim = connect(&scene.daemon);
    ask(&mut victim);
    answer(&mut scene.to_server);
    expect_answer(&mut victim);
    doom_at(victim.local_addr().unwrap(), "pack");
    let (mut streams, progress) = transfer(&scene.daemon);
    expect_reset(&mut victim);
    let bystander = streams[0].receive().unwrap();
    assert_eq!(bystander.descriptors.len(), 1);
    assert_eq!(*streams[0].receive().unwrap().bytes, [END]);
    streams[0].send(&[CONFIRMED], Vec::new()).unwrap();
    eventually("it has read that", || progress.done.load(Ordering::Relaxed) == 1);
    scene.daemon.stop();
}

#[test]
fn a_panic_in_a_drain_ends_that_client_alone() {
    let mut scene = Scene::new();
    let [mut victim, mut next] = [(), ()].map(|()| {
        let mut client = connect(&scene.daemon);
        ask(&mut client);
        answer(&mut scene.to_server);
        expect_answer(&mut client);
        client
    });
    ask(&mut scene.bystander);
    expect(&mut scene.to_server, b"\r\n\r\n");
    doom(victim.local_addr().unwrap());
    scene.daemon.drain();
    expect_reset(&mut victim);
    assert_eq!(next.read(&mut [0]).unwrap(), 0, "an idle client is closed by the drain");
    scene.to_server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    expect_answer(&mut scene.bystander);
    assert_eq!(scene.bystander.read(&mut [0]).unwrap(), 0);
    scene.daemon.stop();
}

/// Two workers, and these listeners, all of which answer 404.
fn test_config(names: &[&str]) -> Config {
    let mut text = "[node]\nworkers = 2\n[logs]\naccess = \"off\"\n".to_owned();
    for (port, name) in (1..).zip(names) {
        text += &format!(
            "[[listeners]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\nprotocol = \"http\"\n"
        );
    }
    let mut config = parse(&text, "test.toml", Path::new(".")).unwrap().config;
    config.listeners.iter_mut().for_each(|listener| listener.address.socket.set_port(0));
    config
}

/// So many clients of a listener, all answered and still connected.
fn crowd(daemon: &Daemon, listener: usize, count: usize) -> Vec<TcpStream> {
    let client = |_| {
        let mut client = TcpStream::connect(daemon.bound[listener].1).unwrap();
        ask(&mut client);
        expect(&mut client, b"\r\n\r\n");
        client
    };
    (0..count).map(client).collect()
}

/// One whose first worker has ended, and clients, some of which were its.
fn crippled() -> (Daemon, Vec<TcpStream>) {
    let daemon = Daemon::start(test_config(&["a"]), None).unwrap();
    daemon.listen().unwrap();
    let mut clients = Vec::new();
    while daemon.workers[0].counters.open.get() == 0 {
        clients.extend(crowd(&daemon, 0, 1));
    }
    doomed().push((address_of(&daemon.workers[0].counters), "turn"));
    clients.iter_mut().for_each(ask); // one of them wakes it
    while !daemon.workers[0].is_finished() {
        std::thread::yield_now();
    }
    daemon.pass_on_listeners().unwrap();
    (daemon, clients)
}

#[test]
fn upgrade_ends_when_the_living_workers_have_passed_everything() {
    let (daemon, mut clients) = crippled();
    clients.extend(crowd(&daemon, 0, 10));
    let (mut streams, progress) = transfer(&daemon);
    assert_eq!(*streams[0].receive().unwrap().bytes, [END], "nothing comes of the one that has ended");
    while *streams[1].receive().unwrap().bytes != [END] {}
    streams[1].send(&[CONFIRMED], Vec::new()).unwrap();
    expect_over(daemon, &progress);
}

#[test]
fn upgrade_ends_when_a_worker_ends_before_it_passed_everything() {
    let daemon = Daemon::start(test_config(&["a"]), None).unwrap();
    daemon.listen().unwrap();
    let (mut streams, progress) = transfer(&daemon);
    assert_eq!(*streams[1].receive().unwrap().bytes, [END]);
    streams[1].send(&[CONFIRMED], Vec::new()).unwrap();
    doomed().push((address_of(&daemon.workers[0].counters), "turn"));
    expect_over(daemon, &progress);
}

/// All of both workers is counted as done.
fn expect_over(daemon: Daemon, progress: &Progress) {
    eventually("both are done", || progress.done.load(Ordering::Relaxed) == 2);
    assert_eq!(progress.swept.load(Ordering::Relaxed), 2);
    daemon.stop();
}

#[test]
fn when_a_worker_has_ended_the_others_take_all_new_connections() {
    let (mut daemon, mut clients) = crippled();
    clients.extend(crowd(&daemon, 0, 50));
    daemon.reload(test_config(&["a", "b"])).unwrap();
    clients.extend(crowd(&daemon, 1, 50));
    assert_eq!(daemon.workers[0].counters.open.get(), 0);
    let open = daemon.workers[1].counters.open.get();
    assert_eq!(daemon.shared.connections.load(Ordering::Relaxed) as u64, open);
    let (offer, ..) = daemon.offer(&Default::default()).unwrap();
    for listener in ["a", "b"] {
        let of_it =
            |offered: &&Offered| matches!(offered, Offered::Listener { name, .. } if name == listener);
        let workers = offer.sockets.iter().filter(of_it).map(|offered| match offered {
            Offered::Listener { worker, .. } => *worker,
            _ => usize::MAX,
        });
        assert_eq!(workers.collect::<Vec<_>>(), [0, 1], "{listener}");
    }
    daemon.stop();
}
