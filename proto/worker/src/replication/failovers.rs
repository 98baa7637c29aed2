//! The unfinished failovers of a worker, and segments that arrive before sockets exist.

use super::early_segments::EarlySegments;
use super::loss_notice::LossNotice;
use super::reprotect::{Activity, Failover};
use crate::host::Host;
use evergate_base::Micros;
use evergate_membership::{Bucket, MemberSet};
use std::collections::{BTreeMap, BTreeSet};

/// Unfinished failovers: see the module's description.
pub(crate) struct Failovers<H: Host> {
    /// In the order of their start.
    pub(super) waiting: Vec<Failover<H>>,
    /// Nodes that must first receive the state of their buckets, each with the number of the failover.
    pub(super) unreported: BTreeMap<(Activity, Bucket), (u64, MemberSet)>,
    /// Buckets newly owned by this node whose failover has not begun: this worker may have replicas of them.
    pub(super) arriving: BTreeSet<Bucket>,
    /// Number of failovers begun, and start of the last one.
    pub(super) rounds: u64,
    pub(super) taken_at: Option<Micros>,
    /// Input for connections without a socket.
    pub(super) early: EarlySegments,
    /// Peers that may not detect the loss of their segments.
    pub(super) loss_notices: Vec<LossNotice>,
    /// When the last warning about lost connections was logged, by the steady clock in milliseconds.
    pub(super) lost_logged_ms: Option<u64>,
    /// When the last warning about an unknown configuration was logged.
    pub(super) unknown_config_logged_at: Option<Micros>,
}

impl<H: Host> Default for Failovers<H> {
    fn default() -> Failovers<H> {
        Failovers {
            waiting: Vec::new(),
            unreported: BTreeMap::new(),
            arriving: BTreeSet::new(),
            rounds: 0,
            taken_at: None,
            early: EarlySegments::default(),
            loss_notices: Vec::new(),
            lost_logged_ms: None,
            unknown_config_logged_at: None,
        }
    }
}

impl<H: Host> Failovers<H> {
    /// Whether recovered connections of the bucket do not resume yet: until they do, no replica of it is complete.
    pub(super) fn is_pending(&self, bucket: Bucket) -> bool {
        self.arriving.contains(&bucket) || self.waiting.iter().any(|waiting| waiting.has(bucket))
    }

    /// Whether peers of recovered connections are being probed.
    pub(crate) fn is_probing(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.probes.is_some())
    }

    /// Whether idle connections wait for their turn.
    pub(crate) fn has_idle(&self) -> bool {
        self.waiting.iter().any(Failover::has_idle)
    }
}
