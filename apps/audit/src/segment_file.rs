//! Reader of a segment's file in bounded memory: a window that grows to one block at most.

use evergate_evidence::record::Record;
use evergate_evidence::segment::{BLOCK_BYTES_MAX, SegmentDecoder, SegmentError};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

const WINDOW_BYTES: usize = 256 << 10;
/// Bytes that are read for one record at a place.
pub(crate) const PLACE_BYTES: u64 = WINDOW_BYTES as u64;

/// Reader of the records of one file.
#[derive(Debug)]
pub struct SegmentFile {
    file: File,
    decoder: SegmentDecoder,
    window: Vec<u8>,
    /// Bytes of the window that records have been read from.
    used: usize,
    /// Bytes of the window that have been read from the file.
    filled: usize,
    /// Place of the window's first byte in the file.
    offset: u64,
    is_at_end: bool,
}

/// A record, and the place of its first byte in the file.
#[derive(Debug)]
pub struct Located<'a> {
    /// Place of its block in the file.
    pub offset: u64,
    /// Place behind its block.
    pub end: u64,
    /// The record.
    pub record: Record<'a>,
}

/// Error of a segment's file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The bytes at this place are not a segment's.
    #[error("{error} (at byte {offset})")]
    Content {
        /// Place of the block in the file.
        offset: u64,
        /// Fault of the block.
        error: SegmentError,
    },
    /// The file ends within a block: torn by a crash, or cut.
    #[error("the file ends within a block (at byte {offset})")]
    Torn {
        /// Place of the block in the file.
        offset: u64,
    },
}

impl SegmentFile {
    /// Reader of this file.
    pub fn open(path: &Path) -> io::Result<SegmentFile> {
        Ok(SegmentFile {
            file: File::open(path)?,
            decoder: SegmentDecoder::default(),
            window: Vec::new(),
            used: 0,
            filled: 0,
            offset: 0,
            is_at_end: false,
        })
    }

    /// Reader from the begin of a block on: an extent of the index has its place.
    pub fn open_at(path: &Path, offset: u64) -> io::Result<SegmentFile> {
        let mut file = SegmentFile::open(path)?;
        if offset > 0 {
            file.file.seek(io::SeekFrom::Start(offset))?;
            file.offset = offset;
            file.decoder = SegmentDecoder::within();
        }
        Ok(file)
    }

    /// Whether the segment's last record has been read.
    pub fn has_ended(&self) -> bool {
        self.decoder.has_ended()
    }

    /// The next record; `None` at the end of the file.
    pub fn read(&mut self) -> Result<Option<Located<'_>>, FileError> {
        while !self.is_at_end
            && self.filled - self.used < self.decoder.bytes_needed(&self.window[self.used..self.filled])
        {
            self.fill()?;
        }
        let offset = self.offset + self.used as u64;
        let bytes = &self.window[self.used..self.filled];
        match self.decoder.read(bytes).map_err(|error| FileError::Content { offset, error })? {
            Some(decoded) => {
                self.used += decoded.bytes;
                let end = offset + decoded.bytes as u64;
                Ok(Some(Located { offset, end, record: decoded.record }))
            }
            None if bytes.is_empty() => Ok(None),
            None => Err(FileError::Torn { offset }),
        }
    }

    /// Moves the unread bytes to the front and reads more behind them.
    fn fill(&mut self) -> io::Result<()> {
        self.window.copy_within(self.used..self.filled, 0);
        self.offset += self.used as u64;
        self.filled -= self.used;
        self.used = 0;
        let end = self.filled + WINDOW_BYTES.max(self.filled).min(BLOCK_BYTES_MAX);
        if self.window.len() < end {
            self.window.resize(end, 0);
        }
        while self.filled < end {
            match self.file.read(&mut self.window[self.filled..end]) {
                Ok(0) => {
                    self.is_at_end = true;
                    break;
                }
                Ok(bytes) => self.filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
