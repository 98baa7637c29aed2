//! Entries of the Master's log. Each has a kind, a version and the Master's time of receipt, which never goes back.
//!
//! Entries of kinds 2 to 6 belong to [disclosure](crate::disclosure). Requests and policies are signed notes: an entry
//! has them as text, and their readers parse them.

use crate::cursor::{Cursor, Malformed, put_long, put_short};
use crate::disclosure::Outcome;
use crate::epochs::{EpochDestroyed, EpochKeys};
use crate::merkle::{Hash, leaf_hash};
use crate::statement::Statement;
use crate::tile::ENTRY_BYTES_MAX;

/// Bytes before the body.
pub const HEAD_BYTES: usize = 12;
/// Most bytes of a text in an entry, and of a time-stamp token.
pub const TEXT_BYTES_MAX: usize = 60_000;

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Statement over a batch.
    Statement = 1,
    /// Request to disclose a connection.
    DisclosureRequest = 2,
    /// Outcome of a request.
    DisclosureDone = 3,
    /// Public keys of coming epochs.
    EpochKeys = 4,
    /// Key of an epoch destroyed.
    EpochDestroyed = 5,
    /// Policy of approvals.
    Policy = 6,
    /// Recorder enrolled or removed.
    Enrolment = 7,
    /// Segment deleted.
    Deletion = 8,
    /// Hold set or lifted.
    Hold = 9,
    /// Master started, or its key changed.
    Master = 10,
    /// Time-stamp token of a checkpoint.
    Timestamp = 11,
}

impl Kind {
    /// Kind of a number.
    pub fn of(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Statement,
            2 => Kind::DisclosureRequest,
            3 => Kind::DisclosureDone,
            4 => Kind::EpochKeys,
            5 => Kind::EpochDestroyed,
            6 => Kind::Policy,
            7 => Kind::Enrolment,
            8 => Kind::Deletion,
            9 => Kind::Hold,
            10 => Kind::Master,
            11 => Kind::Timestamp,
            _ => return None,
        })
    }
}

/// First 12 bytes of every entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Kind of the entry.
    pub kind: Kind,
    /// Time of receipt in ms since 1970; 0 as sent.
    pub received_ms: u64,
}

impl Head {
    /// Reads kind, version 1, two zero bytes and the time.
    pub fn decode(cursor: &mut Cursor<'_>) -> Result<Head, Malformed> {
        let (kind, version, zero) = (cursor.u8()?, cursor.u8()?, cursor.u16()?);
        let kind = Kind::of(kind).ok_or_else(|| Malformed(format!("entry of unknown kind {kind}")))?;
        match (version, zero) {
            (1, 0) => Ok(Head { kind, received_ms: cursor.u64()? }),
            (1, _) => Err(Malformed::new("entry has bits set in its zero bytes")),
            _ => Err(Malformed(format!("entry of version {version}, expected 1"))),
        }
    }

    /// Appends the 12 bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.kind as u8, 1, 0, 0]);
        out.extend_from_slice(&self.received_ms.to_be_bytes());
    }
}

/// Entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Kind 1.
    Statement(Statement),
    /// Kinds 2 to 11: time of receipt in ms, and body.
    Event(u64, Event),
}

/// Event of kinds 2 to 11.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Request to disclose a connection: its note.
    DisclosureRequest(String),
    /// Outcome of a request.
    DisclosureDone(Outcome),
    /// Public keys of an epoch.
    EpochKeys(EpochKeys),
    /// Private keys of an epoch destroyed.
    EpochDestroyed(EpochDestroyed),
    /// Policy of disclosure: its note.
    Policy(String),
    /// Recorder enrolled or removed.
    Enrolment(Enrolment),
    /// Segment deleted.
    Deletion(Deletion),
    /// Hold set or lifted.
    Hold(Hold),
    /// Master started, or its key changed.
    Master(MasterEvent),
    /// Time-stamp token.
    Timestamp(Timestamp),
}

/// Kind 7: Recorder that may, or may no longer, send statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enrolment {
    /// Whether it may.
    pub is_enrolled: bool,
    /// SHA-256 of the SPKI of its certificate.
    pub recorder: Hash,
    /// Name in the configuration, at most 255 bytes.
    pub name: String,
}

/// Kind 8: segment that a Recorder's store deletes after this entry is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The Recorder.
    pub recorder: Hash,
    /// Number of the segment.
    pub segment: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: Hash,
    /// Number of the first record.
    pub first_seq: u64,
    /// Number of the last record.
    pub last_seq: u64,
    /// Rule that asked for it, in words, at most 255 bytes.
    pub rule: String,
}

/// Kind 9: hold on what a query finds. It prevails over every expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Whether the hold is set; else it is lifted.
    pub is_set: bool,
    /// The Recorder.
    pub recorder: Hash,
    /// Number of the hold in the Recorder's store.
    pub hold: u64,
    /// Begin of the time that it covers, in ns since 1970.
    pub from_ns: u64,
    /// End of the time that it covers, in ns since 1970.
    pub to_ns: u64,
    /// Query in the words of `find`, at most 60,000 bytes; empty: everything within the time.
    pub query: String,
    /// Reason, at most 255 bytes.
    pub reason: String,
}

/// Kind 10: the Master started. In a new log after a change of key, the last checkpoint of the log before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterEvent {
    /// Whether this is the first entry of a log that continues another one.
    pub is_key_change: bool,
    /// Key that signs from here, as a vkey.
    pub vkey: String,
    /// Last checkpoint of the log before, as its bytes; empty unless the key changed.
    pub previous: String,
}

/// Kind 11: token of RFC 3161 for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// Size of the checkpoint.
    pub size: u64,
    /// SHA-256 of the checkpoint file as sent to the authority.
    pub imprint: Hash,
    /// Time-stamp response in DER, at most 60,000 bytes.
    pub token: Vec<u8>,
}

impl Event {
    /// Kind of the entry.
    pub fn kind(&self) -> Kind {
        match self {
            Event::DisclosureRequest(_) => Kind::DisclosureRequest,
            Event::DisclosureDone(_) => Kind::DisclosureDone,
            Event::EpochKeys(_) => Kind::EpochKeys,
            Event::EpochDestroyed(_) => Kind::EpochDestroyed,
            Event::Policy(_) => Kind::Policy,
            Event::Enrolment(_) => Kind::Enrolment,
            Event::Deletion(_) => Kind::Deletion,
            Event::Hold(_) => Kind::Hold,
            Event::Master(_) => Kind::Master,
            Event::Timestamp(_) => Kind::Timestamp,
        }
    }

    /// Event of a kind from its body.
    pub fn decode(kind: Kind, body: &[u8]) -> Result<Event, Malformed> {
        let mut cursor = Cursor::new(body);
        let cursor = &mut cursor;
        let event = match kind {
            Kind::DisclosureRequest => Event::DisclosureRequest(entry_text(cursor)?),
            Kind::DisclosureDone => Event::DisclosureDone(Outcome::read(cursor)?),
            Kind::Policy => Event::Policy(entry_text(cursor)?),
            Kind::EpochKeys => Event::EpochKeys(EpochKeys::read(cursor)?),
            Kind::EpochDestroyed => Event::EpochDestroyed(EpochDestroyed::read(cursor)?),
            Kind::Enrolment => Event::Enrolment(Enrolment {
                is_enrolled: choice(cursor)?,
                recorder: cursor.array()?,
                name: cursor.short_text()?,
            }),
            Kind::Deletion => Event::Deletion(Deletion {
                recorder: cursor.array()?,
                segment: cursor.u64()?,
                bytes: cursor.u64()?,
                sha256: cursor.array()?,
                first_seq: cursor.u64()?,
                last_seq: cursor.u64()?,
                rule: cursor.short_text()?,
            }),
            Kind::Hold => Event::Hold(Hold {
                is_set: choice(cursor)?,
                recorder: cursor.array()?,
                hold: cursor.u64()?,
                from_ns: cursor.u64()?,
                to_ns: cursor.u64()?,
                query: entry_text(cursor)?,
                reason: cursor.short_text()?,
            }),
            Kind::Master => Event::Master(MasterEvent {
                is_key_change: !choice(cursor)?,
                vkey: entry_text(cursor)?,
                previous: entry_text(cursor)?,
            }),
            Kind::Timestamp => Event::Timestamp(Timestamp {
                size: cursor.u64()?,
                imprint: cursor.array()?,
                token: cursor.long()?.to_vec(),
            }),
            kind => return Err(Malformed(format!("entry of kind {} is no event", kind as u8))),
        };
        cursor.end()?;
        Ok(event)
    }

    /// Body of the entry: what follows the first 12 bytes. Texts beyond their bounds are cut.
    pub fn encode_body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Event::DisclosureRequest(note) | Event::Policy(note) => put_text(&mut out, note),
            Event::DisclosureDone(outcome) => outcome.encode_to(&mut out),
            Event::EpochKeys(keys) => keys.encode_to(&mut out),
            Event::EpochDestroyed(keys) => keys.encode_to(&mut out),
            Event::Enrolment(event) => {
                put_choice(&mut out, event.is_enrolled);
                out.extend_from_slice(&event.recorder);
                put_short(&mut out, &event.name);
            }
            Event::Deletion(event) => {
                out.extend_from_slice(&event.recorder);
                put_numbers(&mut out, &[event.segment, event.bytes]);
                out.extend_from_slice(&event.sha256);
                put_numbers(&mut out, &[event.first_seq, event.last_seq]);
                put_short(&mut out, &event.rule);
            }
            Event::Hold(event) => {
                put_choice(&mut out, event.is_set);
                out.extend_from_slice(&event.recorder);
                put_numbers(&mut out, &[event.hold, event.from_ns, event.to_ns]);
                put_text(&mut out, &event.query);
                put_short(&mut out, &event.reason);
            }
            Event::Master(event) => {
                put_choice(&mut out, !event.is_key_change);
                put_text(&mut out, &event.vkey);
                put_text(&mut out, &event.previous);
            }
            Event::Timestamp(event) => {
                put_numbers(&mut out, &[event.size]);
                out.extend_from_slice(&event.imprint);
                put_long(&mut out, &event.token);
            }
        }
        out
    }
}

impl Entry {
    /// Entry from exactly its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Entry, Malformed> {
        if bytes.len() > ENTRY_BYTES_MAX {
            return Err(Malformed(format!("entry of {} bytes", bytes.len())));
        }
        let mut cursor = Cursor::new(bytes);
        let head = Head::decode(&mut cursor)?;
        match head.kind {
            Kind::Statement => Statement::decode_body(head.received_ms, &mut cursor).map(Entry::Statement),
            kind => Ok(Entry::Event(head.received_ms, Event::decode(kind, cursor.rest())?)),
        }
    }

    /// The entry's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Entry::Statement(statement) => out.extend_from_slice(&statement.encode()),
            Entry::Event(received_ms, event) => {
                Head { kind: event.kind(), received_ms: *received_ms }.encode(&mut out);
                out.extend_from_slice(&event.encode_body());
            }
        }
        out
    }

    /// Time of receipt in ms since 1970.
    pub fn received_ms(&self) -> u64 {
        match self {
            Entry::Statement(statement) => statement.received_ms,
            Entry::Event(received_ms, _) => *received_ms,
        }
    }

    /// Hash of the entry's leaf.
    pub fn leaf(&self) -> Hash {
        leaf_hash(&[&self.encode()])
    }
}

/// Reads a text within the bound of entries.
fn entry_text(cursor: &mut Cursor<'_>) -> Result<String, Malformed> {
    let text = cursor.long_text()?;
    match text.len() > TEXT_BYTES_MAX {
        true => Err(Malformed(format!("text of {} bytes, at most {TEXT_BYTES_MAX}", text.len()))),
        false => Ok(text),
    }
}

/// Reads 1 for yes or 2 for no.
fn choice(cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
    match cursor.u8()? {
        1 => Ok(true),
        2 => Ok(false),
        other => Err(Malformed(format!("action {other}, expected 1 or 2"))),
    }
}

fn put_choice(out: &mut Vec<u8>, is_first: bool) {
    out.push(if is_first { 1 } else { 2 });
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_long(out, crate::cursor::cut(text, TEXT_BYTES_MAX).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disclosure::OutcomeKind;
    use proptest::prelude::*;

    fn events() -> Vec<Event> {
        let keys = EpochKeys { epoch: 497_000, inner: [4; 65], outer: [4; 65] };
        vec![
            Event::EpochDestroyed(keys.destroyed()),
            Event::EpochKeys(keys),
            Event::DisclosureRequest("text\n\n\u{2014} a AAAAAAE=\n".into()),
            Event::DisclosureDone(Outcome {
                kind: OutcomeKind::Refused,
                request: [5; 32],
                nonce: [6; 16],
                index: 7,
                grant: [0; 32],
                reason: "expired: the request has expired".into(),
            }),
            Event::Policy("text\n".into()),
            Event::Enrolment(Enrolment { is_enrolled: true, recorder: [1; 32], name: "edge-1".into() }),
            Event::Deletion(Deletion {
                recorder: [1; 32],
                segment: 7,
                bytes: 1 << 30,
                sha256: [2; 32],
                first_seq: 3,
                last_seq: 4,
                rule: "older than 90 days".into(),
            }),
            Event::Hold(Hold {
                is_set: false,
                recorder: [1; 32],
                hold: 2,
                from_ns: 1,
                to_ns: u64::MAX,
                query: "sni example.org".into(),
                reason: "case 12".into(),
            }),
            Event::Master(MasterEvent {
                is_key_change: true,
                vkey: "a+1+b".into(),
                previous: "a\n1\nb\n\n\u{2014} a b\n".into(),
            }),
            Event::Timestamp(Timestamp { size: 9, imprint: [3; 32], token: vec![0x30, 0] }),
        ]
    }

    #[test]
    fn events_survive_both_ways() {
        for event in events() {
            let entry = Entry::Event(1_700_000_000_000, event);
            let bytes = entry.encode();
            assert_eq!(Entry::decode(&bytes).as_ref(), Ok(&entry));
            assert_eq!(entry.received_ms(), 1_700_000_000_000);
            for len in 0..bytes.len() {
                assert!(Entry::decode(&bytes[..len]).is_err());
            }
            assert!(Entry::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn foreign_heads_are_refused() {
        let good = Entry::Event(0, events().remove(5)).encode();
        for (at, byte) in [(0, 0), (0, 12), (1, 2), (2, 1), (3, 1), (12, 0), (12, 3)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Entry::decode(&bytes).unwrap_err();
        }
        Entry::decode(&vec![0; ENTRY_BYTES_MAX + 1]).unwrap_err();
    }

    proptest! {
        #[test]
        fn decoded_bytes_encode_to_themselves(
            kind in 1_u8..12, choice in 0_u8..4, event in 0_usize..10,
            rest in proptest::collection::vec(any::<u8>(), 0..300),
            at: usize, bit in 0_u8..8,
        ) {
            let head = [&[kind, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, choice][..], &rest].concat();
            let mut known = Entry::Event(1, events().remove(event)).encode();
            let at = at % known.len();
            known[at] ^= 1 << bit;
            for bytes in [head, known] {
                if let Ok(entry) = Entry::decode(&bytes) {
                    prop_assert_eq!(entry.encode(), bytes);
                }
            }
        }
    }
}
