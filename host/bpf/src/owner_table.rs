//! Owner table and leases: atomics in memory that the programs read for every packet.

use crate::bucket::in_table;
use crate::clock;
use crate::table::Table;
use evergate_base::{Bucket, NodeId};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most backups that one bucket can list.
pub const BACKUPS_MAX: usize = 6;

/// In the second byte of an owner's word: the bucket is on hold, is closed.
const ON_HOLD: u8 = 1;
const CLOSED: u8 = 2;

/// Greatest number of a node in the maps: the lease table has an entry for each number and one for this node's own
/// lease.
const NUMBER_MAX: u8 = 63;

/// The programs' number of a node: its index in the node list plus 1, because 0 stands for no node. `None` beyond
/// [`NUMBER_MAX`].
pub(crate) fn number_of(node: NodeId) -> Option<NonZeroU8> {
    NonZeroU8::new(node.0.saturating_add(1)).filter(|number| number.get() <= NUMBER_MAX)
}

/// The node of a number in the maps; `None` for 0 and beyond [`NUMBER_MAX`].
fn node_of(number: u8) -> Option<NodeId> {
    let node = NodeId(number.checked_sub(1)?);
    number_of(node).map(|_| node)
}

/// Owner of a bucket, and the backups whose grants the owner needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    node: Option<NodeId>,
    hold: bool,
    closed: bool,
    backups: [u8; BACKUPS_MAX],
}

impl Owner {
    /// No node: all packets of the bucket are dropped.
    pub const NONE: Owner = Owner { node: None, hold: false, closed: false, backups: [0; BACKUPS_MAX] };

    /// Owned by `node`, with backups whose grants must hold. `None` for more than [`BACKUPS_MAX`] backups, and for a
    /// node that the maps have no number for.
    pub fn new(node: NodeId, backups: &[NodeId]) -> Option<Owner> {
        let mut listed = [0; BACKUPS_MAX];
        if backups.len() > BACKUPS_MAX {
            return None;
        }
        for (place, backup) in listed.iter_mut().zip(backups) {
            *place = number_of(*backup)?.get();
        }
        number_of(node)?;
        Some(Owner { node: Some(node), hold: false, closed: false, backups: listed })
    }

    /// The same owner, recording and dropping incoming packets: the moment of a failover.
    pub fn on_hold(self) -> Owner {
        Owner { hold: true, ..self }
    }

    /// The same owner, whose kernel answers no SYN: no other node could continue such a connection.
    pub fn closed(self) -> Owner {
        Owner { closed: true, ..self }
    }

    /// The same owner, accepting packets again.
    pub fn released(self) -> Owner {
        Owner { hold: false, ..self }
    }

    /// The owning node.
    pub fn node(self) -> Option<NodeId> {
        self.node
    }

    /// Whether incoming packets are held.
    pub fn is_on_hold(self) -> bool {
        self.hold
    }

    /// This owner in the place of `old`: hold and closure stay as long as the node is the same.
    fn after(self, old: Owner) -> Owner {
        let stays = old.node == self.node;
        Owner { hold: self.hold || (stays && old.hold), closed: self.closed || (stays && old.closed), ..self }
    }

    fn word(self) -> u64 {
        let [a, b, c, d, e, f] = self.backups;
        let node = self.node.and_then(number_of).map_or(0, NonZeroU8::get);
        let hold = if self.hold { ON_HOLD } else { 0 } | if self.closed { CLOSED } else { 0 };
        u64::from_le_bytes([node, hold, a, b, c, d, e, f])
    }

    fn from_word(word: u64) -> Owner {
        let [node, hold, backups @ ..] = word.to_le_bytes();
        Owner { node: node_of(node), hold: hold & ON_HOLD != 0, closed: hold & CLOSED != 0, backups }
    }
}

/// The owner table. One word per bucket: owner, hold and backups change together. A bucket outside the table has no
/// owner, and a change of it has no effect.
#[derive(Clone)]
pub struct Owners {
    pub(crate) table: Arc<Table<u64>>,
}

impl Owners {
    /// Sets one bucket's owner, effective with the next packet.
    pub fn set(&self, bucket: Bucket, owner: Owner) {
        if let Some(word) = self.word(bucket) {
            word.store(owner.word(), Ordering::Release);
        }
    }

    /// Sets one bucket's owner. The same owner stays on hold or closed, also while another thread releases or opens it.
    pub fn update(&self, bucket: Bucket, owner: Owner) {
        let next = |old: u64| Some(owner.after(Owner::from_word(old)).word());
        // The closure never refuses.
        let _ = self.word(bucket).map(|word| word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next));
    }

    /// Ends the hold of a bucket and leaves its other fields, also while another thread changes them.
    pub fn release(&self, bucket: Bucket) {
        self.clear(bucket, ON_HOLD);
    }

    /// Opens a closed bucket and leaves its other fields, also while another thread changes them.
    pub fn open(&self, bucket: Bucket) {
        self.clear(bucket, CLOSED);
    }

    fn clear(&self, bucket: Bucket, bit: u8) {
        if let Some(word) = self.word(bucket) {
            word.fetch_and(!(u64::from(bit) << 8), Ordering::AcqRel);
        }
    }

    /// Begins a hold of a bucket that `node` owns and leaves its other fields, also while another thread changes them.
    pub fn hold(&self, bucket: Bucket, node: NodeId) {
        self.change(bucket, node, Owner::on_hold);
    }

    /// Closes a bucket that `node` owns to new clients of its kernel, and leaves its other fields.
    pub fn close(&self, bucket: Bucket, node: NodeId) {
        self.change(bucket, node, Owner::closed);
    }

    fn change(&self, bucket: Bucket, node: NodeId, to: impl Fn(Owner) -> Owner) {
        let changed = |word: u64| {
            let owner = Owner::from_word(word);
            (owner.node == Some(node)).then(|| to(owner).word())
        };
        // Another node's bucket is left alone.
        let _ = self.word(bucket).map(|word| word.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed));
    }

    /// Sets the same owner for all buckets.
    pub fn set_all(&self, owner: Owner) {
        Bucket::all().for_each(|bucket| self.set(bucket, owner));
    }

    /// A bucket's owner.
    pub fn get(&self, bucket: Bucket) -> Owner {
        self.word(bucket).map_or(Owner::NONE, |word| Owner::from_word(word.load(Ordering::Acquire)))
    }

    fn word(&self, bucket: Bucket) -> Option<&AtomicU64> {
        in_table(bucket).map(|bucket| self.table.word(bucket.index()))
    }
}

/// Until when this node may emit, in nanoseconds of the programs' clock ([`Leases::now_ns`]). Zero, as at the start,
/// means never.
#[derive(Clone)]
pub struct Leases {
    pub(crate) table: Arc<Table<u64>>,
}

impl Leases {
    /// Our own lease, which every packet needs.
    pub fn set_own(&self, until_ns: u64) {
        self.table.word(0).store(until_ns, Ordering::Release);
    }

    /// Sets the end of `backup`'s grant; packets of buckets that list this backup need it. No effect for a node without
    /// a number in the maps: no bucket can list it.
    pub fn set(&self, backup: NodeId, until_ns: u64) {
        if let Some(number) = number_of(backup) {
            self.table.word(usize::from(number.get())).store(until_ns, Ordering::Release);
        }
    }

    /// Revokes all leases: no packet leaves from now on.
    pub fn revoke_all(&self) {
        (0..self.table.entries()).for_each(|index| self.table.word(index).store(0, Ordering::Release));
    }

    /// The programs' clock, in nanoseconds: `CLOCK_BOOTTIME`, which continues while the machine is suspended.
    pub fn now_ns() -> u64 {
        clock::now_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_word_round_trips() {
        let node = |number: u8| NodeId(number - 1);
        let owner = Owner::new(node(63), &[node(1), node(2), node(3), node(4), node(5), node(6)]).unwrap();
        assert_eq!(Owner::from_word(owner.word()), owner);
        assert_eq!(Owner::from_word(owner.on_hold().word()), owner.on_hold());
        assert_eq!(owner.on_hold().released(), owner);
        assert_eq!(Owner::from_word(owner.closed().word()), owner.closed());
        assert_eq!(owner.on_hold().closed().released(), owner.closed());
        assert_eq!(owner.on_hold().closed().word(), owner.word() | 0x300);
        assert_eq!(Owner::new(node(1), &[node(2); 7]), None);
        let again = Owner::new(node(63), &[node(1)]).unwrap();
        assert_eq!(again.after(owner.on_hold()), again.on_hold(), "the hold stays");
        assert_eq!(
            Owner::new(node(2), &[]).unwrap().after(owner.on_hold()),
            Owner::new(node(2), &[]).unwrap()
        );
        assert_eq!(again.after(owner.closed()), again.closed(), "it stays closed");
        assert_eq!(again.on_hold().after(owner), again.on_hold());
        assert_eq!(owner.word() & 0xff, 63);
        assert_eq!((node_of(0), node_of(64)), (None, None));
        assert_eq!(Owner::new(NodeId(63), &[]), None);
        assert_eq!(Owner::new(node(1), &[NodeId(u8::MAX)]), None);
    }
}
