//! Queue of future events, in the order of time.
//!
//! Near events are in a heap, later ones in a bucket for each span of time. Nearly all events are seconds away when
//! they are scheduled, so the heap fits in the processor's cache.
//!
//! Invariants: events leave in the order of time, simultaneous ones in the order of scheduling; events beyond the
//! horizon never leave.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Queue of future events; see the module.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    near: BinaryHeap<Scheduled<E>>,
    /// Bucket i holds the events from i spans on, before i + 1 spans. Buckets before `opened` are empty.
    later: Vec<Vec<Scheduled<E>>>,
    span_ns: u64,
    opened: usize,
    horizon_ns: u64,
    scheduled: u64,
}

#[derive(Debug)]
struct Scheduled<E> {
    at_ns: u64,
    order: u64,
    event: E,
}

/// Shortest span of a bucket, and largest number of spans.
const SPAN_NS_MIN: u64 = 100_000_000;
const SPANS_MAX: u64 = 16_384;

impl<E> EventQueue<E> {
    pub(crate) fn new(horizon_ns: u64) -> EventQueue<E> {
        let span_ns = SPAN_NS_MIN.max(horizon_ns.div_ceil(SPANS_MAX));
        let spans = (horizon_ns / span_ns + 1) as usize;
        EventQueue {
            near: BinaryHeap::new(),
            later: (0..spans).map(|_| Vec::new()).collect(),
            span_ns,
            opened: 0,
            horizon_ns,
            scheduled: 0,
        }
    }

    pub(crate) fn schedule(&mut self, at_ns: u64, event: E) {
        if at_ns > self.horizon_ns {
            return;
        }
        self.scheduled += 1;
        let scheduled = Scheduled { at_ns, order: self.scheduled, event };
        let span = (at_ns / self.span_ns) as usize;
        match self.later.get_mut(span) {
            Some(bucket) if span >= self.opened => bucket.push(scheduled),
            _ => self.near.push(scheduled),
        }
    }

    /// The next event with its time.
    pub(crate) fn next(&mut self) -> Option<(u64, E)> {
        while self.near.is_empty() {
            let bucket = self.later.get_mut(self.opened)?;
            self.near.extend(std::mem::take(bucket));
            self.opened += 1;
        }
        self.near.pop().map(|scheduled| (scheduled.at_ns, scheduled.event))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Scheduled<E>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Scheduled<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    /// The earliest event is the greatest, which a `BinaryHeap` returns first.
    fn cmp(&self, other: &Scheduled<E>) -> Ordering {
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};

    /// Events are scheduled while others leave, as in a simulation.
    #[test]
    fn events_leave_by_time_and_then_in_scheduling_order() {
        for seed in 0..20 {
            let mut random = Stream::new(seed, Purpose::Policy, 0);
            let horizon_ns = 3_000_000_000;
            let (mut event_queue, mut expected) = (EventQueue::new(horizon_ns), Vec::new());
            let (mut now_ns, mut number) = (0, 0u64);
            for _ in 0..500 {
                for _ in 0..random.below(4) {
                    // Some at the same time, some far, some beyond the horizon.
                    let at_ns = now_ns + random.below(3) * random.below(1_500_000_000) / 7 * 7;
                    event_queue.schedule(at_ns, number);
                    if at_ns <= horizon_ns {
                        expected.push((at_ns, number));
                    }
                    number += 1;
                }
                expected.sort_unstable();
                let next = event_queue.next();
                assert_eq!(next, expected.first().copied(), "seed {seed}");
                if let Some((at_ns, _)) = next {
                    now_ns = at_ns;
                    expected.remove(0);
                }
            }
        }
    }
}
