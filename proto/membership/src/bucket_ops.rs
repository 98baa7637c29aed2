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
        let Some(term_of) = self.terms.get(usize::from(bucket.0)) else {
            return Role::NOTHING;
        };
        let term = Term { view: self.view, moves: term_of.moves };
        let generation = term_of.generation;
        match term_of.owner {
            Some(owner) if owner == self.me.id => Role::Owner {
                term,
                generation,
                begin: term_of.begin.unwrap_or(OwnershipStart::Unchanged),
                required: term_of.required(),
                syncing: term_of.listed.minus(term_of.required()),
                freeze_for: term_of.freezing.map(|(freeze, _)| freeze),
            },
            Some(owner) if term_of.in_sync || !term_of.dropped && self.is_being_filled(bucket) => {
                Role::Backup { term, owner, generation, in_sync: term_of.in_sync }
            }
            None => Role::NOTHING,
            // Whoever lists a node again that it dropped begins another term first.
            owner => {
                let moves = term_of.moves.saturating_add(u32::from(term_of.dropped));
                Role::Outside { owner, since: Term { moves, ..term } }
            }
        }
    }

    /// Listed by the map, or fed by an owner that listed this node later.
    fn is_being_filled(&self, bucket: Bucket) -> bool {
        let Some(term_of) = self.terms.get(usize::from(bucket.0)) else { return false };
        let listed = self.map.get(usize::from(bucket.0)).is_some_and(|a| a.listed.contains(self.me.id));
        self.established && (listed && term_of.moves == 0 || term_of.stored.term.view == self.view)
    }

    /// The backups whose leases the gate checks for a bucket; `None` when this node does not own it.
    pub fn gate_listed(&self, bucket: Bucket) -> Option<MemberSet> {
        let term_of = self.terms.get(usize::from(bucket.0))?;
        (self.established && term_of.owner == Some(self.me.id)).then_some(term_of.listed)
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
        let Some(term_of) = self.terms.get_mut(usize::from(bucket.0)) else { return };
        if !self.established || term.view > self.view {
            term_of.early = term_of.early.filter(|early| early.term > term).or(Some(Stored { term, index }));
            return;
        }
        if term.view != self.view
            || term < term_of.stored.term
            || (term_of.dropped && term_of.moves == term.moves)
        {
            return;
        }
        term_of.stored = Stored { term, index };
    }

    /// As the owner: `backup` has acknowledged everything up to `index`, and from here on every commit waits for it.
    pub fn handle_caught_up(&mut self, now: Micros, bucket: Bucket, term: Term, backup: NodeId, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.view);
        let Some(term_of) = self.terms.get_mut(usize::from(bucket.0)) else { return };
        let mine = term_of.owner == Some(me) && term == Term { view, moves: term_of.moves };
        if mine && term_of.listed.contains(backup) && !term_of.required().contains(backup) {
            term_of.adding.insert(backup, index);
            self.touch(bucket);
        }
    }

    /// As the owner: the bucket is quiet for this move, nothing was emitted beyond `index`, and the node that it is frozen for
    /// has acknowledged everything up to there. From this call on it may not be ours. What is said of a move that was called
    /// off counts for no other one.
    pub fn handle_frozen(&mut self, now: Micros, bucket: Bucket, term: Term, freeze: HandoffId, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.view);
        let Some(term_of) = self.terms.get_mut(usize::from(bucket.0)) else { return };
        let Some((asked, _)) = term_of.freezing else { return };
        let stale = asked != freeze || term != (Term { view, moves: term_of.moves });
        if stale || term_of.owner != Some(me) {
            return;
        }
        term_of.quiet = Some(index);
        self.hand_off(bucket);
    }

    /// Gives a bucket away that is quiet. Not while a backup is being added: it may or may not know that it is in sync, so it
    /// could neither be named to the next owner nor be left out.
    fn hand_off(&mut self, bucket: Bucket) {
        let (me, view, pending) = (self.me.id, self.view, self.pending.is_some());
        let Some(term_of) = self.terms.get_mut(usize::from(bucket.0)) else { return };
        let (Some((HandoffId { to, .. }, _)), Some(index)) = (term_of.freezing, term_of.quiet) else {
            return;
        };
        if pending || term_of.owner != Some(me) || !term_of.adding.is_empty() || !term_of.backups.contains(to)
        {
            return;
        }
        let (in_sync, listed) = (term_of.backups.with(me), term_of.listed.with(me));
        term_of.stored = Stored { term: Term { view, moves: term_of.moves }, index };
        let work = std::mem::take(&mut term_of.load).rate();
        term_of.handing = Some(PendingHandoff { to, index, in_sync, listed, work });
        term_of.freezing = None;
        term_of.owner = Some(to);
        term_of.in_sync = true;
        term_of.begin = None;
        term_of.dropping = MemberSet::EMPTY;
        term_of.destined = None;
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
        let Some(term_of) = self.terms.get(usize::from(bucket.0)) else { return };
        let mine =
            term_of.owner == Some(self.me.id) && term == Term { view: self.view, moves: term_of.moves };
        if !mine || !term_of.listed.contains(backup) || term_of.dropping.contains(backup) {
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
        let Some(term_of) = self.terms.get_mut(usize::from(bucket.0)) else { return false };
        let can = term_of.owner == Some(me)
            && term_of.freezing.is_none()
            && term_of.adding.is_empty()
            && term_of.backups.contains(to)
            && term_of.dropping.is_empty();
        if can {
            term_of.freezes = term_of.freezes.wrapping_add(1);
            term_of.freezing = Some((HandoffId { to, number: term_of.freezes }, now));
            term_of.quiet = None;
            self.touch(bucket);
        }
        can
    }

    pub(crate) fn begin_drop(&mut self, bucket: Bucket, backup: NodeId) {
        let me = self.me.id;
        let Some(term_of) = self.terms.get_mut(usize::from(bucket.0)) else { return };
        if !self.established || term_of.owner != Some(me) {
            return;
        }
        // A move waits for every backup: without this one it would only end by its time limit, and nobody asks again.
        if term_of.freezing.take().is_some() || term_of.destined == Some(backup) {
            term_of.destined = None;
        }
        if term_of.required().contains(backup) {
            term_of.dropping = term_of.dropping.with(backup);
        } else if term_of.listed.contains(backup) {
            // It was never waited for.
            term_of.listed = term_of.listed.without(backup);
            term_of.gone = term_of.gone.with(backup);
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
        if self.terms.get(usize::from(bucket.0)).is_some_and(BucketState::is_busy) {
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
        let term_of = self.terms.get_mut(usize::from(op.bucket.0)).ok_or(Rejected::Unexpected)?;
        let (done, answer) = match op.change {
            Change::Add { generation, index } => {
                let done = term_of.on_add(&asked, generation, index);
                (done, done.then_some(Change::Added))
            }
            Change::Move { generation, index, in_sync, listed, work } => {
                if term_of.is_owned_in(&asked) {
                    return Ok(Some(Change::Own));
                }
                let done = term_of.on_handoff(&asked, generation, index);
                if done {
                    term_of.load = work.map_or(Load::default(), Load::carried);
                    term_of.backups = in_sync.without(asked.me);
                    term_of.listed = listed.union(in_sync).without(asked.me);
                    term_of.unaware = self.members.set().without(asked.me);
                }
                (done, None)
            }
            Change::Own if op.moves < term_of.moves => (false, None),
            Change::Own => {
                let news = term_of.on_owner(&asked);
                (news, (term_of.owner == Some(from)).then_some(Change::Owned))
            }
            Change::Drop => {
                let done = term_of.on_drop(&asked);
                (done, done.then_some(Change::Dropped))
            }
            Change::Added | Change::Owned | Change::Dropped => {
                if term_of.is_owned_in(&asked) {
                    term_of.handle_answer(from, op.change);
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
            let Some(term_of) = self.terms.get_mut(usize::from(*bucket)) else { continue };
            let stale = |at: Micros| self.now.since(at) > self.config.timing.freeze_max;
            if term_of.freezing.is_some_and(|(_, at)| stale(at)) {
                term_of.freezing = None;
                term_of.destined = None;
                thawed.push(Bucket(*bucket));
            }
            term_of.outstanding(Bucket(*bucket), self.pending.is_some(), &mut queued);
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
