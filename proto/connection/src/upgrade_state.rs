//! State of a connection on its way to another process of the same node, with its sockets.
//!
//! It differs from a replica. A replica is made of input that peers resend, and a node that continues it repeats the
//! decisions. In an upgrade the sockets move too: input that was read is acknowledged and never comes again, written
//! output is on its way, and nothing is decided twice. The value is therefore the whole state itself.
//!
//! Invariants:
//! - A state is exported between two calls, when the effects of the last one are performed. Every byte is then in one
//!   place: in the kernel, whose socket moves too, or in the state (read and not used, or made and not written).
//! - The imported connection answers every later call as the exported one would have.
//! - Both processes read the same clock, so that deadlines stay, and serve the same configuration. Pools and servers
//!   are named all the same: a request may have begun under an older configuration.
//! - A connection that waits for an event of this process (a handshake, a server being connected) stays until that is
//!   over; [`Connection::export`] names the reason.

mod check;
mod log;

use self::log::Log;
use crate::bound::{Binding, Carrier, IdleLeg};
use crate::client_leg::{ClientLeg, ClientTls};
use crate::close::End;
use crate::connection::{Accepted, Connection};
use crate::exchange::{RequestState, ResponseState};
use crate::routing::encode_body;
use crate::server_leg::{LegState, ServerLeg};
use crate::server_legs::ServerLegs;
use crate::timers::{Deadline, Timer};
use crate::tls_info::TlsInfo;
use crate::{Outlet, ServerHint, Snapshot};
use evergate_base::Micros;
use evergate_http::Body;
use evergate_replication::{ConnectionId, Route};
use evergate_tls::{Records, RecordsState};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Version of the format. Each format has its own number: a process with another version must not get connections.
pub const UPGRADE_STATE_VERSION: u32 = 12;
/// Longest state, in bytes: outlets, and a body that the rules have to see.
pub const UPGRADE_STATE_BYTES_MAX: usize = 1 << 24;

/// Reason why a state cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradeStateError {
    /// Not a state of this version.
    Malformed,
    /// The configuration here lacks what it names.
    Missing(String),
    /// Its parts do not fit together; the text names the place.
    Inconsistent(&'static str),
}

/// The server leg of a connection of an upgrade state: that of a request under way, or the idle bound one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpgradeLeg {
    /// Number of the leg.
    pub leg: u32,
    /// Pool, as an index of the snapshot.
    pub pool: u32,
    /// Server, as an index of the pool. Nothing while the request waits for one: [`Connection::handle_leg_resumed`].
    pub server: Option<u32>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct UpgradeState {
    id: ConnectionId,
    listener: String,
    client: SocketAddr,
    local: SocketAddr,
    proxy: Option<SocketAddr>,
    tls: Tls,
    facts: Option<Vec<u8>>,
    raw: Vec<u8>,
    plain: Vec<u8>,
    scanned: usize,
    receiving: Stage,
    answering: Stage,
    request: u32,
    response: u32,
    leg: Option<Leg>,
    bound: Option<Idle>,
    next_leg: u32,
    tickets: Vec<u8>,
    down: Vec<u8>,
    up: Vec<u8>,
    in_pos: u64,
    out_pos: u64,
    plain_pos: u64,
    answered: u32,
    client_ended: bool,
    last_response: bool,
    closing: bool,
    deaf: bool,
    down_ended: bool,
    continued: bool,
    request_client: Option<IpAddr>,
    timer: Timer,
    deadline: u64,
    moved: u64,
    status: u16,
    log: Option<Log>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Tls {
    Plain,
    /// Nothing is answered yet; what there is of the hello is in `raw`.
    Hello {
        secret: [u8; 32],
        accepted_unix_s: u64,
    },
    Open(Vec<u8>),
}

/// Where a direction stands; bodies as the HTTP crate writes them.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Stage {
    Greeting,
    Head,
    Prefix,
    Body(Vec<u8>),
    Skip(Vec<u8>),
    Tunnel,
    Ended,
}

/// A server leg that is open, or waits in the worker's queue.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Leg {
    pool: String,
    /// Nothing while it waits.
    server: Option<String>,
    queued_until: u64,
    route: Route,
    hint: ServerHint,
    reuse: bool,
    connects: bool,
    tried: Vec<u32>,
    retries: u32,
    idempotent: bool,
    sent: Vec<u8>,
    head_bytes: usize,
    written: bool,
    body_bytes: u64,
    held: Vec<u8>,
    answered: bool,
    keep_alive: bool,
    ended: bool,
    in_pos: u64,
    out_pos: u64,
    raw: Vec<u8>,
    records: Option<Vec<u8>>,
    answered_keys: u32,
    up_ended: bool,
    never_left: bool,
    in_doubt: bool,
    binding: Binding,
    carrier: Carrier,
}

/// The bound leg that idles.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Idle {
    leg: u32,
    place: u64,
    binding: Binding,
    records: Option<Vec<u8>>,
}

impl Connection {
    /// The connection's state for a process that serves the configuration `newest`. The connection must be dropped
    /// afterwards, without a call. An error names, as a key, why the connection has to stay for now.
    pub fn export(&self, newest: &Snapshot) -> Result<Vec<u8>, &'static str> {
        self.all_fields_are_exported();
        if self.remote.is_some() {
            return Err("replicated");
        }
        if self.end.is_closed() {
            return Err("closed");
        }
        let older = self.snapshot.generation != newest.generation;
        let known = newest.listener_index(&self.listener().name);
        let known = known.and_then(|index| newest.listeners.get(index as usize));
        if known.is_none_or(|known| known.protocol != self.listener().protocol) {
            return Err("older_configuration");
        }
        let tls = match &self.client.tls {
            ClientTls::Plain => Tls::Plain,
            ClientTls::Hello(fresh) => Tls::Hello { secret: *fresh.0, accepted_unix_s: fresh.1 },
            ClientTls::Shaking(_) => return Err("handshake"),
            ClientTls::Open(records) if !records.is_between_messages() => return Err("message"),
            ClientTls::Open(records) => Tls::Open(exported(records)),
        };
        let leg = self.servers.leg.as_ref().map(|leg| self.export_leg(leg, newest, older)).transpose()?;
        let upgrade_state = UpgradeState {
            id: self.id,
            listener: self.listener().name.clone(),
            client: self.client_address,
            local: self.local_address,
            proxy: self.proxy,
            tls,
            facts: self.client.info.as_ref().map(|facts| facts.encode()),
            raw: self.client.raw.clone(),
            plain: self.client.plain.clone(),
            scanned: self.client.scanned,
            receiving: stage_of_receiving(self.exchange.receiving),
            answering: stage_of_answering(self.exchange.answering),
            request: self.exchange.request(),
            response: self.exchange.number(),
            leg,
            bound: self.servers.bound.as_ref().and_then(|idle| export_idle(idle, newest)),
            next_leg: self.servers.next,
            tickets: self.client.tickets.clone(),
            down: self.client.outlet.contents(),
            up: self.servers.outlet.contents(),
            in_pos: self.client.in_pos,
            out_pos: self.client.out_pos,
            plain_pos: self.client.plain_pos,
            answered: self.client.answered_keys,
            client_ended: self.client.ended,
            last_response: self.exchange.last_response,
            closing: self.end.is_closing(),
            deaf: self.client.ignores_input,
            down_ended: self.end.is_sent(),
            continued: self.exchange.continued,
            request_client: self.exchange.client,
            timer: self.deadline.timer,
            deadline: self.deadline.at.0,
            moved: self.deadline.moved,
            status: self.exchange.status.0,
            log: self.exchange.log.as_ref().map(|log| Log::of(log)),
        };
        match postcard::to_allocvec(&upgrade_state) {
            Ok(bytes) if bytes.len() <= UPGRADE_STATE_BYTES_MAX => Ok(bytes),
            _ => Err("too_large"),
        }
    }

    /// Does not compile when a connection or a leg has another field: the field must enter the state too, and
    /// [`UPGRADE_STATE_VERSION`] must rise.
    #[rustfmt::skip]
    fn all_fields_are_exported(&self) {
        let Connection {
            id: _, snapshot: _, listener: _, client_address: _, local_address: _, proxy: _, client, servers, exchange,
            end: _, deadline, remote: _,
            greeting: _, // its hello is in `plain`; the handshake behind it is not read on
            pipes: _, // the pipes move too: the worker reports what they hold, and modes begin again
        } = self;
        exchange.all_fields_are_exported();
        let ClientLeg {
            tls: _, info: _, raw: _, plain: _, scanned: _, in_pos: _, out_pos: _, plain_pos: _, answered_keys: _,
            tickets: _, outlet: _, ended: _, ignores_input: _,
            done: _, // unknown to the next process, which waits for the client's end
        } = client;
        let Deadline {
            timer: _, at: _, moved: _,
            began: _, // follows from the deadline
            acked: _, // begins again
        } = deadline;
        let ServerLegs { leg, bound: _, next: _, outlet: _ } = servers;
        let Some(leg) = leg else { return };
        leg.all_fields_are_exported();
    }

    fn export_leg(&self, leg: &ServerLeg, newest: &Snapshot, older: bool) -> Result<Leg, &'static str> {
        let waits = leg.is_unconnected() && leg.attempt.is_queued() && !leg.decided;
        if !(leg.is_open() || waits)
            || !leg.pending.stashed.is_empty()
            || leg.pending.awaits_head
            || leg.restored
        {
            return Err("connecting");
        }
        if leg.tls.layer.as_ref().is_some_and(|records| !records.is_between_messages()) {
            return Err("message");
        }
        let mut route = leg.route.clone();
        (route.rules, route.shape) = (self.snapshot.marks(&leg.rules), self.listener().shape());
        // Until the response's head has come, rules that decided have a part in it.
        if older
            && self.exchange.answering == ResponseState::Head
            && !newest.makes_response(&self.listener().name, &route)
        {
            return Err("older_configuration");
        }
        let (pool, server) = if waits {
            (self.snapshot.pools.get(leg.pool as usize).map(|pool| pool.name.as_str()), None)
        } else {
            names(&self.snapshot, leg.pool, leg.route.server).unzip()
        };
        let pool = pool.ok_or("older_configuration")?;
        find(newest, pool, server).ok_or("older_configuration")?;
        Ok(Leg {
            pool: pool.to_owned(),
            server: server.map(str::to_owned),
            queued_until: leg.attempt.queued_until.map_or(0, |until| until.0),
            route,
            hint: if older && matches!(leg.attempt.hint, ServerHint::Server(_)) {
                ServerHint::Policy
            } else {
                leg.attempt.hint
            },
            reuse: leg.attempt.reuse,
            connects: leg.attempt.connects,
            tried: if older { Vec::new() } else { leg.attempt.tried.clone() },
            retries: leg.attempt.retries,
            idempotent: leg.request.idempotent,
            sent: leg.request.bytes.clone(),
            head_bytes: leg.request.head_bytes,
            written: leg.request.written,
            body_bytes: leg.request.body_bytes,
            held: leg.response.held.clone(),
            answered: leg.response.answered,
            keep_alive: leg.response.keep_alive,
            ended: leg.response.ended,
            in_pos: leg.in_pos,
            out_pos: leg.out_pos,
            raw: leg.tls.raw.clone(),
            records: leg.tls.layer.as_ref().map(|records| exported(records)),
            answered_keys: leg.tls.answered_keys,
            up_ended: leg.tls.up_ended,
            never_left: leg.request.never_left,
            in_doubt: leg.request.in_doubt,
            binding: leg.binding,
            carrier: leg.attempt.carrier,
        })
    }

    /// The connection of a state. No call is due: it waits for its peers, and for its deadline.
    pub fn import(
        snapshot: &Arc<Snapshot>,
        bytes: &[u8],
    ) -> Result<(Connection, Option<UpgradeLeg>), UpgradeStateError> {
        if bytes.len() > UPGRADE_STATE_BYTES_MAX {
            return Err(UpgradeStateError::Malformed);
        }
        let (upgrade_state, rest): (UpgradeState, _) =
            postcard::take_from_bytes(bytes).map_err(|_| UpgradeStateError::Malformed)?;
        if !rest.is_empty() {
            return Err(UpgradeStateError::Malformed);
        }
        upgrade_state.check()?;
        let listener = snapshot
            .listener_index(&upgrade_state.listener)
            .ok_or_else(|| UpgradeStateError::Missing(format!("listener \"{}\"", upgrade_state.listener)))?;
        let secure = snapshot.listeners[listener as usize].protocol.is_tls();
        let (secret, unix_s) = match &upgrade_state.tls {
            Tls::Hello { secret, accepted_unix_s } => (*secret, *accepted_unix_s),
            _ => ([0; 32], 0),
        };
        let accepted = Accepted {
            id: upgrade_state.id,
            listener,
            client: upgrade_state.client,
            local: upgrade_state.local,
            proxy: upgrade_state.proxy,
            unix_s,
            secret,
        };
        let mut connection = Connection::new(snapshot, &accepted, Micros(0));
        match &upgrade_state.tls {
            Tls::Plain => connection.client.tls = ClientTls::Plain,
            Tls::Hello { .. } if secure => {}
            Tls::Open(state) if secure => connection.client.tls = ClientTls::Open(imported(state)?),
            _ => return Err(UpgradeStateError::Inconsistent("TLS on a listener without it")),
        }
        if upgrade_state.receiving == Stage::Greeting
            && !snapshot.listeners[listener as usize].protocol.is_greeted()
        {
            return Err(UpgradeStateError::Inconsistent("greeting on a listener without it"));
        }
        let leg = upgrade_state.leg.as_ref().map(|leg| import_leg(snapshot, leg)).transpose()?;
        let resumed =
            leg.as_ref().map(|leg| UpgradeLeg { leg: leg.id, pool: leg.pool, server: leg.attempt.trying });
        connection.servers.leg = leg.map(Box::new);
        let idle = upgrade_state.bound.as_ref().map(|idle| import_idle(snapshot, idle)).transpose()?;
        let (idle, bound) = idle.unzip();
        connection.servers.bound = idle.map(Box::new);
        connection.unpack(upgrade_state)?;
        Ok((connection, resumed.or(bound)))
    }

    fn unpack(&mut self, upgrade_state: UpgradeState) -> Result<(), UpgradeStateError> {
        let facts = upgrade_state
            .facts
            .map(|facts| TlsInfo::decode(&facts).ok_or(UpgradeStateError::Inconsistent("session")));
        self.client.info = facts.transpose()?.map(Box::new);
        self.client.raw = upgrade_state.raw;
        self.client.plain = upgrade_state.plain;
        self.client.scanned = upgrade_state.scanned;
        self.exchange.receiving = receiving_of(&upgrade_state.receiving)?;
        self.exchange.answering = answering_of(&upgrade_state.answering)?;
        self.exchange.restore_numbers(upgrade_state.request, upgrade_state.response);
        self.servers.next = upgrade_state.next_leg;
        self.client.tickets = upgrade_state.tickets;
        self.client.outlet.push(upgrade_state.down, 0);
        self.servers.outlet.push(upgrade_state.up, 0);
        self.client.in_pos = upgrade_state.in_pos;
        self.client.out_pos = upgrade_state.out_pos;
        self.client.plain_pos = upgrade_state.plain_pos;
        self.client.answered_keys = upgrade_state.answered;
        self.client.ended = upgrade_state.client_ended;
        self.exchange.last_response = upgrade_state.last_response;
        self.end = End::of(upgrade_state.closing, upgrade_state.down_ended);
        self.client.ignores_input = upgrade_state.deaf;
        self.exchange.continued = upgrade_state.continued;
        self.exchange.client = upgrade_state.request_client;
        self.deadline.timer = upgrade_state.timer;
        self.deadline.at = Micros(upgrade_state.deadline);
        self.deadline.moved = upgrade_state.moved;
        self.deadline.began = self.deadline.at - self.span(self.deadline.timer, Micros(0));
        self.exchange.status = (upgrade_state.status, "");
        self.exchange.status_pool = self.servers.leg.as_ref().map(|leg| leg.pool);
        self.exchange.log = upgrade_state.log.map(|log| Box::new(log.into_line(&self.snapshot)));
        self.read_greeting_again();
        self.log_client();
        Ok(())
    }
}

impl Outlet {
    /// Everything that waits, in order.
    fn contents(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| all.extend_from_slice(piece));
        all
    }
}

fn exported(records: &Records) -> Vec<u8> {
    let mut state = Vec::new();
    records.export().encode(&mut state);
    state
}

fn imported(state: &[u8]) -> Result<Box<Records>, UpgradeStateError> {
    let state = RecordsState::decode(state).map_err(|_| UpgradeStateError::Inconsistent("record state"))?;
    let records = Records::import(&state).map_err(|_| UpgradeStateError::Inconsistent("record keys"))?;
    Ok(Box::new(records))
}

fn names(snapshot: &Snapshot, pool: u32, server: u32) -> Option<(&str, &str)> {
    let pool = snapshot.pools.get(pool as usize)?;
    Some((&pool.name, &pool.servers.get(server as usize)?.name))
}

/// The pool, and the server if one is named.
fn find(snapshot: &Snapshot, pool: &str, server: Option<&str>) -> Option<(u32, Option<u32>)> {
    let index = snapshot.pools.iter().position(|known| known.name == pool)?;
    let Some(server) = server else { return Some((index as u32, None)) };
    let server = snapshot.pools[index].servers.iter().position(|known| known.name == server)?;
    Some((index as u32, Some(server as u32)))
}

fn import_leg(snapshot: &Snapshot, upgrade_state: &Leg) -> Result<ServerLeg, UpgradeStateError> {
    let name = upgrade_state.server.as_deref();
    let (pool, server) = find(snapshot, &upgrade_state.pool, name).ok_or_else(|| {
        UpgradeStateError::Missing(format!("server {}/{}", upgrade_state.pool, name.unwrap_or_default()))
    })?;
    let mut route = upgrade_state.route.clone();
    (route.pool, route.server, route.generation) = (pool, server.unwrap_or(u32::MAX), snapshot.generation);
    let rules = snapshot.find_rules(&route);
    let mut leg = ServerLeg::new(route, rules, upgrade_state.hint, upgrade_state.idempotent);
    if server.is_some() {
        leg.state = LegState::Open;
        leg.decided = true;
    } else {
        leg.attempt.queued_until = Some(Micros(upgrade_state.queued_until));
    }
    leg.attempt.reuse = upgrade_state.reuse;
    leg.attempt.connects = upgrade_state.connects;
    leg.attempt.trying = server;
    leg.attempt.tried = upgrade_state.tried.clone();
    leg.attempt.retries = upgrade_state.retries;
    leg.request.bytes = upgrade_state.sent.clone();
    leg.request.head_bytes = upgrade_state.head_bytes;
    leg.request.written = upgrade_state.written;
    leg.request.body_bytes = upgrade_state.body_bytes;
    leg.response.held = upgrade_state.held.clone();
    leg.response.answered = upgrade_state.answered;
    leg.response.keep_alive = upgrade_state.keep_alive;
    leg.response.ended = upgrade_state.ended;
    leg.in_pos = upgrade_state.in_pos;
    leg.out_pos = upgrade_state.out_pos;
    leg.tls.raw = upgrade_state.raw.clone();
    leg.tls.layer = upgrade_state.records.as_deref().map(imported).transpose()?;
    leg.tls.answered_keys = upgrade_state.answered_keys;
    leg.tls.up_ended = upgrade_state.up_ended;
    leg.request.never_left = upgrade_state.never_left;
    leg.request.in_doubt = upgrade_state.in_doubt;
    (leg.binding, leg.attempt.carrier) = (upgrade_state.binding, upgrade_state.carrier);
    Ok(leg)
}

/// Nothing where the configuration of the other process has its server no more: the leg ends with this process.
fn export_idle(idle: &IdleLeg, newest: &Snapshot) -> Option<Idle> {
    newest.find_place(idle.place)?;
    let records = idle.records.as_ref().map(|records| exported(records));
    Some(Idle { leg: idle.id, place: idle.place, binding: idle.binding, records })
}

fn import_idle(
    snapshot: &Snapshot,
    upgrade_state: &Idle,
) -> Result<(IdleLeg, UpgradeLeg), UpgradeStateError> {
    let Idle { leg: id, place, binding, records } = upgrade_state;
    let (pool, server) = snapshot
        .find_place(*place)
        .ok_or_else(|| UpgradeStateError::Missing(format!("server of bound leg {id}")))?;
    if records.is_some() != snapshot.pools[pool as usize].tls.is_some() {
        return Err(UpgradeStateError::Inconsistent("TLS of a bound leg"));
    }
    let records = records.as_deref().map(imported).transpose()?;
    let idle = IdleLeg { id: *id, place: *place, binding: *binding, records };
    Ok((idle, UpgradeLeg { leg: *id, pool, server: Some(server) }))
}

fn stage_of_receiving(receiving: RequestState) -> Stage {
    match receiving {
        RequestState::Greeting => Stage::Greeting,
        RequestState::Head => Stage::Head,
        RequestState::Prefix => Stage::Prefix,
        RequestState::Body(body) => Stage::Body(encode_body(body)),
        RequestState::Skip(body) => Stage::Skip(encode_body(body)),
        RequestState::Tunnel => Stage::Tunnel,
        RequestState::Ended => Stage::Ended,
    }
}

fn stage_of_answering(answering: ResponseState) -> Stage {
    match answering {
        ResponseState::Head => Stage::Head,
        ResponseState::Body(body) => Stage::Body(encode_body(body)),
        ResponseState::Tunnel => Stage::Tunnel,
        ResponseState::Ended => Stage::Ended,
    }
}

fn body_of(mut code: &[u8]) -> Result<Body, UpgradeStateError> {
    Body::decode(&mut code).ok_or(UpgradeStateError::Inconsistent("body position"))
}

fn receiving_of(stage: &Stage) -> Result<RequestState, UpgradeStateError> {
    Ok(match stage {
        Stage::Greeting => RequestState::Greeting,
        Stage::Head => RequestState::Head,
        Stage::Prefix => RequestState::Prefix,
        Stage::Body(code) => RequestState::Body(body_of(code)?),
        Stage::Skip(code) => RequestState::Skip(body_of(code)?),
        Stage::Tunnel => RequestState::Tunnel,
        Stage::Ended => RequestState::Ended,
    })
}

fn answering_of(stage: &Stage) -> Result<ResponseState, UpgradeStateError> {
    Ok(match stage {
        Stage::Head => ResponseState::Head,
        Stage::Body(code) => ResponseState::Body(body_of(code)?),
        Stage::Tunnel => ResponseState::Tunnel,
        Stage::Ended => ResponseState::Ended,
        Stage::Greeting | Stage::Prefix | Stage::Skip(_) => {
            return Err(UpgradeStateError::Inconsistent("state of the response"));
        }
    })
}
