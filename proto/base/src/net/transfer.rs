//! Result of moving bytes between a socket and memory, or a pipe.

use std::io;

/// Result of a read or write.
#[derive(Debug)]
pub enum Transfer {
    /// Number of bytes moved; at least one.
    Moved(usize),
    /// The peer's stream has ended (reads only).
    End,
    /// No byte can move now; readiness will be reported.
    Blocked,
    /// The connection failed.
    Broken(io::Error),
}
