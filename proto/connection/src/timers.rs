//! Deadlines, blocked outlets, and what follows when bytes have moved.

use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use crate::server_leg::ServerLeg;
use crate::write_stall::{AckedPositions, FIRST_CHECK_PART};
use crate::{Effect, Io};
use evergate_base::Micros;

/// What the connection's deadline means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Timer {
    /// No deadline.
    None,
    /// TLS handshake.
    Handshake,
    /// Request head.
    RequestHead,
    /// Request body without progress, or slower than the floor.
    RequestBody,
    /// Idle between requests.
    KeepAlive,
    /// Waiting until a server has room.
    Queue,
    /// Connecting to a server.
    Connect,
    /// Waiting for the server's response, or for more of it.
    Response,
    /// Tunnel or raw relay without a byte.
    Tunnel,
    /// A peer takes none of our bytes.
    WriteStall,
    /// Waiting for the client's end after ours.
    Linger,
}

/// The connection's one deadline, and the progress that moves it.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// What the deadline means.
    pub(crate) timer: Timer,
    pub(crate) at: Micros,
    /// Bytes moved since the deadline was last extended, for the rate floor.
    pub(crate) moved: u64,
    /// When the request head under way began; the end of a connection that is closing.
    pub(crate) began: Micros,
    /// What peers that take little had taken when they were looked at.
    pub(crate) acked: Option<Box<AckedPositions>>,
}

impl Deadline {
    /// No deadline yet, for a connection that begins now.
    pub(crate) fn starting_at(now: Micros) -> Deadline {
        Deadline { timer: Timer::None, at: Micros(u64::MAX), moved: 0, began: now, acked: None }
    }

    /// Starts `timer`, which passes at `at`.
    fn start(&mut self, timer: Timer, at: Micros) {
        (self.timer, self.at, self.moved, self.acked) = (timer, at, 0, None);
    }
}

impl Connection {
    /// Starts `timer`. While bytes wait for a peer, its deadline to take some stays; the other deadline follows from
    /// the state when no bytes wait any more.
    pub(crate) fn arm(&mut self, timer: Timer, now: Micros) {
        let waits =
            !matches!(timer, Timer::None | Timer::WriteStall | Timer::Linger) && !self.end.is_closing();
        if self.deadline.timer == Timer::WriteStall && waits && self.is_blocked() {
            return;
        }
        let span = self.span(timer, now);
        let part = if self.is_looked_at_soon(timer) { FIRST_CHECK_PART } else { 1 };
        if timer == Timer::RequestHead {
            self.deadline.began = now;
        }
        self.deadline.start(timer, now + Micros(span.0 / part));
    }

    pub(crate) fn span(&self, timer: Timer, now: Micros) -> Micros {
        let timeouts = &self.snapshot.timeouts;
        let pool = |leg: &Option<Box<ServerLeg>>| leg.as_ref().map(|leg| leg.pool as usize);
        match timer {
            Timer::None => Micros(u64::MAX),
            Timer::Handshake => timeouts.handshake,
            Timer::RequestHead => timeouts.request_head,
            Timer::RequestBody => timeouts.request_body,
            Timer::KeepAlive => timeouts.keep_alive,
            Timer::Queue => {
                self.servers.leg.as_ref().map_or(Micros(0), |leg| leg.attempt.queue_time_left(now))
            }
            Timer::Connect => {
                pool(&self.servers.leg).map_or(timeouts.handshake, |p| self.snapshot.pools[p].connect)
            }
            Timer::Response => {
                pool(&self.servers.leg).map_or(timeouts.handshake, |p| self.snapshot.pools[p].response)
            }
            // Its server has ended, and keeps a place for a client that may be gone.
            Timer::Tunnel if self.exchange.answering == ResponseState::Ended => {
                timeouts.tunnel.min(timeouts.keep_alive)
            }
            Timer::Tunnel => timeouts.tunnel,
            // It is late with its answer too.
            Timer::WriteStall if self.waits_for_server_alone() => {
                timeouts.write_stall.max(self.span(Timer::Response, now))
            }
            Timer::WriteStall => timeouts.write_stall,
            Timer::Linger => timeouts.linger,
        }
    }

    /// Notes progress under `timer`: extends its deadline, unless the rate floor asks for more bytes first.
    pub(crate) fn progress(&mut self, timer: Timer, bytes: usize, now: Micros) {
        if self.deadline.timer != timer {
            return self.arm(timer, now);
        }
        self.deadline.moved += bytes as u64;
        let floor = if timer == Timer::RequestBody { self.span(timer, now) } else { Micros(0) };
        let owed = self.listener().limits.rate_min.saturating_mul(floor.0) / 1_000_000;
        if self.deadline.moved >= owed {
            self.arm(timer, now);
        }
    }

    /// Some waiting bytes left; steps that waited for an empty outlet follow.
    pub fn handle_flushed(&mut self, io: &mut Io<'_>) {
        self.record_progress(io.now);
        self.finish_call(io);
    }

    /// Has the worker call again at once, through the timer: something is left to do when this call's bytes are gone.
    pub(crate) fn call_again(&mut self, timer: Timer, io: &Io<'_>) {
        if self.deadline.timer != Timer::WriteStall {
            self.deadline.timer = timer;
            self.deadline.at = io.now;
        }
    }

    /// The timer of the state when no peer is blocked.
    pub(crate) fn natural_timer(&self) -> Timer {
        if self.end.is_closing() {
            return Timer::Linger;
        }
        if self.is_handshaking() {
            return Timer::Handshake;
        }
        match (&self.servers.leg, self.exchange.receiving) {
            (Some(leg), _) if leg.attempt.is_queued() => Timer::Queue,
            (Some(leg), _) if !leg.is_open() => Timer::Connect,
            (Some(_), _)
                if matches!(self.exchange.answering, ResponseState::Tunnel | ResponseState::Ended) =>
            {
                Timer::Tunnel
            }
            (Some(_), RequestState::Body(_)) => Timer::RequestBody,
            (Some(_), _) => Timer::Response,
            (None, RequestState::Skip(_) | RequestState::Prefix) => Timer::RequestBody,
            (None, RequestState::Greeting) => Timer::Handshake,
            (None, RequestState::Tunnel) => Timer::Tunnel,
            (None, _) if self.client.plain.is_empty() => Timer::KeepAlive,
            (None, _) => Timer::RequestHead,
        }
    }

    /// Releases ACKs, closes what is finished, and processes buffered input.
    pub(crate) fn finish_turn(&mut self, io: &mut Io<'_>) {
        if self.end.is_closed() {
            return;
        }
        if !self.end.is_closing()
            && self.takes_input()
            && self.servers.outlet.is_empty()
            && !(self.client.plain.is_empty() && self.client.raw.is_empty())
        {
            self.resume_client(io);
        }
        if self.tunnel_is_over() {
            match self.servers.outlet.is_empty() && io.effects.up.is_empty() {
                true if self.server_has_all() => {
                    self.note_client_point(); // a backup with the end knows that the server has everything
                    self.end_orderly(io, "");
                }
                true => {} // the server's acknowledgement calls again
                false => self.call_again(Timer::Tunnel, io),
            }
        }
        if self.end.is_closing() && self.client.ended && !self.end.is_closed() {
            match self.is_drained() && io.scratch.down.is_empty() {
                true => self.close(io, false),
                false if self.client.outlet.is_empty() => self.call_again(Timer::Linger, io),
                false => {}
            }
        }
    }

    /// Both directions of a tunnel have ended.
    pub(crate) fn tunnel_is_over(&self) -> bool {
        let ended =
            self.exchange.receiving == RequestState::Ended && self.exchange.answering == ResponseState::Ended;
        ended && self.servers.leg.is_some() && !self.end.is_closing()
    }

    /// With backups a leg is left only when its server has acknowledged everything: no node would send it again.
    pub(crate) fn server_has_all(&self) -> bool {
        self.remote.is_none() || self.server_has_up_to(|leg| leg.out_pos)
    }

    /// Known with backups: without them the worker reports no acknowledgements.
    pub(crate) fn server_lacks_only_close_notify(&self) -> bool {
        self.server_has_up_to(|leg| leg.tls.notify_at.unwrap_or(leg.out_pos))
    }

    fn server_has_up_to(&self, position: impl Fn(&ServerLeg) -> u64) -> bool {
        let (Some(remote), Some(leg)) = (&self.remote, &self.servers.leg) else { return false };
        let position = position(leg);
        position == 0 || remote.acks.has_server(leg.id, position)
    }

    /// All our output has left, and with backups also arrived: the connection is not needed any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.client.outlet.is_empty()
            && self.remote.as_ref().is_none_or(|remote| remote.is_drained(self.client.out_pos))
    }

    /// Nothing of this connection is left to do.
    pub(crate) fn close(&mut self, io: &mut Io<'_>, abort: bool) {
        self.end.close();
        if let Some(remote) = &mut self.remote {
            remote.release_all(io.effects);
        }
        io.effects.push(Effect::CloseClient { abort });
    }
}
