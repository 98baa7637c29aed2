//! Statement over a batch of records: what a Recorder sends, and what the Master logs with its time of receipt.
//!
//! 212 bytes. Statements of a Recorder form a chain: numbers of batches and records have no gap, and each has the hash
//! of the one before.

use crate::cursor::{Cursor, Malformed};
use crate::entry::{Head, Kind};
use crate::merkle::{Hash, leaf_hash, sha256};

/// Bytes of a statement.
pub const STATEMENT_BYTES: usize = 212;

/// Statement over one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Time at which the Master received it, in ms since 1970; 0 as sent.
    pub received_ms: u64,
    /// SHA-256 of the SPKI of the Recorder's certificate.
    pub recorder: Hash,
    /// Number of the batch: 1 for the first of this Recorder.
    pub batch: u64,
    /// Records of the batch.
    pub span: Span,
    /// Packet records in the batch.
    pub packets: u64,
    /// Captured bytes in these packets.
    pub packet_bytes: u64,
    /// Root over the records.
    pub root: Hash,
    /// Hash of the Recorder's previous statement as sent; zeros in batch 1.
    pub previous: Hash,
    /// Counters since the Recorder started.
    pub counters: Counters,
    /// Share of a divided load.
    pub partition: Partition,
    /// Time in emergency mode since the Recorder started, in ms.
    pub emergency_ms: u32,
}

/// Records that a batch covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Number of the first record.
    pub first_seq: u64,
    /// Number of the last record.
    pub last_seq: u64,
    /// Lowest time of a record, in ns since 1970.
    pub first_ns: u64,
    /// Highest time of a record, in ns since 1970.
    pub last_ns: u64,
}

/// Counters of packets since the Recorder started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that the sockets counted.
    pub seen: u64,
    /// Packet records written.
    pub written: u64,
    /// Packets lost, as the sockets counted.
    pub dropped: u64,
    /// Packets that the interface counted.
    pub if_rx: u64,
    /// Packets that the interface lost.
    pub if_missed: u64,
}

/// Share of a load that several Recorders divide by a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number of the share, from 0.
    pub part: u16,
    /// Number of shares, at least 1.
    pub parts: u16,
}

impl Default for Partition {
    fn default() -> Partition {
        Partition { part: 0, parts: 1 }
    }
}

/// Reason why a statement does not follow another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainBreak {
    /// Statement of another Recorder.
    #[error("statement of another Recorder")]
    Recorder,
    /// Batch number that leaves a gap or goes back.
    #[error("batch {found} follows {after}")]
    Batch {
        /// Number of this batch.
        found: u64,
        /// Number of the batch before.
        after: u64,
    },
    /// First record that leaves a gap or goes back.
    #[error("record {found} follows {after}")]
    Record {
        /// Number of the first record.
        found: u64,
        /// Number of the last record before.
        after: u64,
    },
    /// Hash of another statement.
    #[error("'previous' is the hash of another statement")]
    Previous,
}

impl Statement {
    /// Statement from its 212 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Statement, Malformed> {
        if bytes.len() != STATEMENT_BYTES {
            return Err(Malformed(format!("statement of {} bytes, expected {STATEMENT_BYTES}", bytes.len())));
        }
        let mut cursor = Cursor::new(bytes);
        let head = Head::decode(&mut cursor)?;
        match head.kind {
            Kind::Statement => Statement::decode_body(head.received_ms, &mut cursor),
            kind => Err(Malformed(format!("entry of kind {}, expected a statement", kind as u8))),
        }
    }

    pub(crate) fn decode_body(received_ms: u64, cursor: &mut Cursor<'_>) -> Result<Statement, Malformed> {
        let statement = Statement {
            received_ms,
            recorder: cursor.array()?,
            batch: cursor.u64()?,
            span: Span {
                first_seq: cursor.u64()?,
                last_seq: cursor.u64()?,
                first_ns: cursor.u64()?,
                last_ns: cursor.u64()?,
            },
            packets: cursor.u64()?,
            packet_bytes: cursor.u64()?,
            root: cursor.array()?,
            previous: cursor.array()?,
            counters: Counters {
                seen: cursor.u64()?,
                written: cursor.u64()?,
                dropped: cursor.u64()?,
                if_rx: cursor.u64()?,
                if_missed: cursor.u64()?,
            },
            partition: Partition { part: cursor.u16()?, parts: cursor.u16()? },
            emergency_ms: cursor.u32()?,
        };
        cursor.end()?;
        Ok(statement)
    }

    /// The 212 bytes.
    pub fn encode(&self) -> [u8; STATEMENT_BYTES] {
        let (span, counters) = (&self.span, &self.counters);
        let mut out = Vec::with_capacity(STATEMENT_BYTES);
        Head { kind: Kind::Statement, received_ms: self.received_ms }.encode(&mut out);
        out.extend_from_slice(&self.recorder);
        let numbers = [
            self.batch,
            span.first_seq,
            span.last_seq,
            span.first_ns,
            span.last_ns,
            self.packets,
            self.packet_bytes,
        ];
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        out.extend_from_slice(&self.root);
        out.extend_from_slice(&self.previous);
        let numbers = [counters.seen, counters.written, counters.dropped, counters.if_rx, counters.if_missed];
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        out.extend_from_slice(&self.partition.part.to_be_bytes());
        out.extend_from_slice(&self.partition.parts.to_be_bytes());
        out.extend_from_slice(&self.emergency_ms.to_be_bytes());
        let mut bytes = [0; STATEMENT_BYTES];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// The statement as the Recorder sent it.
    pub fn as_sent(&self) -> Statement {
        Statement { received_ms: 0, ..self.clone() }
    }

    /// Hash of the statement as sent: `previous` of the next one.
    pub fn link(&self) -> Hash {
        sha256(&self.as_sent().encode())
    }

    /// Hash of the leaf of the Master's log.
    pub fn leaf(&self) -> Hash {
        leaf_hash(&[&self.encode()])
    }

    /// Error if its own values contradict each other.
    pub fn check(&self) -> Result<(), Malformed> {
        let Statement { span, counters, partition, .. } = self;
        let records = span.last_seq.checked_sub(span.first_seq).and_then(|last| last.checked_add(1));
        let problem = if self.batch == 0 || span.first_seq == 0 {
            "numbers begin at 1"
        } else if records.is_none_or(|records| records < self.packets) {
            "more packets than records, or the last record is before the first"
        } else if span.first_ns > span.last_ns {
            "the last time is before the first"
        } else if partition.part >= partition.parts {
            "part is not below parts"
        } else if counters.written.checked_add(counters.dropped).is_none_or(|sum| sum > counters.seen) {
            "more packets written and dropped than seen"
        } else {
            return Ok(());
        };
        Err(Malformed(format!("statement of batch {}: {problem}", self.batch)))
    }

    /// Error unless it is the Recorder's first statement, or follows the link of `previous`.
    pub fn follows(&self, previous: Option<&ChainEnd>) -> Result<(), ChainBreak> {
        let none = ChainEnd { recorder: self.recorder, batch: 0, last_seq: 0, link: [0; 32] };
        let end = previous.unwrap_or(&none);
        if self.recorder != end.recorder {
            return Err(ChainBreak::Recorder);
        }
        if end.batch.checked_add(1) != Some(self.batch) {
            return Err(ChainBreak::Batch { found: self.batch, after: end.batch });
        }
        if end.last_seq.checked_add(1) != Some(self.span.first_seq) {
            return Err(ChainBreak::Record { found: self.span.first_seq, after: end.last_seq });
        }
        if self.previous != end.link {
            return Err(ChainBreak::Previous);
        }
        Ok(())
    }
}

/// End of a Recorder's chain: what the next statement must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainEnd {
    /// The Recorder.
    pub recorder: Hash,
    /// Number of its last batch.
    pub batch: u64,
    /// Number of its last record.
    pub last_seq: u64,
    /// Hash of its last statement as sent.
    pub link: Hash,
}

impl From<&Statement> for ChainEnd {
    fn from(statement: &Statement) -> ChainEnd {
        ChainEnd {
            recorder: statement.recorder,
            batch: statement.batch,
            last_seq: statement.span.last_seq,
            link: statement.link(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn statement(batch: u64, first_seq: u64, previous: Hash) -> Statement {
        Statement {
            received_ms: 0,
            recorder: [1; 32],
            batch,
            span: Span { first_seq, last_seq: first_seq + 9, first_ns: 5, last_ns: 7 },
            packets: 10,
            packet_bytes: 1000,
            root: [2; 32],
            previous,
            counters: Counters { seen: 11, written: 10, dropped: 1, if_rx: 11, if_missed: 0 },
            partition: Partition::default(),
            emergency_ms: 0,
        }
    }

    #[test]
    fn fields_have_their_places() {
        let mut one = statement(0x0102, 3, [3; 32]);
        one.received_ms = 0x0a0b;
        one.emergency_ms = 0x0c0d;
        let bytes = one.encode();
        assert_eq!(bytes[..12], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x0b]);
        assert_eq!(bytes[12..44], [1; 32]);
        assert_eq!(bytes[44..52], [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(bytes[100..132], [2; 32]);
        assert_eq!(bytes[132..164], [3; 32]);
        assert_eq!(bytes[204..], [0, 0, 0, 1, 0, 0, 0x0c, 0x0d]);
        assert_eq!(one.link(), one.as_sent().link());
        assert_ne!(one.leaf(), one.as_sent().leaf());
    }

    #[test]
    fn chain_has_no_gaps() {
        let first = statement(1, 1, [0; 32]);
        first.follows(None).unwrap();
        let end = ChainEnd::from(&first);
        let second = statement(2, 11, first.link());
        second.follows(Some(&end)).unwrap();
        let changed = |change: fn(&mut Statement)| {
            let mut changed = second.clone();
            change(&mut changed);
            changed.follows(Some(&end)).unwrap_err()
        };
        assert_eq!(changed(|s| s.recorder = [9; 32]), ChainBreak::Recorder);
        assert_eq!(changed(|s| s.batch = 3), ChainBreak::Batch { found: 3, after: 1 });
        assert_eq!(changed(|s| s.span.first_seq = 12), ChainBreak::Record { found: 12, after: 10 });
        assert_eq!(changed(|s| s.previous = [0; 32]), ChainBreak::Previous);
        assert_eq!(second.follows(None), Err(ChainBreak::Batch { found: 2, after: 0 }));
    }

    #[test]
    fn contradictions_are_refused() {
        statement(1, 1, [0; 32]).check().unwrap();
        for change in [
            (|s| s.batch = 0) as fn(&mut Statement),
            |s| s.span.last_seq = 0,
            |s| s.packets = 11,
            |s| s.span.first_ns = 8,
            |s| s.partition.part = 1,
            |s| s.counters.dropped = 2,
            |s| s.counters.written = u64::MAX,
        ] {
            let mut changed = statement(1, 1, [0; 32]);
            change(&mut changed);
            changed.check().unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn decoded_bytes_encode_to_themselves(mut bytes in proptest::collection::vec(any::<u8>(), STATEMENT_BYTES)) {
            bytes[..4].copy_from_slice(&[1, 1, 0, 0]);
            let statement = Statement::decode(&bytes).unwrap();
            prop_assert_eq!(&statement.encode()[..], &bytes[..]);
            let _ = (statement.check(), statement.follows(None));
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..230)) {
            let _ = Statement::decode(&bytes);
        }
    }
}
