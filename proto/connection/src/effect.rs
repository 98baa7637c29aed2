//! What a connection asks of the world, and the buffers it shares with it.

use crate::audit::Birth;
use crate::server_leg::ServerLeg;
use crate::{Slots, Snapshot};
use evergate_base::Micros;
use evergate_base::session::{KeptSession, Sealed, SessionId};
use evergate_rules::RuleId;
use evergate_tls::{Observation, Records};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// Where the bytes of a server-bound piece lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The worker's input buffer.
    Input,
    /// The worker's server-bound buffer.
    Up,
}

/// Bytes for the current server leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The buffer.
    pub source: Source,
    /// The bytes in it.
    pub range: Range<usize>,
}

/// How to choose a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ServerHint {
    /// By the pool's policy.
    Policy,
    /// This server if it is eligible, else by policy.
    Server(u32),
    /// By the client's address.
    Source(IpAddr),
}

/// What the worker must do. Bytes are not among them: they are in [`Effects::up`] and [`Scratch::down`].
#[derive(Debug)]
pub enum Effect {
    /// Choose a server of the pool and connect, or take an idle connection. Answers: `handle_leg_open`,
    /// `handle_leg_failed` or `handle_unavailable`; before these, `handle_leg_queued` and `handle_leg_connecting`
    /// report the state.
    Dial {
        /// The leg to be.
        leg: u32,
        /// Pool, as an index of the connection's snapshot.
        pool: u32,
        /// How to choose.
        hint: ServerHint,
        /// Servers that were tried already, as indexes of the pool.
        tried: Vec<u32>,
        /// Whether an idle connection may be used.
        reuse: bool,
        /// The idle bound leg ([`Effect::Retain`]) to this server of the pool carries the request, under the new number
        /// and the other fields. Where it cannot, the answer is `handle_bound_lost`.
        bound: Option<u32>,
    },
    /// The response is over, and the leg idles: its server authenticated it for this client, so that it is kept for
    /// this client alone. It ends with [`Effect::Release`].
    Retain {
        /// The leg.
        leg: u32,
    },
    /// The leg is free: return its socket to the idle table when it is clean, else close it. With backups the effect
    /// comes when no failover can need the leg, and always before the next [`Effect::Dial`]. Directly before that it
    /// may come earlier, for the leg to carry the next request: see
    /// [`Connection::is_unsettled`](crate::Connection::is_unsettled).
    Release {
        /// The leg.
        leg: u32,
        /// The socket may serve other requests: nothing is on its way on it.
        clean: bool,
        /// It is not to serve any, although it could: its server was asked to close it, or authenticated it for
        /// this client.
        spent: bool,
        /// Record layer of a TLS leg, which goes with the socket. A leg that is not clean has it when close_notify is
        /// the last record before its FIN.
        records: Option<Box<Records>>,
        /// The connection ends with this effect. The socket serves other connections, or gets its close_notify, only
        /// after the backups know: when the client has acknowledged our end, or either side has reset.
        over: bool,
    },
    /// Send FIN to the server after what is queued.
    ShutdownServer {
        /// The leg.
        leg: u32,
    },
    /// The tunnel broke, or output for this server is dropped: the leg, which is released next, ends with RST. After a
    /// FIN the server would take a part for the whole, and another node would send the rest after the FIN. Nothing
    /// waits for this effect: after a failover the peer is gone, and the other leg of a tunnel breaks too.
    ResetServer {
        /// The leg.
        leg: u32,
    },
    /// The leg's server did not accept the connection, or its answer was late, malformed or incomplete. For counting
    /// only: it comes before the leg is released.
    ServerFailed {
        /// The leg.
        leg: u32,
    },
    /// Send FIN to the client after what is queued.
    ShutdownClient,
    /// Close the client's socket: at once and with RST when `abort`.
    CloseClient {
        /// Whether queued output is dropped.
        abort: bool,
    },
    /// These rules matched one request.
    Matched(Vec<RuleId>),
    /// A request ended.
    Logged(Box<RequestLog>),
    /// Keep this session for clients that send its id.
    KeepSession(Box<KeptSession>),
    /// The connection is audited: its envelope ([`Connection::sealed_secrets`](crate::Connection::sealed_secrets)) goes
    /// to a Recorder. After a failover the effect comes again.
    Sealed,
    /// The session was aborted: no client may resume it.
    WithdrawSession(SessionId),
    /// The handshake that this leg relays is complete, or failed: what the server's sessions are. Comes at most once,
    /// and not at all after a failover or an upgrade in the middle of the handshake.
    SessionObserved {
        /// The leg.
        leg: u32,
        /// What both sides showed.
        observation: Box<Observation>,
    },
    /// The backups hold all input of this leg up to `position`: the gate may acknowledge it. `u64::MAX`: everything
    /// that was read, and a FIN: bytes of a server behind its end do not matter.
    Acknowledge {
        /// Which leg's input: the client's, or a server's.
        side: evergate_replication::Side,
        /// Absolute raw input position.
        position: u64,
    },
}

/// One line of the access log.
#[derive(Clone, Debug, Default)]
pub struct RequestLog {
    /// Request id as sent to the server.
    pub id: String,
    /// Place among the connection's requests, from 0.
    pub request: u32,
    /// Id that the client gave, shortened; only of audited connections.
    pub given_id: Option<String>,
    /// The client that a trusted proxy names; nothing when the peer is the client.
    pub client: Option<IpAddr>,
    /// Method, or `-`.
    pub method: String,
    /// Host as the rules saw it.
    pub host: String,
    /// Path and query as the client sent them.
    pub target: String,
    /// Status sent to the client; 0 when none was.
    pub status: u16,
    /// Why it failed or was answered by us; empty when a server answered it.
    pub reason: &'static str,
    /// Cause of a failed TLS handshake with the client or with the server: printable ASCII of bounded length, empty
    /// without a failure.
    pub detail: String,
    /// The rule that decided, if any.
    pub rule: Option<RuleId>,
    /// Generation that `rule`, `pool` and `server` are indexes of.
    pub snapshot: Option<Arc<Snapshot>>,
    /// Pool, as an index.
    pub pool: Option<u32>,
    /// Server, as an index of the pool.
    pub server: Option<u32>,
    /// How often it was sent to another server.
    pub retries: u32,
    /// First byte of the head to here.
    pub started: Micros,
    /// From the start to the first byte of the response.
    pub first_byte: Micros,
    /// From the start to the end.
    pub total: Micros,
    /// Plaintext bytes received from the client.
    pub bytes_in: u64,
    /// Plaintext bytes sent to the client.
    pub bytes_out: u64,
    /// A rule asked for this request to be recorded.
    pub audit: bool,
    /// Its service class.
    pub class: Option<String>,
    /// It began at another node: what came before is counted and timed there.
    pub continued: bool,
    /// The request's `User-Agent`, shortened; absent unless the log wants it.
    pub user_agent: Option<String>,
    /// The request's `Referer`, shortened; absent unless the log wants it.
    pub referer: Option<String>,
}

/// Headers that are copied into the log of a request. None is copied unless the log wants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoggedHeaders {
    /// `User-Agent`.
    pub user_agent: bool,
    /// `Referer`.
    pub referer: bool,
}

/// A request that ended, for the worker to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Status sent to the client; 0 when none was.
    pub status: u16,
    /// Reason for an own answer or an abort; empty when a server answered.
    pub reason: &'static str,
    /// Generation that `listener` and `pool` are indexes of.
    pub generation: u64,
    /// Listener, as an index.
    pub listener: u32,
    /// Pool of the request, as an index; nothing for a request that no rule or listener sent to one.
    pub pool: Option<u32>,
}

/// Effects of one call, in order.
#[derive(Debug, Default)]
pub struct Effects {
    /// Bytes for the server leg.
    pub up: Vec<Piece>,
    /// A fatal alert for the server leg that this call releases: written once before that, as far as its socket takes
    /// it.
    pub last_up: Vec<u8>,
    /// Everything else.
    pub list: Vec<Effect>,
    /// Requests that ended.
    pub answered: Vec<Answered>,
}

impl Effects {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.up.clear();
        self.last_up.clear();
        self.list.clear();
        self.answered.clear();
    }

    pub(crate) fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }
}

/// Size of a worker's input buffer in bytes: a batch and one partial record before it.
pub const INPUT_BYTES: usize = 65_536 + 32_768;

/// A worker's buffers; every connection of the worker uses them in turn and keeps nothing in them.
#[derive(Debug)]
pub struct Scratch {
    /// Client input, or input of a TLS server leg.
    pub input: Vec<u8>,
    /// Client-bound bytes.
    pub down: Slots,
    /// Server-bound bytes that do not lie in `input`.
    pub up: Vec<u8>,
    pub(crate) head: Vec<u8>,
    pub(crate) path: Vec<u8>,
    pub(crate) rules: evergate_rules::Scratch,
    pub(crate) slots: Option<Box<evergate_http::HeaderSlots>>,
    spare_legs: SpareLegs,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Scratch {
    /// Fresh buffers.
    pub fn new() -> Scratch {
        Scratch {
            input: vec![0; INPUT_BYTES],
            down: Slots::new(),
            up: Vec::with_capacity(32_768),
            head: Vec::with_capacity(4096),
            path: Vec::with_capacity(1024),
            rules: evergate_rules::Scratch::default(),
            slots: Some(Box::new(evergate_http::HeaderSlots::new())),
            spare_legs: SpareLegs::default(),
        }
    }

    /// Puts a new leg into memory that was used before, if there is some.
    pub(crate) fn boxed_leg(&mut self, mut leg: ServerLeg) -> Box<ServerLeg> {
        leg.request.bytes = self.spare_legs.buffers.pop().unwrap_or_default();
        match self.spare_legs.legs.pop() {
            Some(mut spare) => {
                *spare = leg;
                spare
            }
            None => Box::new(leg),
        }
    }

    /// Keeps a leg's memory for the next one.
    pub(crate) fn spare_leg(&mut self, mut leg: Box<ServerLeg>) {
        self.spare_sent(std::mem::take(&mut leg.request.bytes));
        leg.wipe();
        if self.spare_legs.legs.len() < SPARE_LEGS {
            self.spare_legs.legs.push(leg);
        }
    }

    /// Keeps the memory of a request that need not be repeated any more.
    pub(crate) fn spare_sent(&mut self, mut sent: Vec<u8>) {
        let fits = sent.capacity() > 0 && sent.capacity() <= SPARE_BYTES;
        if fits && self.spare_legs.buffers.len() < SPARE_LEGS {
            sent.clear();
            self.spare_legs.buffers.push(sent);
        }
    }
}

/// Memory of finished legs that the next requests use again: a request in steady state allocates nothing.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "the box is what is kept")]
struct SpareLegs {
    legs: Vec<Box<ServerLeg>>,
    buffers: Vec<Vec<u8>>,
}

/// Legs, and request copies, that are kept.
const SPARE_LEGS: usize = 64;
/// Larger copies are freed.
const SPARE_BYTES: usize = 4096;

/// What a connection may ask of its node synchronously.
pub trait ConnectionHost {
    /// The newest configuration.
    fn snapshot(&self) -> &Arc<Snapshot>;
    /// Whether the node is draining: responses then have `Connection: close`.
    fn is_draining(&self) -> bool {
        false
    }
    /// Whether a limit on connections is nearly reached and few connections could be evicted: responses then have
    /// `Connection: close`, so that connections end in order after their requests.
    fn is_crowded(&self) -> bool {
        false
    }
    /// Whether this request may pass the rate limit of rule `rule`.
    fn allow(&mut self, snapshot: &Snapshot, rule: RuleId, client: IpAddr, host: &[u8]) -> bool {
        let _ = (snapshot, rule, client, host);
        true
    }
    /// The request that passed this rate limit was refused by another one, and does not count.
    fn give_back(&mut self, snapshot: &Snapshot, rule: RuleId, client: IpAddr, host: &[u8]) {
        let _ = (snapshot, rule, client, host);
    }
    /// What is kept under this session id.
    fn session(&mut self, id: &SessionId) -> Option<Sealed> {
        let _ = id;
        None
    }
    /// Seals the secrets of an audited connection for its Revealer and its Master; `None` if the node cannot.
    fn seal(&mut self, birth: &Birth<'_>) -> Option<Vec<u8>> {
        let _ = birth;
        None
    }
    /// Whether request logs are wanted.
    fn wants_logs(&self) -> bool {
        false
    }
    /// Headers of requests that the log wants.
    fn logged_headers(&self) -> LoggedHeaders {
        LoggedHeaders::default()
    }
}

/// What every call gets: the time, the buffers, where effects go, and the node.
pub struct Io<'a> {
    /// Now.
    pub now: Micros,
    /// The worker's buffers.
    pub scratch: &'a mut Scratch,
    /// Where effects go.
    pub effects: &'a mut Effects,
    /// The node.
    pub node: &'a mut dyn ConnectionHost,
}
