//! Extents: the parts of segments that have packets of a connection, so that a reader seeks and never scans.
//!
//! A connection has one extent for each 64 MiB of a segment in which it has packets. The Recorder and the rebuild of an
//! index share [`ExtentBuilder`], so both have equal rows. Memory: one entry for each connection of the current 64 MiB.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Bytes of a segment that one extent covers at most.
pub const EXTENT_BYTES: u64 = 64 << 20;

/// Packets of one connection in one part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of the connection.
    pub connection: u64,
    /// Number of the segment.
    pub segment: u64,
    /// Place of the first packet's block in the file.
    pub first_offset: u64,
    /// Place of the last packet's block in the file.
    pub last_offset: u64,
    /// `seq` of the first packet.
    pub first_seq: u64,
    /// `seq` of the last packet.
    pub last_seq: u64,
    /// Time of the first packet in nanoseconds since 1970. It decides the day of the row.
    pub first_ns: u64,
    /// Packets.
    pub packets: u64,
}

/// A packet's place, as the builder needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPlace {
    /// Number of its connection; 0 makes no extent.
    pub connection: u64,
    /// Its `seq`.
    pub seq: u64,
    /// Its time in nanoseconds since 1970.
    pub time_ns: u64,
    /// Place of its block in the file.
    pub offset: u64,
}

/// Extents of the current part of a segment.
#[derive(Clone, Debug, Default)]
pub struct ExtentBuilder {
    segment: u64,
    part: u64,
    open: HashMap<u64, Extent, NumberHash>,
}

/// Hash of a connection's number, under a random key: a hostile segment cannot make numbers collide.
#[derive(Clone, Debug)]
struct NumberHash([u64; 2]);

impl Default for NumberHash {
    fn default() -> NumberHash {
        let random = RandomState::new();
        NumberHash([random.hash_one(0), random.hash_one(1) | 1])
    }
}

impl BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        let [start, factor] = self.0;
        NumberHasher { state: start, factor }
    }
}

struct NumberHasher {
    state: u64,
    factor: u64,
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.state ^ number) * u128::from(self.factor);
        self.state = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

impl Extent {
    /// Number of the 64 MiB within the segment. Connection, segment and part name an extent.
    pub fn part(&self) -> u64 {
        self.first_offset / EXTENT_BYTES
    }
}

impl ExtentBuilder {
    /// Begins a segment. Extents of the segment before it are appended to `done`.
    pub fn begin_segment(&mut self, segment: u64, done: &mut Vec<Extent>) {
        self.finish(done);
        self.segment = segment;
        self.part = 0;
    }

    /// Adds a packet. When it is the first of another 64 MiB, the extents before it are appended to `done`.
    pub fn on_packet(&mut self, place: PacketPlace, done: &mut Vec<Extent>) {
        let part = place.offset / EXTENT_BYTES;
        if part != self.part {
            self.finish(done);
            self.part = part;
        }
        if place.connection == 0 {
            return;
        }
        let PacketPlace { connection, seq, time_ns, offset } = place;
        let segment = self.segment;
        let extent = self.open.entry(connection).or_insert(Extent {
            connection,
            segment,
            first_offset: offset,
            last_offset: offset,
            first_seq: seq,
            last_seq: seq,
            first_ns: time_ns,
            packets: 0,
        });
        extent.last_offset = offset;
        extent.last_seq = seq;
        extent.packets += 1;
    }

    /// The connection's extent as it is now: its row becomes visible together with the connection's record. A later
    /// extent with the same name replaces it.
    pub fn current(&self, connection: u64) -> Option<Extent> {
        self.open.get(&connection).copied()
    }

    /// Appends the extents of the current part to `done`, in the order of their connections.
    pub fn finish(&mut self, done: &mut Vec<Extent>) {
        let begin = done.len();
        done.extend(self.open.drain().map(|(_, extent)| extent));
        done[begin..].sort_unstable_by_key(|extent| extent.connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(connection: u64, seq: u64, offset: u64) -> PacketPlace {
        PacketPlace { connection, seq, time_ns: seq * 10, offset }
    }

    #[test]
    fn extent_covers_its_packets_of_one_part() {
        let (mut builder, mut done) = (ExtentBuilder::default(), Vec::new());
        builder.begin_segment(4, &mut done);
        builder.on_packet(place(7, 2, 100), &mut done);
        builder.on_packet(place(0, 3, 200), &mut done);
        builder.on_packet(place(7, 4, 300), &mut done);
        assert_eq!(builder.current(7).map(|extent| extent.packets), Some(2));
        assert!(done.is_empty());
        builder.on_packet(place(7, 5, EXTENT_BYTES), &mut done);
        builder.begin_segment(5, &mut done);
        let shown: Vec<_> =
            done.iter().map(|e| (e.segment, e.part(), e.first_offset, e.last_offset, e.packets)).collect();
        assert_eq!(shown, [(4, 0, 100, 300, 2), (4, 1, EXTENT_BYTES, EXTENT_BYTES, 1)]);
    }

    proptest! {
        #[test]
        fn every_packet_lies_in_exactly_one_extent(
            packets in prop::collection::vec((0u64..5, 1u64..(40 << 20)), 0..200)
        ) {
            let (mut builder, mut done, mut offset) = (ExtentBuilder::default(), Vec::new(), 0);
            builder.begin_segment(1, &mut done);
            let mut places = Vec::new();
            for (seq, (connection, bytes)) in (1..).zip(packets) {
                places.push(place(connection, seq, offset));
                builder.on_packet(place(connection, seq, offset), &mut done);
                offset += bytes;
            }
            builder.finish(&mut done);
            let total: u64 = done.iter().map(|extent| extent.packets).sum();
            let tcp: Vec<_> = places.iter().filter(|place| place.connection != 0).collect();
            prop_assert_eq!(total, tcp.len() as u64);
            for place in tcp {
                let covers = |e: &&Extent| e.connection == place.connection
                    && (e.first_offset..=e.last_offset).contains(&place.offset)
                    && (e.first_seq..=e.last_seq).contains(&place.seq)
                    && e.part() == place.offset / EXTENT_BYTES;
                prop_assert_eq!(done.iter().filter(covers).count(), 1);
            }
        }
    }
}
