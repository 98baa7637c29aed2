//! Handoff at the old owner: a bucket is frozen here before another node resumes it.
//!
//! First the bucket's listeners close. No other node knows a client whose SYN this kernel has answered, and a client
//! that waits for its server's first byte would send nothing. When all such clients are accepted, the bucket is put on
//! hold and its connections are not touched. Once the next owner has acknowledged every entry, the agent receives a
//! report. The sockets stay, silenced by the gate, until the bucket is owned elsewhere.

use super::Cluster;
use crate::host::{Gate, Host, Law};
use crate::instruction::FrozenConnections;
use crate::report::Report;
use crate::slab::{Key, Source};
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_membership::{Bucket, HandoffId, MemberSet, Role, Term};
use evergate_replication::{Frame, Urgency};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long a client may take to answer this kernel's SYN-ACK. Slower ones count as unreachable.
const GREETED_FOR: Duration = Duration::from_millis(250);
/// A SYN-ACK sent just before the bucket was closed is counted by then.
const CLOSED_FOR: Micros = Micros::from_ms(1);

/// A bucket that is to be frozen and accepts no new clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Closing {
    freeze: HandoffId,
    term: Term,
    since: Micros,
    /// Its idle server connections are closed.
    idle_closed: bool,
}

impl<H: Host> Worker<H> {
    /// Applies the part of a role that concerns freezing.
    pub(super) fn change_freezing(&mut self, bucket: Bucket, role: Role) {
        let Some(cluster) = &mut self.cluster else { return };
        let wanted = match role {
            Role::Owner { term, freeze_for: Some(freeze), .. } => Some((freeze, term)),
            _ => None,
        };
        let before = cluster.handoffs.freezing.remove(&bucket);
        let frozen = cluster.handoffs.frozen.remove(&bucket);
        let closing = cluster.handoffs.closing.remove(&bucket);
        if let Some((freeze, term)) = wanted {
            if before.is_some() {
                cluster.freeze(bucket, (freeze, term));
            } else {
                let since = closing.map_or(self.now, |closing| closing.since);
                let idle_closed = closing.is_some_and(|closing| closing.idle_closed);
                cluster.close(bucket, Closing { freeze, term, since, idle_closed });
            }
            if frozen && before == wanted {
                cluster.handoffs.frozen.insert(bucket); // already reported: the next owner may resume at any moment
            }
            return;
        }
        if let Role::Owner { .. } = role {
            // Also when the bucket has returned meanwhile, and this worker closed it late.
            cluster.gate.open(bucket);
        }
        let elsewhere = cluster.handoffs.frozen_elsewhere.remove(&bucket).unwrap_or_default();
        match (role, before.or(closing.map(|closing| (closing.freeze, closing.term)))) {
            (Role::Owner { .. }, Some(_)) => {
                // The handoff was cancelled: its connections continue.
                cluster.gate.release(bucket);
                // Events are handled when all roles of the instruction are known.
                for key in self.connections_of(bucket) {
                    self.mark_pending(key);
                    if let Some(cluster) = &mut self.cluster {
                        cluster.handoffs.thawed.push(key);
                    }
                }
            }
            (Role::Backup { in_sync: true, .. }, Some((freeze, term)))
                if frozen && cluster.holds_replicas_of(bucket) && !self.host.breaks(Law::KeepsFrozen) =>
            {
                self.keep_frozen(bucket, term, elsewhere.iter().filter(|frozen| frozen.freeze == freeze))
            }
            _ => {}
        }
    }

    /// Handles the events that connections of cancelled handoffs have received meanwhile.
    pub(crate) fn resume_thawed(&mut self) {
        let thawed = self.cluster.as_mut().map(|cluster| std::mem::take(&mut cluster.handoffs.thawed));
        for key in thawed.into_iter().flatten() {
            self.guarded(Some(Source::Client(key)), |worker| {
                worker.check_server(key);
                if worker.lifecycle.draining {
                    worker.drain_client(key);
                }
            });
        }
    }

    /// Keeps a frozen bucket as a replica: its new owner may fail before it sends anything, and until then this node
    /// counts as a complete backup. One worker has all replicas of a bucket, whichever worker carried the connections.
    fn keep_frozen<'a>(
        &mut self,
        bucket: Bucket,
        term: Term,
        others: impl Iterator<Item = &'a Arc<FrozenConnections>>,
    ) {
        let mine = self.whole_of(bucket);
        let Some(cluster) = &mut self.cluster else { return };
        for frame in others.flat_map(|frozen| frozen.frames.iter().cloned()).chain(mine) {
            cluster.replicas.store.keep(term, frame);
        }
    }

    /// Full state of the bucket's connections that this worker carries or ends, as a backup would hold it.
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
    pub(crate) fn is_frozen(&self, key: Key) -> bool {
        let Some(cluster) = self.cluster.as_ref().filter(|cluster| !cluster.handoffs.freezing.is_empty())
        else {
            return false;
        };
        let replicated_state = self.clients.get(key).and_then(|client| client.replicated_state.as_ref());
        replicated_state
            .is_some_and(|replicated_state| cluster.handoffs.freezing.contains_key(&replicated_state.bucket))
    }

    /// Closes idle server connections of buckets that are to move, while their FIN or RST can still leave. The next
    /// owner has no state of them, and the server would keep them until its own timeout.
    fn close_idle_of_closing(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let open = cluster.handoffs.closing.iter_mut().filter(|(_, closing)| !closing.idle_closed);
        let idle_closed = open.map(|(bucket, closing)| {
            closing.idle_closed = true;
            *bucket
        });
        let buckets: BTreeSet<Bucket> = idle_closed.collect();
        if !buckets.is_empty() {
            self.close_idle_of(&buckets);
        }
    }

    /// Freezes the buckets that wait for no more clients.
    fn freeze_closed(&mut self) {
        let now = self.now;
        self.close_idle_of_closing();
        let since = now - Micros(GREETED_FOR.as_micros() as u64);
        let Some(cluster) = self.cluster.as_mut().filter(|cluster| !cluster.handoffs.closing.is_empty())
        else {
            return;
        };
        let ready: Vec<_> = cluster
            .handoffs
            .closing
            .iter()
            .filter(|(bucket, closing)| {
                now.since(closing.since) >= CLOSED_FOR
                    && !cluster.may_have_handshakes(**bucket)
                    && !self.arrivals.has_newer(**bucket, since)
            })
            .map(|(bucket, closing)| (*bucket, *closing))
            .collect();
        if !ready.is_empty() {
            // Includes connections released while the bucket waited for clients: from now on nothing of the bucket
            // leaves.
            self.close_idle_of(&ready.iter().map(|(bucket, _)| *bucket).collect());
        }
        for (bucket, Closing { freeze, term, .. }) in ready {
            for key in self.connections_of(bucket) {
                self.replicate_all(key); // entries that wait for more
            }
            self.leave_arrivals(Some(bucket));
            let Some(cluster) = &mut self.cluster else { return };
            cluster.handoffs.closing.remove(&bucket);
            cluster.freeze(bucket, (freeze, term));
        }
    }

    /// Freezes closed buckets, and reports those that the next owner holds completely.
    pub(crate) fn report_frozen(&mut self) {
        self.freeze_closed();
        // Repeated when more buckets froze meanwhile.
        while self.cluster.as_mut().is_some_and(|cluster| std::mem::take(&mut cluster.handoffs.unaccepted)) {
            // On hold nothing more arrives, and the next owner has no state of these connections.
            self.empty_queues();
        }
        let Some(cluster) = self.cluster.as_ref().filter(|cluster| !cluster.handoffs.freezing.is_empty())
        else {
            return;
        };
        let freezing = cluster.handoffs.freezing.clone();
        for (bucket, (freeze, term)) in freezing {
            // No entry covers connections that ended, or the end of a replica's full state.
            if self.cluster.as_ref().is_some_and(|cluster| !cluster.has_received_all(bucket)) {
                continue;
            }
            let keys = self.connections_of(bucket);
            let to = MemberSet::of(freeze.to);
            let quiet = keys.iter().filter_map(|key| self.clients.get(*key)?.replicated_state.as_ref());
            let held = quiet.into_iter().all(|replicated_state| replicated_state.is_replicated_by(to));
            if !held || self.cluster.as_ref().is_some_and(|cluster| cluster.failovers.is_pending(bucket)) {
                continue;
            }
            let Some(cluster) = &mut self.cluster else { return };
            if !cluster.handoffs.frozen.insert(bucket) {
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

impl<H: Host> Cluster<H> {
    /// Stops answering new SYNs of the bucket.
    fn close(&mut self, bucket: Bucket, closing: Closing) {
        self.handoffs.closing.insert(bucket, closing);
        self.gate.close(bucket);
    }

    /// Whether nothing of the bucket arrives any more.
    pub(crate) fn is_frozen(&self, bucket: Bucket) -> bool {
        self.handoffs.freezing.contains_key(&bucket)
    }

    /// Whether clients that received a SYN-ACK may still answer it, or wait to be accepted.
    fn may_have_handshakes(&self, bucket: Bucket) -> bool {
        let greeted_ns = self.gate.greeted_ns(bucket);
        greeted_ns.is_some_and(|ns| self.gate.now_ns().saturating_sub(ns) < GREETED_FOR.as_nanos() as u64)
    }

    /// Puts the bucket on hold: nothing of it arrives or is touched any more.
    fn freeze(&mut self, bucket: Bucket, wanted: (HandoffId, Term)) {
        self.batcher.hurry(Urgency::Full); // all frames of the bucket must leave
        self.handoffs.freezing.insert(bucket, wanted);
        self.handoffs.unaccepted = true;
        self.gate.hold(bucket);
    }

    /// Whether replicas of the bucket belong to this worker.
    fn holds_replicas_of(&self, bucket: Bucket) -> bool {
        self.worker_of(bucket) == self.worker
    }

    /// Whether all frames of a bucket have been acknowledged: the next owner's first frame makes later ones of this
    /// node invalid.
    fn has_received_all(&self, bucket: Bucket) -> bool {
        let Role::Owner { required, .. } = self.role(bucket) else { return false };
        let channel = |node| self.channels.outgoing.get(&(node, self.worker_of(bucket)));
        let mut channels = self.channels.outgoing.values().filter(|outgoing| outgoing.follows(bucket));
        required.iter().all(|node| channel(node).is_some_and(|outgoing| outgoing.follows(bucket)))
            && channels.all(|outgoing| outgoing.has_answered(bucket))
    }
}
