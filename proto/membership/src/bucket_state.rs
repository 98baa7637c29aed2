//! What a node is to one bucket: owner, backup or neither, and what of that is under way.
//!
//! It changes by views ([`BucketState::assign`]), by what the owner decides, and by what other members ask and answer
//! ([`crate::bucket`] brings that here). Nothing is sent from here.

use std::collections::BTreeMap;

use evergate_base::Micros;

use crate::load::Load;
use crate::message::{Assignment, Change, Claim, Holds, Op};
use crate::{Bucket, DataEpoch, HandoffId, MemberSet, NodeId, OwnershipStart, Term, ViewId};

/// What a mirror or a log holds, as the shell last told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) term: Term,
    pub(crate) index: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BucketState {
    pub(crate) owner: Option<NodeId>,
    pub(crate) moves: u32,
    pub(crate) generation: DataEpoch,
    pub(crate) begin: Option<OwnershipStart>,
    /// As a backup: the mirror can be resumed.
    pub(crate) in_sync: bool,
    /// As a backup: dropped in this term.
    pub(crate) dropped: bool,
    pub(crate) stored: Stored,
    /// As the owner: backups that said that they are in sync.
    pub(crate) backups: MemberSet,
    /// As the owner: all backups; their leases open the gate.
    pub(crate) listed: MemberSet,
    /// As the owner: caught up with, up to this entry; commits wait for them, they have not confirmed.
    pub(crate) adding: BTreeMap<NodeId, u64>,
    /// As the owner: told to drop their mirror.
    pub(crate) dropping: MemberSet,
    /// As the owner: dropped in this term.
    pub(crate) gone: MemberSet,
    /// As the owner: to be handed to, since when.
    pub(crate) freezing: Option<(HandoffId, Micros)>,
    /// As the owner: quiet for that move, with everything up to this entry.
    pub(crate) quiet: Option<u64>,
    /// As the owner: attempts to hand it on, in this view.
    pub(crate) freezes: u32,
    /// As the last owner: handed on, with the sets of the new owner, until it says that it has it.
    pub(crate) handing: Option<PendingHandoff>,
    /// As the new owner: members that have not heard of the move.
    pub(crate) unaware: MemberSet,
    /// What was fed in a term of a view that is not installed here yet: mirror channels may be faster than its commit.
    pub(crate) early: Option<Stored>,
    /// As the owner: the work that it makes.
    pub(crate) load: Load,
    /// As the owner: mirrored to one more backup only to move there.
    pub(crate) destined: Option<NodeId>,
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
    /// Drops everything. Returns whether there was anything.
    pub(crate) fn forget(&mut self) -> bool {
        let had = self.owner.is_some();
        *self = BucketState::default();
        had
    }

    /// What a commit waits for.
    pub(crate) fn required(&self) -> MemberSet {
        self.adding.keys().fold(self.backups, |set, id| set.with(*id))
    }

    /// Whether operations are outstanding.
    pub(crate) fn is_busy(&self) -> bool {
        !self.adding.is_empty()
            || !self.dropping.is_empty()
            || !self.unaware.is_empty()
            || self.handing.is_some()
            || self.freezing.is_some()
    }

    /// What this node can say about the bucket in a promise.
    pub(crate) fn claim(&self, me: NodeId, view: ViewId) -> Claim {
        let holds = if self.owner == Some(me) {
            Holds::Owner
        } else if self.in_sync {
            Holds::InSync
        } else {
            Holds::Nothing
        };
        let moves = if self.stored.term.view == view { self.stored.term.moves } else { 0 };
        Claim { holds, moves, index: self.stored.index, generation: self.generation, ..Claim::default() }
    }

    /// Takes a new view's assignment. `untold`: the shell has not polled the last change yet.
    pub(crate) fn assign(
        &mut self,
        to: &Assignment,
        me: NodeId,
        view: ViewId,
        was_established: bool,
        unreported: bool,
    ) {
        let owned = was_established && self.owner == Some(me) && self.generation == to.generation;
        let held = was_established && self.in_sync && self.generation == to.generation;
        let begin = match self.begin {
            _ if to.generation.0 == view => OwnershipStart::Empty,
            Some(begin) if owned && unreported => begin,
            _ if owned => OwnershipStart::Unchanged,
            _ => OwnershipStart::Failover,
        };
        let owner = to.owner == me;
        let in_sync = to.in_sync.contains(me);
        let keeps = (owner || in_sync) && (owned || held);
        *self = BucketState {
            owner: Some(to.owner),
            generation: to.generation,
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

    /// As the owner: begins another term, in which backups that were dropped may be listed again. Those in sync stay so; those
    /// that are being filled are filled anew. Not while anything of this term is outstanding.
    pub(crate) fn renew(&mut self, view: ViewId, others: MemberSet) -> bool {
        let moves = self.moves.checked_add(1).filter(|_| !self.is_busy());
        let Some(moves) = moves else { return false };
        self.moves = moves;
        self.begin = Some(OwnershipStart::Unchanged);
        self.stored.term = Term { view, moves };
        self.gone = MemberSet::EMPTY;
        self.unaware = others;
        true
    }

    /// Lists one more backup, as far as the term allows.
    pub(crate) fn list(&mut self, id: NodeId) -> bool {
        let can = !self.listed.contains(id) && !self.gone.contains(id);
        if can {
            self.listed = self.listed.with(id);
        }
        can
    }
}

/// By whom something is asked, and for which term.
pub(crate) struct OpContext {
    pub(crate) me: NodeId,
    pub(crate) from: NodeId,
    pub(crate) term: Term,
    /// Whether a promise is pending here: nothing is added, dropped or moved meanwhile.
    pub(crate) pending: bool,
}

/// What other nodes ask; whether it was done.
impl BucketState {
    pub(crate) fn is_owned_in(&self, asked: &OpContext) -> bool {
        self.owner == Some(asked.me) && self.moves == asked.term.moves
    }

    pub(crate) fn on_add(&mut self, asked: &OpContext, generation: DataEpoch, index: u64) -> bool {
        let moves = asked.term.moves;
        let fed = self.stored.term == asked.term && self.stored.index >= index;
        let barred = asked.pending || self.dropped && self.moves == moves || self.owner == Some(asked.me);
        if barred || moves < self.moves || !fed || generation != self.generation {
            return false;
        }
        self.moves = moves;
        self.owner = Some(asked.from);
        self.in_sync = true;
        self.dropped = false;
        true
    }

    pub(crate) fn on_handoff(&mut self, asked: &OpContext, generation: DataEpoch, index: u64) -> bool {
        let fed = self.stored.term.view == asked.term.view && self.stored.index >= index;
        let barred = asked.pending || asked.term.moves <= self.moves || !self.in_sync;
        if barred || !fed || generation != self.generation {
            return false;
        }
        self.moves = asked.term.moves;
        self.owner = Some(asked.me);
        self.begin = Some(OwnershipStart::Handoff);
        self.stored.term = asked.term;
        self.gone = MemberSet::EMPTY;
        true
    }

    pub(crate) fn on_owner(&mut self, asked: &OpContext) -> bool {
        if asked.term.moves <= self.moves {
            return false;
        }
        self.moves = asked.term.moves;
        self.owner = Some(asked.from);
        self.handing = None;
        self.freezing = None;
        self.dropped = false;
        true
    }

    pub(crate) fn on_drop(&mut self, asked: &OpContext) -> bool {
        let barred = asked.term.moves < self.moves || self.owner == Some(asked.me) || asked.pending;
        if barred || self.owner != Some(asked.from) {
            return false;
        }
        self.moves = asked.term.moves;
        self.in_sync = false;
        self.dropped = true;
        if self.stored.term <= asked.term {
            self.stored = Stored::default(); // what was fed since is of the next term
        }
        true
    }
}

impl BucketState {
    /// As the owner: what another member answered.
    pub(crate) fn handle_answer(&mut self, from: NodeId, answer: Change) {
        match answer {
            Change::Added if self.adding.remove(&from).is_some() => self.backups = self.backups.with(from),
            Change::Owned => self.unaware = self.unaware.without(from),
            Change::Dropped if self.dropping.contains(from) => {
                self.dropping = self.dropping.without(from);
                self.backups = self.backups.without(from);
                self.adding.remove(&from);
                self.listed = self.listed.without(from);
                self.gone = self.gone.with(from);
            }
            _ => {}
        }
    }

    pub(crate) fn outstanding(&self, bucket: Bucket, pending: bool, queue: &mut Vec<(NodeId, Op)>) {
        let moves = self.moves;
        let generation = self.generation;
        for to in self.unaware.iter() {
            queue.push((to, Op { bucket, moves, change: Change::Own }));
        }
        if pending {
            return;
        }
        for (to, index) in &self.adding {
            queue.push((*to, Op { bucket, moves, change: Change::Add { generation, index: *index } }));
        }
        for to in self.dropping.iter() {
            queue.push((to, Op { bucket, moves, change: Change::Drop }));
        }
        if let Some(PendingHandoff { to, index, in_sync, listed, work }) = self.handing {
            let change = Change::Move { generation, index, in_sync, listed, work };
            queue.push((to, Op { bucket, moves: moves.saturating_add(1), change }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fed_before_its_view_is_installed_counts_in_it() {
        let [owner, me] = [NodeId(0), NodeId(1)];
        let view = |epoch| ViewId { epoch, ..ViewId::default() };
        let stored = |epoch| Stored { term: Term { view: view(epoch), moves: 0 }, index: 1 };
        let to = Assignment {
            owner,
            in_sync: MemberSet::EMPTY,
            listed: MemberSet::of(me),
            generation: DataEpoch(view(1)),
        };
        for (early, counts) in [(stored(2), true), (stored(3), false)] {
            let mut state = BucketState { early: Some(early), ..BucketState::default() };
            state.assign(&to, me, view(2), true, false);
            assert_eq!(state.stored == early, counts);
            assert_eq!(state.early, Some(early).filter(|_| !counts));
        }
    }
}
