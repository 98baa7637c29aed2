//! What only counts when every worker says it.
//!
//! The connections of a bucket live on any of the owner's workers. So a backup has caught up with the bucket when it has
//! caught up with each of them, and the bucket is frozen when it is quiet at each of them.
//!
//! Invariants: voices of another term do not count; when the role that asked for them ends, they are forgotten.

use evergate_membership::{Bucket, HandoffId, MemberSet, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};

/// Who has spoken about one thing.
#[derive(Debug)]
struct Reports {
    term: Term,
    workers: BTreeSet<usize>,
}

/// All voices. Bounded by the number of buckets, nodes and workers.
#[derive(Debug)]
pub(crate) struct WorkerBarrier {
    workers: usize,
    caught_up: BTreeMap<(Bucket, NodeId), Reports>,
    frozen: BTreeMap<Bucket, ((Term, HandoffId), BTreeSet<usize>)>,
}

impl WorkerBarrier {
    pub(crate) fn new(workers: usize) -> WorkerBarrier {
        WorkerBarrier { workers, caught_up: BTreeMap::new(), frozen: BTreeMap::new() }
    }

    /// A worker says that `node` has caught up with its part. Whether all have said so.
    pub(crate) fn caught_up(&mut self, worker: usize, bucket: Bucket, node: NodeId, term: Term) -> bool {
        count(&mut self.caught_up, (bucket, node), term, worker) >= self.workers
    }

    /// A worker says that its part of the bucket is quiet for a move. Whether all have said so of the one that is asked for.
    pub(crate) fn frozen(&mut self, worker: usize, bucket: Bucket, term: Term, freeze: HandoffId) -> bool {
        let asked = self.frozen.get_mut(&bucket).filter(|(asked, _)| *asked == (term, freeze));
        let Some((_, voices)) = asked else { return false }; // it was called off
        voices.insert(worker);
        voices.len() >= self.workers
    }

    /// The bucket is mirrored to `syncing` for the first time, and is to freeze for a move or not. Other voices do not count
    /// any more.
    pub(crate) fn expect(&mut self, bucket: Bucket, syncing: MemberSet, freeze: Option<(Term, HandoffId)>) {
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

/// How many workers have said it in this term.
fn count<K: Ord>(all: &mut BTreeMap<K, Reports>, key: K, term: Term, worker: usize) -> usize {
    let voices = all.entry(key).or_insert_with(|| Reports { term, workers: BTreeSet::new() });
    if voices.term != term {
        if voices.term > term {
            return 0; // late
        }
        *voices = Reports { term, workers: BTreeSet::new() };
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

    fn term(moves: u32) -> Term {
        Term { moves, ..Term::default() }
    }

    #[test]
    fn it_takes_every_worker_in_the_same_office() {
        let mut barrier = WorkerBarrier::new(2);
        assert!(!barrier.caught_up(0, BUCKET, NODE, term(0)));
        assert!(!barrier.caught_up(0, BUCKET, NODE, term(0)), "the same worker again");
        assert!(!barrier.caught_up(1, BUCKET, NODE, term(1)), "in another term");
        assert!(!barrier.caught_up(0, BUCKET, NODE, term(0)), "of a term that is over");
        assert!(barrier.caught_up(0, BUCKET, NODE, term(1)));
        assert!(!barrier.caught_up(0, BUCKET, NodeId(3), term(1)), "about another node");
        assert!(!barrier.frozen(1, BUCKET, term(1), FREEZE), "nobody asked");
        barrier.expect(BUCKET, MemberSet::of(NODE), Some((term(1), FREEZE)));
        assert!(!barrier.frozen(1, BUCKET, term(1), FREEZE));
        assert!(!barrier.frozen(0, BUCKET, term(0), FREEZE), "in another term");
        assert!(barrier.frozen(0, BUCKET, term(1), FREEZE));
    }

    #[test]
    fn voices_of_an_attempt_that_was_given_up_do_not_count_for_the_next() {
        let mut barrier = WorkerBarrier::new(2);
        barrier.caught_up(0, BUCKET, NODE, term(0));
        barrier.expect(BUCKET, MemberSet::of(NODE), Some((term(0), FREEZE)));
        barrier.frozen(0, BUCKET, term(0), FREEZE);
        assert!(barrier.caught_up(1, BUCKET, NODE, term(0)), "still the same attempt");
        barrier.expect(BUCKET, MemberSet::EMPTY, None);
        assert!(!barrier.caught_up(1, BUCKET, NODE, term(0)));
        assert!(!barrier.frozen(1, BUCKET, term(0), FREEZE));
        // The next move in the same term is another one, also when nobody heard that the first was called off.
        let next = HandoffId { number: 2, ..FREEZE };
        barrier.expect(BUCKET, MemberSet::EMPTY, Some((term(0), FREEZE)));
        barrier.frozen(0, BUCKET, term(0), FREEZE);
        barrier.expect(BUCKET, MemberSet::EMPTY, Some((term(0), next)));
        assert!(!barrier.frozen(1, BUCKET, term(0), next));
        assert!(!barrier.frozen(0, BUCKET, term(0), FREEZE), "late");
        assert!(barrier.frozen(0, BUCKET, term(0), next));
    }
}
