//! Operations that change one bucket inside a view; its state at a node is [`BucketState`].
//!
//! Inside a view the owner orders all changes: it alone lists, adds and drops backups and moves the bucket. Invariants:
//! every backup that a commit waits for is listed. A backup dropped in a term is not listed again in it, so that a late
//! Add, Drop or report cannot count for a new one: the owner first begins another term. Of the old and the new owner
//! the old one stops first.

use evergate_base::Micros;

use crate::bucket_state::{OpContext, PendingHandoff, Stored};
use crate::load::Load;
use crate::message::{Body, Change, Header, OPS_MAX, Op};
use crate::{BUCKETS, Bucket, HandoffId, MemberSet, Node, NodeId, OwnershipStart, Rejected, Role, Term};

/// Most operations that wait to be sent to one member.
const REPLIES_MAX: usize = 2 * BUCKETS as usize;

impl Node {
    /// This node's role for a bucket.
    pub fn role(&self, bucket: Bucket) -> Role {
        let Some(state) = self.buckets.get(bucket) else {
            return Role::NOTHING;
        };
        let term = Term { view: self.phase.view(), moves: state.moves };
        let data_epoch = state.data_epoch;
        match state.owner {
            Some(owner) if owner == self.me.id => Role::Owner {
                term,
                data_epoch,
                begin: state.begin.unwrap_or(OwnershipStart::Unchanged),
                required: state.required(),
                syncing: state.listed.minus(state.required()),
                freeze_for: state.freezing.map(|(freeze, _)| freeze),
            },
            Some(owner) if state.in_sync || !state.dropped && self.is_catching_up(bucket) => {
                Role::Backup { term, owner, data_epoch, in_sync: state.in_sync }
            }
            None => Role::NOTHING,
            // An owner that lists a dropped node again begins another term first.
            owner => {
                let moves = state.moves.saturating_add(u32::from(state.dropped));
                Role::Outside { owner, since: Term { moves, ..term } }
            }
        }
    }

    /// Whether the map lists this node, or an owner that listed it later sends frames.
    fn is_catching_up(&self, bucket: Bucket) -> bool {
        let Some(state) = self.buckets.get(bucket) else { return false };
        let listed =
            self.phase.map().get(usize::from(bucket.0)).is_some_and(|a| a.listed.contains(self.me.id));
        self.phase.is_established()
            && (listed && state.moves == 0 || state.stored.term.view == self.phase.view())
    }

    /// The backups whose leases the gate checks for a bucket; `None` when this node does not own it.
    pub fn gate_listed(&self, bucket: Bucket) -> Option<MemberSet> {
        let state = self.buckets.get(bucket)?;
        (self.phase.is_established() && state.owner == Some(self.me.id)).then_some(state.listed)
    }

    /// Whether the gate would let a bucket emit at this clock, by the rule that the kernel applies.
    pub fn gate_open(&self, bucket: Bucket, clock: Micros) -> bool {
        let Some(listed) = self.gate_listed(bucket) else { return false };
        let lease = |id: NodeId| self.peers.get(id).is_some_and(|peer| clock < peer.expiry);
        clock < self.gate_expiry() && listed.iter().all(lease)
    }

    /// The shell's log of a bucket, or its replica by frames of `term`, holds everything up to `index`. Called before
    /// every other `handle_*` that follows an acknowledgement: a promise states the acknowledged position. A snapshot
    /// counts when it is complete; until then the former replica is kept.
    pub fn handle_stored(&mut self, bucket: Bucket, term: Term, index: u64) {
        let Some(state) = self.buckets.get_mut(bucket) else { return };
        if !self.phase.is_established() || term.view > self.phase.view() {
            state.early = state.early.filter(|early| early.term > term).or(Some(Stored { term, index }));
            return;
        }
        if term.view != self.phase.view()
            || term < state.stored.term
            || (state.dropped && state.moves == term.moves)
        {
            return;
        }
        state.stored = Stored { term, index };
    }

    /// As the owner: `backup` has acknowledged everything up to `index`. From here on every commit waits for it.
    pub fn handle_caught_up(&mut self, now: Micros, bucket: Bucket, term: Term, backup: NodeId, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.phase.view());
        let Some(state) = self.buckets.get_mut(bucket) else { return };
        let mine = state.owner == Some(me) && term == Term { view, moves: state.moves };
        if mine && state.listed.contains(backup) && !state.required().contains(backup) {
            state.adding.insert(backup, index);
            self.touch(bucket);
        }
    }

    /// As the owner: the bucket is frozen for this handoff, nothing was emitted beyond `index`, and the target has
    /// acknowledged everything up to there. From this call on another node may own the bucket. A report about a
    /// cancelled handoff counts for no other one.
    pub fn handle_frozen(&mut self, now: Micros, bucket: Bucket, term: Term, freeze: HandoffId, index: u64) {
        self.note_now(now);
        let (me, view) = (self.me.id, self.phase.view());
        let Some(state) = self.buckets.get_mut(bucket) else { return };
        let Some((current, _)) = state.freezing else { return };
        let stale = current != freeze || term != (Term { view, moves: state.moves });
        if stale || state.owner != Some(me) {
            return;
        }
        state.frozen_index = Some(index);
        self.hand_off(bucket);
    }

    /// Hands off a frozen bucket. Waits while a backup is being added: the backup may or may not know that it is in
    /// sync, so the next owner could neither count it nor leave it out.
    fn hand_off(&mut self, bucket: Bucket) {
        let (me, view, pending) = (self.me.id, self.phase.view(), self.ballot.pending.is_some());
        let Some(state) = self.buckets.get_mut(bucket) else { return };
        let (Some((HandoffId { to, .. }, _)), Some(index)) = (state.freezing, state.frozen_index) else {
            return;
        };
        if pending || state.owner != Some(me) || !state.adding.is_empty() || !state.backups.contains(to) {
            return;
        }
        let (in_sync, listed) = (state.backups.with(me), state.listed.with(me));
        state.stored = Stored { term: Term { view, moves: state.moves }, index };
        let work = std::mem::take(&mut state.load).rate();
        state.pending_handoff = Some(PendingHandoff { to, index, in_sync, listed, work });
        state.freezing = None;
        state.owner = Some(to);
        state.in_sync = true;
        state.begin = None;
        state.dropping = MemberSet::EMPTY;
        state.planned_owner = None;
        self.touch(bucket);
    }

    /// Requests the move of a bucket to a member in sync. Ignored when the move is impossible.
    pub fn move_bucket(&mut self, now: Micros, bucket: Bucket, to: NodeId) {
        self.note_now(now);
        self.begin_move(bucket, to);
    }

    /// As the owner of `term`: drops a backup that does not keep up, so that it does not delay every commit. Cancels a
    /// handoff that waits for it. The backup is listed again after a pause, which grows each time.
    pub fn drop_backup(&mut self, now: Micros, bucket: Bucket, term: Term, backup: NodeId) {
        self.note_now(now);
        let Some(state) = self.buckets.get(bucket) else { return };
        let mine =
            state.owner == Some(self.me.id) && term == Term { view: self.phase.view(), moves: state.moves };
        if !mine || !state.listed.contains(backup) || state.dropping.contains(backup) {
            return;
        }
        let (least, most) = (self.config.timing.hold_down_min, self.config.timing.hold_down_max);
        if let Some(peer) = self.peers.get_mut(backup) {
            peer.avoid(self.clock.now, least, most);
        }
        self.begin_drop(bucket, backup);
        self.rebalancer.balance_at =
            self.rebalancer.balance_at.min(self.clock.now + Micros(self.config.timing.balance.0 / 10));
    }

    pub(crate) fn begin_move(&mut self, bucket: Bucket, to: NodeId) -> bool {
        let (me, now) = (self.me.id, self.clock.now);
        if self.ballot.pending.is_some() || !self.phase.is_established() {
            return false;
        }
        let Some(state) = self.buckets.get_mut(bucket) else { return false };
        let can = state.owner == Some(me)
            && state.freezing.is_none()
            && state.adding.is_empty()
            && state.backups.contains(to)
            && state.dropping.is_empty();
        if can {
            state.freezes = state.freezes.wrapping_add(1);
            state.freezing = Some((HandoffId { to, number: state.freezes }, now));
            state.frozen_index = None;
            self.touch(bucket);
        }
        can
    }

    pub(crate) fn begin_drop(&mut self, bucket: Bucket, backup: NodeId) {
        let me = self.me.id;
        let Some(state) = self.buckets.get_mut(bucket) else { return };
        if !self.phase.is_established() || state.owner != Some(me) {
            return;
        }
        // A handoff waits for every backup: without this one it would end only by its time limit.
        if state.freezing.take().is_some() || state.planned_owner == Some(backup) {
            state.planned_owner = None;
        }
        if state.required().contains(backup) {
            state.dropping = state.dropping.with(backup);
        } else if state.listed.contains(backup) {
            // No commit waited for it.
            state.listed = state.listed.without(backup);
            state.dropped_in_term = state.dropped_in_term.with(backup);
        }
        self.touch(bucket);
    }

    /// Marks a changed bucket: its role goes to the shell, its operations to other members at once.
    pub(crate) fn touch(&mut self, bucket: Bucket) {
        self.clock.due |= self.buckets.touch(bucket);
    }

    /// Processes operations of another member of the same view.
    pub(crate) fn handle_ops(&mut self, header: &Header, ops: &[Op]) -> Result<(), Rejected> {
        if !self.phase.is_established()
            || header.view != self.phase.view()
            || !self.phase.members().contains(header.from)
        {
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
        let queue = self.buckets.replies.entry(header.from.id).or_default();
        // An answer beyond the limit is sent when the operation is repeated.
        let free = REPLIES_MAX.saturating_sub(queue.len());
        queue.extend(answers.into_iter().take(free));
        Ok(())
    }

    /// Whether a correct member of the view could have sent the operation.
    fn is_possible(&self, op: &Op) -> bool {
        let members = self.phase.members().set();
        let sets = match op.change {
            Change::Move { in_sync, listed, .. } => in_sync.union(listed),
            _ => MemberSet::EMPTY,
        };
        op.bucket.0 < self.config.buckets && op.moves < u32::MAX && members.is_superset(sets)
    }

    fn handle_op(&mut self, from: NodeId, op: &Op) -> Result<Option<Change>, Rejected> {
        let context = OpContext {
            me: self.me.id,
            from,
            term: Term { view: self.phase.view(), moves: op.moves },
            pending: self.ballot.pending.is_some(),
        };
        let state = self.buckets.states.get_mut(usize::from(op.bucket.0)).ok_or(Rejected::Unexpected)?;
        let (done, answer) = match op.change {
            Change::Add { data_epoch, index } => {
                let done = state.on_add(&context, data_epoch, index);
                (done, done.then_some(Change::Added))
            }
            Change::Move { data_epoch, index, in_sync, listed, work } => {
                if state.is_owned_in(&context) {
                    return Ok(Some(Change::Own));
                }
                let done = state.on_handoff(&context, data_epoch, index);
                if done {
                    state.load = work.map_or(Load::default(), Load::carried);
                    state.backups = in_sync.without(context.me);
                    state.listed = listed.union(in_sync).without(context.me);
                    state.unaware = self.phase.members().set().without(context.me);
                }
                (done, None)
            }
            Change::Own if op.moves < state.moves => (false, None),
            Change::Own => {
                let is_new = state.on_owner(&context);
                (is_new, (state.owner == Some(from)).then_some(Change::Owned))
            }
            Change::Drop => {
                let done = state.on_drop(&context);
                (done, done.then_some(Change::Dropped))
            }
            Change::Added | Change::Owned | Change::Dropped => {
                if state.is_owned_in(&context) {
                    state.handle_answer(from, op.change);
                    self.buckets.record_change(op.bucket);
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

    /// Queues new operations, and repeats outstanding ones from time to time. While a promise is pending nothing is
    /// added, dropped or moved.
    pub(crate) fn advance_ops(&mut self) {
        let unsent = std::mem::take(&mut self.buckets.unsent);
        let repeat = self.clock.now >= self.buckets.ops_at;
        if !self.phase.is_established()
            || self.buckets.with_operations.is_empty()
            || unsent.is_empty() && !repeat
        {
            return;
        }
        let buckets = if repeat {
            self.buckets.ops_at = self.clock.now + Micros(self.config.timing.heartbeat.0.saturating_mul(2));
            self.buckets.with_operations.clone()
        } else {
            unsent
        };
        let mut queued: Vec<(NodeId, Op)> = Vec::new();
        let mut thawed = Vec::new();
        for bucket in &buckets {
            let Some(state) = self.buckets.get_mut(Bucket(*bucket)) else { continue };
            let stale = |at: Micros| self.clock.now.since(at) > self.config.timing.freeze_max;
            if state.freezing.is_some_and(|(_, at)| stale(at)) {
                state.freezing = None;
                state.planned_owner = None;
                thawed.push(Bucket(*bucket));
            }
            state.outstanding(Bucket(*bucket), self.ballot.pending.is_some(), &mut queued);
        }
        for bucket in thawed {
            self.touch(bucket);
        }
        for bucket in buckets {
            self.hand_off(Bucket(bucket)); // a promise may have kept it
        }
        for (to, op) in queued {
            self.buckets.replies.entry(to).or_default().push(op);
        }
    }

    /// Sends queued operations, several in one datagram.
    pub(crate) fn send_ops(&mut self) {
        for (to, ops) in std::mem::take(&mut self.buckets.replies) {
            for ops in ops.chunks(OPS_MAX) {
                self.send(to, &Body::Ops(ops.to_vec()));
            }
        }
    }
}
