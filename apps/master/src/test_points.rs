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
            Step::JournalRotated => "journal_rotated",
        }
    }
}

/// Ends the process if the environment asks for it.
#[cfg(feature = "test-points")]
pub fn reached(step: Step) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static ASKED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let asked = ASKED.get_or_init(|| {
        let text = std::env::var("EVERGATE_TEST_ABORT").ok()?;
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), count.parse().ok()?))
    });
    if let Some((name, count)) = asked
        && name == step.name()
        && COUNT.fetch_add(1, Ordering::Relaxed) + 1 == *count
    {
        std::process::abort();
    }
}

/// Nothing: test points are compiled out.
#[cfg(not(feature = "test-points"))]
pub fn reached(_: Step) {}
