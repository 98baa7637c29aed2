//! Reader of a store's `statements`: 212 bytes for each batch, batch `n` at `(n - 1) * 212`.
//!
//! The index needs the numbers of a batch only. `verify` decodes the whole statement and checks it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of a statement.
pub(crate) const STATEMENT_BYTES: u64 = 212;

/// File of all statements.
#[derive(Debug)]
pub(crate) struct StatementFile {
    file: Option<File>,
    count: u64,
}

/// Numbers of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatementHead {
    /// Number of the batch.
    pub(crate) batch: u64,
    /// `seq` of the first record.
    pub(crate) first_seq: u64,
    /// `seq` of the last record.
    pub(crate) last_seq: u64,
    /// Time of the first record in nanoseconds since 1970.
    pub(crate) first_ns: u64,
    /// Time of the last record in nanoseconds since 1970.
    pub(crate) last_ns: u64,
}

impl StatementHead {
    /// The numbers of a statement.
    pub(crate) fn of(statement: &[u8; STATEMENT_BYTES as usize]) -> StatementHead {
        let at = |offset: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&statement[offset..offset + 8]);
            u64::from_be_bytes(bytes)
        };
        StatementHead {
            batch: at(44),
            first_seq: at(52),
            last_seq: at(60),
            first_ns: at(68),
            last_ns: at(76),
        }
    }
}

impl StatementFile {
    /// Opens the file. A store without one has no statements. A torn statement at the end does not count.
    pub(crate) fn open(path: &Path) -> io::Result<StatementFile> {
        match File::open(path) {
            Ok(file) => {
                let count = file.metadata()?.len() / STATEMENT_BYTES;
                Ok(StatementFile { file: Some(file), count })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(StatementFile { file: None, count: 0 }),
            Err(error) => Err(error),
        }
    }

    /// Number of statements.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The numbers of the statement at this place: 0, 1, …
    pub(crate) fn read(&self, place: u64) -> io::Result<StatementHead> {
        let file = self.file.as_ref().ok_or(ErrorKind::NotFound)?;
        let mut statement = [0; STATEMENT_BYTES as usize];
        file.read_exact_at(&mut statement, place * STATEMENT_BYTES)?;
        Ok(StatementHead::of(&statement))
    }

    /// Place of the first statement whose first record is `seq` or later.
    pub(crate) fn first_from(&self, seq: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.read(middle)?.first_seq < seq {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
