//! Failover: connections whose owner has failed, or has frozen them for this node, resume here.
//!
//! The steps of the daemon's `worker/replication/{failover,reprotect,activate,early_segments}.rs`, spread over virtual
//! time. The buckets are on hold. Slots come before sockets. Every peer is probed for its position. The other backups
//! receive the whole state. The hold is released when the required backups have it. Then sockets are restored, each
//! leg's first ACK releases its peer, and the state machines continue. Idle connections follow one by one; those with
//! an early segment of their client come first.

use super::owner::whole;
use super::{Client, Upstream, Worker};
use crate::channel::Acked;
use crate::event_queue::Time;
use crate::fault::Mutation;
use crate::gate::Slot;
use crate::kernel::Kernel;
use crate::leg::Leg;
use crate::segment::{Flow, Segment, number};
use crate::tcp::Tcp;
use evergate_base::Micros;
use evergate_connection::{Accepted, Connection, Io, RestoreError, ResumedLeg};
use evergate_membership::{Bucket, MemberSet, NodeId, Role, Term};
use evergate_replication::{
    ConnectionId, Frame, LegFacts, Phase, Recovered, ReplicatedConnection, ResumePoint,
};

/// Most repetitions of a probe.
const PROBES: u32 = 20;
/// Time between two probes.
const PROBE_EVERY: Time = 2_000;
/// Factor on a restored socket's buffer: its window must not end before the one that its peer knows.
const BUFFERS: usize = 4;
/// Time between two idle connections.
const IDLE_EVERY: Time = 2_000;
/// Assumed window of a peer without a report, in bytes.
const PEER_WINDOW: u64 = 65_535;
/// Most segments of one client that wait for its socket.
const SEGMENTS_MAX: usize = 8;
/// Distance of a probe's ACK below the replicated position, so that the probe carries no news.
const PROBE_BELOW: u64 = 256 << 10;

/// One leg before it has a socket. Positions count from the start of its use.
#[derive(Debug)]
struct RecoveringLeg {
    flow: Flow,
    facts: LegFacts,
    sent: u64,
    received: u64,
    /// The peer's position.
    acked: u64,
    /// Whether the replicated input is the whole stream: the peer's FIN was read.
    whole: bool,
    /// Whether the peer has sent its FIN: it counts as received.
    ended: bool,
    edge: u64,
    peer_known: bool,
}

#[derive(Debug)]
struct RecoveringConnection {
    id: ConnectionId,
    bucket: Bucket,
    held: ReplicatedConnection,
    client: RecoveringLeg,
    server: Option<RecoveringLeg>,
    /// Nodes that hold the state as it is here.
    holders: MemberSet,
}

/// A bucket that arrived at this node.
#[derive(Debug)]
pub(super) struct Failover {
    bucket: Bucket,
    /// Active connections until they resume. `idle` has the idle ones.
    active: Vec<RecoveringConnection>,
    idle: Vec<RecoveringConnection>,
    /// The active connections have resumed.
    activated: bool,
    probes: u32,
    probed_at: Time,
    pub(super) next_at: Time,
}

impl RecoveringLeg {
    fn of(held: &ReplicatedConnection, leg: u32) -> Option<RecoveringLeg> {
        let facts = *held.legs.get(&leg)?;
        let (sent, received) = held.positions(leg);
        let flow = Flow { ours: facts.local, theirs: facts.remote };
        let state = &held.state;
        let whole = match leg {
            0 => state.client.phase == Phase::Ended || state.closed.is_some(),
            _ => state.server_ends.get(&leg) == Some(&received),
        };
        let (acked, edge) = (sent, 0);
        Some(RecoveringLeg {
            flow,
            facts,
            sent,
            received,
            acked,
            whole,
            ended: false,
            edge,
            peer_known: false,
        })
    }

    fn send(&self) -> u64 {
        number(self.facts.sent) + self.acked
    }

    fn receive(&self) -> u64 {
        number(self.facts.received) + self.received + u64::from(self.ended)
    }

    fn install_slot(&self, kernel: &mut Kernel) {
        let edge = self.receive() + (BUFFERS * kernel.buffer) as u64;
        kernel.slots.insert(self.flow, Slot::restored(self.send(), self.receive(), edge));
    }

    fn probe(&self, kernel: &mut Kernel) {
        let below = PROBE_BELOW.min(self.received);
        let edge = self.receive() + (BUFFERS * kernel.buffer) as u64;
        kernel.send_raw(Segment::probe(self.flow, self.send(), self.receive() - below, edge));
    }

    fn update_position(&mut self, kernel: &Kernel) -> bool {
        if let Some(position) = kernel.peer_positions.get(&self.flow) {
            self.acked = position.ack.saturating_sub(number(self.facts.sent)).max(self.sent);
            self.ended |= self.whole && position.seq == number(self.facts.received) + self.received + 1;
            self.edge = position.edge;
            self.peer_known = true;
        }
        self.peer_known
    }

    /// Restores the socket of an idle leg: the positions of its peer, and its window, are known.
    fn activate_idle(&self, kernel: &mut Kernel, segments: &[Segment]) {
        self.install_slot(kernel);
        let follows = |segment: &&Segment| segment.ack == Some(self.send()) && segment.seq >= self.receive();
        let edge = segments.iter().rfind(follows).map_or(self.send() + PEER_WINDOW, |segment| segment.edge);
        let mut socket = Tcp::restored(self.flow, BUFFERS * kernel.buffer, self.send(), self.receive(), edge);
        let mut segments: Vec<_> =
            segments.iter().filter(|segment| segment.ack == Some(self.send())).collect();
        segments.sort_by_key(|segment| segment.seq);
        let mut next = self.receive();
        for Segment { seq, data, .. } in segments {
            let Some(fresh) = next.checked_sub(*seq).and_then(|known| data.get(known as usize..)) else {
                continue;
            };
            socket.receive(fresh);
            next += fresh.len() as u64;
        }
        kernel.restore(self.flow, socket);
    }

    /// Restores slot, then socket, then sends the ACK that releases the peer.
    fn activate(&mut self, kernel: &mut Kernel, mutation: Mutation) {
        if mutation == Mutation::SendAbove {
            self.acked += 1;
        }
        self.install_slot(kernel);
        let edge = self.edge.max(self.send() + 1);
        let mut socket = Tcp::restored(self.flow, BUFFERS * kernel.buffer, self.send(), self.receive(), edge);
        if self.ended {
            socket.note_end_before();
        }
        kernel.restore(self.flow, socket);
        if let Some(slot) = kernel.slots.get(&self.flow) {
            let segment = slot.template(self.flow);
            kernel.send_raw(segment);
        }
        self.probe(kernel);
    }
}

impl RecoveringConnection {
    fn of(id: ConnectionId, held: ReplicatedConnection) -> Option<RecoveringConnection> {
        let client = RecoveringLeg::of(&held, 0)?;
        let server = held.state.leg_in_use().and_then(|leg| RecoveringLeg::of(&held, leg));
        Some(RecoveringConnection {
            id,
            bucket: held.bucket,
            held,
            client,
            server,
            holders: MemberSet::EMPTY,
        })
    }

    fn legs(&mut self) -> impl Iterator<Item = &mut RecoveringLeg> {
        std::iter::once(&mut self.client).chain(self.server.as_mut())
    }

    fn frame(&self) -> (Frame, Option<Acked>) {
        let frame = whole(self.id, self.bucket, &self.held.state, &self.held.legs);
        (frame, Some(Acked::Recovered { key: self.id }))
    }

    fn silence(&mut self, kernel: &mut Kernel) {
        for leg in self.legs() {
            kernel.silence(leg.flow);
        }
    }
}

impl Failover {
    pub(super) fn drop_all(mut self, kernel: &mut Kernel) {
        self.active.iter_mut().for_each(|recovering| recovering.silence(kernel));
    }

    fn connections(&mut self) -> impl Iterator<Item = &mut RecoveringConnection> {
        self.active.iter_mut().chain(&mut self.idle)
    }
}

impl Worker {
    /// Begins the failover of these buckets, which are on hold: slots, probes, and replication to other backups.
    pub(super) fn fail_over(&mut self, now: Time, kernel: &mut Kernel, buckets: Vec<(Bucket, Term)>) {
        for (bucket, term) in buckets {
            // Earlier segments are dropped, and the client repeats them only after its timer.
            kernel.pending.insert(bucket);
            let recovered = self.store.recover(bucket, term);
            let (idle, active): (Vec<_>, Vec<_>) =
                recovered.into_iter().partition(|recovered| recovered.idle);
            let recovering = |of: Vec<Recovered>| -> Vec<RecoveringConnection> {
                of.into_iter()
                    .filter_map(|recovered| RecoveringConnection::of(recovered.connection, *recovered.held))
                    .collect()
            };
            let (idle, mut active) = (recovering(idle), recovering(active));
            for leg in active.iter_mut().flat_map(RecoveringConnection::legs) {
                leg.install_slot(kernel);
                kernel.peer_positions.remove(&leg.flow);
            }
            if self.mutation != Mutation::EagerFailover {
                active.iter().for_each(|recovering| self.replicate_state(recovering));
            }
            idle.iter().for_each(|recovering| self.replicate_state(recovering));
            self.failovers.push(Failover {
                bucket,
                active,
                idle,
                activated: false,
                probes: 0,
                probed_at: 0,
                next_at: now,
            });
        }
        self.proceed(now, kernel);
    }

    /// Sends a connection's whole state to the required backups, before any further entry of it.
    fn replicate_state(&mut self, recovering: &RecoveringConnection) {
        let (frame, notice) = recovering.frame();
        for node in self.required(recovering.bucket).iter() {
            self.send_to(node, recovering.bucket, &frame, notice);
        }
    }

    /// Advances the failovers in progress.
    pub(super) fn proceed(&mut self, now: Time, kernel: &mut Kernel) {
        for diverted in std::mem::take(&mut kernel.early) {
            let idle = |recovering: &RecoveringConnection| recovering.client.flow == diverted.flow;
            if self.failovers.iter().any(|failover| failover.idle.iter().any(idle)) {
                let segments = self.early.entry(diverted.flow).or_default();
                if segments.len() < SEGMENTS_MAX {
                    segments.push(diverted);
                }
            }
        }
        for mut failover in std::mem::take(&mut self.failovers) {
            if !failover.activated && self.is_ready(now, kernel, &mut failover) {
                self.activate(now, kernel, &mut failover);
            }
            if failover.activated {
                self.resume_idle(now, kernel, &mut failover);
            }
            match failover.activated && failover.idle.is_empty() {
                true => self.end_failover(kernel, failover.bucket),
                false => self.failovers.push(failover),
            }
        }
    }

    /// Ends a failover: all connections of the bucket have resumed, so its replicas can be complete.
    fn end_failover(&mut self, kernel: &mut Kernel, bucket: Bucket) {
        kernel.pending.remove(&bucket);
        let Role::Owner { required, syncing, .. } = self.role(bucket) else { return };
        required.union(syncing).iter().for_each(|node| self.send_complete(bucket, node));
    }

    /// Whether the required backups have the state of all these connections.
    fn is_replicated(&self, connections: &[RecoveringConnection]) -> bool {
        connections.iter().all(|recovering| recovering.holders.is_superset(self.required(recovering.bucket)))
    }

    fn is_ready(&self, now: Time, kernel: &mut Kernel, failover: &mut Failover) -> bool {
        let mut unknown = 0;
        for leg in failover.active.iter_mut().flat_map(RecoveringConnection::legs) {
            unknown += usize::from(!leg.update_position(kernel));
        }
        let may_probe = unknown > 0 && failover.probes < PROBES;
        if may_probe && now >= failover.probed_at + PROBE_EVERY {
            failover.probes += 1;
            failover.probed_at = now;
            for leg in
                failover.active.iter_mut().flat_map(RecoveringConnection::legs).filter(|leg| !leg.peer_known)
            {
                leg.probe(kernel);
            }
        }
        failover.next_at = now + PROBE_EVERY / 4;
        let waits = unknown > 0 && (failover.probes < PROBES || now < failover.probed_at + PROBE_EVERY);
        (self.mutation == Mutation::EagerFailover || self.is_replicated(&failover.active)) && !waits
    }

    fn activate(&mut self, now: Time, kernel: &mut Kernel, failover: &mut Failover) {
        // A bucket with another handoff ahead stays on hold.
        if !self.freezing.contains_key(&failover.bucket) {
            kernel.held.remove(&failover.bucket);
        }
        failover.activated = true;
        for recovering in &mut failover.active {
            let mutation = self.mutation;
            recovering.legs().for_each(|leg| leg.activate(kernel, mutation));
        }
        for recovering in std::mem::take(&mut failover.active) {
            self.resume(now, kernel, recovering);
        }
    }

    /// Resumes idle connections with an early segment, and one other from time to time.
    fn resume_idle(&mut self, now: Time, kernel: &mut Kernel, failover: &mut Failover) {
        if !self.is_replicated(&failover.idle) {
            failover.next_at = now + IDLE_EVERY;
            return;
        }
        let early = |recovering: &mut RecoveringConnection| self.early.contains_key(&recovering.client.flow);
        let with_early_segment: Vec<RecoveringConnection> = failover.idle.extract_if(.., early).collect();
        let turn = (now >= failover.next_at).then(|| failover.idle.pop()).flatten();
        if now >= failover.next_at {
            failover.next_at = now + IDLE_EVERY;
        }
        for recovering in with_early_segment.into_iter().chain(turn) {
            self.resume_idle_connection(now, kernel, recovering);
        }
    }

    /// Resumes an idle connection, for which the client sends first. A segment that the client has sent already is the
    /// first input.
    fn resume_idle_connection(&mut self, now: Time, kernel: &mut Kernel, recovering: RecoveringConnection) {
        let segments = self.early.remove(&recovering.client.flow).unwrap_or_default();
        if kernel.slots.contains_key(&recovering.client.flow) {
            // The client has reconnected, and nothing had been sent on the connection.
            return self.drop_connection(&recovering);
        }
        recovering.client.activate_idle(kernel, &segments);
        recovering.server.iter().for_each(|bound| bound.activate_idle(kernel, &[]));
        self.idle_resumed += 1;
        self.early_resumed += u64::from(!segments.is_empty());
        self.resume(now, kernel, recovering);
    }

    /// Drops a connection. A backup without its state receives the opening entry first.
    fn drop_connection(&mut self, recovering: &RecoveringConnection) {
        let (connection, bucket) = (recovering.id, recovering.bucket);
        let begin = Frame::Begin { connection, bucket, state: None, legs: Default::default() };
        self.replicate(bucket, &begin, None);
        self.replicate(bucket, &Frame::End { connection }, None);
    }

    /// Resumes one connection.
    fn resume(&mut self, now: Time, kernel: &mut Kernel, mut recovering: RecoveringConnection) {
        let client_flow = recovering.client.flow;
        let fresh = Accepted {
            id: recovering.id,
            listener: 0,
            client: client_flow.theirs,
            local: client_flow.ours,
            unix_s: 1_700_000_000 + now / 1_000_000,
            secret: [self.me.0 + 100; 32],
        };
        let Worker { config, scratch, effects, .. } = self;
        let snapshot = config.0.clone();
        let mut io = Io { now: Micros(now), scratch, effects, node: config };
        let restored = Connection::restore(&snapshot, &recovering.held.state, &fresh, &mut io);
        let (connection, resumed) = match restored {
            Ok((mut connection, resumed)) => {
                if let Some(leg) = resumed.as_ref().filter(|_| !recovering.client.peer_known) {
                    connection.record_loss_notice(leg);
                }
                (connection, resumed)
            }
            Err(error) => {
                self.scratch.down.clear();
                self.effects.clear();
                if !matches!(error, RestoreError::Unknown | RestoreError::Aborted) {
                    self.failures.push(format!("{:?} cannot be restored: {error:?}", recovering.id));
                }
                recovering.silence(kernel);
                return self.drop_connection(&recovering);
            }
        };
        self.resumed += 1;
        self.replicate(recovering.bucket, &recovering.frame().0, None);
        let RecoveringLeg { facts, received, acked, ended, .. } = recovering.client;
        let stands = ResumePoint { received, ended, sent: recovering.held.state.server.output, acked };
        let leg = Leg::resumed(client_flow, &facts, stands, now);
        let mut client = Client::new(connection, leg, recovering.bucket, Box::new(recovering.held.state));
        client.legs.insert(0, facts);
        if let (Some(server), Some(leg)) = (&recovering.server, &resumed) {
            client.legs.insert(leg.route.leg, server.facts);
        }
        self.clients.insert(recovering.id, client);
        self.by_flow.insert(client_flow, recovering.id);
        match (recovering.server, resumed) {
            (Some(server), Some(leg)) => self.attach(now, kernel, recovering.id, server, leg),
            (Some(server), None) => kernel.silence(server.flow),
            _ => {}
        }
        self.perform(now, kernel, recovering.id);
        self.call(now, kernel, recovering.id, |connection, io| connection.handle_client_acked(io, acked));
        if ended {
            self.call(now, kernel, recovering.id, |connection, io| connection.handle_client_ended_before(io));
        }
        self.pump(now, kernel, recovering.id);
    }

    /// Attaches the server leg with which the connection continues.
    fn attach(
        &mut self,
        now: Time,
        kernel: &mut Kernel,
        key: ConnectionId,
        server: RecoveringLeg,
        leg: ResumedLeg,
    ) {
        let RecoveringLeg { flow, facts, received, acked, ended, .. } = server;
        let (number, index) = (leg.route.leg, leg.route.server);
        let Some(client) = self.clients.get_mut(&key) else { return };
        client.upstream = Some(Upstream {
            leg: Leg::resumed(flow, &facts, ResumePoint { received, ended, sent: leg.output, acked }, now),
            number,
            pool: leg.route.pool,
            server: index,
            connecting: false,
            ended: false,
            resets: false,
            records: None,
        });
        self.by_flow.insert(flow, key);
        self.perform(now, kernel, key);
        self.call(now, kernel, key, |connection, io| connection.handle_leg_open(io, number, index, None));
        self.call(now, kernel, key, |connection, io| connection.handle_server_acked(io, number, acked));
    }

    /// Records that a backup holds the state of a connection that is being recovered.
    pub(super) fn record_recovered(&mut self, key: ConnectionId, node: NodeId) {
        for recovering in self
            .failovers
            .iter_mut()
            .flat_map(Failover::connections)
            .filter(|recovering| recovering.id == key)
        {
            recovering.holders = recovering.holders.with(node);
        }
    }

    /// Whether connections of the bucket are still being recovered.
    pub(crate) fn is_recovering(&self, bucket: Bucket) -> bool {
        self.failovers.iter().any(|failover| failover.bucket == bucket)
    }

    /// Stops the failover of a bucket that this node does not own any more.
    pub(super) fn stop_failover(&mut self, kernel: &mut Kernel, bucket: Bucket) {
        kernel.held.remove(&bucket);
        kernel.pending.remove(&bucket);
        for failover in self.failovers.extract_if(.., |failover| failover.bucket == bucket) {
            failover.drop_all(kernel);
        }
    }
}
