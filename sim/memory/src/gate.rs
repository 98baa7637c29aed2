//! The gate of one worker: one bucket, whose flows withhold their FIN and count their ACKs.
//!
//! Holds of the bucket are not modelled, because no segment of a peer arrives by itself.

use crate::machine::Machine;
use crate::process::BUCKET;
use crate::slot::MemorySlot;
use evergate_base::Bucket;
use evergate_base::net::{Flow, GateEvents, Loss, PeerPosition, Probe, Restored, Strange, TcpParams};
use evergate_worker::host::{Gate, Slot};
use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;

/// One worker's part of the gate.
#[derive(Debug)]
pub struct MemoryGate {
    machine: Rc<RefCell<Machine>>,
    /// Flows that wait for their peers' acknowledgement of an end, each with the number after the end.
    finished: Vec<(MemorySlot, u32)>,
}

impl MemoryGate {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>) -> MemoryGate {
        MemoryGate { machine: machine.clone(), finished: Vec::new() }
    }

    fn free(&self, slot: &MemorySlot) {
        self.machine.borrow_mut().slots.remove(slot.index());
    }
}

impl Gate for MemoryGate {
    type Slot = MemorySlot;

    const ACKS_AT_ONCE: usize = 64;

    fn now_ns(&self) -> u64 {
        self.machine.borrow().now_us * 1000
    }

    fn bucket(&self, _: &Flow) -> Bucket {
        BUCKET
    }

    fn ports(&self, bucket: Bucket) -> Option<RangeInclusive<u16>> {
        (bucket == BUCKET).then(|| self.machine.borrow().sources.1.clone())
    }

    fn slot(&mut self, flow: &Flow) -> Option<MemorySlot> {
        let mut machine = self.machine.borrow_mut();
        let index = machine.slots.newest(flow).filter(|(_, slot)| !slot.taken)?.0;
        machine.slots.at_mut(index)?.taken = true;
        Some(MemorySlot::new(&self.machine, *flow, index))
    }

    fn finish(&mut self, slot: MemorySlot, end: Option<u32>) {
        let Some(end) = end else { return self.free(&slot) };
        slot.open();
        match slot.is_over(end) {
            true => self.free(&slot),
            false => self.finished.push((slot, end)),
        }
    }

    fn sweep(&mut self) {
        let over: Vec<_> = self.finished.extract_if(.., |(slot, end)| slot.is_over(*end)).collect();
        over.iter().for_each(|(slot, _)| self.free(slot));
    }

    fn forget_finished(&mut self, _: Option<Bucket>) {
        let all = std::mem::take(&mut self.finished);
        all.iter().for_each(|(slot, _)| self.free(slot));
    }

    fn emit_acks<'a>(&mut self, slots: impl IntoIterator<Item = &'a MemorySlot>) -> io::Result<()>
    where
        MemorySlot: 'a,
    {
        for slot in slots {
            slot.with(|slot| slot.sent_ack = slot.committed);
        }
        Ok(())
    }

    fn wake_at(&self, slot: &MemorySlot, ack: u32) -> bool {
        slot.with(|slot| slot.wake_at(ack))
    }

    fn events(&mut self, into: &mut GateEvents) -> io::Result<()> {
        self.machine.borrow_mut().slots.take_events(into);
        Ok(())
    }

    fn set_pending(&self, _: Bucket, _: bool) {}

    fn restore(&self, from: &Restored) -> io::Result<MemorySlot> {
        let mut machine = self.machine.borrow_mut();
        let now = machine.now_us;
        let index = machine.slots.restore(from, now);
        Ok(MemorySlot::new(&self.machine, from.flow, index))
    }

    fn restore_unless_begun(&self, from: &Restored, since_ns: u64) -> io::Result<Option<MemorySlot>> {
        let machine = self.machine.borrow();
        let begun = machine.slots.newest(&from.flow).is_some_and(|(_, slot)| slot.born_us * 1000 >= since_ns);
        drop(machine);
        (!begun).then(|| self.restore(from)).transpose()
    }

    fn restore_again(&self, slot: MemorySlot, from: &Restored) -> MemorySlot {
        self.free(&slot);
        let mut machine = self.machine.borrow_mut();
        let now = machine.now_us;
        let index = machine.slots.restore(from, now);
        MemorySlot::new(&self.machine, from.flow, index)
    }

    fn peer_position(&self, flow: &Flow) -> Option<PeerPosition> {
        self.machine.borrow().slots.peer_positions.get(&(flow.local, flow.remote)).copied()
    }

    fn forget_peer_position(&self, _: &Flow) {}

    fn has_answered_syn(&self, _: &Flow, _: Strange) -> bool {
        false
    }

    fn hold(&self, _: Bucket) {}

    fn close(&self, _: Bucket) {}

    fn release(&self, _: Bucket) {}

    fn open(&self, _: Bucket) {}

    fn greeted_ns(&self, _: Bucket) -> Option<u64> {
        None
    }

    fn add_neighbour(&self, _: u32, _: IpAddr, _: [u8; 6]) {}

    fn ask(&self, _: &TcpParams, _: &Probe) -> io::Result<()> {
        Ok(()) // positions are set by the test: `MemoryHost::set_peer_position`
    }

    fn notify_loss(&self, _: &TcpParams, _: &Loss, _: u32) -> io::Result<bool> {
        Ok(false) // peers have no selective acknowledgements
    }
}
