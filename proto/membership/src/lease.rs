//! Being sure of the installed view: leases, the witness, and what a lapse means.
//!
//! Invariants: a lease is counted from our own sending time, as echoed; it is bound to the view and to both lives; a
//! witness's answer counts from when it was asked. What the gate compares may shorten at any time (the gate only
//! closes) and is lengthened only by fresh answers.

use evergate_base::Micros;

use crate::config::Mode;
use crate::message::AnnouncedPhase;
use crate::view_change::Pending;
use crate::{Leases, NODES_MAX, Node, NodeId};

impl Node {
    /// A witness answered the question that was asked at `asked_at`, or (`reachable` false) is known not to answer.
    /// Ask at least three times within [`crate::Timing::fence`], and when [`Node::witness_wanted`] says.
    pub fn set_witness(&mut self, now: Micros, asked_at: Micros, reachable: bool) {
        self.note_now(now);
        if !reachable {
            self.witness_until = Micros(0);
            self.witness_since = None;
        } else {
            let until = asked_at.min(now) + self.fence();
            if self.witness_until <= self.now || self.witness_since.is_none() {
                self.witness_since = Some(self.now);
            }
            self.witness_until = self.witness_until.max(until);
            self.witness_asked_at = self.witness_asked_at.max(asked_at.min(now));
        }
        self.due = true;
    }

    /// Somebody at the address of another node speaks and is not understood: there may be a cluster that this node should be
    /// in. Until `until` it founds none, unless with more than half of the nodes in majority mode; it joins, and promises, as before.
    pub fn set_estranged(&mut self, now: Micros, until: Micros) {
        self.note_now(now);
        self.foreign_until = self.foreign_until.max(until);
    }

    /// How long a lease lasts, of nodes and of the witness: as long as the node with the shortest wait believes. Nodes should have the
    /// same timing; while they do not, nobody may take for good what another one is about to replace.
    pub(crate) fn fence(&self) -> Micros {
        self.peers.values().filter_map(|peer| peer.lease).fold(self.config.timing.fence, Micros::min)
    }

    /// The length of leases by a node's own timing, as it announces it; `None` while it is silent. The shortest of all nodes
    /// counts for each.
    pub fn lease_of(&self, id: NodeId) -> Option<Micros> {
        if id == self.me.id {
            return Some(self.config.timing.fence);
        }
        self.peers.get(&id)?.lease.filter(|_| self.is_reachable(id))
    }

    /// The leases for the gate. To be written after every call of a `handle_*`; after [`Event::Installed`] and
    /// [`Event::Voided`] before the roles of buckets are written.
    pub fn leases(&self) -> Leases {
        let mut member = [Micros(0); NODES_MAX];
        if self.established {
            for (id, peer) in &self.peers {
                if let Some(slot) = member.get_mut(usize::from(id.0)) {
                    *slot = peer.expiry;
                }
            }
        }
        Leases { member, own: self.gate_expiry() }
    }

    /// Whether a witness has answered for long enough to make views upon its word.
    pub(crate) fn is_witnessed(&self) -> bool {
        let fence = self.fence();
        self.witness_until > self.now
            && self.witness_since.is_some_and(|since| self.now.since(since) >= fence)
    }

    /// From when on the witness must have been asked, for a promise that leaves out nodes which may act.
    pub(crate) fn witness_needed(&self, pending: &Pending) -> Option<Micros> {
        if self.config.mode == Mode::Majority || pending.members.set() == self.config.nodes {
            return None;
        }
        let may_act = |peer: &&crate::peer::Peer| {
            let member = peer.member();
            let known = pending.founding || self.members.0.contains_key(&member.id);
            let closed =
                self.members.0.get(&member.id).is_some_and(|incarnation| peer.is_closed(*incarnation));
            known && !closed && !pending.members.contains(member)
        };
        let acted_at = |peer: &crate::peer::Peer| {
            // A life that cannot act may have followed one that could.
            if self.is_helpless(peer) { peer.adopted_at } else { peer.sign_at }
        };
        let signs = self.peers.values().filter(may_act).filter_map(acted_at);
        signs.max().map(|at| at + self.config.timing.take)
    }

    /// Whether a node is heard to say that it cannot act without this one: it has neither state nor a witness, or its gate
    /// stays closed until this node grants or promises something. With a witness the latter may give its state up and begin anew, but not
    /// beside a node that it hears; nor does one found anything that is kept out.
    fn is_helpless(&self, peer: &crate::peer::Peer) -> bool {
        let Some(last) = peer.last.filter(|_| self.is_reachable(peer.member().id)) else { return false };
        let idle = !last.witnessed || last.reports_reachable(self.me.id);
        let kept_out =
            self.established && last.state == AnnouncedPhase::HeldDown && last.reports_reachable(self.me.id);
        last.is_powerless() || kept_out || (peer.has_lapsed_with_us() && idle)
    }

    /// Until when an answer of the witness counts.
    pub fn witness_until(&self) -> Micros {
        self.witness_until
    }

    /// When to ask the witness, beside the steady questions: an answer to a question asked from then on is what a
    /// take-over waits for.
    pub fn witness_wanted(&self) -> Option<Micros> {
        let pending = self.pending.as_ref().filter(|pending| pending.asked)?;
        self.witness_needed(pending).filter(|from| self.witness_asked_at < *from)
    }

    /// What the gate compares: nothing passes while a member replaces this node, but that is no lapse.
    pub(crate) fn gate_expiry(&self) -> Micros {
        if self.excluded { Micros(0) } else { self.own_expiry() }
    }

    /// Until when this node may believe in its view.
    pub(crate) fn own_expiry(&self) -> Micros {
        const ALWAYS: Micros = Micros(u64::MAX);
        if !self.established {
            return Micros(0);
        }
        let mut expiries: Vec<Micros> = self.peers.values().map(|peer| peer.expiry).collect();
        expiries.sort_unstable_by(|a, b| b.cmp(a));
        match self.config.mode {
            Mode::Majority => match self.config.majority() - 1 {
                0 => ALWAYS,
                others => expiries.get(others - 1).copied().unwrap_or(Micros(0)),
            },
            Mode::Witness => {
                let all = self.members.set() == self.config.nodes;
                let agree = all && !self.yields_lease();
                let agreed = if agree { expiries.last().copied().unwrap_or(ALWAYS) } else { Micros(0) };
                let witness = if self.lapsed_at.is_some() { Micros(0) } else { self.witness_until };
                agreed.max(witness)
            }
        }
    }

    /// Rule 8: a lapse cancels promises, and closes the view's gate until all configured nodes agree again.
    pub(crate) fn watch_lapse(&mut self) {
        if self.config.mode == Mode::Witness
            && let Some(pending) = &self.pending
            && pending.members.set() != self.config.nodes
            && self.witness_until <= self.now
        {
            self.pending = None;
            self.proposal = None;
        }
        if !self.established {
            return;
        }
        if self.now < self.own_expiry() {
            self.opened = true;
            if self.lapsed_at.take().is_some() {
                self.renewed_at = Some(self.now);
            }
        } else if self.lapsed_at.is_none()
            && (self.opened || self.now.since(self.installed_at) >= self.fence())
        {
            self.lapsed_at = Some(self.now);
            if self.config.mode == Mode::Witness {
                self.pending = None;
                self.proposal = None;
            }
        }
    }
}
