//! The worker of the front end: what it decides, without an operating system.
//!
//! One [`Worker`] runs in the daemon, in the simulator and in fuzz targets, over different [`Host`]s. A turn handles
//! events, lets each connection's state machine decide, and performs the results through the host.
//!
//! - [`Worker`]: its turn; [`Command`] and [`Instruction`] come to it, [`Report`] and [`LogEvent`] leave it;
//! - `accept`, `arrivals`, `limits`, `evict`: new connections, their PROXY headers, and the limits that they count
//!   against;
//! - `clients`, `upstreams`, `bound`: both sides' connections; `dial`, `queue`: the way to a server;
//! - `relay`, `effects`, `read_interest`: one connection's turn;
//! - `passing`: connections of another process of the machine;
//! - `replication`: a worker's part of a cluster;
//! - [`pools`]: servers with their load and health, queues, sessions and rates, shared by the workers of a process;
//! - [`Counters`]: one table of everything that a worker counts;
//! - [`Shared`], [`Orders`]: limits of the process, and evictions that workers order from each other;
//! - [`host`]: what a worker needs of its host.

mod accept;
mod arrivals;
mod audit;
mod bound;
mod call_context;
mod clients;
mod close_notify;
mod cluster_settings;
mod command;
mod counters;
mod dial;
mod effects;
mod event_batching;
mod evict;
mod fd_reserve;
pub mod host;
mod instruction;
mod latency_histogram;
mod layout;
mod limits;
mod log_event;
mod observed_handshakes;
mod orders;
mod panic_guard;
mod passing;
pub mod pools;
mod queue;
mod read_interest;
mod relay;
mod replication;
mod report;
mod session_id_cache;
mod shared;
mod slab;
mod steps;
mod timer_wheel;
mod upstreams;
mod wait;
mod watchdog;
mod worker;

pub use cluster_settings::{ClusterSettings, difference};
pub use command::{Bounds, Command, ListenerSocket, Settings};
pub use counters::{
    BYTES_PER_US, CLASSES, Classes, Count, Counted, Counters, Counts, Kind, Lag, Metric, ReplicationCounts,
    Section, Value, class_of,
};
pub use event_batching::EventBatching;
pub use fd_reserve::{FdReserve, files_for_clients};
pub use host::Host;
pub use instruction::{FailoverOrder, FrozenConnections, Instruction, arrives};
pub use latency_histogram::{LatencyHistogram, TimesStatus, TimesWithin};
pub use layout::{Interface, Layout};
pub use log_event::LogEvent;
pub use orders::{ORDERS_MAX, Order, Orders, Peer};
pub use passing::{Carried, Moving};
pub use replication::{Joining, LegInUse};
pub use report::{Report, Resumed};
pub use session_id_cache::NamedSessions;
pub use shared::{LimitKey, Shared, Tally};
pub use slab::{Key, Source};
pub use steps::Steps;
pub use wait::Wait;
pub use watchdog::Watchdog;
pub use worker::{Parts, Worker};
