//! Results of one simulation: sums while it runs, results at its end.

use crate::parameters::{Plan, SECOND_NS};
use evergate_balance::{Node, balance_degree};

/// Number of parts of the horizon in a course over time.
pub(crate) const COURSE_PARTS: u64 = 30;

/// Results of one policy, load and seed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Share of the served requests that resumed a session.
    pub(crate) resumption: f64,
    /// Requests served per second.
    pub(crate) throughput: f64,
    /// Mean over time of the standard deviation of the nodes' loads, equation (1), in units of work per second.
    pub(crate) load_std: f64,
    /// Mean over time of the standard deviation of the nodes' pending work, in milliseconds.
    pub(crate) backlog_std_ms: f64,
    /// Mean time from a request to the beginning of its service, in milliseconds.
    pub(crate) wait_ms: f64,
    /// 99th percentile of the wait, to 1 %.
    pub(crate) wait_p99_ms: f64,
    /// Share of the nodes' time that they are busy.
    pub(crate) utilisation: f64,
    /// Requests refused after the warm-up because a queue was full.
    pub(crate) refused: f64,
    /// The course over time.
    pub(crate) course: Vec<Part>,
}

/// A part of the horizon.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    /// Its middle, in seconds from the start.
    pub(crate) at_s: f64,
    pub(crate) resumption: f64,
    pub(crate) throughput: f64,
    pub(crate) load_std: f64,
    pub(crate) wait_ms: f64,
}

/// A node at one point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauge {
    pub(crate) load: f64,
    pub(crate) backlog_ms: f64,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    finished: u64,
    resumed: u64,
    waits: u64,
    wait_us: u64,
    load_std: f64,
    observed: u64,
}

/// Running counts of a simulation.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    warmup_ns: u64,
    part_ns: u64,
    total: Sums,
    backlog_std: f64,
    parts: Vec<Sums>,
    waits: Histogram,
    busy_ns: u64,
    refused: u64,
    pub(crate) redistributed: u64,
}

impl Tally {
    pub(crate) fn new(plan: &Plan) -> Tally {
        Tally {
            warmup_ns: plan.warmup_ns,
            part_ns: plan.horizon_ns.div_ceil(COURSE_PARTS).max(1),
            total: Sums::default(),
            backlog_std: 0.0,
            parts: vec![Sums::default(); COURSE_PARTS as usize],
            waits: Histogram::default(),
            busy_ns: 0,
            refused: 0,
            redistributed: 0,
        }
    }

    /// Counts in the total after the warm-up, and always in the course.
    fn count(&mut self, now_ns: u64, count: impl Fn(&mut Sums)) {
        if now_ns >= self.warmup_ns {
            count(&mut self.total);
        }
        // Events at the very end belong to the last part.
        let part = (now_ns.saturating_sub(1) / self.part_ns) as usize;
        if let Some(part) = self.parts.get_mut(part) {
            count(part);
        }
    }

    pub(crate) fn finished(&mut self, now_ns: u64, resumed: bool) {
        self.count(now_ns, |sums| {
            sums.finished += 1;
            sums.resumed += u64::from(resumed);
        });
    }

    pub(crate) fn waited(&mut self, now_ns: u64, wait_ns: u64) {
        let wait_us = wait_ns / 1000;
        self.count(now_ns, |sums| {
            sums.waits += 1;
            sums.wait_us += wait_us;
        });
        if now_ns >= self.warmup_ns {
            self.waits.add(wait_us);
        }
    }

    pub(crate) fn refused(&mut self, now_ns: u64) {
        self.refused += u64::from(now_ns >= self.warmup_ns);
    }

    /// Counts that a node is busy for `service_ns` from now on.
    pub(crate) fn busy(&mut self, now_ns: u64, service_ns: u64) {
        if now_ns >= self.warmup_ns {
            self.busy_ns += service_ns;
        }
    }

    pub(crate) fn observed(&mut self, now_ns: u64, gauges: &[Gauge]) {
        let std_of = |value: fn(&Gauge) -> f64| {
            let node = |gauge| Node { load: value(gauge), work: 0.0, cached: false, eligible: true };
            balance_degree(&gauges.iter().map(node).collect::<Vec<_>>())
        };
        let load_std = std_of(|gauge| gauge.load);
        self.count(now_ns, |sums| {
            sums.load_std += load_std;
            sums.observed += 1;
        });
        if now_ns >= self.warmup_ns {
            self.backlog_std += std_of(|gauge| gauge.backlog_ms);
        }
    }

    pub(crate) fn outcome(&self, plan: &Plan) -> Outcome {
        let seconds = |ns: u64| ns as f64 / SECOND_NS as f64;
        let measured_s = seconds(plan.horizon_ns - plan.warmup_ns);
        let total = &self.total;
        let part = |(index, sums): (u64, &Sums)| {
            let start_ns = index * self.part_ns;
            let length_ns = self.part_ns.min(plan.horizon_ns.saturating_sub(start_ns));
            Part {
                at_s: seconds(start_ns + length_ns / 2),
                resumption: sums.resumption(),
                throughput: ratio(sums.finished as f64, seconds(length_ns)),
                load_std: ratio(sums.load_std, sums.observed as f64),
                wait_ms: sums.wait_ms(),
            }
        };
        Outcome {
            resumption: total.resumption(),
            throughput: ratio(total.finished as f64, measured_s),
            load_std: ratio(total.load_std, total.observed as f64),
            backlog_std_ms: ratio(self.backlog_std, total.observed as f64),
            wait_ms: total.wait_ms(),
            wait_p99_ms: self.waits.quantile_us(99, 100) as f64 / 1e3,
            // Service cut off by the end of the simulation counts completely, which may be a little too much.
            utilisation: ratio(seconds(self.busy_ns), measured_s * plan.nodes.len() as f64).min(1.0),
            refused: self.refused as f64,
            course: (0..).zip(&self.parts).map(part).collect(),
        }
    }
}

impl Sums {
    fn resumption(&self) -> f64 {
        ratio(self.resumed as f64, self.finished as f64)
    }

    fn wait_ms(&self) -> f64 {
        ratio(self.wait_us as f64 / 1e3, self.waits as f64)
    }
}

/// The quotient; zero for a divisor of zero.
fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// Counts of microseconds in buckets that are at most 1/64 wide of their value.
#[derive(Clone, Debug, Default)]
struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

/// Number of buckets per doubling, as a power of two.
const FINE: u32 = 6;

impl Histogram {
    fn add(&mut self, us: u64) {
        let bucket = bucket_of(us);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.total += 1;
    }

    /// The lower end of the bucket of the quantile `part` / `of`; 0 without values.
    fn quantile_us(&self, part: u64, of: u64) -> u64 {
        let rank = (self.total * part).div_ceil(of);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && *count > 0 {
                return bucket_start(bucket);
            }
        }
        0
    }
}

fn bucket_of(us: u64) -> usize {
    let doublings = (64 - us.leading_zeros()).saturating_sub(FINE + 1);
    ((u64::from(doublings) << FINE) + (us >> doublings)) as usize
}

fn bucket_start(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let doublings = (bucket >> FINE).saturating_sub(1);
    (bucket - (doublings << FINE)) << doublings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_starts_at_most_a_64th_below_its_value() {
        let mut last = 0;
        for us in
            (0..5000).chain((13..60).flat_map(|shift| [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1]))
        {
            let start = bucket_start(bucket_of(us));
            assert!(start <= us && us - start <= us / 64, "{us} {start}");
            assert!(bucket_of(us) >= last);
            last = bucket_of(us);
        }
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(99, 100), 0);
        (1..=100).for_each(|us| histogram.add(us));
        for (part, expected) in [(1, 1), (50, 50), (99, 99), (100, 100)] {
            assert_eq!(histogram.quantile_us(part, 100), expected);
        }
    }
}
