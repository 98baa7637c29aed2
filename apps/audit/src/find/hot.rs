//! Search in the hot file of one day.

use crate::find::address::EndFilter;
use crate::find::query::{Query, SniFilter};
use crate::find::row::{Connection, Counts, ExtentRow, Request, address_of};
use crate::index::{Day, IndexError, RecordPlace, int, open_day, reversed, unsigned};
use rusqlite::types::{Type, Value};
use rusqlite::{OptionalExtension, Row, params, params_from_iter};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const COLUMNS: &str = "number, record_seq, first_ns, last_ns, client, client_port, server, server_port, \
    vlan, sni, alpn, client_random, server_random, version, suite, packets, bytes_c2s, bytes_s2c, holes, is_final, \
    record_segment, record_offset";
const REQUEST_COLUMNS: &str =
    "seq, id, given_id, switch_connection, client_random, n, time_ns, status, audit";
const EXTENTS: &str = "SELECT segment, part, first_offset, last_offset, first_seq, last_seq, packets FROM extent \
    WHERE connection = ?1 ORDER BY segment, part";

const ENVELOPES: &str = "SELECT seq, record_segment, record_offset FROM envelope INDEXED BY envelope_random \
    WHERE born_ns >> 38 = ?1 AND substr(client_random, 1, 8) = ?2 AND client_random = ?3 LIMIT ?4";

/// Hot file of one day, open for reading.
#[derive(Debug)]
pub(crate) struct HotDay {
    path: PathBuf,
    file: rusqlite::Connection,
    /// Longest duration of a connection of the day.
    longest_ns: u64,
}

/// Most buckets that are counted through without a look at which exist.
const BUCKETS_DENSE: u64 = 10_000;

/// Statement over one bucket at a time.
struct Select {
    sql: String,
    values: Vec<Value>,
    has_bucket: bool,
    /// Place of the end of the period among the values.
    to_at: usize,
}

impl Select {
    fn new(query: &Query, longest_ns: u64, order: &str) -> Select {
        let mut conditions = Conditions::default();
        let has_bucket = query.has_bucket_index();
        if has_bucket {
            conditions.push("number >> 17 = ?", [Value::Null]);
        }
        let index = push_conditions(query, &mut conditions);
        let earliest = query.from_ns.saturating_sub(longest_ns);
        let to_at = conditions.values.len() + 1;
        let times = [earliest, query.to_ns, query.from_ns].map(|ns| Value::Integer(clamped(ns)));
        conditions.push("first_ns >= ? AND first_ns <= ? AND last_ns >= ?", times);
        let filter = conditions.texts.join(" AND ");
        let sql = format!("SELECT {COLUMNS} FROM connection {index} WHERE {filter} {order}");
        Select { sql, values: conditions.values, has_bucket, to_at }
    }

    fn set(&mut self, bucket: Option<i64>, to_ns: u64) {
        if let (true, Some(bucket)) = (self.has_bucket, bucket) {
            self.values[0] = Value::Integer(bucket);
        }
        self.values[self.to_at] = Value::Integer(clamped(to_ns));
    }
}

/// Statement under construction.
#[derive(Default)]
struct Conditions {
    texts: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    /// Adds a condition. Each `?` stands for one value.
    fn push(&mut self, text: impl Into<String>, values: impl IntoIterator<Item = Value>) {
        self.texts.push(text.into());
        self.values.extend(values);
    }
}

impl HotDay {
    /// Opens the file.
    pub(crate) fn open(path: &Path) -> Result<HotDay, IndexError> {
        let mut day = HotDay { path: path.to_owned(), file: open_day(path)?, longest_ns: 0 };
        day.longest_ns = day.meta("longest_ns").map_err(|error| day.error(&error))?;
        Ok(day)
    }

    /// Connections that meet the query, in the order of their begin, at most `limit`.
    pub(crate) fn connections(&self, query: &Query, limit: usize) -> Result<Vec<Connection>, IndexError> {
        let read = || -> rusqlite::Result<Vec<Connection>> {
            let (mut found, mut to_ns): (Vec<Connection>, u64) = (Vec::new(), query.to_ns);
            let mut select =
                Select::new(query, self.longest_ns, &format!("ORDER BY first_ns, number LIMIT {limit}"));
            let mut statement = self.file.prepare_cached(&select.sql)?;
            for bucket in self.buckets(query)? {
                select.set(bucket?, to_ns);
                let mut rows = statement.query(params_from_iter(&select.values))?;
                while let Some(row) = rows.next()? {
                    found.push(read_connection(row)?);
                }
                if found.len() >= limit {
                    found.sort_by_key(|connection| (connection.first_ns, connection.number));
                    found.truncate(limit);
                    to_ns = found.last().map_or(to_ns, |last| last.first_ns.min(to_ns)); // later ones are of no use
                }
            }
            found.sort_by_key(|connection| (connection.first_ns, connection.number));
            Ok(found)
        };
        read().map_err(|error| self.error(&error))
    }

    /// Calls `each` for every connection that meets the query.
    pub(crate) fn for_each(&self, query: &Query, mut each: impl FnMut(Connection)) -> Result<(), IndexError> {
        let mut read = || -> rusqlite::Result<()> {
            let mut select = Select::new(query, self.longest_ns, "");
            let mut statement = self.file.prepare_cached(&select.sql)?;
            for bucket in self.buckets(query)? {
                select.set(bucket?, query.to_ns);
                let mut rows = statement.query(params_from_iter(&select.values))?;
                while let Some(row) = rows.next()? {
                    each(read_connection(row)?);
                }
            }
            Ok(())
        };
        read().map_err(|error| self.error(&error))
    }

    /// Numbers of the buckets of 131,072 connections that the query has to read; `None` once if its index does not have
    /// them apart.
    fn buckets(
        &self,
        query: &Query,
    ) -> rusqlite::Result<Box<dyn Iterator<Item = rusqlite::Result<Option<i64>>> + '_>> {
        if !query.has_bucket_index() {
            return Ok(Box::new(std::iter::once(Ok(None))));
        }
        let sql =
            "SELECT (SELECT min(number) FROM connection) >> 17, (SELECT max(number) FROM connection) >> 17";
        let (first, last): (Option<i64>, Option<i64>) =
            self.file.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let Some((first, last)) = first.zip(last) else { return Ok(Box::new(std::iter::empty())) };
        if last.abs_diff(first) <= BUCKETS_DENSE {
            return Ok(Box::new((first..=last).map(|bucket| Ok(Some(bucket)))));
        }
        // Numbers with large holes: a Recorder has none, a hostile segment may.
        let mut next = self
            .file
            .prepare("SELECT number >> 17 FROM connection WHERE number >= ?1 ORDER BY number LIMIT 1")?;
        let mut from = Some(i64::MIN);
        Ok(Box::new(std::iter::from_fn(move || {
            let bucket: rusqlite::Result<Option<i64>> = next.query_row([from?], |row| row.get(0)).optional();
            from = bucket
                .as_ref()
                .ok()
                .copied()
                .flatten()
                .and_then(|bucket| bucket.checked_add(1)?.checked_mul(1 << 17));
            bucket.transpose().map(|bucket| bucket.map(Some))
        })))
    }

    /// Requests with this id, the switch's or the client's, at most `limit`.
    pub(crate) fn requests(&self, id: &str, limit: usize) -> Result<Vec<Request>, IndexError> {
        let read = || -> rusqlite::Result<Vec<Request>> {
            let sql = format!(
                "SELECT {REQUEST_COLUMNS} FROM request WHERE id = ?1 \
                 UNION SELECT {REQUEST_COLUMNS} FROM request WHERE given_id = ?1 AND given_id <> '' \
                 ORDER BY 1 LIMIT {limit}"
            );
            let mut statement = self.file.prepare_cached(&sql)?;
            statement.query_map([id], read_request)?.collect()
        };
        read().map_err(|error| self.error(&error))
    }

    /// Calls `each` for every request of the day.
    pub(crate) fn for_each_request(
        &self,
        mut each: impl FnMut(Request) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let at = |error: rusqlite::Error| self.error(&error);
        let sql = format!("SELECT {REQUEST_COLUMNS} FROM request ORDER BY seq");
        let mut statement = self.file.prepare_cached(&sql).map_err(at)?;
        let mut rows = statement.query([]).map_err(at)?;
        while let Some(row) = rows.next().map_err(at)? {
            each(read_request(row).map_err(at)?)?;
        }
        Ok(())
    }

    /// Whether the file has a request of this number.
    pub(crate) fn has_request(&self, seq: u64) -> Result<bool, IndexError> {
        let read = || self.file.prepare_cached("SELECT 1 FROM request WHERE seq = ?1")?.exists([int(seq)]);
        read().map_err(|error| self.error(&error))
    }

    /// Extents of a connection in this day.
    pub(crate) fn extents(&self, connection: u64) -> Result<Vec<ExtentRow>, IndexError> {
        let read = || -> rusqlite::Result<Vec<ExtentRow>> {
            let mut statement = self.file.prepare_cached(EXTENTS)?;
            statement.query_map([int(connection)], read_extent)?.collect()
        };
        read().map_err(|error| self.error(&error))
    }

    /// Places of envelopes with this client random, at most `limit`. `day` is the file's own.
    pub(crate) fn envelopes(
        &self,
        day: Day,
        random: &[u8; 32],
        limit: usize,
    ) -> Result<Vec<RecordPlace>, IndexError> {
        let read = || -> rusqlite::Result<Vec<RecordPlace>> {
            let (mut statement, mut found) = (self.file.prepare_cached(ENVELOPES)?, Vec::new());
            for bucket in day.first_ns() >> 38..=day.last_ns() >> 38 {
                // From 2^63 ns on the column is negative, and its bucket, too.
                let bucket = int(bucket << 38) >> 38;
                let left = (limit - found.len()) as i64;
                let mut rows = statement.query(params![bucket, &random[..8], random, left])?;
                while let Some(row) = rows.next()? {
                    let number = |at: usize| row.get(at).map(unsigned);
                    found.push(RecordPlace { seq: number(0)?, segment: number(1)?, offset: number(2)? });
                }
            }
            Ok(found)
        };
        read().map_err(|error| self.error(&error))
    }

    /// Whether the file has a row of this connection.
    pub(crate) fn has(&self, connection: u64) -> Result<bool, IndexError> {
        let sql = "SELECT 1 FROM connection WHERE number = ?1";
        let read = || self.file.prepare_cached(sql)?.exists([int(connection)]);
        read().map_err(|error| self.error(&error))
    }

    /// Latest time of a connection that began in this day.
    pub(crate) fn latest_ns(&self) -> Result<u64, IndexError> {
        self.meta("last_ns").map_err(|error| self.error(&error))
    }

    fn meta(&self, key: &str) -> rusqlite::Result<u64> {
        let sql = "SELECT coalesce(max(value), 0) FROM meta WHERE key = ?1";
        self.file.prepare_cached(sql)?.query_row([key], |row| row.get(0)).map(unsigned)
    }

    /// An error of this file.
    pub(crate) fn error(&self, error: &rusqlite::Error) -> IndexError {
        IndexError::sqlite(&self.path, error)
    }
}

/// Adds a query's conditions. Answers the index to use: the planner has no statistics of the file, and would walk a
/// whole day in the order of time.
fn push_conditions(query: &Query, conditions: &mut Conditions) -> &'static str {
    let mut index = "INDEXED BY connection_time";
    if let Some(server) = &query.server
        && push_end(conditions, "server", server)
    {
        index = "INDEXED BY connection_server";
    }
    if let Some(sni) = &query.sni {
        push_sni(conditions, sni);
        index = "INDEXED BY connection_sni";
    }
    if let Some(client) = &query.client
        && push_end(conditions, "client", client)
    {
        index = "INDEXED BY connection_client";
    }
    if let Some(random) = &query.client_random {
        push_random(conditions, random);
        index = "INDEXED BY connection_random";
    }
    if let Some(number) = query.connection {
        conditions.push("number = ?", [Value::Integer(int(number))]);
        index = "NOT INDEXED"; // by number
    }
    index
}

/// Adds the condition on an end; whether it has an address, so that its index helps.
fn push_end(conditions: &mut Conditions, end: &str, filter: &EndFilter) -> bool {
    if let Some(port) = filter.port {
        conditions.push(format!("{end}_port = ?"), [Value::Integer(port.into())]);
    }
    let Some(range) = filter.range() else { return false };
    if range.first == range.last {
        conditions.push(format!("{end} = ?"), [Value::Blob(range.first)]);
    } else {
        let length = range.first.len() as i64;
        conditions.push(
            format!("{end} BETWEEN ? AND ? AND length({end}) = ?"),
            [Value::Blob(range.first), Value::Blob(range.last), Value::Integer(length)],
        );
    }
    true
}

fn push_sni(conditions: &mut Conditions, sni: &SniFilter) {
    match sni {
        SniFilter::Name(name) => conditions.push("sni_reversed = ?", [Value::Text(reversed(name))]),
        SniFilter::Domain(domain) => {
            let begin = reversed(domain); // ends with a dot, and '/' follows the dot
            let end = format!("{}/", &begin[..begin.len() - 1]);
            conditions.push("sni_reversed > ? AND sni_reversed < ?", [Value::Text(begin), Value::Text(end)]);
        }
    }
}

fn push_random(conditions: &mut Conditions, prefix: &[u8]) {
    conditions.push("client_random IS NOT NULL", []);
    let key = &prefix[..prefix.len().min(8)];
    if key.len() == 8 {
        conditions.push("substr(client_random, 1, 8) = ?", [Value::Blob(key.to_vec())]);
    } else {
        let mut last = key.to_vec();
        last.resize(8, 0xff);
        let range = [Value::Blob(key.to_vec()), Value::Blob(last)];
        conditions.push("substr(client_random, 1, 8) BETWEEN ? AND ?", range);
    }
    if prefix.len() > 8 {
        let text = format!("substr(client_random, 1, {}) = ?", prefix.len());
        conditions.push(text, [Value::Blob(prefix.to_vec())]);
    }
}

/// A time as a bound: times of the index beyond 2^63 are negative and never found by time.
fn clamped(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

fn read_connection(row: &Row<'_>) -> rusqlite::Result<Connection> {
    let number = |at: usize| row.get(at).map(unsigned);
    let end = |at: usize| -> rusqlite::Result<SocketAddr> {
        let bytes = row.get_ref(at)?.as_blob().map_err(|_| invalid(at, Type::Blob))?;
        let address = address_of(bytes).ok_or_else(|| invalid(at, Type::Blob))?;
        Ok(SocketAddr::new(address, row.get(at + 1)?))
    };
    Ok(Connection {
        number: number(0)?,
        record: RecordPlace { seq: number(1)?, segment: number(20)?, offset: number(21)? },
        first_ns: number(2)?,
        last_ns: number(3)?,
        client: end(4)?,
        server: end(6)?,
        vlan: row.get(8)?,
        sni: row.get(9)?,
        alpn: row.get(10)?,
        client_random: row.get(11)?,
        server_random: row.get(12)?,
        version: row.get(13)?,
        suite: row.get(14)?,
        counts: Counts {
            packets: number(15)?,
            bytes_c2s: number(16)?,
            bytes_s2c: number(17)?,
            holes: number(18)?,
            is_final: row.get(19)?,
        },
    })
}

fn read_request(row: &Row<'_>) -> rusqlite::Result<Request> {
    let number = |at: usize| row.get(at).map(unsigned);
    Ok(Request {
        seq: number(0)?,
        id: row.get(1)?,
        given_id: row.get(2)?,
        switch_connection: number(3)?,
        client_random: row.get(4)?,
        n: row.get(5)?,
        time_ns: number(6)?,
        status: row.get(7)?,
        audit: row.get(8)?,
    })
}

fn read_extent(row: &Row<'_>) -> rusqlite::Result<ExtentRow> {
    let number = |at: usize| row.get(at).map(unsigned);
    Ok(ExtentRow {
        segment: number(0)?,
        part: number(1)?,
        first_offset: number(2)?,
        last_offset: number(3)?,
        first_seq: number(4)?,
        last_seq: number(5)?,
        packets: number(6)?,
    })
}

fn invalid(column: usize, kind: Type) -> rusqlite::Error {
    rusqlite::Error::InvalidColumnType(column, "value".into(), kind)
}
