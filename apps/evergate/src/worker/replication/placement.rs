//! Copies: which nodes hold what of our buckets, over which channels, and what they have yet to be told.
//!
//! Invariant: a channel hears of a bucket only what follows what it has heard before; a copy with a gap is dropped, or filled
//! anew from the beginning.

use super::Cluster;
use super::backup::CLOCK_EVERY;
use super::replication_channel::{Notice, Outgoing};
use crate::agent::{Report, arrives};
use crate::worker::slab::{Key, Slab, Source};
use crate::worker::{Client, Worker};
use evergate_base::Micros;
use evergate_bpf::Leases;
use evergate_membership::{Bucket, MemberSet, NodeId, OwnershipStart, Role, Term};
use evergate_replication::{FRAME_VERSION, Frame, NextTurn};
use std::collections::BTreeMap;

/// Between two attempts to make a channel.
const RETRY: Micros = Micros::from_ms(50);
/// With so many bytes of a channel unsent the copies that are yet to be filled over it wait, for so long at a time: what is
/// decided meanwhile goes the same way, and a channel with too much counts as dead.
const FILLED_AHEAD: usize = 4 << 20;
const FILLED_AFTER: Micros = Micros::from_ms(2);
/// A channel that breaks twice within this time is not tried a third time before the cluster has decided what follows.
const BREAKS_AGAIN: Micros = Micros::from_ms(10_000);

/// A copy that lacks something of what this worker has to say.
struct Gap {
    bucket: Bucket,
    node: NodeId,
    term: Term,
    /// It is only being filled.
    syncing: bool,
}

impl Worker {
    /// Our role for a bucket has changed.
    pub(super) fn change_role(&mut self, bucket: Bucket, role: Role) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        let Some(known) = cluster.roles.get_mut(usize::from(bucket.0)) else { return };
        let before = std::mem::replace(known, role);
        let held = cluster.holder.has(bucket);
        if let Some(begin) = begun_between(before, role) {
            match held || begin == OwnershipStart::Empty {
                true => self.leave_bucket(bucket), // somebody else went on with what is here, or it is nobody's
                false => self.abandon_pool(Some(bucket)), // may be: with its server connections
            }
        }
        let Some(cluster) = &mut self.cluster else { return };
        cluster.keep_named(bucket, role, before);
        if arrives(before, role) {
            cluster.arriving.insert(bucket);
        } else if !matches!(role, Role::Owner { .. }) {
            cluster.arriving.remove(&bucket);
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
        let reported = match was {
            Role::Owner { term, required, syncing, .. } if matches!(role, Role::Owner { term: now, .. } if now == term) => {
                required.union(syncing)
            }
            _ => MemberSet::EMPTY,
        };
        // What is about to be taken over is said when it goes on.
        let comes =
            matches!(role, Role::Owner { begin: OwnershipStart::Failover | OwnershipStart::Handoff, .. })
                && !owned;
        for node in syncing.minus(reported).iter().filter(|_| !comes) {
            self.send_full_state(bucket, node);
        }
        self.mark_all_dirty(bucket); // fewer backups may be left to wait for
    }

    /// Looks at all connections of a bucket as if something of them had been acknowledged.
    pub(super) fn mark_all_dirty(&mut self, bucket: Bucket) {
        for key in self.connections_of(bucket) {
            if let (Some(cluster), Some(client)) = (&mut self.cluster, self.clients.get_mut(key))
                && let Some(replicated_state) = client.replicated_state.as_mut()
                && !replicated_state.listed
            {
                replicated_state.listed = true;
                cluster.acknowledged.push(key);
            }
        }
    }

    /// Mirrored connections of a bucket.
    pub(super) fn connections_of(&mut self, bucket: Bucket) -> Vec<Key> {
        let Some(cluster) = &mut self.cluster else { return Vec::new() };
        let Some(keys) = cluster.by_bucket.get_mut(usize::from(bucket.0)) else { return Vec::new() };
        keys.retain(|key| is_of(&self.clients, *key, bucket));
        keys.clone()
    }

    /// A connection of this bucket is mirrored from now on.
    pub(super) fn index_by_bucket(&mut self, key: Key, bucket: Bucket) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(keys) = cluster.by_bucket.get_mut(usize::from(bucket.0)) else { return };
        if keys.len() == keys.capacity() {
            keys.retain(|key| is_of(&self.clients, *key, bucket)); // as often as the list would grow
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
        self.abandon_pool(Some(bucket));
        self.stop_taking(bucket);
        if let Some(cluster) = &mut self.cluster {
            cluster.drop_endings(Some(bucket));
            cluster.set_pending(bucket, false);
        }
    }

    /// Makes a channel to a worker of another node, if there is none and it is not hopeless.
    fn reach(&mut self, peer: (NodeId, usize)) {
        let (now, node) = (self.now, peer.0);
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.outgoing.contains_key(&peer) || cluster.broken.get(&peer).is_some_and(|at| *at > now) {
            return;
        }
        let Some(to) = cluster.layout.replication_address(node, peer.1) else { return };
        let hello = Frame::Hello {
            version: FRAME_VERSION,
            node: cluster.layout.node,
            incarnation: cluster.layout.incarnation,
            worker: cluster.worker as u16,
            workers: cluster.layout.workers as u16,
            clock_ms: evergate_sys::steady_clock_ms(),
        };
        let first = [hello, Frame::Settings(cluster.layout.settings.clone())];
        cluster.broken.insert(peer, now + RETRY);
        let Ok(outgoing) = Outgoing::connect(to, &cluster.layout.client_tls, &first) else {
            self.counters.reason("replication_unreachable");
            return;
        };
        let token = Source::Outgoing(node.0, peer.1 as u16).token();
        if self.epoll.add(outgoing.channel.fd(), token).is_err() {
            self.counters.reason("epoll_failed");
            return;
        }
        cluster.outgoing.insert(peer, outgoing);
        self.send_missed_sessions(node);
    }

    /// What a copy that is being filled has missed is said again. One that had to hold everything must be dropped, and filled
    /// anew: until then it hears nothing, so that it answers for nothing.
    pub(in crate::worker) fn tend_channels(&mut self) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        if now < cluster.channels_at {
            return;
        }
        cluster.channels_at = now + RETRY;
        cluster.lane.sweep(Leases::now_ns());
        cluster.tend_endings(now);
        cluster.drop_late(now);
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

    /// Everything about a bucket for a backup that knows nothing: what is said afterwards follows it. A channel that has much
    /// to say takes it later, as one that was made anew.
    pub(super) fn send_full_state(&mut self, bucket: Bucket, node: NodeId) {
        let Some(cluster) = &mut self.cluster else { return };
        let peer = (node, cluster.worker_of(bucket));
        let Some(outgoing) = cluster.outgoing.get_mut(&peer) else { return };
        if outgoing.feed.unsent().len() >= FILLED_AHEAD {
            cluster.channels_at = cluster.channels_at.min(self.now + FILLED_AFTER);
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
        if !cluster.is_pending(bucket) {
            cluster.send_complete(bucket, node); // else when the last of them goes on
        }
    }
}

/// How the newer of two roles of ours began, if the bucket may have been lost and won between them.
fn begun_between(before: Role, role: Role) -> Option<OwnershipStart> {
    match (before, role) {
        (Role::Owner { term: was, .. }, Role::Owner { term, begin, .. }) if was != term => {
            Some(begin).filter(|begin| *begin != OwnershipStart::Unchanged)
        }
        _ => None,
    }
}

fn is_of(clients: &Slab<Client>, key: Key, bucket: Bucket) -> bool {
    let replicated_state = clients.get(key).and_then(|client| client.replicated_state.as_ref());
    replicated_state.is_some_and(|replicated_state| replicated_state.bucket == bucket)
}

impl Cluster {
    /// Frames leave, unless they wait for company.
    pub(super) fn flush(&mut self, next: NextTurn, now: Micros) {
        let mut waiting = 0;
        for outgoing in self.outgoing.values_mut() {
            outgoing.time_newest(now);
            waiting += outgoing.feed.unsent().len();
        }
        if !self.company.may_leave(next, waiting, now) {
            return;
        }
        let mut lost = Vec::new();
        for (peer, outgoing) in &mut self.outgoing {
            if let Err(error) = outgoing.flush() {
                lost.push((*peer, error.to_string()));
            }
        }
        for (peer, why) in lost {
            self.lose(peer, &why);
        }
        if self.outgoing.values().all(|outgoing| outgoing.feed.unsent().is_empty()) {
            self.company.note_gone();
        }
    }

    /// Who must hold an entry before anything follows from it: those that the role names, and those that are about to be
    /// named. Were they waited for only from then on, they could be named while what they lack was let go already.
    pub(super) fn awaited(&self, bucket: Bucket) -> MemberSet {
        let Role::Owner { required, syncing, .. } = self.role(bucket) else { return MemberSet::EMPTY };
        if syncing.is_empty() {
            return required;
        }
        let worker = self.worker_of(bucket);
        let awaited = |node: &NodeId| {
            self.named.contains(&(bucket, *node))
                || self.outgoing.get(&(*node, worker)).is_some_and(|outgoing| outgoing.is_awaited(bucket))
        };
        syncing.iter().filter(awaited).fold(required, MemberSet::with)
    }

    /// Those that are still being filled in the same term are waited for as before.
    fn keep_named(&mut self, bucket: Bucket, role: Role, before: Role) {
        let still = match (role, before) {
            (Role::Owner { term, syncing, .. }, Role::Owner { term: was, .. }) if term == was => syncing,
            _ => MemberSet::EMPTY,
        };
        let gone: Vec<NodeId> = self
            .named
            .range((bucket, NodeId(0))..=(bucket, NodeId(u8::MAX)))
            .map(|(_, node)| *node)
            .filter(|node| !still.contains(*node))
            .collect();
        for node in gone {
            self.named.remove(&(bucket, node));
        }
    }

    /// A backup that is waited for has that too: the agent may name it from now on. Should its channel break before this
    /// worker hears what the agent has done, it is waited for nevertheless, until the role changes.
    pub(super) fn note_named(&mut self, bucket: Bucket, term: Term, node: NodeId) {
        let peer = (node, self.worker_of(bucket));
        let Role::Owner { term: current, syncing, .. } = self.role(bucket) else { return };
        let awaited = self.outgoing.get(&peer).is_some_and(|outgoing| outgoing.is_awaited(bucket));
        if term != current || !syncing.contains(node) || !awaited {
            return;
        }
        self.named.insert((bucket, node));
        self.report(Report::CaughtUp { bucket, node, term });
    }

    /// A backup has taken in all that was said of a bucket so far. What was let go meanwhile without it is on its way: once it
    /// has that too, it lacks nothing.
    pub(super) fn note_caught_up(&mut self, bucket: Bucket, term: Term, node: NodeId) {
        let peer = (node, self.worker_of(bucket));
        let Role::Owner { term: current, syncing, .. } = self.role(bucket) else { return };
        if term != current || !syncing.contains(node) {
            return; // its term is another one, in which it is told everything again
        }
        let Some(outgoing) = self.outgoing.get_mut(&peer).filter(|outgoing| outgoing.follows(bucket)) else {
            return;
        };
        outgoing.wait(bucket, true);
        let notice = Notice::Complete { bucket, term };
        self.send_to(node, bucket, &Frame::Complete { bucket }, Some(notice));
    }

    /// Says what this node's clock shows, once a minute.
    fn send_clock(&mut self, now: Micros) {
        if now < self.clock_at {
            return;
        }
        self.clock_at = now + CLOCK_EVERY;
        let clock = Frame::Clock { clock_ms: evergate_sys::steady_clock_ms() };
        let ready = |outgoing: &Outgoing| !outgoing.connecting && outgoing.feed.unsent().is_empty(); // it comes at once
        let mut failed = Vec::new();
        for (peer, outgoing) in self.outgoing.iter_mut().filter(|(_, outgoing)| ready(outgoing)) {
            if let Err(error) = outgoing.feed.push(&clock, None) {
                failed.push((*peer, error.to_string()));
            }
        }
        failed.into_iter().for_each(|(peer, error)| self.give_up(peer, &error));
    }

    /// Says something to everybody who mirrors the bucket.
    pub(super) fn replicate(&mut self, bucket: Bucket, frame: &Frame, notice: Option<Notice>) {
        let Role::Owner { required, syncing, .. } = self.role(bucket) else { return };
        if self.frozen.contains(&bucket) {
            // The next owner may have it already. Should the move be called off, there is a gap.
            return self.follow_only(bucket, MemberSet::EMPTY, true);
        }
        for node in required.union(syncing).iter() {
            self.send_to(node, bucket, frame, notice);
        }
    }

    /// All of the bucket has been said to this backup.
    pub(super) fn send_complete(&mut self, bucket: Bucket, node: NodeId) {
        let Role::Owner { term, .. } = self.role(bucket) else { return };
        let notice = Notice::Reported { bucket, term };
        self.send_to(node, bucket, &Frame::Complete { bucket }, Some(notice));
    }

    pub(super) fn send_to(&mut self, node: NodeId, bucket: Bucket, frame: &Frame, notice: Option<Notice>) {
        let Role::Owner { term, .. } = self.role(bucket) else { return };
        let peer = (node, self.worker_of(bucket));
        let Some(outgoing) = self.outgoing.get_mut(&peer).filter(|outgoing| outgoing.follows(bucket)) else {
            return;
        };
        let mut result = Ok(());
        let Some(announced) = outgoing.announced.get_mut(usize::from(bucket.0)) else { return };
        self.company.hurry(frame.urgency());
        if announced.replace(term) != Some(term) {
            result = outgoing.push(bucket, &Frame::Term { bucket, term }, None);
        }
        if let Err(error) = result.and_then(|()| outgoing.push(bucket, frame, notice)) {
            self.give_up(peer, &error.to_string());
        }
    }

    /// Gives up channels on which nobody answers.
    fn drop_silent_channels(&mut self, now: Micros) {
        let channels = self.outgoing.iter_mut();
        let mute: Vec<_> =
            channels.filter_map(|(peer, out)| out.feed.is_unresponsive(now).then_some(*peer)).collect();
        for peer in mute {
            self.lose(peer, "it does not answer");
        }
    }

    /// A channel broke: those of the backup's copies that are waited for are given up, and the cluster decides what follows;
    /// those that are only being filled are filled anew ([`Worker::tend_channels`]), unless the backup has never answered, or its
    /// channel breaks again: another one may do.
    pub(super) fn lose(&mut self, peer: (NodeId, usize), why: &str) {
        self.end_channel(peer, why, false);
    }

    /// A backup is too slow: it would be with the same again.
    pub(super) fn give_up(&mut self, peer: (NodeId, usize), why: &str) {
        self.end_channel(peer, why, true);
    }

    fn end_channel(&mut self, peer: (NodeId, usize), why: &str, slow: bool) {
        let Some(outgoing) = self.outgoing.remove(&peer) else { return };
        let now = self.channels_at; // as exactly as it takes
        let again = self.broken_at.insert(peer, now).is_some_and(|at| now.since(at) < BREAKS_AGAIN);
        let hopeless = slow || again || !outgoing.feed.has_answered();
        self.note_missed_sessions(peer.0);
        self.report(Report::ChannelLost { node: peer.0, why: why.to_owned() });
        // The agent may have heard already that what is waited for may be named.
        let is_lost = |gap: &Gap| hopeless || !gap.syncing || self.named.contains(&(gap.bucket, gap.node));
        let gaps = self.gaps().into_iter().filter(|gap| gap.node == peer.0);
        let (lost, filled): (Vec<Gap>, Vec<Gap>) = gaps.partition(is_lost);
        self.unawaited.extend(filled.iter().map(|gap| gap.bucket));
        let buckets: Vec<_> = lost.iter().map(|gap| (gap.bucket, gap.term)).collect();
        if !buckets.is_empty() {
            self.report(Report::Incomplete { node: peer.0, buckets });
        }
    }

    /// Only these nodes may hear more of a bucket. `owned`: something may have been said of it before, which those must have
    /// heard to follow.
    fn follow_only(&mut self, bucket: Bucket, nodes: MemberSet, owned: bool) {
        let worker = self.worker_of(bucket);
        for (_, outgoing) in self.outgoing.iter_mut().filter(|((node, _), _)| !nodes.contains(*node)) {
            outgoing.follow(bucket, false);
        }
        let peer_input = nodes.iter().filter(|_| !owned);
        for node in peer_input {
            if let Some(outgoing) = self.outgoing.get_mut(&(node, worker)) {
                outgoing.follow(bucket, true);
            }
        }
    }

    /// Copies that this worker has not told everything, but for buckets that may have moved already.
    fn gaps(&self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let all = (0..).map(Bucket).zip(&self.roles);
        for (bucket, role) in all.filter(|(bucket, _)| !self.frozen.contains(bucket)) {
            let Role::Owner { term, required, syncing, .. } = role else { continue };
            let worker = self.worker_of(bucket);
            let follows =
                |node| self.outgoing.get(&(node, worker)).is_some_and(|outgoing| outgoing.follows(bucket));
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
    fn a_bucket_that_was_lost_and_won_is_not_one_that_was_kept() {
        let generation = DataEpoch(ViewId::NONE);
        let (required, syncing, freeze_for) = (MemberSet::EMPTY, MemberSet::EMPTY, None);
        let owner = |moves, begin| {
            let term = Term { view: ViewId::NONE, moves };
            Role::Owner { term, generation, begin, required, syncing, freeze_for }
        };
        let (kept, taken, fresh) =
            (OwnershipStart::Unchanged, OwnershipStart::Failover, OwnershipStart::Empty);
        assert_eq!(begun_between(owner(1, kept), owner(2, taken)), Some(taken));
        assert_eq!(begun_between(owner(1, taken), owner(3, fresh)), Some(fresh));
        assert_eq!(begun_between(owner(1, taken), owner(1, taken)), None, "its backups changed");
        assert_eq!(begun_between(owner(1, taken), owner(2, kept)), None);
        assert_eq!(begun_between(Role::NOTHING, owner(2, taken)), None);
        assert_eq!(begun_between(owner(1, kept), Role::NOTHING), None);
    }
}
