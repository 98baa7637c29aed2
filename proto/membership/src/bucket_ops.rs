//! The operations that change one bucket inside a view; what it is to a node is its [`BucketState`].
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
        let Some(state) = self.bucket_states.get(usize::from(bucket.0)) else {
            return Role::NOTHING;
        };
        let term = Term { view: self.view, moves: state.moves };
        let generation = state.generation;
        match state.owner {
            Some(owner) if owner == self.me.id => Role::Owner {
                term,
                generation,
                begin: state.begin.unwrap_or(OwnershipStart::Unchanged),
                required: state.required(),
                syncing: state.listed.minus(state.required()),
                freeze_for: state.freezing.map(|(freeze, _)| freeze),
            },
            Some(owner) if state.in_sync || !state.dropped && self.is_being_filled(bucket) => {
                Role::Backup { term, owner, generation, in_sync: state.in_sync }
            }
            None => Role::NOTHING,
            // Whoever lists a node again that it dropped begins another term first.
            owner => {
                let moves = state.moves.saturating_add(u32::from(state.dropped));
                Role::Outside { owner, since: Term { moves, ..term } }
            }
        }
    }

    /// Listed by the map, or fed by an owner that listed this node later.
    fn is_being_filled(&self, bucket: Bucket) -> bool {
        let Some(state) = self.bucket_states.get(usize::from(bucket.0)) else { return false };
        let listed = self.map.get(usize::from(bucket.0)).is_some_and(|a| a.listed.contains(self.me.id));
        self.established && (listed && state.moves == 0 || state.stored.term.view == self.view)
    }

    /// The backups whose leases the gate checks for a bucket; `None` when this node does not own it.
    pub fn gate_listed(&self, bucket: Bucket) -> Option<MemberSet> {
        let state = self.bucket_states.get(usize::from(bucket.0))?;
        (self.established && state.owner == Some(self.me.id)).then_some(state.listed)
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
        let Some(state) = self.bucket_states.get_mut(usize::from(bucket.0)) else { return };
        if !self.established || term.view > self.view {
            state.early = state.early.filter(|early| early.term > term).or(Some(Stored { term, index }));
            return;
        }
        if term.view != self.view || term < state.stored.term || (state.dropped && state.moves == term.moves)
        {
            return;
        }
        state.stored = Stored { term, index };
    }

    /// As the owner: `backup` has acknowledged everything up to `index`, and from here on every commit waits for it.
    pub fn handle_caught_up(&mut self, now: Micros, bucket: Bucket, term: Term, backup: NodeId, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.view);
        let Some(state) = self.bucket_states.get_mut(usize::from(bucket.0)) else { return };
        let mine = state.owner == Some(me) && term == Term { view, moves: state.moves };
        if mine && state.listed.contains(backup) && !state.required().contains(backup) {
            state.adding.insert(backup, index);
            self.touch(bucket);
        }
    }

    /// As the owner: the bucket is quiet for this move, nothing was emitted beyond `index`, and the node that it is frozen for
    /// has acknowledged everything up to there. From this call on it may not be ours. What is said of a move that was called
    /// off counts for no other one.
    pub fn handle_frozen(&mut self, now: Micros, bucket: Bucket, term: Term, freeze: HandoffId, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.view);
        let Some(state) = self.bucket_states.get_mut(usize::from(bucket.0)) else { return };
        let Some((asked, _)) = state.freezing else { return };
        let stale = asked != freeze || term != (Term { view, moves: state.moves });
        if stale || state.owner != Some(me) {
            return;
        }
        state.quiet = Some(index);
        self.hand_off(bucket);
    }

    /// Gives a bucket away that is quiet. Not while a backup is being added: it may or may not know that it is in sync, so it
    /// could neither be named to the next owner nor be left out.
    fn hand_off(&mut self, bucket: Bucket) {
        let (me, view, pending) = (self.me.id, self.view, self.pending.is_some());
        let Some(state) = self.bucket_states.get_mut(usize::from(bucket.0)) else { return };
        let (Some((HandoffId { to, .. }, _)), Some(index)) = (state.freezing, state.quiet) else {
            return;
        };
        if pending || state.owner != Some(me) || !state.adding.is_empty() || !state.backups.contains(to) {
            return;
        }
        let (in_sync, listed) = (state.backups.with(me), state.listed.with(me));
        state.stored = Stored { term: Term { view, moves: state.moves }, index };
        let work = std::mem::take(&mut state.load).rate();
        state.handing = Some(PendingHandoff { to, index, in_sync, listed, work });
        state.freezing = None;
        state.owner = Some(to);
        state.in_sync = true;
        state.begin = None;
        state.dropping = MemberSet::EMPTY;
        state.destined = None;
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
        let Some(state) = self.bucket_states.get(usize::from(bucket.0)) else { return };
        let mine = state.owner == Some(self.me.id) && term == Term { view: self.view, moves: state.moves };
        if !mine || !state.listed.contains(backup) || state.dropping.contains(backup) {
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
        let Some(state) = self.bucket_states.get_mut(usize::from(bucket.0)) else { return false };
        let can = state.owner == Some(me)
            && state.freezing.is_none()
            && state.adding.is_empty()
            && state.backups.contains(to)
            && state.dropping.is_empty();
        if can {
            state.freezes = state.freezes.wrapping_add(1);
            state.freezing = Some((HandoffId { to, number: state.freezes }, now));
            state.quiet = None;
            self.touch(bucket);
        }
        can
    }

    pub(crate) fn begin_drop(&mut self, bucket: Bucket, backup: NodeId) {
        let me = self.me.id;
        let Some(state) = self.bucket_states.get_mut(usize::from(bucket.0)) else { return };
        if !self.established || state.owner != Some(me) {
            return;
        }
        // A move waits for every backup: without this one it would only end by its time limit, and nobody asks again.
        if state.freezing.take().is_some() || state.destined == Some(backup) {
            state.destined = None;
        }
        if state.required().contains(backup) {
            state.dropping = state.dropping.with(backup);
        } else if state.listed.contains(backup) {
            // It was never waited for.
            state.listed = state.listed.without(backup);
            state.gone = state.gone.with(backup);
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
        if self.bucket_states.get(usize::from(bucket.0)).is_some_and(BucketState::is_busy) {
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
        let state = self.bucket_states.get_mut(usize::from(op.bucket.0)).ok_or(Rejected::Unexpected)?;
        let (done, answer) = match op.change {
            Change::Add { generation, index } => {
                let done = state.on_add(&asked, generation, index);
                (done, done.then_some(Change::Added))
            }
            Change::Move { generation, index, in_sync, listed, work } => {
                if state.is_owned_in(&asked) {
                    return Ok(Some(Change::Own));
                }
                let done = state.on_handoff(&asked, generation, index);
                if done {
                    state.load = work.map_or(Load::default(), Load::carried);
                    state.backups = in_sync.without(asked.me);
                    state.listed = listed.union(in_sync).without(asked.me);
                    state.unaware = self.members.set().without(asked.me);
                }
                (done, None)
            }
            Change::Own if op.moves < state.moves => (false, None),
            Change::Own => {
                let news = state.on_owner(&asked);
                (news, (state.owner == Some(from)).then_some(Change::Owned))
            }
            Change::Drop => {
                let done = state.on_drop(&asked);
                (done, done.then_some(Change::Dropped))
            }
            Change::Added | Change::Owned | Change::Dropped => {
                if state.is_owned_in(&asked) {
                    state.handle_answer(from, op.change);
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
            let Some(state) = self.bucket_states.get_mut(usize::from(*bucket)) else { continue };
            let stale = |at: Micros| self.now.since(at) > self.config.timing.freeze_max;
            if state.freezing.is_some_and(|(_, at)| stale(at)) {
                state.freezing = None;
                state.destined = None;
                thawed.push(Bucket(*bucket));
            }
            state.outstanding(Bucket(*bucket), self.pending.is_some(), &mut queued);
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
