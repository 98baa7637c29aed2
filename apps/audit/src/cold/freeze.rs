//! `index --freeze`: the rows of a past day go from SQLite to Parquet.
//!
//! Order: Parquet files are written and durable, then the hot rows are deleted. Between the two a day has its rows
//! twice, and the hot ones win. A day that is frozen again first takes its cold rows back.

use crate::cold::file::{TableFile, damaged};
use crate::cold::search::has_rows;
use crate::cold::tables::{Kind, TABLES, Table};
use crate::cold::writer::TableWriter;
use crate::index::{Day, IndexError, day_path, open_day_to_write, reversed};
use crate::store::{Store, sync_folder};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A day that was frozen.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    /// Rows of all tables.
    pub(crate) rows: u64,
    /// Files that were written.
    pub(crate) files: Vec<PathBuf>,
}

/// Freezes a day. `None` if it has no hot file. The caller has the lock for maintenance.
pub(crate) fn freeze(store: &Store, day: Day) -> Result<Option<Frozen>, IndexError> {
    let path = day_path(store, day);
    if !path.exists() {
        return Ok(None);
    }
    let hot = open_day_to_write(&path)?;
    let at = |error: rusqlite::Error| IndexError::sqlite(&path, &error);
    hot.execute_batch("BEGIN IMMEDIATE").map_err(at)?; // a Recorder's rows wait until the end
    let mut frozen = Frozen { rows: 0, files: Vec::new() };
    for table in TABLES {
        let cold = table.path(store, day);
        if cold.exists() {
            thaw(&hot, &path, table, &cold)?;
        }
        frozen.rows += write_table(&hot, &path, table, &cold)?;
        frozen.files.push(cold);
    }
    let clear: String = TABLES.iter().map(|table| format!("DELETE FROM {};", table.name)).collect();
    hot.execute_batch(&format!("{clear} DELETE FROM meta; COMMIT; VACUUM")).map_err(at)?;
    drop(hot);
    if !store.is_locked() {
        remove(&path)?; // no Recorder has it open
    }
    Ok(Some(frozen))
}

/// Writes the rows of a table to its cold file.
fn write_table(hot: &Connection, path: &Path, table: &'static Table, cold: &Path) -> Result<u64, IndexError> {
    let io = |error: std::io::Error| IndexError::new(cold, error);
    if let Some(folder) = cold.parent() {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    let temporary = cold.with_extension("parquet.new");
    let file = File::create(&temporary).map_err(io)?;
    let parquet = |error: parquet::errors::ParquetError| IndexError::new(&temporary, error);
    let at = |error: rusqlite::Error| IndexError::sqlite(path, &error);
    let mut writer = TableWriter::new(table, file).map_err(parquet)?;
    let sql = format!("SELECT {} FROM {} ORDER BY {}", table.names(), table.name, table.order);
    let mut statement = hot.prepare(&sql).map_err(at)?;
    let mut rows = statement.query([]).map_err(at)?;
    while let Some(row) = rows.next().map_err(at)? {
        writer.push(row).map_err(parquet)?;
    }
    let (file, total) = writer.finish().map_err(parquet)?;
    file.sync_all().map_err(io)?;
    if !has_rows(table, &temporary, total)? {
        return Err(damaged(&temporary, &"the file lacks rows that were written"));
    }
    std::fs::rename(&temporary, cold).and_then(|()| sync_folder(cold)).map_err(io)?;
    Ok(total)
}

/// Takes the rows of a cold file back into the hot one. Hot rows of the same name win.
fn thaw(hot: &Connection, path: &Path, table: &'static Table, cold: &Path) -> Result<(), IndexError> {
    let at = |error: rusqlite::Error| IndexError::sqlite(path, &error);
    let is_connection = table.name == "connection";
    let (names, count) = match is_connection {
        true => (format!("{}, sni_reversed", table.names()), table.columns.len() + 1),
        false => (table.names(), table.columns.len()),
    };
    let places = vec!["?"; count].join(", ");
    let sql = format!("INSERT OR IGNORE INTO {}({names}) VALUES({places})", table.name);
    let mut insert = hot.prepare(&sql).map_err(at)?;
    let file = TableFile::open(table, cold)?;
    let all: Vec<usize> = (0..table.columns.len()).collect();
    for group in 0..file.groups() {
        let rows = file.read(group, &all, None)?;
        for row in 0..rows.count {
            let mut values = Vec::with_capacity(count);
            for (column, spec) in table.columns.iter().enumerate() {
                values.push(match spec.kind {
                    Kind::Number | Kind::Time if is_absent(spec.name, rows.number(column, row)) => {
                        Value::Null
                    }
                    Kind::Number | Kind::Time => Value::Integer(rows.number(column, row)),
                    Kind::Bytes if rows.bytes(column, row).is_empty() => Value::Null,
                    Kind::Bytes => Value::Blob(rows.bytes(column, row).to_vec()),
                    Kind::Text => Value::Text(String::from_utf8_lossy(rows.bytes(column, row)).into_owned()),
                });
            }
            if is_connection {
                let sni = String::from_utf8_lossy(rows.bytes(table.column("sni"), row)).into_owned();
                values.push(if sni.is_empty() { Value::Null } else { Value::Text(reversed(&sni)) });
            }
            insert.execute(params_from_iter(values)).map_err(at)?;
        }
    }
    Ok(())
}

/// Whether a number stands for an absent one: the columns of a receipt.
fn is_absent(column: &str, number: i64) -> bool {
    number == -1 && matches!(column, "log_index" | "proof_segment" | "proof_offset")
}

fn remove(path: &Path) -> Result<(), IndexError> {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(Path::new(&name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(IndexError::new(path, error));
            }
            _ => {}
        }
    }
    Ok(())
}
