//! Teardown: backups keep a connection that is closed here until its client has acknowledged the end.
//!
//! Our FIN, and the bytes before it, may be lost. While this node lives its kernel repeats them; if it fails, only a
//! backup that still has the connection can. The backups therefore receive the end when the client has acknowledged it.
//! A connection that breaks, here or at its client, is over at once: a RST is sent once.

use super::Cluster;
use super::connection::ConnectionReplication;
use crate::host::{Gate, Host, Slot, SlotOf};
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_membership::Bucket;
use evergate_replication::{ConnectionId, ConnectionState, Frame, LegFacts};
use std::collections::{BTreeMap, VecDeque};

/// A client that has not acknowledged the end after this time is gone.
const WAIT: Micros = Micros::from_ms(15_000);
/// Delay of the last ACK, so that several leave together. A client's kernel that sent close_notify and FIN in two
/// packets may repeat them after 8 ms (RFC 8985, 7).
const FINAL_ACK_AFTER: Micros = Micros::from_ms(3);
/// Most teardowns of a worker; beyond it the oldest ends at the backups too.
const ENDINGS_MAX: usize = 8192;

/// A connection with a closed socket whose client may lack the end.
pub(super) struct Ending<H: Host> {
    connection: ConnectionId,
    bucket: Bucket,
    slot: SlotOf<H>,
    /// Sequence number after our FIN.
    end: u32,
    /// The client's end is still to be acknowledged, as the last segment to it.
    answers: bool,
    fold: Box<ConnectionState>,
    legs: BTreeMap<u32, LegFacts>,
    until: Micros,
}

/// Teardowns under way.
pub(crate) struct Teardowns<H: Host> {
    /// Connections closed here, oldest first.
    pub(super) endings: VecDeque<Ending<H>>,
    /// Slots of closed connections whose clients wait for the ACK of their end: its deadline, and the sequence number
    /// after our own end.
    pub(super) final_acks: Vec<(Micros, SlotOf<H>, u32)>,
}

impl<H: Host> Default for Teardowns<H> {
    fn default() -> Teardowns<H> {
        Teardowns { endings: VecDeque::new(), final_acks: Vec::new() }
    }
}

impl<H: Host> Worker<H> {
    /// Ends the replication of a connection that is gone from this worker: its slots are released, and the backups
    /// receive the end in time. Returns whether the end was sent already.
    pub(crate) fn end_replication(
        &mut self,
        replicated_state: ConnectionReplication<H>,
        connection: ConnectionId,
    ) -> bool {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return false };
        cluster.index.forget_slot(replicated_state.leg.slot.index());
        let ConnectionReplication { bucket, mut leg, fold, legs, broken, .. } = replicated_state;
        let end = leg.end_sequence();
        // While the client may lack our end, it receives no ACK of input that backups may lack.
        let answers = !broken && leg.slot.is_over(end) && leg.finish_end();
        let slot = leg.slot;
        let ending = Ending { connection, bucket, slot, end, answers, fold, legs, until: now + WAIT };
        if broken {
            // A RST has left or has arrived, perhaps before this worker had the slot: nothing follows.
            cluster.replicate(bucket, &Frame::End { connection }, None);
            cluster.gate.finish(ending.slot, None);
            return true;
        }
        if ending.is_over(now) {
            cluster.finish_ending(ending, now);
            return true;
        }
        if cluster.teardowns.endings.len() >= ENDINGS_MAX
            && let Some(oldest) = cluster.teardowns.endings.pop_front()
        {
            self.counters.reason("teardowns_max");
            cluster.finish_ending(oldest, now);
        }
        cluster.teardowns.endings.push_back(ending);
        false
    }
}

impl<H: Host> Ending<H> {
    fn is_over(&self, now: Micros) -> bool {
        self.slot.is_over(self.end) || self.until <= now
    }
}

impl<H: Host> Cluster<H> {
    /// Sends the end of connections whose clients have acknowledged it, or are gone.
    pub(super) fn tend_endings(&mut self, now: Micros) {
        // For a bucket in a handoff the next owner sends it.
        let freezing = &self.handoffs.freezing;
        let over = |ending: &mut Ending<H>| ending.is_over(now) && !freezing.contains_key(&ending.bucket);
        for ending in extract(&mut self.teardowns.endings, over) {
            self.finish_ending(ending, now);
        }
    }

    fn finish_ending(&mut self, ending: Ending<H>, now: Micros) {
        let Ending { connection, bucket, slot, end, answers, .. } = ending;
        self.replicate(bucket, &Frame::End { connection }, None);
        match answers {
            true => self.teardowns.final_acks.push((now + FINAL_ACK_AFTER, slot, end)),
            false => self.gate.finish(slot, Some(end)),
        }
    }

    /// Sends the last ACKs of closed connections, several at once. False when they could not leave.
    pub(super) fn send_final_acks(&mut self, now: Micros) -> bool {
        let due = self.teardowns.final_acks.first().is_some_and(|(due, ..)| *due <= now);
        if !due && self.teardowns.final_acks.len() < H::Gate::ACKS_AT_ONCE {
            return true;
        }
        let slots = self.teardowns.final_acks.iter().map(|(_, slot, _)| slot);
        let done = self.gate.emit_acks(slots.filter(|slot| slot.owes_ack())).is_ok();
        for (_, slot, end) in self.teardowns.final_acks.drain(..) {
            self.gate.finish(slot, Some(end));
        }
        done
    }

    /// Drops the teardowns of a bucket, or of all, that this node no longer owns, without sending anything.
    pub(super) fn drop_endings(&mut self, bucket: Option<Bucket>) {
        for ending in
            extract(&mut self.teardowns.endings, |ending| bucket.is_none_or(|bucket| bucket == ending.bucket))
        {
            self.gate.finish(ending.slot, None);
        }
    }

    /// Forgets closed flows of a bucket, or of all, that this node no longer owns. Their sockets may hold bytes and
    /// ends that no other node knows; these would leave when the bucket returns.
    pub(super) fn forget_finished(&mut self, bucket: Option<Bucket>) {
        let gate = &self.gate;
        let is_of = |slot: &SlotOf<H>| bucket.is_none_or(|bucket| gate.bucket(&slot.flow()) == bucket);
        let gone: Vec<_> = self.teardowns.final_acks.extract_if(.., |(_, slot, _)| is_of(slot)).collect();
        for (_, slot, _) in gone {
            self.gate.finish(slot, None);
        }
        self.gate.forget_finished(bucket);
    }

    /// Frames about ending connections for a backup that catches up.
    pub(super) fn ending_frames(&self, bucket: Bucket) -> impl Iterator<Item = Frame> {
        let endings = self.teardowns.endings.iter().filter(move |ending| ending.bucket == bucket);
        endings.map(|ending| Frame::Begin {
            connection: ending.connection,
            bucket: ending.bucket,
            state: Some(ending.fold.clone()),
            legs: ending.legs.clone(),
        })
    }
}

/// Takes those out that are wanted, in order.
fn extract<H: Host>(
    from: &mut VecDeque<Ending<H>>,
    mut wanted: impl FnMut(&mut Ending<H>) -> bool,
) -> Vec<Ending<H>> {
    let mut out = Vec::new();
    for _ in 0..from.len() {
        let Some(mut ending) = from.pop_front() else { break };
        match wanted(&mut ending) {
            true => out.push(ending),
            false => from.push_back(ending),
        }
    }
    out
}
