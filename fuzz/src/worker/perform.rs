//! Execution of a connection's output: bytes first, then effects, in order.

use evergate_base::Micros;
use evergate_connection::{Connection, Effect, Failure, ServerHint, Source};
use evergate_replication::Side;
use evergate_tls::Records;

use super::{Answer, Dialing, Socket, Upstream, World};
use crate::fixture;

/// Limit of pending bytes for one peer: a batch of 16 records with their overhead, and the same again for heads,
/// tickets, alerts and generated responses.
const WAITING_MAX: usize = 2 * 270_000;

/// Time for which requests wait for a server below its limit.
const QUEUE_TIMEOUT: Micros = Micros::from_ms(500);

impl World {
    pub(super) fn perform(&mut self) {
        self.replicate();
        self.send_down();
        self.send_up();
        for evergate_connection::Answered { status, .. } in self.effects.answered.drain(..) {
            assert!(status == 0 || (100..600).contains(&status), "status {status}");
        }
        for effect in std::mem::take(&mut self.effects.list) {
            self.carry_out(effect);
        }
        self.send_fins();
        let waiting = (self.connection.down().len(), self.connection.up().len());
        assert!(waiting.0 <= WAITING_MAX && waiting.1 <= WAITING_MAX, "{waiting:?} bytes wait");
        if self.acknowledges {
            self.acknowledge();
        }
    }

    fn replicate(&mut self) {
        let mut entries = self.connection.drain_entries();
        let Some(backup) = &mut self.backup else { return assert!(entries.next().is_none()) };
        for entry in entries {
            self.entries.push(entry.clone());
            backup.apply(entry);
        }
    }

    fn send_down(&mut self) {
        if self.scratch.down.is_empty() {
            return;
        }
        let after = self.connection.newest_decision();
        let free = after <= self.connection.acknowledged() && self.connection.down().is_empty();
        let (first, second) = self.scratch.down.ready();
        let ready = [first, second].concat();
        let written = if free { ready.len().min(self.client.window) } else { 0 };
        self.client.take(&ready[..written]);
        if written < ready.len() {
            if written == 0 && second.is_empty() {
                // The worker gives the buffer away with large rests; this one gives away every whole buffer.
                let (buffer, range) = self.scratch.down.take_memory(Vec::new());
                self.connection.down().push_buffer(buffer, range, after);
            } else {
                self.connection.down().push(ready[written..].to_vec(), after);
            }
            self.connection.handle_blocked(self.now);
        }
        self.scratch.down.clear();
    }

    fn send_up(&mut self) {
        let after = self.connection.newest_decision();
        let mut free = after <= self.connection.acknowledged() && self.connection.up().is_empty();
        let mut blocked = false;
        for piece in self.effects.up.drain(..) {
            let bytes = match piece.source {
                Source::Input => &self.scratch.input[piece.range],
                Source::Up => &self.scratch.up[piece.range],
            };
            let mut written = 0;
            if let Some(upstream) = self.upstream.as_mut().filter(|_| free) {
                written = bytes.len().min(upstream.socket.window);
                upstream.socket.take(&bytes[..written]);
            }
            if written < bytes.len() {
                (free, blocked) = (false, true);
                self.connection.up().push(bytes[written..].to_vec(), after);
            }
        }
        if blocked {
            self.connection.handle_blocked(self.now);
        }
        self.scratch.up.clear();
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Dial { leg, bound: Some(server), .. } => self.dial_bound(leg, server),
            Effect::Dial { leg, pool, hint, tried, bound: None, .. } => self.dial(leg, pool, hint, &tried),
            Effect::Retain { leg } => {
                assert_eq!(self.connection.bound_leg(), Some(leg));
                assert!(self.upstream.as_ref().is_some_and(|upstream| upstream.leg == leg));
            }
            Effect::Release { leg, clean, spent, .. } => {
                let shared = clean && !spent;
                assert!(!shared || self.connection.bound_leg() != Some(leg), "a bound leg goes to others");
                self.release(leg);
            }
            Effect::ShutdownServer { leg } => {
                if let Some(upstream) = self.upstream.as_mut().filter(|upstream| upstream.leg == leg) {
                    upstream.socket.fin_waits = true;
                }
            }
            Effect::ShutdownClient => self.client.fin_waits = true,
            Effect::CloseClient { abort } => {
                assert!(self.connection.is_closed());
                self.closed = Some(abort);
                if let Some(upstream) = self.upstream.take() {
                    self.sent_up.push(upstream.socket.written);
                }
            }
            Effect::Matched(_) | Effect::ResetServer { .. } | Effect::ServerFailed { .. } => {}
            Effect::KeepSession(_) | Effect::WithdrawSession(_) | Effect::Sealed => {}
            Effect::Logged(log) => self.logs.push(log),
            Effect::Acknowledge { side: Side::Client, position } => {
                let read = self.client.read;
                assert!(position <= read || self.restored, "{position} of {read} client bytes acknowledged");
            }
            Effect::Acknowledge { .. } => {}
        }
    }

    fn dial(&mut self, leg: u32, pool: u32, hint: ServerHint, tried: &[u32]) {
        assert!(self.dialing.is_none() && self.upstream.is_none(), "dialled twice");
        assert!((pool as usize) < self.connection.snapshot().pools.len(), "pool {pool}");
        let server = match hint {
            ServerHint::Server(server) if server < fixture::SERVERS && !tried.contains(&server) => server,
            _ => leg % fixture::SERVERS,
        };
        match self.next_dial {
            Answer::Open => self.open(leg, server, None),
            Answer::Wait => {
                self.with(|connection, io| connection.handle_leg_connecting(io.now, leg, server));
                self.dialing = Some(Dialing { leg, server });
            }
            Answer::Queue => {
                let until = self.now + QUEUE_TIMEOUT;
                self.with(|connection, io| connection.handle_leg_queued(io.now, leg, until));
                self.dialing = Some(Dialing { leg, server });
            }
            Answer::Refused => {
                self.with(|connection, io| connection.handle_leg_connecting(io.now, leg, server));
                self.call(|connection, io| connection.handle_leg_failed(io, leg, Failure::Refused));
            }
            Answer::Unavailable => {
                self.call(|connection, io| connection.handle_unavailable(io, leg, "pool_down"));
            }
        }
    }

    /// The idle bound leg carries the request, in place of an idle connection.
    fn dial_bound(&mut self, leg: u32, server: u32) {
        match self.upstream.as_mut().filter(|_| self.next_dial == Answer::Open) {
            Some(upstream) => {
                upstream.leg = leg;
                self.call(|connection, io| connection.handle_leg_open(io, leg, server, None));
            }
            None => self.call(Connection::handle_bound_lost),
        }
    }

    pub(super) fn open(&mut self, leg: u32, server: u32, records: Option<Box<Records>>) {
        let socket = Socket { window: self.server_window, ..Socket::default() };
        self.upstream = Some(Upstream { leg, socket });
        self.call(|connection, io| connection.handle_leg_open(io, leg, server, records));
    }

    fn release(&mut self, leg: u32) {
        if self.dialing.is_some_and(|dialing| dialing.leg == leg) {
            self.dialing = None;
        }
        if let Some(upstream) = self.upstream.take_if(|upstream| upstream.leg == leg) {
            self.sent_up.push(upstream.socket.written);
        }
    }

    fn send_fins(&mut self) {
        if self.client.fin_waits && self.connection.down().is_empty() {
            (self.client.fin_waits, self.client.fin) = (false, true);
            if self.connection.closes_at_once() {
                self.closed = Some(false); // like a worker whose client has ended
            }
        }
        let all_sent = self.connection.up().is_empty();
        if let Some(upstream) =
            self.upstream.as_mut().filter(|upstream| upstream.socket.fin_waits && all_sent)
        {
            (upstream.socket.fin_waits, upstream.socket.fin) = (false, true);
        }
    }
}
