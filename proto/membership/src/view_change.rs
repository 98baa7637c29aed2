//! Creation of a view: PREPARE, PROMISE after the leases have expired, COMMIT, install.
//!
//! From the acceptance on nothing is granted to nodes outside the new view. The promise is sent only when every lease
//! that such a node may still hold has expired. Invariants: promises rise; a view is installed only by a node that
//! promised exactly it and did not withdraw the promise.

use std::collections::BTreeMap;

use evergate_base::Micros;

use crate::assignment::{AssignmentInput, Conflict, decide};
use crate::ballot::{Pending, Proposal};
use crate::config::Mode;
use crate::installed_view::InstalledView;
use crate::message::{AnnouncedPhase, Body, Claim, ClaimedState, Commit, Header, Prepare, Promise};
use crate::phase::PhaseEvent;
use crate::{Member, Members, Node, NodeId, Rejected, ViewId};

impl Node {
    /// Accepts a proposed view, or ignores it.
    pub(crate) fn handle_prepare(&mut self, header: &Header, prepare: Prepare) -> Result<(), Rejected> {
        let Prepare { view, members } = prepare;
        if let Some(pending) = &mut self.ballot.pending
            && pending.view == view
        {
            pending.asked = true;
            return Ok(());
        }
        let named = Member { id: view.proposer, incarnation: view.incarnation } == header.from;
        let known = self.config.nodes.is_superset(members.set());
        if !named || !known || !members.contains(header.from) || !members.contains(self.me) {
            return Err(Rejected::Unexpected);
        }
        if view <= self.ballot.promised
            || view <= self.phase.view()
            || !self.may_promise(header.from.id, &members)
        {
            return Ok(());
        }
        self.accept(view, members);
        Ok(())
    }

    /// Whether a view of these members, proposed by that node, may be promised.
    pub(crate) fn may_promise(&self, proposer: NodeId, members: &Members) -> bool {
        let all = members.set() == self.config.nodes;
        let are_reachable = members.0.iter().all(|(id, incarnation)| {
            self.is_incarnation_reachable(Member { id: *id, incarnation: *incarnation })
        });
        if self.phase.has_left() || !are_reachable {
            return false;
        }
        if self.config.mode == Mode::Majority {
            return members.0.len() >= self.config.majority();
        }
        if !all && !self.witness.answers(self.clock.now) {
            return false;
        }
        let acting = self.phase.is_established() || self.peers.values().any(|peer| self.acts(peer.member()));
        if self.would_bootstrap(proposer) && acting {
            // A node without state bootstraps only where no cluster is.
            return false;
        }
        match self.phase.lapsed_at() {
            Some(lapsed_at) if self.phase.is_established() => {
                // The state of this node is the newest only if no failover can have happened meanwhile.
                let same = self.peers.get(proposer).is_some_and(|peer| peer.view == self.phase.view());
                let known = same && self.peers.get(proposer).is_some_and(|peer| self.acts(peer.member()));
                self.follows(members) && (all || known || self.is_quiet_since(lapsed_at))
            }
            _ => true,
        }
    }

    /// Whether these are at least the members of the installed view without those that can do nothing without this
    /// node.
    pub(crate) fn follows(&self, members: &Members) -> bool {
        if members.is_superset(self.phase.members()) {
            return true;
        }
        let stranded = self.unreachable_members();
        self.phase.members().0.iter().all(|(id, incarnation)| {
            stranded.contains(*id) || members.contains(Member { id: *id, incarnation: *incarnation })
        })
    }

    /// Whether a proposer has no view itself, as far as is known.
    fn would_bootstrap(&self, proposer: NodeId) -> bool {
        if proposer == self.me.id {
            return !self.phase.is_established();
        }
        self.peers.get(proposer).is_some_and(|peer| {
            !matches!(peer.state(), AnnouncedPhase::Active | AnnouncedPhase::Fenced)
                || peer.view == ViewId::NONE
        })
    }

    /// Whether a heartbeat of this member was received lately that reports it as active.
    pub(crate) fn acts(&self, member: Member) -> bool {
        self.is_incarnation_reachable(member)
            && self.peers.get(member.id).is_some_and(|peer| peer.state() == AnnouncedPhase::Active)
    }

    /// Whether no active view was announced since `since`, for as long as a lapse requires.
    fn is_quiet_since(&self, since: Micros) -> bool {
        let since = self.join.active_received_at.map_or(since, |at| at.max(since));
        self.clock.now.since(since) >= self.config.timing.listen_lapse
    }

    pub(crate) fn accept(&mut self, view: ViewId, members: Members) {
        let is_bootstrap = self.would_bootstrap(view.proposer);
        self.ballot.accept(Pending {
            view,
            members,
            accepted_at: self.clock.now,
            promised_at: None,
            asked: true,
            is_bootstrap,
        });
        self.clock.due = true;
    }

    /// Time at which the pending promise may be sent; `None` without one, or while a node outside the view may be
    /// active.
    pub(crate) fn promise_due(&self) -> Option<Micros> {
        let pending = self.ballot.asked()?;
        let take = self.config.timing.take;
        // An earlier process of this node may have granted until it ended.
        let mut due = self.clock.started_at + take;
        for (id, peer) in self.peers.iter() {
            let granted = Member { id, incarnation: peer.granted_to };
            let Some(granted_at) = peer.granted_at else { continue };
            if pending.members.contains(granted) || peer.is_closed(granted.incarnation) {
                continue;
            }
            due = due.max(granted_at + take);
        }
        if let Some(from) = self.witness_needed(pending) {
            // Nodes that receive this one although it does not receive them need the time to close their gates.
            let notice = if pending.is_bootstrap {
                take
            } else {
                Micros(self.config.timing.heartbeat.0.saturating_mul(2))
            };
            due = due.max(pending.accepted_at + notice);
            // The witness must have answered after the excluded nodes were silent for long enough. An answer from
            // before a partition does not show which side is the smaller one.
            if self.witness.asked_at < from {
                return None;
            }
            due = due.max(from);
        }
        let blocked = self.config.mode == Mode::Witness && self.has_live_outsider(&pending.members);
        (!blocked).then_some(due)
    }

    /// Rule 11: whether a member of the installed view outside `members` was received within the failover time and did
    /// not report that it is fenced.
    pub(crate) fn has_live_outsider(&self, members: &Members) -> bool {
        let now = self.clock.now;
        self.phase.is_established()
            && self.phase.members().0.iter().any(|(id, incarnation)| {
                let member = Member { id: *id, incarnation: *incarnation };
                let Some(peer) = self.peers.get(*id) else { return false };
                !members.contains(member)
                    && peer.member() == member
                    && peer.state() != AnnouncedPhase::Fenced
                    && !peer.is_closed(*incarnation)
                    && !peer.is_past(self.phase.view())
                    && self.silence(*id, now).is_some_and(|silence| silence < self.config.timing.take)
            })
    }

    /// Sends the promise when it is due.
    pub(crate) fn advance_promise(&mut self, now: Micros) {
        if self.promise_due().is_none_or(|due| now < due) {
            return;
        }
        let promise = {
            let Some(pending) = &mut self.ballot.pending else { return };
            pending.asked = false;
            pending.promised_at = Some(now);
            Promise { view: pending.view, claimed: None }
        };
        let claimed = if self.phase.is_established() {
            Some(self.claimed_state())
        } else {
            self.phase.memory().cloned()
        };
        let promise = Promise { claimed, ..promise };
        if promise.view.proposer == self.me.id {
            if let Some(proposal) = &mut self.ballot.proposal {
                proposal.promises.insert(self.me.id, promise);
            }
        } else {
            self.send(promise.view.proposer, &Body::Promise(promise));
        }
    }

    /// This node's state, for a promise.
    pub(crate) fn claimed_state(&self) -> ClaimedState {
        let claim = |(state, assignment): (
            &crate::bucket_state::BucketState,
            &crate::message::Assignment,
        )|
         -> Claim {
            Claim {
                base_in_sync: assignment.in_sync.with(assignment.owner),
                ..state.claim(self.me.id, self.phase.view())
            }
        };
        let claims = self.buckets.states.iter().zip(self.phase.map()).map(claim).collect();
        ClaimedState { view: self.phase.view(), members: self.phase.members().clone(), claims }
    }

    /// Collects a promise for the own proposal.
    pub(crate) fn handle_promise(&mut self, header: &Header, promise: Promise) -> Result<(), Rejected> {
        let buckets = usize::from(self.config.buckets);
        let Some(proposal) = &mut self.ballot.proposal else { return Ok(()) };
        if proposal.view != promise.view {
            return Ok(());
        }
        let fits = promise.claimed.as_ref().is_none_or(|claimed| claimed.claims.len() == buckets);
        if !fits || !proposal.members.contains(header.from) {
            return Err(Rejected::Unexpected);
        }
        proposal.promises.insert(header.from.id, promise);
        Ok(())
    }

    /// Commits the own proposal when every member of it has promised.
    pub(crate) fn advance_proposal(&mut self) {
        let Some(proposal) = &self.ballot.proposal else { return };
        let phase = self.ballot.pending.as_ref().is_some_and(|pending| pending.view == proposal.view);
        if !phase {
            self.ballot.proposal = None;
            return;
        }
        if proposal.promises.len() < proposal.members.0.len() {
            return;
        }
        let Some(Proposal { view, members, promises, .. }) = self.ballot.proposal.take() else { return };
        let input = AssignmentInput {
            view,
            members: &members,
            promises: &promises,
            buckets: self.config.buckets,
            backups: self.config.backups,
            quorum: (self.config.mode == Mode::Majority).then(|| self.config.majority()),
            weights: self.weights(&members),
        };
        match decide(&input) {
            Ok(map) => {
                let commit = Commit { view, members, map };
                let body = Body::Commit(commit.clone());
                for id in commit.members.set().without(self.me.id).iter() {
                    self.send(id, &body);
                }
                self.install(commit);
            }
            Err(Conflict::Outdated { loser, than }) if loser == self.me.id => self.yield_to(than),
            Err(Conflict::Outdated { loser, than }) => self.send(loser, &Body::Yield(than)),
            // No decision is possible before the established nodes have dropped their state by themselves.
            Err(Conflict::Forgotten) => {}
        }
    }

    /// Drops the state of the loser of conflicting claims.
    pub(crate) fn handle_yield(&mut self, than: ViewId) -> Result<(), Rejected> {
        self.yield_to(than);
        Ok(())
    }

    fn yield_to(&mut self, than: ViewId) {
        if self.phase.is_established() && self.phase.view() < than {
            self.drop_state(PhaseEvent::Superseded, true, None);
        }
    }

    /// Installs a promised view. Drops the state if the view was made without this node.
    pub(crate) fn handle_commit(&mut self, _header: &Header, commit: Commit) -> Result<(), Rejected> {
        let fits = commit.map.len() == usize::from(self.config.buckets)
            && self.config.nodes.is_superset(commit.members.set())
            && commit.map.iter().all(|a| {
                let set = commit.members.set();
                set.contains(a.owner) && set.is_superset(a.listed) && !a.listed.contains(a.owner)
            });
        if !fits {
            return Err(Rejected::Unexpected);
        }
        if commit.view <= self.phase.view() && self.phase.is_established() {
            return Ok(());
        }
        if !commit.members.contains(self.me) {
            if self.phase.is_established() {
                self.drop_state(PhaseEvent::Superseded, true, None);
            }
            return Ok(());
        }
        let promised = self
            .ballot
            .pending
            .as_ref()
            .is_some_and(|pending| pending.view == commit.view && pending.members == commit.members);
        if promised {
            self.install(commit);
        } else if self.ballot.promised == commit.view {
            // A lapse withdrew the promise. The other nodes continued without this one, or wait until it installs the
            // view.
            match self.phase.is_established() {
                true => self.drop_state(PhaseEvent::Superseded, true, None),
                false => {
                    let memory = self.phase.memory().cloned();
                    self.drop_state(PhaseEvent::PromiseLost, false, memory);
                }
            }
        }
        Ok(())
    }

    fn install(&mut self, commit: Commit) {
        let Commit { view, members, map } = commit;
        self.ballot.end();
        for peer in self.peers.values_mut() {
            peer.expiry = Micros(0);
            peer.reported = None; // the first grant of a view is news
            peer.commit_sent_at = None;
        }
        let was_established = self.phase.is_established();
        self.ballot.promised = self.ballot.promised.max(view);
        self.buckets.clear_operations();
        for ((bucket, state), assignment) in (0u16..).zip(self.buckets.states.iter_mut()).zip(&map) {
            let unreported = self.buckets.changed.contains(&bucket);
            state.assign(assignment, self.me.id, view, was_established, unreported);
            self.buckets.changed.insert(bucket);
        }
        self.phase.install(InstalledView::new(view, members, map, self.clock.now));
        self.rebalancer.restart(self.config.timing.balance, self.clock.now);
        self.note_installed();
    }

    /// Share of the load of each member; 0 for a draining one.
    pub(crate) fn weights(&self, members: &Members) -> BTreeMap<NodeId, u16> {
        let weight = |id: NodeId| {
            if id == self.me.id {
                return if self.rebalancer.draining || self.only_votes() { 0 } else { self.config.weight };
            }
            let last = self.peers.get(id).and_then(|peer| peer.last);
            last.map_or(0, |last| if last.draining { 0 } else { last.weight })
        };
        members.0.keys().map(|id| (*id, weight(*id))).collect()
    }
}
