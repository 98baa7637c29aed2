//! Read interest: removes it from a socket whose data cannot be forwarded.
//!
//! Edge-triggered epoll reports readiness for every packet. Where the other side is full, each report would wake the
//! worker for nothing: more than half of all wakeups of a relay whose client is slower than its server. Such a socket
//! has no read interest until its data was read. Its end, its errors and room to write are still reported.
//!
//! Invariant: a socket without read interest is known to be readable, or regains it before its connection idles.

use crate::host::{Host, Poll};
use crate::slab::{Key, Source};
use crate::worker::Worker;

/// Whether a socket has no read interest from now on: from the moment its data cannot be forwarded until all of it was
/// read.
fn wanted(read_paused: bool, readable: bool, ended: bool, full: bool) -> bool {
    readable && (read_paused || (full && !ended))
}

fn set(epoll: &impl Poll, (fd, token): (i32, u64), read_paused: &mut bool, wanted: bool) {
    if *read_paused != wanted {
        let changed = if wanted { epoll.add_without_reads(fd, token) } else { epoll.report_again(fd, token) };
        // If the kernel refuses (it has no reason to), everything stays as it is.
        if changed.is_ok() {
            *read_paused = wanted;
        }
    }
}

impl<H: Host> Worker<H> {
    /// Removes the read interest of a blocked connection's sockets where nothing can be forwarded.
    pub(super) fn drop_read_interest(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(upstream_key) = client.upstream else {
            let wanted = wanted(client.read_paused, client.readable, client.ended, false);
            let fd = client.descriptor();
            return set(&self.poll, (fd, Source::Client(key).token()), &mut client.read_paused, wanted);
        };
        let Some(upstream) = self.upstreams.get_mut(upstream_key) else { return };
        let down = wanted(upstream.read_paused, upstream.readable, upstream.ended, !client.writable);
        let up = wanted(
            client.read_paused,
            client.readable,
            client.ended,
            !upstream.writable && !upstream.connecting,
        );
        let (client_fd, server_fd) = (client.descriptor(), upstream.descriptor());
        set(&self.poll, (server_fd, Source::Upstream(upstream_key).token()), &mut upstream.read_paused, down);
        set(&self.poll, (client_fd, Source::Client(key).token()), &mut client.read_paused, up);
    }

    /// Restores the read interest of a server connection that goes to the pool, where only its end is expected.
    pub(super) fn restore_upstream_interest(&mut self, key: Key) {
        let Some(upstream) = self.upstreams.get_mut(key) else { return };
        let fd = upstream.descriptor();
        set(&self.poll, (fd, Source::Upstream(key).token()), &mut upstream.read_paused, false);
    }
}

#[cfg(test)]
mod tests {
    use super::wanted;

    #[test]
    fn socket_without_read_interest_has_unread_data() {
        for (read_paused, ended, full) in [(false, false, true), (true, false, false), (true, true, true)] {
            assert!(wanted(read_paused, true, ended, full));
            assert!(!wanted(read_paused, false, ended, full), "everything was read");
        }
        assert!(!wanted(false, true, false, false), "there is room");
        assert!(!wanted(false, true, true, true), "nothing more comes");
    }
}
