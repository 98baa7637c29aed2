//! Readiness of a socket.

/// Readiness of one registered socket.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Token from the registration.
    pub token: u64,
    /// Bytes, a connection or the end can be read.
    pub readable: bool,
    /// The socket accepts bytes to write.
    pub writable: bool,
    /// The peer has ended its stream, or a read stopped at an urgent byte: more may follow than one read returns.
    pub ended: bool,
    /// The connection failed with a reset or an error. An orderly end of both directions does not count.
    pub broken: bool,
}
