//! The owner's side: entries go to the backups before output that depends on them leaves, and acknowledgements return.
//!
//! The model of the daemon's `worker/replication/owner.rs` and `handoff.rs`.

use super::perform::open_slot;
use super::{Client, Ending, Worker};
use crate::agent::Report;
use crate::channel::{Acked, Outgoing};
use crate::event_queue::Time;
use crate::fault::Mutation;
use crate::kernel::Kernel;
use crate::segment::Flow;
use evergate_base::Micros;
use evergate_membership::{Bucket, MemberSet, NodeId, OwnershipStart, Role, Term};
use evergate_replication::{ConnectionId, ConnectionState, Delay, Entry, Frame, LegFacts, Phase, Urgency};
use std::collections::BTreeMap;

/// Time between two attempts to open a channel.
const RETRY: Time = 50_000;
/// A channel that breaks twice within this time is not opened a third time before the cluster's next decision.
const BREAKS_AGAIN: Time = 10_000_000;

impl Client {
    /// Index up to which every node of `required` holds the entries.
    fn held_by(&self, required: MemberSet) -> u64 {
        let of = |node| self.acknowledged.get(&node).copied().unwrap_or(0);
        required.iter().map(of).min().unwrap_or(self.queued).min(self.queued)
    }

    fn apply(&mut self, entry: Entry) {
        self.queued += 1;
        let over = matches!(entry, Entry::Close { .. });
        if let Entry::ServerEnd { leg, .. } = entry {
            self.server_end = Some((leg, self.queued));
        }
        self.replicated.apply(entry);
        if self.client_end.is_none() && (over || self.replicated.client.phase == Phase::Ended) {
            self.client_end = Some(self.queued);
        }
    }
}

impl Worker {
    /// Replicates a new connection to the backups.
    pub(super) fn begin(&mut self, key: ConnectionId, facts: LegFacts) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        client.legs.insert(0, facts);
        let (bucket, legs) = (client.bucket, client.legs.clone());
        self.replicate(bucket, &Frame::Begin { connection: key, bucket, state: None, legs }, None);
    }

    pub(super) fn replicate_leg(&mut self, key: ConnectionId, number: u32, facts: LegFacts) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        client.replicated.forget_legs(&mut client.legs, number);
        client.legs.insert(number, facts);
        let bucket = client.bucket;
        self.replicate(bucket, &Frame::Leg { connection: key, leg: number, facts }, None);
    }

    /// Ends the connections, at the backups as well, whose clients have acknowledged everything with the FIN.
    pub(super) fn end_acknowledged(&mut self, kernel: &mut Kernel) {
        let over = |flow: &Flow, end: u64| {
            let lives = kernel.sockets.contains_key(flow);
            !lives || kernel.slots.get(flow).is_none_or(|slot| slot.snd_una >= end)
        };
        let ended: Vec<Flow> = self
            .ending
            .iter()
            .filter(|(flow, ending)| over(flow, ending.end) && !self.freezing.contains_key(&ending.bucket))
            .map(|(flow, _)| *flow)
            .collect();
        for flow in ended {
            if let Some(Ending { key: connection, bucket, .. }) = self.ending.remove(&flow) {
                open_slot(kernel, flow);
                self.replicate(bucket, &Frame::End { connection }, None);
            }
        }
    }

    /// Sends the entries of the last call to the backups. Output that depends on them waits. Entries without dependent
    /// output go with later ones of their connection, or at its next timer.
    pub(super) fn replicate_entries(&mut self, now: Time, key: ConnectionId) {
        let Some(Client { connection, bucket, leg, .. }) = self.clients.get(&key) else { return };
        // A client that has not sent its next request may wait for acknowledgements.
        let may_wait = connection.urgency() == Urgency::None && !leg.positions.can_wait_for_ack();
        let may_wait = may_wait && !connection.is_past_requests() && !self.freezing.contains_key(bucket);
        if !may_wait || !connection.has_entries() || self.awaited(*bucket).is_empty() {
            self.replicate_all(key);
        } else if let Some(client) = self.clients.get_mut(&key) {
            client.schedule_timer(Delay::Medium, now);
            self.entries_batched += 1;
        }
    }

    /// Sends all queued entries.
    pub(super) fn replicate_all(&mut self, key: ConnectionId) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let urgency = client.connection.urgency();
        let mut entries: Vec<Entry> = client.connection.drain_entries().collect();
        if entries.is_empty() {
            return;
        }
        // Some clients send nothing more before their data is acknowledged. Tickets do that for the handshake's end.
        let connection = &client.connection;
        let waits = client.leg.positions.can_wait_for_ack()
            && !connection.is_past_requests()
            && !connection.holds_tickets()
            && entries.iter().any(|entry| matches!(entry, Entry::Client(_)));
        entries.iter().cloned().for_each(|entry| client.apply(entry));
        let (bucket, index) = (client.bucket, client.queued);
        match self.mutation {
            Mutation::LostBoundary => entries.retain(|entry| !matches!(entry, Entry::Boundary(_))),
            Mutation::LostRoute => entries.retain(|entry| !matches!(entry, Entry::Route(_))),
            _ => {}
        }
        self.batcher.hurry(if waits { Urgency::Full } else { urgency });
        self.replicate(
            bucket,
            &Frame::Entries { connection: key, entries },
            Some(Acked::Entry { key, index }),
        );
        if self.awaited(bucket).is_empty() {
            if let Some(client) = self.clients.get_mut(&key) {
                client.connection.count_as_replicated(); // no other node is left
            }
            self.acknowledged.insert(key);
        }
    }

    /// Delivers the acknowledgements of backups, until none has a further effect.
    pub(super) fn deliver_acknowledged(&mut self, now: Time, kernel: &mut Kernel) {
        while let Some(key) = self.acknowledged.pop_first() {
            self.on_replicated(now, kernel, key);
        }
    }

    fn on_replicated(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let Some(bucket) = self.clients.get(&key).map(|client| client.bucket) else { return };
        if self.freezing.contains_key(&bucket) {
            return; // the next owner handles it
        }
        let awaited = self.awaited(bucket);
        let Some(client) = self.clients.get_mut(&key) else { return };
        let held = client.held_by(awaited);
        let mut ends = Vec::new();
        if client.client_end.is_some_and(|index| index <= held) {
            ends.push(&mut client.leg);
        }
        if let Some(upstream) = &mut client.upstream
            && client.server_end.is_some_and(|(_, index)| index <= held)
        {
            ends.push(&mut upstream.leg);
        }
        for leg in ends {
            if kernel.slots.get_mut(&leg.flow).is_some_and(|slot| leg.positions.release_end(slot)) {
                self.dirty.insert(leg.flow);
            }
        }
        self.call(now, kernel, key, |connection, io| connection.on_replicated(io, held));
        self.pump(now, kernel, key);
        if self.clients.get(&key).is_some_and(|client| client.connection.may_send_tickets()) {
            self.call(now, kernel, key, |connection, io| connection.handle_tickets_due(io));
            self.pump(now, kernel, key);
        }
        self.run_deferred(now, kernel, key); // of a connection whose bucket is about to move
    }

    /// Sends the tickets of clients whose request is acknowledged before its response.
    pub(super) fn send_tickets_along(&mut self, now: Time, kernel: &mut Kernel) {
        let waits =
            |client: &Client| self.dirty.contains(&client.leg.flow) && client.connection.holds_tickets();
        let clients = self.clients.iter().filter(|(_, client)| waits(client)).map(|(key, _)| *key);
        for key in clients.filter(|key| !self.is_frozen(*key)).collect::<Vec<_>>() {
            self.tickets_with_acks += 1;
            self.call(now, kernel, key, |connection, io| connection.handle_tickets_due(io));
            self.pump(now, kernel, key);
        }
        self.deliver_acknowledged(now, kernel);
    }

    /// Handles a backup's acknowledgement of so many frames.
    pub(crate) fn read_answer(&mut self, node: NodeId, channel: u64, frames: u64) {
        let Some(outgoing) = self.outgoing.get_mut(&node).filter(|outgoing| outgoing.number == channel)
        else {
            return;
        };
        let mut notices = Vec::new();
        if let Err(error) = outgoing.feed.handle_answer(frames, |notice| notices.push(notice)) {
            return self.failures.push(format!("channel to {node}: {error}"));
        }
        for notice in notices {
            match notice {
                Acked::Entry { key, index } => {
                    if let Some(client) = self.clients.get_mut(&key) {
                        let known = client.acknowledged.entry(node).or_default();
                        *known = (*known).max(index);
                        self.acknowledged.insert(key);
                    }
                }
                Acked::Recovered { key } => self.record_recovered(key, node),
                Acked::Synced { bucket, term } => self.note_caught_up(bucket, term, node),
                Acked::Complete { bucket, term } => self.note_named(bucket, term, node),
            }
        }
    }

    /// Applies a change of this node's role for a bucket.
    pub(super) fn change_role(&mut self, now: Time, kernel: &mut Kernel, bucket: Bucket, role: Role) {
        let number = bucket.index();
        if self.roles.len() <= number {
            self.roles.resize(number + 1, Role::NOTHING);
        }
        let Some(known) = self.roles.get_mut(number) else { return };
        let before = std::mem::replace(known, role);
        let still = match (role, before) {
            (Role::Owner { term, syncing, .. }, Role::Owner { term: was, .. }) if term == was => syncing,
            _ => MemberSet::EMPTY,
        };
        self.named.retain(|(of, node)| *of != bucket || still.contains(*node));
        self.change_held(bucket, role);
        self.change_freezing(kernel, bucket, role);
        let Role::Owner { term, begin, required, syncing, .. } = role else {
            if matches!(before, Role::Owner { .. }) {
                self.leave_bucket(kernel, bucket);
            }
            for outgoing in self.outgoing.values_mut() {
                outgoing.follows.remove(&bucket);
            }
            return;
        };
        let listed = required.union(syncing);
        for node in listed.iter() {
            self.reach(now, node);
        }
        let owned = matches!(before, Role::Owner { .. });
        for (node, outgoing) in &mut self.outgoing {
            if !listed.contains(*node) {
                outgoing.follows.remove(&bucket);
            } else if !owned {
                outgoing.awaited.remove(&bucket);
                outgoing.follows.insert(bucket); // nothing was sent so far, so nothing is missing
            }
        }
        let replicated_to = match before {
            Role::Owner { term: was, required, syncing, .. } if was == term => required.union(syncing),
            _ => MemberSet::EMPTY,
        };
        // A connection that is about to be recovered is replicated when it resumes.
        let comes = matches!(begin, OwnershipStart::Failover | OwnershipStart::Handoff) && !owned;
        for node in syncing.minus(replicated_to).iter().filter(|_| !comes) {
            self.send_full_state(bucket, node);
        }
        // Fewer backups may be required now.
        self.acknowledged.extend(self.keys_of(bucket));
    }

    /// Connections of a bucket.
    pub(super) fn keys_of(&self, bucket: Bucket) -> Vec<ConnectionId> {
        self.clients.iter().filter(|(_, client)| client.bucket == bucket).map(|(key, _)| *key).collect()
    }

    fn leave_bucket(&mut self, kernel: &mut Kernel, bucket: Bucket) {
        for key in self.keys_of(bucket) {
            self.drop_client(kernel, key);
        }
        self.ending.retain(|flow, ending| {
            if ending.bucket == bucket {
                kernel.silence(*flow);
            }
            ending.bucket != bucket
        });
        for ((_, _, of), idle) in &mut self.idle {
            for upstream in idle.drain(..).filter(|_| *of == bucket) {
                kernel.silence(upstream.leg.flow);
            }
        }
        self.stop_failover(kernel, bucket);
    }

    // ---- channels ----

    fn reach(&mut self, now: Time, node: NodeId) -> bool {
        if self.outgoing.contains_key(&node) || self.broken.get(&node).is_some_and(|at| *at > now) {
            return false;
        }
        self.broken.insert(node, now + RETRY);
        self.channels += 1;
        let number = self.process << 16 | self.channels;
        self.outgoing.insert(node, Outgoing::connect(self.me, self.process, number, now));
        true
    }

    /// Replicas that lack frames: the bucket, the node, whether it is only catching up, and the term.
    fn gaps(&self) -> Vec<(Bucket, NodeId, bool, Term)> {
        let mut gaps = Vec::new();
        // Except for buckets that may have moved already.
        for (bucket, role) in
            (0..).map(Bucket).zip(&self.roles).filter(|(bucket, _)| !self.frozen.contains(bucket))
        {
            let Role::Owner { term, required, syncing, .. } = role else { continue };
            let follows =
                |node: &NodeId| self.outgoing.get(node).is_some_and(|out| out.follows.contains(&bucket));
            let lacks = required.union(*syncing);
            let lacks = lacks.iter().filter(|node| !follows(node));
            gaps.extend(lacks.map(|node| (bucket, node, syncing.contains(node), *term)));
        }
        gaps
    }

    /// Whether there is a gap, or a backup that may never answer.
    pub(super) fn wants_channels(&self) -> bool {
        !self.gaps().is_empty() || self.outgoing.values().any(|outgoing| outgoing.feed.lag() > 0)
    }

    /// Sends the missed frames to a backup that catches up. A required backup with a gap must be dropped and filled
    /// again. Until then it receives nothing, so that it acknowledges nothing.
    pub(super) fn run_channel_timers(&mut self, now: Time) {
        if now < self.channels_at {
            return;
        }
        self.channels_at = now + RETRY;
        self.close_silent_channels(now);
        for (bucket, node, syncing, term) in self.gaps() {
            if self.mutation == Mutation::GapsFollow {
                self.reach(now, node);
                self.outgoing.entry(node).and_modify(|outgoing| {
                    outgoing.follows.insert(bucket);
                });
            } else if syncing {
                self.reach(now, node);
                self.send_full_state(bucket, node);
            } else {
                self.reports.push(Report::Incomplete { bucket, node, term });
            }
        }
    }

    /// Sends the full state of a bucket to a backup that holds nothing. Further frames follow it.
    fn send_full_state(&mut self, bucket: Bucket, node: NodeId) {
        let Some(outgoing) = self.outgoing.get_mut(&node) else { return };
        outgoing.follows.insert(bucket);
        outgoing.awaited.remove(&bucket);
        outgoing.announced.remove(&bucket); // the full state is sent again
        let mut frames = Vec::new();
        for key in self.keys_of(bucket) {
            let Some(client) = self.clients.get(&key) else { continue };
            let notice = Acked::Entry { key, index: client.queued };
            frames.push((whole(key, bucket, &client.replicated, &client.legs), Some(notice)));
        }
        for ending in self.ending.values().filter(|ending| ending.bucket == bucket) {
            frames.push((whole(ending.key, bucket, &ending.replicated, &ending.legs), None));
        }
        for (frame, notice) in frames {
            self.send_to(node, bucket, &frame, notice);
        }
        if !self.is_recovering(bucket) {
            self.send_complete(bucket, node); // otherwise when the last of them resumes
        }
    }

    /// Marks the full state of the bucket as sent to this backup.
    pub(super) fn send_complete(&mut self, bucket: Bucket, node: NodeId) {
        let Role::Owner { term, .. } = self.role(bucket) else { return };
        let notice = Acked::Synced { bucket, term };
        self.send_to(node, bucket, &Frame::Complete { bucket }, Some(notice));
    }

    /// Records a required backup with the full state, which the agent may list from now on. If its channel breaks
    /// before this worker receives the new role, entries wait for it until the role changes.
    fn note_named(&mut self, bucket: Bucket, term: Term, node: NodeId) {
        let Role::Owner { term: current, syncing, .. } = self.role(bucket) else { return };
        let awaited = self
            .outgoing
            .get(&node)
            .is_some_and(|outgoing| outgoing.follows.contains(&bucket) && outgoing.awaited.contains(&bucket));
        if term != current || !syncing.contains(node) || !awaited {
            return;
        }
        self.named.insert((bucket, node));
        self.reports.push(Report::CaughtUp { bucket, node, term });
    }

    /// Records that a backup has acknowledged everything sent of a bucket so far. Frames that were released meanwhile
    /// without it are in flight: with those it lacks nothing.
    fn note_caught_up(&mut self, bucket: Bucket, term: Term, node: NodeId) {
        let Role::Owner { term: current, syncing, .. } = self.role(bucket) else { return };
        if term != current || !syncing.contains(node) {
            return; // in its own, other term it receives everything again
        }
        let outgoing = self.outgoing.get_mut(&node).filter(|outgoing| outgoing.follows.contains(&bucket));
        let Some(outgoing) = outgoing else { return };
        if self.mutation == Mutation::EarlyInSync {
            return self.reports.push(Report::CaughtUp { bucket, node, term });
        }
        outgoing.awaited.insert(bucket);
        let notice = Acked::Complete { bucket, term };
        self.send_to(node, bucket, &Frame::Complete { bucket }, Some(notice));
    }

    /// Sends a frame to every backup of the bucket.
    pub(super) fn replicate(&mut self, bucket: Bucket, frame: &Frame, notice: Option<Acked>) {
        let Role::Owner { required, syncing, .. } = self.role(bucket) else { return };
        if self.frozen.contains(&bucket) {
            // The next owner may have it already. After a cancelled handoff there is a gap.
            for outgoing in self.outgoing.values_mut() {
                outgoing.follows.remove(&bucket);
                outgoing.awaited.remove(&bucket);
            }
            return;
        }
        for node in required.union(syncing).iter() {
            self.send_to(node, bucket, frame, notice);
        }
    }

    pub(super) fn send_to(&mut self, node: NodeId, bucket: Bucket, frame: &Frame, notice: Option<Acked>) {
        let Role::Owner { term, .. } = self.role(bucket) else { return };
        let outgoing = self.outgoing.get_mut(&node).filter(|outgoing| outgoing.follows.contains(&bucket));
        let Some(outgoing) = outgoing else { return };
        let mut result = Ok(());
        if outgoing.announced.insert(bucket, term) != Some(term) {
            result = outgoing.feed.push(&Frame::Term { bucket, term }, None);
        }
        self.batcher.hurry(frame.urgency());
        let result = result.and_then(|()| outgoing.feed.push(frame, notice));
        outgoing.sent_frames.insert(bucket, outgoing.feed.frames());
        if let Err(error) = result {
            self.failures.push(format!("channel to {node}: {error}"));
        }
    }

    /// Closes channels whose backup is silent.
    fn close_silent_channels(&mut self, now: Time) {
        let channels = self.outgoing.iter_mut().filter(|_| self.mutation != Mutation::WaitsForever);
        let mute = channels.filter_map(|(node, outgoing)| {
            outgoing.feed.is_unresponsive(Micros(now)).then_some((*node, outgoing.number))
        });
        let mute: Vec<(NodeId, u64)> = mute.collect();
        for (node, channel) in mute {
            self.closed_outgoing.push((node, channel));
            self.lose_outgoing(now, node, channel);
        }
    }

    /// Handles the break of a channel to a backup. Required replicas are dropped, and the cluster decides. Replicas
    /// that catch up are filled again, unless the backup has never answered or its channel breaks again soon.
    pub(crate) fn lose_outgoing(&mut self, now: Time, node: NodeId, channel: u64) {
        if self.outgoing.get(&node).is_none_or(|outgoing| outgoing.number != channel) {
            return;
        }
        let Some(outgoing) = self.outgoing.remove(&node) else { return };
        let again = self.broken_at.insert(node, now).is_some_and(|at| now < at + BREAKS_AGAIN);
        let hopeless = again || !outgoing.feed.has_answered();
        if self.mutation == Mutation::GapsFollow {
            return;
        }
        for (bucket, _, syncing, term) in self.gaps().into_iter().filter(|gap| gap.1 == node) {
            if syncing && !hopeless && !self.named.contains(&(bucket, node)) {
                self.acknowledged.extend(self.keys_of(bucket)); // entries do not wait for it any more
            } else {
                self.reports.push(Report::Incomplete { bucket, node, term });
            }
        }
    }

    // ---- handoff ----

    fn change_freezing(&mut self, kernel: &mut Kernel, bucket: Bucket, role: Role) {
        let before = self.freezing.remove(&bucket);
        let frozen = self.frozen.remove(&bucket);
        match (role, before) {
            (Role::Owner { term, freeze_for: Some(freeze), .. }, _) => {
                let wanted = (freeze, term);
                if before.is_none() {
                    for key in self.keys_of(bucket) {
                        self.replicate_all(key); // entries that wait for further ones
                    }
                }
                self.freezing.insert(bucket, wanted);
                self.batcher.hurry(Urgency::Full); // no frame may be missing
                kernel.held.insert(bucket);
                if frozen && before == Some(wanted) {
                    self.frozen.insert(bucket); // it was reported
                }
            }
            (Role::Owner { .. }, Some(_)) => {
                // The handoff was cancelled: held work resumes.
                kernel.held.remove(&bucket);
                self.to_pump.extend(self.keys_of(bucket));
            }
            (Role::Backup { in_sync: true, .. }, Some((_, term)))
                if frozen && self.mutation != Mutation::DropsFrozen =>
            {
                self.keep_frozen(bucket, term)
            }
            _ => {}
        }
    }

    /// Keeps a bucket after its handoff, since the new owner may fail before its first frame. Until then this node
    /// counts as a backup with the full state.
    fn keep_frozen(&mut self, bucket: Bucket, term: Term) {
        let mine = self.clients.iter().filter(|(_, client)| client.bucket == bucket);
        let mut frames: Vec<Frame> =
            mine.map(|(key, client)| whole(*key, bucket, &client.replicated, &client.legs)).collect();
        let over = self.ending.values().filter(|ending| ending.bucket == bucket);
        frames.extend(over.map(|ending| whole(ending.key, bucket, &ending.replicated, &ending.legs)));
        for frame in frames {
            self.store.keep(term, frame);
        }
    }

    /// Whether every frame of a bucket was acknowledged. Acknowledgements after the next owner's first frame do not
    /// count.
    fn is_received(&self, bucket: Bucket) -> bool {
        let mut channels = self.outgoing.values().filter(|outgoing| outgoing.follows.contains(&bucket));
        let follows = |node| self.outgoing.get(&node).is_some_and(|out| out.follows.contains(&bucket));
        self.required(bucket).iter().all(follows) && channels.all(|outgoing| outgoing.is_received(bucket))
    }

    pub(super) fn is_frozen(&self, key: ConnectionId) -> bool {
        self.clients.get(&key).is_some_and(|client| self.freezing.contains_key(&client.bucket))
    }

    /// Reports buckets whose next owner has everything.
    pub(super) fn report_frozen(&mut self) {
        for (bucket, (freeze, term)) in self.freezing.clone() {
            let to = MemberSet::of(freeze.to);
            // Ended connections and complete replicas have no outstanding entry.
            let busy = self.is_recovering(bucket) || !self.is_received(bucket);
            let all = self.clients.values().filter(|client| client.bucket == bucket);
            let quiet = !busy && all.into_iter().all(|client| client.held_by(to) == client.queued);
            if quiet && self.frozen.insert(bucket) {
                self.reports.push(Report::Frozen { bucket, term, freeze });
            }
        }
    }
}

/// The whole state of a connection.
pub(super) fn whole(
    connection: ConnectionId,
    bucket: Bucket,
    state: &ConnectionState,
    legs: &BTreeMap<u32, LegFacts>,
) -> Frame {
    Frame::Begin { connection, bucket, state: Some(Box::new(state.clone())), legs: legs.clone() }
}
