//! What a node knows about one other node: its life, its last words, and the leases in both directions.
//!
//! A peer's new life is adopted only when it echoes our clock of a moment ago to our present life: a recorded datagram
//! cannot do that, so a replay neither brings a dead life back nor cuts off a living one. Invariants: only heartbeats of
//! the adopted life count as hearing; `granted_at` and `granted_to` survive everything but the process, because a lease
//! once given outlives our own changes of mind.

use std::collections::BTreeMap;

use evergate_base::Micros;

use crate::message::{AnnouncedPhase, Header, Heartbeat};
use crate::replay_window::{ReplayWindow, Seen};
use crate::{Incarnation, Member, NodeId, Path, Rejected, ViewId};

/// How many former lives of a peer are remembered as dead.
const RETIRED_MAX: usize = 8;

/// Of how many lives strays are remembered; beyond that one is forgotten and could be replayed to delay a foundation.
const STRAYS_MAX: usize = 8;

/// How old an echo of our clock may be in the first message of a new life.
const ADOPT_ECHO_AGE_MAX: Micros = Micros::from_ms(1000);

/// One other node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    id: NodeId,
    /// The adopted life; unknown until it has shown that it hears us.
    pub(crate) incarnation: Incarnation,
    /// Former lives, and until when they are refused: as long as an echo that they were sent could pass for fresh.
    retired: Vec<(Incarnation, Micros)>,
    window: ReplayWindow,
    /// Sequence of the last message to it.
    sequence: u64,
    /// A life that said hello and must be answered, with its clock.
    hello: Option<(Incarnation, u64)>,
    replied_at: Option<Micros>,
    /// The newest clocks in heartbeats that were not for our present life, by the life that sent them.
    strays: BTreeMap<Incarnation, u64>,
    /// The newest view that it told another life of, or had promised.
    pub(crate) stray_view: ViewId,
    /// When anything was last heard of it, whichever life it spoke to; of a life that speaks to another one of ours and can
    /// do nothing by itself only its first word counts.
    pub(crate) sign_at: Option<Micros>,
    /// When its life was adopted.
    pub(crate) adopted_at: Option<Micros>,
    /// Until when views are made without it, because it did not promise one.
    pub(crate) proposal_backoff_until: Micros,
    /// When it was last heard on each path.
    pub(crate) received_at: [Option<Micros>; 2],
    /// Its newest heartbeat and the view in that heartbeat's header.
    pub(crate) last: Option<Heartbeat>,
    pub(crate) view: ViewId,
    /// What our last heartbeat to it said.
    pub(crate) reported: Option<Heartbeat>,
    /// For how long its grants are good, as it said last in any life.
    pub(crate) lease: Option<Micros>,
    /// Since when it says that it lacks this node's configuration.
    pub(crate) lacks_since: Option<Micros>,
    /// Its newest clock, to be echoed.
    clock_us: u64,
    /// The newest of its clocks that a grant of ours carried, when, and to which life.
    granted_clock_us: u64,
    pub(crate) granted_at: Option<Micros>,
    pub(crate) granted_to: Incarnation,
    /// Until when it has promised not to help replace us, on our clock.
    pub(crate) expiry: Micros,
    /// When the installed view was last sent to it again.
    pub(crate) commit_sent_at: Option<Micros>,
    /// Until when no bucket that dropped it as a backup tries it again, and for how long that was.
    shunned_until: Micros,
    shunned_for: Micros,
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
            shunned_until: Micros(0),
            shunned_for: Micros(0),
        }
    }

    /// It did not keep up as a backup: it is left alone for a moment, then for a while, and twice as long each time that it fails
    /// soon after.
    pub(crate) fn shun(&mut self, now: Micros, least: Micros, most: Micros) {
        if self.is_shunned(now) {
            return; // the same failure, seen by another bucket
        }
        let again = self.shunned_for.0 > 0 && now.since(self.shunned_until) < most;
        let doubled = Micros(self.shunned_for.0.saturating_mul(2));
        self.shunned_for = if again { doubled.max(least).min(most) } else { Micros(least.0 / 10) };
        self.shunned_until = now + self.shunned_for;
    }

    pub(crate) fn is_shunned(&self, now: Micros) -> bool {
        now < self.shunned_until
    }

    /// The peer in its adopted life.
    pub(crate) fn member(&self) -> Member {
        Member { id: self.id, incarnation: self.incarnation }
    }

    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// When it was last heard on any path.
    pub(crate) fn last_received(&self) -> Option<Micros> {
        self.received_at.iter().flatten().max().copied()
    }

    pub(crate) fn state(&self) -> AnnouncedPhase {
        self.last.map_or(AnnouncedPhase::Listen, |last| last.state)
    }

    /// Whether it has no state and has promised a later view: it will never install this one.
    pub(crate) fn is_past(&self, view: ViewId) -> bool {
        self.is_stateless() && self.last.is_some_and(|last| last.promised > view)
    }

    /// Whether it says that it has no state, and has not left.
    pub(crate) fn is_stateless(&self) -> bool {
        self.last.is_some_and(|last| matches!(last.state, AnnouncedPhase::Listen | AnnouncedPhase::HeldDown))
    }

    /// Whether it says that it is in a view, or was and may go on with it.
    pub(crate) fn has_state(&self) -> bool {
        matches!(self.state(), AnnouncedPhase::Active | AnnouncedPhase::Fenced)
    }

    /// Whether it says that it has no state and may join.
    pub(crate) fn listens(&self) -> bool {
        self.last.is_some_and(|last| last.state == AnnouncedPhase::Listen)
    }

    /// Whether it says that a view with our present life in it has lapsed.
    pub(crate) fn has_lapsed_with_us(&self) -> bool {
        self.last.is_some_and(|last| last.state == AnnouncedPhase::Fenced && last.lapsed && last.includes_you)
    }

    /// Whether it has said that the gate of its life `incarnation` is closed for good.
    pub(crate) fn is_closed(&self, incarnation: Incarnation) -> bool {
        let Some(last) = self.last else { return false };
        let (first, end) = (last.closed_from.0, last.closed_to.0);
        end != 0 && incarnation.0 != 0 && incarnation.0.wrapping_sub(first) <= end.wrapping_sub(first)
    }

    /// Notes a first message, which names no life of ours. True when it should be answered at once.
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

    /// Admits a message to our present life: of the adopted life and not seen before, or of a new life that is
    /// adopted by it.
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

    /// Notes a heartbeat that was not for our present life. Whether it is newer than those before.
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
        // A life that cannot act may have followed one that could.
        if known.is_none() || !heartbeat.is_powerless() {
            self.sign_at = Some(now);
        }
        true
    }

    /// Whether a life is known to be over: replaced by another one lately, or closed by the present one.
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
        // It forgot what it held and begins anew. How soon it may do that after dying often is its own affair.
        (self.shunned_until, self.shunned_for) = (Micros(0), Micros(0));
        self.reset_reports();
    }

    fn reset_reports(&mut self) {
        self.reported = None;
        self.received_at = [None; 2];
        self.last = None;
        self.view = ViewId::NONE;
        self.commit_sent_at = None;
    }

    /// Our life ended: what it said to that life counts no more. Its clock is kept, so that our new life is adopted
    /// by the first message, and so are the grants.
    pub(crate) fn reset_for_new_incarnation(&mut self) {
        self.expiry = Micros(0);
        self.reset_reports();
    }

    /// Notes an admitted heartbeat. Returns whether it is the newest.
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

    /// The life that said hello, with its clock: answered once, beside the heartbeats to the adopted life.
    pub(crate) fn take_hello(&mut self) -> Option<(Incarnation, u64)> {
        self.hello.take()
    }

    /// Its newest clock, to be echoed.
    pub(crate) fn clock_us(&self) -> u64 {
        self.clock_us
    }

    /// Notes that a grant is being sent, at a clock not earlier than the one it echoes.
    pub(crate) fn note_grant(&mut self, now: Micros) {
        if self.clock_us > self.granted_clock_us || self.granted_to != self.incarnation {
            self.granted_clock_us = self.clock_us;
            self.granted_at = Some(self.granted_at.map_or(now, |at| at.max(now)));
            self.granted_to = self.incarnation;
        }
    }
}
