//! The gate's table: what each gated flow may send, and what its peer has acknowledged.

use evergate_base::net::{Flow, GateEvents, PeerPosition, Restored};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The gate's memory of one flow. Numbers are sequence numbers of TCP.
#[derive(Clone, Debug)]
pub(crate) struct SlotState {
    pub(crate) flow: Flow,
    /// Where positions of both streams begin: sent and received.
    pub(crate) origin: (u32, u32),
    pub(crate) committed: u32,
    pub(crate) sent_ack: u32,
    pub(crate) peer_acked: u32,
    pub(crate) fin_allowed: bool,
    pub(crate) open: bool,
    /// A worker has its handle.
    pub(crate) taken: bool,
    /// When it was made, in microseconds.
    pub(crate) born_us: u64,
    /// Number whose acknowledgement the worker waits for.
    wakes_at: Option<u32>,
    /// One of both ends has sent RST.
    gone: bool,
}

impl SlotState {
    fn new(flow: Flow, born_us: u64, (send, receive): (u32, u32)) -> SlotState {
        SlotState {
            flow,
            origin: (send, receive),
            committed: receive,
            sent_ack: receive,
            peer_acked: send,
            fin_allowed: false,
            open: false,
            taken: false,
            born_us,
            wakes_at: None,
            gone: false,
        }
    }

    /// Whether the peer has acknowledged everything up to `end`, or is gone.
    pub(crate) fn is_over(&self, end: u32) -> bool {
        self.gone || reaches(self.peer_acked, end)
    }

    /// Arms an event. False when the peer has acknowledged that much already.
    pub(crate) fn wake_at(&mut self, ack: u32) -> bool {
        self.wakes_at = Some(ack);
        !reaches(self.peer_acked, ack)
    }
}

/// Whether sequence number `at` is not before `end`.
pub(crate) fn reaches(at: u32, end: u32) -> bool {
    at.wrapping_sub(end) as i32 >= 0
}

/// All gated flows of a machine.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    slots: Vec<Option<SlotState>>,
    /// Positions that peers reported to a node that had no socket of theirs.
    pub(crate) peer_positions: BTreeMap<(SocketAddr, SocketAddr), PeerPosition>,
    events: GateEvents,
}

impl SlotTable {
    /// A new flow, from its first packet on.
    pub(crate) fn enter(&mut self, flow: Flow, born_us: u64) {
        self.insert(SlotState::new(flow, born_us, (1, 1)));
    }

    /// A flow that lived elsewhere. Returns its number.
    pub(crate) fn restore(&mut self, from: &Restored, born_us: u64) -> u32 {
        let state = SlotState::new(from.flow, born_us, (from.send, from.receive));
        self.insert(SlotState { taken: true, ..state })
    }

    fn insert(&mut self, state: SlotState) -> u32 {
        self.slots.push(Some(state));
        (self.slots.len() - 1) as u32
    }

    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut SlotState> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// The newest slot of a flow, with its number.
    pub(crate) fn newest(&self, flow: &Flow) -> Option<(u32, &SlotState)> {
        let all = self.slots.iter().enumerate().rev();
        let mut known = all.filter_map(|(index, slot)| Some((index as u32, slot.as_ref()?)));
        known.find(|(_, slot)| slot.flow == *flow)
    }

    fn newest_mut(&mut self, flow: &Flow) -> Option<(u32, &mut SlotState)> {
        let index = self.newest(flow)?.0;
        Some((index, self.at_mut(index)?))
    }

    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            *slot = None;
        }
    }

    /// Output of a flow carries its newest ACK.
    pub(crate) fn note_output(&mut self, flow: &Flow) {
        if let Some((_, slot)) = self.newest_mut(flow) {
            slot.sent_ack = slot.committed;
        }
    }

    /// One of both ends of a flow has sent RST.
    pub(crate) fn note_reset(&mut self, flow: &Flow) {
        if let Some((_, slot)) = self.newest_mut(flow) {
            slot.gone = true;
        }
    }

    /// The peer of a flow acknowledges everything before `ack`.
    pub(crate) fn note_ack(&mut self, flow: &Flow, ack: u32) {
        let Some((index, slot)) = self.newest_mut(flow) else { return };
        if reaches(ack, slot.peer_acked) {
            slot.peer_acked = ack;
        }
        if slot.wakes_at.take_if(|at| reaches(ack, *at)).is_some() {
            self.events.woken.push(index);
        }
    }

    /// Whether the FIN of a flow may not leave.
    pub(crate) fn withholds_fin(&self, flow: &Flow) -> bool {
        self.newest(flow).is_some_and(|(_, slot)| slot.taken && !slot.fin_allowed && !slot.open)
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.woken.is_empty() || !self.events.early.is_empty()
    }

    pub(crate) fn take_events(&mut self, into: &mut GateEvents) {
        into.woken.append(&mut self.events.woken);
        into.early.append(&mut self.events.early);
    }
}
