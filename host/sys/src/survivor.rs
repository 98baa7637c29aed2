//! Process that outlives this one and acts after its end.
//!
//! It is made by `fork` without `exec`, so that it shares maps and sockets. It waits for a lock that a thread of this
//! process holds. The kernel releases such a lock at the very beginning of that thread's end. A pipe would close only
//! after all other descriptors, which takes a tenth of a second with twenty thousand of them.

use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Limit of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 65_536;

/// Memory shared by both processes.
#[repr(C)]
struct Shared {
    lock: libc::pthread_mutex_t,
    /// Index and length of the newest message, or [`NO_MESSAGE`] or [`DISMISSED`].
    newest: AtomicUsize,
    messages: [[u8; MESSAGE_BYTES_MAX]; 2],
}

/// No message has been set.
const NO_MESSAGE: usize = 0;
/// The other process has nothing to do.
const DISMISSED: usize = usize::MAX;

/// Handle of the other process. Dropping it, or the end of the thread that made it, makes the other process act.
#[derive(Debug)]
pub struct Survivor {
    shared: NonNull<Shared>,
    /// Only the thread that holds the lock may release it.
    of_thread: PhantomData<*mut ()>,
}

impl Survivor {
    /// Makes the process. It keeps the descriptors in `keep` and no others, and ignores all signals that can be
    /// ignored. It calls `act` with the last message ([`Survivor::leave_word`]) when the calling thread, or this
    /// process, has ended without [`Survivor::dismiss`]. `act` must not take locks that another thread may hold now.
    pub fn make(keep: &[RawFd], act: impl FnOnce(&[u8])) -> io::Result<Survivor> {
        let mut kept = keep.to_vec();
        kept.sort_unstable();
        let shared = shared_memory()?;
        let survivor = Survivor { shared, of_thread: PhantomData };
        lock(shared)?;
        // SAFETY: the child has only this thread. It uses memory from before the fork, system calls, and `act`, whose
        // condition the caller guarantees; glibc makes its allocator usable after fork.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                std::mem::forget(survivor); // the lock is the parent's
                close_others(&kept);
                ignore_signals();
                // SAFETY: the memory is mapped for as long as the process lives.
                let memory = unsafe { shared.as_ref() };
                if lock(shared).is_ok()
                    && let Some(message) = memory.message()
                {
                    act(message);
                }
                // SAFETY: ends the child without running the exit handlers of the parent.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(survivor),
        }
    }

    /// Sets the message; it replaces the previous one.
    pub fn leave_word(&mut self, message: &[u8]) -> io::Result<()> {
        if message.is_empty() || message.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message of 1 to 65,536 bytes"));
        }
        // SAFETY: only this thread writes; the other process reads the message that `newest` names, and this is the
        // other one.
        let shared = unsafe { self.shared.as_mut() };
        let place = 1 - (shared.newest.load(Ordering::Relaxed) & 1);
        shared.messages[place][..message.len()].copy_from_slice(message);
        shared.newest.store(message.len() << 1 | place, Ordering::Release);
        Ok(())
    }

    /// Ends the other process without a call of `act`.
    pub fn dismiss(self) {
        // SAFETY: the memory is mapped.
        unsafe { self.shared.as_ref() }.newest.store(DISMISSED, Ordering::Release);
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        // SAFETY: this thread holds the lock, and no longer uses the memory; the child has its own mapping.
        unsafe {
            libc::pthread_mutex_unlock(&raw mut (*self.shared.as_ptr()).lock);
            libc::munmap(self.shared.as_ptr().cast(), size_of::<Shared>());
        }
    }
}

impl Shared {
    fn message(&self) -> Option<&[u8]> {
        match self.newest.load(Ordering::Acquire) {
            NO_MESSAGE | DISMISSED => None,
            newest => self.messages[newest & 1].get(..newest >> 1),
        }
    }
}

/// Memory shared with a forked process, with a lock that survives its holder.
fn shared_memory() -> io::Result<NonNull<Shared>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; all zero bytes are a valid `Shared` except for its lock, which is initialised below.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), access, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let shared = NonNull::new(memory.cast::<Shared>()).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: attributes and lock are initialised before they are used.
    unsafe {
        let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
        check(libc::pthread_mutexattr_init(&raw mut attributes))?;
        check(libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED))?;
        check(libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST))?;
        check(libc::pthread_mutex_init(&raw mut (*shared.as_ptr()).lock, &raw const attributes))?;
    }
    Ok(shared)
}

/// Waits until the lock is free, or its holder has ended.
fn lock(shared: NonNull<Shared>) -> io::Result<()> {
    // SAFETY: the lock was initialised when the memory was mapped.
    match unsafe { libc::pthread_mutex_lock(&raw mut (*shared.as_ptr()).lock) } {
        libc::EOWNERDEAD => Ok(()),
        other => check(other),
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// Closes all descriptors except `kept`, which are sorted: a listening socket left open here would outlive its process.
fn close_others(kept: &[RawFd]) {
    let mut from = 0;
    for fd in kept {
        let fd = *fd as libc::c_uint;
        if fd > from {
            // SAFETY: no code of the child uses these descriptors.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = fd + 1;
    }
    // SAFETY: no code of the child uses these descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, from, libc::c_uint::MAX, 0) };
}

fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: a terminated string of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"evergate-watchdog".as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::os::fd::AsRawFd;

    /// A survivor that writes the last message into a pipe, and the pipe's other end.
    fn survivor() -> (Survivor, PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let fd = writer.as_raw_fd();
        let survivor = Survivor::make(&[fd], move |message| {
            // SAFETY: the descriptor is open, and the message is readable memory.
            unsafe { libc::write(fd, message.as_ptr().cast(), message.len()) };
        });
        (survivor.unwrap(), reader)
    }

    fn received(mut reader: PipeReader) -> Vec<u8> {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        received
    }

    #[test]
    fn newest_message_is_used_when_the_survivor_is_dropped() {
        let (mut survivor, reader) = survivor();
        for message in [&b"first"[..], b"second", b"last"] {
            survivor.leave_word(message).unwrap();
        }
        drop(survivor);
        assert_eq!(received(reader), b"last");
    }

    #[test]
    fn message_is_used_when_the_thread_has_ended() {
        let maker = std::thread::spawn(|| {
            let (mut survivor, reader) = survivor();
            survivor.leave_word(b"message").unwrap();
            std::mem::forget(survivor);
            reader
        });
        assert_eq!(received(maker.join().unwrap()), b"message");
    }

    #[test]
    fn dismissed_or_empty_survivor_does_nothing() {
        let (mut survivor_a, reader_a) = survivor();
        survivor_a.leave_word(b"message").unwrap();
        survivor_a.dismiss();
        assert_eq!(received(reader_a), b"");
        let (mut survivor_b, reader_b) = survivor();
        assert!(survivor_b.leave_word(b"").is_err());
        assert!(survivor_b.leave_word(&[0; MESSAGE_BYTES_MAX + 1]).is_err());
        drop(survivor_b);
        assert_eq!(received(reader_b), b"");
    }
}
