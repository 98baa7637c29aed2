//! The Recorder's stream: packets, totals and times in; segments' bytes, statements and rows for the index out.
//!
//! Every record gets the next `seq`, a leaf in the open batch, and its block in the open segment. The caller writes the
//! bytes of [`Output`] before it acts on the events, so that a statement never covers a record that no file has.

use crate::batch::Batches;
use crate::connection_table::{ConnectionTable, Limits, Place};
use crate::frame::{Content, Frame};
use crate::losses::{InterfaceTotals, Losses, RingTotals};
use evergate_evidence::extents::PacketPlace;
use evergate_evidence::mark::{Mark, MarkKind, SegmentBegin, SegmentEnd};
use evergate_evidence::merkle::{Hash, leaf_hash};
use evergate_evidence::record::{
    Body, Gap, GapReason, PACKET_HEAD_BYTES, Packet, Record, RequestRecord, flags,
};
use evergate_evidence::segment::SegmentEncoder;
use evergate_evidence::statement::{ChainEnd, Partition, Statement};
use serde::Serialize;

/// Size and age at which a segment ends.
#[derive(Clone, Copy, Debug)]
pub struct SegmentLimits {
    /// Bytes of the file.
    pub bytes: u64,
    /// Age in nanoseconds.
    pub age_ns: u64,
}

impl Default for SegmentLimits {
    fn default() -> SegmentLimits {
        SegmentLimits { bytes: 1 << 30, age_ns: 3_600_000_000_000 }
    }
}

/// Where a Recorder's stream begins or continues.
#[derive(Clone, Debug)]
pub struct Origin {
    /// SHA-256 of the public key of the Recorder's certificate.
    pub recorder: Hash,
    /// Partition of the traffic.
    pub partition: Partition,
    /// End of the chain of statements; `None` in a new store.
    pub chain: Option<ChainEnd>,
    /// Sequence number of the next record.
    pub next_seq: u64,
    /// Number of the next connection.
    pub next_connection: u64,
    /// Number of the next segment.
    pub next_segment: u64,
    /// Names of the interfaces.
    pub interfaces: Vec<String>,
    /// Filter of the kernel in words; empty: all packets.
    pub filter: String,
    /// Most bytes kept of a packet; 0: all.
    pub snaplen: u32,
}

/// A packet from the ring or a file.
#[derive(Clone, Copy, Debug)]
pub struct RawPacket<'a> {
    /// Index of its interface.
    pub interface: u16,
    /// Time of arrival in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length on the wire in bytes.
    pub wire_bytes: u32,
    /// Flags of capture, [`flags::FRAGMENT`] and [`flags::CUT`] excepted.
    pub flags: u8,
    /// Frame from the link layer on.
    pub data: &'a [u8],
}

/// A record that a segment has and no statement covers.
#[derive(Clone, Copy, Debug)]
pub struct Uncovered {
    /// Number of its segment.
    pub segment: u64,
    /// Its sequence number.
    pub seq: u64,
    /// Hash of its leaf.
    pub leaf: Hash,
    /// Its time in nanoseconds since 1970, if its kind has one.
    pub time_ns: Option<u64>,
    /// Captured bytes, if it is a packet.
    pub packet_bytes: Option<usize>,
}

/// First part of a packet's leaf: the prefix of leaves (RFC 6962), and the head of the record. The data follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafHead(pub [u8; 1 + PACKET_HEAD_BYTES]);

impl LeafHead {
    fn of(packet: &Packet<'_>, seq: u64, interface: u16) -> LeafHead {
        let mut head = [0; 1 + PACKET_HEAD_BYTES];
        head[1..].copy_from_slice(&packet.head(seq, interface));
        LeafHead(head)
    }
}

/// SHA-256 of leaves. An implementation may hash several at once.
pub trait LeafHasher {
    /// Appends the hash of each head with its packet's data, in order.
    fn hash_leaves(&mut self, heads: &[LeafHead], packets: &[RawPacket<'_>], leaves: &mut Vec<Hash>);
}

/// Hasher of one leaf after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneByOne;

impl LeafHasher for OneByOne {
    fn hash_leaves(&mut self, heads: &[LeafHead], packets: &[RawPacket<'_>], leaves: &mut Vec<Hash>) {
        leaves
            .extend(heads.iter().zip(packets).map(|(head, packet)| leaf_hash(&[&head.0[1..], packet.data])));
    }
}

/// Output since the last poll.
#[derive(Debug, Default)]
pub struct Output {
    /// Bytes for the segments, in order.
    pub bytes: Vec<u8>,
    /// Events, in order of their place in `bytes`.
    pub events: Vec<(usize, Event)>,
}

impl Output {
    /// Number of statements in the output.
    pub fn statements(&self) -> usize {
        self.events.iter().filter(|(_, event)| matches!(event, Event::Batch { .. })).count()
    }

    /// Whether the output has neither bytes nor events.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.events.is_empty()
    }
}

/// Event at a place of the output.
#[derive(Debug)]
pub enum Event {
    /// The bytes from here on belong to this segment.
    SegmentBegins(u64),
    /// The segment ends here.
    SegmentEnds {
        /// Length of its file in bytes.
        bytes: u64,
    },
    /// A batch ends here.
    Batch {
        /// Statement over the batch.
        statement: Box<Statement>,
        /// Segment of its first record.
        segment: u64,
    },
    /// A record other than a packet, and the place of its block in the segment's file.
    Record(Box<Record<'static>>, u64),
    /// A packet, for the index.
    Packet(PacketPlace),
    /// Packets of the open batch have no events: see [`RecordStream::set_indexed`].
    Unindexed,
}

/// The stream.
#[derive(Debug)]
pub struct RecordStream {
    origin: Origin,
    limits: SegmentLimits,
    connections: ConnectionTable,
    batches: Batches,
    losses: Losses,
    encoder: SegmentEncoder,
    segment: Option<OpenSegment>,
    /// Segment of the open batch's first record.
    batch_segment: Option<u64>,
    next_seq: u64,
    now_ns: u64,
    emergency_ms: u32,
    /// Whether the segment's packets are events for the index.
    is_indexed: bool,
    /// Whether the open batch has a packet without an event.
    has_unindexed: bool,
    output: Output,
    scratch: Vec<u8>,
    heads: Vec<LeafHead>,
    leaves: Vec<Hash>,
}

#[derive(Clone, Copy, Debug)]
struct OpenSegment {
    number: u64,
    /// Bytes of the file before `output.bytes[from..]`.
    written: u64,
    from: usize,
    begun_ns: u64,
}

impl RecordStream {
    /// A stream that continues at `origin`.
    pub fn new(origin: Origin, connections: Limits, limits: SegmentLimits, now_ns: u64) -> RecordStream {
        RecordStream {
            connections: ConnectionTable::new(connections, origin.next_connection),
            batches: Batches::new(origin.recorder, origin.partition, origin.chain),
            losses: Losses::new(now_ns),
            encoder: SegmentEncoder::default(),
            segment: None,
            batch_segment: None,
            next_seq: origin.next_seq,
            now_ns,
            emergency_ms: 0,
            is_indexed: true,
            has_unindexed: false,
            output: Output::default(),
            scratch: Vec::new(),
            heads: Vec::new(),
            leaves: Vec::new(),
            origin,
            limits,
        }
    }

    /// Puts back a record that a segment has and no statement covers: the Recorder stopped between the two.
    pub fn on_uncovered(&mut self, record: &Uncovered) {
        let Uncovered { segment, seq, leaf, time_ns, packet_bytes } = *record;
        self.batch_segment.get_or_insert(segment);
        self.batches.push(leaf, seq, time_ns.unwrap_or(self.now_ns), packet_bytes, self.now_ns);
        self.next_seq = self.next_seq.max(seq + 1);
    }

    /// Ends a segment that a crash left open, with its bytes so far.
    pub fn end_left_open(&mut self, number: u64, bytes: u64) {
        let from = self.output.bytes.len();
        self.segment = Some(OpenSegment { number, written: bytes, from, begun_ns: self.now_ns });
        self.output.events.push((from, Event::SegmentBegins(number)));
        self.end_segment();
    }

    /// Takes the time, and does what has become due.
    pub fn on_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns.max(self.now_ns);
        self.connections.on_time(self.now_ns);
        self.push_connections();
        let is_due = self.segment.is_some_and(|segment| {
            self.segment_bytes(&segment) >= self.limits.bytes
                || self.now_ns - segment.begun_ns >= self.limits.age_ns
        });
        if is_due {
            self.end_segment();
        }
    }

    /// Takes the time in emergency mode, in milliseconds.
    pub fn on_emergency(&mut self, lasted_ms: u32) {
        self.emergency_ms = lasted_ms;
    }

    /// Whether packets are events for the index; false defers the rows.
    pub fn set_indexed(&mut self, is_indexed: bool) {
        self.is_indexed = is_indexed;
    }

    /// Takes the totals of the sockets. They were read after the next packets came into their block.
    pub fn on_ring(&mut self, totals: RingTotals) {
        if let Some(gap) = self.losses.on_ring(totals, self.now_ns) {
            self.push_gap(gap);
        }
    }

    /// Takes the totals of the interface.
    pub fn on_interface(&mut self, totals: InterfaceTotals) {
        if let Some(gap) = self.losses.on_interface(totals, self.now_ns) {
            self.push_gap(gap);
        }
    }

    /// Declares the packets that the interface counted while the Recorder was down: an upper bound.
    pub fn on_down(&mut self, count: u64, from_ns: u64) {
        let to_ns = self.now_ns;
        self.push_gap(Gap {
            reason: GapReason::Down,
            exact: false,
            count,
            from_ns: from_ns.min(to_ns),
            to_ns,
        });
    }

    /// Counts packets for which the disk has no room.
    pub fn on_unwritten(&mut self, packets: u64) {
        self.losses.record_unwritten(packets, self.now_ns);
    }

    /// Writes the envelope of a connection that a switch sealed.
    pub fn on_envelope(&mut self, envelope: Vec<u8>) {
        self.push(Body::Envelope(envelope.into()));
    }

    /// Writes a request that a switch routed.
    pub fn on_request(&mut self, request: RequestRecord<'static>) {
        self.push(Body::Request(request));
    }

    /// Declares messages that a switch dropped because its feed was full, between these times.
    pub fn on_feed_loss(&mut self, count: u64, from_ns: u64) {
        let (from_ns, to_ns) = (from_ns.min(self.now_ns), self.now_ns);
        self.push_gap(Gap { reason: GapReason::Feed, exact: true, count, from_ns, to_ns });
    }

    /// Takes packets that arrived one after the other, such as those of a block.
    pub fn on_packets(&mut self, packets: &[RawPacket<'_>], hasher: &mut dyn LeafHasher) {
        if packets.is_empty() {
            return;
        }
        if let Some(gap) = self.losses.poll_unwritten(self.now_ns) {
            self.push_gap(gap);
        }
        let segment = self.begin_segment();
        let mut heads = std::mem::take(&mut self.heads);
        let mut leaves = std::mem::take(&mut self.leaves);
        heads.clear();
        leaves.clear();
        let first = self.next_seq;
        heads.extend(packets.iter().map(|raw| self.push_packet(raw, &segment)));
        hasher.hash_leaves(&heads, packets, &mut leaves);
        for ((seq, leaf), raw) in (first..).zip(&leaves).zip(packets) {
            self.batches.push(*leaf, seq, raw.time_ns, Some(raw.data.len()), self.now_ns);
        }
        (self.heads, self.leaves) = (heads, leaves);
    }

    /// Writes a mark.
    pub fn on_mark(&mut self, what: MarkKind, object: &impl Serialize) {
        self.push_mark(Mark::new(what, object));
    }

    pub(crate) fn push_mark(&mut self, mark: Mark<'static>) {
        self.push(Body::Mark(mark));
    }

    /// Closes the open batch if it is due.
    pub fn poll_batch(&mut self, unanswered: u64) {
        if self.batches.is_due(unanswered, self.now_ns) {
            self.close_batch();
        }
    }

    /// Ends the connections and the segment, and closes the last batch. `object` goes with the mark.
    pub fn stop(&mut self, object: &impl Serialize) {
        if let Some(gap) = self.losses.poll_unwritten(self.now_ns) {
            self.push_gap(gap);
        }
        self.connections.end_all();
        self.push_connections();
        self.on_mark(MarkKind::Stop, object);
        self.end_segment();
        self.close_batch();
    }

    /// The output since the last poll, with `recycled` as the next buffer.
    pub fn poll_output(&mut self, mut recycled: Output) -> Output {
        recycled.bytes.clear();
        recycled.events.clear();
        if let Some(segment) = &mut self.segment {
            segment.written += (self.output.bytes.len() - segment.from) as u64;
            segment.from = 0;
        }
        std::mem::replace(&mut self.output, recycled)
    }

    /// The account of losses.
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Sequence number of the next record.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Connections in the table.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    fn segment_bytes(&self, segment: &OpenSegment) -> u64 {
        segment.written + (self.output.bytes.len() - segment.from) as u64
    }

    fn push_gap(&mut self, gap: Gap) {
        self.push(Body::Gap(gap));
    }

    fn push_connections(&mut self) {
        while let Some(record) = self.connections.poll_record() {
            self.push(Body::Connection(Box::new(record)));
        }
    }

    /// Appends a record other than a packet.
    fn push(&mut self, body: Body<'static>) {
        let segment = self.begin_segment();
        self.append(body, &segment);
    }

    fn append(&mut self, body: Body<'static>, segment: &OpenSegment) {
        let offset = self.segment_bytes(segment);
        let record = Record { seq: self.next_seq, interface: 0, body };
        self.scratch.clear();
        record.encode(&mut self.scratch);
        let time_ns = record.time_ns().unwrap_or(self.now_ns);
        self.batches.push(leaf_hash(&[&self.scratch]), self.next_seq, time_ns, None, self.now_ns);
        self.encoder.push(&record, &mut self.output.bytes);
        self.next_seq += 1;
        self.output.events.push((self.output.bytes.len(), Event::Record(Box::new(record), offset)));
    }

    /// Appends a packet's block, and answers the first part of its leaf.
    fn push_packet(&mut self, raw: &RawPacket<'_>, segment: &OpenSegment) -> LeafHead {
        let frame = Frame::read(raw.data);
        let mut marks = raw.flags;
        let place = match frame.content {
            Content::Tcp(part) => self.connections.on_segment(raw.time_ns, frame.vlan, &part),
            Content::Fragment | Content::Other => {
                marks |= if frame.content == Content::Fragment { flags::FRAGMENT } else { 0 };
                Place::default()
            }
        };
        if (raw.data.len() as u64) < u64::from(raw.wire_bytes) {
            marks |= flags::CUT;
        }
        let packet = Packet {
            time_ns: raw.time_ns,
            wire_bytes: raw.wire_bytes,
            connection: place.connection,
            packet_seq: place.packet_seq,
            direction: place.direction,
            flags: marks,
            data: raw.data,
        };
        let (seq, offset) = (self.next_seq, self.segment_bytes(segment));
        self.encoder.push_packet(&packet, seq, raw.interface, &mut self.output.bytes);
        self.next_seq += 1;
        self.losses.record_written();
        if self.is_indexed {
            let (connection, time_ns) = (packet.connection, packet.time_ns);
            let place = PacketPlace { connection, seq, time_ns, offset };
            self.output.events.push((self.output.bytes.len(), Event::Packet(place)));
        } else if !std::mem::replace(&mut self.has_unindexed, true) {
            self.output.events.push((self.output.bytes.len(), Event::Unindexed));
        }
        LeafHead::of(&packet, seq, raw.interface)
    }

    /// The open segment; a new one if none is open.
    fn begin_segment(&mut self) -> OpenSegment {
        if let Some(segment) = self.segment {
            self.batch_segment.get_or_insert(segment.number);
            return segment;
        }
        let number = self.origin.next_segment;
        self.origin.next_segment += 1;
        let from = self.output.bytes.len();
        let segment = OpenSegment { number, written: 0, from, begun_ns: self.now_ns };
        self.segment = Some(segment);
        self.batch_segment.get_or_insert(number);
        self.output.events.push((from, Event::SegmentBegins(number)));
        self.encoder = SegmentEncoder::default();
        let begin = SegmentBegin {
            filter: self.origin.filter.clone(),
            interfaces: self.origin.interfaces.clone(),
            link_type: 1,
            next_connection: self.connections.next_number(),
            recorder: hex(&self.origin.recorder),
            segment: number,
            snaplen: self.origin.snaplen,
        };
        self.append(Body::Mark(Mark::new(MarkKind::SegmentBegins, &begin)), &segment);
        segment
    }

    fn end_segment(&mut self) {
        let Some(segment) = self.segment else { return };
        self.batch_segment.get_or_insert(segment.number);
        let counters = self.losses.counters();
        let end = SegmentEnd {
            dropped: counters.dropped,
            missed: counters.if_missed,
            received: counters.if_rx,
            time_ns: self.now_ns.to_string(),
        };
        self.append(Body::Mark(Mark::new(MarkKind::SegmentEnds, &end)), &segment);
        let bytes = self.segment_bytes(&segment);
        self.output.events.push((self.output.bytes.len(), Event::SegmentEnds { bytes }));
        self.segment = None;
    }

    fn close_batch(&mut self) {
        if let Some(statement) = self.batches.close(self.losses.counters(), self.emergency_ms) {
            self.has_unindexed = false;
            let segment = self.batch_segment.take().unwrap_or(0); // a batch has a record, and that a segment
            let event = Event::Batch { statement: Box::new(statement), segment };
            self.output.events.push((self.output.bytes.len(), event));
        }
    }
}

/// Hexadecimal digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BYTES;
    use crate::frame::tests::frame;
    use evergate_evidence::merkle::Tree;
    use evergate_evidence::segment::SegmentDecoder;
    use std::collections::BTreeMap;

    fn origin() -> Origin {
        Origin {
            recorder: [7; 32],
            partition: Partition::default(),
            chain: None,
            next_seq: 1,
            next_connection: 1,
            next_segment: 1,
            interfaces: vec!["eth0".into()],
            filter: String::new(),
            snaplen: 0,
        }
    }

    /// Store in memory: files by number, statements, and places of packets.
    #[derive(Default)]
    struct Files {
        segments: BTreeMap<u64, Vec<u8>>,
        open: u64,
        statements: Vec<Statement>,
        places: Vec<(u64, PacketPlace)>,
        records: u64,
    }

    impl Files {
        fn take(&mut self, output: &Output) {
            let mut at = 0;
            for (place, event) in &output.events {
                self.segments.entry(self.open).or_default().extend_from_slice(&output.bytes[at..*place]);
                at = *place;
                match event {
                    Event::SegmentBegins(number) => self.open = *number,
                    Event::SegmentEnds { bytes } => {
                        assert_eq!(self.segments[&self.open].len() as u64, *bytes)
                    }
                    Event::Batch { statement, .. } => self.statements.push((**statement).clone()),
                    Event::Packet(place) => self.places.push((self.open, *place)),
                    Event::Record(..) | Event::Unindexed => {}
                }
            }
            self.segments.entry(self.open).or_default().extend_from_slice(&output.bytes[at..]);
        }

        /// Decodes every segment, and checks sequence, roots and the places of packets.
        fn check(&mut self) {
            let mut leaves = Vec::new();
            let mut places = self.places.iter();
            assert!(self.segments.remove(&0).is_none_or(|bytes| bytes.is_empty()));
            for (number, bytes) in &self.segments {
                let (mut decoder, mut at) = (SegmentDecoder::default(), 0);
                while let Some(decoded) = decoder.read(&bytes[at..]).expect("own segment") {
                    let mut encoded = Vec::new();
                    decoded.record.encode(&mut encoded);
                    leaves.push(leaf_hash(&[&encoded]));
                    assert_eq!(decoded.record.seq, leaves.len() as u64);
                    let end = at + decoded.bytes;
                    if let Body::Packet(packet) = &decoded.record.body {
                        let (segment, place) = places.next().expect("place of each packet");
                        assert_eq!((segment, place.offset), (number, at as u64));
                        assert_eq!((place.connection, place.seq), (packet.connection, decoded.record.seq));
                    }
                    at = end;
                }
                assert!(at == bytes.len() && decoder.has_ended());
            }
            self.records = leaves.len() as u64;
            let mut leaves = leaves.into_iter();
            let mut end: Option<ChainEnd> = None;
            for statement in &self.statements {
                assert_eq!((statement.follows(end.as_ref()), statement.check().is_ok()), (Ok(()), true));
                let mut tree = Tree::new();
                (statement.span.first_seq..=statement.span.last_seq)
                    .for_each(|_| tree.push(leaves.next().unwrap()));
                assert_eq!(tree.root(), statement.root);
                end = Some(ChainEnd::from(statement));
            }
            assert_eq!(leaves.next(), None, "every record is covered");
        }
    }

    /// Input of a random run.
    #[derive(Clone, Debug)]
    enum Step {
        Packet(u8, u8, Vec<u8>),
        Drops(u8),
        Unwritten(u8),
        Time(u32),
        Poll(u8),
    }

    fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
        use proptest::prelude::*;
        let step = prop_oneof![
            8 => (0u8..4, 0u8..32, prop::collection::vec(any::<u8>(), 0..40))
                .prop_map(|(client, flags, data)| Step::Packet(client, flags, data)),
            1 => (1u8..9).prop_map(Step::Drops),
            1 => (1u8..9).prop_map(Step::Unwritten),
            2 => any::<u32>().prop_map(Step::Time),
            3 => (0u8..10).prop_map(Step::Poll),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest::proptest! {
        #[test]
        fn stream_is_segments_statements_and_places(steps in steps()) {
            let mut now_ns = 1_000_000;
            let limits = SegmentLimits { bytes: 3_000, age_ns: 20_000_000_000 };
            let mut stream = RecordStream::new(origin(), Limits::default(), limits, now_ns);
            let (mut files, mut totals) = (Files::default(), RingTotals::default());
            for step in steps {
                match step {
                    Step::Packet(client, flags, data) => {
                        totals.packets += 1;
                        stream.on_ring(totals);
                        let data = frame(&[], (client, 1000), (9, 443), 0, flags, &data);
                        let wire_bytes = data.len() as u32;
                        let raw = RawPacket { interface: 0, time_ns: now_ns, wire_bytes, flags: 0, data: &data };
                        stream.on_packets(&[raw], &mut OneByOne);
                    }
                    Step::Drops(count) => {
                        totals.packets += u64::from(count);
                        totals.drops += u64::from(count);
                        stream.on_ring(totals);
                    }
                    Step::Unwritten(count) => {
                        totals.packets += u64::from(count);
                        stream.on_ring(totals);
                        stream.on_unwritten(u64::from(count));
                    }
                    Step::Time(passed_ns) => {
                        now_ns += u64::from(passed_ns);
                        stream.on_time(now_ns);
                    }
                    Step::Poll(unanswered) => {
                        stream.poll_batch(u64::from(unanswered));
                        files.take(&stream.poll_output(Output::default()));
                    }
                }
            }
            stream.stop(&no_fields());
            proptest::prop_assert!(stream.losses().is_balanced());
            let counters = stream.losses().counters();
            proptest::prop_assert_eq!(counters.seen, counters.written + counters.dropped);
            files.take(&stream.poll_output(Output::default()));
            files.check();
            proptest::prop_assert_eq!(files.records + 1, stream.next_seq());
        }
    }

    fn no_fields() -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    #[test]
    fn segment_left_open_is_ended_at_its_place() {
        let mut stream = RecordStream::new(
            Origin { next_segment: 4, next_seq: 50, ..origin() },
            Limits::default(),
            SegmentLimits::default(),
            5,
        );
        stream.on_uncovered(&Uncovered {
            segment: 3,
            seq: 50,
            leaf: [3; 32],
            time_ns: Some(5),
            packet_bytes: Some(100),
        });
        stream.end_left_open(3, 777);
        stream.on_mark(MarkKind::Start, &no_fields());
        stream.poll_batch(0);
        let output = stream.poll_output(Output::default());
        let events: Vec<_> = output.events.iter().map(|(_, event)| event).collect();
        let order = events.iter().filter(|event| !matches!(event, Event::Record(..))).collect::<Vec<_>>();
        let [Event::SegmentBegins(3), Event::SegmentEnds { bytes }, Event::SegmentBegins(4), last] =
            order[..]
        else {
            panic!("{order:?}")
        };
        assert!(*bytes > 777);
        let Event::Batch { statement, segment: 3 } = last else { panic!("{last:?}") };
        assert_eq!((statement.span.first_seq, statement.span.last_seq), (50, 53));
        assert!(statement.packet_bytes < BYTES);
    }
}
