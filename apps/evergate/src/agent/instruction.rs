//! What the agent tells a worker.

use evergate_base::Micros;
use evergate_membership::{Bucket, HandoffId, Role, Term};
use evergate_replication::Frame;
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
    /// Each with the term that begins.
    pub buckets: Vec<(Bucket, Term)>,
    /// How long nothing had been heard of who died.
    pub silent: Micros,
}
