//! Tables of the cold index and their columns.
//!
//! Every column is present in every row: an absent random is an empty byte string, an absent number is -1.

use crate::index::Day;
use crate::store::Store;
use std::path::PathBuf;

/// Rows of one group of a file.
pub(super) const GROUP_ROWS: usize = 131_072;

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [Column],
    /// Columns of the order, as SQL.
    pub(crate) order: &'static str,
    /// Columns with a Bloom filter.
    pub(crate) bloom: &'static [&'static str],
}

/// A column.
#[derive(Debug)]
pub(crate) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Number,
    /// Nanoseconds since 1970 in UTC.
    Time,
    Text,
    Bytes,
}

pub(crate) const fn column(name: &'static str, kind: Kind) -> Column {
    Column { name, kind }
}

/// Connections. The order of columns is that of the constants below.
pub(super) const CONNECTION: Table = Table {
    name: "connection",
    columns: &[
        column("number", Kind::Number),
        column("record_seq", Kind::Number),
        column("first_ns", Kind::Time),
        column("last_ns", Kind::Time),
        column("client", Kind::Bytes),
        column("client_port", Kind::Number),
        column("server", Kind::Bytes),
        column("server_port", Kind::Number),
        column("vlan", Kind::Number),
        column("sni", Kind::Text),
        column("alpn", Kind::Text),
        column("client_random", Kind::Bytes),
        column("server_random", Kind::Bytes),
        column("version", Kind::Number),
        column("suite", Kind::Number),
        column("packets", Kind::Number),
        column("bytes_c2s", Kind::Number),
        column("bytes_s2c", Kind::Number),
        column("holes", Kind::Number),
        column("is_final", Kind::Number),
        column("record_segment", Kind::Number),
        column("record_offset", Kind::Number),
    ],
    order: "first_ns, number",
    bloom: &["client", "client_random"],
};

/// Requests.
pub(super) const REQUEST: Table = Table {
    name: "request",
    columns: &[
        column("seq", Kind::Number),
        column("id", Kind::Text),
        column("given_id", Kind::Text),
        column("switch_connection", Kind::Number),
        column("client_random", Kind::Bytes),
        column("n", Kind::Number),
        column("time_ns", Kind::Time),
        column("status", Kind::Number),
        column("audit", Kind::Number),
    ],
    order: "time_ns, seq",
    bloom: &["id", "given_id"],
};

/// Envelopes.
pub(super) const ENVELOPE: Table = Table {
    name: "envelope",
    columns: &[
        column("seq", Kind::Number),
        column("born_ns", Kind::Time),
        column("client_random", Kind::Bytes),
        column("record_segment", Kind::Number),
        column("record_offset", Kind::Number),
    ],
    order: "born_ns, seq",
    bloom: &["client_random"],
};

/// Extents.
pub(super) const EXTENT: Table = Table {
    name: "extent",
    columns: &[
        column("connection", Kind::Number),
        column("segment", Kind::Number),
        column("part", Kind::Number),
        column("first_offset", Kind::Number),
        column("last_offset", Kind::Number),
        column("first_seq", Kind::Number),
        column("last_seq", Kind::Number),
        column("first_ns", Kind::Time),
        column("packets", Kind::Number),
    ],
    order: "connection, segment, part",
    bloom: &[],
};

/// Batches.
pub(super) const BATCH: Table = Table {
    name: "batch",
    columns: &[
        column("batch", Kind::Number),
        column("first_seq", Kind::Number),
        column("last_seq", Kind::Number),
        column("first_ns", Kind::Time),
        column("log_index", Kind::Number),
        column("proof_segment", Kind::Number),
        column("proof_offset", Kind::Number),
    ],
    order: "batch",
    bloom: &[],
};

/// All tables. Connections come last: a day with its file of connections is frozen whole.
pub(super) const TABLES: [&Table; 5] = [&ENVELOPE, &EXTENT, &REQUEST, &BATCH, &CONNECTION];

impl Table {
    /// Place of a column.
    pub(super) fn column(&self, name: &str) -> usize {
        self.columns.iter().position(|column| column.name == name).unwrap_or(usize::MAX)
    }

    /// File of a day.
    pub(super) fn path(&self, store: &Store, day: Day) -> PathBuf {
        store.cold().join(self.name).join(format!("{}.parquet", day.name()))
    }

    /// Names of the columns, for SQL.
    pub(super) fn names(&self) -> String {
        self.columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
    }

    /// Schema in the language of Parquet.
    pub(super) fn schema(&self) -> String {
        let line = |column: &Column| match column.kind {
            Kind::Number => format!("REQUIRED INT64 {};", column.name),
            Kind::Time => format!("REQUIRED INT64 {} (TIMESTAMP(NANOS,true));", column.name),
            Kind::Text => format!("REQUIRED BYTE_ARRAY {} (STRING);", column.name),
            Kind::Bytes => format!("REQUIRED BYTE_ARRAY {};", column.name),
        };
        let lines: String = self.columns.iter().map(line).collect();
        format!("message {} {{ {lines} }}", self.name)
    }
}
