//! Who would promise a view, and who would not: a view waits for the promise of each of its members, so one that cannot be
//! given must not be asked for.
//!
//! In witness mode a node without a witness promises only a view of all configured nodes, and one whose view has lapsed only
//! a view of the same lives and perhaps more. Either has no state, or a gate that stays closed without this node's
//! grants, so nothing is at risk when the view is made without it; it joins again when it can.
//!
//! Invariants: a node that is active is never left out (rule 11); one that may yet go on with the same members is waited for
//! as long as [`Node::patience`]. In majority mode everybody who is heard would promise.

use evergate_base::Micros;

use crate::config::Mode;
use crate::message::{AnnouncedPhase, Heartbeat};
use crate::peer::Peer;
use crate::view_change::Proposal;
use crate::{Incarnation, Member, MemberSet, Members, Node, NodeId};

impl Node {
    /// For how long a view has been waited for, or the members have disagreed about theirs.
    pub fn waits_for_view(&self, now: Micros) -> Option<Micros> {
        let accepted_at = self.pending.as_ref().map(|pending| pending.accepted_at);
        self.unsettled_since.or(accepted_at).map(|since| now.since(since))
    }

    /// The nodes whose promise this node's proposal waits for.
    pub fn awaited(&self) -> MemberSet {
        let Some(Proposal { members, promises, .. }) = &self.proposal else { return MemberSet::EMPTY };
        members.0.keys().copied().filter(|id| !promises.contains_key(id)).collect()
    }

    /// Whether a witness vouches for a node: this one, or one that is heard, as it says. `None` in majority mode, and for a
    /// node that is not heard.
    pub fn witnessed(&self, id: NodeId) -> Option<bool> {
        let reports = || self.peers.get(&id).and_then(|peer| peer.last).map(|last| last.witnessed);
        match self.config.mode {
            Mode::Majority => None,
            Mode::Witness if id == self.me.id => Some(self.is_witnessed()),
            Mode::Witness => reports().filter(|_| self.is_reachable(id)),
        }
    }

    /// Whether a node said that it leaves, last, or somebody in its name because its process has ended.
    pub fn has_left(&self, id: NodeId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.state() == AnnouncedPhase::Left)
    }

    /// Whether a node gives its buckets away, as it says. `None` for a node that is not heard.
    pub fn drains(&self, id: NodeId) -> Option<bool> {
        if id == self.me.id {
            return Some(self.draining);
        }
        self.peers.get(&id)?.last.map(|last| last.draining).filter(|_| self.is_reachable(id))
    }

    /// A clique of those who would promise it.
    pub(crate) fn electable(&self, candidates: MemberSet, now: Micros) -> MemberSet {
        let mut left = candidates;
        loop {
            let clique = self.clique(left);
            if self.config.mode == Mode::Majority {
                return clique;
            }
            let members = self.incarnations(clique);
            let refuses =
                |id: &NodeId| self.peers.get(id).is_some_and(|peer| self.refuses(peer, &members, now));
            let unwilling: MemberSet = clique.iter().filter(refuses).collect();
            if unwilling.is_empty() {
                return clique;
            }
            left = left.minus(unwilling); // whom they do not hear may be in the next clique
        }
    }

    /// These nodes in the lives that are known of them.
    pub(crate) fn incarnations(&self, nodes: MemberSet) -> Members {
        let life = |id: NodeId| -> (NodeId, Incarnation) {
            let known = self.peers.get(&id).map(|peer| peer.incarnation);
            (id, if id == self.me.id { self.me.incarnation } else { known.unwrap_or_default() })
        };
        Members(nodes.iter().map(life).collect())
    }

    /// Whether a node that is heard would not promise a view of these members.
    fn refuses(&self, peer: &Peer, members: &Members, now: Micros) -> bool {
        let Some(last) = &peer.last else { return false };
        let all = members.set() == self.config.nodes;
        match last.state {
            AnnouncedPhase::Listen | AnnouncedPhase::HeldDown => {
                now < peer.proposal_backoff_until || (!all && !last.witnessed)
            }
            AnnouncedPhase::Fenced if peer.has_lapsed_with_us() => {
                let refuses = !self.follows(members);
                let lacks = !last.witnessed && self.is_impatient(now);
                now < peer.proposal_backoff_until || (!all && (refuses || lacks))
            }
            _ => false,
        }
    }

    /// How long an unsettled view is watched before it is proposed anew, and somebody who may yet promise is waited for.
    pub(crate) fn proposal_timeout(&self) -> Micros {
        Micros(self.config.timing.take.0.saturating_mul(3))
    }

    /// The members of this node's lapsed view without which it may be followed: they are heard to say that it has lapsed, and that no
    /// witness vouches for them, in answer to this node's word that one does for it, or without hearing it at all. Such a member can
    /// open its gate, or promise anything, only with this node; and it does not go on without one that has a witness, or that it does
    /// not hear.
    pub(crate) fn unreachable_members(&self) -> MemberSet {
        let Some(since) = self.witness_since.filter(|_| self.is_witnessed()) else { return MemberSet::EMPTY };
        let since = since + self.proposal_timeout();
        let is_stranded = |(id, incarnation): (&NodeId, &Incarnation)| {
            let peer = self.peers.get(id).filter(|peer| peer.has_lapsed_with_us())?;
            let answers = peer.last.is_some_and(|last| {
                let deaf = self.now >= since && !last.reports_reachable(self.me.id); // nor can it answer
                !last.witnessed && (deaf || Micros(last.echo_us) >= since)
            });
            let lives = self.is_incarnation_reachable(Member { id: *id, incarnation: *incarnation });
            (answers && lives && peer.view == self.view).then_some(*id)
        };
        self.members.0.iter().filter_map(is_stranded).collect()
    }

    /// Witness mode: notes since when a member has been fenced, and another one has the witness for a view without it, while this one has
    /// none: it cannot promise that view, and is not left out as long as it acts.
    pub(crate) fn note_barring(&mut self, now: Micros) {
        let ours = |peer: &&Peer| peer.view == self.view && self.members.contains(peer.member());
        let members = || self.peers.values().filter(ours).filter(|peer| self.is_reachable(peer.member().id));
        let reports =
            |what: fn(&Heartbeat) -> bool| members().any(|peer| peer.last.as_ref().is_some_and(what));
        let bars = !self.is_witnessed()
            && reports(|last| last.state == AnnouncedPhase::Fenced)
            && reports(|last| last.witnessed);
        self.blocks_majority_since = bars.then(|| self.blocks_majority_since.unwrap_or(now));
    }

    /// Whether that has lasted for as long as an outage may: then the grants of the others do not keep this node's gate open any more,
    /// so that its view lapses and it may be left out.
    pub(crate) fn yields_lease(&self) -> bool {
        self.blocks_majority_since
            .is_some_and(|since| self.now.since(since) >= self.config.timing.listen_lapse)
    }

    fn is_impatient(&self, now: Micros) -> bool {
        self.unsettled_since.is_some_and(|since| now.since(since) >= self.proposal_timeout())
    }

    /// Whoever has been asked for long, could be left out and has not promised is not asked again for a while: what keeps it
    /// from promising may last.
    pub(crate) fn note_reluctant(&mut self, now: Micros) {
        let Some(proposal) = &self.proposal else { return };
        let pending = self.pending.as_ref().filter(|pending| pending.view == proposal.view);
        let Some(promised_at) = pending.and_then(|pending| pending.promised_at) else { return };
        if now.since(promised_at) < self.proposal_timeout() {
            return;
        }
        let missing = |peer: &&Peer| {
            let asked = proposal.members.contains(peer.member());
            asked && !proposal.promises.contains_key(&peer.member().id)
        };
        let idle = |peer: &&Peer| peer.is_stateless() || peer.has_lapsed_with_us();
        let reluctant: Vec<NodeId> =
            self.peers.values().filter(missing).filter(idle).map(|peer| peer.member().id).collect();
        let until = now + self.config.timing.listen_lapse;
        for id in reluctant {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.proposal_backoff_until = until;
            }
        }
    }
}
