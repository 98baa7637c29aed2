//! Lookup of connection records and envelopes in one store.
//!
//! The index has their places, so that a few records are read and not whole segments. Segments that it lacks are
//! scanned: the newest one of a running Recorder, and all without an index. The index is no evidence. What lies at a
//! place is checked, and after one wrong place every segment is scanned.

use crate::cli::Failure;
use crate::find::{Query, Source};
use crate::index::{IndexError, RecordPlace};
use crate::segment_file::{FileError, PLACE_BYTES, SegmentFile};
use crate::store::{SegmentPath, Store};
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::envelope::Envelope;
use evergate_evidence::merkle::Hash;
use evergate_evidence::record::Body;
use std::collections::{BTreeMap, BTreeSet};

/// Most places of the index for one client random. An index with more is not used.
const PLACES_MAX: usize = 65_536;

/// How a connection is known.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// By its number in the Recorder.
    Number(u64),
    /// By the random of its ClientHello.
    ClientRandom(Hash),
}

impl Wanted {
    fn is(self, record: &ConnectionRecord) -> bool {
        match self {
            Wanted::Number(number) => record.connection == number,
            Wanted::ClientRandom(random) => record.tls.client_random == random,
        }
    }

    fn query(self) -> Query {
        match self {
            Wanted::Number(number) => Query { connection: Some(number), ..Query::all() },
            Wanted::ClientRandom(random) => Query { client_random: Some(random.to_vec()), ..Query::all() },
        }
    }
}

/// Reader of the connection records and envelopes of one store.
#[derive(Debug)]
pub struct RecordLookup {
    store: Store,
    /// Segments of the store, in order.
    segments: Vec<SegmentPath>,
    /// The index; `None` if it is not used.
    source: Option<Source>,
    /// Segments whose records all have their rows in the index.
    indexed: BTreeSet<u64>,
    records_read: u64,
}

impl RecordLookup {
    /// Reader of this store. An index that cannot be read is not used, with a line on standard error.
    pub fn open(store: &Store) -> Result<RecordLookup, Failure> {
        let segments = store.segments().map_err(|error| {
            Failure::wrong(format!("store: {}: cannot list segments: {error}", store.root().display()))
        })?;
        let mut lookup = RecordLookup {
            store: store.clone(),
            segments,
            source: None,
            indexed: BTreeSet::new(),
            records_read: 0,
        };
        match lookup.open_index() {
            Ok((source, indexed)) => (lookup.source, lookup.indexed) = (Some(source), indexed),
            Err(error) => lookup.distrust_index(&error),
        }
        Ok(lookup)
    }

    /// Scans every segment from here on.
    pub fn ignore_index(&mut self) {
        self.source = None;
        self.indexed.clear();
    }

    /// Whether the index has segments, so that these are not scanned.
    pub fn has_index(&self) -> bool {
        !self.indexed.is_empty()
    }

    /// Records that were read: the cost of the lookup.
    pub fn records_read(&self) -> u64 {
        self.records_read
    }

    /// The last record of a connection.
    pub fn connection(&mut self, wanted: Wanted) -> Result<Option<ConnectionRecord>, Failure> {
        let places = self.ask_index(|source| connection_places(source, wanted));
        self.require_segments(&places);
        let last =
            self.visit(places.last().copied(), |last: &mut Option<(u64, ConnectionRecord)>, seq, body| {
                match body {
                    Body::Connection(record) if wanted.is(record) => {
                        if last.as_ref().is_none_or(|(last, _)| seq >= *last) {
                            *last = Some((seq, record.as_ref().clone()));
                        }
                        true
                    }
                    _ => false,
                }
            })?;
        Ok(last.map(|(_, record)| record))
    }

    /// Last records of all connections whose client random is wanted. A connection without a hello has none.
    pub fn connections(
        &mut self,
        is_wanted: impl Fn(&Hash) -> bool,
    ) -> Result<BTreeMap<Hash, ConnectionRecord>, Failure> {
        let is_wanted = |random: &Hash| *random != [0; 32] && is_wanted(random);
        let places = self.ask_index(|source| {
            let mut places: BTreeMap<Hash, RecordPlace> = BTreeMap::new();
            for day in source.days() {
                source.for_each_connection(day, &Query::all(), |connection| {
                    if let Some(random) = connection.client_random.filter(|random| is_wanted(random)) {
                        let place = places.entry(random).or_default();
                        *place = connection.record.max(*place);
                    }
                    Ok(())
                })?;
            }
            Ok(places.into_values().collect())
        });
        self.require_segments(&places);
        let records =
            self.visit(places, |records: &mut BTreeMap<Hash, (u64, ConnectionRecord)>, seq, body| {
                let Body::Connection(record) = body else { return false };
                let random = record.tls.client_random;
                if !is_wanted(&random) {
                    return false;
                }
                if records.get(&random).is_none_or(|(last, _)| seq >= *last) {
                    records.insert(random, (seq, record.as_ref().clone()));
                }
                true
            })?;
        Ok(records.into_iter().map(|(random, (_, record))| (random, record)).collect())
    }

    /// Envelopes with this client random, in the order of their segments: the first `max` different ones.
    pub fn envelopes(&mut self, client_random: &Hash, max: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let places = self.ask_index(|source| source.envelopes(client_random, PLACES_MAX + 1));
        if places.len() > PLACES_MAX {
            self.ignore_index();
        }
        self.visit(places, |found: &mut Vec<Vec<u8>>, _, body| {
            let Body::Envelope(bytes) = body else { return false };
            let is_wanted =
                Envelope::decode(bytes).is_ok_and(|envelope| envelope.aad.client_random == *client_random);
            if is_wanted && found.len() < max && !found.iter().any(|known| known == bytes.as_ref()) {
                found.push(bytes.to_vec());
            }
            is_wanted
        })
    }

    fn open_index(&self) -> Result<(Source, BTreeSet<u64>), IndexError> {
        let source = Source::open(self.store.clone())?;
        let known = source.indexed_segments()?;
        let is_whole = |segment: &&SegmentPath| {
            known.get(&segment.number).is_some_and(|known| {
                known.is_complete && known.row.is_closed && known.row.bytes == segment.bytes
            })
        };
        let indexed = self.segments.iter().filter(is_whole).map(|segment| segment.number).collect();
        Ok((source, indexed))
    }

    /// Places by the index. After an error it is not used.
    fn ask_index(
        &mut self,
        ask: impl FnOnce(&mut Source) -> Result<BTreeSet<RecordPlace>, IndexError>,
    ) -> BTreeSet<RecordPlace> {
        let Some(source) = self.source.as_mut().filter(|_| !self.indexed.is_empty()) else {
            return BTreeSet::new();
        };
        match ask(source) {
            Ok(places) => places,
            Err(error) => {
                self.distrust_index(&error);
                BTreeSet::new()
            }
        }
    }

    fn distrust_index(&mut self, reason: &dyn std::fmt::Display) {
        eprintln!("evergate-audit: {reason}; every segment is read instead");
        self.ignore_index();
    }

    /// The rows of a removed segment stay. Earlier records of its connections may be elsewhere.
    fn require_segments(&mut self, places: &BTreeSet<RecordPlace>) {
        let has = |number: u64| self.segments.binary_search_by_key(&number, |segment| segment.number).is_ok();
        if !places.iter().all(|place| has(place.segment)) {
            self.ignore_index();
        }
    }

    /// Calls `take` for the records at these places, and for every record of the segments that the index lacks. `take`
    /// answers whether the record is wanted. If one at a place is not, all begins again and every segment is scanned.
    fn visit<T: Default>(
        &mut self,
        places: impl IntoIterator<Item = RecordPlace>,
        take: impl Fn(&mut T, u64, &Body<'_>) -> bool,
    ) -> Result<T, Failure> {
        let mut by_segment: BTreeMap<u64, BTreeSet<RecordPlace>> = BTreeMap::new();
        for place in places {
            by_segment.entry(place.segment).or_default().insert(place);
        }
        let (mut taken, mut read, mut wrong) = (T::default(), 0, None);
        for segment in &self.segments {
            let places = by_segment.remove(&segment.number).unwrap_or_default();
            // Many places of one segment cost more than all its bytes.
            let is_dense = (places.len() as u64).saturating_mul(PLACE_BYTES) > segment.bytes.max(PLACE_BYTES);
            if is_dense || !self.indexed.contains(&segment.number) {
                read += scan(segment, |seq, body| take(&mut taken, seq, body))?;
                continue;
            }
            read += places.len() as u64;
            let mut is_right =
                |place: &RecordPlace| read_at(segment, *place, |seq, body| take(&mut taken, seq, body));
            wrong = places.into_iter().find(|place| !is_right(place));
            if wrong.is_some() {
                break;
            }
        }
        self.records_read += read;
        let Some(RecordPlace { seq, segment, offset }) = wrong else { return Ok(taken) };
        let reason = format!(
            "record {seq} is not at byte {offset} of segment {segment}; run `evergate-audit index DIR --rebuild`"
        );
        self.distrust_index(&IndexError::new(&self.store.index(), reason));
        let mut taken = T::default();
        for segment in &self.segments {
            self.records_read += scan(segment, |seq, body| take(&mut taken, seq, body))?;
        }
        Ok(taken)
    }
}

/// Whether the record at a place is the wanted one. An error of the file is the scan's to report.
fn read_at(segment: &SegmentPath, place: RecordPlace, take: impl FnOnce(u64, &Body<'_>) -> bool) -> bool {
    let Ok(mut file) = SegmentFile::open_at(&segment.path, place.offset) else { return false };
    match file.read() {
        Ok(Some(located)) => located.record.seq == place.seq && take(place.seq, &located.record.body),
        _ => false,
    }
}

/// Calls `take` for the records of a segment. Answers their number.
fn scan(segment: &SegmentPath, mut take: impl FnMut(u64, &Body<'_>) -> bool) -> Result<u64, Failure> {
    let at = |error: &dyn std::fmt::Display| format!("store: {}: {error}", segment.path.display());
    let mut file = SegmentFile::open(&segment.path).map_err(|error| Failure::wrong(at(&error)))?;
    let mut records = 0;
    loop {
        match file.read() {
            Ok(Some(located)) => {
                records += 1;
                take(located.record.seq, &located.record.body);
            }
            // The newest segment of a running Recorder ends within a block.
            Ok(None) | Err(FileError::Torn { .. }) => return Ok(records),
            Err(error) => return Err(Failure::wrong(format!("{}; verify the store first", at(&error)))),
        }
    }
}

/// Places of the last records of the connections that are wanted.
fn connection_places(source: &mut Source, wanted: Wanted) -> Result<BTreeSet<RecordPlace>, IndexError> {
    let (query, mut places) = (wanted.query(), BTreeSet::new());
    for day in source.days() {
        let found = source.connections(day, &query, PLACES_MAX)?;
        places.extend(found.iter().map(|connection| connection.record));
    }
    Ok(places)
}
