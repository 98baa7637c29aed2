//! Which flows have slots, and which slots are free: finding, restoring, giving back, sweeping.

use crate::GateError;
use crate::bucket::in_table;
use crate::flow::key_of;
use crate::gate::{Maps, PacketGate};
use crate::skeleton::types;
use crate::slot::{FLAG_LEARN, FLAG_RECOVERED, Slot};
use crate::table::{Table, bytes};
use evergate_base::Bucket;
use evergate_base::net::{Flow, PeerPosition, Restored};
use libbpf_rs::{MapCore, MapFlags};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

impl PacketGate {
    /// Whether the flow has a slot that is no older than `since_ns` and has a handle, or will get one. Then this node
    /// already has a connection of these ends, perhaps still in a listener's queue. An older slot remains from an
    /// earlier term of this node.
    pub fn is_held(&self, flow: &Flow, since_ns: u64) -> bool {
        let mut index = [0; 4];
        let found = self.maps.flows.lookup_into(bytes(&key_of(flow)), &mut index, MapFlags::ANY);
        let slot = u32::from_ne_bytes(index) as usize;
        if !matches!(found, Ok(true)) || slot >= self.slots.entries() {
            return false;
        }
        let pointer = self.slots.pointer(slot);
        // SAFETY: aligned fields of an entry of the table.
        let (flags, established, born) = unsafe {
            (
                AtomicU32::from_ptr(&raw mut (*pointer).flags),
                AtomicU32::from_ptr(&raw mut (*pointer).established),
                AtomicU64::from_ptr(&raw mut (*pointer).born_ns),
            )
        };
        let lives =
            flags.load(Ordering::Acquire) & FLAG_RECOVERED != 0 || established.load(Ordering::Acquire) != 0;
        lives && born.load(Ordering::Acquire) >= since_ns
    }

    /// Gates a flow that lived elsewhere, before its socket exists. Its bucket must be on hold, or it is to be asleep.
    pub fn restore(&self, from: &Restored) -> Result<Slot, GateError> {
        let slot = self.slot_for(from)?;
        self.enter(slot, from)
    }

    /// [`PacketGate::restore`] after the hold of its bucket, unless its peer has started another connection of the same
    /// ends here since then: nothing is changed about that one.
    pub fn restore_unless_begun(&self, from: &Restored, since_ns: u64) -> Result<Option<Slot>, GateError> {
        let slot = self.slot_for(from)?;
        let key = key_of(&from.flow);
        // `NO_EXIST` looks and enters in one step: no other thread can enter the flow between.
        if self.maps.flows.update(bytes(&key), &slot.index().to_ne_bytes(), MapFlags::NO_EXIST).is_ok() {
            return Ok(Some(slot));
        }
        if self.is_held(&from.flow, since_ns) {
            self.maps.free(&self.slots, slot.index(), &key);
            return Ok(None);
        }
        self.enter(slot, from).map(Some) // the present slot remains from an earlier term
    }

    fn slot_for(&self, from: &Restored) -> Result<Slot, GateError> {
        let mut index = [0; 4];
        let found = self.maps.free_slots.lookup_into_and_delete(&[], &mut index);
        if !matches!(found, Ok(true)) {
            return Err(GateError::NoSlot { flows_max: self.slots.entries() as u32 });
        }
        let bucket = self.bucket(&from.flow).0;
        Ok(Slot::write(&self.slots, u32::from_ne_bytes(index), from, bucket))
    }

    fn enter(&self, slot: Slot, from: &Restored) -> Result<Slot, GateError> {
        let key = key_of(&from.flow);
        match self.put(&self.maps.flows, &key, &slot.index(), "registering a restored flow") {
            Ok(()) => Ok(slot),
            Err(error) => {
                self.maps.free(&self.slots, slot.index(), &key);
                Err(error)
            }
        }
    }

    /// Writes a restored flow again with newer values. Its bucket must still be on hold, or the flow asleep.
    pub fn restore_again(&self, slot: Slot, from: &Restored) -> Slot {
        Slot::write(&self.slots, slot.index(), from, self.bucket(&from.flow).0)
    }

    /// The peer's positions, recorded on hold or while this node was a backup of the flow.
    pub fn peer_position(&self, flow: &Flow) -> Option<PeerPosition> {
        let mut value = [0; size_of::<types::peer_input>()];
        let found = self.maps.peer_input.lookup_into(bytes(&key_of(flow)), &mut value, MapFlags::ANY);
        let word = |index: usize| {
            value
                .get(index * 4..index * 4 + 4)
                .and_then(|bytes| bytes.try_into().ok())
                .map_or(0, u32::from_ne_bytes)
        };
        matches!(found, Ok(true)).then(|| PeerPosition {
            seq: word(0),
            ack: word(1),
            window: word(2),
            count: word(3),
            timestamps: (word(4), word(5)),
        })
    }

    /// Forgets it, so that the next answer is known to be new.
    pub fn forget_peer_position(&self, flow: &Flow) {
        // The entry may be missing.
        let _ = self.maps.peer_input.delete(bytes(&key_of(flow)));
    }

    /// Frees slots of connections that never came to be: older than `age_ns` and taken by no program. Returns how many.
    /// Looks through the whole table, and counts what it finds, see [`PacketGate::slots_counted`].
    pub fn reclaim(&self, now_ns: u64, age_ns: u64) -> usize {
        self.sweep(now_ns, age_ns, |_| true)
    }

    /// Like [`PacketGate::reclaim`], but only slots whose peers have not answered our SYN-ACK: in a flood they never
    /// will. Slots whose peers have not answered our SYN stay.
    pub fn reclaim_unanswered(&self, now_ns: u64, age_ns: u64) -> usize {
        self.sweep(now_ns, age_ns, |slot| {
            // SAFETY: aligned fields of an entry of the table, which outlives the call.
            let (established, syn_sent) =
                unsafe { (&raw mut (*slot).established, &raw mut (*slot).syn_sent) };
            // SAFETY: as above.
            [established, syn_sent].map(|field| unsafe { AtomicU32::from_ptr(field) }.load(Ordering::Acquire))
                == [0, 0]
        })
    }

    fn sweep(&self, now_ns: u64, age_ns: u64, wanted: impl Fn(*mut types::slot) -> bool) -> usize {
        let (mut freed, mut in_use) = (0, 0);
        for index in 0..self.slots.entries() {
            let pointer = self.slots.pointer(index);
            // SAFETY: aligned fields of an entry of the table.
            let (born, flags) = unsafe {
                (
                    AtomicU64::from_ptr(&raw mut (*pointer).born_ns),
                    AtomicU32::from_ptr(&raw mut (*pointer).flags),
                )
            };
            let born_ns = born.load(Ordering::Acquire);
            in_use += usize::from(born_ns != 0);
            if born_ns == 0 || now_ns.saturating_sub(born_ns) < age_ns || !wanted(pointer) {
                continue;
            }
            let take =
                |free| flags.compare_exchange(free, FLAG_RECOVERED, Ordering::AcqRel, Ordering::Acquire);
            if take(0).is_ok() || take(FLAG_LEARN).is_ok() {
                // SAFETY: the key is written at registration only, and the slot is ours now.
                let key = unsafe { (&raw const (*pointer).key).read_volatile() };
                self.maps.free(&self.slots, index as u32, &key);
                freed += 1;
            }
        }
        self.in_use.store(in_use - freed, Ordering::Relaxed);
        freed
    }

    /// Number of slots in use at the last [`PacketGate::reclaim`], and of all slots.
    pub fn slots_counted(&self) -> (usize, usize) {
        (self.in_use.load(Ordering::Relaxed), self.slots.entries())
    }

    /// Slots of flows that live, start or end.
    pub fn slots_in_use(&self) -> usize {
        let born = |index| {
            let pointer = self.slots.pointer(index);
            // SAFETY: an aligned field of an entry of the table.
            unsafe { AtomicU64::from_ptr(&raw mut (*pointer).born_ns) }.load(Ordering::Relaxed)
        };
        (0..self.slots.entries()).filter(|index| born(*index) != 0).count()
    }
}

impl Maps {
    /// Gives a slot back. The flow's entry goes too, unless a newer connection of the same ends has taken it over.
    pub(crate) fn free(&self, slots: &Table<types::slot>, index: u32, key: &types::flow_key) {
        let mut found = [0; 4];
        let is_ours = |found: [u8; 4]| u32::from_ne_bytes(found) == index;
        // Looked at first: a newer connection must not be without its entry, not even for a moment.
        if let Ok(true) = self.flows.lookup_into(bytes(key), &mut found, MapFlags::ANY)
            && is_ours(found)
            && let Ok(true) = self.flows.lookup_into_and_delete(bytes(key), &mut found)
            && !is_ours(found)
        {
            // Refused only when an even newer connection has registered meanwhile.
            let _ = self.flows.update(bytes(key), &found, MapFlags::NO_EXIST);
        }
        self.end_greeting(slots, index);
        let pointer = slots.pointer(index as usize);
        // SAFETY: an aligned field of an entry of the table.
        unsafe { AtomicU64::from_ptr(&raw mut (*pointer).born_ns) }.store(0, Ordering::Release);
        // The list holds as many entries as there are slots, so it is never full.
        let _ = self.free_slots.update(&[], &index.to_ne_bytes(), MapFlags::ANY);
    }

    /// A program has the connection, or none ever will: it no longer counts among connections that only our kernel
    /// knows.
    pub(crate) fn end_greeting(&self, slots: &Table<types::slot>, index: u32) {
        let pointer = slots.pointer(index as usize);
        // SAFETY: aligned fields of an entry of the table; the bucket is written before the slot is taken.
        let (greeted, bucket) = unsafe {
            (AtomicU32::from_ptr(&raw mut (*pointer).greeted), (&raw const (*pointer).bucket).read_volatile())
        };
        if greeted.swap(0, Ordering::AcqRel) != 0 && usize::from(bucket) < self.greetings.entries() {
            self.greeting(usize::from(bucket)).0.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn greeted_ns(&self, bucket: Bucket) -> Option<u64> {
        let (count, newest_ns) = self.greeting(in_table(bucket)?.index());
        (count.load(Ordering::Acquire) > 0).then(|| newest_ns.load(Ordering::Acquire))
    }

    fn greeting(&self, bucket: usize) -> (&AtomicU64, &AtomicU64) {
        let pointer = self.greetings.pointer(bucket);
        // SAFETY: aligned fields of an entry of the table, which lives as long as this.
        unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*pointer).count),
                AtomicU64::from_ptr(&raw mut (*pointer).newest_ns),
            )
        }
    }
}
