//! Replication state of a connection with backups: the log, candidates for checkpoints, input that may be stashed, legs
//! that a failover might still need, and the decisions that a restored connection must repeat.
//!
//! Laws kept here (`docs/internals/failover.md`): an ACK is released only when the entry that makes it safe is
//! acknowledged. A layout is queued before its record leaves. A leg is released only when all backups know that the
//! client has its response. `checkpoint` decides when checkpoints are made, `unacked_input` what is retained of input.

use crate::Effect;
use crate::checkpoint::{RecordEnd, ServerPoint};
use crate::effect::Effects;
use crate::framing::extend;
use crate::server_leg::ServerLeg;
use crate::unacked_input::{Retained, ServerInput};
use crate::upstream_tls::Uplink;
use evergate_replication::{
    BoundLeg, ClientCheckpoint, ConnectionState, Entry, Established, Log, RUN_BYTES_MAX, RecordKind,
    RecordLayout, RecordPosition, Route, Side,
};
use evergate_tls::{Position, Records};
use std::collections::VecDeque;

pub(crate) fn position(at: Position) -> RecordPosition {
    RecordPosition { generation: at.generation, sequence: at.sequence }
}

/// A record whose plaintext is not all consumed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) input: u64,
    pub(crate) rx: RecordPosition,
    pub(crate) length: u64,
}

/// Records of one direction, sealed in one call, whose boundaries are not queued yet.
#[derive(Debug, Default)]
struct Run {
    boundary: Option<RecordLayout>,
    /// Plaintext of the run.
    bytes: usize,
}

impl Run {
    /// Adds a record; the run before, when it begins another.
    fn note(
        &mut self,
        first: RecordPosition,
        kind: RecordKind,
        length: usize,
        tag: u64,
    ) -> Option<RecordLayout> {
        let data = |run: &RecordLayout| run.kind == RecordKind::Data && run.end() == first;
        let joins = kind == RecordKind::Data && self.boundary.as_ref().is_some_and(data);
        let fits = self.bytes + length <= RUN_BYTES_MAX; // a node that repeats the run buffers all of it
        let before = if joins && fits { None } else { self.take() };
        self.bytes += length;
        let fresh = || RecordLayout { first, kind, lengths: Vec::new(), digest: 0 };
        extend(self.boundary.get_or_insert_with(fresh), length, tag);
        before
    }

    fn take(&mut self) -> Option<RecordLayout> {
        self.bytes = 0;
        self.boundary.take()
    }
}

/// A finished leg that a failover would still need.
#[derive(Debug)]
struct LegRelease {
    leg: u32,
    clean: bool,
    spent: bool,
    records: Option<Box<Records>>,
    /// Bytes sent to and parsed from the server.
    sent: u64,
    input: u64,
    /// Where its records towards the server stood.
    uplink: Uplink,
    /// Plaintext position that the client must have.
    plain: u64,
    /// The entry that frees it, once there is one.
    after: Option<u64>,
    idles: Idles,
}

/// What becomes of a leg that the client has the response of.
#[derive(Debug)]
enum Idles {
    /// It is released.
    No,
    /// It belongs to the client's connection and idles, which the backups have yet to know.
    LostSegments(Box<BoundLeg>),
    /// The entry is queued. `tls`: its records are in use again only when the backups hold that.
    Sent { tls: bool },
}

#[derive(Debug, Default)]
pub(crate) struct Replication {
    pub(crate) log: Log,
    pub(crate) client_input: Retained,
    pub(crate) server_input: ServerInput,
    pub(crate) spans: VecDeque<Span>,
    /// Plaintext bytes consumed of the first span.
    pub(crate) used: u64,
    pub(crate) client_points: VecDeque<ClientCheckpoint>,
    pub(crate) server_points: VecDeque<ServerPoint>,
    /// Client input that the newest decision answers: see [`Route::answered`](evergate_replication::Route::answered).
    pub(crate) answered: u64,
    /// Exchange of the newest route: entries of its leg name it.
    routed: u32,
    /// The newest client checkpoint that is queued.
    pub(crate) checkpointed: Option<ClientCheckpoint>,
    /// The parser point of the newest queued server checkpoint.
    pub(crate) last_point: Option<ServerPoint>,
    pub(crate) record_ends: VecDeque<RecordEnd>,
    /// What the newest server checkpoint covers.
    pub(crate) last_end: RecordEnd,
    /// Where the message under way to the client ends, until a checkpoint covers it.
    pub(crate) message_end: Option<u64>,
    /// Output positions that the peers acknowledged: the client, and the server leg.
    pub(crate) client_acked: u64,
    /// The client of a plaintext connection has not acknowledged its position, which may be beyond this.
    pub(crate) loss_notices: Option<u64>,
    pub(crate) server_acked: (u32, u64),
    /// Something was learned since the last call.
    pub(crate) has_news: bool,
    pub(crate) legs_done: u32,
    partings: Vec<LegRelease>,
    /// A bound leg cannot idle: see [`Replication::record_bound`].
    pub(crate) bound_lost: bool,
    releases: VecDeque<(u64, Side, u64)>,
    /// Effects that the outside sees, each after an entry.
    deferred: VecDeque<(u64, Effect)>,
    /// Records to the client, and to a server leg.
    run: Run,
    run_up: (u32, Run),
    /// The end is replicated.
    pub(crate) closed: bool,
    // What a restored connection repeats.
    pub(crate) forced: VecDeque<RecordLayout>,
    /// The records being made are known to the backups.
    pub(crate) repeating: bool,
    pub(crate) digest: u64,
    /// Plaintext that waits until it fills a decided run, or a record. Bound: one run.
    pub(crate) hold: Vec<u8>,
    /// Of what is just being taken in from a client without TLS, so much is yet to be.
    pub(crate) unread: u64,
    /// The response under way is planned: see `plan`.
    pub(crate) planned: bool,
    /// Latest position of the records at its start; how far its records may leave without an entry; what is requested.
    pub(crate) response_from: RecordPosition,
    pub(crate) reserved: RecordPosition,
    pub(crate) reserving: Option<(u64, RecordPosition)>,
    /// The connection's end that is being written follows from the response before it.
    pub(crate) ends_as_planned: bool,
    /// The node before may have sent records of the response under way that no entry names (deterministic records).
    pub(crate) resumed: bool,
    pub(crate) skip: u64,
    /// Plaintext bytes of the first record that were used before.
    pub(crate) skip_input: u64,
    /// Plaintext position at which a connection without TLS ends.
    pub(crate) end_at: Option<u64>,
    /// The client's key generation whose KeyUpdate is answered after the replay; 0 when none.
    pub(crate) owed: u32,
    /// How the connection ends after the replay: by this alert, for this reason.
    pub(crate) end_after_replay: Option<(u8, &'static str)>,
}

impl Replication {
    /// What a restored connection starts from.
    pub(crate) fn of(state: &ConnectionState) -> Replication {
        let server = &state.server;
        let mut remote = Replication {
            forced: state.boundaries.clone(),
            skip: server.plain.saturating_sub(server.point_plain),
            client_acked: server.output,
            last_end: RecordEnd {
                output: server.output,
                tx: server.tx,
                plain: server.plain,
                answered_keys: server.answered_keys,
                last: false,
            },
            response_from: state.response_from.unwrap_or(server.tx),
            reserved: state
                .reserved
                .filter(|(exchange, _)| *exchange == server.exchange)
                .unwrap_or_default()
                .1,
            client_input: Retained::starting_at(state.client_frontier()),
            checkpointed: Some(state.client.clone()),
            owed: state.client.owed,
            answered: state.answered,
            closed: state.closed.is_some(),
            last_point: Some(ServerPoint {
                leg: server.leg,
                input: server.input,
                rx: state.leg_tls(server.leg).map(|_| server.rx),
                plain: server.point_plain,
                exchange: server.exchange,
                phase: server.phase.clone(),
            }),
            ..Replication::default()
        };
        if !state.open.as_ref().is_some_and(|open| open.tls) {
            remote.end_at = state.closed.map(|(end, _)| end);
        }
        if let Some(route) = state.routes.get(&server.exchange) {
            let stash = state.server_stash.get(&route.leg).map_or(&[][..], |stash| &stash.bytes);
            remote.routed = route.exchange;
            remote.server_input.restore(route.leg, state.leg_input(route.leg), stash);
            remote.release(Side::Server(route.leg), remote.server_input.end());
        }
        // Everything replicated may be acknowledged: the peers then send at once.
        remote.release(Side::Client, state.client_frontier());
        remote
    }

    /// Whether decided records are still to be repeated.
    pub(crate) fn replays(&self) -> bool {
        !self.forced.is_empty()
    }

    /// Whether records that are decided, or may have been sent as planned, keep everything else from being sent.
    pub(crate) fn is_repeating(&self) -> bool {
        self.replays() || self.resumed
    }

    /// Whether decided records wait for bytes that no peer may send any more.
    pub(crate) fn is_stuck(&self) -> bool {
        self.replays() || (self.resumed && !self.hold.is_empty())
    }

    /// Whether part of the message under way has been sent by the node before us.
    pub(crate) fn has_begun(&self) -> bool {
        self.is_repeating() || self.skip > 0
    }

    /// Whether the node before has, or may have, sent more than this: the client has acknowledged it, or is silent. In
    /// plaintext no entry need record it.
    pub(crate) fn has_sent(&self, output: u64) -> bool {
        self.client_acked > output || self.loss_notices.is_some()
    }

    /// The client has so much.
    pub(crate) fn note_client_acked(&mut self, output: u64) {
        self.client_acked = self.client_acked.max(output);
        self.loss_notices = self.loss_notices.filter(|known| output <= *known);
        self.has_news = true;
    }

    /// Whether all output is known to have arrived, and the next request need not wait for a leg.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.message_end.is_none() && self.partings.iter().all(|parting| self.may_part_early(parting))
    }

    /// Whether the leg may carry the next request before the backups have acknowledged that the client has its
    /// response. Output on the leg then waits for a later entry, and a backup with that entry has the earlier one too.
    /// Input of the leg is acknowledged only when they have it ([`Replication::is_unsettled`]).
    fn may_part_early(&self, parting: &LegRelease) -> bool {
        let busy = parting.records.is_some() || matches!(parting.idles, Idles::Sent { tls: true });
        parting.after.is_some() && !busy && !parting.spent && self.is_clean(parting)
    }

    /// A server that has not acknowledged the whole request would see the next one behind a gap.
    fn is_clean(&self, parting: &LegRelease) -> bool {
        parting.clean && self.server_acked.0 == parting.leg && self.server_acked.1 >= parting.sent
    }

    /// The next request begins: legs that may carry it are given back now.
    pub(crate) fn part_early(&mut self, effects: &mut Effects) {
        self.perform_released(effects); // what is known by now is no exception
        for LegRelease { leg, idles, spent, records, .. } in self.partings.drain(..) {
            effects.push(match idles {
                // Spent: it was bound when the request could begin, and this request goes elsewhere.
                Idles::No => Effect::Release { leg, clean: true, spent, records, over: false },
                _ => Effect::Retain { leg },
            });
        }
    }

    /// Whether the backups have yet to acknowledge what lets the leg's input be acknowledged.
    pub(crate) fn is_unsettled(&self, leg: u32) -> bool {
        self.releases.iter().any(|(_, side, _)| *side == Side::Server(leg))
    }

    /// Whether everything up to `output` has arrived at the client and nothing waits. A deterministic end does not wait
    /// for the backups: the client has its close_notify, and an RST of another node would add nothing.
    pub(crate) fn is_drained(&self, output: u64) -> bool {
        self.client_acked >= output && self.deferred.is_empty()
    }

    /// No message follows soon: an idle connection holds no buffer.
    pub(crate) fn on_idle(&mut self) {
        self.client_input.on_idle();
        self.server_input.rest();
    }

    /// Input that a decision answers: the request's head ends `length` plaintext bytes behind what is consumed. Without
    /// TLS, `left` bytes of the input up to `input` follow the head.
    pub(crate) fn head_end(&self, length: usize, input: u64, left: usize) -> u64 {
        let (head_end, mut end) = (self.used + length as u64, 0);
        let in_record = self.spans.iter().find(|span| {
            end += span.length;
            end >= head_end
        });
        in_record.map_or(input.saturating_sub(left as u64), |span| span.input)
    }

    /// Queues the decision on a request.
    pub(crate) fn push_route(&mut self, route: Route) {
        self.routed = route.exchange;
        self.log.push(Entry::Route(route));
    }

    /// Queues the end of the server's stream.
    pub(crate) fn push_server_end(&mut self, leg: u32, position: u64) {
        self.log.push(Entry::ServerEnd { exchange: self.routed, leg, position });
    }

    /// Queues a whole response of our own to the exchange.
    pub(crate) fn push_generated(&mut self, exchange: u32, bytes: Vec<u8>, close: bool) {
        self.log.push(Entry::Generated { exchange, answered: self.answered, bytes, close });
    }

    /// How much is retained of both peers.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.client_input.len() + self.server_input.len()
    }

    pub(crate) fn note_record(&mut self, input: u64, rx: Position, length: usize) {
        if length > 0 {
            self.spans.push_back(Span { input, rx: position(rx), length: length as u64 });
        }
    }

    /// How many of the first `length` plaintext bytes after a restore were used before.
    pub(crate) fn skip_used(&mut self, length: usize) -> usize {
        let skip = self.skip_input.min(length as u64);
        self.skip_input -= skip;
        self.consumed(skip);
        skip as usize
    }

    /// Plaintext was consumed.
    pub(crate) fn consumed(&mut self, bytes: u64) {
        self.used += bytes;
        while self.spans.front().is_some_and(|span| span.length <= self.used) {
            if let Some(span) = self.spans.pop_front() {
                self.used -= span.length;
            }
        }
        if self.spans.is_empty() {
            self.used = 0;
        }
    }

    pub(crate) fn established(&mut self, established: Established) {
        self.log.push(Entry::Established(established));
    }

    /// A record was sealed: it belongs to the run that is queued before the call ends.
    pub(crate) fn note_sealed(&mut self, first: Position, kind: RecordKind, length: usize, tag: u64) {
        if self.repeating {
            return;
        }
        if self.ends_as_planned {
            self.flush_run();
        }
        if let Some(run) = self.run.note(position(first), kind, length, tag) {
            self.log.push(Entry::Boundary(run));
        }
        if self.ends_as_planned
            && let Some(run) = self.run.take()
        {
            self.log.push_deterministic(Entry::Boundary(run)); // a backup with the end also has its records
        }
    }

    /// A record to a server was sealed.
    pub(crate) fn note_sealed_up(
        &mut self,
        leg: u32,
        first: Position,
        kind: RecordKind,
        length: usize,
        tag: u64,
    ) {
        if self.run_up.0 != leg {
            self.flush_run();
            self.run_up.0 = leg;
        }
        let exchange = self.routed;
        if let Some(boundary) = self.run_up.1.note(position(first), kind, length, tag) {
            self.log.push(Entry::LegBoundary { exchange, leg, boundary });
        }
    }

    /// Queues the runs of boundaries.
    pub(crate) fn flush_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.log.push(Entry::Boundary(run));
        }
        let (leg, run) = &mut self.run_up;
        if let Some(boundary) = run.take() {
            self.log.push(Entry::LegBoundary { exchange: self.routed, leg: *leg, boundary });
        }
    }

    /// The ACK of this input may be released when the newest entry is acknowledged.
    pub(crate) fn release(&mut self, side: Side, at: u64) {
        self.releases.push_back((self.log.last(), side, at));
    }

    /// The effect may be performed when every entry so far is acknowledged. An end that follows from the response
    /// before it waits for no more than the response does, and leaves with it.
    pub(crate) fn defer(&mut self, effect: Effect) {
        self.flush_run();
        let after = if self.ends_as_planned { self.log.decided() } else { self.log.last() };
        self.deferred.push_back((after, effect));
    }

    /// The leg is done with, but kept until the client has the plaintext up to `plain`.
    pub(crate) fn part(
        &mut self,
        leg: &ServerLeg,
        (clean, spent): (bool, bool),
        records: Option<Box<Records>>,
        uplink: Uplink,
        plain: u64,
    ) {
        let ServerLeg { id: leg, out_pos: sent, in_pos: input, .. } = *leg;
        let (after, idles) = (None, Idles::No);
        self.partings.push(LegRelease {
            leg,
            clean,
            spent,
            records,
            sent,
            input,
            uplink,
            plain,
            after,
            idles,
        });
    }

    /// The same of a leg that idles and belongs to the client's connection.
    pub(crate) fn part_bound(&mut self, leg: &ServerLeg, state: BoundLeg, uplink: Uplink, plain: u64) {
        self.part(leg, (true, false), None, uplink, plain);
        if let Some(parting) = self.partings.last_mut() {
            parting.idles = Idles::LostSegments(Box::new(state));
        }
    }

    /// The idle bound leg is over. Whether that is done when the client has its response.
    pub(crate) fn unbind(&mut self, leg: u32, records: &mut Option<Box<Records>>) -> bool {
        let found = self.partings.iter_mut().find(|parting| parting.leg == leg);
        let Some(parting) = found.filter(|parting| !matches!(parting.idles, Idles::No)) else { return false };
        parting.spent = true;
        match std::mem::replace(&mut parting.idles, Idles::No) {
            // The backups could seal a request under the nonce of close_notify until they know this entry.
            Idles::Sent { .. } => _ = self.log.push(Entry::Bound(None)),
            _ => parting.records = records.take(),
        }
        true
    }

    /// A checkpoint at plaintext position `plain` is about to be queued, behind which the backups know of idle bound
    /// legs by these entries alone. A leg whose server has not acknowledged the whole request cannot be continued.
    pub(crate) fn record_bound(&mut self, plain: u64) {
        let found = self.partings.iter().position(|parting| {
            parting.after.is_none()
                && parting.plain <= plain
                && matches!(parting.idles, Idles::LostSegments(_))
        });
        let Some(index) = found else { return };
        let clean = self.partings.get(index).is_some_and(|parting| self.is_clean(parting));
        let Some(parting) = self.partings.get_mut(index) else { return };
        let Idles::LostSegments(state) = std::mem::replace(&mut parting.idles, Idles::No) else { return };
        if clean {
            parting.idles = Idles::Sent { tls: state.route.tls.is_some() };
            self.log.push(Entry::Bound(Some(state)));
        } else {
            parting.spent = true;
            (self.bound_lost, self.has_news) = (true, true);
        }
    }

    /// The newest leg that is kept, how much was sent on it, and where its records stood.
    pub(crate) fn parting(&self) -> Option<(u32, u64, Uplink)> {
        self.partings
            .last()
            .filter(|parting| parting.after.is_none())
            .map(|parting| (parting.leg, parting.sent, parting.uplink))
    }

    /// Whether a leg is kept although the client has everything up to `plain`.
    pub(crate) fn leg_waits(&self, plain: u64) -> bool {
        self.partings.iter().any(|parting| parting.after.is_none() && parting.plain <= plain)
    }

    /// A checkpoint at plaintext position `plain` is queued: legs whose responses end before are free after it.
    pub(crate) fn free_legs(&mut self, plain: u64) {
        let entry = self.log.last();
        let mut done = Vec::new();
        for parting in self.partings.iter_mut().filter(|p| p.after.is_none() && p.plain <= plain) {
            parting.after = Some(entry);
            done.push((parting.leg, parting.input));
        }
        for (leg, input) in done {
            self.legs_done = self.legs_done.max(leg);
            self.server_input.forget(leg, input);
            if input > 0 {
                self.release(Side::Server(leg), input);
            }
        }
    }

    /// An answer of our own is queued: input of its request's leg does not matter any more.
    pub(crate) fn forget_legs(&mut self) {
        self.free_legs(u64::MAX);
    }

    /// What may happen now that the log is acknowledged so far.
    pub(crate) fn perform_released(&mut self, effects: &mut Effects) {
        let acknowledged = self.log.acknowledged();
        while let Some((index, side, position)) = self.releases.front().copied() {
            if index > acknowledged {
                break;
            }
            self.releases.pop_front();
            effects.push(Effect::Acknowledge { side, position });
        }
        while self.deferred.front().is_some_and(|(index, _)| *index <= acknowledged) {
            if let Some((_, effect)) = self.deferred.pop_front() {
                effects.push(effect);
            }
        }
        let is_free = |parting: &LegRelease| parting.after.is_some_and(|after| after <= acknowledged);
        while let Some(index) = self.partings.iter().position(is_free) {
            let parting = self.partings.remove(index);
            let clean = self.is_clean(&parting);
            let LegRelease { leg, spent, records, idles, .. } = parting;
            effects.push(match idles {
                Idles::No => Effect::Release { leg, clean, spent, records, over: false },
                _ => Effect::Retain { leg },
            });
        }
    }

    /// The connection is over: no node will recover it, and a backup that knows so needs the last response of a leg no
    /// more.
    pub(crate) fn release_all(&mut self, effects: &mut Effects) {
        for parting in std::mem::take(&mut self.partings) {
            let clean = self.is_clean(&parting);
            let LegRelease { leg, spent, records, .. } = parting;
            effects.push(Effect::Release { leg, clean, spent, records, over: true });
        }
        self.deferred.clear();
    }

    /// Stashes the client's or the server's input up to `to`, so that it can be acknowledged.
    pub(crate) fn stash(&mut self, side: Side, to: u64) {
        loop {
            let next = match side {
                Side::Client => self.client_input.next_stash(to),
                Side::Server(leg) => self.server_input.next_stash(leg, to),
            };
            let Some((position, bytes)) = next else { return };
            let end = position + bytes.len() as u64;
            let exchange = self.routed;
            self.log.push(match side {
                Side::Client => Entry::Stash { position, bytes },
                Side::Server(leg) => Entry::LegStash { exchange, leg, position, bytes },
            });
            self.release(side, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_replication::ServerCheckpoint;

    fn performed(remote: &mut Replication) -> Vec<Effect> {
        let mut effects = Effects::default();
        remote.perform_released(&mut effects);
        effects.list
    }

    /// A peer that has received our end, or our ACK, does not repeat it for another node.
    #[test]
    fn ends_and_acks_leave_with_the_last_entry_they_need() {
        let mut remote = Replication::default();
        for position in [1, 2] {
            remote.log.push(Entry::ServerEnd { exchange: 0, leg: 1, position });
        }
        remote.release(Side::Server(1), 2);
        remote.log.push(Entry::Close { plain: 2, abort: false });
        remote.defer(Effect::ShutdownClient);
        assert_eq!(remote.log.last(), 3);
        remote.log.handle_acknowledged(1);
        assert!(performed(&mut remote).is_empty());
        remote.log.handle_acknowledged(2);
        let acks = performed(&mut remote);
        assert!(matches!(acks[..], [Effect::Acknowledge { side: Side::Server(1), position: 2 }]), "{acks:?}");
        remote.log.handle_acknowledged(3);
        let ends = performed(&mut remote);
        assert!(matches!(ends[..], [Effect::ShutdownClient]), "{ends:?}");
    }

    #[test]
    fn leg_is_free_when_backups_know_its_response_arrived() {
        let mut remote = Replication::default();
        let (clean, spent, records, uplink) = (true, false, None, Uplink::default());
        let (sent, input, plain) = (0, 0, 10);
        remote.partings.push(LegRelease {
            leg: 1,
            clean,
            spent,
            records,
            sent,
            input,
            uplink,
            plain,
            after: None,
            idles: Idles::No,
        });
        remote.log.push(Entry::Close { plain: 0, abort: false });
        remote.log.push(Entry::Server(ServerCheckpoint { plain: 10, ..ServerCheckpoint::default() }));
        remote.free_legs(10);
        remote.log.handle_acknowledged(1);
        assert!(performed(&mut remote).is_empty());
        remote.log.handle_acknowledged(2);
        assert!(matches!(performed(&mut remote)[..], [Effect::Release { leg: 1, .. }]));
    }

    /// The next request goes to another pool before the backups know that the response has arrived.
    #[test]
    fn bound_leg_released_early_serves_no_other_client() {
        let mut remote = Replication { server_acked: (1, 0), ..Replication::default() };
        let mut parting = LegRelease {
            leg: 1,
            clean: true,
            spent: false,
            records: None,
            sent: 0,
            input: 0,
            uplink: Uplink::default(),
            plain: 10,
            after: None,
            idles: Idles::Sent { tls: false },
        };
        parting.after = Some(remote.log.push(Entry::Server(ServerCheckpoint::default())));
        remote.partings.push(parting);
        assert!(remote.is_between_messages());
        assert!(remote.unbind(1, &mut None));
        let mut effects = Effects::default();
        remote.part_early(&mut effects);
        let released = std::mem::take(&mut effects.list);
        assert!(
            matches!(released[..], [Effect::Release { leg: 1, clean: true, spent: true, .. }]),
            "{released:?}"
        );
    }

    #[test]
    fn server_input_is_dropped_with_its_leg() {
        let mut remote = Replication::default();
        for (number, length) in [(1, 1_300), (2, 5_000)] {
            remote.server_input.retain(number, 0, &vec![7; length], None);
            let parting = LegRelease {
                leg: number,
                clean: true,
                spent: false,
                records: None,
                sent: 0,
                input: length as u64,
                uplink: Uplink::default(),
                plain: 10,
                after: None,
                idles: Idles::No,
            };
            remote.partings.push(parting);
            remote.free_legs(9);
            assert_eq!(remote.server_input.len(), length, "the client lacks some of it");
            remote.free_legs(10);
            assert_eq!(remote.server_input.len(), 0);
        }
        remote.server_input.retain(2, 5_000, b"more", None);
        let of_resumed = (5_000, b"more".to_vec());
        assert_eq!(remote.server_input.next_stash(2, u64::MAX), Some(of_resumed));
    }

    #[test]
    fn a_stash_always_leaves_room_in_a_frame() {
        let mut remote = Replication::default();
        remote.server_input.retain(1, 0, &vec![7; 3 << 20], None);
        remote.stash(Side::Server(1), u64::MAX);
        let stashed: usize = remote.log.drain().map(|entry| entry.encode().unwrap().len()).sum();
        assert!(stashed > 1 << 20 && stashed < evergate_replication::FRAME_BYTES_MAX / 2);
    }
}
