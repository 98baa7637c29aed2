//! What a worker is told.

use crate::server_state::Generation;
use crate::upgrade::Progress;
use evergate_sys::Keepalive;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// What the control plane tells a worker.
pub enum Command {
    /// Use this configuration for new requests and connections.
    Reload(Arc<Generation>),
    /// Listen on these sockets too, and no longer on the listeners named.
    Listeners {
        /// New sockets.
        add: Vec<ListenerSocket>,
        /// Names of listeners to close.
        remove: Vec<String>,
    },
    /// Use these bounds from now on.
    Settings(Settings),
    /// Take no new connections, end idle ones, and the rest after their response.
    Drain,
    /// End everything now.
    Stop,
    /// What the cluster has decided.
    Cluster(crate::agent::Instruction),
    /// Connections of the process before come on this stream, which does not block.
    Inherit(UnixStream),
    /// Take no new connections, and pass all that there are to the new process over this stream, which does not block.
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
    /// Our address on its connections, where it is the same on all.
    pub local: Option<SocketAddr>,
}

/// Bounds and switches of a worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Handshake steps in one turn of the loop.
    pub handshakes_per_turn: usize,
    /// How long events gather in a busy worker; zero is not at all.
    pub gather: Duration,
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
    /// Client connections at a time from one address; 0 is no bound.
    pub per_source_max: u32,
}
