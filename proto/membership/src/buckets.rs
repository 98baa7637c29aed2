//! All buckets at this node, and the operations on them that wait to be sent.
//!
//! Invariant: `with_operations` has exactly the buckets with outstanding operations.

use std::collections::{BTreeMap, BTreeSet};

use evergate_base::Micros;

use crate::bucket_state::BucketState;
use crate::message::Op;
use crate::{Bucket, NodeId};

/// The buckets of a cluster, as this node knows them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Buckets {
    /// One state for each bucket.
    pub(crate) states: Vec<BucketState>,
    /// Buckets with outstanding operations.
    pub(crate) with_operations: BTreeSet<u16>,
    /// Of these, buckets whose operations were not sent yet.
    pub(crate) unsent: BTreeSet<u16>,
    /// Time of the next repetition of outstanding operations.
    pub(crate) ops_at: Micros,
    /// Operations and answers to send, by receiver.
    pub(crate) replies: BTreeMap<NodeId, Vec<Op>>,
    /// Buckets whose role the shell has not polled since it changed.
    pub(crate) changed: BTreeSet<u16>,
}

impl Buckets {
    /// Buckets without an owner.
    pub(crate) fn new(count: u16, now: Micros) -> Buckets {
        Buckets {
            states: vec![BucketState::default(); usize::from(count)],
            with_operations: BTreeSet::new(),
            unsent: BTreeSet::new(),
            ops_at: now,
            replies: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&self, bucket: Bucket) -> Option<&BucketState> {
        self.states.get(usize::from(bucket.0))
    }

    pub(crate) fn get_mut(&mut self, bucket: Bucket) -> Option<&mut BucketState> {
        self.states.get_mut(usize::from(bucket.0))
    }

    /// The buckets of this owner.
    pub(crate) fn owned_by(&self, owner: NodeId) -> impl Iterator<Item = &BucketState> {
        self.states.iter().filter(move |state| state.owner == Some(owner))
    }

    /// Whether this owner has a bucket.
    pub(crate) fn owns_any(&self, owner: NodeId) -> bool {
        self.owned_by(owner).next().is_some()
    }

    /// Drops all operations.
    pub(crate) fn clear_operations(&mut self) {
        self.with_operations.clear();
        self.unsent.clear();
        self.replies.clear();
    }

    /// Drops all state.
    pub(crate) fn reset(&mut self) {
        self.clear_operations();
        for (bucket, state) in (0u16..).zip(self.states.iter_mut()) {
            if state.reset() {
                self.changed.insert(bucket);
            }
        }
    }

    /// Records that a bucket's role or outstanding operations changed.
    pub(crate) fn record_change(&mut self, bucket: Bucket) {
        self.changed.insert(bucket.0);
        if self.get(bucket).is_some_and(BucketState::has_operations) {
            self.with_operations.insert(bucket.0);
        } else {
            self.with_operations.remove(&bucket.0);
            self.unsent.remove(&bucket.0);
        }
    }

    /// Marks a changed bucket: its role goes to the shell, its operations to other members at once. Returns whether
    /// there are operations to send.
    pub(crate) fn touch(&mut self, bucket: Bucket) -> bool {
        self.record_change(bucket);
        let has_operations = self.with_operations.contains(&bucket.0);
        if has_operations {
            self.unsent.insert(bucket.0);
        }
        has_operations
    }
}
