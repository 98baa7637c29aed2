//! What a worker of the front end decides, without an operating system.
//!
//! - [`pools`]: servers with their load and health, queues, sessions and rates, shared by the workers of a process;
//! - [`Counters`]: one table of everything that a worker counts;
//! - [`Shared`], [`Orders`]: limits of the process, and evictions that workers order from each other;
//! - [`host`]: what a worker needs of its host.

mod counters;
mod fd_reserve;
pub mod host;
mod latency_histogram;
mod orders;
pub mod pools;
mod session_id_cache;
mod shared;
mod watchdog;

pub use counters::{
    BYTES_PER_US, CLASSES, Classes, Count, Counted, Counters, Counts, Kind, Lag, Metric, ReplicationCounts,
    Section, Value, class_of,
};
pub use fd_reserve::{FdReserve, files_for_clients};
pub use latency_histogram::{LatencyHistogram, TimesStatus, TimesWithin};
pub use orders::{ORDERS_MAX, Order, Orders, Peer};
pub use session_id_cache::NamedSessions;
pub use shared::{LimitKey, Shared, Tally};
pub use watchdog::Watchdog;
