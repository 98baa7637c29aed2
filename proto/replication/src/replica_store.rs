//! Replica store: the backup's side of replication, with the connections that one worker holds for other nodes.
//!
//! An owner uses several channels, one for each of its workers, and the workers learn of a new term at different
//! moments. A frame therefore counts under two conditions. The same process has announced the bucket's newest term, on
//! whichever channel. The term of the frame's own channel is not older than a term that another process announced
//! before.
//!
//! A dropped replica may be filled again in a later term, and frames of either term may arrive before this node has the
//! new role: [`ReplicaStore::forget`] sets the first term that counts. Frames of an older term are skipped without an
//! error, because their owner may not have the new role either.
//!
//! An owner that sent only part of a bucket's state, because a channel broke, sends the full state again, and announces
//! its term once more. Connections that the full state does not contain are then over.
//!
//! Invariants: frames of a process count only until another one announces a term of the bucket. A connection is held
//! under one bucket, and in no dropped term. A failover gets the replay of a prefix of the entries that the owner
//! queued.
//!
//! A failover must be fast, and most connections are idle: their states are in no cache, and the failover examines none
//! of them. Whether a connection is idle is therefore recorded with each of its frames, and recovered connections leave
//! the index later.

use crate::{ConnectionId, ConnectionState, EntryError, Frame, LegFacts};
use evergate_base::{Bucket, Incarnation, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most dropped connections that are remembered. Beyond it, frames about dropped connections are invalid.
const FORGOTTEN_MAX: usize = 1 << 20;
/// Most stale ids in the index, beyond as many as there are connections.
const STALE_MAX: usize = 4096;

/// One connection as a backup holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedConnection {
    /// Its bucket.
    pub bucket: Bucket,
    /// The term of its last frame.
    pub term: Term,
    /// State after the replay of its entries.
    pub state: ConnectionState,
    /// Legs that may still be needed, by number; 0 is the client's.
    pub legs: BTreeMap<u32, LegFacts>,
    /// The owner's worker that began the connection, and the number of its transfer.
    pub by: (u16, u64),
}

/// One connection recovered by a failover.
#[derive(Debug)]
pub struct Recovered {
    /// Id of the connection.
    pub connection: ConnectionId,
    /// Whether nothing is in flight ([`ConnectionState::is_idle`]).
    pub idle: bool,
    /// Replica of the connection.
    pub held: Box<ReplicatedConnection>,
}

/// An invalid frame of an owner.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReplicaError {
    /// A frame about a bucket for which the sender has announced no term, or an outdated one.
    #[error("a frame of bucket {} in term {frame_term:?}, but {known:?} is known", .bucket.0)]
    Term {
        /// The bucket.
        bucket: Bucket,
        /// Term that the sender has announced, if any.
        frame_term: Option<Term>,
        /// Newest known term.
        known: Option<Term>,
    },
    /// Entries or legs of a connection that was not begun.
    #[error("connection {0:?} was not begun")]
    Unknown(ConnectionId),
    /// An entry that contradicts the entries before it.
    #[error("connection {connection:?}: {source}")]
    Entry {
        /// The connection.
        connection: ConnectionId,
        /// Contradiction of the entry.
        source: EntryError,
    },
}

/// A process that owns buckets: a node and its incarnation.
type SenderIncarnation = Option<(NodeId, Incarnation)>;

/// Announcements of one channel: its sender, and terms by bucket.
#[derive(Clone, Debug, Default)]
pub struct Announced {
    announcer: SenderIncarnation,
    /// The sender's worker, and its number of workers.
    worker: (u16, u16),
    /// By bucket: the newest term, and the transfer to which its connections belong.
    terms: BTreeMap<Bucket, (Term, u64)>,
}

impl Announced {
    /// The sending node and its incarnation, once they were announced.
    pub fn sender(&self) -> Option<(NodeId, Incarnation)> {
        self.announcer
    }

    /// The term last announced for a bucket.
    pub fn of(&self, bucket: Bucket) -> Option<Term> {
        self.terms.get(&bucket).map(|(term, _)| *term)
    }

    fn by(&self, bucket: Bucket) -> (u16, u64) {
        (self.worker.0, self.terms.get(&bucket).map_or(0, |(_, transfer)| *transfer))
    }
}

/// The announced owner of a bucket.
#[derive(Clone, Debug)]
struct Known {
    announcer: SenderIncarnation,
    /// Newest term that another process had announced before: terms of this one are newer.
    floor: Term,
    /// Its oldest term without interruption, and its newest one.
    since: Term,
    newest: Term,
    /// Workers of the owner that have sent their full state since then.
    complete: BTreeSet<u16>,
}

impl Known {
    fn begin(announcer: SenderIncarnation, term: Term) -> Known {
        let complete = BTreeSet::new();
        Known { announcer, floor: Term::default(), since: term, newest: term, complete }
    }
}

/// One connection, and whether it is idle.
#[derive(Clone, Debug)]
struct StoredConnection {
    idle: bool,
    held: Box<ReplicatedConnection>,
}

impl StoredConnection {
    fn new(held: ReplicatedConnection) -> StoredConnection {
        StoredConnection { idle: held.state.is_idle(), held: Box::new(held) }
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut ReplicatedConnection) -> T) -> T {
        let changed = change(&mut self.held);
        self.idle = self.held.state.is_idle();
        changed
    }
}

/// The connections that a worker holds for other nodes.
#[derive(Clone, Debug, Default)]
pub struct ReplicaStore {
    /// Connections by bucket; no bucket is empty.
    buckets: BTreeMap<Bucket, BTreeMap<ConnectionId, StoredConnection>>,
    /// Bucket of each connection, and of some that were recovered.
    index: HashMap<ConnectionId, Bucket>,
    /// Connections in all buckets.
    count: usize,
    known: BTreeMap<Bucket, Known>,
    /// The first term of a bucket that counts, where earlier ones were dropped.
    since: BTreeMap<Bucket, Term>,
    /// Dropped connections with their bucket: their owner may not have the new role yet.
    forgotten: BTreeMap<ConnectionId, Bucket>,
    /// Transfers so far.
    transfers: u64,
}

impl ReplicaStore {
    /// Processes a frame of a channel; `announced` belongs to that channel.
    pub fn handle(&mut self, announced: &mut Announced, frame: Frame) -> Result<(), ReplicaError> {
        match frame {
            Frame::Hello { node, incarnation, worker, workers, .. } => {
                announced.announcer = Some((node, incarnation));
                announced.worker = (worker, workers);
            }
            Frame::Term { bucket, term } => self.begin_term(announced, bucket, term)?,
            // About no connection: the caller handles these frames.
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
                let Some(stored) = self.known(announced, connection)? else { return Ok(()) };
                stored.change(|held| {
                    if leg != 0 {
                        held.state.forget_legs(&mut held.legs, leg);
                    }
                    held.legs.insert(leg, facts);
                });
            }
            Frame::Entries { connection, entries } => {
                let Some(stored) = self.known(announced, connection)? else { return Ok(()) };
                stored
                    .change(|held| entries.into_iter().try_for_each(|entry| held.state.admit(entry)))
                    .map_err(|source| ReplicaError::Entry { connection, source })?;
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

    /// A process owns a bucket from this term on.
    fn begin_term(
        &mut self,
        announced: &mut Announced,
        bucket: Bucket,
        term: Term,
    ) -> Result<(), ReplicaError> {
        let announcer = announced.announcer;
        let next = match self.known.get(&bucket) {
            // Another worker of the process may have announced a newer one already.
            Some(known) if known.announcer == announcer && known.floor <= term => {
                Known { since: known.since.min(term), newest: known.newest.max(term), ..known.clone() }
            }
            Some(known) if known.announcer == announcer || known.newest > term => {
                let known = Some(known.newest);
                return Err(ReplicaError::Term { bucket, frame_term: Some(term), known });
            }
            before => Known {
                floor: before.map(|before| before.newest).unwrap_or_default(),
                ..Known::begin(announcer, term)
            },
        };
        self.known.insert(bucket, next);
        let transfer = match announced.terms.get(&bucket) {
            // A continuing owner need not send its state again.
            Some((before, transfer)) if *before != term => *transfer,
            _ => {
                self.transfers += 1;
                self.transfers
            }
        };
        announced.terms.insert(bucket, (term, transfer));
        Ok(())
    }

    /// A worker has sent its full state of a bucket.
    fn complete(&mut self, announced: &Announced, bucket: Bucket) -> Result<(), ReplicaError> {
        let term = self.current_term(announced, bucket)?;
        let (worker, workers) = announced.worker;
        self.drop_missing(bucket, announced.by(bucket));
        if let Some(known) = self.known.get_mut(&bucket) {
            known.complete.insert(worker);
            let (all, since) = (known.complete.len() >= usize::from(workers), known.since);
            if all && self.counts(bucket, term) {
                self.drop_older(bucket, since);
            }
        }
        Ok(())
    }

    /// Every worker of the bucket's owner has sent its full state. Connections outside of it are over, or were sent by
    /// an earlier owner to this node alone and never took effect.
    fn drop_older(&mut self, bucket: Bucket, since: Term) {
        // Connections that the process itself sent in an earlier term stay.
        self.remove_if(bucket, |held| held.term < since);
    }

    /// A worker of the bucket's owner has sent its full state: connections of an earlier transfer outside of it are
    /// over.
    fn drop_missing(&mut self, bucket: Bucket, (worker, transfer): (u16, u64)) {
        let Some(since) = self.known.get(&bucket).map(|known| known.since) else { return };
        // Connections of this process only.
        self.remove_if(bucket, |held| held.term >= since && held.by.0 == worker && held.by.1 < transfer);
    }

    fn current_term(&self, announced: &Announced, bucket: Bucket) -> Result<Term, ReplicaError> {
        let (frame_term, known) = (announced.of(bucket), self.known.get(&bucket));
        match (frame_term, known) {
            (Some(frame_term), Some(known))
                if known.announcer == announced.announcer && known.since <= frame_term =>
            {
                Ok(frame_term)
            }
            _ => Err(ReplicaError::Term { bucket, frame_term, known: known.map(|known| known.newest) }),
        }
    }

    /// Whether frames of a bucket in this term are stored.
    pub fn counts(&self, bucket: Bucket, term: Term) -> bool {
        self.since.get(&bucket).is_none_or(|since| *since <= term)
    }

    /// The replica of a connection; `None` for a dropped one whose owner still sends frames about it.
    fn known(
        &mut self,
        announced: &Announced,
        connection: ConnectionId,
    ) -> Result<Option<&mut StoredConnection>, ReplicaError> {
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
        self.buckets.entry(held.bucket).or_default().insert(connection, StoredConnection::new(held));
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

    /// Removes the connections of a bucket that are over, and returns their ids.
    fn remove_if(
        &mut self,
        bucket: Bucket,
        is_over: impl Fn(&ReplicatedConnection) -> bool,
    ) -> Vec<ConnectionId> {
        let all = self.buckets.get(&bucket).into_iter().flatten();
        let over: Vec<_> = all.filter(|(_, stored)| is_over(&stored.held)).map(|(id, _)| *id).collect();
        over.iter().for_each(|connection| self.remove(*connection));
        over
    }

    /// Removes and returns all connections of a bucket, whose owner is gone and which this node resumes. Frames of the
    /// old term are rejected from now on.
    pub fn recover(&mut self, bucket: Bucket, term: Term) -> Vec<Recovered> {
        self.known.insert(bucket, Known::begin(None, term));
        if !self.forgotten.is_empty() {
            self.drop_all(bucket);
        }
        let all = self.buckets.remove(&bucket).unwrap_or_default();
        self.count -= all.len();
        all.into_iter()
            .map(|(connection, StoredConnection { idle, held })| Recovered { connection, idle, held })
            .collect()
    }

    /// Stores a connection ([`Frame::Begin`]) that this node itself carried in this term and has just handed off: it
    /// counts as a backup from now on, because the next owner may fail before its first frame.
    pub fn keep(&mut self, term: Term, frame: Frame) {
        let Frame::Begin { connection, bucket, state, legs } = frame else { return };
        let is_newer = self.get(connection).is_some_and(|held| held.term > term);
        if self.counts(bucket, term) && !is_newer {
            let state = state.map(|state| *state).unwrap_or_default();
            self.insert(connection, ReplicatedConnection { bucket, term, state, legs, by: (0, 0) });
        }
    }

    /// Drops a bucket's connections of terms before this one, and ignores further frames about them.
    pub fn forget(&mut self, bucket: Bucket, before: Term) {
        let since = self.since.entry(bucket).or_default();
        *since = before.max(*since);
        let since = *since;
        let gone = self.remove_if(bucket, |held| held.term < since);
        self.forgotten.extend(gone.into_iter().map(|connection| (connection, bucket)));
    }

    /// Forgets the dropped connections of a bucket: by now its owner sends no more about them.
    pub fn drop_all(&mut self, bucket: Bucket) {
        self.forgotten.retain(|_, of| *of != bucket);
    }

    /// Whether there is a replica of any connection of the bucket.
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
        self.buckets.values().flatten().map(|(id, stored)| (id, &*stored.held))
    }

    /// Panics when an invariant is broken that holds whatever owners send; for tests and the simulator.
    pub fn check_invariants(&self) {
        for (bucket, all) in &self.buckets {
            assert!(!all.is_empty(), "{bucket:?} has nothing");
            for (id, StoredConnection { idle, held }) in all {
                assert_eq!(
                    (held.bucket, self.bucket_of(*id)),
                    (*bucket, Some(*bucket)),
                    "{id:?} is not found"
                );
                assert_eq!(*idle, held.state.is_idle(), "{id:?} has a wrong idle flag");
                let counts = self.counts(held.bucket, held.term);
                assert!(counts, "{id:?} is held in a dropped term");
            }
        }
        let stored: usize = self.buckets.values().map(BTreeMap::len).sum();
        assert_eq!(stored, self.count, "connections held");
    }

    /// Panics when a connection breaks an invariant that every correct owner keeps. A node with the cluster's key may
    /// send any state of a connection, which then resumes with that state, or is lost.
    pub fn check_states(&self) {
        self.iter().for_each(|(_, held)| held.state.check_invariants());
    }
}

impl ReplicatedConnection {
    /// Positions from which the leg resumes: output that its peer is known to have, and replicated input that may be
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
