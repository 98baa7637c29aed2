//! What a worker logs for operators: the host formats it.

use evergate_base::NodeId;
use std::io;

/// An event that an operator should see.
#[derive(Debug)]
pub enum LogEvent {
    /// No more connections can be accepted, once per shortage.
    AcceptFailed {
        /// Cause.
        why: String,
    },
    /// A replication channel was closed because of its input.
    ChannelInvalid {
        /// The node at its other end.
        node: NodeId,
        /// Cause.
        why: String,
    },
    /// A replication channel was closed before its other end was known.
    ChannelRefused {
        /// Cause.
        why: String,
    },
    /// Connections of another node cannot be continued.
    ConnectionsLost {
        /// Reason under which they are counted.
        reason: &'static str,
        /// The error of the last one.
        error: io::Error,
    },
    /// Connections of another node run under a configuration that this node does not have.
    ConfigurationUnknown,
}
