//! The backup's side: frames of other nodes' connections come in and are answered by how many have been taken.

use super::Cluster;
use super::replication_channel::Channel;
use crate::agent::{Instruction, Report, required_settings};
use crate::control::console;
use crate::worker::Worker;
use crate::worker::slab::Source;
use evergate_base::Micros;
use evergate_membership::{Bucket, Incarnation, NodeId, Role, Term};
use evergate_replication::{
    Announced, Answer, FRAME_VERSION, Frame, LegFacts, ReplicaError, SessionNews, WireError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::RawFd;

/// Between two words about channels of nodes that this one cannot work with.
const REFUSALS_EVERY: Micros = Micros::from_ms(10_000);

/// The owner of a bucket that was given up here may speak of it for so long. Starved machines are late with such news.
const DROP_AFTER: Micros = Micros::from_ms(10_000);

/// A channel from the owner of some buckets.
pub(crate) struct Incoming {
    channel: Channel,
    announced: Announced,
    /// Whose it is, once that was said.
    pub(super) from: Option<NodeId>,
    /// The node whose address it comes from.
    pub(super) host: Option<NodeId>,
    /// When it was accepted.
    pub(super) since: Micros,
    /// Which worker of that node.
    worker: u16,
    /// When it was made, by that node's clock, in milliseconds; and how far this node's is ahead.
    made_ms: u64,
    ahead: Ahead,
    frames: u64,
    answers: Answers,
}

/// Owners say once a minute what their clocks show.
pub(super) const CLOCK_EVERY: Micros = Micros::from_ms(60_000);
/// Two clocks run apart by so many milliseconds in that time at most (1 part in 2000, as in `evergate_sys::Stamp`).
const APART_MS: i64 = 30;

/// How far this node's clock is ahead of another one's, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ahead(i64);

impl Ahead {
    fn clock_offset(clock_ms: u64, now_ms: u64) -> Ahead {
        Ahead(now_ms.wrapping_sub(clock_ms) as i64)
    }

    /// It shows this now. A word that was long on its way makes this clock seem ahead; what clocks cannot have run apart is taken for that.
    fn record_clock(&mut self, clock_ms: u64, now_ms: u64) {
        self.0 = Ahead::clock_offset(clock_ms, now_ms).0.min(self.0.saturating_add(APART_MS));
    }
}

/// A channel that its owner has given up for another one is read late.
#[derive(Debug, thiserror::Error)]
#[error("a newer channel of the same worker was read before")]
struct Replaced;

/// The newest channel of each worker of other nodes, also when it has ended: a worker has one at a time, and what it said on an
/// earlier one, which may be read later, was true before.
#[derive(Default)]
pub(super) struct Newest(BTreeMap<(NodeId, u16), Met>);

/// Which life of the node made it, and when by its clock, which says nothing of other lives: that may be of another boot.
struct Met {
    incarnation: Incarnation,
    made_ms: u64,
    /// The life that it was in before.
    before: Option<Incarnation>,
}

impl Newest {
    /// Notes a channel whose owner is known.
    fn meet(&mut self, channel: &Incoming) -> Result<(), Replaced> {
        let Some((node, incarnation)) = channel.announced.sender() else { return Ok(()) };
        let place = (node, channel.worker);
        let last = self.0.get(&place);
        let before = match last {
            Some(last) if last.before == Some(incarnation) => return Err(Replaced),
            Some(last) if last.incarnation != incarnation => Some(last.incarnation),
            Some(last) if last.made_ms > channel.made_ms => return Err(Replaced),
            last => last.and_then(|last| last.before),
        };
        self.0.insert(place, Met { incarnation, made_ms: channel.made_ms, before });
        Ok(())
    }
}

/// What an owner has yet to be told of the frames that were taken in. Each answer says how many there are in all, so that one is
/// enough for an owner that reads none for a while: nothing grows.
#[derive(Default)]
struct Answers {
    /// How many the newest one tells of.
    answered: u64,
    /// The rest of one that is partly sent, of so many bytes, and one more.
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

    /// So many bytes were sent.
    fn advance(&mut self, sent: usize) {
        let left = self.unsent.len() - sent;
        self.begun = if sent > self.begun { left } else { self.begun - sent };
        self.unsent.drain(..sent);
    }
}

impl Worker {
    /// Something came on a channel from an owner, or it can take more answers.
    pub(in crate::worker) fn incoming_event(&mut self, index: usize, ends: bool) {
        // What the agent has said comes before what others say because of it.
        self.handle_commands();
        let Some(cluster) = &mut self.cluster else { return };
        let Some(Some(incoming)) = cluster.incoming.get_mut(index) else { return };
        let (knew, frames) = (incoming.from, incoming.frames);
        let ended = incoming.channel.receive(ends);
        if incoming.channel.has_more {
            // After all else that is due in this turn.
            let _ = self.epoll.report_again(incoming.channel.fd(), Source::Incoming(index as u32).token());
        }
        let (mut complete, mut news) = (Vec::new(), Vec::new());
        let result = incoming.take_in(
            &mut cluster.holder,
            &cluster.layout,
            &mut cluster.newest,
            &mut complete,
            &mut news,
        );
        let result = result.and_then(|()| Ok(ended?));
        let replaced = result.as_ref().is_err_and(|error| error.is::<Replaced>());
        cluster.work.note_frames(incoming.frames - frames);
        let (announcer, worker) = (incoming.announced.sender(), incoming.worker);
        if knew.is_none() && incoming.from.is_some() && !replaced {
            // What an earlier channel of the same worker still brings is older than what this one begins with. Of an earlier
            // life of that node nothing more comes, and its end need not have been heard.
            let node = |announced: &Announced| announced.sender().map(|(node, _)| node);
            let from = announcer.map(|(node, _)| node);
            let same = |other: &Incoming| node(&other.announced) == from && other.worker == worker;
            for (_, slot) in cluster.incoming.iter_mut().enumerate().filter(|(other, _)| *other != index) {
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

    /// What was said on the channel stands. Its owner notices, and drops this backup or says everything anew.
    fn end_incoming(&mut self, index: usize, error: &anyhow::Error) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(incoming) = cluster.incoming.get_mut(index).and_then(Option::take) else { return };
        // What a node had said before it lost its buckets to this one may be read after that.
        let late =
            error.is::<ReplicaError>() && cluster.taken_at.is_some_and(|at| self.now.since(at) <= DROP_AFTER);
        let ended = late || error.is::<Replaced>() || error.is::<io::Error>();
        match incoming.from.map(|node| node.0.saturating_add(1)) {
            _ if ended => {}
            Some(number) => console::warning(format_args!(
                "does not believe a mirror channel of node {number}: {error:#}"
            )),
            // It has the cluster's key, and tries again and again.
            None if cluster.refused_at.is_none_or(|at| self.now.since(at) > REFUSALS_EVERY) => {
                cluster.refused_at = Some(self.now);
                console::warning(format_args!("refuses a mirror channel: {error:#}"));
            }
            None => {}
        }
        self.counters.reason(match (incoming.from.is_some(), ended) {
            (true, true) => "replication_channel_ended",
            (true, false) => "replication_channel_invalid",
            (false, _) => "replication_channel_refused",
        });
    }

    pub(in crate::worker) fn take_instruction(&mut self, instruction: Instruction) {
        match instruction {
            Instruction::Roles(roles) => {
                for (bucket, role) in roles {
                    self.pulse.beat();
                    self.change_role(bucket, role);
                }
                self.poll_failovers();
            }
            Instruction::Failover(round) => self.fail_over(&round),
            Instruction::Keep(kept) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.kept.entry(kept.bucket).or_default().push(kept);
                }
            }
            Instruction::Void => self.void(),
        }
    }

    /// This node has lost its place: what it held or served is continued elsewhere, or lost.
    fn void(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            for bucket in
                (0..evergate_membership::BUCKETS).map(Bucket).filter(|bucket| cluster.is_pending(*bucket))
            {
                cluster.set_pending(bucket, false);
            }
            cluster.holder.clear();
            cluster.complete.clear();
            cluster.unreported.clear();
            cluster.arriving.clear();
            cluster.forgetting.clear();
            cluster.closing.clear();
            cluster.freezing.clear();
            cluster.frozen.clear();
            cluster.kept.clear();
            cluster.named.clear();
            cluster.roles.fill(Role::NOTHING);
            cluster.outgoing.clear();
            cluster.incoming.clear();
            cluster.drop_endings(None);
        }
        for key in self.clients.keys() {
            if self.clients.get_mut(key).is_some_and(|client| client.replicated_state.is_some()) {
                self.abandon(key);
            }
        }
        self.abandon_pool(None);
        self.poll_failovers(); // nothing of it is ours any more
        self.counters.open.set(self.clients.len() as u64);
    }
}

impl Incoming {
    pub(super) fn new(channel: Channel, host: Option<NodeId>, since: Micros) -> Incoming {
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

    pub(super) fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    fn take_in(
        &mut self,
        holder: &mut evergate_replication::ReplicaStore,
        layout: &crate::agent::Layout,
        newest: &mut Newest,
        complete: &mut Vec<(Bucket, Term)>,
        news: &mut Vec<SessionNews>,
    ) -> anyhow::Result<()> {
        let mut at = 0;
        while let Some((mut frame, length)) = Frame::decode(&self.channel.input[at..])? {
            at += length;
            self.frames += 1;
            let introduces = matches!(frame, Frame::Hello { .. } | Frame::Settings(_));
            anyhow::ensure!(introduces == self.from.is_none(), "frames out of order");
            if introduces {
                self.meet(&frame, layout)?;
                if self.from.is_some() {
                    newest.meet(self)?;
                }
            }
            let read_from = |facts: &mut LegFacts| {
                facts.shift(self.ahead.0);
                layout.know_neighbour(facts);
            };
            match &mut frame {
                Frame::Begin { legs, .. } => legs.values_mut().for_each(read_from),
                Frame::Leg { facts, .. } => read_from(facts),
                Frame::Clock { clock_ms } => {
                    self.ahead.record_clock(*clock_ms, evergate_sys::steady_clock_ms())
                }
                _ => {}
            }
            if let Frame::Sessions(more) = frame {
                news.extend(more);
                continue;
            }
            let completes = if let Frame::Complete { bucket } = &frame { Some(*bucket) } else { None };
            holder.handle(&mut self.announced, frame)?;
            if let Some(bucket) = completes
                && let Some(term) = self.announced.of(bucket)
            {
                complete.push((bucket, term));
            }
        }
        self.channel.input.drain(..at);
        Ok(())
    }

    /// Who speaks, and whether this node can hold its connections: the first two frames.
    fn meet(&mut self, frame: &Frame, layout: &crate::agent::Layout) -> anyhow::Result<()> {
        match (frame, self.announced.sender()) {
            (Frame::Hello { version: FRAME_VERSION, node, worker, workers, clock_ms, .. }, None) => {
                anyhow::ensure!(
                    usize::from(*workers) == layout.workers,
                    "node {} runs {workers} workers, this one {}: all nodes of a cluster need the same number",
                    node.0.saturating_add(1),
                    layout.workers
                );
                (self.worker, self.made_ms) = (*worker, *clock_ms);
                self.ahead = Ahead::clock_offset(*clock_ms, evergate_sys::steady_clock_ms());
            }
            (Frame::Hello { version, node, .. }, None) => anyhow::bail!(
                "node {} speaks mirror frames of form {version}, and this one form {FRAME_VERSION}: run the same version on all nodes",
                node.0.saturating_add(1)
            ),
            (Frame::Settings(theirs), Some((node, _))) => {
                if let Some(what) = required_settings::difference(theirs, &layout.settings) {
                    anyhow::bail!(
                        "`[cluster]` of node {} differs: {what}; stop all nodes to change that, and give them the same file",
                        node.0.saturating_add(1)
                    );
                }
                self.from = Some(node);
            }
            _ => anyhow::bail!("frames out of order"),
        }
        Ok(())
    }

    /// Sends how many frames have been taken in.
    pub(super) fn answer(&mut self) -> io::Result<()> {
        self.answers.push(self.frames).map_err(io::Error::other)?;
        if !self.answers.unsent.is_empty() {
            let sent = self.channel.send(&self.answers.unsent)?;
            self.answers.advance(sent);
        }
        Ok(())
    }
}

impl Cluster {
    /// One worker of the owner has said everything about a bucket: the copy is complete when all of them have.
    fn note_complete(&mut self, bucket: Bucket, term: Term, worker: u16) {
        let older = self.complete.get(&bucket).is_some_and(|(known, _)| term < *known);
        if older || !self.holder.counts(bucket, term) {
            return; // of a fill that was given up
        }
        let (known, workers) = self.complete.entry(bucket).or_insert_with(|| (term, BTreeSet::new()));
        if *known != term {
            *known = term;
            workers.clear();
        }
        workers.insert(worker);
        if workers.len() >= self.layout.workers {
            self.complete.remove(&bucket);
            self.report(Report::Complete { bucket, term });
        }
    }

    /// What was given up long enough ago is forgotten for good.
    pub(super) fn drop_late(&mut self, now: Micros) {
        let holder = &mut self.holder;
        self.forgetting.retain(|bucket, at| {
            if *at <= now {
                holder.drop_all(*bucket);
            }
            *at > now
        });
    }

    /// Answers go out once a turn.
    pub(in crate::worker) fn answer(&mut self) {
        for slot in &mut self.incoming {
            if let Some(incoming) = slot
                && incoming.answer().is_err()
            {
                *slot = None;
            }
        }
    }

    /// What a change of role means for what is held for others.
    pub(super) fn change_replicas(&mut self, bucket: Bucket, role: Role, now: Micros) {
        match role {
            Role::Outside { since: first, .. } | Role::Backup { term: first, in_sync: false, .. } => {
                self.holder.forget(bucket, first);
                self.forgetting.insert(bucket, now + DROP_AFTER);
            }
            Role::Owner { term, begin: evergate_membership::OwnershipStart::Empty, .. } => {
                self.holder.recover(bucket, term);
            }
            Role::Backup { .. } | Role::Owner { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_reads_no_answer_is_told_the_newest_one_however_much_was_sent_of_the_others() {
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
    fn a_clock_is_followed_for_weeks_and_not_led_astray_by_words_that_were_late() {
        // Theirs gains 50 parts in a million, and each hundredth word takes 1.5 s.
        let ours = |minute: u64| minute * 60_000;
        let theirs = |minute: u64| 7_000_000 + minute * 60_003;
        let mut ahead = Ahead::clock_offset(theirs(0), ours(0));
        for minute in 1..30 * 24 * 60 {
            let late = if minute % 100 == 0 { 1500 } else { 1 };
            ahead.record_clock(theirs(minute), ours(minute) + late);
            let is = ours(minute) as i64 - theirs(minute) as i64;
            assert!((is..=is + 40).contains(&ahead.0), "minute {minute}: {} and not {is}", ahead.0);
        }
    }
}
