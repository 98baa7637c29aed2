//! How long things took, counted in classes.

use evergate_base::Micros;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the classes, in milliseconds.
const BOUNDS_MS: [u64; 13] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000];

/// Times by their length. Any thread may add some.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    /// One class for each bound, and one for all that is longer.
    classes: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
}

/// The counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimesStatus {
    /// All of them.
    pub count: u64,
    /// Their sum, in microseconds.
    pub sum_us: u64,
    /// Number of times of at most `ms` milliseconds.
    pub within: Vec<TimesWithin>,
}

/// Times up to a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimesWithin {
    /// The bound.
    pub ms: u64,
    /// How many.
    pub count: u64,
}

impl LatencyHistogram {
    /// One was so long.
    pub fn note(&self, took: Micros) {
        let class = BOUNDS_MS.partition_point(|bound| bound * 1000 < took.0);
        self.classes[class].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took.0, Ordering::Relaxed);
    }
}

impl TimesStatus {
    /// Sum of several histograms.
    pub fn of(all: &[&LatencyHistogram]) -> TimesStatus {
        let class =
            |index: usize| all.iter().map(|times| times.classes[index].load(Ordering::Relaxed)).sum::<u64>();
        let mut count = 0;
        let within = BOUNDS_MS.iter().enumerate().map(|(index, ms)| {
            count += class(index);
            TimesWithin { ms: *ms, count }
        });
        let within = within.collect();
        let sum_us = all.iter().map(|times| times.sum_us.load(Ordering::Relaxed)).sum();
        TimesStatus { count: count + class(BOUNDS_MS.len()), sum_us, within }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_are_summed_up_to_each_bound() {
        let all = [LatencyHistogram::default(), LatencyHistogram::default()];
        for (of, ms) in [(0, 10), (1, 11), (0, 9_999), (1, 10_001), (1, 3)] {
            all[of].note(Micros::from_ms(ms));
        }
        let counts = TimesStatus::of(&[&all[0], &all[1]]);
        let within = |ms| counts.within.iter().find(|one| one.ms == ms).map(|one| one.count);
        assert_eq!([2, 5, 10, 25, 5000, 10_000].map(within), [0, 1, 2, 3, 3, 4].map(Some));
        assert_eq!((counts.count, counts.sum_us), (5, 20_024_000));
    }
}
