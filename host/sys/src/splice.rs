//! Moves bytes between sockets inside the kernel.

use crate::Transfer;
use crate::socket::{has_input, outcome, read};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Requested capacity, in bytes; the kernel's limit for unprivileged users is 1 MiB.
const CAPACITY: i32 = 1 << 20;
/// Capacity that every empty pipe has, in bytes.
const PIPE_BYTES: usize = libc::PIPE_BUF;

/// Kernel pipe that bytes pass through.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held: usize,
}

impl Pipe {
    /// A new, empty pipe.
    pub fn new() -> io::Result<Pipe> {
        let mut fds = [0i32; 2];
        // SAFETY: the kernel writes two descriptors into the array.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both descriptors were just returned by the kernel and are owned here alone.
        let (reader, writer) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        // SAFETY: no pointers are passed. A smaller pipe only means more calls.
        unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, CAPACITY) };
        Ok(Pipe { reader, writer, held: 0 })
    }

    /// A pipe with `held` bytes inside, from its descriptors to read and to write.
    pub fn of(reader: OwnedFd, writer: OwnedFd, held: usize) -> Pipe {
        Pipe { reader, writer, held }
    }

    /// Duplicates of its descriptors, to read and to write.
    pub fn descriptors(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.reader.try_clone()?, self.writer.try_clone()?))
    }

    /// The higher number of its two descriptors.
    pub fn highest(&self) -> RawFd {
        self.reader.as_raw_fd().max(self.writer.as_raw_fd())
    }

    /// Bytes inside.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves up to `bytes` from the socket `from` into the pipe. `ended`: [`crate::Event::ended`] was reported for the
    /// socket; only then bytes may be left although a splice blocks.
    pub fn fill(&mut self, from: RawFd, bytes: usize, ended: bool) -> Transfer {
        let mut moved = splice(from, self.writer.as_raw_fd(), bytes);
        let hides = match moved {
            Transfer::Blocked => ended,
            Transfer::End => true,
            _ => false,
        };
        if hides && self.held == 0 && has_input(from) {
            moved = self.copy(from, bytes);
        }
        if let Transfer::Moved(count) = moved {
            self.held += count;
        }
        moved
    }

    /// Copies bytes with a read. `splice` returns nothing before an urgent byte, and an end when the stream ends behind
    /// it; a read continues.
    #[cold]
    fn copy(&self, from: RawFd, bytes: usize) -> Transfer {
        let mut buffer = [0; PIPE_BYTES];
        let read = read(from, &mut buffer[..bytes.min(PIPE_BYTES)]);
        if let Transfer::Moved(count) = read {
            // SAFETY: pointer and length describe what was read.
            let kept = unsafe { libc::write(self.writer.as_raw_fd(), buffer.as_ptr().cast(), count) };
            if kept != count as isize {
                return Transfer::Broken(io::Error::last_os_error()); // the pipe is empty: it has this room
            }
        }
        read
    }

    /// Moves the bytes in the pipe to the socket `to`.
    pub fn empty(&mut self, to: RawFd) -> Transfer {
        let moved = splice(self.reader.as_raw_fd(), to, self.held);
        if let Transfer::Moved(count) = moved {
            self.held -= count;
        }
        moved
    }
}

fn splice(from: RawFd, to: RawFd, bytes: usize) -> Transfer {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    let nothing = std::ptr::null_mut();
    // SAFETY: null offsets are allowed for pipes and sockets; no memory of this process is touched.
    let result = unsafe { libc::splice(from, nothing, to, nothing, bytes, flags) };
    outcome(result)
}
