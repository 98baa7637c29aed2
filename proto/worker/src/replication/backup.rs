//! Backup side of replication: receives the frames of other nodes' connections and acknowledges how many were
//! processed.

use super::Cluster;
use super::replicas::DROP_AFTER;
use crate::cluster_settings::difference;
use crate::host::{Channel, Channels, Gate, Host, Poll};
use crate::instruction::Instruction;
use crate::layout::Layout;
use crate::log_event::LogEvent;
use crate::report::Report;
use crate::slab::Source;
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_membership::{Bucket, Incarnation, NodeId, Role, Term};
use evergate_replication::{
    Announced, Answer, FRAME_VERSION, Frame, LegFacts, ReplicaError, SessionNews, WireError,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;

/// Interval of the warning about refused channels.
const REFUSAL_WARNINGS_EVERY: Micros = Micros::from_ms(10_000);

/// A channel from the owner of some buckets.
pub(crate) struct Incoming<H: Host> {
    channel: <H::Channels as Channels>::Channel,
    announced: Announced,
    /// The node at the other end, once its first frames have arrived.
    pub(super) from: Option<NodeId>,
    /// The node whose address it comes from.
    pub(crate) host: Option<NodeId>,
    /// When the channel was accepted.
    pub(crate) since: Micros,
    /// The worker of that node.
    worker: u16,
    /// When the channel was made, by that node's clock, in milliseconds; and the offset of this node's clock.
    made_ms: u64,
    ahead: Ahead,
    frames: u64,
    answers: Answers,
}

/// How often an owner sends its clock.
pub(super) const CLOCK_EVERY: Micros = Micros::from_ms(60_000);
/// Largest drift of two clocks in [`CLOCK_EVERY`], in milliseconds (1 part in 2000, as in `evergate_base::net::Stamp`).
const DRIFT_MAX_MS: i64 = 30;

/// Offset of this node's clock from another node's, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ahead(i64);

impl Ahead {
    fn clock_offset(clock_ms: u64, now_ms: u64) -> Ahead {
        Ahead(now_ms.wrapping_sub(clock_ms) as i64)
    }

    /// Updates the offset from a received clock value. A delayed frame makes this clock seem ahead: the offset grows by
    /// the largest possible drift at most.
    fn record_clock(&mut self, clock_ms: u64, now_ms: u64) {
        self.0 = Ahead::clock_offset(clock_ms, now_ms).0.min(self.0.saturating_add(DRIFT_MAX_MS));
    }
}

/// Why a channel from an owner ends.
#[derive(Debug, thiserror::Error)]
enum IncomingError {
    #[error("{0}")]
    Channel(#[from] io::Error),
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Replica(#[from] ReplicaError),
    /// The owner has replaced this channel, which was read late.
    #[error("a newer channel of the same worker was read first")]
    Replaced,
    #[error("frames out of order")]
    OutOfOrder,
    /// The node at the other end cannot be the owner of replicas here.
    #[error("{0}")]
    Unfit(String),
}

/// Newest channel of each remote worker, also after its end. A worker has one channel at a time. Frames of an earlier
/// channel that is read later are older.
#[derive(Default)]
pub(super) struct Newest(BTreeMap<(NodeId, u16), Met>);

/// The incarnation that made the channel, and the time by that incarnation's clock. Times of different incarnations are
/// not comparable, for they may be of different boots.
struct Met {
    incarnation: Incarnation,
    made_ms: u64,
    /// The incarnation before.
    before: Option<Incarnation>,
}

impl Newest {
    /// Notes a channel whose owner is known.
    fn meet<H: Host>(&mut self, channel: &Incoming<H>) -> Result<(), IncomingError> {
        let Some((node, incarnation)) = channel.announced.sender() else { return Ok(()) };
        let place = (node, channel.worker);
        let last = self.0.get(&place);
        let before = match last {
            Some(last) if last.before == Some(incarnation) => return Err(IncomingError::Replaced),
            Some(last) if last.incarnation != incarnation => Some(last.incarnation),
            Some(last) if last.made_ms > channel.made_ms => return Err(IncomingError::Replaced),
            last => last.and_then(|last| last.before),
        };
        self.0.insert(place, Met { incarnation, made_ms: channel.made_ms, before });
        Ok(())
    }
}

/// Acknowledgements yet to be sent to an owner. Each one carries the total number of processed frames, so one is enough
/// for an owner that reads none for a while. Bound: two of them.
#[derive(Default)]
struct Answers {
    /// Frames acknowledged by the newest one.
    answered: u64,
    /// Unsent bytes: the rest of a partly sent one, of length `begun`, and at most one more.
    unsent: Vec<u8>,
    begun: usize,
}

impl Answers {
    fn push(&mut self, frames: u64) -> Result<(), WireError> {
        if frames > self.answered {
            self.answered = frames;
            self.unsent.truncate(self.begun);
            Answer { frames }.encode(&mut self.unsent)?;
        }
        Ok(())
    }

    /// `sent` bytes were sent.
    fn advance(&mut self, sent: usize) {
        let left = self.unsent.len() - sent;
        self.begun = if sent > self.begun { left } else { self.begun - sent };
        self.unsent.drain(..sent);
    }
}

impl<H: Host> Worker<H> {
    /// Handles input on a channel from an owner, or room for more acknowledgements.
    pub(crate) fn incoming_event(&mut self, index: usize, ends: bool) {
        // Instructions of the agent come before frames that other nodes sent because of them.
        self.handle_commands();
        let Some(cluster) = &mut self.cluster else { return };
        let Some(Some(incoming)) = cluster.channels.incoming.get_mut(index) else { return };
        let (knew, frames) = (incoming.from, incoming.frames);
        let ended = incoming.channel.receive(ends);
        if incoming.channel.has_more() {
            // Reported after all other work of this turn.
            let _ = self.poll.report_again(incoming.descriptor(), Source::Incoming(index as u32).token());
        }
        let (mut complete, mut news) = (Vec::new(), Vec::new());
        let result = incoming.take_in(
            &mut cluster.replicas.store,
            &cluster.layout,
            &mut cluster.channels.newest,
            (&cluster.host, &cluster.gate),
            &mut complete,
            &mut news,
        );
        let result = result.and_then(|()| ended.map_err(IncomingError::from));
        let replaced = matches!(result, Err(IncomingError::Replaced));
        cluster.figures.work.note_frames(incoming.frames - frames);
        let (announcer, worker) = (incoming.announced.sender(), incoming.worker);
        if knew.is_none() && incoming.from.is_some() && !replaced {
            // Frames of an earlier channel of the same worker precede the first frame of this one. An earlier
            // incarnation of that node sends no more, and the end of its channel may never arrive.
            let node = |announced: &Announced| announced.sender().map(|(node, _)| node);
            let from = announcer.map(|(node, _)| node);
            let same = |other: &Incoming<H>| node(&other.announced) == from && other.worker == worker;
            for (_, slot) in
                cluster.channels.incoming.iter_mut().enumerate().filter(|(other, _)| *other != index)
            {
                slot.take_if(|other| same(other));
            }
        }
        for (bucket, term) in complete {
            cluster.note_complete(bucket, term, worker);
        }
        self.take_session_news(news);
        if let Err(error) = result {
            self.end_incoming(index, &error);
        }
    }

    /// Closes a channel; its frames remain valid. The owner notices, and drops this backup or sends its full state
    /// again.
    fn end_incoming(&mut self, index: usize, error: &IncomingError) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(incoming) = cluster.channels.incoming.get_mut(index).and_then(Option::take) else { return };
        // Frames that a node sent before this node took its buckets may be read afterwards.
        let late = matches!(error, IncomingError::Replica(_))
            && cluster.failovers.taken_at.is_some_and(|at| self.now.since(at) <= DROP_AFTER);
        let ended = late || matches!(error, IncomingError::Replaced | IncomingError::Channel(_));
        match incoming.from {
            _ if ended => {}
            Some(node) => self.host.log(LogEvent::ChannelInvalid { node, why: error.to_string() }),
            // The node has the cluster's key, and retries continually.
            None if cluster
                .channels
                .refused_at
                .is_none_or(|at| self.now.since(at) > REFUSAL_WARNINGS_EVERY) =>
            {
                cluster.channels.refused_at = Some(self.now);
                self.host.log(LogEvent::ChannelRefused { why: error.to_string() });
            }
            None => {}
        }
        self.counters.reason(match (incoming.from.is_some(), ended) {
            (true, true) => "replication_channel_ended",
            (true, false) => "replication_channel_invalid",
            (false, _) => "replication_channel_refused",
        });
    }

    pub(crate) fn take_instruction(&mut self, instruction: Instruction) {
        match instruction {
            Instruction::Roles(roles) => {
                for (bucket, role) in roles {
                    self.pulse.beat();
                    self.change_role(bucket, role);
                }
                self.count_distributors();
                self.poll_failovers();
            }
            Instruction::Failover(round) => self.fail_over(&round),
            Instruction::Keep(frozen) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.handoffs.frozen_elsewhere.entry(frozen.bucket).or_default().push(frozen);
                }
            }
            Instruction::Void => self.void(),
        }
    }

    /// Each node that serves clients sees an equal share of them, and estimates loads from its own.
    fn count_distributors(&self) {
        let Some(cluster) = &self.cluster else { return };
        let owns_any = cluster.roles.iter().any(|role| matches!(role, Role::Owner { .. }));
        let nodes = cluster.other_owners().len() + usize::from(owns_any);
        self.shared.distributors.store(nodes as u32, Ordering::Relaxed);
    }

    /// Drops all cluster state after this node lost its membership: its buckets are served elsewhere, or lost.
    fn void(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            for bucket in (0..evergate_membership::BUCKETS)
                .map(Bucket)
                .filter(|bucket| cluster.failovers.is_pending(*bucket))
            {
                cluster.set_pending(bucket, false);
            }
            cluster.replicas.clear();
            cluster.failovers.unreported.clear();
            cluster.failovers.arriving.clear();
            cluster.handoffs.clear();
            cluster.channels.named.clear();
            cluster.roles.fill(Role::NOTHING);
            cluster.channels.outgoing.clear();
            cluster.channels.incoming.clear();
            cluster.drop_endings(None);
        }
        self.count_distributors();
        for key in self.clients.keys() {
            if self.clients.get_mut(key).is_some_and(|client| client.replicated_state.is_some()) {
                self.abandon(key);
            }
        }
        self.leave_arrivals(None);
        self.abandon_pool(None);
        self.poll_failovers(); // this node owns nothing now
        self.counters.open.set(self.clients.len() as u64);
    }
}

impl<H: Host> Incoming<H> {
    pub(super) fn new(
        channel: <H::Channels as Channels>::Channel,
        host: Option<NodeId>,
        since: Micros,
    ) -> Incoming<H> {
        Incoming {
            channel,
            announced: Announced::default(),
            from: None,
            host,
            since,
            worker: 0,
            made_ms: 0,
            ahead: Ahead::default(),
            frames: 0,
            answers: Answers::default(),
        }
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.channel.descriptor()
    }

    fn take_in(
        &mut self,
        holder: &mut evergate_replication::ReplicaStore,
        layout: &Layout,
        newest: &mut Newest,
        (host, gate): (&H, &H::Gate),
        complete: &mut Vec<(Bucket, Term)>,
        news: &mut Vec<SessionNews>,
    ) -> Result<(), IncomingError> {
        let mut input = std::mem::take(self.channel.input());
        let taken = Frame::drain(&mut input, |mut frame, _| {
            self.frames += 1;
            let introduces = matches!(frame, Frame::Hello { .. } | Frame::Settings(_));
            if introduces != self.from.is_none() {
                return Err(IncomingError::OutOfOrder);
            }
            if introduces {
                self.meet(&frame, layout, host)?;
                if self.from.is_some() {
                    newest.meet(self)?;
                }
            }
            let adapt = |facts: &mut LegFacts| {
                facts.shift(self.ahead.0);
                if facts.next_hop != [0; 6]
                    && let Some(interface) = layout.interfaces.get(usize::from(facts.interface))
                {
                    gate.add_neighbour(interface.index, facts.remote.ip(), facts.next_hop);
                } // else the owner does not know it yet, and replicates it later
            };
            match &mut frame {
                Frame::Begin { legs, .. } => legs.values_mut().for_each(adapt),
                Frame::Leg { facts, .. } => adapt(facts),
                Frame::Clock { clock_ms } => self.ahead.record_clock(*clock_ms, host.steady_clock_ms()),
                _ => {}
            }
            if let Frame::Sessions(more) = frame {
                news.extend(more);
                return Ok(());
            }
            let completes = if let Frame::Complete { bucket } = &frame { Some(*bucket) } else { None };
            holder.handle(&mut self.announced, frame)?;
            if let Some(bucket) = completes
                && let Some(term) = self.announced.of(bucket)
            {
                complete.push((bucket, term));
            }
            Ok(())
        });
        *self.channel.input() = input;
        taken
    }

    /// Handles the first two frames: the sender's identity, and whether this node can be its backup.
    fn meet(&mut self, frame: &Frame, layout: &Layout, host: &H) -> Result<(), IncomingError> {
        match (frame, self.announced.sender()) {
            (Frame::Hello { version: FRAME_VERSION, node, worker, workers, clock_ms, .. }, None) => {
                if usize::from(*workers) != layout.workers {
                    return Err(IncomingError::Unfit(format!(
                        "node {} runs {workers} workers, this node {}: all nodes of a cluster need the same number",
                        node.0.saturating_add(1),
                        layout.workers
                    )));
                }
                (self.worker, self.made_ms) = (*worker, *clock_ms);
                self.ahead = Ahead::clock_offset(*clock_ms, host.steady_clock_ms());
            }
            (Frame::Hello { version, node, .. }, None) => {
                return Err(IncomingError::Unfit(format!(
                    "node {} sends replication frames of version {version}, this node {FRAME_VERSION}: run the same \
                     version on all nodes",
                    node.0.saturating_add(1)
                )));
            }
            (Frame::Settings(theirs), Some((node, _))) => {
                if let Some(what) = difference(theirs, &layout.settings) {
                    return Err(IncomingError::Unfit(format!(
                        "`[cluster]` of node {} differs: {what}; to change it, stop all nodes and give them the same \
                         file",
                        node.0.saturating_add(1)
                    )));
                }
                self.from = Some(node);
            }
            _ => return Err(IncomingError::OutOfOrder),
        }
        Ok(())
    }

    /// Sends the number of processed frames.
    pub(super) fn answer(&mut self) -> io::Result<()> {
        self.answers.push(self.frames).map_err(io::Error::other)?;
        if !self.answers.unsent.is_empty() {
            let sent = self.channel.send(&self.answers.unsent)?;
            self.answers.advance(sent);
        }
        Ok(())
    }
}

impl<H: Host> Cluster<H> {
    /// One worker of the owner has sent its full state of a bucket. The replica is complete when all workers have.
    fn note_complete(&mut self, bucket: Bucket, term: Term, worker: u16) {
        if self.replicas.note_complete(bucket, term, worker, self.layout.workers) {
            self.report(Report::Complete { bucket, term });
        }
    }

    /// Answers go out once a turn.
    pub(crate) fn answer(&mut self) {
        for slot in &mut self.channels.incoming {
            if let Some(incoming) = slot
                && incoming.answer().is_err()
            {
                *slot = None;
            }
        }
    }

    /// Applies a change of role to the replicas.
    pub(super) fn change_replicas(&mut self, bucket: Bucket, role: Role, now: Micros) {
        match role {
            Role::Outside { since: first, .. } | Role::Backup { term: first, in_sync: false, .. } => {
                self.replicas.forget(bucket, first, now);
            }
            Role::Owner { term, begin: evergate_membership::OwnershipStart::Empty, .. } => {
                self.replicas.store.recover(bucket, term);
            }
            Role::Backup { .. } | Role::Owner { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_owner_receives_the_newest_answer() {
        let mut length = Vec::new();
        Answer { frames: 1 << 40 }.encode(&mut length).unwrap();
        for sent_at_once in 1..3 * length.len() {
            let (mut answers, mut sent) = (Answers::default(), Vec::new());
            for round in 0..100 {
                for more in 1..=100 {
                    answers.push((1 << 40) + round * 100 + more).unwrap();
                    assert!(answers.unsent.len() < 2 * length.len(), "{} bytes", answers.unsent.len());
                }
                let count = sent_at_once.min(answers.unsent.len());
                sent.extend_from_slice(&answers.unsent[..count]);
                answers.advance(count);
            }
            sent.extend_from_slice(&answers.unsent);
            let (mut at, mut newest) = (0, 0);
            while let Some((answer, length)) = Answer::decode(&sent[at..]).unwrap() {
                assert!(answer.frames > newest);
                (at, newest) = (at + length, answer.frames);
            }
            assert_eq!((at, newest), (sent.len(), (1 << 40) + 100 * 100), "{sent_at_once} bytes at once");
        }
    }

    #[test]
    fn clock_offset_is_exact_despite_late_frames() {
        // The remote clock gains 50 parts in a million, and each hundredth frame takes 1.5 s.
        let ours = |minute: u64| minute * 60_000;
        let theirs = |minute: u64| 7_000_000 + minute * 60_003;
        let mut ahead = Ahead::clock_offset(theirs(0), ours(0));
        for minute in 1..30 * 24 * 60 {
            let late = if minute % 100 == 0 { 1500 } else { 1 };
            ahead.record_clock(theirs(minute), ours(minute) + late);
            let exact = ours(minute) as i64 - theirs(minute) as i64;
            assert!((exact..=exact + 40).contains(&ahead.0), "minute {minute}: {} and not {exact}", ahead.0);
        }
    }
}
