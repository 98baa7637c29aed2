//! Edge-triggered readiness: one registration per socket for its whole life.

use evergate_base::Wake;
use evergate_base::net::Event;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const INPUT: u32 = (libc::EPOLLIN | libc::EPOLLPRI) as u32;
const BOTH_EDGES: u32 = INPUT | (libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// A new instance that reports up to `batch` events at once.
    pub fn new(batch: usize) -> io::Result<Epoll> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just returned by the kernel and is owned here alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; batch] })
    }

    /// Registers `fd` for both directions, edge-triggered, until it is closed.
    pub fn add(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, BOTH_EDGES)
    }

    /// Reports writability, end and errors of a descriptor that [`Epoll::add`] registered, but no input, until
    /// [`Epoll::report_again`].
    pub fn add_without_reads(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, BOTH_EDGES & !INPUT)
    }

    /// Reports the readiness of a descriptor that [`Epoll::add`] registered once more, without new input.
    pub fn report_again(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, BOTH_EDGES)
    }

    /// Registers a listener or waker: level-triggered input.
    pub fn add_input(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLIN as u32)
    }

    fn control(&self, operation: i32, fd: RawFd, token: u64, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` lives across the call, which copies it.
        let result = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &raw mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Removes `fd`, which stays open.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        // SAFETY: the event pointer may be null for EPOLL_CTL_DEL.
        let result =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits up to `timeout_ms` (forever when negative) and returns how many events [`Epoll::event`] can read.
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        let capacity = self.events.len() as i32;
        // SAFETY: the kernel writes at most `capacity` events into the vector of that length.
        let count =
            unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), capacity, timeout_ms) };
        if count >= 0 {
            return Ok(count as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
    }

    /// Like [`Epoll::wait`], with a finer clock. Linux 5.11 or newer.
    pub fn wait_us(&mut self, timeout_us: u64) -> io::Result<usize> {
        let span = libc::timespec {
            tv_sec: (timeout_us / 1_000_000) as libc::time_t,
            tv_nsec: (timeout_us % 1_000_000 * 1000) as libc::c_long,
        };
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: the kernel reads one timespec and no signal mask, and writes at most as many events as the vector
        // holds.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as libc::c_int,
                &raw const span,
                no_mask,
                8usize,
            )
        };
        if count >= 0 {
            return Ok(count as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted { Ok(0) } else { Err(error) }
    }

    /// One of the events of the last wait.
    pub fn event(&self, index: usize) -> Event {
        let raw = self.events[index];
        let bits = raw.events as i32;
        let over = bits & (libc::EPOLLHUP | libc::EPOLLERR) != 0;
        Event {
            token: raw.u64,
            readable: over || bits & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI) != 0,
            writable: over || bits & libc::EPOLLOUT != 0,
            ended: over || bits & (libc::EPOLLRDHUP | libc::EPOLLPRI) != 0,
            broken: bits & libc::EPOLLERR != 0,
        }
    }
}

/// Waker that ends a worker's wait, from any thread.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
}

impl Waker {
    /// A new waker; register [`Waker::fd`] with [`Epoll::add_input`].
    pub fn new() -> io::Result<Waker> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just returned by the kernel and is owned here alone.
        Ok(Waker { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The descriptor to register.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Clears the wake-ups; called by the worker.
    pub fn drain(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the pointer and length describe `count`.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl Wake for Waker {
    fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the pointer and length describe `one`.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }
}
