//! One client connection, and the state of its socket.

use crate::host::{Host, Pipe, Socket};
use crate::limits::Share;
use crate::replication;
use crate::slab::Key;
use crate::upstreams::Left;
use evergate_base::Micros;
use evergate_connection::Connection;
use evergate_evidence::record::RequestLeg;

/// One client connection with its socket.
pub(super) struct Client<H: Host> {
    pub(super) socket: H::Socket,
    pub(super) connection: Connection,
    pub(super) upstream: Option<Key>,
    /// Server connection of the previous request, while it is unsettled.
    pub(super) unsettled: Option<Key>,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) ended: bool,
    pub(super) broken: bool,
    /// Read interest is off: the input could not be forwarded.
    pub(super) read_paused: bool,
    pub(super) handshaking: bool,
    /// The ACK of the handshake's last message is owed: no output carries it.
    pub(super) owes_ack: bool,
    pub(super) fin_waits: bool,
    pub(super) server_fin_waits: bool,
    pub(super) left: Option<Left>,
    pub(super) pending: bool,
    pub(super) scheduled_for: Micros,
    /// Bytes waiting for this connection's peers, as counted last.
    pub(super) buffered: usize,
    /// Limits that this connection counts pendingst.
    pub(super) share: Share,
    pub(super) pipes: Option<Box<Pipes<H>>>,
    /// Addresses of the server connection of the request under way; only of audited connections.
    pub(super) audited_leg: Option<Box<RequestLeg>>,
    /// In a cluster: replication state.
    pub(super) replicated_state: Option<Box<replication::ConnectionReplication<H>>>,
}

/// Pipes of a spliced connection that was blocked with bytes inside.
pub(super) struct Pipes<H: Host> {
    pub(super) down: Option<H::Pipe>,
    pub(super) up: Option<H::Pipe>,
}

impl<H: Host> Default for Pipes<H> {
    fn default() -> Pipes<H> {
        Pipes { down: None, up: None }
    }
}

impl<H: Host> Pipes<H> {
    /// Bytes inside.
    pub(super) fn buffered_bytes(&self) -> usize {
        [&self.down, &self.up].into_iter().flatten().map(H::Pipe::held).sum()
    }
}

impl<H: Host> Client<H> {
    pub(super) fn new(socket: H::Socket, connection: Connection, share: Share) -> Client<H> {
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
            read_paused: false,
            handshaking,
            owes_ack: false,
            fin_waits: false,
            server_fin_waits: false,
            left: None,
            pending: false,
            buffered: 0,
            scheduled_for: Micros(u64::MAX),
            share,
            pipes: None,
            audited_leg: None,
            replicated_state: None,
        }
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.socket.descriptor()
    }
}
