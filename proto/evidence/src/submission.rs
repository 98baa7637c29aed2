//! Messages between a Recorder or a Revealer and the Master, inside TLS.
//!
//! A frame is a length of 32 bits, of what follows, then a kind and a body. Lengths above [`FRAME_BYTES_MAX`] end the
//! connection. The Recorder opens with HELLO, the Master answers with WELCOME, then statements and receipts flow
//! without waiting: at most [`UNANSWERED_MAX`] statements and events are unanswered.

use crate::cursor::{Cursor, Malformed, put_long, put_short};
use crate::disclosure::Outcome;
use crate::entry::{Event, Kind};
use crate::envelope::{Point, point};
use crate::merkle::Hash;
use crate::statement::{STATEMENT_BYTES, Statement};

/// Most bytes of a frame behind its length.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Most statements and events without an answer.
pub const UNANSWERED_MAX: usize = 64;
/// Version of these messages.
pub const VERSION: u8 = 1;

/// Message of a Recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToMaster {
    /// First message.
    Hello(Hello),
    /// Statement over a batch, with `received_ms` 0.
    Statement(Statement),
    /// Event for the log: a deletion or a hold.
    Event {
        /// Number that the answer repeats.
        request: u64,
        /// The event.
        event: Event,
    },
    /// Of a Revealer: open the outer layer of an envelope.
    Disclose {
        /// Number that the answer repeats.
        request: u64,
        /// Size of the last checkpoint that the Revealer has; 0 without one.
        seen: u64,
        /// The request's note.
        note: Vec<u8>,
        /// The envelope.
        envelope: Vec<u8>,
    },
    /// Of a Revealer: outcome of a request.
    Report {
        /// Number that the answer repeats.
        request: u64,
        /// The outcome.
        outcome: Outcome,
    },
    /// Of a Revealer: its public key of a coming epoch.
    Announce {
        /// Number that the answer repeats.
        request: u64,
        /// The epoch.
        epoch: u64,
        /// The Revealer's key.
        inner: Point,
    },
    /// Of a Revealer: its key of an epoch is destroyed, and the Master's shall be.
    Destroy {
        /// Number that the answer repeats.
        request: u64,
        /// The epoch.
        epoch: u64,
        /// Order of the approvers that overrides a hold; empty without one.
        order: Vec<u8>,
    },
}

/// What a Recorder has when it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Its last batch; 0 before the first.
    pub last_batch: u64,
    /// Its last batch with a receipt.
    pub acknowledged: u64,
    /// Origin of the log that it used before; empty at first contact.
    pub origin: String,
}

/// Message of the Master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToRecorder {
    /// Answer to HELLO.
    Welcome(Welcome),
    /// Answer to a statement.
    Receipt {
        /// Number of the batch.
        batch: u64,
        /// Time that the Master put into the logged statement.
        received_ms: u64,
        /// Text of the tlog-proof.
        proof: Vec<u8>,
    },
    /// Statement, event or HELLO that is refused. The Master closes the connection behind it.
    Refused(Refusal),
    /// Answer to an event.
    EventReceipt {
        /// Number of the event.
        request: u64,
        /// Time that the Master put into the logged entry.
        received_ms: u64,
        /// Text of the tlog-proof.
        proof: Vec<u8>,
    },
    /// Answer to a Revealer's request: the request is logged, and the outer layer is open.
    Opened {
        /// Number of the request.
        request: u64,
        /// Time that the Master put into entry 2.
        received_ms: u64,
        /// What the outer layer held.
        inner: Vec<u8>,
        /// Text of the tlog-proof of entry 2.
        proof: Vec<u8>,
        /// Hashes that prove the checkpoint to continue the one that the Revealer has.
        consistency: Vec<Hash>,
    },
    /// Answer to a Revealer: refused, and the connection stays.
    Denied {
        /// Number of the request.
        request: u64,
        /// Name of the refusal; [`LATER`] if the same message can succeed later.
        name: String,
        /// Explanation.
        text: String,
    },
    /// Answer to a Revealer: what it asked for is in the log.
    Logged {
        /// Number of the request.
        request: u64,
        /// The entry as logged.
        entry: Vec<u8>,
        /// Text of the tlog-proof.
        proof: Vec<u8>,
    },
}

/// Name of a refusal that is not final.
pub const LATER: &str = "later";

/// What the Master has when a Recorder connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Origin of the log.
    pub origin: String,
    /// Key of the log, as a vkey.
    pub vkey: String,
    /// Last batch of this Recorder in the log; 0 if there is none.
    pub last_batch: u64,
    /// Hash of that statement as sent; zeros if there is none.
    pub last_hash: Hash,
    /// Place of that statement in the log; 0 if there is none.
    pub last_log_index: u64,
}

/// Reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused by the Master: {text}")]
pub struct Refusal {
    /// Reason, for programs.
    pub code: RefusalCode,
    /// Reason, for people.
    pub text: String,
}

/// Reasons of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalCode {
    /// Another connection with this certificate is open.
    SecondConnection = 1,
    /// The certificate is not enrolled.
    NotEnrolled = 2,
    /// The Recorder used another log before.
    OtherLog = 3,
    /// The Recorder has receipts for batches that the log lacks.
    LogIsOlder = 4,
    /// The statement does not follow the one before.
    Sequence = 5,
    /// Another statement with this number is in the log.
    Differs = 6,
    /// Bytes that are no valid message, or a message at the wrong time.
    Malformed = 7,
    /// More than [`UNANSWERED_MAX`] statements and events without an answer.
    TooMany = 8,
    /// Another version of these messages.
    Version = 9,
    /// The Master has as many connections as it may.
    Full = 10,
    /// The Master stops, or cannot log. The Recorder tries again later.
    Unavailable = 11,
}

impl RefusalCode {
    /// All codes.
    pub const ALL: [RefusalCode; 11] = [
        RefusalCode::SecondConnection,
        RefusalCode::NotEnrolled,
        RefusalCode::OtherLog,
        RefusalCode::LogIsOlder,
        RefusalCode::Sequence,
        RefusalCode::Differs,
        RefusalCode::Malformed,
        RefusalCode::TooMany,
        RefusalCode::Version,
        RefusalCode::Full,
        RefusalCode::Unavailable,
    ];

    /// Name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            RefusalCode::SecondConnection => "second_connection",
            RefusalCode::NotEnrolled => "not_enrolled",
            RefusalCode::OtherLog => "other_log",
            RefusalCode::LogIsOlder => "log_is_older",
            RefusalCode::Sequence => "sequence",
            RefusalCode::Differs => "differs",
            RefusalCode::Malformed => "malformed",
            RefusalCode::TooMany => "too_many",
            RefusalCode::Version => "version",
            RefusalCode::Full => "full",
            RefusalCode::Unavailable => "unavailable",
        }
    }

    /// Whether a later attempt with the same messages can succeed.
    pub fn is_temporary(self) -> bool {
        matches!(self, RefusalCode::SecondConnection | RefusalCode::Full | RefusalCode::Unavailable)
    }
}

/// Body of the first frame in the buffer, kind first, and the bytes that the frame has. `None`: more bytes are needed.
pub fn first_frame(buffer: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    let Some((len, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_be_bytes(*len) as usize;
    if len == 0 || len > FRAME_BYTES_MAX {
        return Err(Malformed(format!("frame of {len} bytes, expected 1 to {FRAME_BYTES_MAX}")));
    }
    Ok(rest.get(..len).map(|frame| (frame, len + 4)))
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 5);
    out.extend_from_slice(&(body.len() as u32 + 1).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
    out
}

fn version(cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
    match cursor.u8()? {
        VERSION => Ok(()),
        other => Err(Malformed(format!("messages of version {other}, expected {VERSION}"))),
    }
}

impl ToMaster {
    /// Message of a frame.
    pub fn decode(frame: &[u8]) -> Result<ToMaster, Malformed> {
        let mut cursor = Cursor::new(frame);
        let message = match cursor.u8()? {
            1 => {
                version(&mut cursor)?;
                ToMaster::Hello(Hello {
                    last_batch: cursor.u64()?,
                    acknowledged: cursor.u64()?,
                    origin: cursor.short_text()?,
                })
            }
            2 => {
                let statement = Statement::decode(cursor.bytes(STATEMENT_BYTES)?)?;
                if statement.received_ms != 0 {
                    return Err(Malformed::new("statement has a time of receipt already"));
                }
                ToMaster::Statement(statement)
            }
            3 => {
                let (request, kind) = (cursor.u64()?, cursor.u8()?);
                match Kind::of(kind) {
                    Some(kind @ (Kind::Deletion | Kind::Hold)) => {
                        ToMaster::Event { request, event: Event::decode(kind, cursor.rest())? }
                    }
                    _ => return Err(Malformed(format!("event of kind {kind}, expected 8 or 9"))),
                }
            }
            4 => ToMaster::Disclose {
                request: cursor.u64()?,
                seen: cursor.u64()?,
                note: cursor.long()?.to_vec(),
                envelope: cursor.long()?.to_vec(),
            },
            5 => ToMaster::Report { request: cursor.u64()?, outcome: Outcome::read(&mut cursor)? },
            6 => {
                let (request, epoch) = (cursor.u64()?, cursor.u64()?);
                ToMaster::Announce { request, epoch, inner: point(&mut cursor)? }
            }
            7 => {
                let (request, epoch) = (cursor.u64()?, cursor.u64()?);
                ToMaster::Destroy { request, epoch, order: cursor.long()?.to_vec() }
            }
            kind => return Err(Malformed(format!("message of unknown kind {kind}"))),
        };
        cursor.end()?;
        Ok(message)
    }

    /// The frame with its length.
    pub fn to_frame(&self) -> Vec<u8> {
        match self {
            ToMaster::Hello(hello) => {
                let mut body = vec![VERSION];
                body.extend_from_slice(&hello.last_batch.to_be_bytes());
                body.extend_from_slice(&hello.acknowledged.to_be_bytes());
                put_short(&mut body, &hello.origin);
                frame(1, &body)
            }
            ToMaster::Statement(statement) => frame(2, &statement.as_sent().encode()),
            ToMaster::Event { request, event } => {
                let mut body = request.to_be_bytes().to_vec();
                body.push(event.kind() as u8);
                body.extend_from_slice(&event.encode_body());
                frame(3, &body)
            }
            ToMaster::Disclose { request, seen, note, envelope } => {
                let mut body = [request.to_be_bytes(), seen.to_be_bytes()].concat();
                put_long(&mut body, note);
                put_long(&mut body, envelope);
                frame(4, &body)
            }
            ToMaster::Report { request, outcome } => {
                let mut body = request.to_be_bytes().to_vec();
                outcome.encode_to(&mut body);
                frame(5, &body)
            }
            ToMaster::Announce { request, epoch, inner } => {
                frame(6, &[&request.to_be_bytes()[..], &epoch.to_be_bytes(), inner].concat())
            }
            ToMaster::Destroy { request, epoch, order } => {
                let mut body = [request.to_be_bytes(), epoch.to_be_bytes()].concat();
                put_long(&mut body, order);
                frame(7, &body)
            }
        }
    }
}

impl ToRecorder {
    /// Message of a frame.
    pub fn decode(frame: &[u8]) -> Result<ToRecorder, Malformed> {
        let mut cursor = Cursor::new(frame);
        let message = match cursor.u8()? {
            129 => {
                version(&mut cursor)?;
                ToRecorder::Welcome(Welcome {
                    origin: cursor.short_text()?,
                    vkey: cursor.long_text()?,
                    last_batch: cursor.u64()?,
                    last_hash: cursor.array()?,
                    last_log_index: cursor.u64()?,
                })
            }
            130 => ToRecorder::Receipt {
                batch: cursor.u64()?,
                received_ms: cursor.u64()?,
                proof: cursor.long()?.to_vec(),
            },
            131 => {
                let number = cursor.u8()?;
                let code = RefusalCode::ALL.into_iter().find(|&code| code as u8 == number);
                let code = code.ok_or_else(|| Malformed(format!("refusal of unknown code {number}")))?;
                ToRecorder::Refused(Refusal { code, text: cursor.long_text()? })
            }
            132 => ToRecorder::EventReceipt {
                request: cursor.u64()?,
                received_ms: cursor.u64()?,
                proof: cursor.long()?.to_vec(),
            },
            133 => ToRecorder::Opened {
                request: cursor.u64()?,
                received_ms: cursor.u64()?,
                inner: cursor.long()?.to_vec(),
                proof: cursor.long()?.to_vec(),
                consistency: hashes(&mut cursor)?,
            },
            134 => ToRecorder::Denied {
                request: cursor.u64()?,
                name: cursor.short_text()?,
                text: cursor.long_text()?,
            },
            135 => ToRecorder::Logged {
                request: cursor.u64()?,
                entry: cursor.long()?.to_vec(),
                proof: cursor.long()?.to_vec(),
            },
            kind => return Err(Malformed(format!("message of unknown kind {kind}"))),
        };
        cursor.end()?;
        Ok(message)
    }

    /// The frame with its length.
    pub fn to_frame(&self) -> Vec<u8> {
        match self {
            ToRecorder::Welcome(welcome) => {
                let mut body = vec![VERSION];
                put_short(&mut body, &welcome.origin);
                put_long(&mut body, welcome.vkey.as_bytes());
                body.extend_from_slice(&welcome.last_batch.to_be_bytes());
                body.extend_from_slice(&welcome.last_hash);
                body.extend_from_slice(&welcome.last_log_index.to_be_bytes());
                frame(129, &body)
            }
            ToRecorder::Receipt { batch, received_ms, proof } => {
                frame(130, &receipt_body(*batch, *received_ms, proof))
            }
            ToRecorder::Refused(refusal) => {
                let mut body = vec![refusal.code as u8];
                put_long(&mut body, refusal.text.as_bytes());
                frame(131, &body)
            }
            ToRecorder::EventReceipt { request, received_ms, proof } => {
                frame(132, &receipt_body(*request, *received_ms, proof))
            }
            ToRecorder::Opened { request, received_ms, inner, proof, consistency } => {
                let mut body = [request.to_be_bytes(), received_ms.to_be_bytes()].concat();
                put_long(&mut body, inner);
                put_long(&mut body, proof);
                put_long(&mut body, consistency.as_flattened());
                frame(133, &body)
            }
            ToRecorder::Denied { request, name, text } => {
                let mut body = request.to_be_bytes().to_vec();
                put_short(&mut body, name);
                put_long(&mut body, text.as_bytes());
                frame(134, &body)
            }
            ToRecorder::Logged { request, entry, proof } => {
                let mut body = request.to_be_bytes().to_vec();
                put_long(&mut body, entry);
                put_long(&mut body, proof);
                frame(135, &body)
            }
        }
    }
}

/// A vector of whole hashes.
fn hashes(cursor: &mut Cursor<'_>) -> Result<Vec<Hash>, Malformed> {
    match cursor.long()?.as_chunks::<32>() {
        (hashes, []) => Ok(hashes.to_vec()),
        _ => Err(Malformed::new("hashes are not whole")),
    }
}

fn receipt_body(number: u64, received_ms: u64, proof: &[u8]) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.extend_from_slice(&received_ms.to_be_bytes());
    put_long(&mut body, proof);
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disclosure::OutcomeKind;
    use crate::entry::Hold;
    use proptest::prelude::*;

    fn to_master() -> Vec<ToMaster> {
        let mut statement = [0; STATEMENT_BYTES];
        statement[..2].copy_from_slice(&[1, 1]);
        let hold = Hold {
            is_set: true,
            recorder: [1; 32],
            hold: 1,
            from_ns: 2,
            to_ns: 3,
            query: "sni a".into(),
            reason: "b".into(),
        };
        let outcome = Outcome {
            kind: OutcomeKind::Granted,
            request: [1; 32],
            nonce: [2; 16],
            index: 9,
            grant: [3; 32],
            reason: String::new(),
        };
        vec![
            ToMaster::Hello(Hello { last_batch: 3, acknowledged: 2, origin: "log/2026".into() }),
            ToMaster::Statement(Statement::decode(&statement).unwrap()),
            ToMaster::Event { request: 9, event: Event::Hold(hold) },
            ToMaster::Disclose { request: 1, seen: 9, note: b"note".to_vec(), envelope: vec![1; 600] },
            ToMaster::Report { request: 2, outcome },
            ToMaster::Announce { request: 3, epoch: 497_000, inner: [4; 65] },
            ToMaster::Destroy { request: 4, epoch: 497_000, order: Vec::new() },
        ]
    }

    fn to_recorder() -> Vec<ToRecorder> {
        vec![
            ToRecorder::Welcome(Welcome {
                origin: "log/2026".into(),
                vkey: "log/2026+00000000+AA==".into(),
                last_batch: 2,
                last_hash: [4; 32],
                last_log_index: 77,
            }),
            ToRecorder::Receipt { batch: 1, received_ms: 2, proof: b"proof\n".to_vec() },
            ToRecorder::Refused(Refusal { code: RefusalCode::Full, text: "full".into() }),
            ToRecorder::EventReceipt { request: 1, received_ms: 2, proof: Vec::new() },
            ToRecorder::Opened {
                request: 1,
                received_ms: 2,
                inner: vec![1; 9],
                proof: vec![2; 5],
                consistency: vec![[7; 32]; 2],
            },
            ToRecorder::Denied { request: 1, name: LATER.into(), text: "one a second".into() },
            ToRecorder::Logged { request: 1, entry: vec![1; 9], proof: vec![2; 5] },
        ]
    }

    #[test]
    fn messages_survive_both_ways() {
        for message in to_master() {
            let bytes = message.to_frame();
            let (frame, len) = first_frame(&bytes).unwrap().unwrap();
            assert_eq!((len, ToMaster::decode(frame)), (bytes.len(), Ok(message)));
        }
        for message in to_recorder() {
            let bytes = message.to_frame();
            let (frame, len) = first_frame(&bytes).unwrap().unwrap();
            assert_eq!((len, ToRecorder::decode(frame)), (bytes.len(), Ok(message)));
        }
    }

    #[test]
    fn codes_have_their_numbers() {
        for (index, code) in RefusalCode::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, index + 1);
        }
    }

    #[test]
    fn frames_have_a_bound() {
        assert_eq!(first_frame(&[0, 0, 0]), Ok(None));
        assert_eq!(first_frame(&[0, 0, 0, 2, 1]), Ok(None));
        assert!(first_frame(&[0, 0, 0, 0]).is_err());
        assert!(first_frame(&[0, 0x10, 0, 1]).is_err());
        assert!(first_frame(&[255; 4]).is_err());
    }

    #[test]
    fn events_of_other_kinds_are_refused() {
        for kind in [0, 1, 2, 7, 10, 11, 12] {
            let frame = [&[3, 0, 0, 0, 0, 0, 0, 0, 1, kind][..], &[1; 80]].concat();
            assert!(ToMaster::decode(&frame).is_err());
        }
    }

    proptest! {
        #[test]
        fn decoded_frames_encode_to_themselves(which in 0_usize..7, at: usize, bit in 0_u8..8, cut in 0_usize..20) {
            let change = |bytes: Vec<u8>| {
                let mut frame = bytes[4..bytes.len() - cut.min(bytes.len() - 5)].to_vec();
                let at = at % frame.len();
                frame[at] ^= 1 << bit;
                frame
            };
            let frame = change(to_master()[which].to_frame());
            if let Ok(message) = ToMaster::decode(&frame) {
                prop_assert_eq!(&message.to_frame()[4..], &frame[..]);
            }
            let frame = change(to_recorder()[which].to_frame());
            if let Ok(message) = ToRecorder::decode(&frame) {
                prop_assert_eq!(&message.to_frame()[4..], &frame[..]);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (first_frame(&bytes), ToMaster::decode(&bytes), ToRecorder::decode(&bytes));
        }
    }
}
