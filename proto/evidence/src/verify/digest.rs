//! Digest of a record: its leaf hash, and the fields that verification needs. Any thread makes digests.

use crate::mark::{MarkKind, SegmentBegin};
use crate::merkle::{Hash, leaf_hash};
use crate::record::{Body, Gap, Record};

/// A record without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordDigest {
    /// Hash of the leaf.
    pub leaf: Hash,
    /// Place in the Recorder's stream.
    pub seq: u64,
    /// Place of its block in the segment's file.
    pub offset: u64,
    /// Meaning of the record in the stream.
    pub event: Event,
}

/// Meaning of a record for verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet.
    Packet {
        /// Time in nanoseconds since 1970.
        time_ns: u64,
        /// Number of its connection; 0 without one.
        connection: u64,
        /// Place in its connection.
        packet_seq: u64,
        /// Captured bytes.
        bytes: u32,
    },
    /// A declared loss.
    Gap(Gap),
    /// Last record of a connection.
    Final(Box<Final>),
    /// The Recorder starts.
    Start,
    /// The Recorder stops.
    Stop,
    /// A segment begins; `None` if its object is not canonical.
    Begin(Option<Box<SegmentBegin>>),
    /// A segment ends.
    End,
    /// Any other record.
    Other,
}

/// Last record of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Final {
    /// Number of the connection.
    pub connection: u64,
    /// Number of its packets.
    pub packets: u64,
    /// Holes in its payload.
    pub holes: u64,
    /// Time of its first packet in nanoseconds since 1970.
    pub first_ns: u64,
    /// Time of its last packet in nanoseconds since 1970.
    pub last_ns: u64,
}

impl RecordDigest {
    /// Digest of the record whose block begins at `offset`. `scratch` is memory for its encoding.
    pub fn of(record: &Record<'_>, offset: u64, scratch: &mut Vec<u8>) -> RecordDigest {
        let leaf = match &record.body {
            Body::Packet(packet) => leaf_hash(&[&packet.head(record.seq, record.interface), packet.data]),
            _ => {
                scratch.clear();
                record.encode(scratch);
                leaf_hash(&[scratch])
            }
        };
        RecordDigest { leaf, seq: record.seq, offset, event: Event::of(record) }
    }
}

impl Event {
    fn of(record: &Record<'_>) -> Event {
        match &record.body {
            Body::Packet(packet) => Event::Packet {
                time_ns: packet.time_ns,
                connection: packet.connection,
                packet_seq: packet.packet_seq,
                bytes: packet.data.len() as u32, // below RECORD_BYTES_MAX
            },
            Body::Gap(gap) => Event::Gap(*gap),
            Body::Connection(record) if record.is_final => Event::Final(Box::new(Final {
                connection: record.connection,
                packets: record.counts.packets,
                holes: record.counts.holes,
                first_ns: record.counts.first_ns,
                last_ns: record.counts.last_ns,
            })),
            Body::Mark(mark) => match mark.what {
                MarkKind::Start => Event::Start,
                MarkKind::Stop => Event::Stop,
                MarkKind::SegmentBegins => Event::Begin(mark.object().map(Box::new)),
                MarkKind::SegmentEnds => Event::End,
                _ => Event::Other,
            },
            Body::Connection(_) | Body::Envelope(_) | Body::Request(_) => Event::Other,
        }
    }
}
