//! Commands of the control plane to a worker.

use crate::upgrade::Progress;
use evergate_sys::Keepalive;
use evergate_worker::pools::Generation;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A command to one worker.
pub enum Command {
    /// Use this configuration for new requests and connections.
    Reload(Arc<Generation>),
    /// Add these listening sockets, and remove the listeners named.
    Listeners {
        /// New sockets.
        add: Vec<ListenerSocket>,
        /// Names of listeners to close.
        remove: Vec<String>,
    },
    /// Apply these limits.
    Settings(Settings),
    /// Accept no new connections; end idle ones, and the rest after their response.
    Drain,
    /// End everything now.
    Stop,
    /// An instruction of the cluster agent.
    Cluster(crate::agent::Instruction),
    /// Receive connections of the old process on this non-blocking stream.
    Inherit(UnixStream),
    /// Accept no new connections, and pass all existing ones to the new process over this non-blocking stream.
    Handoff(UnixStream, Arc<Progress>),
    /// The new process is gone: serve again, on these sockets.
    TakeBack(Vec<ListenerSocket>),
}

/// A bound listener.
#[derive(Debug)]
pub struct ListenerSocket {
    /// Name of the listener.
    pub name: String,
    /// The socket.
    pub socket: OwnedFd,
    /// Local address of the listener's connections, if it is the same for all.
    pub local: Option<SocketAddr>,
}

/// Bounds and switches of a worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Handshake steps in one turn of the loop.
    pub handshakes_per_turn: usize,
    /// Longest wait for further events in a busy worker; zero for none.
    pub event_batching: Duration,
    /// Client connections of the process.
    pub connections_max: usize,
    /// Bounds of each listener, by name.
    pub listeners: HashMap<String, Bounds>,
    /// Bytes that may wait for slow peers, in this worker.
    pub buffered_max: usize,
    /// TCP keep-alive of new connections, to both sides.
    pub keepalive: Option<Keepalive>,
}

/// Bounds of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Client connections at a time.
    pub connections_max: usize,
    /// Most client connections from one address; 0 for no limit.
    pub per_source_max: u32,
}
