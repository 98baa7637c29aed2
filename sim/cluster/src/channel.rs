//! The two ends of a channel from an owner to a backup. The bytes between them are the network's affair: reliable, in
//! order, and cut when an end dies.

use crate::event_queue::Time;
use evergate_membership::{Bucket, Incarnation, NodeId, Term};
use evergate_replication::{Announced, ConnectionId, FRAME_VERSION, Frame, Sender};
use std::collections::{BTreeMap, BTreeSet};

/// From the first SYN until frames may flow: a few round trips.
const CONNECT: Time = 800;

/// What the owner waits to hear.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    /// A connection's entries up to here are held.
    Entry { key: ConnectionId, index: u64 },
    /// The whole state of a connection that is being taken over is held.
    Taken { key: ConnectionId },
    /// All of a bucket was said; what follows from newer entries waits for this backup from now on.
    Reported { bucket: Bucket, term: Term },
    /// It lacks nothing that anything followed from.
    Complete { bucket: Bucket, term: Term },
}

/// The owner's end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) number: u64,
    /// The process at the other end, from the first piece on.
    pub(crate) leads_to: Option<u64>,
    pub(crate) ready_at: Time,
    /// Pieces that were sent.
    pub(crate) sent: u64,
    pub(crate) feed: Sender<Notice>,
    /// Terms that were announced on it.
    pub(crate) announced: BTreeMap<Bucket, Term>,
    /// Buckets of which everything was said on it, since it was made or since their owner had anything to say.
    pub(crate) follows: BTreeSet<Bucket>,
    /// Those of them for which the backup has heard all that was said when this began: it is waited for.
    pub(crate) awaited: BTreeSet<Bucket>,
    /// By bucket: how many frames had been said with the newest of it.
    pub(crate) reported: BTreeMap<Bucket, u64>,
}

impl Outgoing {
    pub(crate) fn connect(me: NodeId, process: u64, number: u64, now: Time) -> Outgoing {
        let hello = Frame::Hello {
            version: FRAME_VERSION,
            node: me,
            incarnation: Incarnation(process),
            worker: 0,
            workers: 1,
            clock_ms: 0,
        };
        let mut feed = Sender::default();
        // The first frame of an empty feed is within every bound.
        let _ = feed.push(&hello, None);
        Outgoing {
            number,
            leads_to: None,
            ready_at: now + CONNECT,
            sent: 0,
            feed,
            announced: BTreeMap::new(),
            follows: BTreeSet::new(),
            awaited: BTreeSet::new(),
            reported: BTreeMap::new(),
        }
    }

    /// Whether the backup has taken in all that was said of the bucket.
    pub(crate) fn is_received(&self, bucket: Bucket) -> bool {
        let reported = self.reported.get(&bucket).copied().unwrap_or(0);
        self.feed.frames() - self.feed.lag() >= reported
    }
}

/// The backup's end.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Pieces that came before others that were sent earlier.
    early: BTreeMap<u64, Vec<u8>>,
    taken: u64,
    pub(crate) input: Vec<u8>,
    pub(crate) announced: Announced,
    pub(crate) frames: u64,
    pub(crate) answered: u64,
}

impl Incoming {
    /// A piece has come; what is in order goes to the input.
    pub(crate) fn receive(&mut self, number: u64, bytes: Vec<u8>) {
        self.early.insert(number, bytes);
        while let Some(bytes) = self.early.remove(&(self.taken + 1)) {
            self.taken += 1;
            self.input.extend_from_slice(&bytes);
        }
    }
}
