//! Index from segments: after an unclean stop, after lost rows, or from nothing.
//!
//! A segment's rows are upserts, so that reading it again changes nothing that was right. A damaged segment contributes
//! the rows before the damage and stays incomplete.

use crate::index::day_files::DayFiles;
use crate::index::derive::RecordIndexer;
use crate::index::receipts::ReceiptFile;
use crate::index::rows::{BatchRow, IndexEvent, ProofPlace, SegmentRow};
use crate::index::segments::IndexedSegment;
use crate::index::{IndexError, SegmentTable, StatementFile};
use crate::progress::Progress;
use crate::segment_file::{FileError, SegmentFile};
use crate::store::{SegmentPath, Store};
use evergate_evidence::deletion;
use evergate_evidence::statement::Statement;
use std::collections::BTreeMap;
use std::io::ErrorKind;

const COMMIT_ROWS: usize = 20_000;
/// Longest statement of a deletion in bytes.
const DELETION_BYTES_MAX: u64 = 65_536;

/// Work that an index needed.
#[derive(Clone, Debug, Default)]
pub struct Indexed {
    /// Segments that were read.
    pub segments: u64,
    /// Segments that were complete already.
    pub complete: u64,
    /// Records that were read.
    pub records: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Place of the torn block at the end of the last segment.
    pub torn: Option<u64>,
    /// Damaged files. Their other rows are in the index.
    pub damaged: Vec<IndexError>,
}

/// Removes the index and reads every segment. The caller has the store's lock: no Recorder runs.
pub fn rebuild(store: &Store) -> Result<Indexed, IndexError> {
    let folder = store.index();
    let at = |error: std::io::Error| IndexError::new(&folder, error);
    std::fs::create_dir_all(&folder).map_err(at)?;
    for entry in std::fs::read_dir(&folder).map_err(at)? {
        let path = entry.map_err(at)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if [".sqlite", ".sqlite-wal", ".sqlite-shm"].iter().any(|suffix| name.ends_with(suffix)) {
            std::fs::remove_file(&path).map_err(|error| IndexError::new(&path, error))?;
        }
    }
    read_incomplete(store, false)
}

/// Reads the segments whose rows are incomplete. Beside a running Recorder it leaves the open segment out.
pub fn catch_up(store: &Store) -> Result<Indexed, IndexError> {
    read_incomplete(store, store.is_locked())
}

fn read_incomplete(store: &Store, has_recorder: bool) -> Result<Indexed, IndexError> {
    let at = |error: std::io::Error| IndexError::new(&store.root().join("segments"), error);
    std::fs::create_dir_all(store.index()).map_err(|error| IndexError::new(&store.index(), error))?;
    let mut segments = store.segments().map_err(at)?;
    if has_recorder {
        segments.pop();
    }
    let table = SegmentTable::open(store)?;
    let known: BTreeMap<u64, IndexedSegment> =
        table.all()?.into_iter().map(|segment| (segment.row.number, segment)).collect();
    let is_complete =
        |segment: &SegmentPath| known.get(&segment.number).is_some_and(|known| known.is_complete);
    let total = segments.iter().filter(|segment| !is_complete(segment)).map(|segment| segment.bytes).sum();
    let mut reader = Reader::new(store, Progress::new("index", total))?;
    let last = segments.last().map(|segment| segment.number);
    for segment in &segments {
        let known = known.get(&segment.number);
        if is_complete(segment) {
            reader.result.complete += 1;
        } else {
            let row = reader.read_segment(segment, Some(segment.number) == last)?;
            reader.files.sync()?;
            table.write(&row.row, row.is_complete)?;
        }
        let proofs = std::fs::metadata(store.proofs(segment.number)).map_or(0, |file| file.len());
        let row = table.get(segment.number)?.map(|segment| segment.row);
        if let Some(row) = row
            && known.is_none_or(|known| !known.is_complete || known.proofs_bytes != proofs)
        {
            let end = reader.read_batches(&row)?;
            reader.files.sync()?;
            table.write_proofs(segment.number, end)?;
        }
    }
    for number in store.deleted_segments().map_err(at)? {
        if !known.contains_key(&number)
            && let Some(row) = reader.read_deletion(number)
        {
            table.write(&row, true)?;
        }
    }
    reader.files.sync()?;
    Ok(reader.result)
}

struct Reader<'a> {
    store: &'a Store,
    files: DayFiles,
    statements: StatementFile,
    indexer: RecordIndexer,
    events: Vec<IndexEvent>,
    progress: Progress,
    result: Indexed,
}

/// A segment as its records show it.
struct ReadSegment {
    row: SegmentRow,
    is_complete: bool,
}

impl<'a> Reader<'a> {
    fn new(store: &'a Store, progress: Progress) -> Result<Reader<'a>, IndexError> {
        let path = store.statements();
        let statements = StatementFile::open(&path).map_err(|error| IndexError::new(&path, error))?;
        let files = DayFiles::new(store)?;
        let (indexer, events, result) = (RecordIndexer::default(), Vec::new(), Indexed::default());
        Ok(Reader { store, files, statements, indexer, events, progress, result })
    }

    fn read_segment(&mut self, segment: &SegmentPath, is_last: bool) -> Result<ReadSegment, IndexError> {
        let at = |error: &dyn std::fmt::Display| IndexError::new(&segment.path, error);
        let mut file = match SegmentFile::open(&segment.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(ReadSegment { row: SegmentRow::default(), is_complete: false }); // deleted meanwhile
            }
            Err(error) => return Err(at(&error)),
        };
        self.indexer.begin_segment(segment.number, &mut self.events);
        self.result.segments += 1;
        let mut end = 0;
        let damage = loop {
            match file.read() {
                Ok(Some(located)) => {
                    self.indexer.on_record(&located.record, located.offset, &mut self.events);
                    self.result.records += 1;
                    self.progress.add(located.end - end);
                    end = located.end;
                }
                Ok(None) => break None,
                Err(FileError::Io(error)) => return Err(at(&error)),
                Err(error) => break Some(error),
            }
            self.write_events()?;
        };
        let has_ended = file.has_ended();
        match damage {
            Some(FileError::Torn { offset }) if is_last => self.result.torn = Some(offset),
            Some(error) => self.result.damaged.push(at(&error)),
            None if !has_ended && !is_last => self.result.damaged.push(at(&"the segment has no end")),
            None => {}
        }
        self.result.bytes += end;
        self.indexer.finish_segment(end, &mut self.events);
        self.write_events()?;
        Ok(ReadSegment { row: self.indexer.segment(), is_complete: has_ended })
    }

    fn write_events(&mut self) -> Result<(), IndexError> {
        for event in self.events.drain(..) {
            self.files.write(&event)?;
        }
        if self.files.pending() >= COMMIT_ROWS { self.files.commit() } else { Ok(()) }
    }

    /// Writes the batches whose first record lies in the segment, and their receipts. Answers the end of the receipts.
    fn read_batches(&mut self, segment: &SegmentRow) -> Result<u64, IndexError> {
        let path = self.store.statements();
        let at = |error: std::io::Error| IndexError::new(&path, error);
        let begin = self.statements.first_from(segment.first_seq).map_err(at)?;
        for place in begin..self.statements.count() {
            let statement = self.statements.read(place).map_err(at)?;
            if statement.span.first_seq > segment.last_seq {
                break;
            }
            self.events.push(batch_row(&statement, None));
            self.write_events()?;
        }
        let path = self.store.proofs(segment.number);
        let at = |error: std::io::Error| IndexError::new(&path, error);
        let (mut receipts, mut end) = (ReceiptFile::open(&path).map_err(at)?, 0);
        while let Some(receipt) = receipts.read().map_err(at)? {
            end = receipt.end;
            let (log_index, offset) = (receipt.log_index, receipt.offset);
            let place = ProofPlace { log_index, segment: segment.number, offset, end };
            self.events.push(batch_row(&receipt.statement, Some(place)));
            self.write_events()?;
        }
        Ok(end)
    }

    /// The row of a deleted segment; `None` if its statement is damaged: `verify` finds it.
    fn read_deletion(&self, number: u64) -> Option<SegmentRow> {
        let path = self.store.deleted(number);
        if std::fs::metadata(&path).ok()?.len() > DELETION_BYTES_MAX {
            return None;
        }
        let deletion = deletion::from_json(&std::fs::read(&path).ok()?)?;
        let times_ns = self.times_of(deletion.first_seq, deletion.last_seq);
        Some(SegmentRow {
            number,
            bytes: deletion.bytes,
            first_seq: deletion.first_seq,
            last_seq: deletion.last_seq,
            times_ns,
            is_closed: true,
        })
    }

    /// Times of records by the statements over them; a statement at the edge may cover a neighbour too.
    fn times_of(&self, first_seq: u64, last_seq: u64) -> Option<(u64, u64)> {
        let begin = self.statements.first_from(first_seq).ok()?.saturating_sub(1);
        let mut times: Option<(u64, u64)> = None;
        for place in begin..self.statements.count() {
            let span = self.statements.read(place).ok()?.span;
            if span.first_seq > last_seq {
                break;
            }
            if span.last_seq >= first_seq {
                let (first, last) = times.unwrap_or((span.first_ns, span.last_ns));
                times = Some((first.min(span.first_ns), last.max(span.last_ns)));
            }
        }
        times
    }
}

fn batch_row(statement: &Statement, proof: Option<ProofPlace>) -> IndexEvent {
    let span = statement.span;
    let (first_seq, last_seq, first_ns) = (span.first_seq, span.last_seq, span.first_ns);
    IndexEvent::Batch(BatchRow { batch: statement.batch, first_seq, last_seq, first_ns, proof })
}
