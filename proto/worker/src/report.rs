//! Messages from a worker to the agent.

use evergate_base::Micros;
use evergate_membership::{Bucket, HandoffId, NodeId, Term};
use evergate_replication::Frame;

/// A message from a worker to the agent.
#[derive(Clone, Debug)]
pub enum Report {
    /// As the owner: `node` has acknowledged everything that was replicated of the bucket in `term`.
    CaughtUp {
        /// The bucket.
        bucket: Bucket,
        /// The backup.
        node: NodeId,
        /// The owner's term.
        term: Term,
    },
    /// As a backup: the replica of the bucket is complete.
    Complete {
        /// The bucket.
        bucket: Bucket,
        /// The owner's term.
        term: Term,
    },
    /// A replication channel broke or is too slow.
    ChannelLost {
        /// The other end.
        node: NodeId,
        /// Cause.
        why: String,
    },
    /// The replicas of these buckets at `node` lack something: the node must be dropped as their backup.
    Incomplete {
        /// The backup.
        node: NodeId,
        /// The buckets, each with the term of the missing state.
        buckets: Vec<(Bucket, Term)>,
    },
    /// A failover is finished in this worker.
    Resumed(Resumed),
    /// Processor time of these buckets' connections since the last report.
    Worked(Vec<(Bucket, Micros)>),
    /// The bucket is frozen: its connections stand still here, and its next owner has all their state.
    Frozen {
        /// The bucket.
        bucket: Bucket,
        /// The owner's term.
        term: Term,
        /// The planned handoff.
        freeze: HandoffId,
        /// State of its connections here, for the worker that stores replicas of the bucket.
        mine: Vec<Frame>,
    },
}

/// Result of a failover in one worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resumed {
    /// Number of the failover.
    pub round: u64,
    /// Recovered buckets.
    pub buckets: usize,
    /// Connections that continue.
    pub connections: usize,
    /// Connections that could not continue.
    pub lost: usize,
    /// From the instruction to the first ACK, in microseconds.
    pub took_us: u64,
}

impl Resumed {
    /// Counts one connection.
    pub fn count(&mut self, continues: bool) {
        *if continues { &mut self.connections } else { &mut self.lost } += 1;
    }
}
