//! Replication state of one connection, beside its state machine: what its backups hold and have acknowledged.

use super::GatedLeg;
use super::stats::Counted;
use crate::host::{Host, Slot};
use evergate_base::Micros;
use evergate_membership::{Bucket, MemberSet, NodeId};
use evergate_replication::{ConnectionId, ConnectionState, Delay, Entry, Frame, LegFacts, Phase};
use std::collections::BTreeMap;

/// Replication state of one connection.
pub(crate) struct ConnectionReplication<H: Host> {
    pub(crate) bucket: Bucket,
    pub(crate) leg: GatedLeg<H>,
    /// State that a backup with all queued entries has.
    pub(super) fold: Box<ConnectionState>,
    /// Legs as sent to the backups.
    pub(super) legs: BTreeMap<u32, LegFacts>,
    /// Entries queued so far.
    pub(super) queued: u64,
    /// Newest entry that each backup has acknowledged.
    acknowledged: Vec<(NodeId, u64)>,
    /// Delay and time of the next timer, if one is due; whether the connection is in the list of acknowledged ones.
    pub(super) timed: Option<(Delay, Micros)>,
    pub(super) listed: bool,
    /// Index of the entry with the client's end, and with the server's.
    pub(super) client_end: Option<u64>,
    pub(super) server_end: Option<(u32, u64)>,
    /// The connection breaks: its client receives a RST, which is never repeated.
    pub(super) broken: bool,
    _counted: Counted,
}

impl<H: Host> ConnectionReplication<H> {
    pub(super) fn new(
        bucket: Bucket,
        leg: GatedLeg<H>,
        fold: ConnectionState,
        counted: Counted,
    ) -> ConnectionReplication<H> {
        ConnectionReplication {
            bucket,
            leg,
            fold: Box::new(fold),
            legs: BTreeMap::new(),
            queued: 0,
            acknowledged: Vec::new(),
            timed: None,
            listed: false,
            client_end: None,
            server_end: None,
            broken: false,
            _counted: counted,
        }
    }

    /// Full state of the connection, for a backup without any.
    pub(super) fn whole(&self, connection: ConnectionId) -> Frame {
        let (state, legs) = (Some(self.fold.clone()), self.legs.clone());
        Frame::Begin { connection, bucket: self.bucket, state, legs }
    }

    /// The connection ends by RST.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
        self.leg.slot.allow_rst();
    }

    /// The client's leg, if its next hop has just become known: a connection accepted with a SYN cookie begins without
    /// one.
    pub(super) fn learn_next_hop(&mut self) -> Option<LegFacts> {
        let facts = self.legs.get_mut(&0).filter(|facts| facts.next_hop == [0; 6])?;
        facts.next_hop = self.leg.slot.next_hop();
        (facts.next_hop != [0; 6]).then_some(*facts)
    }

    /// The newest entry that every node of `required` holds.
    pub(super) fn replicated_by(&self, required: MemberSet) -> u64 {
        let of =
            |node| self.acknowledged.iter().find(|(known, _)| *known == node).map_or(0, |(_, index)| *index);
        required.iter().map(of).min().unwrap_or(self.queued).min(self.queued)
    }

    /// Every node of `nodes` holds everything.
    pub(super) fn is_replicated_by(&self, nodes: MemberSet) -> bool {
        self.replicated_by(nodes) == self.queued
    }

    pub(super) fn note(&mut self, node: NodeId, index: u64) {
        match self.acknowledged.iter_mut().find(|(known, _)| *known == node) {
            Some((_, known)) => *known = (*known).max(index),
            None => self.acknowledged.push((node, index)),
        }
    }

    /// The backups will hold this entry too.
    pub(super) fn apply(&mut self, entry: Entry) {
        self.queued += 1;
        let over = matches!(entry, Entry::Close { .. });
        if let Entry::ServerEnd { leg, .. } = entry {
            self.server_end = Some((leg, self.queued));
        }
        self.fold.apply(entry);
        if self.client_end.is_none() && (over || self.fold.client.phase == Phase::Ended) {
            self.client_end = Some(self.queued);
        }
    }
}
