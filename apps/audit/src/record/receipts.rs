//! Receipts of the Master beside the segments: `NNNNNNNNNN.proofs`.
//!
//! Each is { u32 length, u8 kind 1, statement as logged, text of the tlog-proof }. A torn receipt at the end is cut;
//! the Master gives it again.

use crate::cli::Failure;
use crate::store::Store;
use evergate_evidence::cursor::Cursor;
use evergate_evidence::statement::{STATEMENT_BYTES, Statement};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

const KIND: u8 = 1;
/// Longest receipt in bytes.
const RECEIPT_BYTES_MAX: usize = 1 << 17;

/// File of the receipts that come in.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    open: Option<(u64, File)>,
}

impl Receipts {
    /// Appends the receipt of a batch that begins in this segment.
    pub(crate) fn append(
        &mut self,
        store: &Store,
        segment: u64,
        logged: &Statement,
        proof: &[u8],
    ) -> io::Result<()> {
        if self.open.as_ref().is_none_or(|(number, _)| *number != segment) {
            if let Some((_, file)) = self.open.take() {
                file.sync_data()?;
            }
            self.open =
                Some((segment, File::options().create(true).append(true).open(store.proofs(segment))?));
        }
        let mut bytes = Vec::with_capacity(5 + STATEMENT_BYTES + proof.len());
        bytes.extend_from_slice(&((1 + STATEMENT_BYTES + proof.len()) as u32).to_be_bytes());
        bytes.push(KIND);
        bytes.extend_from_slice(&logged.encode());
        bytes.extend_from_slice(proof);
        let Some((_, file)) = &mut self.open else { return Ok(()) };
        file.write_all(&bytes)
    }
}

/// Highest batch with a receipt in the store; 0 without one. Torn receipts are cut.
pub(crate) fn last_acknowledged(store: &Store) -> Result<u64, Failure> {
    let segments =
        store.segments().map_err(|error| Failure::wrong(format!("store: cannot list segments: {error}")))?;
    for segment in segments.iter().rev() {
        let path = store.proofs(segment.number);
        let last = last_in(&path).map_err(|error| {
            Failure::wrong(format!(
                "store: cannot read {}: {error}; run `evergate-audit verify`",
                path.display()
            ))
        })?;
        if let Some(batch) = last {
            return Ok(batch);
        }
    }
    Ok(0)
}

fn last_in(path: &Path) -> io::Result<Option<u64>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (mut cursor, mut last, mut whole) = (Cursor::new(&bytes), None, 0);
    while let Some((batch, length)) = read(&mut cursor) {
        last = Some(batch);
        whole += length;
    }
    if whole < bytes.len() {
        File::options().write(true).open(path)?.set_len(whole as u64)?;
    }
    Ok(last)
}

/// Batch and length of the receipt at the cursor; `None` if it is torn.
fn read(cursor: &mut Cursor<'_>) -> Option<(u64, usize)> {
    let length = cursor.u32().ok()? as usize;
    if length > RECEIPT_BYTES_MAX {
        return None;
    }
    let receipt = cursor.bytes(length).ok()?;
    let (&[KIND], rest) = receipt.split_first_chunk::<1>()? else { return None };
    let statement = Statement::decode(rest.get(..STATEMENT_BYTES)?).ok()?;
    Some((statement.batch, 4 + length))
}
