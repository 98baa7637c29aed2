//! Reader of a segment's `.proofs`: frames of { u32 length of the rest, u8 kind, content }.
//!
//! Kind 1 is the receipt of a batch: statement of 212 bytes, text of the tlog-proof. Kind 2 is the receipt of the
//! segment's deletion. The index needs batch and log index only. `verify` checks the proof itself.

use evergate_evidence::statement::Statement;
use evergate_evidence::verify::{RECEIPT_BYTES_MAX, ReceiptFrame};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Kind and content.
    pub(crate) content: Vec<u8>,
    /// Place of its length field in the file.
    pub(crate) offset: u64,
    /// Place behind it.
    pub(crate) end: u64,
}

/// Receipt of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// Statement over the batch, as logged.
    pub(crate) statement: Statement,
    /// Index of the statement in the Master's log.
    pub(crate) log_index: u64,
    /// Place of its length field in the file.
    pub(crate) offset: u64,
    /// Place behind it.
    pub(crate) end: u64,
}

/// Receipts of a file, in order.
#[derive(Debug)]
pub(crate) struct ReceiptFile {
    file: Option<BufReader<File>>,
    offset: u64,
}

impl ReceiptFile {
    /// Opens the file. A segment without one has no receipts.
    pub(crate) fn open(path: &Path) -> io::Result<ReceiptFile> {
        match File::open(path) {
            Ok(file) => Ok(ReceiptFile { file: Some(BufReader::new(file)), offset: 0 }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(ReceiptFile { file: None, offset: 0 }),
            Err(error) => Err(error),
        }
    }

    /// The next frame; `None` at the end, and at a torn or damaged frame: `verify` finds it.
    pub(crate) fn read_frame(&mut self) -> io::Result<Option<Frame>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        let mut length = [0; 4];
        if !read_whole(file, &mut length)? {
            return Ok(None);
        }
        let length = u32::from_be_bytes(length) as usize;
        if !(1..=RECEIPT_BYTES_MAX).contains(&length) {
            return Ok(None);
        }
        let mut content = vec![0; length];
        if !read_whole(file, &mut content)? {
            return Ok(None);
        }
        let offset = self.offset;
        self.offset += 4 + length as u64;
        Ok(Some(Frame { content, offset, end: self.offset }))
    }

    /// The next receipt of a batch; `None` at the end, and at a torn or damaged frame.
    pub(crate) fn read(&mut self) -> io::Result<Option<Receipt>> {
        let Some(Frame { content, offset, end }) = self.read_frame()? else { return Ok(None) };
        let Some(ReceiptFrame { statement, proof }) = ReceiptFrame::decode(&content) else { return Ok(None) };
        let receipt = Statement::decode(statement).ok().zip(log_index(proof));
        Ok(receipt.map(|(statement, log_index)| Receipt { statement, log_index, offset, end }))
    }
}

/// Fills the buffer; false at the end of the file.
fn read_whole(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Index in the text of a tlog-proof: its line `index N`.
fn log_index(proof: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(proof).ok()?;
    text.lines().take(8).find_map(|line| line.strip_prefix("index ")?.parse().ok())
}
