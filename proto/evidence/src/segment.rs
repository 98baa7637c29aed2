//! A segment as a function of its records, and back.
//!
//! The encoder writes section and interfaces from the first record (a [`SegmentBegin`]), one block for each record, and
//! statistics from the last (a [`SegmentEnd`]). The decoder encodes each record that it reads and compares: a bit that
//! changes no record changes this comparison. Memory: one block, at most [`BLOCK_BYTES_MAX`].

use crate::mark::{MarkKind, SegmentBegin, SegmentEnd};
use crate::pcapng::{
    BlockHead, CUSTOM, CUSTOM_BLOCK_HEAD, ENTERPRISE, MAGIC, PACKET, PACKET_BLOCK_HEAD, SECTION_HEADER,
    block_head, packet_block, padding, push_begin, push_end, push_record, word,
};
use crate::record::{Body, Direction, Packet, RECORD_BYTES_MAX, Record, RecordError, stated_length};

/// Longest block of a segment in bytes.
pub const BLOCK_BYTES_MAX: usize = RECORD_BYTES_MAX + 128;
/// Most bytes of a segment before its first record.
const BEGIN_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a segment behind its last record.
const STATISTICS_BYTES_MAX: usize = 128;

/// Writer of the blocks of a segment.
#[derive(Clone, Debug, Default)]
pub struct SegmentEncoder {
    /// Packets that gaps declare since the last packet.
    dropped: u64,
    record: Vec<u8>,
}

/// Reader of the records of a segment.
#[derive(Clone, Debug, Default)]
pub struct SegmentDecoder {
    encoder: SegmentEncoder,
    block: Vec<u8>,
    place: Place,
    /// Whether the losses before the next packet are unknown: it has them.
    is_resumed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Begin,
    Within,
    Ended,
}

/// A record of a segment, and the bytes of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// Bytes of the segment that the record stands for.
    pub bytes: usize,
    /// The record.
    pub record: Record<'a>,
}

/// Error in the bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The file does not begin with a section, interfaces and a mark.
    #[error("segment does not begin with its section, interfaces and first mark")]
    Begin,
    /// A block that no Recorder writes, or one without a record of ours.
    #[error("block of type {0:#x} is not part of a segment")]
    Block(u32),
    /// A length beyond the limit, or one that its content does not have.
    #[error("block has an invalid length")]
    Length,
    /// The record in the block is invalid.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// The block is not the one that its record has.
    #[error("block differs from the encoding of its record {0}")]
    NotCanonical(u64),
    /// Bytes behind the last block.
    #[error("bytes behind the end of the segment")]
    Trailing,
}

impl SegmentEncoder {
    /// Appends the blocks of a record.
    pub fn push(&mut self, record: &Record<'_>, to: &mut Vec<u8>) {
        match &record.body {
            Body::Packet(packet) => return self.push_packet(packet, record.seq, record.interface, to),
            Body::Gap(gap) => self.dropped = self.dropped.saturating_add(gap.count),
            _ => {}
        }
        let begin = mark_object::<SegmentBegin>(record, MarkKind::SegmentBegins);
        if let Some(begin) = begin {
            push_begin(to, &begin);
        }
        self.record.clear();
        record.encode(&mut self.record);
        push_record(to, &self.record);
        if let Some(end) = mark_object::<SegmentEnd>(record, MarkKind::SegmentEnds) {
            push_end(to, &end);
        }
    }

    /// Appends the block of a packet.
    pub fn push_packet(&mut self, packet: &Packet<'_>, seq: u64, interface: u16, to: &mut Vec<u8>) {
        let (head, tail) = packet_block(packet, seq, interface, std::mem::take(&mut self.dropped));
        to.extend_from_slice(&head);
        to.extend_from_slice(packet.data);
        to.extend_from_slice(tail.bytes());
    }
}

fn mark_object<T: serde::Serialize + for<'a> serde::Deserialize<'a>>(
    record: &Record<'_>,
    what: MarkKind,
) -> Option<T> {
    match &record.body {
        Body::Mark(mark) if mark.what == what => mark.object(),
        _ => None,
    }
}

impl SegmentDecoder {
    /// A decoder at the begin of a block within a segment: a reader that seeks. The losses that the first packet states
    /// are not compared.
    pub fn within() -> SegmentDecoder {
        SegmentDecoder { place: Place::Within, is_resumed: true, ..SegmentDecoder::default() }
    }

    /// The next record at the start of `bytes`; `None` until `bytes` has the whole of it.
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<Decoded<'a>>, SegmentError> {
        match self.place {
            Place::Begin => self.read_begin(bytes),
            Place::Within => self.read_block(bytes),
            Place::Ended if bytes.is_empty() => Ok(None),
            Place::Ended => Err(SegmentError::Trailing),
        }
    }

    /// Bytes that suffice for the next record, as far as `bytes` shows. At most [`BLOCK_BYTES_MAX`] and 64 KiB.
    pub fn bytes_needed(&self, bytes: &[u8]) -> usize {
        match (self.place, block_head(bytes)) {
            (Place::Begin, _) => 2 * BEGIN_BYTES_MAX,
            (_, None) => 8,
            (_, Some(head)) if head.kind == PACKET => head.total.min(BLOCK_BYTES_MAX),
            (_, Some(head)) => head.total.min(BLOCK_BYTES_MAX) + STATISTICS_BYTES_MAX,
        }
    }

    /// Whether the segment's last record has been read.
    pub fn has_ended(&self) -> bool {
        self.place == Place::Ended
    }

    fn read_begin<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<Decoded<'a>>, SegmentError> {
        let mut offset = 0;
        loop {
            let Some(head) = block_head(&bytes[offset..]) else { return Ok(None) };
            if (offset == 0) != (head.kind == SECTION_HEADER) || head.kind == PACKET {
                return Err(SegmentError::Begin);
            }
            if head.total < 12 || offset + head.total > BEGIN_BYTES_MAX {
                return Err(SegmentError::Length);
            }
            if head.kind == CUSTOM {
                break;
            }
            offset += head.total;
            if offset > bytes.len() {
                return Ok(None);
            }
        }
        let Some(record) = read_custom(&bytes[offset..])? else { return Ok(None) };
        if mark_object::<SegmentBegin>(&record, MarkKind::SegmentBegins).is_none() {
            return Err(SegmentError::Begin);
        }
        let decoded = self.compare(record, bytes)?;
        if decoded.is_some() {
            self.place = Place::Within;
        }
        Ok(decoded)
    }

    fn read_block<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<Decoded<'a>>, SegmentError> {
        let Some(head) = block_head(bytes) else { return Ok(None) };
        match head.kind {
            PACKET => self.read_packet(head, bytes),
            CUSTOM => {
                let Some(record) = read_custom(bytes)? else { return Ok(None) };
                self.compare(record, bytes)
            }
            kind => Err(SegmentError::Block(kind)),
        }
    }

    fn read_packet<'a>(
        &mut self,
        head: BlockHead,
        bytes: &'a [u8],
    ) -> Result<Option<Decoded<'a>>, SegmentError> {
        if head.total > BLOCK_BYTES_MAX {
            return Err(SegmentError::Length);
        }
        let Some(block) = bytes.get(..head.total) else { return Ok(None) };
        let (record, packet) = parse_packet(block).ok_or(SegmentError::Length)??;
        let mut dropped = std::mem::take(&mut self.encoder.dropped);
        if std::mem::take(&mut self.is_resumed) {
            dropped = stated_losses(block, packet.data.len());
        }
        let (first, tail) = packet_block(&packet, record.seq, record.interface, dropped);
        let rest = &block[PACKET_BLOCK_HEAD + packet.data.len()..];
        if block[..PACKET_BLOCK_HEAD] != first || rest != tail.bytes() {
            return Err(SegmentError::NotCanonical(record.seq));
        }
        packet.check()?;
        let record = Record { seq: record.seq, interface: record.interface, body: Body::Packet(packet) };
        Ok(Some(Decoded { bytes: head.total, record }))
    }

    /// Encodes the record and compares it with the bytes that it was read from.
    fn compare<'a>(
        &mut self,
        record: Record<'a>,
        bytes: &'a [u8],
    ) -> Result<Option<Decoded<'a>>, SegmentError> {
        let mut encoder = self.encoder.clone();
        self.block.clear();
        encoder.push(&record, &mut self.block);
        let length = self.block.len();
        if bytes.len() < length && self.block.starts_with(bytes) {
            return Ok(None);
        }
        if !bytes.starts_with(&self.block) {
            return Err(SegmentError::NotCanonical(record.seq));
        }
        self.encoder = encoder;
        if mark_object::<SegmentEnd>(&record, MarkKind::SegmentEnds).is_some() {
            self.place = Place::Ended;
        }
        Ok(Some(Decoded { bytes: length, record }))
    }
}

/// The record of the custom block at the start of `bytes`; `None` until the block is whole.
fn read_custom(bytes: &[u8]) -> Result<Option<Record<'_>>, SegmentError> {
    let Some(head) = block_head(bytes) else { return Ok(None) };
    if head.total > BLOCK_BYTES_MAX || head.total < CUSTOM_BLOCK_HEAD + 4 {
        return Err(SegmentError::Length);
    }
    let Some(block) = bytes.get(..head.total) else { return Ok(None) };
    if word(block, 8) != Some(ENTERPRISE) || block[12..16] != MAGIC {
        return Err(SegmentError::Block(head.kind));
    }
    let content = &block[CUSTOM_BLOCK_HEAD..head.total - 4];
    let length = stated_length(content).ok_or(SegmentError::Length)?;
    if content.len() != length + padding(length) {
        return Err(SegmentError::Length);
    }
    Ok(Some(Record::decode(&content[..length])?))
}

/// Sequence number and interface of a packet.
struct Identity {
    seq: u64,
    interface: u16,
}

/// Fields of a packet's block; `None` where its length does not fit. The caller compares everything else.
/// Losses before a packet that its block states.
fn stated_losses(block: &[u8], data: usize) -> u64 {
    const DROP_COUNT: [u8; 4] = [4, 0, 8, 0];
    let option = PACKET_BLOCK_HEAD + data + padding(data) + 8; // behind epb_flags
    let value = block
        .get(option..)
        .filter(|option| option.starts_with(&DROP_COUNT))
        .and_then(|option| option.get(4..));
    value.and_then(|value| value.first_chunk::<8>()).map_or(0, |value| u64::from_le_bytes(*value))
}

fn parse_packet(block: &[u8]) -> Option<Result<(Identity, Packet<'_>), SegmentError>> {
    let interface = u16::try_from(word(block, 8)?).ok()?;
    let time_ns = u64::from(word(block, 12)?) << 32 | u64::from(word(block, 16)?);
    let (captured, wire_bytes) = (word(block, 20)? as usize, word(block, 24)?);
    let data = block.get(PACKET_BLOCK_HEAD..PACKET_BLOCK_HEAD.checked_add(captured)?)?;
    // The end of every block: packet id (12 bytes), our option (32), end of options (4), length (4).
    let tail = block.get(block.len().checked_sub(52)?..)?;
    let seq = u64::from_le_bytes(tail[4..12].try_into().ok()?);
    let ours = &tail[24..44];
    let direction = match Direction::of_code(ours[16]) {
        Ok(direction) => direction,
        Err(error) => return Some(Err(error.into())),
    };
    let packet = Packet {
        time_ns,
        wire_bytes,
        connection: u64::from_be_bytes(ours[0..8].try_into().ok()?),
        packet_seq: u64::from_be_bytes(ours[8..16].try_into().ok()?),
        direction,
        flags: ours[17],
        data,
    };
    Some(Ok((Identity { seq, interface }, packet)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::Mark;
    use crate::record::{Gap, GapReason};

    fn begin() -> SegmentBegin {
        SegmentBegin {
            filter: "part 0 of 2".into(),
            interfaces: vec!["eth0".into()],
            link_type: 1,
            next_connection: 1,
            recorder: "ab".repeat(32),
            segment: 3,
            snaplen: 0,
        }
    }

    fn packet(data: &[u8], connection: u64) -> Body<'_> {
        let direction = if connection == 0 { Direction::Unknown } else { Direction::ToClient };
        let (packet_seq, flags, wire_bytes) = (connection, 8, data.len() as u32 + 1);
        Body::Packet(Packet { time_ns: 1 << 60, wire_bytes, connection, packet_seq, direction, flags, data })
    }

    fn bodies() -> Vec<Body<'static>> {
        let gap = Gap { reason: GapReason::Ring, exact: true, count: 5, from_ns: 1, to_ns: 2 };
        let end = SegmentEnd { dropped: 5, missed: 0, received: 9, time_ns: (1u64 << 60).to_string() };
        vec![
            Body::Mark(Mark::new(MarkKind::SegmentBegins, &begin())),
            packet(b"first packet", 0),
            Body::Gap(gap),
            packet(b"second", 4),
            Body::Envelope(b"opaque".into()),
            packet(b"", 4),
            Body::Mark(Mark::new(MarkKind::SegmentEnds, &end)),
        ]
    }

    fn segment() -> Vec<u8> {
        let (mut encoder, mut bytes) = (SegmentEncoder::default(), Vec::new());
        for (seq, body) in (1..).zip(bodies()) {
            encoder.push(&Record { seq, interface: 0, body }, &mut bytes);
        }
        bytes
    }

    /// Records of a file, or the error and its place.
    fn read(bytes: &[u8]) -> Result<Vec<Record<'_>>, (usize, SegmentError)> {
        let (mut decoder, mut records, mut at) = (SegmentDecoder::default(), Vec::new(), 0);
        while let Some(decoded) = decoder.read(&bytes[at..]).map_err(|error| (at, error))? {
            at += decoded.bytes;
            records.push(decoded.record);
        }
        if at < bytes.len() { Err((at, SegmentError::Length)) } else { Ok(records) }
    }

    #[test]
    fn segment_decodes_to_its_records() {
        let bytes = segment();
        let records = read(&bytes).expect("own encoding");
        assert_eq!(records.iter().map(|record| record.body.clone()).collect::<Vec<_>>(), bodies());
        assert!(records.iter().map(|record| record.seq).eq(1..=7));
    }

    #[test]
    fn reader_may_begin_at_any_block() {
        let bytes = segment();
        let (mut decoder, mut at) = (SegmentDecoder::default(), 0);
        while let Some(decoded) = decoder.read(&bytes[at..]).expect("own encoding") {
            at += decoded.bytes;
            let (mut within, mut place) = (SegmentDecoder::within(), at);
            while let Some(decoded) = within.read(&bytes[place..]).expect("own encoding") {
                place += decoded.bytes;
            }
            assert_eq!(place, bytes.len());
        }
    }

    #[test]
    fn every_flipped_bit_changes_a_record_or_is_refused() {
        let bytes = segment();
        let records = read(&bytes).expect("own encoding");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(read(&changed).as_ref(), Ok(&records), "bit {bit}");
        }
    }

    #[test]
    fn bytes_behind_the_end_are_refused() {
        let mut bytes = segment();
        bytes.extend_from_slice(&[0; 12]);
        assert_eq!(read(&bytes).err().map(|(_, error)| error), Some(SegmentError::Trailing));
    }

    #[test]
    fn cut_segment_needs_more_at_every_length() {
        let bytes = segment();
        let whole = read(&bytes).expect("own encoding").len();
        for length in 0..bytes.len() {
            let (mut decoder, mut count, mut at) = (SegmentDecoder::default(), 0, 0);
            while let Some(decoded) = decoder.read(&bytes[at..length]).expect("prefix of a segment") {
                at += decoded.bytes;
                count += 1;
            }
            assert!(count < whole);
        }
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, cut in 0usize..600) {
            let mut mixed = segment();
            mixed.truncate(cut);
            mixed.extend_from_slice(&bytes);
            let _ = read(&mixed);
        }
    }
}
