//! Index of a store: SQLite files that `find` reads. It is derived from segments and never evidence.
//!
//! `index/DAY.sqlite` has the connections, envelopes, extents, requests and batches of one day in UTC;
//! `index/segments.sqlite` has one row for each segment, and whether its rows are complete. Rows are upserts, so a
//! segment may be indexed again at any time. A store has one Recorder, so no row repeats its id.

pub mod command;
mod day;
mod day_files;
mod days;
mod derive;
mod rebuild;
pub(crate) mod receipts;
mod rows;
mod schema;
mod segments;
mod statements;
mod writer;

pub use day::DayFile;
pub use derive::RecordIndexer;
pub use rebuild::{Indexed, catch_up, rebuild};
pub use rows::{BatchRow, EnvelopeRow, IndexEvent, ProofPlace, RecordPlace, RequestRow, SegmentRow, text_of};
pub use segments::{IndexedSegment, SegmentTable};
pub use writer::IndexWriter;

pub(crate) use day::{int, reversed, unsigned};
pub(crate) use days::{Day, day_path, days, days_in};
pub(crate) use statements::StatementFile;

use std::path::{Path, PathBuf};

/// Error in a file of the index.
#[derive(Clone, Debug, thiserror::Error)]
#[error("index: {}: {reason}", path.display())]
pub struct IndexError {
    /// The file.
    pub path: PathBuf,
    /// Reason, and what to do.
    pub reason: String,
}

impl IndexError {
    pub(crate) fn new(path: &Path, reason: impl std::fmt::Display) -> IndexError {
        IndexError { path: path.to_owned(), reason: reason.to_string() }
    }

    /// An error of SQLite: damage to a derived file is repaired by a rebuild.
    pub(crate) fn sqlite(path: &Path, error: &rusqlite::Error) -> IndexError {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseCorrupt, DatabaseLocked, NotADatabase};
        let advice = match error.sqlite_error_code() {
            Some(NotADatabase | DatabaseCorrupt) => "; run `evergate-audit index DIR --rebuild`",
            Some(DatabaseBusy | DatabaseLocked) => "; another process writes to it, try again",
            _ => "",
        };
        IndexError::new(path, format!("{error}{advice}"))
    }
}

/// Opens the file of a day for reading.
pub(crate) fn open_day(path: &Path) -> Result<rusqlite::Connection, IndexError> {
    schema::open_to_read(path, schema::DAY)
}

/// Opens the file of a day for writing.
#[cfg(feature = "cold")]
pub(crate) fn open_day_to_write(path: &Path) -> Result<rusqlite::Connection, IndexError> {
    schema::open_to_write(path, schema::DAY)
}

impl From<IndexError> for crate::cli::Failure {
    fn from(error: IndexError) -> crate::cli::Failure {
        crate::cli::Failure::wrong(error.to_string())
    }
}
