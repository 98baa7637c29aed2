//! The channel from a worker to a worker of another node, at the owner's end.
//!
//! Any error closes the channel, and the other side counts as gone until a new one is made.

use crate::Lag;
use crate::host::{Channel, Channels, Host};
use evergate_base::Micros;
use evergate_membership::{Bucket, Term};
use evergate_replication::{Answer, Frame, Sender, SenderError, WireError};
use std::io;
use std::net::SocketAddr;

/// A condition that the owner waits for a backup to acknowledge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    Entry {
        key: super::Key,
        index: u64,
    },
    /// The full state of a bucket was acknowledged. From now on, output that depends on newer entries waits for this
    /// backup.
    Reported {
        bucket: Bucket,
        term: Term,
    },
    /// It lacks nothing that anything followed from.
    Complete {
        bucket: Bucket,
        term: Term,
    },
    /// The state of recovered connections was acknowledged.
    Taken {
        bucket: Bucket,
        stage: super::reprotect::Activity,
        round: u64,
    },
}

/// Why a channel ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutgoingError {
    #[error("{0}")]
    Channel(#[from] io::Error),
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Sender(#[from] SenderError),
}

/// The channel to one backup.
pub(crate) struct Outgoing<H: Host> {
    pub(crate) channel: <H::Channels as Channels>::Channel,
    pub(crate) feed: Sender<Notice>,
    pub(crate) connecting: bool,
    /// Terms that were announced on it, by bucket.
    pub(crate) announced: Vec<Option<Term>>,
    /// By bucket: whether this channel has carried all frames of this worker, in order. Without that, no frame is sent:
    /// the backup could not see the gap.
    pub(crate) follows: Vec<bool>,
    /// By bucket: the backup has acknowledged the full state. Output waits for it from now on.
    pub(crate) awaited: Vec<bool>,
    /// By bucket: number of frames on the channel up to the bucket's newest.
    last_frame: Vec<u64>,
    /// The frame being timed (one at a time), by its number on the channel, and when it was queued.
    timed: Option<(u64, Micros)>,
    /// The longest time to an acknowledgement since the last call of [`Outgoing::take_lag`].
    slowest: Micros,
}

impl<H: Host> Outgoing<H> {
    pub(crate) fn connect(
        channels: &H::Channels,
        to: SocketAddr,
        first: &[Frame],
    ) -> Result<Outgoing<H>, OutgoingError> {
        let channel = channels.connect(to)?;
        let mut feed = Sender::default();
        for frame in first {
            feed.push(frame, None)?;
        }
        Ok(Outgoing {
            channel,
            feed,
            connecting: true,
            announced: vec![None; usize::from(evergate_membership::BUCKETS)],
            follows: vec![false; usize::from(evergate_membership::BUCKETS)],
            awaited: vec![false; usize::from(evergate_membership::BUCKETS)],
            last_frame: vec![0; usize::from(evergate_membership::BUCKETS)],
            timed: None,
            slowest: Micros(0),
        })
    }

    pub(crate) fn follows(&self, bucket: Bucket) -> bool {
        self.follows.get(usize::from(bucket.0)).copied().unwrap_or(false)
    }

    /// Sets whether further frames of a bucket are sent: they follow all earlier ones, or are the first.
    pub(crate) fn follow(&mut self, bucket: Bucket, follows: bool) {
        if let Some(known) = self.follows.get_mut(usize::from(bucket.0)) {
            *known = follows;
        }
        self.wait(bucket, false);
    }

    /// Makes the next frame announce the term again: the backup then expects the full state.
    pub(crate) fn begin_again(&mut self, bucket: Bucket) {
        if let Some(announced) = self.announced.get_mut(usize::from(bucket.0)) {
            *announced = None;
        }
    }

    /// Whether output waits for this backup, which is catching up.
    pub(crate) fn is_awaited(&self, bucket: Bucket) -> bool {
        self.awaited.get(usize::from(bucket.0)).copied().unwrap_or(false)
    }

    pub(crate) fn wait(&mut self, bucket: Bucket, awaited: bool) {
        if let Some(known) = self.awaited.get_mut(usize::from(bucket.0)) {
            *known = awaited;
        }
    }

    /// Queues a frame of this bucket.
    pub(crate) fn push(
        &mut self,
        bucket: Bucket,
        frame: &Frame,
        notice: Option<Notice>,
    ) -> Result<(), SenderError> {
        self.feed.push(frame, notice)?;
        if let Some(last) = self.last_frame.get_mut(usize::from(bucket.0)) {
            *last = self.feed.frames();
        }
        Ok(())
    }

    /// Whether the backup has acknowledged all frames of the bucket.
    pub(crate) fn has_answered(&self, bucket: Bucket) -> bool {
        let last = self.last_frame.get(usize::from(bucket.0)).copied().unwrap_or(0);
        self.feed.frames() - self.feed.lag() >= last
    }

    /// Starts timing the newest frame, unless a frame is being timed.
    pub(crate) fn time_newest(&mut self, now: Micros) {
        if self.timed.is_none() && self.feed.lag() > 0 {
            self.timed = Some((self.feed.frames(), now));
        }
    }

    /// Lag of the backup; resets the longest time.
    pub(crate) fn take_lag(&mut self, now: Micros) -> Lag {
        let takes = self.timed.map_or(Micros(0), |(_, since)| now.since(since));
        Lag {
            frames: self.feed.lag(),
            unsent_bytes: self.feed.unsent().len() as u64,
            behind_us: std::mem::take(&mut self.slowest).max(takes).0,
        }
    }

    /// Sends queued frames.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.connecting {
            return Ok(());
        }
        let sent = self.channel.send(self.feed.unsent())?;
        self.feed.advance(sent);
        Ok(())
    }

    /// Acknowledgements that have arrived, as the conditions that they fulfil. `ends`: see [`Channel::receive`].
    pub(crate) fn answers(&mut self, ends: bool, now: Micros) -> Result<Vec<Notice>, OutgoingError> {
        let ended = self.channel.receive(ends);
        let mut notices = Vec::new();
        let mut at = 0;
        while let Some((answer, length)) = Answer::decode(&self.channel.input()[at..])? {
            at += length;
            self.feed.handle_answer(answer.frames, |notice| notices.push(notice))?;
        }
        self.channel.input().drain(..at);
        let answered = self.feed.frames() - self.feed.lag();
        if let Some((_, since)) = self.timed.take_if(|(frame, _)| *frame <= answered) {
            self.slowest = self.slowest.max(now.since(since));
        }
        ended?;
        Ok(notices)
    }
}
