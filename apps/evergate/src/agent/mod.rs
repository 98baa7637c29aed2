//! The node's part in a cluster: what the workers need, and what they report.
//!
//! One thread, the agent, runs the cluster protocol (`evergate_membership`). It exchanges heartbeats, writes leases and
//! owners into the gate, and sends the workers their roles. The workers replicate, recover and continue connections
//! (`crate::worker::replication`). Nothing here is used without a `[cluster]` section.
//!
//! - [`Startup`]: everything that must exist before the workers start;
//! - `event_loop`: the agent's thread, with `roles`, `failovers`, `witness_ping` and `address_announcer`;
//! - `housekeeping`: the thread for work that may wait;
//! - [`Running`] and [`Handle`]: the agent for the rest of the process.

mod address_announcer;
mod address_probe;
mod death_notifier;
mod event_loop;
mod failovers;
mod handle;
mod host_setup;
mod housekeeping;
mod instruction;
mod mailbox;
mod neighbour_cache;
pub(crate) mod required_settings;
mod roles;
mod routes;
mod secrets;
mod startup;
pub mod status;
mod tc_filters;
mod timing;
mod witness_ping;
mod worker_barrier;

pub use event_loop::AgentCommand;
pub use handle::{Handle, Running};
pub use instruction::{FailoverOrder, FrozenConnections, Instruction};
pub use neighbour_cache::Neighbours;
pub(crate) use roles::arrives;
pub use secrets::fresh_key;
pub use startup::Startup;

use mailbox::Mailbox;
use required_settings::Settings;

use evergate_base::Micros;
use evergate_membership::{Bucket, HandoffId, Incarnation, NodeId, Term};
use evergate_replication::{Frame, LegFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// One of the node's two network interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number in this network namespace.
    pub index: u32,
    /// Ethernet address of its card.
    pub mac: [u8; 6],
}

/// Properties of the node that do not change while it runs.
pub struct Layout {
    /// This node.
    pub node: NodeId,
    /// This run of the node's process.
    pub incarnation: Incarnation,
    /// Workers of every node of the cluster.
    pub workers: usize,
    /// Other settings that must be equal on all nodes.
    pub settings: Settings,
    /// Movable addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Source addresses of server legs, one per family; they move too.
    pub sources: Vec<IpAddr>,
    /// Outside and inside interface.
    pub interfaces: [Interface; 2],
    /// Inside address of every other node.
    pub peers: BTreeMap<NodeId, IpAddr>,
    /// Port of worker 0's replication channels; worker 1 has the next port, and so on.
    pub replication_port: u16,
    /// One listening socket per worker for replication channels.
    pub replication_listeners: Vec<OwnedFd>,
    /// TLS of replication channels that this node accepts.
    pub server_tls: Arc<rustls::ServerConfig>,
    /// TLS of replication channels that this node opens.
    pub client_tls: Arc<rustls::ClientConfig>,
    /// Neighbours that the kernel has.
    pub neighbours: Mutex<Neighbours>,
}

impl Layout {
    /// Address at which a worker of another node accepts replication channels.
    pub fn replication_address(&self, node: NodeId, worker: usize) -> Option<SocketAddr> {
        let port = u16::try_from(worker).ok().and_then(|worker| self.replication_port.checked_add(worker))?;
        self.peers.get(&node).map(|ip| SocketAddr::new(*ip, port))
    }

    /// The other node with this inside address.
    pub fn node_at(&self, ip: IpAddr) -> Option<NodeId> {
        self.peers.iter().find(|(_, of)| **of == ip).map(|(node, _)| *node)
    }

    /// Source address of a server leg to `server`.
    pub fn source_for(&self, server: SocketAddr) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| source.is_ipv4() == server.ip().to_canonical().is_ipv4())
    }

    /// This node's share of a bucket's ports. Servers may still have the pooled connections of a dead node. They refuse
    /// a new one from the same port at first, and it is tried again some milliseconds later. `None`: too few ports for
    /// all nodes.
    pub fn share_of(&self, ports: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
        let rank = self.peers.keys().filter(|id| **id < self.node).count();
        share(ports, rank, self.peers.len() + 1)
    }

    /// Enters the neighbour of a replicated leg into this node's kernel, so that a failover need not resolve it.
    pub fn add_neighbour(&self, facts: &LegFacts) {
        if facts.next_hop == [0; 6] {
            return; // the owner does not know it yet, and replicates it later
        }
        let Some(interface) = self.interfaces.get(usize::from(facts.interface)) else { return };
        let mut neighbours = self.neighbours.lock().unwrap_or_else(PoisonError::into_inner);
        let (ip, next_hop) = (facts.remote.ip(), facts.next_hop);
        // Without the entry a failover resolves the neighbour: slower, but correct.
        if neighbours.wants(ip, next_hop, || evergate_sys::is_on_link(interface.index, ip).ok())
            && evergate_sys::set_neighbour(interface.index, ip, next_hop).is_ok()
        {
            neighbours.note(ip, next_hop);
        }
    }
}

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

    /// Sends a report. The agent ends after its workers, so no later report matters.
    pub fn send(&self, report: Report) {
        self.mailbox.post((self.worker, report));
    }
}

/// A message from a worker to the agent.
#[derive(Clone, Debug)]
pub enum Report {
    /// As the owner: `node` has acknowledged everything that was replicated of the bucket in `term`.
    CaughtUp {
        /// The bucket.
        bucket: Bucket,
        /// The backup.
        node: NodeId,
        /// The owner's term.
        term: Term,
    },
    /// As a backup: the replica of the bucket is complete.
    Complete {
        /// The bucket.
        bucket: Bucket,
        /// The owner's term.
        term: Term,
    },
    /// A replication channel broke or is too slow.
    ChannelLost {
        /// The other end.
        node: NodeId,
        /// Cause.
        why: String,
    },
    /// The replicas of these buckets at `node` lack something: the node must be dropped as their backup.
    Incomplete {
        /// The backup.
        node: NodeId,
        /// The buckets, each with the term of the missing state.
        buckets: Vec<(Bucket, Term)>,
    },
    /// A failover is finished in this worker.
    Resumed(Resumed),
    /// Processor time of these buckets' connections since the last report.
    Worked(Vec<(Bucket, Micros)>),
    /// The bucket is frozen: its connections stand still here, and its next owner has all their state.
    Frozen {
        /// The bucket.
        bucket: Bucket,
        /// The owner's term.
        term: Term,
        /// The planned handoff.
        freeze: HandoffId,
        /// State of its connections here, for the worker that stores replicas of the bucket.
        mine: Vec<Frame>,
    },
}

/// Part `rank` of `ports`, cut into `parts` that differ by one at most; `None` when there are fewer ports than parts.
fn share(ports: &RangeInclusive<u16>, rank: usize, parts: usize) -> Option<RangeInclusive<u16>> {
    let before = |rank: usize| u16::try_from(ports.len() * rank / parts).ok();
    let (first, next) = (before(rank)?, before(rank + 1)?);
    (first < next).then(|| ports.start() + first..=ports.start() + (next - 1))
}

/// Result of a failover in one worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resumed {
    /// Number of the failover.
    pub round: u64,
    /// Recovered buckets.
    pub buckets: usize,
    /// Connections that continue.
    pub connections: usize,
    /// Connections that could not continue.
    pub lost: usize,
    /// From the instruction to the first ACK, in microseconds.
    pub took_us: u64,
}

impl Resumed {
    /// Counts one connection.
    pub fn count(&mut self, continues: bool) {
        *if continues { &mut self.connections } else { &mut self.lost } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn nodes_share_all_ports_of_a_bucket_and_none_twice() {
        for parts in 1..40 {
            let all: Vec<u16> =
                (0..parts).filter_map(|rank| share(&(1024..=1081), rank, parts)).flatten().collect();
            assert_eq!(all, (1024..=1081).collect::<Vec<u16>>(), "{parts} nodes");
        }
        assert_eq!(share(&(65_534..=65_535), 1, 2), Some(65_535..=65_535));
        assert_eq!(share(&(7..=8), 0, 3), None);
    }
}
