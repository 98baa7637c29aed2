//! Blocking writes to a possibly non-blocking file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

/// A file whose writes block. Another process that shares standard output or error, such as the parent, may have made
/// it non-blocking: the flag belongs to the open file, not to one process.
#[derive(Debug)]
pub struct BlockingWriter(pub File);

impl Write for BlockingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_for_room(&self.0)?,
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Waits until the file can be written to, or has an error that the next write returns.
fn wait_for_room(file: &File) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: the pointer describes one pollfd.
    if unsafe { libc::poll(&raw mut poll, 1, -1) } >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;

    #[test]
    fn writer_waits_for_a_full_non_blocking_pipe() {
        let (mut reader, writer) = io::pipe().unwrap();
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        let mut file = File::from(OwnedFd::from(writer));
        let mut filled = 0;
        while let Ok(count) = file.write(&[b'.'; 4096]) {
            filled += count;
        }
        let writing = std::thread::spawn(move || BlockingWriter(file).write_all(&[b'x'; 1 << 20]));
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        writing.join().unwrap().unwrap();
        assert_eq!(all.len(), filled + (1 << 20));
    }
}
