//! Discrete-event simulation of section III.
//!
//! A closed loop: a client arrives, sends a request, waits for its answer, thinks, and sends the next, until its number
//! of requests is reached. The distributor assigns each request to a node at once; a node serves one request at a time,
//! in the order of arrival. The node decides whether a session can be resumed when it begins to serve, as the paper
//! explains its falling ratios with waiting times.
//!
//! A node that dies loses its sessions and its requests. The distributor notices after the detection time, and
//! continues sending until then; afterwards all stuck requests are distributed again. Networks take no time.
//!
//! Invariants: time is an integer and never goes back; simultaneous events happen in the order in which they were
//! scheduled. A node's queue is bounded; a request that finds it full is refused, and its client thinks and continues.

use crate::event_queue::EventQueue;
use crate::outcome::{Gauge, Outcome, Tally};
use crate::parameters::{NodeEvent, Plan, SECOND_NS};
use crate::random::{Purpose, Stream, mix};
use crate::scheme::Scheme;
use crate::workload::newcomers_ns;
use evergate_balance::{
    Arrival, Choice, Distributor, NodeCost, Origin, Renewal, Scope, ServerLoad, SessionKey, Settings,
};
use evergate_base::Micros;
use std::collections::VecDeque;

/// Simulates one policy under one load and seed.
pub(crate) fn simulate(plan: &Plan, scheme: &Scheme, newcomers_per_s: u32, seed: u64) -> Outcome {
    let mut world = World::new(plan, scheme, newcomers_per_s, seed);
    world.run();
    world.tally.outcome(plan)
}

/// Time after which a request without an eligible node is offered again.
const RETRY_NS: u64 = SECOND_NS;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A second begins: its newcomers are drawn, and the loads are sampled.
    Second,
    /// A client sends its next request.
    Send { client: u32 },
    /// A node finishes its current request, unless it has died since (its incarnation has changed).
    Finish { node: u32, incarnation: u32 },
    /// A node dies or returns: the plan's event of this index.
    Node { index: u32 },
    /// The distributor notices that this incarnation of a node has died.
    Notice { node: u32, incarnation: u32 },
}

struct Client {
    random: Stream,
    key: SessionKey,
    requests_left: u64,
    /// Time when its request was first sent.
    sent_ns: u64,
    session: Option<Session>,
}

#[derive(Clone, Copy)]
struct Session {
    origin: Origin,
    renewed: Micros,
}

#[derive(Clone, Copy)]
struct Request {
    client: u32,
    choice: Choice,
    /// The expected service time.
    expected_ns: u64,
}

struct Node {
    queue: VecDeque<Request>,
    serving: Option<(Request, bool)>,
    is_alive: bool,
    /// Number of deaths.
    incarnation: u32,
    up_since: Micros,
    /// Expected service times of all its requests.
    pending_ns: u64,
    new_ns: u64,
    resumed_ns: u64,
}

struct World<'a> {
    plan: &'a Plan,
    scope: Scope,
    newcomers_per_s: u32,
    seed: u64,
    now_ns: u64,
    event_queue: EventQueue<Event>,
    clients: Vec<Client>,
    free: Vec<u32>,
    newcomers: u64,
    nodes: Vec<Node>,
    /// The distributor's view of the nodes.
    servers: Vec<ServerLoad>,
    distributor: Distributor,
    random: Stream,
    tally: Tally,
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, scheme: &Scheme, newcomers_per_s: u32, seed: u64) -> World<'a> {
        let unit = plan.unit_ns() as f64;
        let costs: Vec<NodeCost> = (1..)
            .zip(&plan.nodes)
            .map(|(number, node)| NodeCost {
                name: mix(number),
                new: node.new_ns as f64 / unit,
                resumed: node.resumed_ns as f64 / unit,
            })
            .collect();
        let scope = scheme.scope(plan.sessions.broadcast_delay);
        let settings = Settings {
            policy: scheme.policy(&plan.distributor),
            scope,
            slice: plan.distributor.slice,
            lifetime: plan.sessions.lifetime,
            renewal: plan.sessions.renewal,
            affinity: plan.sessions.lifetime,
            sessions_max: plan.sessions.remembered_max,
        };
        World {
            plan,
            scope,
            newcomers_per_s,
            seed,
            now_ns: 0,
            event_queue: EventQueue::new(plan.horizon_ns),
            clients: Vec::new(),
            free: Vec::new(),
            newcomers: 0,
            nodes: plan
                .nodes
                .iter()
                .map(|node| Node {
                    queue: VecDeque::new(),
                    serving: None,
                    is_alive: true,
                    incarnation: 0,
                    up_since: Micros(0),
                    pending_ns: 0,
                    new_ns: node.new_ns,
                    resumed_ns: node.resumed_ns,
                })
                .collect(),
            servers: plan
                .nodes
                .iter()
                .map(|node| ServerLoad {
                    weight: node.weight,
                    outstanding: 0,
                    completion_us: 0,
                    eligible: true,
                })
                .collect(),
            distributor: Distributor::new(&settings, &costs),
            random: Stream::new(seed, Purpose::Policy, 0),
            tally: Tally::new(plan),
        }
    }

    fn run(&mut self) {
        self.event_queue.schedule(0, Event::Second);
        for (index, event) in (0..).zip(&self.plan.events) {
            self.event_queue.schedule(event.at_ns, Event::Node { index });
        }
        while let Some((at_ns, event)) = self.event_queue.next() {
            self.now_ns = at_ns;
            match event {
                Event::Second => self.second(),
                Event::Send { client } => self.send(client),
                Event::Finish { node, incarnation } => self.finish(node as usize, incarnation),
                Event::Node { index } => {
                    if let Some(&event) = self.plan.events.get(index as usize) {
                        self.node_event(event);
                    }
                }
                Event::Notice { node, incarnation } => self.notice(node as usize, incarnation),
            }
        }
    }

    fn now(&self) -> Micros {
        Micros(self.now_ns / 1000)
    }

    /// Table III: a Poisson number of newcomers in each second, each at a uniform time in it.
    fn second(&mut self) {
        self.observe();
        let second = self.now_ns / SECOND_NS;
        let factor: f64 = self
            .plan
            .surges
            .iter()
            .filter(|surge| (surge.from_s..surge.until_s).contains(&second))
            .map(|surge| surge.factor)
            .product();
        for offset_ns in newcomers_ns(self.seed, second, f64::from(self.newcomers_per_s) * factor) {
            self.newcomer(self.now_ns + offset_ns);
        }
        self.event_queue.schedule(self.now_ns + SECOND_NS, Event::Second);
    }

    fn newcomer(&mut self, at_ns: u64) {
        let number = self.newcomers;
        self.newcomers += 1;
        let mut random = Stream::new(self.seed, Purpose::Client, number);
        let clients = &self.plan.clients;
        let requests_left =
            clients.requests_min + random.negative_binomial(clients.requests_r, clients.requests_p);
        if requests_left == 0 {
            return; // a client without a request does not count
        }
        let client =
            Client { random, key: SessionKey(mix(number)), requests_left, sent_ns: at_ns, session: None };
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(place) = self.clients.get_mut(index as usize) {
                    *place = client;
                }
                index
            }
            None => {
                self.clients.push(client);
                (self.clients.len() - 1) as u32
            }
        };
        self.event_queue.schedule(at_ns, Event::Send { client: index });
    }

    /// A client's request reaches the distributor.
    fn send(&mut self, index: u32) {
        let now = self.now();
        let random = self.random.bits();
        let Some(client) = self.clients.get(index as usize) else { return };
        let arrival =
            Arrival { now, key: client.key, known: None, resumes: client.session.is_some(), random };
        let Some(choice) = self.distributor.distribute(&arrival, &self.servers) else {
            return self.event_queue.schedule(self.now_ns + RETRY_NS, Event::Send { client: index });
        };
        let (Some(node), Some(server)) = (self.nodes.get_mut(choice.node), self.servers.get_mut(choice.node))
        else {
            return;
        };
        if node.queue.len() >= self.plan.distributor.queue_max {
            self.tally.refused(self.now_ns);
            self.distributor.handle_lost(&choice);
            return self.think(index);
        }
        let expected_ns = if choice.resumed { node.resumed_ns } else { node.new_ns };
        node.pending_ns += expected_ns;
        server.outstanding += 1;
        node.queue.push_back(Request { client: index, choice, expected_ns });
        self.serve(choice.node);
    }

    /// An idle node begins to serve the next request of its queue.
    fn serve(&mut self, index: usize) {
        let (now_ns, now) = (self.now_ns, self.now());
        let Some(node) = self.nodes.get_mut(index) else { return };
        if !node.is_alive || node.serving.is_some() {
            return;
        }
        let Some(request) = node.queue.pop_front() else { return };
        let Some(client) = self.clients.get(request.client as usize) else { return };
        let resumed = client.session.is_some_and(|session| {
            now.since(session.renewed) <= self.plan.sessions.lifetime
                && self.scope.is_resumable(session.origin, index, node.up_since, now)
        });
        let service_ns = if resumed { node.resumed_ns } else { node.new_ns };
        node.serving = Some((request, resumed));
        let incarnation = node.incarnation;
        self.tally.waited(now_ns, now_ns - client.sent_ns);
        self.tally.busy(now_ns, service_ns);
        self.event_queue.schedule(now_ns + service_ns, Event::Finish { node: index as u32, incarnation });
    }

    fn finish(&mut self, index: usize, incarnation: u32) {
        let now = self.now();
        let Some(node) = self.nodes.get_mut(index).filter(|node| node.incarnation == incarnation) else {
            return;
        };
        let Some((request, resumed)) = node.serving.take() else { return };
        node.pending_ns -= request.expected_ns;
        if let Some(server) = self.servers.get_mut(index) {
            server.outstanding -= 1;
        }
        self.tally.finished(self.now_ns, resumed);
        let sliding = self.plan.sessions.renewal == Renewal::Sliding;
        if let Some(client) = self.clients.get_mut(request.client as usize) {
            match &mut client.session {
                Some(session) if resumed && sliding => session.renewed = now,
                Some(_) if resumed => {}
                session => {
                    let origin = Origin { node: index, since: now };
                    *session = Some(Session { origin, renewed: now });
                }
            }
            self.distributor.handle_finished(now, client.key, &request.choice, resumed);
        }
        self.think(request.client);
        self.serve(index);
    }

    /// A client has its answer: it thinks, or leaves.
    fn think(&mut self, index: u32) {
        let thinks = &self.plan.clients;
        let Some(client) = self.clients.get_mut(index as usize) else { return };
        client.requests_left -= 1;
        if client.requests_left == 0 {
            return self.free.push(index);
        }
        let at_ns = self.now_ns.saturating_add(thinks.think_ns(&mut client.random));
        client.sent_ns = at_ns;
        self.event_queue.schedule(at_ns, Event::Send { client: index });
    }

    fn node_event(&mut self, event: NodeEvent) {
        let now = self.now();
        let Some(node) = self.nodes.get_mut(event.node) else { return };
        if event.dies {
            node.is_alive = false;
            node.incarnation += 1;
            let (incarnation, at_ns) = (node.incarnation, self.now_ns + self.plan.distributor.detection_ns);
            return self.event_queue.schedule(at_ns, Event::Notice { node: event.node as u32, incarnation });
        }
        // The node may return before its death is noticed.
        let incarnation = node.incarnation;
        self.notice(event.node, incarnation);
        if let Some(node) = self.nodes.get_mut(event.node) {
            node.is_alive = true;
            node.up_since = now;
        }
        self.distributor.handle_node_up(event.node, now);
        if let Some(server) = self.servers.get_mut(event.node) {
            server.eligible = true;
        }
    }

    /// The distributor notices a death: the node's requests are distributed again.
    fn notice(&mut self, index: usize, incarnation: u32) {
        let now = self.now();
        let is_dead = |node: &&mut Node| node.incarnation == incarnation && !node.is_alive;
        let Some(node) = self.nodes.get_mut(index).filter(is_dead) else { return };
        let Some(server) = self.servers.get_mut(index).filter(|server| server.eligible) else { return };
        (server.eligible, server.outstanding) = (false, 0);
        node.pending_ns = 0;
        let mut stuck = std::mem::take(&mut node.queue);
        if let Some((request, _)) = node.serving.take() {
            stuck.push_front(request);
        }
        self.distributor.handle_node_lost(index, now);
        self.tally.redistributed += stuck.len() as u64;
        for request in stuck {
            self.event_queue.schedule(self.now_ns, Event::Send { client: request.client });
        }
    }

    /// Samples the loads of equation (1) and the pending work.
    fn observe(&mut self) {
        if self.now_ns == 0 {
            return;
        }
        self.distributor.observe(self.now());
        let nodes = self.nodes.iter().enumerate().filter(|(_, node)| node.is_alive);
        let gauges: Vec<Gauge> = nodes
            .map(|(index, node)| Gauge {
                load: self.distributor.load(index),
                backlog_ms: node.pending_ns as f64 / 1e6,
            })
            .collect();
        self.tally.observed(self.now_ns, &gauges);
    }
}
