//! Rows of the index, and the events that carry them to its writer.

use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::extents::Extent;
use evergate_evidence::record::RequestRecord;
use std::borrow::Cow;
use std::fmt::Write;

/// A row for the index. A row replaces the one of the same name, unless that has a later record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexEvent {
    /// A connection's record and its place.
    Connection(Box<ConnectionRecord>, RecordPlace),
    /// An envelope of a connection's secrets.
    Envelope(EnvelopeRow),
    /// A connection's packets in 64 MiB of a segment.
    Extent(Extent),
    /// A request that the switch routed.
    Request(Box<RequestRow>),
    /// A segment. It follows every other row of the segment.
    Segment(SegmentRow),
    /// A batch, or the receipt of one.
    Batch(BatchRow),
}

/// Place of a record in a store. What lies there is checked: the index is no evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordPlace {
    /// `seq` of the record.
    pub seq: u64,
    /// Number of its segment.
    pub segment: u64,
    /// Place of its block in the segment's file in bytes.
    pub offset: u64,
}

/// Place of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvelopeRow {
    /// Its record.
    pub place: RecordPlace,
    /// Time at which the switch accepted the connection, in nanoseconds since 1970.
    pub born_ns: u64,
    /// Random of the client's hello: it leads to the connection.
    pub client_random: [u8; 32],
}

/// A request that the switch routed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// `seq` of its record.
    pub seq: u64,
    /// Number of the connection in the switch.
    pub switch_connection: u64,
    /// Place among the connection's requests: 0, 1, …
    pub n: u32,
    /// Time in nanoseconds since 1970.
    pub time_ns: u64,
    /// Random of the client's hello: it leads to the connection.
    pub client_random: [u8; 32],
    /// Status of the response; 0 without one.
    pub status: u16,
    /// Flags of the record.
    pub flags: u16,
    /// Id that the switch gave.
    pub id: Vec<u8>,
    /// Id that the client gave. It may repeat.
    pub given_id: Vec<u8>,
}

/// A segment, as far as its records show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentRow {
    /// Number of the segment.
    pub number: u64,
    /// Length of its records' blocks in bytes.
    pub bytes: u64,
    /// `seq` of the first record; 0 without one.
    pub first_seq: u64,
    /// `seq` of the last record.
    pub last_seq: u64,
    /// Earliest and latest time in nanoseconds since 1970; `None` if no record has a time.
    pub times_ns: Option<(u64, u64)>,
    /// Whether its last record ends it.
    pub is_closed: bool,
}

/// A batch of the Recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRow {
    /// Number of the batch: 1, 2, …
    pub batch: u64,
    /// `seq` of its first record.
    pub first_seq: u64,
    /// `seq` of its last record.
    pub last_seq: u64,
    /// Time of its first record in nanoseconds since 1970.
    pub first_ns: u64,
    /// Receipt of the Master; `None` before it.
    pub proof: Option<ProofPlace>,
}

/// Place of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofPlace {
    /// Index of the statement in the Master's log.
    pub log_index: u64,
    /// Segment whose `.proofs` file has the receipt.
    pub segment: u64,
    /// Place of the receipt's length field in that file.
    pub offset: u64,
    /// Place behind the receipt.
    pub end: u64,
}

impl RequestRow {
    /// The row of a record.
    pub fn new(seq: u64, record: &RequestRecord<'_>) -> RequestRow {
        RequestRow {
            seq,
            switch_connection: record.switch_connection,
            n: record.index,
            time_ns: record.time_ns,
            client_random: record.client_random,
            status: record.status,
            flags: record.flags,
            id: record.id.to_vec(),
            given_id: record.given_id.to_vec(),
        }
    }
}

/// Bytes of a record as text. Text without backslashes and NUL is itself; anything else is escaped, so that two values
/// never have the same text.
pub fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(['\\', '\0']) => return Cow::Borrowed(text),
        _ => {}
    }
    let mut out = String::with_capacity(bytes.len() * 2);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\0' => out.push_str("\\x00"),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn different_bytes_have_different_texts(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(text_of(&a) == text_of(&b), a == b);
            prop_assert!(!text_of(&a).contains('\0'));
        }
    }

    #[test]
    fn plain_text_is_unchanged() {
        assert_eq!(text_of(b"example.com"), "example.com");
        assert_eq!(text_of(b"a\\x00\0\xff"), "a\\\\x00\\x00\\xff");
    }
}
