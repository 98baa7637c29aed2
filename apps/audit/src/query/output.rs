//! Rows of a statement as a table or as JSON.

use crate::cli::Failure;
use crate::find::hex;
use crate::output::{closed, print_json};
use evergate_base::terminal::shown;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use serde_json::{Map, Value};
use std::io::Write;

/// Most rows of a table; JSON has no limit.
const TABLE_ROWS_MAX: usize = 10_000;
/// Widest cell of a table in characters.
const CELL_WIDTH_MAX: usize = 80;

/// Runs a statement that reads, and prints its rows.
pub(super) fn print(database: &Connection, sql: &str, is_json: bool) -> Result<(), Failure> {
    let wrong = |error: rusqlite::Error| Failure::wrong(format!("query: {error}"));
    let mut statement = database.prepare(sql).map_err(wrong)?;
    if !statement.readonly() || statement.column_count() == 0 {
        return Err(Failure::wrong("query: the statement is no SELECT; the index is only read"));
    }
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut rows = statement.query([]).map_err(wrong)?;
    let mut table = vec![columns.iter().map(|name| name.to_uppercase()).collect::<Vec<_>>()];
    while let Some(row) = rows.next().map_err(wrong)? {
        if is_json {
            print_json(&object(&columns, row).map_err(wrong)?)?;
        } else if table.len() <= TABLE_ROWS_MAX {
            let cells =
                (0..columns.len()).map(|at| Ok(cell(row.get_ref(at)?))).collect::<rusqlite::Result<_>>();
            table.push(cells.map_err(wrong)?);
        } else {
            eprintln!("query: there are more than {TABLE_ROWS_MAX} rows; add a LIMIT, or use --json");
            break;
        }
    }
    if is_json { Ok(()) } else { print_table(&table) }
}

fn object(columns: &[String], row: &Row<'_>) -> rusqlite::Result<Value> {
    let mut object = Map::new();
    for (at, name) in columns.iter().enumerate() {
        let value = match row.get_ref(at)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => number.into(),
            ValueRef::Real(number) => number.into(),
            ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
            ValueRef::Blob(bytes) => hex(bytes).into(),
        };
        object.insert(name.clone(), value);
    }
    Ok(Value::Object(object))
}

fn cell(value: ValueRef<'_>) -> String {
    let text = match value {
        ValueRef::Null => "-".into(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => shown(&String::from_utf8_lossy(text)).into_owned(),
        ValueRef::Blob(bytes) => hex(bytes),
    };
    match text.chars().count() > CELL_WIDTH_MAX {
        true => text.chars().take(CELL_WIDTH_MAX - 1).chain(['…']).collect(),
        false => text,
    }
}

fn print_table(lines: &[Vec<String>]) -> Result<(), Failure> {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let text = cells.collect::<Vec<_>>().join("  ");
        writeln!(out, "{}", text.trim_end()).map_err(closed)?;
    }
    out.flush().map_err(closed)
}
