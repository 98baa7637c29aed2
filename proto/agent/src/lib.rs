//! The cluster agent of a node: what it decides between the membership protocol, the gate and the workers.
//!
//! - [`Agent`]: events of the protocol and reports of workers in; owners, leases and instructions out;
//! - [`Outside`]: the gate, the workers, and the receiver of notices;
//! - [`Roles`]: roles of buckets on their way to gate and workers;
//! - [`WorkerBarrier`]: reports that count only when every worker has sent one;
//! - [`Failovers`]: running and past failovers.
//!
//! The daemon's agent and the simulator run this code. Sockets, witnesses, clocks and log lines belong to the daemon.

mod agent;
mod failovers;
mod lease_table;
mod outside;
mod roles;
mod worker_barrier;

pub use agent::Agent;
pub use failovers::{FAILOVERS_MAX, FailoverCounts, FailoverStatus, Failovers, Handoffs};
pub use outside::{Notice, Outside, OwnerWord};
pub use roles::{RoleCounts, Roles};
pub use worker_barrier::WorkerBarrier;
