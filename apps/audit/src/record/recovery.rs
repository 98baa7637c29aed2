//! State of a store at the Recorder's start: where its stream continues, and what a crash left.
//!
//! A crash leaves at most a torn block at the end of the last segment, a torn statement, and records that no statement
//! covers. The torn parts are cut; the records become the first ones of the next batch.

use crate::cli::Failure;
use crate::segment_file::{FileError, SegmentFile};
use crate::store::{SegmentPath, Store};
use evergate_evidence::mark::{MarkKind, SegmentBegin};
use evergate_evidence::merkle::leaf_hash;
use evergate_evidence::record::{Body, Record};
use evergate_evidence::statement::{ChainEnd, STATEMENT_BYTES, Statement};
use evergate_recorder::stream::Uncovered;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Where the stream continues.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The last statement, as a link of the chain.
    pub(crate) chain: Option<ChainEnd>,
    /// Latest time of a record that the last statement covers, in ns since 1970; 0 without a statement.
    pub(crate) last_ns: u64,
    pub(crate) next_seq: u64,
    pub(crate) next_connection: u64,
    pub(crate) next_segment: u64,
    /// The last segment, if a crash left it open.
    pub(crate) left_open: Option<LeftOpen>,
    /// Records behind the last statement.
    pub(crate) uncovered: Vec<Uncovered>,
}

/// A segment without an end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOpen {
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

impl Recovered {
    /// Reads the store, and cuts what a crash tore.
    pub(crate) fn load(store: &Store) -> Result<Recovered, Failure> {
        let last = last_statement(&store.statements())?;
        let chain = last.as_ref().map(ChainEnd::from);
        let covered = chain.map_or(0, |chain| chain.last_seq);
        let segments = store.segments().map_err(|error| {
            Failure::wrong(format!("store: cannot list the segments of {}: {error}", store.root().display()))
        })?;
        let mut recovered = Recovered {
            chain,
            last_ns: last.map_or(0, |statement| statement.span.last_ns),
            next_seq: covered + 1,
            next_connection: 1,
            next_segment: segments.last().map_or(1, |segment| segment.number + 1),
            left_open: None,
            uncovered: Vec::new(),
        };
        let last = segments.len().saturating_sub(1);
        let mut first = last;
        // The records behind the last statement may begin before the last segment.
        while first > 0 && first_seq(&segments[first])? > covered + 1 {
            first -= 1;
        }
        for (place, segment) in segments.iter().enumerate().skip(first) {
            recovered.read(segment, covered, place == last)?;
        }
        Ok(recovered)
    }

    fn read(&mut self, segment: &SegmentPath, covered: u64, is_last: bool) -> Result<(), Failure> {
        let path = &segment.path;
        let mut file = open(path)?;
        let mut end = 0;
        loop {
            match file.read() {
                Ok(Some(located)) => {
                    end = located.end;
                    self.take(&located.record, segment.number, covered)?;
                }
                Ok(None) => break,
                Err(FileError::Torn { .. }) if is_last => {
                    cut(path, end)?;
                    break;
                }
                Err(error) => return Err(damaged(path, &error)),
            }
        }
        if is_last && !file.has_ended() {
            if end == 0 {
                // Not even its first record is whole: the number is used again.
                std::fs::remove_file(path).map_err(|error| cannot("remove", path, &error))?;
                self.next_segment = segment.number;
            } else {
                self.left_open = Some(LeftOpen { number: segment.number, bytes: end });
            }
        }
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>, segment: u64, covered: u64) -> Result<(), Failure> {
        if record.seq > covered {
            if record.seq != self.next_seq {
                return Err(Failure::wrong(format!(
                    "store: record {} follows {}: records are missing; run `evergate-audit verify`, then record into a \
                     new folder",
                    record.seq,
                    self.next_seq - 1
                )));
            }
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let packet_bytes = match &record.body {
                Body::Packet(packet) => Some(packet.data.len()),
                _ => None,
            };
            let (leaf, time_ns) = (leaf_hash(&[&bytes]), record.time_ns());
            self.uncovered.push(Uncovered { segment, seq: record.seq, leaf, time_ns, packet_bytes });
            self.next_seq += 1;
        }
        let connection = match &record.body {
            Body::Packet(packet) => packet.connection + 1,
            Body::Connection(connection) => connection.connection + 1,
            Body::Mark(mark) if mark.what == MarkKind::SegmentBegins => {
                mark.object::<SegmentBegin>().map_or(0, |begin| begin.next_connection)
            }
            _ => 0,
        };
        self.next_connection = self.next_connection.max(connection);
        Ok(())
    }
}

fn first_seq(segment: &SegmentPath) -> Result<u64, Failure> {
    match open(&segment.path)?.read() {
        Ok(Some(located)) => Ok(located.record.seq),
        Ok(None) | Err(FileError::Torn { .. }) => Ok(u64::MAX),
        Err(error) => Err(damaged(&segment.path, &error)),
    }
}

/// The last whole statement; a torn one behind it is cut.
fn last_statement(path: &Path) -> Result<Option<Statement>, Failure> {
    let Ok(mut file) = File::open(path) else { return Ok(None) };
    let bytes = file.metadata().map_err(|error| cannot("read", path, &error))?.len();
    let whole = bytes - bytes % STATEMENT_BYTES as u64;
    if whole < bytes {
        cut(path, whole)?;
    }
    let Some(at) = whole.checked_sub(STATEMENT_BYTES as u64) else { return Ok(None) };
    let mut statement = [0; STATEMENT_BYTES];
    file.seek(SeekFrom::Start(at)).map_err(|error| cannot("read", path, &error))?;
    file.read_exact(&mut statement).map_err(|error| cannot("read", path, &error))?;
    let statement = Statement::decode(&statement).map_err(|error| {
        Failure::wrong(format!("store: {} is damaged: {error}; run `evergate-audit verify`", path.display()))
    })?;
    Ok(Some(statement))
}

fn cut(path: &Path, bytes: u64) -> Result<(), Failure> {
    eprintln!("evergate-audit: store: cut {} to {bytes} bytes: a crash tore its last block", path.display());
    let file = File::options().write(true).open(path).and_then(|file| {
        file.set_len(bytes)?;
        file.sync_all()
    });
    file.map_err(|error| cannot("cut", path, &error))
}

fn open(path: &Path) -> Result<SegmentFile, Failure> {
    SegmentFile::open(path).map_err(|error| cannot("read", path, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::wrong(format!("store: cannot {what} {}: {error}", path.display()))
}

fn damaged(path: &Path, error: &FileError) -> Failure {
    Failure::wrong(format!(
        "store: {} is damaged: {error}; run `evergate-audit verify`, then record into a new folder",
        path.display()
    ))
}
