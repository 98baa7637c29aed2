//! What the agent tells a worker.

use evergate_base::Micros;
use evergate_membership::{Bucket, HandoffId, Incarnation, NodeId, Role, Term, ViewId};
use evergate_replication::{Frame, Office};
use std::sync::Arc;

/// What the agent tells a worker.
#[derive(Clone, Debug)]
pub enum Instruction {
    /// Roles that changed.
    Roles(Vec<(Bucket, Role)>),
    /// The buckets are ours and on hold: continue their connections.
    Failover(Arc<FailoverOrder>),
    /// Connections of a frozen bucket that another worker carries: they are kept here should the bucket be handed over.
    Keep(Arc<FrozenConnections>),
    /// Drop everything that is held or mirrored: this node has lost its place in the cluster.
    Void,
}

/// What a worker had of a bucket when it became quiet.
#[derive(Debug)]
pub struct FrozenConnections {
    /// The bucket.
    pub bucket: Bucket,
    /// For which move.
    pub freeze: HandoffId,
    /// Its connections, whole.
    pub frames: Vec<Frame>,
}

/// Buckets that came to this node together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverOrder {
    /// By which the workers say what they are done with.
    pub number: u64,
    /// Each with the office that begins.
    pub buckets: Vec<(Bucket, Office)>,
    /// How long nothing had been heard of who died.
    pub silent: Micros,
}

/// The owner's term as the mirror frames carry it.
pub(crate) fn term_of(term: Term) -> Office {
    Office {
        epoch: term.view.epoch,
        proposer: term.view.proposer.0,
        incarnation: term.view.incarnation.0,
        moves: term.moves,
    }
}

/// The way back.
pub(crate) fn term(term_of: Office) -> Term {
    let view = ViewId {
        epoch: term_of.epoch,
        proposer: NodeId(term_of.proposer),
        incarnation: Incarnation(term_of.incarnation),
    };
    Term { view, moves: term_of.moves }
}
