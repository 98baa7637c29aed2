//! A listening socket of one worker.

use evergate_base::net::Keepalive;
use std::io;
use std::net::SocketAddr;

/// A listening socket. No call blocks.
pub trait Listener {
    /// Sockets of its connections.
    type Socket;

    /// Its number.
    fn descriptor(&self) -> i32;

    /// A connection from its queue, with the client's address; `None` when the queue is empty.
    fn accept(&self) -> io::Result<Option<(Self::Socket, SocketAddr)>>;

    /// Sets keep-alive of the connections that it accepts from now on.
    fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()>;

    /// The lowest free descriptor of the process; `i32::MAX` when none is free.
    fn lowest_free_descriptor(&self) -> i32;
}
