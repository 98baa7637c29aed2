//! Even load inside a view. The backups are in `replica_placement.rs`, the work of a bucket in `load.rs`.
//!
//! Every owner decides for its own buckets, from the heartbeats of all members, without a leader. The pace is bounded.
//! A node gives away only so much that it stays the more loaded one, so that no bucket returns.

use evergate_base::Micros;

use crate::load::{WORK_MAX, WORK_SLACK};
use crate::{Bucket, MemberSet, Node, NodeId};

/// Load of this node, and the schedule of its checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rebalancer {
    /// This node moves all its buckets away.
    pub(crate) draining: bool,
    /// The completion of the drain was reported.
    pub(crate) drained_logged: bool,
    /// Number and work of the owned buckets, at `load_at`.
    pub(crate) load: (u16, u64),
    load_at: Option<Micros>,
    /// Time of the last averaging of the work.
    pub(crate) smoothed_at: Micros,
    /// Time of the next check of the backups.
    pub(crate) balance_at: Micros,
    /// Time of the next rebalancing. Backups are checked more often.
    rebalance_at: Micros,
}

impl Rebalancer {
    /// A node of this weight: with 0 it drains.
    pub(crate) fn new(weight: u16, interval: Micros, now: Micros) -> Rebalancer {
        Rebalancer {
            draining: weight == 0,
            drained_logged: false,
            load: (0, 0),
            load_at: None,
            smoothed_at: now,
            balance_at: now + interval,
            rebalance_at: now + interval,
        }
    }

    /// Begins the checks of a new view.
    pub(crate) fn restart(&mut self, interval: Micros, now: Micros) {
        self.drained_logged = false;
        self.balance_at = now + interval;
        self.rebalance_at = self.balance_at;
    }
}

impl Node {
    /// Moves all buckets away and accepts none; [`crate::Event::Drained`] reports the completion. `false` ends the
    /// drain.
    pub fn set_draining(&mut self, now: Micros, draining: bool) {
        self.note_now(now);
        self.rebalancer.draining = draining || self.config.weight == 0;
        self.rebalancer.drained_logged = false;
        self.rebalancer.balance_at = self.clock.now;
        self.clock.due = true;
    }

    /// Sums up the load for the heartbeats, several times between two passes of the balance.
    pub(crate) fn sum_load(&mut self, now: Micros) {
        let span = Micros(self.config.timing.balance.0 / 10);
        if self.rebalancer.load_at.is_none_or(|at| now.since(at) >= span) {
            self.rebalancer.load = (self.owned().try_into().unwrap_or(u16::MAX), self.own_work());
            self.rebalancer.load_at = Some(now);
        }
    }

    /// Checks backups and load from time to time: more often during a drain, or while a bucket has too few replicas.
    pub(crate) fn advance_balance(&mut self, now: Micros) {
        let calm =
            self.phase.is_established() && self.ballot.pending.is_none() && self.phase.lapsed_at().is_none();
        if !calm || now < self.rebalancer.balance_at {
            return;
        }
        let steady = self.steady();
        let mut budget = RebalanceBudget::of(self);
        let interval = self.config.timing.balance;
        if now.since(self.rebalancer.smoothed_at) >= interval {
            self.smooth_loads();
        }
        // A handoff shows in the other nodes' loads only after a while.
        if self.rebalancer.draining || now >= self.rebalancer.rebalance_at {
            self.rebalancer.rebalance_at = now + interval;
            let targets = self.movable_to(self.handoff_targets(steady));
            self.even_load(targets, &mut budget);
            if budget.moves > 0 {
                self.drop_plans(targets);
            }
        }
        self.complete_backups(steady, &mut budget);
        let is_urgent = self.rebalancer.draining || self.lacks_backups(steady);
        self.rebalancer.balance_at = now + if is_urgent { Micros(interval.0 / 10) } else { interval };
        let owns = self.buckets.owns_any(self.me.id);
        if self.rebalancer.draining
            && !owns
            && self.buckets.with_operations.is_empty()
            && !self.rebalancer.drained_logged
        {
            self.rebalancer.drained_logged = true;
            self.outbox.note_drained();
        }
    }

    /// Members that may receive buckets and replicas.
    fn steady(&self) -> MemberSet {
        let weights = self.weights(self.phase.members());
        weights.into_iter().filter(|(_, weight)| *weight > 0).map(|(id, _)| id).collect()
    }

    /// The nodes of `targets` that a draining node can move buckets to. A member that does not keep up as a backup
    /// receives none. A share reserved for it would go to no other member, and the drain would not end.
    fn movable_to(&self, targets: MemberSet) -> MemberSet {
        let able = targets.minus(self.avoided());
        if self.rebalancer.draining && able.without(self.me.id) != MemberSet::EMPTY { able } else { targets }
    }

    /// Peers that are avoided for a while, because they did not keep up as backups.
    pub(crate) fn avoided(&self) -> MemberSet {
        self.peers.avoided(self.clock.now)
    }

    /// Drops the plan of a bucket that could have been moved and was not: its extra replica has no purpose any more.
    fn drop_plans(&mut self, steady: MemberSet) {
        for state in &mut self.buckets.states {
            let idle = state.owner == Some(self.me.id) && state.freezing.is_none();
            if idle
                && state.planned_owner.is_some_and(|id| state.backups.contains(id) || !steady.contains(id))
            {
                state.planned_owner = None;
            }
        }
    }

    /// Moves buckets to members that have less for their weight: first by work, then by number, since idle connections
    /// count when they become active. Of the buckets that fit, the one that leaves the work most even moves first.
    fn even_load(&mut self, targets: MemberSet, budget: &mut RebalanceBudget) {
        let me = self.me.id;
        let mut all = self.shares(targets);
        let Some(mut mine) = all.iter().position(|load| load.id == me).map(|at| all.swap_remove(at)) else {
            return;
        };
        all.retain(|load| targets.contains(load.id));
        all.sort_by_key(|load| load.id);
        for to in &mut all {
            while budget.moves > 0
                && mine.work > mine.work_most()
                && to.work < to.fair_work
                && !self.rebalancer.draining
            {
                let gap = (mine.work - mine.fair_work).min(to.fair_work - to.work);
                let Some(work) = self.give(to.id, budget, |work| (1..=gap).contains(&work), Pick::Heaviest)
                else {
                    break;
                };
                mine.pass(to, work);
            }
        }
        for to in &mut all {
            while budget.moves > 0 && mine.owned > mine.owned_most() && to.owned < to.fair_owned {
                let gap = mine.work.saturating_sub(mine.fair_work).min(to.fair_work.saturating_sub(to.work));
                let most =
                    if self.rebalancer.draining { u64::MAX } else { to.work_most().saturating_sub(to.work) };
                let given = self
                    .give(to.id, budget, |work| work <= gap, Pick::Heaviest)
                    .or_else(|| self.give(to.id, budget, |work| work <= most, Pick::Lightest));
                let Some(work) = given else { break };
                mine.pass(to, work);
            }
        }
    }

    /// Current and fair shares of all members, if only `targets` and this node were to own buckets.
    fn shares(&self, targets: MemberSet) -> Vec<Share> {
        let mut weights = self.weights(self.phase.members());
        weights.retain(|id, _| *id == self.me.id || targets.contains(*id));
        let weight_of = |id: NodeId| u64::from(weights.get(&id).copied().unwrap_or(0));
        let reported = |id: NodeId| match self.peers.get(id).and_then(|peer| peer.last) {
            _ if id == self.me.id => (self.owned(), self.own_work()),
            Some(last) => (u64::from(last.owned), last.work.min(WORK_MAX)),
            None => (0, 0),
        };
        let mut all: Vec<Share> = self
            .phase
            .members()
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
        // Rounded down, no bucket returns. A draining node accepts none back, and shares that are rounded up hold all
        // of its buckets.
        let up = if self.rebalancer.draining { weight.saturating_sub(1) } else { 0 };
        let share = |total: u128, id| {
            (total * u128::from(weight_of(id)) + up).checked_div(weight).map_or(0, |share| share as u64)
        };
        for load in &mut all {
            (load.fair_owned, load.fair_work) = (share(owned, load.id), share(work, load.id));
        }
        all
    }

    /// Gives one bucket whose work fits to a member: moves it if the member is in sync, otherwise begins to replicate
    /// it there. Returns its work.
    fn give(
        &mut self,
        to: NodeId,
        budget: &mut RebalanceBudget,
        fits: impl Fn(u64) -> bool,
        pick: Pick,
    ) -> Option<u64> {
        let me = self.me.id;
        let draining = self.rebalancer.draining;
        let assumed = self.assumed_work();
        let free = |state: &crate::bucket_state::BucketState| {
            state.owner == Some(me)
                && state.freezing.is_none()
                && state.adding.is_empty()
                && state.dropping.is_empty()
                && (draining || state.planned_owner.is_none_or(|id| id == to))
                && fits(state.work(assumed))
        };
        let ready = |state: &crate::bucket_state::BucketState| free(state) && state.backups.contains(to);
        let can_catch_up = |state: &crate::bucket_state::BucketState| {
            free(state) && !state.listed.contains(to) && !state.dropped_in_term.contains(to)
        };
        let best = |suits: &dyn Fn(&crate::bucket_state::BucketState) -> bool| {
            let suitable = (0u16..).zip(&self.buckets.states).filter(|(_, state)| suits(state));
            let suitable = suitable.map(|(bucket, state)| (state.work(assumed), bucket));
            let found = match pick {
                Pick::Heaviest => suitable.max_by_key(|(work, bucket)| (*work, std::cmp::Reverse(*bucket))),
                Pick::Lightest => suitable.min(),
            };
            found.map(|(_, bucket)| bucket)
        };
        let (bucket, moves) = match best(&ready) {
            Some(bucket) => (bucket, true),
            None if budget.catching_up > 0 => (best(&can_catch_up)?, false),
            None => return None,
        };
        let state = self.buckets.get_mut(Bucket(bucket))?;
        state.planned_owner = Some(to);
        let work = state.work(assumed);
        if moves {
            budget.moves -= 1;
            self.begin_move(Bucket(bucket), to);
        } else {
            budget.catching_up -= 1;
            state.list(to);
            self.touch(Bucket(bucket));
        }
        Some(work)
    }
}

/// The first bucket to move among the fitting ones; among equals the lowest number.
#[derive(Clone, Copy)]
enum Pick {
    Heaviest,
    Lightest,
}

/// Current and fair share of one member: buckets, and their work in microseconds per second.
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

/// Number of changes that may begin now.
pub(crate) struct RebalanceBudget {
    pub(crate) catching_up: u16,
    moves: u16,
}

impl RebalanceBudget {
    fn of(node: &Node) -> RebalanceBudget {
        let mine = || node.buckets.owned_by(node.me.id);
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let syncing = mine().filter(|state| !state.listed.minus(state.backups).is_empty()).count();
        let moving = mine().filter(|state| state.freezing.is_some()).count();
        RebalanceBudget {
            catching_up: node.config.pace.catching_up_max.saturating_sub(count(syncing)),
            moves: node.config.pace.moves_max.saturating_sub(count(moving)),
        }
    }
}
