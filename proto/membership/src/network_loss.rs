//! Being cut off from one of the two networks while the other one works.
//!
//! Such a node still sends heartbeats, so nobody replaces it, but it cannot do its work: without the inside it reaches
//! neither servers nor backups, without the outside no clients. Those who share both networks can go on with its
//! connections, so it gives its life up, says so on the network that is left, and stays away until it is back on both.
//!
//! A node that owns something of which nobody else has a copy gives its life up only when that lasts: nobody could go on with it, and a
//! neighbour that has just come back may not find it on one network for a second.
//!
//! In majority mode such a node may be one that the others cannot go on without. It gives its life up all the same, but joins
//! again at once: its vote needs one network only, and while it is cut off it takes no buckets. In that mode the new life remembers
//! the view that the one before gave up, as a vote must: a majority knows every view that there was.
//!
//! Invariant: a network that is gone for everybody makes nobody leave. The node needs the word of another that hears a
//! third one there, for longer than such a word can be old; or its own card has lost the carrier, or hears nobody and no witness, and
//! another's is better off ([`Reach`]). Two nodes that are equally bad off cannot know whose side is broken, and both stay.

use evergate_base::Micros;

use crate::config::Mode;
use crate::message::{AnnouncedPhase, ClaimedState, Heartbeat, Holds};
use crate::{MemberSet, Node, NodeId, Path, Reach};

/// How much longer a node waits that holds something alone.
const ALONE_FACTOR: u64 = 10;

impl Node {
    /// What this machine can tell of a network. It works until told otherwise.
    pub fn set_reach(&mut self, now: Micros, path: Path, reach: Reach) {
        self.note_now(now);
        if let Some(known) = self.reach.get_mut(path.index())
            && *known != reach
        {
            *known = reach;
            self.due = true;
        }
    }

    /// How long a network must be gone for this node alone before it gives its place up, where what it can tell is found out late, by
    /// others as well. As long as a word takes, until told otherwise.
    pub fn set_loss_timeout(&mut self, path: Path, patience: Micros) {
        if let Some(known) = self.reach_patience.get_mut(path.index()) {
            *known = patience;
        }
    }

    /// How long that is at least. Who has no place takes none meanwhile.
    fn unplugged_for(&self, path: Path) -> Micros {
        let word = Micros(self.config.timing.heartbeat.0.saturating_mul(3));
        let patience = self.reach_patience.get(path.index()).copied().unwrap_or(word);
        if self.established { word.max(patience) } else { word }
    }

    /// What a node can tell of a network, as it says. `None` for a node that is not heard.
    pub fn reach_of(&self, id: NodeId, path: Path) -> Option<Reach> {
        let reach = match id == self.me.id {
            true => self.reach,
            false => self.peers.get(&id)?.last.filter(|_| self.is_reachable(id))?.reach,
        };
        reach.get(path.index()).copied()
    }

    /// What this node can tell of a network.
    fn own_reach(&self, path: Path) -> Reach {
        self.reach.get(path.index()).copied().unwrap_or_default()
    }

    /// Whether whoever said this can work with a network, as far as it can see, or at least better than this node.
    fn is_of_use(&self, last: &Heartbeat, path: Path) -> bool {
        let reported = last.reach.get(path.index()).copied().unwrap_or_default();
        reported == Reach::Works || reported > self.own_reach(path)
    }

    /// The network that this node is cut off from, while others use it.
    pub fn cut_off(&self) -> Option<Path> {
        if self.unplugged_since == [None; 2] && self.deaf_since == [None; 2] {
            return None; // as almost always, and without a look at every bucket
        }
        let now = self.last_timer_at.unwrap_or(self.now);
        let lasts = |since: &[Option<Micros>; 2], path: Path, span: Micros| {
            since.get(path.index()).copied().flatten().is_some_and(|at| now.since(at) >= span)
        };
        let suspect = self.config.timing.suspect;
        let times = |span: Micros, count: u64| Micros(span.0.saturating_mul(count));
        Path::ALL.into_iter().find(|path| {
            let factor = if self.holds_alone(*path) { ALONE_FACTOR } else { 1 };
            // A cable has two ends: the other node's word that it lost its carrier too takes a moment.
            lasts(&self.unplugged_since, *path, times(self.unplugged_for(*path), factor))
                && self.unplugged_alone.get(path.index()).copied().unwrap_or(false)
                || lasts(&self.deaf_since, *path, times(suspect, factor))
        })
    }

    /// Whether there is a bucket of this node that nobody else could go on with: those who have a copy have lost this network as
    /// well, as far as they have said.
    fn holds_alone(&self, path: Path) -> bool {
        let works = |id: NodeId| {
            let last = self.peers.get(&id).and_then(|peer| peer.last.as_ref());
            last.is_none_or(|last| self.is_of_use(last, path))
        };
        let bare = |state: &crate::bucket_state::BucketState| {
            state.owner == Some(self.me.id) && !state.backups.iter().any(works)
        };
        self.established && self.bucket_states.iter().any(bare)
    }

    /// Notes since when a network works for others only.
    fn note_reach(&mut self, now: Micros) {
        let since = |before: Option<Micros>, is: bool| if is { before.or(Some(now)) } else { None };
        if self.words().next().is_none() {
            return self.reset_network_loss(now);
        }
        for path in Path::ALL {
            let (deaf, unplugged) = (self.is_alone_on(path), self.is_unplugged(path));
            if let Some(at) = self.deaf_since.get_mut(path.index()) {
                *at = since(*at, deaf);
            }
            if let Some(at) = self.unplugged_since.get_mut(path.index()) {
                *at = since(*at, unplugged);
            }
            let reported = self.is_contradicted(path);
            if let Some(alone) = self.unplugged_alone.get_mut(path.index()) {
                *alone = unplugged && (*alone || reported);
            }
        }
    }

    /// With nobody to compare with, a network is not gone for this node alone. A new life has heard no word yet: what was so still
    /// is, as long as a word may come, the carrier is not back, and nothing could be founded alone.
    fn reset_network_loss(&mut self, now: Micros) {
        let received_at = self.peers.values().filter_map(|peer| peer.last_received()).max();
        let silent_since = self.listen_since.max(self.silence_floor).max(received_at.unwrap_or(Micros(0)));
        let founds = self.config.mode == Mode::Witness && self.is_witnessed();
        let alone = self.established || (founds && now.since(silent_since) >= self.listen_for);
        for (path, reach) in self.reach.into_iter().enumerate() {
            if self.established || reach == Reach::Works {
                (self.unplugged_since[path], self.unplugged_alone[path]) = (None, false);
            }
            if alone {
                self.deaf_since[path] = None;
            }
        }
    }

    /// A node that cannot work gives way to those who can.
    pub(crate) fn give_way(&mut self, now: Micros) {
        self.note_reach(now);
        if !self.established || self.cut_off().is_none() {
            return;
        }
        let needed = self.is_needed();
        if needed && !(self.owns_any() && self.has_whole_peer()) {
            return; // nobody would go on with anything
        }
        // Those with the copies go on, if need be in a view in which this node only votes.
        let held = (self.config.mode == Mode::Majority).then(|| self.empty_claim());
        self.void(!needed);
        self.remembered = held;
    }

    /// What a promise says of the installed view when nothing is held of it any more.
    fn empty_claim(&self) -> ClaimedState {
        let mut held = self.claimed_state();
        held.claims.iter_mut().for_each(|claim| claim.holds = Holds::Nothing);
        held
    }

    /// Majority mode: how many nodes are heard, this one included, and how many a view needs.
    pub fn quorum(&self) -> Option<(usize, usize)> {
        let majority = self.config.mode == Mode::Majority;
        majority.then(|| (self.reachable_set().len(), self.config.majority()))
    }

    /// Majority mode: whether of the others that are heard too few hear each other to go on without this node. Of those that are cut
    /// off as it is none goes on.
    pub(crate) fn is_needed(&self) -> bool {
        if self.config.mode != Mode::Majority {
            return false;
        }
        let lost = self.cut_off();
        let continues = |(id, last): &(NodeId, &Heartbeat)| {
            let works = |path: Path| {
                self.is_of_use(last, path)
                    && last
                        .peer_input
                        .get(path.index())
                        .is_some_and(|peer_input| !peer_input.without(*id).is_empty())
            };
            let votes = matches!(
                last.state,
                AnnouncedPhase::Active | AnnouncedPhase::Fenced | AnnouncedPhase::Listen
            );
            votes && lost.is_none_or(works)
        };
        let others: MemberSet = self.words().filter(continues).map(|(id, _)| id).collect();
        self.joined(MemberSet::EMPTY, others).len() < self.config.majority()
    }

    /// Whether this node votes and takes no buckets, because it is cut off and the others need it.
    pub(crate) fn only_votes(&self) -> bool {
        self.cut_off().is_some() && self.is_needed()
    }

    fn owns_any(&self) -> bool {
        self.bucket_states.iter().any(|state| state.owner == Some(self.me.id))
    }

    /// Whether another member takes buckets.
    fn has_whole_peer(&self) -> bool {
        let takes = |peer: &crate::peer::Peer| {
            let member = peer.member();
            self.members.contains(member)
                && self.is_incarnation_reachable(member)
                && peer.last.is_some_and(|last| !last.draining)
        };
        self.peers.values().any(takes)
    }

    /// Nodes heard lately on one network.
    pub(crate) fn reachable_on(&self, path: Path) -> MemberSet {
        let now = self.last_timer_at.unwrap_or(self.now);
        let lately = |id: &NodeId| {
            let at =
                self.peers.get(id).and_then(|peer| peer.received_at.get(path.index()).copied().flatten());
            at.is_some_and(|at| now.since(at.max(self.silence_floor)) < self.config.timing.suspect)
        };
        self.peers.keys().copied().filter(lately).collect()
    }

    /// The last words of the nodes that are heard at all.
    pub(crate) fn words(&self) -> impl Iterator<Item = (NodeId, &Heartbeat)> {
        self.peers
            .iter()
            .filter(|(id, _)| self.is_reachable(**id))
            .filter_map(|(id, peer)| Some((*id, peer.last.as_ref()?)))
    }

    /// Whether another node has said so long after this one's network went that its own is better off, as its echo of our clock proves:
    /// this node may be late to read. What it said before may be about to be wrong: where both networks go at once, or it is late
    /// to notice, no newer word comes.
    fn is_contradicted(&self, path: Path) -> bool {
        let span = self.unplugged_for(path);
        let Some(since) = self.unplugged_since.get(path.index()).copied().flatten() else { return false };
        let reported =
            |last: &Heartbeat| self.is_of_use(last, path) && Micros(last.echo_us).since(since) >= span;
        self.peers.values().any(|peer| peer.last.as_ref().is_some_and(reported))
    }

    fn is_unplugged(&self, path: Path) -> bool {
        self.own_reach(path) != Reach::Works && self.words().any(|(_, last)| self.is_of_use(last, path))
    }

    /// Nobody is heard on a network, or nobody there hears this node, and somebody hears a third one there.
    fn is_alone_on(&self, path: Path) -> bool {
        let on = |last: &Heartbeat| last.peer_input.get(path.index()).copied().unwrap_or_default();
        let third = |(id, last): (NodeId, &Heartbeat)| !on(last).without(self.me.id).without(id).is_empty();
        self.is_unreachable_on(path) && self.words().any(third)
    }

    /// Whether other nodes are heard, but none on this network, or none of them hears this node there. Whose side is broken does
    /// not follow from that alone.
    pub fn is_unreachable_on(&self, path: Path) -> bool {
        let receives_us = |last: &Heartbeat| {
            last.peer_input.get(path.index()).is_some_and(|peer_input| peer_input.contains(self.me.id))
        };
        let deaf = self.reachable_on(path).is_empty();
        let mute = self.words().all(|(_, last)| !receives_us(last));
        (deaf || mute) && self.words().next().is_some()
    }
}
