//! Checkpoints: positions from which a restored connection can continue, and the entries that record them.
//!
//! A client checkpoint may be queued when its server has acknowledged the output made from the bytes before it. A
//! server checkpoint may be queued when the client has acknowledged whole records. Both name the input that may be
//! acknowledged.

use crate::Io;
use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use crate::replication::{Replication, position};
use crate::restore::ResumedLeg;
use crate::routing::encode_body;
use crate::server_leg::ServerLeg;
use crate::upstream_tls::Uplink;
use evergate_http::Body;
use evergate_replication::{
    ClientCheckpoint, Entry, InputBoundary, Phase, RecordPosition, ServerCheckpoint, Side, Urgency,
};

/// Candidates kept at most; beyond it the newest replaces the one before.
const POINTS_MAX: usize = 256;

/// A place in the server's stream from which a restored connection can parse again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerPoint {
    pub(crate) leg: u32,
    pub(crate) input: u64,
    /// Record layer at `input`, where the leg uses TLS.
    pub(crate) rx: Option<RecordPosition>,
    pub(crate) plain: u64,
    pub(crate) exchange: u32,
    pub(crate) phase: Phase,
}

/// The end of a record: what the client may acknowledge.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordEnd {
    pub(crate) output: u64,
    pub(crate) tx: RecordPosition,
    pub(crate) plain: u64,
    /// The client's key generation that is answered up to here.
    pub(crate) answered_keys: u32,
    /// The last record of a tunnel's direction. Nothing may follow it, so it counts only with a checkpoint behind it.
    pub(crate) last: bool,
}

impl Replication {
    /// A request may go to another server only while the client still holds all of it.
    pub(crate) fn may_reroute(&self, exchange: u32) -> bool {
        self.checkpointed.as_ref().is_none_or(|point| {
            point.exchange < exchange || (point.exchange == exchange && point.phase == Phase::Head)
        })
    }

    pub(crate) fn push_client_point(&mut self, point: ClientCheckpoint) {
        let newest = self.client_points.back().or(self.checkpointed.as_ref());
        if newest == Some(&point) {
            return; // no news
        }
        if self.client_points.len() >= POINTS_MAX {
            self.client_points.pop_back();
        }
        self.client_points.push_back(point);
    }

    /// Queues the newest client checkpoint whose bytes have reached their server.
    pub(crate) fn checkpoint_client(&mut self) {
        let (acked_leg, acked) = self.server_acked;
        let mut best = None;
        while let Some(point) = self.client_points.front() {
            let reached = point.leg <= self.legs_done || (point.leg == acked_leg && point.output <= acked);
            if !reached {
                break;
            }
            best = self.client_points.pop_front();
        }
        let Some(mut point) = best else { return };
        if point.leg <= self.legs_done {
            (point.leg, point.output) = (0, 0);
            (point.tx, point.answered_keys, point.leg_ended) = (RecordPosition::default(), 0, false);
        }
        if self.checkpointed.as_ref() == Some(&point) {
            return;
        }
        let input = point.input;
        self.client_input.drop_before(input);
        if matches!(point.phase, Phase::Head | Phase::Ended) {
            self.client_input.shrink();
        }
        self.checkpointed = Some(point.clone());
        self.log.push(Entry::Client(point));
        self.release(Side::Client, input);
    }

    /// The request goes to another leg: what the old one acknowledged does not count.
    pub(crate) fn forget_points_of(&mut self, leg: u32) {
        self.client_points.retain(|point| point.leg != leg);
    }

    fn push_server_point(&mut self, point: ServerPoint) {
        if self.server_points.back().or(self.last_point.as_ref()) == Some(&point) {
            return;
        }
        if self.server_points.len() >= POINTS_MAX {
            self.server_points.pop_back();
        }
        self.server_points.push_back(point);
    }

    fn push_record_end(&mut self, end: RecordEnd) {
        if self.record_ends.len() >= POINTS_MAX {
            self.record_ends.pop_back();
        }
        self.record_ends.push_back(end);
    }

    /// Whether the newest place in the server's stream is behind its end.
    fn has_place_at_end(&self) -> bool {
        let newest = self.server_points.back().or(self.last_point.as_ref());
        newest.is_some_and(|point| point.phase == Phase::Ended)
    }

    /// Queues a server checkpoint when the client has acknowledged further records.
    fn checkpoint_server(&mut self) {
        self.checkpoint_server_at(None);
    }

    /// A position that became known only after the client had acknowledged everything before it. No further record
    /// makes it count, and the server may wait for this acknowledgement before it sends more.
    fn checkpoint_server_late(&mut self) {
        let known = |point: &ServerPoint| point.plain <= self.last_end.plain;
        if self.server_points.front().is_some_and(known) {
            self.checkpoint_server_at(Some(self.last_end));
        }
    }

    fn checkpoint_server_at(&mut self, mut newest: Option<RecordEnd>) {
        let reached = |remote: &Replication, end: &RecordEnd| {
            end.output <= remote.client_acked && (!end.last || remote.has_place_at_end())
        };
        while self.record_ends.front().is_some_and(|end| reached(self, end)) {
            newest = self.record_ends.pop_front();
        }
        if newest.is_none() && self.leg_waits(self.last_end.plain) {
            newest = Some(self.last_end); // a message ended without a further byte
        }
        let Some(end) = newest else { return };
        self.last_end = end;
        self.flush_run();
        let mut point = None;
        while self.server_points.front().is_some_and(|point| point.plain <= end.plain) {
            point = self.server_points.pop_front();
        }
        let base = ServerPoint { leg: 0, input: 0, rx: None, plain: 0, exchange: 0, phase: Phase::Head };
        let point = point.or_else(|| self.last_point.take()).unwrap_or(base);
        self.last_point = Some(point.clone());
        self.server_input.drop_before(point.leg, point.input);
        self.record_bound(end.plain);
        self.log.push(Entry::Server(ServerCheckpoint {
            output: end.output,
            tx: end.tx,
            plain: end.plain,
            leg: point.leg,
            input: point.input,
            rx: point.rx.unwrap_or_default(),
            point_plain: point.plain,
            exchange: point.exchange,
            phase: point.phase,
            answered_keys: end.answered_keys,
        }));
        if point.leg != 0 {
            self.release(Side::Server(point.leg), point.input);
        }
        // A backup that knows the end also knows the earliest start of the next response's records.
        if self.message_end.is_some_and(|plain| plain <= end.plain) && end.tx >= self.response_from {
            self.message_end = None;
        }
        self.free_legs(end.plain);
    }
}

impl Connection {
    /// Where the client's stream would be taken up again.
    fn client_point(&self, remote: &Replication) -> ClientCheckpoint {
        let mut point = ClientCheckpoint {
            input: self.client.in_pos,
            exchange: self.exchange.request(),
            phase: phase_of_receiving(self.exchange.receiving),
            owed: remote.owed,
            ..ClientCheckpoint::default()
        };
        let mut uplink = Uplink::default();
        if let Some(leg) = &self.servers.leg {
            point.leg = leg.id;
            point.output = if leg.is_open() { leg.out_pos } else { leg.out_pos + leg.sent.len() as u64 };
            uplink = leg.uplink();
        } else if let Some((leg, sent, parted)) = remote.parting() {
            // What is passed over was never sent here: it counts only when the leg does not matter any more.
            point.leg = leg;
            point.output =
                if matches!(self.exchange.receiving, RequestState::Skip(_)) { u64::MAX } else { sent };
            uplink = parted;
        }
        (point.tx, point.answered_keys, point.leg_ended) = (uplink.tx, uplink.answered_keys, uplink.ended);
        match (&self.client.tls, remote.spans.front()) {
            (ClientTls::Open(_), Some(span)) => {
                point.input = span.input;
                point.rx = span.rx;
                point.used = remote.used as u32;
            }
            (ClientTls::Open(records), None) => {
                point.rx = position(records.rx());
                point.used = remote.skip_input as u32; // a restored connection that waits for this record
            }
            _ => point.input -= self.client.plain.len() as u64 + remote.unread,
        }
        point
    }

    /// Whether something that was received has no place in the records of a TLS server's stream yet.
    fn is_between_records(&self, leg: &ServerLeg) -> bool {
        let tls = self.snapshot.pools.get(leg.pool as usize).is_some_and(|pool| pool.tls.is_some());
        tls && (!leg.is_open() || leg.replay.as_ref().is_some_and(|replay| replay.holds()))
    }

    /// Notes a place from which a restored connection can receive again.
    pub(crate) fn note_client_point(&mut self) {
        let Some(remote) = self.remote.as_ref().filter(|_| !self.is_handshaking()) else { return };
        let within = match &self.client.tls {
            ClientTls::Open(records) => !records.is_between_messages(),
            _ => false,
        };
        let between = within || self.servers.leg.as_ref().is_some_and(|leg| self.is_between_records(leg));
        let point = (!between).then(|| self.client_point(remote));
        if let Some(remote) = &mut self.remote {
            point.into_iter().for_each(|point| remote.push_client_point(point));
            remote.checkpoint_client();
        }
    }

    /// The server acknowledged our output on this leg up to `output`.
    pub fn handle_server_acked(&mut self, io: &mut Io<'_>, leg: u32, output: u64) {
        self.learn_server_acked(leg, output);
        self.finish_call(io);
    }

    /// [`Connection::handle_server_acked`] without what follows from it: for a caller whose next call does that.
    /// Entries come in the order of the acknowledgements.
    pub fn learn_server_acked(&mut self, leg: u32, output: u64) {
        if let Some(remote) = &mut self.remote {
            let (known, acked) = remote.server_acked;
            if leg > known {
                remote.server_acked = (leg, output);
            } else if leg == known {
                remote.server_acked.1 = acked.max(output);
            }
            remote.has_news = true;
            remote.checkpoint_client();
        }
    }

    /// The client acknowledged our output up to `output`. With backups the next request waits for this: call it before
    /// the bytes that came with the acknowledgement.
    pub fn handle_client_acked(&mut self, io: &mut Io<'_>, output: u64) {
        self.learn_client_acked(output);
        self.finish_call(io);
    }

    /// [`Connection::handle_client_acked`] without what follows from it: for a caller whose next call does that.
    pub fn learn_client_acked(&mut self, output: u64) {
        if let Some(remote) = &mut self.remote {
            remote.note_client_acked(output);
            remote.checkpoint_server();
        }
    }

    /// The client of a connection restored with this leg has not acknowledged a position yet. Of a plaintext response
    /// it may have a part. Of a response to a request that was decided only here it has nothing.
    pub fn record_loss_notice(&mut self, resumed: &ResumedLeg) {
        let continues = self.servers.leg.as_ref().is_some_and(|leg| leg.id == resumed.route.leg);
        let in_clear = continues && !self.listener().protocol.is_tls();
        if let Some(remote) = self.remote.as_mut().filter(|_| in_clear) {
            remote.loss_notices = Some(remote.client_acked);
        }
    }

    /// Whether an acknowledgement was recorded that more may follow from: the next call handles it, or
    /// [`Connection::handle_deferred`] without another event.
    pub fn has_deferred(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.has_news)
    }

    /// Does what follows from what was learned.
    pub fn handle_deferred(&mut self, io: &mut Io<'_>) {
        self.finish_call(io);
    }

    /// The same before what ends something. Only bytes go together with what was learned before them.
    pub(crate) fn catch_up(&mut self, io: &mut Io<'_>) {
        if self.has_deferred() {
            self.finish_call(io);
        }
    }

    pub(crate) fn checkpoint_server(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.checkpoint_server();
        }
    }

    /// The connection is idle until a peer sends something.
    pub fn on_idle(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.on_idle();
        }
    }

    /// All backups hold the entries up to `index`: output that waited for them may leave. The answer is effects alone,
    /// with ACKs of safe input among them: perform those first, so that the outlets carry the ACKs when they are
    /// flushed. All else follows with the next call.
    pub fn on_replicated(&mut self, io: &mut Io<'_>, index: u64) {
        let idle = self.is_idle();
        if let Some(remote) = &mut self.remote {
            remote.log.handle_acknowledged(index);
            remote.perform_released(io.effects);
            remote.has_news |= !idle;
        }
    }

    /// Nothing is under way, and nothing waits for a backup's acknowledgement.
    fn is_idle(&self) -> bool {
        let holds =
            !self.client.raw.is_empty() || !self.client.plain.is_empty() || !self.client.outlet.is_empty();
        self.exchange.receiving == RequestState::Head
            && self.servers.leg.is_none()
            && !holds
            && !self.end.is_closing()
            && !self.is_handshaking()
    }

    /// No backup is left to wait for: what was queued so far counts as held. What follows from it happens with the next
    /// call of [`Connection::on_replicated`].
    pub fn count_as_replicated(&mut self) {
        if let Some(remote) = &mut self.remote {
            let newest = remote.log.last();
            remote.log.handle_acknowledged(newest);
        }
    }

    /// Input that the client, and the server, have yet to send: how soon it is stashed depends on
    /// ([`AckGate::is_stalled`](evergate_replication::AckGate::is_stalled)).
    pub fn input_boundaries(&self) -> [InputBoundary; 2] {
        let client = !self.client.raw.is_empty() || !self.client.plain.is_empty();
        let server = self.servers.leg.as_ref().is_some_and(|leg| !leg.raw.is_empty() || !leg.held.is_empty());
        let held = self.remote.as_ref().is_some_and(|remote| self.is_held_up(remote));
        let replays_up = self.servers.leg.as_ref().is_some_and(|leg| leg.replay.is_some());
        let rest = if self.servers.leg.is_some() { InputBoundary::Open } else { InputBoundary::Whole };
        let or = |partial, rest| if partial { InputBoundary::Partial } else { rest };
        [or(client || replays_up, InputBoundary::Open), or(server || held, rest)]
    }

    /// Whether the server's bytes make no record yet and nothing else makes them acknowledged. Output that the client
    /// has yet to acknowledge does so later.
    fn is_held_up(&self, remote: &Replication) -> bool {
        match remote.is_repeating() {
            true => {
                (remote.replays() || !remote.hold.is_empty()) && remote.client_acked >= self.client.out_pos
            }
            false => !remote.hold.is_empty(),
        }
    }

    /// A stall: the client's input has waited unacknowledged for so long that it must be stashed with the backups.
    pub fn handle_client_stall(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        let received = self.client.in_pos + self.client.raw.len() as u64;
        if let Some(remote) = &mut self.remote {
            remote.stash(Side::Client, received);
        }
        self.finish_call(io);
    }

    /// A stall: the server's input has waited unacknowledged for too long.
    pub fn handle_server_stall(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        if self.send_buffered(io) {
            self.note_server_point(); // the server may be unable to send more before this is acknowledged
        } else if let Some(remote) = &mut self.remote {
            remote.checkpoint_server_late();
            // The newest one is kept although its response has ended: the client lacks some of it.
            let of_parted = remote.parting().map(|(leg, ..)| leg);
            if let Some(leg) = self.servers.leg.as_ref().map(|leg| leg.id).or(of_parted) {
                remote.stash(Side::Server(leg), u64::MAX);
            }
        }
        self.finish_call(io);
    }

    /// Entries to send to the backups, oldest first.
    pub fn drain_entries(&mut self) -> impl Iterator<Item = Entry> {
        self.remote.as_mut().into_iter().flat_map(|remote| remote.log.drain())
    }

    /// Whether there are any.
    pub fn has_entries(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.log.has_queued())
    }

    /// How long they may wait for company.
    pub fn urgency(&self) -> Urgency {
        self.remote.as_ref().map_or(Urgency::None, |remote| remote.log.urgency())
    }

    /// Index of the newest entry. 0 without backups.
    pub fn newest_entry(&self) -> u64 {
        self.remote.as_ref().map_or(0, |remote| remote.log.last())
    }

    /// Index of the newest entry that decides something: what is sent now waits for it. 0 without backups.
    pub fn newest_decision(&self) -> u64 {
        self.remote.as_ref().map_or(0, |remote| remote.log.decided())
    }

    /// Index up to which the backups have acknowledged; everything without backups.
    pub fn acknowledged(&self) -> u64 {
        self.remote.as_ref().map_or(u64::MAX, |remote| remote.log.acknowledged())
    }

    /// Whether the backups have yet to acknowledge what lets the input of a leg that was given back be acknowledged:
    /// [`Effect::Acknowledge`](crate::Effect::Acknowledge) names it when they have.
    pub fn is_unsettled(&self, leg: u32) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.is_unsettled(leg))
    }

    pub(crate) fn release_acknowledgements(&mut self, io: &mut Io<'_>) {
        if let Some(remote) = &mut self.remote {
            remote.perform_released(io.effects);
        }
    }

    /// Retains server bytes at `range` of the slots until they are acknowledged. The `held` bytes before them are not
    /// counted in the leg's position yet.
    pub(crate) fn retain_server(&mut self, io: &mut Io<'_>, held: usize, range: std::ops::Range<usize>) {
        if let (Some(remote), Some(leg)) = (&mut self.remote, &self.servers.leg) {
            let left = match self.exchange.answering {
                ResponseState::Body(Body::Length { left }) => Some(left),
                _ => None,
            };
            let at = leg.in_pos + held as u64;
            remote.server_input.retain(leg.id, at, io.scratch.down.at(range), left);
        }
    }

    /// The client may acknowledge what was sent so far.
    pub(crate) fn note_record_end(&mut self) {
        let tx = match &self.client.tls {
            ClientTls::Open(records) => position(records.tx()),
            _ => RecordPosition::default(),
        };
        let (output, plain, answered_keys) =
            (self.client.out_pos, self.client.plain_pos, self.client.answered_keys);
        let last = self.exchange.answering == ResponseState::Ended;
        if let Some(remote) = &mut self.remote {
            remote.push_record_end(RecordEnd { output, tx, plain, answered_keys, last });
        }
    }

    /// Plaintext position after everything generated, framed or not.
    pub(crate) fn generated_plain(&self) -> u64 {
        self.remote.as_ref().map_or(self.client.plain_pos, |remote| {
            self.client.plain_pos.saturating_sub(remote.skip) + remote.hold.len() as u64
        })
    }

    /// Notes a place from which a restored connection can parse the server's stream again.
    pub(crate) fn note_server_point(&mut self) {
        let plain = self.generated_plain();
        let begun = |leg: &ServerLeg| leg.answered || self.exchange.answering == ResponseState::Ended;
        let whole = |leg: &ServerLeg| leg.held.is_empty() && leg.is_restartable();
        let Some(leg) = self.servers.leg.as_ref().filter(|leg| begun(leg) && whole(leg)) else { return };
        if self.remote.as_ref().is_some_and(|remote| !remote.is_repeating() && !remote.hold.is_empty()) {
            return; // the place before what is held is noted, and a record ends there
        }
        let (exchange, phase) = (self.exchange.number(), phase_of_answering(self.exchange.answering));
        let rx = leg.records.as_ref().map(|records| position(records.rx()));
        let point = ServerPoint { leg: leg.id, input: leg.in_pos, rx, plain, exchange, phase };
        if let Some(remote) = &mut self.remote {
            remote.push_server_point(point);
        }
    }

    /// Between two responses no leg matters.
    pub(crate) fn note_message_end(&mut self) {
        let plain = self.generated_plain();
        let point = ServerPoint {
            leg: 0,
            input: 0,
            rx: None,
            plain,
            exchange: self.exchange.number(),
            phase: Phase::Head,
        };
        self.note_response_from();
        if let Some(remote) = &mut self.remote {
            remote.message_end = Some(plain);
            remote.push_server_point(point);
        }
    }

    pub(crate) fn replicate_server_end(&mut self) {
        if let (Some(remote), Some(leg)) = (&mut self.remote, &self.servers.leg) {
            remote.push_server_end(leg.id, leg.in_pos);
        }
    }

    /// The end of a tunnel's TLS server comes before its FIN: the backups get all up to it.
    pub(crate) fn stash_server_end(&mut self) {
        let (Some(remote), Some(leg)) = (&mut self.remote, &self.servers.leg) else { return };
        if leg.is_tls() {
            remote.stash(Side::Server(leg.id), u64::MAX);
        }
        self.pass_over_server();
    }

    /// Bytes of a TLS server behind its end may be acknowledged, its FIN too.
    pub(crate) fn pass_over_server(&mut self) {
        if let (Some(remote), Some(leg)) = (&mut self.remote, &mut self.servers.leg)
            && leg.is_tls()
        {
            leg.raw.clear();
            remote.release(Side::Server(leg.id), u64::MAX);
        }
    }
}

fn phase_of_receiving(receiving: RequestState) -> Phase {
    match receiving {
        RequestState::Head | RequestState::Prefix => Phase::Head,
        RequestState::Body(body) | RequestState::Skip(body) => Phase::Body(encode_body(body)),
        RequestState::Tunnel => Phase::Tunnel,
        RequestState::Ended => Phase::Ended,
    }
}

fn phase_of_answering(answering: ResponseState) -> Phase {
    match answering {
        ResponseState::Head => Phase::Head,
        ResponseState::Body(body) => Phase::Body(encode_body(body)),
        ResponseState::Tunnel => Phase::Tunnel,
        ResponseState::Ended => Phase::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_response_waits_until_its_first_record_is_known() {
        let at = |generation, sequence| RecordPosition { generation, sequence };
        // The last record of a response was followed by a KeyUpdate, which has no plaintext.
        let mut remote = Replication::default();
        (remote.message_end, remote.response_from) = (Some(100), at(1, 0));
        remote.push_record_end(RecordEnd { output: 120, tx: at(0, 5), plain: 100, ..RecordEnd::default() });
        remote.push_record_end(RecordEnd { output: 142, tx: at(1, 0), plain: 100, ..RecordEnd::default() });
        remote.client_acked = 120;
        remote.checkpoint_server();
        assert_eq!((remote.log.last(), remote.is_between_messages()), (1, false));
        remote.client_acked = 142;
        remote.checkpoint_server();
        assert_eq!((remote.log.last(), remote.is_between_messages()), (2, true));
    }

    #[test]
    fn last_record_of_a_direction_needs_a_checkpoint_behind_it() {
        let mut remote = Replication::default();
        remote.push_record_end(RecordEnd { output: 10, plain: 10, ..RecordEnd::default() });
        remote.push_record_end(RecordEnd { output: 34, plain: 10, last: true, ..RecordEnd::default() });
        remote.client_acked = 34;
        remote.checkpoint_server();
        assert_eq!(remote.last_end.output, 10, "a restored connection repeats the end");
        let phase = Phase::Ended;
        remote.push_server_point(ServerPoint { leg: 1, input: 9, rx: None, plain: 10, exchange: 1, phase });
        remote.checkpoint_server();
        assert_eq!(remote.last_end.output, 34);
    }

    /// After a failover, a server whose stash is full is read again only after the client has everything that is known.
    #[test]
    fn a_place_that_is_known_late_makes_room_for_the_stash() {
        let mut remote = Replication::default();
        remote.client_acked = 10;
        let stash = |remote: &mut Replication| {
            remote.stash(Side::Server(1), u64::MAX);
            let stashed = |entry| match entry {
                Entry::LegStash { position, bytes, .. } => Some(position + bytes.len() as u64),
                _ => None,
            };
            remote.log.drain().filter_map(stashed).next_back()
        };
        remote.server_input.retain(1, 0, &vec![7; 2 << 20], None);
        assert!(stash(&mut remote).is_some_and(|end| end < 2 << 20));
        remote.push_record_end(RecordEnd { output: 10, plain: 10, ..RecordEnd::default() });
        remote.checkpoint_server();
        let (exchange, phase) = (1, Phase::Body(vec![1]));
        remote.push_server_point(ServerPoint {
            leg: 1,
            input: 1 << 20,
            rx: None,
            plain: 10,
            exchange,
            phase,
        });
        remote.checkpoint_server();
        assert_eq!(stash(&mut remote), None, "no further record");
        remote.checkpoint_server_late();
        assert_eq!(stash(&mut remote), Some(2 << 20));
        let newest = remote.log.last();
        remote.checkpoint_server_late();
        assert_eq!(remote.log.last(), newest, "queued once");
    }
}
