//! Search in the cold files of one day.

use crate::cold::file::{Rows, TableFile, damaged};
use crate::cold::tables::{CONNECTION, ENVELOPE, EXTENT, REQUEST, Table};
use crate::find::{Connection, Counts, ExtentRow, Query, Request, address_of};
use crate::index::{Day, IndexError, RecordPlace, days_in, int, unsigned};
use crate::store::Store;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

/// Days with cold files.
pub(crate) fn cold_days(store: &Store) -> Result<BTreeSet<Day>, IndexError> {
    Ok(days_in(&store.cold().join(CONNECTION.name), "parquet")?.into_iter().collect())
}

/// Calls `each` for the connections of a day that meet the query, in the order of their begin, until it has taken
/// `limit` of them.
pub(crate) fn cold_for_each(
    store: &Store,
    day: Day,
    query: &Query,
    limit: usize,
    mut each: impl FnMut(Connection) -> Result<bool, IndexError>,
) -> Result<(), IndexError> {
    let path = CONNECTION.path(store, day);
    let file = TableFile::open(&CONNECTION, &path)?;
    let (key, mut found) = (QueryKey::new(query), 0);
    for group in 0..file.groups() {
        if found >= limit {
            break;
        }
        if !key.may_have(&file, group)? {
            continue;
        }
        let rows = file.read(group, &key.columns, None)?;
        let wanted: Vec<usize> = (0..rows.count).filter(|row| key.meets(&rows, *row)).collect();
        if wanted.is_empty() {
            continue;
        }
        let all: Vec<usize> = (0..CONNECTION.columns.len()).collect();
        let rows = file.read(group, &all, Some(&wanted))?;
        for row in 0..rows.count {
            let connection =
                connection(&rows, row).ok_or_else(|| damaged(&path, &"a row has an invalid value"))?;
            if found < limit && query.matches(&connection) && each(connection)? {
                found += 1;
            }
        }
    }
    Ok(())
}

/// Requests of a day with this id, at most `limit`.
pub(crate) fn cold_requests(
    store: &Store,
    day: Day,
    id: &str,
    limit: usize,
) -> Result<Vec<Request>, IndexError> {
    let path = REQUEST.path(store, day);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let file = TableFile::open(&REQUEST, &path)?;
    let keys = [REQUEST.column("id"), REQUEST.column("given_id")];
    let mut found = Vec::new();
    for group in 0..file.groups() {
        if !file.may_have(group, keys[0], id.as_bytes())? && !file.may_have(group, keys[1], id.as_bytes())? {
            continue;
        }
        let rows = file.read(group, &keys, None)?;
        let is_wanted = |row: &usize| keys.iter().any(|key| rows.bytes(*key, *row) == id.as_bytes());
        let mut wanted: Vec<usize> = (0..rows.count).filter(is_wanted).collect();
        wanted.truncate(limit - found.len());
        if wanted.is_empty() {
            continue;
        }
        let rows = file.read(group, &(0..REQUEST.columns.len()).collect::<Vec<_>>(), Some(&wanted))?;
        for row in 0..rows.count {
            found.push(request(&rows, row).ok_or_else(|| damaged(&path, &"a row has an invalid value"))?);
        }
    }
    Ok(found)
}

/// Calls `each` for the requests of a day.
pub(crate) fn cold_for_each_request(
    store: &Store,
    day: Day,
    mut each: impl FnMut(Request) -> Result<(), IndexError>,
) -> Result<(), IndexError> {
    let path = REQUEST.path(store, day);
    if !path.exists() {
        return Ok(());
    }
    let file = TableFile::open(&REQUEST, &path)?;
    let all: Vec<usize> = (0..REQUEST.columns.len()).collect();
    for group in 0..file.groups() {
        let rows = file.read(group, &all, None)?;
        for row in 0..rows.count {
            each(request(&rows, row).ok_or_else(|| damaged(&path, &"a row has an invalid value"))?)?;
        }
    }
    Ok(())
}

/// Extents of a connection in a day.
pub(crate) fn cold_extents(store: &Store, day: Day, connection: u64) -> Result<Vec<ExtentRow>, IndexError> {
    let path = EXTENT.path(store, day);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let file = TableFile::open(&EXTENT, &path)?;
    let (key, number) = (EXTENT.column("connection"), int(connection));
    let mut found = Vec::new();
    for group in 0..file.groups() {
        let (min, max) = file.range(group, key);
        if !(min..=max).contains(&number) {
            continue;
        }
        let rows = file.read(group, &[key], None)?;
        let wanted: Vec<usize> = (0..rows.count).filter(|row| rows.number(key, *row) == number).collect();
        if wanted.is_empty() {
            continue;
        }
        let rows = file.read(group, &(0..EXTENT.columns.len()).collect::<Vec<_>>(), Some(&wanted))?;
        found.extend((0..rows.count).map(|row| extent(&rows, row)));
    }
    Ok(found)
}

/// Places of envelopes of a day with this client random, at most `limit`.
pub(crate) fn cold_envelopes(
    store: &Store,
    day: Day,
    random: &[u8; 32],
    limit: usize,
) -> Result<Vec<RecordPlace>, IndexError> {
    let path = ENVELOPE.path(store, day);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let file = TableFile::open(&ENVELOPE, &path)?;
    let key = ENVELOPE.column("client_random");
    let mut found = Vec::new();
    for group in 0..file.groups() {
        if !file.may_have(group, key, random)? {
            continue;
        }
        let rows = file.read(group, &[key], None)?;
        let mut wanted: Vec<usize> = (0..rows.count).filter(|row| rows.bytes(key, *row) == random).collect();
        wanted.truncate(limit - found.len());
        if wanted.is_empty() {
            continue;
        }
        let rows = file.read(group, &(0..ENVELOPE.columns.len()).collect::<Vec<_>>(), Some(&wanted))?;
        found.extend((0..rows.count).map(|row| {
            let fields = Fields { table: &ENVELOPE, rows: &rows, row };
            let (segment, offset) = (fields.number("record_segment"), fields.number("record_offset"));
            RecordPlace { seq: fields.number("seq"), segment, offset }
        }));
    }
    Ok(found)
}

/// The conditions of a query that columns answer, without building a row.
struct QueryKey<'a> {
    query: &'a Query,
    /// Columns that the conditions need.
    columns: Vec<usize>,
    places: Places,
}

/// Places of the columns of connections.
struct Places {
    number: usize,
    first: usize,
    last: usize,
    client: usize,
    server: usize,
    sni: usize,
    random: usize,
}

impl QueryKey<'_> {
    fn new(query: &Query) -> QueryKey<'_> {
        let at = |name| CONNECTION.column(name);
        let places = Places {
            number: at("number"),
            first: at("first_ns"),
            last: at("last_ns"),
            client: at("client"),
            server: at("server"),
            sni: at("sni"),
            random: at("client_random"),
        };
        let mut columns = vec![places.first, places.last];
        columns.extend(query.connection.map(|_| places.number));
        columns.extend(query.client.map(|_| places.client));
        columns.extend(query.server.map(|_| places.server));
        columns.extend(query.sni.as_ref().map(|_| places.sni));
        columns.extend(query.client_random.as_ref().map(|_| places.random));
        QueryKey { query, columns, places }
    }

    /// Whether a group may have a row that meets the query, by statistics and Bloom filters.
    fn may_have(&self, file: &TableFile, group: usize) -> Result<bool, IndexError> {
        let (first, _) = file.range(group, self.places.first);
        let (_, last) = file.range(group, self.places.last);
        if i128::from(first) > i128::from(self.query.to_ns)
            || i128::from(last) < i128::from(self.query.from_ns)
        {
            return Ok(false);
        }
        if let Some(number) = self.query.connection {
            let (min, max) = file.range(group, self.places.number);
            if !(min..=max).contains(&int(number)) {
                return Ok(false);
            }
        }
        if let Some(random) = self.query.client_random.as_ref().filter(|random| random.len() == 32)
            && !file.may_have(group, self.places.random, random)?
        {
            return Ok(false);
        }
        match self.query.client.and_then(|client| client.range()).filter(|range| range.first == range.last) {
            Some(range) => file.may_have(group, self.places.client, &range.first),
            None => Ok(true),
        }
    }

    /// Whether a row meets the conditions of its columns. Ports are left to the whole row.
    fn meets(&self, rows: &Rows, row: usize) -> bool {
        let (query, places) = (self.query, &self.places);
        let is_end = |filter: &Option<crate::find::EndFilter>, column| {
            let range = filter.as_ref().and_then(|filter| filter.range());
            range.is_none_or(|range| range.contains(rows.bytes(column, row)))
        };
        i128::from(rows.number(places.first, row)) <= i128::from(query.to_ns)
            && i128::from(rows.number(places.last, row)) >= i128::from(query.from_ns)
            && query.connection.is_none_or(|number| int(number) == rows.number(places.number, row))
            && query
                .client_random
                .as_ref()
                .is_none_or(|prefix| rows.bytes(places.random, row).starts_with(prefix))
            && is_end(&query.client, places.client)
            && is_end(&query.server, places.server)
            && query.sni.as_ref().is_none_or(|sni| {
                std::str::from_utf8(rows.bytes(places.sni, row)).is_ok_and(|name| sni.matches(name))
            })
    }
}

/// Reader of the fields of a row by the name of their column.
struct Fields<'a> {
    table: &'static Table,
    rows: &'a Rows,
    row: usize,
}

impl Fields<'_> {
    fn number(&self, name: &str) -> u64 {
        unsigned(self.rows.number(self.table.column(name), self.row))
    }

    fn small<T: TryFrom<u64>>(&self, name: &str) -> Option<T> {
        T::try_from(self.number(name)).ok()
    }

    fn text(&self, name: &str) -> Option<String> {
        std::str::from_utf8(self.rows.bytes(self.table.column(name), self.row)).ok().map(str::to_owned)
    }

    fn random(&self, name: &str) -> Option<Option<[u8; 32]>> {
        match self.rows.bytes(self.table.column(name), self.row) {
            [] => Some(None),
            bytes => bytes.try_into().ok().map(Some),
        }
    }

    fn end(&self, address: &str, port: &str) -> Option<SocketAddr> {
        let bytes = self.rows.bytes(self.table.column(address), self.row);
        Some(SocketAddr::new(address_of(bytes)?, self.small(port)?))
    }
}

fn connection(rows: &Rows, row: usize) -> Option<Connection> {
    let fields = Fields { table: &CONNECTION, rows, row };
    Some(Connection {
        number: fields.number("number"),
        record: RecordPlace {
            seq: fields.number("record_seq"),
            segment: fields.number("record_segment"),
            offset: fields.number("record_offset"),
        },
        first_ns: fields.number("first_ns"),
        last_ns: fields.number("last_ns"),
        client: fields.end("client", "client_port")?,
        server: fields.end("server", "server_port")?,
        vlan: fields.small("vlan")?,
        sni: fields.text("sni")?,
        alpn: fields.text("alpn")?,
        client_random: fields.random("client_random")?,
        server_random: fields.random("server_random")?,
        version: fields.small("version")?,
        suite: fields.small("suite")?,
        counts: Counts {
            packets: fields.number("packets"),
            bytes_c2s: fields.number("bytes_c2s"),
            bytes_s2c: fields.number("bytes_s2c"),
            holes: fields.number("holes"),
            is_final: fields.number("is_final") == 1,
        },
    })
}

fn request(rows: &Rows, row: usize) -> Option<Request> {
    let fields = Fields { table: &REQUEST, rows, row };
    Some(Request {
        seq: fields.number("seq"),
        id: fields.text("id")?,
        given_id: fields.text("given_id")?,
        switch_connection: fields.number("switch_connection"),
        client_random: fields.random("client_random")?,
        n: fields.small("n")?,
        time_ns: fields.number("time_ns"),
        status: fields.small("status")?,
        audit: fields.small("audit")?,
    })
}

fn extent(rows: &Rows, row: usize) -> ExtentRow {
    let fields = Fields { table: &EXTENT, rows, row };
    ExtentRow {
        segment: fields.number("segment"),
        part: fields.number("part"),
        first_offset: fields.number("first_offset"),
        last_offset: fields.number("last_offset"),
        first_seq: fields.number("first_seq"),
        last_seq: fields.number("last_seq"),
        packets: fields.number("packets"),
    }
}

/// Whether a file has this number of rows: the check of a file that was just written.
pub(super) fn has_rows(table: &'static Table, path: &Path, rows: u64) -> Result<bool, IndexError> {
    Ok(TableFile::open(table, path)?.rows() == rows)
}
