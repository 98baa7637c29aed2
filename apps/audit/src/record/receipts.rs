//! Receipts of the Master beside the segments: `NNNNNNNNNN.proofs`.
//!
//! Each is { u32 length, u8 kind 1, statement as logged, text of the tlog-proof }. A torn receipt at the end is cut;
//! the Master gives it again.

use crate::cli::Failure;
use crate::store::Store;
use evergate_evidence::cursor::Cursor;
use evergate_evidence::statement::Statement;
use evergate_evidence::verify::{RECEIPT_BYTES_MAX, ReceiptFrame};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// File of the receipts that come in.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    open: Option<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    segment: u64,
    file: File,
    bytes: u64,
}

impl Receipts {
    /// Appends the receipt of a batch that begins in this segment; answers its place in the file.
    pub(crate) fn append(
        &mut self,
        store: &Store,
        segment: u64,
        logged: &Statement,
        proof: &[u8],
    ) -> io::Result<Range<u64>> {
        let mut open = match self.open.take() {
            Some(open) if open.segment == segment => open,
            other => {
                if let Some(other) = other {
                    other.file.sync_data()?;
                }
                let file = File::options().create(true).append(true).open(store.proofs(segment))?;
                let bytes = file.metadata()?.len();
                OpenFile { segment, file, bytes }
            }
        };
        let mut bytes = Vec::new();
        ReceiptFrame { statement: &logged.encode(), proof }.encode(&mut bytes);
        open.file.write_all(&bytes)?;
        let start = open.bytes;
        open.bytes += bytes.len() as u64;
        let place = start..open.bytes;
        self.open = Some(open);
        Ok(place)
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
    let frame = ReceiptFrame::decode(cursor.bytes(length).ok()?)?;
    Some((Statement::decode(frame.statement).ok()?.batch, 4 + length))
}
