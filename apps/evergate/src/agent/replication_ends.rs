//! What a node's workers need for replication channels, beside the addresses in the layout.

use super::Neighbours;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// Listeners and TLS of replication channels.
pub struct ReplicationEnds {
    /// One listening socket per worker.
    pub listeners: Vec<OwnedFd>,
    /// TLS of channels that this node accepts.
    pub server_tls: Arc<rustls::ServerConfig>,
    /// TLS of channels that this node opens.
    pub client_tls: Arc<rustls::ClientConfig>,
    /// Neighbours of replicated legs that the kernel has.
    pub neighbours: Arc<Mutex<Neighbours>>,
}
