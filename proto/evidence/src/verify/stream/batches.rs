//! Batches of a store: each statement against its records and its receipt.

use super::{StreamVerifier, segment_path};
use crate::merkle::Tree;
use crate::statement::{STATEMENT_BYTES, Statement};
use crate::verify::Statements;
use crate::verify::digest::{Event, RecordDigest};
use crate::verify::finding::FindingKind;
use crate::verify::statements::STATEMENTS;

/// Most segments that a finding about one batch names.
const SEGMENTS_NAMED_MAX: u64 = 16;

/// The batch that records are added to.
pub(super) struct Batch {
    pub(super) statement: Statement,
    tree: Tree,
    packets: u64,
    packet_bytes: u64,
    /// Lowest and highest time of its packets.
    times_ns: Option<(u64, u64)>,
    /// Whether records are missing or do not fit. A finding names the reason, or a deletion is declared.
    is_tainted: bool,
    /// Segment of its first record.
    segment: u64,
    has_start: bool,
    /// Whether the last record is a stop, or follows one.
    is_stopped: bool,
}

impl<S: Statements> StreamVerifier<'_, S> {
    /// Closes the batches that end before a record.
    pub(super) fn skip_batches(&mut self, seq: u64) {
        loop {
            match &mut self.batch {
                Some(batch) if batch.statement.span.last_seq < seq => {
                    if let Some(deleting) = &mut self.deleting {
                        deleting.on_batch(&batch.statement.span);
                    }
                    self.close_batch();
                }
                Some(batch) => {
                    batch.is_tainted |= batch.next_seq() < seq;
                    return;
                }
                // The receipt of a batch that begins at the record is not read yet.
                None if self.chain.covers(seq) => return,
                None => {
                    if !self.open_batch() {
                        return;
                    }
                }
            }
        }
    }

    /// Adds the record to the batch that covers it.
    pub(super) fn add_to_batch(&mut self, record: &RecordDigest) {
        loop {
            match &mut self.batch {
                None => {
                    if !self.open_batch() {
                        self.checked.unsigned += 1;
                        return;
                    }
                }
                Some(batch) if record.seq > batch.statement.span.last_seq => self.close_batch(),
                Some(batch) => {
                    if record.seq < batch.statement.span.first_seq {
                        let detail = format!("no statement covers record {}", record.seq);
                        self.findings.add_once(FindingKind::Statement, STATEMENTS, detail);
                    } else {
                        batch.add(record);
                    }
                    break;
                }
            }
        }
        // A whole batch is closed at once: the run's counts are those of its last record.
        if self.batch.as_ref().is_some_and(|batch| record.seq == batch.statement.span.last_seq) {
            self.close_batch();
        }
    }

    /// Opens the next batch; `false` without a further statement.
    fn open_batch(&mut self) -> bool {
        loop {
            let number = self.chain.batch + 1;
            while self.receipts.waiting.front().is_some_and(|receipt| receipt.statement.batch < number) {
                self.receipts.waiting.pop_front();
            }
            let is_ours =
                self.receipts.waiting.front().is_some_and(|receipt| receipt.statement.batch == number);
            let received = if is_ours { self.receipts.waiting.pop_front() } else { None };
            let stored = self.statements.next();
            let Ok(statement) = self.chain.next(stored, received.as_ref(), &mut self.findings) else {
                return false;
            };
            self.note_receipt(number, received.is_some());
            let Some(statement) = statement else { continue };
            self.chain.follow(&statement, received.as_ref(), &self.facts, &mut self.findings);
            self.batch = Some(Batch {
                statement,
                tree: Tree::new(),
                packets: 0,
                packet_bytes: 0,
                times_ns: None,
                is_tainted: false,
                segment: self.place.segment,
                has_start: false,
                is_stopped: false,
            });
            return true;
        }
    }

    /// Counts a batch with or without a receipt. One without is missing as soon as a later one has it.
    fn note_receipt(&mut self, batch: u64, is_received: bool) {
        if !is_received {
            let proofs = &self.place.proofs;
            self.checked.unacknowledged += 1;
            self.receipts.missing.get_or_insert_with(|| (batch, proofs.clone()));
            return;
        }
        self.checked.acknowledged += 1;
        if let Some((first, path)) = self.receipts.missing.take() {
            let detail = format!("no receipt of batches {first} to {}; batch {batch} has one", batch - 1);
            self.findings.add(FindingKind::Receipt, &path, None, detail);
            self.checked.unacknowledged = 0;
        }
    }

    fn close_batch(&mut self) {
        let Some(batch) = self.batch.take() else { return };
        let Statement { span, root, .. } = &batch.statement;
        let is_whole = Some(batch.next_seq()) == span.last_seq.checked_add(1);
        if is_whole && !batch.is_tainted {
            match batch.tree.root() == *root {
                true => self.checked.batches += 1,
                false => self.add_root(&batch),
            }
            if batch.tree.root() == *root {
                self.check_counts(&batch);
            }
        }
        let is_new_run =
            batch.has_start || batch.is_tainted || batch.is_recovered() || !is_whole || !self.run.is_known;
        self.chain.check_counters(batch.statement, is_new_run, &mut self.findings);
    }

    /// The records of the batch lead to another root: one of its segments was changed.
    fn add_root(&mut self, batch: &Batch) {
        let last = self.place.segment.max(batch.segment);
        for segment in batch.segment..=last.min(batch.segment + SEGMENTS_NAMED_MAX) {
            let (number, span) = (batch.statement.batch, &batch.statement.span);
            let detail = format!(
                "records {} to {}, or their statement, were changed: the root of batch {number} differs",
                span.first_seq, span.last_seq
            );
            self.findings.add(FindingKind::Root, &segment_path(segment), None, detail);
        }
    }

    /// Compares the counts and times of the batch with its statement.
    fn check_counts(&mut self, batch: &Batch) {
        let Statement { span, counters, .. } = &batch.statement;
        let mut faults = Vec::new();
        if (batch.packets, batch.packet_bytes) != (batch.statement.packets, batch.statement.packet_bytes) {
            faults.push("its packets or their bytes");
        }
        if batch.times_ns.is_some_and(|(first, last)| first < span.first_ns || last > span.last_ns) {
            faults.push("the times of its packets");
        }
        if self.run.is_known && !batch.is_recovered() && self.run.written != counters.written {
            faults.push("the packets written since the start");
        }
        if batch.is_stopped && counters.seen != counters.written.saturating_add(counters.dropped) {
            faults.push("the packets seen, written and dropped at the stop");
        }
        for fault in faults {
            let number = batch.statement.batch;
            let offset = number.saturating_sub(1).saturating_mul(STATEMENT_BYTES as u64);
            let detail = format!("batch {number}: {fault} differ from the statement");
            self.findings.add(FindingKind::Counters, STATEMENTS, Some(offset), detail);
        }
    }
}

impl Batch {
    /// Whether the next run closed it, before its own start: records that a crash left without a statement.
    fn is_recovered(&self) -> bool {
        let counters = &self.statement.counters;
        !self.has_start && counters.seen == 0 && counters.written == 0
    }

    /// Number of the record that it lacks next.
    fn next_seq(&self) -> u64 {
        self.statement.span.first_seq.saturating_add(self.tree.size())
    }

    fn add(&mut self, record: &RecordDigest) {
        self.is_tainted |= record.seq != self.next_seq();
        if self.is_tainted {
            return;
        }
        self.tree.push(record.leaf);
        match record.event {
            Event::Packet { time_ns, bytes, .. } => {
                self.packets += 1;
                self.packet_bytes += u64::from(bytes);
                let (first, last) = self.times_ns.unwrap_or((time_ns, time_ns));
                self.times_ns = Some((first.min(time_ns), last.max(time_ns)));
                self.is_stopped = false;
            }
            Event::Start => (self.has_start, self.is_stopped) = (true, false),
            Event::Stop => self.is_stopped = true,
            _ => {}
        }
    }
}
