//! One bucket at one node: its office, and the operations that change it inside a view.
//!
//! Inside a view the owner is the sequencer: it alone lists, adds and drops backups and hands the bucket on. Invariants:
//! what a commit waits for is listed; a backup dropped in a term is not listed again in it (so that a late Add, Drop or
//! report cannot be mistaken for a new one): the owner begins another term first; of old and new owner the old one gives up
//! first.

use std::collections::BTreeMap;

use evergate_base::Micros;

use crate::load::Load;
use crate::message::{Assignment, Body, Change, Claim, Header, Holds, OPS_MAX, Op};
use crate::{
    BUCKETS, Begin, Bucket, Freeze, Generation, MemberSet, Node, NodeId, Rejected, Role, Term, ViewId,
};

/// How many operations may wait to be sent to one member.
const REPLIES_MAX: usize = 2 * BUCKETS as usize;

/// What a mirror or a log holds, as the shell last told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) term: Term,
    pub(crate) index: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Office {
    pub(crate) owner: Option<NodeId>,
    pub(crate) moves: u32,
    pub(crate) generation: Generation,
    pub(crate) begin: Option<Begin>,
    /// As a backup: the mirror can be resumed.
    pub(crate) in_sync: bool,
    /// As a backup: dropped in this term.
    dropped: bool,
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
    pub(crate) freezing: Option<(Freeze, Micros)>,
    /// As the owner: quiet for that move, with everything up to this entry.
    quiet: Option<u64>,
    /// As the owner: attempts to hand it on, in this view.
    freezes: u32,
    /// As the last owner: handed on, with the sets of the new owner, until it says that it has it.
    handing: Option<Handing>,
    /// As the new owner: members that have not heard of the move.
    unaware: MemberSet,
    /// What was fed in a term of a view that is not installed here yet: mirror channels may be faster than its commit.
    early: Option<Stored>,
    /// As the owner: the work that it makes.
    pub(crate) load: Load,
    /// As the owner: mirrored to one more backup only to move there.
    pub(crate) destined: Option<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Handing {
    to: NodeId,
    index: u64,
    in_sync: MemberSet,
    listed: MemberSet,
    work: Option<u64>,
}

impl Office {
    /// Drops everything. Returns whether there was anything.
    pub(crate) fn forget(&mut self) -> bool {
        let had = self.owner.is_some();
        *self = Office::default();
        had
    }

    /// What a commit waits for.
    pub(crate) fn required(&self) -> MemberSet {
        self.adding.keys().fold(self.backups, |set, id| set.with(*id))
    }

    /// Whether operations are outstanding.
    fn is_busy(&self) -> bool {
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
        untold: bool,
    ) {
        let owned = was_established && self.owner == Some(me) && self.generation == to.generation;
        let held = was_established && self.in_sync && self.generation == to.generation;
        let begin = match self.begin {
            _ if to.generation.0 == view => Begin::Fresh,
            Some(begin) if owned && untold => begin,
            _ if owned => Begin::Kept,
            _ => Begin::TakeOver,
        };
        let owner = to.owner == me;
        let in_sync = to.in_sync.contains(me);
        let keeps = (owner || in_sync) && (owned || held);
        *self = Office {
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
            ..Office::default()
        };
    }

    /// As the owner: begins another term, in which backups that were dropped may be listed again. Those in sync stay so; those
    /// that are being filled are filled anew. Not while anything of this term is outstanding.
    pub(crate) fn renew(&mut self, view: ViewId, others: MemberSet) -> bool {
        let moves = self.moves.checked_add(1).filter(|_| !self.is_busy());
        let Some(moves) = moves else { return false };
        self.moves = moves;
        self.begin = Some(Begin::Kept);
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

impl Node {
    /// What this node is to a bucket.
    pub fn role(&self, bucket: Bucket) -> Role {
        let Some(office) = self.offices.get(usize::from(bucket.0)) else {
            return Role::NOTHING;
        };
        let term = Term { view: self.view, moves: office.moves };
        let generation = office.generation;
        match office.owner {
            Some(owner) if owner == self.me.id => Role::Owner {
                term,
                generation,
                begin: office.begin.unwrap_or(Begin::Kept),
                required: office.required(),
                syncing: office.listed.minus(office.required()),
                freeze_for: office.freezing.map(|(freeze, _)| freeze),
            },
            Some(owner) if office.in_sync || !office.dropped && self.is_being_filled(bucket) => {
                Role::Backup { term, owner, generation, in_sync: office.in_sync }
            }
            None => Role::NOTHING,
            // Whoever lists a node again that it dropped begins another term first.
            owner => {
                let moves = office.moves.saturating_add(u32::from(office.dropped));
                Role::Outside { owner, since: Term { moves, ..term } }
            }
        }
    }

    /// Listed by the map, or fed by an owner that listed this node later.
    fn is_being_filled(&self, bucket: Bucket) -> bool {
        let Some(office) = self.offices.get(usize::from(bucket.0)) else { return false };
        let listed = self.map.get(usize::from(bucket.0)).is_some_and(|a| a.listed.contains(self.me.id));
        self.established && (listed && office.moves == 0 || office.stored.term.view == self.view)
    }

    /// The backups whose leases the gate checks for a bucket; `None` when this node does not own it.
    pub fn gate_listed(&self, bucket: Bucket) -> Option<MemberSet> {
        let office = self.offices.get(usize::from(bucket.0))?;
        (self.established && office.owner == Some(self.me.id)).then_some(office.listed)
    }

    /// Whether the gate would let a bucket emit at this clock: the rule that the kernel applies.
    pub fn gate_open(&self, bucket: Bucket, clock: Micros) -> bool {
        let Some(listed) = self.gate_listed(bucket) else { return false };
        let lease = |id: NodeId| self.peers.get(&id).is_some_and(|peer| clock < peer.expiry);
        clock < self.gate_expiry() && listed.iter().all(lease)
    }

    /// The shell's log of a bucket, or its mirror as fed in `term`, holds everything up to `index`. To be told before
    /// any other call of a `handle_*` that follows an acknowledgement: a promise states what was acknowledged.
    /// A snapshot counts when it is complete; until then the former mirror is kept.
    pub fn handle_stored(&mut self, bucket: Bucket, term: Term, index: u64) {
        let Some(office) = self.offices.get_mut(usize::from(bucket.0)) else { return };
        if !self.established || term.view > self.view {
            office.early = office.early.filter(|early| early.term > term).or(Some(Stored { term, index }));
            return;
        }
        if term.view != self.view
            || term < office.stored.term
            || (office.dropped && office.moves == term.moves)
        {
            return;
        }
        office.stored = Stored { term, index };
    }

    /// As the owner: `backup` has acknowledged everything up to `index`, and from here on every commit waits for it.
    pub fn handle_caught_up(&mut self, now: Micros, bucket: Bucket, term: Term, backup: NodeId, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.view);
        let Some(office) = self.offices.get_mut(usize::from(bucket.0)) else { return };
        let mine = office.owner == Some(me) && term == Term { view, moves: office.moves };
        if mine && office.listed.contains(backup) && !office.required().contains(backup) {
            office.adding.insert(backup, index);
            self.touch(bucket);
        }
    }

    /// As the owner: the bucket is quiet for this move, nothing was emitted beyond `index`, and the node that it is frozen for
    /// has acknowledged everything up to there. From this call on it may not be ours. What is said of a move that was called
    /// off counts for no other one.
    pub fn handle_frozen(&mut self, now: Micros, bucket: Bucket, term: Term, freeze: Freeze, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.view);
        let Some(office) = self.offices.get_mut(usize::from(bucket.0)) else { return };
        let Some((asked, _)) = office.freezing else { return };
        let stale = asked != freeze || term != (Term { view, moves: office.moves });
        if stale || office.owner != Some(me) {
            return;
        }
        office.quiet = Some(index);
        self.hand_over(bucket);
    }

    /// Gives a bucket away that is quiet. Not while a backup is being added: it may or may not know that it is in sync, so it
    /// could neither be named to the next owner nor be left out.
    fn hand_over(&mut self, bucket: Bucket) {
        let (me, view, pending) = (self.me.id, self.view, self.pending.is_some());
        let Some(office) = self.offices.get_mut(usize::from(bucket.0)) else { return };
        let (Some((Freeze { to, .. }, _)), Some(index)) = (office.freezing, office.quiet) else { return };
        if pending || office.owner != Some(me) || !office.adding.is_empty() || !office.backups.contains(to) {
            return;
        }
        let (in_sync, listed) = (office.backups.with(me), office.listed.with(me));
        office.stored = Stored { term: Term { view, moves: office.moves }, index };
        let work = std::mem::take(&mut office.load).rate();
        office.handing = Some(Handing { to, index, in_sync, listed, work });
        office.freezing = None;
        office.owner = Some(to);
        office.in_sync = true;
        office.begin = None;
        office.dropping = MemberSet::EMPTY;
        office.destined = None;
        self.touch(bucket);
    }

    /// Asks for a bucket to be moved to a member that is in sync with it. Ignored when that cannot be.
    pub fn move_bucket(&mut self, now: Micros, bucket: Bucket, to: NodeId) {
        self.note_now(now);
        self.begin_move(bucket, to);
    }

    /// As the owner of `term`: a backup that does not keep up shall not hold up every commit. Calls a move off that waits for
    /// it. The backup is listed again when it has been left alone for a while, longer each time.
    pub fn drop_backup(&mut self, now: Micros, bucket: Bucket, term: Term, backup: NodeId) {
        self.note_now(now);
        let Some(office) = self.offices.get(usize::from(bucket.0)) else { return };
        let mine = office.owner == Some(self.me.id) && term == Term { view: self.view, moves: office.moves };
        if !mine || !office.listed.contains(backup) || office.dropping.contains(backup) {
            return;
        }
        let (least, most) = (self.config.timing.hold_down_min, self.config.timing.hold_down_max);
        if let Some(peer) = self.peers.get_mut(&backup) {
            peer.shun(self.now, least, most);
        }
        self.begin_drop(bucket, backup);
        self.balance_at = self.balance_at.min(self.now + Micros(self.config.timing.balance.0 / 10));
    }

    pub(crate) fn begin_move(&mut self, bucket: Bucket, to: NodeId) -> bool {
        let (me, now) = (self.me.id, self.now);
        if self.pending.is_some() || !self.established {
            return false;
        }
        let Some(office) = self.offices.get_mut(usize::from(bucket.0)) else { return false };
        let can = office.owner == Some(me)
            && office.freezing.is_none()
            && office.adding.is_empty()
            && office.backups.contains(to)
            && office.dropping.is_empty();
        if can {
            office.freezes = office.freezes.wrapping_add(1);
            office.freezing = Some((Freeze { to, number: office.freezes }, now));
            office.quiet = None;
            self.touch(bucket);
        }
        can
    }

    pub(crate) fn begin_drop(&mut self, bucket: Bucket, backup: NodeId) {
        let me = self.me.id;
        let Some(office) = self.offices.get_mut(usize::from(bucket.0)) else { return };
        if !self.established || office.owner != Some(me) {
            return;
        }
        // A move waits for every backup: without this one it would only end by its time limit, and nobody asks again.
        if office.freezing.take().is_some() || office.destined == Some(backup) {
            office.destined = None;
        }
        if office.required().contains(backup) {
            office.dropping = office.dropping.with(backup);
        } else if office.listed.contains(backup) {
            // It was never waited for.
            office.listed = office.listed.without(backup);
            office.gone = office.gone.with(backup);
        }
        self.touch(bucket);
    }

    /// Notes that a bucket has something new to say: to the shell, and to other members at once.
    pub(crate) fn touch(&mut self, bucket: Bucket) {
        self.note_change(bucket);
        if self.busy.contains(&bucket.0) {
            self.urgent.insert(bucket.0);
            self.due = true;
        }
    }

    /// Notes that a bucket's role or outstanding operations changed.
    fn note_change(&mut self, bucket: Bucket) {
        self.changed.insert(bucket.0);
        if self.offices.get(usize::from(bucket.0)).is_some_and(Office::is_busy) {
            self.busy.insert(bucket.0);
        } else {
            self.busy.remove(&bucket.0);
            self.urgent.remove(&bucket.0);
        }
    }

    /// Takes in operations of another member of the same view.
    pub(crate) fn handle_ops(&mut self, header: &Header, ops: &[Op]) -> Result<(), Rejected> {
        if !self.established || header.view != self.view || !self.members.contains(header.from) {
            return Ok(()); // a message of another view: outdated, or early and repeated
        }
        if !ops.iter().all(|op| self.is_possible(op)) {
            return Err(Rejected::Unexpected);
        }
        let mut answers = Vec::new();
        for op in ops {
            if let Some(change) = self.handle_op(header.from.id, op)? {
                answers.push(Op { change, ..*op });
            }
        }
        let queue = self.replies.entry(header.from.id).or_default();
        // What does not fit is answered when it is repeated.
        let room = REPLIES_MAX.saturating_sub(queue.len());
        queue.extend(answers.into_iter().take(room));
        Ok(())
    }

    /// Whether a member of the view without a defect could have said that.
    fn is_possible(&self, op: &Op) -> bool {
        let members = self.members.set();
        let sets = match op.change {
            Change::Move { in_sync, listed, .. } => in_sync.union(listed),
            _ => MemberSet::EMPTY,
        };
        op.bucket.0 < self.config.buckets && op.moves < u32::MAX && members.is_superset(sets)
    }

    fn handle_op(&mut self, from: NodeId, op: &Op) -> Result<Option<Change>, Rejected> {
        let me = self.me.id;
        let term = Term { view: self.view, moves: op.moves };
        let pending = self.pending.is_some();
        let office = self.offices.get_mut(usize::from(op.bucket.0)).ok_or(Rejected::Unexpected)?;
        let known = office.moves;
        match op.change {
            Change::Add { generation, index } => {
                let fed = office.stored.term == term && office.stored.index >= index;
                let barred = pending || office.dropped && known == op.moves || office.owner == Some(me);
                if barred || op.moves < known || !fed || generation != office.generation {
                    return Ok(None);
                }
                office.moves = op.moves;
                office.owner = Some(from);
                office.in_sync = true;
                office.dropped = false;
                self.touch(op.bucket);
                Ok(Some(Change::Added))
            }
            Change::Move { generation, index, in_sync, listed, work } => {
                let fed = office.stored.term.view == self.view && office.stored.index >= index;
                if office.owner == Some(me) && known == op.moves {
                    return Ok(Some(Change::Own));
                }
                if pending || op.moves <= known || !office.in_sync || !fed || generation != office.generation
                {
                    return Ok(None);
                }
                office.moves = op.moves;
                office.owner = Some(me);
                office.begin = Some(Begin::HandOver);
                office.load = work.map_or(Load::default(), Load::carried);
                office.stored.term = term;
                office.backups = in_sync.without(me);
                office.listed = listed.union(in_sync).without(me);
                office.gone = MemberSet::EMPTY;
                office.unaware = self.members.set().without(me);
                self.touch(op.bucket);
                Ok(None)
            }
            Change::Own if op.moves < known => Ok(None),
            Change::Own => {
                if op.moves > known {
                    office.moves = op.moves;
                    office.owner = Some(from);
                    office.handing = None;
                    office.freezing = None;
                    office.dropped = false;
                    self.touch(op.bucket);
                }
                Ok((office_owner(self, op.bucket) == Some(from)).then_some(Change::Owned))
            }
            Change::Drop => {
                let barred = op.moves < known || office.owner == Some(me) || pending;
                if barred || office.owner != Some(from) {
                    return Ok(None);
                }
                office.moves = op.moves;
                office.in_sync = false;
                office.dropped = true;
                if office.stored.term <= term {
                    office.stored = Stored::default(); // what was fed since is of the next term
                }
                self.touch(op.bucket);
                Ok(Some(Change::Dropped))
            }
            Change::Added | Change::Owned | Change::Dropped => {
                if office.owner == Some(me) && known == op.moves {
                    office.handle_answer(from, op.change);
                    self.note_change(op.bucket);
                    self.hand_over(op.bucket);
                }
                Ok(None)
            }
        }
    }

    /// Says what is new, and repeats what is outstanding from time to time. While a promise is pending nothing is
    /// added, dropped or moved.
    pub(crate) fn advance_ops(&mut self) {
        let urgent = std::mem::take(&mut self.urgent);
        let repeat = self.now >= self.ops_at;
        if !self.established || self.busy.is_empty() || urgent.is_empty() && !repeat {
            return;
        }
        let buckets = if repeat {
            self.ops_at = self.now + Micros(self.config.timing.heartbeat.0.saturating_mul(2));
            self.busy.clone()
        } else {
            urgent
        };
        let mut queued: Vec<(NodeId, Op)> = Vec::new();
        let mut thawed = Vec::new();
        for bucket in &buckets {
            let Some(office) = self.offices.get_mut(usize::from(*bucket)) else { continue };
            let stale = |at: Micros| self.now.since(at) > self.config.timing.freeze_max;
            if office.freezing.is_some_and(|(_, at)| stale(at)) {
                office.freezing = None;
                office.destined = None;
                thawed.push(Bucket(*bucket));
            }
            office.outstanding(Bucket(*bucket), self.pending.is_some(), &mut queued);
        }
        for bucket in thawed {
            self.touch(bucket);
        }
        for bucket in buckets {
            self.hand_over(Bucket(bucket)); // a promise may have kept it
        }
        for (to, op) in queued {
            self.replies.entry(to).or_default().push(op);
        }
    }

    /// Sends queued operations, several to a datagram.
    pub(crate) fn send_ops(&mut self) {
        for (to, ops) in std::mem::take(&mut self.replies) {
            for ops in ops.chunks(OPS_MAX) {
                self.send(to, &Body::Ops(ops.to_vec()));
            }
        }
    }
}

fn office_owner(node: &Node, bucket: Bucket) -> Option<NodeId> {
    node.offices.get(usize::from(bucket.0)).and_then(|office| office.owner)
}

impl Office {
    /// As the owner: what another member answered.
    fn handle_answer(&mut self, from: NodeId, answer: Change) {
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

    fn outstanding(&self, bucket: Bucket, pending: bool, queue: &mut Vec<(NodeId, Op)>) {
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
        if let Some(Handing { to, index, in_sync, listed, work }) = self.handing {
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
            generation: Generation(view(1)),
        };
        for (early, counts) in [(stored(2), true), (stored(3), false)] {
            let mut office = Office { early: Some(early), ..Office::default() };
            office.assign(&to, me, view(2), true, false);
            assert_eq!(office.stored == early, counts);
            assert_eq!(office.early, Some(early).filter(|_| !counts));
        }
    }
}
