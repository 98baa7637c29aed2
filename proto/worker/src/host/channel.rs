//! Encrypted channels between workers of different nodes.

use std::io;
use std::net::SocketAddr;

/// Makes and accepts the replication channels of one worker.
pub trait Channels {
    /// Its channels.
    type Channel: Channel;

    /// The descriptor of the listener, if other nodes can reach this worker.
    fn listener(&self) -> Option<i32>;

    /// A channel that another machine opens, with that machine's address; `None` when no more wait.
    fn accept(&self) -> io::Result<Option<(Self::Channel, SocketAddr)>>;

    /// Starts to open a channel; it becomes writable when connected, see [`Channel::connect_error`].
    fn connect(&self, to: SocketAddr) -> io::Result<Self::Channel>;
}

/// A channel of either direction: bytes in order, authenticated at both ends. Dropping it closes it.
pub trait Channel {
    /// Its number.
    fn descriptor(&self) -> i32;

    /// The reason why connecting failed, once the channel reports readiness; `Ok` when it is connected.
    fn connect_error(&self) -> io::Result<()>;

    /// Takes what has arrived. `ends`: an event reported the other side's end, which is reported once. After an error
    /// the channel is unusable, and its input is still valid.
    fn receive(&mut self, ends: bool) -> io::Result<()>;

    /// Bytes that have arrived; a reader removes those that it has processed.
    fn input(&mut self) -> &mut Vec<u8>;

    /// Whether more bytes may wait, for which no further event comes.
    fn has_more(&self) -> bool;

    /// Sends as much of `bytes` as fits; returns how much.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
}
