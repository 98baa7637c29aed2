//! Table of the segments: times and numbers of each, and whether the index has all its rows.

use crate::index::day::{int, unsigned};
use crate::index::rows::SegmentRow;
use crate::index::{IndexError, schema};
use crate::store::Store;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::path::PathBuf;

const UPSERT: &str = "INSERT INTO segment(number, bytes, first_seq, last_seq, first_ns, last_ns, is_closed, \
    is_complete, proofs_bytes) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,0) ON CONFLICT(number) DO UPDATE SET bytes=?2, \
    first_seq=?3, last_seq=?4, first_ns=?5, last_ns=?6, is_closed=?7, is_complete=max(is_complete, ?8) \
    WHERE ?4 >= last_seq";
const PROOFS: &str = "INSERT INTO segment(number, bytes, first_seq, last_seq, first_ns, last_ns, is_closed, \
    is_complete, proofs_bytes) VALUES(?1,0,0,0,NULL,NULL,0,0,?2) ON CONFLICT(number) DO UPDATE SET \
    proofs_bytes=max(proofs_bytes, ?2)";
const SELECT: &str = "SELECT number, bytes, first_seq, last_seq, first_ns, last_ns, is_closed, is_complete, \
    proofs_bytes FROM segment";

/// A segment in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedSegment {
    /// The segment.
    pub row: SegmentRow,
    /// Whether the index has all rows of its records.
    pub is_complete: bool,
    /// Bytes of its `.proofs` file that the index has.
    pub proofs_bytes: u64,
}

/// Table of the segments.
#[derive(Debug)]
pub struct SegmentTable {
    path: PathBuf,
    connection: Connection,
}

impl SegmentTable {
    /// Opens the table; it is created if it does not exist.
    pub fn open(store: &Store) -> Result<SegmentTable, IndexError> {
        let path = path(store);
        let connection = schema::open_to_write(&path, schema::SEGMENTS)?;
        Ok(SegmentTable { path, connection })
    }

    /// Opens the table for reading; `None` if it does not exist.
    pub fn open_to_read(store: &Store) -> Result<Option<SegmentTable>, IndexError> {
        let path = path(store);
        if !path.exists() {
            return Ok(None);
        }
        let connection = schema::open_to_read(&path, schema::SEGMENTS)?;
        Ok(Some(SegmentTable { path, connection }))
    }

    /// Writes a segment's row. A row that was complete stays so.
    pub fn write(&self, row: &SegmentRow, is_complete: bool) -> Result<(), IndexError> {
        let (first, last) = row.times_ns.unzip();
        self.execute(
            UPSERT,
            params![
                int(row.number),
                int(row.bytes),
                int(row.first_seq),
                int(row.last_seq),
                first.map(int),
                last.map(int),
                row.is_closed,
                is_complete
            ],
        )
    }

    /// Notes how much of a segment's `.proofs` file the index has.
    pub fn write_proofs(&self, number: u64, bytes: u64) -> Result<(), IndexError> {
        self.execute(PROOFS, params![int(number), int(bytes)])
    }

    /// All segments, in order.
    pub fn all(&self) -> Result<Vec<IndexedSegment>, IndexError> {
        let read = || -> rusqlite::Result<Vec<IndexedSegment>> {
            let mut statement = self.connection.prepare_cached(&format!("{SELECT} ORDER BY number"))?;
            statement.query_map([], read_row)?.collect()
        };
        read().map_err(|error| IndexError::sqlite(&self.path, &error))
    }

    /// One segment.
    pub fn get(&self, number: u64) -> Result<Option<IndexedSegment>, IndexError> {
        let read = || -> rusqlite::Result<Option<IndexedSegment>> {
            let mut statement = self.connection.prepare_cached(&format!("{SELECT} WHERE number = ?1"))?;
            statement.query_row([int(number)], read_row).optional()
        };
        read().map_err(|error| IndexError::sqlite(&self.path, &error))
    }

    fn execute(&self, sql: &str, values: &[&dyn rusqlite::ToSql]) -> Result<(), IndexError> {
        let run = || self.connection.prepare_cached(sql)?.execute(values);
        run().map(|_| ()).map_err(|error| IndexError::sqlite(&self.path, &error))
    }
}

fn path(store: &Store) -> PathBuf {
    store.index().join("segments.sqlite")
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<IndexedSegment> {
    let number = |at: usize| row.get(at).map(unsigned);
    let (first, last): (Option<i64>, Option<i64>) = (row.get(4)?, row.get(5)?);
    let segment = SegmentRow {
        number: number(0)?,
        bytes: number(1)?,
        first_seq: number(2)?,
        last_seq: number(3)?,
        times_ns: first.map(unsigned).zip(last.map(unsigned)),
        is_closed: row.get(6)?,
    };
    Ok(IndexedSegment { row: segment, is_complete: row.get(7)?, proofs_bytes: number(8)? })
}
