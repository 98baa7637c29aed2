//! Reader of a store's `statements`: 212 bytes for each batch, batch `n` at `(n - 1) * 212`.

use evergate_evidence::statement::{STATEMENT_BYTES, Statement};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// File of all statements.
#[derive(Debug)]
pub(crate) struct StatementFile {
    file: Option<File>,
    count: u64,
}

impl StatementFile {
    /// Opens the file. A store without one has no statements. A torn statement at the end does not count.
    pub(crate) fn open(path: &Path) -> io::Result<StatementFile> {
        match File::open(path) {
            Ok(file) => {
                let count = file.metadata()?.len() / STATEMENT_BYTES as u64;
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

    /// The statement at this place: 0, 1, …
    pub(crate) fn read(&self, place: u64) -> io::Result<Statement> {
        let file = self.file.as_ref().ok_or(ErrorKind::NotFound)?;
        let mut bytes = [0; STATEMENT_BYTES];
        file.read_exact_at(&mut bytes, place * STATEMENT_BYTES as u64)?;
        Statement::decode(&bytes).map_err(|error| {
            let text = format!("statement {}: {error:?}; run `evergate-audit verify`", place + 1);
            io::Error::new(ErrorKind::InvalidData, text)
        })
    }

    /// Place of the first statement whose first record is `seq` or later.
    pub(crate) fn first_from(&self, seq: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.read(middle)?.span.first_seq < seq {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
