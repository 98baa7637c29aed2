//! Test points of the Recorder and of `expire`: durable steps at which a crash test ends the process.

/// A durable step that was just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes of a batch are in its segment, in the page cache.
    SegmentWritten,
    /// Segments are on disk.
    SegmentsSynced,
    /// Statements are in the page cache.
    StatementsWritten,
    /// Statements are on disk.
    StatementsSynced,
    /// The newest checkpoint is stored, and no receipt that needs it.
    CheckpointStored,
    /// A receipt is stored.
    ReceiptStored,
    /// Rows of the index are committed.
    IndexCommitted,
    /// An entry is in the outbox.
    EntryPut,
    /// The receipt of an entry is stored, and the entry is in the outbox too.
    EntryAcknowledged,
    /// The deletion of a segment is stated.
    DeletionStated,
    /// The segment is removed.
    SegmentRemoved,
}

impl Step {
    /// Steps of a Recorder that records.
    pub const RECORD: [Step; 7] = [
        Step::SegmentWritten,
        Step::SegmentsSynced,
        Step::StatementsWritten,
        Step::StatementsSynced,
        Step::CheckpointStored,
        Step::ReceiptStored,
        Step::IndexCommitted,
    ];
    /// Steps of a deletion.
    pub const DELETE: [Step; 3] = [Step::DeletionStated, Step::EntryPut, Step::SegmentRemoved];

    /// Name in the environment variable.
    pub fn name(self) -> &'static str {
        match self {
            Step::SegmentWritten => "segment_written",
            Step::SegmentsSynced => "segments_synced",
            Step::StatementsWritten => "statements_written",
            Step::StatementsSynced => "statements_synced",
            Step::CheckpointStored => "checkpoint_stored",
            Step::ReceiptStored => "receipt_stored",
            Step::IndexCommitted => "index_committed",
            Step::EntryPut => "entry_put",
            Step::EntryAcknowledged => "entry_acknowledged",
            Step::DeletionStated => "deletion_stated",
            Step::SegmentRemoved => "segment_removed",
        }
    }
}

/// Ends the process if the environment asks for it.
pub(crate) fn reached(step: Step) {
    evergate_test_points::reached(step.name());
}
