//! Sockets that have something to say while nobody can take it.
//!
//! Readiness is told at every packet. Where the other side is full and the bytes stay where they are, each telling would wake the
//! worker for nothing: more than half of all wakings of a relay whose client is slower than its server. So such a socket is not
//! listened to until what it has said was read. Its end and its errors are told all the same, and room to write.
//!
//! Invariant: a muted socket is known to be readable, or is listened to again before its connection rests.

use super::Worker;
use super::slab::{Key, Source};
use evergate_sys::Epoll;
use std::os::fd::RawFd;

/// Whether a socket is muted from now on: it begins when what it says has no place, and lasts until all of it was read.
fn wanted(muted: bool, readable: bool, ended: bool, full: bool) -> bool {
    readable && (muted || (full && !ended))
}

fn set(epoll: &Epoll, (fd, token): (RawFd, u64), muted: &mut bool, wanted: bool) {
    if *muted != wanted {
        let reported =
            if wanted { epoll.add_without_reads(fd, token) } else { epoll.report_again(fd, token) };
        // Should the kernel refuse (it has no reason to), everything stays as it is.
        if reported.is_ok() {
            *muted = wanted;
        }
    }
}

impl Worker {
    /// Nothing of a connection moves: whom it need not listen to.
    pub(super) fn drop_read_interest(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(upstream_key) = client.upstream else {
            let wanted = wanted(client.muted, client.readable, client.ended, false);
            let fd = client.fd();
            return set(&self.epoll, (fd, Source::Client(key).token()), &mut client.muted, wanted);
        };
        let Some(upstream) = self.upstreams.get_mut(upstream_key) else { return };
        let down = wanted(upstream.muted, upstream.readable, upstream.ended, !client.writable);
        let up =
            wanted(client.muted, client.readable, client.ended, !upstream.writable && !upstream.connecting);
        let (client_fd, server_fd) = (client.fd(), upstream.fd());
        set(&self.epoll, (server_fd, Source::Upstream(upstream_key).token()), &mut upstream.muted, down);
        set(&self.epoll, (client_fd, Source::Client(key).token()), &mut client.muted, up);
    }

    /// A server connection that goes to the pool is listened to: it has nothing to say but its end.
    pub(super) fn restore_upstream_interest(&mut self, key: Key) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        let fd = upstream.fd();
        set(&self.epoll, (fd, Source::Upstream(key).token()), &mut upstream.muted, false);
    }
}

#[cfg(test)]
mod tests {
    use super::wanted;

    #[test]
    fn who_is_muted_has_said_something_that_was_not_read() {
        for (muted, ended, full) in [(false, false, true), (true, false, false), (true, true, true)] {
            assert!(wanted(muted, true, ended, full));
            assert!(!wanted(muted, false, ended, full), "all was read");
        }
        assert!(!wanted(false, true, false, false), "there is room");
        assert!(!wanted(false, true, true, true), "nothing more comes");
    }
}
