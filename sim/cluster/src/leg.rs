//! One gated leg: its flow, and the positions of its streams.
//!
//! [`AckGate`] decides how much of the safe input is acknowledged. The daemon runs it too
//! (`worker/replication/gated_leg.rs`). Here it meets the model's gate, whose numbers do not wrap; the numbers of
//! [`AckGate`] do.

use crate::event_queue::Time;
use crate::gate::Slot;
use crate::segment::{FIRST, Flow, number, sequence};
use crate::tcp::SEGMENT;
use evergate_base::Micros;
use evergate_replication::{AckGate, AckSlot, LegFacts, Origin, ResumePoint};

/// A leg behind the gate: see the module's description.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) flow: Flow,
    pub(crate) positions: AckGate,
}

impl AckSlot for Slot {
    fn committed(&self) -> u32 {
        sequence(self.committed)
    }

    fn set_committed(&mut self, ack: u32) {
        self.committed = number(ack);
    }

    fn sent_ack(&self) -> u32 {
        sequence(self.sent_ack)
    }

    fn peer_acked(&self) -> u32 {
        sequence(self.snd_una)
    }
}

impl Leg {
    /// A newly established leg.
    pub(crate) fn new(flow: Flow, now: Time) -> Leg {
        let origin = Origin { sent: sequence(FIRST), received: sequence(FIRST) };
        Leg { flow, positions: AckGate::new(origin, SEGMENT as u16, Micros(now)) }
    }

    /// A recovered leg.
    pub(crate) fn resumed(flow: Flow, facts: &LegFacts, stands: ResumePoint, now: Time) -> Leg {
        let origin = Origin { sent: facts.sent, received: facts.received };
        Leg { flow, positions: AckGate::resumed(origin, facts.mss, stands, Micros(now)) }
    }

    /// The state that another node needs to continue it.
    pub(crate) fn facts(&self) -> LegFacts {
        let Origin { sent, received } = self.positions.origin();
        LegFacts {
            local: self.flow.ours,
            remote: self.flow.theirs,
            sent,
            received,
            acknowledged: received,
            mss: SEGMENT as u16,
            window_scales: None,
            sack: false,
            timestamp: None,
            interface: 0,
            next_hop: [0; 6],
        }
    }

    /// Number after all output and the own FIN.
    pub(crate) fn end(&self) -> u64 {
        number(self.positions.end_sequence())
    }

    /// Numbers of the byte at input position 0, and after the last byte that was read.
    pub(crate) fn received(&self) -> (u64, u64) {
        let (first, read) = self.positions.received();
        (number(first), number(read))
    }
}
