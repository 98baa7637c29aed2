//! The encrypted connection from a worker to a worker of another node.
//!
//! TLS 1.3 with the cluster's own key at both ends (see `evergate_crypto::channel`). Any error closes the channel, and
//! the other side counts as gone until a new one is made.

use evergate_base::Micros;
use evergate_membership::{Bucket, Term};
use evergate_replication::{Answer, Frame, Sender, SenderError};
use evergate_sys::Transfer;
use evergate_worker::Lag;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Most that is taken from the socket in one turn.
const READ_MAX: usize = 4 << 20;
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

/// A socket as `rustls` wants it.
struct Wire {
    fd: i32,
    /// The last read took all there was.
    drained: bool,
}

impl Wire {
    fn new(fd: i32) -> Wire {
        Wire { fd, drained: false }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = transfer(evergate_sys::read(self.fd, buffer))?;
        self.drained = count < buffer.len();
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        transfer(evergate_sys::write(self.fd, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn transfer(result: Transfer) -> io::Result<usize> {
    match result {
        Transfer::Moved(count) => Ok(count),
        Transfer::End => Ok(0),
        Transfer::Blocked => Err(io::ErrorKind::WouldBlock.into()),
        Transfer::Broken(error) => Err(error),
    }
}

/// One TLS connection of either direction, and its received plaintext.
pub(crate) struct Channel {
    socket: OwnedFd,
    tls: rustls::Connection,
    pub(crate) input: Vec<u8>,
    /// The other side has sent its end: only the socket's content remains.
    ends: bool,
    ended: bool,
    /// The socket may hold unread data, for which no further event comes.
    pub(crate) has_more: bool,
}

impl Channel {
    pub(crate) fn new(socket: OwnedFd, tls: impl Into<rustls::Connection>) -> Channel {
        Channel { socket, tls: tls.into(), input: Vec::new(), ends: false, ended: false, has_more: false }
    }

    pub(crate) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Reads the socket. `ends`: an event reported the other side's end, which is reported once. After an error the
    /// channel is unusable.
    pub(crate) fn receive(&mut self, ends: bool) -> io::Result<()> {
        let mut taken = 0;
        self.ends |= ends;
        self.has_more = false;
        let mut wire = Wire::new(self.fd());
        loop {
            match self.tls.read_tls(&mut wire) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            let state = self.tls.process_new_packets().map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, evergate_tls::error_text(&error))
            })?;
            let start = self.input.len();
            self.input.resize(start + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut self.input[start..])?;
            if wire.drained && !self.ends {
                break; // further input causes an event
            }
            if taken >= READ_MAX {
                self.has_more = true;
                break;
            }
        }
        self.send(&[])?;
        if self.ended { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Sends as much of `bytes` as the socket takes; returns how much.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut Wire::new(self.socket.as_raw_fd())) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(sent),
                    Err(error) => return Err(error),
                }
            }
            if sent == bytes.len() || self.tls.is_handshaking() {
                return Ok(sent);
            }
            sent += self.tls.writer().write(&bytes[sent..])?;
        }
    }
}

/// The channel to one backup.
pub(crate) struct Outgoing {
    pub(crate) channel: Channel,
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

impl Outgoing {
    pub(crate) fn connect(
        to: SocketAddr,
        config: &std::sync::Arc<rustls::ClientConfig>,
        first: &[Frame],
    ) -> anyhow::Result<Outgoing> {
        let socket = evergate_sys::connect(to)?;
        let name = rustls::pki_types::ServerName::IpAddress(to.ip().into());
        let tls = rustls::ClientConnection::new(config.clone(), name)?;
        let mut feed = Sender::default();
        for frame in first {
            feed.push(frame, None)?;
        }
        Ok(Outgoing {
            channel: Channel::new(socket, tls),
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

    pub(crate) fn follows(&self, bucket: evergate_membership::Bucket) -> bool {
        self.follows.get(usize::from(bucket.0)).copied().unwrap_or(false)
    }

    /// Sets whether further frames of a bucket are sent: they follow all earlier ones, or are the first.
    pub(crate) fn follow(&mut self, bucket: evergate_membership::Bucket, follows: bool) {
        if let Some(known) = self.follows.get_mut(usize::from(bucket.0)) {
            *known = follows;
        }
        self.wait(bucket, false);
    }

    /// Makes the next frame announce the term again: the backup then expects the full state.
    pub(crate) fn begin_again(&mut self, bucket: evergate_membership::Bucket) {
        if let Some(announced) = self.announced.get_mut(usize::from(bucket.0)) {
            *announced = None;
        }
    }

    /// Whether output waits for this backup, which is catching up.
    pub(crate) fn is_awaited(&self, bucket: evergate_membership::Bucket) -> bool {
        self.awaited.get(usize::from(bucket.0)).copied().unwrap_or(false)
    }

    pub(crate) fn wait(&mut self, bucket: evergate_membership::Bucket, awaited: bool) {
        if let Some(known) = self.awaited.get_mut(usize::from(bucket.0)) {
            *known = awaited;
        }
    }

    /// Queues a frame of this bucket.
    pub(crate) fn push(
        &mut self,
        bucket: evergate_membership::Bucket,
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
    pub(crate) fn has_answered(&self, bucket: evergate_membership::Bucket) -> bool {
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
    pub(crate) fn answers(&mut self, ends: bool, now: Micros) -> anyhow::Result<Vec<Notice>> {
        let ended = self.channel.receive(ends);
        let mut notices = Vec::new();
        let mut at = 0;
        while let Some((answer, length)) = Answer::decode(&self.channel.input[at..])? {
            at += length;
            self.feed.handle_answer(answer.frames, |notice| notices.push(notice))?;
        }
        self.channel.input.drain(..at);
        let answered = self.feed.frames() - self.feed.lag();
        if let Some((_, since)) = self.timed.take_if(|(frame, _)| *frame <= answered) {
            self.slowest = self.slowest.max(now.since(since));
        }
        ended?;
        Ok(notices)
    }
}
