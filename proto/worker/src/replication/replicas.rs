//! Replicas that this worker holds for other nodes.

use evergate_base::Micros;
use evergate_membership::{Bucket, Term};
use evergate_replication::ReplicaStore;
use std::collections::{BTreeMap, BTreeSet};

/// How long frames of the former owner may arrive after this node dropped a bucket. Overloaded machines send them late.
pub(super) const DROP_AFTER: Micros = Micros::from_ms(10_000);

/// Replicas of other owners.
#[derive(Default)]
pub(crate) struct Replicas {
    pub(crate) store: ReplicaStore,
    /// Replicas of which some workers of the owner have sent their full state.
    complete: BTreeMap<Bucket, (Term, BTreeSet<u16>)>,
    /// Buckets with dropped replicas, and when no frame of them can arrive any more.
    forgetting: BTreeMap<Bucket, Micros>,
}

impl Replicas {
    /// One worker of the owner has sent its full state of a bucket. Whether all `workers` of it have.
    pub(super) fn note_complete(&mut self, bucket: Bucket, term: Term, worker: u16, workers: usize) -> bool {
        let older = self.complete.get(&bucket).is_some_and(|(known, _)| term < *known);
        if older || !self.store.counts(bucket, term) {
            return false; // from a cancelled transfer
        }
        let (known, seen) = self.complete.entry(bucket).or_insert_with(|| (term, BTreeSet::new()));
        if *known != term {
            *known = term;
            seen.clear();
        }
        seen.insert(worker);
        let all = seen.len() >= workers;
        if all {
            self.complete.remove(&bucket);
        }
        all
    }

    /// Drops the replica of a bucket, of terms before this one. Frames of it may arrive for a while.
    pub(super) fn forget(&mut self, bucket: Bucket, first: Term, now: Micros) {
        self.store.forget(bucket, first);
        self.forgetting.insert(bucket, now + DROP_AFTER);
    }

    /// Removes state that was dropped long enough ago.
    pub(super) fn drop_late(&mut self, now: Micros) {
        let store = &mut self.store;
        self.forgetting.retain(|bucket, at| {
            if *at <= now {
                store.drop_all(*bucket);
            }
            *at > now
        });
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.store.clear();
        self.complete.clear();
        self.forgetting.clear();
    }
}
