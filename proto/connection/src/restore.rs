//! A connection from nothing but what a backup holds.
//!
//! The restored connection stands at the checkpoints: the client sends again from [`Connection::client_frontier`], each
//! server from its leg's frontier, and output starts at the positions that the peers last acknowledged to us. What was
//! decided after that (boundaries, routes, answers of our own) is repeated as decided.

use crate::bound::{Binding, Carrier};
use crate::client_leg::ClientTls;
use crate::close::ends;
use crate::connection::{Accepted, Connection, kind_of};
use crate::exchange::{RequestState, ResponseState, first_state};
use crate::handshake::beyond_flights;
use crate::replication::Replication;
use crate::request::CONTINUE;
use crate::server_leg::ServerLeg;
use crate::tls_info::TlsInfo;
use crate::{Io, ServerHint, Snapshot};
use evergate_base::Protocol;
use evergate_http::Body;
use evergate_replication::{ConnectionState, Hello, Open, Phase, RecordKind, RecordPosition, Route};
use evergate_tls::{Handshake, HandshakeParams, Position, Progress, Records, RecordsState};
use std::sync::Arc;

/// Why a connection cannot be restored; it must be reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The entries do not begin with an opening.
    Unknown,
    /// It had already ended by RST.
    Aborted,
    /// Its listener does not exist here, or has another protocol.
    Listener(String),
    /// A handshake or a request can only be continued under the configuration that it began with: see
    /// [`evergate_replication::ConnectionState::generation`].
    Generation {
        /// The connection's.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// The entries contradict each other; the text names the place.
    Inconsistent(&'static str),
}

/// A server leg that must be restored with its connection: that of a request under way, or the idle bound one
/// ([`Connection::bound_leg`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumedLeg {
    /// The decision that made it.
    pub route: Route,
    /// Input position from which the server sends again.
    pub input: u64,
    /// Output position from which we send again.
    pub output: u64,
}

impl Connection {
    /// Rebuilds a connection. `fresh` identifies it, and is used where no handshake was replicated; its listener is
    /// ignored. The call performs output of its own: collect it from `io` as after any call, then pass the peers' bytes
    /// from the frontiers on.
    pub fn restore(
        snapshot: &Arc<Snapshot>,
        state: &ConnectionState,
        fresh: &Accepted,
        io: &mut Io<'_>,
    ) -> Result<(Connection, Option<ResumedLeg>), RestoreError> {
        let open = state.open.as_ref().ok_or(RestoreError::Unknown)?;
        if matches!(state.closed, Some((_, true))) {
            return Err(RestoreError::Aborted);
        }
        if !state.is_in_order() {
            return Err(RestoreError::Inconsistent("a request behind an undecided exchange"));
        }
        let listener = snapshot
            .listener_index(&open.listener)
            .filter(|index| {
                let protocol = snapshot.listeners[*index as usize].protocol;
                (kind_of(protocol), protocol.is_tls()) == (open.kind, open.tls)
            })
            .ok_or_else(|| RestoreError::Listener(open.listener.clone()))?;
        let mut accepted = Accepted { listener, ..fresh.clone() };
        if let Some((client, served)) = open.proxied {
            accepted = Accepted { client, local: served, proxy: Some(fresh.client), ..accepted };
        }
        let mut connection = Connection::new(snapshot, &accepted, io.now);
        connection.remote = Some(Box::new(Replication::of(state)));
        connection.servers.next = state.last_leg + 1;
        let done = open.tls && connection.restore_tls(state, open, io)?;
        connection.restore_positions(state)?;
        if done {
            if !state.routes.is_empty() {
                return Err(RestoreError::Inconsistent("a route before the end of the handshake"));
            }
            connection.finish_handshake(io, Vec::new()); // its last flight was sent just now
        }
        connection.restore_stash(state);
        let resumed = match connection.is_handshaking() {
            true => None,
            false => {
                connection.restore_ends(state, io);
                connection.restore_leg(state, io)?
            }
        };
        if !connection.end.is_closing() && !connection.end.is_closed() {
            let timer = connection.natural_timer();
            connection.arm(timer, io.now);
        }
        connection.finish_call(io);
        Ok((connection, resumed))
    }

    /// Raw client input from which the client must send again.
    pub fn client_frontier(&self) -> u64 {
        self.client.in_pos + self.client.raw.len() as u64
    }

    /// Cipher output position of the next byte that is made.
    pub fn output_position(&self) -> u64 {
        self.client.out_pos
    }

    /// Puts the record layer or the handshake back; whether the handshake is done but not known to be.
    fn restore_tls(
        &mut self,
        state: &ConnectionState,
        open: &Open,
        io: &mut Io<'_>,
    ) -> Result<bool, RestoreError> {
        match (&state.hello, &state.established) {
            (None, None) => {
                if !state.generated.is_empty() || state.closed.is_some() {
                    self.client.tls = ClientTls::Plain; // a client without TLS has been answered in clear
                    if let Some(remote) = &mut self.remote {
                        remote.replay.end_at = state.closed.map(|(end, _)| end);
                    }
                }
                Ok(false)
            }
            (Some(hello), _) => self.shake_again(hello, state, open, io),
            (None, Some(established)) => {
                let exported = RecordsState::decode(&established.records)
                    .map_err(|_| RestoreError::Inconsistent("record state"))?;
                let records =
                    Records::import(&exported).map_err(|_| RestoreError::Inconsistent("record keys"))?;
                self.client.info = TlsInfo::decode(&established.facts).map(Box::new);
                self.feed_envelope(io);
                self.client.tls = ClientTls::Open(Box::new(records));
                self.client.out_pos = established.sent;
                Ok(false)
            }
        }
    }

    /// Replays the handshake from the client's input; whether it is complete but not known to be.
    fn shake_again(
        &mut self,
        hello: &Hello,
        state: &ConnectionState,
        open: &Open,
        io: &mut Io<'_>,
    ) -> Result<bool, RestoreError> {
        let mut handshake = self.handshake_of(hello, open.generation)?;
        let mut flight = Vec::new();
        let outcome = handshake.handle_input(&hello.bytes, &mut flight);
        let whole = state.established.is_some() || state.closed.is_some();
        let Some(more) = beyond_flights(&flight, &hello.flights, whole) else {
            self.end_abruptly(io, "handshake_replay_mismatch"); // it would share nonces with what may have left
            return Ok(false);
        };
        if let Some(remote) = &mut self.remote {
            remote.replicate_flight(more);
        }
        self.send_wire(io, &flight);
        match outcome {
            Ok(_) if state.established.is_some() => {
                let finished = handshake.finish().map_err(|_| RestoreError::Inconsistent("finish"))?;
                self.note_session(io, finished.facts, finished.session);
                let facts = state.established.as_ref().and_then(|known| TlsInfo::decode(&known.facts));
                self.seal(io, finished.audit, facts.and_then(|facts| facts.sealed));
                self.client.tls = ClientTls::Open(Box::new(finished.records));
                self.note_record_end();
                Ok(false)
            }
            Ok(progress) => {
                self.client.tls = ClientTls::Shaking(Box::new(handshake));
                Ok(progress == Progress::Done)
            }
            Err(error) => {
                self.client.tls = ClientTls::Shaking(Box::new(handshake));
                self.end_handshake(io, &error);
                Ok(false)
            }
        }
    }

    /// The handshake that the hello began, before it has read anything.
    fn handshake_of(&self, hello: &Hello, generation: u64) -> Result<Handshake, RestoreError> {
        let params = HandshakeParams {
            secret: hello.secret,
            accepted_unix_s: hello.accepted_unix_s,
            generation,
            client: self.client_address,
            local: self.local_address,
        };
        self.check_generation(generation)?;
        let config = self.listener().tls.clone().ok_or(RestoreError::Inconsistent("no tls configuration"))?;
        let mut handshake =
            Handshake::new(&config, &params).map_err(|_| RestoreError::Inconsistent("handshake"))?;
        if let Some(found) = &hello.found {
            handshake.resume_from(found.clone());
        }
        if self.listener().audit.seals() {
            handshake.audit();
        }
        Ok(handshake)
    }

    fn check_generation(&self, theirs: u64) -> Result<(), RestoreError> {
        let ours = self.snapshot.generation;
        if theirs == ours { Ok(()) } else { Err(RestoreError::Generation { theirs, ours }) }
    }

    fn restore_positions(&mut self, state: &ConnectionState) -> Result<(), RestoreError> {
        let (client, server) = (&state.client, &state.server);
        self.client.in_pos = client.input;
        if let ClientTls::Open(records) = &mut self.client.tls {
            let (rx, tx) = (at(client.rx), at(server.tx));
            let far = RestoreError::Inconsistent("record position");
            if rx > records.rx() {
                records.seek_rx(rx).map_err(|_| far.clone())?;
            }
            if tx > records.tx() {
                records.seek_tx(tx).map_err(|_| far)?;
            }
        }
        if server.output > self.client.out_pos {
            self.client.out_pos = server.output;
        }
        self.client.plain_pos = server.plain;
        self.exchange.restore_numbers(client.exchange, server.exchange);
        self.client.answered_keys = answered_of(state);
        if self.is_handshaking() || self.end.is_closing() {
            return Ok(());
        }
        let protocol = self.listener().protocol;
        self.exchange.receiving = receiving_of(&client.phase, protocol)?;
        self.exchange.answering = answering_of(&server.phase, protocol.is_http())?;
        if matches!(self.exchange.answering, ResponseState::Tunnel | ResponseState::Ended)
            && self.exchange.receiving == RequestState::Head
            && self.exchange.is_request_whole()
        {
            self.exchange.receiving = RequestState::Tunnel;
        }
        // A tunnel's server may have ended before the client's request for the tunnel is known as read: that input
        // comes again.
        let asked = state.routes.get(&self.exchange.number()).is_some_and(|route| !route.offer.is_empty());
        let comes_again = asked && self.exchange.order().is_eq();
        if (self.exchange.answering, self.exchange.receiving) == (ResponseState::Ended, RequestState::Head)
            && !comes_again
        {
            return Err(RestoreError::Inconsistent("a request after the end"));
        }
        self.pass_over_answered();
        Ok(())
    }

    /// Of a request that is answered the rest comes again and is passed over.
    fn pass_over_answered(&mut self) {
        if let (true, RequestState::Body(body)) = (self.exchange.is_answered(), self.exchange.receiving) {
            self.exchange.receiving = RequestState::Skip(body);
        }
    }

    /// Answers of our own that the client may not have, and ends that were decided.
    fn restore_ends(&mut self, state: &ConnectionState, io: &mut Io<'_>) {
        while let Some((bytes, close)) =
            state.generated.get(&self.exchange.number()).filter(|_| !self.end.is_closing())
        {
            self.emit_generated(io, bytes, *close);
            self.pass_over_answered();
        }
        let end_waits = match self.client.tls {
            ClientTls::Plain => state.closed.is_some_and(|(end, _)| self.client.plain_pos < end),
            _ => state
                .boundaries
                .iter()
                .any(|boundary| matches!(boundary.kind, RecordKind::Alert(description) if ends(description))),
        };
        if self.end.is_closing() || end_waits {
            return;
        }
        if state.closed.is_some() {
            self.end_after_alert(io, ""); // the client has everything but the FIN
        } else if self.exchange.answering == ResponseState::Ended {
            self.shutdown_client(io);
        }
    }

    /// The leg that the response under way, or the tunnel, lies on; without one a tunnel is opened.
    fn restore_leg(
        &mut self,
        state: &ConnectionState,
        io: &mut Io<'_>,
    ) -> Result<Option<ResumedLeg>, RestoreError> {
        if self.end.is_closing() {
            return Ok(None);
        }
        let Some(mut route) = state.routes.get(&self.exchange.number()).cloned() else {
            match self.exchange.receiving {
                RequestState::Tunnel if self.listener().protocol.is_greeted() => {
                    return Err(RestoreError::Inconsistent("a tunnel without its decision"));
                }
                RequestState::Tunnel if self.servers.leg.is_none() => self.open_tunnel(io),
                RequestState::Greeting if state.client.input > 0 => {
                    return Err(RestoreError::Inconsistent("input before the hello"));
                }
                RequestState::Greeting => self.resume_client(io),
                _ => {}
            }
            self.frame_decided(io);
            return self.restore_bound(state, io).map_err(RestoreError::Inconsistent);
        };
        self.check_generation(route.generation)?;
        if self.exchange.receiving == RequestState::Greeting {
            self.exchange.receiving = RequestState::Tunnel; // the hello has decided
        }
        let http = self.listener().protocol.is_http();
        let begins = self.exchange.order().is_eq() && self.exchange.receiving == RequestState::Head;
        let begun = state.server.leg == route.leg;
        let tls = route.tls.take(); // the secrets are in no further copy
        let rules = self.snapshot.find_rules(&route);
        let mut leg = ServerLeg::new(route.clone(), rules, ServerHint::Policy, false);
        leg.decided = true;
        leg.restored = true;
        leg.binding = match route.flags.bound {
            true => Binding::Bound,
            false => self.binding_to(route.pool, Carrier::Any),
        };
        leg.pending.awaits_head = http && (begins || self.exchange.is_answered());
        if begun {
            leg.in_pos = state.server.input;
            leg.response.answered = true;
            // The head is not parsed again: a server that closes a bound leg also shows that by its end.
            leg.response.keep_alive = route.flags.bound;
        }
        if !leg.pending.awaits_head && state.client.leg == route.leg {
            leg.out_pos = state.client.output;
        }
        let pool = self.snapshot.pools.get(route.pool as usize);
        match (pool.map(|pool| pool.tls.is_some()), &tls) {
            (Some(true), Some(tls)) => {
                leg.restore_tls(state, &route, tls).map_err(RestoreError::Inconsistent)?
            }
            (Some(false), None) => {}
            _ => return Err(RestoreError::Inconsistent("pool of a route")),
        }
        if let Some(stash) = state.server_stash.get(&route.leg) {
            leg.pending.stashed = stash.bytes.clone();
        }
        leg.pending.ends_at = state.server_ends.get(&route.leg).copied();
        let endless = match self.exchange.answering {
            ResponseState::Body(Body::UntilClose) => true,
            ResponseState::Body(Body::Chunked(_)) => route.flags.http10, // loses its framing
            _ => false,
        };
        self.exchange.last_response =
            route.flags.close || endless || (http && self.exchange.receiving == RequestState::Ended);
        let input = leg.in_pos + leg.pending.stashed.len() as u64;
        let output = leg.out_pos;
        if let Some(remote) = &mut self.remote {
            remote.acks.restore_server(route.leg, output); // what is behind a checkpoint, the server has
        }
        self.continue_log(io, &route, &leg.rules);
        self.servers.leg = Some(Box::new(leg));
        self.resume_deterministic();
        if route.flags.continued && !begun {
            self.frame(io, CONTINUE);
        }
        self.frame_decided(io);
        Ok(self.servers.leg.as_ref().map(|_| ResumedLeg { route, input, output }))
    }

    fn restore_stash(&mut self, state: &ConnectionState) {
        let Some(remote) = &mut self.remote else { return };
        let stash = &state.client_stash.bytes;
        remote.client_input.skip = u64::from(state.client.used);
        remote.client_input.retained.append(state.client.input, stash);
        match self.client.tls {
            ClientTls::Plain => {
                self.client.in_pos += stash.len() as u64;
                if self.exchange.receiving != RequestState::Ended {
                    self.client.plain = stash.clone();
                }
            }
            _ => self.client.raw = stash.clone(),
        }
    }
}

pub(crate) fn at(position: RecordPosition) -> Position {
    Position { generation: position.generation, sequence: position.sequence }
}

fn body_of(code: &[u8]) -> Result<Body, RestoreError> {
    let mut rest = code;
    Body::decode(&mut rest).filter(|_| rest.is_empty()).ok_or(RestoreError::Inconsistent("body position"))
}

fn receiving_of(phase: &Phase, protocol: Protocol) -> Result<RequestState, RestoreError> {
    Ok(match phase {
        Phase::Head => first_state(protocol),
        Phase::Tunnel => RequestState::Tunnel,
        Phase::Body(code) => RequestState::Body(body_of(code)?),
        Phase::Ended => RequestState::Ended,
    })
}

fn answering_of(phase: &Phase, http: bool) -> Result<ResponseState, RestoreError> {
    Ok(match phase {
        Phase::Head if http => ResponseState::Head,
        Phase::Head | Phase::Tunnel => ResponseState::Tunnel,
        Phase::Body(code) => ResponseState::Body(body_of(code)?),
        Phase::Ended => ResponseState::Ended,
    })
}

/// The client's key generation that decided records answer, so that no KeyUpdate is answered twice.
pub(crate) fn answered_of(state: &ConnectionState) -> u32 {
    let decided = state.boundaries.iter().filter_map(|boundary| match boundary.kind {
        RecordKind::KeyUpdate(answers) => Some(answers),
        _ => None,
    });
    decided.max().unwrap_or(0).max(state.server.answered_keys)
}
