//! Outputs that wait for the shell, and the counts of what was dropped.
//!
//! Invariant: at most [`TRANSMITS_MAX`] datagrams wait. Events are values that the newest state replaces, so the number
//! of buckets bounds them.

use std::collections::{BTreeMap, VecDeque};

use crate::{Event, NodePhase, Rejected, Role, Transmit};

/// Most datagrams that wait to be sent. A further one is dropped and counted, as if the network had lost it.
pub const TRANSMITS_MAX: usize = 4096;

/// Outputs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Outbox {
    transmits: VecDeque<Transmit>,
    transmits_dropped: u64,
    rejected: [u64; Rejected::ALL.len()],
    state_dropped: bool,
    installed: bool,
    drained: bool,
    reported_roles: BTreeMap<u16, Role>,
    reported_phase: Option<NodePhase>,
}

impl Outbox {
    /// Queues a datagram. `None` is one that could not be encoded, which counts as dropped.
    pub(crate) fn push(&mut self, transmit: Option<Transmit>) {
        match transmit {
            Some(transmit) if self.transmits.len() < TRANSMITS_MAX => self.transmits.push_back(transmit),
            _ => self.transmits_dropped += 1,
        }
    }

    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    pub(crate) fn transmits_dropped(&self) -> u64 {
        self.transmits_dropped
    }

    /// Counts a dropped datagram of a peer.
    pub(crate) fn reject(&mut self, reason: Rejected) {
        let at = Rejected::ALL.iter().position(|known| *known == reason);
        if let Some(count) = at.and_then(|at| self.rejected.get_mut(at)) {
            *count += 1;
        }
    }

    pub(crate) fn rejected(&self, reason: Rejected) -> u64 {
        let at = Rejected::ALL.iter().position(|known| *known == reason);
        at.and_then(|at| self.rejected.get(at)).copied().unwrap_or(0)
    }

    /// Reports that all state was dropped.
    pub(crate) fn note_state_dropped(&mut self) {
        self.state_dropped = true;
    }

    /// Reports that a view was installed.
    pub(crate) fn note_installed(&mut self) {
        self.installed = true;
    }

    /// Reports that the drain is complete.
    pub(crate) fn note_drained(&mut self) {
        self.drained = true;
    }

    /// Whether the drop of the state must be reported. Roles reported before it do not count any more.
    pub(crate) fn poll_state_dropped(&mut self) -> bool {
        let is_dropped = std::mem::take(&mut self.state_dropped);
        if is_dropped {
            self.reported_roles.clear();
        }
        is_dropped
    }

    /// Whether a view was installed since the last call.
    pub(crate) fn poll_installed(&mut self) -> bool {
        std::mem::take(&mut self.installed)
    }

    /// Whether this role of a bucket was not reported yet.
    pub(crate) fn is_new_role(&mut self, bucket: u16, role: Role) -> bool {
        self.reported_roles.insert(bucket, role) != Some(role)
    }

    /// The event for a phase that was not reported yet.
    pub(crate) fn poll_phase(&mut self, phase: NodePhase) -> Option<Event> {
        (self.reported_phase.replace(phase) != Some(phase)).then_some(Event::Phase(phase))
    }

    /// Whether the completion of the drain must be reported.
    pub(crate) fn poll_drained(&mut self) -> bool {
        std::mem::take(&mut self.drained)
    }

    /// Moves the reported roles out, or in again: they are most of an outbox to clone.
    pub(crate) fn swap_reported_roles(&mut self, roles: &mut BTreeMap<u16, Role>) {
        std::mem::swap(&mut self.reported_roles, roles);
    }

    /// Drops what waits.
    pub(crate) fn clear_transmits(&mut self) {
        self.transmits.clear();
    }

    /// Everything that waits to be sent.
    pub(crate) fn into_transmits(self) -> Vec<Transmit> {
        self.transmits.into()
    }
}
