//! Read-only views of a worker for simulators and tests: what a host cannot see in its sockets and its gate.

use super::Cluster;
use crate::host::{Host, Slot};
use crate::slab::Slab;
use crate::upstreams::Upstream;
use crate::worker::Worker;
use evergate_base::net::Flow;
use evergate_membership::{Bucket, MemberSet, Role};
use evergate_replication::{ConnectionId, ReplicaStore};

/// A gated leg that a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegInUse {
    /// The connection.
    pub connection: ConnectionId,
    /// Its bucket.
    pub bucket: Bucket,
    /// Number of the leg in the connection; 0 is the client's.
    pub leg: u32,
    /// Sequence number of the peer's first byte on this leg.
    pub received: u32,
}

impl<H: Host> Worker<H> {
    /// Replicas of other nodes' connections; `None` without a cluster.
    pub fn replicas(&self) -> Option<&ReplicaStore> {
        self.cluster.as_ref().map(|cluster| &cluster.replicas.store)
    }

    /// The connection that uses the leg between these ends; `None` for a pooled or unknown one.
    pub fn leg_in_use(&self, flow: &Flow) -> Option<LegInUse> {
        self.clients.iter().find_map(|(key, client)| {
            let replication = client.replicated_state.as_ref()?;
            let (connection, bucket) = (client.connection.id(), replication.bucket);
            let in_use = |leg, received| LegInUse { connection, bucket, leg, received };
            if replication.leg.slot.flow() == *flow {
                return Some(in_use(0, replication.leg.received().0));
            }
            let upstream = self.upstreams.get(client.upstream?)?;
            let gated = upstream.gated.as_ref().filter(|gated| gated.slot.flow() == *flow)?;
            let (_, leg) = upstream.owner.filter(|(owner, _)| *owner == key)?;
            Some(in_use(leg, gated.received().0))
        })
    }

    /// Backups that may continue the bucket: the required ones, and those reported as caught up.
    pub fn relied_on(&self, bucket: Bucket) -> MemberSet {
        let Some(cluster) = &self.cluster else { return MemberSet::EMPTY };
        let required = match cluster.role(bucket) {
            Role::Owner { required, .. } => required,
            _ => MemberSet::EMPTY,
        };
        let named = cluster.channels.named.iter().filter(|(of, _)| *of == bucket).map(|(_, node)| *node);
        named.fold(required, MemberSet::with)
    }

    /// Whether connections of the bucket come from another node and do not all resume yet.
    pub fn is_recovering(&self, bucket: Bucket) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.failovers.is_pending(bucket))
    }

    /// Connections of other nodes that have resumed here so far.
    pub fn resumed(&self) -> u64 {
        let unfinished = self.cluster.iter().flat_map(|cluster| &cluster.failovers.waiting);
        let unfinished: usize = unfinished.map(|failover| failover.resumed.connections).sum();
        self.counters.resumed.get() + unfinished as u64
    }

    /// Bytes that wait here for slow peers and for backups.
    pub fn held_bytes(&mut self) -> usize {
        let outlets: usize = self
            .clients
            .iter_mut()
            .map(|client| client.connection.down().len() + client.connection.up().len())
            .sum();
        let frames = self.cluster.iter().flat_map(|cluster| cluster.channels.outgoing.values());
        outlets + frames.map(|outgoing| outgoing.feed.unsent().len()).sum::<usize>()
    }

    /// Steps that panicked so far: a worker ends the connection of such a step, and continues.
    pub fn panics(&self) -> u64 {
        self.counters.reason_count("internal_panic")
    }

    /// Whether frames wait for further ones.
    pub fn has_waiting_frames(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.batcher.is_waiting())
    }

    /// Panics when an invariant is broken that holds between two turns.
    pub fn check_invariants(&self) {
        let Some(cluster) = &self.cluster else { return };
        cluster.replicas.store.check_invariants();
        cluster.replicas.store.check_states();
        for (_, client) in self.clients.iter() {
            if let Some(replication) = &client.replicated_state {
                replication.fold.check_invariants();
                replication.leg.check_invariants();
            }
        }
        let gated = self.upstreams.iter().filter_map(|(_, upstream)| upstream.gated.as_ref());
        gated.for_each(|gated| gated.check_invariants());
    }

    /// Its connections, replicas and unfinished failovers as text for traces.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (_, client) in self.clients.iter() {
            let server = client.upstream.and_then(|key| self.upstreams.get(key));
            text += &format!(
                "    {:?} timer {:?} leg {:?} newest entry {} acknowledged {} readable {} writable {} server {}\n",
                client.connection.id(),
                client.connection.timer(),
                client.connection.leg_id(),
                client.connection.newest_entry(),
                client.connection.acknowledged(),
                client.readable,
                client.writable,
                server.map_or_else(|| "none".to_owned(), describe_server),
            );
        }
        if let Some(cluster) = &self.cluster {
            text += &cluster.describe(&self.upstreams);
        }
        text
    }
}

fn describe_server<H: Host>(upstream: &Upstream<H>) -> String {
    let Upstream { connecting, readable, writable, ended, broken, .. } = upstream;
    format!("connecting {connecting} readable {readable} writable {writable} ended {ended} broken {broken}")
}

impl<H: Host> Cluster<H> {
    fn describe(&self, upstreams: &Slab<Upstream<H>>) -> String {
        let mut text = format!(
            "    pooled {} frozen {:?} freezing {:?} closing {:?} arriving {:?} named {:?}\n",
            upstreams.iter().filter(|(_, upstream)| upstream.owner.is_none()).count(),
            self.handoffs.frozen,
            self.handoffs.freezing.keys().collect::<Vec<_>>(),
            self.handoffs.closing.keys().collect::<Vec<_>>(),
            self.failovers.arriving,
            self.channels.named,
        );
        for ((node, _), outgoing) in &self.channels.outgoing {
            let (sent, lag) = (outgoing.feed.frames(), outgoing.feed.lag());
            let unsent = outgoing.feed.unsent().len();
            text += &format!(
                "    channel to {node}: connecting {} frames {sent} lag {lag} unsent {unsent}\n",
                outgoing.connecting
            );
        }
        for (key, held) in self.replicas.store.iter() {
            text += &format!("    holds {key:?} of {:?}\n", held.term);
        }
        for failover in &self.failovers.waiting {
            let left = failover.left.iter().map(|of| of.values().map(Vec::len).sum::<usize>());
            text += &format!(
                "    recovers: probing {} left {:?}\n",
                failover.probes.is_some(),
                left.collect::<Vec<_>>()
            );
        }
        text
    }
}
