//! One gated leg: the slot that withholds its acknowledgements, its TCP parameters, and its positions.
//!
//! [`AckGate`] decides how much safe input is acknowledged; the simulator runs the same code. This file connects it
//! to the slot that the packet filter reads.

use crate::host::{Gate, Host, Slot, SlotOf};
use evergate_base::Micros;
use evergate_base::net::{Stamp, TcpParams};
use evergate_replication::{AckGate, AckSlot, Delay, InputBoundary, LegFacts, Origin, ResumePoint};

/// A leg whose acknowledgements wait for the backups. Forwards to [`AckGate`].
pub(crate) struct GatedLeg<H: Host> {
    pub(crate) slot: SlotOf<H>,
    pub(crate) facts: TcpParams,
    pub(crate) interface: u8,
    positions: AckGate,
}

/// The slot as [`AckGate`] sees it.
struct SlotRef<'a, S>(&'a S);

impl<S: Slot> AckSlot for SlotRef<'_, S> {
    fn committed(&self) -> u32 {
        self.0.committed()
    }

    fn set_committed(&mut self, ack: u32) {
        self.0.set_committed(ack);
    }

    fn sent_ack(&self) -> u32 {
        self.0.sent_ack()
    }

    fn peer_acked(&self) -> u32 {
        self.0.peer_acked()
    }
}

impl<H: Host> GatedLeg<H> {
    /// A leg that was just established.
    pub(crate) fn new(slot: SlotOf<H>, facts: TcpParams, interface: u8, now: Micros) -> GatedLeg<H> {
        let evergate_base::net::Origin { sent, received } = slot.origin();
        let positions = AckGate::new(Origin { sent, received }, facts.mss, now);
        GatedLeg { slot, facts, interface, positions }
    }

    /// A leg of a recovered connection.
    pub(crate) fn resumed(
        slot: SlotOf<H>,
        facts: &LegFacts,
        resume_point: ResumePoint,
        now: Micros,
    ) -> GatedLeg<H> {
        let origin = Origin { sent: facts.sent, received: facts.received };
        let positions = AckGate::resumed(origin, facts.mss, resume_point, now);
        GatedLeg { slot, facts: tcp_params(facts), interface: facts.interface, positions }
    }

    pub(crate) fn restart(&mut self, now: Micros) {
        self.positions.restart(now);
    }

    /// Parameters with which another node can continue the leg.
    pub(crate) fn replicated_info(&self) -> LegFacts {
        let facts = &self.facts;
        let Origin { sent, received } = self.positions.origin();
        LegFacts {
            local: facts.local,
            remote: facts.remote,
            sent,
            received,
            acknowledged: self.slot.committed(),
            mss: facts.mss,
            window_scales: facts.window_scales,
            sack: facts.sack,
            timestamp: facts.stamp.map(|stamp| (stamp.value, stamp.at_ms)),
            interface: self.interface,
            next_hop: self.slot.next_hop(),
        }
    }

    pub(crate) fn handle_read(&mut self, bytes: usize, now: Micros) {
        self.positions.handle_read(bytes, now);
    }

    pub(crate) fn note_next(&mut self) {
        self.positions.note_next(&SlotRef(&self.slot));
    }

    pub(crate) fn note_silence(&mut self) {
        self.positions.note_silence();
    }

    pub(crate) fn can_wait_for_ack(&self) -> bool {
        self.positions.can_wait_for_ack()
    }

    pub(crate) fn handle_end(&mut self) {
        self.positions.handle_end();
    }

    pub(crate) fn handle_written(&mut self, bytes: usize, now: Micros) {
        self.positions.handle_written(bytes, now);
    }

    pub(crate) fn skip_delivered(&mut self, bytes: usize) -> usize {
        self.positions.skip_delivered(bytes)
    }

    pub(crate) fn has_undelivered_skip(&self) -> bool {
        self.positions.has_undelivered_skip()
    }

    pub(crate) fn newly_acked(&mut self) -> Option<u64> {
        self.positions.newly_acked(&SlotRef(&self.slot))
    }

    /// Arranges that the peer's next acknowledgement is noticed: by an event of the gate, or by a timer. `eager`:
    /// something waits for it. True when the peer has acknowledged something meanwhile.
    pub(crate) fn watch(&self, gate: &H::Gate, eager: bool, now: Micros) -> bool {
        self.positions.watched(eager, now).is_some_and(|ack| !gate.wake_at(&self.slot, ack))
    }

    pub(crate) fn release(&mut self, position: u64, now: Micros) -> bool {
        self.positions.release(&mut SlotRef(&self.slot), position, now)
    }

    pub(crate) fn is_overdue(&self, now: Micros) -> bool {
        self.positions.is_overdue(&SlotRef(&self.slot), now)
    }

    pub(crate) fn ack_if_due(&mut self, now: Micros) -> bool {
        self.positions.ack_if_due(&mut SlotRef(&self.slot), now)
    }

    pub(crate) fn on_idle(&mut self, now: Micros) -> bool {
        self.positions.on_idle(&mut SlotRef(&self.slot), now)
    }

    pub(crate) fn received(&self) -> (u32, u32) {
        self.positions.received()
    }

    pub(crate) fn allow_ack(&mut self, sequence: u32, now: Micros) {
        self.positions.allow_ack(&mut SlotRef(&self.slot), sequence, now);
    }

    pub(crate) fn next_ack_check(&self, inside: bool, now: Micros) -> Option<Delay> {
        self.positions.next_ack_check(&SlotRef(&self.slot), inside, now)
    }

    pub(crate) fn is_stalled(&self, extent: InputBoundary, now: Micros) -> bool {
        self.positions.is_stalled(extent, now)
    }

    pub(crate) fn release_end(&mut self) -> bool {
        self.positions.release_end(&mut SlotRef(&self.slot))
    }

    /// Whether the peer has ended its stream, and has acknowledged ours with its end.
    pub(super) fn is_complete(&self) -> bool {
        self.positions.is_complete(&SlotRef(&self.slot))
    }

    pub(super) fn finish_end(&mut self) -> bool {
        self.positions.finish_end(&mut SlotRef(&self.slot))
    }

    pub(super) fn check_invariants(&self) {
        self.positions.check_invariants();
    }

    pub(crate) fn end_sequence(&self) -> u32 {
        self.positions.end_sequence()
    }
}

/// TCP parameters from the replicated facts of a leg.
pub(crate) fn tcp_params(facts: &LegFacts) -> TcpParams {
    TcpParams {
        local: facts.local,
        remote: facts.remote,
        mss: facts.mss,
        window_scales: facts.window_scales,
        sack: facts.sack,
        stamp: facts.timestamp.map(|(value, at_ms)| Stamp { value, at_ms }),
    }
}
