//! Replicated connections, by bucket and by slot of the gate.

use crate::slab::Key;
use evergate_membership::BUCKETS;

/// Replicated connections of a worker.
pub(crate) struct ConnectionIndex {
    /// Those of each bucket, and some that are gone.
    pub(super) by_bucket: Vec<Vec<Key>>,
    /// That of each slot of the gate, by the slot's number.
    by_slot: Vec<Option<Key>>,
}

impl Default for ConnectionIndex {
    fn default() -> ConnectionIndex {
        ConnectionIndex { by_bucket: vec![Vec::new(); usize::from(BUCKETS)], by_slot: Vec::new() }
    }
}

impl ConnectionIndex {
    /// A slot belongs to this connection.
    pub(super) fn note_slot(&mut self, slot: u32, key: Key) {
        let at = slot as usize;
        if at >= self.by_slot.len() {
            self.by_slot.resize(at + 1, None);
        }
        self.by_slot[at] = Some(key);
    }

    /// A slot belongs to no connection any more.
    pub(super) fn forget_slot(&mut self, slot: u32) {
        if let Some(place) = self.by_slot.get_mut(slot as usize) {
            *place = None;
        }
    }

    /// The connection of a slot.
    pub(super) fn of_slot(&self, slot: u32) -> Option<Key> {
        self.by_slot.get(slot as usize).copied().flatten()
    }
}
