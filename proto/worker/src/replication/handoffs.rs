//! Buckets that move from this node to another one, from the worker's view.

use super::handoff::Closing;
use crate::instruction::FrozenConnections;
use crate::slab::Key;
use evergate_membership::{Bucket, HandoffId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Buckets in a handoff. A bucket is closing, then freezing, then frozen; [`super::handoff`] moves it on.
#[derive(Default)]
pub(crate) struct Handoffs {
    /// Buckets that accept no new clients, and are frozen next.
    pub(super) closing: BTreeMap<Bucket, Closing>,
    /// Buckets being frozen, with the handoff and the term.
    pub(super) freezing: BTreeMap<Bucket, (HandoffId, Term)>,
    /// Of them, buckets that are frozen and reported: the next owner may resume them at any moment.
    pub(crate) frozen: BTreeSet<Bucket>,
    /// Connections of buckets whose handoff was cancelled: events may have been missed meanwhile.
    pub(super) thawed: Vec<Key>,
    /// Some buckets froze just now: accepted connections of them are still in the kernel's queues.
    pub(super) unaccepted: bool,
    /// Frozen connections of other workers, for buckets whose replicas this worker has.
    pub(super) frozen_elsewhere: BTreeMap<Bucket, Vec<Arc<FrozenConnections>>>,
}

impl Handoffs {
    /// Forgets all handoffs, and connections that other workers froze.
    pub(super) fn clear(&mut self) {
        self.closing.clear();
        self.freezing.clear();
        self.frozen.clear();
        self.frozen_elsewhere.clear();
    }
}
