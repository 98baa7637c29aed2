//! Loss of one of the two networks while the other one works.
//!
//! Such a node still sends heartbeats, so it is not replaced, but it cannot do its work: without the inside it reaches
//! neither servers nor backups, without the outside no clients. Nodes on both networks can continue its connections. So
//! it drops its state, announces that on the other network, and stays away until it is back on both.
//!
//! A node that owns a bucket without another replica drops its state only when the loss lasts: no node could continue
//! with the bucket. A neighbour that has just returned may not receive the node on one network for a second.
//!
//! In majority mode the other nodes may need the node's vote. It drops its state all the same, but joins again at once:
//! a vote needs one network only, and until the node is back on both it receives no buckets. Its new incarnation
//! remembers the view that the previous one gave up, as a vote must: a majority knows every view.
//!
//! Invariant: a loss that all nodes share makes no node leave. The node needs a report of another one that receives a
//! third one there, for longer than such a report can be old. Or its own interface has no carrier, or it receives
//! neither a node nor a witness there, and another node is better off ([`Reach`]). Two nodes that are equally bad off
//! cannot know which side is broken, and both stay.

use evergate_base::Micros;

use crate::config::Mode;
use crate::message::{AnnouncedPhase, ClaimedState, Heartbeat, Holds};
use crate::phase::{Listening, PhaseEvent};
use crate::{MemberSet, Node, NodeId, Path, Reach};

/// Factor on the waiting time of a node that holds the only replica of a bucket.
const ALONE_FACTOR: u64 = 10;

/// State of both networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NetworkLoss {
    /// This machine's state of each network.
    pub(crate) reach: [Reach; 2],
    /// For how long only this node must lack a network before it gives its place up.
    timeouts: [Micros; 2],
    /// Since then other nodes have used a network on which this node receives no heartbeats, or is not received.
    isolated_since: [Option<Micros>; 2],
    /// Since then this machine's interface has had no use, while another node has used the network.
    unplugged_since: [Option<Micros>; 2],
    /// Another node reported, long enough after the loss, that its own network works.
    unplugged_alone: [bool; 2],
}

impl Node {
    /// Sets this machine's state of a network. The default is `Works`.
    pub fn set_reach(&mut self, now: Micros, path: Path, reach: Reach) {
        self.note_now(now);
        if let Some(known) = self.network.reach.get_mut(path.index())
            && *known != reach
        {
            *known = reach;
            self.clock.due = true;
        }
    }

    /// Sets for how long only this node must lack a network before it gives its place up, where it and other nodes
    /// detect a loss late. The default is the delay of a report.
    pub fn set_loss_timeout(&mut self, path: Path, timeout: Micros) {
        if let Some(known) = self.network.timeouts.get_mut(path.index()) {
            *known = timeout;
        }
    }

    /// The least such time. A node without a place waits for a report only.
    fn unplugged_for(&self, path: Path) -> Micros {
        let report_delay = Micros(self.config.timing.heartbeat.0.saturating_mul(3));
        let timeout = self.network.timeouts.get(path.index()).copied().unwrap_or(report_delay);
        if self.phase.is_established() { report_delay.max(timeout) } else { report_delay }
    }

    /// A node's state of a network, by its own report. `None` for a node that is not reachable.
    pub fn reach_of(&self, id: NodeId, path: Path) -> Option<Reach> {
        let reach = match id == self.me.id {
            true => self.network.reach,
            false => self.peers.reachable_last(id, &self.clock)?.reach,
        };
        reach.get(path.index()).copied()
    }

    /// This node's state of a network.
    fn own_reach(&self, path: Path) -> Reach {
        self.network.reach.get(path.index()).copied().unwrap_or_default()
    }

    /// Whether the sender of a heartbeat can use a network, as far as it can observe, or at least better than this
    /// node.
    fn is_usable(&self, last: &Heartbeat, path: Path) -> bool {
        let reported = last.reach.get(path.index()).copied().unwrap_or_default();
        reported == Reach::Works || reported > self.own_reach(path)
    }

    /// The network that this node has lost while other nodes use it.
    pub fn cut_off(&self) -> Option<Path> {
        if self.network.unplugged_since == [None; 2] && self.network.isolated_since == [None; 2] {
            return None; // the usual case, without a pass over all buckets
        }
        let now = self.clock.turn();
        let lasts = |since: &[Option<Micros>; 2], path: Path, span: Micros| {
            since.get(path.index()).copied().flatten().is_some_and(|at| now.since(at) >= span)
        };
        let suspect = self.config.timing.suspect;
        let times = |span: Micros, count: u64| Micros(span.0.saturating_mul(count));
        Path::ALL.into_iter().find(|path| {
            let factor = if self.holds_alone(*path) { ALONE_FACTOR } else { 1 };
            // A cable has two ends: the other node's report that it lost its carrier too takes a moment.
            lasts(&self.network.unplugged_since, *path, times(self.unplugged_for(*path), factor))
                && self.network.unplugged_alone.get(path.index()).copied().unwrap_or(false)
                || lasts(&self.network.isolated_since, *path, times(suspect, factor))
        })
    }

    /// Whether this node owns a bucket that no other node could continue: the holders of its replicas report that they
    /// have lost this network as well.
    fn holds_alone(&self, path: Path) -> bool {
        let works = |id: NodeId| {
            let last = self.peers.last(id);
            last.is_none_or(|last| self.is_usable(last, path))
        };
        let is_only_here = |state: &crate::bucket_state::BucketState| {
            state.owner == Some(self.me.id) && !state.backups.iter().any(works)
        };
        self.phase.is_established() && self.buckets.states.iter().any(is_only_here)
    }

    /// Records since when a network has worked for other nodes only.
    fn note_reach(&mut self, now: Micros) {
        let since = |before: Option<Micros>, is: bool| if is { before.or(Some(now)) } else { None };
        if self.reachable_heartbeats().next().is_none() {
            return self.reset_network_loss(now);
        }
        for path in Path::ALL {
            let (isolated, unplugged) = (self.is_isolated_on(path), self.is_unplugged(path));
            if let Some(at) = self.network.isolated_since.get_mut(path.index()) {
                *at = since(*at, isolated);
            }
            if let Some(at) = self.network.unplugged_since.get_mut(path.index()) {
                *at = since(*at, unplugged);
            }
            let contradicted = self.is_contradicted(path);
            if let Some(alone) = self.network.unplugged_alone.get_mut(path.index()) {
                *alone = unplugged && (*alone || contradicted);
            }
        }
    }

    /// Resets a loss when no node is reachable to compare with. A new incarnation has received no report yet. For it
    /// the loss stays while a report may come, the carrier is not back, and it could not bootstrap alone.
    fn reset_network_loss(&mut self, now: Micros) {
        let received_at = self.peers.values().filter_map(|peer| peer.last_received()).max();
        let silent_since = self.clock.silence_floor.max(received_at.unwrap_or(Micros(0)));
        let has_listened =
            |listening: Listening| now.since(listening.since.max(silent_since)) >= listening.span;
        let founds = self.config.mode == Mode::Witness && self.is_witnessed();
        let alone =
            self.phase.is_established() || (founds && self.phase.listening().is_some_and(has_listened));
        for (path, reach) in self.network.reach.into_iter().enumerate() {
            if self.phase.is_established() || reach == Reach::Works {
                (self.network.unplugged_since[path], self.network.unplugged_alone[path]) = (None, false);
            }
            if alone {
                self.network.isolated_since[path] = None;
            }
        }
    }

    /// Drops the state of a node that cannot work, in favour of nodes that can.
    pub(crate) fn step_down(&mut self, now: Micros) {
        self.note_reach(now);
        if !self.phase.is_established() || self.cut_off().is_none() {
            return;
        }
        let needed = self.is_needed();
        if needed && !(self.buckets.owns_any(self.me.id) && self.has_whole_peer()) {
            return; // no node would continue with anything
        }
        // The nodes with the replicas continue, if need be in a view in which this node only votes.
        let memory = (self.config.mode == Mode::Majority).then(|| self.empty_claim());
        self.drop_state(PhaseEvent::SteppedDown, !needed, memory);
    }

    /// The claim of the installed view when nothing of it is held any more.
    fn empty_claim(&self) -> ClaimedState {
        let mut claimed = self.claimed_state();
        claimed.claims.iter_mut().for_each(|claim| claim.holds = Holds::Nothing);
        claimed
    }

    /// Majority mode: the number of reachable nodes, this one included, and the number that a view needs.
    pub fn quorum(&self) -> Option<(usize, usize)> {
        let majority = self.config.mode == Mode::Majority;
        majority.then(|| (self.reachable_set().len(), self.config.majority()))
    }

    /// Majority mode: whether too few of the reachable other nodes receive each other to continue without this one.
    /// Nodes that have lost the same network do not count.
    pub(crate) fn is_needed(&self) -> bool {
        if self.config.mode != Mode::Majority {
            return false;
        }
        let lost = self.cut_off();
        let continues = |(id, last): &(NodeId, &Heartbeat)| {
            let works = |path: Path| {
                self.is_usable(last, path)
                    && last
                        .receives_from
                        .get(path.index())
                        .is_some_and(|nodes| !nodes.without(*id).is_empty())
            };
            let votes = matches!(
                last.state,
                AnnouncedPhase::Active | AnnouncedPhase::Fenced | AnnouncedPhase::Listen
            );
            votes && lost.is_none_or(works)
        };
        let others: MemberSet = self.reachable_heartbeats().filter(continues).map(|(id, _)| id).collect();
        self.joined(MemberSet::EMPTY, others).len() < self.config.majority()
    }

    /// Whether this node votes and receives no buckets, because it has lost a network and the other nodes need it.
    pub(crate) fn only_votes(&self) -> bool {
        self.cut_off().is_some() && self.is_needed()
    }

    /// Whether another member receives buckets.
    fn has_whole_peer(&self) -> bool {
        let takes = |peer: &crate::peer::Peer| {
            let member = peer.member();
            self.phase.members().contains(member)
                && self.is_incarnation_reachable(member)
                && peer.last.is_some_and(|last| !last.draining)
        };
        self.peers.values().any(takes)
    }

    /// Nodes that were received lately on one network.
    pub(crate) fn reachable_on(&self, path: Path) -> MemberSet {
        self.peers.reachable_on(path, &self.clock)
    }

    /// The newest heartbeats of the reachable nodes.
    pub(crate) fn reachable_heartbeats(&self) -> impl Iterator<Item = (NodeId, &Heartbeat)> {
        self.peers.reachable_heartbeats(&self.clock)
    }

    /// Whether another node reported, long enough after the loss of this one's network, that its own is better off. Its
    /// echo of this node's clock proves the time, since this node may be late to read. An earlier report may be
    /// outdated: where both networks fail at once, or the other node detects the loss late, no newer report comes.
    fn is_contradicted(&self, path: Path) -> bool {
        let span = self.unplugged_for(path);
        let Some(since) = self.network.unplugged_since.get(path.index()).copied().flatten() else {
            return false;
        };
        let is_newer =
            |last: &Heartbeat| self.is_usable(last, path) && Micros(last.echo_us).since(since) >= span;
        self.peers.values().any(|peer| peer.last.as_ref().is_some_and(is_newer))
    }

    fn is_unplugged(&self, path: Path) -> bool {
        self.own_reach(path) != Reach::Works
            && self.reachable_heartbeats().any(|(_, last)| self.is_usable(last, path))
    }

    /// Whether this node is isolated on a network on which another node receives a third one.
    fn is_isolated_on(&self, path: Path) -> bool {
        let on = |last: &Heartbeat| last.receives_from.get(path.index()).copied().unwrap_or_default();
        let third = |(id, last): (NodeId, &Heartbeat)| !on(last).without(self.me.id).without(id).is_empty();
        self.is_unreachable_on(path) && self.reachable_heartbeats().any(third)
    }

    /// Whether other nodes are reachable, but on this network either none is received or none receives this node. That
    /// alone does not show which side is broken.
    pub fn is_unreachable_on(&self, path: Path) -> bool {
        let receives_us = |last: &Heartbeat| {
            last.receives_from.get(path.index()).is_some_and(|nodes| nodes.contains(self.me.id))
        };
        let none_received = self.reachable_on(path).is_empty();
        let received_by_none = self.reachable_heartbeats().all(|(_, last)| !receives_us(last));
        (none_received || received_by_none) && self.reachable_heartbeats().next().is_some()
    }
}
