//! Readiness of descriptors, as epoll reports it.

use std::io;

/// Registrations of one worker. A token names the descriptor in events ([`evergate_base::net::Event`]).
pub trait Poll {
    /// Reports both directions, edge-triggered, until the descriptor is closed.
    fn add(&self, descriptor: i32, token: u64) -> io::Result<()>;

    /// Reports input as long as there is some: a listener, or a waker.
    fn add_input(&self, descriptor: i32, token: u64) -> io::Result<()>;

    /// Reports no more input of a descriptor of [`Poll::add`], until [`Poll::report_again`].
    fn add_without_reads(&self, descriptor: i32, token: u64) -> io::Result<()>;

    /// Reports the readiness of a descriptor of [`Poll::add`] once more.
    fn report_again(&self, descriptor: i32, token: u64) -> io::Result<()>;

    /// Reports nothing of the descriptor any more.
    fn remove(&self, descriptor: i32) -> io::Result<()>;

    /// Clears the wake-ups of the worker.
    fn drain_wakes(&self);
}
