//! The gate's table of flows, as in `host/bpf`: a slot by its number, and the number by the flow.
//!
//! Invariant: a flow leads to one slot. A slot that its flow does not lead to any more stays readable for its handle
//! until that gives it back.

use crate::event_queue::Time;
use crate::gate::Slot;
use crate::segment::Flow;
use std::collections::{BTreeMap, VecDeque};

/// A slot with its place in the life of its flow.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) flow: Flow,
    pub(crate) slot: Slot,
    /// Whether a program has its handle.
    pub(crate) taken: bool,
    /// Whether its socket does not exist yet.
    pub(crate) asleep: bool,
    pub(crate) born: Time,
}

/// All slots: see the module's description.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    numbers: BTreeMap<Flow, u32>,
    entries: Vec<Option<Entry>>,
    free: VecDeque<u32>,
}

impl SlotTable {
    /// Number of a flow's slot.
    pub(crate) fn number(&self, flow: Flow) -> Option<u32> {
        self.numbers.get(&flow).copied()
    }

    pub(crate) fn at(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)?.as_ref()
    }

    pub(crate) fn at_mut(&mut self, number: u32) -> Option<&mut Entry> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub(crate) fn of(&self, flow: Flow) -> Option<&Entry> {
        self.at(self.number(flow)?)
    }

    pub(crate) fn of_mut(&mut self, flow: Flow) -> Option<&mut Entry> {
        self.at_mut(self.number(flow)?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    /// Enters a flow; a slot that no program has taken is replaced. Returns the number.
    pub(crate) fn enter(&mut self, entry: Entry) -> u32 {
        if let Some(before) = self.number(entry.flow)
            && self.at(before).is_some_and(|entry| !entry.taken)
        {
            self.remove(before);
        }
        let number = self.free.pop_front().unwrap_or(self.entries.len() as u32);
        if number as usize == self.entries.len() {
            self.entries.push(None);
        }
        self.numbers.insert(entry.flow, number);
        self.entries[number as usize] = Some(entry);
        number
    }

    /// Frees a slot; its flow is forgotten unless it leads to another one.
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(entry) = self.entries.get_mut(number as usize).and_then(Option::take) else { return };
        if self.numbers.get(&entry.flow) == Some(&number) {
            self.numbers.remove(&entry.flow);
        }
        self.free.push_back(number);
    }
}
