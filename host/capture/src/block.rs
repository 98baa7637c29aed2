//! Contents of a ring block: a header and packets, each behind its own header (`linux/if_packet.h`, TPACKET_V3).
//!
//! Pure code over bytes, for blocks in the ring and for blocks that were written to a file. Every offset is checked:
//! a malformed block ends the iteration early, and [`Packets::missing`] counts the rest.

/// Bytes of a block's header.
const BLOCK_HEADER: usize = 48;
/// Bytes of a packet's header, without the address behind it.
const PACKET_HEADER: usize = 48;
/// Offset of the packet's type, which lies in the `sockaddr_ll` behind the header.
const TYPE_AT: usize = PACKET_HEADER + 10;
/// Ethertype of a tag whose type the kernel did not report.
const DOT1Q: u16 = 0x8100;

/// A block as bytes, from the ring or from a file.
#[derive(Clone, Copy, Debug)]
pub struct BlockView<'a> {
    bytes: &'a [u8],
}

/// Reads a native-endian integer, as the kernel wrote it.
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_ne_bytes(*word))
}

impl<'a> BlockView<'a> {
    /// The block at the start of `bytes`; `None` without a whole header. Bytes behind the block's own length are cut.
    pub fn new(bytes: &'a [u8]) -> Option<BlockView<'a>> {
        let length = u32_at(bytes, 20)? as usize;
        if bytes.len() < BLOCK_HEADER {
            return None;
        }
        Some(BlockView { bytes: &bytes[..length.clamp(BLOCK_HEADER, bytes.len())] })
    }

    /// Number of packets by the header.
    pub fn packet_count(&self) -> u32 {
        u32_at(self.bytes, 12).unwrap_or(0)
    }

    /// Number of the block since the ring exists, from 1.
    pub fn sequence(&self) -> u64 {
        self.bytes.get(24..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
    }

    /// Whether the retire timer closed the block before it was full.
    pub fn is_timed_out(&self) -> bool {
        u32_at(self.bytes, 8).unwrap_or(0) & libc::TP_STATUS_BLK_TMO != 0
    }

    /// The used part of the block, header included.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The packets, in order of arrival.
    pub fn packets(&self) -> Packets<'a> {
        let at = u32_at(self.bytes, 16).unwrap_or(0) as usize;
        Packets { bytes: self.bytes, at: Some(at), left: self.packet_count() }
    }
}

/// Iterator over the packets of a block.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    /// Offset of the next packet; `None` behind the last or a malformed one.
    at: Option<usize>,
    left: u32,
}

impl Packets<'_> {
    /// Packets that the block's header counts and the iterator did not yield. Not 0 at the end: the block is malformed.
    pub fn missing(&self) -> u32 {
        self.left
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = RawPacket<'a>;

    fn next(&mut self) -> Option<RawPacket<'a>> {
        if self.left == 0 {
            return None;
        }
        let at = self.at.take()?;
        let header = self.bytes.get(at..)?;
        let packet = RawPacket::parse(header)?;
        self.left -= 1;
        // Each step is at least one header long, so that the iteration ends.
        let step = u32_at(header, 0)? as usize;
        self.at = (step >= PACKET_HEADER).then(|| at.checked_add(step)).flatten();
        Some(packet)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some((self.left as usize).min(self.bytes.len() / PACKET_HEADER)))
    }
}

/// One received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPacket<'a> {
    /// Time of arrival, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length in the kernel, without a tag that is in `vlan`.
    pub wire_len: u32,
    /// The frame from its Ethernet header on, without a tag that is in `vlan`. Shorter than `wire_len` when it was cut.
    pub data: &'a [u8],
    /// The outer VLAN tag, which the kernel takes out of the frame: its place is behind the two addresses.
    pub vlan: Option<VlanTag>,
    /// Flags of the kernel.
    pub status: Status,
    /// Receiver, as the kernel sees it.
    pub packet_type: PacketType,
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Type of the tag: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority, drop eligible indicator, VLAN id.
    pub tci: u16,
}

impl VlanTag {
    /// The four bytes of the tag in a frame.
    pub fn bytes(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.tpid.to_be_bytes(), self.tci.to_be_bytes());
        [a, b, c, d]
    }
}

/// Flags of a packet, `TP_STATUS_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// `TP_STATUS_GSO_TCP`.
    const GSO_TCP: u32 = 1 << 8;

    /// Whether the checksum is not filled in: the packet comes from this machine.
    pub fn lacks_checksum(self) -> bool {
        self.0 & libc::TP_STATUS_CSUMNOTREADY != 0
    }

    /// Whether the kernel or the card checked the checksum.
    pub fn is_checksum_valid(self) -> bool {
        self.0 & libc::TP_STATUS_CSUM_VALID != 0
    }

    /// Whether the packet is an aggregate of TCP segments (GRO or GSO) that no wire carried. Older kernels do not
    /// report it, and an aggregate of another protocol has no flag.
    pub fn is_aggregate(self) -> bool {
        self.0 & Status::GSO_TCP != 0
    }

    /// Whether the kernel took a VLAN tag out of the frame.
    pub fn has_tag(self) -> bool {
        self.0 & libc::TP_STATUS_VLAN_VALID != 0
    }
}

/// Receiver of a packet, `PACKET_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketType {
    /// This machine.
    Host,
    /// All machines.
    Broadcast,
    /// A group of machines.
    Multicast,
    /// Another machine.
    OtherHost,
    /// Sent by this machine.
    Outgoing,
    /// A value that this version does not know.
    Other(u8),
}

impl<'a> RawPacket<'a> {
    /// The packet at the start of `bytes`, which end with the block.
    fn parse(bytes: &'a [u8]) -> Option<RawPacket<'a>> {
        let header: &[u8; TYPE_AT + 1] = bytes.first_chunk()?;
        let word = |at| u32_at(header, at).unwrap_or(0);
        let (seconds, nanoseconds, captured) = (word(4), word(8), word(12) as usize);
        let status = Status(word(20));
        let start = usize::from(u16_at(header, 24)?);
        let data = bytes.get(start..start.checked_add(captured)?)?;
        let tpid = if status.0 & libc::TP_STATUS_VLAN_TPID_VALID != 0 { u16_at(header, 36)? } else { DOT1Q };
        let vlan = status.has_tag().then_some(VlanTag { tpid, tci: word(32) as u16 });
        Some(RawPacket {
            time_ns: u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds),
            wire_len: word(16),
            data,
            vlan,
            status,
            packet_type: PacketType::from(header[TYPE_AT]),
        })
    }

    /// Length on the wire, with the tag that the kernel took out.
    pub fn full_len(&self) -> u32 {
        self.wire_len.saturating_add(if self.vlan.is_some() { 4 } else { 0 })
    }

    /// The frame in two or three parts as it was on the wire: addresses, tag, rest. Without a tag the whole frame is in
    /// the last part. A frame without both addresses has no tag put back.
    pub fn parts(&self) -> (&'a [u8], Option<[u8; 4]>, &'a [u8]) {
        match (self.vlan, self.data.split_at_checked(12)) {
            (Some(tag), Some((addresses, rest))) => (addresses, Some(tag.bytes()), rest),
            _ => (&[], None, self.data),
        }
    }
}

impl From<u8> for PacketType {
    fn from(value: u8) -> PacketType {
        match value {
            libc::PACKET_HOST => PacketType::Host,
            libc::PACKET_BROADCAST => PacketType::Broadcast,
            libc::PACKET_MULTICAST => PacketType::Multicast,
            libc::PACKET_OTHERHOST => PacketType::OtherHost,
            libc::PACKET_OUTGOING => PacketType::Outgoing,
            other => PacketType::Other(other),
        }
    }
}
