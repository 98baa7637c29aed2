//! Placement of replicas: complete backups for the buckets owned here, at the nodes that rank highest for them.

use std::collections::BTreeMap;

use crate::bucket_state::BucketState;
use crate::rebalance::RebalanceBudget;
use crate::rendezvous::score;
use crate::{Bucket, MemberSet, Node, NodeId, ViewId};

impl Node {
    /// Whether a bucket owned here has too few backups, counting backups that catch up.
    pub(crate) fn lacks_backups(&self, steady: MemberSet) -> bool {
        let wanted = self.backups_wanted(steady.without(self.me.id));
        let lacks = |state: &BucketState| state.listed.minus(state.dropping).len() < wanted;
        self.buckets.owned_by(self.me.id).any(lacks)
    }

    fn backups_wanted(&self, others: MemberSet) -> usize {
        usize::from(self.config.backups).min(others.len())
    }

    /// Gives every owned bucket its missing backups, then better ranked ones, and drops surplus ones.
    pub(crate) fn complete_backups(&mut self, steady: MemberSet, may_add: &mut RebalanceBudget) {
        let others = steady.without(self.me.id);
        let choice = Choice {
            others,
            avoided: self.avoided(),
            weights: self.weights(self.phase.members()),
            wanted: self.backups_wanted(others),
            view: self.phase.view(),
            unaware: self.phase.members().set().without(self.me.id),
            draining: self.rebalancer.draining,
        };
        for bucket in 0..self.config.buckets {
            let unreported = self.buckets.changed.contains(&bucket);
            let Some(state) = self.buckets.get_mut(Bucket(bucket)) else { return };
            if state.owner != Some(self.me.id) || state.freezing.is_some() {
                continue;
            }
            let step = choice.step(OwnedBucket { bucket, state, unreported }, may_add.catching_up > 0);
            match step {
                Step::None => {}
                Step::Renewed => self.touch(Bucket(bucket)),
                Step::Listed => {
                    may_add.catching_up -= 1;
                    self.touch(Bucket(bucket));
                }
                Step::Spare(spare) => self.begin_drop(Bucket(bucket), spare),
            }
        }
    }
}

/// Values that are the same for all buckets of one pass.
struct Choice {
    /// Members that may hold replicas.
    others: MemberSet,
    avoided: MemberSet,
    weights: BTreeMap<NodeId, u16>,
    /// Number of backups that each bucket should have.
    wanted: usize,
    view: ViewId,
    /// Members that must learn of a new term.
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

/// Result for one bucket.
enum Step {
    None,
    /// The bucket has a new term.
    Renewed,
    /// The bucket has one more backup to fill.
    Listed,
    /// This backup is surplus.
    Spare(NodeId),
}

impl Choice {
    /// `may_add`: whether one more backup may begin to catch up.
    fn step(&self, mut owned: OwnedBucket<'_>, may_add: bool) -> Step {
        if self.draining && self.is_barred(&owned) && owned.is_settled() && self.renew(owned.state) {
            return Step::Renewed;
        }
        let state = &*owned.state;
        let usable =
            state.listed.intersection(self.others).minus(state.dropping).minus(owned.planned_owner());
        if usable.len() < self.wanted && may_add {
            return self.list_best(&mut owned);
        }
        let in_sync = usable.intersection(state.backups);
        if let Some(spare) = self.spare(&owned, in_sync) {
            return Step::Spare(spare);
        }
        match self.better(&owned, usable, in_sync).filter(|_| may_add) {
            Some(better) => self.list_better(&mut owned, better),
            None => Step::None,
        }
    }

    /// Whether a usable member was dropped in this term, so that only the next term may list it.
    fn is_barred(&self, owned: &OwnedBucket<'_>) -> bool {
        !owned.state.dropped_in_term.intersection(self.others).minus(self.avoided).is_empty()
    }

    fn renew(&self, state: &mut BucketState) -> bool {
        state.renew(self.view, self.unaware)
    }

    fn preference(&self, bucket: u16, id: NodeId) -> u64 {
        score(bucket, id, self.weights.get(&id).copied().unwrap_or(0))
    }

    fn best(&self, bucket: u16, of: MemberSet) -> Option<NodeId> {
        of.iter().max_by_key(|id| self.preference(bucket, *id))
    }

    /// Lists the best free member. A dropped member is tried again only when no other one is left.
    fn list_best(&self, owned: &mut OwnedBucket<'_>) -> Step {
        let free = self.others.minus(owned.state.listed);
        let (new, dropped) = (free.minus(owned.state.dropped_in_term), free.minus(self.avoided));
        let best = self.best(owned.bucket, new).or_else(|| {
            self.best(owned.bucket, dropped).filter(|_| !owned.unreported && self.renew(owned.state))
        });
        match best.is_some_and(|best| owned.state.list(best)) {
            true => Step::Listed,
            false => Step::None,
        }
    }

    /// The lowest ranked of surplus backups. Without a surplus, a backup that is leaving the usable members.
    fn spare(&self, owned: &OwnedBucket<'_>, in_sync: MemberSet) -> Option<NodeId> {
        let state = &*owned.state;
        if in_sync.len() > self.wanted {
            in_sync.iter().min_by_key(|id| self.preference(owned.bucket, *id))
        } else if in_sync.len() == self.wanted && self.wanted > 0 {
            state.backups.minus(self.others).minus(state.dropping).minus(owned.planned_owner()).iter().next()
        } else {
            None
        }
    }

    /// A member that outranks a backup. Replicas follow a node that joined: otherwise those of a failed node would all
    /// stay at the few earlier nodes. They also follow a drained node that serves again, in a new term.
    fn better(&self, owned: &OwnedBucket<'_>, usable: MemberSet, in_sync: MemberSet) -> Option<NodeId> {
        let whole = in_sync == usable && owned.state.planned_owner.is_none() && !self.draining;
        let least = in_sync.iter().map(|id| self.preference(owned.bucket, id)).min()?;
        let better = self.best(owned.bucket, self.others.minus(owned.state.listed).minus(self.avoided))?;
        (whole && self.preference(owned.bucket, better) > least).then_some(better)
    }

    fn list_better(&self, owned: &mut OwnedBucket<'_>, better: NodeId) -> Step {
        let begun = match owned.state.dropped_in_term.contains(better) {
            true if owned.unreported => false,
            true => self.renew(owned.state),
            false => owned.state.list(better),
        };
        if begun { Step::Listed } else { Step::None }
    }
}

impl OwnedBucket<'_> {
    /// The planned next owner, which has a replica for that purpose.
    fn planned_owner(&self) -> MemberSet {
        self.state.planned_owner.map_or(MemberSet::EMPTY, MemberSet::of)
    }

    fn is_settled(&self) -> bool {
        self.state.planned_owner.is_none() && !self.unreported
    }
}
