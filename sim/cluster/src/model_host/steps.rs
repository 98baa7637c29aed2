//! Steps that a worker reported, as far as tests count them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::AddAssign;

/// Counts of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCounts {
    /// Connections that resumed while they were idle.
    pub(crate) idle_resumed: u64,
    /// Of these, connections whose client sent a segment first.
    pub(crate) early_resumed: u64,
    /// Tickets that left with an acknowledgement.
    pub(crate) tickets_with_acks: u64,
    /// Calls after which entries waited for later ones.
    pub(crate) entries_batched: u64,
}

impl AddAssign for StepCounts {
    fn add_assign(&mut self, other: StepCounts) {
        self.idle_resumed += other.idle_resumed;
        self.early_resumed += other.early_resumed;
        self.tickets_with_acks += other.tickets_with_acks;
        self.entries_batched += other.entries_batched;
    }
}

/// Steps of one process.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) counts: StepCounts,
    turn: u64,
    /// The turn in which a client's connection was gated: one of an active connection lasts several turns.
    gated: BTreeMap<SocketAddr, u64>,
    /// Clients whose segments came before their sockets.
    early: BTreeSet<SocketAddr>,
    /// The first event that must never occur.
    failure: Option<String>,
}

impl Steps {
    pub(super) fn reached(&mut self, step: &str, client: Option<SocketAddr>) {
        match (step, client) {
            ("turn", _) => self.turn += 1,
            ("tickets", _) => self.counts.tickets_with_acks += 1,
            ("wait", _) => self.counts.entries_batched += 1,
            ("gate", Some(client)) => drop(self.gated.insert(client, self.turn)),
            ("resume", Some(client)) => {
                let idle = self.gated.remove(&client) == Some(self.turn);
                let early = self.early.remove(&client);
                self.counts.idle_resumed += u64::from(idle);
                self.counts.early_resumed += u64::from(idle && early);
            }
            ("unrestorable", _) => self.fail(format!("the connection of {client:?} cannot be restored")),
            _ => {}
        }
    }

    pub(super) fn received_early(&mut self, client: SocketAddr) {
        self.early.insert(client);
    }

    pub(super) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// The first failure since the last call.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }
}
