//! Validity of the installed view: leases, the witness, and lapses.
//!
//! Invariants: a lease counts from this node's own sending time, as echoed, and is bound to the view and to both
//! incarnations. An answer of a witness counts from the time of the question. The expiries of the gate may become
//! earlier at any time, since the gate then only closes. Only fresh answers extend them.

use evergate_base::Micros;

use crate::ballot::Pending;
use crate::config::Mode;
use crate::message::AnnouncedPhase;
use crate::phase_machine::LeaseChange;
use crate::{Leases, NODES_MAX, Node, NodeId};

impl Node {
    /// A witness answered the question that was asked at `asked_at`, or (`reachable` false) is known not to answer.
    /// Ask at least three times within [`crate::Timing::fence`], and at [`Node::witness_wanted`].
    pub fn set_witness(&mut self, now: Micros, asked_at: Micros, reachable: bool) {
        self.note_now(now);
        if reachable {
            let fence = self.fence();
            self.witness.record_answer(self.clock.now, asked_at.min(now), fence);
        } else {
            self.witness.record_failure();
        }
        self.clock.due = true;
    }

    /// Undecodable datagrams arrive from the address of another node: a cluster may exist that this node should be in.
    /// Until `until` it does not bootstrap, except with more than half of the nodes in majority mode. It joins, and
    /// promises, as before.
    pub fn block_bootstrap(&mut self, now: Micros, until: Micros) {
        self.note_now(now);
        self.join.foreign_until = self.join.foreign_until.max(until);
    }

    /// Length of a lease of a node or of the witness: the shortest that any node grants. Nodes should have the same
    /// timing. While they differ, no node may rely on a lease that another node is about to end.
    pub(crate) fn fence(&self) -> Micros {
        self.peers.shortest_lease(self.config.timing.fence)
    }

    /// Length of leases by a node's own timing, as it announces it; `None` while it is unreachable. Each node uses the
    /// shortest of all nodes.
    pub fn lease_of(&self, id: NodeId) -> Option<Micros> {
        if id == self.me.id {
            return Some(self.config.timing.fence);
        }
        self.peers.get(id)?.lease.filter(|_| self.is_reachable(id))
    }

    /// The leases for the gate. Written after every call of a `handle_*`. After [`crate::Event::Installed`] and
    /// [`crate::Event::StateDropped`] they are written before the roles of buckets.
    pub fn leases(&self) -> Leases {
        let mut member = [Micros(0); NODES_MAX];
        if self.phase.is_established() {
            for (id, peer) in self.peers.iter() {
                if let Some(slot) = member.get_mut(usize::from(id.0)) {
                    *slot = peer.expiry;
                }
            }
        }
        Leases { member, own: self.gate_expiry() }
    }

    /// Whether a witness has answered for long enough to make views by its evidence.
    pub(crate) fn is_witnessed(&self) -> bool {
        self.witness.answers_for(self.clock.now, self.fence())
    }

    /// Earliest time of a question to the witness that supports a promise without nodes that may act.
    pub(crate) fn witness_needed(&self, pending: &Pending) -> Option<Micros> {
        if self.config.mode == Mode::Majority || pending.members.set() == self.config.nodes {
            return None;
        }
        let may_act = |peer: &&crate::peer::Peer| {
            let member = peer.member();
            let known = pending.is_bootstrap || self.phase.members().0.contains_key(&member.id);
            let closed = self
                .phase
                .members()
                .0
                .get(&member.id)
                .is_some_and(|incarnation| peer.is_closed(*incarnation));
            known && !closed && !pending.members.contains(member)
        };
        let acted_at = |peer: &crate::peer::Peer| {
            // A powerless incarnation may have followed one that could act.
            if self.depends_on_this_node(peer) { peer.adopted_at } else { peer.sign_at }
        };
        let signs = self.peers.values().filter(may_act).filter_map(acted_at);
        signs.max().map(|at| at + self.config.timing.take)
    }

    /// Whether a reachable node reports that it cannot act without this one. It has neither state nor a witness, or its
    /// gate stays closed until this node grants or promises. With a witness it may drop its state and begin again, but
    /// not beside a node that it receives. A node that is held down does not bootstrap either.
    fn depends_on_this_node(&self, peer: &crate::peer::Peer) -> bool {
        let Some(last) = peer.last.filter(|_| self.is_reachable(peer.member().id)) else { return false };
        let depends = !last.witnessed || last.reports_reachable(self.me.id);
        let kept_out = self.phase.is_established()
            && last.state == AnnouncedPhase::HeldDown
            && last.reports_reachable(self.me.id);
        last.cannot_act_alone() || kept_out || (peer.has_lapsed_with_us() && depends)
    }

    /// End of the validity of the witness's last answer.
    pub fn witness_until(&self) -> Micros {
        self.witness.until
    }

    /// Time for a question to the witness beside the steady ones: a failover waits for the answer to a question asked
    /// from then on.
    pub fn witness_wanted(&self) -> Option<Micros> {
        let pending = self.ballot.asked()?;
        self.witness_needed(pending).filter(|from| self.witness.asked_at < *from)
    }

    /// The gate's own expiry. A member that replaces this node closes the gate, but that is no lapse.
    pub(crate) fn gate_expiry(&self) -> Micros {
        if self.phase.is_excluded() { Micros(0) } else { self.own_expiry() }
    }

    /// End of this node's own lease in its view.
    pub(crate) fn own_expiry(&self) -> Micros {
        const ALWAYS: Micros = Micros(u64::MAX);
        if !self.phase.is_established() {
            return Micros(0);
        }
        let expiries = self.peers.expiries();
        match self.config.mode {
            Mode::Majority => match self.config.majority() - 1 {
                0 => ALWAYS,
                others => expiries.get(others - 1).copied().unwrap_or(Micros(0)),
            },
            Mode::Witness => {
                let all = self.phase.members().set() == self.config.nodes;
                let agree = all && !self.yields_lease();
                let agreed = if agree { expiries.last().copied().unwrap_or(ALWAYS) } else { Micros(0) };
                let witness = if self.phase.lapsed_at().is_some() { Micros(0) } else { self.witness.until };
                agreed.max(witness)
            }
        }
    }

    /// Rule 8: a lapse cancels promises, and closes the view's gate until all configured nodes agree again.
    pub(crate) fn update_lapse(&mut self) {
        if self.config.mode == Mode::Witness
            && let Some(pending) = &self.ballot.pending
            && pending.members.set() != self.config.nodes
            && !self.witness.answers(self.clock.now)
        {
            self.ballot.withdraw();
        }
        if !self.phase.is_established() {
            return;
        }
        let (now, fence) = (self.clock.now, self.fence());
        match self.phase.update_lease(now < self.own_expiry(), now, fence) {
            LeaseChange::Renewed => self.ballot.renewed_at = Some(now),
            LeaseChange::Lapsed if self.config.mode == Mode::Witness => self.ballot.withdraw(),
            LeaseChange::Lapsed | LeaseChange::None => {}
        }
    }
}
