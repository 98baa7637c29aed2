//! Deadlines, blocked outlets, and what follows when bytes have moved.

use crate::connection::{Connection, RequestState, ResponseState, Timer};
use crate::server_leg::ServerLeg;
use crate::write_stall::FIRST_CHECK_PART;
use crate::{Effect, Io};
use evergate_base::Micros;

impl Connection {
    /// Starts `timer`. While bytes wait for a peer, its deadline to take some stays; the other deadline follows from
    /// the state when no bytes wait any more.
    pub(crate) fn arm(&mut self, timer: Timer, now: Micros) {
        let waits = !matches!(timer, Timer::None | Timer::WriteStall | Timer::Linger) && !self.closing;
        if self.timer == Timer::WriteStall && waits && self.is_blocked() {
            return;
        }
        let span = self.span(timer, now);
        let part = if self.is_looked_at_soon(timer) { FIRST_CHECK_PART } else { 1 };
        if timer == Timer::RequestHead {
            self.began = now;
        }
        self.timer = timer;
        self.moved = 0;
        self.look = None;
        self.deadline = now + Micros(span.0 / part);
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
            Timer::Queue => self.leg.as_ref().map_or(Micros(0), |leg| leg.queue_time_left(now)),
            Timer::Connect => pool(&self.leg).map_or(timeouts.handshake, |p| self.snapshot.pools[p].connect),
            Timer::Response => {
                pool(&self.leg).map_or(timeouts.handshake, |p| self.snapshot.pools[p].response)
            }
            // Its server has ended, and keeps a place for a client that may be gone.
            Timer::Tunnel if self.answering == ResponseState::Ended => {
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
        if self.timer != timer {
            return self.arm(timer, now);
        }
        self.moved += bytes as u64;
        let floor = if timer == Timer::RequestBody { self.span(timer, now) } else { Micros(0) };
        let owed = self.listener().limits.rate_min.saturating_mul(floor.0) / 1_000_000;
        if self.moved >= owed {
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
        if self.timer != Timer::WriteStall {
            self.timer = timer;
            self.deadline = io.now;
        }
    }

    /// The timer of the state when no peer is blocked.
    pub(crate) fn natural_timer(&self) -> Timer {
        if self.closing {
            return Timer::Linger;
        }
        if self.is_handshaking() {
            return Timer::Handshake;
        }
        match (&self.leg, self.receiving) {
            (Some(leg), _) if leg.is_queued() => Timer::Queue,
            (Some(leg), _) if !leg.is_open() => Timer::Connect,
            (Some(_), _) if matches!(self.answering, ResponseState::Tunnel | ResponseState::Ended) => {
                Timer::Tunnel
            }
            (Some(_), RequestState::Body(_)) => Timer::RequestBody,
            (Some(_), _) => Timer::Response,
            (None, RequestState::Skip(_) | RequestState::Prefix) => Timer::RequestBody,
            (None, RequestState::Tunnel) => Timer::Tunnel,
            (None, _) if self.plain.is_empty() => Timer::KeepAlive,
            (None, _) => Timer::RequestHead,
        }
    }

    /// Releases ACKs, closes what is finished, and processes buffered input.
    pub(crate) fn finish_turn(&mut self, io: &mut Io<'_>) {
        if self.closed {
            return;
        }
        if !self.closing
            && self.takes_input()
            && self.up.is_empty()
            && !(self.plain.is_empty() && self.raw.is_empty())
        {
            self.resume_client(io);
        }
        if self.tunnel_is_over() {
            match self.up.is_empty() && io.effects.up.is_empty() {
                true if self.server_has_all() => {
                    self.note_client_point(); // a backup with the end knows that the server has everything
                    self.end_orderly(io, "");
                }
                true => {} // the server's acknowledgement calls again
                false => self.call_again(Timer::Tunnel, io),
            }
        }
        if self.closing && self.client_ended && !self.closed {
            match self.is_drained() && io.scratch.down.is_empty() {
                true => self.close(io, false),
                false if self.down.is_empty() => self.call_again(Timer::Linger, io),
                false => {}
            }
        }
    }

    /// Both directions of a tunnel have ended.
    pub(crate) fn tunnel_is_over(&self) -> bool {
        let ended = self.receiving == RequestState::Ended && self.answering == ResponseState::Ended;
        ended && self.leg.is_some() && !self.closing
    }

    /// With backups a leg is left only when its server has acknowledged everything: no node would send it again.
    pub(crate) fn server_has_all(&self) -> bool {
        self.remote.is_none() || self.server_has_up_to(|leg| leg.out_pos)
    }

    /// Known with backups: without them the worker reports no acknowledgements.
    pub(crate) fn server_lacks_only_close_notify(&self) -> bool {
        self.server_has_up_to(|leg| leg.notify_at.unwrap_or(leg.out_pos))
    }

    fn server_has_up_to(&self, position: impl Fn(&ServerLeg) -> u64) -> bool {
        let (Some(remote), Some(leg)) = (&self.remote, &self.leg) else { return false };
        let position = position(leg);
        position == 0 || (remote.server_acked.0 == leg.id && remote.server_acked.1 >= position)
    }

    /// All our output has left, and with backups also arrived: the connection is not needed any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.down.is_empty() && self.remote.as_ref().is_none_or(|remote| remote.is_drained(self.out_pos))
    }

    /// Nothing of this connection is left to do.
    pub(crate) fn close(&mut self, io: &mut Io<'_>, abort: bool) {
        self.closed = true;
        if let Some(remote) = &mut self.remote {
            remote.release_all(io.effects);
        }
        io.effects.push(Effect::CloseClient { abort });
    }
}
