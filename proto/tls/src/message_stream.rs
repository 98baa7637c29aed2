//! Handshake messages of one direction, as their bytes arrive in pieces.
//!
//! Only hellos are stored, up to a limit. Tickets are hashed, and all other messages are counted.

use evergate_base::Sip128;
use evergate_base::session::{SessionHash, SessionHasher, SessionName};

use crate::observation::{FailReason, NewSession};
use crate::server_hello::{ServerHello, read_server_hello};

/// Limit of a ServerHello or HelloRetryRequest that is read, in bytes. The largest usual one has 1.2 KB.
const SERVER_HELLO_BYTES_MAX: usize = 4 << 10;
/// Limit of a second ClientHello, in bytes.
const CLIENT_HELLO_BYTES_MAX: usize = 16 << 10;
/// Lifetime hint and length of the ticket, before it (RFC 5077 section 3.3).
const TICKET_HEAD: usize = 6;

const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const NEW_SESSION_TICKET: u8 = 4;

/// A whole handshake message in clear.
#[derive(Debug)]
pub(crate) enum Message {
    ClientHello(Vec<u8>),
    ServerHello(ServerHello),
    /// NewSessionTicket of TLS 1.2; `None` for an empty ticket.
    Ticket(Option<NewSession>),
    Other,
}

#[derive(Debug)]
pub(crate) struct MessageStream {
    hasher: SessionHasher,
    state: State,
}

enum State {
    Head { bytes: [u8; 4], have: usize },
    Skip { left: usize },
    Stored { bytes: Vec<u8>, left: usize },
    Ticket(Box<Ticket>),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

struct Ticket {
    head: [u8; TICKET_HEAD],
    have: usize,
    hash: Sip128,
    hashed: usize,
    /// Bytes of the message that have not arrived.
    left: usize,
}

const BETWEEN: State = State::Head { bytes: [0; 4], have: 0 };

impl MessageStream {
    pub(crate) fn new(hasher: SessionHasher) -> MessageStream {
        MessageStream { hasher, state: BETWEEN }
    }

    /// Whether no message has begun that did not end.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.state, State::Head { have: 0, .. })
    }

    /// Reads from `part`, up to the end of a message. Returns the number of bytes read, and the message.
    pub(crate) fn feed(&mut self, part: &[u8]) -> Result<(usize, Option<Message>), FailReason> {
        let (used, left) = match &mut self.state {
            State::Head { bytes, have } => {
                let used = fill(bytes, have, part);
                if *have < bytes.len() {
                    return Ok((used, None));
                }
                let head = *bytes;
                (used, self.begin(head)?)
            }
            State::Skip { left } => {
                let used = part.len().min(*left);
                *left -= used;
                (used, *left)
            }
            State::Stored { bytes, left } => {
                let used = part.len().min(*left);
                bytes.extend(part.iter().take(used));
                *left -= used;
                (used, *left)
            }
            State::Ticket(ticket) => (ticket.feed(part), ticket.left),
        };
        let message = if left == 0 { Some(self.finish()?) } else { None };
        Ok((used, message))
    }

    /// Starts the message with this head. Returns the length of its body.
    fn begin(&mut self, head: [u8; 4]) -> Result<usize, FailReason> {
        let [kind, a, b, c] = head;
        let left = u32::from_be_bytes([0, a, b, c]) as usize;
        let max = match kind {
            SERVER_HELLO => SERVER_HELLO_BYTES_MAX,
            CLIENT_HELLO => CLIENT_HELLO_BYTES_MAX,
            _ => usize::MAX,
        };
        if left > max {
            return Err(FailReason::TooLong);
        }
        self.state = match kind {
            SERVER_HELLO | CLIENT_HELLO => State::Stored { bytes: head.to_vec(), left },
            NEW_SESSION_TICKET => {
                let hash = self.hasher.start(SessionName::Ticket);
                State::Ticket(Box::new(Ticket { head: [0; TICKET_HEAD], have: 0, hash, hashed: 0, left }))
            }
            _ => State::Skip { left },
        };
        Ok(left)
    }

    fn finish(&mut self) -> Result<Message, FailReason> {
        match std::mem::replace(&mut self.state, BETWEEN) {
            State::Stored { bytes, .. } if bytes.first() == Some(&CLIENT_HELLO) => {
                Ok(Message::ClientHello(bytes))
            }
            State::Stored { bytes, .. } => {
                let hello = read_server_hello(&bytes).ok_or(FailReason::Unexpected("ServerHello"))?;
                Ok(Message::ServerHello(hello))
            }
            State::Ticket(ticket) => ticket.finish().map(Message::Ticket),
            State::Head { .. } | State::Skip { .. } => Ok(Message::Other),
        }
    }
}

impl Ticket {
    /// Reads the head, or bytes of the ticket. Returns the number of bytes used.
    fn feed(&mut self, part: &[u8]) -> usize {
        let part = part.get(..self.left).unwrap_or(part);
        let used = if self.have < TICKET_HEAD {
            fill(&mut self.head, &mut self.have, part)
        } else {
            self.hash.update(part);
            self.hashed += part.len();
            part.len()
        };
        self.left -= used;
        used
    }

    fn finish(self) -> Result<Option<NewSession>, FailReason> {
        let [a, b, c, d, hi, lo] = self.head;
        if self.have < TICKET_HEAD || self.hashed != usize::from(u16::from_be_bytes([hi, lo])) {
            return Err(FailReason::Unexpected("NewSessionTicket"));
        }
        // "A value of zero is reserved to indicate that the lifetime of the ticket is unspecified."
        let lifetime_s = Some(u32::from_be_bytes([a, b, c, d])).filter(|&lifetime| lifetime > 0);
        let hash = SessionHash(self.hash.finish());
        Ok((self.hashed > 0).then_some(NewSession { hash, lifetime_s }))
    }
}

/// Fills a small buffer. Returns the number of bytes used.
pub(crate) fn fill<const N: usize>(buffer: &mut [u8; N], have: &mut usize, part: &[u8]) -> usize {
    let mut used = 0;
    for (to, from) in buffer.iter_mut().skip(*have).zip(part) {
        *to = *from;
        used += 1;
    }
    *have += used;
    used
}
