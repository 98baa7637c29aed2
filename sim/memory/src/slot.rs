//! Handles of gated flows.

use crate::machine::Machine;
use crate::slot_table::{SlotState, reaches};
use evergate_base::net::{Flow, Origin, Strange};
use evergate_worker::host::Slot;
use std::cell::RefCell;
use std::rc::Rc;

/// Link address of every peer.
const NEXT_HOP: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Handle of one slot. Dropping it leaves the flow gated.
#[derive(Debug)]
pub struct MemorySlot {
    machine: Rc<RefCell<Machine>>,
    flow: Flow,
    index: u32,
}

impl MemorySlot {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>, flow: Flow, index: u32) -> MemorySlot {
        MemorySlot { machine: machine.clone(), flow, index }
    }

    /// Calls the slot. A slot that was given back reads as zero.
    pub(crate) fn with<R: Default>(&self, call: impl FnOnce(&mut SlotState) -> R) -> R {
        self.machine.borrow_mut().slots.at_mut(self.index).map(call).unwrap_or_default()
    }

    /// Records an ACK of input that the worker has not read.
    fn check_committed(&self, ack: u32) {
        let mut machine = self.machine.borrow_mut();
        let Some(stream) = machine.stream_of(&self.flow) else { return };
        let (received, is_reset) = (stream.received_sequence(), stream.is_reset());
        if !reaches(received, ack) && !is_reset {
            let flow = self.flow;
            machine.violations.push(format!("{flow:?}: ACK {ack} of input up to {received}"));
        }
    }
}

impl Slot for MemorySlot {
    fn flow(&self) -> Flow {
        self.flow
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn origin(&self) -> Origin {
        let (sent, received) = self.with(|slot| slot.origin);
        Origin { sent, received }
    }

    fn committed(&self) -> u32 {
        self.with(|slot| slot.committed)
    }

    fn set_committed(&self, ack: u32) {
        self.check_committed(ack);
        self.with(|slot| slot.committed = ack);
    }

    fn sent_ack(&self) -> u32 {
        self.with(|slot| slot.sent_ack)
    }

    fn peer_acked(&self) -> u32 {
        self.with(|slot| slot.peer_acked)
    }

    fn owes_ack(&self) -> bool {
        self.with(|slot| slot.sent_ack != slot.committed)
    }

    fn is_over(&self, end: u32) -> bool {
        self.with(|slot| slot.is_over(end))
    }

    fn strange(&self) -> Option<Strange> {
        None
    }

    fn next_hop(&self) -> [u8; 6] {
        NEXT_HOP
    }

    fn allow_fin(&self) {
        self.with(|slot| slot.fin_allowed = true);
    }

    fn allow_rst(&self) {}

    fn open(&self) {
        self.with(|slot| slot.open = true);
    }

    fn set_asleep(&self, _: bool) {}
}
