//! The node's part in a cluster: what the workers need to know, and what they report.
//!
//! One thread, the agent, runs the cluster protocol (`evergate_membership`): it exchanges heartbeats, writes leases and
//! owners into the gate, and tells the workers their roles. The workers mirror, hold and continue connections
//! (`crate::worker::cluster`). Nothing here is used without a `[cluster]` section.
//!
//! - [`Ground`]: all that must be there before the workers start;
//! - `agent`: the thread, with its `roles`, `rounds`, `witness`, `speaker`, and a `keeper` for what may wait;
//! - [`Running`] and [`Handle`]: what the rest of the process sees of it.

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
    /// Its card's address.
    pub mac: [u8; 6],
}

/// What does not change while the node runs.
pub struct Layout {
    /// This node.
    pub node: NodeId,
    /// Its present life.
    pub incarnation: Incarnation,
    /// Workers of every node of the cluster.
    pub workers: usize,
    /// What else all its nodes must have alike.
    pub settings: Settings,
    /// Addresses that move between the nodes.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses that server legs start from, one per family; they move too.
    pub sources: Vec<IpAddr>,
    /// Outside and inside interface.
    pub interfaces: [Interface; 2],
    /// Inside address of every other node.
    pub peers: BTreeMap<NodeId, IpAddr>,
    /// Mirror channels of worker 0 come to this port, of worker 1 to the next, and so on.
    pub replication_port: u16,
    /// One listening socket per worker for mirror channels.
    pub replication_listeners: Vec<OwnedFd>,
    /// TLS of mirror channels.
    pub server_tls: Arc<rustls::ServerConfig>,
    /// The same from the other end.
    pub client_tls: Arc<rustls::ClientConfig>,
    /// Neighbours that were made known.
    pub neighbours: Mutex<Neighbours>,
}

impl Layout {
    /// Where a worker of another node takes mirror channels.
    pub fn replication_address(&self, node: NodeId, worker: usize) -> Option<SocketAddr> {
        let port = u16::try_from(worker).ok().and_then(|worker| self.replication_port.checked_add(worker))?;
        self.peers.get(&node).map(|ip| SocketAddr::new(*ip, port))
    }

    /// The other node that has this address on the inside.
    pub fn node_at(&self, ip: IpAddr) -> Option<NodeId> {
        self.peers.iter().find(|(_, of)| **of == ip).map(|(node, _)| *node)
    }

    /// The address that a server leg to `server` starts from.
    pub fn source_for(&self, server: SocketAddr) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| source.is_ipv4() == server.ip().to_canonical().is_ipv4())
    }

    /// This node's share of a bucket's ports. Servers still know the pooled connections of a node that died: a new one from
    /// the same port is refused at first, and tried again some milliseconds later. `None`: there are too few for all nodes.
    pub fn share_of(&self, ports: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
        let rank = self.peers.keys().filter(|id| **id < self.node).count();
        share(ports, rank, self.peers.len() + 1)
    }

    /// Makes the neighbour of a mirrored leg known to this node's kernel, so that a take-over need not ask for it.
    pub fn know_neighbour(&self, facts: &LegFacts) {
        if facts.next_hop == [0; 6] {
            return; // its owner has yet to learn it, and says it then
        }
        let Some(interface) = self.interfaces.get(usize::from(facts.interface)) else { return };
        let mut neighbours = self.neighbours.lock().unwrap_or_else(PoisonError::into_inner);
        let (ip, next_hop) = (facts.remote.ip(), facts.next_hop);
        // A take-over without it asks the network: slower, not wrong.
        if neighbours.wants(ip, next_hop, || evergate_sys::is_on_link(interface.index, ip).ok())
            && evergate_sys::set_neighbour(interface.index, ip, next_hop).is_ok()
        {
            neighbours.note(ip, next_hop);
        }
    }
}

/// A worker's way to the agent.
#[derive(Clone, Debug)]
pub struct Reporter {
    worker: usize,
    mailbox: Arc<Mailbox<(usize, Report)>>,
}

impl Reporter {
    /// One, and what takes all that was reported.
    #[cfg(test)]
    pub(crate) fn peer_input() -> (Reporter, impl Fn() -> Vec<Report>) {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let peer_input = mailbox.clone();
        let take = move || peer_input.take().into_iter().map(|(_, report)| report).collect();
        (Reporter { worker: 0, mailbox }, take)
    }

    /// Reports. The agent ends after its workers; what comes later is of no use to anybody.
    pub fn send(&self, report: Report) {
        self.mailbox.post((self.worker, report));
    }
}

/// What a worker tells the agent.
#[derive(Clone, Debug)]
pub enum Report {
    /// As the owner: `node` has acknowledged everything about the bucket that was said in `term`.
    CaughtUp {
        /// The bucket.
        bucket: Bucket,
        /// The backup.
        node: NodeId,
        /// In which term.
        term: Term,
    },
    /// As a backup: everything about the bucket has come.
    Complete {
        /// The bucket.
        bucket: Bucket,
        /// In which term.
        term: Term,
    },
    /// A mirror channel broke or is too slow; `node` is at the other end.
    ChannelLost {
        /// The other end.
        node: NodeId,
        /// What happened.
        why: String,
    },
    /// The copies of these buckets at `node` lack something: it must be dropped as their backup.
    Incomplete {
        /// The backup.
        node: NodeId,
        /// Each with the term in which it was to be said.
        buckets: Vec<(Bucket, Term)>,
    },
    /// A take-over round is finished in this worker.
    Resumed(Resumed),
    /// What connections of these buckets have cost since the last time.
    Worked(Vec<(Bucket, Micros)>),
    /// The bucket is frozen: nothing of it moves here any more, and its next owner has everything.
    Frozen {
        /// The bucket.
        bucket: Bucket,
        /// In which term.
        term: Term,
        /// For which move.
        freeze: HandoffId,
        /// Its connections here, as they are, for the worker that holds copies of the bucket.
        mine: Vec<Frame>,
    },
}

/// Part `rank` of `ports`, cut into `parts` that differ by one at most; `None` when there are fewer ports than parts.
fn share(ports: &RangeInclusive<u16>, rank: usize, parts: usize) -> Option<RangeInclusive<u16>> {
    let before = |rank: usize| u16::try_from(ports.len() * rank / parts).ok();
    let (first, next) = (before(rank)?, before(rank + 1)?);
    (first < next).then(|| ports.start() + first..=ports.start() + (next - 1))
}

/// What a take-over came to in one worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resumed {
    /// Number of the round.
    pub round: u64,
    /// Buckets taken over.
    pub buckets: usize,
    /// Connections that go on.
    pub connections: usize,
    /// Connections that could not be continued.
    pub lost: usize,
    /// From the instruction to the first ACK, in microseconds.
    pub took_us: u64,
}

impl Resumed {
    /// One more connection goes on, or does not.
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
