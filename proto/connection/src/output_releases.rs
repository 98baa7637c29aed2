//! What waits for an entry: ACKs of input, and effects that the outside sees.

use crate::Effect;
use crate::effect::Effects;
use evergate_replication::Side;
use std::collections::VecDeque;

/// ACKs and effects, each with the index of the entry that all backups must hold first.
#[derive(Debug, Default)]
pub(crate) struct OutputReleases {
    acks: VecDeque<(u64, Side, u64)>,
    effects: VecDeque<(u64, Effect)>,
}

impl OutputReleases {
    /// The ACK of this input may be released when the entry is acknowledged.
    pub(crate) fn release(&mut self, after: u64, side: Side, at: u64) {
        self.acks.push_back((after, side, at));
    }

    /// The effect may be performed when the entry is acknowledged.
    pub(crate) fn defer(&mut self, after: u64, effect: Effect) {
        self.effects.push_back((after, effect));
    }

    /// Whether the backups have yet to acknowledge what lets the leg's input be acknowledged.
    pub(crate) fn is_unsettled(&self, leg: u32) -> bool {
        self.acks.iter().any(|(_, side, _)| *side == Side::Server(leg))
    }

    /// Whether an effect waits.
    pub(crate) fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// The connection is over: its effects follow from that.
    pub(crate) fn forget_effects(&mut self) {
        self.effects.clear();
    }

    /// What may happen when the entries so far are acknowledged.
    pub(crate) fn perform(&mut self, acknowledged: u64, effects: &mut Effects) {
        while let Some((index, side, position)) = self.acks.front().copied() {
            if index > acknowledged {
                break;
            }
            self.acks.pop_front();
            effects.push(Effect::Acknowledge { side, position });
        }
        while self.effects.front().is_some_and(|(index, _)| *index <= acknowledged) {
            if let Some((_, effect)) = self.effects.pop_front() {
                effects.push(effect);
            }
        }
    }
}
