//! What the workers say of mirroring, put together with what the agent publishes.

use super::state::Control;
use crate::cluster::Handle;
use crate::cluster::status::{
    ClusterStatus, LagStatus, MirroringStatus, StallCounts, StallStatus, StallsWithin,
};
use crate::worker::{Count, Counters, Lag, STALL_BOUNDS_MS, Stalls};
use std::collections::BTreeMap;
use std::sync::PoisonError;

impl Control {
    /// The cluster as this node sees it.
    pub(super) fn cluster_status(&self, cluster: &Handle) -> ClusterStatus {
        let sum =
            |of: fn(&Counters) -> &Count| self.workers.iter().map(|worker| of(&worker.counters).get()).sum();
        let (mirroring, stalls) = (self.mirroring(), self.stalls());
        let (losses_told, losses_told_late) = (sum(|of| &of.losses_told), sum(|of| &of.losses_told_late));
        ClusterStatus { mirroring, stalls, losses_told, losses_told_late, ..cluster.status() }
    }

    fn mirroring(&self) -> MirroringStatus {
        let mut all = MirroringStatus::default();
        let mut lags: BTreeMap<u8, Lag> = BTreeMap::new();
        for worker in &self.workers {
            let of = worker.counters.mirroring.lock().unwrap_or_else(PoisonError::into_inner);
            all.connections += of.own;
            all.mirrored += of.mirrored;
            all.held += of.held;
            for (node, lag) in &of.lags {
                let known = lags.entry(*node).or_default();
                *known = known.with(*lag);
            }
        }
        let status = |(node, Lag { frames, unsent_bytes, behind_us })| LagStatus {
            node,
            frames,
            unsent_bytes,
            behind_us,
        };
        MirroringStatus { backups: lags.into_iter().map(status).collect(), ..all }
    }

    fn stalls(&self) -> StallStatus {
        let [busy, resting] = [0, 1].map(|which| {
            let of = self.workers.iter().map(|worker| &worker.counters.stalls[which]);
            stall_counts(&of.collect::<Vec<_>>())
        });
        StallStatus { busy, resting }
    }
}

fn stall_counts(all: &[&Stalls]) -> StallCounts {
    let class =
        |index: usize| all.iter().map(|stalls| stalls.classes.get(index).map_or(0, Count::get)).sum::<u64>();
    let mut count = 0;
    let within = STALL_BOUNDS_MS.iter().enumerate().map(|(index, ms)| {
        count += class(index);
        StallsWithin { ms: *ms, count }
    });
    let within = within.collect();
    let sum_us = all.iter().map(|stalls| stalls.sum_us.get()).sum();
    StallCounts { count: count + class(STALL_BOUNDS_MS.len()), sum_us, within }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stalls_of_all_workers_are_summed_up_to_each_bound() {
        let workers = [Stalls::default(), Stalls::default()];
        for (worker, ms) in [(0, 10), (1, 11), (0, 9_999), (1, 10_001), (1, 3)] {
            workers[worker].note(Duration::from_millis(ms));
        }
        let counts = stall_counts(&[&workers[0], &workers[1]]);
        let within = |ms| counts.within.iter().find(|one| one.ms == ms).map(|one| one.count);
        assert_eq!(
            (within(10), within(25), within(5000), within(10_000)),
            (Some(2), Some(3), Some(3), Some(4))
        );
        assert_eq!((counts.count, counts.sum_us), (5, 20_024_000));
    }
}
