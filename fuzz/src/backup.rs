//! The node that holds a replica of the connection, at the far end of the worker's channel.

use evergate_memory_host::Wire;
use evergate_replication::{Announced, Answer, Entry, Frame, ReplicaStore, ReplicatedConnection};

/// A backup: every frame that it receives must decode, and follow from the frames before it.
#[derive(Debug)]
pub struct Backup {
    wire: Wire,
    announced: Announced,
    store: ReplicaStore,
    /// Bytes of a frame that is not complete.
    input: Vec<u8>,
    /// Frames processed, and frames acknowledged.
    frames: u64,
    acknowledged: u64,
    /// Entries that it has received.
    pub entries: Vec<Entry>,
}

impl Backup {
    /// A backup without any replica, at the far end of a channel.
    pub fn new(wire: Wire) -> Backup {
        Backup {
            wire,
            announced: Announced::default(),
            store: ReplicaStore::default(),
            input: Vec::new(),
            frames: 0,
            acknowledged: 0,
            entries: Vec::new(),
        }
    }

    /// Processes what has arrived.
    pub fn receive(&mut self) {
        self.input.append(&mut self.wire.take_sent());
        let mut at = 0;
        while let Some((frame, length)) =
            Frame::decode(&self.input[at..]).expect("the worker's frames decode")
        {
            at += length;
            self.frames += 1;
            if let Frame::Entries { entries, .. } = &frame {
                self.entries.extend(entries.iter().cloned());
            }
            let handled = self.store.handle(&mut self.announced, frame);
            handled.unwrap_or_else(|error| panic!("an invalid frame of the worker: {error}"));
        }
        self.input.drain(..at);
        if at > 0 {
            self.store.check_invariants();
            self.store.check_states();
        }
    }

    /// Acknowledges the frames processed; whether there was a new one.
    pub fn acknowledge(&mut self) -> bool {
        let is_new = self.frames > self.acknowledged;
        if is_new {
            let mut answer = Vec::new();
            Answer { frames: self.frames }.encode(&mut answer).expect("an answer is short");
            self.wire.send(&answer);
            self.acknowledged = self.frames;
        }
        is_new
    }

    /// The replica of the connection, until it is over.
    pub fn replica(&self) -> Option<&ReplicatedConnection> {
        self.store.iter().next().map(|(_, replica)| replica)
    }
}
