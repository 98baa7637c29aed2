//! A node's state of one bucket: its role, and the operations in progress.
//!
//! It changes by views ([`BucketState::assign`]), by decisions of the owner, and by operations and answers of other
//! members (`bucket_ops.rs` delivers them). This module sends nothing.

use std::collections::BTreeMap;

use evergate_base::Micros;

use crate::load::Load;
use crate::message::{Assignment, Change, Claim, Holds, Op};
use crate::{Bucket, DataEpoch, HandoffId, MemberSet, NodeId, OwnershipStart, Term, ViewId};

/// Position of a replica or a log, by the shell's last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) term: Term,
    pub(crate) index: u64,
}

/// One bucket at one node: see the module's description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BucketState {
    pub(crate) owner: Option<NodeId>,
    pub(crate) moves: u32,
    pub(crate) data_epoch: DataEpoch,
    pub(crate) begin: Option<OwnershipStart>,
    /// As a backup: the replica can be resumed.
    pub(crate) in_sync: bool,
    /// As a backup: dropped in this term.
    pub(crate) dropped: bool,
    pub(crate) stored: Stored,
    /// As the owner: backups that confirmed that they are in sync.
    pub(crate) backups: MemberSet,
    /// As the owner: all backups. Their leases open the gate.
    pub(crate) listed: MemberSet,
    /// As the owner: backups that caught up, with the entry. Commits wait for them; they have not confirmed yet.
    pub(crate) adding: BTreeMap<NodeId, u64>,
    /// As the owner: backups that were asked to drop their replica.
    pub(crate) dropping: MemberSet,
    /// As the owner: backups dropped in this term.
    pub(crate) dropped_in_term: MemberSet,
    /// As the owner: the handoff in preparation, and its start.
    pub(crate) freezing: Option<(HandoffId, Micros)>,
    /// As the owner: frozen for that handoff, with everything up to this entry.
    pub(crate) frozen_index: Option<u64>,
    /// As the owner: number of handoff attempts in this view.
    pub(crate) freezes: u32,
    /// As the last owner: the completed handoff, with the sets of the new owner, until the new owner confirms it.
    pub(crate) pending_handoff: Option<PendingHandoff>,
    /// As the new owner: members that have not acknowledged the handoff.
    pub(crate) unaware: MemberSet,
    /// Progress replicated under a view that is not installed here yet: frames can arrive before its COMMIT.
    pub(crate) early: Option<Stored>,
    /// As the owner: the work that the bucket makes.
    pub(crate) load: Load,
    /// As the owner: the backup that was added only to become the owner.
    pub(crate) planned_owner: Option<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PendingHandoff {
    pub(crate) to: NodeId,
    pub(crate) index: u64,
    pub(crate) in_sync: MemberSet,
    pub(crate) listed: MemberSet,
    pub(crate) work: Option<u64>,
}

impl BucketState {
    /// Drops everything. Returns whether the bucket had an owner.
    pub(crate) fn reset(&mut self) -> bool {
        let had = self.owner.is_some();
        *self = BucketState::default();
        had
    }

    /// The backups that a commit waits for.
    pub(crate) fn required(&self) -> MemberSet {
        self.adding.keys().fold(self.backups, |set, id| set.with(*id))
    }

    /// Whether operations are outstanding.
    pub(crate) fn has_operations(&self) -> bool {
        !self.adding.is_empty()
            || !self.dropping.is_empty()
            || !self.unaware.is_empty()
            || self.pending_handoff.is_some()
            || self.freezing.is_some()
    }

    /// This node's claim for the bucket in a promise.
    pub(crate) fn claim(&self, me: NodeId, view: ViewId) -> Claim {
        let holds = if self.owner == Some(me) {
            Holds::Owner
        } else if self.in_sync {
            Holds::InSync
        } else {
            Holds::Nothing
        };
        let moves = if self.stored.term.view == view { self.stored.term.moves } else { 0 };
        Claim { holds, moves, index: self.stored.index, data_epoch: self.data_epoch, ..Claim::default() }
    }

    /// Applies a new view's assignment. `unreported`: the shell has not polled the last change yet.
    pub(crate) fn assign(
        &mut self,
        to: &Assignment,
        me: NodeId,
        view: ViewId,
        was_established: bool,
        unreported: bool,
    ) {
        let owned = was_established && self.owner == Some(me) && self.data_epoch == to.data_epoch;
        let was_in_sync = was_established && self.in_sync && self.data_epoch == to.data_epoch;
        let begin = match self.begin {
            _ if to.data_epoch.0 == view => OwnershipStart::Empty,
            Some(begin) if owned && unreported => begin,
            _ if owned => OwnershipStart::Unchanged,
            _ => OwnershipStart::Failover,
        };
        let owner = to.owner == me;
        let in_sync = to.in_sync.contains(me);
        let keeps = (owner || in_sync) && (owned || was_in_sync);
        *self = BucketState {
            owner: Some(to.owner),
            data_epoch: to.data_epoch,
            begin: owner.then_some(begin),
            in_sync,
            stored: match self.early.filter(|early| early.term.view == view) {
                Some(early) => early,
                None if keeps => self.stored,
                None => Stored::default(),
            },
            backups: if owner { to.in_sync } else { MemberSet::EMPTY },
            listed: if owner { to.listed } else { MemberSet::EMPTY },
            early: self.early.filter(|early| early.term.view > view),
            load: if owner && owned { self.load } else { Load::default() },
            ..BucketState::default()
        };
    }

    /// As the owner: begins another term, in which dropped backups may be listed again. Backups in sync stay so; those
    /// that catch up start again. Refused while an operation of this term is outstanding.
    pub(crate) fn renew(&mut self, view: ViewId, others: MemberSet) -> bool {
        let moves = self.moves.checked_add(1).filter(|_| !self.has_operations());
        let Some(moves) = moves else { return false };
        self.moves = moves;
        self.begin = Some(OwnershipStart::Unchanged);
        self.stored.term = Term { view, moves };
        self.dropped_in_term = MemberSet::EMPTY;
        self.unaware = others;
        true
    }

    /// Lists one more backup, as far as the term allows.
    pub(crate) fn list(&mut self, id: NodeId) -> bool {
        let can = !self.listed.contains(id) && !self.dropped_in_term.contains(id);
        if can {
            self.listed = self.listed.with(id);
        }
        can
    }
}

/// Sender and term of an operation.
pub(crate) struct OpContext {
    pub(crate) me: NodeId,
    pub(crate) from: NodeId,
    pub(crate) term: Term,
    /// Whether a promise is pending here: nothing is added, dropped or moved meanwhile.
    pub(crate) pending: bool,
}

/// Operations of other members. Each returns whether it was done.
impl BucketState {
    pub(crate) fn is_owned_in(&self, context: &OpContext) -> bool {
        self.owner == Some(context.me) && self.moves == context.term.moves
    }

    pub(crate) fn on_add(&mut self, context: &OpContext, data_epoch: DataEpoch, index: u64) -> bool {
        let moves = context.term.moves;
        let is_stored = self.stored.term == context.term && self.stored.index >= index;
        let is_refused =
            context.pending || self.dropped && self.moves == moves || self.owner == Some(context.me);
        if is_refused || moves < self.moves || !is_stored || data_epoch != self.data_epoch {
            return false;
        }
        self.moves = moves;
        self.owner = Some(context.from);
        self.in_sync = true;
        self.dropped = false;
        true
    }

    pub(crate) fn on_handoff(&mut self, context: &OpContext, data_epoch: DataEpoch, index: u64) -> bool {
        let is_stored = self.stored.term.view == context.term.view && self.stored.index >= index;
        let is_refused = context.pending || context.term.moves <= self.moves || !self.in_sync;
        if is_refused || !is_stored || data_epoch != self.data_epoch {
            return false;
        }
        self.moves = context.term.moves;
        self.owner = Some(context.me);
        self.begin = Some(OwnershipStart::Handoff);
        self.stored.term = context.term;
        self.dropped_in_term = MemberSet::EMPTY;
        true
    }

    pub(crate) fn on_owner(&mut self, context: &OpContext) -> bool {
        if context.term.moves <= self.moves {
            return false;
        }
        self.moves = context.term.moves;
        self.owner = Some(context.from);
        self.pending_handoff = None;
        self.freezing = None;
        self.dropped = false;
        true
    }

    pub(crate) fn on_drop(&mut self, context: &OpContext) -> bool {
        let is_refused = context.term.moves < self.moves || self.owner == Some(context.me) || context.pending;
        if is_refused || self.owner != Some(context.from) {
            return false;
        }
        self.moves = context.term.moves;
        self.in_sync = false;
        self.dropped = true;
        if self.stored.term <= context.term {
            self.stored = Stored::default(); // later frames belong to the next term
        }
        true
    }
}

impl BucketState {
    /// As the owner: an answer of another member.
    pub(crate) fn handle_answer(&mut self, from: NodeId, answer: Change) {
        match answer {
            Change::Added if self.adding.remove(&from).is_some() => self.backups = self.backups.with(from),
            Change::Owned => self.unaware = self.unaware.without(from),
            Change::Dropped if self.dropping.contains(from) => {
                self.dropping = self.dropping.without(from);
                self.backups = self.backups.without(from);
                self.adding.remove(&from);
                self.listed = self.listed.without(from);
                self.dropped_in_term = self.dropped_in_term.with(from);
            }
            _ => {}
        }
    }

    pub(crate) fn outstanding(&self, bucket: Bucket, pending: bool, queue: &mut Vec<(NodeId, Op)>) {
        let moves = self.moves;
        let data_epoch = self.data_epoch;
        for to in self.unaware.iter() {
            queue.push((to, Op { bucket, moves, change: Change::Own }));
        }
        if pending {
            return;
        }
        for (to, index) in &self.adding {
            queue.push((*to, Op { bucket, moves, change: Change::Add { data_epoch, index: *index } }));
        }
        for to in self.dropping.iter() {
            queue.push((to, Op { bucket, moves, change: Change::Drop }));
        }
        if let Some(PendingHandoff { to, index, in_sync, listed, work }) = self.pending_handoff {
            let change = Change::Move { data_epoch, index, in_sync, listed, work };
            queue.push((to, Op { bucket, moves: moves.saturating_add(1), change }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_under_a_later_view_counts_once_it_is_installed() {
        let [owner, me] = [NodeId(0), NodeId(1)];
        let view = |epoch| ViewId { epoch, ..ViewId::default() };
        let stored = |epoch| Stored { term: Term { view: view(epoch), moves: 0 }, index: 1 };
        let to = Assignment {
            owner,
            in_sync: MemberSet::EMPTY,
            listed: MemberSet::of(me),
            data_epoch: DataEpoch(view(1)),
        };
        for (early, counts) in [(stored(2), true), (stored(3), false)] {
            let mut state = BucketState { early: Some(early), ..BucketState::default() };
            state.assign(&to, me, view(2), true, false);
            assert_eq!(state.stored == early, counts);
            assert_eq!(state.early, Some(early).filter(|_| !counts));
        }
    }
}
