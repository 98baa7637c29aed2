//! Both ends of a channel from an owner to a backup. The network carries its bytes: reliable, in order, and cut when an
//! end fails.

use crate::event_queue::Time;
use evergate_membership::{Bucket, Incarnation, NodeId, Term};
use evergate_replication::{Announced, ConnectionId, FRAME_VERSION, Frame, Sender};
use std::collections::{BTreeMap, BTreeSet};

/// Time from the first SYN until frames may flow: a few round trips.
const CONNECT: Time = 800;

/// Acknowledgement that the owner waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Acked {
    /// A connection's entries up to here are replicated.
    Entry { key: ConnectionId, index: u64 },
    /// The whole state of a connection that is being recovered is replicated.
    Recovered { key: ConnectionId },
    /// The full state of a bucket was sent. From now on the effects of newer entries wait for this backup.
    Synced { bucket: Bucket, term: Term },
    /// The backup lacks nothing that had an effect.
    Complete { bucket: Bucket, term: Term },
}

/// The owner's end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) number: u64,
    /// The process at the other end, from the first piece on.
    pub(crate) leads_to: Option<u64>,
    pub(crate) ready_at: Time,
    /// Number of pieces sent.
    pub(crate) sent: u64,
    pub(crate) feed: Sender<Acked>,
    /// Terms that were announced on it.
    pub(crate) announced: BTreeMap<Bucket, Term>,
    /// Buckets whose full state was sent on it, since it was made or since their owner first had any state.
    pub(crate) follows: BTreeSet<Bucket>,
    /// Of `follows`, the buckets whose backup has received everything sent before that: entries wait for it.
    pub(crate) awaited: BTreeSet<Bucket>,
    /// By bucket: number of frames sent up to the newest one of the bucket.
    pub(crate) sent_frames: BTreeMap<Bucket, u64>,
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
        // The first frame of an empty sender is within every bound.
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
            sent_frames: BTreeMap::new(),
        }
    }

    /// Whether the backup has acknowledged every frame of the bucket.
    pub(crate) fn is_received(&self, bucket: Bucket) -> bool {
        let sent_frames = self.sent_frames.get(&bucket).copied().unwrap_or(0);
        self.feed.frames() - self.feed.lag() >= sent_frames
    }
}

/// The backup's end.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Pieces that arrived before earlier ones.
    early: BTreeMap<u64, Vec<u8>>,
    taken: u64,
    pub(crate) input: Vec<u8>,
    pub(crate) announced: Announced,
    pub(crate) frames: u64,
    pub(crate) answered: u64,
}

impl Incoming {
    /// Processes a piece. Pieces in order go to the input.
    pub(crate) fn receive(&mut self, number: u64, bytes: Vec<u8>) {
        self.early.insert(number, bytes);
        while let Some(bytes) = self.early.remove(&(self.taken + 1)) {
            self.taken += 1;
            self.input.extend_from_slice(&bytes);
        }
    }
}
