//! Bytes that the worker moves inside the kernel: the connection only counts them.
//!
//! A spliced message costs at least one system call more than a copied one, and saves two copies of its bytes. Both
//! cost the same at about 16 KB a message. A tunnel therefore begins with copies; the size of each transfer changes its
//! mode.

use crate::Io;
use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use evergate_base::Micros;
use evergate_http::Body;

/// A transfer of so many bytes is bulk: the next one is spliced.
const BULK_MIN: u64 = 16_384;
/// A bulk transfer of fewer bytes is small ...
const SMALL_BELOW: u64 = 8_192;
/// ... and after so many small ones in a row, bytes are copied again.
const SMALL_MAX: u8 = 2;

/// Mode of one direction of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TunnelMode {
    /// Small messages: the worker copies them through its buffer.
    #[default]
    Messages,
    /// Bulk data: the worker splices it where it can, and else reads as much as its buffer takes.
    Bulk {
        /// Small transfers in a row so far.
        small: u8,
    },
}

impl TunnelMode {
    /// Records one transfer from the source, in bytes.
    pub(crate) fn record(&mut self, bytes: u64) {
        *self = match *self {
            _ if bytes >= BULK_MIN => TunnelMode::Bulk { small: 0 },
            TunnelMode::Bulk { small } if bytes < SMALL_BELOW => match small + 1 {
                SMALL_MAX.. => TunnelMode::Messages,
                small => TunnelMode::Bulk { small },
            },
            TunnelMode::Bulk { .. } => TunnelMode::Bulk { small: 0 },
            TunnelMode::Messages => TunnelMode::Messages,
        };
    }

    pub(crate) fn is_bulk(self) -> bool {
        matches!(self, TunnelMode::Bulk { .. })
    }
}

/// Modes of a tunnel's two directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TunnelModes {
    /// Server to client.
    pub(crate) down: TunnelMode,
    /// Client to server.
    pub(crate) up: TunnelMode,
}

/// The worker's pipes of one connection, as far as the connection knows them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pipes {
    /// Bytes inside them: for the client, and for the server.
    pub(crate) held: (u64, u64),
    /// How a tunnel's bytes are moved.
    pub(crate) modes: TunnelModes,
}

impl Connection {
    /// How many bytes the worker may splice from the server to the client without showing them; `u64::MAX` of a
    /// stream that is opaque until its end. Only plain legs without backups, with nothing waiting. A tunnel in the
    /// mode of small messages has none, unless a pipe holds bytes: they precede all bytes in the socket.
    pub fn splice_down(&self) -> u64 {
        let leg_ready = self
            .servers
            .leg
            .as_ref()
            .is_some_and(|leg| leg.is_open() && !leg.is_tls() && leg.response.held.is_empty());
        let plain = matches!(self.client.tls, ClientTls::Plain) && self.remote.is_none();
        if !leg_ready
            || !plain
            || !self.client.outlet.is_empty()
            || self.end.is_closing()
            || self.is_observed()
        {
            return 0;
        }
        match self.exchange.answering {
            ResponseState::Body(Body::Length { left }) => left,
            ResponseState::Body(Body::UntilClose) => u64::MAX,
            ResponseState::Tunnel if self.pipes.modes.down.is_bulk() || self.pipes.held.0 > 0 => u64::MAX,
            _ => 0,
        }
    }

    /// The same from the client to the server.
    pub fn splice_up(&self) -> u64 {
        let leg_ready = self.servers.leg.as_ref().is_some_and(|leg| leg.is_open() && !leg.is_tls());
        let plain = matches!(self.client.tls, ClientTls::Plain) && self.remote.is_none();
        let waiting =
            !self.servers.outlet.is_empty() || !self.client.plain.is_empty() || !self.client.raw.is_empty();
        if !leg_ready || !plain || waiting || self.end.is_closing() || self.is_observed() {
            return 0;
        }
        match self.exchange.receiving {
            RequestState::Tunnel if self.pipes.modes.up.is_bulk() || self.pipes.held.1 > 0 => u64::MAX,
            _ => 0,
        }
    }

    /// `bytes` were spliced from the server to the client, and `held` have come only into the pipe: it takes no more.
    pub fn handle_spliced_down(&mut self, io: &mut Io<'_>, bytes: u64, held: u64) {
        let filled = (bytes + held).saturating_sub(self.pipes.held.0);
        self.pipes.held.0 = held;
        self.record_down(filled);
        self.note_spliced(io.now, held);
        if bytes == 0 {
            return;
        }
        self.client.out_pos += bytes;
        self.client.plain_pos += bytes;
        if let Some(leg) = &mut self.servers.leg {
            leg.in_pos += bytes;
            leg.response.answered |= bytes > 0;
        }
        self.count_down(io, bytes as usize);
        let timer = self.natural_timer();
        self.progress(timer, bytes as usize, io.now);
        if let ResponseState::Body(Body::Length { left }) = &mut self.exchange.answering {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.end_response(io);
            }
        }
        self.finish_call(io);
    }

    fn note_spliced(&mut self, now: Micros, held: u64) {
        match held {
            0 => self.record_progress(now),
            _ => self.handle_blocked(now),
        }
    }

    /// `bytes` were spliced from the client to the server, and `held` have come only into the pipe.
    pub fn handle_spliced_up(&mut self, io: &mut Io<'_>, bytes: u64, held: u64) {
        let filled = (bytes + held).saturating_sub(self.pipes.held.1);
        self.pipes.held.1 = held;
        self.record_up(filled);
        self.note_spliced(io.now, held);
        if bytes == 0 {
            return;
        }
        self.client.in_pos += bytes;
        if let Some(leg) = &mut self.servers.leg {
            leg.out_pos += bytes;
            leg.request.written |= bytes > 0;
        }
        if let Some(log) = &mut self.exchange.log {
            log.bytes_in += bytes;
        }
        let timer = self.natural_timer();
        self.progress(timer, bytes as usize, io.now);
    }

    /// Records what one transfer took from the server; a transfer that only emptied the pipe took nothing.
    pub(crate) fn record_down(&mut self, bytes: u64) {
        if self.exchange.answering == ResponseState::Tunnel && bytes > 0 {
            self.pipes.modes.down.record(bytes);
        }
    }

    /// Records what one transfer took from the client.
    pub(crate) fn record_up(&mut self, bytes: u64) {
        if self.exchange.receiving == RequestState::Tunnel && bytes > 0 {
            self.pipes.modes.up.record(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_after(transfers: &[u64]) -> TunnelMode {
        let mut mode = TunnelMode::default();
        transfers.iter().for_each(|bytes| mode.record(*bytes));
        mode
    }

    #[test]
    fn tunnel_mode_follows_the_size_of_transfers() {
        let bulk = TunnelMode::Bulk { small: 0 };
        let table: [(&[u64], TunnelMode); 9] = [
            (&[], TunnelMode::Messages),
            (&[125, 4_096, 16_383], TunnelMode::Messages),
            (&[16_384], bulk),
            (&[125, 1 << 20], bulk),
            (&[16_384, 8_191], TunnelMode::Bulk { small: 1 }),
            (&[16_384, 8_191, 8_192], bulk),
            (&[16_384, 1, 1], TunnelMode::Messages),
            (&[16_384, 1, 8_192, 1], TunnelMode::Bulk { small: 1 }),
            (&[16_384, 1, 1, 16_383], TunnelMode::Messages),
        ];
        for (transfers, expected) in table {
            assert_eq!(mode_after(transfers), expected, "{transfers:?}");
        }
    }
}
