//! Placement of replicas: which nodes have replicas of the own buckets, over which channels, and what each has yet to
//! receive.
//!
//! Invariant: a channel carries the frames of a bucket without a gap. A replica with a gap is dropped, or filled again
//! from the beginning.

use super::Cluster;
use super::backup::CLOCK_EVERY;
use super::outgoing::{Notice, Outgoing};
use crate::clients::Client;
use crate::host::{Channel, Gate, Host, Law, Poll};
use crate::instruction::arrives;
use crate::report::Report;
use crate::slab::{Key, Slab, Source};
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_membership::{Bucket, MemberSet, NodeId, OwnershipStart, Role, Term};
use evergate_replication::{FRAME_VERSION, Frame, NextTurn};
use std::collections::BTreeMap;

/// Between two attempts to make a channel.
const RETRY: Micros = Micros::from_ms(50);
/// With this many unsent bytes on a channel, further replicas are not filled over it for [`FILL_RETRY`]. Entries use
/// the same channel, and a channel with too much unsent data counts as dead.
const FILL_BACKLOG_MAX: usize = 4 << 20;
const FILL_RETRY: Micros = Micros::from_ms(2);
/// A channel that breaks twice within this time is not made again until the cluster has decided on the backup.
const BREAKS_AGAIN: Micros = Micros::from_ms(10_000);

/// A replica that lacks frames of this worker.
struct Gap {
    bucket: Bucket,
    node: NodeId,
    term: Term,
    /// The replica is catching up.
    syncing: bool,
}

impl<H: Host> Worker<H> {
    /// Applies a changed role for a bucket.
    pub(super) fn change_role(&mut self, bucket: Bucket, role: Role) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        let Some(known) = cluster.roles.get_mut(usize::from(bucket.0)) else { return };
        let before = std::mem::replace(known, role);
        let held = cluster.replicas.store.has(bucket);
        if let Some(begin) = begun_between(before, role) {
            match held || begin == OwnershipStart::Empty {
                true => self.leave_bucket(bucket), // local connections have resumed elsewhere, or are lost
                false => self.abandon_pool(Some(bucket)), // its server connections may have moved
            }
        }
        let Some(cluster) = &mut self.cluster else { return };
        cluster.keep_named(bucket, role, before);
        if arrives(before, role) {
            cluster.failovers.arriving.insert(bucket);
        } else if !matches!(role, Role::Owner { .. }) {
            cluster.failovers.arriving.remove(&bucket);
        }
        cluster.change_replicas(bucket, role, now);
        self.change_freezing(bucket, role);
        let (Role::Owner { required, syncing, .. }, was) = (role, before) else {
            if matches!(before, Role::Owner { .. }) {
                self.leave_bucket(bucket);
            }
            return;
        };
        let listed = required.union(syncing);
        let worker = self.cluster.as_ref().map_or(0, |cluster| cluster.worker_of(bucket));
        for node in listed.iter() {
            self.reach((node, worker));
        }
        let owned = matches!(was, Role::Owner { .. });
        if let Some(cluster) = &mut self.cluster {
            cluster.follow_only(bucket, listed, owned);
        }
        let known = match (was, role) {
            (Role::Owner { term: was, required, syncing, .. }, Role::Owner { term, .. }) if term == was => {
                required.union(syncing)
            }
            _ => MemberSet::EMPTY,
        };
        // The state of recovered connections is sent when they resume.
        let comes =
            matches!(role, Role::Owner { begin: OwnershipStart::Failover | OwnershipStart::Handoff, .. })
                && !owned;
        for node in syncing.minus(known).iter().filter(|_| !comes) {
            self.send_full_state(bucket, node);
        }
        self.mark_all_dirty(bucket); // fewer backups may be required
    }

    /// Handles all connections of a bucket as if an entry of each had been acknowledged.
    pub(super) fn mark_all_dirty(&mut self, bucket: Bucket) {
        for key in self.connections_of(bucket) {
            if let (Some(cluster), Some(client)) = (&mut self.cluster, self.clients.get_mut(key))
                && let Some(replicated_state) = client.replicated_state.as_mut()
                && !replicated_state.listed
            {
                replicated_state.listed = true;
                cluster.timers.acknowledged.push(key);
            }
        }
    }

    /// Replicated connections of a bucket.
    pub(super) fn connections_of(&mut self, bucket: Bucket) -> Vec<Key> {
        let Some(cluster) = &mut self.cluster else { return Vec::new() };
        let Some(keys) = cluster.index.by_bucket.get_mut(usize::from(bucket.0)) else { return Vec::new() };
        keys.retain(|key| is_of(&self.clients, *key, bucket));
        keys.clone()
    }

    /// Adds a replicated connection to its bucket.
    pub(super) fn index_by_bucket(&mut self, key: Key, bucket: Bucket) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(keys) = cluster.index.by_bucket.get_mut(usize::from(bucket.0)) else { return };
        if keys.len() == keys.capacity() {
            keys.retain(|key| is_of(&self.clients, *key, bucket)); // amortized over the growth of the list
        }
        keys.push(key);
    }

    fn leave_bucket(&mut self, bucket: Bucket) {
        if let Some(cluster) = &mut self.cluster {
            cluster.follow_only(bucket, MemberSet::EMPTY, true);
        }
        for key in self.connections_of(bucket) {
            self.abandon(key);
        }
        self.leave_arrivals(Some(bucket));
        self.abandon_pool(Some(bucket));
        self.cancel_recovery(bucket);
        if let Some(cluster) = &mut self.cluster {
            cluster.drop_endings(Some(bucket));
            cluster.set_pending(bucket, false);
        }
    }

    /// Makes a channel to a worker of another node, unless there is one or the last attempt was just now.
    fn reach(&mut self, peer: (NodeId, usize)) {
        let (now, node) = (self.now, peer.0);
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.channels.outgoing.contains_key(&peer)
            || cluster.channels.broken.get(&peer).is_some_and(|at| *at > now)
        {
            return;
        }
        let Some(to) = cluster.layout.replication_address(node, peer.1) else { return };
        let hello = Frame::Hello {
            version: FRAME_VERSION,
            node: cluster.layout.node,
            incarnation: cluster.layout.incarnation,
            worker: cluster.worker as u16,
            workers: cluster.layout.workers as u16,
            clock_ms: cluster.host.steady_clock_ms(),
        };
        let first = [hello, Frame::Settings(cluster.layout.settings.clone())];
        cluster.channels.broken.insert(peer, now + RETRY);
        let Ok(outgoing) = Outgoing::<H>::connect(&cluster.transport, to, &first) else {
            self.counters.reason("replication_unreachable");
            return;
        };
        let token = Source::Outgoing(node.0, peer.1 as u16).token();
        if self.poll.add(outgoing.channel.descriptor(), token).is_err() {
            self.counters.reason("epoll_failed");
            return;
        }
        cluster.channels.outgoing.insert(peer, outgoing);
        self.send_missed_sessions(node);
    }

    /// Timed work of the channels. A catching-up replica with a gap is sent its full state again. A required replica
    /// with a gap is reported, to be dropped and filled again: until then it receives nothing, and so acknowledges
    /// nothing.
    pub(crate) fn tend_channels(&mut self) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        if now < cluster.channels.due {
            return;
        }
        cluster.channels.due = now + RETRY;
        cluster.gate.sweep();
        cluster.tend_endings(now);
        cluster.replicas.drop_late(now);
        cluster.drop_silent_channels(now);
        cluster.publish_figures(&self.counters, now);
        cluster.send_clock(now);
        self.end_nameless();
        let Some(cluster) = &mut self.cluster else { return };
        let worker = cluster.worker;
        for node in cluster.unreached(&self.shared.sessions) {
            self.reach((node, worker));
        }
        let Some(cluster) = &mut self.cluster else { return };
        let mut broken: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
        for gap in cluster.gaps() {
            if self.host.breaks(Law::NoGaps) {
                self.reach((gap.node, worker));
                if let Some(cluster) = &mut self.cluster {
                    cluster.follow_only(gap.bucket, MemberSet::of(gap.node), false);
                }
                continue;
            }
            match gap.syncing {
                true => {
                    let worker = self.cluster.as_ref().map_or(0, |cluster| cluster.worker_of(gap.bucket));
                    self.reach((gap.node, worker));
                    self.send_full_state(gap.bucket, gap.node);
                }
                false => broken.entry(gap.node).or_default().push((gap.bucket, gap.term)),
            }
        }
        let Some(cluster) = &mut self.cluster else { return };
        for (node, buckets) in broken {
            cluster.report(Report::Incomplete { node, buckets });
        }
    }

    /// Sends the full state of a bucket to a backup without any; later frames follow it. A channel with much unsent
    /// data takes it later, like a new channel.
    pub(super) fn send_full_state(&mut self, bucket: Bucket, node: NodeId) {
        let Some(cluster) = &mut self.cluster else { return };
        let peer = (node, cluster.worker_of(bucket));
        let Some(outgoing) = cluster.channels.outgoing.get_mut(&peer) else { return };
        if outgoing.feed.unsent().len() >= FILL_BACKLOG_MAX {
            cluster.channels.due = cluster.channels.due.min(self.now + FILL_RETRY);
            return outgoing.follow(bucket, false);
        }
        outgoing.follow(bucket, true);
        outgoing.begin_again(bucket);
        let mut frames = Vec::new();
        for key in self.connections_of(bucket) {
            self.pulse.beat();
            let Some(client) = self.clients.get(key) else { continue };
            let Some(replicated_state) = &client.replicated_state else { continue };
            let connection = client.connection.id();
            let notice = Notice::Entry { key, index: replicated_state.queued };
            frames.push((replicated_state.whole(connection), Some(notice)));
        }
        let Some(cluster) = &mut self.cluster else { return };
        frames.extend(cluster.ending_frames(bucket).map(|frame| (frame, None)));
        for (frame, notice) in frames {
            self.pulse.beat();
            cluster.send_to(node, bucket, &frame, notice);
        }
        if !cluster.failovers.is_pending(bucket) {
            cluster.send_complete(bucket, node); // else sent when the last of them resumes
        }
    }
}

/// Start of the newer of two roles of this node, if the bucket may have been lost and regained between them.
fn begun_between(before: Role, role: Role) -> Option<OwnershipStart> {
    match (before, role) {
        (Role::Owner { term: was, .. }, Role::Owner { term, begin, .. }) if was != term => {
            Some(begin).filter(|begin| *begin != OwnershipStart::Unchanged)
        }
        _ => None,
    }
}

fn is_of<H: Host>(clients: &Slab<Client<H>>, key: Key, bucket: Bucket) -> bool {
    let replicated_state = clients.get(key).and_then(|client| client.replicated_state.as_ref());
    replicated_state.is_some_and(|replicated_state| replicated_state.bucket == bucket)
}

impl<H: Host> Cluster<H> {
    /// Sends queued frames, unless they wait for more.
    pub(super) fn flush(&mut self, next: NextTurn, now: Micros) {
        let mut waiting = 0;
        for outgoing in self.channels.outgoing.values_mut() {
            outgoing.time_newest(now);
            waiting += outgoing.feed.unsent().len();
        }
        if !self.batcher.may_leave(next, waiting, now) {
            return;
        }
        let mut lost = Vec::new();
        for (peer, outgoing) in &mut self.channels.outgoing {
            if let Err(error) = outgoing.flush() {
                lost.push((*peer, error.to_string()));
            }
        }
        for (peer, why) in lost {
            self.lose(peer, &why);
        }
        if self.channels.outgoing.values().all(|outgoing| outgoing.feed.unsent().is_empty()) {
            self.batcher.note_gone();
        }
    }

    /// Nodes that must hold an entry before anything depends on it: the required ones, and those reported as caught up.
    /// Output released without the latter could be missing on a node that becomes required meanwhile.
    pub(super) fn awaited(&self, bucket: Bucket) -> MemberSet {
        let Role::Owner { required, syncing, .. } = self.role(bucket) else { return MemberSet::EMPTY };
        if syncing.is_empty() {
            return required;
        }
        let worker = self.worker_of(bucket);
        let awaited = |node: &NodeId| {
            self.channels.named.contains(&(bucket, *node))
                || self
                    .channels
                    .outgoing
                    .get(&(*node, worker))
                    .is_some_and(|outgoing| outgoing.is_awaited(bucket))
        };
        syncing.iter().filter(awaited).fold(required, MemberSet::with)
    }

    /// Keeps awaiting the nodes that still catch up in the same term.
    fn keep_named(&mut self, bucket: Bucket, role: Role, before: Role) {
        let still = match (role, before) {
            (Role::Owner { term, syncing, .. }, Role::Owner { term: was, .. }) if term == was => syncing,
            _ => MemberSet::EMPTY,
        };
        let gone: Vec<NodeId> = self
            .channels
            .named
            .range((bucket, NodeId(0))..=(bucket, NodeId(u8::MAX)))
            .map(|(_, node)| *node)
            .filter(|node| !still.contains(*node))
            .collect();
        for node in gone {
            self.channels.named.remove(&(bucket, node));
        }
    }

    /// Reports a backup that has acknowledged everything, final frames included: the agent may make it required from
    /// now on. Should its channel break before the new role arrives, the backup is awaited nevertheless, until the role
    /// changes.
    pub(super) fn note_named(&mut self, bucket: Bucket, term: Term, node: NodeId) {
        let peer = (node, self.worker_of(bucket));
        let Role::Owner { term: current, syncing, .. } = self.role(bucket) else { return };
        let awaited = self.channels.outgoing.get(&peer).is_some_and(|outgoing| outgoing.is_awaited(bucket));
        if term != current || !syncing.contains(node) || !awaited {
            return;
        }
        self.channels.named.insert((bucket, node));
        self.report(Report::CaughtUp { bucket, node, term });
    }

    /// A backup has acknowledged the full state of a bucket. From now on output waits for it. Output released without
    /// it meanwhile is still on its way: a second `Complete` frame covers that.
    pub(super) fn note_caught_up(&mut self, bucket: Bucket, term: Term, node: NodeId) {
        let peer = (node, self.worker_of(bucket));
        let Role::Owner { term: current, syncing, .. } = self.role(bucket) else { return };
        if term != current || !syncing.contains(node) {
            return; // in the new term the full state is sent again
        }
        let Some(outgoing) =
            self.channels.outgoing.get_mut(&peer).filter(|outgoing| outgoing.follows(bucket))
        else {
            return;
        };
        if self.host.breaks(Law::CaughtUpLate) {
            return self.report(Report::CaughtUp { bucket, node, term });
        }
        outgoing.wait(bucket, true);
        let notice = Notice::Complete { bucket, term };
        self.send_to(node, bucket, &Frame::Complete { bucket }, Some(notice));
    }

    /// Sends this node's clock to the other nodes, once a minute.
    fn send_clock(&mut self, now: Micros) {
        if now < self.channels.clock_due {
            return;
        }
        self.channels.clock_due = now + CLOCK_EVERY;
        let clock = Frame::Clock { clock_ms: self.host.steady_clock_ms() };
        // a clock must not wait
        let ready = |outgoing: &Outgoing<H>| !outgoing.connecting && outgoing.feed.unsent().is_empty();
        let mut failed = Vec::new();
        for (peer, outgoing) in self.channels.outgoing.iter_mut().filter(|(_, outgoing)| ready(outgoing)) {
            if let Err(error) = outgoing.feed.push(&clock, None) {
                failed.push((*peer, error.to_string()));
            }
        }
        failed.into_iter().for_each(|(peer, error)| self.give_up(peer, &error));
    }

    /// Sends a frame to all backups of the bucket.
    pub(super) fn replicate(&mut self, bucket: Bucket, frame: &Frame, notice: Option<Notice>) {
        let Role::Owner { required, syncing, .. } = self.role(bucket) else { return };
        if self.handoffs.frozen.contains(&bucket) {
            // The next owner may have the bucket already. If the handoff is cancelled, there is a gap.
            return self.follow_only(bucket, MemberSet::EMPTY, true);
        }
        for node in required.union(syncing).iter() {
            self.send_to(node, bucket, frame, notice);
        }
    }

    /// Marks the end of a bucket's full state for this backup.
    pub(super) fn send_complete(&mut self, bucket: Bucket, node: NodeId) {
        let Role::Owner { term, .. } = self.role(bucket) else { return };
        let notice = Notice::Reported { bucket, term };
        self.send_to(node, bucket, &Frame::Complete { bucket }, Some(notice));
    }

    pub(super) fn send_to(&mut self, node: NodeId, bucket: Bucket, frame: &Frame, notice: Option<Notice>) {
        let Role::Owner { term, .. } = self.role(bucket) else { return };
        let peer = (node, self.worker_of(bucket));
        let Some(outgoing) =
            self.channels.outgoing.get_mut(&peer).filter(|outgoing| outgoing.follows(bucket))
        else {
            return;
        };
        let mut result = Ok(());
        let Some(announced) = outgoing.announced.get_mut(usize::from(bucket.0)) else { return };
        self.batcher.hurry(frame.urgency());
        if announced.replace(term) != Some(term) {
            result = outgoing.push(bucket, &Frame::Term { bucket, term }, None);
        }
        if let Err(error) = result.and_then(|()| outgoing.push(bucket, frame, notice)) {
            self.give_up(peer, &error.to_string());
        }
    }

    /// Closes channels whose other end does not answer.
    fn drop_silent_channels(&mut self, now: Micros) {
        if self.host.breaks(Law::EndsSilentChannels) {
            return;
        }
        let channels = self.channels.outgoing.iter_mut();
        let silent: Vec<_> =
            channels.filter_map(|(peer, out)| out.feed.is_unresponsive(now).then_some(*peer)).collect();
        for peer in silent {
            self.lose(peer, "it does not answer");
        }
    }

    /// Closes a broken channel. Required replicas of the backup are reported as incomplete, and the cluster decides on
    /// them. Catching-up replicas are filled again ([`Worker::tend_channels`]), unless the backup has never answered,
    /// or the channel breaks again: another node may do better.
    pub(super) fn lose(&mut self, peer: (NodeId, usize), why: &str) {
        self.end_channel(peer, why, false);
    }

    /// Closes the channel of a backup that is too slow, and would be again.
    pub(super) fn give_up(&mut self, peer: (NodeId, usize), why: &str) {
        self.end_channel(peer, why, true);
    }

    fn end_channel(&mut self, peer: (NodeId, usize), why: &str, slow: bool) {
        let Some(outgoing) = self.channels.outgoing.remove(&peer) else { return };
        let now = self.channels.due; // exact enough
        let repeated =
            self.channels.broken_at.insert(peer, now).is_some_and(|at| now.since(at) < BREAKS_AGAIN);
        let hopeless = slow || repeated || !outgoing.feed.has_answered();
        self.note_missed_sessions(peer.0);
        self.report(Report::ChannelLost { node: peer.0, why: why.to_owned() });
        if self.host.breaks(Law::NoGaps) {
            return;
        }
        // The agent may already have received the report that an awaited backup has caught up.
        let is_lost =
            |gap: &Gap| hopeless || !gap.syncing || self.channels.named.contains(&(gap.bucket, gap.node));
        let gaps = self.gaps().into_iter().filter(|gap| gap.node == peer.0);
        let (lost, filled): (Vec<Gap>, Vec<Gap>) = gaps.partition(is_lost);
        self.timers.unawaited.extend(filled.iter().map(|gap| gap.bucket));
        let buckets: Vec<_> = lost.iter().map(|gap| (gap.bucket, gap.term)).collect();
        if !buckets.is_empty() {
            self.report(Report::Incomplete { node: peer.0, buckets });
        }
    }

    /// Limits the frames of a bucket to these nodes. `owned`: frames may have been sent before, which a node must have
    /// to follow.
    fn follow_only(&mut self, bucket: Bucket, nodes: MemberSet, owned: bool) {
        let worker = self.worker_of(bucket);
        for (_, outgoing) in self.channels.outgoing.iter_mut().filter(|((node, _), _)| !nodes.contains(*node))
        {
            outgoing.follow(bucket, false);
        }
        let complete = nodes.iter().filter(|_| !owned);
        for node in complete {
            if let Some(outgoing) = self.channels.outgoing.get_mut(&(node, worker)) {
                outgoing.follow(bucket, true);
            }
        }
    }

    /// Replicas without all frames of this worker, except for buckets that may have moved already.
    fn gaps(&self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let all = (0..).map(Bucket).zip(&self.roles);
        for (bucket, role) in all.filter(|(bucket, _)| !self.handoffs.frozen.contains(bucket)) {
            let Role::Owner { term, required, syncing, .. } = role else { continue };
            let worker = self.worker_of(bucket);
            let follows = |node| {
                self.channels.outgoing.get(&(node, worker)).is_some_and(|outgoing| outgoing.follows(bucket))
            };
            let lacking = required.union(*syncing);
            let lacking = lacking.iter().filter(|node| !follows(*node));
            gaps.extend(lacking.map(|node| Gap {
                bucket,
                node,
                term: *term,
                syncing: syncing.contains(node),
            }));
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_membership::{DataEpoch, ViewId};

    #[test]
    fn lost_and_regained_bucket_differs_from_an_unchanged_one() {
        let data_epoch = DataEpoch(ViewId::NONE);
        let (required, syncing, freeze_for) = (MemberSet::EMPTY, MemberSet::EMPTY, None);
        let owner = |moves, begin| {
            let term = Term { view: ViewId::NONE, moves };
            Role::Owner { term, data_epoch, begin, required, syncing, freeze_for }
        };
        let (unchanged, failover, empty) =
            (OwnershipStart::Unchanged, OwnershipStart::Failover, OwnershipStart::Empty);
        assert_eq!(begun_between(owner(1, unchanged), owner(2, failover)), Some(failover));
        assert_eq!(begun_between(owner(1, failover), owner(3, empty)), Some(empty));
        assert_eq!(begun_between(owner(1, failover), owner(1, failover)), None, "its backups changed");
        assert_eq!(begun_between(owner(1, failover), owner(2, unchanged)), None);
        assert_eq!(begun_between(Role::NOTHING, owner(2, failover)), None);
        assert_eq!(begun_between(owner(1, unchanged), Role::NOTHING), None);
    }
}
