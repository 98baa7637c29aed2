//! The connection itself: its parts, what it asks for, and the events that fit no other room.

use crate::client_leg::{ClientLeg, ClientTls};
use crate::close::End;
use crate::exchange::{Exchange, RequestState, ResponseState};
use crate::greeting::Greeting;
use crate::replication::Replication;
use crate::server_legs::ServerLegs;
use crate::splice::Pipes;
use crate::timers::{Deadline, Timer};
use crate::{FIRST_READ, Io, Outlet, SLOTS, Slots, Snapshot};
use evergate_base::{Micros, Protocol};
use evergate_http::RequestHead;
use evergate_replication::{ConnectionId, Entry, Kind, Open, Side};
use evergate_tls::{Layout, PAYLOAD_MAX};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Facts of an accepted connection; `secret` and `id` come from the node's random source.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Random, names the connection.
    pub id: ConnectionId,
    /// Index of the listener in the snapshot.
    pub listener: u32,
    /// The client's address.
    pub client: SocketAddr,
    /// Our address, or the one that the client connected to at the proxy.
    pub local: SocketAddr,
    /// The proxy whose PROXY header named `client` and `local`.
    pub proxy: Option<SocketAddr>,
    /// Wall clock at accept, seconds since 1970.
    pub unix_s: u64,
    /// 32 fresh random bytes: what the handshake's randomness derives from.
    pub secret: [u8; 32],
}

/// How the worker should read from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPlan {
    /// Not now.
    Nothing,
    /// Into slot 0's payload after `held` bytes that the connection put there, at most `room` bytes.
    Head {
        /// Layout of the slots.
        layout: Layout,
        /// Bytes put before.
        held: usize,
        /// How many to read at most.
        room: usize,
    },
    /// Scattered into the payloads of the first `slots` slots, from [`Slots::body`] on.
    Body {
        /// Layout of the slots.
        layout: Layout,
        /// Bytes put before, in the first slot: less than its payload.
        held: usize,
        /// How many slots to read into at most.
        slots: usize,
    },
    /// Into the input buffer from `held` on: a TLS server leg.
    Records {
        /// Bytes that the connection put there.
        held: usize,
    },
}

/// Kind of the traffic of a listener's connections.
pub(crate) fn kind_of(protocol: Protocol) -> Kind {
    match protocol {
        Protocol::Https | Protocol::Http => Kind::Http,
        Protocol::Tls | Protocol::Tcp => Kind::Raw,
        Protocol::Passthrough => Kind::Passthrough,
    }
}

/// The least that is read of a response head's continuation, in bytes.
const FIRST_READ_MIN: usize = 1024;

/// One client connection and the server leg it uses at the moment.
#[derive(Debug)]
pub struct Connection {
    pub(crate) id: ConnectionId,
    /// Configuration of the exchange under way.
    pub(crate) snapshot: Arc<Snapshot>,
    /// The listener, as an index of the snapshot's.
    pub(crate) listener: u32,
    pub(crate) client_address: SocketAddr,
    /// Address that the client connected to.
    pub(crate) local_address: SocketAddr,
    /// The proxy whose PROXY header named both addresses.
    pub(crate) proxy: Option<SocketAddr>,
    pub(crate) client: ClientLeg,
    pub(crate) servers: ServerLegs,
    pub(crate) exchange: Exchange,
    /// The hello of a passthrough connection, and the handshake behind it.
    pub(crate) greeting: Option<Box<Greeting>>,
    pub(crate) end: End,
    pub(crate) deadline: Deadline,
    pub(crate) pipes: Pipes,
    /// Nothing without backups.
    pub(crate) remote: Option<Box<Replication>>,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(snapshot: &Arc<Snapshot>, accepted: &Accepted, now: Micros) -> Connection {
        let listener = &snapshot.listeners[accepted.listener as usize];
        let tls = match listener.protocol.is_tls() {
            true => ClientTls::Hello(Box::new((Zeroizing::new(accepted.secret), accepted.unix_s))),
            false => ClientTls::Plain,
        };
        let mut connection = Connection {
            id: accepted.id,
            snapshot: snapshot.clone(),
            listener: accepted.listener,
            client_address: accepted.client,
            local_address: accepted.local,
            proxy: accepted.proxy,
            client: ClientLeg::new(tls),
            servers: ServerLegs::default(),
            exchange: Exchange::first(listener.protocol),
            greeting: None,
            end: End::Open,
            deadline: Deadline::starting_at(now),
            pipes: Pipes::default(),
            remote: None,
        };
        let first = match listener.protocol {
            Protocol::Https | Protocol::Tls | Protocol::Passthrough => Timer::Handshake,
            Protocol::Http => Timer::KeepAlive,
            Protocol::Tcp => Timer::Tunnel,
        };
        connection.arm(first, now);
        connection
    }

    /// Starts replication; only directly after [`Connection::new`].
    pub fn start_replication(&mut self) {
        let listener = self.listener();
        let open = Open {
            generation: self.snapshot.generation,
            listener: listener.name.clone(),
            kind: kind_of(listener.protocol),
            tls: listener.protocol.is_tls(),
            proxied: self.proxy.map(|_| (self.client_address, self.local_address)),
        };
        let mut remote = Replication::default();
        remote.log.push(Entry::Open(open));
        if self.proxy.is_some() {
            // Position 0 lies behind the header, whose ACK may leave when the backups have its addresses.
            remote.outputs.release(remote.log.last(), Side::Client, 0);
        }
        self.remote = Some(Box::new(remote));
    }

    /// A raw TCP connection dials at once; call after [`Connection::new`].
    pub fn handle_accepted(&mut self, io: &mut Io<'_>) {
        if self.exchange.receiving == RequestState::Tunnel && matches!(self.client.tls, ClientTls::Plain) {
            self.open_tunnel(io);
        }
    }

    /// Its name.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The client's address.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// The proxy whose PROXY header named the client's address.
    pub fn proxy(&self) -> Option<SocketAddr> {
        self.proxy
    }

    /// The client of the request under way: the address that a trusted proxy names, or the peer's.
    pub fn request_client(&self) -> IpAddr {
        self.exchange.client.unwrap_or(self.client_address.ip())
    }

    /// The client as rules see it: an address from a header has no port, and gets port 0.
    pub(crate) fn request_client_address(&self) -> SocketAddr {
        self.exchange.client.map_or(self.client_address, |client| SocketAddr::new(client, 0))
    }

    /// Whether forwarding fields of this connection's requests are forwarded, and visible to rules.
    pub(crate) fn trusts_forwarded(&self) -> bool {
        self.listener().trust_forwarded.trusts(self.client_address.ip())
    }

    /// Finds the client that the head of a request names.
    pub(crate) fn find_request_client(&mut self, head: &RequestHead<'_>) {
        self.exchange.client = self.listener().trust_forwarded.client(self.client_address.ip(), head.headers);
    }

    /// The configuration that the current request runs under.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Whether the TLS session was resumed; `None` before the handshake's end and without TLS.
    pub fn session_resumed(&self) -> Option<bool> {
        if self.is_handshaking() { None } else { self.client.info.as_ref().map(|facts| facts.resumed) }
    }

    /// TLS version, cipher suite and server name of the session.
    pub fn session(&self) -> Option<(&'static str, &str, Option<&str>)> {
        self.client.info.as_ref().map(|facts| (facts.version, facts.suite_name(), facts.sni.as_deref()))
    }

    /// Subject of the client's certificate, of at most 4096 bytes.
    pub fn client_subject(&self) -> Option<&str> {
        self.client.info.as_ref()?.subject.as_deref()
    }

    /// Name of the listener that accepted it.
    pub fn listener_name(&self) -> &str {
        &self.listener().name
    }

    pub(crate) fn listener(&self) -> &crate::Listener {
        &self.snapshot.listeners[self.listener as usize]
    }

    /// Whether the next client bytes may cost an asymmetric operation.
    pub fn is_handshaking(&self) -> bool {
        matches!(self.client.tls, ClientTls::Hello(_) | ClientTls::Shaking(_))
    }

    /// Whether a request is under way, or a tunnel is open.
    pub fn is_active(&self) -> bool {
        self.servers.leg.is_some()
            || !self.client.plain.is_empty()
            || !self.client.raw.is_empty()
            || self.exchange.order().is_ne()
    }

    /// Whether the received stream of the client, and of its server, ends inside a message that is forwarded as it
    /// comes, or inside a tunnel: that peer has more to send, and may need an acknowledgement first.
    pub fn expects_more(&self) -> (bool, bool) {
        let client = !matches!(
            self.exchange.receiving,
            RequestState::Greeting | RequestState::Head | RequestState::Ended
        );
        let server = matches!(self.exchange.answering, ResponseState::Body(_) | ResponseState::Tunnel);
        (client, server)
    }

    /// Bytes of either peer that are buffered: of a request that is not whole or may have to be repeated, of a
    /// response's head, and what backups may still need.
    pub fn buffered_bytes(&self) -> usize {
        let of_leg = self
            .servers
            .leg
            .as_ref()
            .map_or(0, |leg| leg.request.bytes.len() + leg.response.held.len() + leg.tls.raw.len());
        let of_remote = self.remote.as_ref().map_or(0, |remote| remote.retained_bytes());
        self.client.plain.len() + self.client.raw.len() + of_leg + of_remote
    }

    /// Whether nothing that the client might still send matters: its last request is here whole, or our end was sent.
    pub fn is_past_requests(&self) -> bool {
        let last =
            self.exchange.last_response || self.servers.leg.as_ref().is_some_and(|leg| leg.route.flags.close);
        self.end.is_closing()
            || (last && matches!(self.exchange.receiving, RequestState::Head | RequestState::Ended))
    }

    /// Everything is done and flushed: the worker drops it after performing the effects.
    pub fn is_closed(&self) -> bool {
        self.end.is_closed()
    }

    /// Whether the server of a tunnel has ended while its client may still send.
    pub fn has_server_ended(&self) -> bool {
        self.servers.leg.is_some() && self.exchange.answering == ResponseState::Ended
    }

    /// Client-bound bytes that wait.
    pub fn down(&mut self) -> &mut Outlet {
        &mut self.client.outlet
    }

    /// Server-bound bytes that wait.
    pub fn up(&mut self) -> &mut Outlet {
        &mut self.servers.outlet
    }

    /// Whether the worker should read from the client.
    pub fn wants_client(&self) -> bool {
        if self.end.is_closed() || self.client.ended {
            return false;
        }
        if self.end.is_closing() {
            return true;
        }
        let full =
            self.remote.as_ref().map_or(self.client.outlet.is_crowded(), |remote| remote.log.is_full());
        // Deferred input is processed first.
        let holds = self.has_deferred() && !(self.client.raw.is_empty() && self.client.plain.is_empty());
        !full && !holds && self.servers.outlet.is_empty() && self.takes_input()
    }

    /// Whether decrypted client bytes have somewhere to go.
    pub(crate) fn takes_input(&self) -> bool {
        match self.exchange.receiving {
            RequestState::Greeting => true,
            RequestState::Head => self.is_handshaking() || self.head_is_due(),
            RequestState::Prefix => self.head_is_due(),
            RequestState::Body(_) => {
                self.is_handshaking() || self.servers.leg.as_ref().is_some_and(|leg| leg.is_open())
            }
            RequestState::Tunnel => {
                self.is_handshaking()
                    || self.servers.leg.as_ref().is_some_and(|leg| leg.is_open() && !leg.request.in_doubt)
            }
            RequestState::Skip(_) => true,
            RequestState::Ended => self.end.is_closing(),
        }
    }

    /// Layout of client-bound records.
    pub(crate) fn layout(&self) -> Layout {
        match &self.client.tls {
            ClientTls::Open(records) => records.layout(),
            _ => Layout { header: 0, trailer: 0 },
        }
    }

    /// Copies client bytes kept so far to the front of the input buffer; the worker reads behind them.
    pub fn begin_client_read(&mut self, input: &mut [u8]) -> usize {
        let held = self.client.raw.len();
        input[..held].copy_from_slice(&self.client.raw);
        held
    }

    /// How to read from the server now; puts held bytes in place.
    pub fn begin_server_read(&mut self, scratch: &mut crate::Scratch) -> ReadPlan {
        let layout = self.layout();
        let slow = self.must_copy_down() || self.unframes();
        let unsent = self.lacks_request();
        let Some(leg) = &mut self.servers.leg else { return ReadPlan::Nothing };
        let full =
            self.remote.as_ref().map_or(self.servers.outlet.is_crowded(), |remote| remote.log.is_full());
        let over = self.exchange.answering == ResponseState::Ended || leg.response.ended;
        // Behind the end inside TLS a FIN comes, which is to be acknowledged.
        let fin_waits =
            self.remote.is_some() && self.exchange.answering == ResponseState::Ended && leg.is_tls();
        if full
            || !self.client.outlet.is_empty()
            || self.end.is_closing()
            || (over && !fin_waits)
            || leg.waits_for_request(unsent)
        {
            return ReadPlan::Nothing;
        }
        if leg.is_tls() && !leg.is_unconnected() {
            let held = leg.tls.raw.len();
            scratch.input[..held].copy_from_slice(&leg.tls.raw);
            return ReadPlan::Records { held };
        }
        if !leg.is_open() {
            return ReadPlan::Nothing;
        }
        match self.exchange.answering {
            ResponseState::Head => {
                let held = leg.response.held.len();
                let place = Slots::payload(layout, 0).start;
                scratch.down.memory()[place..place + held].copy_from_slice(&leg.response.held);
                // A head longer than a usual first read still has to grow; the parser refuses it before the slot is
                // full.
                let room =
                    FIRST_READ.saturating_sub(held).max(FIRST_READ_MIN).min(PAYLOAD_MAX.saturating_sub(held));
                ReadPlan::Head { layout, held, room }
            }
            _ if slow => ReadPlan::Head { layout, held: 0, room: FIRST_READ },
            _ => {
                let held = self.remote.as_ref().map_or(&[][..], |remote| &remote.replay.hold);
                let place = Slots::payload(layout, 0).start;
                scratch.down.memory()[place..place + held.len()].copy_from_slice(held);
                // Bulk data of a plain tunnel is spliced, and a read into one slot costs less than a scattered one. The
                // mode must not decide this: another process begins with the first mode, and reads the same pieces.
                let spliced = self.exchange.answering == ResponseState::Tunnel
                    && matches!(self.client.tls, ClientTls::Plain);
                let slots = if spliced && self.remote.is_none() { 1 } else { SLOTS };
                ReadPlan::Body { layout, held: held.len(), slots }
            }
        }
    }

    /// The deadline, for the worker's timer wheel.
    pub fn deadline(&self) -> Micros {
        self.deadline.at
    }

    /// What the deadline means.
    pub fn timer(&self) -> Timer {
        self.deadline.timer
    }
}

const _: () = assert!(SLOTS * PAYLOAD_MAX == 262_144);
