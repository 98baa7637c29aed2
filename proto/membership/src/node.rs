//! One node of the cluster: datagrams and time in; datagrams, leases and roles of buckets out.
//!
//! `handle_datagram` only records reports, installs views and changes single buckets. All conclusions from silence
//! happen in `handle_timer`, so that a node that was paused first processes its queued datagrams.
//!
//! Invariants (checked by [`Node::check_invariants`]): the installed view never goes back; a promise is above the
//! installed view; the gate lists every backup that commits wait for; a node without state owns nothing.
//! Not done here: reading clocks, sending, drawing randomness, reading the contents of a replica.

use std::collections::BTreeMap;

use evergate_base::Micros;

use crate::announcer::Announcer;
use crate::ballot::Ballot;
use crate::buckets::Buckets;
use crate::clock::Clock;
use crate::config::{Config, ConfigError};
use crate::join::JoinConditions;
use crate::key::{Keyring, TAG_BYTES};
use crate::message::{Body, ClaimedState, DecodeError, Header, Message, VERSION};
use crate::network_loss::NetworkLoss;
use crate::outbox::Outbox;
use crate::peers::Peers;
use crate::phase::{Listening, PhaseEvent};
use crate::phase_machine::PhaseMachine;
use crate::rebalance::Rebalancer;
use crate::transition_set::TransitionSet;
use crate::witness::Witness;
use crate::{
    CONFIGURATIONS, Event, Incarnation, Member, MemberSet, Members, NodeId, NodePhase, Path, Rejected,
    Transmit, ViewId,
};

/// State machine of one node: see the module's description.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) keys: Keyring,
    pub(crate) me: Member,
    pub(crate) clock: Clock,
    pub(crate) peers: Peers,

    pub(crate) phase: PhaseMachine,
    pub(crate) ballot: Ballot,
    pub(crate) witness: Witness,
    pub(crate) join: JoinConditions,
    pub(crate) network: NetworkLoss,
    pub(crate) buckets: Buckets,
    pub(crate) rebalancer: Rebalancer,
    /// This node's configurations, newest first.
    pub(crate) configurations: [u64; CONFIGURATIONS],
    pub(crate) announcer: Announcer,
    pub(crate) outbox: Outbox,
}

impl Node {
    /// A started node. `incarnation` is random and not zero; `now` is the clock that the gate reads as well.
    pub fn new(
        config: Config,
        keys: Keyring,
        incarnation: Incarnation,
        now: Micros,
    ) -> Result<Node, ConfigError> {
        config.check()?;
        let incarnation = Incarnation(incarnation.0.max(1));
        Ok(Node {
            me: Member { id: config.id, incarnation },
            clock: Clock::new(now),
            peers: Peers::new(&config),
            phase: PhaseMachine::new(Listening { since: now, span: config.timing.listen_start }),
            ballot: Ballot::default(),
            witness: Witness::default(),
            join: JoinConditions::new(&config.timing),
            network: NetworkLoss::default(),
            buckets: Buckets::new(config.buckets, now),
            rebalancer: Rebalancer::new(config.weight, config.timing.balance, now),
            configurations: [0; CONFIGURATIONS],
            announcer: Announcer::new(incarnation, now),
            outbox: Outbox::default(),
            config,
            keys,
        })
    }

    // ---- getters ----

    /// This node in its current incarnation.
    pub fn me(&self) -> Member {
        self.me
    }

    /// The configuration it runs with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The installed view, if any.
    pub fn view(&self) -> Option<ViewId> {
        self.phase.installed().map(|installed| installed.view)
    }

    /// Members of the installed view.
    pub fn members(&self) -> &Members {
        self.phase.members()
    }

    /// The node's phase.
    pub fn phase(&self) -> NodePhase {
        self.phase.node_phase()
    }

    /// The transitions of the phase since the last call, for the coverage of tests.
    pub fn take_transitions(&mut self) -> TransitionSet {
        self.phase.take_transitions()
    }

    /// Time for which this node may not join yet, because it lost its place lately. The delay grows with each such loss
    /// that follows soon.
    pub fn rejoin_delay(&self, now: Micros) -> Option<Micros> {
        let waits =
            self.phase() == NodePhase::Listening && now < self.join.blocked_until && !self.is_needed();
        waits.then(|| self.join.blocked_until.since(now))
    }

    /// Whether this node may not join although it could, because the other nodes are better off without it.
    pub(crate) fn is_rejoin_blocked(&self) -> bool {
        (self.clock.now < self.join.blocked_until || self.cut_off().is_some()) && !self.is_needed()
    }

    /// Number of datagrams that were dropped for this reason.
    pub fn rejected(&self, reason: Rejected) -> u64 {
        self.outbox.rejected(reason)
    }

    /// Number of datagrams that were dropped because [`crate::TRANSMITS_MAX`] waited.
    pub fn transmits_dropped(&self) -> u64 {
        self.outbox.transmits_dropped()
    }

    /// Time of the last reception from a node on a path.
    pub fn last_received_at(&self, id: NodeId, path: Path) -> Option<Micros> {
        self.peers.get(id).and_then(|peer| peer.received_at.get(path.index()).copied().flatten())
    }

    /// The nodes that were received lately, this one included.
    pub fn reachable_nodes(&self) -> MemberSet {
        self.reachable_set()
    }

    /// Time at which [`Node::handle_timer`] is next due.
    pub fn poll_timeout(&self) -> Micros {
        if self.clock.due {
            return Micros(0);
        }
        let wanted = [self.promise_due(), self.proposal_due()];
        wanted.into_iter().flatten().fold(self.announcer.next_at, Micros::min)
    }

    // ---- inputs ----

    /// Processes a datagram. `now` is read after its reception.
    pub fn handle_datagram(&mut self, now: Micros, path: Path, datagram: &[u8]) {
        self.note_now(now);
        if let Err(reason) = self.process_datagram(path, datagram) {
            self.outbox.reject(reason);
        }
    }

    /// Concludes and sends what is due. Called when [`Node::poll_timeout`] is reached and after datagrams. `now` is
    /// read *before* the sockets were last drained, so that a peer with queued datagrams does not count as silent.
    pub fn handle_timer(&mut self, now: Micros) {
        let lease = self.fence();
        if self.clock.begin_turn(now, lease) {
            self.witness.restart();
        }
        self.note_now(now);
        self.clock.due = false;
        if !self.phase.has_left() {
            self.advance_view(now);
            self.advance_ops();
            self.advance_balance(now);
        }
        self.send_ops();
        self.send_heartbeats(now);
    }

    /// The workers made progress. After the first call heartbeats stop when no call follows for
    /// [`crate::Timing::stall_max`]: a node that answers but does not work must be replaced.
    pub fn handle_progress(&mut self, now: Micros) {
        self.announcer.note_progress(now);
    }

    /// Leaves at once: drops all state, closes the gate permanently, and announces it. Buckets that were not drained
    /// before fail over to their backups.
    pub fn leave(&mut self, now: Micros) {
        self.note_now(now);
        self.drop_components(false);
        self.phase.leave();
        self.announcer.next_at = now;
        self.clock.due = true;
    }

    /// The heartbeats that [`Node::leave`] would send now, for a process that has closed this node's gate permanently
    /// and announces the end in the node's name. Peers accept them for about a second, because they echo the peers'
    /// clocks.
    pub fn leave_heartbeats(&mut self, now: Micros) -> Vec<Transmit> {
        // The heartbeats need no buckets, which are most of the state to clone.
        let mut roles = BTreeMap::new();
        self.outbox.swap_reported_roles(&mut roles);
        let map = self.phase.installed_mut().map(|view| std::mem::take(&mut view.map));
        let states = std::mem::take(&mut self.buckets.states);
        let mut gone = self.clone();
        self.buckets.states = states;
        if let (Some(view), Some(map)) = (self.phase.installed_mut(), map) {
            view.map = map;
        }
        self.outbox.swap_reported_roles(&mut roles);
        gone.announcer.forget_progress();
        gone.outbox.clear_transmits();
        gone.leave(now);
        gone.handle_timer(now);
        gone.outbox.into_transmits()
    }

    // ---- outputs ----

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.poll_transmit()
    }

    /// The next event. Polled until `None` after every call of a `handle_*`, before transmits.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.outbox.poll_state_dropped() {
            return Some(Event::StateDropped);
        }
        if self.outbox.poll_installed()
            && let Some(installed) = self.phase.installed()
        {
            return Some(Event::Installed { view: installed.view, members: installed.members.clone() });
        }
        while let Some(bucket) = self.buckets.changed.pop_first() {
            let role = self.role(crate::Bucket(bucket));
            if self.outbox.is_new_role(bucket, role) {
                return Some(Event::Role { bucket: crate::Bucket(bucket), role });
            }
        }
        let phase = self.phase();
        self.outbox.poll_phase(phase).or_else(|| self.outbox.poll_drained().then_some(Event::Drained))
    }

    // ---- inside ----

    /// Records the clock, and a lapse before any other input could hide it.
    pub(crate) fn note_now(&mut self, now: Micros) {
        self.clock.note(now);
        self.witness.note_now(self.clock.now);
        self.update_lapse();
    }

    fn process_datagram(&mut self, path: Path, datagram: &[u8]) -> Result<(), Rejected> {
        let message = self.open(datagram)?;
        let header = message.header;
        if !self.peers.contains(header.from.id) {
            return Err(Rejected::UnknownSender);
        }
        if header.to.id != self.me.id {
            return Err(Rejected::WrongReceiver);
        }
        if header.to.incarnation == Incarnation::UNKNOWN {
            // The message proves nothing: it may be a replay. An answer lets the sender prove that it receives this
            // node.
            self.note_stray(&message);
            let Some(peer) = self.peers.get_mut(header.from.id) else { return Ok(()) };
            if let Body::Heartbeat(heartbeat) = &message.body
                && peer.handle_hello(&header, heartbeat, self.clock.now, self.config.timing.heartbeat)
            {
                self.answer_hello(header.from.id);
            }
            return Ok(());
        }
        if header.to.incarnation != self.me.incarnation {
            self.note_stray(&message);
            return Err(Rejected::WrongReceiver);
        }
        let echo =
            if let Body::Heartbeat(heartbeat) = &message.body { Some(heartbeat.echo_us) } else { None };
        let peer = self.peers.get_mut(header.from.id).ok_or(Rejected::UnknownSender)?;
        peer.admit(&header, echo, self.clock.now)?;
        if self.phase.has_left() {
            return Ok(());
        }
        self.clock.due = true;
        match message.body {
            Body::Heartbeat(heartbeat) => self.handle_heartbeat(&header, &heartbeat, path),
            Body::Prepare(prepare) => self.handle_prepare(&header, prepare),
            Body::Promise(promise) => self.handle_promise(&header, promise),
            Body::Commit(commit) => self.handle_commit(&header, commit),
            Body::Ops(ops) => self.handle_ops(&header, &ops),
            Body::Yield(view) => self.handle_yield(view),
        }
    }

    /// Checks version, key and tag before anything is parsed.
    pub(crate) fn open(&self, datagram: &[u8]) -> Result<Message, Rejected> {
        let [version, key, ..] = *datagram else { return Err(Rejected::Malformed) };
        if version != VERSION {
            return Err(Rejected::Version);
        }
        let end = datagram.len().checked_sub(TAG_BYTES).ok_or(Rejected::Malformed)?;
        let (signed, tag) = datagram.split_at_checked(end).ok_or(Rejected::Malformed)?;
        match self.keys.verify(crate::key::KeyId(key), signed, tag) {
            None => return Err(Rejected::UnknownKey),
            Some(false) => return Err(Rejected::Forged),
            Some(true) => {}
        }
        let message = Message::decode(datagram).map_err(|error| match error {
            DecodeError::Version(_) => Rejected::Version,
            _ => Rejected::Malformed,
        })?;
        if message.header.cluster == self.config.cluster { Ok(message) } else { Err(Rejected::WrongCluster) }
    }

    /// Queues a message to the adopted incarnation of a node, on every path.
    pub(crate) fn send(&mut self, to: NodeId, body: &Body) {
        let Some(incarnation) = self.peers.get(to).map(|peer| peer.incarnation) else { return };
        if incarnation != Incarnation::UNKNOWN {
            self.send_to(to, incarnation, body);
        }
    }

    pub(crate) fn send_to(&mut self, to: NodeId, incarnation: Incarnation, body: &Body) {
        self.send_on(&Path::ALL, to, incarnation, body, false);
    }

    pub(crate) fn send_on(
        &mut self,
        paths: &[Path],
        to: NodeId,
        incarnation: Incarnation,
        body: &Body,
        calm: bool,
    ) {
        for path in paths.iter().copied() {
            let Some(peer) = self.peers.get_mut(to) else { return };
            let header = Header {
                version: VERSION,
                key: self.keys.sending(),
                calm,
                cluster: self.config.cluster,
                from: self.me,
                to: Member { id: to, incarnation },
                view: self.phase.view(),
                sequence: peer.next_sequence(),
            };
            let message = Message { header, body: body.clone() };
            let bytes = message.encode(&self.keys).ok();
            self.outbox.push(bytes.map(|bytes| Transmit { to, path, bytes }));
        }
    }

    /// Drops all state and begins a new incarnation. With `hold` the node waits before it joins again, longer each
    /// time. `memory` is the view that its next promises still report.
    pub(crate) fn drop_state(&mut self, event: PhaseEvent, hold: bool, memory: Option<ClaimedState>) {
        self.drop_components(hold);
        let listening = Listening { since: self.clock.now, span: self.config.timing.listen_lapse };
        self.phase.drop_view(event, listening, memory);
    }

    /// Drops all state outside the phase.
    fn drop_components(&mut self, hold: bool) {
        let had_state = self.phase.is_established();
        self.me.incarnation = self.me.incarnation.next();
        self.ballot.end();
        self.buckets.reset();
        for peer in self.peers.values_mut() {
            peer.reset_for_new_incarnation();
        }
        self.join.active_received_at = None;
        if hold {
            self.join.hold_down(self.clock.now, &self.config.timing);
        }
        if had_state {
            self.outbox.note_state_dropped();
        }
        self.announcer.next_at = self.clock.now;
        self.clock.due = true;
    }

    pub(crate) fn note_installed(&mut self) {
        self.outbox.note_installed();
        self.announcer.next_at = self.clock.now;
        self.clock.due = true;
    }
}
