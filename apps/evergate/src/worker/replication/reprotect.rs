//! Before a connection that was taken over says anything, every other backup must know where it goes on.
//!
//! Two backups need not have got the same last entries of a dead owner. What this node goes on from, and will acknowledge
//! at once, may be more than another one has: should this node die too, that one must not go on from less. So the state
//! is said first, and the bucket stays on hold until all who count have it. Without such backups nothing waits.

use super::Cluster;
use super::activate::ActivatedConnection;
use super::early_segments::EarlySegments;
use super::recovering::RecoveringConnection;
use super::replication_channel::Notice;
use crate::agent::{Report, Resumed};
#[cfg(test)]
use crate::worker::faults;
use crate::worker::panic_guard::catch_panic;
use crate::worker::{Watchdog, Worker};
use evergate_base::Micros;
use evergate_bpf::Flow;
use evergate_membership::{Bucket, MemberSet, NodeId, OwnershipStart, Role};
use evergate_replication::{ConnectionId, Frame};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Connections go on in this order: those with something on its way, and those that rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    Active,
    Idle,
}

/// How long a turn may be spent on connections that rest: with nothing else to do, or a thousandth of the time since the
/// take-over within these bounds. A request takes several turns; who speaks to a connection that rests is heard at once.
const IDLE_SPAN_IDLE: Duration = Duration::from_millis(1);
const IDLE_SPAN_MIN: Duration = Duration::from_micros(500);
const IDLE_SPAN_MAX: Duration = Duration::from_millis(4);
/// Connections that go on before it is looked at who has spoken meanwhile.
const AT_A_TIME: usize = 16;

/// A take-over that is not done.
pub(super) struct Failover {
    started: Instant,
    /// The same by the gate's clock.
    since_ns: u64,
    /// How long nothing had been heard of who died.
    silent: Micros,
    resumed: Resumed,
    /// Connections of which others must hear first, by stage and bucket.
    left: [BTreeMap<Bucket, Vec<RecoveringConnection>>; 2],
    /// Connections whose peers have heard of them, and whose state machines are yet to be restored.
    activated: VecDeque<ActivatedConnection>,
    /// Connections that rest, whose turn comes.
    idle_connections: VecDeque<(Bucket, Vec<RecoveringConnection>)>,
}

impl Failover {
    /// One of these buckets; busy connections have their sockets. When it began: `since_ns` by the gate's clock, which a machine
    /// that is suspended meanwhile lets go on.
    pub(super) fn new(
        (started, since_ns): (Instant, u64),
        silent: Micros,
        resumed: Resumed,
        buckets: &[Bucket],
        busy: Vec<RecoveringConnection>,
        mut idle_connections: BTreeMap<Bucket, Vec<RecoveringConnection>>,
    ) -> Failover {
        let mut by_bucket: BTreeMap<Bucket, Vec<RecoveringConnection>> =
            buckets.iter().map(|bucket| (*bucket, Vec::new())).collect();
        for bucket in buckets {
            idle_connections.entry(*bucket).or_default();
        }
        for take in busy {
            by_bucket.entry(take.bucket).or_default().push(take);
        }
        let (activated, left) = (VecDeque::new(), [by_bucket, idle_connections]);
        Failover { started, since_ns, silent, resumed, left, activated, idle_connections: VecDeque::new() }
    }

    /// Connections of the bucket that rest, and whether they may go on.
    fn idle_of(&mut self, bucket: Bucket) -> Option<(&mut Vec<RecoveringConnection>, bool)> {
        let ready =
            self.idle_connections.iter_mut().find(|(of, _)| *of == bucket).map(|(_, takes)| (takes, true));
        ready.or_else(|| self.left[Activity::Idle as usize].get_mut(&bucket).map(|takes| (takes, false)))
    }

    fn has(&self, bucket: Bucket) -> bool {
        let left = self.left.iter().any(|left| left.contains_key(&bucket));
        let activated = self.activated.iter().any(|take| take.bucket == bucket);
        left || activated || self.idle_connections.iter().any(|(of, _)| *of == bucket)
    }
}

impl Worker {
    /// Says the state of these connections to who must hold it, and goes on with those that nobody need hear of.
    pub(super) fn start_reprotection(&mut self, waiting: Failover) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.rounds += 1;
        let (round, mut waiting, mut unreported) = (cluster.rounds, waiting, Vec::new());
        for (stage, left) in [Activity::Active, Activity::Idle].into_iter().zip(&mut waiting.left) {
            for (bucket, takes) in left {
                let reported = || cluster.replicate_recovered(&self.pulse, (stage, *bucket), takes, round);
                if catch_panic(&self.counters, reported).is_none() {
                    // What backups may not have does not go on.
                    waiting.resumed.lost += takes.len();
                    unreported.append(takes);
                }
            }
        }
        for take in &unreported {
            cluster.give_up_copies(take.bucket, take.id);
        }
        cluster.waiting.push(waiting);
        self.drop_takes(unreported);
        self.poll_failovers();
    }

    /// Does something for the take-overs that are not done. Should it panic, they are still there.
    fn with_waiting(&mut self, step: impl FnOnce(&mut Worker, &mut Vec<Failover>)) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut all = std::mem::take(&mut cluster.waiting);
        let counters = self.counters.clone();
        catch_panic(&counters, || step(self, &mut all));
        self.put_waiting_back(all);
    }

    /// Goes on with buckets of which all who count have the state, and drops those that are not ours any more.
    pub(super) fn poll_failovers(&mut self) {
        self.with_waiting(|worker, all| {
            for waiting in all {
                for stage in [Activity::Active, Activity::Idle] {
                    let (ready, gone) = worker.split_ready(stage, &mut waiting.left);
                    match stage {
                        Activity::Active => {
                            let activated = worker.activate_all(ready, waiting.silent, &mut waiting.resumed);
                            waiting.activated.extend(activated);
                        }
                        Activity::Idle => waiting.idle_connections.extend(ready),
                    }
                    worker.drop_takes(gone);
                }
            }
        });
        self.resume_activated();
    }

    /// Restores the state machines of connections whose sockets live, a few at a time.
    fn resume_activated(&mut self) {
        let is_active =
            |cluster: &Cluster| cluster.waiting.iter().any(|waiting| !waiting.activated.is_empty());
        while self.cluster.as_deref().is_some_and(is_active) {
            self.with_waiting(|worker, all| {
                let Some(waiting) = all.iter_mut().find(|waiting| !waiting.activated.is_empty()) else {
                    return;
                };
                let some = waiting.activated.len().min(AT_A_TIME);
                for take in waiting.activated.drain(..some) {
                    let (bucket, connection) = (take.bucket, take.id);
                    let continues = worker.resume(take);
                    waiting.resumed.count(continues);
                    worker.note_stall(Activity::Active, bucket, waiting.started, continues);
                    if !continues && let Some(cluster) = &mut worker.cluster {
                        cluster.give_up_copies(bucket, connection);
                    }
                }
            });
            self.poll_idle();
        }
    }

    /// Goes on with connections that rest, whose clients have spoken by now.
    fn poll_idle(&mut self) {
        // What came with the last one's words is heard also when none rests any more.
        if !self.cluster.as_ref().is_some_and(|cluster| cluster.has_idle() || cluster.has_news()) {
            return;
        }
        self.lane_event();
        self.with_waiting(|worker, all| worker.resume_early_talkers(all, Instant::now() + IDLE_SPAN_MAX));
    }

    /// Goes on with some of the connections that rest: once a turn. `busy`: the turn had other work.
    pub(in crate::worker) fn resume_idle(&mut self, busy: bool) {
        self.poll_idle(); // who has spoken by now goes first
        let now = Instant::now();
        let Some(cluster) = &mut self.cluster else { return };
        if !cluster.has_idle() {
            return;
        }
        self.with_waiting(|worker, all| {
            for waiting in all {
                let share = now.duration_since(waiting.started) / 1000;
                let span = if busy { IDLE_SPAN_MIN } else { IDLE_SPAN_IDLE };
                let until = now + share.clamp(span, IDLE_SPAN_MAX);
                while let Some((bucket, takes)) = waiting.idle_connections.front_mut()
                    && Instant::now() < until
                {
                    let bucket = *bucket;
                    let ours = worker.cluster.as_ref().is_some_and(|cluster| cluster.owns(bucket));
                    match takes.pop().filter(|_| ours) {
                        Some(take) => {
                            let continues = worker.resume_idle_connection(take, waiting.since_ns);
                            waiting.resumed.count(continues);
                            worker.note_stall(Activity::Idle, bucket, waiting.started, continues);
                        }
                        None => {
                            waiting.idle_connections.pop_front();
                            worker.end_idle(bucket, ours);
                        }
                    }
                }
            }
        });
    }

    /// The bucket is not ours any more: what was to be continued of it is not.
    pub(super) fn stop_taking(&mut self, bucket: Bucket) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut gone = Vec::new();
        for waiting in &mut cluster.waiting {
            for left in &mut waiting.left {
                gone.extend(left.remove(&bucket).unwrap_or_default());
            }
            waiting.idle_connections.retain(|(of, _)| *of != bucket);
        }
        self.drop_takes(gone);
    }

    /// No connection of the bucket rests any more.
    fn end_idle(&mut self, bucket: Bucket, ours: bool) {
        let Some(cluster) = &mut self.cluster else { return };
        if ours {
            cluster.set_pending(bucket, false);
        }
        self.send_listed(bucket);
    }

    /// Everything there is of a bucket here, and where it ends, for those who back it up.
    pub(super) fn send_full_state_to_backups(&mut self, bucket: Bucket) {
        let Some(cluster) = &self.cluster else { return };
        let Role::Owner { required, syncing, .. } = cluster.role(bucket) else { return };
        for node in syncing.iter() {
            self.send_full_state(bucket, node);
        }
        self.end_telling(bucket, required);
    }

    /// Everything that was taken over has been said to the backups that are to hold it now.
    fn send_listed(&mut self, bucket: Bucket) {
        let Some(cluster) = &self.cluster else { return };
        let Role::Owner { required, syncing, .. } = cluster.role(bucket) else { return };
        self.end_telling(bucket, required.union(syncing));
    }

    /// Also those that lack nothing hear where it ends: they may hold what the owner before said to them alone, or still says
    /// because it does not know that it is not the owner any more.
    fn end_telling(&mut self, bucket: Bucket, to: MemberSet) {
        let Some(cluster) = &mut self.cluster else { return };
        for node in to.iter() {
            cluster.send_complete(bucket, node);
        }
    }

    /// Goes on with connections whose clients have spoken already.
    fn resume_early_talkers(&mut self, all: &mut [Failover], until: Instant) {
        let mut too_early = Vec::new();
        while let Some(cluster) = &mut self.cluster
            && Instant::now() < until
            && let Some(flow) = cluster.early.next()
        {
            let bucket = cluster.bucket(flow.local, flow.remote);
            let ours = cluster.owns(bucket);
            let found = all.iter_mut().find_map(|waiting| {
                let (since_ns, started) = (waiting.since_ns, waiting.started);
                let (takes, ready) = waiting.idle_of(bucket)?;
                let place = takes.iter().position(|take| take.client_flow() == Some(flow))?;
                Some((ready && ours).then(|| takes.swap_remove(place)))
                    .map(|take| (take, since_ns, started, &mut waiting.resumed))
            });
            match found {
                Some((Some(take), since_ns, started, resumed)) => {
                    let continues = self.resume_idle_connection(take, since_ns);
                    resumed.count(continues);
                    self.note_stall(Activity::Idle, bucket, started, continues);
                }
                Some((None, ..)) if ours => too_early.push(flow),
                _ => drop(cluster.early.take(&flow)),
            }
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.early.put_back(too_early);
        }
    }

    /// A connection of a node that died goes on: so long it had nobody, once it was known to be ours.
    fn note_stall(&self, stage: Activity, bucket: Bucket, started: Instant, continues: bool) {
        let role = self.cluster.as_ref().map(|cluster| cluster.role(bucket));
        if continues && matches!(role, Some(Role::Owner { begin: OwnershipStart::Failover, .. })) {
            self.counters.stalls[stage as usize].note(Micros(started.elapsed().as_micros() as u64));
        }
    }

    /// What is done is reported, in the order in which it began; the rest waits on.
    fn put_waiting_back(&mut self, mut all: Vec<Failover>) {
        let Some(cluster) = &mut self.cluster else { return };
        let is_done = |waiting: &Failover| {
            let reported = waiting.left.iter().all(BTreeMap::is_empty);
            reported && waiting.activated.is_empty() && waiting.idle_connections.is_empty()
        };
        let done = all.iter().take_while(|waiting| is_done(waiting)).count();
        for mut waiting in all.drain(..done) {
            waiting.resumed.took_us = waiting.started.elapsed().as_micros() as u64;
            self.counters.resumed.add(waiting.resumed.connections as u64);
            self.counters.resume_lost.add(waiting.resumed.lost as u64);
            cluster.report(Report::Resumed(waiting.resumed));
        }
        all.append(&mut cluster.waiting);
        cluster.waiting = all;
        if cluster.waiting.is_empty() {
            cluster.early = EarlySegments::default();
        }
    }

    /// Takes out what can go on, and connections of buckets that are not ours any more.
    fn split_ready(
        &self,
        stage: Activity,
        left: &mut [BTreeMap<Bucket, Vec<RecoveringConnection>>; 2],
    ) -> (Vec<(Bucket, Vec<RecoveringConnection>)>, Vec<RecoveringConnection>) {
        let (mut ready, mut gone) = (Vec::new(), Vec::new());
        let Some(cluster) = &self.cluster else { return (ready, gone) };
        let [busy, idle_connections] = left;
        // That a bucket is done is said after its resting connections: all others of it must have been said before.
        let (of, before) = match stage {
            Activity::Active => (busy, None),
            Activity::Idle => (idle_connections, Some(&*busy)),
        };
        for (bucket, takes) in std::mem::take(of) {
            let is_first = before.is_none_or(|before| !before.contains_key(&bucket));
            match cluster.role(bucket) {
                Role::Owner { .. } if is_first && cluster.unreplicated(stage, bucket).is_empty() => {
                    ready.push((bucket, takes))
                }
                Role::Owner { .. } => {
                    of.insert(bucket, takes);
                }
                _ => gone.extend(takes),
            }
        }
        (ready, gone)
    }
}

impl Cluster {
    /// The gate hands over, or no longer, what clients say to connections of the bucket that have no socket.
    pub(super) fn set_pending(&self, bucket: Bucket, pending: bool) {
        self.gate.set_pending(bucket, pending.then(|| self.lane.id()));
    }

    /// What has come for this flow by now is among the knocks; what came for others waits its turn.
    pub(super) fn read_early_segments_of(&mut self, flow: &Flow) {
        let _ = self.lane.events(&mut self.events); // lost ones are said again
        for diverted in self.events.early.extract_if(.., |diverted| diverted.flow == *flow) {
            self.early.note(diverted);
        }
    }

    /// Whether it is the flow of a connection that rests and has no socket yet.
    pub(super) fn is_idle(&mut self, flow: &Flow) -> bool {
        let bucket = self.bucket(flow.local, flow.remote);
        let takes = |waiting: &mut Failover| {
            let (takes, _) = waiting.idle_of(bucket)?;
            takes.iter().find(|take| take.client_flow() == Some(*flow)).map(drop)
        };
        self.waiting.iter_mut().any(|waiting| takes(waiting).is_some())
    }

    /// Whether connections of the bucket that were taken over, or are about to be, do not go on yet: until they do, nobody's copy
    /// is whole.
    pub(super) fn is_pending(&self, bucket: Bucket) -> bool {
        self.arriving.contains(&bucket) || self.waiting.iter().any(|waiting| waiting.has(bucket))
    }

    /// Whether the gate said something that nobody has acted on.
    pub(super) fn has_news(&self) -> bool {
        !self.events.woken.is_empty() || !self.events.early.is_empty()
    }

    /// Whether connections that rest wait for their turn.
    pub(super) fn has_idle(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.idle_connections.is_empty())
    }

    /// Says where connections go on to those whose copies count already.
    fn replicate_recovered(
        &mut self,
        pulse: &Watchdog,
        of: (Activity, Bucket),
        takes: &[RecoveringConnection],
        round: u64,
    ) {
        let (stage, bucket) = of;
        // What was left of an earlier take-over is not waited for: whoever was told of that may never answer.
        self.unreported.remove(&of);
        let Role::Owner { required, .. } = self.role(bucket) else { return };
        for node in required.iter().filter(|_| !takes.is_empty()) {
            // Without a channel it hears nothing, and the bucket stays on hold until the cluster has dropped it.
            for (number, take) in (1..).zip(takes) {
                pulse.beat();
                #[cfg(test)]
                faults::strike_take("tell", take.client_flow());
                let (connection, last) = (take.id, number == takes.len());
                let state = Some(Box::new(take.held.state.clone()));
                let legs = take.held.legs.clone();
                let begin = Frame::Begin { connection, bucket, state, legs };
                let notice = last.then_some(Notice::Taken { bucket, stage, round });
                self.send_to(node, bucket, &begin, notice);
            }
            let (_, nodes) = self.unreported.entry(of).or_insert((round, MemberSet::EMPTY));
            *nodes = nodes.with(node);
        }
    }

    /// A connection that was taken over does not go on: copies of it would be a connection that nobody has, in the way of the
    /// next one between the same ends. Who has not been told of it hears of its beginning first.
    pub(super) fn give_up_copies(&mut self, bucket: Bucket, connection: ConnectionId) {
        let begin = Frame::Begin { connection, bucket, state: None, legs: BTreeMap::new() };
        self.replicate(bucket, &begin, None);
        self.replicate(bucket, &Frame::End { connection }, None);
    }

    /// Nodes that must still get the state of a bucket that is being taken over.
    fn unreplicated(&self, stage: Activity, bucket: Bucket) -> MemberSet {
        let Role::Owner { required, .. } = self.role(bucket) else { return MemberSet::EMPTY };
        self.unreported
            .get(&(stage, bucket))
            .map_or(MemberSet::EMPTY, |(_, nodes)| nodes.intersection(required))
    }

    /// A node has the state of a bucket, as of this take-over.
    pub(super) fn record_replicated(&mut self, stage: Activity, bucket: Bucket, node: NodeId, round: u64) {
        if let Some((of, nodes)) = self.unreported.get_mut(&(stage, bucket))
            && *of == round
        {
            *nodes = nodes.without(node);
            if nodes.is_empty() {
                self.unreported.remove(&(stage, bucket));
            }
        }
    }
}
