//! Reader of one Parquet file. The file may come from elsewhere: its columns and sizes are checked before it is read.

use crate::cold::tables::{GROUP_ROWS, Kind, Table};
use crate::cold::writer::Values;
use crate::index::IndexError;
use parquet::basic::Type;
use parquet::bloom_filter::Sbbf;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::statistics::Statistics;
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Most groups of a file: over a hundred million rows.
const GROUPS_MAX: usize = 1000;
/// Most bytes of a column of a group, decoded.
const COLUMN_BYTES_MAX: i64 = 256 << 20;
/// Most bytes of a footer.
const FOOTER_BYTES_MAX: u64 = 64 << 20;

/// A file, open for reading.
pub(super) struct TableFile {
    path: PathBuf,
    table: &'static Table,
    file: File,
    reader: SerializedFileReader<File>,
}

/// Values of some rows of a group, by the place of their column.
pub(super) struct Rows {
    columns: Vec<Option<Values>>,
    /// Number of rows.
    pub(super) count: usize,
}

impl TableFile {
    pub(super) fn open(table: &'static Table, path: &Path) -> Result<TableFile, IndexError> {
        let at = |error: &dyn std::fmt::Display| IndexError::new(path, error);
        let file = File::open(path).map_err(|error| at(&error))?;
        check_footer(&file).map_err(|error| at(&error))?;
        let second = file.try_clone().map_err(|error| at(&error))?;
        let reader =
            guarded(path, || SerializedFileReader::new(second).map_err(|error| damaged(path, &error)))?;
        let file = TableFile { path: path.to_owned(), table, file, reader };
        file.check()?;
        Ok(file)
    }

    /// Number of groups.
    pub(super) fn groups(&self) -> usize {
        self.reader.num_row_groups()
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> u64 {
        u64::try_from(self.reader.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// Lowest and highest number of a column in a group, by its statistics; everything without them.
    pub(super) fn range(&self, group: usize, column: usize) -> (i64, i64) {
        match self.group(group).column(column).statistics() {
            Some(Statistics::Int64(values)) => {
                (values.min_opt().copied().unwrap_or(i64::MIN), values.max_opt().copied().unwrap_or(i64::MAX))
            }
            _ => (i64::MIN, i64::MAX),
        }
    }

    /// Whether a group may have this value in a column with a Bloom filter.
    pub(super) fn may_have(&self, group: usize, column: usize, value: &[u8]) -> Result<bool, IndexError> {
        let chunk = self.group(group).column(column);
        if chunk.bloom_filter_length().is_some_and(|length| !(0..=8 << 20).contains(&length)) {
            return Err(damaged(&self.path, &"a Bloom filter is too long"));
        }
        guarded(&self.path, || {
            let filter = Sbbf::read_from_column_chunk(chunk, &self.file)
                .map_err(|error| damaged(&self.path, &error))?;
            Ok(filter.is_none_or(|filter| filter.num_blocks() == 0 || filter.check(value)))
        })
    }

    /// Rows of a group, with these columns only. `wanted`: places of the rows in the group, in order; `None`: all.
    pub(super) fn read(
        &self,
        group: usize,
        columns: &[usize],
        wanted: Option<&[usize]>,
    ) -> Result<Rows, IndexError> {
        let total = usize::try_from(self.group(group).num_rows()).unwrap_or(0);
        let count = wanted.map_or(total, <[usize]>::len);
        let mut rows = Rows { columns: self.table.columns.iter().map(|_| None).collect(), count };
        for &column in columns {
            let values = guarded(&self.path, || {
                self.read_column(group, column, total, wanted).map_err(|error| damaged(&self.path, &error))
            })?;
            let length = match &values {
                Values::Numbers(numbers) => numbers.len(),
                Values::Bytes(bytes) => bytes.len(),
            };
            if length != count {
                return Err(damaged(&self.path, &"a column lacks values"));
            }
            rows.columns[column] = Some(values);
        }
        Ok(rows)
    }

    fn read_column(
        &self,
        group: usize,
        column: usize,
        total: usize,
        wanted: Option<&[usize]>,
    ) -> Result<Values, ParquetError> {
        let group = self.reader.get_row_group(group)?;
        match group.get_column_reader(column)? {
            ColumnReader::Int64ColumnReader(mut reader) => {
                let mut values = Vec::new();
                each_run(total, wanted, |skip, take| {
                    reader.skip_records(skip)?;
                    reader.read_records(take, None, None, &mut values).map(|_| ())
                })?;
                Ok(Values::Numbers(values))
            }
            ColumnReader::ByteArrayColumnReader(mut reader) => {
                let mut values = Vec::new();
                each_run(total, wanted, |skip, take| {
                    reader.skip_records(skip)?;
                    reader.read_records(take, None, None, &mut values).map(|_| ())
                })?;
                Ok(Values::Bytes(values))
            }
            _ => Err(ParquetError::General("a column has another type".into())),
        }
    }

    fn group(&self, group: usize) -> &RowGroupMetaData {
        self.reader.metadata().row_group(group)
    }

    /// Checks columns and sizes.
    fn check(&self) -> Result<(), IndexError> {
        let metadata = self.reader.metadata();
        let schema = metadata.file_metadata().schema_descr();
        let is_column = |at: usize| {
            let (found, column) = (schema.column(at), &self.table.columns[at]);
            let kind = match column.kind {
                Kind::Number | Kind::Time => Type::INT64,
                Kind::Text | Kind::Bytes => Type::BYTE_ARRAY,
            };
            found.path().string() == column.name
                && found.physical_type() == kind
                && (found.max_def_level(), found.max_rep_level()) == (0, 0)
        };
        let columns = self.table.columns.len();
        if schema.num_columns() != columns || !(0..columns).all(is_column) {
            return Err(damaged(&self.path, &"the file has other columns"));
        }
        let is_group = |group: &RowGroupMetaData| {
            group.num_columns() == columns
                && (0..=GROUP_ROWS as i64).contains(&group.num_rows())
                && group
                    .columns()
                    .iter()
                    .all(|column| (0..=COLUMN_BYTES_MAX).contains(&column.uncompressed_size()))
        };
        if metadata.num_row_groups() > GROUPS_MAX || !metadata.row_groups().iter().all(is_group) {
            return Err(damaged(&self.path, &"its groups are too many or too large"));
        }
        Ok(())
    }
}

impl Rows {
    /// A number. The column must have been read.
    pub(super) fn number(&self, column: usize, row: usize) -> i64 {
        match self.columns.get(column) {
            Some(Some(Values::Numbers(numbers))) => numbers.get(row).copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// Bytes or text. The column must have been read.
    pub(super) fn bytes(&self, column: usize, row: usize) -> &[u8] {
        match self.columns.get(column) {
            Some(Some(Values::Bytes(bytes))) => bytes.get(row).map_or(&[], ByteArray::data),
            _ => &[],
        }
    }
}

/// Calls `run` with numbers of rows to skip and to read, in turn.
fn each_run(
    total: usize,
    wanted: Option<&[usize]>,
    mut run: impl FnMut(usize, usize) -> Result<(), ParquetError>,
) -> Result<(), ParquetError> {
    let Some(wanted) = wanted else { return run(0, total) };
    let mut next = 0;
    let mut at = 0;
    while at < wanted.len() {
        let begin = wanted[at];
        let length = (at..wanted.len()).take_while(|place| wanted[*place] - begin == place - at).count();
        run(begin - next, length)?;
        next = begin + length;
        at += length;
    }
    Ok(())
}

/// Checks the length of the footer before the library allocates it.
fn check_footer(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let length = file.metadata()?.len();
    let mut tail = [0; 8];
    file.read_exact_at(&mut tail, length.saturating_sub(8))?;
    let footer = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if length < 12 || &tail[4..] != b"PAR1" || footer > FOOTER_BYTES_MAX.min(length - 12) {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "the file has no footer of Parquet",
        ));
    }
    Ok(())
}

/// Error of damage.
pub(super) fn damaged(path: &Path, error: &dyn std::fmt::Display) -> IndexError {
    IndexError::new(
        path,
        format!("{error}; remove the day's files in cold/ and run `evergate-audit index DIR --rebuild`"),
    )
}

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a reader of the library. A panic of the library on a damaged file is an error of the file, and prints nothing.
pub(super) fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                hook(info);
            }
        }));
    });
    IS_GUARDED.set(true);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    IS_GUARDED.set(false);
    result.unwrap_or_else(|_| Err(damaged(path, &"the file is damaged")))
}
