//! The server leg: one request's (or one tunnel's) use of a server connection.

use crate::bound::{Binding, Carrier};
use crate::client_leg::ClientTls;
use crate::close::printable;
use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use crate::leg_attempt::LegAttempt;
use crate::leg_records::LegRecords;
use crate::pending_input::PendingInput;
use crate::received_response::ReceivedResponse;
use crate::sent_request::SentRequest;
use crate::timers::Timer;
use crate::{Effect, Io, Piece, ServerHint, Source};
use evergate_base::Micros;
use evergate_replication::{ConnectionState, LegTls, Route};
use evergate_rules::RuleId;
use evergate_tls::{ClientHandshake, Records};

/// Why a server leg is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection was refused, or the address cannot be reached.
    Refused,
    /// Connecting took too long.
    TimedOut,
    /// It was reset, or ended before the response did.
    Lost,
    /// The TLS handshake or record layer failed.
    Tls,
}

pub(crate) enum LegState {
    /// The worker chooses a server and connects.
    Dialing,
    /// TLS handshake with the server.
    Shaking(Box<ClientHandshake>),
    /// Request bytes may flow.
    Open,
}

impl std::fmt::Debug for LegState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LegState::Dialing => "Dialing",
            LegState::Shaking(_) => "Shaking",
            LegState::Open => "Open",
        })
    }
}

/// One request's, or one tunnel's, use of a server connection.
#[derive(Debug)]
pub(crate) struct ServerLeg {
    pub(crate) id: u32,
    pub(crate) pool: u32,
    pub(crate) state: LegState,
    pub(crate) route: Route,
    /// Rules that matched the request, in order.
    pub(crate) rules: Vec<RuleId>,
    /// The decision is replicated (or was restored): it is final.
    pub(crate) decided: bool,
    /// Recovered from another node: never repeated elsewhere, never used by other connections.
    pub(crate) restored: bool,
    /// How far its connection belongs to this client.
    pub(crate) binding: Binding,
    pub(crate) attempt: LegAttempt,
    pub(crate) request: SentRequest,
    pub(crate) response: ReceivedResponse,
    pub(crate) tls: LegRecords,
    pub(crate) pending: PendingInput,
    /// Input position on the wire after everything parsed; on a TLS leg, after everything opened.
    pub(crate) in_pos: u64,
    /// Output position on the wire after everything made.
    pub(crate) out_pos: u64,
}

impl ServerLeg {
    pub(crate) fn new(route: Route, rules: Vec<RuleId>, hint: ServerHint, idempotent: bool) -> ServerLeg {
        ServerLeg {
            id: route.leg,
            pool: route.pool,
            state: LegState::Dialing,
            rules,
            decided: false,
            restored: false,
            binding: Binding::Shared,
            attempt: LegAttempt::new(hint),
            request: SentRequest::new(idempotent),
            response: ReceivedResponse::default(),
            tls: LegRecords::default(),
            pending: PendingInput::default(),
            in_pos: 0,
            out_pos: 0,
            route,
        }
    }

    /// See [`crate::upgrade_state`].
    #[rustfmt::skip]
    pub(crate) fn all_fields_are_exported(&self) {
        let ServerLeg {
            id: _, pool: _, state: _, route: _, rules: _, decided: _, restored: _, binding: _, in_pos: _, out_pos: _,
            attempt, request, response, tls, pending,
        } = self;
        attempt.all_fields_are_exported();
        request.all_fields_are_exported();
        response.all_fields_are_exported();
        tls.all_fields_are_exported();
        pending.all_fields_are_exported();
    }

    /// Lets go of everything that hangs on the leg: secrets, and bytes of its peers.
    pub(crate) fn wipe(&mut self) {
        self.state = LegState::Dialing;
        self.tls.wipe();
        (self.pending.stashed, self.response.held) = (Vec::new(), Vec::new());
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, LegState::Open)
    }

    /// No server is connected yet.
    pub(crate) fn is_unconnected(&self) -> bool {
        matches!(self.state, LegState::Dialing)
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.layer.is_some() || matches!(self.state, LegState::Shaking(_))
    }

    /// Its connection has carried other requests.
    fn is_reused(&self) -> bool {
        self.attempt.reuse && !self.attempt.connects && !self.restored
    }

    /// A restored bound leg is read when its server has the whole request of this node: only then the leg can idle.
    /// `unsent`: see [`Connection::lacks_request`].
    pub(crate) fn waits_for_request(&self, unsent: bool) -> bool {
        let waits = self.pending.awaits_head || unsent || !self.pending.stashed.is_empty();
        self.restored && self.binding != Binding::Shared && waits
    }

    /// Nothing of its server is left to read, and its records take another message.
    pub(crate) fn is_quiet(&self) -> bool {
        let read = !self.response.ended && self.response.held.is_empty();
        self.is_open() && read && self.tls.is_quiet()
    }

    /// The server may have closed an idle connection just when it was used: that is no failure of the server.
    fn is_stale(&self) -> bool {
        let silent = !self.response.answered && self.response.held.is_empty() && self.tls.raw.is_empty();
        self.is_open() && self.is_reused() && silent
    }

    /// Bytes for the server, as they are.
    pub(crate) fn push(&mut self, io: &mut Io<'_>, bytes: &[u8]) {
        let start = io.scratch.up.len();
        io.scratch.up.extend_from_slice(bytes);
        self.pushed(io, start);
    }

    /// The bytes of the server-bound buffer from `start` on are the leg's next ones.
    pub(crate) fn pushed(&mut self, io: &mut Io<'_>, start: usize) {
        let range = start..io.scratch.up.len();
        self.out_pos += range.len() as u64;
        match io.effects.up.last_mut() {
            _ if range.is_empty() => {}
            Some(Piece { source: Source::Up, range: last }) if last.end == start => last.end = range.end,
            _ => io.effects.up.push(Piece { source: Source::Up, range }),
        }
    }

    /// The leg's TLS state for another node.
    pub(crate) fn export_tls(&mut self) -> Option<Box<LegTls>> {
        self.tls.export(self.in_pos, self.out_pos)
    }

    /// Restores the TLS of a leg from a replica; the error names the contradiction.
    pub(crate) fn restore_tls(
        &mut self,
        state: &ConnectionState,
        route: &Route,
        tls: &LegTls,
    ) -> Result<(), &'static str> {
        (self.in_pos, self.out_pos) = (state.leg_input(route.leg), state.leg_output(route.leg));
        self.tls.restore(state, route, tls)
    }
}

impl Connection {
    /// Number of the server leg, if there is one.
    pub fn leg_id(&self) -> Option<u32> {
        self.servers.leg.as_ref().map(|leg| leg.id)
    }

    /// The leg's pool and server as indexes of the connection's snapshot, once known.
    pub fn leg_server(&self) -> Option<(u32, u32)> {
        self.servers
            .leg
            .as_ref()
            .filter(|leg| leg.route.server != u32::MAX)
            .map(|leg| (leg.pool, leg.route.server))
    }

    /// No server of the pool has room: the request waits in the worker's queue. It is answered with 503 when that takes
    /// beyond `until`; a later call for the same leg does not move this.
    pub fn handle_leg_queued(&mut self, now: Micros, leg_id: u32, until: Micros) {
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| leg.id == leg_id) else { return };
        leg.attempt.queued_until.get_or_insert(until);
        self.arm(Timer::Queue, now);
    }

    /// No local port is free for the leg, and the request waits for one. The log gets the cause if it waits in vain.
    pub fn handle_port_awaited(&mut self, leg_id: u32, why: &str) {
        if self.leg_id() == Some(leg_id) && self.is_leg_queued() {
            self.explain(why);
        }
    }

    /// The request has left the worker's queue: a cause of its wait is of no interest any more.
    fn leave_queue(&mut self) {
        let Some(leg) = &mut self.servers.leg else { return };
        if leg.attempt.queued_until.take().is_some()
            && let Some(log) = &mut self.exchange.log
        {
            log.detail.clear();
        }
    }

    /// Whether the request waits in the worker's queue.
    pub fn is_leg_queued(&self) -> bool {
        self.servers.leg.as_ref().is_some_and(|leg| leg.attempt.is_queued())
    }

    /// A leg of an upgrade state that was waiting asks for a server again; its deadline stays.
    pub fn handle_leg_resumed(&mut self, io: &mut Io<'_>) {
        self.dial(io);
        self.finish_call(io);
    }

    /// The worker connects to this server; the time for connecting counts from here. After a failure another is chosen.
    pub fn handle_leg_connecting(&mut self, now: Micros, leg_id: u32, server: u32) {
        if self.leg_id() == Some(leg_id) {
            self.leave_queue();
        }
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| leg.id == leg_id) else { return };
        leg.attempt.trying = Some(server);
        leg.attempt.connects = true;
        self.arm(Timer::Connect, now);
    }

    /// The worker has a socket for the leg: connected just now, or an idle one (then with its record layer).
    pub fn handle_leg_open(
        &mut self,
        io: &mut Io<'_>,
        leg_id: u32,
        server: u32,
        records: Option<Box<Records>>,
    ) {
        let snapshot = self.snapshot.clone();
        if self.leg_id() != Some(leg_id) {
            return;
        }
        self.send_proxy_header(io);
        let records = records.or_else(|| self.use_bound());
        self.leave_queue();
        let Some(leg) = &mut self.servers.leg else { return };
        leg.attempt.trying = Some(server);
        if !leg.decided {
            leg.route.server = server;
            leg.route.flags.set_cookie &= leg.attempt.hint != ServerHint::Server(server);
        }
        if let Some(log) = &mut self.exchange.log {
            log.server = Some(server);
        }
        if let Some(records) = records {
            leg.tls.answered_keys = records.rx().generation;
            leg.tls.layer = Some(records); // a restored leg has its own
        }
        let pool = &snapshot.pools[leg.pool as usize];
        match (&pool.tls, pool.servers.get(server as usize)) {
            (Some(upstream), Some(server)) if leg.tls.layer.is_none() => {
                self.start_leg_handshake(io, upstream, server);
            }
            (Some(_), None) if leg.tls.layer.is_none() => self.leg_failed(io, Failure::Tls),
            _ => self.leg_ready(io),
        }
        self.finish_call(io);
    }

    /// Request bytes may flow: the decision is replicated first, then waiting bytes are sent.
    pub(crate) fn leg_ready(&mut self, io: &mut Io<'_>) {
        self.replicate_route();
        let Some(leg) = &mut self.servers.leg else { return };
        leg.state = LegState::Open;
        let tls = leg.is_tls();
        self.resume_uplink(io);
        if let Some(leg) = self.servers.leg.as_mut().filter(|leg| !leg.request.bytes.is_empty()) {
            leg.request.written = true;
            let sent = std::mem::take(&mut leg.request.bytes);
            match tls {
                true => self.seal_up(io, &sent),
                false => leg.push(io, &sent),
            }
            if let Some(leg) = self.servers.leg.as_mut() {
                leg.request.retain_first(sent, leg.is_reused());
            }
        }
        let timer = self.natural_timer();
        self.arm(timer, io.now);
        self.take_stashed(io);
        if self.exchange.answering == ResponseState::Tunnel
            && self.servers.leg.as_ref().is_some_and(|leg| leg.pending.ends_at == Some(leg.in_pos))
        {
            self.end_of_server(io);
        }
        if self.exchange.receiving == RequestState::Tunnel && !self.is_handshaking() {
            self.arm(Timer::Tunnel, io.now);
        }
        if self.exchange.receiving == RequestState::Ended
            && matches!(self.exchange.answering, ResponseState::Tunnel | ResponseState::Ended)
        {
            self.shutdown_server(io);
        }
    }

    /// No connection to the server comes about; `why` is for the log.
    pub fn handle_connect_failed(&mut self, io: &mut Io<'_>, leg_id: u32, why: &impl std::fmt::Display) {
        if let Some(log) = self
            .exchange
            .log
            .as_mut()
            .filter(|_| self.servers.leg.as_ref().is_some_and(|leg| leg.id == leg_id))
        {
            log.detail = printable(&why.to_string());
        }
        self.handle_leg_failed(io, leg_id, Failure::Refused);
    }

    /// The leg could not be opened, or broke.
    pub fn handle_leg_failed(&mut self, io: &mut Io<'_>, leg_id: u32, failure: Failure) {
        if self.servers.leg.as_ref().is_some_and(|leg| leg.id == leg_id) {
            self.leg_failed(io, failure);
        }
        self.finish_call(io);
    }

    /// No server of the pool takes the request: all are down, or the queue is full or too slow.
    pub fn handle_unavailable(&mut self, io: &mut Io<'_>, leg_id: u32, reason: &'static str) {
        if self.servers.leg.as_ref().is_some_and(|leg| leg.id == leg_id) {
            self.give_up(io, 503, reason);
        }
        self.finish_call(io);
    }

    pub(crate) fn leg_failed(&mut self, io: &mut Io<'_>, failure: Failure) {
        self.note_server_failure(io);
        if let (Some(log), Some(server)) =
            (&mut self.exchange.log, self.servers.leg.as_ref().and_then(|leg| leg.attempt.trying))
        {
            log.server = Some(server);
        }
        let stale = failure == Failure::Lost && self.servers.leg.as_ref().is_some_and(|leg| leg.is_stale());
        let free = stale && self.is_unsent(io);
        if self.may_retry(free) {
            return self.retry(io, stale, free);
        }
        self.exchange.last_response |=
            self.servers.leg.as_ref().is_some_and(|leg| leg.attempt.carrier == Carrier::Handshake);
        let (status, reason) = match failure {
            Failure::Refused => (502, "connect_failed"),
            Failure::TimedOut => (504, "connect_timeout"),
            Failure::Lost => (502, "upstream_lost"),
            Failure::Tls => (502, "upstream_tls"),
        };
        self.give_up(io, status, reason);
    }

    /// What goes wrong now is the server's doing.
    pub(crate) fn note_server_failure(&self, io: &mut Io<'_>) {
        if let Some(leg) = &self.servers.leg {
            io.effects.push(Effect::ServerFailed { leg: leg.id });
        }
    }

    /// Whether no byte of the request has left on its leg: no server can have executed it.
    pub(crate) fn is_unsent(&self, io: &Io<'_>) -> bool {
        let made: usize = io.effects.up.iter().map(|piece| piece.range.len()).sum();
        let waiting = (self.servers.outlet.len() + made) as u64;
        self.servers.leg.as_ref().is_some_and(|leg| leg.request.never_left || leg.out_pos == waiting)
    }

    /// Never repeats a request that may have been executed, unless repeating it is harmless (RFC 9110 section 9.2.2).
    /// Every execution counts; `free`: there was none.
    fn may_retry(&self, free: bool) -> bool {
        let Some(leg) = &self.servers.leg else { return false };
        let retries = self.snapshot.pools[leg.pool as usize].retries;
        let unseen = !leg.response.answered
            && self.exchange.answering != ResponseState::Ended
            && !self.end.is_closing();
        let safe = self
            .remote
            .as_ref()
            .is_none_or(|remote| remote.client_checkpoints.may_reroute(self.exchange.number()));
        leg.request.may_repeat(free)
            && unseen
            && safe
            && !leg.restored
            && leg.attempt.carrier != Carrier::Handshake
            && (free || leg.attempt.retries < retries)
    }

    /// Asks for a server once more: for another one, unless all that happened is that the connection was `stale`.
    /// A `free` retry counts nowhere, and no second one follows: the next connection is new.
    fn retry(&mut self, io: &mut Io<'_>, stale: bool, free: bool) {
        let Some(old) = self.servers.leg.take() else { return };
        io.effects.push(Effect::Release {
            leg: old.id,
            clean: false,
            spent: false,
            records: None,
            over: false,
        });
        io.effects.up.clear(); // bytes of this call for the broken leg
        self.servers.outlet.clear();
        self.pipes.held = (0, 0);
        if let Some(remote) = &mut self.remote {
            remote.client_checkpoints.forget_leg(old.id);
        }
        let mut route = old.route;
        route.leg = self.servers.next;
        route.server = u32::MAX;
        self.servers.next += 1;
        route.flags.set_cookie |= matches!(old.attempt.hint, ServerHint::Server(_)) && !stale;
        let mut leg = ServerLeg::new(route, old.rules, old.attempt.hint, old.request.idempotent);
        leg.attempt = old.attempt.next(stale, free);
        leg.request = old.request.for_next_leg();
        leg.binding = old.binding;
        self.servers.leg = Some(Box::new(leg));
        if let Some(log) = self.exchange.log.as_mut().filter(|_| !free) {
            log.retries += 1;
            log.detail = String::new();
        }
        self.dial(io);
        self.arm(Timer::Connect, io.now);
    }

    /// Answers in the server's place where that is still possible; else the client's connection breaks.
    pub(crate) fn give_up(&mut self, io: &mut Io<'_>, status: u16, reason: &'static str) {
        if self.exchange.answering == ResponseState::Tunnel {
            return self.end_abruptly(io, reason);
        }
        self.refuse(io, status, reason);
    }

    /// Gives the leg back to the worker.
    pub(crate) fn release_leg(&mut self, io: &mut Io<'_>, clean: bool) {
        let plain = self.generated_plain();
        let Some(mut leg) = self.servers.leg.take() else { return };
        self.pipes.held = (0, 0);
        let sent = self.servers.outlet.is_empty() && io.effects.up.is_empty();
        let clean = clean && !leg.restored && leg.is_quiet() && sent;
        let spent = leg.request.closes || leg.binding != Binding::Shared; // no other client may have it
        let uplink = leg.tls.uplink();
        let records = match (clean, sent) {
            (true, _) => leg.tls.layer.take(),
            (false, true) if leg.is_open() => leg.tls.take_unclosed(),
            (false, _) => None,
        };
        if !clean {
            io.effects.up.clear(); // what has not left for this server must not reach another
            self.servers.outlet.clear();
        }
        if leg.is_open() && !(sent && leg.tls.has_repeated()) {
            io.effects.push(Effect::ResetServer { leg: leg.id });
        }
        match &mut self.remote {
            Some(remote) => remote.legs.push(&leg, (clean, spent), records, uplink, plain),
            None => io.effects.push(Effect::Release { leg: leg.id, clean, spent, records, over: false }),
        }
        io.scratch.spare_leg(leg);
    }

    /// Whether server bytes must be copied on their way to the client instead of sealed where they lie.
    pub(crate) fn must_copy_down(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.replay.has_begun() || remote.replay.end_at.is_some())
            || !matches!(self.client.tls, ClientTls::Plain | ClientTls::Open(_))
    }
}
