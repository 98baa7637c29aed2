//! Records: the leaves of batch trees. A Recorder writes one for each packet, each loss and each connection.
//!
//! A record has exactly one encoding, in big-endian fields. The digest of a batch covers these bytes, and segments hold
//! nothing else. [`Record::decode`] refuses reserved bits, unknown kinds and lengths that do not match.

use crate::connection_record::{ConnectionRecord, mapped, unmapped};
use crate::cursor::{Cursor, Malformed};
use crate::mark::Mark;
use std::borrow::Cow;
use std::net::SocketAddr;

/// Bytes of the head of every record.
pub const HEAD_BYTES: usize = 16;
/// Bytes of a packet's record before its data.
pub const PACKET_HEAD_BYTES: usize = HEAD_BYTES + 36;
/// Longest record in bytes: a packet of one ring block of 16 MiB.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
const VERSION: u8 = 1;
/// Bytes of an address with its port.
const ADDRESS_BYTES: usize = 18;

/// One entry of a Recorder's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Place in the Recorder's stream: 1, 2, … across segments and restarts.
    pub seq: u64,
    /// Index of the interface in the segment's list.
    pub interface: u16,
    /// Content by kind.
    pub body: Body<'a>,
}

/// Content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A packet as the interface received it.
    Packet(Packet<'a>),
    /// A declared loss.
    Gap(Gap),
    /// A TCP connection: its counts, and what its hellos have.
    Connection(Box<ConnectionRecord>),
    /// A sealed envelope of traffic secrets, whole.
    Envelope(Cow<'a, [u8]>),
    /// A request that the switch routed.
    Request(RequestRecord<'a>),
    /// A start, a stop, a boundary of segments, or counters.
    Mark(Mark<'a>),
}

/// A packet as the interface received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Time of arrival in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length on the wire in bytes.
    pub wire_bytes: u32,
    /// Number of its connection; 0: not TCP, or a fragment.
    pub connection: u64,
    /// Place among the packets of its connection: 1, 2, …; 0 without a connection.
    pub packet_seq: u64,
    /// Direction within its connection.
    pub direction: Direction,
    /// Flags of capture: see [`flags`].
    pub flags: u8,
    /// Frame from the link layer on.
    pub data: &'a [u8],
}

/// Flags of a packet.
pub mod flags {
    /// The snapshot length cut the packet.
    pub const CUT: u8 = 1;
    /// The Recorder put a VLAN tag back that the ring had apart.
    pub const VLAN: u8 = 2;
    /// IP fragment.
    pub const FRAGMENT: u8 = 4;
    /// The sender left its checksum to a device.
    pub const CHECKSUM_UNFILLED: u8 = 8;
    /// Aggregate of several packets (GRO or GSO).
    pub const AGGREGATE: u8 = 16;
    pub(crate) const ALL: u8 = 31;
}

/// Direction of a packet within its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Without a connection.
    #[default]
    Unknown = 0,
    /// From client to server.
    ToServer = 1,
    /// From server to client.
    ToClient = 2,
}

/// A declared loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Place of the loss.
    pub reason: GapReason,
    /// Whether `count` is exact; otherwise it is an upper bound.
    pub exact: bool,
    /// Packets lost; feed messages for [`GapReason::Feed`].
    pub count: u64,
    /// Begin of the period in nanoseconds since 1970.
    pub from_ns: u64,
    /// End of the period in nanoseconds since 1970.
    pub to_ns: u64,
}

/// Place of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapReason {
    /// The capture ring was full.
    Ring = 1,
    /// The interface lost packets before the kernel had them.
    Interface = 2,
    /// The Recorder was down.
    Down = 3,
    /// The disk was full.
    Disk = 4,
    /// The switch's feed overflowed.
    Feed = 5,
    /// The packet was longer than a block of the ring.
    Oversize = 6,
}

/// A request that the switch routed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord<'a> {
    /// Number of the connection in the switch.
    pub switch_connection: u64,
    /// Place among the connection's requests: 0, 1, …
    pub index: u32,
    /// Time of the request in nanoseconds since 1970.
    pub time_ns: u64,
    /// Random of the client's hello.
    pub client_random: [u8; 32],
    /// Addresses of the connection with the client.
    pub client: RequestLeg,
    /// Addresses of the connection with the server; `None` for an answer of the switch itself.
    pub server: Option<RequestLeg>,
    /// Status of the response; 0 without one.
    pub status: u16,
    /// Reserved.
    pub flags: u16,
    /// Id that the switch gave.
    pub id: Cow<'a, [u8]>,
    /// Id that the client gave. It may repeat.
    pub given_id: Cow<'a, [u8]>,
}

/// Addresses of one connection of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLeg {
    /// The peer: a client or a server.
    pub peer: SocketAddr,
    /// The switch.
    pub local: SocketAddr,
}

/// Error in the encoding of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The stated length and the length of the content differ.
    #[error("record's length does not match its content")]
    Length,
    /// Unknown kind or version.
    #[error("unknown kind or version of record")]
    Kind,
    /// A value that no Recorder writes.
    #[error("record has an invalid value in {0}")]
    Value(&'static str),
}

impl From<Malformed> for RecordError {
    fn from(_: Malformed) -> RecordError {
        RecordError::Length
    }
}

impl Direction {
    pub(crate) fn of_code(code: u8) -> Result<Direction, RecordError> {
        let all = [Direction::Unknown, Direction::ToServer, Direction::ToClient];
        all.into_iter().find(|direction| *direction as u8 == code).ok_or(RecordError::Value("direction"))
    }
}

impl GapReason {
    /// Every reason, in the order of its codes.
    pub const ALL: [GapReason; 6] = [
        GapReason::Ring,
        GapReason::Interface,
        GapReason::Down,
        GapReason::Disk,
        GapReason::Feed,
        GapReason::Oversize,
    ];

    fn from_code(code: u8) -> Option<GapReason> {
        GapReason::ALL.into_iter().find(|reason| *reason as u8 == code)
    }

    /// Word for messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            GapReason::Ring => "ring",
            GapReason::Interface => "interface",
            GapReason::Down => "down",
            GapReason::Disk => "disk",
            GapReason::Feed => "feed",
            GapReason::Oversize => "oversize",
        }
    }
}

impl Packet<'_> {
    /// Bytes of the record before `data`, for a hash that does not copy the data.
    pub fn head(&self, seq: u64, interface: u16) -> [u8; PACKET_HEAD_BYTES] {
        let mut head = [0; PACKET_HEAD_BYTES];
        let captured = self.data.len() as u32; // below RECORD_BYTES_MAX
        write_head(&mut head, 1, interface, PACKET_HEAD_BYTES as u32 + captured, seq);
        head[16..24].copy_from_slice(&self.time_ns.to_be_bytes());
        head[24..28].copy_from_slice(&self.wire_bytes.to_be_bytes());
        head[28..32].copy_from_slice(&captured.to_be_bytes());
        head[32..40].copy_from_slice(&self.connection.to_be_bytes());
        head[40..48].copy_from_slice(&self.packet_seq.to_be_bytes());
        head[48] = self.direction as u8;
        head[49] = self.flags;
        head
    }
}

fn write_head(to: &mut [u8], kind: u8, interface: u16, length: u32, seq: u64) {
    to[0] = kind;
    to[1] = VERSION;
    to[2..4].copy_from_slice(&interface.to_be_bytes());
    to[4..8].copy_from_slice(&length.to_be_bytes());
    to[8..16].copy_from_slice(&seq.to_be_bytes());
}

impl<'a> Record<'a> {
    /// Appends the one encoding of this record.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        if let Body::Packet(packet) = &self.body {
            to.extend_from_slice(&packet.head(self.seq, self.interface));
            to.extend_from_slice(packet.data);
            return;
        }
        to.resize(start + HEAD_BYTES, 0);
        let kind = match &self.body {
            Body::Packet(_) => 1,
            Body::Gap(gap) => {
                gap.encode(to);
                2
            }
            Body::Connection(connection) => {
                connection.encode(to);
                3
            }
            Body::Envelope(envelope) => {
                to.extend_from_slice(envelope);
                4
            }
            Body::Request(request) => {
                request.encode(to);
                5
            }
            Body::Mark(mark) => {
                mark.encode(to);
                6
            }
        };
        let length = (to.len() - start) as u32;
        write_head(&mut to[start..], kind, self.interface, length, self.seq);
    }

    /// The record that these bytes are, from the first to the last.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, RecordError> {
        let mut reader = Cursor::new(bytes);
        let head = read_head(&mut reader)?;
        if head.length as usize != bytes.len() {
            return Err(RecordError::Length);
        }
        if head.version != VERSION {
            return Err(RecordError::Kind);
        }
        let body = match head.kind {
            1 => Body::Packet(Packet::decode(&mut reader)?),
            2 => Body::Gap(Gap::decode(&mut reader)?),
            3 => Body::Connection(Box::new(ConnectionRecord::decode(&mut reader)?)),
            4 => Body::Envelope(reader.rest().into()),
            5 => Body::Request(RequestRecord::decode(&mut reader)?),
            6 => Body::Mark(Mark::decode(&mut reader)?),
            _ => return Err(RecordError::Kind),
        };
        reader.end()?;
        Ok(Record { seq: head.seq, interface: head.interface, body })
    }

    /// Time of the record in nanoseconds since 1970, where its kind has one.
    pub fn time_ns(&self) -> Option<u64> {
        match &self.body {
            Body::Packet(packet) => Some(packet.time_ns),
            Body::Gap(gap) => Some(gap.to_ns),
            Body::Connection(_) | Body::Envelope(_) | Body::Request(_) | Body::Mark(_) => None,
        }
    }
}

struct Head {
    kind: u8,
    version: u8,
    interface: u16,
    length: u32,
    seq: u64,
}

fn read_head(reader: &mut Cursor<'_>) -> Result<Head, RecordError> {
    let (kind, version) = (reader.u8()?, reader.u8()?);
    Ok(Head { kind, version, interface: reader.u16()?, length: reader.u32()?, seq: reader.u64()? })
}

/// Length in bytes that the head of a record states; `None` if it is shorter than a head or beyond the limit.
pub fn stated_length(head: &[u8]) -> Option<usize> {
    let length = read_head(&mut Cursor::new(head)).ok()?.length as usize;
    (HEAD_BYTES..=RECORD_BYTES_MAX).contains(&length).then_some(length)
}

impl<'a> Packet<'a> {
    fn decode(reader: &mut Cursor<'a>) -> Result<Packet<'a>, RecordError> {
        let (time_ns, wire_bytes, captured) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let (connection, packet_seq) = (reader.u64()?, reader.u64()?);
        let direction = Direction::of_code(reader.u8()?)?;
        let flags = reader.u8()?;
        zeros(reader, 2)?;
        let data = reader.bytes(captured as usize)?;
        let packet = Packet { time_ns, wire_bytes, connection, packet_seq, direction, flags, data };
        packet.check()?;
        Ok(packet)
    }

    /// Whether the fields fit together.
    pub(crate) fn check(&self) -> Result<(), RecordError> {
        if self.flags & !flags::ALL != 0 {
            return Err(RecordError::Value("flags"));
        }
        let without = self.connection == 0;
        if without != (self.packet_seq == 0) || without != (self.direction == Direction::Unknown) {
            return Err(RecordError::Value("connection"));
        }
        Ok(())
    }
}

impl Gap {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&[self.reason as u8, u8::from(self.exact), 0, 0]);
        for field in [self.count, self.from_ns, self.to_ns] {
            to.extend_from_slice(&field.to_be_bytes());
        }
    }

    fn decode(reader: &mut Cursor<'_>) -> Result<Gap, RecordError> {
        let [reason, exact, zero, zero_too] = reader.array()?;
        let reason = GapReason::from_code(reason).ok_or(RecordError::Value("reason"))?;
        if exact > 1 || zero != 0 || zero_too != 0 {
            return Err(RecordError::Value("exact"));
        }
        Ok(Gap {
            reason,
            exact: exact == 1,
            count: reader.u64()?,
            from_ns: reader.u64()?,
            to_ns: reader.u64()?,
        })
    }
}

impl<'a> RequestRecord<'a> {
    /// The same record with its own bytes.
    pub fn into_owned(self) -> RequestRecord<'static> {
        let RequestRecord { id, given_id, .. } = self;
        let (id, given_id) = (Cow::Owned(id.into_owned()), Cow::Owned(given_id.into_owned()));
        RequestRecord { id, given_id, ..self }
    }

    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.switch_connection.to_be_bytes());
        to.extend_from_slice(&self.index.to_be_bytes());
        to.extend_from_slice(&[0; 4]);
        to.extend_from_slice(&self.time_ns.to_be_bytes());
        to.extend_from_slice(&self.client_random);
        self.client.encode(to);
        match &self.server {
            Some(server) => server.encode(to),
            None => to.extend_from_slice(&[0; 2 * ADDRESS_BYTES]),
        }
        to.extend_from_slice(&self.status.to_be_bytes());
        to.extend_from_slice(&self.flags.to_be_bytes());
        put_short(to, &self.id);
        put_short(to, &self.given_id);
    }

    pub(crate) fn decode(reader: &mut Cursor<'a>) -> Result<RequestRecord<'a>, RecordError> {
        let (switch_connection, index) = (reader.u64()?, reader.u32()?);
        zeros(reader, 4)?;
        Ok(RequestRecord {
            switch_connection,
            index,
            time_ns: reader.u64()?,
            client_random: reader.array()?,
            client: RequestLeg::decode(reader)?,
            server: Some(RequestLeg::decode(reader)?).filter(|server| *server != RequestLeg::none()),
            status: reader.u16()?,
            flags: reader.u16()?,
            id: reader.short()?.into(),
            given_id: reader.short()?.into(),
        })
    }
}

impl RequestLeg {
    fn encode(&self, to: &mut Vec<u8>) {
        for end in [self.peer, self.local] {
            to.extend_from_slice(&mapped(end.ip()));
            to.extend_from_slice(&end.port().to_be_bytes());
        }
    }

    fn decode(reader: &mut Cursor<'_>) -> Result<RequestLeg, RecordError> {
        let mut end = || Ok::<_, Malformed>(SocketAddr::new(unmapped(reader.array()?), reader.u16()?));
        Ok(RequestLeg { peer: end()?, local: end()? })
    }

    /// What zero bytes decode to.
    fn none() -> RequestLeg {
        let none = SocketAddr::from(([0; 16], 0));
        RequestLeg { peer: none, local: none }
    }
}

/// Reserved bytes, all zero.
pub(crate) fn zeros(reader: &mut Cursor<'_>, length: usize) -> Result<(), RecordError> {
    let is_zero = reader.bytes(length)?.iter().all(|byte| *byte == 0);
    if is_zero { Ok(()) } else { Err(RecordError::Value("reserved bytes")) }
}

/// `opaque <0..255>`; a longer value is cut.
pub(crate) fn put_short(to: &mut Vec<u8>, value: &[u8]) {
    let value = &value[..value.len().min(255)];
    to.push(value.len() as u8);
    to.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(data: &[u8]) -> Record<'_> {
        let body = Packet {
            time_ns: 1_795_861_800_000_000_001,
            wire_bytes: 90,
            connection: 7,
            packet_seq: 3,
            direction: Direction::ToServer,
            flags: flags::VLAN,
            data,
        };
        Record { seq: 9, interface: 0, body: Body::Packet(body) }
    }

    #[test]
    fn packet_has_the_documented_bytes() {
        let mut bytes = Vec::new();
        packet(b"abc").encode(&mut bytes);
        assert_eq!(bytes.len(), PACKET_HEAD_BYTES + 3);
        assert_eq!(bytes[..16], [1, 1, 0, 0, 0, 0, 0, 55, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(bytes[48..], [1, 2, 0, 0, b'a', b'b', b'c']);
        assert_eq!(Record::decode(&bytes), Ok(packet(b"abc")));
    }

    #[test]
    fn every_flipped_bit_changes_the_record_or_is_refused() {
        let mut bytes = Vec::new();
        packet(b"abc").encode(&mut bytes);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Record::decode(&changed), Ok(packet(b"abc")), "bit {bit}");
        }
    }

    #[test]
    fn connection_zero_with_packet_seq_is_refused() {
        let mut bytes = Vec::new();
        packet(b"abc").encode(&mut bytes);
        bytes[39] = 0;
        assert_eq!(Record::decode(&bytes), Err(RecordError::Value("connection")));
    }
}
