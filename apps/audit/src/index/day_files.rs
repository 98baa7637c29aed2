//! Open files of the index: at most eight days at a time, the least recently used one is closed first.

use crate::index::days::{DAYS_MAX, Day, day_path, days};
use crate::index::rows::IndexEvent;
use crate::index::{DayFile, IndexError};
use crate::store::Store;
use std::collections::BTreeSet;

const OPEN_MAX: usize = 8;

/// Files of an index that are open for writing.
#[derive(Debug)]
pub(crate) struct DayFiles {
    store: Store,
    known: BTreeSet<Day>,
    /// The most recently used file is the last.
    open: Vec<(Day, DayFile)>,
    rows: usize,
}

impl DayFiles {
    /// Files of this store's index.
    pub(crate) fn new(store: &Store) -> Result<DayFiles, IndexError> {
        let known = days(store)?.into_iter().collect();
        Ok(DayFiles { store: store.clone(), known, open: Vec::new(), rows: 0 })
    }

    /// Writes a row into the file of its day.
    pub(crate) fn write(&mut self, event: &IndexEvent) -> Result<(), IndexError> {
        let Some(day) = day_of(event) else { return Ok(()) };
        if self.open.last().is_none_or(|(last, _)| *last != day) {
            self.bring_to_end(day)?;
        }
        let Some((_, file)) = self.open.last_mut() else { return Ok(()) };
        let written = file.write(event);
        if written.is_err() {
            self.open.pop(); // its transaction is rolled back
        }
        self.rows += 1;
        written
    }

    /// Rows since the last commit.
    pub(crate) fn pending(&self) -> usize {
        self.rows
    }

    /// Makes all rows visible.
    pub(crate) fn commit(&mut self) -> Result<(), IndexError> {
        self.rows = 0;
        let mut result = Ok(());
        self.open.retain_mut(|(_, file)| match file.commit() {
            Ok(()) => true,
            Err(error) => {
                result = Err(error);
                false
            }
        });
        result
    }

    /// Makes all rows visible and durable.
    pub(crate) fn sync(&mut self) -> Result<(), IndexError> {
        self.commit()?;
        self.open.iter().try_for_each(|(_, file)| file.sync())
    }

    fn bring_to_end(&mut self, day: Day) -> Result<(), IndexError> {
        if let Some(at) = self.open.iter().position(|(open, _)| *open == day) {
            let entry = self.open.remove(at);
            self.open.push(entry);
            return Ok(());
        }
        let path = day_path(&self.store, day);
        if self.known.len() >= DAYS_MAX && !self.known.contains(&day) {
            return Err(IndexError::new(
                &path,
                format!("the times of records lie in more than {DAYS_MAX} days"),
            ));
        }
        if self.open.len() >= OPEN_MAX {
            let (_, mut oldest) = self.open.remove(0);
            oldest.commit()?;
            oldest.sync()?;
        }
        self.open.push((day, DayFile::open(&path)?));
        self.known.insert(day);
        Ok(())
    }
}

/// Day in whose file a row lies.
fn day_of(event: &IndexEvent) -> Option<Day> {
    match event {
        IndexEvent::Connection(record, _) => Some(Day::of_ns(record.counts.first_ns)),
        IndexEvent::Envelope(envelope) => Some(Day::of_ns(envelope.born_ns)),
        IndexEvent::Extent(extent) => Some(Day::of_ns(extent.first_ns)),
        IndexEvent::Request(request) => Some(Day::of_ns(request.time_ns)),
        IndexEvent::Batch(batch) => Some(Day::of_ns(batch.first_ns)),
        IndexEvent::Segment(_) => None,
    }
}
