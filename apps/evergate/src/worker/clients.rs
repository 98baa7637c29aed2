//! One client connection, and what its worker knows of its socket.

use super::limits::Share;
use super::replication;
use super::slab::Key;
use super::upstreams::Left;
use evergate_base::Micros;
use evergate_connection::Connection;
use evergate_sys::Pipe;
use std::os::fd::{AsRawFd, OwnedFd};

/// One client connection with its socket.
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) connection: Connection,
    pub(super) upstream: Option<Key>,
    /// The server connection of the request before, while it is unsettled.
    pub(super) unsettled: Option<Key>,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) ended: bool,
    pub(super) broken: bool,
    /// It is not listened to while what it said has no place.
    pub(super) muted: bool,
    pub(super) handshaking: bool,
    /// Nothing of ours carries the ACK of what ended its handshake.
    pub(super) owes_ack: bool,
    pub(super) fin_waits: bool,
    pub(super) server_fin_waits: bool,
    pub(super) left: Option<Left>,
    pub(super) again: bool,
    pub(super) filed: Micros,
    /// Bytes that wait for this connection's peers, as counted last.
    pub(super) buffered: usize,
    /// Limits that this connection counts against.
    pub(super) share: Share,
    pub(super) pipes: Option<Box<Pipes>>,
    /// In a cluster: what the backups know, and what may be acknowledged.
    pub(super) replicated_state: Option<Box<replication::ConnectionReplication>>,
}

/// Pipes of a connection that splices and was blocked with bytes inside.
#[derive(Default)]
pub(super) struct Pipes {
    pub(super) down: Option<Pipe>,
    pub(super) up: Option<Pipe>,
}

impl Pipes {
    /// Bytes inside.
    pub(super) fn buffered_bytes(&self) -> usize {
        [&self.down, &self.up].into_iter().flatten().map(Pipe::held).sum()
    }
}

impl Client {
    pub(super) fn new(socket: OwnedFd, connection: Connection, share: Share) -> Client {
        let handshaking = connection.is_handshaking();
        Client {
            socket,
            connection,
            upstream: None,
            unsettled: None,
            readable: false,
            writable: true,
            ended: false,
            broken: false,
            muted: false,
            handshaking,
            owes_ack: false,
            fin_waits: false,
            server_fin_waits: false,
            left: None,
            again: false,
            buffered: 0,
            filed: Micros(u64::MAX),
            share,
            pipes: None,
            replicated_state: None,
        }
    }

    pub(super) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}
