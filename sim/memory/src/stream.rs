//! State of one TCP connection of a worker: both directions, and both ends of each.

use std::net::SocketAddr;

/// How a worker closed a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Closing {
    /// With FIN, or with RST if input was unread.
    #[default]
    Orderly,
    /// With RST.
    Reset,
    /// Without a packet.
    Silent,
}

/// Whether a connection is established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    Connecting,
    Refused,
    Done,
}

/// End of the peer's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerEnd {
    Open,
    Fin,
    /// Whether the worker has received the error.
    Reset {
        reported: bool,
    },
}

/// One TCP connection: see the module's description. Positions count bytes since the connection came to this machine.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) handshake: Handshake,
    /// Bytes that the peer sent and the worker has not read.
    pub(crate) inbox: Vec<u8>,
    /// Bytes read so far.
    pub(crate) read: u64,
    pub(crate) peer_end: PeerEnd,
    /// Further bytes that the socket takes; `usize::MAX` for any number.
    pub(crate) window: usize,
    /// Bytes that the worker wrote.
    pub(crate) written: Vec<u8>,
    /// Written bytes that the peer has acknowledged.
    pub(crate) acked: u64,
    /// The worker has ended its stream.
    pub(crate) shut_down: bool,
    /// The worker ended its stream before the peer ended its own.
    pub(crate) ended_first: bool,
    /// It is closed and in TIME_WAIT.
    pub(crate) waits: bool,
    /// How the worker closed it, once it has.
    pub(crate) closed: Option<Closing>,
    /// Sequence numbers of the first bytes written and read here.
    pub(crate) origin: (u32, u32),
    /// The worker dialled it, and the peer is a server.
    pub(crate) dialled: bool,
    /// Place in the order in which the worker last wrote or dialled.
    pub(crate) touched: u64,
}

impl Stream {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr, handshake: Handshake) -> Stream {
        Stream {
            local,
            remote,
            handshake,
            inbox: Vec::new(),
            read: 0,
            peer_end: PeerEnd::Open,
            window: usize::MAX,
            written: Vec::new(),
            acked: 0,
            shut_down: false,
            ended_first: false,
            waits: false,
            closed: None,
            origin: (1, 1),
            dialled: false,
            touched: 0,
        }
    }

    /// Whether its local port is in use: until it is closed, and in TIME_WAIT.
    pub(crate) fn has_port(&self) -> bool {
        self.closed.is_none() || self.waits
    }

    /// Closes it. The end that sends FIN first goes into TIME_WAIT when the other FIN has come.
    pub(crate) fn close(&mut self, closing: Closing) {
        let unread = !self.inbox.is_empty() && closing == Closing::Orderly;
        self.closed = Some(if unread { Closing::Reset } else { closing });
        self.waits = self.ended_first && self.peer_end == PeerEnd::Fin;
    }

    pub(crate) fn is_reset(&self) -> bool {
        matches!(self.peer_end, PeerEnd::Reset { .. })
    }

    /// Takes the error of the peer's RST, which is reported once.
    pub(crate) fn take_error(&mut self) -> bool {
        match &mut self.peer_end {
            PeerEnd::Reset { reported } => !std::mem::replace(reported, true),
            _ => false,
        }
    }

    /// Reads up to `memory.len()` bytes.
    pub(crate) fn read_into(&mut self, memory: &mut [u8]) -> usize {
        let count = self.copy_into(memory);
        self.inbox.drain(..count);
        self.read += count as u64;
        count
    }

    /// Copies up to `memory.len()` bytes, which stay.
    pub(crate) fn copy_into(&self, memory: &mut [u8]) -> usize {
        let count = memory.len().min(self.inbox.len());
        memory[..count].copy_from_slice(&self.inbox[..count]);
        count
    }

    /// Writes what fits.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.window);
        if self.window != usize::MAX {
            self.window -= count;
        }
        self.written.extend_from_slice(&bytes[..count]);
        count
    }

    /// Number after the last byte that the peer can acknowledge: FIN counts as one.
    pub(crate) fn end_sequence(&self) -> u32 {
        let fin = u32::from(self.shut_down || self.closed == Some(Closing::Orderly));
        self.origin.0.wrapping_add(self.written.len() as u32).wrapping_add(fin)
    }

    /// Number after the last byte that the worker can acknowledge.
    pub(crate) fn received_sequence(&self) -> u32 {
        let fin = u32::from(self.peer_end == PeerEnd::Fin && self.inbox.is_empty());
        self.origin.1.wrapping_add(self.read as u32).wrapping_add(fin)
    }
}
