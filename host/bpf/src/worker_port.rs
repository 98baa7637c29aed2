//! Worker port: the part of the gate that one worker thread uses. It has events, a batch of ACKs, and slots.

use crate::GateError;
use crate::early_segment::read_segment;
use crate::flow::key_of;
use crate::gate::{Maps, Programs};
use crate::skeleton::types;
use crate::slot::{FLAG_FIN, FLAG_OPEN, FLAG_RST, Slot};
use crate::table::{Table, bytes};
use evergate_base::net::{Flow, GateEvents};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, RingBuffer, RingBufferBuilder};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Most ACKs per system call.
pub const BATCH: usize = 64;
const PORTS_MAX: usize = 64;
/// GateEvents that a worker can be behind by; beyond it they are lost and counted.
const RING_BYTES: u32 = 1 << 20;
/// Bound on events read at once, and on segments that wait to be read: a fast sender must not keep the worker from its
/// other work.
const EVENTS_MAX: usize = 1024;
/// Longest wait of a finished flow for the peer's last ACK before its slot is freed, in nanoseconds.
const FINISH_NS_MAX: u64 = 60_000_000_000;

/// Number of a worker port: one per worker, 0 to 63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerPortId(u8);

impl WorkerPortId {
    /// The port of this worker.
    pub fn new(worker: usize) -> Result<WorkerPortId, GateError> {
        if worker < PORTS_MAX {
            Ok(WorkerPortId(worker as u8))
        } else {
            Err(GateError::WorkerPort { worker })
        }
    }

    /// Its number.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }
}

struct Finished {
    slot: Slot,
    end: u32,
    deadline_ns: u64,
}

/// GateEvents, ACK batch and slots of one worker thread.
pub struct WorkerPort {
    id: WorkerPortId,
    maps: Arc<Maps>,
    programs: Arc<Programs>,
    slots: Arc<Table<types::slot>>,
    batches: Arc<Table<types::batch>>,
    ring: RingBuffer<'static>,
    pending: Arc<Mutex<GateEvents>>,
    finished: VecDeque<Finished>,
}

impl WorkerPort {
    pub(crate) fn new(
        id: WorkerPortId,
        maps: Arc<Maps>,
        programs: Arc<Programs>,
        slots: Arc<Table<types::slot>>,
        batches: Arc<Table<types::batch>>,
    ) -> Result<WorkerPort, GateError> {
        let failed = |error: libbpf_rs::Error| {
            GateError::bpf(format!("making the event ring of worker {}", id.0), &error)
        };
        let options =
            sys::bpf_map_create_opts { sz: size_of::<sys::bpf_map_create_opts>() as _, ..Default::default() };
        let ring = MapHandle::create(MapType::RingBuf, Some("events"), 0, 0, RING_BYTES, &options)
            .map_err(failed)?;
        let fd = ring.as_fd().as_raw_fd();
        maps.events
            .update(&u32::from(id.0).to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed)?;
        let pending = Arc::new(Mutex::new(GateEvents::default()));
        let sink = pending.clone();
        let mut builder = RingBufferBuilder::new();
        let take = move |data: &[u8]| {
            if let Ok(mut pending) = sink.lock() {
                match <[u8; 4]>::try_from(data) {
                    Ok(index) => pending.woken.push(u32::from_ne_bytes(index)),
                    Err(_) if pending.early.len() < EVENTS_MAX => pending.early.extend(read_segment(data)),
                    Err(_) => {} // the peer sends the segment again
                }
            }
            0
        };
        builder.add(&ring, take).map_err(failed)?;
        let ring = builder.build().map_err(failed)?;
        Ok(WorkerPort { id, maps, programs, slots, batches, ring, pending, finished: VecDeque::new() })
    }

    /// Its number.
    pub fn id(&self) -> WorkerPortId {
        self.id
    }

    /// The slot of a flow: after accept or connect. `None` when the flow is not gated or another handle of its slot
    /// exists.
    pub fn slot(&self, flow: &Flow) -> Option<Slot> {
        let mut index = [0; 4];
        let found = self.maps.flows.lookup_into(bytes(&key_of(flow)), &mut index, MapFlags::ANY);
        match found {
            Ok(true) => {
                let slot = Slot::take(&self.slots, u32::from_ne_bytes(index), *flow)?;
                self.maps.end_greeting(&self.slots, slot.index());
                Some(slot)
            }
            _ => None,
        }
    }

    /// Readable when events wait.
    pub fn events_fd(&self) -> RawFd {
        self.ring.epoll_fd()
    }

    /// Moves what has happened into `into`: at most 1,024 events, more stay for the next time.
    pub fn events(&mut self, into: &mut GateEvents) -> io::Result<()> {
        let taken = self.ring.consume_raw_n(EVENTS_MAX);
        if taken < 0 {
            return Err(io::Error::from_raw_os_error(-taken));
        }
        if let Ok(mut pending) = self.pending.lock() {
            into.woken.append(&mut pending.woken);
            into.early.append(&mut pending.early);
        }
        Ok(())
    }

    /// Sends an ACK at `committed` for each slot, in batches. Pass only slots that owe one ([`Slot::owes_ack`]), in the
    /// network namespace of the node. An ACK that cannot be sent is no error: the peer retransmits.
    pub fn emit_acks<'a>(&mut self, slots: impl IntoIterator<Item = &'a Slot>) -> io::Result<()> {
        let (mut batches, mut result) = ([([0; BATCH], 0), ([0; BATCH], 0)], Ok(()));
        for slot in slots {
            let v6 = slot.flow().is_ipv6();
            let (indexes, count) = &mut batches[usize::from(v6)];
            indexes[*count] = slot.index();
            *count += 1;
            if *count == BATCH {
                result = result.and(self.emit(&indexes[..], v6));
                *count = 0;
            }
        }
        for (v6, (indexes, count)) in batches.iter().enumerate() {
            if *count > 0 {
                result = result.and(self.emit(&indexes[..*count], v6 == 1));
            }
        }
        result
    }

    fn emit(&mut self, indexes: &[u32], v6: bool) -> io::Result<()> {
        let batch = self.batches.pointer(self.id.number());
        for (place, index) in indexes.iter().take(BATCH).enumerate() {
            // SAFETY: the place lies inside the port's own batch, which only this thread and its test run use.
            unsafe { (&raw mut (*batch).slot[place]).write_volatile(*index) };
        }
        // SAFETY: as above.
        unsafe { (&raw mut (*batch).count).write_volatile(indexes.len() as u32) };
        std::sync::atomic::fence(Ordering::SeqCst);
        let mut frame = [0; 86];
        frame[..4].copy_from_slice(&u32::from(self.id.0).to_ne_bytes());
        let (ethertype, length) = if v6 { ([0x86, 0xdd], 86) } else { ([8, 0], 66) };
        frame[12..14].copy_from_slice(&ethertype);
        // The test run wants a plausible IP header to start from.
        frame[14] = if v6 { 0x60 } else { 0x45 };
        let mut options = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: length,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: the options describe `frame`, which lives across the call; nothing is written back.
        let result = unsafe { sys::bpf_prog_test_run_opts(self.programs.emit.as_raw_fd(), &raw mut options) };
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }

    /// Returns a slot. With `end`, the sequence number after our FIN, its packets pass until the peer has
    /// acknowledged it, at most a minute, see [`WorkerPort::sweep`]; without, the flow is forgotten at once and what
    /// its socket still sends is stopped.
    pub fn finish(&mut self, slot: Slot, end: Option<u32>, now_ns: u64) {
        let Some(end) = end else {
            self.free(&slot);
            return;
        };
        slot.flags().fetch_or(FLAG_OPEN | FLAG_FIN | FLAG_RST, Ordering::AcqRel);
        if slot.is_over(end) {
            self.free(&slot);
        } else {
            self.finished.push_back(Finished { slot, end, deadline_ns: now_ns + FINISH_NS_MAX });
        }
    }

    /// Frees finished slots whose peer has acknowledged the end, or has had its time. Call it now and then.
    pub fn sweep(&mut self, now_ns: u64) {
        for _ in 0..self.finished.len() {
            let Some(finished) = self.finished.pop_front() else { return };
            if finished.slot.is_over(finished.end) || now_ns >= finished.deadline_ns {
                self.free(&finished.slot);
            } else {
                self.finished.push_back(finished);
            }
        }
    }

    /// Frees the finished slots of these flows: another node may continue them, and nothing that their sockets still
    /// hold may leave when their bucket returns.
    pub fn forget_finished(&mut self, of: impl Fn(&Flow) -> bool) {
        for finished in std::mem::take(&mut self.finished) {
            match of(&finished.slot.flow()) {
                true => self.free(&finished.slot),
                false => self.finished.push_back(finished),
            }
        }
    }

    /// Finished flows that still wait for their peer.
    pub fn finishing(&self) -> usize {
        self.finished.len()
    }

    fn free(&self, slot: &Slot) {
        self.maps.free(&self.slots, slot.index(), &key_of(&slot.flow()));
    }
}
