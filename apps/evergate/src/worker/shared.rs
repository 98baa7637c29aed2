//! What the workers of a process share.

use super::{NamedSessions, Room};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// What the workers of a process share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Client connections open in the process.
    pub connections: AtomicUsize,
    /// Workers that still get connections of the process before.
    pub inheriting: AtomicUsize,
    /// Client connections of listeners that have a bound of their own, and by address where that is bounded.
    pub held: std::sync::Mutex<HashMap<Held, usize>>,
    /// Sessions that clients resume by their ids.
    pub sessions: NamedSessions,
    /// How many descriptors are left.
    pub room: Room,
    /// Requests that wait for servers.
    pub waiting: AtomicUsize,
}

/// Something that is counted against a bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// Connections of a listener.
    Listener(Arc<str>),
    /// Connections of a listener from one source ([`crate::rate::source_of`]).
    Source(Arc<str>, IpAddr),
}
