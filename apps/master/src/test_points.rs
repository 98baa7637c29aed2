//! Test points: with the feature `test-points`, `EVERGATE_TEST_ABORT=NAME[:N]` ends the process when it reaches the
//! durable step NAME for the Nth time. Without the feature they are nothing.

/// A durable step that was just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Entries are in the journal, in the page cache.
    EntryWritten,
    /// Entries are on disk.
    EntriesSynced,
    /// Tiles are written.
    TilesWritten,
    /// The HSM signed.
    Signed,
    /// The new checkpoint is on disk under a temporary name.
    CheckpointWritten,
    /// The new checkpoint has its name.
    CheckpointRenamed,
    /// An answer was sent.
    Answered,
    /// A journal is full.
    JournalFull,
    /// An outer layer is open, and the answer is not sent.
    LayerOpened,
    /// An escrow key is made, and not in the log.
    KeyCreated,
    /// An escrow key is destroyed, and the log does not have it.
    KeyDestroyed,
    /// A full journal was replaced.
    JournalRotated,
}

impl Step {
    /// Name in the environment variable.
    pub fn name(self) -> &'static str {
        match self {
            Step::EntryWritten => "entry_written",
            Step::EntriesSynced => "entries_synced",
            Step::TilesWritten => "tiles_written",
            Step::Signed => "signed",
            Step::CheckpointWritten => "checkpoint_written",
            Step::CheckpointRenamed => "checkpoint_renamed",
            Step::Answered => "answered",
            Step::JournalFull => "journal_full",
            Step::LayerOpened => "layer_opened",
            Step::KeyCreated => "key_created",
            Step::KeyDestroyed => "key_destroyed",
            Step::JournalRotated => "journal_rotated",
        }
    }
}

/// Ends the process if the environment asks for it.
pub fn reached(step: Step) {
    evergate_test_points::reached(step.name());
}
