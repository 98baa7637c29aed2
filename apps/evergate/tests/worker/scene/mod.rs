//! Tests of a worker that runs step by step in a network namespace of its own: the test sets the order of its events.
//! They need root and Linux 6.9; without them they print that they are skipped, and pass.

mod channels;
mod moves;

use super::event_loop::{EventLoop, JoiningNode};
use super::linux::LinuxListener;
use super::{Command, Linux, ListenerSocket, faults};
use crate::agent::{ReplicationEnds, Reporter};
use crate::daemon::settings;
use crate::generation::{Assembled, CarriedState, assemble};
use evergate_base::Micros;
use evergate_bpf::{Address, BucketKey, Flow, Mode, Options, Owner, PacketGate, PortBlocks};
use evergate_config::parse;
use evergate_membership::{
    Bucket, HandoffId, Incarnation, MemberSet, NodeId, OwnershipStart, Role, Term, ViewId,
};
use evergate_netns::Namespace;
use evergate_replication::{ConnectionId, ConnectionState, Frame, Kind, LegFacts, Open};
use evergate_worker::pools::Generation;
use evergate_worker::{
    Counters, FailoverOrder, Instruction, Interface, Key, Layout, Report, Resumed, Shared, Steps,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// The address that moves, a client's, and the server's: all on the loopback interface.
const SHARED: [u8; 4] = [10, 9, 0, 1];
const CLIENT: [u8; 4] = [10, 9, 0, 2];
const SERVER: [u8; 4] = [10, 9, 0, 3];
/// Raw connections come to this port, requests to the next.
const PORT: u16 = 4430;
const WEB: u16 = 4431;
static CLIENT_PORTS: AtomicU16 = AtomicU16::new(10_000);
const LOOPBACK: Interface = Interface { index: 1, mac: [0; 6] };
const REPLICATION_PORT: u16 = 7401;
/// The worker takes channels at this address; the backups take theirs at 127.0.0.1.
const REPLICATION: [u8; 4] = [127, 0, 0, 2];
const ME: NodeId = NodeId(0);
const BACKUP: NodeId = NodeId(1);

/// One worker, and its peers.
struct Scene {
    worker: EventLoop,
    gate: Arc<PacketGate>,
    shared: Arc<Shared>,
    ends: Arc<ReplicationEnds>,
    generation: Arc<Generation>,
    reports: Box<dyn Fn() -> Vec<Report>>,
    server: TcpListener,
    /// Backups that accept channels and send nothing; the tests answer for them.
    _backups: Vec<TcpListener>,
    commands: Sender<Command>,
}

/// Runs a test with the first of so many workers.
fn play(workers: usize, test: impl FnOnce(Scene) + Send + 'static) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let namespace = match Namespace::new() {
        Ok(namespace) if version >= (6, 9) => namespace,
        other => {
            assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped: {:?}", other.err());
            // Not by `eprintln!`, which the harness keeps for tests that fail.
            let why = format!("needs root and Linux 6.9 (is {}): {:?}", release.trim(), other.err());
            return drop(writeln!(std::io::stderr(), "skipped: {why}"));
        }
    };
    namespace.ip("addr add 10.9.0.1/24 dev lo").unwrap();
    namespace.sysctl("net.ipv4.ip_local_port_range", "1024 60999").unwrap();
    namespace.run(move || test(Scene::new(workers)));
}

impl Scene {
    fn new(workers: usize) -> Scene {
        let server = TcpListener::bind((IpAddr::from(SERVER), 0)).unwrap();
        let to = server.local_addr().unwrap();
        let listeners = [("in", PORT, "tcp"), ("web", WEB, "http")];
        let mut text = format!("[node]\nworkers = {workers}\n[logs]\naccess = \"off\"\n");
        for (name, port, protocol) in listeners {
            text += &format!(
                "[[listeners]]\nname = \"{name}\"\naddress = \"10.9.0.1:{port}\"\n\
                protocol = \"{protocol}\"\npool = \"web\"\n"
            );
        }
        text += &format!(
            "[[rules]]\nname = \"gold\"\nwhen = 'path.path_prefix(\"/gold\")'\nclass = \"gold\"\n\
             [[pools]]\nname = \"web\"\nqueue_max = 1\nqueue_classes = [\"gold\"]\n\
             servers = [{{ address = \"{to}\", connections_max = 1 }}]\n"
        );
        let config = parse(&text, "test.toml", Path::new(".")).unwrap().config;
        let Assembled { generation, .. } = assemble(&config, None, &mut CarriedState::default()).unwrap();
        let (commands, received) = channel();
        let shared = Arc::new(Shared::default());
        let mut worker =
            EventLoop::new(&generation, settings(&config, workers), shared.clone(), received, None, None)
                .unwrap();
        let (reporter, reports) = Reporter::with_reports();
        let backups =
            (0..workers as u16).map(|worker| TcpListener::bind(("127.0.0.1", REPLICATION_PORT + worker)));
        let backups = backups.collect::<Result<_, _>>().unwrap();
        let (gate, layout, ends) = (gate(), layout(workers), ends());
        worker.join(JoiningNode {
            gate: gate.clone(),
            layout,
            ends: ends.clone(),
            worker: 0,
            reports: reporter,
        });
        worker.join_cluster().unwrap();
        let sockets = listeners.map(|(name, port, _)| {
            let at = SocketAddr::from((SHARED, port));
            let socket = evergate_sys::listen(at, 16).unwrap();
            ListenerSocket { name: name.to_owned(), socket: LinuxListener(socket), local: Some(at) }
        });
        worker.engine.steps().listen(sockets.into());
        Scene {
            worker,
            gate,
            shared,
            ends,
            generation,
            reports: Box::new(reports),
            server,
            _backups: backups,
            commands,
        }
    }

    fn steps(&mut self) -> Steps<'_, Linux> {
        self.worker.engine.steps()
    }

    fn counters(&self) -> Arc<Counters> {
        self.worker.counters()
    }

    fn turn(&mut self) {
        self.worker.turn().unwrap();
    }

    fn notify(&mut self, roles: impl IntoIterator<Item = (Bucket, Role)>) {
        self.steps().instruct(Instruction::Roles(roles.into_iter().collect()));
    }

    fn fail_over(&mut self, number: u64, buckets: &[(Bucket, Role)]) {
        let of = |(bucket, role): &(Bucket, Role)| match role {
            Role::Owner { term, .. } => (*bucket, *term),
            _ => panic!("not ours"),
        };
        let round = FailoverOrder { number, buckets: buckets.iter().map(of).collect(), silent: Micros(0) };
        self.steps().instruct(Instruction::Failover(Arc::new(round)));
        self.steps().end_probes();
    }

    /// Buckets that a backup knows to be complete.
    fn called_complete(&mut self) -> BTreeSet<Bucket> {
        let mut complete = BTreeSet::new();
        for mut bytes in self.steps().unsent() {
            while let Some((frame, length)) = Frame::decode(bytes).unwrap() {
                bytes = &bytes[length..];
                if let Frame::Complete { bucket } = frame {
                    complete.insert(bucket);
                }
            }
        }
        complete
    }

    /// Backups acknowledge all frames so far.
    fn answer(&mut self) {
        self.steps().acknowledge_all();
    }

    fn resume_idle(&mut self) {
        self.steps().resume_idle();
    }

    fn bucket_of(&mut self, client: SocketAddr) -> Bucket {
        self.steps().bucket(SocketAddr::from((SHARED, PORT)), client).unwrap()
    }

    fn resumed(&self) -> Vec<Resumed> {
        let of = |report| match report {
            Report::Resumed(resumed) => Some(resumed),
            _ => None,
        };
        (self.reports)().into_iter().filter_map(of).collect()
    }

    /// A connection from this port is held; nothing of it is on its way, or its end is.
    fn hold(&mut self, port: u16, idle: bool) -> Bucket {
        let remote = SocketAddr::from((CLIENT, port));
        let bucket = self.bucket_of(remote);
        let facts = LegFacts {
            local: SocketAddr::from((SHARED, PORT)),
            remote,
            sent: 1,
            received: 1,
            acknowledged: 1,
            mss: 1460,
            window_scales: None,
            sack: false,
            timestamp: None,
            interface: 0,
            next_hop: [2; 6],
        };
        let open =
            Open { generation: 1, listener: "in".to_owned(), kind: Kind::Raw, tls: false, proxied: None };
        let state = ConnectionState {
            open: Some(open),
            closed: (!idle).then_some((0, false)),
            ..ConnectionState::default()
        };
        let begin = Frame::Begin {
            connection: ConnectionId(u64::from(port)),
            bucket,
            state: Some(Box::new(state)),
            legs: BTreeMap::from([(0, facts)]),
        };
        self.steps().store().unwrap().keep(term(1), begin);
        bucket
    }
}

fn gate() -> Arc<PacketGate> {
    let gate = PacketGate::load(&Options {
        pins: Path::new("/sys/fs/bpf/evergate/scene"),
        node: ME,
        mode: Mode::Steer,
        ports: PortBlocks::DEFAULT,
        bucket_key: BucketKey([1, 2]),
        flows_max: 256,
        keep: false,
    })
    .unwrap();
    gate.add_address(&Address { ip: SHARED.into(), legs: true, bucket: Bucket(0), mac: [2; 6] }).unwrap();
    for port in [PORT, WEB] {
        gate.add_listener(SocketAddr::from((SHARED, port)), false).unwrap();
    }
    gate.owners().set_all(Owner::new(ME, &[]).unwrap());
    gate.leases().set_own(u64::MAX);
    gate.attach(LOOPBACK.index, LOOPBACK.mac).unwrap();
    Arc::new(gate)
}

fn layout(workers: usize) -> Arc<Layout> {
    Arc::new(Layout {
        node: ME,
        incarnation: Incarnation(1),
        workers,
        settings: BTreeMap::new(),
        addresses: BTreeSet::from([SHARED.into()]),
        sources: vec![SHARED.into()],
        interfaces: [LOOPBACK; 2],
        peers: BTreeMap::from([(BACKUP, IpAddr::from([127, 0, 0, 1]))]),
        replication_port: REPLICATION_PORT,
    })
}

fn ends() -> Arc<ReplicationEnds> {
    let (server_tls, client_tls) = evergate_crypto::channel_configs(&[7; 32]).unwrap();
    let listener = evergate_sys::listen((REPLICATION, REPLICATION_PORT).into(), 128).unwrap();
    Arc::new(ReplicationEnds {
        listeners: vec![listener],
        server_tls,
        client_tls,
        neighbours: Arc::default(),
    })
}

fn term(moves: u32) -> Term {
    Term { view: ViewId { epoch: 1, proposer: ME, incarnation: Incarnation(1) }, moves }
}

fn owner(moves: u32, begin: OwnershipStart, required: MemberSet, syncing: MemberSet) -> Role {
    let data_epoch = evergate_membership::DataEpoch::default();
    Role::Owner { term: term(moves), data_epoch, begin, required, syncing, freeze_for: None }
}

#[test]
fn replica_is_complete_only_after_the_recovered_connections() {
    play(2, |mut scene| {
        // Of the first one's connections this worker holds the copies, of the second one's another worker.
        let buckets = [Bucket(4), Bucket(5)];
        let no_node = MemberSet::EMPTY;
        scene.notify(buckets.map(|bucket| (bucket, owner(1, OwnershipStart::Empty, no_node, no_node))));
        // They were lost and regained before this worker got its instruction.
        let won = buckets
            .map(|bucket| (bucket, owner(3, OwnershipStart::Failover, no_node, MemberSet::of(BACKUP))));
        scene.notify(won);
        scene.answer();
        assert_eq!(scene.called_complete(), BTreeSet::new());
        scene.fail_over(1, &won);
        scene.resume_idle();
        assert_eq!(scene.called_complete(), buckets.into());
        assert_eq!(scene.resumed().len(), 1);
    });
}

#[test]
fn panic_in_a_failover_ends_one_connection() {
    let busy = ["gate", "build", "tell", "wake", "resume"].map(|step| (step, false));
    let idle_connections = ["gate", "build", "wake", "resume"].map(|step| (step, true));
    for (step, idle) in busy.into_iter().chain(idle_connections) {
        play(1, move |mut scene| {
            let (victim, other) = (20_001, 20_002);
            let buckets = [victim, other].map(|port| scene.hold(port, idle));
            let owners = scene.gate.owners();
            buckets.iter().for_each(|bucket| owners.hold(*bucket, ME));
            let role = owner(2, OwnershipStart::Failover, MemberSet::of(BACKUP), MemberSet::EMPTY);
            let roles = buckets.map(|bucket| (bucket, role));
            scene.notify(roles);
            faults::doom_at(SocketAddr::from((CLIENT, victim)), step);
            scene.fail_over(7, &roles);
            scene.answer();
            scene.resume_idle();
            let resumed = scene.resumed();
            let [Resumed { round: 7, connections, lost, .. }] = resumed[..] else {
                panic!("{step} {idle}: {resumed:?}")
            };
            assert_eq!((connections, lost), (1, 1), "{step} {idle}");
            let flow = Flow::new(SocketAddr::from((SHARED, PORT)), SocketAddr::from((CLIENT, victim)));
            assert!(!scene.gate.is_held(&flow, 0), "{step} {idle}");
            assert_eq!(buckets.map(|bucket| owners.get(bucket).is_on_hold()), [false; 2], "{step} {idle}");
            let reasons = scene.counters().reasons.lock().unwrap().clone();
            assert_eq!(reasons.get("internal_panic"), Some(&1), "{step} {idle}: {reasons:?}");
        });
    }
}

#[test]
fn recovered_connection_without_readiness_is_reset() {
    play(1, |mut scene| {
        let bucket = scene.hold(20_003, false);
        let role = owner(2, OwnershipStart::Failover, MemberSet::of(BACKUP), MemberSet::EMPTY);
        scene.notify([(bucket, role)]);
        faults::refuse_next(&scene.counters(), "Client");
        scene.fail_over(7, &[(bucket, role)]);
        scene.answer();
        scene.resume_idle();
        let resumed = scene.resumed();
        let [Resumed { connections, lost, .. }] = resumed[..] else { panic!("{resumed:?}") };
        assert_eq!((connections, lost), (0, 1));
        assert_eq!(scene.steps().clients().len(), 0);
        let flow = Flow::new(SocketAddr::from((SHARED, PORT)), SocketAddr::from((CLIENT, 20_003)));
        assert!(!scene.gate.is_held(&flow, 0));
    });
}

/// A client from this port of its own, which the kernel has accepted.
fn connect(from: u16, port: u16) -> TcpStream {
    let to = SocketAddr::from((SHARED, port));
    TcpStream::from(evergate_sys::connect_from(CLIENT.into(), from..=from, to).unwrap())
}

#[test]
fn client_beyond_a_limit_is_reset_and_frees_its_slot() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_tunnel, _) = scene.client(PORT); // never idle
        let in_use = scene.gate.slots_in_use();
        scene.steps().set_connections_max(1);
        for _ in 0..3 {
            let mut client = connect(CLIENT_PORTS.fetch_add(1, Ordering::Relaxed), WEB);
            client.set_nonblocking(false).unwrap();
            scene.steps().accept_all();
            client.set_read_timeout(Some(Duration::from_secs(30))).unwrap(); // only ends a hang
            assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        assert_eq!(scene.counters().refused.get(), 3);
        assert_eq!(scene.gate.slots_in_use(), in_use);
    });
}

#[test]
fn evicted_client_ends_when_its_backup_knows_of_it() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (first, key) = scene.client(WEB);
        scene.steps().set_connections_max(1);
        let (_second, newest) = scene.client(WEB);
        let counters = scene.counters();
        assert_eq!((counters.evicted_silent.get(), counters.refused.get()), (1, 0));
        assert_eq!(scene.shared.connections.load(Ordering::Relaxed), 1, "its place is free at once");
        first.set_nonblocking(true).unwrap();
        let early = first.peek(&mut [0]).map_err(|error| error.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock), "the backup does not know of the end");
        assert!(
            scene.steps().connection(key).is_some_and(|connection| connection.deadline() < Micros(u64::MAX))
        );
        scene.answer();
        scene.turns_until(|_| matches!(first.peek(&mut [0]), Ok(0)));
        assert!(scene.steps().connection(newest).is_some());
    });
}

#[test]
fn server_of_a_broken_off_client_is_reset_and_frees_its_slot() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let in_use = scene.gate.slots_in_use();
        let (_client, key) = scene.client(PORT);
        // The server's answer to our connect has arrived and is unread.
        let (mut server, _) = scene.server.accept().unwrap();
        server.set_nonblocking(false).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(30))).unwrap(); // only ends a hang
        assert_eq!(scene.connecting(key), Some(true));
        assert_eq!(scene.gate.slots_in_use(), in_use + 2);
        scene.steps().reset_client(key);
        assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(scene.gate.slots_in_use(), in_use);
    });
}

#[test]
fn client_that_resets_before_accept_frees_its_slot() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let in_use = scene.gate.slots_in_use();
        for _ in 0..3 {
            let mut client = connect(CLIENT_PORTS.fetch_add(1, Ordering::Relaxed), WEB);
            client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            evergate_sys::reset_on_close(client.as_raw_fd());
        }
        scene.steps().accept_all();
        scene.turns_until(|scene| scene.steps().clients().is_empty());
        scene.answer();
        scene.turn();
        assert_eq!(scene.gate.slots_in_use(), in_use);
    });
}

#[test]
fn kernel_keeps_nothing_of_a_connection_of_another_node() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_client, key) = scene.client(PORT);
        let (_server, _) = scene.server.accept().unwrap();
        scene.turn();
        scene.steps().abandon(key);
        let ours = format!(":{PORT:04X} ");
        let is_ours = |line: &&str| line.split(": ").nth(1).is_some_and(|ends| ends[8..].starts_with(&ours));
        let only_listens = || {
            let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
            let states = sockets.lines().filter(is_ours).filter_map(|line| line.split_whitespace().nth(3));
            states.eq(["0A"])
        };
        // A program that another test starts has a copy of every descriptor for a moment. An orphan would stay for
        // minutes.
        let turns = (0..100).find(|_| only_listens() || scene.worker.turn().is_err());
        assert!(turns.is_some() && only_listens());
    });
}

#[test]
fn queued_request_leaves_the_queue_with_its_bucket() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_first, _) = scene.client(PORT);
        let (_second, key) = scene.client(PORT);
        assert_eq!(scene.counters().queued.get(), 1);
        scene.steps().abandon(key);
        assert_eq!(scene.counters().queued.get(), 0);
    });
}

/// All buckets are ours; those that do move to the backup.
fn all_ours(moves: impl Fn(Bucket) -> bool) -> Vec<(Bucket, Role)> {
    let ours = |bucket| match owner(1, OwnershipStart::Empty, MemberSet::of(BACKUP), MemberSet::EMPTY) {
        Role::Owner { term, data_epoch, begin, required, syncing, .. } => {
            let freeze_for = moves(bucket).then_some(HandoffId { to: BACKUP, number: 1 });
            Role::Owner { term, data_epoch, begin, required, syncing, freeze_for }
        }
        other => other,
    };
    (0..evergate_membership::BUCKETS).map(Bucket).map(|bucket| (bucket, ours(bucket))).collect()
}

impl Scene {
    /// A client that is accepted, and how the worker knows it.
    fn client(&mut self, port: u16) -> (TcpStream, Key) {
        let known = self.steps().clients();
        // The victims of panics are distinguished by their addresses, also between tests.
        let to = SocketAddr::from((SHARED, port));
        let from = loop {
            let from = CLIENT_PORTS.fetch_add(1, Ordering::Relaxed);
            let bucket = self.steps().bucket(to, SocketAddr::from((CLIENT, from))).unwrap();
            if !self.steps().frozen().contains(&bucket) {
                break from;
            }
        };
        let client = connect(from, port);
        self.steps().accept_all();
        let key = self.steps().clients().into_iter().find(|key| !known.contains(key));
        (client, key.expect("it is accepted"))
    }

    /// These buckets become quiet, and the next owner has everything.
    fn freeze(&mut self, moves: impl Fn(Bucket) -> bool) {
        self.notify(all_ours(&moves));
        self.steps().pass_time(Micros::from_ms(300)); // an answer to a SYN is counted by then
        for _ in 0..2 {
            self.steps().report_frozen();
            self.answer();
        }
        let all = (0..evergate_membership::BUCKETS).map(Bucket);
        assert_eq!(self.steps().frozen(), all.filter(|bucket| moves(*bucket)).collect());
    }

    /// The move is called off, and nothing was missing in the copies.
    fn call_off(&mut self) {
        self.notify(all_ours(|_| false));
        assert!(self.steps().has_no_gap());
        self.turn();
    }

    /// The worker runs, and backups acknowledge everything, until the condition holds.
    fn turns_until(&mut self, is_so: impl Fn(&mut Scene) -> bool) {
        while !is_so(self) {
            self.turn();
            self.answer();
        }
    }

    /// Frames sent to backups.
    fn reported(&mut self) -> u64 {
        self.steps().frames()
    }

    /// Whether the connection has a server, to which it is still connecting.
    fn connecting(&mut self, key: Key) -> Option<bool> {
        self.steps().is_connecting(key)
    }
}

#[test]
fn a_panic_over_what_waits_too_long_ends_that_client_alone() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (mut client, key) = scene.client(WEB);
        client.write_all(b"GET / HT").unwrap();
        scene.turn();
        faults::doom(client.local_addr().unwrap());
        scene.steps().pass_time(Micros::from_ms(200)); // the rest does not come
        scene.steps().run_timers();
        assert!(scene.steps().connection(key).is_none());
        let reasons = scene.counters().reasons.lock().unwrap().clone();
        assert_eq!(reasons.get("internal_panic"), Some(&1), "{reasons:?}");
    });
}

#[test]
fn failed_instruction_does_not_block_the_next_one() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (client, _) = scene.client(WEB);
        faults::doom(client.local_addr().unwrap());
        for command in [Command::Drain, Command::Stop] {
            scene.commands.send(command).unwrap();
        }
        scene.worker.engine.handle_commands();
        assert!(scene.worker.engine.is_stopping());
    });
}
