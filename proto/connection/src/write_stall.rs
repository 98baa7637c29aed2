//! Slow peers: how long bytes may wait for them.
//!
//! The kernel takes megabytes of written bytes, and reports space again only when a good part of them has gone. The
//! pace of a peer therefore shows in its acknowledgements, not in how often its socket is writable. The pace is checked
//! soon after the wait for a peer begins, and then at each deadline. No query is made while bytes move.

use crate::connection::Connection;
use crate::exchange::ResponseState;
use crate::timers::Timer;
use evergate_base::Micros;

/// A server may still be taking a request that is longer than this, in bytes on the wire, when all of it is written.
const REQUEST_SMALL: u64 = 65_536;
/// The first look comes after this part of the time that a peer has.
pub(crate) const FIRST_CHECK_PART: u64 = 16;

/// What the peers had acknowledged at the last look.
#[derive(Debug, Default)]
pub(crate) struct AckedPositions {
    at: Micros,
    /// Output positions of those that were waited for then, and have been since.
    client: Option<u64>,
    server: Option<u64>,
    /// Bytes that the kernel still holds for the client, and for the server; set before a check.
    held: Option<(u64, u64)>,
}

impl Connection {
    /// Whether the meaning of the next timeout depends on the peers' acknowledgements: the worker reports them before,
    /// by [`Connection::handle_unacknowledged`], or with backups as always.
    pub fn checks_peers(&self) -> bool {
        self.is_looked_at(self.deadline.timer)
    }

    /// Bytes that were written to each socket, and not acknowledged by its peer. Counts for the timeout that follows.
    pub fn handle_unacknowledged(&mut self, client: u64, server: u64) {
        self.deadline.acked.get_or_insert_default().held = Some((client, server));
    }

    /// The worker could not write everything: a peer takes too little. Bytes wait in the outlets.
    pub fn handle_blocked(&mut self, now: Micros) {
        if self.deadline.timer != Timer::WriteStall {
            self.arm(Timer::WriteStall, now);
        }
    }

    /// So many bytes were in the pipes of a connection that comes from another process.
    pub fn handle_piped(&mut self, down: u64, up: u64) {
        self.pipes.held = (down, up);
    }

    /// Whether peers are looked at when this deadline comes.
    pub(crate) fn is_looked_at(&self, timer: Timer) -> bool {
        self.is_looked_at_soon(timer) || (timer == Timer::Response && self.remote.is_some())
    }

    /// Whether they are looked at for the first time long before the deadline.
    pub(crate) fn is_looked_at_soon(&self, timer: Timer) -> bool {
        match timer {
            Timer::WriteStall => true,
            Timer::Response => self.is_large_request(),
            _ => false,
        }
    }

    /// Whether bytes wait for a peer to take some.
    pub(crate) fn is_blocked(&self) -> bool {
        self.waits_for_client() || self.waits_for_server()
    }

    fn waits_for_client(&self) -> bool {
        !self.client.outlet.is_empty()
            || self.pipes.held.0 > 0
            || (self.end.is_closing() && !self.is_drained())
    }

    fn waits_for_server(&self) -> bool {
        !self.servers.outlet.is_empty()
            || self.pipes.held.1 > 0
            || (self.tunnel_is_over() && !self.server_has_all())
    }

    /// Whether all that is waited for is a server that has not begun its response.
    pub(crate) fn waits_for_server_alone(&self) -> bool {
        self.exchange.answering == ResponseState::Head && self.waits_for_server() && !self.waits_for_client()
    }

    /// Some waiting bytes left: without further waiting bytes the deadline of the state applies.
    pub(crate) fn record_progress(&mut self, now: Micros) {
        let (client, server) = (self.waits_for_client(), self.waits_for_server());
        if let Some(look) = &mut self.deadline.acked {
            look.client = look.client.filter(|_| client);
            look.server = look.server.filter(|_| server);
        }
        if self.deadline.timer == Timer::WriteStall && !client && !server {
            let timer = self.natural_timer();
            self.arm(timer, now);
        }
    }

    /// Whether those that bytes wait for have taken enough since the last look. Extends the deadline if so.
    pub(crate) fn peers_continue(&mut self, now: Micros) -> bool {
        self.check((self.waits_for_client(), self.waits_for_server()), now)
    }

    /// Whether decided records are yet to be made because peers take little, but enough: a slow client has all that it
    /// has space for. If so, starts the next wait.
    pub(crate) fn is_stuck_for_slow_peers(&mut self, now: Micros) -> bool {
        match self.deadline.timer {
            _ if self.end.is_closing() => false,
            Timer::WriteStall if !self.is_blocked() => {
                let timer = self.natural_timer();
                self.arm(timer, now);
                true
            }
            Timer::WriteStall => self.peers_continue(now),
            Timer::Response => self.server_continues(now),
            _ => false,
        }
    }

    /// Whether the server still takes the request, all of which is written, or waits for a client that takes the
    /// response.
    pub(crate) fn server_continues(&mut self, now: Micros) -> bool {
        if self.server_waits_for_client() {
            return self.check((true, false), now);
        }
        // One whose client was waited for at the last look, and has all since, has its own time from now on.
        let was_client = self.deadline.acked.as_ref().is_some_and(|look| look.client.is_some());
        (was_client || self.is_large_request()) && self.check((false, true), now)
    }

    fn is_large_request(&self) -> bool {
        self.servers.leg.as_ref().is_some_and(|leg| leg.out_pos > REQUEST_SMALL)
    }

    /// With backups a server's bytes are acknowledged when the client has them, or else the backups. A server whose
    /// client has yet to take its bytes may have a full window on its way, as after a failover: its silence is not its
    /// own.
    fn server_waits_for_client(&self) -> bool {
        let owes = self.remote.as_ref().is_some_and(|remote| remote.acks.client < self.client.out_pos);
        owes && self.exchange.answering != ResponseState::Head
    }

    fn check(&mut self, waits: (bool, bool), now: Micros) -> bool {
        let mut look = self.deadline.acked.take().unwrap_or_default();
        let held = look.held.take();
        let span = now.since(look.at).0;
        let owed = (self.listener().limits.rate_min.saturating_mul(span) / 1_000_000).max(1);
        let mut fine = true;
        for (waits, before, taken) in [
            (waits.0, &mut look.client, self.acked_by_client(held)),
            (waits.1, &mut look.server, self.acked_by_server(held)),
        ] {
            fine &= !waits || before.is_none_or(|before| taken.saturating_sub(before) >= owed);
            *before = waits.then_some(taken);
        }
        look.at = now;
        self.deadline.at = now + self.span(self.deadline.timer, now);
        self.deadline.acked = Some(look);
        fine
    }

    fn acked_by_client(&self, held: Option<(u64, u64)>) -> u64 {
        match &self.remote {
            Some(remote) => remote.acks.client,
            None => self
                .client
                .out_pos
                .saturating_sub(self.client.outlet.len() as u64 + held.map_or(0, |(client, _)| client)),
        }
    }

    fn acked_by_server(&self, held: Option<(u64, u64)>) -> u64 {
        let Some(leg) = &self.servers.leg else { return 0 };
        match &self.remote {
            Some(remote) => remote.acks.server(leg.id),
            None => leg
                .out_pos
                .saturating_sub(self.servers.outlet.len() as u64 + held.map_or(0, |(_, server)| server)),
        }
    }
}
