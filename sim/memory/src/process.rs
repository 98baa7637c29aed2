//! One process: a worker over a memory host, and the program around it.

use crate::access_log::MemoryLog;
use crate::host::MemoryHost;
use crate::listener::MemoryListener;
use crate::peer::Peer;
use crate::reports::MemoryReports;
use evergate_base::{Bucket, Micros, Wake};
use evergate_connection::RequestLog;
use evergate_membership::{DataEpoch, Incarnation, MemberSet, NodeId, OwnershipStart, Role, Term, ViewId};
use evergate_worker::host::Listener;
use evergate_worker::pools::Generation;
use evergate_worker::{
    Command, FailoverOrder, Instruction, Interface, Joining, Layout, ListenerSocket, Parts, Report, Settings,
    Shared, Worker,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The node of the worker.
pub const NODE: NodeId = NodeId(0);
/// The node that holds replicas of its connections.
pub const BACKUP: NodeId = NodeId(1);
/// The bucket of all flows.
pub const BUCKET: Bucket = Bucket(0);
/// Source address of server connections.
pub const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));
/// Address of the backup for replication channels.
const BACKUP_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1));
/// Most turns of [`Process::run`]: more mean that the worker makes no progress.
const TURNS_MAX: usize = 100_000;
/// Time of a turn without an event.
const IDLE_TURN: Micros = Micros(200);

/// Whether server connections come from this address.
pub(crate) fn is_source(ip: IpAddr) -> bool {
    ip == SOURCE
}

/// Properties of a process.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most client connections.
    pub connections_max: usize,
    /// Bytes that may wait for slow peers.
    pub buffered_max: usize,
    /// Addresses whose connections are replicated; the worker belongs to a cluster if there is one.
    pub movable: Vec<IpAddr>,
}

/// One process: see the module's description.
pub struct Process {
    /// The worker.
    pub worker: Worker<MemoryHost>,
    /// Its host.
    pub host: MemoryHost,
    /// Bounds and switches of the worker.
    settings: Settings,
    /// Descriptors of the listeners, in the order of the configuration's.
    listeners: Vec<i32>,
    commands: Sender<Command<MemoryHost>>,
    reports: Receiver<Report>,
    logs: Receiver<RequestLog>,
    /// Number of the worker's ownership periods.
    terms: u32,
    /// How the last one began.
    begin: OwnershipStart,
}

impl Process {
    /// A process that serves the listeners of the configuration.
    pub fn new(host: MemoryHost, generation: &Generation, options: &Options) -> Process {
        let (commands, received) = channel();
        let (sender, reports) = channel();
        let (lines, logs) = channel();
        let parts = Parts {
            host: host.clone(),
            poll: host.poll(),
            waker: host.waker(),
            commands: received,
            access_log: Some(Box::new(MemoryLog(lines))),
            audit: None,
        };
        let settings = settings(options);
        let mut worker = Worker::new(parts, generation, settings.clone(), Arc::new(Shared::default()));
        if !options.movable.is_empty() {
            let joining = joining(&host, options, sender);
            worker.join(joining).expect("a new worker has no registrations yet");
        }
        let sockets: Vec<MemoryListener> =
            generation.snapshot.listeners.iter().map(|_| host.listener()).collect();
        let listeners = sockets.iter().map(MemoryListener::descriptor).collect();
        let names = generation.snapshot.listeners.iter().map(|listener| listener.name.clone());
        let all = names.zip(sockets).map(|(name, socket)| ListenerSocket { name, socket, local: None });
        worker.steps().listen(all.collect());
        Process {
            worker,
            host,
            settings,
            listeners,
            commands,
            reports,
            logs,
            terms: 0,
            begin: OwnershipStart::Empty,
        }
    }

    /// A client of a listener, by its place in the configuration; the worker accepts it in its next turn.
    pub fn arrive(&self, listener: u32, local: SocketAddr, client: SocketAddr) -> Peer {
        let descriptor = self.listeners.get(listener as usize).copied().unwrap_or_default();
        self.host.arrive(descriptor, local, client)
    }

    /// Sends a command to the worker.
    pub fn command(&self, command: Command<MemoryHost>) {
        let _ = self.commands.send(command); // the worker has the other end
        self.host.waker().wake();
    }

    /// Changes the most client connections.
    pub fn set_connections_max(&mut self, max: usize) {
        self.settings.connections_max = max;
        self.command(Command::Settings(self.settings.clone()));
    }

    /// One turn of the worker; whether there was an event.
    pub fn turn(&mut self) -> bool {
        let events = self.host.take_events();
        if events.is_empty() {
            self.host.pass(IDLE_TURN);
        }
        self.worker.turn(&events);
        self.worker.flush_log();
        !events.is_empty()
    }

    /// Runs turns until the worker waits for an event or for its clock. Returns false if that does not happen.
    pub fn run(&mut self) -> bool {
        (0..TURNS_MAX).any(|_| !self.turn() && self.worker.wait(i32::MAX).at_most_ms > 0)
    }

    /// Lets time pass, and runs.
    pub fn pass(&mut self, span: Micros) -> bool {
        self.host.pass(span);
        self.run()
    }

    /// Reports since the last call.
    pub fn take_reports(&self) -> Vec<Report> {
        self.reports.try_iter().collect()
    }

    /// Requests that ended since the last call.
    pub fn take_logs(&self) -> Vec<RequestLog> {
        self.logs.try_iter().collect()
    }

    /// Begins an ownership period of the bucket, with these backups.
    pub fn own(&mut self, begin: OwnershipStart, required: MemberSet) {
        self.terms += 1;
        self.begin = begin;
        self.set_backups(required);
    }

    /// Changes the backups within the ownership period.
    pub fn set_backups(&mut self, required: MemberSet) {
        let role = Role::Owner {
            term: self.term(),
            data_epoch: DataEpoch(ViewId::NONE),
            begin: self.begin,
            required,
            syncing: MemberSet::EMPTY,
            freeze_for: None,
        };
        self.worker.steps().instruct(Instruction::Roles(vec![(BUCKET, role)]));
    }

    /// Begins an ownership period after the failure of another node, and continues the connections of that node whose
    /// replicas the worker holds.
    pub fn fail_over(&mut self, required: MemberSet) {
        self.own(OwnershipStart::Failover, required);
        let order = FailoverOrder { number: 1, buckets: vec![(BUCKET, self.term())], silent: Micros(0) };
        self.worker.steps().instruct(Instruction::Failover(Arc::new(order)));
    }

    fn term(&self) -> Term {
        Term { view: ViewId::NONE, moves: self.terms }
    }
}

fn settings(options: &Options) -> Settings {
    Settings {
        handshakes_per_turn: 64,
        event_batching: Duration::ZERO,
        connections_max: options.connections_max,
        listeners: HashMap::new(),
        buffered_max: options.buffered_max,
        keepalive: None,
    }
}

fn joining(host: &MemoryHost, options: &Options, reports: Sender<Report>) -> Joining<MemoryHost> {
    let (gate, events) = host.gate();
    let interface = |index| Interface { index, mac: [2, 0, 0, 0, 1, index as u8] };
    let layout = Layout {
        node: NODE,
        incarnation: Incarnation(1),
        workers: 1,
        settings: BTreeMap::default(),
        addresses: BTreeSet::from_iter(options.movable.iter().copied()),
        sources: host.sources(),
        interfaces: [interface(1), interface(2)],
        peers: BTreeMap::from([(BACKUP, BACKUP_IP)]),
        replication_port: 7_000,
    };
    Joining {
        gate,
        events,
        channels: host.channels(),
        layout: Arc::new(layout),
        worker: 0,
        reports: Box::new(MemoryReports(reports)),
    }
}
