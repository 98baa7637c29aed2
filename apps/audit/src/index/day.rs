//! Hot file of one day: upserts within transactions.

use crate::index::rows::{BatchRow, EnvelopeRow, IndexEvent, RecordPlace, RequestRow, text_of};
use crate::index::{IndexError, schema};
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::extents::Extent;
use rusqlite::{Connection, ToSql, params};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const CONNECTION: &str = "INSERT INTO connection(number, record_seq, first_ns, last_ns, client, client_port, server, \
    server_port, vlan, sni, sni_reversed, alpn, client_random, server_random, version, suite, packets, bytes_c2s, \
    bytes_s2c, holes, is_final, record_segment, record_offset) \
    VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23) \
    ON CONFLICT(number) DO UPDATE SET record_seq=?2, first_ns=?3, last_ns=?4, client=?5, client_port=?6, server=?7, \
    server_port=?8, vlan=?9, sni=?10, sni_reversed=?11, alpn=?12, client_random=?13, server_random=?14, version=?15, \
    suite=?16, packets=?17, bytes_c2s=?18, bytes_s2c=?19, holes=?20, is_final=?21, \
    record_segment=?22, record_offset=?23 WHERE ?2 > record_seq";
const ENVELOPE: &str = "INSERT OR REPLACE INTO envelope(seq, born_ns, client_random, record_segment, record_offset) \
    VALUES(?1,?2,?3,?4,?5)";
const EXTENT: &str = "INSERT INTO extent(connection, segment, part, first_offset, last_offset, first_seq, last_seq, \
    first_ns, packets) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9) ON CONFLICT(connection, segment, part) DO UPDATE SET \
    first_offset=?4, last_offset=?5, first_seq=?6, last_seq=?7, first_ns=?8, packets=?9 WHERE ?9 > packets";
const REQUEST: &str = "INSERT OR REPLACE INTO request(seq, id, given_id, switch_connection, client_random, n, \
    time_ns, status, audit) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)";
const BATCH: &str = "INSERT INTO batch(batch, first_seq, last_seq, first_ns, log_index, proof_segment, proof_offset) \
    VALUES(?1,?2,?3,?4,?5,?6,?7) ON CONFLICT(batch) DO UPDATE SET first_seq=?2, last_seq=?3, first_ns=?4, \
    log_index=?5, proof_segment=?6, proof_offset=?7 WHERE ?5 IS NOT NULL";
const META: &str = "INSERT INTO meta(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2 \
    WHERE ?2 > value";

/// Longest duration of a connection of the day in nanoseconds.
const LONGEST: &str = "longest_ns";
/// Latest `last_ns` of a connection of the day.
const LATEST: &str = "last_ns";

/// Hot file of one day, open for writing.
#[derive(Debug)]
pub struct DayFile {
    path: PathBuf,
    connection: Connection,
    has_transaction: bool,
    longest_ns: u64,
    latest_ns: u64,
}

impl DayFile {
    /// Opens the file; it is created if it does not exist.
    pub fn open(path: &Path) -> Result<DayFile, IndexError> {
        let connection = schema::open_to_write(path, schema::DAY)?;
        Ok(DayFile { path: path.to_owned(), connection, has_transaction: false, longest_ns: 0, latest_ns: 0 })
    }

    /// Writes a row into the current transaction, and begins one if there is none.
    pub fn write(&mut self, event: &IndexEvent) -> Result<(), IndexError> {
        if !self.has_transaction {
            self.connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| self.error(&error))?;
            self.has_transaction = true;
        }
        let written = match event {
            IndexEvent::Connection(record, place) => self.write_connection(record, *place),
            IndexEvent::Envelope(envelope) => self.write_envelope(envelope),
            IndexEvent::Extent(extent) => self.write_extent(extent),
            IndexEvent::Request(request) => self.write_request(request),
            IndexEvent::Batch(batch) => self.write_batch(batch),
            IndexEvent::Segment(_) => Ok(()), // in a file of its own
        };
        written.map_err(|error| self.error(&error))
    }

    /// Makes the rows visible to readers.
    pub fn commit(&mut self) -> Result<(), IndexError> {
        if !std::mem::take(&mut self.has_transaction) {
            return Ok(());
        }
        let commit = || -> rusqlite::Result<()> {
            if self.latest_ns > 0 {
                let mut meta = self.connection.prepare_cached(META)?;
                meta.execute(params![LONGEST, int(self.longest_ns)])?;
                meta.execute(params![LATEST, int(self.latest_ns)])?;
            }
            self.connection.execute_batch("COMMIT")
        };
        commit().map_err(|error| self.error(&error))
    }

    /// Makes the visible rows durable.
    pub fn sync(&self) -> Result<(), IndexError> {
        let checkpoint = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        checkpoint.map_err(|error| self.error(&error))
    }

    fn write_connection(&mut self, record: &ConnectionRecord, place: RecordPlace) -> rusqlite::Result<()> {
        let (ends, counts, tls) = (&record.endpoints, &record.counts, &record.tls);
        self.longest_ns = self.longest_ns.max(counts.last_ns.saturating_sub(counts.first_ns));
        self.latest_ns = self.latest_ns.max(counts.last_ns);
        let sni = text_of(&tls.sni).to_ascii_lowercase();
        let reversed: Option<String> = (!sni.is_empty()).then(|| reversed(&sni));
        self.connection.prepare_cached(CONNECTION)?.execute(params![
            int(record.connection),
            int(place.seq),
            int(counts.first_ns),
            int(counts.last_ns),
            address(ends.client.ip()).as_ref(),
            ends.client.port(),
            address(ends.server.ip()).as_ref(),
            ends.server.port(),
            ends.vlan,
            sni,
            reversed,
            text_of(&tls.alpn),
            random(&tls.client_random),
            random(&tls.server_random),
            tls.version,
            tls.suite,
            int(counts.packets),
            int(counts.bytes_c2s),
            int(counts.bytes_s2c),
            int(counts.holes),
            record.is_final,
            int(place.segment),
            int(place.offset),
        ])?;
        Ok(())
    }

    fn write_envelope(&self, envelope: &EnvelopeRow) -> rusqlite::Result<()> {
        self.connection.prepare_cached(ENVELOPE)?.execute(params![
            int(envelope.place.seq),
            int(envelope.born_ns),
            envelope.client_random,
            int(envelope.place.segment),
            int(envelope.place.offset),
        ])?;
        Ok(())
    }

    fn write_extent(&self, extent: &Extent) -> rusqlite::Result<()> {
        self.connection.prepare_cached(EXTENT)?.execute(params![
            int(extent.connection),
            int(extent.segment),
            int(extent.part()),
            int(extent.first_offset),
            int(extent.last_offset),
            int(extent.first_seq),
            int(extent.last_seq),
            int(extent.first_ns),
            int(extent.packets),
        ])?;
        Ok(())
    }

    fn write_request(&self, request: &RequestRow) -> rusqlite::Result<()> {
        self.connection.prepare_cached(REQUEST)?.execute(params![
            int(request.seq),
            text_of(&request.id),
            text_of(&request.given_id),
            int(request.switch_connection),
            random(&request.client_random),
            request.n,
            int(request.time_ns),
            request.status,
            request.flags,
        ])?;
        Ok(())
    }

    fn write_batch(&self, batch: &BatchRow) -> rusqlite::Result<()> {
        self.connection.prepare_cached(BATCH)?.execute(params![
            int(batch.batch),
            int(batch.first_seq),
            int(batch.last_seq),
            int(batch.first_ns),
            batch.proof.map(|proof| int(proof.log_index)),
            batch.proof.map(|proof| int(proof.segment)),
            batch.proof.map(|proof| int(proof.offset)),
        ])?;
        Ok(())
    }

    fn error(&self, error: &rusqlite::Error) -> IndexError {
        IndexError::sqlite(&self.path, error)
    }
}

/// A number as SQLite has it. Numbers from 2^63 on are negative there; [`unsigned`] reverses it.
pub(crate) fn int(value: u64) -> i64 {
    value as i64
}

/// A number from SQLite.
pub(crate) fn unsigned(value: i64) -> u64 {
    value as u64
}

/// The 4 or 16 bytes of an address.
pub(crate) fn address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => Address::V4(address.octets()),
        IpAddr::V6(address) => Address::V6(address.octets()),
    }
}

/// The bytes of an address.
pub(crate) enum Address {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl AsRef<[u8]> for Address {
    fn as_ref(&self) -> &[u8] {
        match self {
            Address::V4(bytes) => bytes,
            Address::V6(bytes) => bytes,
        }
    }
}

/// The characters of a text from the last to the first.
pub(crate) fn reversed(text: &str) -> String {
    text.chars().rev().collect()
}

/// A random; NULL for zeros, which stand for a connection without a hello.
fn random(random: &[u8; 32]) -> Option<&(dyn ToSql + 'static)> {
    (*random != [0; 32]).then_some(random as &dyn ToSql)
}
