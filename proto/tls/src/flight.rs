//! Records of one direction, as their bytes pass. What is encrypted is counted only.

use evergate_base::session::SessionHasher;

use crate::message_stream::{Message, MessageStream, fill};
use crate::observation::FailReason;

/// Limit of the bytes that are read in one direction before the handshake ends.
const OBSERVED_BYTES_MAX: usize = 256 << 10;
/// Limit of a record's fragment: TLS 1.2 allows 2,048 bytes of expansion (RFC 5246 section 6.2.3).
const FRAGMENT_MAX: usize = (1 << 14) + 2048;

/// Type, version and length of a record.
const HEAD: usize = 5;

pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// What passed, at its last byte.
#[derive(Debug)]
pub(crate) enum Passed {
    Message(Message),
    ChangeCipherSpec,
    Alert {
        level: u8,
        description: u8,
    },
    /// A record that is encrypted, with its type and the length of its fragment.
    Protected {
        kind: u8,
        len: usize,
    },
}

/// Reader of one direction. Its memory is some 100 bytes, and a hello while one arrives.
#[derive(Debug)]
pub(crate) struct Flight {
    record: Record,
    messages: MessageStream,
    /// Whether all records are encrypted from now on.
    is_protected: bool,
    read: usize,
}

#[derive(Debug)]
enum Record {
    Head { bytes: [u8; HEAD], have: usize },
    Body { kind: u8, len: usize, left: usize, alert: [u8; 2] },
}

const BETWEEN: Record = Record::Head { bytes: [0; HEAD], have: 0 };

impl Flight {
    pub(crate) fn new(hasher: SessionHasher) -> Flight {
        Flight { record: BETWEEN, messages: MessageStream::new(hasher), is_protected: false, read: 0 }
    }

    /// Declares the following records encrypted.
    pub(crate) fn protect(&mut self) {
        self.is_protected = true;
    }

    /// Reads up to the next thing that passes; `None` when `bytes` are used up.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Passed>, FailReason> {
        loop {
            match &mut self.record {
                Record::Head { bytes: head, have } => {
                    let Some((&byte, rest)) = bytes.split_first() else { return Ok(None) };
                    let fits = match *have {
                        0 => (CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&byte),
                        1 => byte == 3,
                        _ => true,
                    };
                    if !fits {
                        return Err(FailReason::NotTls);
                    }
                    fill(head, have, &[byte]);
                    *bytes = rest;
                    if let (HEAD, [kind, _, _, hi, lo]) = (*have, *head) {
                        self.begin(kind, usize::from(u16::from_be_bytes([hi, lo])))?;
                    }
                }
                Record::Body { left: 0, .. } => {
                    if let Some(passed) = self.end() {
                        return Ok(Some(passed));
                    }
                }
                Record::Body { .. } if bytes.is_empty() => return Ok(None),
                Record::Body { .. } => {
                    if let Some(message) = self.feed(bytes)? {
                        return Ok(Some(Passed::Message(message)));
                    }
                }
            }
        }
    }

    fn begin(&mut self, kind: u8, len: usize) -> Result<(), FailReason> {
        self.read += HEAD + len;
        let is_clear = !self.is_protected && kind != APPLICATION_DATA;
        let fits = match kind {
            CHANGE_CIPHER_SPEC => len == 1,
            ALERT if is_clear => len >= 2,
            _ => len <= FRAGMENT_MAX,
        };
        if !fits {
            return Err(FailReason::NotTls);
        }
        if self.read > OBSERVED_BYTES_MAX {
            return Err(FailReason::TooLong);
        }
        // RFC 8446 section 5.1: messages "MUST NOT be interleaved with other record types".
        if is_clear && kind == CHANGE_CIPHER_SPEC && !self.messages.is_between() {
            return Err(FailReason::Unexpected("ChangeCipherSpec within a message"));
        }
        self.record = Record::Body { kind, len, left: len, alert: [0; 2] };
        Ok(())
    }

    /// Reads from the current record. Returns the message that ends in it first.
    fn feed(&mut self, bytes: &mut &[u8]) -> Result<Option<Message>, FailReason> {
        let Record::Body { kind, len, left, alert } = &mut self.record else { return Ok(None) };
        let part = bytes.get(..*left).unwrap_or(bytes);
        let (used, message) = match *kind {
            HANDSHAKE if !self.is_protected => self.messages.feed(part)?,
            ALERT => {
                let before = *len - *left;
                alert.iter_mut().skip(before).zip(part).for_each(|(to, from)| *to = *from);
                (part.len(), None)
            }
            _ => (part.len(), None),
        };
        *left -= used;
        *bytes = bytes.get(used..).unwrap_or_default();
        Ok(message)
    }

    /// Ends the current record.
    fn end(&mut self) -> Option<Passed> {
        let Record::Body { kind, len, alert, .. } = std::mem::replace(&mut self.record, BETWEEN) else {
            return None;
        };
        match kind {
            _ if self.is_protected => Some(Passed::Protected { kind, len }),
            CHANGE_CIPHER_SPEC => Some(Passed::ChangeCipherSpec),
            ALERT => Some(Passed::Alert { level: alert[0], description: alert[1] }),
            APPLICATION_DATA => Some(Passed::Protected { kind, len }),
            _ => None,
        }
    }
}
