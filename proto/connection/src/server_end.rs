//! Ends of the server's stream: in order, by a break, and by bytes that are no response.

use crate::Io;
use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use crate::server_leg::Failure;
use crate::timers::Timer;
use evergate_http::Body;

/// Whether bytes begin with the header of a TLS record, as far as they go.
fn is_tls_record(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=23, 3, 0..=4, ..])
}

impl Connection {
    /// The server's FIN.
    pub fn handle_server_end(&mut self, io: &mut Io<'_>, leg_id: u32) {
        self.catch_up(io);
        if let Some(leg) = self.servers.leg.as_ref().filter(|leg| leg.id == leg_id) {
            // RFC 9112 section 9.8: an attacker on the path can send FIN. A close_notify would have ended the response
            // already.
            match self.exchange.answering == ResponseState::Body(Body::UntilClose) && leg.is_tls() {
                true => self.server_broke(io, Failure::Lost),
                false => self.end_of_server(io),
            }
        }
        self.note_server_point();
        self.finish_call(io);
    }

    /// The server's RST, or another end without order.
    pub fn handle_server_reset(&mut self, io: &mut Io<'_>, leg_id: u32) {
        self.catch_up(io);
        if self.servers.leg.as_ref().is_some_and(|leg| leg.id == leg_id) {
            self.server_broke(io, Failure::Lost);
        }
        self.finish_call(io);
    }

    /// A write to the server failed. Linux reports that once, and the next read then looks like an orderly end. A
    /// server that has ended its side sends nothing more: its client must not take its own bytes for delivered.
    pub fn handle_server_write_error(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        let unsent = self.is_unsent(io);
        self.servers.outlet.clear();
        self.pipes.held.1 = 0;
        if let Some(leg) = &mut self.servers.leg {
            leg.request.never_left = unsent;
            leg.request.in_doubt = true;
            if self.exchange.answering == ResponseState::Ended {
                match self.tunnel_is_over() && self.server_lacks_only_close_notify() {
                    true => self.end_orderly(io, ""),
                    false => self.end_abruptly(io, "upstream_lost"),
                }
                self.finish_call(io);
            }
        }
    }

    /// The server's stream has ended: by FIN, or by close_notify on a TLS leg.
    pub(crate) fn end_of_server(&mut self, io: &mut Io<'_>) {
        let Some(leg) = &mut self.servers.leg else { return };
        if leg.response.ended && self.exchange.answering == ResponseState::Ended {
            return self.pass_over_server();
        }
        leg.response.ended = true;
        self.explain_held();
        let Some(leg) = &mut self.servers.leg else { return };
        match self.exchange.answering {
            ResponseState::Tunnel if leg.request.in_doubt => self.end_abruptly(io, "upstream_lost"),
            ResponseState::Head => {
                if self.servers.leg.as_ref().is_some_and(|leg| !leg.request.in_doubt) {
                    // an orderly end before a whole head: nothing of it can have been sent
                    self.begin_deterministic(false);
                }
                match self.is_not_http() {
                    true => self.server_refused(io, "status_line_malformed"),
                    false => self.leg_failed(io, Failure::Lost),
                }
            }
            ResponseState::Body(Body::UntilClose)
                if self.servers.leg.as_ref().is_some_and(|leg| !leg.request.in_doubt) =>
            {
                self.exchange.last_response = true;
                self.replicate_server_end();
                self.end_response(io);
            }
            ResponseState::Body(_) => {
                self.note_server_failure(io);
                self.end_abruptly(io, "upstream_truncated")
            }
            ResponseState::Tunnel => {
                self.replicate_server_end();
                self.stash_server_end();
                self.exchange.answering = ResponseState::Ended;
                self.half_close(io);
                self.end_half_closed_soon(io);
            }
            ResponseState::Ended => {}
        }
    }

    /// A tunnel whose server has ended need not be kept as long as one that is quiet.
    fn end_half_closed_soon(&mut self, io: &mut Io<'_>) {
        if self.deadline.timer == Timer::Tunnel && !self.end.is_closed() {
            self.arm(Timer::Tunnel, io.now);
        }
    }

    /// The leg broke in the middle.
    pub(crate) fn server_broke(&mut self, io: &mut Io<'_>, failure: Failure) {
        if let Some(leg) = &mut self.servers.leg {
            leg.response.ended = true;
        }
        self.explain_held();
        match self.exchange.answering {
            ResponseState::Head
                if self.servers.leg.as_ref().is_some_and(|leg| leg.response.held.is_empty()) =>
            {
                return self.leg_failed(io, failure);
            }
            ResponseState::Head | ResponseState::Body(_) => self.note_server_failure(io),
            ResponseState::Tunnel | ResponseState::Ended => {}
        }
        match self.exchange.answering {
            ResponseState::Head if self.is_not_http() => self.give_up(io, 502, "status_line_malformed"),
            ResponseState::Head => self.give_up(io, 502, "upstream_lost"),
            ResponseState::Ended => self.server_is_gone(io),
            _ => self.end_abruptly(io, "upstream_lost"),
        }
    }

    /// A tunnel's server has ended its side, and now its connection is broken.
    fn server_is_gone(&mut self, io: &mut Io<'_>) {
        match self.exchange.receiving {
            // The client has ended too, and the server need not have waited for that.
            RequestState::Ended if self.server_lacks_only_close_notify() => self.end_orderly(io, ""),
            // The client would take its bytes for delivered.
            RequestState::Tunnel => self.end_abruptly(io, "upstream_lost"),
            _ => self.end_orderly(io, "upstream_lost"),
        }
    }

    /// The server's bytes have no single meaning.
    pub(crate) fn server_refused(&mut self, io: &mut Io<'_>, reason: &'static str) {
        if let Some(leg) = &mut self.servers.leg {
            leg.response.ended = true;
        }
        self.note_server_failure(io);
        self.give_up(io, 502, reason);
    }

    /// The log names the remedy where a server without TLS in its pool begins with a TLS record: mostly an alert.
    pub(crate) fn explain_tls_answer(&mut self, first: &[u8]) {
        if self.servers.leg.as_ref().is_some_and(|leg| !leg.is_tls()) && is_tls_record(first) {
            self.explain("the server answered with TLS: set [pools.tls]");
        }
    }

    /// [`explain_tls_answer`](Self::explain_tls_answer) for a head that ends before it is whole.
    fn explain_held(&mut self) {
        if self.exchange.answering == ResponseState::Head
            && self.servers.leg.as_ref().is_some_and(|leg| !leg.response.held.is_empty())
        {
            let held = self
                .servers
                .leg
                .as_mut()
                .map(|leg| std::mem::take(&mut leg.response.held))
                .unwrap_or_default();
            self.explain_tls_answer(&held);
            self.hold_head(held);
        }
    }

    /// Whether what came before a head was whole begins none.
    fn is_not_http(&self) -> bool {
        const BEGINS: &[u8] = b"HTTP/1.";
        let held = self.servers.leg.as_ref().map_or(&[][..], |leg| &leg.response.held);
        !held.is_empty() && !held.starts_with(BEGINS) && !BEGINS.starts_with(held)
    }
}
