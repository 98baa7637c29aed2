//! Frames with descriptors, over a Unix stream socket between two processes of one node.
//!
//! A frame is its length (4 bytes, little endian), its number of descriptors (1 byte), and that many bytes. Descriptors
//! come no later than their frame's first byte. Bounds: a frame has at most [`FRAME_BYTES_MAX`] bytes and
//! [`DESCRIPTORS_MAX`] descriptors; one frame leaves at a time.

use evergate_connection::UPGRADE_STATE_BYTES_MAX;
use evergate_sys::{DESCRIPTORS_MAX, Transfer, receive_descriptors, send_descriptors};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use zeroize::Zeroizing;

/// Bound on a frame, in bytes: the state of a connection and the frame's header.
pub const FRAME_BYTES_MAX: usize = UPGRADE_STATE_BYTES_MAX + 1024;
const HEADER: usize = 5;
const READ_BYTES: usize = 65_536;

/// A received frame. It may hold keys: erased when dropped.
#[derive(Debug)]
pub struct Frame {
    /// The bytes.
    pub bytes: Zeroizing<Vec<u8>>,
    /// The descriptors that came along.
    pub descriptors: Vec<OwnedFd>,
    /// Number of descriptors that did not arrive: this process may not have more.
    pub lost: usize,
}

/// One end.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    /// The frame that leaves, from `sent` on, and its descriptors until its first byte has left.
    out: Zeroizing<Vec<u8>>,
    sent: usize,
    leaving: Vec<OwnedFd>,
    /// Received bytes that are not consumed, from `taken` on.
    input: Zeroizing<Vec<u8>>,
    taken: usize,
    /// The descriptors of each frame that has some.
    come: VecDeque<Vec<OwnedFd>>,
}

impl Link {
    /// One end of a connected stream; whether it blocks is the stream's.
    pub fn new(stream: UnixStream) -> Link {
        Link {
            stream,
            out: Zeroizing::default(),
            sent: 0,
            leaving: Vec::new(),
            input: Zeroizing::default(),
            taken: 0,
            come: VecDeque::new(),
        }
    }

    /// For epoll.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// A stream that blocks gives up after this long.
    pub fn set_timeout(&self, span: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(span))?;
        self.stream.set_write_timeout(Some(span))
    }

    /// The next frame to leave; only when the one before has left.
    pub fn push(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<()> {
        if self.sent < self.out.len() || bytes.len() > FRAME_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX
        {
            let what = format!("a frame of {} bytes, {} descriptors", bytes.len(), descriptors.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.out.clear();
        self.sent = 0;
        self.out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.out.push(descriptors.len() as u8);
        self.out.extend_from_slice(bytes);
        self.leaving = descriptors;
        Ok(())
    }

    /// Sends queued bytes: true when nothing is left, false when the stream accepts no more now.
    pub fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.out.len() {
            match send_descriptors(self.fd(), &self.out[self.sent..], &self.leaving) {
                Transfer::Moved(count) => {
                    self.leaving.clear();
                    self.sent += count;
                }
                Transfer::Blocked => return Ok(false),
                Transfer::End => return Err(io::ErrorKind::WriteZero.into()),
                Transfer::Broken(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Sends queued bytes on a stream that did not block until now, with pauses up to this long.
    pub fn finish(&mut self, pause: Duration) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_write_timeout(Some(pause))?;
        if self.flush()? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Reads once: false when nothing comes now. The peer's end is an error.
    pub fn fill(&mut self) -> io::Result<bool> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let held = self.input.len();
        self.input.resize(held + READ_BYTES, 0);
        let mut fresh = Vec::new();
        let (outcome, cut) =
            receive_descriptors(self.stream.as_raw_fd(), &mut self.input[held..], &mut fresh);
        if cut || !fresh.is_empty() {
            self.come.push_back(fresh);
        }
        let (count, result) = match outcome {
            Transfer::Moved(count) => (count, Ok(true)),
            Transfer::Blocked => (0, Ok(false)),
            Transfer::End => (0, Err(io::ErrorKind::UnexpectedEof.into())),
            Transfer::Broken(error) => (0, Err(error)),
        };
        self.input.truncate(held + count);
        result
    }

    /// The next frame of the received bytes, if it is complete.
    pub fn take(&mut self) -> io::Result<Option<Frame>> {
        let rest = &self.input[self.taken..];
        let Some((head, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [a, b, c, d, descriptors] = *head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let count = usize::from(descriptors);
        if length > FRAME_BYTES_MAX || count > DESCRIPTORS_MAX {
            let what = format!("a frame of {length} bytes with {count} descriptors is announced");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        let bytes = Zeroizing::new(bytes.to_vec());
        let descriptors = if count > 0 { self.come.pop_front() } else { Some(Vec::new()) };
        let Some(descriptors) = descriptors.filter(|come| come.len() <= count) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame without its descriptors"));
        };
        self.taken += HEADER + length;
        Ok(Some(Frame { bytes, lost: count - descriptors.len(), descriptors }))
    }

    /// Sends one frame on a stream that blocks.
    pub fn send(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<()> {
        self.push(bytes, descriptors)?;
        if self.flush()? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Waits for one frame on a stream that blocks.
    pub fn receive(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            if !self.fill()? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_frame_arrives_complete_with_its_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (mut ours, mut theirs) = (Link::new(ours), Link::new(theirs));
        let large: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
        let mut blocked = 0;
        for round in 0..3 {
            let (near, far) = UnixStream::pair().unwrap();
            drop(near);
            ours.push(&large[round..], vec![far.into()]).unwrap();
            let frame = loop {
                blocked += usize::from(!ours.flush().unwrap());
                if let Some(frame) = theirs.take().unwrap() {
                    break frame;
                }
                theirs.fill().unwrap();
            };
            assert!(*frame.bytes == large[round..]);
            assert_eq!(frame.descriptors.len(), 1);
        }
        assert!(blocked > 0, "nothing was longer than the socket takes");
        assert!(!theirs.fill().unwrap());
        drop(ours);
        assert_eq!(theirs.fill().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn frame_in_progress_is_finished() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (mut ours, mut theirs) = (Link::new(ours), Link::new(theirs));
        ours.push(&[7; 3_000_000], Vec::new()).unwrap();
        assert!(!ours.flush().unwrap(), "the socket takes everything at once");
        let reader = std::thread::spawn(move || theirs.receive().unwrap().bytes.len());
        ours.finish(Duration::from_secs(30)).unwrap();
        assert_eq!(reader.join().unwrap(), 3_000_000);
    }

    #[test]
    fn frame_beyond_the_bounds_is_refused_by_both_ends() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut ours, mut theirs) = (Link::new(ours), Link::new(theirs));
        assert!(ours.push(&vec![0; FRAME_BYTES_MAX + 1], Vec::new()).is_err());
        for head in [[0xff, 0xff, 0xff, 0x7f, 0], [1, 0, 0, 0, 200], [0, 0, 0, 0, 1]] {
            use std::io::Write;
            ours.stream.write_all(&head).unwrap();
            theirs.fill().unwrap();
            assert_eq!(theirs.take().unwrap_err().kind(), io::ErrorKind::InvalidData);
            theirs = Link::new(theirs.stream);
        }
    }
}
