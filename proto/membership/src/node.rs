//! One node of the cluster: datagrams and time in; datagrams, leases and roles of buckets out.
//!
//! `handle_datagram` only takes notes, installs views and changes single buckets; everything that concludes something
//! from silence happens in `handle_timer`, so that a node that was paused first hears what is queued for it.
//!
//! Invariants (checked by [`Node::check_invariants`]): the installed view never goes back; a promise is above the
//! installed view; what a commit waits for is always listed in the gate; a node without state owns nothing.
//! What it does not do: read clocks, send, draw randomness, or know what is in a mirror.

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

/// How many datagrams may wait to be sent; what does not fit is dropped and counted, as the network might.
pub const TRANSMITS_MAX: usize = 4096;

/// One node. See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) keys: Keyring,
    pub(crate) me: Member,
    /// The first life of this process.
    pub(crate) born: Incarnation,
    /// The newest clock seen in any call: never earlier than what it is compared with.
    pub(crate) now: Micros,
    pub(crate) started_at: Micros,
    pub(crate) last_timer_at: Option<Micros>,
    /// Silence counts from here at the earliest.
    pub(crate) silence_floor: Micros,
    pub(crate) peers: BTreeMap<NodeId, Peer>,

    // The installed view.
    pub(crate) established: bool,
    pub(crate) view: ViewId,
    pub(crate) members: Members,
    pub(crate) map: Vec<Assignment>,
    pub(crate) installed_at: Micros,
    pub(crate) bucket_states: Vec<BucketState>,

    // The next one.
    pub(crate) promised: ViewId,
    pub(crate) pending: Option<Pending>,
    pub(crate) proposal: Option<Proposal>,
    /// Since when a change of the view is wanted, for the stagger.
    pub(crate) wanted_since: Option<Micros>,
    /// Since when views and promises of members have differed.
    pub(crate) unsettled_since: Option<Micros>,
    /// A member of the view has promised one without this node, and this node hears it.
    pub(crate) excluded: bool,

    // Reaching both networks.
    pub(crate) reach: [Reach; 2],
    pub(crate) reach_patience: [Micros; 2],
    /// Since when others use a network that this node cannot use.
    pub(crate) deaf_since: [Option<Micros>; 2],
    pub(crate) unplugged_since: [Option<Micros>; 2],
    /// Another node has said long enough afterwards that its own works.
    pub(crate) unplugged_alone: [bool; 2],

    // Being sure of it.
    pub(crate) witness_until: Micros,
    pub(crate) witness_since: Option<Micros>,
    pub(crate) witness_asked_at: Micros,
    pub(crate) opened: bool,
    pub(crate) lapsed_at: Option<Micros>,
    /// The view that this life's predecessor gave up in order, because it was cut off, and of which nothing is held.
    pub(crate) remembered: Option<crate::message::ClaimedState>,
    /// Since when what this node remembers has only kept those from founding a cluster that are heard.
    pub(crate) memory_blocks_since: Option<Micros>,
    /// Since when this node has kept one that has a witness from going on without one that is fenced.
    pub(crate) blocks_majority_since: Option<Micros>,
    /// When the last lapse ended with the same view.
    pub(crate) renewed_at: Option<Micros>,
    pub(crate) left: bool,

    // Listening.
    pub(crate) listen_since: Micros,
    pub(crate) listen_for: Micros,
    pub(crate) active_received_at: Option<Micros>,
    /// When a heartbeat that was not for this life told of a view.
    pub(crate) stray_at: Option<Micros>,
    pub(crate) hold_down: Micros,
    pub(crate) held_until: Micros,
    /// Until when this node founds nothing, because there may be a cluster that it does not understand.
    pub(crate) foreign_until: Micros,

    // Work.
    pub(crate) progress_at: Option<Micros>,
    pub(crate) draining: bool,
    /// What this node has, newest first.
    pub(crate) configurations: [u64; CONFIGURATIONS],
    pub(crate) drained_logged: bool,
    /// Number and work of the own buckets, and when they were summed up.
    pub(crate) load: (u16, u64),
    pub(crate) load_at: Option<Micros>,
    /// When their work was averaged last.
    pub(crate) smoothed_at: Micros,
    /// Buckets with outstanding operations, and those of them that have not been sent yet.
    pub(crate) busy: BTreeSet<u16>,
    pub(crate) urgent: BTreeSet<u16>,
    pub(crate) ops_at: Micros,
    pub(crate) balance_at: Micros,
    /// When load is evened next; copies are looked after more often.
    pub(crate) even_at: Micros,
    pub(crate) replies: BTreeMap<NodeId, Vec<crate::message::Op>>,
    pub(crate) next_heartbeat: Micros,
    /// Whether the next calm heartbeats go outside.
    pub(crate) outside_next: bool,
    /// Something is to be concluded at once.
    pub(crate) due: bool,

    // Out.
    outbox: VecDeque<Transmit>,
    transmits_dropped: u64,
    rejected: [u64; Rejected::ALL.len()],
    voided: bool,
    installed: bool,
    pub(crate) changed: BTreeSet<u16>,
    reported_roles: BTreeMap<u16, Role>,
    reported: Option<NodePhase>,
    pub(crate) drained: bool,
}

impl Node {
    /// A node that has just started. `incarnation` is random and not zero; `now` is the clock that the gate also reads.
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
            reach_patience: [Micros(0); 2],
            deaf_since: [None; 2],
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
            held_until: Micros(0),
            foreign_until: Micros(0),
            progress_at: None,
            draining: config.weight == 0,
            configurations: [0; CONFIGURATIONS],
            drained_logged: false,
            load: (0, 0),
            load_at: None,
            smoothed_at: now,
            busy: BTreeSet::new(),
            urgent: BTreeSet::new(),
            ops_at: now,
            balance_at: now + config.timing.balance,
            even_at: now + config.timing.balance,
            replies: BTreeMap::new(),
            next_heartbeat: now,
            outside_next: false,
            due: true,
            outbox: VecDeque::new(),
            transmits_dropped: 0,
            rejected: [0; Rejected::ALL.len()],
            voided: false,
            installed: false,
            changed: BTreeSet::new(),
            reported_roles: BTreeMap::new(),
            reported: None,
            drained: false,
            config,
            keys,
        })
    }

    // ---- getters ----

    /// This node in its present life.
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

    /// The node's own standing.
    pub fn standing(&self) -> NodePhase {
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

    /// For how long this node may not join yet: it has lost its place lately, and waits longer each time that this happens
    /// again soon.
    pub fn rejoin_delay(&self, now: Micros) -> Option<Micros> {
        let waits = self.standing() == NodePhase::Listening && now < self.held_until && !self.is_needed();
        waits.then(|| self.held_until.since(now))
    }

    /// Whether this node may not join, though it could: others go on better without it.
    pub(crate) fn is_rejoin_blocked(&self) -> bool {
        (self.now < self.held_until || self.cut_off().is_some()) && !self.is_needed()
    }

    /// How many datagrams were dropped for this reason.
    pub fn rejected(&self, reason: Rejected) -> u64 {
        let at = Rejected::ALL.iter().position(|known| *known == reason);
        at.and_then(|at| self.rejected.get(at)).copied().unwrap_or(0)
    }

    /// How many datagrams were dropped because [`TRANSMITS_MAX`] waited.
    pub fn transmits_dropped(&self) -> u64 {
        self.transmits_dropped
    }

    /// When a node was last heard on a path.
    pub fn last_received_at(&self, id: NodeId, path: Path) -> Option<Micros> {
        self.peers.get(&id).and_then(|peer| peer.received_at.get(path.index()).copied().flatten())
    }

    /// The nodes heard lately, this one included.
    pub fn hearing(&self) -> MemberSet {
        self.reachable_set()
    }

    /// When [`Node::handle_timer`] is next due.
    pub fn poll_timeout(&self) -> Micros {
        if self.due {
            return Micros(0);
        }
        let wanted = [self.promise_due(), self.proposal_due()];
        wanted.into_iter().flatten().fold(self.next_heartbeat, Micros::min)
    }

    // ---- inputs ----

    /// Takes in a datagram. `now` is read after it was received.
    pub fn handle_datagram(&mut self, now: Micros, path: Path, datagram: &[u8]) {
        self.note_now(now);
        if let Err(reason) = self.take_in(path, datagram) {
            self.reject(reason);
        }
    }

    /// Concludes and sends what is due. To be called when [`Node::poll_timeout`] is reached and after datagrams; `now`
    /// is read *before* the sockets were last drained, so that a peer is not found silent whose words are queued.
    pub fn handle_timer(&mut self, now: Micros) {
        let gap = self.last_timer_at.map_or(Micros(0), |at| now.since(at));
        self.last_timer_at = Some(self.last_timer_at.map_or(now, |at| at.max(now)));
        if gap > self.fence() {
            // We were paused: silence is ours, not theirs.
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

    /// The workers made progress. Once called, heartbeats stop when it is not called for
    /// [`crate::Timing::stall_max`]: a node that answers but does not work must be replaced.
    pub fn handle_progress(&mut self, now: Micros) {
        self.progress_at = Some(self.progress_at.map_or(now, |at| at.max(now)));
    }

    /// Leaves at once: drops all state, closes the gate for good, and says so. Buckets that were not drained before
    /// are taken over from their backups.
    pub fn leave(&mut self, now: Micros) {
        self.note_now(now);
        self.void(false);
        self.left = true;
        self.next_heartbeat = now;
        self.due = true;
    }

    /// What somebody who has closed this node's gate for good may say in its name: the heartbeats that [`Node::leave`] would
    /// send now. The others believe them for about a second, because they echo their clocks.
    pub fn farewell(&mut self, now: Micros) -> Vec<Transmit> {
        // It says nothing of buckets, which are most of what there is to copy.
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

    /// The next event. To be polled until `None` after every call of a `handle_*`, before transmits.
    pub fn poll_event(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.voided) {
            self.reported_roles.clear();
            return Some(Event::Voided);
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
        if self.reported != Some(self.standing()) {
            self.reported = Some(self.standing());
            return Some(Event::Standing(self.standing()));
        }
        std::mem::take(&mut self.drained).then_some(Event::Drained)
    }

    // ---- inside ----

    /// Notes the clock, and a lapse before anything could hide it.
    pub(crate) fn note_now(&mut self, now: Micros) {
        self.now = self.now.max(now);
        if self.witness_until <= self.now {
            self.witness_since = None;
        }
        self.watch_lapse();
    }

    pub(crate) fn reject(&mut self, reason: Rejected) {
        let at = Rejected::ALL.iter().position(|known| *known == reason);
        if let Some(count) = at.and_then(|at| self.rejected.get_mut(at)) {
            *count += 1;
        }
    }

    fn take_in(&mut self, path: Path, datagram: &[u8]) -> Result<(), Rejected> {
        let message = self.open(datagram)?;
        let header = message.header;
        if !self.peers.contains_key(&header.from.id) {
            return Err(Rejected::UnknownSender);
        }
        if header.to.id != self.me.id {
            return Err(Rejected::WrongReceiver);
        }
        if header.to.incarnation == Incarnation::UNKNOWN {
            // Proves nothing: it may be a replay. An answer lets the sender prove that it hears us.
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

    /// Version, key and tag come before anything is parsed.
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

    /// Queues a message to the adopted life of a node, on every path.
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

    /// Drops all state and begins a new life. `hold` makes it wait, longer each time, before it joins again.
    pub(crate) fn void(&mut self, hold: bool) {
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
        self.busy.clear();
        self.urgent.clear();
        self.replies.clear();
        for (bucket, state) in (0u16..).zip(self.bucket_states.iter_mut()) {
            if state.forget() {
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
            self.held_until = self.now + self.hold_down;
            let doubled = Micros(self.hold_down.0.saturating_mul(2));
            self.hold_down = doubled.min(self.config.timing.hold_down_max);
        }
        self.voided |= had_state;
        self.next_heartbeat = self.now;
        self.due = true;
    }

    pub(crate) fn note_installed(&mut self) {
        self.installed = true;
        self.next_heartbeat = self.now;
        self.due = true;
    }
}
