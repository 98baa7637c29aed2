//! Ends: answers of our own, orderly and abrupt closes, timeouts, and what follows every call.

use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use crate::framing::tag_of;
use crate::request::CONTINUE;
use crate::routing;
use crate::server_leg::Failure;
use crate::timers::Timer;
use crate::{Effect, Io};
use evergate_http::After;
use evergate_replication::RecordKind;
use evergate_tls::{HandshakeError, alert};
use std::fmt::Display;

/// Whether an alert of ours ends our side: all but the warning that a client of TLS 1.2 may not renegotiate.
pub(crate) fn ends(description: u8) -> bool {
    description != alert::NO_RENEGOTIATION
}

/// How often waiting input is looked at again within one call; more waits for the next.
const ROUNDS_MAX: usize = 64;

/// Longest detail of a failed handshake in the access log, in bytes.
const DETAIL_BYTES_MAX: usize = 200;

/// The reason of an end because of a PROXY protocol header.
pub(crate) const PROXY_HEADER: &str = "proxy_protocol_unexpected";

/// How far our end of the client's stream has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// More may be sent.
    #[default]
    Open,
    /// A tunnel's server has ended: the client has our end, and may still send.
    HalfClosed,
    /// The connection has ended in order: the client's input is dropped until its end.
    Closing,
    /// Nothing of the connection is left to do.
    Closed {
        /// It was closing before.
        in_order: bool,
    },
}

impl End {
    /// End of an imported connection, which is not closed.
    pub(crate) fn of(closing: bool, sent: bool) -> End {
        match (closing, sent) {
            (true, _) => End::Closing,
            (false, true) => End::HalfClosed,
            (false, false) => End::Open,
        }
    }

    /// Whether the connection has ended in order.
    pub(crate) fn is_closing(self) -> bool {
        matches!(self, End::Closing | End::Closed { in_order: true })
    }

    /// Whether nothing of the connection is left to do.
    pub(crate) fn is_closed(self) -> bool {
        matches!(self, End::Closed { .. })
    }

    /// Whether nothing more is sent to the client.
    pub(crate) fn is_sent(self) -> bool {
        self != End::Open
    }

    /// A tunnel's server has ended. Returns whether the end is yet to be sent.
    fn half_close(&mut self) -> bool {
        let open = *self == End::Open;
        if open {
            *self = End::HalfClosed;
        }
        open
    }

    /// The connection ends in order. Returns whether the end is yet to be sent.
    fn begin(&mut self) -> bool {
        let open = *self == End::Open;
        *self = if self.is_closed() { End::Closed { in_order: true } } else { End::Closing };
        open
    }

    /// Nothing is left to do.
    pub(crate) fn close(&mut self) {
        *self = End::Closed { in_order: self.is_closing() };
    }
}

impl Connection {
    /// Answers with an error. The connection stays open when its request was received whole and was meant for a server:
    /// a failing server then costs clients no handshakes (with backups: when the request has no body). Else it closes.
    /// When part of a response has left already, the connection breaks.
    pub(crate) fn refuse(&mut self, io: &mut Io<'_>, status: u16, reason: &'static str) {
        let unread = self.exchange.log.is_none() && self.servers.leg.is_none();
        let to_head = unread && self.client.plain.starts_with(b"HEAD ");
        if self.exchange.log.is_none() {
            self.begin_log(io, None);
            let reported = std::mem::take(&mut self.client.plain);
            self.log_line_of(&reported);
            self.client.plain = reported;
        }
        self.refuse_to(io, (status, reason), to_head);
    }

    /// The same for a request of which nothing is known but how it begins.
    pub(crate) fn refuse_line(&mut self, io: &mut Io<'_>, why: (u16, &'static str), reported: &[u8]) {
        self.begin_log(io, None);
        self.log_line_of(reported);
        self.refuse_to(io, why, reported.starts_with(b"HEAD "));
    }

    fn refuse_to(&mut self, io: &mut Io<'_>, (status, reason): (u16, &'static str), to_head: bool) {
        let mut bytes = Vec::new();
        let Some(leg) = &self.servers.leg else {
            evergate_http::error_response(&mut bytes, status, reason, After::Close, to_head, &[]);
            return self.generate(io, status, reason, &bytes, true);
        };
        // With backups all nodes must write the same bytes, and another node does not know how much of the body was
        // here.
        let (flags, alone) = (leg.route.flags, self.remote.is_none());
        let unread = match self.exchange.receiving {
            RequestState::Body(body) if alone && self.is_whole_in(body, &self.client.plain) => Some(body),
            _ => None,
        };
        let whole = if alone { unread.is_some() || self.exchange.is_request_whole() } else { flags.bodiless };
        let bound_to_end = flags.close || !whole;
        let ends = bound_to_end || self.exchange.last_response || self.is_last(io, leg.binding);
        let after = match (if alone { ends } else { bound_to_end }, flags.http10) {
            (true, _) => After::Close,
            (false, true) => After::StayHttp10,
            (false, false) => After::Stay,
        };
        let (fields, _) = routing::response_edits(&self.snapshot.rules, leg.rules.iter().copied());
        evergate_http::error_response(&mut bytes, status, reason, after, flags.head, &fields);
        self.generate(io, status, reason, &bytes, ends);
        if let Some(body) = unread.filter(|_| !self.end.is_closing() && !self.end.is_closed()) {
            self.exchange.receiving = RequestState::Skip(body);
            let timer = self.natural_timer();
            self.arm(timer, io.now);
        }
    }

    /// Sends a response of our own, if nothing of this response can have left, and no other answer of ours is still on
    /// its way: backups keep one.
    pub(crate) fn generate(
        &mut self,
        io: &mut Io<'_>,
        status: u16,
        reason: &'static str,
        bytes: &[u8],
        close: bool,
    ) {
        // Another node knows no interim responses, and would write this without them.
        let spoken = self
            .servers
            .leg
            .as_ref()
            .is_some_and(|leg| leg.response.answered && !(leg.response.interim && self.remote.is_none()));
        let begun = self.exchange.answering != ResponseState::Head || spoken;
        let out_pos = self.client.out_pos;
        let decided = self
            .remote
            .as_ref()
            .is_some_and(|remote| remote.replay.has_begun() || remote.acks.has_sent(out_pos));
        if begun || decided || self.end.is_closing() || !self.may_ask() {
            return self.end_abruptly(io, reason);
        }
        self.exchange.status = (status, reason);
        self.exchange.status_pool = self.servers.leg.as_ref().map(|leg| leg.pool);
        if let Some(log) = &mut self.exchange.log {
            log.status = status;
            log.reason = reason;
        }
        self.release_leg(io, false);
        let continued = std::mem::take(&mut self.exchange.continued);
        if let Some(remote) = &mut self.remote {
            let mut whole = if continued { CONTINUE.to_vec() } else { Vec::new() };
            whole.extend_from_slice(bytes);
            remote.push_generated(self.exchange.number(), whole, close);
            remote.forget_legs();
        }
        self.emit_generated(io, bytes, close);
    }

    pub(crate) fn emit_generated(&mut self, io: &mut Io<'_>, bytes: &[u8], close: bool) {
        self.count_down(io, bytes.len());
        self.frame(io, bytes);
        self.exchange.end_response();
        self.log_request(io, "");
        self.note_message_end();
        if close {
            self.end_orderly(io, "");
        } else if !self.end.is_closed() {
            self.arm(Timer::KeepAlive, io.now);
        }
    }

    /// Ends our side in order: close_notify where there is TLS, then FIN; then waits for the client's end.
    pub(crate) fn end_orderly(&mut self, io: &mut Io<'_>, reason: &'static str) {
        if self.end.is_closing() || self.end.is_closed() {
            return;
        }
        self.end_after_replay(io, alert::CLOSE_NOTIFY, reason);
    }

    /// Ends our side as the next thing after what is decided already.
    pub(crate) fn end_after_replay(&mut self, io: &mut Io<'_>, description: u8, reason: &'static str) {
        match self.remote.as_mut().filter(|remote| remote.replay.is_repeating()) {
            Some(remote) => remote.replay.end_after_replay = Some((description, reason)),
            None => self.end_with_alert(io, description, reason),
        }
    }

    /// Ends our side with this alert as the last record.
    pub(crate) fn end_with_alert(&mut self, io: &mut Io<'_>, description: u8, reason: &'static str) {
        if !self.end.is_sent() {
            self.send_alert(io, description);
        }
        self.end_after_alert(io, reason);
    }

    pub(crate) fn send_alert(&mut self, io: &mut Io<'_>, description: u8) {
        if ends(description) && description != alert::CLOSE_NOTIFY {
            self.withdraw_session(io);
        }
        let ClientTls::Open(records) = &mut self.client.tls else { return };
        let first = records.tx();
        let mut out = Vec::new();
        records.seal_alert(description, &mut out);
        if out.is_empty() {
            return; // the key is used up
        }
        if let Some(remote) = &mut self.remote {
            remote.note_sealed(first, RecordKind::Alert(description), 2, tag_of(&out));
        }
        self.send_sealed(io, &out);
    }

    /// Whether decided records wait for the bytes that they were made of.
    fn is_repeating(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.replay.is_repeating())
    }

    fn is_stuck(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.replay.is_stuck())
    }

    /// The tunnel's server has ended: the client receives the end, and may still send.
    pub(crate) fn half_close(&mut self, io: &mut Io<'_>) {
        if self.is_repeating() {
            // More was sent the first time: an alert now would reuse a nonce.
            return self.end_abruptly(io, "response_replay_mismatch");
        }
        if !self.end.is_sent() {
            self.send_alert(io, alert::CLOSE_NOTIFY);
            self.shutdown_client(io);
        }
    }

    /// FIN to the client, once.
    pub(crate) fn shutdown_client(&mut self, io: &mut Io<'_>) {
        if self.end.half_close() {
            self.when_replicated(io, Effect::ShutdownClient);
        }
    }

    /// FIN to the server: a tunnel's client has ended. Also called when a leg opens too late for that moment.
    pub(crate) fn shutdown_server(&mut self, io: &mut Io<'_>) {
        if !self.servers.leg.as_ref().is_some_and(|leg| leg.is_open()) {
            return;
        }
        self.seal_end_up(io);
        if let Some(leg) = self.leg_id() {
            self.when_replicated(io, Effect::ShutdownServer { leg });
        }
    }

    /// An effect that the outside sees leaves when all backups hold what it depends on.
    fn when_replicated(&mut self, io: &mut Io<'_>, effect: Effect) {
        match &mut self.remote {
            Some(remote) => remote.defer(effect),
            None => io.effects.push(effect),
        }
    }

    /// All our output is written: FIN follows, input is dropped until the client ends or the time is up.
    pub(crate) fn end_after_alert(&mut self, io: &mut Io<'_>, reason: &'static str) {
        self.forget_deterministic();
        self.replicate_close(false);
        if self.is_handshaking() {
            self.begin_log_of_end(io, reason);
        }
        self.log_request(io, reason);
        self.release_leg(io, false);
        self.release_bound(io);
        let waiting = !self.client.plain.is_empty() || !self.client.raw.is_empty();
        self.client.done &=
            self.exchange.receiving == RequestState::Head && !waiting && !self.client.ignores_input;
        let unsent = self.end.begin();
        self.exchange.receiving = RequestState::Ended;
        self.exchange.answering = ResponseState::Ended;
        self.forget_plain();
        if unsent {
            self.when_replicated(io, Effect::ShutdownClient);
        }
        self.deadline.began = io.now;
        self.arm(Timer::Linger, io.now);
    }

    /// The client keeps sending what no server wants. Closing now would send RST, which could destroy an answer that
    /// the client has not read. Bound: as long as a peer may take nothing.
    pub(crate) fn linger_on(&mut self, io: &Io<'_>) {
        let is_early = io.now.since(self.deadline.began) < self.snapshot.timeouts.write_stall;
        if self.deadline.timer == Timer::Linger && is_early && !self.end.is_closed() {
            self.arm(Timer::Linger, io.now);
        }
    }

    /// Whether the client's end need not be awaited once all output has left: the client asked for the end, and only
    /// its own end is still expected. When that end is a TLS alert, a reset answers it, and the client has read
    /// everything. A replicated connection waits.
    pub fn closes_at_once(&self) -> bool {
        self.end.is_closing() && self.client.done && self.remote.is_none()
    }

    /// An end that no request has a line for gets one of its own.
    pub(crate) fn begin_log_of_end(&mut self, io: &mut Io<'_>, reason: &str) {
        if self.exchange.log.is_none()
            && !reason.is_empty()
            && self.exchange.order().is_eq()
            && !self.end.is_closing()
        {
            self.begin_log(io, None);
        }
    }

    /// Detail of the failure for the access log.
    pub(crate) fn explain(&mut self, what: impl Display) {
        if let Some(log) = &mut self.exchange.log {
            log.detail = printable(&what.to_string());
        }
    }

    /// The client's handshake failed: sends the alert.
    pub(crate) fn end_handshake(&mut self, io: &mut Io<'_>, error: &HandshakeError) {
        const REASON: &str = "tls_handshake";
        self.begin_log_of_end(io, REASON);
        let name = match &self.client.tls {
            ClientTls::Shaking(handshake) => handshake.server_name(),
            _ => None,
        };
        let asked = name.map_or(String::new(), |name| format!("; the client asked for \"{name}\""));
        self.explain(format_args!("{error}{asked}"));
        self.end_after_alert(io, REASON);
    }

    /// The client's first bytes are no ClientHello: an alert in clear, then the end. Backups keep it as an answer.
    pub(crate) fn refuse_hello(&mut self, io: &mut Io<'_>, error: &HandshakeError) {
        let reason = match error {
            HandshakeError::NotTls => "not_tls",
            HandshakeError::ProxyHeader => PROXY_HEADER,
            _ => "tls_handshake",
        };
        let Some(description) = error.alert() else { return self.end_abruptly(io, reason) };
        self.client.tls = ClientTls::Plain;
        self.exchange.receiving = RequestState::Ended;
        self.begin_log_of_end(io, reason);
        self.explain(error);
        self.exchange.status = (0, reason);
        let bytes = alert::clear_alert(description);
        if let Some(remote) = &mut self.remote {
            remote.push_generated(self.exchange.number(), bytes.to_vec(), true);
        }
        self.emit_generated(io, &bytes, true);
    }

    fn forget_plain(&mut self) {
        let plain = std::mem::take(&mut self.client.plain);
        if let Some(remote) = &mut self.remote {
            remote.client_input.consumed(plain.len() as u64);
        }
    }

    fn replicate_close(&mut self, abort: bool) {
        let plain = self.client.plain_pos;
        if let Some(remote) = self.remote.as_mut().filter(|remote| abort || !remote.closed) {
            remote.push_close(plain, abort);
        }
    }

    /// Breaks the connection: RST, nothing more is sent. In a tunnel that goes for its server too.
    pub(crate) fn end_abruptly(&mut self, io: &mut Io<'_>, reason: &'static str) {
        if self.end.is_closed() {
            return;
        }
        self.replicate_close(true);
        self.begin_log_of_end(io, reason);
        self.log_request(io, reason);
        self.break_tunnel(io);
        if let Some(leg) = self.servers.leg.as_mut().filter(|_| self.remote.is_some()) {
            // A backup that lacks the abort may seal what it has stashed at the same position. So no end precedes it.
            leg.tls.abandoned = true;
            if leg.is_open() {
                io.effects.push(Effect::ResetServer { leg: leg.id });
            }
        }
        self.release_leg(io, false);
        self.release_bound(io);
        self.client.outlet.clear();
        self.close(io, true);
    }

    /// A tunnel's server is not to take what it has for all there is.
    fn break_tunnel(&mut self, io: &mut Io<'_>) {
        let tunnel = self.exchange.receiving == RequestState::Tunnel
            || self.exchange.answering == ResponseState::Tunnel;
        if let Some(leg) = self.servers.leg.as_mut().filter(|leg| tunnel && leg.is_open()) {
            leg.tls.abandoned = true; // close_notify would make what the server has look whole
            io.effects.push(Effect::ResetServer { leg: leg.id });
        }
    }

    /// The client's record layer failed: a fatal alert, then the end. An attacker on the path may have cut or changed
    /// the stream, so a tunnel's server receives RST.
    pub(crate) fn fail_records(&mut self, io: &mut Io<'_>, description: impl Into<Option<u8>>) {
        self.client.ignores_input = true;
        match description.into() {
            _ if self.end.is_closing() => {} // it has our end already; a reset could destroy what it has not read yet
            Some(description) => {
                self.break_tunnel(io);
                self.end_after_replay(io, description, "tls_record");
            }
            None => self.end_abruptly(io, "tls_record"),
        }
    }

    /// The deadline has passed.
    pub fn handle_timeout(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        if io.now < self.deadline.at || self.end.is_closed() {
            return;
        }
        let waits = self.is_stuck() && self.is_stuck_for_slow_peers(io.now);
        match self.deadline.timer {
            _ if waits => {}
            // An orderly end would have to follow records whose content will never come.
            timer if timer != Timer::Linger && self.is_stuck() => self.end_abruptly(io, "replay_stalled"),
            Timer::None => self.deadline.at = evergate_base::Micros(u64::MAX),
            Timer::Handshake => self.end_abruptly(io, "handshake_timeout"),
            Timer::RequestHead if self.client.plain.is_empty() && self.client.raw.is_empty() => {
                self.end_orderly(io, "")
            }
            Timer::RequestHead => self.refuse(io, 408, "request_head_timeout"),
            Timer::RequestBody => self.refuse(io, 408, "request_body_timeout"),
            Timer::KeepAlive => self.end_orderly(io, ""),
            Timer::Queue => self.give_up(io, 503, "queue_timeout"),
            Timer::Connect => self.leg_failed(io, Failure::TimedOut),
            Timer::Response => {
                if !self.server_continues(io.now) {
                    self.note_server_failure(io);
                    self.give_up(io, 504, "response_timeout");
                }
            }
            Timer::Tunnel if self.tunnel_is_over() => self.arm(Timer::WriteStall, io.now),
            Timer::Tunnel => self.end_orderly(io, "tunnel_idle"),
            Timer::WriteStall if self.end.is_closing() && self.is_drained() => self.close(io, false),
            Timer::WriteStall if !self.is_blocked() => {
                let timer = self.natural_timer();
                self.arm(timer, io.now);
            }
            Timer::WriteStall => match (self.peers_continue(io.now), self.waits_for_server_alone()) {
                (true, _) => {}
                (false, true) => {
                    self.note_server_failure(io);
                    self.give_up(io, 504, "write_stall");
                }
                (false, false) => self.end_abruptly(io, "write_stall"),
            },
            Timer::Linger if self.is_drained() => self.close(io, false),
            Timer::Linger => self.arm(Timer::WriteStall, io.now),
        }
        self.finish_call(io);
    }

    /// The node drains: an idle connection ends, a busy one after its response.
    pub fn handle_drain(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        if !self.is_active() && !self.is_handshaking() && self.exchange.receiving == RequestState::Head {
            self.end_orderly(io, "");
        } else if self.exchange.answering != ResponseState::Tunnel {
            self.exchange.last_response = true;
        }
        self.finish_call(io);
    }

    /// The drain's time is up.
    pub fn handle_abort(&mut self, io: &mut Io<'_>, reason: &'static str) {
        self.catch_up(io);
        // A peer that closes behind our end without waiting has lost nothing.
        let reason = if self.end.is_closing() && reason == "client_reset" { "" } else { reason };
        self.end_abruptly(io, reason);
        self.finish_call(io);
    }

    /// What follows every call: tickets leave with the first output, layouts are queued, buffered input is processed.
    pub(crate) fn finish_call(&mut self, io: &mut Io<'_>) {
        let place = |c: &Connection| {
            (
                c.client.plain.len(),
                c.client.raw.len(),
                c.exchange.request(),
                c.exchange.number(),
                c.exchange.receiving,
                c.end.is_closing(),
                c.may_ask(),
            )
        };
        self.end_unsettled_bound(io);
        self.take_stashed(io);
        self.report_session(io);
        for _ in 0..ROUNDS_MAX {
            let before = place(self);
            self.checkpoint_server();
            self.end_unsettled_bound(io);
            self.release_acknowledgements(io);
            self.finish_turn(io);
            if before == place(self) {
                break;
            }
        }
        self.send_waiting(io);
        if !self.client.tickets.is_empty() && !io.scratch.down.is_empty() {
            io.scratch.down.prepend(&std::mem::take(&mut self.client.tickets));
        }
        if let Some(remote) = &mut self.remote {
            remote.acks.has_news = false;
            remote.flush_runs();
        }
        if !self.end.is_closed() {
            self.checkpoint_server();
            self.note_client_point();
            self.move_keys();
        }
        self.release_acknowledgements(io);
        if self.deadline.timer == Timer::WriteStall && !self.end.is_closed() {
            self.record_progress(io.now); // what a peer has acknowledged may have been the last
        }
    }
}

/// The text without what peers may have put there: printable ASCII, the rest escaped, and cut where it is too long.
pub fn printable(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let start = out.len();
        match c {
            ' '..='~' => out.push(c),
            _ => out.extend(c.escape_default()),
        }
        if out.len() > DETAIL_BYTES_MAX {
            out.truncate(start);
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_log_gets_printable_bounded_text_of_peers() {
        assert_eq!(printable("no \"a\"\n\u{1b}[1m\u{e9}"), "no \"a\"\\n\\u{1b}[1m\\u{e9}");
        assert_eq!(printable(&"x".repeat(1000)).len(), DETAIL_BYTES_MAX);
        let escapes = printable(&"\u{1f600}".repeat(1000));
        assert!(escapes.len() <= DETAIL_BYTES_MAX && escapes.ends_with("\\u{1f600}"), "{escapes}");
    }
}
