//! Activation of recovered connections: the sockets leave TCP_REPAIR, each peer receives an ACK, and the state machines
//! are restored.
//!
//! All peers receive their ACK before the first state machine is restored. In between, clients of idle connections that
//! have sent something are answered too: each of them has waited since its owner failed.

use super::failover::give_back;
use super::loss_notice::LossNotice;
use super::recovering::{Leg, RecoveringConnection};
use super::{Cluster, ConnectionReplication, GatedLeg};
use crate::audit::feed_continuation;
use crate::call_context::{CallContext, Crowd};
use crate::clients::Client;
use crate::host::{Gate, Host, Restoring, Slot, SlotOf, Socket};
use crate::log_event::LogEvent;
use crate::panic_guard::catch_panic;
use crate::report::Resumed;
use crate::slab::{Key, Source};
use crate::upstreams::Upstream;
use crate::worker::{Worker, canonical};
use crate::{Counters, Watchdog};
use evergate_base::Micros;
use evergate_connection::{Accepted, Connection, Failure, Io, RestoreError, ResumedLeg};
use evergate_membership::{Bucket, OwnershipStart, Role};
use evergate_replication::{ConnectionId, ConnectionState, LegFacts, ReplicatedConnection, ResumePoint};
use std::time::Duration;

/// Interval of the warning about connections under an unknown configuration.
const CONFIG_WARNINGS_EVERY: Micros = Micros::from_ms(10_000);
/// A peer whose window was smaller than this is probed again: it may have opened the window since, and announces that
/// only once.
const SMALL_BUFFER: u32 = 65_536;

/// After a shorter silence peers are about to detect the loss themselves, with a milder reaction (RFC 8985, 7). A
/// killed process is silent for some milliseconds only.
const LONG_SILENCE: Micros = Micros::from_ms(30);

/// A leg with an active socket.
pub(super) struct ActivatedLeg<H: Host> {
    facts: LegFacts,
    received: u64,
    ended: bool,
    acked: u64,
    /// The peer has reported its position.
    has_position: bool,
    slot: SlotOf<H>,
    socket: H::Socket,
}

/// A connection with active sockets.
pub(super) struct ActivatedConnection<H: Host> {
    pub(super) id: ConnectionId,
    pub(super) bucket: Bucket,
    held: Box<ReplicatedConnection>,
    legs: ActivatedLegs<H>,
    /// Legs for probing its peers.
    probed: Vec<Leg<H>>,
}

/// The client's, and the server's if there is one.
pub(super) type ActivatedLegs<H> = (ActivatedLeg<H>, Option<ActivatedLeg<H>>);

impl<H: Host> ActivatedConnection<H> {
    pub(super) fn of(take: RecoveringConnection<H>, legs: ActivatedLegs<H>) -> ActivatedConnection<H> {
        ActivatedConnection { id: take.id, bucket: take.bucket, held: take.held, legs, probed: take.legs }
    }

    fn legs(&self) -> impl Iterator<Item = &ActivatedLeg<H>> {
        std::iter::once(&self.legs.0).chain(&self.legs.1)
    }
}

impl<H: Host> Worker<H> {
    /// Activates the sockets of these connections, once all required backups have their state, and sends ACKs to their
    /// peers. `silent`: how long the failed owner had been silent.
    pub(super) fn activate_all(
        &mut self,
        ready: Vec<(Bucket, Vec<RecoveringConnection<H>>)>,
        silent: Micros,
        resumed: &mut Resumed,
    ) -> Vec<ActivatedConnection<H>> {
        let Some(cluster) = &mut self.cluster else { return Vec::new() };
        let mut recovering = Vec::new();
        for (bucket, of) in ready {
            // A bucket already in a handoff stays on hold.
            if !cluster.handoffs.freezing.contains_key(&bucket) {
                cluster.gate.release(bucket);
            }
            recovering.extend(of);
        }
        let mut activated = Vec::with_capacity(recovering.len());
        for mut connection in recovering {
            self.pulse.beat();
            match catch_panic(&self.counters, || activate(cluster, &self.counters, &mut connection)).flatten()
            {
                Some(legs) => activated.push(ActivatedConnection::of(connection, legs)),
                None => {
                    resumed.lost += 1;
                    give_back(cluster, &mut connection);
                    cluster.end_replicas(connection.bucket, connection.id);
                }
            }
        }
        let (pulse, now) = (&self.pulse, self.now);
        // A peer that misses its ACK sends again.
        let notified =
            catch_panic(&self.counters, || send_first_acks(cluster, pulse, &activated, silent, now));
        self.counters.loss_notices.add(notified.unwrap_or(0));
        activated
    }

    /// Resumes one connection. Returns false when it cannot resume, a panic in its step included: its peers are reset,
    /// and other connections do not notice.
    pub(super) fn resume(&mut self, take: ActivatedConnection<H>) -> bool {
        let ActivatedConnection { id, bucket, mut held, legs: (client, server), .. } = take;
        let (mut continues, mut legs) = (false, (Some(client), server));
        self.guarded(None, |worker| continues = worker.rebuild((id, bucket), &mut held.state, &mut legs));
        self.drop_legs(legs.0.into_iter().chain(legs.1)); // legs without a connection
        continues
    }

    /// Restores state machine, sockets and replication of one connection. Takes those legs out of `legs` that it uses.
    fn rebuild(
        &mut self,
        (id, bucket): (ConnectionId, Bucket),
        state: &mut ConnectionState,
        legs: &mut (Option<ActivatedLeg<H>>, Option<ActivatedLeg<H>>),
    ) -> bool {
        let Some(client) = &legs.0 else { return false };
        self.host.reached(&self.counters, "resume", Some(client.slot.flow().remote));
        let Some((mut connection, leg)) = self.restore(id, state, &client.facts) else { return false };
        let Some(cluster) = &self.cluster else { return false };
        let counted = cluster.figures.census.count(bucket);
        let Some(ActivatedLeg { facts, received, ended, acked, has_position, slot, socket }) = legs.0.take()
        else {
            return false;
        };
        if let Some(leg) = leg.as_ref().filter(|_| !has_position) {
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

    /// The restored state machine, and the resume point of its server leg. Its output waits for the sockets.
    fn restore(
        &mut self,
        id: ConnectionId,
        state: &mut ConnectionState,
        facts: &LegFacts,
    ) -> Option<(Connection, Option<ResumedLeg>)> {
        let Some(index) = self.generation_for(state) else {
            self.counters.reason("failover_config_unknown");
            self.log_unknown_config();
            return None;
        };
        let fresh = Accepted {
            id,
            listener: 0,
            client: canonical(facts.remote),
            local: canonical(facts.local),
            proxy: None,
            unix_s: self.host.wall_clock_s(),
            secret: self.random_secret(),
        };
        let current = &self.current[index].generation;
        let snapshot = current.snapshot.clone();
        let mut view = CallContext {
            host: &self.host,
            snapshot: &current.snapshot,
            current,
            draining: self.lifecycle.draining,
            logs: self.observers.access_log.as_ref().map(|log| log.logged_headers()),
            now: self.now,
            sessions: &self.shared.sessions,
            counters: &self.counters,
            audit: self.observers.audit.as_deref_mut(),
            crowd: Crowd {
                shared: &self.shared,
                connections_max: self.settings.connections_max,
                peers: &self.peers,
                holds: &[],
            },
        };
        let mut io =
            Io { now: self.now, scratch: &mut self.scratch, effects: &mut self.effects, node: &mut view };
        let restored = Connection::restore(&snapshot, state, &fresh, &mut io);
        if let Err(error) = &restored {
            self.counters.reason("failover_failed");
            self.scratch.down.clear();
            self.effects.clear();
            // A connection without an opening or after its RST is over anyway.
            if !matches!(error, RestoreError::Unknown | RestoreError::Aborted) {
                self.host.reached(&self.counters, "unrestorable", Some(facts.remote));
            }
        }
        restored.ok()
    }

    /// Gives a connection its place in the worker.
    fn insert(
        &mut self,
        socket: H::Socket,
        connection: Connection,
        replicated_state: ConnectionReplication<H>,
    ) -> Option<Key> {
        let bucket = replicated_state.bucket;
        let counted = self.acquire_limits(connection.listener_name(), connection.client_address().ip());
        self.keep_alive(&socket, Duration::ZERO); // TCP_REPAIR does not restore it
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

    /// Performs the effects of the restoration, attaches the legs, and reports acknowledged positions to the
    /// connection.
    fn start(
        &mut self,
        key: Key,
        (server, leg): (&mut Option<ActivatedLeg<H>>, Option<ResumedLeg>),
        stands: ResumePoint,
    ) {
        self.begin_again(key);
        if let Some(leg) = leg {
            self.attach_server(key, server, &leg, stands.acked);
        }
        if let (Some(audit), Some(client)) = (&self.observers.audit, self.clients.get_mut(key)) {
            feed_continuation(&**audit, &client.connection, self.host.wall_clock_ns());
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

    /// The generation under which a connection resumes: the one it is bound to, or, where this node no longer has it,
    /// the newest if the choice makes no difference.
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

    fn log_unknown_config(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster
            .failovers
            .unknown_config_logged_at
            .is_some_and(|at| self.now.since(at) < CONFIG_WARNINGS_EVERY)
        {
            return;
        }
        cluster.failovers.unknown_config_logged_at = Some(self.now);
        self.host.log(LogEvent::ConfigurationUnknown);
    }

    /// Registers the connection with epoll. False when no event would arrive for it.
    fn register_resumed(&mut self, key: Key) -> bool {
        self.counters.open.set(self.clients.len() as u64);
        let Some(client) = self.clients.get_mut(key) else { return false };
        client.readable = true;
        let fd = client.descriptor();
        if let (Some(cluster), Some(replicated_state)) = (&mut self.cluster, &client.replicated_state) {
            cluster.index.note_slot(replicated_state.leg.slot.index(), key);
        }
        self.register(fd, Source::Client(key)).is_ok()
    }

    /// Attaches the server leg with which the connection resumes. `client_acked`: the position that its client has
    /// acknowledged.
    fn attach_server(
        &mut self,
        key: Key,
        server: &mut Option<ActivatedLeg<H>>,
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
        // Where the server's name now has another address, the connection carries no further request.
        let outdated = runtime.addresses.first() != Some(&facts.remote);
        let stands = ResumePoint { received, ended, sent: leg.output, acked };
        let gated = GatedLeg::<H>::resumed(slot, &facts, stands, self.now);
        let slot = gated.slot.index();
        let upstream = Upstream {
            index: leg.route.server,
            owner: Some((key, number)),
            readable: true,
            writable: true,
            used_since: self.now,
            answered_at: in_response.then_some(self.now), // the real time is unknown here
            tls_fingerprint: if outdated { !tls_fingerprint } else { tls_fingerprint },
            gated: Some(Box::new(gated)),
            ..Upstream::new(socket, runtime)
        };
        if !self.add_upstream(key, upstream) {
            return;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.index.note_slot(slot, key);
        }
        self.note_bound(key);
        let index = leg.route.server;
        self.perform(key);
        self.with(key, |connection, io| connection.handle_leg_open(io, number, index, None));
        self.perform(key);
        self.with(key, |connection, io| connection.handle_server_acked(io, number, acked));
        self.perform(key);
    }

    /// Resets legs that cannot resume: their peers may wait for an answer without sending anything.
    fn drop_legs(&mut self, legs: impl IntoIterator<Item = ActivatedLeg<H>>) {
        let Some(cluster) = &mut self.cluster else { return };
        for ActivatedLeg { slot, socket, .. } in legs {
            socket.reset_on_close();
            slot.open();
            drop(socket);
            cluster.gate.finish(slot, None);
        }
    }
}

/// Sends an ACK to the peers of activated connections, so that they continue. Probes peers with a small window again.
/// After a long silence notifies peers of the segments lost at the failed node, and returns how many. All other peers
/// with lost segments are put on the list of [`LossNotice`].
fn send_first_acks<H: Host>(
    cluster: &mut Cluster<H>,
    pulse: &Watchdog,
    activated: &[ActivatedConnection<H>],
    silent: Micros,
    now: Micros,
) -> u64 {
    let mut notified = 0;
    let now_ms = cluster.host.steady_clock_ms();
    let legs = activated.iter().flat_map(ActivatedConnection::legs);
    let _ = cluster.gate.emit_acks(legs.map(|leg| &leg.slot)); // a lost ACK is repeated by the peer's timer
    for connection in activated {
        pulse.beat();
        let died =
            matches!(cluster.role(connection.bucket), Role::Owner { begin: OwnershipStart::Failover, .. });
        // else the bucket on hold drops the retransmission
        let stays = !cluster.handoffs.freezing.contains_key(&connection.bucket);
        let notifies = died && stays && silent >= LONG_SILENCE;
        for (number, (leg, active)) in connection.probed.iter().zip(connection.legs()).enumerate() {
            if let Some(lost) = leg.lost_segments() {
                let socket = &active.socket;
                let was_notified = notifies && lost.notify_peer(cluster, socket, 0);
                notified += u64::from(was_notified);
                let (slot, is_client) = (active.slot.index(), number == 0);
                cluster.failovers.loss_notices.push(LossNotice::new(
                    lost,
                    slot,
                    socket,
                    is_client,
                    was_notified,
                    now,
                ));
            }
            if leg.room() < SMALL_BUFFER {
                leg.ask(cluster, now_ms);
            }
        }
    }
    notified
}

/// Moves the sockets out of TCP_REPAIR. `None` when one of them fails: then all are closed.
pub(super) fn activate<H: Host>(
    cluster: &mut Cluster<H>,
    counters: &Counters,
    take: &mut RecoveringConnection<H>,
) -> Option<ActivatedLegs<H>> {
    cluster.reached(counters, "wake", take.client_flow());
    let mut activated = Vec::new();
    for leg in &mut take.legs {
        let (Some(slot), Some(socket)) = (leg.slot.take(), leg.socket.take()) else { continue };
        match socket.finish() {
            Ok(socket) => {
                slot.set_asleep(false);
                let Leg { facts, received, ended, acked, peer_position, .. } = *leg;
                activated.push(ActivatedLeg {
                    facts,
                    received,
                    ended,
                    acked,
                    has_position: peer_position.is_some(),
                    slot,
                    socket,
                });
            }
            Err(_) => cluster.gate.finish(slot, None),
        }
    }
    if activated.len() < take.legs.len() {
        for ActivatedLeg { slot, socket, .. } in activated {
            drop(socket);
            cluster.gate.finish(slot, None);
        }
        return None;
    }
    let mut legs = activated.into_iter();
    Some((legs.next()?, legs.next()))
}
