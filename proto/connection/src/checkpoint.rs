//! Checkpoints of a connection: the places that it notes, the acknowledgements that queue them, and its entries.
//!
//! A place is noted between two records or messages, where a restored connection can receive or parse again
//! (`client_checkpoints`, `server_checkpoints`). A checkpoint names the input that may be acknowledged.

use crate::Io;
use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::exchange::{RequestState, ResponseState};
use crate::leg_records::Uplink;
use crate::replication::{Replication, position};
use crate::restore::ResumedLeg;
use crate::routing::encode_body;
use crate::server_checkpoints::{RecordEnd, ServerPoint};
use crate::server_leg::ServerLeg;
use evergate_http::Body;
use evergate_replication::{ClientCheckpoint, Entry, InputBoundary, Phase, RecordPosition, Side, Urgency};

impl Connection {
    /// Where the client's stream would be taken up again.
    fn client_point(&self, remote: &Replication) -> ClientCheckpoint {
        let mut point = ClientCheckpoint {
            input: self.client.in_pos,
            exchange: self.exchange.request(),
            phase: phase_of_receiving(self.exchange.receiving),
            owed: remote.replay.owed,
            ..ClientCheckpoint::default()
        };
        let mut uplink = Uplink::default();
        if let Some(leg) = &self.servers.leg {
            point.leg = leg.id;
            point.output =
                if leg.is_open() { leg.out_pos } else { leg.out_pos + leg.request.bytes.len() as u64 };
            uplink = leg.tls.uplink();
        } else if let Some((leg, sent, parted)) = remote.legs.newest() {
            // What is passed over was never sent here: it counts only when the leg does not matter any more.
            point.leg = leg;
            point.output =
                if matches!(self.exchange.receiving, RequestState::Skip(_)) { u64::MAX } else { sent };
            uplink = parted;
        }
        (point.tx, point.answered_keys, point.leg_ended) = (uplink.tx, uplink.answered_keys, uplink.ended);
        match (&self.client.tls, remote.client_input.first_span()) {
            (ClientTls::Open(_), Some(span)) => {
                point.input = span.input;
                point.rx = span.rx;
                point.used = remote.client_input.used as u32;
            }
            (ClientTls::Open(records), None) => {
                point.rx = position(records.rx());
                point.used = remote.client_input.skip as u32; // a restored connection that waits for this record
            }
            _ => point.input -= self.client.plain.len() as u64 + remote.client_input.unread,
        }
        point
    }

    /// Whether something that was received has no place in the server's stream yet: in the records of a TLS server, or
    /// behind a PROXY header.
    fn lacks_place(&self, leg: &ServerLeg) -> bool {
        let tls = self.snapshot.pools.get(leg.pool as usize).is_some_and(|pool| pool.tls.is_some());
        let begins = !leg.is_open() && (tls || self.heads_pool(leg.pool));
        begins || (tls && leg.tls.replay.as_ref().is_some_and(|replay| replay.holds()))
    }

    /// Notes a place from which a restored connection can receive again.
    pub(crate) fn note_client_point(&mut self) {
        let Some(remote) = self.remote.as_ref().filter(|_| !self.is_handshaking()) else { return };
        let within = match &self.client.tls {
            ClientTls::Open(records) => !records.is_between_messages(),
            _ => false,
        };
        let between = within || self.servers.leg.as_ref().is_some_and(|leg| self.lacks_place(leg));
        let point = (!between).then(|| self.client_point(remote));
        if let Some(remote) = &mut self.remote {
            point.into_iter().for_each(|point| remote.client_checkpoints.push(point));
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
            remote.acks.note_server(leg, output);
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
            remote.acks.note_client(output);
            remote.checkpoint_server();
        }
    }

    /// The client of a connection restored with this leg has not acknowledged a position yet. Of a plaintext response
    /// it may have a part. Of a response to a request that was decided only here it has nothing.
    pub fn record_loss_notice(&mut self, resumed: &ResumedLeg) {
        let continues = self.servers.leg.as_ref().is_some_and(|leg| leg.id == resumed.route.leg);
        let in_clear = continues && !self.listener().protocol.is_tls();
        if let Some(remote) = self.remote.as_mut().filter(|_| in_clear) {
            remote.acks.loss_notices = Some(remote.acks.client);
        }
    }

    /// Whether an acknowledgement was recorded that more may follow from: the next call handles it, or
    /// [`Connection::handle_deferred`] without another event.
    pub fn has_deferred(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.acks.has_news)
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
            remote.acks.has_news |= !idle;
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
        let server = self
            .servers
            .leg
            .as_ref()
            .is_some_and(|leg| !leg.tls.raw.is_empty() || !leg.response.held.is_empty());
        let held = self.remote.as_ref().is_some_and(|remote| self.is_held_up(remote));
        let replays_up = self.servers.leg.as_ref().is_some_and(|leg| leg.tls.replay.is_some());
        let rest = if self.servers.leg.is_some() { InputBoundary::Open } else { InputBoundary::Whole };
        let or = |partial, rest| if partial { InputBoundary::Partial } else { rest };
        [or(client || replays_up, InputBoundary::Open), or(server || held, rest)]
    }

    /// Whether the server's bytes make no record yet and nothing else makes them acknowledged. Output that the client
    /// has yet to acknowledge does so later.
    fn is_held_up(&self, remote: &Replication) -> bool {
        match remote.replay.is_repeating() {
            true => {
                (remote.replay.replays() || !remote.replay.hold.is_empty())
                    && remote.acks.client >= self.client.out_pos
            }
            false => !remote.replay.hold.is_empty(),
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
            let of_parted = remote.legs.newest().map(|(leg, ..)| leg);
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
        self.remote.as_ref().is_some_and(|remote| remote.outputs.is_unsettled(leg))
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
            remote.server_checkpoints.push_record_end(RecordEnd { output, tx, plain, answered_keys, last });
        }
    }

    /// Plaintext position after everything generated, framed or not.
    pub(crate) fn generated_plain(&self) -> u64 {
        self.remote.as_ref().map_or(self.client.plain_pos, |remote| {
            self.client.plain_pos.saturating_sub(remote.replay.skip) + remote.replay.hold.len() as u64
        })
    }

    /// Notes a place from which a restored connection can parse the server's stream again.
    pub(crate) fn note_server_point(&mut self) {
        let plain = self.generated_plain();
        let begun =
            |leg: &ServerLeg| leg.response.answered || self.exchange.answering == ResponseState::Ended;
        let whole = |leg: &ServerLeg| leg.response.held.is_empty() && leg.tls.is_restartable();
        let Some(leg) = self.servers.leg.as_ref().filter(|leg| begun(leg) && whole(leg)) else { return };
        if self
            .remote
            .as_ref()
            .is_some_and(|remote| !remote.replay.is_repeating() && !remote.replay.hold.is_empty())
        {
            return; // the place before what is held is noted, and a record ends there
        }
        let (exchange, phase) = (self.exchange.number(), phase_of_answering(self.exchange.answering));
        let rx = leg.tls.layer.as_ref().map(|records| position(records.rx()));
        let point = ServerPoint { leg: leg.id, input: leg.in_pos, rx, plain, exchange, phase };
        if let Some(remote) = &mut self.remote {
            remote.server_checkpoints.push_point(point);
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
            remote.server_checkpoints.message_end = Some(plain);
            remote.server_checkpoints.push_point(point);
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
            leg.tls.raw.clear();
            remote.release(Side::Server(leg.id), u64::MAX);
        }
    }
}

fn phase_of_receiving(receiving: RequestState) -> Phase {
    match receiving {
        RequestState::Greeting | RequestState::Head | RequestState::Prefix => Phase::Head,
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
