//! Writer of one Parquet file from rows of SQLite.

use crate::cold::tables::{GROUP_ROWS, Kind, Table};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use rusqlite::types::ValueRef;
use std::fs::File;
use std::sync::Arc;

/// Level of zstd: twice the speed of level 3 at 4 % more bytes of random data.
const ZSTD_LEVEL: i32 = 1;
/// Share of false answers of a Bloom filter.
const BLOOM_FALSE: f64 = 0.01;

/// Values of a column.
pub(super) enum Values {
    Numbers(Vec<i64>),
    Bytes(Vec<ByteArray>),
}

/// Value of a row that does not come from SQLite.
#[derive(Debug)]
pub(crate) enum Cell {
    Number(i64),
    Bytes(Vec<u8>),
}

/// Most bytes of a group of such rows.
const GROUP_BYTES: usize = 32 << 20;

/// Writer of a file.
pub(crate) struct TableWriter {
    table: &'static Table,
    writer: SerializedFileWriter<File>,
    columns: Vec<Values>,
    rows: usize,
    bytes: usize,
    total: u64,
}

impl TableWriter {
    pub(crate) fn new(table: &'static Table, file: File) -> Result<TableWriter, ParquetError> {
        let schema = Arc::new(parse_message_type(&table.schema())?);
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by("evergate-audit".to_owned());
        for column in table.columns {
            let path = ColumnPath::from(column.name);
            if table.bloom.contains(&column.name) {
                properties = properties
                    .set_column_bloom_filter_fpp(path.clone(), BLOOM_FALSE)
                    .set_column_bloom_filter_max_ndv(path.clone(), GROUP_ROWS as u64);
            }
            if column.name.ends_with("random") {
                properties = properties.set_column_dictionary_enabled(path, false); // no value occurs twice
            }
        }
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build()))?;
        Ok(TableWriter { table, writer, columns: empty(table), rows: 0, bytes: 0, total: 0 })
    }

    /// Appends a row.
    pub(super) fn push(&mut self, row: &rusqlite::Row<'_>) -> Result<(), ParquetError> {
        for (at, values) in self.columns.iter_mut().enumerate() {
            let value = row.get_ref(at).map_err(|error| ParquetError::General(error.to_string()))?;
            match (values, value) {
                (Values::Numbers(numbers), ValueRef::Integer(number)) => numbers.push(number),
                (Values::Numbers(numbers), ValueRef::Null) => numbers.push(-1),
                (Values::Bytes(texts), ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => {
                    texts.push(ByteArray::from(bytes.to_vec()));
                }
                (Values::Bytes(texts), ValueRef::Null) => texts.push(ByteArray::from(Vec::new())),
                _ => return Err(ParquetError::General("a row has a value of another type".into())),
            }
        }
        self.rows += 1;
        self.total += 1;
        if self.rows == GROUP_ROWS { self.write_group() } else { Ok(()) }
    }

    /// Appends a row of values, one for each column.
    pub(crate) fn push_cells(&mut self, cells: Vec<Cell>) -> Result<(), ParquetError> {
        for (values, cell) in self.columns.iter_mut().zip(cells) {
            match (values, cell) {
                (Values::Numbers(numbers), Cell::Number(number)) => numbers.push(number),
                (Values::Bytes(texts), Cell::Bytes(bytes)) => {
                    self.bytes += bytes.len();
                    texts.push(ByteArray::from(bytes));
                }
                _ => return Err(ParquetError::General("a row has a value of another type".into())),
            }
        }
        self.rows += 1;
        self.total += 1;
        if self.rows == GROUP_ROWS || self.bytes >= GROUP_BYTES { self.write_group() } else { Ok(()) }
    }

    /// Writes the rest of the rows and the footer. Answers the file, which is not durable yet, and the number of rows.
    pub(crate) fn finish(mut self) -> Result<(File, u64), ParquetError> {
        if self.rows > 0 {
            self.write_group()?;
        }
        Ok((self.writer.into_inner()?, self.total))
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        for values in &self.columns {
            let Some(mut column) = group.next_column()? else { break };
            match values {
                Values::Numbers(numbers) => {
                    column.typed::<Int64Type>().write_batch(numbers, None, None)?;
                }
                Values::Bytes(bytes) => {
                    column.typed::<ByteArrayType>().write_batch(bytes, None, None)?;
                }
            }
            column.close()?;
        }
        group.close()?;
        self.columns = empty(self.table);
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }
}

fn empty(table: &Table) -> Vec<Values> {
    let empty = |kind| match kind {
        Kind::Number | Kind::Time => Values::Numbers(Vec::new()),
        Kind::Text | Kind::Bytes => Values::Bytes(Vec::new()),
    };
    table.columns.iter().map(|column| empty(column.kind)).collect()
}
