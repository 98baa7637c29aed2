//! Ports of the cluster's addresses, and the buckets that they belong to.

use crate::segment::Flow;
use evergate_membership::Bucket;
use std::ops::RangeInclusive;

/// The port that clients connect to.
pub(crate) const PORT: u16 = 443;
/// First port of server legs.
const LEGS: u16 = 20_000;
/// Number of server-leg ports per bucket.
const LEGS_EACH: u16 = 5_000;

/// Bucket of a flow, of so many: of a client by its port, of a server leg by the cluster's port.
pub(crate) fn bucket_of(flow: Flow, buckets: u16) -> Bucket {
    Bucket(match flow.ours.port() {
        PORT => flow.theirs.port() % buckets,
        port => port.saturating_sub(LEGS) / LEGS_EACH,
    })
}

/// Ports of a bucket's server legs.
pub(crate) fn ports_of(bucket: Bucket) -> RangeInclusive<u16> {
    let first = LEGS + bucket.0 * LEGS_EACH;
    first..=first + (LEGS_EACH - 1)
}
