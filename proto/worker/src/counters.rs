//! Counters of a worker, in one table. The worker writes them with relaxed stores, and the control plane reads them.
//!
//! A new counter is a row of the table below, and a row of `docs/reference/metrics.md` and `admin-api.md`.

use crate::latency_histogram::LatencyHistogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Estimates for one core at 3 GHz: a response, a connection with its handshake, and bytes read, processed and written
/// per microsecond.
const RESPONSE_US: u64 = 10;
const CONNECTION_US: u64 = 100;
/// Bytes read, processed and written per microsecond, as an estimate.
pub const BYTES_PER_US: u64 = 3000;

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

/// Responses by hundreds of their status, 1xx to 5xx.
pub type Classes = [Count; 5];

/// Names of the classes of [`Classes`].
pub const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Class of a status as an index into [`Classes`]; nothing for a request without a response.
pub fn class_of(status: u16) -> Option<usize> {
    usize::from(status / 100).checked_sub(1).filter(|class| *class < CLASSES.len())
}

/// A counter of the table: its value in the admin API, and how values of workers add up.
pub trait Counted {
    /// Type of the value.
    type Value: Default;
    /// The value at this moment.
    fn value(&self) -> Self::Value;
    /// Adds the value of another worker.
    fn add(total: &mut Self::Value, more: &Self::Value);
}

impl Counted for Count {
    type Value = u64;

    fn value(&self) -> u64 {
        self.get()
    }

    fn add(total: &mut u64, more: &u64) {
        *total += more;
    }
}

impl Counted for Classes {
    type Value = BTreeMap<String, u64>;

    fn value(&self) -> Self::Value {
        CLASSES.into_iter().map(str::to_owned).zip(self.iter().map(Count::get)).collect()
    }

    fn add(total: &mut Self::Value, more: &Self::Value) {
        for (class, count) in more {
            *total.entry(class.clone()).or_default() += count;
        }
    }
}

/// Part of the metrics in which a counter of the table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Of each worker.
    Worker,
    /// Client connections, all workers together.
    Clients,
    /// Traffic of client connections, all workers together.
    Traffic,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A counter in nanoseconds whose metric is in seconds.
    CounterOfNs,
    /// A value of the moment.
    Gauge,
}

/// Metric of a counter of the table. Neighbours in the table with the same name are one family.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Section of the metrics.
    pub section: Section,
    /// Its type.
    pub kind: Kind,
    /// Its name.
    pub name: &'static str,
    /// Labels that identify it in its family.
    pub labels: &'static [(&'static str, &'static str)],
    /// Its help text.
    pub help: &'static str,
}

/// Value of a metric.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// One sample.
    One(u64),
    /// A sample for each class of status.
    Classes(&'a BTreeMap<String, u64>),
}

impl From<&u64> for Value<'_> {
    fn from(value: &u64) -> Self {
        Value::One(*value)
    }
}

impl<'a> From<&'a BTreeMap<String, u64>> for Value<'a> {
    fn from(value: &'a BTreeMap<String, u64>) -> Self {
        Value::Classes(value)
    }
}

/// Derives from one table the counters of a worker ([`Counters`]), their values in the admin API ([`Counts`]), the sums
/// over workers, and the metrics. A row has a comment, the name of the field and key of the status, and the type.
/// Unless the counter is in the status only, the section, type, name, labels and help text of its metric follow.
macro_rules! counters {
    (
        table {
            $(
                $(#[$about:meta])*
                $field:ident: $counted:ty
                $(=> $section:ident $kind:ident $name:literal [$($label:literal = $value:literal),*] $help:literal)?;
            )*
        }
        others { $($(#[$other_about:meta])* $other:ident: $other_type:ty,)* }
    ) => {
        /// All counters of one worker.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$about])* pub $field: $counted,)*
            $($(#[$other_about])* pub $other: $other_type,)*
        }

        /// Counters of a worker, or of all workers, at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counts {
            $($(#[$about])* pub $field: <$counted as Counted>::Value,)*
        }

        impl Counters {
            /// The values.
            pub fn counts(&self) -> Counts {
                Counts { $($field: Counted::value(&self.$field),)* }
            }
        }

        impl Counts {
            /// Adds the values of another worker.
            pub fn add(&mut self, more: &Counts) {
                $(<$counted as Counted>::add(&mut self.$field, &more.$field);)*
            }

            /// The metrics of a section in the order of the table, with their values.
            pub fn metrics(&self, section: Section) -> Vec<(Metric, Value<'_>)> {
                let all = [
                    $($((
                        Metric {
                            section: Section::$section,
                            kind: Kind::$kind,
                            name: $name,
                            labels: &[$(($label, $value)),*],
                            help: $help,
                        },
                        Value::from(&self.$field),
                    ),)?)*
                ];
                all.into_iter().filter(|(metric, _)| metric.section == section).collect()
            }
        }
    };
}

counters! {
    table {
        /// Client connections accepted.
        accepted: Count
            => Clients Counter "evergate_connections_accepted_total" [] "Client connections accepted.";
        /// Client connections received from the old process (`evergate upgrade`).
        inherited: Count
            => Clients Counter "evergate_connections_inherited_total" []
                "Client connections that came from the process before.";
        /// Client connections open now.
        open: Count;
        /// Client connections refused at a limit.
        refused: Count
            => Clients Counter "evergate_connections_refused_total" [] "Client connections refused at a limit.";
        /// Client connections that made room for new ones before their client sent a byte.
        evicted_silent: Count
            => Clients Counter "evergate_connections_evicted_total" ["state" = "silent"]
                "Client connections that made room for new ones at a limit.";
        /// Client connections that made room for new ones between requests.
        evicted_idle: Count
            => Clients Counter "evergate_connections_evicted_total" ["state" = "idle"] "";
        /// Client connections that could make room now.
        evictable: Count
            => Clients Gauge "evergate_connections_evictable" []
                "Client connections that would make room for new ones at a limit.";
        /// TLS handshakes completed in full.
        handshakes_full: Count
            => Clients Counter "evergate_handshakes_total" ["kind" = "full"]
                "TLS handshakes completed with clients, by kind.";
        /// TLS handshakes that resumed a session.
        handshakes_resumed: Count
            => Clients Counter "evergate_handshakes_total" ["kind" = "resumed"] "";
        /// TLS 1.2 session ids offered by clients that the cache had.
        session_ids_found: Count
            => Traffic Counter "evergate_session_id_lookups_total" ["result" = "found"]
                "TLS 1.2 clients that named a session by its id.";
        /// TLS 1.2 session ids offered by clients that the cache lacked.
        session_ids_missed: Count
            => Traffic Counter "evergate_session_id_lookups_total" ["result" = "missed"] "";
        /// Responses by class, `1xx` to `5xx`.
        responses: Classes
            => Traffic Counter "evergate_responses_total" [] "Responses sent to clients, by class of status.";
        /// Bytes read from clients, with TLS as on the wire.
        client_bytes_in: Count
            => Traffic Counter "evergate_bytes_total" ["peer" = "client", "direction" = "in"]
                "Bytes, by the peer and the direction as seen from here.";
        /// Bytes written to clients.
        client_bytes_out: Count
            => Traffic Counter "evergate_bytes_total" ["peer" = "client", "direction" = "out"] "";
        /// Bytes read from servers.
        server_bytes_in: Count
            => Traffic Counter "evergate_bytes_total" ["peer" = "server", "direction" = "in"] "";
        /// Bytes written to servers.
        server_bytes_out: Count
            => Traffic Counter "evergate_bytes_total" ["peer" = "server", "direction" = "out"] "";
        /// Connects to servers.
        connects: Count => Traffic Counter "evergate_connects_total" [] "Connects to servers.";
        /// Requests sent over an idle server connection.
        reused: Count
            => Traffic Counter "evergate_connections_reused_total" []
                "Requests sent over an idle server connection.";
        /// Connects and requests that failed at a server.
        server_failures: Count;
        /// Idle server connections bound to an authenticated client connection: at most a second old.
        bound: Count
            => Traffic Gauge "evergate_server_connections_bound" []
                "Idle server connections kept for the client connection that authenticated on them.";
        /// Requests that wait for a server now.
        queued: Count => Traffic Gauge "evergate_requests_queued" [] "Requests that wait for a server.";
        /// Requests that began to wait for a local port to a server.
        port_waits: Count
            => Traffic Counter "evergate_port_waits_total" []
                "Requests that waited for a free local port to a server.";
        /// Access-log lines lost because the writer was behind.
        log_lines_lost: Count
            => Traffic Counter "evergate_log_lines_lost_total" []
                "Access-log lines lost because writing was too slow or failed.";
        /// CPU time in nanoseconds, updated every second.
        cpu_ns: Count => Worker CounterOfNs "evergate_worker_cpu_seconds_total" [] "CPU time of a worker.";
        /// Turns of the event loop.
        turns: Count => Worker Counter "evergate_worker_turns_total" [] "Turns of a worker's event loop.";
        /// Turns before which events were batched.
        batched: Count
            => Worker Counter "evergate_worker_turns_batched_total" []
                "Turns for which a busy worker let events gather.";
    }
    others {
        /// Connections resumed after another node's failure.
        resumed: Count,
        /// Connections that could not be continued.
        resume_lost: Count,
        /// How long connections of failed nodes stood still: active ones, idle ones.
        stalls: [LatencyHistogram; 2],
        /// Loss notices sent directly after a failover, because of a silent node.
        loss_notices: Count,
        /// Loss notices sent later, because a peer stayed silent after a failover or handoff (`loss_notice`); each one
        /// counts.
        loss_notices_late: Count,
        /// Replication counts in a cluster: at most a second old.
        replicated_state: Mutex<ReplicationCounts>,
        /// Requests and connections that ended with an Evergate reason, by reason.
        reasons: Mutex<BTreeMap<&'static str, u64>>,
    }
}

/// Replication counts of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicationCounts {
    /// Own connections on the shared addresses.
    pub own: u64,
    /// Own connections on the shared addresses with a complete replica on another node.
    pub replicated: u64,
    /// Connections of other nodes with a replica here, complete or not.
    pub held: u64,
    /// Lag of each backup, by its node number.
    pub lags: BTreeMap<u8, Lag>,
}

/// Lag of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Frames that it has not acknowledged.
    pub frames: u64,
    /// Bytes that wait to be sent.
    pub unsent_bytes: u64,
    /// The longest time to an acknowledgement of a timed frame in the last second, a frame still waiting included.
    pub behind_us: u64,
}

impl Lag {
    /// Sum of the lags of two workers, or channels.
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

    /// How often something was counted under this reason.
    pub fn reason_count(&self, reason: &str) -> u64 {
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.get(reason).copied().unwrap_or_default()
    }

    /// Work done so far, in comparable units of about a microsecond.
    pub fn work(&self) -> u64 {
        let responses: u64 = self.responses.iter().map(Count::get).sum();
        let bytes = self.client_bytes_in.get().wrapping_add(self.server_bytes_in.get());
        responses * RESPONSE_US + self.accepted.get() * CONNECTION_US + bytes / BYTES_PER_US
    }

    /// Counts one response.
    pub fn response(&self, status: u16) {
        if let Some(class) = class_of(status) {
            self.responses[class].add(1);
        }
    }
}
