//! How much work a bucket makes for its owner.
//!
//! The shell tells what its workers did; here it is smoothed, so that neither a burst nor a pause moves a bucket. What is
//! known of a bucket goes along when it moves, so that it counts at its next owner at once as it did here. Of a
//! bucket that was taken over nothing is known: until its work shows it counts as much as the others of its owner.
//!
//! Unit: microseconds of work in a second.

use evergate_base::Micros;

use crate::bucket_state::BucketState;
use crate::{Bucket, Node, NodeId};

/// So much more work than its share is no reason to give any away: where there is little to do nothing moves because of it.
pub(crate) const WORK_SLACK: u64 = 30_000;
/// The most that a heartbeat or a move is believed: many times what a machine can do.
pub(crate) const WORK_MAX: u64 = 1 << 32;
/// Work is averaged over about so long.
const SPAN: Micros = Micros::from_ms(10_000);

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    /// Smoothed.
    rate: u64,
    /// Work that was told since it was smoothed last.
    fresh: Micros,
    /// For how long the work is known, at most [`SPAN`].
    known: Micros,
}

impl Load {
    /// As the owner before says.
    pub(crate) fn carried(rate: u64) -> Load {
        Load { rate: rate.min(WORK_MAX), known: SPAN, ..Load::default() }
    }

    /// What is known of it; `None` for nothing yet.
    pub(crate) fn rate(&self) -> Option<u64> {
        (self.known > Micros(0)).then_some(self.rate)
    }

    fn add(&mut self, work: Micros) {
        self.fresh = Micros(self.fresh.0.saturating_add(work.0).min(WORK_MAX));
    }

    /// `span` has passed since the last call. A plain average at first, then one in which what is older counts less.
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
    /// The work that it makes; `assumed` where nothing is known of that.
    pub(crate) fn work(&self, assumed: u64) -> u64 {
        self.load.rate().unwrap_or(assumed)
    }
}

impl Node {
    /// As the owner: a bucket has cost this node's workers `work` of their time since the last call. To be told about as often as [`crate::Timing::balance`].
    pub fn handle_work(&mut self, bucket: Bucket, work: Micros) {
        let me = self.me.id;
        let state = self.bucket_states.get_mut(usize::from(bucket.0)).filter(|state| state.owner == Some(me));
        if let Some(state) = state {
            state.load.add(work);
        }
    }

    /// The work that the buckets make which this node owns.
    pub fn own_work(&self) -> u64 {
        let assumed = self.assumed_work();
        let owned = self.bucket_states.iter().filter(|state| state.owner == Some(self.me.id));
        owned.fold(0, |sum: u64, state| sum.saturating_add(state.work(assumed)))
    }

    /// How many buckets this node owns.
    pub(crate) fn owned(&self) -> u64 {
        self.bucket_states.iter().filter(|state| state.owner == Some(self.me.id)).count() as u64
    }

    /// The work that a node's buckets make, as it says; `None` while it is not heard.
    pub fn work_of(&self, id: NodeId) -> Option<u64> {
        let reports = || self.peers.get(&id).and_then(|peer| peer.last).map(|last| last.work);
        if id == self.me.id { Some(self.own_work()) } else { reports().filter(|_| self.is_reachable(id)) }
    }

    /// The work of a bucket of which nothing is known: as that of those of which something is.
    pub(crate) fn assumed_work(&self) -> u64 {
        let owned = self.bucket_states.iter().filter(|state| state.owner == Some(self.me.id));
        let (sum, count) = owned
            .filter_map(|state| state.load.rate())
            .fold((0_u64, 0_u64), |(sum, count), rate| (sum.saturating_add(rate), count + 1));
        sum.checked_div(count).unwrap_or(0)
    }

    /// Takes what was told since the last call into the average.
    pub(crate) fn smooth_loads(&mut self) {
        let span = self.now.since(self.smoothed_at);
        self.smoothed_at = self.now;
        let me = self.me.id;
        for state in self.bucket_states.iter_mut().filter(|state| state.owner == Some(me)) {
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
    fn the_first_second_counts_in_full_and_a_burst_later_a_tenth() {
        let mut load = Load::default();
        assert_eq!(load.rate(), None);
        assert_eq!(after(&mut load, 1, 30_000), 30_000);
        assert_eq!(after(&mut load, 20, 30_000), 30_000);
        assert_eq!(after(&mut load, 1, 530_000), 80_000);
        assert!(after(&mut load, 60, 30_000).abs_diff(30_000) < 100);
        assert!(after(&mut load, 120, 0) < 10, "what has ended is forgotten");
    }

    #[test]
    fn what_is_carried_along_counts_as_long_known() {
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
