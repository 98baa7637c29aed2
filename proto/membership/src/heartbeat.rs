//! Heartbeats: what a node says about itself every few milliseconds, and what it notes of others.
//!
//! Most of them are calm: they say what the one before said, to a node that both networks reach. Their receiver need not
//! wake up for them, and where leases are long they go on one network after the other. Anything new goes on both at once.
//!
//! Invariants: a grant goes only to a member of the installed view whom no pending promise replaces, and echoes the
//! receiver's own clock; a message that does not name our present life proves nothing and is only answered.

use evergate_base::Micros;

use crate::message::{AnnouncedPhase, Body, Header, Heartbeat, Message};
use crate::peer::Peer;
use crate::{Incarnation, Member, MemberSet, Node, NodeId, NodePhase, Path, Rejected};

/// A network on which nothing was heard for so many heartbeats may carry none: every second one goes there, and waits for a
/// turn of its receiver.
const CALM_BEATS: u64 = 4;

impl Node {
    /// Notes a heartbeat to our present life, and the grant in it.
    pub(crate) fn handle_heartbeat(
        &mut self,
        header: &Header,
        heartbeat: &Heartbeat,
        path: Path,
    ) -> Result<(), Rejected> {
        let now = self.now;
        let peer = self.peers.get_mut(&header.from.id).ok_or(Rejected::UnknownSender)?;
        let newest = peer.handle_heartbeat(header, heartbeat, path, now);
        let fence = self.fence();
        let peer = self.peers.get_mut(&header.from.id).ok_or(Rejected::UnknownSender)?;
        let granted = heartbeat.grants && self.established && header.view == self.view;
        if granted && heartbeat.echo_us <= now.0 && self.members.contains(header.from) {
            // Counted from our own sending time: how long the answer took does not matter.
            peer.expiry = peer.expiry.max(Micros(heartbeat.echo_us) + fence);
        }
        if newest {
            self.note_lack(header.from.id);
            self.note_excluded();
            self.learn_views(header, heartbeat);
        }
        Ok(())
    }

    /// A heartbeat that is not for this life still tells of a view: a node that founds a cluster must not overhear it, unless
    /// its sender can do nothing by itself. Only rising clocks count, so that a recording can delay a foundation but not for
    /// ever.
    pub(crate) fn note_stray(&mut self, message: &Message) {
        let Body::Heartbeat(heartbeat) = &message.body else { return };
        let Some(peer) = self.peers.get_mut(&message.header.from.id) else { return };
        let acts = matches!(heartbeat.state, AnnouncedPhase::Active | AnnouncedPhase::Fenced);
        if peer.note_stray(&message.header, heartbeat, self.now) && acts && !heartbeat.is_powerless() {
            self.stray_at = Some(self.now);
        }
    }

    /// Whether the workers have made no progress for too long.
    fn is_stalled(&self) -> bool {
        self.progress_at.is_some_and(|at| self.now.since(at) > self.config.timing.stall_max)
    }

    /// Says what is to be said to every node, when it is time.
    pub(crate) fn send_heartbeats(&mut self, now: Micros) {
        if now < self.next_heartbeat {
            return;
        }
        self.next_heartbeat = now + self.config.timing.heartbeat;
        if self.is_stalled() {
            return;
        }
        self.sum_load(now);
        self.outside_next = !self.outside_next;
        let turn = usize::from(self.outside_next);
        let alternates = self.config.timing.alternates();
        let ids: Vec<NodeId> = self.peers.keys().copied().collect();
        for id in ids {
            let Some(peer) = self.peers.get(&id) else { continue };
            let (incarnation, clock_us) = (peer.incarnation, peer.clock_us());
            let heartbeat = self.heartbeat(id, clock_us);
            let calm = self.is_calm(id, &heartbeat);
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.reported = Some(heartbeat.substance());
                if heartbeat.grants {
                    peer.note_grant(self.now);
                }
            }
            let one = Path::ALL.get(turn..=turn).filter(|_| calm && alternates);
            self.send_on(one.unwrap_or(&Path::ALL), id, incarnation, &Body::Heartbeat(heartbeat), calm);
            if incarnation != Incarnation::UNKNOWN && !self.is_reachable(id) {
                // Perhaps both of us live anew, each speaking to the other's former life.
                let hello =
                    Heartbeat { grants: false, includes_you: false, excludes_you: false, ..heartbeat };
                self.send_to(id, Incarnation::UNKNOWN, &Body::Heartbeat(hello));
            }
        }
    }

    /// Answers a node that does not know us, so that it can prove that it hears us.
    pub(crate) fn answer_hello(&mut self, id: NodeId) {
        if self.is_stalled() {
            return;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let hello = peer.take_hello();
        let adopted = (peer.incarnation, peer.clock_us());
        let (incarnation, clock_us) = hello.unwrap_or(adopted);
        let mut heartbeat = self.heartbeat(id, clock_us);
        if hello.is_some() {
            // It is not the life that we know: nothing that we promised holds for it.
            heartbeat.includes_you = false;
            heartbeat.excludes_you = false;
        }
        heartbeat.grants = false;
        self.send_to(id, incarnation, &Body::Heartbeat(heartbeat));
    }

    /// Whether a heartbeat says nothing new, to a member of the view that hears us and that we hear on both networks.
    fn is_calm(&self, to: NodeId, heartbeat: &Heartbeat) -> bool {
        let Some(peer) = self.peers.get(&to) else { return false };
        let Some(last) = &peer.last else { return false };
        let lately = Micros(self.config.timing.heartbeat.0.saturating_mul(CALM_BEATS));
        let reached = Path::ALL.iter().all(|path| {
            let peer_input = peer.received_at.get(path.index()).copied().flatten();
            peer_input.is_some_and(|at| self.now.since(at) < lately)
                && last.peer_input.get(path.index()).is_some_and(|peer_input| peer_input.contains(self.me.id))
        });
        reached
            && heartbeat.state == AnnouncedPhase::Active
            && last.state == AnnouncedPhase::Active
            && last.includes_you
            && peer.view == self.view
            && peer.reported == Some(heartbeat.substance())
    }

    /// What we say to a node. Grants only to a member of the installed view whom no pending promise replaces.
    pub(crate) fn heartbeat(&self, to: NodeId, echo_us: u64) -> Heartbeat {
        let member = self.peers.get(&to).map(Peer::member).unwrap_or_default();
        let included = self.established && self.members.contains(member);
        let excluded = self.pending.as_ref().is_some_and(|pending| !pending.members.contains(member));
        let closed = self.me.incarnation != self.born;
        Heartbeat {
            clock_us: self.now.0,
            echo_us,
            grants: included && !excluded && echo_us != 0,
            includes_you: included,
            excludes_you: excluded,
            state: self.announced(),
            witnessed: self.is_witnessed(),
            lapsed: self.lapsed_at.is_some() && self.pending.is_none(),
            promised: self.promised,
            peer_input: Path::ALL.map(|path| self.reachable_on(path)),
            reach: self.reach,
            closed_from: if closed { self.born } else { Incarnation::UNKNOWN },
            closed_to: if closed {
                Incarnation(self.me.incarnation.0.wrapping_sub(1).max(1))
            } else {
                Incarnation::UNKNOWN
            },
            owned: self.load.0,
            work: self.load.1,
            weight: self.config.weight,
            draining: self.draining || self.only_votes(),
            lease_us: self.config.timing.fence.0,
            configurations: self.configurations,
        }
    }

    fn announced(&self) -> AnnouncedPhase {
        match self.standing() {
            NodePhase::Left => AnnouncedPhase::Left,
            NodePhase::Listening if self.is_rejoin_blocked() => AnnouncedPhase::HeldDown,
            NodePhase::Listening => AnnouncedPhase::Listen,
            NodePhase::Active => AnnouncedPhase::Active,
            NodePhase::Fenced => AnnouncedPhase::Fenced,
        }
    }

    /// Since how long nothing was heard of a node's adopted life; `None` if never.
    pub(crate) fn silence(&self, id: NodeId, now: Micros) -> Option<Micros> {
        let received_at = self.peers.get(&id)?.last_received()?;
        Some(now.since(received_at.max(self.silence_floor)))
    }

    /// Whether a node was heard lately.
    pub(crate) fn is_reachable(&self, id: NodeId) -> bool {
        let now = self.last_timer_at.unwrap_or(self.now);
        self.silence(id, now).is_some_and(|silence| silence < self.config.timing.suspect)
    }

    /// Nodes heard lately, this one included.
    pub(crate) fn reachable_set(&self) -> MemberSet {
        self.peers.keys().copied().filter(|id| self.is_reachable(*id)).collect::<MemberSet>().with(self.me.id)
    }

    /// Whether two nodes hear each other, as far as they told.
    pub(crate) fn mutual(&self, a: NodeId, b: NodeId) -> bool {
        self.reports_reachable(a, b) && self.reports_reachable(b, a)
    }

    fn reports_reachable(&self, who: NodeId, whom: NodeId) -> bool {
        if who == self.me.id {
            return self.is_reachable(whom);
        }
        self.peers.get(&who).and_then(|peer| peer.last).is_some_and(|last| last.reports_reachable(whom))
    }

    /// Whether exactly this life of a node was heard lately.
    pub(crate) fn is_incarnation_reachable(&self, member: Member) -> bool {
        member == self.me
            || (self.is_reachable(member.id)
                && self.peers.get(&member.id).is_some_and(|peer| peer.member() == member))
    }
}
