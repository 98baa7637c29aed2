//! Days in UTC: the unit of the index's files.

use crate::index::IndexError;
use crate::store::Store;
use evergate_base::rfc3339;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const DAY_NS: u64 = 86_400_000_000_000;
/// Most days of one index. A segment with more is damaged or made to exhaust the disk.
pub(crate) const DAYS_MAX: usize = 4096;

/// A day in UTC: days since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Day(pub(crate) u64);

impl Day {
    /// The day of a time in nanoseconds since 1970.
    pub(crate) fn of_ns(time_ns: u64) -> Day {
        Day(time_ns / DAY_NS)
    }

    /// First nanosecond of the day.
    pub(crate) fn first_ns(self) -> u64 {
        self.0.saturating_mul(DAY_NS)
    }

    /// Last nanosecond of the day.
    pub(crate) fn last_ns(self) -> u64 {
        self.first_ns().saturating_add(DAY_NS - 1)
    }

    /// `2026-11-28`.
    pub(crate) fn name(self) -> String {
        let date = rfc3339(i64::try_from(self.0.saturating_mul(86_400)).unwrap_or(i64::MAX));
        date.split('T').next().unwrap_or_default().to_owned()
    }

    /// The day of this name.
    pub(crate) fn of_name(name: &str) -> Option<Day> {
        let day = Day(u64::try_from(crate::when::days_of_date(name)?).ok()?);
        (day.name() == name).then_some(day)
    }
}

/// Path of the hot file of a day.
pub(crate) fn day_path(store: &Store, day: Day) -> PathBuf {
    store.index().join(format!("{}.sqlite", day.name()))
}

/// Days with a hot file, in order.
pub(crate) fn days(store: &Store) -> Result<Vec<Day>, IndexError> {
    days_in(&store.index(), "sqlite")
}

/// Days with a file of this suffix in a folder, in order. A folder that does not exist has none.
pub(crate) fn days_in(folder: &Path, suffix: &str) -> Result<Vec<Day>, IndexError> {
    let mut days = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(days),
        Err(error) => return Err(IndexError::new(folder, error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| IndexError::new(folder, error))?.file_name();
        let stem =
            name.to_str().and_then(|name| name.strip_suffix(suffix)).and_then(|stem| stem.strip_suffix('.'));
        days.extend(stem.and_then(Day::of_name));
    }
    days.sort_unstable();
    Ok(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_has_its_name_and_back() {
        for (ns, name) in
            [(0, "1970-01-01"), (1_795_861_800_000_000_001, "2026-11-28"), (u64::MAX, "2554-07-21")]
        {
            assert_eq!(Day::of_ns(ns).name(), name);
            assert_eq!(Day::of_name(name), Some(Day::of_ns(ns)));
        }
        for name in ["2026-11-31", "2026-1-31", "x", "", "segments", "2026-11-28T"] {
            assert_eq!(Day::of_name(name), None, "{name}");
        }
    }
}
