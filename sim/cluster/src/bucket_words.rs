//! The gate's words about buckets: holds, closed buckets, pending ones, and buckets whose packets may leave.

use evergate_membership::Bucket;
use std::collections::BTreeSet;

/// Words about all buckets.
#[derive(Debug, Default)]
pub(crate) struct BucketWords {
    /// Packets are recorded and dropped.
    pub(crate) held: BTreeSet<Bucket>,
    /// SYNs are not answered.
    pub(crate) closed: BTreeSet<Bucket>,
    /// Segments of connections that still lack sockets are diverted to the worker, not answered.
    pub(crate) pending: BTreeSet<Bucket>,
    /// This node owns the bucket and its leases hold: packets may leave.
    pub(crate) open: BTreeSet<Bucket>,
}

impl BucketWords {
    /// This node owns the bucket no more.
    pub(crate) fn disown(&mut self, bucket: Bucket) {
        self.held.remove(&bucket);
        self.closed.remove(&bucket);
    }

    /// Sets whether packets of the bucket may leave.
    pub(crate) fn set_open(&mut self, bucket: Bucket, open: bool) {
        match open {
            true => self.open.insert(bucket),
            false => self.open.remove(&bucket),
        };
    }

    /// Whether a SYN of the bucket is answered.
    pub(crate) fn greets(&self, bucket: Bucket) -> bool {
        !self.held.contains(&bucket) && !self.closed.contains(&bucket)
    }
}
