//! What will happen, in the order of time.
//!
//! Events of the near future are in a heap, later ones in a bucket for each span of time. Nearly all events are
//! seconds away when they are planned, so that the heap stays small enough for the processor's cache.
//!
//! Invariants: events leave in the order of time, those of the same time in the order in which they were planned;
//! what is planned beyond the horizon never leaves.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// See the module.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    near: BinaryHeap<Planned<E>>,
    /// Bucket i holds what happens from i spans on, before i + 1 spans. Those before `opened` are empty.
    later: Vec<Vec<Planned<E>>>,
    span_ns: u64,
    opened: usize,
    horizon_ns: u64,
    planned: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at_ns: u64,
    order: u64,
    event: E,
}

/// Shortest span, and how many there are at most.
const SPAN_NS_MIN: u64 = 100_000_000;
const SPANS_MAX: u64 = 16_384;

impl<E> Agenda<E> {
    pub(crate) fn new(horizon_ns: u64) -> Agenda<E> {
        let span_ns = SPAN_NS_MIN.max(horizon_ns.div_ceil(SPANS_MAX));
        let spans = (horizon_ns / span_ns + 1) as usize;
        Agenda {
            near: BinaryHeap::new(),
            later: (0..spans).map(|_| Vec::new()).collect(),
            span_ns,
            opened: 0,
            horizon_ns,
            planned: 0,
        }
    }

    pub(crate) fn plan(&mut self, at_ns: u64, event: E) {
        if at_ns > self.horizon_ns {
            return;
        }
        self.planned += 1;
        let planned = Planned { at_ns, order: self.planned, event };
        let span = (at_ns / self.span_ns) as usize;
        match self.later.get_mut(span) {
            Some(bucket) if span >= self.opened => bucket.push(planned),
            _ => self.near.push(planned),
        }
    }

    /// The next event with its time.
    pub(crate) fn next(&mut self) -> Option<(u64, E)> {
        while self.near.is_empty() {
            let bucket = self.later.get_mut(self.opened)?;
            self.near.extend(std::mem::take(bucket));
            self.opened += 1;
        }
        self.near.pop().map(|planned| (planned.at_ns, planned.event))
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Planned<E>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Planned<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    /// The earliest is the greatest, which a `BinaryHeap` gives first.
    fn cmp(&self, other: &Planned<E>) -> Ordering {
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};

    /// Events are planned while others leave, as in a simulation.
    #[test]
    fn events_leave_by_time_and_then_in_the_order_of_planning() {
        for seed in 0..20 {
            let mut random = Stream::new(seed, Purpose::Policy, 0);
            let horizon_ns = 3_000_000_000;
            let (mut agenda, mut expected) = (Agenda::new(horizon_ns), Vec::new());
            let (mut now_ns, mut number) = (0, 0u64);
            for _ in 0..500 {
                for _ in 0..random.below(4) {
                    // Some at the same time, some far, some beyond the horizon.
                    let at_ns = now_ns + random.below(3) * random.below(1_500_000_000) / 7 * 7;
                    agenda.plan(at_ns, number);
                    if at_ns <= horizon_ns {
                        expected.push((at_ns, number));
                    }
                    number += 1;
                }
                expected.sort_unstable();
                let next = agenda.next();
                assert_eq!(next, expected.first().copied(), "seed {seed}");
                if let Some((at_ns, _)) = next {
                    now_ns = at_ns;
                    expected.remove(0);
                }
            }
        }
    }
}
