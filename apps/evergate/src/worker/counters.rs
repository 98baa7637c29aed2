//! What a worker counts. Written by one worker with relaxed stores, read by the control plane.

use crate::latency_histogram::LatencyHistogram;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Rough figures of one core at 3 GHz: a response, a connection with its handshake, and bytes that are read, worked on and
/// written in a microsecond.
const RESPONSE_US: u64 = 10;
const CONNECTION_US: u64 = 100;
pub(super) const BYTES_PER_US: u64 = 3000;

/// A count that only its worker increases.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `more`.
    pub fn add(&self, more: u64) {
        // One writer: a plain load and store is enough and cheaper than an atomic addition.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Takes `less` away.
    pub fn sub(&self, less: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(less), Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Everything one worker counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Client connections accepted.
    pub accepted: Count,
    /// Client connections open now.
    pub open: Count,
    /// Client connections refused at a limit.
    pub refused: Count,
    /// Client connections evicted before their client sent a byte.
    pub evicted_silent: Count,
    /// Client connections evicted between requests.
    pub evicted_idle: Count,
    /// Client connections that could be evicted now.
    pub evictable: Count,
    /// TLS handshakes completed in full.
    pub handshakes_full: Count,
    /// TLS handshakes that resumed a session.
    pub handshakes_resumed: Count,
    /// Handshakes whose client named a TLS 1.2 session by its id that is kept here, and that is not.
    pub session_ids_found: Count,
    /// See there.
    pub session_ids_missed: Count,
    /// Responses by hundreds of their status: 1xx to 5xx.
    pub responses: [Count; 5],
    /// Bytes read from clients, of TLS as they are on the wire.
    pub client_bytes_in: Count,
    /// Bytes written to clients.
    pub client_bytes_out: Count,
    /// Bytes read from servers.
    pub server_bytes_in: Count,
    /// Bytes written to servers.
    pub server_bytes_out: Count,
    /// Connects to servers.
    pub connects: Count,
    /// Requests that went over an idle server connection.
    pub reused: Count,
    /// Connects and requests that failed at a server.
    pub server_failures: Count,
    /// Idle server connections that are kept for the client connection that they are authenticated for: a second
    /// old at most.
    pub bound: Count,
    /// Requests that wait for a server now.
    pub queued: Count,
    /// Access-log lines lost because the writer was behind.
    pub log_lines_lost: Count,
    /// Connections continued after another node's death.
    pub resumed: Count,
    /// Connections that could not be continued.
    pub resume_lost: Count,
    /// How long connections of nodes that died stood still, those with something under way and those that rested.
    pub stalls: [LatencyHistogram; 2],
    /// Peers that were told what they had sent to a node that was silent.
    pub loss_notices: Count,
    /// Peers that were told, beside those, because they said nothing for a while after a take-over or a move (`unheard`); each time counts.
    pub loss_notices_late: Count,
    /// What this worker mirrors and holds, in a cluster: a second old at most.
    pub replicated_state: Mutex<ReplicationCounts>,
    /// Connections that came from the process before.
    pub inherited: Count,
    /// Turns of the loop.
    pub turns: Count,
    /// Turns for which events were let gather.
    pub gathered: Count,
    /// CPU time of the worker in nanoseconds, updated every second.
    pub cpu_ns: Count,
    /// Requests and connections that ended with a reason of ours, by reason.
    pub reasons: Mutex<BTreeMap<&'static str, u64>>,
}

/// What a worker mirrors, and holds for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicationCounts {
    /// Own connections on the shared addresses, and those of them that some other node has a complete copy of.
    pub own: u64,
    /// See there.
    pub replicated: u64,
    /// Connections of other nodes that this one holds copies of, complete or not.
    pub held: u64,
    /// How far other nodes are behind, by their numbers.
    pub lags: BTreeMap<u8, Lag>,
}

/// How far a backup is behind what was said to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Frames that it has not acknowledged.
    pub frames: u64,
    /// Bytes that wait to be sent.
    pub unsent_bytes: u64,
    /// The longest that it took for one of the frames that were timed in the last second, or takes.
    pub behind_us: u64,
}

impl Lag {
    /// Of two workers, or channels.
    pub fn with(self, other: Lag) -> Lag {
        Lag {
            frames: self.frames + other.frames,
            unsent_bytes: self.unsent_bytes + other.unsent_bytes,
            behind_us: self.behind_us.max(other.behind_us),
        }
    }
}

impl Counters {
    /// Counts one end with a reason.
    pub fn reason(&self, reason: &'static str) {
        *self.reasons.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    /// What was done so far, in units that are good for comparing: about a microsecond each.
    pub fn work(&self) -> u64 {
        let responses: u64 = self.responses.iter().map(Count::get).sum();
        let bytes = self.client_bytes_in.get().wrapping_add(self.server_bytes_in.get());
        responses * RESPONSE_US + self.accepted.get() * CONNECTION_US + bytes / BYTES_PER_US
    }

    /// Counts one response.
    pub fn response(&self, status: u16) {
        let class = usize::from(status / 100).wrapping_sub(1);
        if let Some(count) = self.responses.get(class) {
            count.add(1);
        }
    }
}
