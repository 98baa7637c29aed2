//! The server leg: one request's (or one tunnel's) use of a server connection.

use crate::bound::{Binding, Carrier};
use crate::client_leg::ClientTls;
use crate::close::printable;
use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use crate::timers::Timer;
use crate::upstream_tls::Replay;
use crate::{Effect, Io, ServerHint};
use evergate_base::Micros;
use evergate_replication::Route;
use evergate_rules::RuleId;
use evergate_tls::{ClientHandshake, Records};

/// How many bytes of an idempotent request are kept for another try.
const RETAINED_MAX: usize = 65_536;

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

#[derive(Debug)]
pub(crate) struct ServerLeg {
    pub(crate) id: u32,
    pub(crate) pool: u32,
    pub(crate) state: LegState,
    pub(crate) route: Route,
    pub(crate) hint: ServerHint,
    /// The decision is replicated (or was restored): it is final.
    pub(crate) decided: bool,
    /// An idle connection may be used.
    pub(crate) reuse: bool,
    /// The worker connects for it, or has.
    pub(crate) connects: bool,
    /// How far its connection belongs to this client, and which connections it may use for that.
    pub(crate) binding: Binding,
    pub(crate) carrier: Carrier,
    /// Until when the request may wait for a server with room, while it waits.
    pub(crate) queued_until: Option<Micros>,
    /// Rules that matched the request, in order.
    pub(crate) rules: Vec<RuleId>,
    /// The server that the worker connects to, or has connected to.
    pub(crate) trying: Option<u32>,
    pub(crate) tried: Vec<u32>,
    /// Further executions of the request so far, of the pool's `retries`.
    pub(crate) retries: u32,
    /// The request may be repeated although it was sent.
    pub(crate) idempotent: bool,
    /// What was sent, or is to be sent when the leg opens; kept while the request may be repeated.
    pub(crate) sent: Vec<u8>,
    pub(crate) head_bytes: usize,
    /// Some byte has been handed to the server's socket, or waits in front of it.
    pub(crate) written: bool,
    pub(crate) body_bytes: u64,
    /// Of the body's framing: chunk sizes, extensions, trailers.
    pub(crate) framing_bytes: u64,
    /// Recovered from another node: never repeated elsewhere, never used by other connections.
    pub(crate) restored: bool,
    /// The first write to it failed, so that no byte of the request has left.
    pub(crate) never_left: bool,
    /// What was written to it met a broken connection: its end may be a RST that reads like an end in order.
    pub(crate) in_doubt: bool,
    /// A restored leg whose request head the client will send again.
    pub(crate) awaits_head: bool,
    /// Stashed input of a restored leg.
    pub(crate) stashed: Vec<u8>,
    /// End of a restored leg's stream, if it ended: a server whose end was acknowledged does not send it again.
    pub(crate) ends_at: Option<u64>,
    /// A partial response head.
    pub(crate) held: Vec<u8>,
    /// Some byte of the response has been passed on.
    pub(crate) answered: bool,
    /// All that the client has of it are interim answers (1xx): an answer of our own may still follow.
    pub(crate) interim: bool,
    /// Interim answers so far.
    pub(crate) interims: u32,
    /// The server is asked to close the connection after this response.
    pub(crate) closes: bool,
    /// The server keeps the connection open after this response.
    pub(crate) keep_alive: bool,
    /// The server's stream has ended.
    pub(crate) ended: bool,
    /// Input position on the wire after everything parsed; on a TLS leg, after everything opened.
    pub(crate) in_pos: u64,
    /// Output position on the wire after everything made.
    pub(crate) out_pos: u64,
    /// Raw bytes of a TLS leg, not decrypted yet.
    pub(crate) raw: Vec<u8>,
    /// Bytes of a TLS leg behind the record in hand: after a response they are surplus.
    pub(crate) behind: usize,
    pub(crate) records: Option<Box<Records>>,
    /// Our last bytes of the handshake, which the server may lack. Kept only for backups.
    pub(crate) flight: Vec<u8>,
    /// The server's key generation whose KeyUpdate request is answered.
    pub(crate) answered_keys: u32,
    /// Our close_notify is sealed.
    pub(crate) up_ended: bool,
    /// Output position of our close_notify.
    pub(crate) notify_at: Option<u64>,
    /// Records of a restored leg that were decided before.
    pub(crate) replay: Option<Box<Replay>>,
    /// The leg ends without close_notify: by RST, or before the backups know its last record.
    pub(crate) abandoned: bool,
}

impl ServerLeg {
    pub(crate) fn new(route: Route, rules: Vec<RuleId>, hint: ServerHint, idempotent: bool) -> ServerLeg {
        ServerLeg {
            id: route.leg,
            pool: route.pool,
            state: LegState::Dialing,
            hint,
            decided: false,
            reuse: true,
            connects: false,
            binding: Binding::Shared,
            carrier: Carrier::Any,
            queued_until: None,
            rules,
            trying: None,
            tried: Vec::new(),
            retries: 0,
            idempotent,
            sent: Vec::new(),
            head_bytes: 0,
            written: false,
            body_bytes: 0,
            framing_bytes: 0,
            restored: false,
            never_left: false,
            in_doubt: false,
            awaits_head: false,
            stashed: Vec::new(),
            ends_at: None,
            held: Vec::new(),
            answered: false,
            interim: false,
            interims: 0,
            closes: false,
            keep_alive: false,
            ended: false,
            in_pos: 0,
            out_pos: 0,
            raw: Vec::new(),
            behind: 0,
            records: None,
            flight: Vec::new(),
            answered_keys: 0,
            up_ended: false,
            notify_at: None,
            replay: None,
            abandoned: false,
            route,
        }
    }

    /// See [`crate::upgrade_state`].
    #[rustfmt::skip]
    pub(crate) fn all_fields_are_exported(&self) {
        let ServerLeg {
            id: _, pool: _, state: _, route: _, rules: _, hint: _, decided: _, reuse: _, connects: _,
            queued_until: _, trying: _, tried: _, retries: _, idempotent: _, sent: _, head_bytes: _, written: _,
            body_bytes: _, restored: _, awaits_head: _, stashed: _, held: _, answered: _, keep_alive: _,
            ended: _, in_pos: _, out_pos: _, raw: _, behind: _, records: _,
            answered_keys: _, up_ended: _, in_doubt: _, never_left: _, binding: _, carrier: _,
            // These are of restored legs, which stay, and of those with backups.
            ends_at: _, replay: _, flight: _, notify_at: _, closes: _,
            abandoned: _, // released in the same call, or with backups
            // Without it nothing of our own follows what went out.
            interim: _,
            interims: _, framing_bytes: _, // some more are no harm
        } = self;
    }

    /// Lets go of everything that hangs on the leg: secrets, and bytes of its peers.
    pub(crate) fn wipe(&mut self) {
        self.state = LegState::Dialing;
        self.records = None;
        self.replay = None;
        for bytes in [&mut self.stashed, &mut self.held, &mut self.raw, &mut self.flight] {
            *bytes = Vec::new();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, LegState::Open)
    }

    /// The record layer of a TLS leg that lacks only close_notify. `None` after close_notify, before the end of a
    /// replay, and for a leg that ends without it: a record sealed there could use a nonce twice.
    fn take_unclosed(&mut self) -> Option<Box<Records>> {
        let lacks_it = self.is_open() && self.replay.is_none() && !self.up_ended && !self.abandoned;
        if lacks_it { self.records.take() } else { None }
    }

    /// No server is connected yet.
    pub(crate) fn is_unconnected(&self) -> bool {
        matches!(self.state, LegState::Dialing)
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.queued_until.is_some()
    }

    pub(crate) fn queue_time_left(&self, now: Micros) -> Micros {
        self.queued_until.map_or(Micros(0), |until| until.since(now))
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.records.is_some() || matches!(self.state, LegState::Shaking(_))
    }

    /// Its connection has carried other requests.
    fn is_reused(&self) -> bool {
        self.reuse && !self.connects && !self.restored
    }

    /// A restored bound leg is read when its server has the whole request of this node: only then the leg can idle.
    /// `unsent`: see [`Connection::lacks_request`].
    pub(crate) fn waits_for_request(&self, unsent: bool) -> bool {
        let waits = self.awaits_head || unsent || !self.stashed.is_empty();
        self.restored && self.binding != Binding::Shared && waits
    }

    /// Nothing of its server is left to read, and its records take another message.
    pub(crate) fn is_quiet(&self) -> bool {
        let fit = |records: &Records| records.is_between_messages() && !records.wants_close();
        let whole = self.records.as_deref().is_none_or(fit);
        let read = self.held.is_empty() && self.raw.is_empty() && self.behind == 0;
        self.is_open() && !self.ended && read && whole
    }

    /// The server may have closed an idle connection just when it was used: that is no failure of the server.
    fn is_stale(&self) -> bool {
        let silent = !self.answered && self.held.is_empty() && self.raw.is_empty();
        self.is_open() && self.is_reused() && silent
    }

    /// Keeps what was sent while the request may be repeated.
    pub(crate) fn retain_sent(&mut self, data: &[u8]) {
        if !self.idempotent {
            self.sent = Vec::new(); // not the whole request any more
            return;
        }
        if self.sent.len() + data.len() > RETAINED_MAX {
            self.idempotent = false;
            self.sent = Vec::new();
        } else {
            self.sent.extend_from_slice(data);
        }
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
        leg.queued_until.get_or_insert(until);
        self.arm(Timer::Queue, now);
    }

    /// Whether the request waits in the worker's queue.
    pub fn is_leg_queued(&self) -> bool {
        self.servers.leg.as_ref().is_some_and(|leg| leg.is_queued())
    }

    /// A leg of an upgrade state that was waiting asks for a server again; its deadline stays.
    pub fn handle_leg_resumed(&mut self, io: &mut Io<'_>) {
        self.dial(io);
        self.finish_call(io);
    }

    /// The worker connects to this server; the time for connecting counts from here. After a failure another is chosen.
    pub fn handle_leg_connecting(&mut self, now: Micros, leg_id: u32, server: u32) {
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| leg.id == leg_id) else { return };
        leg.queued_until = None;
        leg.trying = Some(server);
        leg.connects = true;
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
        let records = records.or_else(|| self.use_bound());
        let Some(leg) = &mut self.servers.leg else { return };
        leg.queued_until = None;
        leg.trying = Some(server);
        if !leg.decided {
            leg.route.server = server;
            leg.route.flags.set_cookie &= leg.hint != ServerHint::Server(server);
        }
        if let Some(log) = &mut self.exchange.log {
            log.server = Some(server);
        }
        if let Some(records) = records {
            leg.answered_keys = records.rx().generation;
            leg.records = Some(records); // a restored leg has its own
        }
        let pool = &snapshot.pools[leg.pool as usize];
        match (&pool.tls, pool.servers.get(server as usize)) {
            (Some(upstream), Some(server)) if leg.records.is_none() => {
                self.start_leg_handshake(io, upstream, server);
            }
            (Some(_), None) if leg.records.is_none() => self.leg_failed(io, Failure::Tls),
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
        if let Some(leg) = self.servers.leg.as_mut().filter(|leg| !leg.sent.is_empty()) {
            leg.written = true;
            let sent = std::mem::take(&mut leg.sent);
            match tls {
                true => self.seal_up(io, &sent),
                false => leg.push(io, &sent),
            }
            if let Some(leg) = self.servers.leg.as_mut() {
                let fits = sent.len() <= RETAINED_MAX;
                leg.idempotent &= fits;
                if fits && (leg.idempotent || leg.is_reused()) {
                    leg.sent = sent; // without it what is kept of the body would be no request
                }
            }
        }
        let timer = self.natural_timer();
        self.arm(timer, io.now);
        self.take_stashed(io);
        if self.exchange.answering == ResponseState::Tunnel
            && self.servers.leg.as_ref().is_some_and(|leg| leg.ends_at == Some(leg.in_pos))
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
            (&mut self.exchange.log, self.servers.leg.as_ref().and_then(|leg| leg.trying))
        {
            log.server = Some(server);
        }
        let stale = failure == Failure::Lost && self.servers.leg.as_ref().is_some_and(|leg| leg.is_stale());
        let free = stale && self.is_unsent(io);
        if self.may_retry(free) {
            return self.retry(io, stale, free);
        }
        self.exchange.last_response |=
            self.servers.leg.as_ref().is_some_and(|leg| leg.carrier == Carrier::Handshake);
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
        self.servers.leg.as_ref().is_some_and(|leg| leg.never_left || leg.out_pos == waiting)
    }

    /// Never repeats a request that may have been executed, unless repeating it is harmless (RFC 9110 section 9.2.2).
    /// Every execution counts; `free`: there was none.
    fn may_retry(&self, free: bool) -> bool {
        let Some(leg) = &self.servers.leg else { return false };
        let retries = self.snapshot.pools[leg.pool as usize].retries;
        let whole = !leg.sent.is_empty() && leg.sent.len() >= leg.head_bytes;
        let repeatable = !leg.written || (whole && (leg.idempotent || free));
        let unseen =
            !leg.answered && self.exchange.answering != ResponseState::Ended && !self.end.is_closing();
        let safe = self
            .remote
            .as_ref()
            .is_none_or(|remote| remote.client_checkpoints.may_reroute(self.exchange.number()));
        repeatable
            && unseen
            && safe
            && !leg.restored
            && leg.carrier != Carrier::Handshake
            && (free || leg.retries < retries)
    }

    /// Asks for a server once more: for another one, unless all that happened is that the connection was `stale`.
    /// A `free` retry counts nowhere, and no second one follows: the next connection is new.
    fn retry(&mut self, io: &mut Io<'_>, stale: bool, free: bool) {
        let Some(mut old) = self.servers.leg.take() else { return };
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
        if !stale {
            old.tried.push(old.trying.unwrap_or(u32::MAX));
        }
        if let Some(remote) = &mut self.remote {
            remote.client_checkpoints.forget_leg(old.id);
        }
        let mut route = old.route;
        route.leg = self.servers.next;
        route.server = u32::MAX;
        self.servers.next += 1;
        let hint = if stale { old.hint } else { ServerHint::Policy };
        let mut leg = ServerLeg::new(route, old.rules, hint, old.idempotent);
        leg.route.flags.set_cookie |= matches!(old.hint, ServerHint::Server(_)) && !stale;
        leg.tried = old.tried;
        leg.retries = old.retries + u32::from(!free);
        leg.sent = old.sent;
        leg.head_bytes = old.head_bytes;
        leg.body_bytes = old.body_bytes;
        leg.framing_bytes = old.framing_bytes;
        leg.closes = old.closes;
        leg.binding = old.binding;
        leg.reuse = false; // what failed may have been a stale idle connection
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
        let spent = leg.closes || leg.binding != Binding::Shared; // no other client may have it
        let uplink = leg.uplink();
        let records = match (clean, sent) {
            (true, _) => leg.records.take(),
            (false, true) => leg.take_unclosed(),
            (false, false) => None,
        };
        if !clean {
            io.effects.up.clear(); // what has not left for this server must not reach another
            self.servers.outlet.clear();
        }
        if leg.is_open() && !(sent && leg.has_repeated()) {
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
