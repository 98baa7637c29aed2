//! Acknowledgements that a worker owes or waits for, by the time when it looks again.

use super::{End, POOLED_AFTER_MS};
use crate::slab::Key;
use evergate_base::Micros;
use evergate_membership::Bucket;
use evergate_replication::Delay;
use std::collections::{BTreeSet, VecDeque};

/// Timers of ACKs and stalls, and legs and connections with an acknowledgement to handle in this turn.
#[derive(Default)]
pub(crate) struct AckTimers {
    /// Connections with a timer, by delay, and the time of each.
    pub(super) short: VecDeque<(Micros, Key)>,
    pub(super) medium: VecDeque<(Micros, Key)>,
    pub(super) long: VecDeque<(Micros, Key)>,
    /// Released server connections, and when each is checked for an owed ACK: the next request may have carried it.
    pub(super) pooled: VecDeque<(Micros, Key)>,
    /// Legs with more input to acknowledge.
    pub(super) dirty: Vec<(Key, End)>,
    /// Connections whose entries were acknowledged.
    pub(super) acknowledged: Vec<Key>,
    /// Buckets for which a backup is no longer awaited: output that waited for it continues.
    pub(super) unawaited: BTreeSet<Bucket>,
}

impl AckTimers {
    /// Adds a timer of a connection; returns its time.
    pub(super) fn add(&mut self, key: Key, delay: Delay, now: Micros) -> Micros {
        let queue = match delay {
            Delay::Short => &mut self.short,
            Delay::Medium => &mut self.medium,
            Delay::Long => &mut self.long,
        };
        let due = now + delay.span();
        queue.push_back((due, key));
        due
    }

    /// Adds a check whether a pooled server connection owes an ACK.
    pub(super) fn add_pooled(&mut self, key: Key, now: Micros) {
        self.pooled.push_back((now + Micros::from_ms(POOLED_AFTER_MS), key));
    }

    /// Whether this turn has something left to acknowledge.
    pub(super) fn is_due_now(&self) -> bool {
        !self.acknowledged.is_empty() || !self.dirty.is_empty() || !self.unawaited.is_empty()
    }
}
