//! What only counts when every worker says it.
//!
//! The connections of a bucket live on any of the owner's workers. So a backup has caught up with the bucket when it has
//! caught up with each of them, and the bucket is frozen when it is quiet at each of them.
//!
//! Invariants: voices of another office do not count; when the role that asked for them ends, they are forgotten.

use evergate_membership::{Bucket, HandoffId, MemberSet, NodeId};
use evergate_replication::Office;
use std::collections::{BTreeMap, BTreeSet};

/// Who has spoken about one thing.
#[derive(Debug)]
struct Reports {
    office: Office,
    workers: BTreeSet<usize>,
}

/// All voices. Bounded by the number of buckets, nodes and workers.
#[derive(Debug)]
pub(crate) struct WorkerBarrier {
    workers: usize,
    caught_up: BTreeMap<(Bucket, NodeId), Reports>,
    frozen: BTreeMap<Bucket, ((Office, HandoffId), BTreeSet<usize>)>,
}

impl WorkerBarrier {
    pub(crate) fn new(workers: usize) -> WorkerBarrier {
        WorkerBarrier { workers, caught_up: BTreeMap::new(), frozen: BTreeMap::new() }
    }

    /// A worker says that `node` has caught up with its part. Whether all have said so.
    pub(crate) fn caught_up(&mut self, worker: usize, bucket: Bucket, node: NodeId, office: Office) -> bool {
        count(&mut self.caught_up, (bucket, node), office, worker) >= self.workers
    }

    /// A worker says that its part of the bucket is quiet for a move. Whether all have said so of the one that is asked for.
    pub(crate) fn frozen(
        &mut self,
        worker: usize,
        bucket: Bucket,
        office: Office,
        freeze: HandoffId,
    ) -> bool {
        let asked = self.frozen.get_mut(&bucket).filter(|(asked, _)| *asked == (office, freeze));
        let Some((_, voices)) = asked else { return false }; // it was called off
        voices.insert(worker);
        voices.len() >= self.workers
    }

    /// The bucket is mirrored to `syncing` for the first time, and is to freeze for a move or not. Other voices do not count
    /// any more.
    pub(crate) fn expect(&mut self, bucket: Bucket, syncing: MemberSet, freeze: Option<(Office, HandoffId)>) {
        let keys: Vec<_> = self
            .caught_up
            .range((bucket, NodeId(0))..=(bucket, NodeId(u8::MAX)))
            .map(|(key, _)| *key)
            .collect();
        for key in keys.into_iter().filter(|(_, node)| !syncing.contains(*node)) {
            self.caught_up.remove(&key);
        }
        match freeze {
            None => drop(self.frozen.remove(&bucket)),
            Some(asked) => {
                let (known, voices) = self.frozen.entry(bucket).or_insert_with(|| (asked, BTreeSet::new()));
                if *known != asked {
                    *known = asked;
                    voices.clear();
                }
            }
        }
    }

    /// Nothing counts any more.
    pub(crate) fn clear(&mut self) {
        self.caught_up.clear();
        self.frozen.clear();
    }
}

/// How many workers have said it in this office.
fn count<K: Ord>(all: &mut BTreeMap<K, Reports>, key: K, office: Office, worker: usize) -> usize {
    let voices = all.entry(key).or_insert_with(|| Reports { office, workers: BTreeSet::new() });
    if voices.office != office {
        if voices.office > office {
            return 0; // late
        }
        *voices = Reports { office, workers: BTreeSet::new() };
    }
    voices.workers.insert(worker);
    voices.workers.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Bucket = Bucket(5);
    const NODE: NodeId = NodeId(2);
    const FREEZE: HandoffId = HandoffId { to: NODE, number: 1 };

    fn office(moves: u32) -> Office {
        Office { epoch: 1, proposer: 0, incarnation: 1, moves }
    }

    #[test]
    fn it_takes_every_worker_in_the_same_office() {
        let mut chorus = WorkerBarrier::new(2);
        assert!(!chorus.caught_up(0, BUCKET, NODE, office(0)));
        assert!(!chorus.caught_up(0, BUCKET, NODE, office(0)), "the same worker again");
        assert!(!chorus.caught_up(1, BUCKET, NODE, office(1)), "in another office");
        assert!(!chorus.caught_up(0, BUCKET, NODE, office(0)), "of an office that is over");
        assert!(chorus.caught_up(0, BUCKET, NODE, office(1)));
        assert!(!chorus.caught_up(0, BUCKET, NodeId(3), office(1)), "about another node");
        assert!(!chorus.frozen(1, BUCKET, office(1), FREEZE), "nobody asked");
        chorus.expect(BUCKET, MemberSet::of(NODE), Some((office(1), FREEZE)));
        assert!(!chorus.frozen(1, BUCKET, office(1), FREEZE));
        assert!(!chorus.frozen(0, BUCKET, office(0), FREEZE), "in another office");
        assert!(chorus.frozen(0, BUCKET, office(1), FREEZE));
    }

    #[test]
    fn voices_of_an_attempt_that_was_given_up_do_not_count_for_the_next() {
        let mut chorus = WorkerBarrier::new(2);
        chorus.caught_up(0, BUCKET, NODE, office(0));
        chorus.expect(BUCKET, MemberSet::of(NODE), Some((office(0), FREEZE)));
        chorus.frozen(0, BUCKET, office(0), FREEZE);
        assert!(chorus.caught_up(1, BUCKET, NODE, office(0)), "still the same attempt");
        chorus.expect(BUCKET, MemberSet::EMPTY, None);
        assert!(!chorus.caught_up(1, BUCKET, NODE, office(0)));
        assert!(!chorus.frozen(1, BUCKET, office(0), FREEZE));
        // The next move in the same office is another one, also when nobody heard that the first was called off.
        let next = HandoffId { number: 2, ..FREEZE };
        chorus.expect(BUCKET, MemberSet::EMPTY, Some((office(0), FREEZE)));
        chorus.frozen(0, BUCKET, office(0), FREEZE);
        chorus.expect(BUCKET, MemberSet::EMPTY, Some((office(0), next)));
        assert!(!chorus.frozen(1, BUCKET, office(0), next));
        assert!(!chorus.frozen(0, BUCKET, office(0), FREEZE), "late");
        assert!(chorus.frozen(0, BUCKET, office(0), next));
    }
}
