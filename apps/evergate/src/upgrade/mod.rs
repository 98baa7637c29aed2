//! Process upgrade: one process of a node passes its connections to the next (`evergate upgrade`).
//!
//! The old process starts the new one with its own arguments and a socket as standard input. The two exchange messages
//! over the socket in the following order. Until `Go` the old process serves as before, and any failure ends only the
//! new process:
//!
//! 1. new: `Hello` with its versions. Other versions than the old process's are refused.
//! 2. old: `Offer`, with the listening sockets, admin and metrics sockets, and one stream for each worker. They are the
//!    same open sockets, queues included, so that no client is refused at any time.
//! 3. new: reads its configuration, which must be the one in force, sets everything up, and sends `Ready`; or `Failed`
//!    with the reason.
//! 4. old: `Go`. It accepts no more connections, and the new process begins to. Each worker of the old process passes
//!    its connections over its stream to the same worker of the new one (`worker::upgrade`), blocked ones as soon as
//!    possible.
//! 5. The old process ends when it has no connection left and the new one has confirmed all, or after
//!    `timeouts.drain_ms`. Its workers stay until then: if the new process ends before, they serve again.
//!
//! Invariant: a descriptor and the state that belongs to it travel in one frame. Not here: the state of a connection
//! ([`evergate_connection::Connection::export`]), and clusters, whose connections move to other nodes instead.

mod fd_stream;
mod incoming;
mod outgoing;
mod server_state;

pub use fd_stream::{FRAME_BYTES_MAX, Frame, Link};
pub use incoming::{Inheritance, Predecessor};
pub use outgoing::{Failure, Leash, Order, Successor};
pub use server_state::{adopt_servers, adopted, offered_servers, prefer_known};

use evergate_base::session::KeptSession;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Version of the messages between the processes. Each change of them raises it.
pub const UPGRADE_VERSION: u32 = 3;
/// The option of `evergate run` that makes standard input the socket of the old process.
pub const SUCCESSOR_FLAG: &str = "--successor";

/// A message between the two processes.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Hello(Hello),
    Offer(Box<Offer>),
    Failed(String),
    Ready,
    Go(OperatorState),
}

/// Changes of operators since the offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorState {
    /// Servers that are out, by pool and name.
    pub draining: Vec<(String, String)>,
}

/// Identity of the new process. Its encoding never changes, so every version can read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    version: String,
    upgrade: u32,
    upgrade_state: u32,
}

impl Hello {
    fn ours() -> Hello {
        Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            upgrade: UPGRADE_VERSION,
            upgrade_state: evergate_connection::UPGRADE_STATE_VERSION,
        }
    }
}

/// State that the old process passes, besides connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Offer {
    /// [`evergate_config::Config::digest`] of the configuration in force.
    pub configuration: u64,
    /// Its generation.
    pub generation: u64,
    /// Number of workers.
    pub workers: usize,
    /// Descriptors that this process has open: as many may come with its connections.
    pub descriptors: usize,
    /// Meaning of the descriptors that follow, in order.
    pub sockets: Vec<Offered>,
    /// Ticket keys that no file holds.
    pub tickets: Vec<OfferedTickets>,
    /// Certificates that were made at start.
    pub self_signed: Vec<OfferedCertificate>,
    /// State of the servers.
    pub servers: Vec<OfferedServer>,
    /// The newest sessions that clients resume by their ids; sealed with the ticket keys.
    pub sessions: Vec<KeptSession>,
}

/// A descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offered {
    /// A worker's socket of a listener.
    Listener {
        /// Name of the listener.
        name: String,
        /// The worker.
        worker: usize,
        /// Where it is bound.
        address: SocketAddr,
    },
    /// The socket of the admin API.
    Admin(PathBuf),
    /// The socket of the metrics.
    Metrics(SocketAddr),
    /// The stream on which a worker's connections come.
    Worker(usize),
}

/// Ticket keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedTickets {
    /// Their name among the things that are kept.
    pub name: String,
    /// The keys, as in a file.
    pub keys: String,
    /// When they were rotated, in seconds since 1970.
    pub rotated_unix_s: Option<u64>,
}

/// A certificate that signs itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedCertificate {
    /// Its names.
    pub names: Vec<String>,
    /// The chain, PEM.
    pub chain: String,
    /// The private key, PEM.
    pub key: String,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedServer {
    /// Name of its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// The address in use.
    #[serde(default)]
    pub address: Option<SocketAddr>,
    /// Result of the health checks.
    pub healthy: bool,
    /// An operator took it out.
    pub draining: bool,
    /// Smoothed response time.
    pub response_us: u32,
}

/// How far the workers of the old process are. Written by them, read by the control plane.
#[derive(Debug, Default)]
pub struct Progress {
    /// Connections passed.
    pub passed: AtomicU64,
    /// Workers that have handled every connection once.
    pub swept: AtomicUsize,
    /// Workers without connections left: the new process has confirmed all, or the link to it broke and the rest has
    /// ended here, or the worker itself has ended.
    pub done: AtomicUsize,
    /// The way to the new process broke: it has ended, or is about to, or lost the stream alone.
    pub broken: AtomicBool,
    /// Connections that could not be passed then, by reason.
    pub waiting: Mutex<BTreeMap<&'static str, u64>>,
}

impl Progress {
    /// A worker has ended, and has no connections.
    pub fn skip(&self) {
        self.swept.fetch_add(1, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}
