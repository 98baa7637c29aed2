//! Before a connection that was taken over says anything, every other backup must know where it goes on.
//!
//! Two backups need not have got the same last entries of a dead owner. What this node goes on from, and will acknowledge
//! at once, may be more than another one has: should this node die too, that one must not go on from less. So the state
//! is said first, and the bucket stays on hold until all who count have it. Without such backups nothing waits.

use super::Cluster;
use super::channel::Notice;
use super::resume::Take;
use crate::cluster::{Report, Resumed};
use crate::worker::Worker;
use evergate_cluster::{Bucket, MemberSet, NodeId, Role};
use evergate_mirror::Frame;
use std::collections::BTreeMap;
use std::time::Instant;

/// A take-over of which some buckets are not ready yet.
pub(super) struct Waiting {
    pub(super) started: Instant,
    pub(super) resumed: Resumed,
    /// Connections by bucket.
    pub(super) left: BTreeMap<Bucket, Vec<Take>>,
}

impl Worker {
    /// Says the state of these connections to who must hold it, and goes on with those that nobody need hear of.
    pub(super) fn begin_waiting(&mut self, waiting: Waiting) {
        let Some(cluster) = &mut self.cluster else { return };
        for (bucket, takes) in &waiting.left {
            cluster.tell_taken(*bucket, takes);
        }
        cluster.waiting.push(waiting);
        self.look_at_waiting();
    }

    /// Goes on with buckets of which all who count have the state, and drops those that are not ours any more.
    pub(super) fn look_at_waiting(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut all = std::mem::take(&mut cluster.waiting);
        for waiting in &mut all {
            let (ready, gone) = self.sort_out(&mut waiting.left);
            self.go_on_with(ready, &mut waiting.resumed);
            self.drop_takes(gone);
        }
        let Some(cluster) = &mut self.cluster else { return };
        for waiting in &mut all {
            if waiting.left.is_empty() {
                waiting.resumed.took_us = waiting.started.elapsed().as_micros() as u64;
                self.counters.resumed.add(waiting.resumed.connections as u64);
                self.counters.resume_lost.add(waiting.resumed.lost as u64);
                cluster.report(Report::Resumed(waiting.resumed));
            }
        }
        all.retain(|waiting| !waiting.left.is_empty());
        all.append(&mut cluster.waiting);
        cluster.waiting = all;
    }
}

impl Worker {
    /// Takes out what can go on, and connections of buckets that are not ours any more.
    fn sort_out(&self, left: &mut BTreeMap<Bucket, Vec<Take>>) -> (Vec<(Bucket, Vec<Take>)>, Vec<Take>) {
        let (mut ready, mut gone) = (Vec::new(), Vec::new());
        let Some(cluster) = &self.cluster else { return (ready, gone) };
        for (bucket, takes) in std::mem::take(left) {
            match cluster.role(bucket) {
                Role::Owner { .. } if cluster.untold(bucket).is_empty() => ready.push((bucket, takes)),
                Role::Owner { .. } => {
                    left.insert(bucket, takes);
                }
                _ => gone.extend(takes),
            }
        }
        (ready, gone)
    }
}

impl Cluster {
    /// Says where connections go on to those whose copies count already.
    fn tell_taken(&mut self, bucket: Bucket, takes: &[Take]) {
        let Role::Owner { required, .. } = self.role(bucket) else { return };
        for node in required.iter() {
            let peer = (node, self.worker_of(bucket));
            if takes.is_empty() || !self.outgoing.contains_key(&peer) {
                continue; // a channel that cannot be made: the cluster decides what follows
            }
            for (number, take) in (1..).zip(takes) {
                let (connection, last) = (take.id, number == takes.len());
                let state = Some(Box::new(take.held.state.clone()));
                self.say_to(node, bucket, &Frame::Begin { connection, bucket: bucket.0, state }, None);
                for (place, (leg, facts)) in (1..).zip(&take.held.legs) {
                    let notice =
                        (last && place == take.held.legs.len()).then_some(Notice::Taken { bucket: bucket.0 });
                    self.say_to(node, bucket, &Frame::Leg { connection, leg: *leg, facts: *facts }, notice);
                }
            }
            self.untold.entry(bucket).or_insert(MemberSet::EMPTY);
            self.untold.entry(bucket).and_modify(|nodes| *nodes = nodes.with(node));
        }
    }

    /// Nodes that must still get the state of a bucket that is being taken over.
    fn untold(&self, bucket: Bucket) -> MemberSet {
        let Role::Owner { required, .. } = self.role(bucket) else { return MemberSet::EMPTY };
        self.untold.get(&bucket).copied().unwrap_or(MemberSet::EMPTY).intersection(required)
    }

    /// A node has the state of a bucket.
    pub(super) fn note_told(&mut self, bucket: Bucket, node: NodeId) {
        if let Some(nodes) = self.untold.get_mut(&bucket) {
            *nodes = nodes.without(node);
            if nodes.is_empty() {
                self.untold.remove(&bucket);
            }
        }
    }
}
