//! A node's knowledge of one other node: its incarnation, its newest heartbeat, and the leases in both directions.
//!
//! A peer's new incarnation is adopted only when it echoes this node's recent clock to this node's current incarnation.
//! A recorded datagram cannot do that, so a replay neither revives an ended incarnation nor cuts off a running one.
//! Invariants: only heartbeats of the adopted incarnation count as reception. `granted_at` and `granted_to` last as
//! long as the process, because a granted lease outlives every later decision of this node.

use std::collections::BTreeMap;

use evergate_base::Micros;

use crate::message::{AnnouncedPhase, Header, Heartbeat};
use crate::replay_window::{ReplayWindow, Seen};
use crate::{Incarnation, Member, NodeId, Path, Rejected, ViewId};

/// Most former incarnations of a peer that are refused.
const RETIRED_MAX: usize = 8;

/// Most incarnations whose strays are remembered. A forgotten one could be replayed to delay a bootstrap.
const STRAYS_MAX: usize = 8;

/// Greatest age of an echo of this node's clock in the first message of a new incarnation.
const ADOPT_ECHO_AGE_MAX: Micros = Micros::from_ms(1000);

/// One other node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    id: NodeId,
    /// The adopted incarnation; unknown until it has proved that it receives this node.
    pub(crate) incarnation: Incarnation,
    /// Former incarnations, each with the time until which it is refused: as long as an echo sent to it could pass as
    /// fresh.
    retired: Vec<(Incarnation, Micros)>,
    window: ReplayWindow,
    /// Sequence number of the last message to the peer.
    sequence: u64,
    /// An incarnation whose first message must be answered, with its clock.
    hello: Option<(Incarnation, u64)>,
    replied_at: Option<Micros>,
    /// The newest clocks in heartbeats to another incarnation of this node, by the incarnation that sent them.
    strays: BTreeMap<Incarnation, u64>,
    /// The newest view that the peer announced to another incarnation, or had promised.
    pub(crate) stray_view: ViewId,
    /// Time of the last sign of the peer, whichever incarnation of this node it addressed. From a powerless incarnation
    /// that addresses another one only the first message counts.
    pub(crate) sign_at: Option<Micros>,
    /// Time of the adoption.
    pub(crate) adopted_at: Option<Micros>,
    /// Until then proposals leave the peer out, because it did not promise one.
    pub(crate) proposal_backoff_until: Micros,
    /// Time of the last reception on each path.
    pub(crate) received_at: [Option<Micros>; 2],
    /// The newest heartbeat.
    pub(crate) last: Option<Heartbeat>,
    pub(crate) view: ViewId,
    /// The substance of the last heartbeat to the peer.
    pub(crate) reported: Option<Heartbeat>,
    /// Length of the leases that the peer grants, by the newest heartbeat of any incarnation.
    pub(crate) lease: Option<Micros>,
    /// Since then the peer has reported that it lacks this node's configuration.
    pub(crate) lacks_since: Option<Micros>,
    /// The peer's newest clock, to be echoed.
    clock_us: u64,
    /// The newest of the peer's clocks that a grant echoed.
    granted_clock_us: u64,
    pub(crate) granted_at: Option<Micros>,
    pub(crate) granted_to: Incarnation,
    /// End of the peer's lease to this node, on this node's clock.
    pub(crate) expiry: Micros,
    /// Time of the last repetition of the installed view to the peer.
    pub(crate) commit_sent_at: Option<Micros>,
    /// Until then no bucket that dropped the peer as a backup tries it again.
    avoided_until: Micros,
    avoided_for: Micros,
}

impl Peer {
    pub(crate) fn new(id: NodeId) -> Peer {
        Peer {
            id,
            incarnation: Incarnation::UNKNOWN,
            retired: Vec::new(),
            window: ReplayWindow::default(),
            sequence: 0,
            hello: None,
            replied_at: None,
            strays: BTreeMap::new(),
            stray_view: ViewId::NONE,
            sign_at: None,
            adopted_at: None,
            proposal_backoff_until: Micros(0),
            received_at: [None; 2],
            last: None,
            view: ViewId::NONE,
            reported: None,
            lease: None,
            lacks_since: None,
            clock_us: 0,
            granted_clock_us: 0,
            granted_at: None,
            granted_to: Incarnation::UNKNOWN,
            expiry: Micros(0),
            commit_sent_at: None,
            avoided_until: Micros(0),
            avoided_for: Micros(0),
        }
    }

    /// Avoids the peer as a backup, because it did not keep up: for `least / 10` first. After a failure soon afterwards
    /// the time is `least` or more, and doubles up to `most`.
    pub(crate) fn avoid(&mut self, now: Micros, least: Micros, most: Micros) {
        if self.is_avoided(now) {
            return; // the same failure, seen by another bucket
        }
        let fails_again = self.avoided_for.0 > 0 && now.since(self.avoided_until) < most;
        let doubled = Micros(self.avoided_for.0.saturating_mul(2));
        self.avoided_for = if fails_again { doubled.max(least).min(most) } else { Micros(least.0 / 10) };
        self.avoided_until = now + self.avoided_for;
    }

    pub(crate) fn is_avoided(&self, now: Micros) -> bool {
        now < self.avoided_until
    }

    /// The peer in its adopted incarnation.
    pub(crate) fn member(&self) -> Member {
        Member { id: self.id, incarnation: self.incarnation }
    }

    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Time of the last reception on any path.
    pub(crate) fn last_received(&self) -> Option<Micros> {
        self.received_at.iter().flatten().max().copied()
    }

    pub(crate) fn state(&self) -> AnnouncedPhase {
        self.last.map_or(AnnouncedPhase::Listen, |last| last.state)
    }

    /// Whether the peer has no state and promised a later view: it never installs this one.
    pub(crate) fn is_past(&self, view: ViewId) -> bool {
        self.is_stateless() && self.last.is_some_and(|last| last.promised > view)
    }

    /// Whether the peer reports that it has no state, and has not left.
    pub(crate) fn is_stateless(&self) -> bool {
        self.last.is_some_and(|last| matches!(last.state, AnnouncedPhase::Listen | AnnouncedPhase::HeldDown))
    }

    /// Whether the peer reports that it is a member of a view, or that it may continue with a lapsed one.
    pub(crate) fn has_state(&self) -> bool {
        matches!(self.state(), AnnouncedPhase::Active | AnnouncedPhase::Fenced)
    }

    /// Whether the peer reports that it has no state and may join.
    pub(crate) fn listens(&self) -> bool {
        self.last.is_some_and(|last| last.state == AnnouncedPhase::Listen)
    }

    /// Whether the peer reports that a view with this node's current incarnation has lapsed.
    pub(crate) fn has_lapsed_with_us(&self) -> bool {
        self.last.is_some_and(|last| last.state == AnnouncedPhase::Fenced && last.lapsed && last.includes_you)
    }

    /// Whether the peer reported that the gate of its incarnation `incarnation` is permanently closed.
    pub(crate) fn is_closed(&self, incarnation: Incarnation) -> bool {
        let Some(last) = self.last else { return false };
        let (first, end) = (last.closed_from.0, last.closed_to.0);
        end != 0 && incarnation.0 != 0 && incarnation.0.wrapping_sub(first) <= end.wrapping_sub(first)
    }

    /// Records a first message, which names no incarnation of this node. True when it should be answered at once.
    pub(crate) fn handle_hello(
        &mut self,
        header: &Header,
        heartbeat: &Heartbeat,
        now: Micros,
        gap: Micros,
    ) -> bool {
        if self.is_dead(header.from.incarnation, now) {
            return false;
        }
        if header.from.incarnation != self.incarnation {
            self.hello = Some((header.from.incarnation, heartbeat.clock_us));
        }
        if self.replied_at.is_some_and(|at| now.since(at) < gap) {
            return false;
        }
        self.replied_at = Some(now);
        true
    }

    /// Admits a message to this node's current incarnation. It must be new and come from the adopted incarnation, or
    /// from a new incarnation that it proves.
    pub(crate) fn admit(
        &mut self,
        header: &Header,
        echo_us: Option<u64>,
        now: Micros,
    ) -> Result<(), Rejected> {
        if header.from.incarnation != self.incarnation {
            let fresh = echo_us.is_some_and(|echo| {
                echo != 0 && echo <= now.0 && now.since(Micros(echo)) <= ADOPT_ECHO_AGE_MAX
            });
            if !fresh || self.is_dead(header.from.incarnation, now) || header.from.incarnation.0 == 0 {
                return Err(Rejected::StaleSender);
            }
            self.adopt(header.from.incarnation, now);
        }
        match self.window.note(header.sequence) {
            Seen::New => Ok(()),
            Seen::Duplicate => Err(Rejected::Duplicate),
            Seen::TooOld => Err(Rejected::TooOld),
        }
    }

    /// Records a heartbeat to another incarnation of this node. Returns whether it is newer than the previous ones.
    pub(crate) fn note_stray(&mut self, header: &Header, heartbeat: &Heartbeat, now: Micros) -> bool {
        let incarnation = header.from.incarnation;
        let (clock_us, known) = (heartbeat.clock_us, self.strays.get(&incarnation).copied());
        if self.is_dead(incarnation, now) || known.is_some_and(|known| clock_us <= known) {
            return false;
        }
        if known.is_none() && self.strays.len() >= STRAYS_MAX {
            self.strays.pop_first();
        }
        self.strays.insert(incarnation, clock_us);
        self.stray_view = self.stray_view.max(header.view).max(heartbeat.promised);
        // A powerless incarnation may have followed one that could act.
        if known.is_none() || !heartbeat.cannot_act_alone() {
            self.sign_at = Some(now);
        }
        true
    }

    /// Whether an incarnation is known to be over: lately replaced by another one, or closed by the current one.
    fn is_dead(&self, incarnation: Incarnation, now: Micros) -> bool {
        self.is_closed(incarnation)
            || self.retired.iter().any(|(dead, until)| *dead == incarnation && now < *until)
    }

    fn adopt(&mut self, incarnation: Incarnation, now: Micros) {
        if self.incarnation != Incarnation::UNKNOWN {
            if self.retired.len() >= RETIRED_MAX {
                self.retired.remove(0);
            }
            self.retired.push((self.incarnation, now + ADOPT_ECHO_AGE_MAX));
        }
        self.incarnation = incarnation;
        self.adopted_at = Some(now);
        self.proposal_backoff_until = Micros(0);
        self.window = ReplayWindow::default();
        self.hello = None;
        self.clock_us = 0;
        self.expiry = Micros(0);
        // The new incarnation has no history as a backup. Repeated restarts are limited by the peer itself.
        (self.avoided_until, self.avoided_for) = (Micros(0), Micros(0));
        self.reset_reports();
    }

    fn reset_reports(&mut self) {
        self.reported = None;
        self.received_at = [None; 2];
        self.last = None;
        self.view = ViewId::NONE;
        self.commit_sent_at = None;
    }

    /// Resets the peer's reports to this node's previous incarnation. Its clock stays, so that its first message adopts
    /// this node's new incarnation, and so do the grants.
    pub(crate) fn reset_for_new_incarnation(&mut self) {
        self.expiry = Micros(0);
        self.reset_reports();
    }

    /// Records an admitted heartbeat. Returns whether it is the newest.
    pub(crate) fn handle_heartbeat(
        &mut self,
        header: &Header,
        heartbeat: &Heartbeat,
        path: Path,
        now: Micros,
    ) -> bool {
        if let Some(at) = self.received_at.get_mut(path.index()) {
            *at = Some(at.map_or(now, |at| at.max(now)));
        }
        if heartbeat.clock_us <= self.clock_us && self.last.is_some() {
            return false;
        }
        self.sign_at = Some(now);
        self.clock_us = heartbeat.clock_us;
        self.last = Some(*heartbeat);
        self.lease = Some(Micros(heartbeat.lease_us));
        self.view = header.view;
        true
    }

    /// The incarnation whose first message waits for an answer, with its clock. It is answered once, beside the
    /// heartbeats to the adopted incarnation.
    pub(crate) fn take_hello(&mut self) -> Option<(Incarnation, u64)> {
        self.hello.take()
    }

    /// The peer's newest clock, to be echoed.
    pub(crate) fn clock_us(&self) -> u64 {
        self.clock_us
    }

    /// Records that a grant is being sent, at a clock not earlier than the one it echoes.
    pub(crate) fn note_grant(&mut self, now: Micros) {
        if self.clock_us > self.granted_clock_us || self.granted_to != self.incarnation {
            self.granted_clock_us = self.clock_us;
            self.granted_at = Some(self.granted_at.map_or(now, |at| at.max(now)));
            self.granted_to = self.incarnation;
        }
    }
}
