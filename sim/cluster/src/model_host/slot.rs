//! Handles of gated flows.

use super::machine::Machine;
use crate::gate::Slot as GateSlot;
use crate::segment::{Flow, number, sequence};
use evergate_base::net::{Flow as Ends, Origin, Strange};
use evergate_worker::host::Slot;
use std::cell::RefCell;
use std::rc::Rc;

/// Link address of every peer.
const NEXT_HOP: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Handle of one slot. Dropping it leaves the flow gated.
pub(crate) struct ModelSlot {
    machine: Rc<RefCell<Machine>>,
    flow: Flow,
    number: u32,
}

impl ModelSlot {
    pub(super) fn new(machine: &Rc<RefCell<Machine>>, flow: Flow, number: u32) -> ModelSlot {
        ModelSlot { machine: machine.clone(), flow, number }
    }

    /// Calls the gate's slot. A slot whose gate has lost its power reads as zero.
    pub(super) fn with<R: Default>(&self, call: impl FnOnce(&mut GateSlot) -> R) -> R {
        let mut machine = self.machine.borrow_mut();
        machine.kernel.slots.at_mut(self.number).map(|entry| call(&mut entry.slot)).unwrap_or_default()
    }
}

impl Slot for ModelSlot {
    fn flow(&self) -> Ends {
        self.flow.into()
    }

    fn index(&self) -> u32 {
        self.number
    }

    fn origin(&self) -> Origin {
        Origin { sent: self.peer_acked(), received: self.committed() }
    }

    fn committed(&self) -> u32 {
        sequence(self.with(|slot| slot.committed))
    }

    fn set_committed(&self, ack: u32) {
        self.with(|slot| slot.committed = number(ack));
    }

    fn sent_ack(&self) -> u32 {
        sequence(self.with(|slot| slot.sent_ack))
    }

    fn peer_acked(&self) -> u32 {
        sequence(self.with(|slot| slot.snd_una))
    }

    fn owes_ack(&self) -> bool {
        self.with(|slot| slot.owes_ack())
    }

    fn is_over(&self, end: u32) -> bool {
        self.with(|slot| slot.is_over(number(end)))
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

    fn allow_rst(&self) {
        self.with(|slot| slot.rst_allowed = true);
    }

    fn open(&self) {
        self.with(|slot| slot.open = true);
    }

    fn set_asleep(&self, asleep: bool) {
        if let Some(entry) = self.machine.borrow_mut().kernel.slots.at_mut(self.number) {
            entry.asleep = asleep;
        }
    }
}
