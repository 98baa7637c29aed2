//! The agent: the thread that runs the cluster protocol.
//!
//! Its loop follows `evergate_membership`: read the clock, drain the sockets, apply events, write leases, conclude,
//! send. It does nothing that may wait. Log lines and look-ups go to the housekeeper. The status is published only
//! while no reader holds its lock. A wake-up costs more than a turn, so calm heartbeats and the answers to regular
//! pings are read in the turn that sends the next heartbeats.
//!
//! Invariants: the gate gets a role before the workers do, and shorter leases before roles. Leases are revoked first
//! when a view begins or all state is dropped.

use super::Report;
mod apply_events;
mod inputs;
mod publish;
mod warnings;

use apply_events::Doings;
use warnings::Delay;

use super::address_announcer::AddressAnnouncer;
use super::address_probe::AddressProbes;
use super::death_notifier::DeathNotifier;
use super::gate_words::GateWords;
use super::housekeeping::{Housekeeper, Line};
use super::mailbox::Mailbox;
use super::routes::RouteLost;
use super::status::{ClusterCounts, ClusterStatus};
use super::timing::ChosenTiming;
use super::witness_ping::Witnesses;
use evergate_agent::Notice;
use evergate_base::Micros;
use evergate_bpf::{Leases, PacketGate};
use evergate_membership::{Bucket, CONFIGURATIONS, Node, NodeId, NodePhase, Path};
use evergate_sys::{Datagrams, Epoll};
use evergate_worker::Instruction;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

/// Bytes of the receive buffer, one more than any message of the protocol: a longer message is cut, and rejected for
/// it.
const DATAGRAM_BYTES: usize = evergate_membership::DATAGRAM_BYTES_MAX + 1;
/// Longest wait of the event loop.
const WAIT_MAX: Micros = Micros::from_ms(100);
/// Time between two publications of the status.
const PUBLISH: Micros = Micros::from_ms(100);
/// Epoll token of the sockets: datagrams and answers of witnesses.
const NETWORK: u64 = 0;
/// Epoll token of the mailbox of commands.
const COMMANDS: u64 = 1;
/// Epoll token of the mailbox of reports.
const REPORTS: u64 = 2;
/// Delay of a turn from which on datagrams may wait in a socket without an epoll event.
const LATE: Micros = Micros(1000);
/// Time until a mailbox that another thread held is tried again.
const RETRY: Micros = Micros(500);
/// The bucket whose owner announces the movable addresses.
pub(crate) const ADDRESS_BUCKET: Bucket = Bucket(0);
/// Time between two log lines about a network on which this node cannot send.
const BLOCKED_SEND_LINES: Micros = Micros::from_ms(10_000);
/// Number of LEAVE heartbeats before the process ends.
const LEAVES: u64 = 3;

/// A command to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentCommand {
    /// Hand all buckets off and accept none, or accept buckets again.
    Drain(bool),
    /// Announce that this node has these configurations, newest first.
    Configurations([u64; CONFIGURATIONS]),
    /// Leave the cluster permanently.
    Leave,
    /// Leave the cluster and end.
    Stop,
}

/// One of the two networks.
pub(crate) struct Link {
    pub(crate) path: Path,
    /// Name of the interface.
    pub(crate) interface: String,
    /// Number of the interface when the node started.
    pub(crate) index: u32,
    pub(crate) datagrams: Datagrams,
    pub(crate) peers: BTreeMap<NodeId, SocketAddr>,
    /// This machine cannot send there as this node: its address or its route is missing.
    pub(crate) blocked: bool,
    /// Why the network counts as lost, as of the last check.
    pub(crate) lack: Option<inputs::Lack>,
}

/// Whether the error is independent of the destination: the kernel refuses this node's address before it looks up the
/// peer.
fn is_of_this_end(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, InvalidInput, NetworkDown, NetworkUnreachable};
    matches!(error.kind(), AddrNotAvailable | InvalidInput | NetworkDown | NetworkUnreachable)
}

/// The agent's parts that last as long as its thread.
pub(crate) struct Agent {
    pub(crate) node: Node,
    pub(crate) gate: Arc<PacketGate>,
    pub(crate) links: [Link; 2],
    pub(crate) witnesses: Option<Witnesses>,
    pub(crate) announcer: AddressAnnouncer,
    pub(crate) probes: AddressProbes,
    /// Every node gets the frames for the shared addresses, not only one.
    pub(crate) flood: bool,
    pub(crate) workers: usize,
    pub(crate) commands: Arc<Mailbox<AgentCommand>>,
    /// Reports, each with its worker's number.
    pub(crate) reports: Arc<Mailbox<(usize, Report)>>,
    pub(crate) notify: Box<dyn Fn(usize, Instruction) + Send>,
    /// Whether the workers make progress; a node whose workers stand still must be replaced.
    pub(crate) working: Box<dyn FnMut() -> bool + Send>,
    pub(crate) housekeeper: Housekeeper,
    pub(crate) route_lost: RouteLost,
    pub(crate) published: Arc<Mutex<ClusterStatus>>,
    /// The status that is published next.
    pub(crate) status: ClusterStatus,
    pub(crate) clock: Clock,
    pub(crate) timing: ChosenTiming,
}

/// The gate's clock in microseconds. It runs while the machine is suspended, and the agent's waits do not: after a
/// suspend, due work is done when the current wait ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// Offset for tests with differing clocks.
    pub(crate) ahead: Micros,
}

impl Clock {
    pub(crate) fn now(self) -> Micros {
        Micros(Leases::now_ns() / 1000) + self.ahead
    }

    /// A time of this clock as the gate compares it.
    pub(crate) fn gate_ns(self, at: Micros) -> u64 {
        (at - self.ahead).0.saturating_mul(1000)
    }
}

/// State of the running agent.
struct State {
    epoll: Epoll,
    /// The request for a witness that was last sent to the witnesses, as the time from which answers count.
    asked_for: Option<Micros>,
    /// Answers of witnesses wake the agent up.
    expects: bool,
    /// Decides between the protocol, the gate and the workers.
    core: evergate_agent::Agent,
    words: GateWords,
    notices: Vec<Notice>,
    death_notifier: Option<DeathNotifier>,
    counts: ClusterCounts,
    unlisted: u64,
    foreign_logged_at: Option<Micros>,
    unlisted_received_at: Option<Micros>,
    unlisted_logged_at: Option<Micros>,
    blocked_send_logged_at: BTreeMap<Path, Micros>,
    warnings: warnings::Warnings,
    installed_at: Micros,
    /// Since when this node has not been active.
    inactive_since: Option<Micros>,
    draining: bool,
    publish_at: Micros,
    /// When the workers last made progress.
    progress_at: Option<Micros>,
    carriers_at: Micros,
    cards_at: Micros,
    /// Another thread held a mailbox.
    retry: bool,
    /// Reused memory for reports.
    reports: Vec<(usize, Report)>,
    stop_at: Option<Micros>,
    buffer: Vec<u8>,
}

impl Agent {
    /// Runs until a stop command, or until waiting itself fails.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let epoll = Epoll::new(8)?;
        for link in &self.links {
            epoll.add_input(link.datagrams.urgent.as_raw_fd(), NETWORK)?;
        }
        epoll.add_input(self.commands.waker().fd(), COMMANDS)?;
        epoll.add_input(self.reports.waker().fd(), REPORTS)?;
        let leases = self.gate.leases();
        leases.revoke_all();
        let death_notifier = DeathNotifier::new(&self.links, &leases);
        if let Err(error) = &death_notifier {
            self.warn(format!(
                "cannot start the process that reports its death: {error}; the other nodes will detect its end by \
                 silence"
            ));
        }
        let mut words = GateWords::new(self.gate.clone(), self.clock);
        let mut notices = Vec::new();
        let core = {
            let mut outside = Doings { words: &mut words, notify: &*self.notify, notices: &mut notices };
            evergate_agent::Agent::new(self.node.me().id, self.workers, &mut outside)
        };
        let mut state = State {
            epoll,
            asked_for: None,
            expects: false,
            core,
            words,
            notices,
            death_notifier: death_notifier.ok(),
            counts: ClusterCounts::default(),
            unlisted: 0,
            foreign_logged_at: None,
            unlisted_received_at: None,
            unlisted_logged_at: None,
            blocked_send_logged_at: BTreeMap::new(),
            warnings: warnings::Warnings::default(),
            installed_at: Micros(0),
            inactive_since: None,
            draining: false,
            publish_at: Micros(0),
            progress_at: None,
            carriers_at: Micros(0),
            cards_at: Micros(0),
            retry: false,
            reports: Vec::new(),
            stop_at: None,
            buffer: vec![0; DATAGRAM_BYTES],
        };
        let outcome = self.turns(&mut state);
        state.words.revoke_leases();
        if let Some(death_notifier) = state.death_notifier.take().filter(|_| outcome.is_ok()) {
            death_notifier.dismiss();
        }
        self.housekeeper.finish();
        outcome
    }

    fn turns(&mut self, state: &mut State) -> std::io::Result<()> {
        loop {
            let now = self.clock.now();
            if state.stop_at.is_some_and(|at| now >= at) {
                return Ok(());
            }
            let wait = self.wait(state, now);
            let count = state.epoll.wait_us(wait.0)?;
            let woken_at = self.clock.now();
            let late = woken_at.since(now + wait);
            // An interrupted wait, as by a pause of the process, reports no ready socket.
            let mut has_input = late >= LATE;
            for index in 0..count {
                match state.epoll.event(index).token {
                    COMMANDS => self.commands.waker().drain(),
                    REPORTS => self.reports.waker().drain(),
                    _ => has_input = true,
                }
            }
            // Before the turn, which may bring the consequences.
            state.warnings.record_delay(woken_at, Delay::Agent(late), self.node.config().timing);
            self.turn(state, has_input);
            self.check_cards(state)?;
            let (now, took) = (self.clock.now(), self.clock.now().since(woken_at));
            state.warnings.record_delay(now, Delay::Agent(took), self.node.config().timing);
            state.record_turn(late, took);
        }
    }

    fn wait(&self, state: &State, now: Micros) -> Micros {
        let others = [
            Some(self.node.poll_timeout()),
            self.node.witness_wanted().filter(|from| state.asked_for != Some(*from)),
            self.announcer.next_at(),
            Some(state.publish_at),
            state.stop_at,
            state.retry.then(|| now + RETRY),
        ];
        others.into_iter().flatten().map(|at| at.since(now)).fold(WAIT_MAX, Micros::min)
    }

    /// One turn of the loop. `has_input`: an urgent socket may have input.
    fn turn(&mut self, state: &mut State, has_input: bool) {
        let before = self.clock.now();
        // Reports first: the agent must know every acknowledgement before it answers a message that follows from it.
        self.handle_mailboxes(state);
        for index in 0..self.links.len() {
            if self.drain_link(state, index, has_input) {
                self.apply_events(state);
            }
        }
        while let Some(witnesses) = self.witnesses.as_mut().filter(|all| has_input || all.are_asked())
            && let Some(asked_at) = witnesses.answer(self.clock.now())
        {
            let now = self.clock.now();
            self.node.set_witness(now, asked_at, true);
            self.apply_events(state);
        }
        if before >= state.carriers_at {
            // With every heartbeat: a node that waits longer for its peer takes a broken network for its own cable.
            state.carriers_at = before + Micros(self.node.config().timing.heartbeat.0 / 2);
            self.check_carriers(before);
        }
        if (self.working)() {
            let stalled = state.progress_at.map_or(Micros(0), |at| before.since(at));
            state.warnings.record_delay(before, Delay::Workers(stalled), self.node.config().timing);
            state.progress_at = Some(before);
            self.node.handle_progress(before);
        }
        self.node.handle_timer(before);
        self.apply_events(state);
        let now = self.clock.now();
        self.ask_witnesses(state, now);
        self.announcer.poll(now, self.node.gate_open(ADDRESS_BUCKET, now));
        self.send(state);
        self.housekeeper.flush_log();
        if now >= state.publish_at {
            self.publish(state, now);
        }
    }

    /// Handles reports and commands. A mailbox that another thread holds waits for the next turn.
    fn handle_mailboxes(&mut self, state: &mut State) {
        let (mut reports, mut commands) = (std::mem::take(&mut state.reports), Vec::new());
        state.retry = !self.reports.try_take(&mut reports) | !self.commands.try_take(&mut commands);
        for (worker, report) in reports.drain(..) {
            self.handle_report(state, worker, report);
        }
        state.reports = reports;
        for command in commands {
            self.handle_command(state, command);
        }
        self.apply_events(state);
    }

    fn handle_command(&mut self, state: &mut State, command: AgentCommand) {
        let now = self.clock.now();
        match command {
            AgentCommand::Drain(draining) => {
                state.draining = draining;
                state.core.set_draining(&mut self.node, now, draining);
                self.info(if draining {
                    "drains: its buckets move to the other nodes"
                } else {
                    "accepts buckets again"
                });
            }
            AgentCommand::Configurations(names) => self.node.set_configurations(now, names),
            AgentCommand::Leave | AgentCommand::Stop => {
                if self.node.phase() != NodePhase::Left {
                    self.node.leave(now);
                }
                if command == AgentCommand::Stop {
                    let heartbeat = self.node.config().timing.heartbeat;
                    state.stop_at = Some(now + Micros(heartbeat.0 * LEAVES));
                }
            }
        }
        state.publish_at = now;
    }

    fn handle_report(&mut self, state: &mut State, worker: usize, report: Report) {
        let now = self.clock.now();
        let State { core, words, notices, .. } = state;
        let mut outside = Doings { words, notify: &*self.notify, notices };
        core.handle_report(&mut self.node, now, (worker, report), &mut outside);
        self.handle_notices(state);
    }

    fn send(&mut self, state: &mut State) {
        let mut refused: BTreeMap<Path, std::io::Error> = BTreeMap::new();
        let mut sent = BTreeSet::new();
        while let Some(transmit) = self.node.poll_transmit() {
            let Some(link) = self.links.iter().find(|link| link.path == transmit.path) else { continue };
            let Some(to) = link.peers.get(&transmit.to) else { continue };
            // A datagram that cannot be sent counts as lost on the way.
            match link.datagrams.urgent.send_to(&transmit.bytes, to) {
                Ok(_) => {
                    state.counts.datagrams_sent += 1;
                    sent.insert(link.path);
                }
                Err(error) => {
                    state.counts.datagrams_unsent += 1;
                    if is_of_this_end(&error) {
                        refused.insert(link.path, error);
                    }
                }
            }
        }
        // If this node can send to one peer, only the route to the other peer is wrong.
        refused.retain(|path, _| !sent.contains(path));
        for link in &mut self.links {
            link.blocked = (link.blocked && !sent.contains(&link.path)) || refused.contains_key(&link.path);
        }
        for (path, error) in refused {
            self.log_blocked_send(state, path, &error);
        }
    }

    fn log_blocked_send(&mut self, state: &mut State, path: Path, error: &std::io::Error) {
        let now = self.clock.now();
        if state.blocked_send_logged_at.get(&path).is_some_and(|at| now.since(*at) < BLOCKED_SEND_LINES) {
            return;
        }
        state.blocked_send_logged_at.insert(path, now);
        let Some(link) = self.links.iter().find(|link| link.path == path) else { return };
        self.warn(format!(
            "cannot send on {} from its own address: {error}, which counts as a lost carrier; check that the interface \
             still has the address of [[cluster.nodes]] and its route",
            link.interface
        ));
    }

    fn log_handoffs(&mut self, state: &mut State, now: Micros) {
        if let Some(handoffs) = state.core.take_handoffs(now) {
            self.info(format!(
                "received {} buckets by handoff within {:.1} s: {} connections continue, {} are lost",
                handoffs.buckets,
                handoffs.span().as_ms() as f64 / 1000.0,
                handoffs.connections,
                handoffs.lost
            ));
        }
    }

    fn publish(&mut self, state: &mut State, now: Micros) {
        state.publish_at = now + PUBLISH;
        self.probe_addresses(now);
        self.describe(state, now);
        self.log_handoffs(state, now);
        self.warn_all(state, now);
        if let Some(death_notifier) = &mut state.death_notifier {
            death_notifier.leave(&self.links, &self.node.leave_heartbeats(now));
        }
        // The agent never waits for a reader.
        if let Ok(mut published) = self.published.try_lock() {
            published.clone_from(&self.status);
        }
    }

    fn info(&mut self, text: impl AsRef<str>) {
        let line = self.line(text.as_ref());
        self.housekeeper.log(Line::Info(line));
    }

    fn warn(&mut self, text: String) {
        let line = self.line(&text);
        self.housekeeper.log(Line::Warning(line));
    }

    fn line(&self, text: &str) -> String {
        format!("cluster {}: node {} {text}", self.status.name, self.status.node)
    }
}

impl State {
    /// A turn began `late` after it was due, and took `took`.
    fn record_turn(&mut self, late: Micros, took: Micros) {
        self.counts.late_us_max = self.counts.late_us_max.max(late.0);
        self.counts.turn_us_max = self.counts.turn_us_max.max(took.0);
    }
}
