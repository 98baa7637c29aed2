//! Owner's end of one channel: frames that wait to be sent or acknowledged.
//!
//! Invariants: frames leave in the order in which they were pushed. An acknowledgement covers all frames before it.
//! Unacknowledged data is bounded, and a backup at the bound counts as dead, so that it does not stall every
//! connection.

use crate::{Frame, WireError};
use evergate_base::Micros;
use std::collections::VecDeque;

/// Bytes that may wait to be written to one backup.
pub const SENDER_BYTES_MAX: usize = 64 << 20;
/// Frames that may be unacknowledged by one backup.
pub const SENDER_FRAMES_MAX: u64 = 1 << 20;
/// Longest time to an answer while frames are unacknowledged; after it the channel counts as broken. A vanished peer
/// may not be noticed otherwise: its kernel's RST may be lost, and there may be nothing left to retransmit.
pub const ANSWERS_WITHIN: Micros = Micros::from_ms(2000);
/// Least number of checks within that time: after a long turn answers may lie in the socket.
const CHECKS_MIN: u32 = 8;
/// Bytes already sent, and spare capacity of an empty queue, that are kept: releasing them at once would cost a copy
/// for each write.
const SPARE_BYTES: usize = 1 << 20;

/// Failure of a channel: the backup must be dropped.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SenderError {
    /// The backup reads too little, or does not answer.
    #[error("the backup is behind by {frames} frames and {bytes} bytes")]
    Behind {
        /// Unacknowledged frames.
        frames: u64,
        /// Unsent bytes.
        bytes: usize,
    },
    /// The backup acknowledges frames that were never sent.
    #[error("the backup acknowledges frame {claimed}, but only {sent} were sent")]
    Ahead {
        /// Acknowledged frame number.
        claimed: u64,
        /// Frames sent.
        sent: u64,
    },
    /// A frame that cannot be encoded.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Queue of frames to one backup. `T` is the notice that the owner gets back when a frame is acknowledged.
#[derive(Debug)]
pub struct Sender<T> {
    bytes: Vec<u8>,
    taken: usize,
    frames: u64,
    acknowledged: u64,
    waiting: VecDeque<(u64, T)>,
    silence: Silence,
}

/// Since when no new answer has come, as seen by periodic checks.
#[derive(Debug, Default)]
struct Silence {
    /// Frames acknowledged at the last check.
    answered: u64,
    since: Option<Micros>,
    checks: u32,
}

impl<T> Default for Sender<T> {
    fn default() -> Sender<T> {
        Sender {
            bytes: Vec::new(),
            taken: 0,
            frames: 0,
            acknowledged: 0,
            waiting: VecDeque::new(),
            silence: Silence::default(),
        }
    }
}

impl<T> Sender<T> {
    /// Queues `frame`; [`Sender::handle_answer`] returns `notice` when the backup has the frame.
    pub fn push(&mut self, frame: &Frame, notice: Option<T>) -> Result<(), SenderError> {
        frame.encode(&mut self.bytes)?;
        self.frames += 1;
        if let Some(notice) = notice {
            self.waiting.push_back((self.frames, notice));
        }
        let (frames, bytes) = (self.frames - self.acknowledged, self.bytes.len() - self.taken);
        if frames > SENDER_FRAMES_MAX || bytes > SENDER_BYTES_MAX {
            return Err(SenderError::Behind { frames, bytes });
        }
        Ok(())
    }

    /// Bytes to send.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Removes sent bytes from [`Sender::unsent`].
    pub fn advance(&mut self, count: usize) {
        self.taken += count.min(self.bytes.len() - self.taken);
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(SPARE_BYTES);
            self.taken = 0;
        } else if self.taken > SPARE_BYTES && self.taken >= self.bytes.len() / 2 {
            // The queue may never be quite empty. What moves is no more than what was sent since the last time.
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Frames pushed so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Frames that the backup has not acknowledged.
    pub fn lag(&self) -> u64 {
        self.frames - self.acknowledged
    }

    /// The backup has processed `frames` frames; calls `on_acknowledged` for each notice among them.
    pub fn handle_answer(
        &mut self,
        frames: u64,
        mut on_acknowledged: impl FnMut(T),
    ) -> Result<(), SenderError> {
        if frames > self.frames {
            return Err(SenderError::Ahead { claimed: frames, sent: self.frames });
        }
        self.acknowledged = self.acknowledged.max(frames);
        while self.waiting.front().is_some_and(|(frame, _)| *frame <= frames) {
            if let Some((_, notice)) = self.waiting.pop_front() {
                on_acknowledged(notice);
            }
        }
        Ok(())
    }

    /// Whether the backup has not answered for too long although frames are unacknowledged; to be called periodically.
    pub fn is_unresponsive(&mut self, now: Micros) -> bool {
        let silence = &mut self.silence;
        if self.frames == self.acknowledged || self.acknowledged != silence.answered {
            *silence = Silence { answered: self.acknowledged, ..Silence::default() };
        }
        silence.checks = silence.checks.saturating_add(1);
        let waits = self.frames > self.acknowledged && silence.checks >= CHECKS_MIN;
        now.since(*silence.since.get_or_insert(now)) >= ANSWERS_WITHIN && waits
    }

    /// Whether the backup has answered anything.
    pub fn has_answered(&self) -> bool {
        self.acknowledged > 0
    }

    /// Notices that were never acknowledged: the backup is gone, and is no longer awaited.
    pub fn abandon(self) -> impl Iterator<Item = T> {
        self.waiting.into_iter().map(|(_, notice)| notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConnectionId;

    fn end(id: u64) -> Frame {
        Frame::End { connection: ConnectionId(id) }
    }

    #[test]
    fn notices_come_back_in_order_and_once() {
        let mut sender = Sender::default();
        for id in 1..=5 {
            sender.push(&end(id), (id != 3).then_some(id)).unwrap();
        }
        let mut peer_input = Vec::new();
        sender.handle_answer(3, |id| peer_input.push(id)).unwrap();
        sender.handle_answer(2, |id| peer_input.push(id)).unwrap();
        assert_eq!((peer_input, sender.lag()), (vec![1, 2], 2));
        assert_eq!(sender.handle_answer(6, |_| ()), Err(SenderError::Ahead { claimed: 6, sent: 5 }));
        assert_eq!(sender.abandon().collect::<Vec<_>>(), [4, 5]);
    }

    #[test]
    fn frames_sent_in_pieces_decode() {
        let mut sender: Sender<()> = Sender::default();
        for id in 1..=3 {
            sender.push(&end(id), None).unwrap();
        }
        let (mut wire, mut frames) = (Vec::new(), Vec::new());
        while !sender.unsent().is_empty() {
            wire.push(sender.unsent()[0]);
            sender.advance(1);
            if let Some((frame, length)) = Frame::decode(&wire).unwrap() {
                wire.drain(..length);
                frames.push(frame);
            }
        }
        assert_eq!((frames, wire.len()), (vec![end(1), end(2), end(3)], 0));
    }

    #[test]
    fn queue_that_is_never_empty_stays_small() {
        let mut sender: Sender<()> = Sender::default();
        let (mut pushed, mut sent) = (Vec::new(), Vec::new());
        for (unsent, count) in [(100_000, 90_000), (4 << 20, 300_000)] {
            for _ in 0..100 {
                while sender.unsent().len() < unsent {
                    let frame = end(pushed.len() as u64);
                    sender.push(&frame, None).unwrap();
                    frame.encode(&mut pushed).unwrap();
                }
                sent.extend_from_slice(&sender.unsent()[..count]);
                sender.advance(count);
                sender.handle_answer(sender.frames(), |()| ()).unwrap();
                assert!(
                    sender.bytes.len() <= unsent + unsent.max(SPARE_BYTES) + 64,
                    "{}",
                    sender.bytes.len()
                );
            }
        }
        sent.extend_from_slice(sender.unsent());
        sender.advance(usize::MAX);
        assert!(sent == pushed, "not what was pushed");
        assert!(sender.bytes.is_empty() && sender.bytes.capacity() <= SPARE_BYTES);
    }

    #[test]
    fn silent_backup_is_unresponsive_after_time_and_checks() {
        let mut sender: Sender<()> = Sender::default();
        let mut now = Micros::from_ms(1);
        let mut look = |sender: &mut Sender<()>, ms| {
            now = now + Micros::from_ms(ms);
            sender.is_unresponsive(now)
        };
        assert!((0..20).all(|_| !look(&mut sender, 500)), "there is nothing to answer");
        sender.push(&end(1), None).unwrap();
        assert!((0..39).all(|_| !look(&mut sender, 50)), "not yet");
        assert!(look(&mut sender, 50) && !sender.has_answered());
        sender.push(&end(2), None).unwrap();
        sender.handle_answer(1, |()| ()).unwrap();
        assert!(!look(&mut sender, 50) && sender.has_answered(), "it has answered one of them just now");
        let after_a_long_turn = look(&mut sender, 60_000);
        assert!(!after_a_long_turn, "the answer may lie in the socket");
        assert!((0..5).all(|_| !look(&mut sender, 1)) && look(&mut sender, 1));
    }

    #[test]
    fn backup_that_reads_nothing_fails_at_the_byte_limit() {
        let mut sender: Sender<()> = Sender::default();
        let entries = vec![crate::Entry::Input(vec![0; 2 << 20])];
        let frame = Frame::Entries { connection: ConnectionId(1), entries };
        let error = loop {
            if let Err(error) = sender.push(&frame, None) {
                break error;
            }
            assert!(sender.unsent().len() <= SENDER_BYTES_MAX);
        };
        assert!(matches!(error, SenderError::Behind { frames, .. } if frames <= 32), "{error}");
    }

    #[test]
    fn backup_that_does_not_answer_fails_at_the_frame_limit() {
        let mut sender: Sender<()> = Sender::default();
        let mut count = 0u64;
        let error = loop {
            sender.advance(usize::MAX);
            match sender.push(&end(count), None) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, SenderError::Behind { .. }) && count == SENDER_FRAMES_MAX);
    }
}
