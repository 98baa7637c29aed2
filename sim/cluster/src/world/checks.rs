//! Checks after every step.

use super::World;
use crate::Mutation;
use crate::segment::{FIRST, Flow, Segment, number};
use evergate_base::Micros;
use evergate_membership::{Bucket, MemberSet, NodeId, Role};
use evergate_replication::{ConnectionState, ReplicaStore, ReplicatedConnection};
use evergate_worker::LegInUse;

/// Most bytes that one process may keep for one connection, beside its socket buffers.
const HELD_MAX: usize = 2 << 20;

impl World {
    /// Whether the gate lets the bucket's packets out, by the kernel's owner word and leases.
    pub(super) fn may_transmit(&self, host: usize, bucket: Bucket) -> bool {
        let it = &self.hosts[host];
        match self.mutation {
            Mutation::NoFence => it.owns(bucket),
            _ => it.node.gate_open(bucket, it.clock.at(self.now)),
        }
    }

    /// At most one of two nodes has an open gate, also a moment ago: a packet may still be in a queue.
    pub(super) fn check_owners(&mut self) {
        let queued = self.template.config.timing.transmit.0;
        for bucket in self.buckets() {
            let open = |host: &usize| {
                let it = &self.hosts[*host];
                let clock = Micros(it.clock.at(self.now).0.saturating_sub(queued));
                let fenced = self.mutation != Mutation::NoFence;
                it.up && if fenced { it.node.gate_open(bucket, clock) } else { it.owns(bucket) }
            };
            let open: Vec<usize> = (0..self.hosts.len()).filter(open).collect();
            if open.len() > 1 {
                self.fail(|| format!("bucket {}: the gates of nodes {open:?} are open", bucket.0));
            }
        }
    }

    /// Checks a segment that leaves a gate: no position with two contents, no ACK of input that backups lack.
    pub(super) fn check_departure(&mut self, host: usize, segment: &Segment) {
        let peer = self.by_flow.get(&segment.flow).and_then(|index| self.peers.get(*index));
        let has_end = peer.is_some_and(|peer| peer.tcp.has_end());
        if let Err(what) = self.output_checker.note(segment, has_end) {
            return self.fail(|| format!("node {host}: {what}"));
        }
        let Some(ack) = segment.ack.filter(|ack| *ack > FIRST && !segment.rst) else { return };
        let it = &self.hosts[host];
        if it.kernel().slots.of(segment.flow).is_none_or(|entry| entry.slot.open) {
            return;
        }
        let Some(process) = it.process.as_ref() else { return };
        let Some(used) = process.worker.leg_in_use(&segment.flow.into()) else { return };
        let LegInUse { connection: key, bucket, leg, received } = used;
        let origin = number(received);
        let peer_end = self.by_flow.get(&segment.flow).map(|index| &self.peers[*index]);
        let ends = peer_end.is_some_and(|peer| peer.end_sent && ack == FIRST + peer.output_length + 1);
        let position = ack.saturating_sub(origin + u64::from(ends));
        // The agent may know before the worker that a backup can resume.
        let named = match it.node.role(bucket) {
            Role::Owner { required, .. } => required,
            _ => MemberSet::EMPTY,
        };
        let relied_on = process.worker.relied_on(bucket).union(named);
        for node in relied_on.iter().filter(|node| usize::from(node.0) != host) {
            let backup = &self.hosts[usize::from(node.0)];
            let Some(store) = backup.process.as_ref().and_then(|other| other.worker.replicas()) else {
                continue;
            };
            match (backup.node.role(bucket), it.node.role(bucket)) {
                // The backup was asked to drop its replica, and its answer is on the way to the owner.
                (Role::Outside { .. }, _) => continue,
                // A view dropped it that the owner, or its worker, does not know yet: that view relies on other nodes.
                (Role::Backup { term, in_sync: false, .. }, Role::Owner { term: known, .. })
                    if term.view > known.view || (term.view == known.view && !named.contains(node)) =>
                {
                    continue;
                }
                _ => {}
            }
            let held = store.iter().find(|(id, _)| **id == key).map(|(_, held)| &held.state);
            if let Some(lacks) = lacks(held, leg, position) {
                return self.fail(|| {
                    format!(
                        "node {host}: ACK {ack} ({position} of leg {leg}) left on {}, but {node} {lacks}",
                        segment.flow
                    )
                });
            }
            if leg != 0 && is_named_twice(store, segment.flow) {
                return self.fail(|| format!("{node} would continue {} for two connections", segment.flow));
            }
        }
    }

    /// Checks that memory is bounded, and that the worker reported no failure.
    pub(super) fn check_host(&mut self, host: usize) {
        let connections = self.peers.len().max(1);
        let buffer = self.buffer;
        let it = &mut self.hosts[host];
        let sockets = it.kernel().held_bytes();
        let failure = it.machine.borrow_mut().steps.take_failure();
        let Some(process) = &mut it.process else { return };
        let worker = &mut process.worker;
        worker.check_invariants();
        let panics = worker.panics();
        let held = worker.held_bytes();
        let stashes = |state: &ConnectionState| {
            state.client_stash.bytes.len()
                + state.server_stash.values().map(|stash| stash.bytes.len()).sum::<usize>()
        };
        let stashed = worker
            .replicas()
            .into_iter()
            .flat_map(ReplicaStore::iter)
            .map(|(_, held)| stashes(&held.state))
            .max()
            .unwrap_or(0);
        if let Some(failure) = failure {
            return self.fail(|| format!("node {}: {failure}", NodeId(host as u8)));
        }
        if panics > 0 {
            return self.fail(|| format!("node {host}: a step of the worker panicked"));
        }
        // Bytes of a socket: unread input, unsent output, and segments out of order.
        if sockets > connections * 8 * (buffer + 65_536) || held > connections * HELD_MAX {
            self.fail(|| format!("node {host} holds {sockets} bytes in sockets and {held} in its process"));
        }
        if stashed > 5 * buffer + 40_000 {
            self.fail(|| format!("node {host} holds {stashed} bytes of stashed input of one connection"));
        }
    }

    /// The state of all parts.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (id, host) in self.hosts.iter().enumerate() {
            let roles: Vec<String> =
                self.buckets().map(|bucket| format!("{:?}", host.node.role(bucket))).collect();
            text += &format!(
                "  node {id}: up {} paused {} process {} {:?} members {:?} {:?}\n    {}\n",
                host.up,
                host.paused,
                host.process.is_some(),
                host.node.phase(),
                host.node.members().set(),
                host.kernel().words,
                roles.join("\n    "),
            );
            for (flow, socket) in &host.kernel().sockets {
                text += &format!("    socket {flow}: {}\n", socket.describe());
            }
            if let Some(process) = &host.process {
                text += &process.worker.describe();
            }
        }
        for peer in self.peers.iter() {
            text += &format!("  peer {}: {}\n    {}\n", peer.flow, peer.app.describe(), peer.tcp.describe());
        }
        text
    }
}

/// The state that a backup lacks to continue after an ACK of `position`.
fn lacks(held: Option<&ConnectionState>, leg: u32, position: u64) -> Option<String> {
    let Some(state) = held else {
        // Input of a server connection that was acknowledged before this client used it concerns no node any more.
        return (position > 0).then(|| "knows nothing of it".to_owned());
    };
    let frontier = if leg == 0 { state.client_frontier() } else { state.server_frontier(leg) };
    let over = state.closed.is_some_and(|(end, _)| state.server.plain >= end);
    let needed = leg == 0 || (!over && state.routes.values().any(|route| route.leg == leg));
    (needed && frontier < position).then(|| format!("needs it from {frontier} on"))
}

/// Whether more than one connection would continue with this server connection.
fn is_named_twice(store: &ReplicaStore, flow: Flow) -> bool {
    let names = |held: &ReplicatedConnection| {
        let named = held.state.routes.values().filter_map(|route| held.legs.get(&route.leg));
        named.into_iter().any(|facts| (facts.local, facts.remote) == (flow.ours, flow.theirs))
    };
    store.iter().filter(|(_, held)| names(held)).count() > 1
}
