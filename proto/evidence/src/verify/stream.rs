//! Verifier of a store: segments by number, each with its receipts and then its records, against the statements.

mod batches;
mod end;

use self::batches::Batch;
use super::Statements;
use super::connections::{Break, CONNECTION_BYTES, Connections};
use super::digest::{Event, Final, RecordDigest};
use super::finding::{Checked, FindingKind, Findings};
use super::holds::Holds;
use super::log_view::LogView;
use super::receipts::{EventReceipt, ReceiptFrame};
use super::statements::{Chain, Received};
use super::timestamps::{StampFiles, Stamps, TokenVerifier};
use crate::checkpoint::Checkpoint;
use crate::deletion;
use crate::entry::{Deletion, Entry, Event as LogEvent};
use crate::mark::SegmentBegin;
use crate::merkle::{Hash, leaf_hash};
use crate::note::SignatureVerifier;
use crate::proof::Receipt;
use crate::record::GapReason;
use crate::statement::{Span, Statement};
use crate::verify::Trust;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Most that the time of packets may go back within a store in nanoseconds: processors stamp packets apart.
const TIME_BACK_NS: u64 = 1_000_000_000;
/// Most gaps that are kept for the question whether one explains a hole in a payload.
const GAPS_MAX: usize = 1 << 16;
/// Description of the store: `store.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// Id of the Recorder.
    pub recorder: Hash,
    /// Origin of the Master's log; empty before the first contact.
    pub installation: String,
    /// Partition of the traffic.
    pub part: u16,
    /// Number of partitions.
    pub parts: u16,
}

/// Checkpoint that the store must extend, from outside the store.
pub type Expected = Checkpoint;

/// Verifier of a store.
pub struct StreamVerifier<'a, S> {
    facts: StoreFacts,
    /// Whether a Recorder writes to the store: its end may be incomplete.
    is_live: bool,
    statements: S,
    log: LogView<'a>,
    findings: Findings,
    checked: Checked,
    connections: Connections,
    chain: Chain,
    batch: Option<Batch>,
    receipts: Receipts,
    place: Place,
    run: Run,
    gaps: VecDeque<(u64, u64)>,
    /// Logged deletions by segment, with their places in the log.
    deletions: BTreeMap<u64, (u64, Deletion)>,
    holds: Holds,
    /// Deleted records whose batches are passed over.
    deleting: Option<Deleting>,
    stamps: Stamps,
    is_exhausted: bool,
}

/// Receipts that wait for their batches.
#[derive(Default)]
struct Receipts {
    waiting: VecDeque<Received>,
    /// Batch of the last receipt.
    batch: u64,
    /// Place of the last receipt in the log.
    index: Option<u64>,
    /// Batches without a receipt since the last one with: the number of the first, and the file that should have it.
    missing: Option<(u64, Rc<str>)>,
}

/// Place in the stream.
struct Place {
    /// Number of the segment; 0 before the first.
    segment: u64,
    path: Rc<str>,
    proofs: Rc<str>,
    /// Whether no record of the segment was read.
    is_first: bool,
    /// Whether the segment's last record was read.
    has_ended: bool,
    /// Whether records before this place are missing, and a finding or a deletion states it.
    is_excused: bool,
    /// Whether the segment is missing, deleted or damaged: its receipts may have no records.
    is_damaged: bool,
    /// Number of the next record.
    seq: u64,
    /// Highest time of a packet in nanoseconds since 1970.
    time_ns: u64,
}

/// The Recorder's run: from a start to the next one.
#[derive(Default)]
struct Run {
    /// Whether its start was read, and everything since.
    is_known: bool,
    written: u64,
}

/// Deleted records, and the times that statements give to them.
#[derive(Debug)]
struct Deleting {
    first_seq: u64,
    last_seq: u64,
    /// Times of the batches of which all records are deleted.
    times_ns: Option<(u64, u64)>,
}

impl Deleting {
    fn on_batch(&mut self, span: &Span) {
        if span.first_seq >= self.first_seq && span.last_seq <= self.last_seq {
            let (first, last) = self.times_ns.unwrap_or((span.first_ns, span.last_ns));
            self.times_ns = Some((first.min(span.first_ns), last.max(span.last_ns)));
        }
    }
}

/// Path of a segment in a store.
fn segment_path(number: u64) -> Rc<str> {
    format!("segments/{number:010}.pcapng").into()
}

impl<'a, S: Statements> StreamVerifier<'a, S> {
    /// Verifier of a store. `memory` bounds the table of open connections in bytes.
    pub fn new(
        (trust, signatures): (&'a Trust, &'a dyn SignatureVerifier),
        facts: StoreFacts,
        statements: S,
        is_live: bool,
        memory: usize,
    ) -> StreamVerifier<'a, S> {
        let place = Place {
            segment: 0,
            path: "segments".into(),
            proofs: "segments".into(),
            is_first: true,
            has_ended: false,
            is_excused: false,
            is_damaged: false,
            seq: 1,
            time_ns: 0,
        };
        StreamVerifier {
            facts,
            is_live,
            statements,
            log: LogView::new(trust, signatures),
            findings: Findings::default(),
            checked: Checked::default(),
            connections: Connections::new((memory / CONNECTION_BYTES).max(1024)),
            chain: Chain::default(),
            batch: None,
            receipts: Receipts::default(),
            place,
            run: Run::default(),
            gaps: VecDeque::new(),
            deletions: BTreeMap::new(),
            holds: Holds::default(),
            deleting: None,
            stamps: Stamps::default(),
            is_exhausted: false,
        }
    }

    /// The findings so far, for faults of files that the caller sees.
    pub fn findings(&mut self) -> &mut Findings {
        &mut self.findings
    }

    /// Whether more connections were open than memory allows. The result is void then.
    pub fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// The next segment. Numbers ascend; those between are missing.
    pub fn begin_segment(&mut self, number: u64) {
        let missing = self.place.segment + 1..number;
        if let Some(first) = missing.clone().next() {
            let last = number - 1;
            let detail = match missing.count() {
                1 => "the segment is missing, and no logged deletion declares it".to_owned(),
                count => {
                    format!("{count} segments up to {last} are missing, and no logged deletion declares it")
                }
            };
            self.end_segment();
            self.findings.add(FindingKind::Missing, &segment_path(first), None, detail);
            self.place.is_damaged = true;
            self.on_hole();
        }
        self.end_segment();
        self.place.segment = number;
        self.place.path = segment_path(number);
        self.place.proofs = format!("segments/{number:010}.proofs").into();
        self.place.is_first = true;
        self.place.has_ended = false;
        self.place.is_damaged = false;
    }

    /// Receipts of the segment that no batch took are misplaced, unless their records are missing.
    fn end_segment(&mut self) {
        if self.place.is_damaged {
            return;
        }
        for receipt in std::mem::take(&mut self.receipts.waiting) {
            let batch = receipt.statement.batch;
            if receipt.path == self.place.proofs {
                let detail = format!("receipt of batch {batch}: its first record is not in this segment");
                self.findings.add(FindingKind::Receipt, &receipt.path, Some(receipt.offset), detail);
            }
        }
    }

    /// The file of receipts, or its rest, is no sequence of frames.
    pub fn on_receipt_fault(&mut self, offset: u64, detail: &str) {
        let path = self.place.proofs.clone();
        self.findings.add(FindingKind::Receipt, &path, Some(offset), detail);
    }

    /// Content of a file of the outbox: the receipt of a deletion or of a hold. All of them come before the segments.
    pub fn on_event_receipt(&mut self, content: &[u8], path: &str) {
        let path: Rc<str> = path.into();
        let fault = |findings: &mut Findings, error: &dyn std::fmt::Display| {
            findings.add(FindingKind::Receipt, &path, None, error);
        };
        let Some(EventReceipt { entry, proof }) = EventReceipt::decode(content) else {
            return fault(&mut self.findings, &"the file is no receipt");
        };
        let (receipt, event) = match (Receipt::parse(proof), Entry::decode(entry)) {
            (Ok(receipt), Ok(Entry::Event(_, event))) => (receipt, event),
            (Err(error), _) => return fault(&mut self.findings, &error),
            (_, Err(error)) => return fault(&mut self.findings, &error),
            (_, Ok(_)) => return fault(&mut self.findings, &"receipt of another kind of entry"),
        };
        if !self.log.accept_receipt(&receipt, leaf_hash(&[entry]), (&path, 0), &mut self.findings) {
            return;
        }
        if let LogEvent::Hold(hold) = &event
            && hold.recorder == self.facts.recorder
        {
            self.holds.record(receipt.index, hold);
        }
        if let LogEvent::Deletion(deletion) = event {
            if *path != format!("outbox/deletion-{:010}.receipt", deletion.segment) {
                fault(&mut self.findings, &"receipt of another segment's deletion");
            }
            self.deletions.insert(deletion.segment, (receipt.index, deletion));
        }
    }

    /// Files of a time stamp. All of them come before the segments.
    pub fn on_stamp(&mut self, files: &StampFiles<'_>, tokens: Option<&dyn TokenVerifier>) {
        self.stamps.on_stamp(files, tokens, &mut self.log, &mut self.findings);
    }

    /// A frame of the segment's receipts, behind its length.
    pub fn on_receipt(&mut self, bytes: &[u8], offset: u64) {
        let path = self.place.proofs.clone();
        let Some(ReceiptFrame { statement, proof }) = ReceiptFrame::decode(bytes) else {
            return self.on_receipt_fault(offset, "frame is no receipt");
        };
        let leaf = leaf_hash(&[statement]);
        let (receipt, statement) = match (Receipt::parse(proof), Statement::decode(statement)) {
            (Ok(receipt), Ok(statement)) => (receipt, statement),
            (Err(error), _) => return self.on_receipt_fault(offset, &error.to_string()),
            (_, Err(error)) => return self.on_receipt_fault(offset, &error.to_string()),
        };
        if self.log.accept_receipt(&receipt, leaf, (&path, offset), &mut self.findings) {
            self.on_statement(statement, receipt.index, (path, offset));
        }
    }

    /// A statement that the log has at this index.
    fn on_statement(&mut self, statement: Statement, index: u64, (path, offset): (Rc<str>, u64)) {
        let batch = statement.batch;
        if statement.recorder != self.facts.recorder {
            return self.on_receipt_fault(offset, "receipt of another Recorder than store.json");
        }
        if batch <= self.receipts.batch || batch <= self.chain.batch {
            return self.on_receipt_fault(offset, &format!("receipt of batch {batch} is out of order"));
        }
        if self.receipts.index.is_some_and(|before| before >= index) {
            return self
                .on_receipt_fault(offset, &format!("batch {batch} is logged before the batch before it"));
        }
        self.receipts.batch = batch;
        self.receipts.index = Some(index);
        self.receipts.waiting.push_back(Received { statement, path, offset });
    }

    /// The segment's file is missing, and no deletion declares it.
    pub fn on_missing(&mut self) {
        let path = self.place.path.clone();
        let detail = "the segment is missing, and no logged deletion declares it";
        self.findings.add(FindingKind::Missing, &path, None, detail);
        self.place.is_damaged = true;
        self.on_hole();
    }

    /// The segment is deleted, and this is the content of its declaration. The outbox has the logged entry.
    pub fn on_deleted(&mut self, content: &[u8], path: &str) {
        let path: Rc<str> = path.into();
        self.place.is_damaged = true;
        let logged = self.deletions.remove(&self.place.segment);
        let fault = match (deletion::from_json(content), &logged) {
            (None, _) => "the file declares no deletion",
            (_, None) => "the outbox has no receipt of this deletion",
            (Some(declared), Some((_, logged))) if declared != *logged => "the log has another deletion",
            (Some(declared), _) if declared.recorder != self.facts.recorder => "deletion of another Recorder",
            (Some(declared), _) if declared.segment != self.place.segment => "deletion of another segment",
            _ => "",
        };
        let Some((index, deletion)) = logged.filter(|_| fault.is_empty()) else {
            self.findings.add(FindingKind::Missing, &path, None, fault);
            return self.on_hole();
        };
        self.checked.deleted_segments += 1;
        let is_next = deletion.first_seq == self.place.seq || self.place.is_excused;
        if !is_next || deletion.last_seq < deletion.first_seq {
            let detail = "the deleted records do not follow the records before";
            self.findings.add(FindingKind::Sequence, &path, None, detail);
        }
        self.on_hole();
        self.place.is_excused = false;
        self.place.seq = deletion.last_seq.saturating_add(1);
        let (first_seq, last_seq) = (deletion.first_seq, deletion.last_seq);
        self.deleting = Some(Deleting { first_seq, last_seq, times_ns: None });
        self.skip_batches(self.place.seq);
        if let Some(times_ns) = self.deleting.take().and_then(|deleting| deleting.times_ns) {
            self.check_holds(index, times_ns, &path);
        }
    }

    /// Finds the holds that the deletion at this place of the log violated.
    fn check_holds(&mut self, index: u64, times_ns: (u64, u64), path: &str) {
        let violation = self.holds.violated(index, times_ns);
        if let Some(hold) = violation.hold {
            let detail = format!("the segment was deleted while hold {hold} covered it");
            self.findings.add(FindingKind::Held, path, None, detail);
        }
        if let Some(hold) = violation.unchecked {
            let detail = format!("hold {hold} has a query: it may have covered deleted connections");
            self.findings.warn(FindingKind::Unchecked, path, detail);
        }
    }

    /// Bytes of the segment that are no records, or its end within a block.
    pub fn on_segment_fault(&mut self, offset: u64, is_torn: bool, is_last: bool, detail: &str) {
        if is_torn && is_last {
            if !self.is_live {
                let path = self.place.path.clone();
                self.findings.add(FindingKind::TornTail, &path, Some(offset), detail);
            }
            return;
        }
        let path = self.place.path.clone();
        self.findings.add(FindingKind::Segment, &path, Some(offset), detail);
        self.place.is_damaged = true;
        self.on_hole();
    }

    /// Records are missing here; a finding or a declared deletion states it.
    fn on_hole(&mut self) {
        self.place.is_excused = true;
        self.run.is_known = false;
        self.connections.on_hole();
    }

    /// The segment has no more records.
    pub fn finish_segment(&mut self) {
        self.checked.segments += 1;
    }

    /// Records of the segment in order.
    pub fn on_records(&mut self, records: &[RecordDigest]) {
        for record in records {
            self.on_record(record);
        }
    }

    fn on_record(&mut self, record: &RecordDigest) {
        self.checked.records += 1;
        if record.seq < self.place.seq {
            let detail = format!("record {} follows record {}", record.seq, self.place.seq - 1);
            self.add_here(FindingKind::Sequence, record.offset, detail);
            self.run.is_known = false;
            return;
        }
        if record.seq > self.place.seq {
            self.on_jump(record);
        }
        self.place.is_excused = false;
        self.place.is_first = false;
        self.place.seq = record.seq.saturating_add(1);
        self.on_event(record);
        self.add_to_batch(record);
    }

    fn add_here(&mut self, kind: FindingKind, offset: u64, detail: String) {
        let path = self.place.path.clone();
        self.findings.add(kind, &path, Some(offset), detail);
    }

    /// A record with a higher number than the next one.
    fn on_jump(&mut self, record: &RecordDigest) {
        if !self.place.is_excused {
            let next = self.place.seq;
            let detail = format!("records {next} to {} are missing", record.seq - 1);
            if self.place.is_first && self.place.segment > 1 {
                let before = segment_path(self.place.segment - 1);
                self.findings.add(
                    FindingKind::Sequence,
                    &before,
                    None,
                    format!("records from {next} on are missing at its end"),
                );
            }
            self.add_here(FindingKind::Sequence, record.offset, detail);
            self.on_hole();
        }
        self.skip_batches(record.seq);
    }

    fn on_event(&mut self, record: &RecordDigest) {
        match &record.event {
            Event::Packet { time_ns, connection, packet_seq, bytes } => {
                self.checked.packets += 1;
                self.checked.packet_bytes += u64::from(*bytes);
                self.run.written += 1;
                self.on_time(record.offset, *time_ns);
                if *connection != 0 {
                    let result = self.connections.on_packet(*connection, *packet_seq);
                    self.on_connection(record.offset, *connection, *packet_seq, result);
                }
            }
            Event::Gap(gap) => {
                if gap.reason != GapReason::Feed {
                    let lost = &mut self.checked.declared_lost;
                    *lost = lost.saturating_add(gap.count);
                }
                let lost = self.checked.lost.entry(gap.reason.name()).or_default();
                *lost = lost.saturating_add(gap.count);
                if self.gaps.len() == GAPS_MAX {
                    self.gaps.pop_front();
                }
                self.gaps.push_back((gap.from_ns, gap.to_ns));
            }
            Event::Final(last) => self.on_final(record.offset, last),
            Event::Start => {
                self.connections.on_start();
                self.run = Run { is_known: true, written: 0 };
            }
            Event::Begin(begin) => self.on_begin(record.offset, begin.as_deref()),
            Event::End => self.place.has_ended = true,
            Event::Stop | Event::Other => {}
        }
    }

    fn on_time(&mut self, offset: u64, time_ns: u64) {
        if self.checked.packets == 1 {
            self.checked.first_ns = time_ns;
        }
        self.checked.last_ns = time_ns;
        if time_ns.saturating_add(TIME_BACK_NS) < self.place.time_ns {
            let path = self.place.path.clone();
            let back_ms = (self.place.time_ns - time_ns) / 1_000_000;
            let detail = format!("time goes back by {back_ms} ms at byte {offset}");
            self.findings.add_once(FindingKind::Time, &path, detail);
        }
        self.place.time_ns = self.place.time_ns.max(time_ns);
    }

    fn on_connection(&mut self, offset: u64, connection: u64, packet_seq: u64, result: Result<(), Break>) {
        match result {
            Ok(()) => {}
            Err(Break::Hole { after }) => {
                let detail = format!("connection {connection}: packet {packet_seq} follows {after}");
                self.add_here(FindingKind::Connection, offset, detail);
            }
            Err(Break::Memory) => self.is_exhausted = true,
        }
    }

    fn on_final(&mut self, offset: u64, last: &Final) {
        self.checked.connections += 1;
        if let Err(Break::Hole { after }) = self.connections.on_final(last.connection, last.packets) {
            let detail = format!(
                "connection {}: its last record counts {} packets, {after} were recorded",
                last.connection, last.packets
            );
            self.add_here(FindingKind::Connection, offset, detail);
        }
        let is_explained = |gap: &(u64, u64)| gap.0 <= last.last_ns && gap.1 >= last.first_ns;
        if last.holes > 0 && !self.gaps.iter().rev().any(is_explained) {
            self.checked.unexplained = self.checked.unexplained.saturating_add(last.holes);
        }
    }

    fn on_begin(&mut self, offset: u64, begin: Option<&SegmentBegin>) {
        let recorder: String = self.facts.recorder.iter().map(|byte| format!("{byte:02x}")).collect();
        let Some(begin) = begin else { return };
        if begin.segment != self.place.segment {
            let detail = format!("its first record is that of segment {}", begin.segment);
            self.add_here(FindingKind::Segment, offset, detail);
        }
        if begin.recorder != recorder {
            self.add_here(FindingKind::Segment, offset, "it is of another Recorder than store.json".into());
            let detail = "the Recorder's id differs from the one in the segments";
            self.findings.add_once(FindingKind::Description, "store.json", detail);
        }
    }
}
