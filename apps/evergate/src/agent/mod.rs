//! The node's part in a cluster: what the workers need, and what they report.
//!
//! One thread, the agent, runs the cluster protocol (`evergate_membership`). It exchanges heartbeats, writes leases and
//! owners into the gate, and sends the workers their roles. The workers replicate, recover and continue connections
//! (`evergate_worker`). Nothing here is used without a `[cluster]` section.
//!
//! - [`Startup`]: everything that must exist before the workers start;
//! - `event_loop`: the agent's thread, with `gate_words`, `witness_ping` and `address_announcer`;
//! - `housekeeping`: the thread for work that may wait;
//! - [`Running`] and [`Handle`]: the agent for the rest of the process.

mod address_announcer;
mod address_probe;
mod death_notifier;
mod event_loop;
mod gate_words;
mod handle;
mod host_setup;
mod housekeeping;
mod mailbox;
mod neighbour_cache;
mod replication_ends;
mod required_settings;
mod routes;
mod secrets;
mod startup;
pub mod status;
mod tc_filters;
mod timing;
mod witness_ping;

pub use event_loop::AgentCommand;
pub use handle::{Handle, Running};
pub use neighbour_cache::Neighbours;
pub(crate) use replication_ends::ReplicationEnds;
pub use secrets::fresh_key;
pub use startup::Startup;

use evergate_worker::Report;
use evergate_worker::host::Reports;
use mailbox::Mailbox;
use std::sync::Arc;

/// A worker's channel to the agent.
#[derive(Clone, Debug)]
pub struct Reporter {
    worker: usize,
    mailbox: Arc<Mailbox<(usize, Report)>>,
}

impl Reporter {
    /// A reporter, and a closure that takes all its reports.
    #[cfg(test)]
    pub(crate) fn with_reports() -> (Reporter, impl Fn() -> Vec<Report>) {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let reports = mailbox.clone();
        let take = move || reports.take().into_iter().map(|(_, report)| report).collect();
        (Reporter { worker: 0, mailbox }, take)
    }
}

impl Reports for Reporter {
    fn send(&self, report: Report) {
        self.mailbox.post((self.worker, report));
    }
}
