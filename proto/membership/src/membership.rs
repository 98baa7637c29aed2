//! Membership: noticing that the view no longer fits, and proposing the next one.
//!
//! The next view is a clique of nodes that receive each other. Every node may propose; the stagger lets the lowest
//! active id go first. Invariants: a node proposes only a view that it would promise. In witness mode it never leaves
//! out a node that it receives and that did not report itself as fenced (rule 11 of `docs/internals/membership.md`,
//! which has rules 8 and 9 as well). A node that would not promise is not asked (`proposal_members.rs`).

use evergate_base::Micros;

use crate::ballot::{Pending, Proposal};
use crate::config::Mode;
use crate::message::{AnnouncedPhase, Body, Header, Heartbeat, Prepare};
use crate::phase::PhaseEvent;
use crate::{Member, MemberSet, Members, Node, NodeId, ViewId};

/// Most steps of the search for a majority whose nodes receive each other; after that there is none.
const CLIQUE_STEPS_MAX: u32 = 2000;

/// Whether a proposer reports that it promised a later view than its proposal and never installed the proposal. The
/// same holds if its echo shows that, after this node accepted, it lapsed without a pending view.
fn is_abandoned(pending: &Pending, header: &Header, heartbeat: &Heartbeat) -> bool {
    let gave_up = heartbeat.lapsed && Micros(heartbeat.echo_us) > pending.accepted_at;
    pending.proposer() == header.from
        && header.view < pending.view
        && (pending.view < heartbeat.promised || gave_up)
}

impl Node {
    /// Applies a peer's newest heartbeat to the installed view.
    pub(crate) fn learn_views(&mut self, header: &Header, heartbeat: &Heartbeat) {
        let in_view = self.phase.is_established() && header.view == self.phase.view();
        if heartbeat.state == AnnouncedPhase::Active && !in_view {
            self.join.active_received_at = Some(self.clock.now);
        }
        let newer = header.view > self.phase.view() && header.view != ViewId::NONE;
        if self.phase.is_established() && newer && !heartbeat.includes_you {
            // Rule 9: the other nodes continued without this one.
            self.drop_state(PhaseEvent::Superseded, true, None);
            return;
        }
        self.ballot.pending =
            self.ballot.pending.take().filter(|pending| !is_abandoned(pending, header, heartbeat));
        self.repeat_commit(header, heartbeat);
    }

    /// Sends the installed view again to a member that promised it and has not received it.
    fn repeat_commit(&mut self, header: &Header, heartbeat: &Heartbeat) {
        let missing = self.phase.is_established()
            && self.phase.members().contains(header.from)
            && header.view < self.phase.view()
            && heartbeat.promised == self.phase.view();
        if !missing {
            return;
        }
        let (now, gap) = (self.clock.now, self.config.timing.heartbeat);
        let Some(peer) = self.peers.get_mut(header.from.id) else { return };
        if peer.commit_sent_at.is_some_and(|at| now.since(at) < gap) {
            return;
        }
        peer.commit_sent_at = Some(now);
        let (view, members, map) =
            (self.phase.view(), self.phase.members().clone(), self.phase.map().to_vec());
        self.send(header.from.id, &Body::Commit(crate::message::Commit { view, members, map }));
    }

    /// Runs all steps of a view change that depend on silence.
    pub(crate) fn advance_view(&mut self, now: Micros) {
        self.give_up_if_lost(now);
        self.step_down(now);
        self.shorten_rejoin_delay(now);
        self.note_unsettled(now);
        self.consider(now);
        self.advance_promise(now);
        self.advance_proposal();
    }

    /// Resets the rejoin delay of a node that stayed in its views long enough.
    fn shorten_rejoin_delay(&mut self, now: Micros) {
        let hold_down_max = self.config.timing.hold_down_max;
        let settled = self.phase.installed().is_some_and(|view| now.since(view.at) >= hold_down_max);
        if settled {
            self.join.reset_hold_down(&self.config.timing);
        }
    }

    /// Drops state that can be of no use any more.
    fn give_up_if_lost(&mut self, now: Micros) {
        if self.has_lost_proposer(now) {
            self.ballot.withdraw();
            if !self.phase.is_established() {
                // Peers would wait for an incarnation that might still install the view.
                let memory = self.phase.memory().cloned();
                self.drop_state(PhaseEvent::PromiseLost, false, memory);
            }
        }
        if !self.phase.is_established() {
            self.drop_useless_memory(now);
            return;
        }
        match self.config.mode {
            Mode::Witness => {
                self.note_excluded();
                self.update_blocked_majority(now);
                let blocks = self.blocks_bootstrap();
                if self.has_blocked_for_long(blocks, now) || self.is_lapsed_for_good(now) {
                    self.drop_state(PhaseEvent::GaveUp, false, None);
                }
            }
            Mode::Majority => {
                // Other nodes that remember the view may be about to return: until then no node bootstraps.
                if self.has_blocked_for_long(self.is_remembered_by_too_few(), now) {
                    self.drop_state(PhaseEvent::GaveUp, false, None);
                }
            }
        }
    }

    /// Records since when the memory has been an obstacle. Returns whether it has lasted as long as an outage may.
    fn has_blocked_for_long(&mut self, blocks: bool, now: Micros) -> bool {
        self.phase.has_blocked_for(blocks, now, self.config.timing.listen_lapse)
    }

    /// Drops a remembered view that can no longer help. A memory is of use while some node may continue with the view.
    /// When a reachable majority has no such node, the memory would block a bootstrap.
    fn drop_useless_memory(&mut self, now: Micros) {
        let many = self.reachable_set().len() >= self.config.majority();
        let continues =
            self.reachable_where(crate::peer::Peer::has_state).len() > 1 && !self.are_most_empty();
        let alone = self.phase.memory().is_some() && many && !continues;
        if self.has_blocked_for_long(alone, now) {
            self.phase.forget();
        }
    }

    /// Whether this node promised a view long ago and does not receive its proposer any more.
    fn has_lost_proposer(&self, now: Micros) -> bool {
        let Some(pending) = &self.ballot.pending else { return false };
        let long = pending.promised_at.is_some_and(|at| now.since(at) >= self.config.timing.listen_lapse);
        long && !self.is_incarnation_reachable(pending.proposer())
    }

    /// Witness mode: updates whether a node that is received, and that does not receive this one, replaces this node or
    /// acts without it. Only this node can know that, so its gate closes until the other node's report changes. For a
    /// node outside this node's view that holds only where the view is not the greater part: one newcomer that cannot
    /// receive must not stop a cluster.
    pub(crate) fn note_excluded(&mut self) {
        let greater = self.phase.members().0.len() >= self.config.majority();
        let excludes = |peer: &crate::peer::Peer| {
            let Some(last) = peer.last.filter(|_| self.is_reachable(peer.member().id)) else { return false };
            if self.phase.members().contains(peer.member()) {
                return last.excludes_you;
            }
            let cannot_receive = !last.reports_reachable(self.me.id);
            cannot_receive
                && !greater
                && (last.excludes_you || last.state == AnnouncedPhase::Active && !last.includes_you)
        };
        let is_member = self.config.mode == Mode::Witness && self.phase.is_established();
        let is_excluded = is_member && self.peers.values().any(excludes);
        self.phase.update_exclusion(is_excluded);
    }

    /// Whether the lapsed view can neither be renewed nor followed by a view of the same members.
    fn is_lapsed_for_good(&self, now: Micros) -> bool {
        let Some(lapsed_at) = self.phase.lapsed_at() else { return false };
        let replaced = self.phase.members().0.iter().any(|(id, incarnation)| {
            let member = Member { id: *id, incarnation: *incarnation };
            member != self.me
                && self.peers.get(*id).is_some_and(|peer| peer.member() != member && self.is_reachable(*id))
        });
        let missing = self.phase.members().0.keys().any(|id| *id != self.me.id && !self.is_reachable(*id));
        let witness = self.witness.answers_for(now, self.config.timing.listen_lapse);
        replaced || (missing && witness && now.since(lapsed_at) >= self.config.timing.listen_lapse)
    }

    /// Witness mode: whether this node's lapsed view blocks a bootstrap. This node has no witness, while a listening
    /// node with a witness receives it. A node with state and a witness may still continue the view.
    fn blocks_bootstrap(&self) -> bool {
        let acts = |state| matches!(state, AnnouncedPhase::Active | AnnouncedPhase::Fenced);
        let waits =
            |last: &Heartbeat| last.state == AnnouncedPhase::Listen && last.reports_reachable(self.me.id);
        let witnessed = || self.reachable_heartbeats().map(|(_, last)| last).filter(|last| last.witnessed);
        self.phase.lapsed_at().is_some()
            && !self.witness.answers(self.clock.now)
            && witnessed().any(waits)
            && !witnessed().any(|last| acts(last.state))
    }

    /// Majority mode: whether too few nodes remember a view. The view has lapsed, or its members disagree about it, and
    /// the nodes that receive each other are a majority, but those with a view are not.
    fn is_remembered_by_too_few(&self) -> bool {
        if self.phase.lapsed_at().is_none() && self.phase.unsettled_since().is_none() {
            return false;
        }
        let clique = self.clique(self.reachable_set());
        let remembers = |id: &NodeId| {
            *id == self.me.id || self.peers.get(*id).is_some_and(|peer| peer.view != ViewId::NONE)
        };
        let remembering = clique.iter().filter(remembers).count();
        clique.len() >= self.config.majority() && remembering < self.config.majority()
    }

    /// Records since when the members have disagreed about the view.
    fn note_unsettled(&mut self, now: Micros) {
        let stuck = |peer: &crate::peer::Peer| {
            self.phase.members().contains(peer.member())
                && self.is_reachable(peer.member().id)
                && peer.last.is_some_and(|last| {
                    peer.view != self.phase.view()
                        || last.promised > self.phase.view()
                        || (last.state == AnnouncedPhase::Fenced && self.phase.lapsed_at().is_none())
                })
        };
        // A lapse of a view of all nodes ends by itself, when all grant again.
        let lapsed = self.config.mode == Mode::Witness
            && self.phase.lapsed_at().is_some()
            && self.phase.members().set() != self.config.nodes;
        let unsettled = self.phase.is_established()
            && (lapsed || self.ballot.pending.is_some() || self.peers.values().any(stuck));
        if let Some(view) = self.phase.installed_mut() {
            view.unsettled_since = unsettled.then(|| view.unsettled_since.unwrap_or(now));
        }
    }

    /// Time at which [`Node::consider`] must run again before the next heartbeat.
    pub(crate) fn proposal_due(&self) -> Option<Micros> {
        self.ballot.wanted_since.map(|since| since + self.stagger(self.reachable_set()))
    }

    /// Proposes a view if the installed one does not fit and it is this node's turn.
    fn consider(&mut self, now: Micros) {
        if let Some(proposal) = &self.ballot.proposal {
            self.ballot.wanted_since = None;
            let (members, asked_at) = (proposal.members.clone(), proposal.asked_at);
            let accepted_at = self.ballot.pending.as_ref().map_or(now, |pending| pending.accepted_at);
            let superseded = self.is_superseded(proposal, now);
            self.back_off_from_silent_members(now);
            match self.target(now) {
                Some(target) if target != members || superseded => self.propose(target),
                None if now.since(accepted_at) >= self.proposal_timeout() => {
                    // The proposal is not allowed any more, and blocks the promise of another view.
                    self.ballot.withdraw();
                }
                _ if now.since(asked_at) >= self.config.timing.heartbeat => self.ask_again(now),
                _ => {}
            }
            return;
        }
        if let Some(pending) = &self.ballot.pending {
            let waited = now.since(pending.accepted_at);
            if waited < self.proposal_timeout() && self.is_incarnation_reachable(pending.proposer()) {
                self.ballot.wanted_since = None;
                return;
            }
        }
        let Some(target) = self.target(now) else {
            self.ballot.wanted_since = None;
            return;
        };
        let settled =
            self.phase.unsettled_since().is_none_or(|since| now.since(since) < self.proposal_timeout());
        if self.phase.is_established() && target == *self.phase.members() && settled {
            self.ballot.wanted_since = None;
            return;
        }
        let since = *self.ballot.wanted_since.get_or_insert(now);
        if now.since(since) >= self.stagger(target.set()) {
            self.propose(target);
        }
    }

    /// Whether a member promised a later view than the proposed one, and that view did not come: the member never
    /// promises this proposal.
    fn is_superseded(&self, proposal: &Proposal, now: Micros) -> bool {
        let waits = self
            .ballot
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

    /// Delay before a proposal: established nodes first, by id.
    fn stagger(&self, among: MemberSet) -> Micros {
        let has_view = |id: &NodeId| self.peers.get(*id).is_some_and(|peer| peer.view != ViewId::NONE);
        let before =
            among.without(self.me.id).iter().filter(|id| match (has_view(id), self.phase.is_established()) {
                (true, false) => true,
                (false, true) => false,
                _ => *id < self.me.id,
            });
        let rank = Micros(self.config.timing.stagger.0.saturating_mul(before.count() as u64));
        // A node that comes out of an outage leaves the other nodes the time to come out of it too.
        let take = self.config.timing.take;
        let outage = self.phase.lapsed_at().is_some()
            || self.ballot.renewed_at.is_some_and(|at| self.clock.now.since(at) < take);
        rank + if outage { take } else { Micros(0) }
    }

    fn propose(&mut self, members: Members) {
        let newest_view = |peer: &crate::peer::Peer| {
            peer.last.map_or(peer.stray_view, |last| last.promised.max(peer.view).max(peer.stray_view))
        };
        let highest = self
            .peers
            .values()
            .map(newest_view)
            .fold(self.ballot.promised.max(self.phase.view()), ViewId::max);
        let view = ViewId {
            epoch: highest.epoch.saturating_add(1),
            proposer: self.me.id,
            incarnation: self.me.incarnation,
        };
        self.accept(view, members.clone());
        self.ballot.proposal =
            Some(Proposal { view, members, promises: Default::default(), asked_at: self.clock.now });
        self.ask_again(self.clock.now);
    }

    /// Sends the proposal to the members that have not promised.
    fn ask_again(&mut self, now: Micros) {
        let Some(proposal) = &mut self.ballot.proposal else { return };
        proposal.asked_at = now;
        let (view, members) = (proposal.view, proposal.members.clone());
        let missing: Vec<NodeId> = proposal.missing().filter(|id| *id != self.me.id).collect();
        let body = Body::Prepare(Prepare { view, members });
        for id in missing {
            self.send(id, &body);
        }
    }

    /// The members of the next view; `None` when this node must not propose.
    fn target(&self, now: Micros) -> Option<Members> {
        if self.cut_off().is_some() {
            return None;
        }
        let candidates =
            if self.phase.is_established() { self.candidates() } else { self.bootstrap_candidates(now)? };
        let members = self.incarnations(self.electable(candidates, now));
        let all = members.set() == self.config.nodes;
        let sure = self.config.mode == Mode::Majority || all || self.is_witnessed();
        (sure && self.may_promise(self.me.id, &members) && !self.leaves_out_active_member(&members))
            .then_some(members)
    }

    /// Rule 11, before a proposal: a member that is received and not fenced must not be left out.
    fn leaves_out_active_member(&self, members: &Members) -> bool {
        self.config.mode == Mode::Witness
            && self.phase.is_established()
            && self.phase.members().0.iter().any(|(id, incarnation)| {
                let member = Member { id: *id, incarnation: *incarnation };
                let peer = self.peers.get(*id);
                !members.contains(member)
                    && self.is_incarnation_reachable(member)
                    && peer.is_some_and(|peer| {
                        let closed = peer.is_closed(*incarnation) || peer.is_past(self.phase.view());
                        peer.state() != AnnouncedPhase::Fenced && !closed
                    })
            })
    }

    /// Candidates of a node in a view: its members, and the nodes that want to join.
    fn candidates(&self) -> MemberSet {
        let fits = |id: &NodeId| {
            self.peers.get(*id).is_some_and(|peer| {
                self.phase.members().contains(peer.member()) && peer.state() != AnnouncedPhase::Left
                    || peer.last.is_some_and(|last| last.state == AnnouncedPhase::Listen)
            })
        };
        self.peers.ids().copied().filter(fits).collect::<MemberSet>().with(self.me.id)
    }

    /// Candidates of a node without state: the nodes with which it may bootstrap a cluster. At once when every
    /// configured node is reachable without a remembered view. Otherwise after listening long enough without a sign of
    /// a view that some node may continue.
    fn bootstrap_candidates(&self, now: Micros) -> Option<MemberSet> {
        let bootstrap_candidates = self.reachable_where(crate::peer::Peer::is_stateless);
        if bootstrap_candidates == self.config.nodes {
            return Some(bootstrap_candidates);
        }
        // A lapsed node without a witness that does not receive this one can neither continue beside it nor yield to
        // it.
        let blocks_view = |id: &NodeId| {
            let last = self.peers.get(*id).and_then(|peer| peer.last);
            let cannot_receive =
                last.is_some_and(|last| last.cannot_act_alone() && !last.reports_reachable(self.me.id));
            *id != self.me.id && (self.config.mode == Mode::Majority || !cannot_receive)
        };
        let blocks = self.reachable_where(crate::peer::Peer::has_state).iter().any(|id| blocks_view(&id));
        if blocks && !self.are_most_empty() {
            return None;
        }
        let listening = self.phase.listening()?;
        let wait = listening.span + if blocks { self.config.timing.listen_lapse } else { Micros(0) };
        let received_of = match self.config.mode {
            Mode::Witness => self.join.active_received_at.max(self.join.stray_at),
            Mode::Majority => self.join.active_received_at,
        };
        let since = received_of.map_or(listening.since, |at| at.max(listening.since));
        // More than half of the nodes are a cluster, even beside nodes whose datagrams they cannot decode.
        let is_blocked = self.config.mode == Mode::Witness && now < self.join.foreign_until;
        let listened = now.since(since.max(self.clock.silence_floor)) >= wait && !is_blocked;
        listened.then_some(bootstrap_candidates)
    }

    /// Majority mode: whether this node and other listening nodes could be a majority. Then no view can be continued.
    fn are_most_empty(&self) -> bool {
        let majority = self.config.mode == Mode::Majority && !self.phase.is_established();
        majority
            && self.clique(self.reachable_where(crate::peer::Peer::listens)).len() >= self.config.majority()
    }

    /// This node, and the reachable nodes with this property.
    fn reachable_where(&self, is_so: fn(&crate::peer::Peer) -> bool) -> MemberSet {
        self.peers.reachable_where(&self.clock, is_so)
    }

    /// A set of nodes that all receive each other, this one included.
    pub(crate) fn clique(&self, candidates: MemberSet) -> MemberSet {
        let me = self.me.id;
        let near = candidates.without(me).iter().filter(|id| self.mutual(me, *id)).collect();
        self.joined(MemberSet::of(me), near)
    }

    /// A clique that extends `first` by candidates: greedy, present members first, then by the number of candidates
    /// that receive them. In majority mode more than half of all nodes, if the search finds so many.
    pub(crate) fn joined(&self, first: MemberSet, candidates: MemberSet) -> MemberSet {
        let degree = |id: NodeId| candidates.iter().filter(|other| self.mutual(id, *other)).count();
        let rank =
            |id: NodeId| (!self.phase.members().0.contains_key(&id), std::cmp::Reverse(degree(id)), id);
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

    /// A majority that extends a clique by candidates that receive all of it. `steps` bounds the search.
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
