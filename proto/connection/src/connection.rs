//! The connection itself: its parts, what it asks for, and the events that fit no other room.

use crate::bound::IdleLeg;
use crate::replication::Replication;
use crate::server_leg::ServerLeg;
use crate::splice::TunnelModes;
use crate::tls_info::TlsInfo;
use crate::write_stall::AckedPositions;
use crate::{FIRST_READ, Io, Outlet, RequestLog, SLOTS, Slots, Snapshot};
use evergate_base::{Micros, Protocol};
use evergate_http::Body;
use evergate_replication::{ConnectionId, Entry, Kind, Open};
use evergate_tls::{Handshake, Layout, PAYLOAD_MAX, Records};
use std::net::SocketAddr;
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
    /// Our address.
    pub local: SocketAddr,
    /// Wall clock at accept, seconds since 1970.
    pub unix_s: u64,
    /// 32 fresh random bytes: what the handshake's randomness derives from.
    pub secret: [u8; 32],
}

/// The client leg's cryptographic state.
pub(crate) enum ClientTls {
    /// No TLS: plaintext is the wire.
    Plain,
    /// Waiting for a whole ClientHello.
    Hello(Box<(Zeroizing<[u8; 32]>, u64)>),
    /// Handshake under way.
    Shaking(Box<Handshake>),
    /// Records.
    Open(Box<Records>),
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ClientTls::Plain => "Plain",
            ClientTls::Hello(_) => "Hello",
            ClientTls::Shaking(_) => "Shaking",
            ClientTls::Open(_) => "Open",
        })
    }
}

/// Where the client's stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// Before or inside a request head (what there is of it lies in `plain`).
    Head,
    /// Holding a head until the rules have seen enough of the body.
    Prefix,
    /// Inside a request body that goes to the leg.
    Body(Body),
    /// Inside a request body that no server wants: it is read and dropped so that the connection can continue.
    Skip(Body),
    /// Opaque bytes to the leg.
    Tunnel,
    /// Nothing more is taken from the client.
    Ended,
}

/// How far a body was looked through that the rules must see, in bytes of `plain`.
#[derive(Clone, Debug)]
pub(crate) struct BodyPrefixScan {
    pub(crate) body: Body,
    pub(crate) at: usize,
    /// Bytes that were there when it was looked at last.
    pub(crate) seen: usize,
    /// With so many bytes there may be enough of it before its end.
    pub(crate) enough: usize,
}

/// Where the server's stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseState {
    /// Before or inside a response head.
    Head,
    /// Inside a response body.
    Body(Body),
    /// Opaque bytes to the client.
    Tunnel,
    /// Nothing more is taken from a server.
    Ended,
}

/// What the connection's deadline means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Timer {
    /// No deadline.
    None,
    /// TLS handshake.
    Handshake,
    /// Request head.
    RequestHead,
    /// Request body without progress, or slower than the floor.
    RequestBody,
    /// Idle between requests.
    KeepAlive,
    /// Waiting until a server has room.
    Queue,
    /// Connecting to a server.
    Connect,
    /// Waiting for the server's response, or for more of it.
    Response,
    /// Tunnel or raw relay without a byte.
    Tunnel,
    /// A peer takes none of our bytes.
    WriteStall,
    /// Waiting for the client's end after ours.
    Linger,
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

/// The least that is read of a response head's continuation, in bytes.
const FIRST_READ_MIN: usize = 1024;

/// One client connection and the server leg it uses at the moment.
#[derive(Debug)]
pub struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) listener: u32,
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) tls: ClientTls,
    pub(crate) facts: Option<Box<TlsInfo>>,
    /// Client bytes as received, not decrypted yet.
    pub(crate) raw: Vec<u8>,
    /// Plaintext not consumed yet: a partial head, or input that waits for the server leg or the previous response.
    pub(crate) plain: Vec<u8>,
    /// Bytes of `plain` already searched for the end of a head.
    pub(crate) scanned: usize,
    /// Of the body that the rules must see: how far it was looked through.
    pub(crate) prefix: Option<Box<BodyPrefixScan>>,
    pub(crate) receiving: RequestState,
    pub(crate) answering: ResponseState,
    /// Index of the request being received.
    pub(crate) request: u32,
    /// Index of the response being sent.
    pub(crate) response: u32,
    pub(crate) leg: Option<Box<ServerLeg>>,
    /// The bound leg, while it idles.
    pub(crate) bound: Option<Box<IdleLeg>>,
    pub(crate) next_leg: u32,
    /// Session tickets, held back to leave with the first response; counted as sent.
    pub(crate) tickets: Vec<u8>,
    pub(crate) down: Outlet,
    pub(crate) up: Outlet,
    /// Raw input position after everything decrypted.
    pub(crate) in_pos: u64,
    /// Cipher output position after everything sealed.
    pub(crate) out_pos: u64,
    /// Plaintext position after everything sealed.
    pub(crate) plain_pos: u64,
    /// The client's key generation whose KeyUpdate request is answered.
    pub(crate) answered: u32,
    pub(crate) client_ended: bool,
    /// The response under way is the connection's last.
    pub(crate) last_response: bool,
    /// The client asked for the end after this response, and has sent nothing behind its request. Not part of an
    /// upgrade state: a process that does not know it waits for the client's end.
    pub(crate) client_done: bool,
    /// We have sent our end; input is dropped.
    pub(crate) closing: bool,
    /// The client's records make no sense any more: its bytes are dropped unread.
    pub(crate) ignores_input: bool,
    /// The end was sent to the client.
    pub(crate) down_ended: bool,
    /// 100 Continue was sent to the client although no server has been asked yet.
    pub(crate) continued: bool,
    /// Nothing of this connection is left to do.
    pub(crate) closed: bool,
    pub(crate) timer: Timer,
    pub(crate) deadline: Micros,
    /// Bytes moved since the deadline was last extended, for the rate floor.
    pub(crate) moved: u64,
    /// When the request head under way began; the end of a connection that is closing.
    pub(crate) began: Micros,
    /// What peers that take little had taken when they were looked at.
    pub(crate) look: Option<Box<AckedPositions>>,
    /// Bytes inside the worker's pipes: for the client, and for the server.
    pub(crate) piped: (u64, u64),
    /// How a tunnel's bytes are moved.
    pub(crate) modes: TunnelModes,
    pub(crate) remote: Option<Box<Replication>>,
    pub(crate) log: Option<Box<RequestLog>>,
    /// Status of the response under way, and why it is ours.
    pub(crate) status: (u16, &'static str),
    /// Pool of that response's request, as an index of the snapshot's.
    pub(crate) status_pool: Option<u32>,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(snapshot: &Arc<Snapshot>, accepted: &Accepted, now: Micros) -> Connection {
        let listener = &snapshot.listeners[accepted.listener as usize];
        let tls = match listener.protocol.is_tls() {
            true => ClientTls::Hello(Box::new((Zeroizing::new(accepted.secret), accepted.unix_s))),
            false => ClientTls::Plain,
        };
        let http = listener.protocol.is_http();
        let mut connection = Connection {
            id: accepted.id,
            snapshot: snapshot.clone(),
            listener: accepted.listener,
            client: accepted.client,
            local: accepted.local,
            tls,
            facts: None,
            raw: Vec::new(),
            plain: Vec::new(),
            scanned: 0,
            prefix: None,
            receiving: if http { RequestState::Head } else { RequestState::Tunnel },
            answering: if http { ResponseState::Head } else { ResponseState::Tunnel },
            request: 0,
            response: 0,
            leg: None,
            bound: None,
            next_leg: 1,
            tickets: Vec::new(),
            down: Outlet::default(),
            up: Outlet::default(),
            in_pos: 0,
            out_pos: 0,
            plain_pos: 0,
            answered: 0,
            client_ended: false,
            last_response: false,
            client_done: false,
            closing: false,
            ignores_input: false,
            down_ended: false,
            continued: false,
            closed: false,
            timer: Timer::None,
            deadline: Micros(u64::MAX),
            moved: 0,
            began: now,
            look: None,
            piped: (0, 0),
            modes: TunnelModes::default(),
            remote: None,
            log: None,
            status: (0, ""),
            status_pool: None,
        };
        let first = if listener.protocol.is_tls() { Timer::Handshake } else { Timer::KeepAlive };
        connection.arm(if listener.protocol == Protocol::Tcp { Timer::Tunnel } else { first }, now);
        connection
    }

    /// Starts replication; only directly after [`Connection::new`].
    pub fn start_replication(&mut self) {
        let listener = self.listener();
        let open = Open {
            generation: self.snapshot.generation,
            listener: listener.name.clone(),
            kind: if listener.protocol.is_http() { Kind::Http } else { Kind::Raw },
            tls: listener.protocol.is_tls(),
        };
        let mut remote = Replication::default();
        remote.log.push(Entry::Open(open));
        self.remote = Some(Box::new(remote));
    }

    /// A raw TCP connection dials at once; call after [`Connection::new`].
    pub fn handle_accepted(&mut self, io: &mut Io<'_>) {
        if self.receiving == RequestState::Tunnel && matches!(self.tls, ClientTls::Plain) {
            self.open_tunnel(io);
        }
    }

    /// Its name.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The client's address.
    pub fn client_address(&self) -> SocketAddr {
        self.client
    }

    /// The configuration that the current request runs under.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Whether the TLS session was resumed; `None` before the handshake's end and without TLS.
    pub fn session_resumed(&self) -> Option<bool> {
        if self.is_handshaking() { None } else { self.facts.as_ref().map(|facts| facts.resumed) }
    }

    /// TLS version, cipher suite and server name of the session.
    pub fn session(&self) -> Option<(&'static str, &str, Option<&str>)> {
        self.facts.as_ref().map(|facts| (facts.version, facts.suite_name(), facts.sni.as_deref()))
    }

    /// Subject of the client's certificate, of at most 4096 bytes.
    pub fn client_subject(&self) -> Option<&str> {
        self.facts.as_ref()?.subject.as_deref()
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
        matches!(self.tls, ClientTls::Hello(_) | ClientTls::Shaking(_))
    }

    /// Whether a request is under way, or a tunnel is open.
    pub fn is_active(&self) -> bool {
        self.leg.is_some() || !self.plain.is_empty() || !self.raw.is_empty() || self.request != self.response
    }

    /// Whether the received stream of the client, and of its server, ends inside a message that is forwarded as it
    /// comes, or inside a tunnel: that peer has more to send, and may need an acknowledgement first.
    pub fn expects_more(&self) -> (bool, bool) {
        let client = !matches!(self.receiving, RequestState::Head | RequestState::Ended);
        let server = matches!(self.answering, ResponseState::Body(_) | ResponseState::Tunnel);
        (client, server)
    }

    /// Bytes of either peer that are buffered: of a request that is not whole or may have to be repeated, of a
    /// response's head, and what backups may still need.
    pub fn buffered_bytes(&self) -> usize {
        let of_leg = self.leg.as_ref().map_or(0, |leg| leg.sent.len() + leg.held.len() + leg.raw.len());
        let of_remote = self.remote.as_ref().map_or(0, |remote| remote.retained_bytes());
        self.plain.len() + self.raw.len() + of_leg + of_remote
    }

    /// Whether nothing that the client might still send matters: its last request is here whole, or our end was sent.
    pub fn is_past_requests(&self) -> bool {
        let last = self.last_response || self.leg.as_ref().is_some_and(|leg| leg.route.flags.close);
        self.closing || (last && matches!(self.receiving, RequestState::Head | RequestState::Ended))
    }

    /// Everything is done and flushed: the worker drops it after performing the effects.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the server of a tunnel has ended while its client may still send.
    pub fn has_server_ended(&self) -> bool {
        self.leg.is_some() && self.answering == ResponseState::Ended
    }

    /// Client-bound bytes that wait.
    pub fn down(&mut self) -> &mut Outlet {
        &mut self.down
    }

    /// Server-bound bytes that wait.
    pub fn up(&mut self) -> &mut Outlet {
        &mut self.up
    }

    /// Whether the worker should read from the client.
    pub fn wants_client(&self) -> bool {
        if self.closed || self.client_ended {
            return false;
        }
        if self.closing {
            return true;
        }
        let full = self.remote.as_ref().map_or(self.down.is_crowded(), |remote| remote.log.is_full());
        // Deferred input is processed first.
        let holds = self.has_deferred() && !(self.raw.is_empty() && self.plain.is_empty());
        !full && !holds && self.up.is_empty() && self.takes_input()
    }

    /// Whether decrypted client bytes have somewhere to go.
    pub(crate) fn takes_input(&self) -> bool {
        match self.receiving {
            RequestState::Head => self.is_handshaking() || self.head_is_due(),
            RequestState::Prefix => self.head_is_due(),
            RequestState::Body(_) => {
                self.is_handshaking() || self.leg.as_ref().is_some_and(|leg| leg.is_open())
            }
            RequestState::Tunnel => {
                self.is_handshaking() || self.leg.as_ref().is_some_and(|leg| leg.is_open() && !leg.in_doubt)
            }
            RequestState::Skip(_) => true,
            RequestState::Ended => self.closing,
        }
    }

    /// Layout of client-bound records.
    pub(crate) fn layout(&self) -> Layout {
        match &self.tls {
            ClientTls::Open(records) => records.layout(),
            _ => Layout { header: 0, trailer: 0 },
        }
    }

    /// Copies client bytes kept so far to the front of the input buffer; the worker reads behind them.
    pub fn begin_client_read(&mut self, input: &mut [u8]) -> usize {
        let held = self.raw.len();
        input[..held].copy_from_slice(&self.raw);
        held
    }

    /// How to read from the server now; puts held bytes in place.
    pub fn begin_server_read(&mut self, scratch: &mut crate::Scratch) -> ReadPlan {
        let layout = self.layout();
        let slow = self.must_copy_down() || self.unframes();
        let unsent = self.lacks_request();
        let Some(leg) = &mut self.leg else { return ReadPlan::Nothing };
        let full = self.remote.as_ref().map_or(self.up.is_crowded(), |remote| remote.log.is_full());
        let over = self.answering == ResponseState::Ended || leg.ended;
        // Behind the end inside TLS a FIN comes, which is to be acknowledged.
        let fin_waits = self.remote.is_some() && self.answering == ResponseState::Ended && leg.is_tls();
        if full
            || !self.down.is_empty()
            || self.closing
            || (over && !fin_waits)
            || leg.waits_for_request(unsent)
        {
            return ReadPlan::Nothing;
        }
        if leg.is_tls() && !leg.is_unconnected() {
            let held = leg.raw.len();
            scratch.input[..held].copy_from_slice(&leg.raw);
            return ReadPlan::Records { held };
        }
        if !leg.is_open() {
            return ReadPlan::Nothing;
        }
        match self.answering {
            ResponseState::Head => {
                let held = leg.held.len();
                let place = Slots::payload(layout, 0).start;
                scratch.down.memory()[place..place + held].copy_from_slice(&leg.held);
                // A head longer than a usual first read still has to grow; the parser refuses it before the slot is
                // full.
                let room =
                    FIRST_READ.saturating_sub(held).max(FIRST_READ_MIN).min(PAYLOAD_MAX.saturating_sub(held));
                ReadPlan::Head { layout, held, room }
            }
            _ if slow => ReadPlan::Head { layout, held: 0, room: FIRST_READ },
            _ => {
                let held = self.remote.as_ref().map_or(&[][..], |remote| &remote.hold);
                let place = Slots::payload(layout, 0).start;
                scratch.down.memory()[place..place + held.len()].copy_from_slice(held);
                // Bulk data of a plain tunnel is spliced, and a read into one slot costs less than a scattered one. The
                // mode must not decide this: another process begins with the first mode, and reads the same pieces.
                let spliced = self.answering == ResponseState::Tunnel && matches!(self.tls, ClientTls::Plain);
                let slots = if spliced && self.remote.is_none() { 1 } else { SLOTS };
                ReadPlan::Body { layout, held: held.len(), slots }
            }
        }
    }

    /// The deadline, for the worker's timer wheel.
    pub fn deadline(&self) -> Micros {
        self.deadline
    }

    /// What the deadline means.
    pub fn timer(&self) -> Timer {
        self.timer
    }
}

const _: () = assert!(SLOTS * PAYLOAD_MAX == 262_144);
