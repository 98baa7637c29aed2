//! The world: the next event, its place, and its effects.
//!
//! - `warm_start`: started clusters, from which runs begin;
//! - `nodes`: turns of the hosts;
//! - `channels`: bytes of replication channels;
//! - `packets`: packets between peers and nodes, through gates;
//! - `faults`: faults at their planned times;
//! - `checks`: checks after every step;
//! - `coverage`: events that really happened.

mod channels;
mod checks;
mod coverage;
mod faults;
mod nodes;
mod packets;
mod warm_start;

pub use coverage::Coverage;
pub use warm_start::Template;

use crate::endpoint::{Application, Pace, Paces, Peer};
use crate::event_queue::{EventQueue, Time};
use crate::fault::{Fault, Mutation, Target};
use crate::generation::generation;
use crate::host::{Host, Stamp};
use crate::kernel::Kernel;
use crate::model_host::{ChannelId, Machine, Piece};
use crate::network::Weather;
use crate::output_checker::OutputChecker;
use crate::process::{Process, SERVICE, Start};
use crate::random::Random;
use crate::segment::{Flow, Segment};
use crate::tcp::Tcp;
use evergate_base::Micros;
use evergate_connection::Snapshot;
use evergate_membership::{NodeId, Path};
use evergate_worker::pools::Generation;
use evergate_worker::{Instruction, Report};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// Factory for the application of a newly accepted server connection.
pub type Serve = Box<dyn FnMut() -> Box<dyn Application>>;

/// Most lines that a trace keeps.
const TRACE_LINES: usize = 20_000;
/// CPU load of a worker that batches, in parts of a thousand.
const BUSY_PER_MILLE: u64 = 700;
/// Most steps of a run; more are a loop without progress.
const STEPS_MAX: u64 = 400_000;

/// Parts of a run.
pub struct Setup {
    /// Seed of everything random.
    pub seed: u64,
    /// The cluster at the start.
    pub template: Arc<Template>,
    /// The configuration of every node.
    pub snapshot: Arc<Snapshot>,
    /// Listener that the clients connect to.
    pub listener: u32,
    /// A pool without servers.
    pub down_pool: u32,
    /// The clients, each with one connection.
    pub clients: Vec<Box<dyn Application>>,
    /// Applications of the servers.
    pub serve: Serve,
    /// Reading rates of clients and servers.
    pub paces: Paces,
    /// The networks.
    pub weather: Weather,
    /// The law to break.
    pub mutation: Mutation,
    /// Whether frames are batched, as at a node under load.
    pub batches: bool,
    /// Socket buffers of the nodes in bytes, which are also the windows offered to peers.
    pub buffer: usize,
    /// Faults, by time since the start of the run.
    pub faults: Vec<(Time, Target, Fault)>,
    /// Whether to keep a trace.
    pub trace: bool,
}

enum Event {
    /// To the cluster, or to one node of it to which another one passed it on.
    ToCluster {
        segment: Segment,
        host: Option<usize>,
    },
    ToPeer {
        segment: Segment,
        from: usize,
        stamp: Stamp,
    },
    Datagram {
        to: usize,
        process: u64,
        from: usize,
        stamp: Stamp,
        path: Path,
        bytes: Vec<u8>,
    },
    /// Bytes on a channel, to the end of this name.
    Piece {
        to: usize,
        from: usize,
        stamp: Stamp,
        end: ChannelId,
        piece: Piece,
    },
    /// The other end of the channel is gone.
    Hangup {
        to: usize,
        end: ChannelId,
    },
    Instruct {
        host: usize,
        process: u64,
        instructions: Vec<Instruction>,
    },
    Report {
        host: usize,
        process: u64,
        report: Report,
    },
    Timer {
        host: usize,
        at: Time,
    },
    Work {
        host: usize,
        at: Time,
    },
    Peer {
        index: usize,
        at: Time,
    },
    Witness,
    Asked {
        host: usize,
        process: u64,
        clock: Micros,
    },
    Connect {
        client: usize,
    },
    Fault {
        target: Target,
        fault: Fault,
    },
    Resume {
        host: usize,
        process: u64,
    },
}

/// A run's state: see the module's description.
pub struct World {
    now: Time,
    started: Time,
    steps: u64,
    event_queue: EventQueue<Event>,
    random: Random,
    hosts: Vec<Host>,
    peers: Vec<Peer>,
    by_flow: BTreeMap<Flow, usize>,
    waiting: Vec<Option<Box<dyn Application>>>,
    serve: Serve,
    paces: Paces,
    weather: Weather,
    mutation: Mutation,
    template: Arc<Template>,
    seed: u64,
    generation: Generation,
    listener: u32,
    batches: bool,
    buffer: usize,
    output_checker: OutputChecker,
    /// Arrival of the newest bytes of a channel, or of the newest message between agent and worker.
    in_order: BTreeMap<(usize, usize, u64), Time>,
    processes: u64,
    announcer: usize,
    trace: Option<VecDeque<String>>,
    moments: Vec<Time>,
    resumed_before: u64,
    coverage: Coverage,
    drained_at: Option<Time>,
    resumed_at: Option<Time>,
    broken: Option<String>,
}

impl World {
    /// A world before its first event.
    pub fn new(setup: Setup) -> World {
        let template = setup.template;
        let mut world = World {
            now: template.now,
            started: template.now,
            steps: 0,
            event_queue: EventQueue::default(),
            random: Random::new(setup.seed),
            hosts: template
                .hosts
                .iter()
                .map(|(clock, node)| {
                    let kernel = Kernel::new(setup.buffer, template.config.buckets, setup.mutation);
                    Host::new(*clock, node.clone(), Machine::new(*clock, kernel, setup.mutation))
                })
                .collect(),
            peers: Vec::new(),
            by_flow: BTreeMap::new(),
            waiting: setup.clients.into_iter().map(Some).collect(),
            serve: setup.serve,
            paces: setup.paces,
            weather: setup.weather,
            mutation: setup.mutation,
            template: template.clone(),
            seed: setup.seed,
            generation: generation(&setup.snapshot, setup.down_pool),
            listener: setup.listener,
            batches: setup.batches,
            buffer: setup.buffer,
            output_checker: OutputChecker::default(),
            in_order: BTreeMap::new(),
            processes: 0,
            announcer: 0,
            trace: setup.trace.then(VecDeque::new),
            moments: Vec::new(),
            resumed_before: 0,
            coverage: Coverage::default(),
            drained_at: None,
            resumed_at: None,
            broken: None,
        };
        for host in 0..world.hosts.len() {
            world.start_process(host);
            world.adopt_roles(host);
            world.schedule(host);
        }
        world.plan(1, Event::Witness);
        for client in 0..world.waiting.len() {
            let after = 3_000 + world.random.below(9_000);
            world.plan(after, Event::Connect { client });
        }
        for (after, target, fault) in setup.faults {
            world.plan(after, Event::Fault { target, fault });
        }
        world
    }

    fn plan(&mut self, after: Time, event: Event) {
        self.event_queue.plan(self.now + after, event);
    }

    /// Runs until the clients are done, and a little longer, for at most `span` of virtual time. Returns the first
    /// failure.
    pub fn run(&mut self, span: Time) -> Result<(), String> {
        let end = self.started + span;
        while !self.is_done() {
            if self.now > end {
                return Err(format!("not done after {} ms\n{}", span / 1000, self.describe()));
            }
            self.step()?;
        }
        self.run_for(5_000)
    }

    /// Runs for a time.
    pub fn run_for(&mut self, span: Time) -> Result<(), String> {
        let end = self.now + span;
        while self.event_queue.next_at().is_some_and(|at| at <= end) {
            self.step()?;
        }
        self.now = end;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.waiting.iter().all(Option::is_none) && self.peers.iter().all(|peer| peer.app.is_done())
    }

    /// Handles the next event.
    pub fn step(&mut self) -> Result<(), String> {
        let Some((at, event)) = self.event_queue.next() else {
            return Err("no event left".to_owned());
        };
        self.now = self.now.max(at);
        self.steps += 1;
        if self.steps > STEPS_MAX || self.event_queue.len() > 50_000 {
            return Err("a loop without progress".to_owned());
        }
        if !matches!(
            event,
            Event::Datagram { .. } | Event::Timer { .. } | Event::Witness | Event::Asked { .. }
        ) {
            self.note_moment();
        }
        self.happen(event);
        match self.broken.take() {
            Some(what) => Err(what),
            None => Ok(()),
        }
    }

    fn note_moment(&mut self) {
        if self.moments.last() != Some(&self.now) {
            self.moments.push(self.now);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToCluster { segment, host } => self.reach_cluster(segment, host),
            Event::ToPeer { segment, from, stamp } => self.reach_peer(segment, from, stamp),
            Event::Datagram { to, process, from, stamp, path, bytes } => {
                if self.hosts[from].has_left(stamp, true) {
                    self.take_datagram(to, process, path, bytes);
                }
            }
            Event::Piece { .. } => self.take_piece(event),
            Event::Hangup { to, end } => self.take_hangup(to, end),
            Event::Instruct { host, process, instructions } => self.instruct(host, process, instructions),
            Event::Report { host, process, report } => self.take_report(host, process, report),
            Event::Timer { host, at } => {
                if self.hosts[host].timer_at == at {
                    self.hosts[host].timer_at = Time::MAX;
                    self.run_agent(host);
                }
            }
            Event::Work { host, at } => {
                if self.hosts[host].work_at == at {
                    self.hosts[host].work_at = Time::MAX;
                    self.turn(host);
                }
            }
            Event::Peer { index, at } => {
                if self.peers[index].timer_at == at {
                    self.peers[index].timer_at = Time::MAX;
                    self.turn_peer(index);
                }
            }
            Event::Witness => self.ask_witness(),
            Event::Asked { host, process, clock } => self.answer_witness(host, process, clock),
            Event::Connect { client } => self.connect(client),
            Event::Fault { target, fault } => self.inflict(target, fault),
            Event::Resume { host, process } => self.resume(host, process),
        }
    }

    fn connect(&mut self, client: usize) {
        let Some(app) = self.waiting.get_mut(client).and_then(Option::take) else { return };
        let ours = SERVICE;
        let theirs = SocketAddr::from(([192, 0, 2, 7], 40_001 + client as u16));
        let flow = Flow { ours, theirs };
        let pace = self.paces.client;
        self.add_peer(flow, Tcp::connect(flow, pace.buffer), app, pace);
    }

    fn add_peer(&mut self, flow: Flow, tcp: Tcp, app: Box<dyn Application>, pace: Pace) {
        let index = self.peers.len();
        self.peers.push(Peer::new(flow, tcp, app, pace, self.now));
        self.by_flow.insert(flow, index);
        self.turn_peer(index);
    }

    fn start_process(&mut self, host: usize) {
        self.processes += 1;
        let (number, busy) = (self.processes, self.batches);
        let random = Random::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let machine = &self.hosts[host].machine;
        machine.borrow_mut().now = self.now;
        machine.borrow_mut().load_per_mille = if busy { BUSY_PER_MILLE } else { 0 };
        machine.borrow_mut().begin_process(number, random);
        let start = Start {
            me: NodeId(host as u8),
            nodes: self.hosts.len() as u8,
            number,
            generation: &self.generation,
            listener: self.listener,
            batches: self.batches,
        };
        let process = Process::new(machine, &start);
        self.hosts[host].process = Some(process);
    }

    // ---- observations of a test ----

    /// Number of connections that resumed at another node.
    pub fn resumed(&self) -> u64 {
        let processes = self.hosts.iter().filter_map(|host| host.process.as_ref());
        self.resumed_before + processes.map(|process| process.worker.resumed()).sum::<u64>()
    }

    /// Time of the first of them since the start.
    pub fn resumed_at(&self) -> Option<Time> {
        self.resumed_at.map(|at| at - self.started)
    }

    /// Times since the start at which a connection had an event.
    pub fn moments(&self) -> Vec<Time> {
        self.moments.iter().map(|at| at - self.started).collect()
    }

    /// Number of steps.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Time {
        self.now - self.started
    }

    /// Number of segments that have left the gates.
    pub fn segments(&self) -> u64 {
        self.output_checker.segments
    }

    /// The first violation that an application noticed.
    pub fn complaint(&self) -> Option<String> {
        self.peers.iter().find_map(|peer| peer.app.complaint())
    }

    /// The newest lines of the trace, oldest first.
    pub fn trace(&self) -> impl Iterator<Item = &str> {
        self.trace.iter().flatten().map(String::as_str)
    }

    fn log_line(&mut self, line: impl FnOnce() -> String) {
        let at = self.now - self.started;
        if let Some(trace) = &mut self.trace {
            if trace.len() >= TRACE_LINES {
                trace.pop_front();
            }
            trace.push_back(format!("{:>9} us  {}", at, line()));
        }
    }

    fn fail(&mut self, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(what());
        }
    }
}
