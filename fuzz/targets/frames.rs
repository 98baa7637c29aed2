//! Bytes on a replication channel, at either end: those of an owner are frames or end their channel, those of a backup
//! are answers or end theirs. A replica store with two owners keeps its laws for any content, while its own node
//! recovers buckets and gives them up (`replication` and `restore` test the content). It stores nothing that no owner
//! sent. An owner receives the answer to each frame once, in order, and no answer to a frame that was never sent.

#![no_main]

use evergate_base::{Bucket, Incarnation, NodeId, Term, ViewId};
use evergate_fuzz::input::chunks;
use evergate_replication::{
    Announced, Answer, ConnectionId, FRAME_VERSION, Frame, ReplicaError, ReplicaStore, Sender, WireError,
};
use libfuzzer_sys::fuzz_target;

/// Why a channel ends. Nothing reads the reason.
#[derive(Debug)]
struct Refused;

impl From<WireError> for Refused {
    fn from(_: WireError) -> Refused {
        Refused
    }
}

impl From<ReplicaError> for Refused {
    fn from(_: ReplicaError) -> Refused {
        Refused
    }
}

/// Channel of one owner's worker at the backup.
#[derive(Default)]
struct Incoming {
    input: Vec<u8>,
    announced: Announced,
    known: bool,
}

fuzz_target!(|data: &[u8]| {
    let mut holder = ReplicaStore::default();
    let mut channels = [Incoming::default(), Incoming::default()];
    let mut owner = Owner::default();
    let mut begun = 0;
    for chunk in chunks(data) {
        let Some((&what, bytes)) = chunk.split_first() else { continue };
        match what % 4 {
            which @ (0 | 1) => {
                let channel = &mut channels[usize::from(which)];
                channel.input.extend_from_slice(bytes);
                if channel.store(&mut holder, &mut begun).is_err() {
                    *channel = Incoming::default(); // a new channel is made; state received on the old one stays
                }
            }
            2 => begun += conclude(&mut holder, bytes),
            _ => owner.exchange(bytes),
        }
        holder.check_invariants();
        assert!(holder.len() <= begun, "{} connections of {begun} that were begun", holder.len());
    }
    owner.end();
});

impl Incoming {
    /// Stores frames behind the announcement of their sender. Counts the connections that begin.
    fn store(&mut self, holder: &mut ReplicaStore, begun: &mut usize) -> Result<(), Refused> {
        let Incoming { input, announced, known } = self;
        Frame::drain(input, |frame, length| {
            survives(&frame, length);
            match (&frame, *known) {
                (Frame::Hello { version: FRAME_VERSION, .. }, false) => *known = true,
                (Frame::Hello { .. }, _) | (_, false) => return Err(Refused),
                (Frame::Begin { .. }, true) => *begun += 1,
                _ => {}
            }
            Ok(holder.handle(announced, frame)?)
        })
    }
}

fn survives(frame: &Frame, length: usize) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).expect("what was read can be written");
    assert!(bytes.len() <= length, "the encoding is not the shortest one");
    assert_eq!(Frame::decode(&bytes).as_ref(), Ok(&Some((frame.clone(), bytes.len()))));
    let cut = bytes.len() - 1;
    assert_eq!(Frame::decode(&bytes[..cut]), Ok(None), "an incomplete frame is waited for");
}

/// Applies a decision of the backup's node about a bucket. Returns the number of connections that it adds.
fn conclude(holder: &mut ReplicaStore, bytes: &[u8]) -> usize {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let bucket = Bucket(u16::from(byte(1)));
    let view = ViewId { epoch: u64::from(byte(2)), proposer: NodeId(byte(3)), incarnation: Incarnation(1) };
    let term = Term { view, moves: 0 };
    match byte(0) % 4 {
        0 => {
            let taken = holder.recover(bucket, term);
            assert!(!holder.has(bucket) && taken.iter().all(|taken| taken.held.bucket == bucket));
        }
        1 => holder.forget(bucket, term),
        2 => holder.drop_all(bucket),
        _ => {
            if let Ok(Some((frame @ Frame::Begin { .. }, _))) =
                Frame::decode(bytes.get(4..).unwrap_or_default())
            {
                holder.keep(term, frame);
                return 1;
            }
        }
    }
    0
}

/// The owner's end of a channel.
#[derive(Default)]
struct Owner {
    feed: Sender<u64>,
    input: Vec<u8>,
    acknowledged: u64,
}

impl Owner {
    /// Sends more to the backup, and processes these bytes from it.
    fn exchange(&mut self, bytes: &[u8]) {
        let sent = self.feed.frames() + 1;
        self.feed
            .push(&Frame::End { connection: ConnectionId(sent) }, Some(sent))
            .expect("far below the bounds");
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        while let Ok(Some((answer, length))) = Answer::decode(&self.input[at..]) {
            at += length;
            let (acknowledged, sent) = (&mut self.acknowledged, self.feed.frames());
            let result = self.feed.handle_answer(answer.frames, |notice| {
                assert_eq!(notice, *acknowledged + 1, "out of order");
                *acknowledged = notice;
            });
            assert_eq!(result.is_ok(), answer.frames <= sent);
            assert!(self.acknowledged <= sent && self.feed.lag() <= sent - self.acknowledged);
        }
        self.input.drain(..at);
    }

    /// Gives up all unacknowledged frames.
    fn end(self) {
        let sent = self.feed.frames();
        assert!(self.feed.abandon().eq(self.acknowledged + 1..=sent));
    }
}
