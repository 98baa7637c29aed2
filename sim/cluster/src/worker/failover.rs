//! Take-over: connections whose owner is gone, or has frozen them for us, go on here.
//!
//! The steps of the daemon's `worker/cluster/{resume,told,awake,knocks}.rs`, spread over virtual time: the buckets are on hold;
//! slots come before sockets; every peer is asked what it has; the other backups get the whole state. Only when those that
//! commits wait for have it is the hold released: sockets are restored, each leg's first ACK moves its peer on, and the state
//! machines go on. Connections that rest follow one by one; whose client speaks meanwhile goes first.

use super::owner::whole;
use super::{Client, Upstream, Worker};
use crate::channel::Notice;
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

/// Probes are repeated so often at most, this far apart.
const PROBES: u32 = 20;
const PROBE_EVERY: Time = 2_000;
/// A restored socket's buffer in those of others: its window must not end before the one that its peer knows.
const BUFFERS: usize = 4;
/// Between two connections that rest.
const IDLE_EVERY: Time = 2_000;
/// Window of a peer that has not said how much room it has, in bytes.
const PEER_WINDOW: u64 = 65_535;
/// Segments of one client that are kept for its socket.
const SEGMENTS_MAX: usize = 8;
/// How far below the mirrored position a probe acknowledges: what it says must be nothing new.
const PROBE_BELOW: u64 = 256 << 10;

/// One leg on its way to a socket. Positions count from the begin of its use.
#[derive(Debug)]
struct TakenLeg {
    flow: Flow,
    facts: LegFacts,
    sent: u64,
    received: u64,
    /// What the peer turned out to have.
    acked: u64,
    /// The mirrored input is the whole stream: the peer's end was read.
    whole: bool,
    /// The peer has said its FIN: it is taken as received.
    ended: bool,
    edge: u64,
    peer_input: bool,
}

#[derive(Debug)]
struct Take {
    id: ConnectionId,
    bucket: Bucket,
    held: ReplicatedConnection,
    client: TakenLeg,
    server: Option<TakenLeg>,
    /// Who holds the state as it is here.
    reported: MemberSet,
}

/// A bucket that came to this node.
#[derive(Debug)]
pub(super) struct Round {
    bucket: Bucket,
    /// Connections with something on its way to somebody, until they go on, and those that rest.
    busy: Vec<Take>,
    idle_connections: Vec<Take>,
    /// The former go on.
    activated: bool,
    asked: u32,
    asked_at: Time,
    pub(super) next_at: Time,
}

impl TakenLeg {
    fn of(held: &ReplicatedConnection, leg: u32) -> Option<TakenLeg> {
        let facts = *held.legs.get(&leg)?;
        let (sent, received) = held.positions(leg);
        let flow = Flow { ours: facts.local, theirs: facts.remote };
        let state = &held.state;
        let whole = match leg {
            0 => state.client.phase == Phase::Ended || state.closed.is_some(),
            _ => state.server_ends.get(&leg) == Some(&received),
        };
        let (acked, edge) = (sent, 0);
        Some(TakenLeg { flow, facts, sent, received, acked, whole, ended: false, edge, peer_input: false })
    }

    fn send(&self) -> u64 {
        number(self.facts.sent) + self.acked
    }

    fn receive(&self) -> u64 {
        number(self.facts.received) + self.received + u64::from(self.ended)
    }

    fn gate(&self, kernel: &mut Kernel) {
        let edge = self.receive() + (BUFFERS * kernel.buffer) as u64;
        kernel.slots.insert(self.flow, Slot::restored(self.send(), self.receive(), edge));
    }

    fn ask(&self, kernel: &mut Kernel) {
        let below = PROBE_BELOW.min(self.received);
        let edge = self.receive() + (BUFFERS * kernel.buffer) as u64;
        kernel.state_text(Segment::probe(self.flow, self.send(), self.receive() - below, edge));
    }

    fn listen(&mut self, kernel: &Kernel) -> bool {
        if let Some(peer_input) = kernel.peer_input.get(&self.flow) {
            self.acked = peer_input.ack.saturating_sub(number(self.facts.sent)).max(self.sent);
            self.ended |= self.whole && peer_input.seq == number(self.facts.received) + self.received + 1;
            self.edge = peer_input.edge;
            self.peer_input = true;
        }
        self.peer_input
    }

    /// Where the peer goes on from is known, and its room: it is one that rests.
    fn rise(&self, kernel: &mut Kernel, reported: &[Segment]) {
        self.gate(kernel);
        let follows = |segment: &&Segment| segment.ack == Some(self.send()) && segment.seq >= self.receive();
        let edge = reported.iter().rfind(follows).map_or(self.send() + PEER_WINDOW, |segment| segment.edge);
        let mut socket = Tcp::restored(self.flow, BUFFERS * kernel.buffer, self.send(), self.receive(), edge);
        let mut reported: Vec<_> =
            reported.iter().filter(|segment| segment.ack == Some(self.send())).collect();
        reported.sort_by_key(|segment| segment.seq);
        let mut next = self.receive();
        for Segment { seq, data, .. } in reported {
            let Some(fresh) = next.checked_sub(*seq).and_then(|known| data.get(known as usize..)) else {
                continue;
            };
            socket.receive(fresh);
            next += fresh.len() as u64;
        }
        kernel.restore(self.flow, socket);
    }

    /// The gate first, then the socket, then the ACK that moves the peer on.
    fn wake(&mut self, kernel: &mut Kernel, mutation: Mutation) {
        if mutation == Mutation::SendAbove {
            self.acked += 1;
        }
        self.gate(kernel);
        let edge = self.edge.max(self.send() + 1);
        let mut socket = Tcp::restored(self.flow, BUFFERS * kernel.buffer, self.send(), self.receive(), edge);
        if self.ended {
            socket.note_end_before();
        }
        kernel.restore(self.flow, socket);
        if let Some(slot) = kernel.slots.get(&self.flow) {
            let segment = slot.template(self.flow);
            kernel.state_text(segment);
        }
        self.ask(kernel);
    }
}

impl Take {
    fn of(id: ConnectionId, held: ReplicatedConnection) -> Option<Take> {
        let client = TakenLeg::of(&held, 0)?;
        let server = held.state.leg_in_use().and_then(|leg| TakenLeg::of(&held, leg));
        Some(Take { id, bucket: held.bucket, held, client, server, reported: MemberSet::EMPTY })
    }

    fn legs(&mut self) -> impl Iterator<Item = &mut TakenLeg> {
        std::iter::once(&mut self.client).chain(self.server.as_mut())
    }

    fn frame(&self) -> (Frame, Option<Notice>) {
        let frame = whole(self.id, self.bucket, &self.held.state, &self.held.legs);
        (frame, Some(Notice::Taken { key: self.id }))
    }

    fn silence(&mut self, kernel: &mut Kernel) {
        for leg in self.legs() {
            kernel.silence(leg.flow);
        }
    }
}

impl Round {
    pub(super) fn drop_all(mut self, kernel: &mut Kernel) {
        self.busy.iter_mut().for_each(|take| take.silence(kernel));
    }

    fn takes(&mut self) -> impl Iterator<Item = &mut Take> {
        self.busy.iter_mut().chain(&mut self.idle_connections)
    }
}

impl Worker {
    /// The buckets are ours and on hold: gate, ask, and tell.
    pub(super) fn fail_over(&mut self, now: Time, kernel: &mut Kernel, buckets: Vec<(Bucket, Term)>) {
        for (bucket, term) in buckets {
            // What comes before is dropped, and said again only after the client's timer.
            kernel.pending.insert(bucket);
            let taken = self.holder.recover(bucket, term);
            let (idle_connections, busy): (Vec<_>, Vec<_>) = taken.into_iter().partition(|taken| taken.idle);
            let takes = |of: Vec<Recovered>| -> Vec<Take> {
                of.into_iter().filter_map(|taken| Take::of(taken.connection, *taken.held)).collect()
            };
            let (idle_connections, mut busy) = (takes(idle_connections), takes(busy));
            for leg in busy.iter_mut().flat_map(Take::legs) {
                leg.gate(kernel);
                kernel.peer_input.remove(&leg.flow);
            }
            if self.mutation != Mutation::EagerFailover {
                busy.iter().for_each(|take| self.notify(take));
            }
            idle_connections.iter().for_each(|take| self.notify(take));
            self.rounds.push(Round {
                bucket,
                busy,
                idle_connections,
                activated: false,
                asked: 0,
                asked_at: 0,
                next_at: now,
            });
        }
        self.proceed(now, kernel);
    }

    /// Those whose copies count hear everything about a connection, before any further entry of it.
    fn notify(&mut self, take: &Take) {
        let (frame, notice) = take.frame();
        for node in self.required(take.bucket).iter() {
            self.send_to(node, take.bucket, &frame, notice);
        }
    }

    /// Takes the rounds that are under way as far as they go now.
    pub(super) fn proceed(&mut self, now: Time, kernel: &mut Kernel) {
        for diverted in std::mem::take(&mut kernel.early) {
            let idle = |take: &Take| take.client.flow == diverted.flow;
            if self.rounds.iter().any(|round| round.idle_connections.iter().any(idle)) {
                let reported = self.early.entry(diverted.flow).or_default();
                if reported.len() < SEGMENTS_MAX {
                    reported.push(diverted);
                }
            }
        }
        for mut round in std::mem::take(&mut self.rounds) {
            if !round.activated && self.is_ready(now, kernel, &mut round) {
                self.wake(now, kernel, &mut round);
            }
            if round.activated {
                self.resume_idle(now, kernel, &mut round);
            }
            match round.activated && round.idle_connections.is_empty() {
                true => self.end_round(kernel, round.bucket),
                false => self.rounds.push(round),
            }
        }
    }

    /// All of the bucket go on: now its copies can be whole.
    fn end_round(&mut self, kernel: &mut Kernel, bucket: Bucket) {
        kernel.pending.remove(&bucket);
        let Role::Owner { required, syncing, .. } = self.role(bucket) else { return };
        required.union(syncing).iter().for_each(|node| self.send_complete(bucket, node));
    }

    /// Whether those that commits wait for have the state of all these.
    fn is_reported(&self, takes: &[Take]) -> bool {
        takes.iter().all(|take| take.reported.is_superset(self.required(take.bucket)))
    }

    fn is_ready(&self, now: Time, kernel: &mut Kernel, round: &mut Round) -> bool {
        let mut loss_notices = 0;
        for leg in round.busy.iter_mut().flat_map(Take::legs) {
            loss_notices += usize::from(!leg.listen(kernel));
        }
        let may_ask = loss_notices > 0 && round.asked < PROBES;
        if may_ask && now >= round.asked_at + PROBE_EVERY {
            round.asked += 1;
            round.asked_at = now;
            for leg in round.busy.iter_mut().flat_map(Take::legs).filter(|leg| !leg.peer_input) {
                leg.ask(kernel);
            }
        }
        round.next_at = now + PROBE_EVERY / 4;
        let patient = loss_notices > 0 && (round.asked < PROBES || now < round.asked_at + PROBE_EVERY);
        (self.mutation == Mutation::EagerFailover || self.is_reported(&round.busy)) && !patient
    }

    fn wake(&mut self, now: Time, kernel: &mut Kernel, round: &mut Round) {
        // One that is to move on already stays on hold.
        if !self.freezing.contains_key(&round.bucket) {
            kernel.held.remove(&round.bucket);
        }
        round.activated = true;
        for take in &mut round.busy {
            let mutation = self.mutation;
            take.legs().for_each(|leg| leg.wake(kernel, mutation));
        }
        for take in std::mem::take(&mut round.busy) {
            self.resume(now, kernel, take);
        }
    }

    /// Those whose clients have spoken, and from time to time another one.
    fn resume_idle(&mut self, now: Time, kernel: &mut Kernel, round: &mut Round) {
        if !self.is_reported(&round.idle_connections) {
            round.next_at = now + IDLE_EVERY;
            return;
        }
        let early = |take: &mut Take| self.early.contains_key(&take.client.flow);
        let spoken: Vec<Take> = round.idle_connections.extract_if(.., early).collect();
        let turn = (now >= round.next_at).then(|| round.idle_connections.pop()).flatten();
        if now >= round.next_at {
            round.next_at = now + IDLE_EVERY;
        }
        for take in spoken.into_iter().chain(turn) {
            self.resume_idle_connection(now, kernel, take);
        }
    }

    /// Nothing of it is on its way, and the client speaks first. If it has done so already, that is the first thing that the
    /// connection reads.
    fn resume_idle_connection(&mut self, now: Time, kernel: &mut Kernel, take: Take) {
        let reported = self.early.remove(&take.client.flow).unwrap_or_default();
        if kernel.slots.contains_key(&take.client.flow) {
            return self.give_up_copies(&take); // its client has begun anew here: nothing had been said on it
        }
        take.client.rise(kernel, &reported);
        take.server.iter().for_each(|bound| bound.rise(kernel, &[]));
        self.rested += 1;
        self.knocked += u64::from(!reported.is_empty());
        self.resume(now, kernel, take);
    }

    /// It does not go on. Who has not been told of it hears of its beginning first.
    fn give_up_copies(&mut self, take: &Take) {
        let (connection, bucket) = (take.id, take.bucket);
        let begin = Frame::Begin { connection, bucket, state: None, legs: Default::default() };
        self.state_text(bucket, &begin, None);
        self.state_text(bucket, &Frame::End { connection }, None);
    }

    /// One connection goes on.
    fn resume(&mut self, now: Time, kernel: &mut Kernel, mut take: Take) {
        let client_flow = take.client.flow;
        let fresh = Accepted {
            id: take.id,
            listener: 0,
            client: client_flow.theirs,
            local: client_flow.ours,
            unix_s: 1_700_000_000 + now / 1_000_000,
            secret: [self.me.0 + 100; 32],
        };
        let Worker { config, scratch, effects, .. } = self;
        let snapshot = config.0.clone();
        let mut io = Io { now: Micros(now), scratch, effects, node: config };
        let restored = Connection::restore(&snapshot, &take.held.state, &fresh, &mut io);
        let (connection, resumed) = match restored {
            Ok((mut connection, resumed)) => {
                if let Some(leg) = resumed.as_ref().filter(|_| !take.client.peer_input) {
                    connection.record_loss_notice(leg);
                }
                (connection, resumed)
            }
            Err(error) => {
                self.scratch.down.clear();
                self.effects.clear();
                if !matches!(error, RestoreError::Unknown | RestoreError::Aborted) {
                    self.failures.push(format!("{:?} cannot be restored: {error:?}", take.id));
                }
                take.silence(kernel);
                return self.give_up_copies(&take);
            }
        };
        self.resumed += 1;
        self.state_text(take.bucket, &take.frame().0, None);
        let TakenLeg { facts, received, acked, ended, .. } = take.client;
        let stands = ResumePoint { received, ended, sent: take.held.state.server.output, acked };
        let leg = Leg::resumed(client_flow, &facts, stands, now);
        let mut client = Client::new(connection, leg, take.bucket, Box::new(take.held.state));
        client.legs.insert(0, facts);
        if let (Some(server), Some(leg)) = (&take.server, &resumed) {
            client.legs.insert(leg.route.leg, server.facts);
        }
        self.clients.insert(take.id, client);
        self.by_flow.insert(client_flow, take.id);
        match (take.server, resumed) {
            (Some(server), Some(leg)) => self.attach(now, kernel, take.id, server, leg),
            (Some(server), None) => kernel.silence(server.flow),
            _ => {}
        }
        self.perform(now, kernel, take.id);
        self.call(now, kernel, take.id, |connection, io| connection.handle_client_acked(io, acked));
        if ended {
            self.call(now, kernel, take.id, |connection, io| connection.handle_client_ended_before(io));
        }
        self.pump(now, kernel, take.id);
    }

    /// The server leg that the connection goes on with.
    fn attach(
        &mut self,
        now: Time,
        kernel: &mut Kernel,
        key: ConnectionId,
        server: TakenLeg,
        leg: ResumedLeg,
    ) {
        let TakenLeg { flow, facts, received, acked, ended, .. } = server;
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

    /// A backup holds the state of a connection that is being taken over.
    pub(super) fn note_taken(&mut self, key: ConnectionId, node: NodeId) {
        for take in self.rounds.iter_mut().flat_map(Round::takes).filter(|take| take.id == key) {
            take.reported = take.reported.with(node);
        }
    }

    /// Whether connections of the bucket are still being taken over.
    pub(crate) fn is_taking(&self, bucket: Bucket) -> bool {
        self.rounds.iter().any(|round| round.bucket == bucket)
    }

    /// The bucket is not ours any more.
    pub(super) fn stop_taking(&mut self, kernel: &mut Kernel, bucket: Bucket) {
        kernel.held.remove(&bucket);
        kernel.pending.remove(&bucket);
        for round in self.rounds.extract_if(.., |round| round.bucket == bucket) {
            round.drop_all(kernel);
        }
    }
}
