//! Connections that were taken over go on: their sockets leave repair, their peers hear of it, and their state machines are
//! restored.
//!
//! All peers hear before the first state machine is restored; meanwhile clients that speak to connections that rest are
//! answered too, for each of them waits since its owner died.

use super::failover::give_back;
use super::loss_notice::LossNotice;
use super::recovering::{Leg, RecoveringConnection};
use super::{Cluster, ConnectionReplication, GatedLeg};
use crate::agent::Resumed;
use crate::control::console;
use crate::worker::call_context::Crowd;
#[cfg(test)]
use crate::worker::faults;
use crate::worker::panic_guard::catch_panic;
use crate::worker::slab::{Key, Source};
use crate::worker::upstreams::Upstream;
use crate::worker::{CallContext, Client, Watchdog, Worker, canonical};
use evergate_base::Micros;
use evergate_bpf::{Leases, Slot};
use evergate_connection::{Accepted, Connection, Failure, Io, ResumedLeg};
use evergate_membership::{Bucket, OwnershipStart, Role};
use evergate_replication::{ConnectionId, ConnectionState, LegFacts, ReplicatedConnection, ResumePoint};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Between two lines about connections under a configuration that is not here.
const GENERATION_LINES: Micros = Micros::from_ms(10_000);
/// A peer that had less room than this is asked once more: it may have made more while nobody listened, and says so only
/// once.
const SMALL_BUFFER: u32 = 65_536;

/// After a shorter silence peers are about to notice by themselves what is lost, and more gently (RFC 8985, 7). A process that is
/// killed is silent for some milliseconds only.
const LONG_SILENCE: Micros = Micros::from_ms(30);

/// A leg with a living socket.
pub(super) struct ActivatedLeg {
    facts: LegFacts,
    received: u64,
    ended: bool,
    acked: u64,
    /// Its peer has said how much it has.
    peer_input: bool,
    slot: Slot,
    socket: OwnedFd,
}

/// A connection whose sockets live.
pub(super) struct ActivatedConnection {
    pub(super) id: ConnectionId,
    pub(super) bucket: Bucket,
    held: Box<ReplicatedConnection>,
    legs: ActivatedLegs,
    /// How its peers are asked.
    asked: Vec<Leg>,
}

/// The client's, and the server's if there is one.
pub(super) type ActivatedLegs = (ActivatedLeg, Option<ActivatedLeg>);

impl ActivatedConnection {
    pub(super) fn of(take: RecoveringConnection, legs: ActivatedLegs) -> ActivatedConnection {
        ActivatedConnection { id: take.id, bucket: take.bucket, held: take.held, legs, asked: take.legs }
    }

    fn legs(&self) -> impl Iterator<Item = &ActivatedLeg> {
        std::iter::once(&self.legs.0).chain(&self.legs.1)
    }
}

impl Worker {
    /// The sockets of these connections live: whoever must hold their state does. Their peers hear of it.
    /// `silent`: how long nothing had been heard of who died.
    pub(super) fn activate_all(
        &mut self,
        ready: Vec<(Bucket, Vec<RecoveringConnection>)>,
        silent: Micros,
        resumed: &mut Resumed,
    ) -> Vec<ActivatedConnection> {
        let Some(cluster) = &mut self.cluster else { return Vec::new() };
        let mut takes = Vec::new();
        for (bucket, of) in ready {
            // One that is to move on already stays on hold.
            if !cluster.freezing.contains_key(&bucket) {
                cluster.gate.owners().release(bucket);
            }
            takes.extend(of);
        }
        let mut activated = Vec::with_capacity(takes.len());
        for mut take in takes {
            self.pulse.beat();
            match catch_panic(&self.counters, || activate(cluster, &mut take)).flatten() {
                Some(legs) => activated.push(ActivatedConnection::of(take, legs)),
                None => {
                    resumed.lost += 1;
                    give_back(cluster, &mut take);
                    cluster.give_up_copies(take.bucket, take.id);
                }
            }
        }
        let (pulse, now) = (&self.pulse, self.now);
        let reported = catch_panic(&self.counters, || move_on(cluster, pulse, &activated, silent, now)); // who does not hear it asks again
        self.counters.loss_notices.add(reported.unwrap_or(0));
        activated
    }

    /// One connection goes on. False when it does not, also for a defect that it reaches: the others must not notice, and
    /// its peers are reset.
    pub(super) fn resume(&mut self, take: ActivatedConnection) -> bool {
        let ActivatedConnection { id, bucket, mut held, legs: (client, server), .. } = take;
        let (mut continues, mut legs) = (false, (Some(client), server));
        self.guarded(None, |worker| continues = worker.rebuild((id, bucket), &mut held.state, &mut legs));
        self.drop_legs(legs.0.into_iter().chain(legs.1)); // those that nobody has
        continues
    }

    /// State machine, sockets and backups of one connection. Takes the legs that it has a place for.
    fn rebuild(
        &mut self,
        (id, bucket): (ConnectionId, Bucket),
        state: &mut ConnectionState,
        legs: &mut (Option<ActivatedLeg>, Option<ActivatedLeg>),
    ) -> bool {
        let Some(client) = &legs.0 else { return false };
        #[cfg(test)]
        faults::strike_take("resume", Some(client.slot.flow()));
        let Some((mut connection, leg)) = self.restore(id, state, &client.facts) else { return false };
        let Some(cluster) = &self.cluster else { return false };
        let counted = cluster.census.count(bucket);
        let Some(ActivatedLeg { facts, received, ended, acked, peer_input, slot, socket }) = legs.0.take()
        else {
            return false;
        };
        if let Some(leg) = leg.as_ref().filter(|_| !peer_input) {
            connection.record_loss_notice(leg);
        }
        let stands = ResumePoint { received, ended, sent: state.server.output, acked };
        let gated = GatedLeg::resumed(slot, &facts, stands, self.now);
        let mut replicated_state = ConnectionReplication::new(bucket, gated, std::mem::take(state), counted);
        replicated_state.legs.insert(0, facts);
        if let (Some(server), Some(leg)) = (&legs.1, &leg) {
            replicated_state.legs.insert(leg.route.leg, server.facts);
        }
        let Some(key) = self.insert(socket, connection, replicated_state) else { return false };
        let mut continues = false;
        self.guarded(Some(Source::Client(key)), |worker| {
            worker.start(key, (&mut legs.1, leg), stands);
            continues = true;
        });
        continues
    }

    /// The state machine, and where its server's leg stands. What it says waits for the sockets.
    fn restore(
        &mut self,
        id: ConnectionId,
        state: &mut ConnectionState,
        facts: &LegFacts,
    ) -> Option<(Connection, Option<ResumedLeg>)> {
        let Some(index) = self.generation_for(state) else {
            self.counters.reason("failover_config_unknown");
            self.log_unknown_generation();
            return None;
        };
        let fresh = Accepted {
            id,
            listener: 0,
            client: canonical(facts.remote),
            local: canonical(facts.local),
            unix_s: evergate_sys::wall_clock_s(),
            secret: evergate_crypto::random_bytes(),
        };
        let current = &self.current[index].generation;
        let snapshot = current.snapshot.clone();
        let mut view = CallContext {
            snapshot: &current.snapshot,
            current,
            draining: self.draining,
            logs: self.lines.as_ref().map(crate::access_log::LineSender::logged_headers),
            now: self.now,
            sessions: &self.shared.sessions,
            counters: &self.counters,
            crowd: Crowd {
                shared: &self.shared,
                connections_max: self.settings.connections_max,
                peers: &self.peers,
                holds: &[],
            },
        };
        let mut io =
            Io { now: self.now, scratch: &mut self.scratch, effects: &mut self.effects, node: &mut view };
        let restored = Connection::restore(&snapshot, state, &fresh, &mut io).ok();
        if restored.is_none() {
            self.counters.reason("failover_failed");
            self.scratch.down.clear();
            self.effects.clear();
        }
        restored
    }

    /// Gives a connection its place in the worker.
    fn insert(
        &mut self,
        socket: OwnedFd,
        connection: Connection,
        replicated_state: ConnectionReplication,
    ) -> Option<Key> {
        let bucket = replicated_state.bucket;
        let counted = self.acquire_limits(connection.listener_name(), connection.client_address().ip());
        self.keep_alive(&socket, Duration::ZERO); // the other node's socket had it, and repair does not restore it
        let mut entry = Client::new(socket, connection, counted);
        entry.replicated_state = Some(Box::new(replicated_state));
        let key = self.clients.insert(entry);
        self.list(key);
        self.index_by_bucket(key, bucket);
        let registered = self.register_resumed(key);
        if !registered {
            self.break_off(key);
        }
        registered.then_some(key)
    }

    /// It does what restoring made, and hears of its legs.
    fn start(
        &mut self,
        key: Key,
        (server, leg): (&mut Option<ActivatedLeg>, Option<ResumedLeg>),
        stands: ResumePoint,
    ) {
        self.begin_again(key);
        if let Some(leg) = leg {
            self.attach_server(key, server, &leg, stands.acked);
        }
        self.perform(key);
        self.with(key, |connection, io| connection.handle_client_acked(io, stands.acked));
        self.perform(key);
        if stands.ended {
            self.with(key, |connection, io| connection.handle_client_ended_before(io));
            self.perform(key);
        }
        self.pump(key);
    }

    /// The generation that a connection goes on under: the one that it is bound to, or where that is gone here the newest, if it
    /// makes no difference any more.
    fn generation_for(&self, state: &mut ConnectionState) -> Option<usize> {
        let newest = self.current.len() - 1;
        let Some(generation) = state.generation() else { return Some(newest) };
        self.current_of(generation).or_else(|| {
            let snapshot = &self.current[newest].generation.snapshot;
            let (route, makes_head) = state.movable()?;
            let listener = &state.open.as_ref()?.listener;
            let same = !makes_head || snapshot.makes_response(listener, route);
            let (pool, server) = snapshot.find_place(route.place).filter(|_| same)?;
            state.move_route(snapshot.generation, pool, server);
            Some(newest)
        })
    }

    fn log_unknown_generation(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.generation_logged_at.is_some_and(|at| self.now.since(at) < GENERATION_LINES) {
            return;
        }
        cluster.generation_logged_at = Some(self.now);
        console::warning(format_args!(
            "cluster: resets connections that came from another node in the middle of a handshake or request, under a configuration that this node has not \
             (`failover_config_unknown`): give all nodes the same file, and reload them, before one gives its connections away"
        ));
    }

    /// False when nothing would be heard of it.
    fn register_resumed(&mut self, key: Key) -> bool {
        self.counters.open.set(self.clients.len() as u64);
        let Some(client) = self.clients.get_mut(key) else { return false };
        client.readable = true;
        let fd = client.fd();
        if let (Some(cluster), Some(replicated_state)) = (&mut self.cluster, &client.replicated_state) {
            cluster.note_slot(replicated_state.leg.slot.index(), key);
        }
        self.register(fd, Source::Client(key)).is_ok()
    }

    /// The server leg that the connection goes on with. `client_acked`: how much its client has.
    fn attach_server(
        &mut self,
        key: Key,
        server: &mut Option<ActivatedLeg>,
        leg: &ResumedLeg,
        client_acked: u64,
    ) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let generation = client.connection.snapshot().generation;
        let in_response = client.connection.expects_more().1;
        let runtime = self.current_of(generation).and_then(|index| {
            let pool = self.current[index].generation.pools.get(leg.route.pool as usize)?;
            let server = pool.servers.get(leg.route.server as usize).cloned()?;
            Some((server, pool.tls_fingerprint, pool.response))
        });
        let number = leg.route.leg;
        let Some((runtime, tls_fingerprint, response)) = runtime else {
            self.counters.reason("failover_server_unknown");
            self.with(key, |connection, io| {
                connection.learn_client_acked(client_acked);
                match connection.bound_leg() {
                    Some(_) => connection.handle_bound_lost(io),
                    None => connection.handle_leg_failed(io, number, Failure::Lost),
                }
            });
            return;
        };
        let Some(ActivatedLeg { facts, received, ended, acked, slot, socket, .. }) = server.take() else {
            return;
        };
        self.keep_alive(&socket, response);
        runtime.enter_resumed();
        // Where the name means another address now, it carries no further request.
        let strange = runtime.addresses.first() != Some(&facts.remote);
        let stands = ResumePoint { received, ended, sent: leg.output, acked };
        let gated = GatedLeg::resumed(slot, &facts, stands, self.now);
        let slot = gated.slot.index();
        let upstream = Upstream {
            index: leg.route.server,
            owner: Some((key, number)),
            readable: true,
            writable: true,
            used_since: self.now,
            answered_at: in_response.then_some(self.now), // how long that took, nobody here knows
            tls_fingerprint: if strange { !tls_fingerprint } else { tls_fingerprint },
            gated: Some(Box::new(gated)),
            ..Upstream::new(socket, runtime)
        };
        if !self.add_upstream(key, upstream) {
            return;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.note_slot(slot, key);
        }
        self.note_bound(key);
        let index = leg.route.server;
        self.perform(key);
        self.with(key, |connection, io| connection.handle_leg_open(io, number, index, None));
        self.perform(key);
        self.with(key, |connection, io| connection.handle_server_acked(io, number, acked));
        self.perform(key);
    }

    /// Resets what cannot go on: its peers may wait for an answer, and would not ask.
    fn drop_legs(&mut self, legs: impl IntoIterator<Item = ActivatedLeg>) {
        let Some(cluster) = &mut self.cluster else { return };
        for ActivatedLeg { slot, socket, .. } in legs {
            evergate_sys::reset_on_close(socket.as_raw_fd());
            slot.open();
            drop(socket);
            cluster.lane.finish(slot, None, Leases::now_ns());
        }
    }
}

/// The peers hear of connections that go on, by an ACK, which moves them on. Those that had little room are asked again, and
/// those that spoke to a node that was silent for long hear of what is lost: how many did. Others hear of it when they do not
/// notice by themselves.
fn move_on(
    cluster: &mut Cluster,
    pulse: &Watchdog,
    activated: &[ActivatedConnection],
    silent: Micros,
    now: Micros,
) -> u64 {
    let mut reported = 0;
    let now_ms = evergate_sys::steady_clock_ms();
    let legs = activated.iter().flat_map(ActivatedConnection::legs);
    let _ = cluster.lane.emit_acks(legs.map(|leg| &leg.slot)); // what is lost is made up for by the peers' timers
    for take in activated {
        pulse.beat();
        let died = matches!(cluster.role(take.bucket), Role::Owner { begin: OwnershipStart::Failover, .. });
        let stays = !cluster.freezing.contains_key(&take.bucket); // else what comes again meets a bucket on hold
        let reports = died && stays && silent >= LONG_SILENCE;
        for (number, (leg, lives)) in take.asked.iter().zip(take.legs()).enumerate() {
            if let Some(unsent) = leg.lost_segments() {
                let socket = lives.socket.as_raw_fd();
                let was_reported = reports && unsent.notify_peer(cluster, socket, 0);
                reported += u64::from(was_reported);
                let (slot, is_client) = (lives.slot.index(), number == 0);
                cluster.loss_notices.push(LossNotice::new(
                    unsent,
                    slot,
                    socket,
                    is_client,
                    was_reported,
                    now,
                ));
            }
            if leg.room() < SMALL_BUFFER {
                leg.ask(cluster, now_ms);
            }
        }
    }
    reported
}

/// Sockets leave repair. `None` when one of them cannot: nothing is left of any then.
pub(super) fn activate(cluster: &mut Cluster, take: &mut RecoveringConnection) -> Option<ActivatedLegs> {
    #[cfg(test)]
    faults::strike_take("wake", take.client_flow());
    let mut activated = Vec::new();
    for leg in &mut take.legs {
        let (Some(slot), Some(socket)) = (leg.slot.take(), leg.socket.take()) else { continue };
        match socket.finish() {
            Ok(socket) => {
                slot.set_asleep(false);
                let Leg { facts, received, ended, acked, peer_input, .. } = *leg;
                activated.push(ActivatedLeg {
                    facts,
                    received,
                    ended,
                    acked,
                    peer_input: peer_input.is_some(),
                    slot,
                    socket,
                });
            }
            Err(_) => cluster.lane.finish(slot, None, Leases::now_ns()),
        }
    }
    if activated.len() < take.legs.len() {
        for ActivatedLeg { slot, socket, .. } in activated {
            drop(socket);
            cluster.lane.finish(slot, None, Leases::now_ns());
        }
        return None;
    }
    let mut legs = activated.into_iter();
    Some((legs.next()?, legs.next()))
}
