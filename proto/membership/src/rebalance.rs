//! Keeping the load even, inside a view. The backups are [`crate::copies`]' business.
//!
//! Every owner decides for its own buckets, from what all members say in their heartbeats; nobody leads. The pace is
//! bounded, and a node gives away only what still leaves it the more loaded one, so that nothing swings back.
//! What work a bucket makes is [`crate::load`]'s business.

use evergate_base::Micros;

use crate::load::{WORK_MAX, WORK_SLACK};
use crate::{Bucket, MemberSet, Node, NodeId};

impl Node {
    /// Gives all buckets away and takes no more; [`crate::Event::Drained`] tells when it is done. Undone by `false`.
    pub fn set_draining(&mut self, now: Micros, draining: bool) {
        self.note_now(now);
        self.draining = draining || self.config.weight == 0;
        self.drained_logged = false;
        self.balance_at = self.now;
        self.due = true;
    }

    /// Sums the load up, for the heartbeats: several times between two looks at it.
    pub(crate) fn sum_load(&mut self, now: Micros) {
        let span = Micros(self.config.timing.balance.0 / 10);
        if self.load_at.is_none_or(|at| now.since(at) >= span) {
            self.load = (self.owned().try_into().unwrap_or(u16::MAX), self.own_work());
            self.load_at = Some(now);
        }
    }

    /// Looks at backups and load from time to time; more often while it is draining, or something of it has too few copies.
    pub(crate) fn advance_balance(&mut self, now: Micros) {
        let calm = self.established && self.pending.is_none() && self.lapsed_at.is_none();
        if !calm || now < self.balance_at {
            return;
        }
        let steady = self.steady();
        let mut room = RebalanceBudget::of(self);
        let interval = self.config.timing.balance;
        if now.since(self.smoothed_at) >= interval {
            self.smooth_loads();
        }
        // What was given away shows in the others' loads only a while later.
        if self.draining || now >= self.even_at {
            self.even_at = now + interval;
            let takers = self.movable_to(self.handoff_targets(steady));
            self.even_load(takers, &mut room);
            if room.moves > 0 {
                self.forget_plans(takers);
            }
        }
        self.complete_backups(steady, &mut room);
        let hurries = self.draining || self.lacks_backups(steady);
        self.balance_at = now + if hurries { Micros(interval.0 / 10) } else { interval };
        let owns = self.bucket_states.iter().any(|state| state.owner == Some(self.me.id));
        if self.draining && !owns && self.busy.is_empty() && !self.drained_logged {
            self.drained_logged = true;
            self.drained = true;
        }
    }

    /// Members that may get buckets and mirrors.
    fn steady(&self) -> MemberSet {
        let weights = self.weights(&self.members);
        weights.into_iter().filter(|(_, weight)| *weight > 0).map(|(id, _)| id).collect()
    }

    /// Those of `takers` that a draining node can move buckets to. A member that does not keep up as a backup gets none; were its
    /// share kept for it, nobody else would get that either, and the drain would not end.
    fn movable_to(&self, takers: MemberSet) -> MemberSet {
        let able = takers.minus(self.shunned());
        if self.draining && able.without(self.me.id) != MemberSet::EMPTY { able } else { takers }
    }

    /// Peers that are left alone for a while, because they did not keep up as backups.
    pub(crate) fn shunned(&self) -> MemberSet {
        self.peers.iter().filter(|(_, peer)| peer.is_shunned(self.now)).map(|(id, _)| *id).collect()
    }

    /// A bucket that was mirrored to be moved, and was not although it could be, is not needed there any more.
    fn forget_plans(&mut self, steady: MemberSet) {
        for state in &mut self.bucket_states {
            let idle = state.owner == Some(self.me.id) && state.freezing.is_none();
            if idle && state.destined.is_some_and(|id| state.backups.contains(id) || !steady.contains(id)) {
                state.destined = None;
            }
        }
    }

    /// Moves buckets from here to members that have less for their weight: first for the work that they make, then for their
    /// number, since what rests counts as well when it wakes up. Of those that fit, the ones go first that leave work most even.
    fn even_load(&mut self, takers: MemberSet, room: &mut RebalanceBudget) {
        let me = self.me.id;
        let mut all = self.shares(takers);
        let Some(mut mine) = all.iter().position(|load| load.id == me).map(|at| all.swap_remove(at)) else {
            return;
        };
        all.retain(|load| takers.contains(load.id));
        all.sort_by_key(|load| load.id);
        for to in &mut all {
            while room.moves > 0 && mine.work > mine.work_most() && to.work < to.fair_work && !self.draining {
                let gap = (mine.work - mine.fair_work).min(to.fair_work - to.work);
                let Some(work) = self.give(to.id, room, |work| (1..=gap).contains(&work), Pick::Heaviest)
                else {
                    break;
                };
                mine.pass(to, work);
            }
        }
        for to in &mut all {
            while room.moves > 0 && mine.owned > mine.owned_most() && to.owned < to.fair_owned {
                let gap = mine.work.saturating_sub(mine.fair_work).min(to.fair_work.saturating_sub(to.work));
                let most = if self.draining { u64::MAX } else { to.work_most().saturating_sub(to.work) };
                let given = self
                    .give(to.id, room, |work| work <= gap, Pick::Heaviest)
                    .or_else(|| self.give(to.id, room, |work| work <= most, Pick::Lightest));
                let Some(work) = given else { break };
                mine.pass(to, work);
            }
        }
    }

    /// What all members have, and what each should have, if only `takers` and this node were to have anything.
    fn shares(&self, takers: MemberSet) -> Vec<Share> {
        let mut weights = self.weights(&self.members);
        weights.retain(|id, _| *id == self.me.id || takers.contains(*id));
        let weight_of = |id: NodeId| u64::from(weights.get(&id).copied().unwrap_or(0));
        let reported = |id: NodeId| match self.peers.get(&id).and_then(|peer| peer.last) {
            _ if id == self.me.id => (self.owned(), self.own_work()),
            Some(last) => (u64::from(last.owned), last.work.min(WORK_MAX)),
            None => (0, 0),
        };
        let mut all: Vec<Share> = self
            .members
            .set()
            .iter()
            .map(|id| {
                let (owned, work) = reported(id);
                let tolerance_percent = u64::from(self.config.pace.tolerance_percent);
                Share { id, owned, work, fair_owned: 0, fair_work: 0, tolerance_percent }
            })
            .collect();
        let sum = |of: fn(&Share) -> u64| all.iter().map(|load| u128::from(of(load))).sum::<u128>();
        let (owned, work) = (sum(|load| load.owned), sum(|load| load.work));
        let weight: u128 = all.iter().map(|load| u128::from(weight_of(load.id))).sum();
        // Rounded down, nothing swings back; a draining node takes nothing back, and shares that are rounded up have room for
        // all it has.
        let up = if self.draining { weight.saturating_sub(1) } else { 0 };
        let share = |total: u128, id| {
            (total * u128::from(weight_of(id)) + up).checked_div(weight).map_or(0, |share| share as u64)
        };
        for load in &mut all {
            (load.fair_owned, load.fair_work) = (share(owned, load.id), share(work, load.id));
        }
        all
    }

    /// Gives one bucket whose work fits to a member: moves it if the member is in sync, else begins to mirror it there. Returns
    /// its work.
    fn give(
        &mut self,
        to: NodeId,
        room: &mut RebalanceBudget,
        fits: impl Fn(u64) -> bool,
        pick: Pick,
    ) -> Option<u64> {
        let me = self.me.id;
        let draining = self.draining;
        let assumed = self.assumed_work();
        let free = |state: &crate::bucket_state::BucketState| {
            state.owner == Some(me)
                && state.freezing.is_none()
                && state.adding.is_empty()
                && state.dropping.is_empty()
                && (draining || state.destined.is_none_or(|id| id == to))
                && fits(state.work(assumed))
        };
        let ready = |state: &crate::bucket_state::BucketState| free(state) && state.backups.contains(to);
        let mirrorable = |state: &crate::bucket_state::BucketState| {
            free(state) && !state.listed.contains(to) && !state.gone.contains(to)
        };
        let best = |suits: &dyn Fn(&crate::bucket_state::BucketState) -> bool| {
            let suitable = (0u16..).zip(&self.bucket_states).filter(|(_, state)| suits(state));
            let suitable = suitable.map(|(bucket, state)| (state.work(assumed), bucket));
            let found = match pick {
                Pick::Heaviest => suitable.max_by_key(|(work, bucket)| (*work, std::cmp::Reverse(*bucket))),
                Pick::Lightest => suitable.min(),
            };
            found.map(|(_, bucket)| bucket)
        };
        let (bucket, moves) = match best(&ready) {
            Some(bucket) => (bucket, true),
            None if room.mirrors > 0 => (best(&mirrorable)?, false),
            None => return None,
        };
        let state = self.bucket_states.get_mut(usize::from(bucket))?;
        state.destined = Some(to);
        let work = state.work(assumed);
        if moves {
            room.moves -= 1;
            self.begin_move(Bucket(bucket), to);
        } else {
            room.mirrors -= 1;
            state.list(to);
            self.touch(Bucket(bucket));
        }
        Some(work)
    }
}

/// Which of those that fit goes first; of equals the one with the lowest number.
#[derive(Clone, Copy)]
enum Pick {
    Heaviest,
    Lightest,
}

/// What one member has, and what it should have: buckets, and their work in microseconds a second.
struct Share {
    id: NodeId,
    owned: u64,
    work: u64,
    fair_owned: u64,
    fair_work: u64,
    tolerance_percent: u64,
}

impl Share {
    fn owned_most(&self) -> u64 {
        self.fair_owned.saturating_add(self.fair_owned.saturating_mul(self.tolerance_percent) / 100)
    }

    fn work_most(&self) -> u64 {
        let tolerance = self.fair_work.saturating_mul(self.tolerance_percent) / 100;
        self.fair_work.saturating_add(tolerance).saturating_add(WORK_SLACK)
    }

    fn pass(&mut self, to: &mut Share, work: u64) {
        self.owned = self.owned.saturating_sub(1);
        self.work = self.work.saturating_sub(work);
        to.owned = to.owned.saturating_add(1);
        to.work = to.work.saturating_add(work);
    }
}

/// How much more may be begun now.
pub(crate) struct RebalanceBudget {
    pub(crate) mirrors: u16,
    moves: u16,
}

impl RebalanceBudget {
    fn of(node: &Node) -> RebalanceBudget {
        let mine = || node.bucket_states.iter().filter(|state| state.owner == Some(node.me.id));
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let syncing = mine().filter(|state| !state.listed.minus(state.backups).is_empty()).count();
        let moving = mine().filter(|state| state.freezing.is_some()).count();
        RebalanceBudget {
            mirrors: node.config.pace.mirrors_max.saturating_sub(count(syncing)),
            moves: node.config.pace.moves_max.saturating_sub(count(moving)),
        }
    }
}
