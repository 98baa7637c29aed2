//! Who should be in the view: noticing that it is not right any more, and proposing the next one.
//!
//! The next view is a clique of nodes that hear each other. Everyone may propose; the stagger lets the lowest living id
//! go first. Invariants: a node proposes only what it would promise; in witness mode it never leaves out a node that it
//! hears and that has not said that it is fenced (rule 11 of `docs/internals/failover.md`, as 8 and 9). Who would not promise is not
//! asked ([`crate::willing`]).

use evergate_base::Micros;

use crate::config::Mode;
use crate::message::{AnnouncedPhase, Body, Header, Heartbeat, Prepare};
use crate::view_change::{Pending, Proposal};
use crate::{Member, MemberSet, Members, Node, NodeId, ViewId};

/// How many nodes are tried in looking for a majority that all hear each other; beyond that it counts as none.
const CLIQUE_STEPS_MAX: u32 = 2000;

/// Whether a proposer says that it has promised a later view than the one that it proposed and never installed, or, in answer to what
/// this node said since, that it goes after none.
fn is_dead(pending: &Pending, header: &Header, heartbeat: &Heartbeat) -> bool {
    let proposer = Member { id: pending.view.proposer, incarnation: pending.view.incarnation };
    let gave_up = heartbeat.lapsed && Micros(heartbeat.echo_us) > pending.accepted_at;
    proposer == header.from && header.view < pending.view && (pending.view < heartbeat.promised || gave_up)
}

impl Node {
    /// Concludes from a peer's newest heartbeat what it means for the installed view.
    pub(crate) fn learn_views(&mut self, header: &Header, heartbeat: &Heartbeat) {
        let in_view = self.established && header.view == self.view;
        if heartbeat.state == AnnouncedPhase::Active && !in_view {
            self.active_received_at = Some(self.now);
        }
        let newer = header.view > self.view && header.view != ViewId::NONE;
        if self.established && newer && !heartbeat.includes_you {
            // Rule 9: the others went on without us.
            self.void(true);
            return;
        }
        self.pending = self.pending.take().filter(|pending| !is_dead(pending, header, heartbeat));
        self.repeat_commit(header, heartbeat);
    }

    /// Sends the installed view again to a member that promised it and has not got it.
    fn repeat_commit(&mut self, header: &Header, heartbeat: &Heartbeat) {
        let missing = self.established
            && self.members.contains(header.from)
            && header.view < self.view
            && heartbeat.promised == self.view;
        if !missing {
            return;
        }
        let (now, gap) = (self.now, self.config.timing.heartbeat);
        let Some(peer) = self.peers.get_mut(&header.from.id) else { return };
        if peer.commit_sent_at.is_some_and(|at| now.since(at) < gap) {
            return;
        }
        peer.commit_sent_at = Some(now);
        let (view, members, map) = (self.view, self.members.clone(), self.map.clone());
        self.send(header.from.id, &Body::Commit(crate::message::Commit { view, members, map }));
    }

    /// Everything about views that silence decides.
    pub(crate) fn advance_view(&mut self, now: Micros) {
        self.give_up_if_lost(now);
        self.give_way(now);
        self.shorten_rejoin_delay(now);
        self.note_unsettled(now);
        self.consider(now);
        self.advance_promise(now);
        self.advance_proposal();
    }

    /// A node that stayed in its views long enough may be excluded once more without a long wait.
    fn shorten_rejoin_delay(&mut self, now: Micros) {
        let settled = self.established && now.since(self.installed_at) >= self.config.timing.hold_down_max;
        if settled {
            self.hold_down = self.config.timing.hold_down_min;
        }
    }

    /// Drops state that cannot be of use any more.
    fn give_up_if_lost(&mut self, now: Micros) {
        if self.is_forsaken(now) {
            self.pending = None;
            self.proposal = None;
            if !self.established {
                // A life that might still install the view would be waited for.
                let remembered = self.remembered.take();
                self.void(false);
                self.remembered = remembered;
            }
        }
        if !self.established {
            self.forget_if_alone(now);
            return;
        }
        match self.config.mode {
            Mode::Witness => {
                self.note_excluded();
                self.note_barring(now);
                let keeps_waiting = self.keeps_others_waiting();
                if self.is_forgotten_for_long(keeps_waiting, now) || self.is_lapsed_for_good(now) {
                    self.void(false);
                }
            }
            Mode::Majority => {
                // Others that remember may be about to come back: until then nobody founds anything.
                if self.is_forgotten_for_long(self.is_forgotten(), now) {
                    self.void(false);
                }
            }
        }
    }

    /// Notes since when it has been so; whether for as long as an outage may last.
    fn is_forgotten_for_long(&mut self, is_forgotten: bool, now: Micros) -> bool {
        self.memory_blocks_since = is_forgotten.then(|| self.memory_blocks_since.unwrap_or(now));
        self.memory_blocks_since.is_some_and(|since| now.since(since) >= self.config.timing.listen_lapse)
    }

    /// What a node remembers that gave its life up is of use while somebody may go on with the view. Where a majority is heard and
    /// nobody of it does, it would keep the others from founding a cluster.
    fn forget_if_alone(&mut self, now: Micros) {
        let many = self.reachable_set().len() >= self.config.majority();
        let continues =
            self.reachable_where(crate::peer::Peer::has_state).len() > 1 && !self.are_most_empty();
        let alone = self.remembered.is_some() && many && !continues;
        if self.is_forgotten_for_long(alone, now) {
            self.remembered = None;
        }
    }

    /// This node promised a view long ago, and does not hear its proposer any more.
    fn is_forsaken(&self, now: Micros) -> bool {
        let Some(pending) = &self.pending else { return false };
        let proposer = Member { id: pending.view.proposer, incarnation: pending.view.incarnation };
        let long = pending.promised_at.is_some_and(|at| now.since(at) >= self.config.timing.listen_lapse);
        long && !self.is_incarnation_reachable(proposer)
    }

    /// Witness mode: a node that we hear, and that does not hear us, is about to replace us or acts without us. It cannot
    /// know better and we do, so our gate closes; it opens again when that node changes its mind. For a node that is
    /// not even in our view this holds only where we are not the greater part: one deaf newcomer must not stop a
    /// cluster.
    pub(crate) fn note_excluded(&mut self) {
        let greater = self.members.0.len() >= self.config.majority();
        let excludes = |peer: &crate::peer::Peer| {
            let Some(last) = peer.last.filter(|_| self.is_reachable(peer.member().id)) else { return false };
            if self.members.contains(peer.member()) {
                return last.excludes_you;
            }
            let deaf = !last.reports_reachable(self.me.id);
            deaf && !greater
                && (last.excludes_you || last.state == AnnouncedPhase::Active && !last.includes_you)
        };
        self.excluded =
            self.config.mode == Mode::Witness && self.established && self.peers.values().any(excludes);
    }

    /// A lapsed view of this node can neither be renewed nor followed by one of the same members.
    fn is_lapsed_for_good(&self, now: Micros) -> bool {
        let Some(lapsed_at) = self.lapsed_at else { return false };
        let replaced = self.members.0.iter().any(|(id, incarnation)| {
            let member = Member { id: *id, incarnation: *incarnation };
            member != self.me
                && self.peers.get(id).is_some_and(|peer| peer.member() != member && self.is_reachable(*id))
        });
        let missing = self.members.0.keys().any(|id| *id != self.me.id && !self.is_reachable(*id));
        let witness = self.witness_since.is_some_and(|since| {
            self.witness_until > now && now.since(since) >= self.config.timing.listen_lapse
        });
        replaced || (missing && witness && now.since(lapsed_at) >= self.config.timing.listen_lapse)
    }

    /// Witness mode: the view has lapsed and no witness is there, while a node without state that has one, and hears this node, founds
    /// nothing for that reason. Where one with state has a witness, it may yet go on.
    fn keeps_others_waiting(&self) -> bool {
        let acts = |state| matches!(state, AnnouncedPhase::Active | AnnouncedPhase::Fenced);
        let waits =
            |last: &Heartbeat| last.state == AnnouncedPhase::Listen && last.reports_reachable(self.me.id);
        let witnessed = || self.words().map(|(_, last)| last).filter(|last| last.witnessed);
        self.lapsed_at.is_some()
            && self.witness_until <= self.now
            && witnessed().any(waits)
            && !witnessed().any(|last| acts(last.state))
    }

    /// Majority mode: the view has lapsed, or its members disagree about it, and enough nodes hear each other for another one, but too few
    /// of them remember any.
    fn is_forgotten(&self) -> bool {
        if self.lapsed_at.is_none() && self.unsettled_since.is_none() {
            return false;
        }
        let peer_input = self.clique(self.reachable_set());
        let remembers = |id: &NodeId| {
            *id == self.me.id || self.peers.get(id).is_some_and(|peer| peer.view != ViewId::NONE)
        };
        let remembering = peer_input.iter().filter(remembers).count();
        peer_input.len() >= self.config.majority() && remembering < self.config.majority()
    }

    /// Notes whether the members of the view disagree about it.
    fn note_unsettled(&mut self, now: Micros) {
        let stuck = |peer: &crate::peer::Peer| {
            self.members.contains(peer.member())
                && self.is_reachable(peer.member().id)
                && peer.last.is_some_and(|last| {
                    peer.view != self.view
                        || last.promised > self.view
                        || (last.state == AnnouncedPhase::Fenced && self.lapsed_at.is_none())
                })
        };
        // A lapse of a view of all nodes ends by itself, when all grant again.
        let lapsed = self.config.mode == Mode::Witness
            && self.lapsed_at.is_some()
            && self.members.set() != self.config.nodes;
        let unsettled =
            self.established && (lapsed || self.pending.is_some() || self.peers.values().any(stuck));
        self.unsettled_since = if unsettled { self.unsettled_since.or(Some(now)) } else { None };
    }

    /// When [`Node::consider`] must run again before the next heartbeat.
    pub(crate) fn proposal_due(&self) -> Option<Micros> {
        self.wanted_since.map(|since| since + self.stagger(self.reachable_set()))
    }

    /// Proposes a view if the installed one is not right and it is our turn.
    fn consider(&mut self, now: Micros) {
        if let Some(proposal) = &self.proposal {
            self.wanted_since = None;
            let (members, asked_at) = (proposal.members.clone(), proposal.asked_at);
            let accepted_at = self.pending.as_ref().map_or(now, |pending| pending.accepted_at);
            let outbid = self.is_outbid(proposal, now);
            self.note_reluctant(now);
            match self.target(now) {
                Some(target) if target != members || outbid => self.propose(target),
                None if now.since(accepted_at) >= self.proposal_timeout() => {
                    // It must not be proposed any more, and keeps this node from promising another one.
                    self.pending = None;
                    self.proposal = None;
                }
                _ if now.since(asked_at) >= self.config.timing.heartbeat => self.ask_again(now),
                _ => {}
            }
            return;
        }
        if let Some(pending) = &self.pending {
            let waited = now.since(pending.accepted_at);
            let proposer = Member { id: pending.view.proposer, incarnation: pending.view.incarnation };
            if waited < self.proposal_timeout() && self.is_incarnation_reachable(proposer) {
                self.wanted_since = None;
                return;
            }
        }
        let Some(target) = self.target(now) else {
            self.wanted_since = None;
            return;
        };
        let settled = self.unsettled_since.is_none_or(|since| now.since(since) < self.proposal_timeout());
        if self.established && target == self.members && settled {
            self.wanted_since = None;
            return;
        }
        let since = *self.wanted_since.get_or_insert(now);
        if now.since(since) >= self.stagger(target.set()) {
            self.propose(target);
        }
    }

    /// Whether a member has promised a later view than the one that is proposed, and nothing has come of that: it will never
    /// promise this one.
    fn is_outbid(&self, proposal: &Proposal, now: Micros) -> bool {
        let waits = self
            .pending
            .as_ref()
            .is_none_or(|pending| now.since(pending.accepted_at) < self.proposal_timeout());
        let later = |peer: &crate::peer::Peer| {
            proposal.members.contains(peer.member())
                && self.is_reachable(peer.member().id)
                && peer.last.is_some_and(|last| last.promised > proposal.view)
        };
        !waits && self.peers.values().any(later)
    }

    /// Established nodes propose first, by id.
    fn stagger(&self, among: MemberSet) -> Micros {
        let has_view = |id: &NodeId| self.peers.get(id).is_some_and(|peer| peer.view != ViewId::NONE);
        let before = among.without(self.me.id).iter().filter(|id| match (has_view(id), self.established) {
            (true, false) => true,
            (false, true) => false,
            _ => *id < self.me.id,
        });
        let rank = Micros(self.config.timing.stagger.0.saturating_mul(before.count() as u64));
        // Whoever comes out of an outage gives the others the time to come out of it too.
        let take = self.config.timing.take;
        let outage = self.lapsed_at.is_some() || self.renewed_at.is_some_and(|at| self.now.since(at) < take);
        rank + if outage { take } else { Micros(0) }
    }

    fn propose(&mut self, members: Members) {
        let peer_input = |peer: &crate::peer::Peer| {
            peer.last.map_or(peer.stray_view, |last| last.promised.max(peer.view).max(peer.stray_view))
        };
        let highest = self.peers.values().map(peer_input).fold(self.promised.max(self.view), ViewId::max);
        let view = ViewId {
            epoch: highest.epoch.saturating_add(1),
            proposer: self.me.id,
            incarnation: self.me.incarnation,
        };
        self.accept(view, members.clone());
        self.proposal = Some(Proposal { view, members, promises: Default::default(), asked_at: self.now });
        self.ask_again(self.now);
    }

    /// Asks those who have not promised.
    fn ask_again(&mut self, now: Micros) {
        let Some(proposal) = &mut self.proposal else { return };
        proposal.asked_at = now;
        let (view, members) = (proposal.view, proposal.members.clone());
        let missing: Vec<NodeId> = members
            .0
            .keys()
            .copied()
            .filter(|id| *id != self.me.id && !proposal.promises.contains_key(id))
            .collect();
        let body = Body::Prepare(Prepare { view, members });
        for id in missing {
            self.send(id, &body);
        }
    }

    /// The members that the next view should have; `None` when this node must not propose.
    fn target(&self, now: Micros) -> Option<Members> {
        if self.cut_off().is_some() {
            return None;
        }
        let candidates = if self.established { self.candidates() } else { self.founders(now)? };
        let members = self.incarnations(self.electable(candidates, now));
        let all = members.set() == self.config.nodes;
        let sure = self.config.mode == Mode::Majority || all || self.is_witnessed();
        (sure && self.may_promise(self.me.id, &members) && !self.leaves_out_the_living(&members))
            .then_some(members)
    }

    /// Rule 11, before a proposal: a member that is heard and not fenced must not be left out.
    fn leaves_out_the_living(&self, members: &Members) -> bool {
        self.config.mode == Mode::Witness
            && self.established
            && self.members.0.iter().any(|(id, incarnation)| {
                let member = Member { id: *id, incarnation: *incarnation };
                let peer = self.peers.get(id);
                !members.contains(member)
                    && self.is_incarnation_reachable(member)
                    && peer.is_some_and(|peer| {
                        let closed = peer.is_closed(*incarnation) || peer.is_past(self.view);
                        peer.state() != AnnouncedPhase::Fenced && !closed
                    })
            })
    }

    /// For a node in a view: its members, and those who want to join.
    fn candidates(&self) -> MemberSet {
        let fits = |id: &NodeId| {
            self.peers.get(id).is_some_and(|peer| {
                self.members.contains(peer.member()) && peer.state() != AnnouncedPhase::Left
                    || peer.last.is_some_and(|last| last.state == AnnouncedPhase::Listen)
            })
        };
        self.peers.keys().copied().filter(fits).collect::<MemberSet>().with(self.me.id)
    }

    /// For a node without state: those with whom it may found a cluster. At once when every configured node is there
    /// and none remembers anything; else after listening long enough without hearing of a view that somebody may go on with.
    fn founders(&self, now: Micros) -> Option<MemberSet> {
        let founders = self.reachable_where(crate::peer::Peer::is_stateless);
        if founders == self.config.nodes {
            return Some(founders);
        }
        // A lapsed node without a witness that does not hear this one can neither go on beside it nor give way to it.
        let is_heeded = |id: &NodeId| {
            let last = self.peers.get(id).and_then(|peer| peer.last);
            let deaf = last.is_some_and(|last| last.is_powerless() && !last.reports_reachable(self.me.id));
            *id != self.me.id && (self.config.mode == Mode::Majority || !deaf)
        };
        let heeded = self.reachable_where(crate::peer::Peer::has_state).iter().any(|id| is_heeded(&id));
        if heeded && !self.are_most_empty() {
            return None;
        }
        let wait = self.listen_for + if heeded { self.config.timing.listen_lapse } else { Micros(0) };
        let received_of = match self.config.mode {
            Mode::Witness => self.active_received_at.max(self.stray_at),
            Mode::Majority => self.active_received_at,
        };
        let since = received_of.map_or(self.listen_since, |at| at.max(self.listen_since));
        // More than half of the nodes are a cluster, whatever those say that they do not understand.
        let estranged = self.config.mode == Mode::Witness && now < self.foreign_until;
        let listened = now.since(since.max(self.silence_floor)) >= wait && !estranged;
        listened.then_some(founders)
    }

    /// Majority mode: whether this node and others that listen as it does could be a majority. Then nobody goes on with what others have.
    fn are_most_empty(&self) -> bool {
        let majority = self.config.mode == Mode::Majority && !self.established;
        majority
            && self.clique(self.reachable_where(crate::peer::Peer::listens)).len() >= self.config.majority()
    }

    /// This node, and those that are heard to be so.
    fn reachable_where(&self, is_so: fn(&crate::peer::Peer) -> bool) -> MemberSet {
        let peer_input = |peer: &&crate::peer::Peer| self.is_reachable(peer.member().id) && is_so(peer);
        self.peers
            .values()
            .filter(peer_input)
            .map(|peer| peer.member().id)
            .collect::<MemberSet>()
            .with(self.me.id)
    }

    /// A set of nodes that all hear each other, this one included.
    pub(crate) fn clique(&self, candidates: MemberSet) -> MemberSet {
        let me = self.me.id;
        let near = candidates.without(me).iter().filter(|id| self.mutual(me, *id)).collect();
        self.joined(MemberSet::of(me), near)
    }

    /// These nodes, and of the candidates some that hear them and each other: greedy, present members first, then by how many of
    /// the candidates hear them. In majority mode more than half of all nodes, if there are so many.
    pub(crate) fn joined(&self, first: MemberSet, candidates: MemberSet) -> MemberSet {
        let degree = |id: NodeId| candidates.iter().filter(|other| self.mutual(id, *other)).count();
        let rank = |id: NodeId| (!self.members.0.contains_key(&id), std::cmp::Reverse(degree(id)), id);
        let mut ranked: Vec<_> = candidates.iter().map(rank).collect();
        ranked.sort();
        let fits = |id: &NodeId| first.iter().all(|other| self.mutual(*id, other));
        let ranked: Vec<NodeId> = ranked.into_iter().map(|(_, _, id)| id).filter(fits).collect();
        let add = |clique: MemberSet, id: &NodeId| {
            let fits = clique.iter().all(|other| self.mutual(*id, other));
            if fits { clique.with(*id) } else { clique }
        };
        let greedy = ranked.iter().fold(first, add);
        if self.config.mode == Mode::Witness || greedy.len() >= self.config.majority() {
            return greedy;
        }
        let many = self.majority_of(first, &ranked, &mut { CLIQUE_STEPS_MAX });
        many.map_or(greedy, |many| ranked.iter().fold(many, add))
    }

    /// Of candidates that hear all of a clique some with which it is more than half of all nodes. `steps` are left to look for it.
    fn majority_of(&self, clique: MemberSet, candidates: &[NodeId], steps: &mut u32) -> Option<MemberSet> {
        if clique.len() >= self.config.majority() {
            return Some(clique);
        }
        for (at, id) in candidates.iter().enumerate() {
            let rest = candidates.get(at + 1..).unwrap_or_default();
            if clique.len() + 1 + rest.len() < self.config.majority() || *steps == 0 {
                return None;
            }
            *steps -= 1;
            let near: Vec<NodeId> = rest.iter().copied().filter(|other| self.mutual(*id, *other)).collect();
            let many = self.majority_of(clique.with(*id), &near, steps);
            if many.is_some() {
                return many;
            }
        }
        None
    }
}
