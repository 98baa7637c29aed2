//! Messages from the agent to a worker.

use evergate_base::Micros;
use evergate_membership::{Bucket, HandoffId, OwnershipStart, Role, Term};
use evergate_replication::Frame;
use std::sync::Arc;

/// A message from the agent to a worker.
#[derive(Clone, Debug)]
pub enum Instruction {
    /// Roles that changed.
    Roles(Vec<(Bucket, Role)>),
    /// This node owns the buckets, and they are on hold: continue their connections.
    Failover(Arc<FailoverOrder>),
    /// Connections of a frozen bucket that another worker serves: stored here in case the handoff succeeds.
    Keep(Arc<FrozenConnections>),
    /// Drop all recovering and replicated state: this node has lost its membership of the cluster.
    Void,
}

/// A worker's connections of a bucket when it froze.
#[derive(Debug)]
pub struct FrozenConnections {
    /// The bucket.
    pub bucket: Bucket,
    /// The planned handoff.
    pub freeze: HandoffId,
    /// Complete state of the connections.
    pub frames: Vec<Frame>,
}

/// Buckets that came to this node together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverOrder {
    /// Number that the workers report when they are done.
    pub number: u64,
    /// The buckets, each with its new term.
    pub buckets: Vec<(Bucket, Term)>,
    /// How long the failed owners were silent, at most.
    pub silent: Micros,
}

/// Whether the role brings connections of another node, which this node must continue.
pub fn arrives(before: Role, now: Role) -> bool {
    let Role::Owner { term, begin: OwnershipStart::Failover | OwnershipStart::Handoff, .. } = now else {
        return false;
    };
    !matches!(before, Role::Owner { term: known, .. } if known == term)
}
