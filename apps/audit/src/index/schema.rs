//! Tables of the index, and the check that a file has exactly these tables.
//!
//! A file of the index may come from elsewhere. A file with other tables, views or triggers is refused before any query
//! runs on it.

use crate::index::IndexError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// Letters of our formats, as SQLite's application id: `EVG1`.
const APPLICATION: i32 = i32::from_be_bytes(*b"EVG1");
/// Version of all files of the index. A file of another version is refused, and a rebuild replaces it.
const VERSION: i32 = 2;
/// Time that a writer waits for another writer.
const BUSY: Duration = Duration::from_secs(10);

/// Name and SQL of each object of a file.
pub(crate) type Schema = &'static [(&'static str, &'static str)];

/// Objects of a day's file. An address has 4 bytes or 16. A random of zeros is NULL. `sni` is in lower case;
/// `sni_reversed` has its characters from the last to the first, so that a domain's hosts are one range.
///
/// Keys that come in random order are apart for each 131,072 connections. Their pages are few and in memory while rows
/// are inserted; over ten million connections each row would write one page for each index. Envelopes are apart for
/// each 2^38 ns, 4.6 minutes: their numbers count packets as well.
pub(crate) const DAY: Schema = &[
    (
        "connection",
        "CREATE TABLE connection(number INTEGER PRIMARY KEY, record_seq INTEGER NOT NULL, \
         first_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL, client BLOB NOT NULL, client_port INTEGER NOT NULL, \
         server BLOB NOT NULL, server_port INTEGER NOT NULL, vlan INTEGER NOT NULL, sni TEXT NOT NULL, \
         sni_reversed TEXT, alpn TEXT NOT NULL, client_random BLOB, server_random BLOB, \
         version INTEGER NOT NULL, suite INTEGER NOT NULL, packets INTEGER NOT NULL, bytes_c2s INTEGER NOT NULL, \
         bytes_s2c INTEGER NOT NULL, holes INTEGER NOT NULL, is_final INTEGER NOT NULL, \
         record_segment INTEGER NOT NULL, record_offset INTEGER NOT NULL) STRICT",
    ),
    (
        "connection_random",
        "CREATE INDEX connection_random ON connection(number >> 17, substr(client_random, 1, 8)) \
         WHERE client_random IS NOT NULL",
    ),
    ("connection_time", "CREATE INDEX connection_time ON connection(first_ns)"),
    ("connection_client", "CREATE INDEX connection_client ON connection(number >> 17, client, first_ns)"),
    (
        "connection_server",
        "CREATE INDEX connection_server ON connection(number >> 17, server, server_port, first_ns)",
    ),
    (
        "connection_sni",
        "CREATE INDEX connection_sni ON connection(number >> 17, sni_reversed, first_ns) \
         WHERE sni_reversed IS NOT NULL",
    ),
    (
        "envelope",
        "CREATE TABLE envelope(seq INTEGER PRIMARY KEY, born_ns INTEGER NOT NULL, client_random BLOB NOT NULL, \
         record_segment INTEGER NOT NULL, record_offset INTEGER NOT NULL) STRICT",
    ),
    (
        "envelope_random",
        "CREATE INDEX envelope_random ON envelope(born_ns >> 38, substr(client_random, 1, 8))",
    ),
    (
        "extent",
        "CREATE TABLE extent(connection INTEGER NOT NULL, segment INTEGER NOT NULL, part INTEGER NOT NULL, \
         first_offset INTEGER NOT NULL, last_offset INTEGER NOT NULL, first_seq INTEGER NOT NULL, \
         last_seq INTEGER NOT NULL, first_ns INTEGER NOT NULL, packets INTEGER NOT NULL, \
         PRIMARY KEY(connection, segment, part)) STRICT, WITHOUT ROWID",
    ),
    (
        "request",
        "CREATE TABLE request(seq INTEGER PRIMARY KEY, id TEXT NOT NULL, given_id TEXT NOT NULL, \
         switch_connection INTEGER NOT NULL, client_random BLOB, n INTEGER NOT NULL, time_ns INTEGER NOT NULL, \
         status INTEGER NOT NULL, audit INTEGER NOT NULL) STRICT",
    ),
    ("request_id", "CREATE INDEX request_id ON request(id)"),
    ("request_given", "CREATE INDEX request_given ON request(given_id) WHERE given_id <> ''"),
    (
        "batch",
        "CREATE TABLE batch(batch INTEGER PRIMARY KEY, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL, \
         first_ns INTEGER NOT NULL, log_index INTEGER, proof_segment INTEGER, proof_offset INTEGER) STRICT",
    ),
    ("meta", "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID"),
];

/// Objects of `segments.sqlite`. `proofs_bytes`: bytes of the `.proofs` file that the index has.
pub(crate) const SEGMENTS: Schema = &[(
    "segment",
    "CREATE TABLE segment(number INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, first_seq INTEGER NOT NULL, \
     last_seq INTEGER NOT NULL, first_ns INTEGER, last_ns INTEGER, is_closed INTEGER NOT NULL, \
     is_complete INTEGER NOT NULL, proofs_bytes INTEGER NOT NULL) STRICT",
)];

/// Opens a file for writing. A file that does not exist is created.
pub(crate) fn open_to_write(path: &Path, schema: Schema) -> Result<Connection, IndexError> {
    let at = |error: rusqlite::Error| IndexError::sqlite(path, &error);
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(at)?;
    prepare(&connection).map_err(at)?;
    let create = || -> rusqlite::Result<()> {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "cache_size", -65_536)?;
        connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let objects: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if objects == 0 {
            for (_, sql) in schema {
                connection.execute_batch(sql)?;
            }
            connection.pragma_update(None, "application_id", APPLICATION)?;
            connection.pragma_update(None, "user_version", VERSION)?;
        }
        connection.execute_batch("COMMIT")
    };
    create().map_err(at)?;
    check(path, &connection, schema)?;
    Ok(connection)
}

/// Opens a file for reading; it must exist.
///
/// A reader without the right to write the folder cannot share memory with a writer. If no writer has the file open,
/// the file itself has everything, and is read as it is.
pub(crate) fn open_to_read(path: &Path, schema: Schema) -> Result<Connection, IndexError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let shared =
        Connection::open_with_flags(path, flags).map_err(|error| IndexError::sqlite(path, &error))?;
    match prepare(&shared)
        .map_err(|error| IndexError::sqlite(path, &error))
        .and_then(|()| check(path, &shared, schema))
    {
        Ok(()) => return Ok(shared),
        Err(error) if has_log(path) => return Err(error),
        Err(_) => {}
    }
    let at = |error: rusqlite::Error| IndexError::sqlite(path, &error);
    let alone = Connection::open_with_flags(
        format!("file:{}?immutable=1", uri_path(path)),
        flags | OpenFlags::SQLITE_OPEN_URI,
    )
    .map_err(at)?;
    prepare(&alone).map_err(at)?;
    check(path, &alone, schema)?;
    Ok(alone)
}

/// Whether a write-ahead log with content lies beside the file.
fn has_log(path: &Path) -> bool {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).is_ok_and(|log| log.len() > 0)
}

/// Path in a URI of SQLite.
fn uri_path(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._".contains(byte);
    let encode = |byte: &u8| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    path.as_os_str().as_bytes().iter().map(encode).collect()
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// Refuses a file that has other objects than the schema.
fn check(path: &Path, connection: &Connection, schema: Schema) -> Result<(), IndexError> {
    type Objects = Vec<(String, String)>;
    let read = || -> rusqlite::Result<(i32, i32, Objects)> {
        let application = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let sql = "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_autoindex_%' LIMIT 100";
        let mut statement = connection.prepare(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok((application, version, rows.collect::<rusqlite::Result<_>>()?))
    };
    let (application, version, mut objects) = read().map_err(|error| IndexError::sqlite(path, &error))?;
    objects.sort_unstable();
    let mut expected: Objects =
        schema.iter().map(|(name, sql)| ((*name).to_owned(), (*sql).to_owned())).collect();
    expected.sort_unstable();
    let same = objects == expected;
    if application == APPLICATION && version == VERSION && same {
        return Ok(());
    }
    Err(IndexError::new(path, "is not an index of this version; run `evergate-audit index DIR --rebuild`"))
}
