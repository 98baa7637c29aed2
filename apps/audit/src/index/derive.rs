//! Rows that the records of a segment derive. The Recorder and the rebuild share it, so both have equal indexes.

use crate::index::rows::{EnvelopeRow, IndexEvent, RecordPlace, RequestRow, SegmentRow};
use evergate_evidence::envelope::Envelope;
use evergate_evidence::extents::{Extent, ExtentBuilder, PacketPlace};
use evergate_evidence::mark::{MarkKind, SegmentEnd};
use evergate_evidence::record::{Body, Record};

/// Derives rows from records in the order of `seq`.
///
/// For each segment: [`RecordIndexer::begin_segment`], [`RecordIndexer::on_record`] for every record, and
/// [`RecordIndexer::finish_segment`].
#[derive(Debug, Default)]
pub struct RecordIndexer {
    extents: ExtentBuilder,
    segment: SegmentRow,
    done: Vec<Extent>,
}

impl RecordIndexer {
    /// Begins a segment.
    pub fn begin_segment(&mut self, number: u64, events: &mut Vec<IndexEvent>) {
        self.extents.begin_segment(number, &mut self.done);
        self.segment = SegmentRow { number, ..SegmentRow::default() };
        self.flush(events);
    }

    /// Appends the rows of a record to `events`. `offset` is the place of its block in the file.
    pub fn on_record(&mut self, record: &Record<'_>, offset: u64, events: &mut Vec<IndexEvent>) {
        self.on_seq(record.seq);
        let place = RecordPlace { seq: record.seq, segment: self.segment.number, offset };
        match &record.body {
            Body::Packet(packet) => {
                let (connection, time_ns) = (packet.connection, packet.time_ns);
                self.on_packet(PacketPlace { connection, seq: record.seq, time_ns, offset }, events);
            }
            Body::Gap(gap) => {
                self.include(gap.from_ns);
                self.include(gap.to_ns);
            }
            Body::Connection(connection) => {
                let extent = self.extents.current(connection.connection);
                events.extend(extent.map(IndexEvent::Extent));
                events.push(IndexEvent::Connection(connection.clone(), place));
            }
            Body::Request(request) => {
                // Its time is of the switch's clock, and not one of the segment's.
                events.push(IndexEvent::Request(Box::new(RequestRow::new(record.seq, request))));
            }
            Body::Mark(mark) if mark.what == MarkKind::SegmentEnds => {
                self.segment.is_closed = true;
                let end: Option<SegmentEnd> = mark.object();
                if let Some(time_ns) = end.and_then(|end| end.time_ns.parse().ok()) {
                    self.include(time_ns);
                }
            }
            Body::Envelope(bytes) => {
                // Bytes that are no envelope open nothing, and nothing looks for them.
                events.extend(Envelope::decode(bytes).ok().map(|envelope| {
                    let (born_ns, client_random) = (envelope.aad.born_ns, envelope.aad.client_random);
                    IndexEvent::Envelope(EnvelopeRow { place, born_ns, client_random })
                }));
            }
            Body::Mark(_) => {}
        }
    }

    /// Appends the rows of a packet's record to `events`.
    pub fn on_packet(&mut self, place: PacketPlace, events: &mut Vec<IndexEvent>) {
        self.on_seq(place.seq);
        self.include(place.time_ns);
        self.extents.on_packet(place, &mut self.done);
        self.flush(events);
    }

    /// Ends a segment at this length in bytes.
    pub fn finish_segment(&mut self, bytes: u64, events: &mut Vec<IndexEvent>) {
        self.extents.finish(&mut self.done);
        self.flush(events);
        self.segment.bytes = bytes;
        events.push(IndexEvent::Segment(self.segment));
    }

    /// The segment as far as its records have been seen.
    pub fn segment(&self) -> SegmentRow {
        self.segment
    }

    fn on_seq(&mut self, seq: u64) {
        if self.segment.first_seq == 0 {
            self.segment.first_seq = seq;
        }
        self.segment.last_seq = seq;
    }

    fn include(&mut self, time_ns: u64) {
        let (first, last) = self.segment.times_ns.unwrap_or((time_ns, time_ns));
        self.segment.times_ns = Some((first.min(time_ns), last.max(time_ns)));
    }

    fn flush(&mut self, events: &mut Vec<IndexEvent>) {
        events.extend(self.done.drain(..).map(IndexEvent::Extent));
    }
}
