//! Identifiers of a cluster: nodes, incarnations, views, buckets and terms.
//!
//! Each identifier is a plain value with a total order: two nodes that compare the same identifiers get the same
//! result. No identifier depends on time or messages. postcard encodes a [`Term`] as its four numbers: epoch, proposer,
//! incarnation, moves.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Most nodes of a cluster: the eBPF maps represent a set of nodes as one 32-bit word.
pub const NODES_MAX: usize = 32;

/// Number of buckets that client 4-tuples are divided into.
pub const BUCKETS: u16 = 1024;

/// Index of a node in the static node list, below [`NODES_MAX`]. The configuration counts from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u8);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// One run of a node: random at each process start, one higher each time the node drops its state. Messages to or from
/// an earlier incarnation are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The receiver's incarnation in a first message.
    pub const UNKNOWN: Incarnation = Incarnation(0);

    /// The following incarnation, never [`Incarnation::UNKNOWN`].
    #[must_use]
    pub fn next(self) -> Incarnation {
        Incarnation(self.0.wrapping_add(1).max(1))
    }
}

/// Identifier of a view. A later view compares greater; two proposers never use the same identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ViewId {
    /// Number of the view; zero means "none".
    pub epoch: u64,
    /// The node that proposed the view.
    pub proposer: NodeId,
    /// The proposer's incarnation.
    pub incarnation: Incarnation,
}

impl ViewId {
    /// Below every view.
    pub const NONE: ViewId = ViewId { epoch: 0, proposer: NodeId(0), incarnation: Incarnation::UNKNOWN };
}

impl fmt::Display for ViewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "view {} of {}", self.epoch, self.proposer)
    }
}

/// One class of connections, below [`BUCKETS`] in a valid message. All connections of a bucket have the same owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bucket(pub u16);

impl Bucket {
    /// All buckets in order.
    pub fn all() -> impl Iterator<Item = Bucket> {
        (0..BUCKETS).map(Bucket)
    }

    /// Position in a table of buckets. A table may have fewer than `index() + 1` entries.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// One ownership period of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Term {
    /// The view that assigned the bucket.
    pub view: ViewId,
    /// Moves of the bucket inside that view.
    pub moves: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_view_compares_greater_and_proposers_differ() {
        let view = |epoch, proposer, incarnation| ViewId {
            epoch,
            proposer: NodeId(proposer),
            incarnation: Incarnation(incarnation),
        };
        assert!(view(2, 0, 9) > view(1, 7, 99));
        assert!(view(2, 1, 1) > view(2, 0, 9));
        assert!(view(1, 0, 1) > ViewId::NONE);
    }

    #[test]
    fn incarnation_after_the_last_number_is_known() {
        assert_eq!(Incarnation(u64::MAX).next(), Incarnation(1));
    }
}
