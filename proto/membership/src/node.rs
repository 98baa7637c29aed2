//! One node of the cluster: datagrams and time in; datagrams, leases and roles of buckets out.
//!
//! `handle_datagram` only records reports, installs views and changes single buckets. All conclusions from silence
//! happen in `handle_timer`, so that a node that was paused first processes its queued datagrams.
//!
//! Invariants (checked by [`Node::check_invariants`]): the installed view never goes back; a promise is above the
//! installed view; the gate lists every backup that commits wait for; a node without state owns nothing.
//! Not done here: reading clocks, sending, drawing randomness, reading the contents of a replica.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evergate_base::Micros;

use crate::bucket_state::BucketState;
use crate::config::{Config, ConfigError};
use crate::key::{Keyring, TAG_BYTES};
use crate::message::{Assignment, Body, DecodeError, Header, Message, VERSION};
use crate::peer::Peer;
use crate::view_change::{Pending, Proposal};
use crate::{
    CONFIGURATIONS, Event, Incarnation, Member, MemberSet, Members, NodeId, NodePhase, Path, Reach, Rejected,
    Role, Transmit, ViewId,
};

/// Most datagrams that wait to be sent. A further one is dropped and counted, as if the network had lost it.
pub const TRANSMITS_MAX: usize = 4096;

/// State machine of one node: see the module's description.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) keys: Keyring,
    pub(crate) me: Member,
    /// The first incarnation of this process.
    pub(crate) born: Incarnation,
    /// The newest clock of any call: never earlier than a time it is compared with.
    pub(crate) now: Micros,
    pub(crate) started_at: Micros,
    pub(crate) last_timer_at: Option<Micros>,
    /// Silence counts from this time at the earliest.
    pub(crate) silence_floor: Micros,
    pub(crate) peers: BTreeMap<NodeId, Peer>,

    // Installed view.
    pub(crate) established: bool,
    pub(crate) view: ViewId,
    pub(crate) members: Members,
    pub(crate) map: Vec<Assignment>,
    pub(crate) installed_at: Micros,
    pub(crate) bucket_states: Vec<BucketState>,

    // Next view.
    pub(crate) promised: ViewId,
    pub(crate) pending: Option<Pending>,
    pub(crate) proposal: Option<Proposal>,
    /// Since then a change of the view has been wanted, for the stagger.
    pub(crate) wanted_since: Option<Micros>,
    /// Since then views and promises of members have differed.
    pub(crate) unsettled_since: Option<Micros>,
    /// A reachable member of the view promised a view without this node.
    pub(crate) excluded: bool,

    // State of both networks.
    pub(crate) reach: [Reach; 2],
    pub(crate) loss_timeouts: [Micros; 2],
    /// Since then other nodes have used a network on which this node receives no heartbeats, or is not received.
    pub(crate) isolated_since: [Option<Micros>; 2],
    pub(crate) unplugged_since: [Option<Micros>; 2],
    /// Another node reported, long enough after the loss, that its own network works.
    pub(crate) unplugged_alone: [bool; 2],

    // Leases and witness.
    pub(crate) witness_until: Micros,
    pub(crate) witness_since: Option<Micros>,
    pub(crate) witness_asked_at: Micros,
    pub(crate) opened: bool,
    pub(crate) lapsed_at: Option<Micros>,
    /// The view that this incarnation's predecessor gave up in order because it lost a network. Nothing of it is held.
    pub(crate) remembered: Option<crate::message::ClaimedState>,
    /// Since then this node's remembered view has been the only thing that blocks reachable nodes from bootstrapping.
    pub(crate) memory_blocks_since: Option<Micros>,
    /// Since then this node has blocked a witnessed member from a view without a fenced one.
    pub(crate) blocks_majority_since: Option<Micros>,
    /// End of the last lapse that ended with the same view.
    pub(crate) renewed_at: Option<Micros>,
    pub(crate) left: bool,

    // Listening.
    pub(crate) listen_since: Micros,
    pub(crate) listen_for: Micros,
    pub(crate) active_received_at: Option<Micros>,
    /// Time of the last heartbeat to another incarnation that announced a view.
    pub(crate) stray_at: Option<Micros>,
    pub(crate) hold_down: Micros,
    pub(crate) rejoin_blocked_until: Micros,
    /// Until then this node does not bootstrap, because it may not understand the datagrams of an existing cluster.
    pub(crate) foreign_until: Micros,

    // Load and operations.
    pub(crate) progress_at: Option<Micros>,
    pub(crate) draining: bool,
    /// This node's configurations, newest first.
    pub(crate) configurations: [u64; CONFIGURATIONS],
    pub(crate) drained_logged: bool,
    /// Number and work of the owned buckets, at `load_at`.
    pub(crate) load: (u16, u64),
    pub(crate) load_at: Option<Micros>,
    /// Time of the last averaging of the work.
    pub(crate) smoothed_at: Micros,
    /// Buckets with outstanding operations.
    pub(crate) with_operations: BTreeSet<u16>,
    pub(crate) unsent: BTreeSet<u16>,
    pub(crate) ops_at: Micros,
    pub(crate) balance_at: Micros,
    /// Time of the next rebalancing. Backups are checked more often.
    pub(crate) rebalance_at: Micros,
    pub(crate) replies: BTreeMap<NodeId, Vec<crate::message::Op>>,
    pub(crate) next_heartbeat: Micros,
    /// Whether the next calm heartbeats go outside.
    pub(crate) outside_next: bool,
    /// A call of [`Node::handle_timer`] is due at once.
    pub(crate) due: bool,

    // Outputs.
    outbox: VecDeque<Transmit>,
    transmits_dropped: u64,
    rejected: [u64; Rejected::ALL.len()],
    state_dropped: bool,
    installed: bool,
    pub(crate) changed: BTreeSet<u16>,
    reported_roles: BTreeMap<u16, Role>,
    reported_phase: Option<NodePhase>,
    pub(crate) drained: bool,
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
        let peers = config.nodes.without(config.id).iter().map(|id| (id, Peer::new(id))).collect();
        let buckets = usize::from(config.buckets);
        Ok(Node {
            me: Member { id: config.id, incarnation },
            born: incarnation,
            now,
            started_at: now,
            last_timer_at: None,
            silence_floor: now,
            peers,
            established: false,
            view: ViewId::NONE,
            members: Members::default(),
            map: Vec::new(),
            installed_at: now,
            bucket_states: vec![BucketState::default(); buckets],
            promised: ViewId::NONE,
            pending: None,
            proposal: None,
            wanted_since: None,
            unsettled_since: None,
            excluded: false,
            reach: [Reach::Works; 2],
            loss_timeouts: [Micros(0); 2],
            isolated_since: [None; 2],
            unplugged_since: [None; 2],
            unplugged_alone: [false; 2],
            witness_until: Micros(0),
            witness_since: None,
            witness_asked_at: Micros(0),
            opened: false,
            lapsed_at: None,
            remembered: None,
            memory_blocks_since: None,
            blocks_majority_since: None,
            renewed_at: None,
            left: false,
            listen_since: now,
            listen_for: config.timing.listen_start,
            active_received_at: None,
            stray_at: None,
            hold_down: config.timing.hold_down_min,
            rejoin_blocked_until: Micros(0),
            foreign_until: Micros(0),
            progress_at: None,
            draining: config.weight == 0,
            configurations: [0; CONFIGURATIONS],
            drained_logged: false,
            load: (0, 0),
            load_at: None,
            smoothed_at: now,
            with_operations: BTreeSet::new(),
            unsent: BTreeSet::new(),
            ops_at: now,
            balance_at: now + config.timing.balance,
            rebalance_at: now + config.timing.balance,
            replies: BTreeMap::new(),
            next_heartbeat: now,
            outside_next: false,
            due: true,
            outbox: VecDeque::new(),
            transmits_dropped: 0,
            rejected: [0; Rejected::ALL.len()],
            state_dropped: false,
            installed: false,
            changed: BTreeSet::new(),
            reported_roles: BTreeMap::new(),
            reported_phase: None,
            drained: false,
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
        self.established.then_some(self.view)
    }

    /// Members of the installed view.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The node's phase.
    pub fn phase(&self) -> NodePhase {
        if self.left {
            NodePhase::Left
        } else if !self.established {
            NodePhase::Listening
        } else if self.lapsed_at.is_some() || self.excluded {
            NodePhase::Fenced
        } else {
            NodePhase::Active
        }
    }

    /// Time for which this node may not join yet, because it lost its place lately. The delay grows with each such loss
    /// that follows soon.
    pub fn rejoin_delay(&self, now: Micros) -> Option<Micros> {
        let waits =
            self.phase() == NodePhase::Listening && now < self.rejoin_blocked_until && !self.is_needed();
        waits.then(|| self.rejoin_blocked_until.since(now))
    }

    /// Whether this node may not join although it could, because the other nodes are better off without it.
    pub(crate) fn is_rejoin_blocked(&self) -> bool {
        (self.now < self.rejoin_blocked_until || self.cut_off().is_some()) && !self.is_needed()
    }

    /// Number of datagrams that were dropped for this reason.
    pub fn rejected(&self, reason: Rejected) -> u64 {
        let at = Rejected::ALL.iter().position(|known| *known == reason);
        at.and_then(|at| self.rejected.get(at)).copied().unwrap_or(0)
    }

    /// Number of datagrams that were dropped because [`TRANSMITS_MAX`] waited.
    pub fn transmits_dropped(&self) -> u64 {
        self.transmits_dropped
    }

    /// Time of the last reception from a node on a path.
    pub fn last_received_at(&self, id: NodeId, path: Path) -> Option<Micros> {
        self.peers.get(&id).and_then(|peer| peer.received_at.get(path.index()).copied().flatten())
    }

    /// The nodes that were received lately, this one included.
    pub fn reachable_nodes(&self) -> MemberSet {
        self.reachable_set()
    }

    /// Time at which [`Node::handle_timer`] is next due.
    pub fn poll_timeout(&self) -> Micros {
        if self.due {
            return Micros(0);
        }
        let wanted = [self.promise_due(), self.proposal_due()];
        wanted.into_iter().flatten().fold(self.next_heartbeat, Micros::min)
    }

    // ---- inputs ----

    /// Processes a datagram. `now` is read after its reception.
    pub fn handle_datagram(&mut self, now: Micros, path: Path, datagram: &[u8]) {
        self.note_now(now);
        if let Err(reason) = self.process_datagram(path, datagram) {
            self.reject(reason);
        }
    }

    /// Concludes and sends what is due. Called when [`Node::poll_timeout`] is reached and after datagrams. `now` is
    /// read *before* the sockets were last drained, so that a peer with queued datagrams does not count as silent.
    pub fn handle_timer(&mut self, now: Micros) {
        let gap = self.last_timer_at.map_or(Micros(0), |at| now.since(at));
        self.last_timer_at = Some(self.last_timer_at.map_or(now, |at| at.max(now)));
        if gap > self.fence() {
            // This node was paused: the silence is its own, not that of its peers.
            self.silence_floor = now;
            self.witness_since = None;
        }
        self.note_now(now);
        self.due = false;
        if !self.left {
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
        self.progress_at = Some(self.progress_at.map_or(now, |at| at.max(now)));
    }

    /// Leaves at once: drops all state, closes the gate permanently, and announces it. Buckets that were not drained
    /// before fail over to their backups.
    pub fn leave(&mut self, now: Micros) {
        self.note_now(now);
        self.drop_state(false);
        self.left = true;
        self.next_heartbeat = now;
        self.due = true;
    }

    /// The heartbeats that [`Node::leave`] would send now, for a process that has closed this node's gate permanently
    /// and announces the end in the node's name. Peers accept them for about a second, because they echo the peers'
    /// clocks.
    pub fn leave_heartbeats(&mut self, now: Micros) -> Vec<Transmit> {
        // The heartbeats need no buckets, which are most of the state to clone.
        let buckets = (
            std::mem::take(&mut self.map),
            std::mem::take(&mut self.bucket_states),
            std::mem::take(&mut self.reported_roles),
        );
        let mut gone = self.clone();
        (self.map, self.bucket_states, self.reported_roles) = buckets;
        gone.progress_at = None;
        gone.outbox.clear();
        gone.leave(now);
        gone.handle_timer(now);
        gone.outbox.into()
    }

    // ---- outputs ----

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// The next event. Polled until `None` after every call of a `handle_*`, before transmits.
    pub fn poll_event(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.state_dropped) {
            self.reported_roles.clear();
            return Some(Event::StateDropped);
        }
        if std::mem::take(&mut self.installed) && self.established {
            return Some(Event::Installed { view: self.view, members: self.members.clone() });
        }
        while let Some(bucket) = self.changed.pop_first() {
            let role = self.role(crate::Bucket(bucket));
            if self.reported_roles.insert(bucket, role) != Some(role) {
                return Some(Event::Role { bucket: crate::Bucket(bucket), role });
            }
        }
        if self.reported_phase != Some(self.phase()) {
            self.reported_phase = Some(self.phase());
            return Some(Event::Phase(self.phase()));
        }
        std::mem::take(&mut self.drained).then_some(Event::Drained)
    }

    // ---- inside ----

    /// Records the clock, and a lapse before any other input could hide it.
    pub(crate) fn note_now(&mut self, now: Micros) {
        self.now = self.now.max(now);
        if self.witness_until <= self.now {
            self.witness_since = None;
        }
        self.update_lapse();
    }

    pub(crate) fn reject(&mut self, reason: Rejected) {
        let at = Rejected::ALL.iter().position(|known| *known == reason);
        if let Some(count) = at.and_then(|at| self.rejected.get_mut(at)) {
            *count += 1;
        }
    }

    fn process_datagram(&mut self, path: Path, datagram: &[u8]) -> Result<(), Rejected> {
        let message = self.open(datagram)?;
        let header = message.header;
        if !self.peers.contains_key(&header.from.id) {
            return Err(Rejected::UnknownSender);
        }
        if header.to.id != self.me.id {
            return Err(Rejected::WrongReceiver);
        }
        if header.to.incarnation == Incarnation::UNKNOWN {
            // The message proves nothing: it may be a replay. An answer lets the sender prove that it receives this
            // node.
            self.note_stray(&message);
            let Some(peer) = self.peers.get_mut(&header.from.id) else { return Ok(()) };
            if let Body::Heartbeat(heartbeat) = &message.body
                && peer.handle_hello(&header, heartbeat, self.now, self.config.timing.heartbeat)
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
        let peer = self.peers.get_mut(&header.from.id).ok_or(Rejected::UnknownSender)?;
        peer.admit(&header, echo, self.now)?;
        if self.left {
            return Ok(());
        }
        self.due = true;
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
        let Some(incarnation) = self.peers.get(&to).map(|peer| peer.incarnation) else { return };
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
            let Some(peer) = self.peers.get_mut(&to) else { return };
            let header = Header {
                version: VERSION,
                key: self.keys.sending(),
                calm,
                cluster: self.config.cluster,
                from: self.me,
                to: Member { id: to, incarnation },
                view: if self.established { self.view } else { ViewId::NONE },
                sequence: peer.next_sequence(),
            };
            let message = Message { header, body: body.clone() };
            match message.encode(&self.keys) {
                Ok(bytes) if self.outbox.len() < TRANSMITS_MAX => {
                    self.outbox.push_back(Transmit { to, path, bytes });
                }
                _ => self.transmits_dropped += 1,
            }
        }
    }

    /// Drops all state and begins a new incarnation. With `hold` the node waits before it joins again, longer each
    /// time.
    pub(crate) fn drop_state(&mut self, hold: bool) {
        let had_state = self.established;
        self.me.incarnation = self.me.incarnation.next();
        self.established = false;
        self.view = ViewId::NONE;
        self.members = Members::default();
        self.map.clear();
        self.pending = None;
        self.proposal = None;
        self.wanted_since = None;
        self.unsettled_since = None;
        self.excluded = false;
        self.opened = false;
        self.lapsed_at = None;
        self.remembered = None;
        self.memory_blocks_since = None;
        self.blocks_majority_since = None;
        self.with_operations.clear();
        self.unsent.clear();
        self.replies.clear();
        for (bucket, state) in (0u16..).zip(self.bucket_states.iter_mut()) {
            if state.reset() {
                self.changed.insert(bucket);
            }
        }
        for peer in self.peers.values_mut() {
            peer.reset_for_new_incarnation();
        }
        self.listen_since = self.now;
        self.listen_for = self.config.timing.listen_lapse;
        self.active_received_at = None;
        if hold {
            self.rejoin_blocked_until = self.now + self.hold_down;
            let doubled = Micros(self.hold_down.0.saturating_mul(2));
            self.hold_down = doubled.min(self.config.timing.hold_down_max);
        }
        self.state_dropped |= had_state;
        self.next_heartbeat = self.now;
        self.due = true;
    }

    pub(crate) fn note_installed(&mut self) {
        self.installed = true;
        self.next_heartbeat = self.now;
        self.due = true;
    }
}
