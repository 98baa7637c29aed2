//! A request or a response.

use crate::event::{HoleCause, Side};
use sha2::{Digest, Sha256};

/// Most holes of a body that are named; more make the last one longer.
const HOLES_MAX: usize = 1024;

/// Start line of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// Request line.
    Request {
        /// Method.
        method: String,
        /// Target as sent.
        target: Vec<u8>,
        /// Host of the request without its port.
        host: Vec<u8>,
    },
    /// Status line.
    Response {
        /// Status.
        status: u16,
        /// Reason phrase.
        reason: String,
    },
}

/// Missing bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyHole {
    /// Place in the body.
    pub offset: u64,
    /// Missing bytes; `None` if unknown: the body ends with this hole.
    pub length: Option<u64>,
    /// Cause.
    pub cause: HoleCause,
}

/// A message, as far as it was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Number of the exchange in its connection, from 0 on: a request and its responses share it.
    pub exchange: u64,
    /// Sender.
    pub side: Side,
    /// Time of its first byte in nanoseconds since 1970.
    pub first_ns: u64,
    /// Time of its last byte.
    pub last_ns: u64,
    /// Start line.
    pub head: Head,
    /// Minor version of HTTP/1.
    pub minor: u8,
    /// Header lines as sent.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Bytes of the head on the wire.
    pub head_bytes: u64,
    /// Body without its transfer coding, zeros in holes; its end is left out beyond a limit.
    pub body: Vec<u8>,
    /// Length of the whole body with its holes.
    pub body_bytes: u64,
    /// SHA-256 of the whole body, zeros in holes.
    pub body_sha256: [u8; 32],
    /// Missing bytes of the body.
    pub holes: Vec<BodyHole>,
    /// Whether the message ended as its head announces.
    pub is_complete: bool,
}

impl Message {
    /// Values of the header lines of this name.
    pub fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.headers
            .iter()
            .filter(move |(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| &value[..])
    }

    /// Whether the message is an interim response.
    pub fn is_interim(&self) -> bool {
        matches!(self.head, Head::Response { status, .. } if status < 200 && status != 101)
    }
}

/// A message whose body is being read.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) message: Message,
    digest: Sha256,
    body_max: usize,
}

impl Open {
    pub(super) fn new(message: Message, body_max: usize) -> Open {
        Open { message, digest: Sha256::new(), body_max }
    }

    pub(super) fn push(&mut self, time_ns: u64, content: &[u8]) {
        let message = &mut self.message;
        message.last_ns = message.last_ns.max(time_ns);
        message.body_bytes += content.len() as u64;
        self.digest.update(content);
        let room = self.body_max.saturating_sub(message.body.len());
        message.body.extend_from_slice(&content[..content.len().min(room)]);
    }

    /// Names a hole; its zeros are pushed apart.
    pub(super) fn add_hole(&mut self, length: Option<u64>, cause: HoleCause) {
        let holes = &mut self.message.holes;
        let (offset, is_full) = (self.message.body_bytes, holes.len() >= HOLES_MAX);
        match holes.last_mut() {
            Some(last) if holes_touch(last, offset) && last.cause == cause => {
                last.length = last.length.zip(length).map(|(a, b)| a + b);
            }
            Some(last) if is_full => {
                last.length = length.map(|length| offset + length - last.offset);
            }
            _ => holes.push(BodyHole { offset, length, cause }),
        }
    }

    pub(super) fn finish(mut self, is_complete: bool) -> Message {
        self.message.body_sha256 = self.digest.finalize().into();
        self.message.is_complete = is_complete && self.message.holes.iter().all(|hole| hole.length.is_some());
        self.message
    }
}

fn holes_touch(last: &BodyHole, offset: u64) -> bool {
    last.length.is_some_and(|length| last.offset + length == offset)
}
