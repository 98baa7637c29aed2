//! One process of a node hands over to the next: `evergate upgrade`.
//!
//! The old process starts the new one with the arguments that it was started with itself, and a socket as its standard input.
//! Over it they speak in this order; until `Go` the old process serves as if nothing had happened, and any failure is the
//! new one's end and nothing else:
//!
//! 1. new: `Hello`, which forms it speaks. Others than ours are refused.
//! 2. old: `Offer`, with the listening sockets, admin and metrics sockets, and one stream for each worker. They are the same
//!    open sockets, queues included, so that no client is refused at any time.
//! 3. new: reads its configuration, which must be the one in force, sets everything up, and says `Ready`; or `Failed`, why.
//! 4. old: `Go`. It accepts no more and the new one begins to. Each worker of the old process passes its connections over
//!    its stream to the same worker of the new one (`worker::handover`), and what cannot go yet as soon as it can.
//! 5. The old process ends when it has nothing left and the new one has confirmed all, or after `timeouts.drain_ms`. Its workers
//!    stay until then: should the new process end before, they serve again.
//!
//! Invariant: a descriptor and the state that belongs to it go in one frame.
//! Not here: what a connection is made of ([`evergate_connection::Connection::export`]), and clusters, whose connections go to
//! other nodes instead.

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

/// The form of what processes say to each other. Another form has another number.
pub const UPGRADE_VERSION: u32 = 3;
/// The option of `evergate run` that says: standard input is the process before.
pub const SUCCESSOR_FLAG: &str = "--successor";

/// What the two processes say.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Hello(Hello),
    Offer(Box<Offer>),
    Failed(String),
    Ready,
    Go(OperatorState),
}

/// What operators have said since the offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorState {
    /// Servers that are out, by pool and name.
    pub draining: Vec<(String, String)>,
}

/// Who the new process is. Never changes its form: it is how others are told apart.
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

/// What the old process gives, beside connections.
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
    /// What the descriptors are that follow, in order.
    pub sockets: Vec<Offered>,
    /// Ticket keys that no file holds.
    pub tickets: Vec<OfferedTickets>,
    /// Certificates that were made at start.
    pub self_signed: Vec<OfferedCertificate>,
    /// What is known of the servers.
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
    /// What the health checks say.
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
    /// Workers that have looked at every connection once.
    pub swept: AtomicUsize,
    /// Workers that have nothing left: the new process has confirmed all, or the way to it broke and the rest has ended here, or
    /// they have ended themselves.
    pub done: AtomicUsize,
    /// The way to the new process broke: it has ended, or is about to, or lost the stream alone.
    pub broken: AtomicBool,
    /// What could not go at that first look, by reason.
    pub waiting: Mutex<BTreeMap<&'static str, u64>>,
}

impl Progress {
    /// A worker has ended, and has no connections.
    pub fn skip(&self) {
        self.swept.fetch_add(1, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}
