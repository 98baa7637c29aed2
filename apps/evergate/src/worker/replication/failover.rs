//! Take-over: connections whose owner is gone go on here.
//!
//! The buckets are ours and on hold: what their peers send is recorded and dropped, and our probes may leave. Slots
//! come before sockets, so that nothing escapes the gate; peers are asked how much they have before anything is
//! restored, because a socket that believes its peer has less than it has would stall for good. The first ACK then moves
//! every peer on. All steps, with the files that do them: `docs/internals/failover.md`, "Take-over, step by step".

use super::Cluster;
use super::activate::{ActivatedConnection, ActivatedLegs, activate};
use super::probe::ask_all;
use super::recovering::RecoveringConnection;
use super::reprotect::Failover;
use crate::agent::{FailoverOrder, Resumed};
use crate::control::console;
#[cfg(test)]
use crate::worker::faults;
use crate::worker::panic_guard::catch_panic;
use crate::worker::{Counters, Watchdog, Worker};
use evergate_bpf::{Leases, Slot};
use evergate_membership::{Bucket, Term};
use evergate_replication::Recovered;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

/// Between two lines about connections that are lost, in milliseconds.
const LOST_LINES_MS: u64 = 10_000;

/// What a take-over has found.
#[derive(Default)]
struct Found {
    /// With something on its way.
    busy: Vec<RecoveringConnection>,
    idle_connections: BTreeMap<Bucket, Vec<RecoveringConnection>>,
    /// How many do not go on.
    lost: usize,
}

impl Found {
    /// Those of the busy ones that get over this step; the others are lost.
    fn keep_active(&mut self, pulse: &Watchdog, mut step: impl FnMut(&mut RecoveringConnection) -> bool) {
        let before = self.busy.len();
        self.busy.retain_mut(|take| {
            pulse.beat();
            step(take)
        });
        self.lost += before - self.busy.len();
    }
}

/// What became of a connection that rests.
enum IdleOutcome {
    Activated(Box<ActivatedLegs>),
    /// Its client has begun another one here.
    BegunAgain,
    Lost,
}

impl Worker {
    /// Continues the connections of this worker's share of the buckets: at once those with something on its way to somebody,
    /// the others between all else ([`Worker::resume_idle`]).
    pub(super) fn fail_over(&mut self, round: &FailoverOrder) {
        let began = (Instant::now(), Leases::now_ns());
        let Some(cluster) = &mut self.cluster else { return };
        let worker = cluster.worker;
        cluster.taken_at = Some(self.now);
        // From here on they wait for what is taken over now.
        for (bucket, _) in &round.buckets {
            cluster.arriving.remove(bucket);
        }
        let mine = round.buckets.iter().filter(|(bucket, _)| cluster.worker_of(*bucket) == worker);
        let mine: Vec<_> = mine.copied().collect();
        // What comes before is dropped, and said again only after the client's timer.
        mine.iter().for_each(|(bucket, _)| cluster.set_pending(*bucket, true));
        let mut found = Found::default();
        let counters = self.counters.clone();
        // Whatever a defect makes of it, the take-over has an end, and its buckets do not stay on hold.
        catch_panic(&counters, || self.take(&mine, &mut found));
        let Found { busy, idle_connections, lost } = found;
        let resumed = Resumed { round: round.number, buckets: mine.len(), lost, ..Resumed::default() };
        let buckets: Vec<Bucket> = mine.iter().map(|(bucket, _)| *bucket).collect();
        self.start_reprotection(Failover::new(
            began,
            round.silent,
            resumed,
            &buckets,
            busy,
            idle_connections,
        ));
        // Of the other buckets this worker has nothing, or what it accepted meanwhile: a copy needs its word too.
        for (bucket, _) in round.buckets.iter().filter(|bucket| !mine.contains(bucket)) {
            self.pulse.beat();
            self.send_full_state_to_backups(*bucket);
        }
    }

    /// What is held of these buckets; those with something on its way get their sockets. A defect that one connection reaches ends
    /// that one alone.
    fn take(&mut self, mine: &[(Bucket, Term)], found: &mut Found) {
        let Some(cluster) = &mut self.cluster else { return };
        let (counters, pulse) = (&self.counters, &self.pulse);
        for (bucket, term) in mine {
            let held = catch_panic(counters, || cluster.holder.recover(*bucket, *term));
            let mut idle_connections = Vec::new();
            for Recovered { connection, idle, held } in held.into_iter().flatten() {
                pulse.beat();
                if idle {
                    idle_connections.push(RecoveringConnection::idle(connection, *bucket, held));
                    continue;
                }
                match catch_panic(counters, || RecoveringConnection::active(connection, *bucket, held))
                    .flatten()
                {
                    Some(take) => found.busy.push(take),
                    None => found.lost += 1,
                }
            }
            found.idle_connections.insert(*bucket, idle_connections);
        }
        drop_superseded_closed(&mut found.busy, &found.idle_connections);
        let now_ms = evergate_sys::steady_clock_ms();
        found.keep_active(pulse, |take| {
            attempt((cluster, counters), take, |cluster, take| gate(cluster, counters, take, now_ms))
        });
        catch_panic(counters, || ask_all(&**cluster, pulse, &mut found.busy));
        catch_panic(counters, || drop_superseded_reset(cluster, &mut found.busy));
        let now_ms = evergate_sys::steady_clock_ms();
        found.keep_active(pulse, |take| {
            attempt((cluster, counters), take, |cluster, take| build(cluster, counters, take, now_ms))
        });
    }

    /// Continues one connection that rests. Its client need not be asked or told anything: nothing of it is on its way, and the
    /// client speaks first. If it has done so already, that is the first thing the connection reads. `since_ns`: when the
    /// take-over began; connections of the same ends that are younger stay.
    pub(super) fn resume_idle_connection(&mut self, mut take: RecoveringConnection, since_ns: u64) -> bool {
        let (bucket, connection) = (take.bucket, take.id);
        let mut built = IdleOutcome::Lost;
        self.guarded(None, |worker| built = worker.build_idle(&mut take, since_ns));
        let continues = match built {
            IdleOutcome::Activated(legs) => self.resume(ActivatedConnection::of(take, *legs)),
            IdleOutcome::BegunAgain => true,
            IdleOutcome::Lost => {
                self.drop_takes(vec![take]);
                false
            }
        };
        if !continues && let Some(cluster) = &mut self.cluster {
            cluster.give_up_copies(bucket, connection);
        }
        continues
    }

    fn build_idle(&mut self, take: &mut RecoveringConnection, since_ns: u64) -> IdleOutcome {
        let Some(cluster) = &mut self.cluster else { return IdleOutcome::Lost };
        let now_ms = evergate_sys::steady_clock_ms();
        take.find_legs();
        let Some(flow) = take.client_flow() else { return IdleOutcome::Lost };
        let Some(client) = take.legs.first_mut() else { return IdleOutcome::Lost };
        match cluster.gate.restore_unless_begun(&client.restored(cluster, now_ms), since_ns) {
            Ok(Some(slot)) => client.slot = Some(slot),
            Ok(None) => {
                cluster.give_up_copies(take.bucket, take.id);
                return IdleOutcome::BegunAgain; // nothing had been said on it
            }
            Err(_) => return IdleOutcome::Lost,
        }
        if !gate(cluster, &self.counters, take, now_ms) {
            return IdleOutcome::Lost;
        }
        // From here on all that comes knocks.
        cluster.read_early_segments_of(&flow);
        let reported = cluster.early.take(&flow);
        if let (Some(client), Some(peer_input)) = (take.legs.first_mut(), reported.peer_input)
            && client.follows(&peer_input)
        {
            client.record_position(peer_input);
        }
        if !build(cluster, &self.counters, take, now_ms) {
            return IdleOutcome::Lost;
        }
        if let Some(client) = take.legs.first() {
            cluster.read_early_segments_of(&flow);
            let later = cluster.early.take(&flow).pieces;
            client.play(reported.pieces.into_iter().chain(later).collect());
        }
        activate(cluster, take).map_or(IdleOutcome::Lost, |legs| IdleOutcome::Activated(Box::new(legs)))
    }

    /// Somebody else goes on with them, or nobody: nothing of them leaves.
    pub(super) fn drop_takes(&mut self, takes: Vec<RecoveringConnection>) {
        let Some(cluster) = &mut self.cluster else { return };
        for mut take in takes {
            give_back(cluster, &mut take);
        }
    }
}

/// A client that was closed may have come again from the same port before the backups heard that it has the end: what it
/// says now belongs to the connection that is not over.
fn drop_superseded_closed(
    busy: &mut Vec<RecoveringConnection>,
    idle_connections: &BTreeMap<Bucket, Vec<RecoveringConnection>>,
) {
    let is_over = |take: &RecoveringConnection| take.held.state.closed.is_some();
    let all_over = || busy.iter().filter(|take| is_over(take));
    let mut over: HashSet<_> = all_over().filter_map(RecoveringConnection::client_flow).collect();
    // Connections between the same ends are of one bucket.
    let buckets: BTreeSet<Bucket> = all_over().map(|take| take.bucket).collect();
    let idle_connections = buckets.iter().filter_map(|bucket| idle_connections.get(bucket)).flatten();
    let others = busy.iter().filter(|take| !is_over(take)).chain(idle_connections);
    let fresh_start: HashSet<_> =
        others.filter_map(RecoveringConnection::client_flow).filter(|flow| over.remove(flow)).collect();
    busy.retain(|take| !is_over(take) || take.client_flow().is_none_or(|flow| !fresh_start.contains(&flow)));
}

/// A client that reset its connection and came again from the same port while nobody listened answers for the new one: the old one
/// would only be in its way.
fn drop_superseded_reset(cluster: &mut Cluster, busy: &mut Vec<RecoveringConnection>) {
    let is_old = |take: &RecoveringConnection| {
        let reported = take.legs.first().and_then(|client| client.slot.as_ref()).and_then(Slot::strange);
        let flow = take.client_flow();
        reported.zip(flow).is_some_and(|(reported, flow)| cluster.gate.has_answered_syn(&flow, reported))
    };
    for mut take in busy.extract_if(.., |take| is_old(take)).collect::<Vec<_>>() {
        give_back(cluster, &mut take);
        cluster.give_up_copies(take.bucket, take.id);
    }
}

/// One step of one connection. A defect that it reaches ends this one.
fn attempt(
    (cluster, counters): (&mut Cluster, &Counters),
    take: &mut RecoveringConnection,
    step: impl FnOnce(&mut Cluster, &mut RecoveringConnection) -> bool,
) -> bool {
    catch_panic(counters, || step(cluster, take)).unwrap_or_else(|| give_back(cluster, take))
}

/// Slots, so that nothing of the sockets to come escapes.
fn gate(cluster: &mut Cluster, counters: &Counters, take: &mut RecoveringConnection, now_ms: u64) -> bool {
    #[cfg(test)]
    faults::strike_take("gate", take.client_flow());
    let gated = take.legs.iter_mut().filter(|leg| leg.slot.is_none()).try_for_each(|leg| {
        leg.slot = Some(cluster.gate.restore(&leg.restored(cluster, now_ms))?);
        anyhow::Ok(())
    });
    gated.inspect_err(|error| cluster.log_lost(counters, "gate_table_full", error, now_ms)).is_ok()
        || give_back(cluster, take)
}

/// Sockets, still asleep.
fn build(cluster: &mut Cluster, counters: &Counters, take: &mut RecoveringConnection, now_ms: u64) -> bool {
    #[cfg(test)]
    faults::strike_take("build", take.client_flow());
    let built: anyhow::Result<()> = take.legs.iter_mut().try_for_each(|leg| leg.build(cluster, now_ms));
    built.inspect_err(|error| cluster.log_lost(counters, "failover_socket_failed", error, now_ms)).is_ok()
        || give_back(cluster, take)
}

impl Cluster {
    /// A connection is lost that was held: that is counted, and said now and then.
    fn log_lost(&mut self, counters: &Counters, reason: &'static str, error: &anyhow::Error, now_ms: u64) {
        counters.reason(reason);
        if self.lost_logged_ms.is_some_and(|at| now_ms.saturating_sub(at) < LOST_LINES_MS) {
            return;
        }
        self.lost_logged_ms = Some(now_ms);
        let advice = match is_without_route(error) {
            true => "has this host lost a route, or an interface?",
            false => "each node needs descriptors and places in the packet filter for the clients of all",
        };
        console::warning(format_args!(
            "cluster: cannot go on with connections of another node (`{reason}`): {error:#}; {advice}"
        ));
    }
}

fn is_without_route(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
    let all = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    all.map(std::io::Error::kind)
        .any(|kind| matches!(kind, HostUnreachable | NetworkDown | NetworkUnreachable))
}

/// It does not go on: false.
pub(super) fn give_back(cluster: &mut Cluster, take: &mut RecoveringConnection) -> bool {
    for slot in take.legs.iter_mut().filter_map(|leg| leg.slot.take()) {
        cluster.lane.finish(slot, None, Leases::now_ns());
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::recovering::tests::take;
    use super::*;

    #[test]
    fn what_is_over_gives_way_to_its_client_coming_again_and_to_nobody_else() {
        let mut busy = vec![take(1, 50, true), take(2, 51, true), take(3, 52, true), take(4, 51, false)];
        let idle_connections = vec![take(5, 50, false), take(6, 53, false)];
        drop_superseded_closed(&mut busy, &[(Bucket(1), idle_connections)].into());
        assert_eq!(busy.iter().map(|take| take.id.0).collect::<Vec<_>>(), [3, 4]);
    }
}
