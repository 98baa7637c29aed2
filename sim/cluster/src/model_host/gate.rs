//! The gate as a worker uses it.

use super::machine::{Machine, Object};
use super::slot::ModelSlot;
use crate::event_queue::Time;
use crate::gate::Slot as GateSlot;
use crate::ports::{PORT, ports_of};
use crate::segment::{Flow, Segment, number};
use crate::slot_table::Entry;
use evergate_base::Bucket;
use evergate_base::net::{Flow as Ends, GateEvents, Loss, PeerPosition, Probe, Restored, Strange, TcpParams};
use evergate_worker::host::{Gate, Slot};
use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;

/// Longest wait of a finished flow for its peer's last ACK.
const FINISH_MAX: Time = 60_000_000;

/// A flow that was given back and waits for its peer.
struct Finished {
    slot: ModelSlot,
    end: u32,
    until: Time,
}

/// One worker's part of the gate.
pub(crate) struct ModelGate {
    machine: Rc<RefCell<Machine>>,
    finished: Vec<Finished>,
}

impl ModelGate {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>) -> ModelGate {
        ModelGate { machine: machine.clone(), finished: Vec::new() }
    }

    /// A descriptor of its events.
    pub(crate) fn events_descriptor(&self) -> i32 {
        self.machine.borrow_mut().registrations.open(Object::GateEvents)
    }

    fn free(&self, slot: &ModelSlot) {
        self.machine.borrow_mut().kernel.slots.remove(slot.index());
    }

    fn enter(&self, from: &Restored) -> ModelSlot {
        let (flow, mut machine) = (Flow::from(from.flow), self.machine.borrow_mut());
        let slot = GateSlot::restored(from);
        let entry = Entry { flow, slot, taken: true, asleep: from.asleep, born: machine.now };
        let number = machine.kernel.slots.enter(entry);
        ModelSlot::new(&self.machine, flow, number)
    }
}

impl Gate for ModelGate {
    type Slot = ModelSlot;

    const ACKS_AT_ONCE: usize = 64;

    fn now_ns(&self) -> u64 {
        self.machine.borrow().now * 1000
    }

    fn bucket(&self, flow: &Ends) -> Bucket {
        self.machine.borrow().kernel.bucket((*flow).into())
    }

    fn ports(&self, bucket: Bucket) -> Option<RangeInclusive<u16>> {
        (bucket.0 < self.machine.borrow().kernel.buckets).then(|| ports_of(bucket))
    }

    fn slot(&mut self, flow: &Ends) -> Option<ModelSlot> {
        let (flow, mut machine) = (Flow::from(*flow), self.machine.borrow_mut());
        let number = machine.kernel.slots.number(flow)?;
        let entry = machine.kernel.slots.at_mut(number).filter(|entry| !entry.taken)?;
        entry.taken = true;
        Some(ModelSlot::new(&self.machine, flow, number))
    }

    fn finish(&mut self, slot: ModelSlot, end: Option<u32>) {
        let Some(end) = end else { return self.free(&slot) };
        slot.open();
        if slot.is_over(end) {
            return self.free(&slot);
        }
        let until = self.machine.borrow().now + FINISH_MAX;
        self.finished.push(Finished { slot, end, until });
    }

    fn sweep(&mut self) {
        let now = self.machine.borrow().now;
        let over = |finished: &mut Finished| finished.slot.is_over(finished.end) || finished.until <= now;
        let over: Vec<Finished> = self.finished.extract_if(.., over).collect();
        over.iter().for_each(|finished| self.free(&finished.slot));
    }

    fn forget_finished(&mut self, bucket: Option<Bucket>) {
        for finished in std::mem::take(&mut self.finished) {
            match bucket.is_none_or(|bucket| self.bucket(&finished.slot.flow()) == bucket) {
                true => self.free(&finished.slot),
                false => self.finished.push(finished),
            }
        }
    }

    fn emit_acks<'a>(&mut self, slots: impl IntoIterator<Item = &'a ModelSlot>) -> io::Result<()>
    where
        ModelSlot: 'a,
    {
        for slot in slots {
            let mut machine = self.machine.borrow_mut();
            let now = machine.now;
            machine.kernel.emit_ack(now, slot.index());
        }
        Ok(())
    }

    fn wake_at(&self, slot: &ModelSlot, ack: u32) -> bool {
        slot.with(|slot| slot.wake_at(number(ack)))
    }

    fn events(&mut self, into: &mut GateEvents) -> io::Result<()> {
        let events = &mut self.machine.borrow_mut().kernel.events;
        into.woken.append(&mut events.woken);
        into.early.append(&mut events.diverted);
        Ok(())
    }

    fn set_pending(&self, bucket: Bucket, pending: bool) {
        let all = &mut self.machine.borrow_mut().kernel.words.pending;
        match pending {
            true => all.insert(bucket),
            false => all.remove(&bucket),
        };
    }

    fn restore(&self, from: &Restored) -> io::Result<ModelSlot> {
        Ok(self.enter(from))
    }

    fn restore_unless_begun(&self, from: &Restored, since_ns: u64) -> io::Result<Option<ModelSlot>> {
        let begun = |entry: &Entry| entry.born * 1000 >= since_ns;
        let begun = self.machine.borrow().kernel.slots.of(from.flow.into()).is_some_and(begun);
        Ok((!begun).then(|| self.enter(from)))
    }

    fn restore_again(&self, slot: ModelSlot, from: &Restored) -> ModelSlot {
        if let Some(entry) = self.machine.borrow_mut().kernel.slots.at_mut(slot.index()) {
            (entry.slot, entry.asleep) = (GateSlot::restored(from), from.asleep);
        }
        slot
    }

    fn peer_position(&self, flow: &Ends) -> Option<PeerPosition> {
        self.machine.borrow().kernel.peer_positions.get(&Flow::from(*flow)).copied()
    }

    fn forget_peer_position(&self, flow: &Ends) {
        self.machine.borrow_mut().kernel.peer_positions.remove(&Flow::from(*flow));
    }

    fn has_answered_syn(&self, _: &Ends, _: Strange) -> bool {
        false
    }

    fn hold(&self, bucket: Bucket) {
        self.machine.borrow_mut().kernel.words.held.insert(bucket);
    }

    fn close(&self, bucket: Bucket) {
        self.machine.borrow_mut().kernel.words.closed.insert(bucket);
    }

    fn release(&self, bucket: Bucket) {
        self.machine.borrow_mut().kernel.words.held.remove(&bucket);
    }

    fn open(&self, bucket: Bucket) {
        self.machine.borrow_mut().kernel.words.closed.remove(&bucket);
    }

    fn greeted_ns(&self, bucket: Bucket) -> Option<u64> {
        let kernel = &self.machine.borrow().kernel;
        let greeted = |entry: &&crate::slot_table::Entry| {
            !entry.taken && entry.flow.ours.port() == PORT && kernel.bucket(entry.flow) == bucket
        };
        kernel.slots.iter().filter(greeted).map(|entry| entry.born * 1000).max()
    }

    fn add_neighbour(&self, _: u32, _: IpAddr, _: [u8; 6]) {}

    fn ask(&self, params: &TcpParams, probe: &Probe) -> io::Result<()> {
        let mut machine = self.machine.borrow_mut();
        let (flow, now) = (Flow { ours: params.local, theirs: params.remote }, machine.now);
        let ack = number(probe.ack);
        let edge = ack + u64::from(probe.window);
        machine.kernel.transmit(now, Segment::probe(flow, number(probe.acknowledged), ack, edge));
        Ok(())
    }

    fn notify_loss(&self, _: &TcpParams, _: &Loss, _: u32) -> io::Result<bool> {
        Ok(false) // peers have no selective acknowledgements
    }
}
