//! Heartbeats: the periodic report of a node, and its effect on the receiver.
//!
//! Most heartbeats are calm: they have no news, and their receiver is reachable on both networks. A calm heartbeat
//! wakes up no receiver. Where leases are long, calm heartbeats alternate between the networks. News uses both at
//! once.
//!
//! Invariants: a grant goes only to a member of the installed view that no pending promise replaces, and it echoes the
//! receiver's own clock. A message to another incarnation of this node proves nothing and is only answered.

use evergate_base::Micros;

use crate::message::{AnnouncedPhase, Body, Header, Heartbeat, Message};
use crate::peer::Peer;
use crate::{Incarnation, Member, MemberSet, Node, NodeId, NodePhase, Path, Rejected};

/// Heartbeats without reception after which a network counts as doubtful. Every second calm heartbeat uses one network
/// alone, and it waits for a turn of its receiver.
const CALM_BEATS: u64 = 4;

impl Node {
    /// Processes a heartbeat to this node's current incarnation, and the grant in it.
    pub(crate) fn handle_heartbeat(
        &mut self,
        header: &Header,
        heartbeat: &Heartbeat,
        path: Path,
    ) -> Result<(), Rejected> {
        let now = self.clock.now;
        let peer = self.peers.get_mut(header.from.id).ok_or(Rejected::UnknownSender)?;
        let newest = peer.handle_heartbeat(header, heartbeat, path, now);
        let fence = self.fence();
        let peer = self.peers.get_mut(header.from.id).ok_or(Rejected::UnknownSender)?;
        let granted = heartbeat.grants && self.phase.is_established() && header.view == self.phase.view();
        if granted && heartbeat.echo_us <= now.0 && self.phase.members().contains(header.from) {
            // Counted from this node's sending time: the time that the answer took does not matter.
            peer.expiry = peer.expiry.max(Micros(heartbeat.echo_us) + fence);
        }
        if newest {
            self.update_lack(header.from.id);
            self.note_excluded();
            self.learn_views(header, heartbeat);
        }
        Ok(())
    }

    /// Records a heartbeat to another incarnation. It still announces a view, so a node must not bootstrap a cluster
    /// beside its sender, unless the sender can do nothing by itself. Only rising clocks count: a recording can delay a
    /// bootstrap once, not forever.
    pub(crate) fn note_stray(&mut self, message: &Message) {
        let Body::Heartbeat(heartbeat) = &message.body else { return };
        let Some(peer) = self.peers.get_mut(message.header.from.id) else { return };
        let acts = matches!(heartbeat.state, AnnouncedPhase::Active | AnnouncedPhase::Fenced);
        if peer.note_stray(&message.header, heartbeat, self.clock.now)
            && acts
            && !heartbeat.cannot_act_alone()
        {
            self.join.stray_at = Some(self.clock.now);
        }
    }

    /// Whether the workers made no progress for too long.
    fn is_stalled(&self) -> bool {
        self.announcer.is_stalled(self.clock.now, self.config.timing.stall_max)
    }

    /// Sends the heartbeats to every node when they are due.
    pub(crate) fn send_heartbeats(&mut self, now: Micros) {
        if now < self.announcer.next_at {
            return;
        }
        self.announcer.next_at = now + self.config.timing.heartbeat;
        if self.is_stalled() {
            return;
        }
        self.sum_load(now);
        let path = self.announcer.next_path();
        let alternates = self.config.timing.alternates();
        let ids: Vec<NodeId> = self.peers.ids().copied().collect();
        for id in ids {
            let Some(peer) = self.peers.get(id) else { continue };
            let (incarnation, clock_us) = (peer.incarnation, peer.clock_us());
            let heartbeat = self.heartbeat(id, clock_us);
            let calm = self.is_calm(id, &heartbeat);
            if let Some(peer) = self.peers.get_mut(id) {
                peer.reported = Some(heartbeat.substance());
                if heartbeat.grants {
                    peer.note_grant(self.clock.now);
                }
            }
            let paths: &[Path] = if calm && alternates { &[path] } else { &Path::ALL };
            self.send_on(paths, id, incarnation, &Body::Heartbeat(heartbeat), calm);
            if incarnation != Incarnation::UNKNOWN && !self.is_reachable(id) {
                // Both nodes may have restarted, so that each addresses the other's previous incarnation.
                let hello =
                    Heartbeat { grants: false, includes_you: false, excludes_you: false, ..heartbeat };
                self.send_to(id, Incarnation::UNKNOWN, &Body::Heartbeat(hello));
            }
        }
    }

    /// Answers a node that does not know this one, so that it can prove that it receives this node.
    pub(crate) fn answer_hello(&mut self, id: NodeId) {
        if self.is_stalled() {
            return;
        }
        let Some(peer) = self.peers.get_mut(id) else { return };
        let hello = peer.take_hello();
        let adopted = (peer.incarnation, peer.clock_us());
        let (incarnation, clock_us) = hello.unwrap_or(adopted);
        let mut heartbeat = self.heartbeat(id, clock_us);
        if hello.is_some() {
            // Another incarnation than the adopted one: this node's promises do not hold for it.
            heartbeat.includes_you = false;
            heartbeat.excludes_you = false;
        }
        heartbeat.grants = false;
        self.send_to(id, incarnation, &Body::Heartbeat(heartbeat));
    }

    /// Whether a heartbeat has no news and goes to a member of the view that is reachable on both networks in both
    /// directions.
    fn is_calm(&self, to: NodeId, heartbeat: &Heartbeat) -> bool {
        let Some(peer) = self.peers.get(to) else { return false };
        let Some(last) = &peer.last else { return false };
        let lately = Micros(self.config.timing.heartbeat.0.saturating_mul(CALM_BEATS));
        let reached = Path::ALL.iter().all(|path| {
            let received_at = peer.received_at.get(path.index()).copied().flatten();
            received_at.is_some_and(|at| self.clock.now.since(at) < lately)
                && last.receives_from.get(path.index()).is_some_and(|nodes| nodes.contains(self.me.id))
        });
        reached
            && heartbeat.state == AnnouncedPhase::Active
            && last.state == AnnouncedPhase::Active
            && last.includes_you
            && peer.view == self.phase.view()
            && peer.reported == Some(heartbeat.substance())
    }

    /// The heartbeat to a node. It grants only to a member of the installed view that no pending promise replaces.
    pub(crate) fn heartbeat(&self, to: NodeId, echo_us: u64) -> Heartbeat {
        let member = self.peers.get(to).map(Peer::member).unwrap_or_default();
        let included = self.phase.is_established() && self.phase.members().contains(member);
        let excluded = self.ballot.pending.as_ref().is_some_and(|pending| !pending.members.contains(member));
        let (closed_from, closed_to) = self.announcer.closed(self.me.incarnation);
        Heartbeat {
            clock_us: self.clock.now.0,
            echo_us,
            grants: included && !excluded && echo_us != 0,
            includes_you: included,
            excludes_you: excluded,
            state: self.announced(),
            witnessed: self.is_witnessed(),
            lapsed: self.phase.lapsed_at().is_some() && self.ballot.pending.is_none(),
            promised: self.ballot.promised,
            receives_from: Path::ALL.map(|path| self.reachable_on(path)),
            reach: self.network.reach,
            closed_from,
            closed_to,
            owned: self.rebalancer.load.0,
            work: self.rebalancer.load.1,
            weight: self.config.weight,
            draining: self.rebalancer.draining || self.only_votes(),
            lease_us: self.config.timing.fence.0,
            configurations: self.configurations,
        }
    }

    fn announced(&self) -> AnnouncedPhase {
        match self.phase() {
            NodePhase::Left => AnnouncedPhase::Left,
            NodePhase::Listening if self.is_rejoin_blocked() => AnnouncedPhase::HeldDown,
            NodePhase::Listening => AnnouncedPhase::Listen,
            NodePhase::Active => AnnouncedPhase::Active,
            NodePhase::Fenced => AnnouncedPhase::Fenced,
        }
    }

    /// How long a node's adopted incarnation has been silent; `None` if nothing was ever received from it.
    pub(crate) fn silence(&self, id: NodeId, now: Micros) -> Option<Micros> {
        self.peers.silence(id, &self.clock, now)
    }

    /// Whether a heartbeat of the node was received lately.
    pub(crate) fn is_reachable(&self, id: NodeId) -> bool {
        self.peers.is_reachable(id, &self.clock)
    }

    /// Nodes that were received lately, this one included.
    pub(crate) fn reachable_set(&self) -> MemberSet {
        self.peers.reachable_set(&self.clock)
    }

    /// Whether two nodes receive each other, by their own reports.
    pub(crate) fn mutual(&self, a: NodeId, b: NodeId) -> bool {
        self.peers.mutual(a, b, &self.clock)
    }

    /// Whether a heartbeat of exactly this incarnation was received lately.
    pub(crate) fn is_incarnation_reachable(&self, member: Member) -> bool {
        member == self.me || self.peers.is_incarnation_reachable(member, &self.clock)
    }
}
