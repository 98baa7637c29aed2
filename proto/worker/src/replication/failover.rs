//! Failover: this node resumes the connections of an owner that has failed, or that handed them off.
//!
//! The buckets belong to this node and are on hold: segments of their peers are recorded and dropped, and probes may
//! leave. Slots come before sockets, so that nothing escapes the gate. Peers are probed for their position before a
//! socket is restored, because a socket that assumes too low a position would stall forever. The first ACK then lets
//! every peer continue. All steps, with their files: `docs/internals/failover.md`, "Failover, step by step".

use super::Cluster;
use super::activate::{ActivatedConnection, ActivatedLegs, activate};
use super::recovering::RecoveringConnection;
use super::reprotect::{Activity, Failover};
use crate::host::{Gate, Host, Slot};
use crate::instruction::FailoverOrder;
use crate::log_event::LogEvent;
use crate::panic_guard::catch_panic;
use crate::report::Resumed;
use crate::worker::Worker;
use crate::{Counters, Watchdog};
use evergate_base::Micros;
use evergate_base::net::Flow;
use evergate_membership::{Bucket, Term};
use evergate_replication::Recovered;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;

/// Interval of the warning about lost connections, in milliseconds.
const LOST_WARNINGS_EVERY_MS: u64 = 10_000;

/// Connections found for a failover.
struct Found<H: Host> {
    /// Connections with data in flight.
    active: Vec<RecoveringConnection<H>>,
    idle: BTreeMap<Bucket, Vec<RecoveringConnection<H>>>,
    /// Number of connections that cannot resume.
    lost: usize,
}

impl<H: Host> Found<H> {
    /// Keeps those active connections for which `step` succeeds, and counts the rest as lost.
    fn filter_active(
        &mut self,
        pulse: &Watchdog,
        mut step: impl FnMut(&mut RecoveringConnection<H>) -> bool,
    ) {
        let before = self.active.len();
        self.active.retain_mut(|take| {
            pulse.beat();
            step(take)
        });
        self.lost += before - self.active.len();
    }
}

/// Outcome for an idle connection.
enum IdleOutcome<H: Host> {
    Activated(Box<ActivatedLegs<H>>),
    /// Its client has opened another connection here.
    BegunAgain,
    Lost,
}

impl<H: Host> Worker<H> {
    /// Recovers the connections of this worker's share of the buckets: active ones once their peers have been probed,
    /// idle ones between all other work ([`Worker::resume_idle`]).
    pub(super) fn fail_over(&mut self, round: &FailoverOrder) {
        let began = Micros(self.host.monotonic_us());
        let Some(cluster) = &mut self.cluster else { return };
        let since_ns = cluster.gate.now_ns();
        let worker = cluster.worker;
        cluster.failovers.taken_at = Some(self.now);
        // From here on these buckets wait for this failover.
        for (bucket, _) in &round.buckets {
            cluster.failovers.arriving.remove(bucket);
        }
        let mine = round.buckets.iter().filter(|(bucket, _)| cluster.worker_of(*bucket) == worker);
        let mine: Vec<_> = mine.copied().collect();
        // Segments before this point are dropped, and return only with the client's retransmission timer.
        mine.iter().for_each(|(bucket, _)| cluster.set_pending(*bucket, true));
        let mut found = Found { active: Vec::new(), idle: BTreeMap::new(), lost: 0 };
        let counters = self.counters.clone();
        // The failover ends even after a panic, so its buckets do not stay on hold.
        catch_panic(&counters, || self.recover(&mine, &mut found));
        let Found { active, idle, lost } = found;
        let resumed = Resumed { round: round.number, buckets: mine.len(), lost, ..Resumed::default() };
        let buckets: Vec<Bucket> = mine.iter().map(|(bucket, _)| *bucket).collect();
        let failover = Failover::new((began, since_ns), round.silent, resumed, &buckets, active, idle);
        if let Some(cluster) = &mut self.cluster {
            cluster.failovers.waiting.push(failover);
        }
        self.poll_failovers();
        // Of the other buckets this worker has no replicas, but connections it accepted meanwhile: a replica is
        // complete only with this worker's frame.
        for (bucket, _) in round.buckets.iter().filter(|bucket| !mine.contains(bucket)) {
            self.pulse.beat();
            self.send_full_state_to_backups(*bucket);
        }
    }

    /// Recovers the replicas of these buckets, and gates the active connections. A panic ends only the connection that
    /// causes it.
    fn recover(&mut self, mine: &[(Bucket, Term)], found: &mut Found<H>) {
        let Some(cluster) = &mut self.cluster else { return };
        let (counters, pulse) = (&self.counters, &self.pulse);
        for (bucket, term) in mine {
            let held = catch_panic(counters, || cluster.replicas.store.recover(*bucket, *term));
            let mut idle = Vec::new();
            for Recovered { connection, idle: is_idle, held } in held.into_iter().flatten() {
                pulse.beat();
                if is_idle {
                    idle.push(RecoveringConnection::idle(connection, *bucket, held));
                    continue;
                }
                match catch_panic(counters, || RecoveringConnection::active(connection, *bucket, held))
                    .flatten()
                {
                    Some(take) => found.active.push(take),
                    None => found.lost += 1,
                }
            }
            found.idle.insert(*bucket, idle);
        }
        drop_superseded_closed(&mut found.active, &found.idle);
        let now_ms = cluster.host.steady_clock_ms();
        found.filter_active(pulse, |take| {
            attempt((cluster, counters), take, |cluster, take| gate(cluster, counters, take, now_ms))
        });
    }

    /// Continues to probe the peers of a failover. Once that is over, builds the sockets of its active connections;
    /// whether they are built. A panic ends only the connection that causes it.
    pub(super) fn probe(&mut self, failover: &mut Failover<H>) -> bool {
        let Some(probes) = &mut failover.probes else { return true };
        let Some(cluster) = &mut self.cluster else { return false };
        let (counters, pulse) = (&self.counters, &self.pulse);
        let active = &mut failover.left[Activity::Active as usize];
        let now = (Micros(self.host.monotonic_us()), self.host.steady_clock_ms());
        if catch_panic(counters, || probes.run(&**cluster, pulse, active, now)) == Some(false) {
            return false;
        }
        failover.probes = None;
        let now_ms = self.host.steady_clock_ms();
        for connections in active.values_mut() {
            catch_panic(counters, || drop_superseded_reset(cluster, connections));
            let before = connections.len();
            connections.retain_mut(|take| {
                pulse.beat();
                attempt((cluster, counters), take, |cluster, take| build(cluster, counters, take, now_ms))
            });
            failover.resumed.lost += before - connections.len();
        }
        true
    }

    /// Resumes one idle connection. Its client need not be probed or notified: nothing is in flight, and the client
    /// sends first. If the client has sent already, that is the first input. `since_ns`: start of the failover; younger
    /// connections with the same addresses stay.
    pub(super) fn resume_idle_connection(
        &mut self,
        mut take: RecoveringConnection<H>,
        since_ns: u64,
    ) -> bool {
        let (bucket, connection) = (take.bucket, take.id);
        let mut built = IdleOutcome::Lost;
        self.guarded(None, |worker| built = worker.build_idle(&mut take, since_ns));
        let continues = match built {
            IdleOutcome::Activated(legs) => self.resume(ActivatedConnection::of(take, *legs)),
            IdleOutcome::BegunAgain => true,
            IdleOutcome::Lost => {
                self.drop_recovering(vec![take]);
                false
            }
        };
        if !continues && let Some(cluster) = &mut self.cluster {
            cluster.end_replicas(bucket, connection);
        }
        continues
    }

    fn build_idle(&mut self, take: &mut RecoveringConnection<H>, since_ns: u64) -> IdleOutcome<H> {
        let Some(cluster) = &mut self.cluster else { return IdleOutcome::Lost };
        let now_ms = cluster.host.steady_clock_ms();
        take.find_legs();
        let Some(flow) = take.client_flow() else { return IdleOutcome::Lost };
        let Some(client) = take.legs.first_mut() else { return IdleOutcome::Lost };
        match cluster.gate.restore_unless_begun(&client.restored(cluster, now_ms), since_ns) {
            Ok(Some(slot)) => client.slot = Some(slot),
            Ok(None) => {
                cluster.end_replicas(take.bucket, take.id);
                return IdleOutcome::BegunAgain; // the old one was unused
            }
            Err(_) => return IdleOutcome::Lost,
        }
        if !gate(cluster, &self.counters, take, now_ms) {
            return IdleOutcome::Lost;
        }
        // From here on, incoming segments are diverted to `early_segments`.
        cluster.read_early_segments_of(&flow);
        let earlier = cluster.failovers.early.take(&flow);
        if let (Some(client), Some(position)) = (take.legs.first_mut(), earlier.position)
            && client.follows(&position)
        {
            client.record_position(position);
        }
        if !build(cluster, &self.counters, take, now_ms) {
            return IdleOutcome::Lost;
        }
        if let Some(client) = take.legs.first() {
            cluster.read_early_segments_of(&flow);
            let later = cluster.failovers.early.take(&flow).pieces;
            client.enqueue_recv(earlier.pieces.into_iter().chain(later).collect());
        }
        activate(cluster, &self.counters, take)
            .map_or(IdleOutcome::Lost, |legs| IdleOutcome::Activated(Box::new(legs)))
    }

    /// Drops connections that resume elsewhere or not at all, without sending anything.
    pub(super) fn drop_recovering(&mut self, all: Vec<RecoveringConnection<H>>) {
        let Some(cluster) = &mut self.cluster else { return };
        for mut connection in all {
            give_back(cluster, &mut connection);
        }
    }
}

/// Drops closed connections whose client has reconnected from the same port, before the backups received its ACK of the
/// end: its segments belong to the newer connection.
fn drop_superseded_closed<H: Host>(
    active: &mut Vec<RecoveringConnection<H>>,
    idle: &BTreeMap<Bucket, Vec<RecoveringConnection<H>>>,
) {
    let is_over = |take: &RecoveringConnection<H>| take.held.state.closed.is_some();
    let all_over = || active.iter().filter(|take| is_over(take));
    let mut over: HashSet<_> = all_over().filter_map(RecoveringConnection::client_flow).collect();
    // Connections between the same ends are of one bucket.
    let buckets: BTreeSet<Bucket> = all_over().map(|take| take.bucket).collect();
    let idle = buckets.iter().filter_map(|bucket| idle.get(bucket)).flatten();
    let others = active.iter().filter(|take| !is_over(take)).chain(idle);
    let superseded: HashSet<_> =
        others.filter_map(RecoveringConnection::client_flow).filter(|flow| over.remove(flow)).collect();
    active.retain(|take| !is_over(take) || take.client_flow().is_none_or(|flow| !superseded.contains(&flow)));
}

/// Drops connections whose client reset them and reconnected from the same port during the outage. Their client answers
/// for the new connection, and the old one would only interfere.
fn drop_superseded_reset<H: Host>(cluster: &mut Cluster<H>, active: &mut Vec<RecoveringConnection<H>>) {
    let is_old = |take: &RecoveringConnection<H>| {
        let foreign = take.legs.first().and_then(|client| client.slot.as_ref()).and_then(Slot::strange);
        let flow = take.client_flow();
        foreign.zip(flow).is_some_and(|(foreign, flow)| cluster.gate.has_answered_syn(&flow, foreign))
    };
    for mut take in active.extract_if(.., |take| is_old(take)).collect::<Vec<_>>() {
        give_back(cluster, &mut take);
        cluster.end_replicas(take.bucket, take.id);
    }
}

/// Runs one step of one connection. A panic ends this connection only.
fn attempt<H: Host>(
    (cluster, counters): (&mut Cluster<H>, &Counters),
    take: &mut RecoveringConnection<H>,
    step: impl FnOnce(&mut Cluster<H>, &mut RecoveringConnection<H>) -> bool,
) -> bool {
    catch_panic(counters, || step(cluster, take)).unwrap_or_else(|| give_back(cluster, take))
}

/// Acquires the slots, so that no output of the later sockets escapes.
fn gate<H: Host>(
    cluster: &mut Cluster<H>,
    counters: &Counters,
    take: &mut RecoveringConnection<H>,
    now_ms: u64,
) -> bool {
    cluster.reached(counters, "gate", take.client_flow());
    let gated = take.legs.iter_mut().filter(|leg| leg.slot.is_none()).try_for_each(|leg| {
        leg.slot = Some(cluster.gate.restore(&leg.restored(cluster, now_ms))?);
        Ok::<_, io::Error>(())
    });
    match gated {
        Ok(()) => true,
        Err(error) => {
            cluster.log_lost(counters, "gate_table_full", error, now_ms);
            give_back(cluster, take)
        }
    }
}

/// Builds the sockets, which stay in TCP_REPAIR.
fn build<H: Host>(
    cluster: &mut Cluster<H>,
    counters: &Counters,
    take: &mut RecoveringConnection<H>,
    now_ms: u64,
) -> bool {
    cluster.reached(counters, "build", take.client_flow());
    let built: io::Result<()> = take.legs.iter_mut().try_for_each(|leg| leg.build(cluster, now_ms));
    match built {
        Ok(()) => true,
        Err(error) => {
            cluster.log_lost(counters, "failover_socket_failed", error, now_ms);
            give_back(cluster, take)
        }
    }
}

impl<H: Host> Cluster<H> {
    /// A recovery reaches a step, for the client of this flow.
    pub(super) fn reached(&self, counters: &Counters, step: &'static str, flow: Option<Flow>) {
        self.host.reached(counters, step, flow.map(|flow| flow.remote));
    }

    /// Counts a replicated connection that is lost, and logs a warning now and then.
    fn log_lost(&mut self, counters: &Counters, reason: &'static str, error: io::Error, now_ms: u64) {
        counters.reason(reason);
        if self.failovers.lost_logged_ms.is_some_and(|at| now_ms.saturating_sub(at) < LOST_WARNINGS_EVERY_MS)
        {
            return;
        }
        self.failovers.lost_logged_ms = Some(now_ms);
        self.host.log(LogEvent::ConnectionsLost { reason, error });
    }
}

/// Releases the slots of a connection that does not resume. Always false.
pub(super) fn give_back<H: Host>(cluster: &mut Cluster<H>, take: &mut RecoveringConnection<H>) -> bool {
    for slot in take.legs.iter_mut().filter_map(|leg| leg.slot.take()) {
        cluster.gate.finish(slot, None);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::recovering::tests::recovering;
    use super::*;

    #[test]
    fn closed_connection_is_dropped_only_for_its_own_client() {
        let mut active = vec![
            recovering(1, 50, true),
            recovering(2, 51, true),
            recovering(3, 52, true),
            recovering(4, 51, false),
        ];
        let idle = vec![recovering(5, 50, false), recovering(6, 53, false)];
        drop_superseded_closed(&mut active, &[(Bucket(1), idle)].into());
        assert_eq!(active.iter().map(|take| take.id.0).collect::<Vec<_>>(), [3, 4]);
    }
}
