//! Hand-over: a bucket becomes quiet here before another node goes on with it.
//!
//! First its listeners close: a client whose SYN our kernel has answered is known to nobody else, and one that waits for its
//! server's first word would not speak again. When all of them are accepted the bucket is on hold, its connections are not
//! touched any more, and when the next owner has acknowledged every entry the agent hears of it. Our sockets stay, silent
//! behind the gate, until the bucket is not ours any more.

use super::super::slab::{Key, Source};
use super::Cluster;
use crate::agent::{FrozenConnections, Report};
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_bpf::Leases;
use evergate_membership::{Bucket, HandoffId, MemberSet, Role, Term};
use evergate_replication::{Frame, Urgency};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long clients may need to answer our kernel, at most: others are farther away, or not there.
const GREETED_FOR: Duration = Duration::from_millis(250);
/// An answer to a SYN that came just before the bucket was closed is counted by then.
const CLOSED_FOR: Micros = Micros::from_ms(1);

/// A bucket that is to become quiet, and lets nobody new in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Closing {
    freeze: HandoffId,
    term: Term,
    since: Micros,
    /// Its idle server connections are closed.
    tidied: bool,
}

impl Worker {
    /// Notes what a role says about freezing.
    pub(super) fn change_freezing(&mut self, bucket: Bucket, role: Role) {
        let Some(cluster) = &mut self.cluster else { return };
        let wanted = match role {
            Role::Owner { term, freeze_for: Some(freeze), .. } => Some((freeze, term)),
            _ => None,
        };
        let before = cluster.freezing.remove(&bucket);
        let frozen = cluster.frozen.remove(&bucket);
        let closing = cluster.closing.remove(&bucket);
        if let Some((freeze, term)) = wanted {
            if before.is_some() {
                cluster.freeze(bucket, (freeze, term));
            } else {
                let since = closing.map_or(self.now, |closing| closing.since);
                let tidied = closing.is_some_and(|closing| closing.tidied);
                cluster.close(bucket, Closing { freeze, term, since, tidied });
            }
            if frozen && before == wanted {
                cluster.frozen.insert(bucket); // it was reported, and the next owner may go on at any moment
            }
            return;
        }
        if let Role::Owner { .. } = role {
            // Also when it has come back meanwhile, and this worker closed it late.
            cluster.gate.owners().open(bucket);
        }
        let kept = cluster.kept.remove(&bucket).unwrap_or_default();
        match (role, before.or(closing.map(|closing| (closing.freeze, closing.term)))) {
            (Role::Owner { .. }, Some(_)) => {
                // The move was called off: what waited goes on.
                cluster.gate.owners().release(bucket);
                // What has come of each is acted on when the whole role is known.
                for key in self.connections_of(bucket) {
                    self.put_again(key);
                    if let Some(cluster) = &mut self.cluster {
                        cluster.thawed.push(key);
                    }
                }
            }
            (Role::Backup { in_sync: true, .. }, Some((freeze, term)))
                if frozen && cluster.holds_replicas_of(bucket) =>
            {
                self.keep_frozen(bucket, term, kept.iter().filter(|kept| kept.freeze == freeze))
            }
            _ => {}
        }
    }

    /// Connections whose moves were called off take up what has come meanwhile.
    pub(in crate::worker) fn resume_thawed(&mut self) {
        let thawed = self.cluster.as_mut().map(|cluster| std::mem::take(&mut cluster.thawed));
        for key in thawed.into_iter().flatten() {
            self.guarded(Some(Source::Client(key)), |worker| {
                worker.check_server(key);
                if worker.draining {
                    worker.drain_client(key);
                }
            });
        }
    }

    /// The bucket is handed over, but its new owner may die before it has said anything: until it speaks this node counts as
    /// one that has everything. Copies of a bucket are one worker's, whoever carried its connections.
    fn keep_frozen<'a>(
        &mut self,
        bucket: Bucket,
        term: Term,
        others: impl Iterator<Item = &'a Arc<FrozenConnections>>,
    ) {
        let mine = self.whole_of(bucket);
        let Some(cluster) = &mut self.cluster else { return };
        for frame in others.flat_map(|kept| kept.frames.iter().cloned()).chain(mine) {
            cluster.holder.keep(term, frame);
        }
    }

    /// The connections of a bucket that this worker carries, or ends, as a backup would hold them.
    fn whole_of(&mut self, bucket: Bucket) -> Vec<Frame> {
        let keys = self.connections_of(bucket);
        let mine = keys.into_iter().filter_map(|key| self.clients.get(key)).filter_map(|client| {
            let replicated_state = client.replicated_state.as_ref()?;
            Some(replicated_state.whole(client.connection.id()))
        });
        let ending = self.cluster.iter().flat_map(|cluster| cluster.ending_frames(bucket));
        mine.chain(ending).collect()
    }

    /// Whether the connection must not be touched.
    pub(in crate::worker) fn is_frozen(&self, key: Key) -> bool {
        let Some(cluster) = self.cluster.as_ref().filter(|cluster| !cluster.freezing.is_empty()) else {
            return false;
        };
        let replicated_state = self.clients.get(key).and_then(|client| client.replicated_state.as_ref());
        replicated_state
            .is_some_and(|replicated_state| cluster.freezing.contains_key(&replicated_state.bucket))
    }

    /// Closes idle server connections of buckets that are to move, while what they say still leaves: the next owner knows
    /// nothing of them, and a server would keep them until its own time is up.
    fn tidy_closing(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let untidy = cluster.closing.iter_mut().filter(|(_, closing)| !closing.tidied);
        let tidied = untidy.map(|(bucket, closing)| {
            closing.tidied = true;
            *bucket
        });
        let buckets: BTreeSet<Bucket> = tidied.collect();
        if !buckets.is_empty() {
            self.close_idle_of(&buckets);
        }
    }

    /// Freezes buckets that wait for nobody any more.
    fn freeze_closed(&mut self) {
        let now = self.now;
        self.tidy_closing();
        let Some(cluster) = self.cluster.as_mut().filter(|cluster| !cluster.closing.is_empty()) else {
            return;
        };
        let ready: Vec<_> = cluster
            .closing
            .iter()
            .filter(|(bucket, closing)| now.since(closing.since) >= CLOSED_FOR && !cluster.greets(**bucket))
            .map(|(bucket, closing)| (*bucket, *closing))
            .collect();
        if !ready.is_empty() {
            // Those that were given back while clients were waited for: from now on nothing of theirs leaves.
            self.close_idle_of(&ready.iter().map(|(bucket, _)| *bucket).collect());
        }
        for (bucket, Closing { freeze, term, .. }) in ready {
            for key in self.connections_of(bucket) {
                self.replicate_all(key); // what waits for others
            }
            let Some(cluster) = &mut self.cluster else { return };
            cluster.closing.remove(&bucket);
            cluster.freeze(bucket, (freeze, term));
        }
    }

    /// Freezes what was closed, and reports buckets of which the next owner has everything.
    pub(in crate::worker) fn report_frozen(&mut self) {
        self.freeze_closed();
        // Again when more buckets froze meanwhile.
        while self.cluster.as_mut().is_some_and(|cluster| std::mem::take(&mut cluster.unaccepted)) {
            // On hold nothing more comes, and the next owner would know nothing of these.
            self.empty_queues();
        }
        let Some(cluster) = self.cluster.as_ref().filter(|cluster| !cluster.freezing.is_empty()) else {
            return;
        };
        let freezing = cluster.freezing.clone();
        for (bucket, (freeze, term)) in freezing {
            // Of connections that ended, and of copies that are whole, no entry speaks.
            if self.cluster.as_ref().is_some_and(|cluster| !cluster.has_received_all(bucket)) {
                continue;
            }
            let keys = self.connections_of(bucket);
            let to = MemberSet::of(freeze.to);
            let quiet = keys.iter().filter_map(|key| self.clients.get(*key)?.replicated_state.as_ref());
            let held = quiet.into_iter().all(|replicated_state| replicated_state.is_replicated_by(to));
            if !held || self.cluster.as_ref().is_some_and(|cluster| cluster.is_pending(bucket)) {
                continue;
            }
            let Some(cluster) = &mut self.cluster else { return };
            if !cluster.frozen.insert(bucket) {
                continue;
            }
            let elsewhere = !cluster.holds_replicas_of(bucket);
            let mine = if elsewhere { self.whole_of(bucket) } else { Vec::new() };
            if let Some(cluster) = &self.cluster {
                cluster.report(Report::Frozen { bucket, term, freeze, mine });
            }
        }
    }
}

impl Cluster {
    /// Our kernel greets nobody new of the bucket.
    fn close(&mut self, bucket: Bucket, closing: Closing) {
        self.closing.insert(bucket, closing);
        self.gate.owners().close(bucket, self.layout.node);
    }

    /// Whether clients that our kernel has greeted may be about to answer, or wait to be accepted.
    fn greets(&self, bucket: Bucket) -> bool {
        let greeted_ns = self.gate.greeted_ns(bucket);
        greeted_ns.is_some_and(|ns| Leases::now_ns().saturating_sub(ns) < GREETED_FOR.as_nanos() as u64)
    }

    /// The bucket is on hold: nothing of it comes in or is touched any more.
    fn freeze(&mut self, bucket: Bucket, wanted: (HandoffId, Term)) {
        self.company.hurry(Urgency::Full); // of what was said of it just now nothing may be missing
        self.freezing.insert(bucket, wanted);
        self.unaccepted = true;
        self.gate.owners().hold(bucket, self.layout.node);
    }

    /// Whether copies of the bucket would be this worker's.
    fn holds_replicas_of(&self, bucket: Bucket) -> bool {
        self.worker_of(bucket) == self.worker
    }

    /// Whether everything that was said of a bucket has arrived: what comes after the next owner's first word is not believed.
    fn has_received_all(&self, bucket: Bucket) -> bool {
        let Role::Owner { required, .. } = self.role(bucket) else { return false };
        let channel = |node| self.outgoing.get(&(node, self.worker_of(bucket)));
        let mut channels = self.outgoing.values().filter(|outgoing| outgoing.follows(bucket));
        required.iter().all(|node| channel(node).is_some_and(|outgoing| outgoing.follows(bucket)))
            && channels.all(|outgoing| outgoing.has_answered(bucket))
    }
}
