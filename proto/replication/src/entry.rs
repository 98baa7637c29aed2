//! Entries of the replication log: each is one change of a connection's replicated state.

use crate::Urgency;
use evergate_base::ProxyHeader;
use evergate_base::session::Sealed;
use std::net::SocketAddr;
use zeroize::Zeroize;

/// Id of a connection in logs, request ids and replicas; 64 random bits drawn at accept.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct ConnectionId(#[serde(with = "postcard::fixint::le")] pub u64);

/// Kind of traffic on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// HTTP/1.1, in clear or inside TLS.
    Http,
    /// An opaque byte stream, in clear or inside TLS.
    Raw,
    /// An opaque byte stream that begins with a ClientHello, which decides its server.
    Passthrough,
}

/// A connection was accepted. Its id and its addresses are in the frame.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Open {
    /// Configuration generation under which it was accepted.
    pub generation: u64,
    /// Name of the listener: indexes differ between configurations.
    pub listener: String,
    /// Kind of traffic.
    pub kind: Kind,
    /// Whether a TLS handshake comes first.
    pub tls: bool,
    /// Addresses from a PROXY header: the client's, and the one that it connected to. Positions begin behind it.
    pub proxied: Option<(SocketAddr, SocketAddr)>,
}

/// Position of one direction of the record layer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct RecordPosition {
    /// Key generation: number of KeyUpdates so far.
    pub generation: u32,
    /// Sequence number of the next record (RFC 8446 section 5.3).
    pub sequence: u64,
}

/// The handshake is done: data for the record layer and the rules.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Established {
    /// Encoded record-layer state (secrets, suite, sequence numbers).
    pub records: Vec<u8>,
    /// Raw client bytes that belong to the handshake.
    pub consumed: u64,
    /// Length of our side of the handshake in bytes, tickets included.
    pub sent: u64,
    /// Encoded session data for rules and logs (SNI, ALPN, client subject).
    pub facts: Vec<u8>,
}

/// Framing of a body; `code` is the HTTP crate's encoding of a body position.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Phase {
    /// Before the first byte of a head.
    #[default]
    Head,
    /// Inside a body, at any byte of it.
    Body(Vec<u8>),
    /// Opaque bytes until the end of the connection.
    Tunnel,
    /// The direction has ended.
    Ended,
}

/// Properties of a request that its response, or a repetition of it, depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RouteFlags {
    /// HEAD: the response has no body, whatever its head announces.
    pub head: bool,
    /// The client uses HTTP/1.0.
    pub http10: bool,
    /// The connection closes after this response.
    pub close: bool,
    /// The response sets the stickiness cookie.
    pub set_cookie: bool,
    /// A 100 (Continue) was sent to the client before the server had the request: the rules had to see the body.
    pub continued: bool,
    /// The request has no body: with its head it is whole.
    pub bodiless: bool,
    /// The server connection belongs to the client's connection: it serves no other client.
    pub bound: bool,
    /// PROXY header at position 0 of the leg.
    pub header: Option<ProxyHeader>,
}

/// TLS of a server leg, with which another node can continue its records.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LegTls {
    /// Encoded record-layer state (secrets, suite, sequence numbers) at the positions below.
    pub records: Vec<u8>,
    /// Input position of the first record after the handshake; 0 on a connection that was used before.
    pub consumed: u64,
    /// Output position of the first record after the handshake; 0 on a connection that was used before.
    pub sent: u64,
    /// Our last bytes before `sent`, which the server may lack; dropped when it has them.
    pub flight: Vec<u8>,
}

/// A request goes to a server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Route {
    /// Number of the exchange on its connection, from 0.
    pub exchange: u32,
    /// Client input that the decision answers. Without TLS this is the raw position just behind the request's head.
    /// With TLS it is the start of the record in which the head ends. Without a head it is that of the last head, or 0.
    pub answered: u64,
    /// The server leg. Its positions, of bytes on the wire, start at 0 with this request, or with the handshake before
    /// it.
    pub leg: u32,
    /// Configuration generation that the decision was made under.
    pub generation: u64,
    /// Pool, as an index of that generation.
    pub pool: u32,
    /// Server, as an index of the pool.
    pub server: u32,
    /// Hash of both names: finds the server in another generation.
    #[serde(with = "postcard::fixint::le")]
    pub place: u64,
    /// Marks of the rules that matched, in order: they find them in another generation.
    pub rules: Vec<u64>,
    /// Hash of the listener's settings for requests and responses under way: its protocol, and its limits.
    #[serde(with = "postcard::fixint::le")]
    pub shape: u64,
    /// Properties that the response depends on.
    pub flags: RouteFlags,
    /// Protocols that the server was offered to switch to, as the field `Upgrade` lists them; empty without an upgrade.
    pub offer: Vec<u8>,
    /// Bytes of the body that rules have inspected, with their framing.
    pub looked_at: u32,
    /// Keyed hash of the head and these bytes as sent by the client: a replay of a different request is rejected.
    #[serde(with = "postcard::fixint::le")]
    pub hash: u64,
    /// TLS state, where the leg uses TLS.
    pub tls: Option<Box<LegTls>>,
}

/// A server connection that belongs to the client's connection, between two requests.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BoundLeg {
    /// Decision of the previous request, with TLS as of the positions below; without its rules.
    pub route: Route,
    /// Input position of that leg after the response.
    pub input: u64,
    /// Output position of that leg after the request, all of which the server has acknowledged.
    pub output: u64,
    /// The server waits for the next message of a handshake that authenticates the connection.
    pub challenged: bool,
}

/// The client's bytes up to here have reached their server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCheckpoint {
    /// Raw input position: the start of a record (or any byte of a plain connection).
    pub input: u64,
    /// Record layer at `input`.
    pub rx: RecordPosition,
    /// Plaintext bytes of the record at `input` that are already used.
    pub used: u32,
    /// Number of the exchange whose request is being received.
    pub exchange: u32,
    /// Position in that request.
    pub phase: Phase,
    /// The leg it goes to; 0 when none.
    pub leg: u32,
    /// Output position on that leg: the start of a record where it uses TLS.
    pub output: u64,
    /// Record layer of that leg at `output`.
    pub tx: RecordPosition,
    /// The server's key generation up to which its KeyUpdate requests are answered at `output`.
    pub answered_keys: u32,
    /// Our end of that leg's stream is before `output`.
    pub leg_ended: bool,
    /// The client's key generation whose KeyUpdate still has to be answered; 0 when none has.
    pub owed: u32,
}

/// The client has received everything up to here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCheckpoint {
    /// Cipher output position that the client acknowledged: the start of a record.
    pub output: u64,
    /// Record layer at `output`.
    pub tx: RecordPosition,
    /// Plaintext position at `output`.
    pub plain: u64,
    /// The leg that the parser point below lies on; 0 when none.
    pub leg: u32,
    /// Input position on that leg of the last restartable parser point: the start of a record where it uses TLS.
    pub input: u64,
    /// Record layer of that leg at `input`.
    pub rx: RecordPosition,
    /// Plaintext position that corresponds to `input`; never after `plain`.
    pub point_plain: u64,
    /// Number of the exchange at the parser point.
    pub exchange: u32,
    /// Position in that response.
    pub phase: Phase,
    /// The client's key generation up to which its KeyUpdate requests are answered.
    pub answered_keys: u32,
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RecordKind {
    /// Application data.
    Data,
    /// A KeyUpdate message; the record after it has the next generation's keys. The number is the client's key
    /// generation that it answers, or 0 when we asked for it ourselves.
    KeyUpdate(u32),
    /// An alert with this description; 0 is close_notify.
    Alert(u8),
}

/// A run of records whose boundaries are decided.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecordLayout {
    /// The first record.
    pub first: RecordPosition,
    /// Kind of all records.
    pub kind: RecordKind,
    /// Plaintext lengths, run-length coded: (length, how many).
    pub lengths: Vec<(u16, u32)>,
    /// Digest of the records' authentication tags: a different plaintext under the same nonce is detected before it
    /// leaves.
    #[serde(with = "postcard::fixint::le")]
    pub digest: u64,
}

/// Leg of a record layer, or of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Side {
    /// The client leg.
    Client,
    /// The server leg with this number.
    Server(u32),
}

/// Inputs of a handshake with a client, beside the configuration.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Hello {
    /// 32 random bytes, erased with this: when the client has acknowledged the whole handshake, at the latest.
    pub secret: [u8; 32],
    /// Accept time in seconds since 1970.
    pub accepted_unix_s: u64,
    /// Session found under the client's session id: a replayed handshake looks nothing up.
    pub found: Option<Sealed>,
    /// Raw bytes of the records that hold the ClientHello; in a replay, of the client's whole side so far.
    pub bytes: Vec<u8>,
    /// In a replay, our answers so far.
    pub flights: Vec<Flight>,
}

/// Output that answers the client's bytes in a handshake, from the first byte after the previous flight. A replay with
/// other certificates, ticket keys or client authorities produces other bytes, and must not send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Flight {
    /// Number of bytes, at least 1.
    pub length: u32,
    /// The first 8 bytes of their SHA-256, as they leave.
    #[serde(with = "postcard::fixint::le")]
    pub digest: u64,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello").field("accepted_unix_s", &self.accepted_unix_s).finish_non_exhaustive()
    }
}

impl Drop for Hello {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

/// One change of a connection's replicated state.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Entry {
    /// First of all entries.
    Open(Open),
    /// The ClientHello is complete.
    Hello(Hello),
    /// Further raw bytes of the client's side of the handshake.
    Input(Vec<u8>),
    /// The handshake is done.
    Established(Established),
    /// A request goes to a server.
    Route(Route),
    /// The client's bytes have reached their server.
    Client(ClientCheckpoint),
    /// Our bytes have reached the client.
    Server(ServerCheckpoint),
    /// Raw client input that could not be forwarded yet but must be acknowledged.
    Stash {
        /// Position of the first byte.
        position: u64,
        /// The bytes as received.
        bytes: Vec<u8>,
    },
    /// The same of a server's input.
    LegStash {
        /// Exchange that the leg serves.
        exchange: u32,
        /// The leg.
        leg: u32,
        /// Position of the first byte.
        position: u64,
        /// The bytes as received.
        bytes: Vec<u8>,
    },
    /// Record boundaries.
    Boundary(RecordLayout),
    /// A response of our own, byte for byte, and whether the connection closes after it.
    Generated {
        /// Exchange that it answers.
        exchange: u32,
        /// Client input that it answers, as in [`Route::answered`].
        answered: u64,
        /// The whole response in plaintext.
        bytes: Vec<u8>,
        /// The connection closes after it.
        close: bool,
    },
    /// The server's stream on this leg ended after `position` bytes.
    ServerEnd {
        /// Exchange that the leg serves.
        exchange: u32,
        /// The leg.
        leg: u32,
        /// Its input position at the end.
        position: u64,
    },
    /// The connection ends; nothing is sent after output that is already decided.
    Close {
        /// Plaintext position of the end.
        plain: u64,
        /// It ends by RST, and unsent output is dropped.
        abort: bool,
    },
    /// Record boundaries towards a server.
    LegBoundary {
        /// Exchange that the leg serves.
        exchange: u32,
        /// The leg.
        leg: u32,
        /// The records.
        boundary: RecordLayout,
    },
    /// Records of this response before `until` may leave as planned, without entries: each is full, or ends the
    /// response.
    Reserve {
        /// Number of the exchange.
        exchange: u32,
        /// First record that must not leave.
        until: RecordPosition,
    },
    /// Our answer to the client's side of the handshake so far.
    Flight(Flight),
    /// The record layer's base secrets moved to the newest checkpoints: older generations are out of reach.
    Keys {
        /// Leg of the record layer.
        side: Side,
        /// Encoded record-layer state at the newest checkpoints.
        records: Vec<u8>,
    },
    /// The leg of the previous response idles and belongs to the client's connection; `None`: there is no such leg any
    /// more.
    Bound(Option<Box<BoundLeg>>),
}

impl Entry {
    /// Whether the entry decides which bytes leave. Other entries give the peers' positions, and the connection's end.
    /// Their input is acknowledged after them, a FIN leaves after them, and reserved records are used after them, but
    /// no other byte depends on them. `Keys` repeats known state in another form.
    pub fn decides_output(&self) -> bool {
        let follows = matches!(self, Entry::Client(_) | Entry::Server(_));
        let stashes = matches!(self, Entry::Stash { .. } | Entry::LegStash { .. });
        let closes = matches!(self, Entry::Close { .. } | Entry::Reserve { .. });
        !follows && !stashes && !closes && !matches!(self, Entry::Keys { .. } | Entry::Bound(_))
    }

    /// How long the entry may wait for more.
    pub(crate) fn urgency(&self) -> Urgency {
        match self {
            Entry::Open(_) => Urgency::None,        // no output before further entries
            Entry::Bound(Some(_)) => Urgency::None, // it goes with the checkpoint behind it
            Entry::Close { abort: true, .. } => Urgency::None, // a RST does not wait for it; a FIN does
            Entry::Client(ClientCheckpoint { phase, .. }) | Entry::Server(ServerCheckpoint { phase, .. }) => {
                match phase {
                    Phase::Head | Phase::Ended => Urgency::None,
                    Phase::Body(_) | Phase::Tunnel => Urgency::Some,
                }
            }
            _ => Urgency::Full,
        }
    }
}
