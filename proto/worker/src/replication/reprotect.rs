//! Re-protection: before a recovered connection sends anything, every other backup must have the point from which it
//! resumes.
//!
//! Two backups may differ in the last entries of a failed owner. This node resumes from its own state and acknowledges
//! it at once, which may be more than another backup has. If this node fails too, that backup must not resume from
//! less. So the recovered state is sent first, and the bucket stays on hold until all required backups have it. Without
//! such backups nothing waits.

use super::Cluster;
use super::activate::ActivatedConnection;
use super::early_segments::EarlySegments;
use super::outgoing::Notice;
use super::probe::Probes;
use super::recovering::RecoveringConnection;
use crate::host::{Gate, Host, Law};
use crate::panic_guard::catch_panic;
use crate::report::{Report, Resumed};
use crate::worker::Worker;
use crate::{Counters, Watchdog};
use evergate_base::Micros;
use evergate_base::net::Flow;
use evergate_membership::{Bucket, MemberSet, NodeId, OwnershipStart, Role};
use evergate_replication::{ConnectionId, Frame};
use std::collections::{BTreeMap, VecDeque};

/// Activity of a connection; active ones resume first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Activity {
    Active,
    Idle,
}

/// Time that a turn may spend on idle connections: without other work, or a thousandth of the time since the failover
/// began, within these bounds. A request connections several turns; a connection whose client sends resumes at once.
const IDLE_SPAN_IDLE: Micros = Micros::from_ms(1);
const IDLE_SPAN_MIN: Micros = Micros(500);
const IDLE_SPAN_MAX: Micros = Micros::from_ms(4);
/// Connections resumed between two polls for early segments.
const RESUMED_PER_POLL: usize = 16;

/// Connections that can resume, by bucket, and those of buckets that this node no longer owns.
type Split<H> = (Vec<(Bucket, Vec<RecoveringConnection<H>>)>, Vec<RecoveringConnection<H>>);

/// An unfinished failover.
pub(super) struct Failover<H: Host> {
    started: Micros,
    /// `started` on CLOCK_BOOTTIME, in nanoseconds.
    since_ns: u64,
    /// How long the failed owner had been silent.
    silent: Micros,
    /// Probes to the peers of active connections, until their sockets are built.
    pub(super) probes: Option<Probes>,
    pub(super) resumed: Resumed,
    /// Connections whose state other nodes must receive first, by activity and bucket.
    pub(super) left: [BTreeMap<Bucket, Vec<RecoveringConnection<H>>>; 2],
    /// Connections with active sockets whose state machines are yet to be restored.
    activated: VecDeque<ActivatedConnection<H>>,
    /// Idle connections that may resume.
    idle: VecDeque<(Bucket, Vec<RecoveringConnection<H>>)>,
}

impl<H: Host> Failover<H> {
    /// A failover of these buckets; `active` connections have their slots. `since_ns`: its start by the gate's clock,
    /// which continues while the machine is suspended.
    pub(super) fn new(
        (started, since_ns): (Micros, u64),
        silent: Micros,
        resumed: Resumed,
        buckets: &[Bucket],
        active: Vec<RecoveringConnection<H>>,
        mut idle: BTreeMap<Bucket, Vec<RecoveringConnection<H>>>,
    ) -> Failover<H> {
        let mut by_bucket: BTreeMap<Bucket, Vec<RecoveringConnection<H>>> =
            buckets.iter().map(|bucket| (*bucket, Vec::new())).collect();
        for bucket in buckets {
            idle.entry(*bucket).or_default();
        }
        for connection in active {
            by_bucket.entry(connection.bucket).or_default().push(connection);
        }
        let (activated, left) = (VecDeque::new(), [by_bucket, idle]);
        let probes = Some(Probes::new(started));
        Failover { started, since_ns, silent, probes, resumed, left, activated, idle: VecDeque::new() }
    }

    /// Idle connections of the bucket, and whether they may resume.
    fn idle_of(&mut self, bucket: Bucket) -> Option<(&mut Vec<RecoveringConnection<H>>, bool)> {
        let ready =
            self.idle.iter_mut().find(|(of, _)| *of == bucket).map(|(_, connections)| (connections, true));
        ready.or_else(|| {
            self.left[Activity::Idle as usize].get_mut(&bucket).map(|connections| (connections, false))
        })
    }

    /// Takes the connections of buckets that this node does not own.
    fn take_unowned(&mut self, owns: impl Fn(Bucket) -> bool) -> Vec<RecoveringConnection<H>> {
        let mut gone = Vec::new();
        for left in &mut self.left {
            left.retain(|bucket, connections| {
                let stays = owns(*bucket);
                if !stays {
                    gone.append(connections);
                }
                stays
            });
        }
        gone
    }

    /// Whether idle connections wait for their turn.
    pub(super) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Whether connections of the bucket are left.
    pub(super) fn has(&self, bucket: Bucket) -> bool {
        let left = self.left.iter().any(|left| left.contains_key(&bucket));
        let activated = self.activated.iter().any(|connection| connection.bucket == bucket);
        left || activated || self.idle.iter().any(|(of, _)| *of == bucket)
    }
}

impl<H: Host> Worker<H> {
    /// Replicates the recovered state of a failover to the required backups.
    fn protect_again(&mut self, failover: &mut Failover<H>) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.failovers.rounds += 1;
        let (round, mut failed) = (cluster.failovers.rounds, Vec::new());
        let (counters, pulse) = (&self.counters, &self.pulse);
        for (stage, left) in [Activity::Active, Activity::Idle].into_iter().zip(&mut failover.left) {
            for (bucket, connections) in left {
                let replicate =
                    || cluster.replicate_recovered((counters, pulse), (stage, *bucket), connections, round);
                if catch_panic(counters, replicate).is_none() {
                    // Connections that backups may lack do not resume.
                    failover.resumed.lost += connections.len();
                    failed.append(connections);
                }
            }
        }
        for connection in &failed {
            cluster.end_replicas(connection.bucket, connection.id);
        }
        self.drop_recovering(failed);
    }

    /// Runs a step on the unfinished failovers, and keeps them even if it panics.
    fn with_waiting(&mut self, step: impl FnOnce(&mut Worker<H>, &mut Vec<Failover<H>>)) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut all = std::mem::take(&mut cluster.failovers.waiting);
        let counters = self.counters.clone();
        catch_panic(&counters, || step(self, &mut all));
        self.put_waiting_back(all);
    }

    /// Resumes buckets whose state all required backups have, and drops buckets that this node no longer owns.
    pub(super) fn poll_failovers(&mut self) {
        self.with_waiting(|worker, all| {
            for waiting in all {
                if waiting.probes.is_some() {
                    // No socket is built for a bucket that this node has lost meanwhile.
                    let gone = waiting.take_unowned(|bucket| {
                        worker.cluster.as_ref().is_some_and(|cluster| cluster.owns(bucket))
                    });
                    worker.drop_recovering(gone);
                    if !worker.probe(waiting) {
                        continue;
                    }
                    worker.protect_again(waiting);
                }
                for stage in [Activity::Active, Activity::Idle] {
                    let (ready, gone) = worker.split_ready(stage, &mut waiting.left);
                    match stage {
                        Activity::Active => {
                            let activated = worker.activate_all(ready, waiting.silent, &mut waiting.resumed);
                            waiting.activated.extend(activated);
                        }
                        Activity::Idle => waiting.idle.extend(ready),
                    }
                    worker.drop_recovering(gone);
                }
            }
        });
        self.resume_activated();
    }

    /// Continues failovers that probe peers; once a turn.
    pub(crate) fn poll_probes(&mut self) {
        if self.cluster.as_ref().is_some_and(|cluster| cluster.failovers.is_probing()) {
            self.poll_failovers();
        }
    }

    /// Restores the state machines of connections with active sockets, a few at a time.
    fn resume_activated(&mut self) {
        let is_active = |cluster: &Cluster<H>| {
            cluster.failovers.waiting.iter().any(|waiting| !waiting.activated.is_empty())
        };
        while self.cluster.as_deref().is_some_and(is_active) {
            self.with_waiting(|worker, all| {
                let Some(waiting) = all.iter_mut().find(|waiting| !waiting.activated.is_empty()) else {
                    return;
                };
                let some = waiting.activated.len().min(RESUMED_PER_POLL);
                for connection in waiting.activated.drain(..some) {
                    let (bucket, id) = (connection.bucket, connection.id);
                    let continues = worker.resume(connection);
                    waiting.resumed.count(continues);
                    worker.note_stall(Activity::Active, bucket, waiting.started, continues);
                    if !continues && let Some(cluster) = &mut worker.cluster {
                        cluster.end_replicas(bucket, id);
                    }
                }
            });
            self.poll_idle();
        }
    }

    /// Resumes idle connections whose clients have sent something.
    fn poll_idle(&mut self) {
        // Early segments are handled also when no idle connection is left.
        if !self.cluster.as_ref().is_some_and(|cluster| cluster.failovers.has_idle() || cluster.has_news()) {
            return;
        }
        self.lane_event();
        let until = Micros(self.host.monotonic_us()) + IDLE_SPAN_MAX;
        self.with_waiting(|worker, all| worker.resume_early_senders(all, until));
    }

    /// Resumes some idle connections, once a turn. `busy`: the turn had other work.
    pub(crate) fn resume_idle(&mut self, busy: bool) {
        self.poll_idle(); // clients that have sent something go first
        let now = Micros(self.host.monotonic_us());
        let Some(cluster) = &mut self.cluster else { return };
        if !cluster.failovers.has_idle() {
            return;
        }
        self.with_waiting(|worker, all| {
            for waiting in all {
                let share = Micros(now.since(waiting.started).0 / 1000);
                let span = if busy { IDLE_SPAN_MIN } else { IDLE_SPAN_IDLE };
                let until = now + share.clamp(span, IDLE_SPAN_MAX);
                while let Some((bucket, connections)) = waiting.idle.front_mut()
                    && Micros(worker.host.monotonic_us()) < until
                {
                    let bucket = *bucket;
                    let ours = worker.cluster.as_ref().is_some_and(|cluster| cluster.owns(bucket));
                    match connections.pop().filter(|_| ours) {
                        Some(connection) => {
                            let continues = worker.resume_idle_connection(connection, waiting.since_ns);
                            waiting.resumed.count(continues);
                            worker.note_stall(Activity::Idle, bucket, waiting.started, continues);
                        }
                        None => {
                            waiting.idle.pop_front();
                            worker.end_idle(bucket, ours);
                        }
                    }
                }
            }
        });
    }

    /// Cancels the recovery of a bucket that this node no longer owns.
    pub(super) fn cancel_recovery(&mut self, bucket: Bucket) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut gone = Vec::new();
        for waiting in &mut cluster.failovers.waiting {
            for left in &mut waiting.left {
                gone.extend(left.remove(&bucket).unwrap_or_default());
            }
            waiting.idle.retain(|(of, _)| *of != bucket);
        }
        self.drop_recovering(gone);
    }

    /// Ends the recovery of a bucket without idle connections left.
    fn end_idle(&mut self, bucket: Bucket, ours: bool) {
        let Some(cluster) = &mut self.cluster else { return };
        if ours {
            cluster.set_pending(bucket, false);
        }
        self.send_listed(bucket);
    }

    /// Sends the full state of a bucket, and its end, to the backups.
    pub(super) fn send_full_state_to_backups(&mut self, bucket: Bucket) {
        let Some(cluster) = &self.cluster else { return };
        let Role::Owner { required, syncing, .. } = cluster.role(bucket) else { return };
        for node in syncing.iter() {
            self.send_full_state(bucket, node);
        }
        self.send_complete_to(bucket, required);
    }

    /// Sends the end of the recovered state to all current backups.
    fn send_listed(&mut self, bucket: Bucket) {
        let Some(cluster) = &self.cluster else { return };
        let Role::Owner { required, syncing, .. } = cluster.role(bucket) else { return };
        self.send_complete_to(bucket, required.union(syncing));
    }

    /// Sends the end of the full state also to complete backups: they may have frames that the former owner sent to
    /// them alone, or still sends before it detects its loss of the bucket.
    fn send_complete_to(&mut self, bucket: Bucket, to: MemberSet) {
        let Some(cluster) = &mut self.cluster else { return };
        for node in to.iter() {
            cluster.send_complete(bucket, node);
        }
    }

    /// Resumes idle connections whose clients have already sent something.
    fn resume_early_senders(&mut self, all: &mut [Failover<H>], until: Micros) {
        let mut too_early = Vec::new();
        while let Some(cluster) = &mut self.cluster
            && Micros(self.host.monotonic_us()) < until
            && let Some(flow) = cluster.failovers.early.next()
        {
            let bucket = cluster.bucket(flow.local, flow.remote);
            let ours = cluster.owns(bucket);
            let found = all.iter_mut().find_map(|waiting| {
                let (since_ns, started) = (waiting.since_ns, waiting.started);
                let (connections, ready) = waiting.idle_of(bucket)?;
                let place =
                    connections.iter().position(|connection| connection.client_flow() == Some(flow))?;
                Some((ready && ours).then(|| connections.swap_remove(place)))
                    .map(|connection| (connection, since_ns, started, &mut waiting.resumed))
            });
            match found {
                Some((Some(connection), since_ns, started, resumed)) => {
                    let continues = self.resume_idle_connection(connection, since_ns);
                    resumed.count(continues);
                    self.note_stall(Activity::Idle, bucket, started, continues);
                }
                Some((None, ..)) if ours => too_early.push(flow),
                _ => drop(cluster.failovers.early.take(&flow)),
            }
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.failovers.early.put_back(too_early);
        }
    }

    /// Records how long a connection of a failed node stood still, from this node's ownership to its resumption.
    fn note_stall(&self, stage: Activity, bucket: Bucket, started: Micros, continues: bool) {
        let role = self.cluster.as_ref().map(|cluster| cluster.role(bucket));
        if continues && matches!(role, Some(Role::Owner { begin: OwnershipStart::Failover, .. })) {
            self.counters.stalls[stage as usize].note(Micros(self.host.monotonic_us()).since(started));
        }
    }

    /// Reports finished failovers in the order of their start, and keeps the rest.
    fn put_waiting_back(&mut self, mut all: Vec<Failover<H>>) {
        let Some(cluster) = &mut self.cluster else { return };
        let is_done = |waiting: &Failover<H>| {
            let none_left = waiting.left.iter().all(BTreeMap::is_empty);
            none_left && waiting.activated.is_empty() && waiting.idle.is_empty()
        };
        let done = all.iter().take_while(|waiting| is_done(waiting)).count();
        for mut waiting in all.drain(..done) {
            waiting.resumed.took_us = Micros(self.host.monotonic_us()).since(waiting.started).0;
            self.counters.resumed.add(waiting.resumed.connections as u64);
            self.counters.resume_lost.add(waiting.resumed.lost as u64);
            cluster.report(Report::Resumed(waiting.resumed));
        }
        all.append(&mut cluster.failovers.waiting);
        cluster.failovers.waiting = all;
        if cluster.failovers.waiting.is_empty() {
            cluster.failovers.early = EarlySegments::default();
        }
    }

    /// Removes connections that can resume, and those of buckets that this node no longer owns.
    fn split_ready(
        &self,
        stage: Activity,
        left: &mut [BTreeMap<Bucket, Vec<RecoveringConnection<H>>>; 2],
    ) -> Split<H> {
        let (mut ready, mut gone) = (Vec::new(), Vec::new());
        let Some(cluster) = &self.cluster else { return (ready, gone) };
        let [active, idle] = left;
        // A bucket is finished after its idle connections: the active ones must have been sent before.
        let (of, before) = match stage {
            Activity::Active => (active, None),
            Activity::Idle => (idle, Some(&*active)),
        };
        for (bucket, connections) in std::mem::take(of) {
            let is_first = before.is_none_or(|before| !before.contains_key(&bucket));
            match cluster.role(bucket) {
                Role::Owner { .. }
                    if is_first
                        && (cluster.unreplicated(stage, bucket).is_empty()
                            || self.host.breaks(Law::ProtectsFirst)) =>
                {
                    ready.push((bucket, connections))
                }
                Role::Owner { .. } => {
                    of.insert(bucket, connections);
                }
                _ => gone.extend(connections),
            }
        }
        (ready, gone)
    }
}

impl<H: Host> Cluster<H> {
    /// Sets whether the gate diverts segments of the bucket's connections without a socket to this worker.
    pub(super) fn set_pending(&self, bucket: Bucket, pending: bool) {
        self.gate.set_pending(bucket, pending);
    }

    /// Buffers the early segments of this flow; those of other flows wait for their turn.
    pub(super) fn read_early_segments_of(&mut self, flow: &Flow) {
        let _ = self.gate.events(&mut self.events); // lost segments are retransmitted
        for diverted in self.events.early.extract_if(.., |diverted| diverted.flow == *flow) {
            self.failovers.early.note(diverted);
        }
    }

    /// Whether the flow belongs to an idle connection without a socket.
    pub(super) fn is_idle(&mut self, flow: &Flow) -> bool {
        let bucket = self.bucket(flow.local, flow.remote);
        let connections = |waiting: &mut Failover<H>| {
            let (connections, _) = waiting.idle_of(bucket)?;
            connections.iter().find(|connection| connection.client_flow() == Some(*flow)).map(drop)
        };
        self.failovers.waiting.iter_mut().any(|waiting| connections(waiting).is_some())
    }

    /// Whether the gate has reported events that are not handled yet.
    pub(super) fn has_news(&self) -> bool {
        !self.events.woken.is_empty() || !self.events.early.is_empty()
    }

    /// Sends the resume points of connections to the backups that are already complete.
    fn replicate_recovered(
        &mut self,
        (counters, pulse): (&Counters, &Watchdog),
        of: (Activity, Bucket),
        connections: &[RecoveringConnection<H>],
        round: u64,
    ) {
        let (stage, bucket) = of;
        // Acknowledgements of an earlier failover are not awaited: they may never arrive.
        self.failovers.unreported.remove(&of);
        let Role::Owner { required, .. } = self.role(bucket) else { return };
        for node in required.iter().filter(|_| !connections.is_empty()) {
            // Without a channel the node receives nothing, and the bucket stays on hold until the cluster has dropped
            // it.
            for (number, connection) in (1..).zip(connections) {
                pulse.beat();
                self.reached(counters, "tell", connection.client_flow());
                let last = number == connections.len();
                let state = Some(Box::new(connection.held.state.clone()));
                let (connection, legs) = (connection.id, connection.held.legs.clone());
                let begin = Frame::Begin { connection, bucket, state, legs };
                let notice = last.then_some(Notice::Taken { bucket, stage, round });
                self.send_to(node, bucket, &begin, notice);
            }
            let (_, nodes) = self.failovers.unreported.entry(of).or_insert((round, MemberSet::EMPTY));
            *nodes = nodes.with(node);
        }
    }

    /// Ends a recovered connection that does not resume, at all backups: else a replica without an owner would block
    /// the next connection with the same addresses. Backups without the connection receive its beginning first.
    pub(super) fn end_replicas(&mut self, bucket: Bucket, connection: ConnectionId) {
        let begin = Frame::Begin { connection, bucket, state: None, legs: BTreeMap::new() };
        self.replicate(bucket, &begin, None);
        self.replicate(bucket, &Frame::End { connection }, None);
    }

    /// Required nodes that lack the state of a bucket being recovered.
    fn unreplicated(&self, stage: Activity, bucket: Bucket) -> MemberSet {
        let Role::Owner { required, .. } = self.role(bucket) else { return MemberSet::EMPTY };
        self.failovers
            .unreported
            .get(&(stage, bucket))
            .map_or(MemberSet::EMPTY, |(_, nodes)| nodes.intersection(required))
    }

    /// A node has acknowledged the state of a bucket, as of this failover.
    pub(super) fn record_replicated(&mut self, stage: Activity, bucket: Bucket, node: NodeId, round: u64) {
        if let Some((of, nodes)) = self.failovers.unreported.get_mut(&(stage, bucket))
            && *of == round
        {
            *nodes = nodes.without(node);
            if nodes.is_empty() {
                self.failovers.unreported.remove(&(stage, bucket));
            }
        }
    }
}
