//! Keeping the backups of the buckets owned here complete, and at those nodes that rank highest for them.

use std::collections::BTreeMap;

use crate::bucket_state::BucketState;
use crate::rebalance::RebalanceBudget;
use crate::rendezvous::score;
use crate::{Bucket, MemberSet, Node, NodeId, ViewId};

impl Node {
    /// Whether a bucket owned here has fewer backups than it should have, those that are being filled among them.
    pub(crate) fn lacks_backups(&self, steady: MemberSet) -> bool {
        let wanted = self.backups_wanted(steady.without(self.me.id));
        let lacks = |state: &BucketState| state.listed.minus(state.dropping).len() < wanted;
        self.bucket_states.iter().any(|state| state.owner == Some(self.me.id) && lacks(state))
    }

    fn backups_wanted(&self, others: MemberSet) -> usize {
        usize::from(self.config.backups).min(others.len())
    }

    /// Every owned bucket gets the backups it lacks, then those that rank higher for it, and loses those it does not need.
    pub(crate) fn complete_backups(&mut self, steady: MemberSet, room: &mut RebalanceBudget) {
        let others = steady.without(self.me.id);
        let choice = Choice {
            others,
            shunned: self.shunned(),
            weights: self.weights(&self.members),
            wanted: self.backups_wanted(others),
            view: self.view,
            unaware: self.members.set().without(self.me.id),
            draining: self.draining,
        };
        for bucket in 0..self.config.buckets {
            let Some(state) = self.bucket_states.get_mut(usize::from(bucket)) else { return };
            if state.owner != Some(self.me.id) || state.freezing.is_some() {
                continue;
            }
            let step = choice.step(
                OwnedBucket { bucket, state, unreported: self.changed.contains(&bucket) },
                room.mirrors > 0,
            );
            match step {
                Step::None => {}
                Step::Renewed => self.touch(Bucket(bucket)),
                Step::Listed => {
                    room.mirrors -= 1;
                    self.touch(Bucket(bucket));
                }
                Step::Spare(spare) => self.begin_drop(Bucket(bucket), spare),
            }
        }
    }
}

/// What is the same for all buckets of one look.
struct Choice {
    /// Members that may get copies.
    others: MemberSet,
    shunned: MemberSet,
    weights: BTreeMap<NodeId, u16>,
    /// Backups that each bucket should have.
    wanted: usize,
    view: ViewId,
    /// Who has to hear of a new term.
    unaware: MemberSet,
    draining: bool,
}

/// A bucket owned here.
struct OwnedBucket<'a> {
    bucket: u16,
    state: &'a mut BucketState,
    /// Whether the shell has not polled its last change yet.
    unreported: bool,
}

/// What came of one bucket.
enum Step {
    None,
    /// It has a new term.
    Renewed,
    /// It has one more backup to fill.
    Listed,
    /// This backup is one too many.
    Spare(NodeId),
}

impl Choice {
    /// `room`: whether one more copy may be begun.
    fn step(&self, mut held: OwnedBucket<'_>, room: bool) -> Step {
        if self.draining && self.is_barred(&held) && held.is_settled() && self.renew(held.state) {
            return Step::Renewed;
        }
        let state = &*held.state;
        let usable = state.listed.intersection(self.others).minus(state.dropping).minus(held.destined());
        if usable.len() < self.wanted && room {
            return self.list_best(&mut held);
        }
        let in_sync = usable.intersection(state.backups);
        if let Some(spare) = self.spare(&held, in_sync) {
            return Step::Spare(spare);
        }
        match self.better(&held, usable, in_sync).filter(|_| room) {
            Some(better) => self.list_better(&mut held, better),
            None => Step::None,
        }
    }

    /// To whom nothing may be given in this term, it may be in the next one.
    fn is_barred(&self, held: &OwnedBucket<'_>) -> bool {
        !held.state.gone.intersection(self.others).minus(self.shunned).is_empty()
    }

    fn renew(&self, state: &mut BucketState) -> bool {
        state.renew(self.view, self.unaware)
    }

    fn liked(&self, bucket: u16, id: NodeId) -> u64 {
        score(bucket, id, self.weights.get(&id).copied().unwrap_or(0))
    }

    fn best(&self, bucket: u16, of: MemberSet) -> Option<NodeId> {
        of.iter().max_by_key(|id| self.liked(bucket, *id))
    }

    /// Of those that were dropped one is tried again when there is nobody else.
    fn list_best(&self, held: &mut OwnedBucket<'_>) -> Step {
        let free = self.others.minus(held.state.listed);
        let (fresh, again) = (free.minus(held.state.gone), free.minus(self.shunned));
        let best = self
            .best(held.bucket, fresh)
            .or_else(|| self.best(held.bucket, again).filter(|_| !held.unreported && self.renew(held.state)));
        match best.is_some_and(|best| held.state.list(best)) {
            true => Step::Listed,
            false => Step::None,
        }
    }

    /// The lowest of too many; where they are just enough, one of those that are on their way out of the members.
    fn spare(&self, held: &OwnedBucket<'_>, in_sync: MemberSet) -> Option<NodeId> {
        let state = &*held.state;
        if in_sync.len() > self.wanted {
            in_sync.iter().min_by_key(|id| self.liked(held.bucket, *id))
        } else if in_sync.len() == self.wanted && self.wanted > 0 {
            state.backups.minus(self.others).minus(state.dropping).minus(held.destined()).iter().next()
        } else {
            None
        }
    }

    /// Copies follow a node that has joined: else those of a dead one would all be at the few that were there before.
    /// Or one that was drained and serves again: what was dropped in this term is listed in the next one.
    fn better(&self, held: &OwnedBucket<'_>, usable: MemberSet, in_sync: MemberSet) -> Option<NodeId> {
        let whole = in_sync == usable && held.state.destined.is_none() && !self.draining;
        let least = in_sync.iter().map(|id| self.liked(held.bucket, id)).min()?;
        let better = self.best(held.bucket, self.others.minus(held.state.listed).minus(self.shunned))?;
        (whole && self.liked(held.bucket, better) > least).then_some(better)
    }

    fn list_better(&self, held: &mut OwnedBucket<'_>, better: NodeId) -> Step {
        let begun = match held.state.gone.contains(better) {
            true if held.unreported => false,
            true => self.renew(held.state),
            false => held.state.list(better),
        };
        if begun { Step::Listed } else { Step::None }
    }
}

impl OwnedBucket<'_> {
    /// Who is to own it, and has a copy for that.
    fn destined(&self) -> MemberSet {
        self.state.destined.map_or(MemberSet::EMPTY, MemberSet::of)
    }

    fn is_settled(&self) -> bool {
        self.state.destined.is_none() && !self.unreported
    }
}
