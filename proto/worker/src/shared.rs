//! State shared by the workers of a process.

use crate::fd_reserve::FdReserve;
use crate::orders::Orders;
use crate::session_id_cache::NamedSessions;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// State shared by the workers of a process.
#[derive(Debug, Default)]
pub struct Shared {
    /// Client connections open in the process.
    pub connections: AtomicUsize,
    /// Workers that still receive connections of the old process.
    pub inheriting: AtomicUsize,
    /// Client connections of listeners with a limit of their own, and by address where that is limited.
    pub held: std::sync::Mutex<HashMap<LimitKey, Arc<Tally>>>,
    /// Evictions that workers order from each other.
    pub orders: Orders,
    /// Sessions that clients resume by their ids.
    pub sessions: NamedSessions,
    /// How many descriptors are left.
    pub room: FdReserve,
    /// Requests that wait for servers.
    pub waiting: AtomicUsize,
    /// Nodes of the cluster that serve clients, this one included; 0 without a cluster.
    pub distributors: AtomicU32,
}

/// Connections of the process that count against one limit.
#[derive(Debug, Default)]
pub struct Tally {
    /// Open connections; changed under the lock of [`Shared::held`].
    pub open: AtomicUsize,
    /// Connections that could be evicted.
    pub evictable: AtomicUsize,
}

/// Something that is counted against a bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LimitKey {
    /// Connections of a listener.
    Listener(Arc<str>),
    /// Connections of a listener from one source ([`crate::pools::source_of`]).
    Source(Arc<str>, IpAddr),
}
