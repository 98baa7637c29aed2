//! Barrier over worker reports.
//!
//! The connections of a bucket live on any of the owner's workers. A backup has caught up with the bucket when it has
//! caught up with each worker, and the bucket is frozen when it is frozen at each worker.
//!
//! Invariants: reports of another term do not count. When the role that needs them ends, they are forgotten.

use evergate_membership::{Bucket, HandoffId, MemberSet, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};

/// Workers that have reported in a term.
#[derive(Debug)]
struct Reports {
    term: Term,
    workers: BTreeSet<usize>,
}

/// All reports. Bounded by the number of buckets, nodes and workers.
#[derive(Debug)]
pub struct WorkerBarrier {
    workers: usize,
    caught_up: BTreeMap<(Bucket, NodeId), Reports>,
    frozen: BTreeMap<Bucket, ((Term, HandoffId), BTreeSet<usize>)>,
}

impl WorkerBarrier {
    /// A barrier over so many workers.
    pub fn new(workers: usize) -> WorkerBarrier {
        WorkerBarrier { workers, caught_up: BTreeMap::new(), frozen: BTreeMap::new() }
    }

    /// A worker reports that `node` has caught up with its part. Whether all workers have.
    pub fn caught_up(&mut self, worker: usize, bucket: Bucket, node: NodeId, term: Term) -> bool {
        count(&mut self.caught_up, (bucket, node), term, worker) >= self.workers
    }

    /// A worker reports that its part of the bucket is frozen. Whether all workers have, for the handoff that is
    /// expected.
    pub fn frozen(&mut self, worker: usize, bucket: Bucket, term: Term, freeze: HandoffId) -> bool {
        let expected = self.frozen.get_mut(&bucket).filter(|(expected, _)| *expected == (term, freeze));
        let Some((_, workers)) = expected else { return false }; // it was called off
        workers.insert(worker);
        workers.len() >= self.workers
    }

    /// Sets the reports that count: of backups in `syncing`, and of the bucket's freeze for a handoff, if there is one.
    /// Other reports are forgotten.
    pub fn expect(&mut self, bucket: Bucket, syncing: MemberSet, freeze: Option<(Term, HandoffId)>) {
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
            Some(expected) => {
                let new = || (expected, BTreeSet::new());
                let (known, workers) = self.frozen.entry(bucket).or_insert_with(new);
                if *known != expected {
                    *known = expected;
                    workers.clear();
                }
            }
        }
    }

    /// Forgets all reports.
    pub fn clear(&mut self) {
        self.caught_up.clear();
        self.frozen.clear();
    }
}

/// Records a report. Number of workers that have reported in this term.
fn count<K: Ord>(all: &mut BTreeMap<K, Reports>, key: K, term: Term, worker: usize) -> usize {
    let reports = all.entry(key).or_insert_with(|| Reports { term, workers: BTreeSet::new() });
    if reports.term != term {
        if reports.term > term {
            return 0; // late
        }
        *reports = Reports { term, workers: BTreeSet::new() };
    }
    reports.workers.insert(worker);
    reports.workers.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Bucket = Bucket(5);
    const NODE: NodeId = NodeId(2);
    const FREEZE: HandoffId = HandoffId { to: NODE, number: 1 };

    fn term(moves: u32) -> Term {
        Term { moves, ..Term::default() }
    }

    #[test]
    fn barrier_opens_after_each_worker_in_the_same_term() {
        let mut barrier = WorkerBarrier::new(2);
        assert!(!barrier.caught_up(0, BUCKET, NODE, term(0)));
        assert!(!barrier.caught_up(0, BUCKET, NODE, term(0)), "the same worker again");
        assert!(!barrier.caught_up(1, BUCKET, NODE, term(1)), "in another term");
        assert!(!barrier.caught_up(0, BUCKET, NODE, term(0)), "of a term that is over");
        assert!(barrier.caught_up(0, BUCKET, NODE, term(1)));
        assert!(!barrier.caught_up(0, BUCKET, NodeId(3), term(1)), "about another node");
        assert!(!barrier.frozen(1, BUCKET, term(1), FREEZE), "not expected");
        barrier.expect(BUCKET, MemberSet::of(NODE), Some((term(1), FREEZE)));
        assert!(!barrier.frozen(1, BUCKET, term(1), FREEZE));
        assert!(!barrier.frozen(0, BUCKET, term(0), FREEZE), "in another term");
        assert!(barrier.frozen(0, BUCKET, term(1), FREEZE));
    }

    #[test]
    fn reports_of_a_cancelled_attempt_do_not_count_for_the_next() {
        let mut barrier = WorkerBarrier::new(2);
        barrier.caught_up(0, BUCKET, NODE, term(0));
        barrier.expect(BUCKET, MemberSet::of(NODE), Some((term(0), FREEZE)));
        barrier.frozen(0, BUCKET, term(0), FREEZE);
        assert!(barrier.caught_up(1, BUCKET, NODE, term(0)), "still the same attempt");
        barrier.expect(BUCKET, MemberSet::EMPTY, None);
        assert!(!barrier.caught_up(1, BUCKET, NODE, term(0)));
        assert!(!barrier.frozen(1, BUCKET, term(0), FREEZE));
        // The next move in the same term is another one, even if no worker received that the first was called off.
        let next = HandoffId { number: 2, ..FREEZE };
        barrier.expect(BUCKET, MemberSet::EMPTY, Some((term(0), FREEZE)));
        barrier.frozen(0, BUCKET, term(0), FREEZE);
        barrier.expect(BUCKET, MemberSet::EMPTY, Some((term(0), next)));
        assert!(!barrier.frozen(1, BUCKET, term(0), next));
        assert!(!barrier.frozen(0, BUCKET, term(0), FREEZE), "late");
        assert!(barrier.frozen(0, BUCKET, term(0), next));
    }
}
