//! The model that the checker explores: the nodes themselves under every schedule of a few faults within a
//! few leases.
//!
//! Time is discrete: a tick is half a lease, and all clocks agree (drift is the simulation's part). At each tick the
//! adversary may do one thing out of its budget: kill, restart, pause, resume, cut a node off, cut one direction,
//! take a node's witness away, heal, let a node leave, move a bucket, drop a backup. It may also lose or delay one
//! message. Heartbeats are instantaneous where the network allows them. In the *free* models the messages that change
//! views and buckets are delivered one by one in any order, or never.
//!
//! Every state is checked for safety. A check that the nodes heal, and that the last good node continues, costs a
//! simulation of its own. It is made for a fixed sample of the states, one in `heal_one_in`.
//!
//! `CLUSTER_MODEL_TICKS`, `CLUSTER_MODEL_FAULTS` and `CLUSTER_MODEL_LOSSES` enlarge the models beyond what CI runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use evergate_base::Micros;
use evergate_membership::{
    Body, Bucket, Config, DataEpoch, Incarnation, KeyId, Keyring, Message, Mode, Node, NodeId, NodePhase,
    OwnershipStart, Path, Role, Timing, TransitionSet,
};
use stateright::{Model, Property};

use crate::replica::{Frame, Replica};
use crate::simulation::config;
use crate::world::KEY;

/// Length of a tick on the nodes' clocks.
const TICK: u64 = 6;

/// A lease spans one lost tick and not two; a promise waits for two.
const MODEL: Timing = Timing {
    heartbeat: Micros(1),
    fence: Micros(11),
    transmit: Micros(0),
    take: Micros(12),
    suspect: Micros(12),
    drift_ppm: 0,
    listen_start: Micros(24),
    listen_lapse: Micros(24),
    hold_down_min: Micros(12),
    hold_down_max: Micros(24),
    stagger: Micros(1),
    stall_max: Micros(1000),
    balance: Micros(18),
    freeze_max: Micros(24),
};

/// State of a node's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Process {
    Runs,
    Paused,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Machine {
    node: Node,
    replica: Replica,
    process: Process,
    inbox: Vec<(Path, Vec<u8>)>,
    incarnations: u64,
}

/// A message in flight that changes views, buckets or replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight {
    from: usize,
    to: usize,
    incarnations: u64,
    sent_at: u64,
    cargo: Cargo,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Cargo {
    Datagram(Vec<u8>),
    Frame(Frame),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    clock: u64,
    machines: Vec<Machine>,
    net: VecDeque<Flight>,
    cut: BTreeSet<(usize, usize)>,
    /// Nodes that reach the witness.
    witness: BTreeSet<usize>,
    wire: BTreeMap<(u16, DataEpoch), Vec<Option<u64>>>,
    faults: u8,
    losses: u8,
    pub(crate) bad: Option<String>,
    failovers: bool,
    handoffs: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    Kill(usize),
    Restart(usize),
    Pause(usize),
    Resume(usize),
    /// Both networks cut between a node and all other ones, with the witness on its side or on the other one.
    CutOff {
        node: usize,
        keeps_witness: bool,
    },
    /// The second node does not receive the first.
    OneWay(usize, usize),
    /// The witness does not answer this node any more. Its links are intact.
    Unwitnessed(usize),
    Heal,
    Leave(usize),
    Move(u16, usize),
    /// Every owner's replication channel to this node is lost.
    Drop(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mishap {
    Lost(u8),
    Late(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Tick(Option<Fault>, Option<Mishap>),
    Deliver(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Bounded {
    pub(crate) template: Config,
    pub(crate) nodes: usize,
    pub(crate) ticks: u64,
    pub(crate) faults: u8,
    pub(crate) losses: u8,
    /// Deliver messages one by one, in any order.
    pub(crate) free: bool,
    /// Begin with nodes that have just started instead of a settled view.
    pub(crate) cold: bool,
    /// One state in so many is healed, and must then settle.
    pub(crate) heal_one_in: u64,
    /// Transitions of the phase that the nodes took. They are no part of a state.
    pub(crate) transitions: Arc<Mutex<TransitionSet>>,
}

impl Bounded {
    pub(crate) fn new(nodes: u8, buckets: u16, backups: u8, mode: Mode) -> Bounded {
        let template = Config { timing: MODEL, ..config(nodes, buckets, backups, mode) };
        Bounded {
            template,
            nodes: usize::from(nodes),
            ticks: 12,
            faults: 2,
            losses: 0,
            free: false,
            cold: false,
            heal_one_in: 97,
            transitions: Arc::default(),
        }
    }

    /// The model, enlarged by the environment variables.
    pub(crate) fn enlarged(mut self) -> Bounded {
        let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
        self.ticks = number("CLUSTER_MODEL_TICKS").unwrap_or(self.ticks);
        self.faults = number("CLUSTER_MODEL_FAULTS").map_or(self.faults, |n| n as u8);
        self.losses = number("CLUSTER_MODEL_LOSSES").map_or(self.losses, |n| n as u8);
        self
    }

    fn start(&self) -> State {
        let clock = 1000;
        let machine = |id: usize| Machine {
            node: self.node(id, 0, clock),
            replica: Replica::default(),
            process: Process::Runs,
            inbox: Vec::new(),
            incarnations: 0,
        };
        let mut state = State {
            clock,
            machines: (0..self.nodes).map(machine).collect(),
            net: VecDeque::new(),
            cut: BTreeSet::new(),
            witness: (0..self.nodes).collect(),
            wire: BTreeMap::new(),
            faults: 0,
            losses: 0,
            bad: None,
            failovers: false,
            handoffs: false,
        };
        if !self.cold {
            for _ in 0..12 {
                self.tick(&mut state, None, None);
                self.flow(&mut state, None);
            }
            assert!(self.is_settled(&state), "the model does not settle at start: {:?}", state.bad);
        }
        state
    }

    fn node(&self, id: usize, incarnations: u64, clock: u64) -> Node {
        let config = Config { id: NodeId(id as u8), ..self.template.clone() };
        let incarnation = Incarnation(1000 * (id as u64 + 1) + 100 * incarnations);
        Node::new(config, Keyring::new(KeyId(1), KEY), incarnation, Micros(clock))
            .expect("a valid configuration")
    }

    fn tick(&self, state: &mut State, fault: Option<Fault>, mishap: Option<Mishap>) {
        state.clock += TICK;
        if let Some(fault) = fault {
            state.faults += 1;
            self.inflict(state, fault);
        }
        state.losses += u8::from(mishap.is_some());
        let clock = Micros(state.clock);
        for id in 0..self.nodes {
            let reached = state.witness.contains(&id);
            let machine = &mut state.machines[id];
            if machine.process == Process::Runs && reached {
                machine.node.set_witness(clock, clock, true);
            }
        }
        self.pump(state);
        for id in 0..self.nodes {
            self.work(state, id);
        }
        self.pump(state);
    }

    /// The owner appends an entry, replicates to its backups, and emits the committed entries.
    fn work(&self, state: &mut State, id: usize) {
        let clock = Micros(state.clock);
        let machine = &mut state.machines[id];
        if machine.process != Process::Runs {
            return;
        }
        let epoch = machine.node.view().map_or(0, |view| view.epoch);
        for bucket in 0..self.template.buckets {
            if machine.replica.may_decide(&machine.node, bucket)
                && let Some(replica) = machine.replica.logs.get_mut(&bucket)
                && replica.log.len() < 2
            {
                replica.log.push(10 * epoch + id as u64);
            }
        }
        let frames = machine.replica.drive(&mut machine.node, clock);
        let sent_at = state.clock;
        for (to, frame) in frames {
            let to = usize::from(to.0);
            self.launch(state, Flight { from: id, to, incarnations: 0, sent_at, cargo: Cargo::Frame(frame) });
        }
    }

    fn launch(&self, state: &mut State, flight: Flight) {
        if flight.to < self.nodes && !state.cut.contains(&(flight.from, flight.to)) {
            let incarnations = state.machines[flight.to].incarnations;
            let flight = Flight { incarnations, ..flight };
            if !state.net.contains(&flight) {
                state.net.push_back(flight);
            }
        }
    }

    /// Runs the nodes until none has anything to do. Heartbeats arrive at once.
    fn pump(&self, state: &mut State) {
        for _ in 0..100 {
            let mut idle = true;
            for id in 0..self.nodes {
                idle &= !self.run(state, id);
            }
            if idle || state.bad.is_some() {
                self.emit(state);
                self.check(state);
                return;
            }
        }
        state.bad = Some("the nodes do not become idle".into());
    }

    /// One turn of the shell's loop. Returns whether it had anything to do.
    fn run(&self, state: &mut State, id: usize) -> bool {
        let clock = Micros(state.clock);
        let machine = &mut state.machines[id];
        let due = machine.node.poll_timeout() <= clock || !machine.inbox.is_empty();
        if machine.process != Process::Runs || !due {
            return false;
        }
        for (path, bytes) in std::mem::take(&mut machine.inbox) {
            state.machines[id].node.handle_datagram(clock, path, &bytes);
            self.notify(state, id);
        }
        state.machines[id].node.handle_timer(clock);
        self.notify(state, id);
        let machine = &mut state.machines[id];
        if let Err(what) = machine.node.check_invariants() {
            state.bad = Some(what);
        }
        let mut sent = Vec::new();
        while let Some(transmit) = state.machines[id].node.poll_transmit() {
            sent.push(transmit);
        }
        for transmit in sent {
            let to = usize::from(transmit.to.0);
            let heartbeat =
                Message::decode(&transmit.bytes).is_ok_and(|m| matches!(m.body, Body::Heartbeat(_)));
            if heartbeat {
                if !state.cut.contains(&(id, to)) && state.machines[to].process != Process::Dead {
                    state.machines[to].inbox.push((transmit.path, transmit.bytes));
                }
            } else if transmit.path == Path::Inside {
                let cargo = Cargo::Datagram(transmit.bytes);
                self.launch(state, Flight { from: id, to, incarnations: 0, sent_at: state.clock, cargo });
            }
        }
        true
    }

    fn notify(&self, state: &mut State, id: usize) {
        let machine = &mut state.machines[id];
        while let Some(event) = machine.node.poll_event() {
            if let Err(what) = machine.replica.handle_event(&event) {
                state.bad = Some(what);
            }
        }
        for (_, begin) in std::mem::take(&mut machine.replica.resumed) {
            state.failovers |= begin == OwnershipStart::Failover;
            state.handoffs |= begin == OwnershipStart::Handoff;
        }
    }

    /// Delivers everything in flight in order, except for one mishap. Returns whether the mishap happened.
    fn flow(&self, state: &mut State, mishap: Option<Mishap>) -> bool {
        let (mut count, mut happened) = (0u8, mishap.is_none());
        let mut late = None;
        for _ in 0..200 {
            let Some(flight) = state.net.pop_front() else { break };
            match mishap {
                Some(Mishap::Lost(at)) if at == count && !happened => happened = true,
                Some(Mishap::Late(at)) if at == count && !happened => {
                    happened = true;
                    late = Some(flight);
                }
                _ => self.deliver(state, flight),
            }
            count = count.saturating_add(1);
        }
        state.net.extend(late);
        happened
    }

    fn deliver(&self, state: &mut State, flight: Flight) {
        let machine = &mut state.machines[flight.to];
        if machine.incarnations != flight.incarnations || machine.process == Process::Dead {
            return;
        }
        match flight.cargo {
            Cargo::Datagram(bytes) => machine.inbox.push((Path::Inside, bytes)),
            Cargo::Frame(frame) if machine.process == Process::Runs => {
                let from = NodeId(flight.from as u8);
                if let Some(answer) = machine.replica.handle_frame(&mut machine.node, from, frame) {
                    let (from, to) = (flight.to, flight.from);
                    let cargo = Cargo::Frame(answer);
                    self.launch(state, Flight { from, to, incarnations: 0, sent_at: state.clock, cargo });
                }
            }
            Cargo::Frame(_) => {}
        }
        self.pump(state);
    }

    fn inflict(&self, state: &mut State, fault: Fault) {
        let clock = Micros(state.clock);
        match fault {
            Fault::Kill(id) => {
                let machine = &mut state.machines[id];
                machine.process = Process::Dead;
                machine.inbox.clear();
                machine.incarnations += 1;
            }
            Fault::Restart(id) => {
                let incarnations = state.machines[id].incarnations + 1;
                let node = self.node(id, incarnations, state.clock);
                let replica = Replica::default();
                state.machines[id] =
                    Machine { node, replica, process: Process::Runs, inbox: Vec::new(), incarnations };
            }
            Fault::Pause(id) => state.machines[id].process = Process::Paused,
            Fault::Resume(id) => state.machines[id].process = Process::Runs,
            Fault::CutOff { node, keeps_witness } => {
                let others: BTreeSet<usize> = (0..self.nodes).filter(|id| *id != node).collect();
                state.cut = others.iter().flat_map(|id| [(node, *id), (*id, node)]).collect();
                state.witness = if keeps_witness { BTreeSet::from([node]) } else { others };
            }
            Fault::OneWay(from, to) => {
                state.cut.insert((from, to));
            }
            Fault::Unwitnessed(id) => {
                state.witness.remove(&id);
            }
            Fault::Heal => {
                state.cut.clear();
                state.witness = (0..self.nodes).collect();
            }
            Fault::Leave(id) => state.machines[id].node.leave(clock),
            Fault::Drop(backup) => {
                for machine in state.machines.iter_mut().filter(|machine| machine.process == Process::Runs) {
                    for bucket in (0..self.template.buckets).map(Bucket) {
                        if let Role::Owner { term, .. } = machine.node.role(bucket) {
                            machine.node.drop_backup(clock, bucket, term, NodeId(backup as u8));
                        }
                    }
                }
            }
            Fault::Move(bucket, to) => {
                for machine in state.machines.iter_mut().filter(|machine| machine.process == Process::Runs) {
                    machine.node.move_bucket(clock, Bucket(bucket), NodeId(to as u8));
                }
            }
        }
    }

    fn possible(&self, state: &State) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (id, machine) in state.machines.iter().enumerate() {
            match machine.process {
                Process::Runs => {
                    faults.extend([Fault::Kill(id), Fault::Pause(id)]);
                    if machine.node.phase() != NodePhase::Left {
                        faults.push(Fault::Leave(id));
                    }
                }
                Process::Paused => faults.extend([Fault::Kill(id), Fault::Resume(id)]),
                Process::Dead => faults.push(Fault::Restart(id)),
            }
            if state.cut.is_empty() {
                faults.push(Fault::CutOff { node: id, keeps_witness: false });
                faults.push(Fault::CutOff { node: id, keeps_witness: true });
                faults.extend((0..self.nodes).filter(|to| *to != id).map(|to| Fault::OneWay(id, to)));
            }
        }
        let all_witnessed = state.witness.len() == self.nodes;
        if !state.cut.is_empty() || !all_witnessed {
            faults.push(Fault::Heal);
        }
        if self.template.mode == Mode::Witness && all_witnessed {
            faults.extend((0..self.nodes).map(Fault::Unwitnessed));
        }
        faults.extend((0..self.nodes).map(|to| Fault::Move(0, to)));
        faults.extend((0..self.nodes).map(Fault::Drop));
        faults
    }

    // ---- invariants ----

    fn emit(&self, state: &mut State) {
        let clock = Micros(state.clock);
        for machine in state.machines.iter().filter(|machine| machine.process == Process::Runs) {
            for bucket in
                (0..self.template.buckets).filter(|bucket| machine.node.gate_open(Bucket(*bucket), clock))
            {
                let committed = machine.replica.committed(&machine.node, bucket);
                let Some(replica) = machine.replica.logs.get(&bucket) else { continue };
                let wire = state.wire.entry((bucket, replica.data_epoch)).or_default();
                for (at, tag) in replica.log.iter().take(committed).enumerate() {
                    if wire.len() <= at {
                        wire.resize(at + 1, None);
                    }
                    if *wire[at].get_or_insert(*tag) != *tag {
                        state.bad = Some(format!("bucket {bucket} position {at}: two contents"));
                    }
                }
            }
        }
    }

    fn check(&self, state: &mut State) {
        self.record_transitions(state);
        let clock = Micros(state.clock);
        for bucket in 0..self.template.buckets {
            let is_open = |machine: &Machine| machine.node.gate_open(Bucket(bucket), clock);
            let open: Vec<usize> = (0..self.nodes).filter(|id| is_open(&state.machines[*id])).collect();
            if open.len() > 1 {
                state.bad = Some(format!("bucket {bucket}: gates open at {open:?}"));
            }
            for id in open {
                let machine = &state.machines[id];
                let Some(replica) = machine.replica.logs.get(&bucket) else { continue };
                let Some(wire) = state.wire.get(&(bucket, replica.data_epoch)) else { continue };
                let lacks =
                    (0..wire.len()).any(|at| wire[at].is_some() && replica.log.get(at) != wire[at].as_ref());
                if lacks && machine.process != Process::Dead {
                    state.bad =
                        Some(format!("bucket {bucket}: node {id} serves it without an emitted entry"));
                }
            }
        }
    }

    fn record_transitions(&self, state: &mut State) {
        let taken = state.machines.iter_mut().map(|machine| machine.node.take_transitions());
        let taken = taken.fold(TransitionSet::EMPTY, TransitionSet::union);
        if taken != TransitionSet::EMPTY {
            let mut all = self.transitions.lock().unwrap_or_else(PoisonError::into_inner);
            *all = all.union(taken);
        }
    }

    fn is_settled(&self, state: &State) -> bool {
        let clock = Micros(state.clock);
        let view = state.machines[0].node.view();
        let together = state.machines.iter().all(|machine| {
            machine.node.phase() == NodePhase::Active
                && machine.node.view() == view
                && machine.node.members().0.len() == self.nodes
        });
        let backups = usize::from(self.template.backups).min(self.nodes - 1);
        together
            && (0..self.template.buckets).all(|bucket| {
                let open =
                    state.machines.iter().filter(|machine| machine.node.gate_open(Bucket(bucket), clock));
                let good = |role| match role {
                    Role::Owner { required, syncing, .. } => syncing.is_empty() && required.len() >= backups,
                    _ => false,
                };
                let mut open = open;
                open.next().is_some_and(|machine| good(machine.node.role(Bucket(bucket))))
                    && open.next().is_none()
            })
    }

    /// Whether the nodes settle within a bounded time without more faults.
    fn heals(&self, state: &State) -> bool {
        let state = self.healed(state);
        state.bad.is_none() && self.is_settled(&state)
    }

    /// Whether everything is served after a node lost its witness and all other nodes but one good one crashed.
    fn continues(&self, state: &State) -> bool {
        let Some(state) = self.alone(state) else { return true };
        let open = |machine: &Machine, bucket| {
            let runs = machine.process == Process::Runs;
            runs && machine.node.gate_open(Bucket(bucket), Micros(state.clock))
        };
        let served = |bucket| state.machines.iter().any(|machine| open(machine, bucket));
        state.bad.is_none() && (0..self.template.buckets).all(served)
    }

    /// A state with a node without witness, after all other nodes but one good one crashed.
    pub(crate) fn alone(&self, state: &State) -> Option<State> {
        let is_good = |id: &usize| {
            let machine = &state.machines[*id];
            machine.process == Process::Runs && machine.node.phase() == NodePhase::Active
        };
        let last = state.witness.iter().copied().find(is_good)?;
        if state.witness.len() == self.nodes || !state.cut.is_empty() {
            return None;
        }
        let mut state = state.clone();
        for id in (0..self.nodes).filter(|id| *id != last) {
            let has_no_witness = !state.witness.contains(&id) && state.machines[id].process == Process::Runs;
            if !has_no_witness && state.machines[id].process != Process::Dead {
                self.inflict(&mut state, Fault::Kill(id));
            }
        }
        for _ in 0..40 {
            self.tick(&mut state, None, None);
            self.flow(&mut state, None);
        }
        Some(state)
    }

    /// A state after a time without more faults.
    pub(crate) fn healed(&self, state: &State) -> State {
        let mut state = state.clone();
        self.inflict(&mut state, Fault::Heal);
        for id in 0..self.nodes {
            let machine = &state.machines[id];
            if machine.process == Process::Dead || machine.node.phase() == NodePhase::Left {
                self.inflict(&mut state, Fault::Restart(id));
            }
            state.machines[id].process = Process::Runs;
        }
        for _ in 0..80 {
            if state.bad.is_some() || self.is_settled(&state) {
                break;
            }
            self.tick(&mut state, None, None);
            self.flow(&mut state, None);
        }
        state
    }

    /// The state in a failure report.
    pub(crate) fn describe(&self, state: &State) -> String {
        let mut text = format!("clock {} cut {:?} witness {:?}\n", state.clock, state.cut, state.witness);
        for (id, machine) in state.machines.iter().enumerate() {
            let node = &machine.node;
            text += &format!(
                "  {id}: {:?} {:?} view {:?} members {:?} reachable {:?} roles {:?}\n",
                machine.process,
                node.phase(),
                node.view().map(|view| (view.epoch, view.proposer.0)),
                node.members().set(),
                node.reachable_nodes(),
                (0..self.template.buckets).map(|bucket| node.role(Bucket(bucket))).collect::<Vec<_>>(),
            );
        }
        text
    }
}

impl Model for Bounded {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let end = 1000 + TICK * (self.ticks + if self.cold { 0 } else { 12 });
        if state.bad.is_some() || state.clock >= end {
            return;
        }
        if self.free {
            actions.extend((0..state.net.len()).map(Action::Deliver));
        }
        actions.push(Action::Tick(None, None));
        let mishaps: Vec<Mishap> = if state.losses < self.losses && !self.free {
            (0..6).flat_map(|at| [Mishap::Lost(at), Mishap::Late(at)]).collect()
        } else {
            Vec::new()
        };
        actions.extend(mishaps.iter().map(|mishap| Action::Tick(None, Some(*mishap))));
        if state.faults < self.faults {
            actions.extend(self.possible(state).into_iter().map(|fault| Action::Tick(Some(fault), None)));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Deliver(at) => {
                let flight = state.net.remove(at)?;
                self.deliver(&mut state, flight);
            }
            Action::Tick(fault, mishap) => {
                if self.free {
                    // A message may stay in flight for one tick. An older one is lost.
                    let clock = state.clock;
                    state.net.retain(|flight| flight.sent_at >= clock);
                }
                self.tick(&mut state, fault, mishap);
                if !self.free && !self.flow(&mut state, mishap) {
                    return None; // no such message
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_: &Bounded, state: &State| state.bad.is_none()),
            Property::always("heals", |model: &Bounded, state: &State| {
                let mut hasher = std::collections::hash_map::DefaultHasher::new();
                state.hash(&mut hasher);
                state.bad.is_some()
                    || !hasher.finish().is_multiple_of(model.heal_one_in)
                    || model.heals(state)
            }),
            Property::always("continues", |model: &Bounded, state: &State| {
                let mut hasher = std::collections::hash_map::DefaultHasher::new();
                state.hash(&mut hasher);
                state.bad.is_some() || hasher.finish() % model.heal_one_in != 1 || model.continues(state)
            }),
            Property::sometimes("fails over", |_: &Bounded, state: &State| state.failovers),
            Property::sometimes("hands off", |_: &Bounded, state: &State| state.handoffs),
        ]
    }
}
