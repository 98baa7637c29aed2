//! Indexes of one store, hot and cold, as one source of rows by day.

use crate::find::hot::HotDay;
use crate::find::query::Query;
use crate::find::row::{Connection, ExtentRow, Request};
use crate::index::{Day, IndexError, IndexedSegment, RecordPlace, SegmentTable, day_path, days};
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};

/// Most hot files that are open at a time.
const OPEN_MAX: usize = 32;
/// Most days in which a connection's extents are looked for.
const EXTENT_DAYS_MAX: u64 = 400;

/// Indexes of one store.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) store: Store,
    hot: BTreeSet<Day>,
    cold: BTreeSet<Day>,
    open: BTreeMap<Day, HotDay>,
    /// Segments whose file exists.
    segments: BTreeSet<u64>,
}

/// First and last time of a segment's records; `None` if unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentTimes {
    pub(crate) number: u64,
    pub(crate) times_ns: Option<(u64, u64)>,
}

impl Source {
    /// Indexes of this store.
    pub(crate) fn open(store: Store) -> Result<Source, IndexError> {
        let folder = store.root().join("segments");
        let segments = store.segments().map_err(|error| IndexError::new(&folder, error))?;
        Ok(Source {
            hot: days(&store)?.into_iter().collect(),
            cold: cold_days(&store)?,
            open: BTreeMap::new(),
            segments: segments.iter().map(|segment| segment.number).collect(),
            store,
        })
    }

    /// Days with rows.
    pub(crate) fn days(&self) -> BTreeSet<Day> {
        self.hot.union(&self.cold).copied().collect()
    }

    /// Whether a segment's file exists.
    pub(crate) fn has_segment(&self, number: u64) -> bool {
        self.segments.contains(&number)
    }

    /// Number of the newest segment: a Recorder may still write to it.
    pub(crate) fn last_segment(&self) -> Option<u64> {
        self.segments.last().copied()
    }

    /// Segments whose file exists, with the times that the index has of them: of the newest one none are certain.
    pub(crate) fn segments_with_times(&self) -> Result<Vec<SegmentTimes>, IndexError> {
        let table = SegmentTable::open_to_read(&self.store)?;
        let rows = table.map_or(Ok(Vec::new()), |table| table.all())?;
        let known: BTreeMap<u64, Option<(u64, u64)>> = rows
            .iter()
            .filter(|segment| segment.is_complete && segment.row.is_closed)
            .map(|segment| (segment.row.number, segment.row.times_ns))
            .collect();
        let times =
            |number: &u64| SegmentTimes { number: *number, times_ns: known.get(number).copied().flatten() };
        Ok(self.segments.iter().map(times).collect())
    }

    /// Segments of the index by number.
    pub(crate) fn indexed_segments(&self) -> Result<BTreeMap<u64, IndexedSegment>, IndexError> {
        let table = SegmentTable::open_to_read(&self.store)?;
        let rows = table.map_or(Ok(Vec::new()), |table| table.all())?;
        Ok(rows.into_iter().map(|segment| (segment.row.number, segment)).collect())
    }

    /// Places of envelopes with this client random, at most `limit`, in the order of their records.
    pub(crate) fn envelopes(
        &mut self,
        random: &[u8; 32],
        limit: usize,
    ) -> Result<BTreeSet<RecordPlace>, IndexError> {
        let mut places = BTreeSet::new();
        for day in self.days() {
            if let Some(hot) = self.hot_day(day)? {
                places.extend(hot.envelopes(day, random, limit)?);
            }
            if self.cold.contains(&day) {
                places.extend(cold_envelopes(&self.store, day, random, limit)?);
            }
        }
        while places.len() > limit {
            places.pop_last();
        }
        Ok(places)
    }

    /// Closed segments that the index does not have whole.
    pub(crate) fn incomplete(&self) -> Result<BTreeSet<u64>, IndexError> {
        let table = SegmentTable::open_to_read(&self.store)?;
        let rows = table.map_or(Ok(Vec::new()), |table| table.all())?;
        let complete: BTreeSet<u64> =
            rows.iter().filter(|segment| segment.is_complete).map(|segment| segment.row.number).collect();
        let mut closed = self.segments.clone();
        closed.pop_last();
        Ok(closed.difference(&complete).copied().collect())
    }

    /// Connections of a day that meet the query, in the order of their begin. A hot row replaces the cold one.
    pub(crate) fn connections(
        &mut self,
        day: Day,
        query: &Query,
        limit: usize,
    ) -> Result<Vec<Connection>, IndexError> {
        if query.to_ns < day.first_ns() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        if let Some(hot) = self.hot_day(day)?
            && (query.from_ns <= day.last_ns() || query.from_ns <= hot.latest_ns()?)
        {
            found = hot.connections(query, limit)?;
        }
        if self.cold.contains(&day) {
            let store = self.store.clone();
            let hot = self.hot_day(day)?;
            cold_for_each(&store, day, query, limit, |connection| {
                let is_hot = hot.map_or(Ok(false), |hot| hot.has(connection.number))?;
                if !is_hot {
                    found.push(connection);
                }
                Ok(!is_hot)
            })?;
            found.sort_by_key(|connection| (connection.first_ns, connection.number));
            found.truncate(limit);
        }
        Ok(found)
    }

    /// Calls `each` for the connections of a day that meet the query, in no order. A hot row replaces the cold one.
    pub(crate) fn for_each_connection(
        &mut self,
        day: Day,
        query: &Query,
        mut each: impl FnMut(Connection) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let mut failed = Ok(());
        if let Some(hot) = self.hot_day(day)? {
            hot.for_each(query, |connection| {
                if failed.is_ok() {
                    failed = each(connection);
                }
            })?;
        }
        failed?;
        if self.cold.contains(&day) {
            let store = self.store.clone();
            let hot = self.hot_day(day)?;
            cold_for_each(&store, day, query, usize::MAX, |connection| {
                let is_hot = hot.map_or(Ok(false), |hot| hot.has(connection.number))?;
                if !is_hot {
                    each(connection)?;
                }
                Ok(!is_hot)
            })?;
        }
        Ok(())
    }

    /// Calls `each` for the requests of a day, in no order. A hot row replaces the cold one.
    pub(crate) fn for_each_request(
        &mut self,
        day: Day,
        mut each: impl FnMut(Request) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let store = self.store.clone();
        let is_cold = self.cold.contains(&day);
        let hot = self.hot_day(day)?;
        if let Some(hot) = hot {
            hot.for_each_request(&mut each)?;
        }
        if is_cold {
            cold_for_each_request(&store, day, |request| {
                match hot.map_or(Ok(false), |hot| hot.has_request(request.seq))? {
                    true => Ok(()),
                    false => each(request),
                }
            })?;
        }
        Ok(())
    }

    /// Adds the segments with a packet of a connection of this day that meets the query.
    pub(crate) fn held_segments(
        &mut self,
        day: Day,
        query: &Query,
        held: &mut BTreeSet<u64>,
    ) -> Result<(), IndexError> {
        let mut connections: Vec<(u64, u64, u64)> = Vec::new(); // number, begin and end
        if let Some(hot) = self.hot_day(day)? {
            hot.for_each(query, |found| connections.push((found.number, found.first_ns, found.last_ns)))?;
        }
        if self.cold.contains(&day) {
            cold_for_each(&self.store, day, query, usize::MAX, |found| {
                connections.push((found.number, found.first_ns, found.last_ns));
                Ok(true)
            })?;
        }
        for (number, first_ns, last_ns) in connections {
            let extents = self.extents_of(number, first_ns, last_ns)?;
            held.extend(extents.iter().map(|extent| extent.segment));
        }
        Ok(())
    }

    /// Requests of a day with this id.
    pub(crate) fn requests(&mut self, day: Day, id: &str, limit: usize) -> Result<Vec<Request>, IndexError> {
        let mut found = match self.hot_day(day)? {
            Some(hot) => hot.requests(id, limit)?,
            None => Vec::new(),
        };
        if self.cold.contains(&day) && found.len() < limit {
            let known: BTreeSet<u64> = found.iter().map(|request| request.seq).collect();
            let cold = cold_requests(&self.store, day, id, limit)?;
            found.extend(cold.into_iter().filter(|request| !known.contains(&request.seq)));
            found.truncate(limit);
        }
        Ok(found)
    }

    /// Extents of a connection, in the order of the segments.
    pub(crate) fn extents(&mut self, connection: &Connection) -> Result<Vec<ExtentRow>, IndexError> {
        self.extents_of(connection.number, connection.first_ns, connection.last_ns)
    }

    fn extents_of(&mut self, number: u64, first_ns: u64, last_ns: u64) -> Result<Vec<ExtentRow>, IndexError> {
        let (first, last) = (Day::of_ns(first_ns), Day::of_ns(last_ns));
        let last = last.clamp(first, Day(first.0 + EXTENT_DAYS_MAX));
        let mut extents: BTreeMap<(u64, u64), ExtentRow> = BTreeMap::new();
        let days: Vec<Day> = self.days().range(first..=last).copied().collect();
        for day in days {
            let mut rows = Vec::new();
            if self.cold.contains(&day) {
                rows = cold_extents(&self.store, day, number)?;
            }
            if let Some(hot) = self.hot_day(day)? {
                rows.extend(hot.extents(number)?);
            }
            extents.extend(rows.into_iter().map(|row| ((row.segment, row.part), row)));
        }
        Ok(extents.into_values().collect())
    }

    fn hot_day(&mut self, day: Day) -> Result<Option<&HotDay>, IndexError> {
        if !self.hot.contains(&day) {
            return Ok(None);
        }
        if !self.open.contains_key(&day) {
            if self.open.len() >= OPEN_MAX {
                self.open.pop_first();
            }
            let file = HotDay::open(&day_path(&self.store, day))?;
            self.open.insert(day, file);
        }
        Ok(self.open.get(&day))
    }
}

#[cfg(feature = "cold")]
use crate::cold::{
    cold_days, cold_envelopes, cold_extents, cold_for_each, cold_for_each_request, cold_requests,
};

#[cfg(not(feature = "cold"))]
mod without_cold {
    use super::{BTreeSet, Connection, Day, ExtentRow, IndexError, Query, RecordPlace, Request, Store};
    use crate::index::days_in;

    /// No days. A store that has some is an error: an answer without them would look complete.
    pub(super) fn cold_days(store: &Store) -> Result<BTreeSet<Day>, IndexError> {
        let folder = store.cold().join("connection");
        match days_in(&folder, "parquet")?.is_empty() {
            true => Ok(BTreeSet::new()),
            false => Err(IndexError::new(
                &folder,
                "this program is built without the feature `cold`; use the package",
            )),
        }
    }

    pub(super) fn cold_for_each(
        _: &Store,
        _: Day,
        _: &Query,
        _: usize,
        _: impl FnMut(Connection) -> Result<bool, IndexError>,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    pub(super) fn cold_for_each_request(
        _: &Store,
        _: Day,
        _: impl FnMut(Request) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    pub(super) fn cold_requests(_: &Store, _: Day, _: &str, _: usize) -> Result<Vec<Request>, IndexError> {
        Ok(Vec::new())
    }

    pub(super) fn cold_envelopes(
        _: &Store,
        _: Day,
        _: &[u8; 32],
        _: usize,
    ) -> Result<Vec<RecordPlace>, IndexError> {
        Ok(Vec::new())
    }

    pub(super) fn cold_extents(_: &Store, _: Day, _: u64) -> Result<Vec<ExtentRow>, IndexError> {
        Ok(Vec::new())
    }
}
#[cfg(not(feature = "cold"))]
use without_cold::{
    cold_days, cold_envelopes, cold_extents, cold_for_each, cold_for_each_request, cold_requests,
};
