//! Blocks of pcapng (draft-ietf-opsawg-pcapng), little-endian, in the one form that a segment has.
//!
//! Recorder and verifier share this encoder: the verifier decodes a record, encodes its block again and compares.

use crate::mark::{SegmentBegin, SegmentEnd};
use crate::record::{Packet, flags};

/// Section Header Block.
pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
/// Interface Description Block.
pub const INTERFACE: u32 = 1;
/// Interface Statistics Block.
pub const STATISTICS: u32 = 5;
/// Enhanced Packet Block.
pub const PACKET: u32 = 6;
/// Decryption Secrets Block: the traffic secrets of a disclosed session.
pub const SECRETS: u32 = 10;
/// Custom Block that tools may copy.
pub const CUSTOM: u32 = 0xbad;
/// Private enterprise number of documentation (RFC 5612), until one is registered. Readers match [`MAGIC`] too.
pub const ENTERPRISE: u32 = 32473;
/// First bytes of the content of our blocks and options.
pub const MAGIC: [u8; 4] = *b"EVG1";
/// Bytes of a packet's block before the data.
pub const PACKET_BLOCK_HEAD: usize = 28;
/// Bytes of a custom block before its record.
pub const CUSTOM_BLOCK_HEAD: usize = 16;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const OPTION_CUSTOM: u16 = 2989;
const CUSTOM_OPTION_BYTES: usize = 28;

/// Bytes that fill `length` to a multiple of 4.
pub fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// The part of a packet's block behind its data.
#[derive(Clone, Copy, Debug)]
pub struct PacketTail {
    bytes: [u8; 80],
    length: usize,
}

impl PacketTail {
    /// Padding, options and length.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

/// Block of a packet in two parts, around the data. `dropped` counts the packets that the gaps before it declare.
pub fn packet_block(
    packet: &Packet<'_>,
    seq: u64,
    interface: u16,
    dropped: u64,
) -> ([u8; PACKET_BLOCK_HEAD], PacketTail) {
    let mut tail = PacketTail { bytes: [0; 80], length: padding(packet.data.len()) };
    tail.push(&[2, 0, 4, 0]);
    tail.push(&block_flags(packet.flags).to_le_bytes());
    if dropped > 0 {
        tail.push(&[4, 0, 8, 0]);
        tail.push(&dropped.to_le_bytes());
    }
    tail.push(&[5, 0, 8, 0]);
    tail.push(&seq.to_le_bytes());
    tail.push(&OPTION_CUSTOM.to_le_bytes());
    tail.push(&(CUSTOM_OPTION_BYTES as u16).to_le_bytes());
    tail.push(&ENTERPRISE.to_le_bytes());
    tail.push(&MAGIC);
    tail.push(&packet.connection.to_be_bytes());
    tail.push(&packet.packet_seq.to_be_bytes());
    tail.push(&[packet.direction as u8, packet.flags, 0, 0]);
    tail.push(&[0; 4]); // end of options
    let total = (PACKET_BLOCK_HEAD + packet.data.len() + tail.length + 4) as u32; // below RECORD_BYTES_MAX + 108
    tail.push(&total.to_le_bytes());
    let mut head = [0; PACKET_BLOCK_HEAD];
    let fields = [
        PACKET,
        total,
        u32::from(interface),
        (packet.time_ns >> 32) as u32,
        packet.time_ns as u32,
        packet.data.len() as u32,
        packet.wire_bytes,
    ];
    for (place, field) in head.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    (head, tail)
}

/// `epb_flags`: inbound, and what our flags have in common with them.
fn block_flags(packet: u8) -> u32 {
    const INBOUND: u32 = 1;
    const CHECKSUM_NOT_READY: u32 = 1 << 9;
    const SEGMENTATION_OFFLOAD: u32 = 1 << 11;
    let bit = |flag: u8, bit: u32| if packet & flag != 0 { bit } else { 0 };
    INBOUND | bit(flags::CHECKSUM_UNFILLED, CHECKSUM_NOT_READY) | bit(flags::AGGREGATE, SEGMENTATION_OFFLOAD)
}

/// Appends the custom block of an encoded record.
pub fn push_record(to: &mut Vec<u8>, record: &[u8]) {
    push_block(to, CUSTOM, |to| {
        to.extend_from_slice(&ENTERPRISE.to_le_bytes());
        to.extend_from_slice(&MAGIC);
        to.extend_from_slice(record);
    });
}

/// Appends the blocks that begin a segment: its section and its interfaces.
pub fn push_begin(to: &mut Vec<u8>, begin: &SegmentBegin) {
    push_section(to, &format!("evergate-audit, recorder {}, segment {}", begin.recorder, begin.segment));
    for name in &begin.interfaces {
        push_interface(to, name, begin.link_type, begin.snaplen, &begin.filter);
    }
}

/// Appends a Section Header Block that names the program which writes the file.
pub fn push_section(to: &mut Vec<u8>, application: &str) {
    push_block(to, SECTION_HEADER, |to| {
        to.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        to.extend_from_slice(&[1, 0, 0, 0]); // version 1.0
        to.extend_from_slice(&[0xff; 8]); // length of the section: not stated
        push_option(to, 4, application.as_bytes());
        to.extend_from_slice(&[0; 4]);
    });
}

/// Appends an Interface Description Block with times in nanoseconds. An empty filter is left out.
pub fn push_interface(to: &mut Vec<u8>, name: &str, link_type: u16, snaplen: u32, filter: &str) {
    push_block(to, INTERFACE, |to| {
        to.extend_from_slice(&link_type.to_le_bytes());
        to.extend_from_slice(&[0; 2]);
        to.extend_from_slice(&snaplen.to_le_bytes());
        push_option(to, 2, name.as_bytes());
        push_option(to, 9, &[9]);
        if !filter.is_empty() {
            push_option(to, 11, &[&[0], filter.as_bytes()].concat());
        }
        to.extend_from_slice(&[0; 4]);
    });
}

/// Appends an Enhanced Packet Block without options: a packet outside a segment.
pub fn push_packet(to: &mut Vec<u8>, interface: u32, time_ns: u64, wire_bytes: u32, data: &[u8]) {
    push_block(to, PACKET, |to| {
        for field in [interface, (time_ns >> 32) as u32, time_ns as u32, data.len() as u32, wire_bytes] {
            to.extend_from_slice(&field.to_le_bytes());
        }
        to.extend_from_slice(data);
    });
}

/// Appends a Decryption Secrets Block with the lines of a TLS key log. It must precede the packets that it opens.
pub fn push_secrets(to: &mut Vec<u8>, key_log: &[u8]) {
    const TLS_KEY_LOG: u32 = 0x544c_534b;
    push_block(to, SECRETS, |to| {
        to.extend_from_slice(&TLS_KEY_LOG.to_le_bytes());
        to.extend_from_slice(&(key_log.len() as u32).to_le_bytes());
        to.extend_from_slice(key_log);
    });
}

/// Appends the block that ends a segment: statistics, for other tools.
pub fn push_end(to: &mut Vec<u8>, end: &SegmentEnd) {
    let time_ns: u64 = end.time_ns.parse().unwrap_or(0);
    push_block(to, STATISTICS, |to| {
        to.extend_from_slice(&[0; 4]); // interface 0
        to.extend_from_slice(&((time_ns >> 32) as u32).to_le_bytes());
        to.extend_from_slice(&(time_ns as u32).to_le_bytes());
        push_option(to, 4, &end.received.to_le_bytes());
        push_option(to, 5, &end.missed.to_le_bytes());
        push_option(to, 7, &end.dropped.to_le_bytes());
        to.extend_from_slice(&[0; 4]);
    });
}

fn push_option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    to.extend_from_slice(&code.to_le_bytes());
    to.extend_from_slice(&(value.len() as u16).to_le_bytes());
    to.extend_from_slice(value);
    to.resize(to.len() + padding(value.len()), 0);
}

fn push_block(to: &mut Vec<u8>, kind: u32, content: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&kind.to_le_bytes());
    to.extend_from_slice(&[0; 4]);
    content(to);
    to.resize(to.len() + padding(to.len() - start), 0);
    let total = ((to.len() - start + 4) as u32).to_le_bytes();
    to[start + 4..start + 8].copy_from_slice(&total);
    to.extend_from_slice(&total);
}

/// Head of any block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// Type of the block.
    pub kind: u32,
    /// Length of the whole block in bytes.
    pub total: usize,
}

/// Head of the block at the start of `bytes`; `None` until there are 8 bytes.
pub fn block_head(bytes: &[u8]) -> Option<BlockHead> {
    Some(BlockHead { kind: word(bytes, 0)?, total: word(bytes, 4)? as usize })
}

/// The little-endian word at `offset`.
pub(crate) fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let word = bytes.get(offset..offset + 4)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}
