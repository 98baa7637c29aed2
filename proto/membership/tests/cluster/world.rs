//! A network of nodes under virtual time: clocks that drift, links that fail, processes that pause and crash.
//!
//! After every step the world checks for violations: two open gates for a bucket, one position of a log emitted with
//! two contents, a resumed owner that lacks an emitted entry, a broken invariant of a node. The gate of a crashed or
//! paused process counts too: the kernel keeps it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evergate_base::Micros;
use evergate_membership::{
    Bucket, Config, DataEpoch, Event, Incarnation, KeyId, Keyring, Member, MemberSet, Node, NodeId,
    NodePhase, OwnershipStart, Path, Role, Timing, TransitionSet, Transmit,
};

use crate::random::Random;
use crate::replica::{Frame, Replica};

pub(crate) const KEY: [u8; 32] = [0x42; 32];

/// An event at a time.
#[derive(Clone, Debug)]
enum Happening {
    Datagram { to: usize, process: u64, path: Path, bytes: Vec<u8> },
    Frame { from: usize, to: usize, process: u64, frame: Frame },
    Timer { node: usize, process: u64, at: u64 },
    Traffic,
    Work,
    Witness,
    Asked { node: usize, process: u64, clock: Micros },
}

/// One machine: its process, its clock, and the state that its kernel keeps.
pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) replica: Replica,
    pub(crate) up: bool,
    pub(crate) paused: bool,
    pub(crate) witness: bool,
    /// Number of processes so far, so that a message to an earlier one is not delivered.
    process: u64,
    skew: u64,
    drift_ppm: i64,
    inbox: VecDeque<(Path, Vec<u8>)>,
    timer_at: u64,
    asked_for: Micros,
}

/// Behaviour of the network for datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) loss_per_mille: u64,
    pub(crate) duplicate_per_mille: u64,
    /// One datagram in so many is late.
    pub(crate) late_one_in: u64,
    pub(crate) late_us_max: u64,
    pub(crate) wake_late_us_max: u64,
}

pub(crate) const FAIR: Weather = Weather {
    loss_per_mille: 0,
    duplicate_per_mille: 0,
    late_one_in: 1000,
    late_us_max: 500,
    wake_late_us_max: 200,
};

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) hosts: Vec<Host>,
    pub(crate) weather: Weather,
    pub(crate) random: Random,
    /// Cut links: (from, to, path).
    pub(crate) cut: BTreeSet<(usize, usize, Path)>,
    queue: BTreeMap<(u64, u64), Happening>,
    counter: u64,
    tags: u64,
    /// Everything emitted: bucket, data epoch, position.
    wire: BTreeMap<(u16, DataEpoch), Vec<Option<u64>>>,
    pub(crate) failovers: u64,
    pub(crate) handoffs: u64,
    pub(crate) emitted: u64,
    /// Transitions of the phase that the nodes took.
    pub(crate) transitions: TransitionSet,
    pub(crate) traffic: bool,
    /// The work of each bucket, in microseconds per second.
    pub(crate) work: Vec<u64>,
    pub(crate) work_varies_percent: u64,
    template: Config,
    started: u64,
    steps_at: u64,
    /// The largest datagram so far, in bytes.
    pub(crate) largest: usize,
    /// Events that nodes reported about themselves.
    pub(crate) events: Vec<(usize, Event)>,
    trace: bool,
    /// Nodes that start with another timing from now on.
    pub(crate) timings: BTreeMap<usize, Timing>,
}

impl World {
    pub(crate) fn new(seed: u64, nodes: u8, template: Config) -> World {
        let mut world = World {
            now: 1_000_000,
            hosts: Vec::new(),
            weather: FAIR,
            random: Random::new(seed),
            cut: BTreeSet::new(),
            queue: BTreeMap::new(),
            counter: 0,
            tags: 0,
            wire: BTreeMap::new(),
            failovers: 0,
            handoffs: 0,
            emitted: 0,
            transitions: TransitionSet::EMPTY,
            traffic: true,
            work: Vec::new(),
            work_varies_percent: 50,
            template,
            started: 0,
            steps_at: 0,
            largest: 0,
            events: Vec::new(),
            trace: std::env::var_os("CLUSTER_TRACE").is_some(),
            timings: BTreeMap::new(),
        };
        for id in 0..nodes {
            let skew = world.random.below(120_000_000);
            let drift_ppm = world.random.below(1801) as i64 - 900;
            let mut host = Host {
                node: world.fresh_node(id as usize, 0),
                replica: Replica::default(),
                up: true,
                paused: false,
                witness: true,
                process: 0,
                skew,
                drift_ppm,
                inbox: VecDeque::new(),
                timer_at: 0,
                asked_for: Micros(0),
            };
            host.node = world.fresh_node(id as usize, host.clock(world.now).0);
            world.hosts.push(host);
            world.schedule_timer(id as usize);
        }
        world.push(world.now + 100, Happening::Traffic);
        world.push(world.now + 100, Happening::Witness);
        world.push(world.now + 100, Happening::Work);
        world
    }

    fn fresh_node(&mut self, id: usize, clock: u64) -> Node {
        self.started += 1;
        let timing = self.timings.get(&id).copied().unwrap_or(self.template.timing);
        let config = Config { id: NodeId(id as u8), timing, ..self.template.clone() };
        let keys = Keyring::new(KeyId(1), KEY);
        let incarnation = Incarnation(self.random.next() >> 1);
        Node::new(config, keys, incarnation, Micros(clock)).expect("the test's configuration is valid")
    }

    fn push(&mut self, at: u64, what: Happening) {
        self.counter += 1;
        self.queue.insert((at, self.counter), what);
    }

    // ---- faults ----

    /// Prints a fault when `CLUSTER_TRACE` is set.
    pub(crate) fn log_fault(&self, what: impl std::fmt::Display) {
        if self.trace {
            println!("{} {what}", self.now);
        }
    }

    pub(crate) fn crash(&mut self, id: usize) {
        self.log_fault(format_args!("node {id} crashes"));
        self.hosts[id].up = false;
        self.hosts[id].paused = false;
        self.hosts[id].inbox.clear();
        self.hosts[id].process += 1;
    }

    /// Sends a node's LEAVE heartbeats, which may be old by now. The gate of a node that is down is closed first.
    pub(crate) fn send_leave(&mut self, id: usize, leave_heartbeats: &[Transmit]) {
        let clock = self.hosts[id].clock(self.now);
        if !self.hosts[id].up {
            self.hosts[id].node.leave(clock);
        }
        for transmit in leave_heartbeats {
            self.carry(usize::from(transmit.to.0), transmit.path, transmit.bytes.clone());
        }
    }

    pub(crate) fn restart(&mut self, id: usize) {
        self.log_fault(format_args!("node {id} starts"));
        let clock = self.hosts[id].clock(self.now).0;
        let node = self.fresh_node(id, clock);
        let host = &mut self.hosts[id];
        self.transitions = self.transitions.union(host.node.take_transitions());
        host.process += 1;
        host.node = node;
        host.replica = Replica::default();
        host.up = true;
        host.paused = false;
        host.inbox.clear();
        host.timer_at = 0;
        self.schedule_timer(id);
    }

    /// The replication channel from one node to another is lost.
    pub(crate) fn drop_backup(&mut self, id: usize, other: usize) {
        self.log_fault(format_args!("node {id} drops {other} as a backup"));
        let (now, host) = (self.now, &mut self.hosts[id]);
        if !host.up || host.paused {
            return;
        }
        let clock = host.clock(now);
        for bucket in (0..self.template.buckets).map(Bucket) {
            if let Role::Owner { term, .. } = host.node.role(bucket) {
                host.node.drop_backup(clock, bucket, term, NodeId(other as u8));
            }
        }
    }

    pub(crate) fn pause(&mut self, id: usize) {
        self.log_fault(format_args!("node {id} is paused"));
        self.hosts[id].paused = true;
    }

    pub(crate) fn resume(&mut self, id: usize) -> Result<(), String> {
        self.log_fault(format_args!("node {id} resumes"));
        if !self.hosts[id].paused || !self.hosts[id].up {
            return Ok(());
        }
        self.hosts[id].paused = false;
        self.hosts[id].timer_at = 0;
        self.run_host(id)
    }

    /// Cuts everything between two groups, in `both` directions or only from the first to the second.
    pub(crate) fn cut_between(&mut self, a: &[usize], b: &[usize], paths: &[Path], both: bool) {
        self.log_fault(format_args!("cut {a:?} to {b:?} on {paths:?}, both {both}"));
        for (x, y) in a.iter().flat_map(|x| b.iter().map(move |y| (*x, *y))) {
            for path in paths {
                self.cut.insert((x, y, *path));
                if both {
                    self.cut.insert((y, x, *path));
                }
            }
        }
    }

    // ---- running ----

    pub(crate) fn run_for(&mut self, span_us: u64) -> Result<(), String> {
        let end = self.now + span_us;
        while let Some(((at, _), _)) = self.queue.first_key_value() {
            if *at > end {
                break;
            }
            self.step()?;
        }
        self.now = end;
        Ok(())
    }

    /// Runs until `done`, at most `span_us`. Returns whether it was reached.
    pub(crate) fn run_until(&mut self, span_us: u64, done: impl Fn(&World) -> bool) -> Result<bool, String> {
        let end = self.now + span_us;
        while self.now < end {
            if done(self) {
                return Ok(true);
            }
            self.step()?;
        }
        Ok(done(self))
    }

    pub(crate) fn step(&mut self) -> Result<(), String> {
        let Some(((at, _), what)) = self.queue.pop_first() else {
            return Err("no event left".into());
        };
        self.steps_at = if at / 1000 == self.now / 1000 { self.steps_at + 1 } else { 0 };
        if self.steps_at > 20_000 {
            return Err("20,000 steps within a millisecond: a loop without progress".into());
        }
        self.now = self.now.max(at);
        match what {
            Happening::Datagram { to, process, path, bytes } => {
                let host = &mut self.hosts[to];
                if host.up && host.process == process && host.inbox.len() < 2000 {
                    let waits = evergate_membership::is_calm(&bytes);
                    host.inbox.push_back((path, bytes));
                    if !waits {
                        self.run_host(to)?;
                    }
                }
            }
            Happening::Frame { from, to, process, frame } => {
                let host = &mut self.hosts[to];
                if host.up && !host.paused && host.process == process {
                    let answer = host.replica.handle_frame(&mut host.node, NodeId(from as u8), frame);
                    if let Some(answer) = answer {
                        self.send_frame(to, from, answer);
                    }
                    self.run_host(to)?;
                }
            }
            Happening::Timer { node, process, at } => {
                // Only the newest timer counts.
                let host = &mut self.hosts[node];
                if host.up && host.process == process && host.timer_at == at {
                    host.timer_at = 0;
                    self.run_host(node)?;
                }
            }
            Happening::Asked { node, process, clock } => {
                let now = self.now;
                let host = &mut self.hosts[node];
                if host.up && !host.paused && host.witness && host.process == process {
                    host.node.set_witness(host.clock(now), clock, true);
                    self.run_host(node)?;
                }
            }
            Happening::Traffic => {
                if self.traffic {
                    self.decide();
                }
                for id in 0..self.hosts.len() {
                    self.replicate(id);
                    self.emit(id)?;
                }
                let gap = self.template.timing.heartbeat.0;
                self.push(self.now + gap, Happening::Traffic);
            }
            Happening::Work => {
                let gap = self.template.timing.balance.0;
                for (bucket, cost) in (0..).map(Bucket).zip(self.work.clone()) {
                    for id in 0..self.hosts.len() {
                        let varies = cost * self.work_varies_percent / 100;
                        let work = (cost - varies + self.random.below(2 * varies + 1)) * gap / 1_000_000;
                        let host = &mut self.hosts[id];
                        if host.up && !host.paused {
                            host.node.handle_work(bucket, Micros(work));
                        }
                    }
                }
                self.push(self.now + gap, Happening::Work);
            }
            Happening::Witness => {
                for id in 0..self.hosts.len() {
                    let now = self.now;
                    let host = &mut self.hosts[id];
                    if host.up && !host.paused && host.witness {
                        let asked_at = host.clock(now - 100);
                        let clock = host.clock(now);
                        host.node.set_witness(clock, asked_at, true);
                        self.run_host(id)?;
                    }
                }
                let gap = self.template.timing.heartbeat.0;
                self.push(self.now + gap, Happening::Witness);
            }
        }
        Ok(())
    }

    /// One turn of the shell's loop.
    fn run_host(&mut self, id: usize) -> Result<(), String> {
        let host = &mut self.hosts[id];
        if !host.up || host.paused {
            return Ok(());
        }
        let now = host.clock(self.now);
        // The clock is read again after the sockets are drained, a little later.
        let after = Micros(now.0 + 20);
        while let Some((path, bytes)) = host.inbox.pop_front() {
            host.node.handle_datagram(after, path, &bytes);
            while let Some(event) = host.node.poll_event() {
                if self.trace {
                    trace(self.now, id, &event);
                }
                host.replica.handle_event(&event)?;
            }
        }
        host.node.handle_timer(now);
        while let Some(event) = host.node.poll_event() {
            if self.trace {
                trace(self.now, id, &event);
            }
            host.replica.handle_event(&event)?;
            if !matches!(event, Event::Role { .. }) {
                self.events.push((id, event));
            }
        }
        host.node.check_invariants()?;
        self.transitions = self.transitions.union(host.node.take_transitions());
        for (_, begin) in host.replica.resumed.drain(..) {
            match begin {
                OwnershipStart::Failover => self.failovers += 1,
                _ => self.handoffs += 1,
            }
        }
        let mut out = Vec::new();
        while let Some(transmit) = host.node.poll_transmit() {
            out.push(transmit);
        }
        for transmit in out {
            self.largest = self.largest.max(transmit.bytes.len());
            let to = usize::from(transmit.to.0);
            if to < self.hosts.len() && !self.cut.contains(&(id, to, transmit.path)) {
                self.carry(to, transmit.path, transmit.bytes);
            }
        }
        self.check()?;
        self.schedule_timer(id);
        Ok(())
    }

    fn latency(&mut self) -> u64 {
        let late = self.random.chance(1, self.weather.late_one_in.max(1));
        50 + self.random.below(150) + if late { self.random.below(self.weather.late_us_max) } else { 0 }
    }

    fn carry(&mut self, to: usize, path: Path, bytes: Vec<u8>) {
        let count = 1 + u64::from(self.random.chance(self.weather.duplicate_per_mille, 1000));
        for _ in 0..count {
            if self.random.chance(self.weather.loss_per_mille, 1000) {
                continue;
            }
            let at = self.now + self.latency();
            let process = self.hosts[to].process;
            self.push(at, Happening::Datagram { to, process, path, bytes: bytes.clone() });
        }
    }

    fn send_frame(&mut self, from: usize, to: usize, frame: Frame) {
        if to >= self.hosts.len() || self.cut.contains(&(from, to, Path::Inside)) {
            return;
        }
        let at = self.now + self.latency();
        let process = self.hosts[to].process;
        self.push(at, Happening::Frame { from, to, process, frame });
    }

    fn schedule_timer(&mut self, id: usize) {
        let late = self.random.below(self.weather.wake_late_us_max.max(1));
        let host = &self.hosts[id];
        if let Some(wanted) = host.node.witness_wanted()
            && host.asked_for != wanted
        {
            // The answer comes 100 us after the question.
            let (process, at) = (host.process, host.true_time(wanted).max(self.now) + 100 + late);
            let clock = host.clock(at - 100);
            self.hosts[id].asked_for = wanted;
            self.push(at, Happening::Asked { node: id, process, clock });
        }
        let host = &self.hosts[id];
        let at = host.true_time(host.node.poll_timeout()).max(self.now) + late;
        if host.timer_at == 0 || at < host.timer_at {
            let process = host.process;
            self.hosts[id].timer_at = at;
            self.push(at, Happening::Timer { node: id, process, at });
        }
    }

    // ---- traffic ----

    fn decide(&mut self) {
        for id in 0..self.hosts.len() {
            for bucket in 0..self.template.buckets {
                self.tags += 1;
                let tag = self.tags;
                let wants = self.random.chance(1, 8);
                let host = &mut self.hosts[id];
                if wants && host.up && !host.paused && host.replica.may_decide(&host.node, bucket) {
                    let Some(replica) = host.replica.logs.get_mut(&bucket) else { continue };
                    if replica.log.len() < 24 {
                        replica.log.push(tag);
                    }
                }
            }
        }
    }

    fn replicate(&mut self, id: usize) {
        let now = self.now;
        let host = &mut self.hosts[id];
        if !host.up || host.paused {
            return;
        }
        let clock = host.clock(now);
        for (to, frame) in host.replica.drive(&mut host.node, clock) {
            self.send_frame(id, usize::from(to.0), frame);
        }
    }

    /// Emits the committed entries where the gate is open.
    fn emit(&mut self, id: usize) -> Result<(), String> {
        for bucket in 0..self.template.buckets {
            let host = &self.hosts[id];
            if !host.up || host.paused || !host.node.gate_open(Bucket(bucket), host.clock(self.now)) {
                continue;
            }
            let committed = host.replica.committed(&host.node, bucket);
            let Some(replica) = host.replica.logs.get(&bucket) else { continue };
            let wire = self.wire.entry((bucket, replica.data_epoch)).or_default();
            for (position, tag) in replica.log.iter().take(committed).enumerate() {
                if wire.len() <= position {
                    wire.resize(position + 1, None);
                }
                match wire[position] {
                    None => {
                        wire[position] = Some(*tag);
                        self.emitted += 1;
                    }
                    Some(known) if known != *tag => {
                        return Err(format!(
                            "bucket {bucket} position {position}: two contents, {known} and {tag}, node {id}"
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    // ---- invariants ----

    /// Nodes whose kernel would let this bucket's packets out, now or a moment ago.
    fn open_gates(&self, bucket: u16) -> Vec<usize> {
        let transmit = self.template.timing.transmit.0;
        let open = |host: &Host| {
            let clock = host.clock(self.now);
            host.node.gate_open(Bucket(bucket), Micros(clock.0.saturating_sub(transmit)))
        };
        (0..self.hosts.len()).filter(|id| open(&self.hosts[*id])).collect()
    }

    fn check(&self) -> Result<(), String> {
        for bucket in 0..self.template.buckets {
            let open = self.open_gates(bucket);
            if open.len() > 1 {
                let views: Vec<_> = open.iter().map(|id| self.hosts[*id].node.view()).collect();
                return Err(format!("bucket {bucket}: gates open at nodes {open:?}, views {views:?}"));
            }
            for id in open {
                let host = &self.hosts[id];
                let Some(replica) = host.replica.logs.get(&bucket).filter(|_| host.up) else { continue };
                let Some(wire) = self.wire.get(&(bucket, replica.data_epoch)) else { continue };
                let lacks = (0..wire.len())
                    .find(|at| wire[*at].is_some() && replica.log.get(*at) != wire[*at].as_ref());
                if let Some(at) = lacks {
                    return Err(format!(
                        "bucket {bucket}: node {id} serves it without position {at}, which was emitted"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The incarnation of each host.
    pub(crate) fn incarnations(&self) -> Vec<Member> {
        self.hosts.iter().map(|host| host.node.me()).collect()
    }

    /// Whether one of these hosts serves each bucket.
    pub(crate) fn is_served_by(&self, ids: &[usize]) -> bool {
        let serves = |id: &usize, bucket| {
            let host = &self.hosts[*id];
            host.node.gate_open(Bucket(bucket), host.clock(self.now))
        };
        (0..self.template.buckets).all(|bucket| ids.iter().any(|id| serves(id, bucket)))
    }

    /// Whether all running nodes are in one view, and every bucket is served with its backups in sync.
    pub(crate) fn is_settled(&self) -> bool {
        let running: Vec<usize> = (0..self.hosts.len()).filter(|id| self.hosts[*id].up).collect();
        let set: MemberSet = running.iter().map(|id| NodeId(*id as u8)).collect();
        let Some(first) = running.first() else { return true };
        let view = self.hosts[*first].node.view();
        let backups = usize::from(self.template.backups).min(running.len().saturating_sub(1));
        let together = running.iter().all(|id| {
            let node = &self.hosts[*id].node;
            node.view().is_some()
                && node.view() == view
                && node.phase() == NodePhase::Active
                && node.members().set() == set
        });
        together
            && (0..self.template.buckets).all(|bucket| {
                let open: Vec<usize> = running
                    .iter()
                    .copied()
                    .filter(|id| {
                        self.hosts[*id].node.gate_open(Bucket(bucket), self.hosts[*id].clock(self.now))
                    })
                    .collect();
                let [owner] = open[..] else { return false };
                match self.hosts[owner].node.role(Bucket(bucket)) {
                    Role::Owner { required, syncing, freeze_for: None, .. } => {
                        syncing.is_empty() && required.len() >= backups
                    }
                    _ => false,
                }
            })
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("at {} us, cut {:?}\n", self.now, self.cut);
        for (id, host) in self.hosts.iter().enumerate() {
            let node = &host.node;
            let view = node.view().map(|view| (view.epoch, view.proposer.0));
            text += &format!(
                "  {id}: up {} paused {} witness {} {:?} view {view:?} members {:?} reachable {:?}\n",
                host.up,
                host.paused,
                host.witness,
                node.phase(),
                node.members().set(),
                node.reachable_nodes(),
            );
            for bucket in 0..self.template.buckets.min(30) {
                text += &format!("    {bucket}: {}\n", describe_role(node.role(Bucket(bucket))));
            }
        }
        text
    }
}

/// Prints an event when `CLUSTER_TRACE` is set.
fn trace(now: u64, id: usize, event: &Event) {
    match event {
        Event::Installed { view, members } => {
            println!("{now} node {id} installed {} of {:?} by {}", view.epoch, members.set(), view.proposer);
        }
        Event::Role { bucket, role } => {
            println!("{now} node {id} bucket {}: {}", bucket.0, describe_role(*role))
        }
        other => println!("{now} node {id} {other:?}"),
    }
}

fn describe_role(role: Role) -> String {
    match role {
        Role::Outside { owner, .. } => format!("outside, owner {owner:?}"),
        Role::Backup { owner, in_sync, data_epoch, .. } => {
            format!("backup of {owner}, in sync {in_sync}, data epoch {}", data_epoch.0.epoch)
        }
        Role::Owner { begin, required, syncing, freeze_for, data_epoch, .. } => format!(
            "owner, {begin:?}, required {required:?}, syncing {syncing:?}, freeze {freeze_for:?}, data epoch {}",
            data_epoch.0.epoch
        ),
    }
}

impl Host {
    /// The machine's clock.
    pub(crate) fn clock(&self, now: u64) -> Micros {
        let drift = now as i128 * i128::from(self.drift_ppm) / 1_000_000;
        Micros(self.skew + (now as i128 + drift) as u64)
    }

    /// The time at which the machine's clock shows `clock`, within a microsecond.
    fn true_time(&self, clock: Micros) -> u64 {
        let local = clock.0.saturating_sub(self.skew) as i128;
        (local * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) + 1) as u64
    }
}
