//! Work of a bucket for its owner.
//!
//! The shell reports the time that its workers spent. It is smoothed here, so that neither a burst nor a pause moves a
//! bucket. The known work moves with the bucket, so that it counts at the next owner at once. After a failover a
//! bucket's work is unknown: until it shows, the bucket counts like the owner's other ones.
//!
//! Unit: microseconds of work per second.

use evergate_base::Micros;

use crate::bucket_state::BucketState;
use crate::{Bucket, Node, NodeId};

/// Work above the share that is no reason to move a bucket, so that a small load moves nothing.
pub(crate) const WORK_SLACK: u64 = 30_000;
/// Largest work that is accepted from a heartbeat or a move: many times the capacity of a machine.
pub(crate) const WORK_MAX: u64 = 1 << 32;
/// Approximate time over which work is averaged.
const SPAN: Micros = Micros::from_ms(10_000);

/// Smoothed work of a bucket: see the module's description.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    /// Smoothed work per second.
    rate: u64,
    /// Work that was reported since the last smoothing.
    fresh: Micros,
    /// Time for which the work is known, at most [`SPAN`].
    known: Micros,
}

impl Load {
    /// The load by the report of the previous owner.
    pub(crate) fn carried(rate: u64) -> Load {
        Load { rate: rate.min(WORK_MAX), known: SPAN, ..Load::default() }
    }

    /// The smoothed work; `None` while it is unknown.
    pub(crate) fn rate(&self) -> Option<u64> {
        (self.known > Micros(0)).then_some(self.rate)
    }

    fn add(&mut self, work: Micros) {
        self.fresh = Micros(self.fresh.0.saturating_add(work.0).min(WORK_MAX));
    }

    /// `span` has passed since the last call. A plain average at first, later one in which older work counts less.
    fn smooth(&mut self, span: Micros) {
        if span == Micros(0) {
            return;
        }
        let sample = (u128::from(self.fresh.0) * 1_000_000 / u128::from(span.0)).min(u128::from(WORK_MAX));
        self.fresh = Micros(0);
        self.known = (self.known + span).min(SPAN);
        let weight = u128::from(span.min(self.known).0);
        let of = u128::from(self.known.0);
        self.rate = ((u128::from(self.rate) * (of - weight) + sample * weight) / of) as u64;
    }
}

impl BucketState {
    /// The bucket's work, or `assumed` while it is unknown.
    pub(crate) fn work(&self, assumed: u64) -> u64 {
        self.load.rate().unwrap_or(assumed)
    }
}

impl Node {
    /// As the owner: a bucket has cost this node's workers `work` of their time since the last call. Called about as
    /// often as [`crate::Timing::balance`].
    pub fn handle_work(&mut self, bucket: Bucket, work: Micros) {
        let me = self.me.id;
        let state = self.buckets.get_mut(bucket).filter(|state| state.owner == Some(me));
        if let Some(state) = state {
            state.load.add(work);
        }
    }

    /// The work of the buckets that this node owns.
    pub fn own_work(&self) -> u64 {
        let assumed = self.assumed_work();
        let owned = self.buckets.owned_by(self.me.id);
        owned.fold(0, |sum: u64, state| sum.saturating_add(state.work(assumed)))
    }

    /// Number of buckets that this node owns.
    pub(crate) fn owned(&self) -> u64 {
        self.buckets.owned_by(self.me.id).count() as u64
    }

    /// The work of a node's buckets, by its own report; `None` while it is not reachable.
    pub fn work_of(&self, id: NodeId) -> Option<u64> {
        if id == self.me.id {
            return Some(self.own_work());
        }
        self.peers.reachable_last(id, &self.clock).map(|last| last.work)
    }

    /// The assumed work of a bucket with unknown work: the average of the known ones.
    pub(crate) fn assumed_work(&self) -> u64 {
        let owned = self.buckets.owned_by(self.me.id);
        let (sum, count) = owned
            .filter_map(|state| state.load.rate())
            .fold((0_u64, 0_u64), |(sum, count), rate| (sum.saturating_add(rate), count + 1));
        sum.checked_div(count).unwrap_or(0)
    }

    /// Adds the work reported since the last call to the averages.
    pub(crate) fn smooth_loads(&mut self) {
        let span = self.clock.now.since(self.rebalancer.smoothed_at);
        self.rebalancer.smoothed_at = self.clock.now;
        let me = self.me.id;
        for state in self.buckets.states.iter_mut().filter(|state| state.owner == Some(me)) {
            state.load.smooth(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros::from_ms(1000);

    fn after(load: &mut Load, seconds: u64, work: u64) -> u64 {
        for _ in 0..seconds {
            load.add(Micros(work));
            load.smooth(SECOND);
        }
        load.rate().unwrap()
    }

    #[test]
    fn first_second_counts_in_full_and_a_burst_later_a_tenth() {
        let mut load = Load::default();
        assert_eq!(load.rate(), None);
        assert_eq!(after(&mut load, 1, 30_000), 30_000);
        assert_eq!(after(&mut load, 20, 30_000), 30_000);
        assert_eq!(after(&mut load, 1, 530_000), 80_000);
        assert!(after(&mut load, 60, 30_000).abs_diff(30_000) < 100);
        assert!(after(&mut load, 120, 0) < 10, "ended work is forgotten");
    }

    #[test]
    fn carried_load_counts_as_long_known() {
        let mut load = Load::carried(40_000);
        assert_eq!(load.rate(), Some(40_000));
        assert_eq!(after(&mut load, 1, 0), 36_000);
    }

    #[test]
    fn no_numbers_overflow() {
        let mut load = Load::carried(u64::MAX);
        for span in [0, 1, 1000, u64::MAX / 2, u64::MAX] {
            load.add(Micros(u64::MAX));
            load.smooth(Micros(span));
            assert!(load.rate().unwrap() <= WORK_MAX, "{span}");
        }
    }
}
