//! Bytes that the worker moves inside the kernel: the connection only counts them.

use crate::Io;
use crate::connection::{Answering, ClientTls, Connection, Receiving};
use evergate_base::Micros;
use evergate_http::Body;

impl Connection {
    /// How many body bytes the worker may splice from the server to the client without showing them, and whether the
    /// stream is opaque until its end. Only plain legs without backups, with nothing waiting.
    pub fn splice_down(&self) -> u64 {
        let leg_ready =
            self.leg.as_ref().is_some_and(|leg| leg.is_open() && !leg.is_tls() && leg.held.is_empty());
        let plain = matches!(self.tls, ClientTls::Plain) && self.remote.is_none();
        if !leg_ready || !plain || !self.down.is_empty() || self.closing {
            return 0;
        }
        match self.answering {
            Answering::Body(Body::Length { left }) => left,
            Answering::Body(Body::UntilClose) | Answering::Tunnel => u64::MAX,
            _ => 0,
        }
    }

    /// The same from the client to the server.
    pub fn splice_up(&self) -> u64 {
        let leg_ready = self.leg.as_ref().is_some_and(|leg| leg.is_open() && !leg.is_tls());
        let plain = matches!(self.tls, ClientTls::Plain) && self.remote.is_none();
        let waiting = !self.up.is_empty() || !self.plain.is_empty() || !self.raw.is_empty();
        if !leg_ready || !plain || waiting || self.closing {
            return 0;
        }
        match self.receiving {
            Receiving::Tunnel => u64::MAX,
            _ => 0,
        }
    }

    /// `bytes` were spliced from the server to the client, and `held` have come only into the pipe: it takes no more.
    pub fn handle_spliced_down(&mut self, io: &mut Io<'_>, bytes: u64, held: u64) {
        self.piped.0 = held;
        self.note_spliced(io.now, held);
        if bytes == 0 {
            return;
        }
        self.out_pos += bytes;
        self.plain_pos += bytes;
        if let Some(leg) = &mut self.leg {
            leg.in_pos += bytes;
            leg.answered |= bytes > 0;
        }
        self.count_down(io, bytes as usize);
        let timer = self.natural_timer();
        self.progress(timer, bytes as usize, io.now);
        if let Answering::Body(Body::Length { left }) = &mut self.answering {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.end_response(io);
            }
        }
        self.finish_call(io);
    }

    fn note_spliced(&mut self, now: Micros, held: u64) {
        match held {
            0 => self.note_taken(now),
            _ => self.handle_blocked(now),
        }
    }

    /// `bytes` were spliced from the client to the server, and `held` have come only into the pipe.
    pub fn handle_spliced_up(&mut self, io: &mut Io<'_>, bytes: u64, held: u64) {
        self.piped.1 = held;
        self.note_spliced(io.now, held);
        if bytes == 0 {
            return;
        }
        self.in_pos += bytes;
        if let Some(leg) = &mut self.leg {
            leg.out_pos += bytes;
            leg.written |= bytes > 0;
        }
        if let Some(log) = &mut self.log {
            log.bytes_in += bytes;
        }
        let timer = self.natural_timer();
        self.progress(timer, bytes as usize, io.now);
    }
}
