//! CPU cost of each bucket on this worker, for the cluster's rebalancing.
//!
//! The kernel reports the CPU time of the worker. It is divided among the buckets by the work done for them, because
//! reading a clock at every step would cost more than many steps. Step costs are rough estimates for one core at 3 GHz;
//! only their ratios matter.

use crate::host::Host;
use crate::report::Report;
use crate::slab::Key;
use crate::worker::Worker;
use crate::{BYTES_PER_US, Counters};
use evergate_base::Micros;
use evergate_membership::{BUCKETS, Bucket};

/// Cost of one turn of one connection: a request takes about four.
const TURN_US: u64 = 5;
/// A full handshake with a signature, and a resumed one.
const FULL_US: u64 = 150;
const RESUMED_US: u64 = 50;
/// Cost of one frame of another owner.
const FRAME_US: u64 = 2;
/// Largest factor between the CPU time of a step and its estimate. CPU time beyond it counts for no bucket.
const SLOWER_MAX: u64 = 10;

/// Work since the last report, in microseconds by the estimates above.
pub(super) struct Work {
    buckets: Vec<u64>,
    /// As a backup.
    others: u64,
    /// CPU time of the worker at the last report, in nanoseconds.
    cpu_ns: u64,
}

/// Counters of the worker before a turn.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    bucket: Bucket,
    cost: u64,
}

impl Default for Work {
    fn default() -> Work {
        Work { buckets: vec![0; usize::from(BUCKETS)], others: 0, cpu_ns: 0 }
    }
}

impl Work {
    fn add(&mut self, bucket: Bucket, cost: u64) {
        if let Some(sum) = self.buckets.get_mut(usize::from(bucket.0)) {
            *sum = sum.saturating_add(cost);
        }
    }

    /// Counts processed frames of other owners.
    pub(super) fn note_frames(&mut self, count: u64) {
        self.others += count * FRAME_US;
    }

    /// Each bucket's part of the CPU time since the last call; `cpu_ns` is the worker's total.
    fn take(&mut self, cpu_ns: u64) -> Vec<(Bucket, Micros)> {
        let used = cpu_ns.saturating_sub(std::mem::replace(&mut self.cpu_ns, cpu_ns)) / 1000;
        let known = self.buckets.iter().fold(std::mem::take(&mut self.others), |sum, cost| sum + cost).max(1);
        let used = used.min(known.saturating_mul(SLOWER_MAX));
        let part = |cost: u64| (u128::from(cost) * u128::from(used)).div_ceil(u128::from(known)) as u64;
        let all = (0..).map(Bucket).zip(&mut self.buckets).filter(|(_, cost)| **cost > 0);
        all.map(|(bucket, cost)| (bucket, Micros(part(std::mem::take(cost))))).collect()
    }
}

/// Estimated cost of everything counted so far, except turns.
fn cost(counters: &Counters) -> u64 {
    let bytes = counters.client_bytes_in.get().wrapping_add(counters.server_bytes_in.get());
    let handshakes =
        counters.handshakes_full.get() * FULL_US + counters.handshakes_resumed.get() * RESUMED_US;
    bytes / BYTES_PER_US + handshakes
}

impl<H: Host> Worker<H> {
    /// Counters before a turn of a replicated connection, which may not survive the turn.
    pub(crate) fn before_turn(&self, key: Key) -> Option<Before> {
        let bucket = self.clients.get(key)?.replicated_state.as_ref()?.bucket;
        Some(Before { bucket, cost: cost(&self.counters) })
    }

    /// Adds the cost of the turn to its bucket.
    pub(crate) fn note_turn(&mut self, before: Option<Before>) {
        let (Some(before), Some(cluster)) = (before, &mut self.cluster) else { return };
        let more = cost(&self.counters).saturating_sub(before.cost);
        cluster.figures.work.add(before.bucket, more + TURN_US);
    }

    /// Reports the costs to the agent, about once a second.
    pub(crate) fn report_work(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let work = cluster.figures.work.take(self.counters.cpu_ns.get());
        if !work.is_empty() {
            cluster.report(Report::Worked(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_divided_by_work() {
        let mut work = Work::default();
        work.add(Bucket(3), 200);
        work.add(Bucket(3), 100);
        work.add(Bucket(BUCKETS - 1), 100);
        work.add(Bucket(BUCKETS), 9);
        assert_eq!(work.take(800_000), [(Bucket(3), Micros(600)), (Bucket(BUCKETS - 1), Micros(200))]);
        assert!(work.take(900_000).is_empty(), "reported once");
        work.add(Bucket(4), 300);
        work.note_frames(300 / FRAME_US);
        assert_eq!(work.take(1_300_000), [(Bucket(4), Micros(200))], "half of it was another owner's");
    }

    #[test]
    fn mostly_idle_worker_makes_no_bucket_heavy() {
        let mut work = Work::default();
        work.add(Bucket(3), 10);
        assert_eq!(work.take(5_000_000), [(Bucket(3), Micros(10 * SLOWER_MAX))]);
        work.add(Bucket(3), 10);
        assert_eq!(work.take(0), [(Bucket(3), Micros(0))], "the clock went back");
    }

    #[test]
    fn bytes_and_handshakes_cost() {
        let counters = Counters::default();
        assert_eq!(cost(&counters), 0);
        counters.client_bytes_in.add(1_000_000);
        counters.server_bytes_in.add(2_000_000);
        counters.handshakes_full.add(1);
        counters.handshakes_resumed.add(2);
        assert_eq!(cost(&counters), 1000 + FULL_US + 2 * RESUMED_US);
    }
}
