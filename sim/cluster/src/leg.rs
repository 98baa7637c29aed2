//! One gated leg: its flow, and where its streams stand.
//!
//! How much of what is safe is acknowledged is decided in [`Positions`], which the daemon runs too (its
//! `worker/cluster/leg.rs`); here it meets the model's gate, whose numbers do not wrap: those of [`Positions`] do.

use crate::event_queue::Time;
use crate::gate::Slot;
use crate::segment::{FIRST, Flow, number, sequence};
use crate::tcp::SEGMENT;
use evergate_base::Micros;
use evergate_replication::{AckGate, AckSlot, LegFacts, Origin, ResumePoint};

/// See the module.
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
    /// A leg that was just established.
    pub(crate) fn new(flow: Flow, now: Time) -> Leg {
        let origin = Origin { sent: sequence(FIRST), received: sequence(FIRST) };
        Leg { flow, positions: AckGate::new(origin, SEGMENT as u16, Micros(now)) }
    }

    /// A leg taken over.
    pub(crate) fn resumed(flow: Flow, facts: &LegFacts, stands: ResumePoint, now: Time) -> Leg {
        let origin = Origin { sent: facts.sent, received: facts.received };
        Leg { flow, positions: AckGate::resumed(origin, facts.mss, stands, Micros(now)) }
    }

    /// What another node needs to continue it.
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

    /// Number after all output and our FIN.
    pub(crate) fn end(&self) -> u64 {
        number(self.positions.end_sequence())
    }

    /// Numbers of the byte at input position 0, and after the last byte that was read.
    pub(crate) fn received(&self) -> (u64, u64) {
        let (first, read) = self.positions.received();
        (number(first), number(read))
    }
}
