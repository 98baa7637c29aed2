//! A small process that outlives this one, and does what is left to do when this one is gone.
//!
//! It is made by `fork` without `exec`, so that it shares maps and sockets as they are, and waits for a lock that a thread of
//! this process holds. The kernel hands such a lock on at the very beginning of that thread's end; a pipe would be closed
//! only after all other descriptors, which takes a tenth of a second with twenty thousand of them.

use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest word that can be left, in bytes.
const LAST_WORD_BYTES_MAX: usize = 65_536;

/// What both processes see.
#[repr(C)]
struct Shared {
    lock: libc::pthread_mutex_t,
    /// Which of the words is the newest, and its length; [`NO_WORD`] and [`DISMISSED`] beside that.
    newest: AtomicUsize,
    words: [[u8; LAST_WORD_BYTES_MAX]; 2],
}

/// Nothing was left yet.
const NO_WORD: usize = 0;
/// There is nothing to do.
const DISMISSED: usize = usize::MAX;

/// This process's end. Dropping it, or the end of the thread that made it, makes the other process act.
#[derive(Debug)]
pub struct Survivor {
    shared: NonNull<Shared>,
    /// Only the thread that holds the lock may give it back.
    of_thread: PhantomData<*mut ()>,
}

impl Survivor {
    /// Makes the process. It keeps the descriptors in `keep` and no others, hears no signal that can be ignored, and calls
    /// `act` with the last word that was left ([`Survivor::leave_word`]) when the calling thread, or this process, has ended
    /// without [`Survivor::dismiss`]. `act` must not take locks that another thread may hold now.
    pub fn make(keep: &[RawFd], act: impl FnOnce(&[u8])) -> io::Result<Survivor> {
        let mut kept = keep.to_vec();
        kept.sort_unstable();
        let shared = shared_memory()?;
        let survivor = Survivor { shared, of_thread: PhantomData };
        lock(shared)?;
        // SAFETY: the child has only this thread. It uses memory that was there before, system calls, and `act`, whose
        // condition the caller keeps; glibc makes its allocator usable after fork.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                std::mem::forget(survivor); // the lock is the parent's
                close_others(&kept);
                ignore_signals();
                // SAFETY: the memory is mapped for as long as the process lives.
                let memory = unsafe { shared.as_ref() };
                if lock(shared).is_ok()
                    && let Some(word) = memory.word()
                {
                    act(word);
                }
                // SAFETY: ends the child without running what the parent has registered for its own end.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(survivor),
        }
    }

    /// Leaves a word: it replaces the one before.
    pub fn leave_word(&mut self, word: &[u8]) -> io::Result<()> {
        if word.is_empty() || word.len() > LAST_WORD_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a last word of 1 to 65,536 bytes"));
        }
        // SAFETY: only this thread writes; the other process reads the word that `newest` names, and that is not this one.
        let shared = unsafe { self.shared.as_mut() };
        let place = 1 - (shared.newest.load(Ordering::Relaxed) & 1);
        shared.words[place][..word.len()].copy_from_slice(word);
        shared.newest.store(word.len() << 1 | place, Ordering::Release);
        Ok(())
    }

    /// There is nothing left to do: the other process ends.
    pub fn dismiss(self) {
        // SAFETY: the memory is mapped.
        unsafe { self.shared.as_ref() }.newest.store(DISMISSED, Ordering::Release);
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        // SAFETY: this thread holds the lock, and the memory is not used here any more; the child has its own mapping.
        unsafe {
            libc::pthread_mutex_unlock(&raw mut (*self.shared.as_ptr()).lock);
            libc::munmap(self.shared.as_ptr().cast(), size_of::<Shared>());
        }
    }
}

impl Shared {
    fn word(&self) -> Option<&[u8]> {
        match self.newest.load(Ordering::Acquire) {
            NO_WORD | DISMISSED => None,
            newest => self.words[newest & 1].get(..newest >> 1),
        }
    }
}

/// Memory that a forked process shares, with a lock that survives its holder.
fn shared_memory() -> io::Result<NonNull<Shared>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; all zero bytes are a valid `Shared` but for its lock, which is made below.
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

/// Waits until nobody else holds the lock, or its holder is gone.
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
    // SAFETY: a terminated string of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"evergate-watchdog".as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read};
    use std::os::fd::AsRawFd;

    /// A survivor that writes the last word into a pipe, and the pipe's other end.
    fn survivor() -> (Survivor, PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        let fd = writer.as_raw_fd();
        let survivor = Survivor::make(&[fd], move |word| {
            // SAFETY: the descriptor is kept, and the word is readable memory.
            unsafe { libc::write(fd, word.as_ptr().cast(), word.len()) };
        });
        (survivor.unwrap(), reader)
    }

    fn peer_input(mut reader: PipeReader) -> Vec<u8> {
        let mut peer_input = Vec::new();
        reader.read_to_end(&mut peer_input).unwrap();
        peer_input
    }

    #[test]
    fn the_newest_word_is_said_when_the_maker_lets_go() {
        let (mut survivor, reader) = survivor();
        for word in [&b"first"[..], b"second", b"last"] {
            survivor.leave_word(word).unwrap();
        }
        drop(survivor);
        assert_eq!(peer_input(reader), b"last");
    }

    #[test]
    fn it_is_said_when_the_thread_has_ended() {
        let maker = std::thread::spawn(|| {
            let (mut survivor, reader) = survivor();
            survivor.leave_word(b"word").unwrap();
            std::mem::forget(survivor);
            reader
        });
        assert_eq!(peer_input(maker.join().unwrap()), b"word");
    }

    #[test]
    fn who_was_dismissed_or_told_nothing_says_nothing() {
        let (mut survivor_a, reader_a) = survivor();
        survivor_a.leave_word(b"word").unwrap();
        survivor_a.dismiss();
        assert_eq!(peer_input(reader_a), b"");
        let (mut survivor_b, reader_b) = survivor();
        assert!(survivor_b.leave_word(b"").is_err());
        assert!(survivor_b.leave_word(&[0; LAST_WORD_BYTES_MAX + 1]).is_err());
        drop(survivor_b);
        assert_eq!(peer_input(reader_b), b"");
    }
}
