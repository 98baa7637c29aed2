//! The owner's end of one channel: frames that wait to be sent or acknowledged.
//!
//! Invariants: frames leave in the order they were pushed; an acknowledgement covers everything before it; what is
//! unacknowledged is bounded, and a backup at the bound counts as dead rather than holding up every connection.

use crate::{Frame, WireError};
use evergate_base::Micros;
use std::collections::VecDeque;

/// Bytes that may wait to be written to one backup.
pub const SENDER_BYTES_MAX: usize = 64 << 20;
/// Frames that may be unacknowledged by one backup.
pub const SENDER_FRAMES_MAX: u64 = 1 << 20;
/// A backup answers a frame within this time, from the first one on, or its channel counts as broken. A peer that is gone need
/// not show: the RST of its kernel may be lost, and nothing of ours be left to be repeated.
pub const ANSWERS_WITHIN: Micros = Micros::from_ms(2000);
/// ... and is looked at so often meanwhile: after a long turn answers may lie in the socket.
const CHECKS_MIN: u32 = 8;
/// Bytes that were sent already, and room of an empty feed, that are kept: to give them back at once would be a copy for each
/// write.
const SPARE_BYTES: usize = 1 << 20;

/// Why a feed cannot go on: the backup must be given up.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SenderError {
    /// The backup takes too little, or does not answer.
    #[error("the backup is behind by {frames} frames and {bytes} bytes")]
    Behind {
        /// Unacknowledged frames.
        frames: u64,
        /// Unsent bytes.
        bytes: usize,
    },
    /// It acknowledges what was never sent.
    #[error("the backup acknowledges frame {claimed}, but only {sent} were sent")]
    Ahead {
        /// What it says.
        claimed: u64,
        /// What there is.
        sent: u64,
    },
    /// A frame that cannot be said.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Frames to one backup. `T` is what the owner wants to hear when a frame is acknowledged.
#[derive(Debug)]
pub struct Sender<T> {
    bytes: Vec<u8>,
    taken: usize,
    frames: u64,
    acknowledged: u64,
    waiting: VecDeque<(u64, T)>,
    silence: Silence,
}

/// Since when nothing more has been answered, as somebody saw who looked from time to time.
#[derive(Debug, Default)]
struct Silence {
    /// Frames that were answered at the last look.
    answered: u64,
    since: Option<Micros>,
    looks: u32,
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
    /// Queues `frame`; `notice` comes back from [`Feed::handle_answer`] when the backup has it.
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

    /// So many of [`Feed::unsent`] have been sent.
    pub fn advance(&mut self, count: usize) {
        self.taken += count.min(self.bytes.len() - self.taken);
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(SPARE_BYTES);
            self.taken = 0;
        } else if self.taken > SPARE_BYTES && self.taken >= self.bytes.len() / 2 {
            // A feed may never be quite empty. What moves is no more than what was sent since the last time.
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

    /// The backup has taken in so many frames; calls `heard` for each notice among them.
    pub fn handle_answer(&mut self, frames: u64, mut peer_input: impl FnMut(T)) -> Result<(), SenderError> {
        if frames > self.frames {
            return Err(SenderError::Ahead { claimed: frames, sent: self.frames });
        }
        self.acknowledged = self.acknowledged.max(frames);
        while self.waiting.front().is_some_and(|(frame, _)| *frame <= frames) {
            if let Some((_, notice)) = self.waiting.pop_front() {
                peer_input(notice);
            }
        }
        Ok(())
    }

    /// Whether the backup has answered nothing for too long although there is something to answer; to be asked from time to time.
    pub fn is_unresponsive(&mut self, now: Micros) -> bool {
        let silence = &mut self.silence;
        if self.frames == self.acknowledged || self.acknowledged != silence.answered {
            *silence = Silence { answered: self.acknowledged, ..Silence::default() };
        }
        silence.looks = silence.looks.saturating_add(1);
        let waits = self.frames > self.acknowledged && silence.looks >= CHECKS_MIN;
        now.since(*silence.since.get_or_insert(now)) >= ANSWERS_WITHIN && waits
    }

    /// Whether the backup has answered anything.
    pub fn has_answered(&self) -> bool {
        self.acknowledged > 0
    }

    /// Everything that was never acknowledged: the backup is gone, and is not waited for any more.
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
        let mut feed = Sender::default();
        for id in 1..=5 {
            feed.push(&end(id), (id != 3).then_some(id)).unwrap();
        }
        let mut peer_input = Vec::new();
        feed.handle_answer(3, |id| peer_input.push(id)).unwrap();
        feed.handle_answer(2, |id| peer_input.push(id)).unwrap();
        assert_eq!((peer_input, feed.lag()), (vec![1, 2], 2));
        assert_eq!(feed.handle_answer(6, |_| ()), Err(SenderError::Ahead { claimed: 6, sent: 5 }));
        assert_eq!(feed.abandon().collect::<Vec<_>>(), [4, 5]);
    }

    #[test]
    fn what_is_sent_in_pieces_decodes_to_what_was_pushed() {
        let mut feed: Sender<()> = Sender::default();
        for id in 1..=3 {
            feed.push(&end(id), None).unwrap();
        }
        let (mut wire, mut frames) = (Vec::new(), Vec::new());
        while !feed.unsent().is_empty() {
            wire.push(feed.unsent()[0]);
            feed.advance(1);
            if let Some((frame, length)) = Frame::decode(&wire).unwrap() {
                wire.drain(..length);
                frames.push(frame);
            }
        }
        assert_eq!((frames, wire.len()), (vec![end(1), end(2), end(3)], 0));
    }

    #[test]
    fn a_feed_that_is_never_empty_keeps_what_is_unsent_and_little_more() {
        let mut feed: Sender<()> = Sender::default();
        let (mut pushed, mut sent) = (Vec::new(), Vec::new());
        for (unsent, count) in [(100_000, 90_000), (4 << 20, 300_000)] {
            for _ in 0..100 {
                while feed.unsent().len() < unsent {
                    let frame = end(pushed.len() as u64);
                    feed.push(&frame, None).unwrap();
                    frame.encode(&mut pushed).unwrap();
                }
                sent.extend_from_slice(&feed.unsent()[..count]);
                feed.advance(count);
                feed.handle_answer(feed.frames(), |()| ()).unwrap();
                assert!(feed.bytes.len() <= unsent + unsent.max(SPARE_BYTES) + 64, "{}", feed.bytes.len());
            }
        }
        sent.extend_from_slice(feed.unsent());
        feed.advance(usize::MAX);
        assert!(sent == pushed, "not what was pushed");
        assert!(feed.bytes.is_empty() && feed.bytes.capacity() <= SPARE_BYTES);
    }

    #[test]
    fn a_backup_that_answers_nothing_more_is_mute_after_a_while_and_several_looks() {
        let mut feed: Sender<()> = Sender::default();
        let mut now = Micros::from_ms(1);
        let mut look = |feed: &mut Sender<()>, ms| {
            now = now + Micros::from_ms(ms);
            feed.is_unresponsive(now)
        };
        assert!((0..20).all(|_| !look(&mut feed, 500)), "there is nothing to answer");
        feed.push(&end(1), None).unwrap();
        assert!((0..39).all(|_| !look(&mut feed, 50)), "not yet");
        assert!(look(&mut feed, 50) && !feed.has_answered());
        feed.push(&end(2), None).unwrap();
        feed.handle_answer(1, |()| ()).unwrap();
        assert!(!look(&mut feed, 50) && feed.has_answered(), "it has answered one of them just now");
        let after_a_long_turn = look(&mut feed, 60_000);
        assert!(!after_a_long_turn, "the answer may lie in the socket");
        assert!((0..5).all(|_| !look(&mut feed, 1)) && look(&mut feed, 1));
    }

    #[test]
    fn a_backup_that_takes_nothing_is_given_up_when_too_many_bytes_wait_for_it() {
        let mut feed: Sender<()> = Sender::default();
        let entries = vec![crate::Entry::Input(vec![0; 2 << 20])];
        let frame = Frame::Entries { connection: ConnectionId(1), entries };
        let error = loop {
            if let Err(error) = feed.push(&frame, None) {
                break error;
            }
            assert!(feed.unsent().len() <= SENDER_BYTES_MAX);
        };
        assert!(matches!(error, SenderError::Behind { frames, .. } if frames <= 32), "{error}");
    }

    #[test]
    fn a_backup_that_does_not_answer_is_given_up_at_the_bound() {
        let mut feed: Sender<()> = Sender::default();
        let mut count = 0u64;
        let error = loop {
            feed.advance(usize::MAX);
            match feed.push(&end(count), None) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, SenderError::Behind { .. }) && count == SENDER_FRAMES_MAX);
    }
}
