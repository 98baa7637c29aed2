//! One process of a node: the worker of `proto/worker`, and the program around it.

use crate::event_queue::Time;
use crate::model_host::{
    Machine, ModelChannels, ModelGate, ModelHost, ModelListener, ModelPoll, replication_ip,
};
use evergate_base::Wake;
use evergate_base::net::Event;
use evergate_base::seed::{Seed, scoped};
use evergate_membership::{Incarnation, NodeId};
use evergate_memory_host::MemoryReports;
use evergate_worker::pools::Generation;
use evergate_worker::{
    Bounds, Command, Instruction, Interface, Joining, Layout, ListenerSocket, Parts, Report, Settings,
    Shared, Worker,
};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// The address that clients connect to.
pub(crate) const SERVICE: SocketAddr =
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1)), crate::ports::PORT);
/// Source address of server legs.
const SOURCE: [u8; 4] = [10, 0, 1, 100];
/// Most connections of a process: far more than any run has.
const CONNECTIONS_MAX: usize = 10_000;
/// Bytes that may wait for slow peers.
const BUFFERED_MAX: usize = 256 << 20;
/// Longest wait of a busy worker for further events.
const EVENT_BATCHING: Duration = Duration::from_micros(200);
/// Shortest and longest time between two turns of a worker that does not wait: computing time is not modelled, and a
/// worker that only asks again and again need not be asked each microsecond.
const TURN_MIN: Time = 1;
const TURN_MAX: Time = 200;

/// Parameters of a new process.
pub(crate) struct Start<'a> {
    pub(crate) me: NodeId,
    /// Number of nodes.
    pub(crate) nodes: u8,
    /// Number of the process in the whole run.
    pub(crate) number: u64,
    pub(crate) generation: &'a Generation,
    /// Index of the listener that clients connect to.
    pub(crate) listener: u32,
    /// Whether the worker waits for further events when it is busy.
    pub(crate) batches: bool,
}

/// One process: see the module's description.
pub(crate) struct Process {
    pub(crate) number: u64,
    pub(crate) worker: Worker<ModelHost>,
    /// Time of the next turn without an event.
    pub(crate) turn_at: Time,
    /// Until then the worker computes, or waits for further events.
    pub(crate) busy_until: Time,
    me: NodeId,
    machine: Rc<RefCell<Machine>>,
    commands: Sender<Command<ModelHost>>,
    reports: Receiver<Report>,
    /// Time between the last turns without waiting.
    gap: Time,
}

impl Process {
    /// A process on the machine, which has been prepared for it.
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>, start: &Start<'_>) -> Process {
        let (commands, received) = channel();
        let (sender, reports) = channel();
        let waker = machine.borrow().waker.clone();
        let parts = Parts {
            host: ModelHost(machine.clone()),
            poll: ModelPoll(machine.clone()),
            waker,
            commands: received,
            access_log: None,
            audit: None,
        };
        let name = start.generation.snapshot.listeners[start.listener as usize].name.clone();
        let settings = settings(&name, start.batches);
        let mut worker = Worker::new(parts, start.generation, settings, Arc::new(Shared::default()));
        let gate = ModelGate::new(machine);
        let joining = Joining {
            events: gate.events_descriptor(),
            gate,
            channels: ModelChannels::new(machine),
            layout: Arc::new(layout(start)),
            worker: 0,
            reports: Box::new(MemoryReports(sender)),
        };
        worker.join(joining).expect("a new process has no registrations yet");
        let listener = ListenerSocket { name, socket: ModelListener::new(machine), local: Some(SERVICE) };
        let process = Process {
            number: start.number,
            worker,
            turn_at: 0,
            busy_until: 0,
            me: start.me,
            machine: machine.clone(),
            commands,
            reports,
            gap: TURN_MIN,
        };
        process.command(Command::Listeners { add: vec![listener], remove: Vec::new() });
        process
    }

    fn command(&self, command: Command<ModelHost>) {
        // The worker has the other end.
        let _ = self.commands.send(command);
        self.machine.borrow().waker.wake();
    }

    pub(crate) fn instruct(&self, instruction: Instruction) {
        self.command(Command::Cluster(instruction));
    }

    /// One turn of the worker.
    pub(crate) fn turn(&mut self, now: Time, events: &[Event]) {
        // Random values of a handshake with a server: they differ between nodes and are equal in each run.
        let mut secret = [self.me.0; 32];
        secret[..8].copy_from_slice(&now.to_le_bytes());
        secret[8..16].copy_from_slice(&self.number.to_le_bytes());
        let mut seed = Some(Seed::new(secret, 1_700_000_000));
        scoped(&mut seed, || self.worker.turn(events));
        self.worker.flush_log();
        let wait = self.worker.wait(i32::MAX);
        let spent = self.machine.borrow().spent();
        self.busy_until = now + spent + wait.batch_for.map_or(0, |span| span.as_micros() as Time);
        self.gap = match wait.at_most_ms {
            0 if events.is_empty() => (self.gap * 4).min(TURN_MAX),
            _ => TURN_MIN,
        };
        self.turn_at = match wait.at_most_ms {
            0 => now + self.gap,
            ms => now + ms as Time * 1000,
        };
        if self.machine.borrow_mut().has_events() {
            self.turn_at = now + TURN_MIN;
        }
    }

    /// Reports since the last call.
    pub(crate) fn take_reports(&self) -> Vec<Report> {
        self.reports.try_iter().collect()
    }
}

fn settings(listener: &str, batches: bool) -> Settings {
    let bounds = Bounds { connections_max: CONNECTIONS_MAX, per_source_max: 0 };
    Settings {
        handshakes_per_turn: 64,
        event_batching: if batches { EVENT_BATCHING } else { Duration::ZERO },
        connections_max: CONNECTIONS_MAX,
        listeners: HashMap::from([(listener.to_owned(), bounds)]),
        buffered_max: BUFFERED_MAX,
        keepalive: None,
    }
}

fn layout(start: &Start<'_>) -> Layout {
    let others = (0..start.nodes).map(NodeId).filter(|node| *node != start.me);
    let interface = |index| Interface { index, mac: [2, 0, 0, 0, 1, start.me.0] };
    Layout {
        node: start.me,
        incarnation: Incarnation(start.number),
        workers: 1,
        settings: Default::default(),
        addresses: BTreeSet::from([SERVICE.ip()]),
        sources: vec![IpAddr::from(SOURCE)],
        interfaces: [interface(1), interface(2)],
        peers: others.map(|node| (node, replication_ip(node))).collect(),
        replication_port: 7_000,
    }
}
