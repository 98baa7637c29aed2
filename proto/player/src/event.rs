//! Events of a session, in the order in which they became certain.

use crate::http::Message;
use evergate_evidence::record::GapReason;

/// Side of a connection that sent something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
}

impl Side {
    /// Both sides.
    pub const ALL: [Side; 2] = [Side::Client, Side::Server];

    /// The other side.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }

    /// Word for messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Cause of missing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoleCause {
    /// The record declares a loss in the time of the hole.
    Gap(GapReason),
    /// The record has no loss in the time of the hole.
    Unexplained,
    /// The snapshot length cut a packet.
    Cut,
    /// The record on these bytes does not open.
    Unopened,
    /// A limit of memory was reached before the bytes came.
    Memory,
}

impl HoleCause {
    /// Word for messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            HoleCause::Gap(reason) => reason.name(),
            HoleCause::Unexplained => "unexplained",
            HoleCause::Cut => "cut",
            HoleCause::Unopened => "unopened",
            HoleCause::Memory => "memory",
        }
    }

    /// Whether the record declares a loss in that time.
    pub fn is_declared(self) -> bool {
        matches!(self, HoleCause::Gap(_))
    }
}

/// Missing bytes of one direction's TCP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingBytes {
    /// Place in the direction's payload.
    pub offset: u64,
    /// Number of missing bytes.
    pub length: u64,
    /// Cause.
    pub cause: HoleCause,
    /// Time of the last packet before them in nanoseconds since 1970; 0 without one.
    pub from_ns: u64,
    /// Time of the first packet behind them.
    pub to_ns: u64,
    /// Whether the receiver acknowledged them: it had the bytes, and the capture has not.
    pub is_acknowledged: bool,
}

/// Fact about a session, as far as it does not show in its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The server asked for another ClientHello.
    HelloRetry,
    /// The sender changed its keys; its new generation.
    KeyUpdate(u64),
    /// An alert: level and description.
    Alert(u8, u8),
    /// The sender closed its direction with close_notify.
    Closed,
    /// A renegotiation of TLS 1.2 begins; it is not followed.
    Renegotiation,
    /// Records of early data (0-RTT), which no disclosed secret opens.
    EarlyData(u64),
    /// Decryption of this direction ends: the reason.
    DecryptionEnds(&'static str),
    /// Another copy of bytes opened a record: the copy that was seen first was not the sender's.
    OtherCopyUsed {
        /// Place in the direction's payload.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The direction is no HTTP/1.1 from here on: the reason.
    NotHttp(&'static str),
    /// Message boundaries are unknown until the next begin of a message: the reason.
    MessagesLost(&'static str),
}

/// Event of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request or a response.
    Message(Box<Message>),
    /// Plaintext that is no HTTP/1.1.
    Data {
        /// Sender.
        side: Side,
        /// Time in nanoseconds since 1970.
        time_ns: u64,
        /// Plaintext.
        bytes: Vec<u8>,
    },
    /// Missing bytes outside messages: plaintext, as far as its length is known.
    Hole {
        /// Sender.
        side: Side,
        /// Bytes of plaintext; `None` if unknown.
        length: Option<u64>,
        /// Cause.
        cause: HoleCause,
    },
    /// A fact.
    Note {
        /// Sender.
        side: Side,
        /// Time in nanoseconds since 1970.
        time_ns: u64,
        /// The fact.
        note: Note,
    },
}
