//! The digest thread: blocks in, the Recorder's stream out.
//!
//! It alone owns the [`RecordStream`]. It decides before a block whether the disk has room for its packets; without
//! room it counts them, and the stream declares them lost.

use crate::record::disk_space::DiskSpace;
use crate::record::feed::FeedIntake;
use crate::record::job::{Job, Totals};
use crate::record::metrics::Metrics;
use crate::record::source::Fed;
use evergate_capture::{BlockView, RawPacket as RingPacket};
use evergate_digest::{Message, sha256_many};
use evergate_evidence::merkle::Hash;
use evergate_evidence::record::flags;
use evergate_recorder::losses::{InterfaceTotals, RingTotals};
use evergate_recorder::stream::{LeafHasher, LeafHead, Output, RawPacket, RecordStream};
use evergate_test_points::stepped_ns;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{SystemTime, UNIX_EPOCH};

/// Statements without an answer: closed by the digest thread, answered at the commit or by the Master.
pub(crate) type Unanswered = Arc<AtomicU64>;

/// Way of the stream's output to the writer. The writer ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Outlet {
    unanswered: Unanswered,
    output: SyncSender<Output>,
    recycled: Receiver<Output>,
}

/// The digest thread.
#[derive(Debug)]
pub(crate) struct Digest {
    stream: RecordStream,
    outlet: Outlet,
    space: DiskSpace,
    feeds: FeedIntake,
    metrics: Arc<Metrics>,
    counts: Counts,
    /// Frames of a block with their VLAN tags put back.
    tagged: Vec<u8>,
    block: Vec<u8>,
}

/// Counts of the packets that the stream has, for the report at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) emergency_ms: u32,
}

impl Digest {
    pub(crate) fn new(
        stream: RecordStream,
        outlet: Outlet,
        space: DiskSpace,
        feeds: FeedIntake,
        metrics: Arc<Metrics>,
    ) -> Digest {
        let counts = Counts::default();
        let (tagged, block) = (Vec::new(), Vec::new());
        Digest { stream, outlet, space, feeds, metrics, counts, tagged, block }
    }

    /// Runs until the ring thread ends. Answers what the last mark needs.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) -> std::io::Result<Fed> {
        while let Ok(job) = jobs.recv() {
            self.stream.on_time(now_ns());
            match job {
                Job::Block(block, totals) => {
                    self.on_totals(&totals);
                    self.on_block(&block.view());
                }
                Job::Spilled(spilled, totals) => {
                    self.on_totals(&totals);
                    let mut bytes = std::mem::take(&mut self.block);
                    spilled.read(&mut bytes)?;
                    if let Some(view) = BlockView::new(&bytes) {
                        self.on_block(&view);
                    }
                    self.metrics.spilled.fetch_sub(bytes.len(), Ordering::Relaxed);
                    self.block = bytes;
                }
                Job::Feed(job) => self.feeds.on_job(job, now_ns(), &mut self.stream),
                Job::Totals(totals, interface) => {
                    self.on_totals(&totals);
                    let totals = InterfaceTotals { received: interface.received, missed: interface.missed };
                    self.stream.on_interface(totals);
                }
            }
            self.metrics.record_stream(&self.counts, &self.stream);
            if !self.outlet.pass_on(&mut self.stream) {
                break; // the writer ended with an error
            }
        }
        self.stream.on_time(now_ns());
        Ok((self.stream, self.outlet, self.counts))
    }

    fn on_totals(&mut self, totals: &Totals) {
        self.stream.on_ring(RingTotals { packets: totals.ring.seen, drops: totals.ring.dropped });
        self.stream.on_emergency(totals.emergency_ms);
        self.stream.set_indexed(!totals.is_emergency);
        self.counts.emergency_ms = totals.emergency_ms;
    }

    fn on_block(&mut self, view: &BlockView<'_>) {
        if !self.space.has(view.bytes().len() as u64) {
            self.stream.on_unwritten(u64::from(view.packet_count()));
            return;
        }
        let mut packets = view.packets();
        let ring: Vec<RingPacket<'_>> = packets.by_ref().collect();
        let missing = packets.missing();
        self.tagged.clear();
        let tagged: Vec<Option<Range<usize>>> =
            ring.iter().map(|packet| put_tag_back(packet, &mut self.tagged)).collect();
        let raw = ring.iter().zip(&tagged).map(|(packet, place)| {
            raw_packet(packet, place.as_ref().and_then(|place| self.tagged.get(place.clone())))
        });
        let raw: Vec<RawPacket<'_>> = raw.collect();
        self.counts.packets += raw.len() as u64;
        self.counts.bytes += raw.iter().map(|packet| packet.data.len() as u64).sum::<u64>();
        self.stream.on_packets(&raw, &mut SideBySide);
        self.stream.on_unwritten(u64::from(missing));
    }
}

impl Outlet {
    pub(crate) fn new(
        unanswered: Unanswered,
        output: SyncSender<Output>,
        recycled: Receiver<Output>,
    ) -> Outlet {
        Outlet { unanswered, output, recycled }
    }

    /// Closes a batch if it is due, and sends the stream's output to the writer; answers whether the writer took it.
    pub(crate) fn pass_on(&self, stream: &mut RecordStream) -> bool {
        stream.poll_batch(self.unanswered.load(Ordering::Relaxed));
        let next = stream.poll_output(self.recycled.try_recv().unwrap_or_default());
        self.unanswered.fetch_add(next.statements() as u64, Ordering::Relaxed);
        next.is_empty() || self.output.send(next).is_ok()
    }
}

/// Hasher of many leaves at once.
pub(crate) struct SideBySide;

impl LeafHasher for SideBySide {
    fn hash_leaves(&mut self, heads: &[LeafHead], packets: &[RawPacket<'_>], leaves: &mut Vec<Hash>) {
        let messages =
            heads.iter().zip(packets).map(|(head, packet)| Message { head: &head.0, body: packet.data });
        let messages: Vec<Message<'_>> = messages.collect();
        sha256_many(&messages, leaves);
    }
}

/// Appends the frame with its VLAN tag, and answers its place; `None` if the frame has no tag apart.
fn put_tag_back(packet: &RingPacket<'_>, frames: &mut Vec<u8>) -> Option<Range<usize>> {
    let (addresses, tag, rest) = packet.parts();
    let (tag, begin) = (tag?, frames.len());
    frames.extend_from_slice(addresses);
    frames.extend_from_slice(&tag);
    frames.extend_from_slice(rest);
    Some(begin..frames.len())
}

/// The packet for the stream; `tagged` is its frame with the VLAN tag put back.
fn raw_packet<'a>(packet: &RingPacket<'a>, tagged: Option<&'a [u8]>) -> RawPacket<'a> {
    let mark = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let marks = mark(packet.status.lacks_checksum(), flags::CHECKSUM_UNFILLED)
        | mark(packet.status.is_aggregate(), flags::AGGREGATE)
        | mark(tagged.is_some(), flags::VLAN);
    let data = tagged.unwrap_or(packet.data);
    RawPacket {
        interface: 0,
        time_ns: stepped_ns(packet.time_ns),
        wire_bytes: packet.full_len(),
        flags: marks,
        data,
    }
}

/// Time in nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    stepped_ns(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64))
}
