//! The world: what happens next, to whom, and what follows.
//!
//! - [`template`]: clusters that have come up, to start runs from;
//! - [`nodes`]: what hosts do in a turn;
//! - [`wire`]: packets between peers and nodes, through gates;
//! - [`faults`]: what goes wrong when;
//! - [`checks`]: what must hold after every step;
//! - [`tally`]: what has really happened.

mod checks;
mod coverage;
mod faults;
mod nodes;
mod packets;
mod warm_start;

pub use coverage::Tally;
pub use warm_start::Template;

use crate::agent::{Instruction, Report};
use crate::endpoint::{Application, Pace, Paces, Peer};
use crate::event_queue::{Agenda, Time};
use crate::fault::{Fault, Mutation, Whom};
use crate::host::{Host, Stamp};
use crate::network::Weather;
use crate::output_checker::Ledger;
use crate::random::Random;
use crate::segment::{Flow, Segment};
use crate::tcp::Tcp;
use crate::worker::{Start, Worker};
use evergate_base::Micros;
use evergate_connection::Snapshot;
use evergate_membership::{NodeId, Path};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

/// Makes the application of a server connection that was just accepted.
pub type Serve = Box<dyn FnMut() -> Box<dyn Application>>;

/// Lines of a trace that are kept.
const TRACE_LINES: usize = 20_000;
/// Steps of a run; more is a circle.
const STEPS_MAX: u64 = 400_000;

/// What a run is made of.
pub struct Setup {
    /// Everything random follows from it.
    pub seed: u64,
    /// The cluster at the start.
    pub template: Arc<Template>,
    /// The configuration of every node.
    pub snapshot: Arc<Snapshot>,
    /// Which listener the clients connect to.
    pub listener: u32,
    /// A pool without servers.
    pub down_pool: u32,
    /// The clients, each with one connection.
    pub clients: Vec<Box<dyn Application>>,
    /// What answers on the other side.
    pub serve: Serve,
    /// How fast clients and servers take what they are sent.
    pub paces: Paces,
    /// The networks.
    pub weather: Weather,
    /// A law to break.
    pub mutation: Mutation,
    /// Frames wait for company, as those of a node that has much to do.
    pub gathers: bool,
    /// Socket buffers of the nodes, in bytes; also the window that peers see.
    pub buffer: usize,
    /// Faults, by time since the start of the run.
    pub faults: Vec<(Time, Whom, Fault)>,
    /// Keep a trace.
    pub trace: bool,
}

enum Event {
    /// To the cluster, or to one node of it that another one passed it on to.
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
    /// The `number`th piece of a channel.
    Frames {
        to: usize,
        from: usize,
        stamp: Stamp,
        channel: u64,
        process: u64,
        number: u64,
        bytes: Vec<u8>,
    },
    Answer {
        to: usize,
        from: usize,
        stamp: Stamp,
        channel: u64,
        frames: u64,
    },
    /// The other end of the channel is gone. `outgoing`: for the end that sends frames.
    Hangup {
        to: usize,
        from: usize,
        channel: u64,
        outgoing: bool,
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
        whom: Whom,
        fault: Fault,
    },
    Resume {
        host: usize,
        process: u64,
    },
}

/// See the module.
pub struct World {
    now: Time,
    started: Time,
    steps: u64,
    agenda: Agenda<Event>,
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
    snapshot: Arc<Snapshot>,
    listener: u32,
    down_pool: u32,
    gathers: bool,
    buffer: usize,
    ledger: Ledger,
    /// When the last bytes of a channel, or the last word between agent and worker, arrive.
    in_order: BTreeMap<(usize, usize, u64), Time>,
    processes: u64,
    announcer: usize,
    trace: Option<VecDeque<String>>,
    moments: Vec<Time>,
    resumed_before: u64,
    tally: Tally,
    drained_at: Option<Time>,
    resumed_at: Option<Time>,
    broken: Option<String>,
}

impl World {
    /// A world in which nothing has happened yet.
    pub fn new(setup: Setup) -> World {
        let template = setup.template;
        let mut world = World {
            now: template.now,
            started: template.now,
            steps: 0,
            agenda: Agenda::default(),
            random: Random::new(setup.seed),
            hosts: template
                .hosts
                .iter()
                .map(|(clock, node)| Host::new(*clock, node.clone(), setup.buffer))
                .collect(),
            peers: Vec::new(),
            by_flow: BTreeMap::new(),
            waiting: setup.clients.into_iter().map(Some).collect(),
            serve: setup.serve,
            paces: setup.paces,
            weather: setup.weather,
            mutation: setup.mutation,
            template: template.clone(),
            snapshot: setup.snapshot,
            listener: setup.listener,
            down_pool: setup.down_pool,
            gathers: setup.gathers,
            buffer: setup.buffer,
            ledger: Ledger::default(),
            in_order: BTreeMap::new(),
            processes: 0,
            announcer: 0,
            trace: setup.trace.then(VecDeque::new),
            moments: Vec::new(),
            resumed_before: 0,
            tally: Tally::default(),
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
        for (after, whom, fault) in setup.faults {
            world.plan(after, Event::Fault { whom, fault });
        }
        world
    }

    fn plan(&mut self, after: Time, event: Event) {
        self.agenda.plan(self.now + after, event);
    }

    /// Runs until the clients are done, and a little longer; says what went wrong. At most `span` of virtual time.
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
        while self.agenda.next_at().is_some_and(|at| at <= end) {
            self.step()?;
        }
        self.now = end;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.waiting.iter().all(Option::is_none) && self.peers.iter().all(|peer| peer.app.is_done())
    }

    /// Something happens.
    pub fn step(&mut self) -> Result<(), String> {
        let Some((at, event)) = self.agenda.next() else {
            return Err("nothing is left to happen".to_owned());
        };
        self.now = self.now.max(at);
        self.steps += 1;
        if self.steps > STEPS_MAX || self.agenda.len() > 50_000 {
            return Err("the run goes round in circles".to_owned());
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
            Event::Frames { .. } => self.take_frames(event),
            Event::Answer { to, from, stamp, channel, frames } => {
                if self.is_cut(to, from) || self.hosts[to].paused {
                    return self.plan(2_000, Event::Answer { to, from, stamp, channel, frames });
                }
                if let Some(after) = self.stuck(to, from, channel) {
                    return self.plan(after, Event::Answer { to, from, stamp, channel, frames });
                }
                if self.hosts[from].has_left(stamp, true) {
                    self.turn(to, |worker, _, _| worker.read_answer(NodeId(from as u8), channel, frames));
                }
            }
            Event::Hangup { to, .. } if self.hosts[to].paused => self.plan(2_000, event),
            Event::Hangup { to, from, channel, outgoing } => {
                if let Some(after) = self.stuck(to, from, channel) {
                    return self.plan(after, event);
                }
                self.turn(to, |worker, now, _| match outgoing {
                    true => worker.lose_outgoing(now, NodeId(from as u8), channel),
                    false => worker.lose_incoming(NodeId(from as u8), channel),
                });
            }
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
                    self.turn(host, |worker, now, kernel| worker.tick(now, kernel));
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
            Event::Fault { whom, fault } => self.inflict(whom, fault),
            Event::Resume { host, process } => self.resume(host, process),
        }
    }

    fn connect(&mut self, client: usize) {
        let Some(app) = self.waiting.get_mut(client).and_then(Option::take) else { return };
        let ours = SocketAddr::from(([203, 0, 113, 1], 443));
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
        let start = Start {
            me: NodeId(host as u8),
            process: self.processes,
            snapshot: self.snapshot.clone(),
            mutation: self.mutation,
            down_pool: self.down_pool,
        };
        self.hosts[host].worker = Some(Worker::new(start));
        self.hosts[host].kernel.resets_pending = self.mutation == Mutation::ResetsPending;
    }

    // ---- what a test may look at ----

    /// Connections that went on at another node.
    pub fn resumed(&self) -> u64 {
        let now = self.hosts.iter().filter_map(|host| host.worker.as_ref()).map(|worker| worker.resumed);
        self.resumed_before + now.sum::<u64>()
    }

    /// When the first of them did, since the start.
    pub fn resumed_at(&self) -> Option<Time> {
        self.resumed_at.map(|at| at - self.started)
    }

    /// Moments since the start at which something happened to a connection.
    pub fn moments(&self) -> Vec<Time> {
        self.moments.iter().map(|at| at - self.started).collect()
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Virtual time since the start.
    pub fn elapsed(&self) -> Time {
        self.now - self.started
    }

    /// Segments that have left the gates.
    pub fn segments(&self) -> u64 {
        self.ledger.segments
    }

    /// The first complaint of an application.
    pub fn complaint(&self) -> Option<String> {
        self.peers.iter().find_map(|peer| peer.app.complaint())
    }

    /// The newest lines of the trace, oldest first.
    pub fn trace(&self) -> impl Iterator<Item = &str> {
        self.trace.iter().flatten().map(String::as_str)
    }

    fn state_text(&mut self, line: impl FnOnce() -> String) {
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
