//! Members, sets of nodes, and the networks between nodes. Identifiers that other crates share are in `evergate_base`.
//!
//! Everything here is a plain value with a total order, so that two nodes that compare the same values reach the same
//! result. Time and messages are elsewhere.

pub use evergate_base::{BUCKETS, Bucket, Incarnation, NODES_MAX, NodeId, Term, ViewId};

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A node in one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The node.
    pub id: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// Name of the state of a bucket: the view in which it began empty. Logs of different data epochs are never compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DataEpoch(pub ViewId);

/// The two networks that carry heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// Between the nodes and towards the servers.
    Inside,
    /// Where the clients come from.
    Outside,
}

/// A node's state of one of its networks, as far as it can observe it, from the least useful to the most useful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reach {
    /// The interface has no carrier, or this node cannot send there.
    Gone,
    /// Heartbeats with other nodes fail in one direction or both, and no witness of that network answers.
    Silent,
    /// No fault is visible.
    #[default]
    Works,
}

impl Path {
    /// Both networks, in the order in which messages are sent.
    pub const ALL: [Path; 2] = [Path::Inside, Path::Outside];

    pub(crate) fn index(self) -> usize {
        match self {
            Path::Inside => 0,
            Path::Outside => 1,
        }
    }
}

/// A set of nodes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberSet(pub u32);

impl MemberSet {
    /// No node.
    pub const EMPTY: MemberSet = MemberSet(0);

    /// Just `id`; empty for an id out of range.
    pub const fn of(id: NodeId) -> MemberSet {
        MemberSet(if (id.0 as usize) < NODES_MAX { 1 << id.0 } else { 0 })
    }

    /// Whether `id` is in the set.
    pub const fn contains(self, id: NodeId) -> bool {
        self.0 & MemberSet::of(id).0 != 0
    }

    /// Number of nodes.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set has no node.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// This set with `id`.
    #[must_use]
    pub const fn with(self, id: NodeId) -> MemberSet {
        MemberSet(self.0 | MemberSet::of(id).0)
    }

    /// This set without `id`.
    #[must_use]
    pub const fn without(self, id: NodeId) -> MemberSet {
        MemberSet(self.0 & !MemberSet::of(id).0)
    }

    /// Nodes in either set.
    #[must_use]
    pub const fn union(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 | other.0)
    }

    /// Nodes in both sets.
    #[must_use]
    pub const fn intersection(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 & other.0)
    }

    /// Nodes of this set that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: MemberSet) -> MemberSet {
        MemberSet(self.0 & !other.0)
    }

    /// Whether every node of `other` is in this set.
    pub const fn is_superset(self, other: MemberSet) -> bool {
        other.0 & !self.0 == 0
    }

    /// The nodes in ascending order.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        (0..NODES_MAX as u8).map(NodeId).filter(move |id| self.contains(*id))
    }
}

impl FromIterator<NodeId> for MemberSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(ids: I) -> MemberSet {
        ids.into_iter().fold(MemberSet::EMPTY, MemberSet::with)
    }
}

impl fmt::Debug for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|id| id.0)).finish()
    }
}

/// Members of a view: each node in the incarnation that promised it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Members(pub BTreeMap<NodeId, Incarnation>);

impl Members {
    /// No member.
    pub const NONE: Members = Members(BTreeMap::new());

    /// The nodes, without their incarnations.
    pub fn set(&self) -> MemberSet {
        self.0.keys().copied().collect()
    }

    /// Whether exactly this incarnation of the node is a member.
    pub fn contains(&self, member: Member) -> bool {
        self.0.get(&member.id) == Some(&member.incarnation)
    }

    /// Whether every member of `other` is a member here, in the same incarnation.
    pub fn is_superset(&self, other: &Members) -> bool {
        other.0.iter().all(|(id, incarnation)| self.0.get(id) == Some(incarnation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_out_of_range_is_in_no_set() {
        assert!(MemberSet::of(NodeId(40)).is_empty() && !MemberSet(u32::MAX).contains(NodeId(32)));
    }
}
