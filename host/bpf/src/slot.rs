//! Slot of one gated flow: the orders of user space to the gate, and the gate's knowledge of both peers.

use crate::Flow;
use crate::Leases;
use crate::flow::key_of;
use crate::skeleton::types;
use crate::table::{Table, atomic};
use crate::worker_port::WorkerPortId;
use evergate_base::net::{Origin, Restored, Strange, ahead_max};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) const FLAG_FIN: u32 = 1;
pub(crate) const FLAG_RST: u32 = 2;
pub(crate) const FLAG_RECOVERED: u32 = 4;
pub(crate) const FLAG_RESTORED: u32 = 8;
pub(crate) const FLAG_OPEN: u32 = 16;
pub(crate) const FLAG_LEARN: u32 = 32;
const FLAG_ASLEEP: u32 = 64;
const FLAG_GONE: u32 = 128;
/// A link address that is not known.
const UNKNOWN: [u8; 6] = [0; 6];
const PORT_SHIFT: u32 = 24;

/// The address of one field, without a reference to memory that the kernel writes.
macro_rules! field {
    ($slot:expr, $name:ident) => {
        // SAFETY: callers pass a pointer into the table; only an address is computed.
        unsafe { &raw mut (*$slot).$name }
    };
}

/// Handle of one gated flow. Exactly one exists per occupied slot; it is returned with
/// [`WorkerPort::finish`](crate::WorkerPort::finish). A dropped handle leaves the flow gated permanently, which is safe
/// but leaks the slot.
pub struct Slot {
    table: Arc<Table<types::slot>>,
    index: u32,
    flow: Flow,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("index", &self.index)
            .field("flow", &self.flow)
            .field("committed", &self.committed())
            .field("peer_acked", &self.peer_acked())
            .finish_non_exhaustive()
    }
}

impl Slot {
    /// Takes a slot for a program; `None` when another handle exists.
    pub(crate) fn take(table: &Arc<Table<types::slot>>, index: u32, flow: Flow) -> Option<Slot> {
        if index as usize >= table.entries() {
            return None;
        }
        let slot = Slot { table: table.clone(), index, flow };
        let was = slot.flags().fetch_or(FLAG_RECOVERED, Ordering::AcqRel);
        (was & FLAG_RECOVERED == 0).then_some(slot)
    }

    /// Writes all of a restored flow. Its bucket must be on hold or not ours yet, or the flow asleep: the gate writes
    /// these lines too once packets flow.
    pub(crate) fn write(table: &Arc<Table<types::slot>>, index: u32, from: &Restored, bucket: u16) -> Slot {
        let pointer = table.pointer(index as usize);
        // SAFETY: the entry lies inside the table. Its flow is not registered, on hold or asleep, so no program writes
        // it; a program that still reads the old flow sees plain integers.
        let generation = unsafe { (&raw const (*pointer).generation).read_volatile() };
        let edge = from.receive.wrapping_add(from.window);
        let mut eth = [0; 14];
        eth[..6].copy_from_slice(&from.next_hop);
        eth[6..12].copy_from_slice(&from.source_mac);
        eth[12..].copy_from_slice(if from.flow.is_ipv6() { &[0x86, 0xdd] } else { &[8, 0] });
        let (tsval, tsecr) = from.timestamps.unwrap_or((0, 0));
        let learn = if from.next_hop == UNKNOWN { FLAG_LEARN } else { 0 };
        let asleep = if from.asleep { FLAG_ASLEEP } else { 0 };
        let value = types::slot {
            committed: from.receive,
            // Written with all other fields: a sleeping flow stays asleep without a gap.
            flags: FLAG_RECOVERED | FLAG_RESTORED | learn | asleep,
            k_ack: from.receive,
            k_edge: edge,
            sent_ack: from.receive,
            sent_edge: edge,
            snd_nxt: from.send,
            snd_una: from.send,
            peer_ack: from.peer_has,
            peer_wscale: u32::from(from.peer_window_scale.min(14)),
            ahead_max: from.send.wrapping_add(ahead_max(from.peer_window_scale)),
            tsval: tsval.to_be(),
            tsecr: tsecr.to_be(),
            established: 1,
            born_ns: Leases::now_ns(),
            key: key_of(&from.flow),
            eth,
            wscale: from.window_scale & 15,
            has_ts: u8::from(from.timestamps.is_some()),
            ifindex: from.interface,
            bucket,
            generation: generation.wrapping_add(1),
            ..types::slot::default()
        };
        // SAFETY: as above.
        unsafe { pointer.write_volatile(value) };
        std::sync::atomic::fence(Ordering::SeqCst);
        Slot { table: table.clone(), index, flow: from.flow }
    }

    /// The flow.
    pub fn flow(&self) -> Flow {
        self.flow
    }

    /// Our end of the flow.
    pub fn local(&self) -> SocketAddr {
        self.flow.local
    }

    /// The number that events carry.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Starts of both streams. Valid only before anything was sent or committed: read it once, when established.
    pub fn origin(&self) -> Origin {
        Origin { sent: self.peer_acked(), received: self.committed() }
    }

    /// Whether the peer has answered our SYN or SYN-ACK.
    pub fn is_established(&self) -> bool {
        self.read(|slot| field!(slot, established)) != 0
    }

    /// The highest ACK that may leave: a sequence number. It must never go backwards. See
    /// [`WorkerPort::emit_acks`](crate::WorkerPort::emit_acks): raising it sends nothing by itself.
    pub fn set_committed(&self, ack: u32) {
        self.field(|slot| field!(slot, committed)).store(ack, Ordering::Release);
    }

    /// The highest ACK that may leave.
    pub fn committed(&self) -> u32 {
        self.field(|slot| field!(slot, committed)).load(Ordering::Acquire)
    }

    /// The highest ACK that has left.
    pub fn sent_ack(&self) -> u32 {
        self.read(|slot| field!(slot, sent_ack))
    }

    /// Whether less has been acknowledged than may be.
    pub fn owes_ack(&self) -> bool {
        self.sent_ack() != self.committed()
    }

    /// The ACK that our kernel would send: all before it was received in order.
    pub fn received(&self) -> u32 {
        self.read(|slot| field!(slot, k_ack))
    }

    /// Highest sequence number that the peer acknowledged, FIN included.
    pub fn peer_acked(&self) -> u32 {
        self.read(|slot| field!(slot, snd_una))
    }

    /// Whether everything up to `end` is done with: the peer has acknowledged it, or one of both ends has sent RST.
    pub fn is_over(&self, end: u32) -> bool {
        self.flags().load(Ordering::Acquire) & FLAG_GONE != 0
            || self.peer_acked().wrapping_sub(end) as i32 >= 0
    }

    /// The end of what our kernel has sent: a sequence number.
    pub fn sent(&self) -> u32 {
        self.read(|slot| field!(slot, snd_nxt))
    }

    /// The last acknowledgement on hold that cannot be this connection's peer's.
    pub fn strange(&self) -> Option<Strange> {
        let ack = self.read(|slot| field!(slot, strange_ack));
        (ack != 0).then(|| Strange { seq: self.read(|slot| field!(slot, strange_seq)), ack })
    }

    /// FIN may leave from now on.
    pub fn allow_fin(&self) {
        self.flags().fetch_or(FLAG_FIN, Ordering::AcqRel);
    }

    /// RST may leave from now on.
    pub fn allow_rst(&self) {
        self.flags().fetch_or(FLAG_RST, Ordering::AcqRel);
    }

    /// Stops withholding: the flow has no backup, or has ended.
    pub fn open(&self) {
        self.flags().fetch_or(FLAG_OPEN, Ordering::AcqRel);
    }

    /// While its socket is being made nothing of the peer may reach it: the kernel would take it in at once.
    pub fn set_asleep(&self, asleep: bool) {
        match asleep {
            true => self.flags().fetch_or(FLAG_ASLEEP, Ordering::AcqRel),
            false => self.flags().fetch_and(!FLAG_ASLEEP, Ordering::AcqRel),
        };
    }

    /// Asks for one event in `port` when the peer has acknowledged up to `ack`. False when it has already: then no
    /// event may come.
    pub fn wake_at(&self, port: WorkerPortId, ack: u32) -> bool {
        let flags = self.flags();
        if flags.load(Ordering::Relaxed) >> PORT_SHIFT != port.number() as u32 {
            flags.fetch_and((1 << PORT_SHIFT) - 1, Ordering::AcqRel);
            flags.fetch_or((port.number() as u32) << PORT_SHIFT, Ordering::AcqRel);
        }
        self.field(|slot| field!(slot, wake_at)).store(ack, Ordering::Release);
        self.field(|slot| field!(slot, armed)).store(1, Ordering::SeqCst);
        // The ACK may have come between the store and this load: one of both sides sees it.
        (self.peer_acked().wrapping_sub(ack) as i32) < 0
    }

    /// Scale of our receive window.
    pub fn window_scale(&self) -> u8 {
        // SAFETY: the entry lies inside the table; the byte is written at registration only.
        unsafe { (&raw const (*self.pointer()).wscale).read_volatile() }
    }

    /// Next link address of the flow's packets: the peer's or its gateway's. Zeros until our kernel has sent a packet
    /// of the flow. While it changes, half of both may be read.
    pub fn next_hop(&self) -> [u8; 6] {
        if self.flags().load(Ordering::Acquire) & FLAG_LEARN != 0 {
            return UNKNOWN;
        }
        // SAFETY: the entry lies inside the table; the bytes are written before the flag is taken away, and plain.
        let eth = unsafe { (&raw const (*self.pointer()).eth).read_volatile() };
        [eth[0], eth[1], eth[2], eth[3], eth[4], eth[5]]
    }

    pub(crate) fn flags(&self) -> &AtomicU32 {
        self.field(|slot| field!(slot, flags))
    }

    fn pointer(&self) -> *mut types::slot {
        self.table.pointer(self.index as usize)
    }

    fn field(&self, pick: impl Fn(*mut types::slot) -> *mut u32) -> &AtomicU32 {
        // SAFETY: `pick` only takes the address of an aligned field of the entry, which lives as long as the table.
        unsafe { atomic(pick(self.pointer())) }
    }

    fn read(&self, pick: impl Fn(*mut types::slot) -> *mut u32) -> u32 {
        self.field(pick).load(Ordering::Acquire)
    }
}
