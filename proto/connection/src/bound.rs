//! Server connections that belong to one client connection, because their server authenticates the connection and
//! not each request (NTLM, Negotiate: RFC 4559).
//!
//! A leg is bound from the first sign on: credentials of such a scheme in a request, an offer of one in a response, or
//! `Persistent-Auth: true`. A bound leg is never released for other connections. Between two requests it idles with its
//! A leg is bound from the first sign on: credentials of such a scheme in a request, an offer of one in a response, or
//! `Persistent-Auth: true`. A bound leg is never released for other connections. Between two requests it idles with its
//! client's connection. The next request to its pool uses the leg, whatever the pool's policy is. The leg ends with the
//! client's connection, with a request to another pool, and with [`Connection::handle_bound_lost`].
//!
//! A handshake continues on its own connection only. When that connection is lost in the middle, the request is
//! answered with 502 and the client's connection closes: the client then starts the handshake again on a new
//! connection.
//!
//! With backups the idle leg is an entry ([`evergate_replication::BoundLeg`]) before the checkpoint that ends its
//! response. Every prefix of the log then has the leg in use, or the idle leg. Bound: one leg per client connection.

use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use crate::restore::ResumedLeg;
use crate::server_leg::ServerLeg;
use crate::timers::Timer;
use crate::{Effect, Io};
use evergate_http::{Body, ConnectionAuth};
use evergate_replication::{BoundLeg, ConnectionState, Entry, LegTls, Route, RouteFlags};
use evergate_tls::{Records, RecordsState};
use serde::{Deserialize, Serialize};

/// Of a request's body, bytes that a server's socket takes although its application does not read.
const AWAITED_MAX: u64 = 32_768;

/// How far a server connection belongs to the client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Binding {
    /// It may serve other clients after its response.
    #[default]
    Shared,
    /// It serves no other client, because its PROXY header or its own address names this one. Another connection would
    /// do as well.
    Dedicated,
    /// It serves no other client.
    Bound,
    /// The same, and its server waits for the next message of a handshake.
    Challenged,
}

impl Binding {
    /// What a head adds.
    pub(crate) fn with(self, auth: ConnectionAuth) -> Binding {
        match auth {
            ConnectionAuth::None => self,
            ConnectionAuth::Binds => self.max(Binding::Bound),
            ConnectionAuth::Continues => Binding::Challenged,
        }
    }
}

/// Which server connection a request may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Carrier {
    /// Any that the worker chooses.
    #[default]
    Any,
    /// The idle bound one, or any if that one is lost.
    Bound,
    /// The idle bound one alone: the request continues a handshake.
    Handshake,
}

/// The bound leg between two requests.
#[derive(Debug)]
pub(crate) struct IdleLeg {
    /// Number of the leg in the request before.
    pub(crate) id: u32,
    /// Names its pool and server in every configuration.
    pub(crate) place: u64,
    pub(crate) binding: Binding,
    pub(crate) records: Option<Box<Records>>,
}

impl Connection {
    /// Number of the bound leg that idles between two requests of the client.
    pub fn bound_leg(&self) -> Option<u32> {
        self.servers.bound.as_ref().map(|idle| idle.id)
    }

    /// Whether connections to this pool belong to one client from the start: they name it to the server.
    pub(crate) fn dedicates_legs(&self, pool: u32) -> bool {
        let pool = self.snapshot.pools.get(pool as usize);
        pool.is_some_and(|pool| pool.client_source || pool.proxy_header.is_some())
    }

    /// How a request to this pool with such credentials uses the idle bound leg, if that leads there.
    pub(crate) fn carrier_to(&self, pool: u32, auth: ConnectionAuth) -> Option<Carrier> {
        let idle = self.servers.bound.as_ref()?;
        self.snapshot.find_place(idle.place).filter(|(known, _)| *known == pool)?;
        let continues = idle.binding == Binding::Challenged && auth != ConnectionAuth::None;
        Some(if continues { Carrier::Handshake } else { Carrier::Bound })
    }

    /// Binding of a request on such a leg, before its own credentials.
    pub(crate) fn binding_to(&self, pool: u32, carrier: Carrier) -> Binding {
        let idle = self.servers.bound.as_ref().filter(|_| carrier != Carrier::Any);
        match idle {
            Some(idle) => idle.binding.min(Binding::Bound),
            None if self.dedicates_legs(pool) => Binding::Dedicated,
            None => Binding::Shared,
        }
    }

    /// The server whose idle bound leg carries the request.
    pub(crate) fn bound_server(&self) -> Option<u32> {
        self.servers.leg.as_ref().filter(|leg| leg.attempt.carrier != Carrier::Any)?;
        self.snapshot.find_place(self.servers.bound.as_ref()?.place).map(|(_, server)| server)
    }

    /// A response is over whose leg is bound: the leg idles from now on. False when its server takes no further
    /// request on it.
    pub(crate) fn retain_leg(&mut self, io: &mut Io<'_>) -> bool {
        let sent = self.servers.outlet.is_empty() && io.effects.up.is_empty();
        let Some(leg) =
            self.servers.leg.as_ref().filter(|leg| sent && leg.is_quiet() && leg.tls.replay.is_none())
        else {
            return false;
        };
        let plain = self.generated_plain();
        let place = self.snapshot.place(leg.pool, leg.route.server);
        let Some(mut leg) = self.servers.leg.take() else { return false };
        self.pipes.held = (0, 0);
        let uplink = leg.tls.uplink();
        if let Some(remote) = &mut self.remote {
            let state = idle_state(&leg, place);
            remote.legs.push_bound(&leg, state, uplink, plain);
        } else {
            io.effects.push(Effect::Retain { leg: leg.id });
        }
        let (id, binding) = (leg.id, leg.binding);
        let records = leg.tls.layer.take();
        self.servers.bound = Some(Box::new(IdleLeg { id, place, binding, records }));
        io.scratch.spare_leg(leg);
        true
    }

    /// Whether the server may lack part of the request whose response is next, and receives it without reading first.
    pub(crate) fn lacks_request(&self) -> bool {
        let waits = match self.exchange.receiving {
            RequestState::Body(Body::Length { left }) => left <= AWAITED_MAX,
            RequestState::Head => self.exchange.is_request_whole() && !self.servers.outlet.is_empty(),
            _ => false,
        };
        waits && self.exchange.answering == ResponseState::Head
    }

    /// What was stashed of a restored leg's input, as soon as it may be read.
    pub(crate) fn take_stashed(&mut self, io: &mut Io<'_>) {
        if self.servers.leg.as_ref().is_none_or(|leg| leg.pending.stashed.is_empty() || !leg.is_open()) {
            return;
        }
        let unsent = !self.servers.outlet.is_empty() || !io.effects.up.is_empty() || self.lacks_request();
        let Some(leg) = &mut self.servers.leg else { return };
        if leg.restored && leg.binding != Binding::Shared && (leg.pending.awaits_head || unsent) {
            return;
        }
        let stashed = std::mem::take(&mut leg.pending.stashed);
        match leg.is_tls() {
            true => self.take_leg_stash(io, stashed),
            false => self.take_stash(io, &stashed),
        }
    }

    /// The worker has the socket of the idle bound leg for the request: its records go along.
    pub(crate) fn use_bound(&mut self) -> Option<Box<Records>> {
        let is_carrier =
            |leg: &ServerLeg| leg.attempt.carrier != Carrier::Any && !leg.is_open() && !leg.attempt.connects;
        self.servers.leg.as_ref().filter(|leg| is_carrier(leg))?;
        self.servers.bound.take()?.records
    }

    /// The idle bound leg ends: for other clients it is of no use.
    pub(crate) fn release_bound(&mut self, io: &mut Io<'_>) {
        let Some(idle) = self.servers.bound.take() else { return };
        let IdleLeg { id: leg, mut records, .. } = *idle;
        if let Some(remote) = &mut self.remote {
            if remote.legs.unbind(&mut remote.log, leg, &mut records) {
                return; // it is released when the client has its response
            }
            if !remote.closed {
                remote.log.push(Entry::Bound(None));
            }
            records = None; // no close_notify: the backups could still seal a request under its nonce
        }
        io.effects.push(Effect::Release { leg, clean: true, spent: true, records, over: false });
    }

    /// The idle bound leg cannot be used: its server has ended it or sent something, or the worker does not send
    /// requests to that server any more. Also the answer to an [`Effect::Dial`] that names it.
    pub fn handle_bound_lost(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        self.lose_bound(io);
        self.finish_call(io);
    }

    pub(crate) fn lose_bound(&mut self, io: &mut Io<'_>) {
        let challenged = self.servers.bound.as_ref().is_some_and(|idle| idle.binding == Binding::Challenged);
        self.release_bound(io);
        let dedicated = self.servers.leg.as_ref().is_some_and(|leg| self.dedicates_legs(leg.pool));
        let carrier = match &mut self.servers.leg {
            Some(leg) if !leg.is_open() => {
                leg.attempt.reuse &= !dedicated;
                std::mem::take(&mut leg.attempt.carrier)
            }
            _ => Carrier::Any,
        };
        match carrier {
            Carrier::Handshake => self.break_handshake(io),
            Carrier::Bound => {
                self.dial(io);
                self.arm(Timer::Connect, io.now);
            }
            Carrier::Any if challenged && self.servers.leg.is_none() => self.end_orderly(io, ""),
            Carrier::Any => {}
        }
    }

    /// With backups: the server had not acknowledged the whole request when its response arrived, so no other node can
    /// continue with the leg.
    pub(crate) fn end_unsettled_bound(&mut self, io: &mut Io<'_>) {
        if self.remote.as_mut().is_some_and(|remote| std::mem::take(&mut remote.legs.bound_lost)) {
            self.servers.bound = None;
            self.end_orderly(io, "");
        }
    }

    /// The server connection of a handshake is lost in the middle.
    fn break_handshake(&mut self, io: &mut Io<'_>) {
        self.exchange.last_response = true;
        self.give_up(io, 502, "upstream_lost");
    }

    /// The idle bound leg of a connection that another node had.
    pub(crate) fn restore_bound(
        &mut self,
        state: &ConnectionState,
        io: &mut Io<'_>,
    ) -> Result<Option<ResumedLeg>, &'static str> {
        let Some(bound) = state.bound.as_deref().filter(|_| !self.end.is_closing() && !self.end.is_closed())
        else {
            return Ok(None);
        };
        let place = self.snapshot.find_place(bound.route.place);
        let binding = match bound.challenged {
            true => Binding::Challenged,
            false if bound.route.flags.bound => Binding::Bound,
            false => Binding::Dedicated,
        };
        let Some((pool, server)) = place else {
            if binding == Binding::Challenged {
                self.end_orderly(io, "");
            }
            return Ok(None); // its server is not in this configuration
        };
        let mut route = bound.route.clone();
        (route.pool, route.server) = (pool, server);
        let records = route.tls.take().map(|tls| imported(&tls)).transpose()?;
        if self.snapshot.pools[pool as usize].tls.is_some() != records.is_some() {
            return Err("tls of a bound leg");
        }
        let (id, place) = (route.leg, route.place);
        self.servers.bound = Some(Box::new(IdleLeg { id, place, binding, records }));
        Ok(Some(ResumedLeg { route, input: bound.input, output: bound.output }))
    }
}

/// What backups hold of a leg that idles from now on.
fn idle_state(leg: &ServerLeg, place: u64) -> BoundLeg {
    let (input, output) = (leg.in_pos, leg.out_pos);
    let tls = leg.tls.layer.as_ref().map(|records| {
        let mut state = Vec::new();
        records.export().encode(&mut state);
        Box::new(LegTls { records: state, consumed: input, sent: output, flight: Vec::new() })
    });
    let route = Route {
        exchange: leg.route.exchange,
        answered: leg.route.answered,
        leg: leg.id,
        generation: leg.route.generation,
        pool: leg.pool,
        server: leg.route.server,
        place,
        rules: Vec::new(),
        offer: Vec::new(),
        shape: 0,
        flags: RouteFlags { bound: leg.binding >= Binding::Bound, ..leg.route.flags },
        looked_at: 0,
        hash: 0,
        tls,
    };
    BoundLeg { route, input, output, challenged: leg.binding == Binding::Challenged }
}

fn imported(tls: &LegTls) -> Result<Box<Records>, &'static str> {
    let state = RecordsState::decode(&tls.records).map_err(|_| "record state of a bound leg")?;
    Records::import(&state).map(Box::new).map_err(|_| "record keys of a bound leg")
}
