//! Responses of a pool or a listener by class of status, counted by all workers.

use crate::counters::{CLASSES, class_of};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Workers with the same number modulo this share a cache line.
const STRIPES: usize = 8;

/// Responses by class of status. In stripes, so that two workers seldom write the same cache line. A reload keeps the
/// counts of what has the same name.
#[derive(Debug, Default)]
pub struct ResponseCounts([Stripe; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe([AtomicU64; CLASSES.len()]);

impl ResponseCounts {
    /// Counts a response with this status, sent by the worker of this number.
    pub fn add(&self, worker: usize, status: u16) {
        if let Some(class) = class_of(status) {
            self.0[worker % STRIPES].0[class].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts by the name of their class.
    pub fn by_class(&self) -> BTreeMap<String, u64> {
        let count = |class: usize| self.0.iter().map(|stripe| stripe.0[class].load(Ordering::Relaxed)).sum();
        CLASSES.into_iter().enumerate().map(|(class, name)| (name.to_owned(), count(class))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_of_all_workers_add_up_by_class() {
        let counts = ResponseCounts::default();
        for (worker, status) in [(0, 200), (1, 204), (9, 503), (3, 101), (0, 0), (0, 999)] {
            counts.add(worker, status);
        }
        assert_eq!(counts.by_class().into_values().collect::<Vec<_>>(), [1, 2, 0, 0, 1]);
    }
}
