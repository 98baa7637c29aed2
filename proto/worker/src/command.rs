//! Commands of the control plane to a worker.

use crate::host::{Host, Listener};
use crate::instruction::Instruction;
use crate::pools::Generation;
use evergate_base::net::Keepalive;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A command to one worker.
pub enum Command<H: Host> {
    /// Use this configuration for new requests and connections.
    Reload(Arc<Generation>),
    /// Add these listening sockets, and remove the listeners named.
    Listeners {
        /// New sockets.
        add: Vec<ListenerSocket<H>>,
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
    Cluster(Instruction),
    /// A command to the program around the worker.
    Shell(H::Command),
}

/// A bound listener.
pub struct ListenerSocket<H: Host> {
    /// Name of the listener.
    pub name: String,
    /// The socket.
    pub socket: H::Listener,
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

impl<H: Host> std::fmt::Debug for ListenerSocket<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ListenerSocket { name, socket, local } = self;
        let socket = &socket.descriptor();
        f.debug_struct("ListenerSocket")
            .field("name", name)
            .field("socket", socket)
            .field("local", local)
            .finish()
    }
}
