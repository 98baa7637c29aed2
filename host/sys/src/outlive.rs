//! A small process that outlives this one, and does what is left to do when this one is gone.
//!
//! It is made by `fork` without `exec`, so that it shares maps and sockets as they are. It waits in a read; memory that the
//! two share by copying costs nothing until one of them writes to it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The largest word that can be left, in bytes.
pub const LAST_WORD_BYTES_MAX: usize = 65_536;

/// This process's end: dropping it, or dying, makes the other process act.
#[derive(Debug)]
pub struct Survivor {
    socket: OwnedFd,
}

impl Survivor {
    /// Makes the process. It keeps the descriptors in `keep` and no others, hears no signal that can be ignored, and calls
    /// `act` with the last word that was left ([`Survivor::leave_word`]) when this process has ended without
    /// [`Survivor::dismiss`]. `act` must not take locks that another thread may hold now.
    pub fn make(keep: &[RawFd], act: impl FnOnce(&[u8])) -> io::Result<Survivor> {
        let (ours, theirs) = packet_pair()?;
        let mut kept: Vec<RawFd> = keep.iter().copied().chain([theirs.as_raw_fd()]).collect();
        kept.sort_unstable();
        let mut buffer = vec![0; LAST_WORD_BYTES_MAX];
        let mut word = vec![0; LAST_WORD_BYTES_MAX];
        // SAFETY: the child has only this thread. It uses memory that was there before, system calls, and `act`, whose
        // condition the caller keeps; glibc makes its allocator usable after fork.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                close_others(&kept);
                ignore_signals();
                if let Some(length) = wait(theirs.as_raw_fd(), &mut buffer, &mut word) {
                    act(&word[..length]);
                }
                // SAFETY: ends the child without running what the parent has registered for its own end.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(Survivor { socket: ours }),
        }
    }

    /// Leaves a word: it replaces the one before. An error means that it was not left.
    pub fn leave_word(&self, word: &[u8]) -> io::Result<()> {
        if word.is_empty() || word.len() > LAST_WORD_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a last word of 1 to 65,536 bytes"));
        }
        self.send(word)
    }

    /// There is nothing left to do: the other process ends.
    pub fn dismiss(self) {
        let _ = self.send(&[]); // it cannot be told anything else
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // An empty packet could not be told from the end: one byte goes first.
        let marker = [u8::from(!bytes.is_empty())];
        let parts = [
            libc::iovec { iov_base: marker.as_ptr().cast_mut().cast(), iov_len: 1 },
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
        ];
        // SAFETY: all zero bytes are a message without an address; the kernel only reads what the parts describe.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = 2;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: as above.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Two ends of a connection that keeps the bounds of what is sent.
fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: they are new, and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Closes all descriptors but these, which are in order: a listening socket that is still open here would outlive its process.
fn close_others(kept: &[RawFd]) {
    let mut from = 0;
    for fd in kept {
        let fd = *fd as libc::c_uint;
        if fd > from {
            // SAFETY: nothing that is left in the child uses them.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd + 1;
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, from, libc::c_uint::MAX, 0) };
}

fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: a terminated string of less than 16 bytes; and no signal sent by the end of the parent's thread.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"evergate-last".as_ptr());
        libc::prctl(libc::PR_SET_PDEATHSIG, 0);
    }
}

/// Until the other end is gone: the length of the newest word. `None` when dismissed, or when no word was left.
fn wait(fd: RawFd, buffer: &mut [u8], word: &mut [u8]) -> Option<usize> {
    let mut length = None;
    loop {
        let mut marker = 0_u8;
        let mut parts = [
            libc::iovec { iov_base: (&raw mut marker).cast(), iov_len: 1 },
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() },
        ];
        // SAFETY: the kernel writes at most what the parts describe.
        let got = unsafe { libc::readv(fd, parts.as_mut_ptr(), 2) };
        match usize::try_from(got) {
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) | Ok(0) => return length,
            Ok(_) if marker == 0 => return None,
            Ok(count) => {
                word[..count - 1].copy_from_slice(&buffer[..count - 1]);
                length = Some(count - 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// A survivor that writes the last word into a pipe, and the pipe's other end.
    fn survivor() -> (Survivor, std::io::PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        let fd = writer.as_raw_fd();
        let survivor = Survivor::make(&[fd], move |word| {
            // SAFETY: the descriptor is kept, and the word is readable memory.
            unsafe { libc::write(fd, word.as_ptr().cast(), word.len()) };
        });
        (survivor.unwrap(), reader)
    }

    fn heard(mut reader: std::io::PipeReader) -> Vec<u8> {
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).unwrap();
        heard
    }

    #[test]
    fn the_last_word_is_said_and_only_after_the_end() {
        let (survivor, reader) = survivor();
        survivor.leave_word(b"first").unwrap();
        survivor.leave_word(b"last").unwrap();
        drop(survivor);
        assert_eq!(heard(reader), b"last");
    }

    #[test]
    fn who_was_dismissed_or_told_nothing_says_nothing() {
        let (survivor_a, reader_a) = survivor();
        survivor_a.leave_word(b"word").unwrap();
        survivor_a.dismiss();
        assert_eq!(heard(reader_a), b"");
        let (survivor_b, reader_b) = survivor();
        assert!(survivor_b.leave_word(b"").is_err());
        assert!(survivor_b.leave_word(&[0; LAST_WORD_BYTES_MAX + 1]).is_err());
        drop(survivor_b);
        assert_eq!(heard(reader_b), b"");
    }
}
