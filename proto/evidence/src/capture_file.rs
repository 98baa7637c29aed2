//! Reader of foreign captures: pcap with microseconds or nanoseconds, and pcapng, in both byte orders.
//!
//! [`CaptureDecoder::read`] takes the bytes at the reading position and answers with a packet, with bytes to drop, or
//! with the number of bytes that it needs. Memory of the caller: one block, at most [`CAPTURE_BLOCK_BYTES_MAX`]. Of the
//! decoder: one entry for each interface, at most [`INTERFACES_MAX`]. Blocks without packets are skipped.

use crate::pcapng::{INTERFACE, PACKET, SECTION_HEADER, padding};
use crate::record::{PACKET_HEAD_BYTES, RECORD_BYTES_MAX};

/// Longest packet in bytes: the longest that a record has.
pub const PACKET_BYTES_MAX: usize = RECORD_BYTES_MAX - PACKET_HEAD_BYTES;
/// Longest block or record of a capture in bytes.
pub const CAPTURE_BLOCK_BYTES_MAX: usize = RECORD_BYTES_MAX + (64 << 10);
/// Most interfaces of a section.
pub const INTERFACES_MAX: usize = 1 << 16;

const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const PCAP_HEAD_BYTES: usize = 24;
const PCAP_RECORD_BYTES: usize = 16;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const SECOND_NS: u128 = 1_000_000_000;

/// A packet of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket<'a> {
    /// Time in nanoseconds since 1970. Packets without a time have that of the packet before.
    pub time_ns: u64,
    /// Index of the interface in its section.
    pub interface: u32,
    /// Link type of the interface: 1 is Ethernet.
    pub link_type: u16,
    /// Length on the wire in bytes.
    pub wire_bytes: u32,
    /// Captured bytes.
    pub data: &'a [u8],
}

/// Answer of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The decoder needs this many bytes at the reading position.
    Need(usize),
    /// The bytes up to this length have no packet; the reading position is behind them.
    Skip(usize),
    /// A packet; the reading position is behind these bytes.
    Packet(usize, CapturedPacket<'a>),
}

/// Error in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {reason}")]
pub struct CaptureError {
    /// Place of the block in the file.
    pub offset: u64,
    /// What is wrong.
    pub reason: &'static str,
}

/// Decoder of a capture.
#[derive(Clone, Debug, Default)]
pub struct CaptureDecoder {
    format: Option<Format>,
    offset: u64,
    time_ns: u64,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Pcap { order: Order, is_nanoseconds: bool },
    Pcapng { order: Order },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interface {
    link_type: u16,
    snaplen: u32,
    /// Units of time in a second.
    units: u64,
    offset_s: i64,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(if self == Order::Little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if self == Order::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    fn i64(self, bytes: &[u8]) -> Option<i64> {
        let bytes = bytes.try_into().ok()?;
        Some(if self == Order::Little { i64::from_le_bytes(bytes) } else { i64::from_be_bytes(bytes) })
    }

    /// The byte order whose reading of the word at the front is `word`.
    fn of(bytes: &[u8], word: u32) -> Option<Order> {
        [Order::Little, Order::Big].into_iter().find(|order| order.u32(bytes, 0) == Some(word))
    }
}

impl CaptureDecoder {
    /// The next step at the reading position, whose bytes these are.
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, CaptureError> {
        let step = match self.format {
            None => self.read_head(bytes),
            Some(Format::Pcap { order, is_nanoseconds }) => self.read_record(order, is_nanoseconds, bytes),
            Some(Format::Pcapng { order }) => self.read_block(order, bytes),
        };
        let step = step.map_err(|reason| CaptureError { offset: self.offset, reason })?;
        match step {
            Step::Need(_) => {}
            Step::Skip(length) | Step::Packet(length, _) => self.offset += length as u64,
        }
        if let Step::Packet(_, packet) = step {
            self.time_ns = packet.time_ns;
        }
        Ok(step)
    }

    /// Place of the reading position in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Error if the file ends here with this many bytes unread, or before its head.
    pub fn finish(&self, unread: usize) -> Result<(), CaptureError> {
        let reason = match (unread, self.format) {
            (0, Some(_)) => return Ok(()),
            (_, None) => "the file ends before its head",
            _ => "the file ends within a packet or block",
        };
        Err(CaptureError { offset: self.offset, reason })
    }

    fn read_head<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, &'static str> {
        if bytes.len() < 4 {
            return Ok(Step::Need(4));
        }
        if Order::of(bytes, SECTION_HEADER).is_some() {
            self.format = Some(Format::Pcapng { order: Order::Little });
            return self.read_block(Order::Little, bytes);
        }
        let micro = Order::of(bytes, 0xa1b2_c3d4).map(|order| (order, false));
        let (order, is_nanoseconds) = micro
            .or_else(|| Order::of(bytes, 0xa1b2_3c4d).map(|order| (order, true)))
            .ok_or("neither pcap nor pcapng")?;
        let (Some(major), Some(snaplen), Some(link)) =
            (order.u16(bytes, 4), order.u32(bytes, 16), order.u32(bytes, 20))
        else {
            return Ok(Step::Need(PCAP_HEAD_BYTES));
        };
        if major != 2 {
            return Err("pcap of an unknown version");
        }
        let units = if is_nanoseconds { 1_000_000_000 } else { 1_000_000 };
        // The upper bits of the link type are about checksums of frames.
        self.interfaces = vec![Interface { link_type: link as u16, snaplen, units, offset_s: 0 }];
        self.format = Some(Format::Pcap { order, is_nanoseconds });
        Ok(Step::Skip(PCAP_HEAD_BYTES))
    }

    fn read_record<'a>(
        &self,
        order: Order,
        is_nanoseconds: bool,
        bytes: &'a [u8],
    ) -> Result<Step<'a>, &'static str> {
        let words = [0, 4, 8, 12].map(|at| order.u32(bytes, at));
        let [Some(seconds), Some(fraction), Some(captured), Some(wire_bytes)] = words else {
            return Ok(Step::Need(PCAP_RECORD_BYTES));
        };
        let captured = captured as usize;
        if captured > PACKET_BYTES_MAX {
            return Err("packet is longer than 16 MiB");
        }
        let total = PCAP_RECORD_BYTES + captured;
        let Some(data) = bytes.get(PCAP_RECORD_BYTES..total) else { return Ok(Step::Need(total)) };
        let fraction_ns = u64::from(fraction) * if is_nanoseconds { 1 } else { 1000 };
        let time_ns = u64::from(seconds) * 1_000_000_000 + fraction_ns; // below 2^63
        let link_type = self.interfaces.first().map_or(0, |interface| interface.link_type);
        Ok(Step::Packet(total, CapturedPacket { time_ns, interface: 0, link_type, wire_bytes, data }))
    }

    fn read_block<'a>(&mut self, order: Order, bytes: &'a [u8]) -> Result<Step<'a>, &'static str> {
        if bytes.len() < 12 {
            return Ok(Step::Need(12));
        }
        let mut order = order;
        if order.u32(bytes, 0) == Some(SECTION_HEADER) {
            order = Order::of(&bytes[8..], BYTE_ORDER).ok_or("section of an unknown byte order")?;
        }
        let kind = order.u32(bytes, 0).unwrap_or(0);
        let total = order.u32(bytes, 4).unwrap_or(0) as usize;
        if total < 12 || !total.is_multiple_of(4) {
            return Err("block has an invalid length");
        }
        if total > CAPTURE_BLOCK_BYTES_MAX {
            return Err("block is longer than 16 MiB");
        }
        let Some(block) = bytes.get(..total) else { return Ok(Step::Need(total)) };
        if order.u32(block, total - 4) != Some(total as u32) {
            return Err("the two lengths of the block differ");
        }
        let content = &block[8..total - 4];
        let packet = match kind {
            SECTION_HEADER => {
                self.begin_section(order, content)?;
                None
            }
            INTERFACE => {
                let interface = read_interface(order, content)?;
                if self.interfaces.len() == INTERFACES_MAX {
                    return Err("section has more than 65,536 interfaces");
                }
                self.interfaces.push(interface);
                None
            }
            PACKET => Some(self.packet(order, order.u32(content, 0), content)?),
            OBSOLETE_PACKET => Some(self.packet(order, order.u16(content, 0).map(u32::from), content)?),
            SIMPLE_PACKET => Some(self.simple_packet(order, content)?),
            _ => None,
        };
        Ok(packet.map_or(Step::Skip(total), |packet| Step::Packet(total, packet)))
    }

    fn begin_section(&mut self, order: Order, content: &[u8]) -> Result<(), &'static str> {
        if order.u16(content, 4) != Some(1) {
            return Err("section of an unknown version");
        }
        self.format = Some(Format::Pcapng { order });
        self.interfaces.clear();
        Ok(())
    }

    fn packet<'a>(
        &self,
        order: Order,
        interface: Option<u32>,
        content: &'a [u8],
    ) -> Result<CapturedPacket<'a>, &'static str> {
        const SHORT: &str = "packet block is too short";
        let index = interface.ok_or(SHORT)?;
        let interface = self.interfaces.get(index as usize).ok_or("packet of an unknown interface")?;
        let words = [4, 8, 12, 16].map(|at| order.u32(content, at));
        let [Some(high), Some(low), Some(captured), Some(wire_bytes)] = words else { return Err(SHORT) };
        let data = content[20..].get(..captured as usize).ok_or("packet is longer than its block")?;
        if data.len() > PACKET_BYTES_MAX {
            return Err("packet is longer than 16 MiB");
        }
        let time_ns = interface.time_ns(u64::from(high) << 32 | u64::from(low))?;
        let link_type = interface.link_type;
        Ok(CapturedPacket { time_ns, interface: index, link_type, wire_bytes, data })
    }

    fn simple_packet<'a>(&self, order: Order, content: &'a [u8]) -> Result<CapturedPacket<'a>, &'static str> {
        let interface = self.interfaces.first().ok_or("packet of an unknown interface")?;
        let wire_bytes = order.u32(content, 0).ok_or("packet block is too short")?;
        let limit = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
        let captured = wire_bytes.min(limit) as usize;
        let data = &content[4..];
        if captured + padding(captured) != data.len() {
            return Err("packet does not fill its block");
        }
        let data = &data[..captured];
        if data.len() > PACKET_BYTES_MAX {
            return Err("packet is longer than 16 MiB");
        }
        let link_type = interface.link_type;
        Ok(CapturedPacket { time_ns: self.time_ns, interface: 0, link_type, wire_bytes, data })
    }
}

impl Interface {
    /// Time in nanoseconds since 1970 of a time in the interface's units.
    fn time_ns(&self, units: u64) -> Result<u64, &'static str> {
        let ns = i128::try_from(u128::from(units) * SECOND_NS / u128::from(self.units)).unwrap_or(i128::MAX);
        let ns = ns.saturating_add(i128::from(self.offset_s) * SECOND_NS as i128);
        u64::try_from(ns).map_err(|_| "time is outside the years 1970 to 2554")
    }
}

fn read_interface(order: Order, content: &[u8]) -> Result<Interface, &'static str> {
    const SHORT: &str = "interface block is too short";
    let link_type = order.u16(content, 0).ok_or(SHORT)?;
    let snaplen = order.u32(content, 4).ok_or(SHORT)?;
    let mut interface = Interface { link_type, snaplen, units: 1_000_000, offset_s: 0 };
    let mut options = &content[8..];
    while let (Some(code), Some(length)) = (order.u16(options, 0), order.u16(options, 2)) {
        let length = usize::from(length);
        let value = options.get(4..4 + length).ok_or("option is longer than its block")?;
        match (code, value) {
            (0, _) => break,
            (9, [resolution]) => interface.units = units(*resolution)?,
            (14, value) => interface.offset_s = order.i64(value).ok_or("if_tsoffset has no 8 bytes")?,
            _ => {}
        }
        options = options.get(4 + length + padding(length)..).unwrap_or_default();
    }
    Ok(interface)
}

/// Units of time in a second by `if_tsresol`.
fn units(resolution: u8) -> Result<u64, &'static str> {
    let exponent = u32::from(resolution & 0x7f);
    let units = match resolution & 0x80 {
        0 => 10u64.checked_pow(exponent),
        _ => 1u64.checked_shl(exponent),
    };
    units.ok_or("if_tsresol is beyond 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::{Mark, MarkKind, SegmentBegin};
    use crate::record::{Body, Direction, Packet, Record};
    use crate::segment::SegmentEncoder;
    use proptest::prelude::*;

    type Read = (u64, u32, u16, u32, Vec<u8>);

    /// Packets of a file that arrives in pieces of `piece` bytes.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<Read>, CaptureError> {
        let (mut decoder, mut packets, mut at, mut end) = (CaptureDecoder::default(), Vec::new(), 0, 0);
        loop {
            match decoder.read(&bytes[at..end])? {
                Step::Need(length) => {
                    assert!(length > end - at && length <= CAPTURE_BLOCK_BYTES_MAX);
                    if end == bytes.len() {
                        return decoder.finish(end - at).map(|()| packets);
                    }
                    end = (end + piece).min(bytes.len());
                }
                Step::Skip(length) => at += length,
                Step::Packet(length, packet) => {
                    at += length;
                    let CapturedPacket { time_ns, interface, link_type, wire_bytes, data } = packet;
                    packets.push((time_ns, interface, link_type, wire_bytes, data.to_vec()));
                }
            }
        }
    }

    struct Writer {
        is_big: bool,
        out: Vec<u8>,
    }

    impl Writer {
        fn u16(&mut self, value: u16) -> &mut Writer {
            let bytes = if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() };
            self.out.extend_from_slice(&bytes);
            self
        }

        fn u32(&mut self, value: u32) -> &mut Writer {
            let bytes = if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() };
            self.out.extend_from_slice(&bytes);
            self
        }

        fn block(&mut self, kind: u32, content: impl FnOnce(&mut Writer)) {
            let mut inner = Writer { is_big: self.is_big, out: Vec::new() };
            content(&mut inner);
            inner.out.resize(inner.out.len() + padding(inner.out.len()), 0);
            let total = inner.out.len() as u32 + 12;
            self.u32(kind).u32(total);
            self.out.extend_from_slice(&inner.out);
            self.u32(total);
        }
    }

    fn pcap(is_big: bool, is_nanoseconds: bool, packets: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
        let mut writer = Writer { is_big, out: Vec::new() };
        writer.u32(if is_nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).u16(2).u16(4);
        writer.u32(0).u32(0).u32(65_535).u32(1);
        for (seconds, fraction, data) in packets {
            writer.u32(*seconds).u32(*fraction).u32(data.len() as u32).u32(data.len() as u32 + 7);
            writer.out.extend_from_slice(data);
        }
        writer.out
    }

    /// Section with an interface of 2^-10 s and an offset, one packet of each block type, and an unknown block.
    fn pcapng(is_big: bool, data: &[u8]) -> Vec<u8> {
        let mut writer = Writer { is_big, out: Vec::new() };
        writer.block(SECTION_HEADER, |to| {
            to.u32(BYTE_ORDER).u16(1).u16(2).u32(u32::MAX).u32(u32::MAX);
        });
        writer.block(INTERFACE, |to| {
            to.u16(113).u16(0).u32(0).u16(2).u16(3);
            to.out.extend_from_slice(b"lo\0\0");
            to.u16(9).u16(1);
            to.out.extend_from_slice(&[0x8a, 0, 0, 0]);
            to.u16(14).u16(8);
            let (first, last) = if is_big { (0, 100) } else { (100, 0) };
            to.u32(first).u32(last).u16(0).u16(0);
        });
        writer.block(77, |to| {
            to.u32(5);
        });
        let length = data.len() as u32;
        writer.block(PACKET, |to| {
            to.u32(0).u32(0).u32(2048 + 512).u32(length).u32(length);
            to.out.extend_from_slice(data);
        });
        writer.block(SIMPLE_PACKET, |to| {
            to.u32(length);
            to.out.extend_from_slice(data);
        });
        writer.block(OBSOLETE_PACKET, |to| {
            to.u16(0).u16(9).u32(0).u32(1024).u32(length).u32(length + 1);
            to.out.extend_from_slice(data);
        });
        writer.out
    }

    #[test]
    fn pcapng_times_follow_resolution_and_offset() {
        for is_big in [false, true] {
            let packets = read(&pcapng(is_big, b"abcde"), 9).expect("valid");
            let times: Vec<u64> = packets.iter().map(|packet| packet.0).collect();
            assert_eq!(times, [102_500_000_000, 102_500_000_000, 101_000_000_000]);
            assert!(packets.iter().all(|packet| packet.2 == 113 && packet.4 == b"abcde"));
            assert_eq!(packets[2].3, 6);
        }
    }

    #[test]
    fn segments_are_captures() {
        let begin = SegmentBegin {
            filter: String::new(),
            interfaces: vec!["eth0".into()],
            link_type: 1,
            next_connection: 1,
            recorder: "ab".repeat(32),
            segment: 1,
            snaplen: 0,
        };
        let (mut encoder, mut bytes) = (SegmentEncoder::default(), Vec::new());
        let begin = Body::Mark(Mark::new(MarkKind::SegmentBegins, &begin));
        encoder.push(&Record { seq: 1, interface: 0, body: begin }, &mut bytes);
        let direction = Direction::ToServer;
        let packet = Packet {
            time_ns: 1 << 60,
            wire_bytes: 3,
            connection: 1,
            packet_seq: 1,
            direction,
            flags: 0,
            data: b"abc",
        };
        encoder.push_packet(&packet, 2, 0, &mut bytes);
        assert_eq!(read(&bytes, 1), Ok(vec![(1 << 60, 0, 1, 3, b"abc".to_vec())]));
    }

    #[test]
    fn errors_name_place_and_reason() {
        let error =
            |bytes: &[u8]| read(bytes, 4096).map_err(|error| (error.offset, error.reason)).unwrap_err();
        assert_eq!(error(b"GIF89a"), (0, "neither pcap nor pcapng"));
        assert_eq!(error(b"\xd4"), (0, "the file ends before its head"));
        let good = pcap(false, false, &[(1, 2, vec![7; 9])]);
        assert_eq!(error(&good[..40]), (24, "the file ends within a packet or block"));
        let mut long = good.clone();
        long[35] = 0x40;
        assert_eq!(error(&long), (24, "packet is longer than 16 MiB"));
        let mut unknown = pcapng(false, b"abc");
        let place = unknown.windows(4).rposition(|word| word == [6, 0, 0, 0]).expect("a packet block");
        unknown[place + 8] = 3;
        assert_eq!(error(&unknown), (place as u64, "packet of an unknown interface"));
    }

    proptest! {
        #[test]
        fn pcap_survives_both_ways(
            is_big: bool, is_nanoseconds: bool, piece in 1usize..70,
            packets in proptest::collection::vec((any::<u32>(), 0u32..1_000_000, any::<Vec<u8>>()), 0..5),
        ) {
            let expected: Vec<Read> = packets.iter().map(|(seconds, fraction, data)| {
                let fraction_ns = u64::from(*fraction) * if is_nanoseconds { 1 } else { 1000 };
                let length = data.len() as u32 + 7;
                (u64::from(*seconds) * 1_000_000_000 + fraction_ns, 0, 1, length, data.clone())
            }).collect();
            prop_assert_eq!(read(&pcap(is_big, is_nanoseconds, &packets), piece), Ok(expected));
        }

        #[test]
        fn changed_captures_never_panic(
            is_big: bool, data: Vec<u8>, places in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..6),
            cut: usize,
        ) {
            let mut bytes = pcapng(is_big, &data);
            for (place, byte) in places {
                let place = place % bytes.len();
                bytes[place] = byte;
            }
            bytes.truncate(cut % (bytes.len() + 1));
            let _ = read(&bytes, 64);
        }

        #[test]
        fn random_bytes_never_panic(kind in 0usize..5, bytes: Vec<u8>) {
            let heads: [&[u8]; 5] = [b"", b"\x0a\x0d\x0d\x0a", b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\x3c\x4d\0\x02\0\x04",
                b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x4d\x3c\x2b\x1a\x01\0\0\0"];
            let _ = read(&[heads[kind], &bytes].concat(), 16);
        }
    }
}
