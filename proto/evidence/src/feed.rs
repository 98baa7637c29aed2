//! Feed: messages from a switch to a Recorder, over a Unix socket or inside TLS.
//!
//! A frame is a length of 32 bits, of what follows, then a kind and a body. The switch opens with HELLO. Its messages
//! have numbers without holes: a hole is a loss, which the Recorder declares in a GAP record. The Recorder acknowledges
//! a number when the records of all messages up to it are covered by a statement on its disk.

use crate::cursor::{Cursor, Malformed, put_short};
use crate::deletion::hex;
use crate::envelope::{ENVELOPE_BYTES_MAX, Envelope};
use crate::mark::{Mark, MarkKind};
use crate::merkle::Hash;
use crate::record::RequestRecord;
use serde::{Deserialize, Serialize};

/// Most bytes of a frame behind its length.
pub const FEED_FRAME_BYTES_MAX: usize = 4096;
/// Version of these messages.
pub const FEED_VERSION: u8 = 1;

/// Message of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToFeed<'a> {
    /// First message.
    Hello(FeedHello),
    /// Sealed secrets of a connection: number and envelope.
    Envelope(u64, &'a [u8]),
    /// Request that the switch routed: number and record.
    Request(u64, RequestRecord<'a>),
    /// This node continues a connection of another one.
    Continued(u64, Continuation),
}

/// What a switch sends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedHello {
    /// The sender.
    pub sender: FeedSender,
    /// Number behind the highest acknowledged one. Messages before the next one to come may have been lost.
    pub next: u64,
}

/// A connection that another node of the switch's cluster served before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Number of the connection in the switch.
    pub connection: u64,
    /// Random of the client's hello.
    pub client_random: [u8; 32],
    /// Time in ns since 1970.
    pub time_ns: u64,
    /// Next record of the client: key generation and sequence number.
    pub from_client: (u32, u64),
    /// Next record for the client: key generation and sequence number.
    pub to_client: (u32, u64),
}

/// Content of the mark of a [`Continuation`]. Numbers above 2^53 are strings of decimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchContinued {
    /// Random of the client's hello in hexadecimal digits.
    pub client_random: String,
    /// Number of the connection in the switch.
    pub connection: String,
    /// Key generation of the client's next record.
    pub from_client_generation: u32,
    /// Sequence number of the client's next record.
    pub from_client_sequence: String,
    /// Id of the switch in hexadecimal digits.
    pub switch: String,
    /// Time in ns since 1970.
    pub time_ns: String,
    /// Key generation of the next record for the client.
    pub to_client_generation: u32,
    /// Sequence number of the next record for the client.
    pub to_client_sequence: String,
}

impl Continuation {
    /// The mark of a continuation by this switch.
    pub fn to_mark(&self, switch: &Hash) -> Mark<'static> {
        let object = SwitchContinued {
            client_random: hex(&self.client_random),
            connection: self.connection.to_string(),
            from_client_generation: self.from_client.0,
            from_client_sequence: self.from_client.1.to_string(),
            switch: hex(switch),
            time_ns: self.time_ns.to_string(),
            to_client_generation: self.to_client.0,
            to_client_sequence: self.to_client.1.to_string(),
        };
        Mark::new(MarkKind::SwitchContinued, &object)
    }
}

/// A process of a switch. Its messages have numbers of their own, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FeedSender {
    /// Id of the switch, as its envelopes have it.
    pub switch: Hash,
    /// Start of the process in ns since 1970: the two processes of an upgrade differ in it.
    pub run: u64,
}

/// Message of a Recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromFeed {
    /// All messages up to this number are durable.
    Acknowledged(u64),
    /// The Recorder refuses the switch; the text has the reason.
    Refused(String),
}

impl<'a> ToFeed<'a> {
    /// The frame with its length.
    pub fn to_frame(&self) -> Vec<u8> {
        let mut frame = vec![0; 4];
        match self {
            ToFeed::Hello(hello) => {
                frame.extend_from_slice(&[1, FEED_VERSION]);
                frame.extend_from_slice(&hello.sender.switch);
                frame.extend_from_slice(&hello.sender.run.to_be_bytes());
                frame.extend_from_slice(&hello.next.to_be_bytes());
            }
            ToFeed::Envelope(number, envelope) => {
                begin(&mut frame, 2, *number);
                frame.extend_from_slice(envelope);
            }
            ToFeed::Request(number, request) => {
                begin(&mut frame, 3, *number);
                request.encode(&mut frame);
            }
            ToFeed::Continued(number, continued) => {
                begin(&mut frame, 4, *number);
                frame.extend_from_slice(&continued.connection.to_be_bytes());
                frame.extend_from_slice(&continued.client_random);
                frame.extend_from_slice(&continued.time_ns.to_be_bytes());
                for (generation, sequence) in [continued.from_client, continued.to_client] {
                    frame.extend_from_slice(&generation.to_be_bytes());
                    frame.extend_from_slice(&sequence.to_be_bytes());
                }
            }
        }
        with_length(frame)
    }

    /// Message of a frame behind its length.
    pub fn decode(frame: &'a [u8]) -> Result<ToFeed<'a>, Malformed> {
        let mut cursor = Cursor::new(frame);
        let message = match cursor.u8()? {
            1 => match cursor.u8()? {
                FEED_VERSION => {
                    let sender = FeedSender { switch: cursor.array()?, run: cursor.u64()? };
                    ToFeed::Hello(FeedHello { sender, next: cursor.u64()? })
                }
                version => {
                    return Err(Malformed(format!("feed of version {version}, expected {FEED_VERSION}")));
                }
            },
            2 => {
                let (number, rest) = (cursor.u64()?, cursor.rest());
                if rest.len() > ENVELOPE_BYTES_MAX {
                    return Err(Malformed::new("envelope is too long"));
                }
                Envelope::decode(rest)?;
                ToFeed::Envelope(number, rest)
            }
            3 => {
                let number = cursor.u64()?;
                let request = RequestRecord::decode(&mut cursor);
                ToFeed::Request(number, request.map_err(|error| Malformed(error.to_string()))?)
            }
            4 => {
                let number = cursor.u64()?;
                let continued = Continuation {
                    connection: cursor.u64()?,
                    client_random: cursor.array()?,
                    time_ns: cursor.u64()?,
                    from_client: (cursor.u32()?, cursor.u64()?),
                    to_client: (cursor.u32()?, cursor.u64()?),
                };
                ToFeed::Continued(number, continued)
            }
            kind => return Err(Malformed(format!("feed message of unknown kind {kind}"))),
        };
        cursor.end()?;
        Ok(message)
    }

    /// Number of the message; `None` for HELLO.
    pub fn number(&self) -> Option<u64> {
        match self {
            ToFeed::Hello(_) => None,
            ToFeed::Envelope(number, _) | ToFeed::Request(number, _) | ToFeed::Continued(number, _) => {
                Some(*number)
            }
        }
    }
}

impl FromFeed {
    /// The frame with its length.
    pub fn to_frame(&self) -> Vec<u8> {
        let mut frame = vec![0; 4];
        match self {
            FromFeed::Acknowledged(number) => begin(&mut frame, 1, *number),
            FromFeed::Refused(text) => {
                frame.push(2);
                put_short(&mut frame, text);
            }
        }
        with_length(frame)
    }

    /// Message of a frame behind its length.
    pub fn decode(frame: &[u8]) -> Result<FromFeed, Malformed> {
        let mut cursor = Cursor::new(frame);
        let message = match cursor.u8()? {
            1 => FromFeed::Acknowledged(cursor.u64()?),
            2 => FromFeed::Refused(cursor.short_text()?),
            kind => return Err(Malformed(format!("feed answer of unknown kind {kind}"))),
        };
        cursor.end()?;
        Ok(message)
    }
}

fn begin(frame: &mut Vec<u8>, kind: u8, number: u64) {
    frame.push(kind);
    frame.extend_from_slice(&number.to_be_bytes());
}

fn with_length(mut frame: Vec<u8>) -> Vec<u8> {
    let length = (frame.len() - 4) as u32; // at most FEED_FRAME_BYTES_MAX
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame
}

/// Numbers of one sender's messages, as a Recorder receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedNumbers {
    next: u64,
}

/// Place of a message in its feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedPlace {
    /// The message is new, and so many were lost before it.
    New {
        /// Messages that the switch dropped.
        lost: u64,
    },
    /// The message came before.
    Repeated,
}

impl FeedNumbers {
    /// Numbers of a sender that this Recorder does not know.
    pub fn new(hello: &FeedHello) -> FeedNumbers {
        FeedNumbers { next: hello.next }
    }

    /// Takes the number of a message.
    pub fn on_number(&mut self, number: u64) -> FeedPlace {
        let Some(lost) = number.checked_sub(self.next) else { return FeedPlace::Repeated };
        self.next = number.saturating_add(1);
        FeedPlace::New { lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RequestLeg;

    fn leg() -> RequestLeg {
        RequestLeg { peer: "10.0.0.1:50000".parse().unwrap(), local: "[2001:db8::1]:443".parse().unwrap() }
    }

    fn continuation() -> Continuation {
        let (from_client, to_client) = ((1, u64::MAX), (2, 5));
        Continuation { connection: u64::MAX, client_random: [3; 32], time_ns: 4, from_client, to_client }
    }

    #[test]
    fn mark_of_a_continuation_is_canonical() {
        let mark = continuation().to_mark(&[9; 32]);
        let object: SwitchContinued = mark.object().expect("canonical JSON");
        assert_eq!((object.connection, object.to_client_generation), (u64::MAX.to_string(), 2));
    }

    fn request(server: Option<RequestLeg>) -> ToFeed<'static> {
        ToFeed::Request(
            8,
            RequestRecord {
                switch_connection: 1,
                index: 2,
                time_ns: 3,
                client_random: [4; 32],
                client: leg(),
                server,
                status: 200,
                flags: 0,
                id: b"id".into(),
                given_id: b"given".into(),
            },
        )
    }

    #[test]
    fn messages_decode_to_themselves_and_nothing_shorter_does() {
        let hello = FeedHello { sender: FeedSender { switch: [9; 32], run: 5 }, next: 6 };
        let all =
            [ToFeed::Hello(hello), request(None), request(Some(leg())), ToFeed::Continued(7, continuation())];
        for message in all {
            let frame = message.to_frame();
            assert_eq!(ToFeed::decode(&frame[4..]), Ok(message));
            for length in 4..frame.len() {
                assert!(ToFeed::decode(&frame[4..length]).is_err());
            }
        }
        for answer in [FromFeed::Acknowledged(3), FromFeed::Refused("no".into())] {
            assert_eq!(FromFeed::decode(&answer.to_frame()[4..]), Ok(answer));
        }
    }

    #[test]
    fn holes_are_losses_and_repeats_are_named() {
        let sender = FeedSender { switch: [0; 32], run: 1 };
        let mut numbers = FeedNumbers::new(&FeedHello { sender, next: 5 });
        assert_eq!(numbers.on_number(5), FeedPlace::New { lost: 0 });
        assert_eq!(numbers.on_number(5), FeedPlace::Repeated);
        assert_eq!(numbers.on_number(9), FeedPlace::New { lost: 3 });
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = (ToFeed::decode(&bytes), FromFeed::decode(&bytes));
        }
    }
}
