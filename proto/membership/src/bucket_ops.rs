//! The operations that change one bucket inside a view; what it is to a node is its [`Office`].
//!
//! Inside a view the owner is the sequencer: it alone lists, adds and drops backups and hands the bucket on. Invariants:
//! what a commit waits for is listed; a backup dropped in a term is not listed again in it (so that a late Add, Drop or
//! report cannot be mistaken for a new one): the owner begins another term first; of old and new owner the old one gives up
//! first.

use evergate_base::Micros;

use crate::bucket_state::{BucketState, OpContext, PendingHandoff, Stored};
use crate::load::Load;
use crate::message::{Body, Change, Header, OPS_MAX, Op};
use crate::{BUCKETS, Bucket, HandoffId, MemberSet, Node, NodeId, OwnershipStart, Rejected, Role, Term};

/// How many operations may wait to be sent to one member.
const REPLIES_MAX: usize = 2 * BUCKETS as usize;

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
                begin: office.begin.unwrap_or(OwnershipStart::Unchanged),
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
    pub fn handle_frozen(&mut self, now: Micros, bucket: Bucket, term: Term, freeze: HandoffId, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.view);
        let Some(office) = self.offices.get_mut(usize::from(bucket.0)) else { return };
        let Some((asked, _)) = office.freezing else { return };
        let stale = asked != freeze || term != (Term { view, moves: office.moves });
        if stale || office.owner != Some(me) {
            return;
        }
        office.quiet = Some(index);
        self.hand_off(bucket);
    }

    /// Gives a bucket away that is quiet. Not while a backup is being added: it may or may not know that it is in sync, so it
    /// could neither be named to the next owner nor be left out.
    fn hand_off(&mut self, bucket: Bucket) {
        let (me, view, pending) = (self.me.id, self.view, self.pending.is_some());
        let Some(office) = self.offices.get_mut(usize::from(bucket.0)) else { return };
        let (Some((HandoffId { to, .. }, _)), Some(index)) = (office.freezing, office.quiet) else { return };
        if pending || office.owner != Some(me) || !office.adding.is_empty() || !office.backups.contains(to) {
            return;
        }
        let (in_sync, listed) = (office.backups.with(me), office.listed.with(me));
        office.stored = Stored { term: Term { view, moves: office.moves }, index };
        let work = std::mem::take(&mut office.load).rate();
        office.handing = Some(PendingHandoff { to, index, in_sync, listed, work });
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
            office.freezing = Some((HandoffId { to, number: office.freezes }, now));
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
        if self.offices.get(usize::from(bucket.0)).is_some_and(BucketState::is_busy) {
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
        let asked = OpContext {
            me: self.me.id,
            from,
            term: Term { view: self.view, moves: op.moves },
            pending: self.pending.is_some(),
        };
        let office = self.offices.get_mut(usize::from(op.bucket.0)).ok_or(Rejected::Unexpected)?;
        let (done, answer) = match op.change {
            Change::Add { generation, index } => {
                let done = office.on_add(&asked, generation, index);
                (done, done.then_some(Change::Added))
            }
            Change::Move { generation, index, in_sync, listed, work } => {
                if office.is_owned_in(&asked) {
                    return Ok(Some(Change::Own));
                }
                let done = office.on_handoff(&asked, generation, index);
                if done {
                    office.load = work.map_or(Load::default(), Load::carried);
                    office.backups = in_sync.without(asked.me);
                    office.listed = listed.union(in_sync).without(asked.me);
                    office.unaware = self.members.set().without(asked.me);
                }
                (done, None)
            }
            Change::Own if op.moves < office.moves => (false, None),
            Change::Own => {
                let news = office.on_owner(&asked);
                (news, (office.owner == Some(from)).then_some(Change::Owned))
            }
            Change::Drop => {
                let done = office.on_drop(&asked);
                (done, done.then_some(Change::Dropped))
            }
            Change::Added | Change::Owned | Change::Dropped => {
                if office.is_owned_in(&asked) {
                    office.handle_answer(from, op.change);
                    self.note_change(op.bucket);
                    self.hand_off(op.bucket);
                }
                (false, None)
            }
        };
        if done {
            self.touch(op.bucket);
        }
        Ok(answer)
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
            self.hand_off(Bucket(bucket)); // a promise may have kept it
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
