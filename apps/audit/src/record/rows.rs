//! Rows for the index. A row becomes visible when the statement that covers it is durable; with a Master, when it has
//! its receipt.
//!
//! Bound: [`ROWS_MAX`] rows wait. Beyond it rows are lost, and `index` reads their segments again.

use crate::index::{BatchRow, IndexEvent, IndexWriter, ProofPlace, RecordIndexer};
use evergate_evidence::statement::Statement;
use evergate_recorder::stream::Event;
use std::collections::VecDeque;

const ROWS_MAX: usize = 200_000;

/// Rows of the open batch, derived from the events of the stream.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    indexer: RecordIndexer,
    open: BatchRows,
}

/// Rows of one batch.
#[derive(Debug, Default)]
pub(crate) struct BatchRows {
    rows: Vec<IndexEvent>,
    /// Whether emergency mode deferred rows of the batch.
    is_deferred: bool,
}

impl Rows {
    /// Takes an event. At the end of a batch it answers the batch's rows.
    pub(crate) fn on_event(&mut self, event: &Event) -> Option<BatchRows> {
        let rows = &mut self.open.rows;
        match event {
            Event::SegmentBegins(number) => self.indexer.begin_segment(*number, rows),
            Event::SegmentEnds { bytes } => self.indexer.finish_segment(*bytes, rows),
            Event::Record(record, offset) => self.indexer.on_record(record, *offset, rows),
            Event::Packet(place) => self.indexer.on_packet(*place, rows),
            Event::Unindexed => self.open.is_deferred = true,
            Event::Batch { .. } => return Some(std::mem::take(&mut self.open)),
        }
        None
    }
}

/// Rows that wait for the receipt of their batch.
#[derive(Debug)]
pub(crate) struct HeldRows {
    index: IndexWriter,
    waits_for_receipts: bool,
    held: VecDeque<(BatchRow, BatchRows)>,
    count: usize,
}

impl HeldRows {
    pub(crate) fn new(index: IndexWriter, waits_for_receipts: bool) -> HeldRows {
        HeldRows { index, waits_for_receipts, held: VecDeque::new(), count: 0 }
    }

    /// Rows that the index lacks until it catches up.
    pub(crate) fn lost(&self) -> u64 {
        self.index.lost()
    }

    /// Takes the rows of a batch whose statement is on disk.
    pub(crate) fn on_durable(&mut self, statement: &Statement, rows: BatchRows) {
        let batch = BatchRow {
            batch: statement.batch,
            first_seq: statement.span.first_seq,
            last_seq: statement.span.last_seq,
            first_ns: statement.span.first_ns,
            proof: None,
        };
        if !self.waits_for_receipts {
            self.send(batch, rows);
            return;
        }
        self.count += rows.rows.len();
        self.held.push_back((batch, rows));
        while self.count > ROWS_MAX {
            let Some((_, rows)) = self.held.pop_front() else { break };
            self.count -= rows.rows.len();
            self.index.record_lost();
        }
    }

    /// Takes the receipt of a batch.
    pub(crate) fn on_receipt(&mut self, batch: u64, proof: ProofPlace) {
        while self.held.front().is_some_and(|(row, _)| row.batch <= batch) {
            let Some((row, rows)) = self.held.pop_front() else { break };
            self.count -= rows.rows.len();
            let proof = (row.batch == batch).then_some(proof);
            self.send(BatchRow { proof, ..row }, rows);
        }
    }

    fn send(&self, batch: BatchRow, rows: BatchRows) {
        if rows.is_deferred {
            self.index.record_lost();
        }
        rows.rows.into_iter().for_each(|row| {
            self.index.try_send(row);
        });
        self.index.try_send(IndexEvent::Batch(batch));
        if let Some(failure) = self.index.take_failure() {
            eprintln!("evergate-audit: index: {failure}; rows are missing until `evergate-audit index` runs");
        }
    }
}
