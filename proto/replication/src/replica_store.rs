//! The backup's end: everything that one worker holds for others.
//!
//! An owner speaks through several channels, one for each of its workers, and they do not learn of a new term at the same
//! moment. So a frame counts when the bucket's newest term was announced by the same process, on whichever channel, and
//! its own channel's term is not older than what another process announced before.
//!
//! A copy that was given up may be filled again in a later term, and the frames of either may come before this node has
//! heard of it: [`Holder::forget`] names the first term that counts. What is said in an older one is passed over, and its
//! channel believed, because its owner may not have heard of it either.
//!
//! An owner that said only part of what there is to say of a bucket, because a channel broke, says all of it anew and announces
//! its term once more: what it does not mention then is over.
//!
//! Invariants: frames of a process count only until another one announces a term of the bucket; a connection is held
//! under one bucket, and in no term that was given up; what a take-over gets is the fold of a prefix of what the owner
//! queued.
//!
//! A take-over is waited for, and most connections rest: their states are in no cache, and it looks at none of them. So whether
//! a connection rests is noted when something is heard of it, and what is taken out is struck off the index later.

use crate::{ConnectionId, ConnectionState, Frame, LegFacts};
use evergate_base::{Bucket, Incarnation, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Connections that were given up and are remembered; an owner that begins more of them is not believed about those.
const FORGOTTEN_MAX: usize = 1 << 20;
/// Names that the index may have beyond those of all connections held, and as many again.
const STALE_MAX: usize = 4096;

/// One connection as a backup holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedConnection {
    /// Its bucket.
    pub bucket: Bucket,
    /// The term of its last frame.
    pub term: Term,
    /// The fold of its entries.
    pub state: ConnectionState,
    /// Its legs that may still be needed, by number; 0 is the client's.
    pub legs: BTreeMap<u32, LegFacts>,
    /// Which of the owner's workers began it, in which telling.
    pub by: (u16, u64),
}

/// What a take-over gets of one connection.
#[derive(Debug)]
pub struct Recovered {
    /// Which one.
    pub connection: ConnectionId,
    /// Whether nothing of it is on its way to anybody ([`Replicated::rests`]).
    pub idle: bool,
    /// All that is known of it.
    pub held: Box<ReplicatedConnection>,
}

/// What an owner says must not be believed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReplicaError {
    /// A frame about a bucket for which the sender has announced no term, or an older one than is known.
    #[error("a frame of bucket {} in term {reported:?}, but {known:?} is known", .bucket.0)]
    Term {
        /// The bucket.
        bucket: Bucket,
        /// What the sender announced, if anything.
        reported: Option<Term>,
        /// What is known.
        known: Option<Term>,
    },
    /// Entries or legs of a connection that was not begun.
    #[error("connection {0:?} was not begun")]
    Unknown(ConnectionId),
}

/// A process that speaks for buckets: a node and its incarnation.
type SenderIncarnation = Option<(NodeId, Incarnation)>;

/// What one channel has announced: who speaks, and terms by bucket.
#[derive(Clone, Debug, Default)]
pub struct Announced {
    announcer: SenderIncarnation,
    /// Which of the owner's workers speaks on it, and how many there are.
    worker: (u16, u16),
    /// By bucket the newest term, and the telling in which its connections are begun.
    terms: BTreeMap<Bucket, (Term, u64)>,
}

impl Announced {
    /// Who speaks, once it has said so: a node and its incarnation.
    pub fn sender(&self) -> Option<(NodeId, Incarnation)> {
        self.announcer
    }

    /// The term last announced for a bucket.
    pub fn of(&self, bucket: Bucket) -> Option<Term> {
        self.terms.get(&bucket).map(|(term, _)| *term)
    }

    fn by(&self, bucket: Bucket) -> (u16, u64) {
        (self.worker.0, self.terms.get(&bucket).map_or(0, |(_, telling)| *telling))
    }
}

/// Who speaks for a bucket.
#[derive(Clone, Debug)]
struct Known {
    announcer: SenderIncarnation,
    /// What another one had announced before it: its own terms are newer.
    floor: Term,
    /// Its oldest term in a row, and its newest one.
    since: Term,
    newest: Term,
    /// Its workers that have said everything since then.
    complete: BTreeSet<u16>,
}

impl Known {
    fn begin(announcer: SenderIncarnation, term: Term) -> Known {
        let complete = BTreeSet::new();
        Known { announcer, floor: Term::default(), since: term, newest: term, complete }
    }
}

/// One connection, and whether it rests.
#[derive(Clone, Debug)]
struct Filed {
    idle: bool,
    held: Box<ReplicatedConnection>,
}

impl Filed {
    fn new(held: ReplicatedConnection) -> Filed {
        Filed { idle: held.state.is_idle(), held: Box::new(held) }
    }

    fn change(&mut self, change: impl FnOnce(&mut ReplicatedConnection)) {
        change(&mut self.held);
        self.idle = self.held.state.is_idle();
    }
}

/// The connections that a worker holds for other nodes.
#[derive(Clone, Debug, Default)]
pub struct ReplicaStore {
    /// By bucket; none is empty.
    buckets: BTreeMap<Bucket, BTreeMap<ConnectionId, Filed>>,
    /// The bucket of each, and of some that were taken out.
    index: HashMap<ConnectionId, Bucket>,
    /// Connections in all buckets.
    count: usize,
    known: BTreeMap<Bucket, Known>,
    /// The first term of a bucket that counts, where earlier ones were given up.
    since: BTreeMap<Bucket, Term>,
    /// Connections of what was given up, with their bucket: their owner may not have heard of it yet.
    forgotten: BTreeMap<ConnectionId, Bucket>,
    /// Tellings so far.
    tellings: u64,
}

impl ReplicaStore {
    /// Takes a frame of a channel in; `announced` belongs to that channel.
    pub fn handle(&mut self, announced: &mut Announced, frame: Frame) -> Result<(), ReplicaError> {
        match frame {
            Frame::Hello { node, incarnation, worker, workers, .. } => {
                announced.announcer = Some((node, incarnation));
                announced.worker = (worker, workers);
            }
            Frame::Term { bucket, term } => self.begin_term(announced, bucket, term)?,
            // Of no connection: the channel's owner takes them before.
            Frame::Sessions(_) | Frame::Settings(_) | Frame::Clock { .. } => {}
            Frame::Begin { connection, bucket, state, legs } => {
                let term = self.current_term(announced, bucket)?;
                if self.counts(bucket, term) {
                    let state = state.map(|state| *state).unwrap_or_default();
                    self.insert(
                        connection,
                        ReplicatedConnection { bucket, term, state, legs, by: announced.by(bucket) },
                    );
                } else if self.get(connection).is_none() && self.forgotten.len() < FORGOTTEN_MAX {
                    self.forgotten.insert(connection, bucket);
                }
            }
            Frame::Leg { connection, leg, facts } => {
                let Some(filed) = self.known(announced, connection)? else { return Ok(()) };
                filed.change(|held| {
                    if leg != 0 {
                        held.state.forget_legs(&mut held.legs, leg);
                    }
                    held.legs.insert(leg, facts);
                });
            }
            Frame::Entries { connection, entries } => {
                let Some(filed) = self.known(announced, connection)? else { return Ok(()) };
                filed.change(|held| entries.into_iter().for_each(|entry| held.state.apply(entry)));
            }
            Frame::End { connection } => {
                if self.known(announced, connection)?.is_some() {
                    self.remove(connection);
                }
            }
            Frame::Complete { bucket } => self.complete(announced, bucket)?,
        }
        Ok(())
    }

    /// A process speaks for a bucket from this term on.
    fn begin_term(
        &mut self,
        announced: &mut Announced,
        bucket: Bucket,
        term: Term,
    ) -> Result<(), ReplicaError> {
        let announcer = announced.announcer;
        let next = match self.known.get(&bucket) {
            // Another worker of the process may have been told of a newer one already.
            Some(known) if known.announcer == announcer && known.floor <= term => {
                Known { since: known.since.min(term), newest: known.newest.max(term), ..known.clone() }
            }
            Some(known) if known.announcer == announcer || known.newest > term => {
                let known = Some(known.newest);
                return Err(ReplicaError::Term { bucket, reported: Some(term), known });
            }
            before => Known {
                floor: before.map(|before| before.newest).unwrap_or_default(),
                ..Known::begin(announcer, term)
            },
        };
        self.known.insert(bucket, next);
        let telling = match announced.terms.get(&bucket) {
            // An owner that stays need not repeat itself.
            Some((before, telling)) if *before != term => *telling,
            _ => {
                self.tellings += 1;
                self.tellings
            }
        };
        announced.terms.insert(bucket, (term, telling));
        Ok(())
    }

    /// A worker has said all that it has of a bucket.
    fn complete(&mut self, announced: &Announced, bucket: Bucket) -> Result<(), ReplicaError> {
        let term = self.current_term(announced, bucket)?;
        let (worker, workers) = announced.worker;
        self.drop_unmentioned(bucket, announced.by(bucket));
        if let Some(known) = self.known.get_mut(&bucket) {
            known.complete.insert(worker);
            let (all, since) = (known.complete.len() >= usize::from(workers), known.since);
            if all && self.counts(bucket, term) {
                self.drop_older(bucket, since);
            }
        }
        Ok(())
    }

    /// Every worker of the bucket's owner has said all it has: what none of them spoke of is over, or was said by an earlier owner
    /// to this node alone, and never went into effect.
    fn drop_older(&mut self, bucket: Bucket, since: Term) {
        // What the process itself said in an earlier term stands.
        self.remove_if(bucket, |held| held.term < since);
    }

    /// A worker of the bucket's owner has said all it has: what it began in an earlier telling, and not again, is over.
    fn drop_unmentioned(&mut self, bucket: Bucket, (worker, telling): (u16, u64)) {
        let Some(since) = self.known.get(&bucket).map(|known| known.since) else { return };
        // Of this process, that is.
        self.remove_if(bucket, |held| held.term >= since && held.by.0 == worker && held.by.1 < telling);
    }

    fn current_term(&self, announced: &Announced, bucket: Bucket) -> Result<Term, ReplicaError> {
        let (reported, known) = (announced.of(bucket), self.known.get(&bucket));
        match (reported, known) {
            (Some(reported), Some(known))
                if known.announcer == announced.announcer && known.since <= reported =>
            {
                Ok(reported)
            }
            _ => Err(ReplicaError::Term { bucket, reported, known: known.map(|known| known.newest) }),
        }
    }

    /// Whether what is said of a bucket in this term is held.
    pub fn counts(&self, bucket: Bucket, term: Term) -> bool {
        self.since.get(&bucket).is_none_or(|since| *since <= term)
    }

    /// What is held of a connection; nothing for what was given up while its owner still speaks of it.
    fn known(
        &mut self,
        announced: &Announced,
        connection: ConnectionId,
    ) -> Result<Option<&mut Filed>, ReplicaError> {
        let bucket = self.bucket_of(connection).or_else(|| self.forgotten.get(&connection).copied());
        let bucket = bucket.ok_or(ReplicaError::Unknown(connection))?;
        let term = self.current_term(announced, bucket)?;
        if !self.counts(bucket, term) {
            return Ok(None);
        }
        Ok(self.buckets.get_mut(&bucket).and_then(|all| all.get_mut(&connection)))
    }

    /// The bucket under which a connection is held.
    fn bucket_of(&self, connection: ConnectionId) -> Option<Bucket> {
        let bucket = *self.index.get(&connection)?;
        self.buckets.get(&bucket)?.contains_key(&connection).then_some(bucket)
    }

    fn get(&self, connection: ConnectionId) -> Option<&ReplicatedConnection> {
        let bucket = self.index.get(&connection)?;
        Some(&self.buckets.get(bucket)?.get(&connection)?.held)
    }

    fn insert(&mut self, connection: ConnectionId, held: ReplicatedConnection) {
        self.remove(connection);
        self.forgotten.remove(&connection);
        self.index.insert(connection, held.bucket);
        self.buckets.entry(held.bucket).or_default().insert(connection, Filed::new(held));
        self.count += 1;
        if self.index.len() > 2 * self.count + STALE_MAX {
            let buckets = &self.buckets;
            self.index.retain(|connection, bucket| {
                buckets.get(bucket).is_some_and(|all| all.contains_key(connection))
            });
        }
    }

    fn remove(&mut self, connection: ConnectionId) {
        let Some(bucket) = self.index.remove(&connection) else { return };
        let Some(all) = self.buckets.get_mut(&bucket) else { return };
        self.count -= usize::from(all.remove(&connection).is_some());
        if all.is_empty() {
            self.buckets.remove(&bucket);
        }
    }

    /// Removes those of a bucket that fulfil this, and says which.
    fn remove_if(
        &mut self,
        bucket: Bucket,
        is_over: impl Fn(&ReplicatedConnection) -> bool,
    ) -> Vec<ConnectionId> {
        let all = self.buckets.get(&bucket).into_iter().flatten();
        let over: Vec<_> = all.filter(|(_, filed)| is_over(&filed.held)).map(|(id, _)| *id).collect();
        over.iter().for_each(|connection| self.remove(*connection));
        over
    }

    /// Takes everything of a bucket out: its owner is gone, and this node goes on. Frames of the old term are refused
    /// from now on.
    pub fn recover(&mut self, bucket: Bucket, term: Term) -> Vec<Recovered> {
        self.known.insert(bucket, Known::begin(None, term));
        if !self.forgotten.is_empty() {
            self.drop_all(bucket);
        }
        let all = self.buckets.remove(&bucket).unwrap_or_default();
        self.count -= all.len();
        all.into_iter()
            .map(|(connection, Filed { idle, held })| Recovered { connection, idle, held })
            .collect()
    }

    /// Keeps a connection ([`Frame::Begin`]) that this node itself carried in this term and has just let go: it counts as a
    /// backup from now on, and the next owner may never say its first word.
    pub fn keep(&mut self, term: Term, frame: Frame) {
        let Frame::Begin { connection, bucket, state, legs } = frame else { return };
        let is_newer = self.get(connection).is_some_and(|held| held.term > term);
        if self.counts(bucket, term) && !is_newer {
            let state = state.map(|state| *state).unwrap_or_default();
            self.insert(connection, ReplicatedConnection { bucket, term, state, legs, by: (0, 0) });
        }
    }

    /// Gives up what was said of a bucket in terms before this one, and what will be.
    pub fn forget(&mut self, bucket: Bucket, before: Term) {
        let since = self.since.entry(bucket).or_default();
        *since = before.max(*since);
        let since = *since;
        let gone = self.remove_if(bucket, |held| held.term < since);
        self.forgotten.extend(gone.into_iter().map(|connection| (connection, bucket)));
    }

    /// By now its owner knows that it need not speak of what was given up.
    pub fn drop_all(&mut self, bucket: Bucket) {
        self.forgotten.retain(|_, of| *of != bucket);
    }

    /// Whether there is a copy of any connection of the bucket.
    pub fn has(&self, bucket: Bucket) -> bool {
        self.buckets.contains_key(&bucket)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = ReplicaStore::default();
    }

    /// Connections held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Everything held, by bucket and connection.
    pub fn iter(&self) -> impl Iterator<Item = (&ConnectionId, &ReplicatedConnection)> {
        self.buckets.values().flatten().map(|(id, filed)| (id, &*filed.held))
    }

    /// Panics when a law is broken, whatever owners say; for tests and the simulator.
    pub fn check_invariants(&self) {
        for (bucket, all) in &self.buckets {
            assert!(!all.is_empty(), "{bucket:?} has nothing");
            for (id, Filed { idle, held }) in all {
                assert_eq!(
                    (held.bucket, self.bucket_of(*id)),
                    (*bucket, Some(*bucket)),
                    "{id:?} is not found"
                );
                assert_eq!(*idle, held.state.is_idle(), "of {id:?} it is not known whether it rests");
                let counts = self.counts(held.bucket, held.term);
                assert!(counts, "{id:?} is held in a term that was given up");
            }
        }
        let filed: usize = self.buckets.values().map(BTreeMap::len).sum();
        assert_eq!(filed, self.count, "connections held");
    }

    /// Panics when a connection breaks a law that every honest owner keeps: who has the cluster's key may say anything of a
    /// connection, and it is then continued as that, or not.
    pub fn check_states(&self) {
        self.iter().for_each(|(_, held)| held.state.check_invariants());
    }
}

impl ReplicatedConnection {
    /// Positions from which the leg goes on: output that its peer is known to have, and input that is mirrored and may be
    /// acknowledged.
    pub fn positions(&self, leg: u32) -> (u64, u64) {
        match leg {
            0 => (self.state.server.output, self.state.client_frontier()),
            _ => (self.state.leg_output(leg), self.state.server_frontier(leg)),
        }
    }
}

#[cfg(test)]
mod tests;
