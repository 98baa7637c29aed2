//! A tap on an outgoing channel that breaks a law on purpose: it drops entries, or answers for the backup.

use crate::fault::Mutation;
use evergate_replication::{Answer, Entry, Frame};

/// State of a tap.
#[derive(Debug)]
pub(super) struct FrameTap {
    mutation: Mutation,
    /// Bytes of a frame that is not complete.
    rest: Vec<u8>,
    frames: u64,
}

impl FrameTap {
    /// The tap of a mutation that needs one.
    pub(super) fn of(mutation: Mutation) -> Option<FrameTap> {
        let taps = [Mutation::EarlyOutput, Mutation::LostBoundary, Mutation::LostRoute];
        taps.contains(&mutation).then(|| FrameTap { mutation, rest: Vec::new(), frames: 0 })
    }

    /// Whether it answers for the backup, whose own answers are dropped.
    pub(super) fn answers(&self) -> bool {
        self.mutation == Mutation::EarlyOutput
    }

    /// Passes frames on to `out`; answers go to `back`.
    pub(super) fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>, back: &mut Vec<u8>) {
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((mut frame, length)) = Frame::decode(&self.rest[at..]).expect("a worker's frame") {
            at += length;
            self.frames += 1;
            if let Frame::Entries { entries, .. } = &mut frame {
                entries.retain(|entry| !self.drops(entry));
            }
            frame.encode(out).expect("a frame without some entries");
        }
        self.rest.drain(..at);
        if self.answers() && at > 0 {
            Answer { frames: self.frames }.encode(back).expect("an answer");
        }
    }

    fn drops(&self, entry: &Entry) -> bool {
        match self.mutation {
            Mutation::LostBoundary => matches!(entry, Entry::Boundary(_)),
            Mutation::LostRoute => matches!(entry, Entry::Route(_)),
            _ => false,
        }
    }
}
