//! Members of a proposal: the nodes that can be expected to promise. A view waits for the promise of each member, so a
//! node that cannot promise must not be asked.
//!
//! In witness mode a node without a witness promises only a view of all configured nodes. A node whose view has lapsed
//! promises only a view of the same incarnations and perhaps more. Either has no state, or a gate that stays closed
//! without this node's grants. So the view is safe without it, and it joins again when it can.
//!
//! Invariants: an active node is never left out (rule 11). A node that may still continue with the same members is
//! awaited for [`Node::proposal_timeout`]. In majority mode every reachable node would promise.

use evergate_base::Micros;

use crate::ballot::Proposal;
use crate::config::Mode;
use crate::message::{AnnouncedPhase, Heartbeat};
use crate::peer::Peer;
use crate::{Incarnation, Member, MemberSet, Members, Node, NodeId};

impl Node {
    /// Time for which a view has been awaited, or for which the members have disagreed about theirs.
    pub fn waits_for_view(&self, now: Micros) -> Option<Micros> {
        let accepted_at = self.ballot.pending.as_ref().map(|pending| pending.accepted_at);
        self.phase.unsettled_since().or(accepted_at).map(|since| now.since(since))
    }

    /// The nodes whose promise this node's proposal lacks.
    pub fn awaited(&self) -> MemberSet {
        self.ballot.proposal.iter().flat_map(Proposal::missing).collect()
    }

    /// Whether a witness vouches for a node: for this one, or for a reachable one by its own report. `None` in majority
    /// mode and for a node that is not reachable.
    pub fn witnessed(&self, id: NodeId) -> Option<bool> {
        match self.config.mode {
            Mode::Majority => None,
            Mode::Witness if id == self.me.id => Some(self.is_witnessed()),
            Mode::Witness => self.peers.reachable_last(id, &self.clock).map(|last| last.witnessed),
        }
    }

    /// Whether a node's last message was that it leaves. Its watchdog process sends it when the node's process ends.
    pub fn has_left(&self, id: NodeId) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.state() == AnnouncedPhase::Left)
    }

    /// Whether a node reports that it drains. `None` for a node that is not reachable.
    pub fn drains(&self, id: NodeId) -> Option<bool> {
        if id == self.me.id {
            return Some(self.rebalancer.draining);
        }
        self.peers.reachable_last(id, &self.clock).map(|last| last.draining)
    }

    /// A clique of candidates that would promise it.
    pub(crate) fn electable(&self, candidates: MemberSet, now: Micros) -> MemberSet {
        let mut remaining = candidates;
        loop {
            let clique = self.clique(remaining);
            if self.config.mode == Mode::Majority {
                return clique;
            }
            let members = self.incarnations(clique);
            let refuses =
                |id: &NodeId| self.peers.get(*id).is_some_and(|peer| self.refuses(peer, &members, now));
            let refusing: MemberSet = clique.iter().filter(refuses).collect();
            if refusing.is_empty() {
                return clique;
            }
            remaining = remaining.minus(refusing); // the next clique may have nodes that they do not receive
        }
    }

    /// These nodes in their known incarnations.
    pub(crate) fn incarnations(&self, nodes: MemberSet) -> Members {
        self.peers.incarnations(nodes, self.me)
    }

    /// Whether a reachable node would refuse a view of these members.
    fn refuses(&self, peer: &Peer, members: &Members, now: Micros) -> bool {
        let Some(last) = &peer.last else { return false };
        let all = members.set() == self.config.nodes;
        match last.state {
            AnnouncedPhase::Listen | AnnouncedPhase::HeldDown => {
                now < peer.proposal_backoff_until || (!all && !last.witnessed)
            }
            AnnouncedPhase::Fenced if peer.has_lapsed_with_us() => {
                let refuses = !self.follows(members);
                let lacks = !last.witnessed && self.has_waited_long(now);
                now < peer.proposal_backoff_until || (!all && (refuses || lacks))
            }
            _ => false,
        }
    }

    /// Time before an unsettled view is proposed again, and for which a node that may still promise is awaited.
    pub(crate) fn proposal_timeout(&self) -> Micros {
        Micros(self.config.timing.take.0.saturating_mul(3))
    }

    /// The stranded members of this node's lapsed view, without which the view may be followed. Each reports that its
    /// view has lapsed and that it has no witness. It either answers to this node's report of a witness, or does not
    /// receive this node. It can open its gate, or promise, only with this node's help. It also continues without no
    /// member that has a witness or that it does not receive.
    pub(crate) fn unreachable_members(&self) -> MemberSet {
        let Some(since) = self.witness.since.filter(|_| self.is_witnessed()) else { return MemberSet::EMPTY };
        let since = since + self.proposal_timeout();
        let is_stranded = |(id, incarnation): (&NodeId, &Incarnation)| {
            let peer = self.peers.get(*id).filter(|peer| peer.has_lapsed_with_us())?;
            let answers = peer.last.is_some_and(|last| {
                let cannot_receive = self.clock.now >= since && !last.reports_reachable(self.me.id);
                !last.witnessed && (cannot_receive || Micros(last.echo_us) >= since)
            });
            let is_live = self.is_incarnation_reachable(Member { id: *id, incarnation: *incarnation });
            (answers && is_live && peer.view == self.phase.view()).then_some(*id)
        };
        self.phase.members().0.iter().filter_map(is_stranded).collect()
    }

    /// Witness mode: records since when this node has blocked a view. A member is fenced, and another member has the
    /// witness for a view without it. This node has no witness, so it cannot promise that view, and is not left out
    /// while active.
    pub(crate) fn update_blocked_majority(&mut self, now: Micros) {
        let ours =
            |peer: &&Peer| peer.view == self.phase.view() && self.phase.members().contains(peer.member());
        let members = || self.peers.values().filter(ours).filter(|peer| self.is_reachable(peer.member().id));
        let reports =
            |what: fn(&Heartbeat) -> bool| members().any(|peer| peer.last.as_ref().is_some_and(what));
        let blocks = !self.is_witnessed()
            && reports(|last| last.state == AnnouncedPhase::Fenced)
            && reports(|last| last.witnessed);
        if let Some(view) = self.phase.installed_mut() {
            view.blocks_majority_since = blocks.then(|| view.blocks_majority_since.unwrap_or(now));
        }
    }

    /// Whether the block has lasted as long as an outage may. Then the grants of the other nodes do not keep this
    /// node's gate open any more: its view lapses, and it may be left out.
    pub(crate) fn yields_lease(&self) -> bool {
        let since = self.phase.installed().and_then(|view| view.blocks_majority_since);
        since.is_some_and(|since| self.clock.now.since(since) >= self.config.timing.listen_lapse)
    }

    fn has_waited_long(&self, now: Micros) -> bool {
        self.phase.unsettled_since().is_some_and(|since| now.since(since) >= self.proposal_timeout())
    }

    /// Backs off from a node that was asked for long, could be left out and did not promise: its obstacle may last.
    pub(crate) fn back_off_from_silent_members(&mut self, now: Micros) {
        let Some(proposal) = &self.ballot.proposal else { return };
        let pending = self.ballot.pending.as_ref().filter(|pending| pending.view == proposal.view);
        let Some(promised_at) = pending.and_then(|pending| pending.promised_at) else { return };
        if now.since(promised_at) < self.proposal_timeout() {
            return;
        }
        let missing = |peer: &&Peer| {
            let asked = proposal.members.contains(peer.member());
            asked && !proposal.promises.contains_key(&peer.member().id)
        };
        let has_no_open_gate = |peer: &&Peer| peer.is_stateless() || peer.has_lapsed_with_us();
        let silent: Vec<NodeId> = self
            .peers
            .values()
            .filter(missing)
            .filter(has_no_open_gate)
            .map(|peer| peer.member().id)
            .collect();
        let until = now + self.config.timing.listen_lapse;
        for id in silent {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.proposal_backoff_until = until;
            }
        }
    }
}
