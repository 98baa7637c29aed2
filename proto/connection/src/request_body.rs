//! Client to server: plaintext becomes request heads, bodies and tunnel bytes.

use crate::client_leg::Place;
use crate::connection::Connection;
use crate::exchange::RequestState;
use crate::timers::Timer;
use crate::{Io, Piece, Source};
use evergate_http::Body;

/// Framing of a chunked body that is not compared with its content, in bytes.
const FRAMING_FREE: u64 = 65_536;

impl Connection {
    /// Uses as much of `data` as the state allows.
    pub(crate) fn consume(&mut self, io: &mut Io<'_>, data: &[u8], place: Place) -> usize {
        let mut at = 0;
        while at < data.len() {
            let rest = &data[at..at + self.step_up(data.len() - at)];
            let place = match place {
                Place::Input(offset) => Place::Input(offset + at),
                Place::Elsewhere => Place::Elsewhere,
            };
            let used = match self.exchange.receiving {
                RequestState::Greeting => self.take_greeting(io, rest),
                RequestState::Head | RequestState::Prefix => self.take_head(io, rest),
                RequestState::Body(body) => self.take_body(io, rest, place, body),
                RequestState::Skip(body) => self.skip_body(io, rest, body),
                RequestState::Tunnel => self.take_tunnel(io, rest, place),
                RequestState::Ended => rest.len(),
            };
            if used == 0 {
                break;
            }
            at += used;
            self.consumed_plain(used);
            self.note_run_end(data.len() - at);
        }
        at
    }

    /// How much of so many bytes is taken at once: while records of before are repeated, as much as makes a run whole.
    fn step_up(&self, left: usize) -> usize {
        let streams = matches!(self.exchange.receiving, RequestState::Body(_) | RequestState::Tunnel);
        let replay = self.servers.leg.as_ref().and_then(|leg| leg.tls.replay.as_ref()).filter(|_| streams);
        replay.and_then(|replay| replay.lacks()).map_or(left, |lacks| lacks.clamp(1, left))
    }

    /// Ends a repeated run: a position from which a restored connection can receive again, with `left` bytes of the
    /// input remaining. Without positions inside the run, a client with small segments after losses might wait forever:
    /// the stash of its stream is bounded.
    fn note_run_end(&mut self, left: usize) {
        let replay = self.servers.leg.as_ref().and_then(|leg| leg.tls.replay.as_ref());
        if self.end.is_closed() || self.remote.is_none() || replay.is_none_or(|replay| replay.holds()) {
            return;
        }
        let set = |connection: &mut Connection, left: usize| {
            connection.remote.iter_mut().for_each(|remote| remote.client_input.unread = left as u64);
        };
        set(self, left);
        self.note_client_point();
        set(self, 0);
    }

    fn take_body(&mut self, io: &mut Io<'_>, data: &[u8], place: Place, mut body: Body) -> usize {
        if !self.servers.leg.as_ref().is_some_and(|leg| leg.is_open()) {
            return 0;
        }
        let limits = &self.listener().limits;
        match body.advance_counted(data, &limits.http) {
            Ok((used, content)) => {
                let max = limits.body_bytes_max;
                self.exchange.receiving = RequestState::Body(body);
                let (contents, framing) = self.log_body(content, used - content);
                if max > 0 && contents > max {
                    self.refuse(io, 413, "body_too_long");
                    return data.len();
                }
                // A chunk of one byte takes six in all.
                if max > 0 && framing > FRAMING_FREE.saturating_add(contents.saturating_mul(8)) {
                    self.refuse(io, 400, "chunk_framing_too_long");
                    return data.len();
                }
                self.log_in(used);
                self.send_up(io, &data[..used], place);
                self.progress(Timer::RequestBody, used, io.now);
                if body.is_done() {
                    self.end_request(io);
                }
                used
            }
            Err(refusal) => {
                self.refuse(io, refusal.status, refusal.reason);
                data.len()
            }
        }
    }

    fn log_in(&mut self, bytes: usize) {
        if let Some(log) = &mut self.exchange.log {
            log.bytes_in += bytes as u64;
        }
    }

    /// How much content and how much framing there was so far.
    fn log_body(&mut self, content: usize, framing: usize) -> (u64, u64) {
        let Some(leg) = &mut self.servers.leg else { return (0, 0) };
        leg.request.body_bytes += content as u64;
        leg.request.framing_bytes += framing as u64;
        (leg.request.body_bytes, leg.request.framing_bytes)
    }

    fn skip_body(&mut self, io: &mut Io<'_>, data: &[u8], mut body: Body) -> usize {
        match body.advance(data, &self.listener().limits.http) {
            Ok(used) => {
                self.exchange.receiving = RequestState::Skip(body);
                self.log_in(used);
                self.progress(Timer::RequestBody, used, io.now);
                if body.is_done() {
                    self.end_request(io);
                }
                used
            }
            Err(_) => {
                self.end_orderly(io, "bad_body");
                data.len()
            }
        }
    }

    fn take_tunnel(&mut self, io: &mut Io<'_>, data: &[u8], place: Place) -> usize {
        if !self.servers.leg.as_ref().is_some_and(|leg| leg.is_open()) {
            return 0;
        }
        self.observe_client(data, io.now);
        self.log_in(data.len());
        self.record_up(data.len() as u64);
        self.send_up(io, data, place);
        self.progress(Timer::Tunnel, data.len(), io.now);
        data.len()
    }

    /// The request is received as a whole.
    pub(crate) fn end_request(&mut self, io: &mut Io<'_>) {
        let next = if self.client.ended { RequestState::Ended } else { RequestState::Head };
        self.exchange.end_request(next);
        let timer = self.natural_timer();
        self.arm(timer, io.now);
    }

    /// Passes bytes to the server leg: by reference where they lie in the input buffer, sealed on a TLS leg.
    pub(crate) fn send_up(&mut self, io: &mut Io<'_>, data: &[u8], place: Place) {
        let Some(leg) = &mut self.servers.leg else { return };
        leg.request.written |= !data.is_empty();
        leg.request.retain(data);
        if leg.is_tls() {
            return self.seal_up(io, data);
        }
        leg.out_pos += data.len() as u64;
        let piece = match place {
            Place::Input(offset) => Piece { source: Source::Input, range: offset..offset + data.len() },
            Place::Elsewhere => {
                let start = io.scratch.up.len();
                io.scratch.up.extend_from_slice(data);
                Piece { source: Source::Up, range: start..start + data.len() }
            }
        };
        io.effects.up.push(piece);
    }
}
