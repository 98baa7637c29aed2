//! A server leg with TLS: its handshake, its records both ways, and their repetition after a failover.
//!
//! With backups the leg's secrets are part of the decision that the request goes to it (the route). The backups have
//! the layout of every record towards the server before its first byte leaves, in runs whose digests cover their
//! content: a restored leg makes the same records of the same bytes, or breaks off. It opens again what the checkpoint
//! does not cover of the server's stream. A leg with an incomplete handshake is not restored: nothing of the request
//! has left.

use crate::client_leg::seconds;
use crate::connection::Connection;
use crate::exchange::ResponseState;
use crate::framing::{mix_digest, tag_of};
use crate::replication::position;
use crate::restore::at;
use crate::server_leg::{Failure, LegState, ServerLeg};
use crate::{Io, Piece, Server, Source, UpstreamTls};
use evergate_replication::{
    ConnectionState, FLIGHT_BYTES_MAX, LegTls, RUN_BYTES_MAX, RecordKind, RecordLayout, RecordPosition,
    Route, Side,
};
use evergate_tls::{
    ClientHandshake, ContentType, Opened, PAYLOAD_MAX, Position, Progress, Records, RecordsState, alert,
    error_text,
};
use std::collections::VecDeque;

/// Records that were decided before a failover, and the part of their content that has arrived again. Bound: one run,
/// and the bytes of one call.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    forced: VecDeque<RecordLayout>,
    hold: Vec<u8>,
    /// The server's key generation whose KeyUpdate is answered after the replay; 0 when none.
    owed: u32,
}

/// Where records towards a server stand; nothing on a leg without TLS.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uplink {
    pub(crate) tx: RecordPosition,
    /// The server's key generation whose KeyUpdate request is answered.
    pub(crate) answered_keys: u32,
    /// Our end is sealed.
    pub(crate) ended: bool,
}

/// Content of a run of records, in bytes.
pub(crate) fn length_of(run: &RecordLayout) -> usize {
    let lengths = run.lengths.iter();
    let lengths = lengths.map(|(length, count)| usize::from(*length).saturating_mul(*count as usize));
    lengths.fold(0, usize::saturating_add)
}

impl Replay {
    /// Whether content was taken in that no record has yet.
    pub(crate) fn holds(&self) -> bool {
        !self.hold.is_empty()
    }

    /// How much content makes the next run whole.
    pub(crate) fn lacks(&self) -> Option<usize> {
        let run = self.forced.front().filter(|boundary| boundary.kind == RecordKind::Data)?;
        Some(length_of(run).saturating_sub(self.hold.len()))
    }
}

impl ServerLeg {
    /// Bytes for the server, as they are.
    pub(crate) fn push(&mut self, io: &mut Io<'_>, bytes: &[u8]) {
        let start = io.scratch.up.len();
        io.scratch.up.extend_from_slice(bytes);
        self.pushed(io, start);
    }

    /// The bytes of the server-bound buffer from `start` on are the leg's next ones.
    fn pushed(&mut self, io: &mut Io<'_>, start: usize) {
        let range = start..io.scratch.up.len();
        self.out_pos += range.len() as u64;
        match io.effects.up.last_mut() {
            _ if range.is_empty() => {}
            Some(Piece { source: Source::Up, range: last }) if last.end == start => last.end = range.end,
            _ => io.effects.up.push(Piece { source: Source::Up, range }),
        }
    }

    /// The leg's TLS state for another node: directly after the handshake, or before the next request.
    pub(crate) fn export_tls(&mut self) -> Option<Box<LegTls>> {
        let records = self.records.as_ref()?;
        let mut state = Vec::new();
        records.export().encode(&mut state);
        let flight = std::mem::take(&mut self.flight);
        Some(Box::new(LegTls { records: state, consumed: self.in_pos, sent: self.out_pos, flight }))
    }

    /// Restores the TLS of a leg from a replica; the error names the contradiction.
    pub(crate) fn restore_tls(
        &mut self,
        state: &ConnectionState,
        route: &Route,
        tls: &LegTls,
    ) -> Result<(), &'static str> {
        let exported = RecordsState::decode(&tls.records).map_err(|_| "record state of a leg")?;
        let mut records = Records::import(&exported).map_err(|_| "record keys of a leg")?;
        let (client, server) = (&state.client, &state.server);
        self.answered_keys = records.rx().generation;
        self.in_pos = state.leg_input(route.leg);
        self.out_pos = state.leg_output(route.leg);
        self.flight = tls.flight.clone();
        if server.leg == route.leg {
            records.seek_rx(at(server.rx)).map_err(|_| "record position of a server")?;
        }
        if client.leg == route.leg {
            records.seek_tx(at(client.tx)).map_err(|_| "record position towards a server")?;
            self.answered_keys = self.answered_keys.max(client.answered_keys);
            self.up_ended = client.leg_ended;
            self.flight = Vec::new();
        }
        let forced = state.leg_boundaries.get(&route.leg).cloned().unwrap_or_default();
        for boundary in &forced {
            if let RecordKind::KeyUpdate(answers) = boundary.kind {
                self.answered_keys = self.answered_keys.max(answers);
            }
        }
        self.replay = (!forced.is_empty()).then(|| Box::new(Replay { forced, ..Replay::default() }));
        self.records = Some(Box::new(records));
        Ok(())
    }

    /// Whether the server's stream can be read again from here by a node that knows nothing of what was before.
    pub(crate) fn is_restartable(&self) -> bool {
        let owes = self.replay.as_ref().is_some_and(|replay| replay.owed > self.answered_keys);
        self.records.as_ref().is_none_or(|records| records.is_between_messages()) && !owes
    }

    /// Whether all records that were decided before a failover are made again.
    pub(crate) fn has_repeated(&self) -> bool {
        self.replay.as_ref().is_none_or(|replay| replay.forced.is_empty())
    }

    /// Where sealing stands.
    pub(crate) fn uplink(&self) -> Uplink {
        let tx = self.records.as_ref().map(|records| position(records.tx())).unwrap_or_default();
        Uplink { tx, answered_keys: self.answered_keys, ended: self.up_ended }
    }
}

impl Connection {
    /// Begins the handshake with one server of the pool, under that server's own name.
    pub(crate) fn start_leg_handshake(&mut self, io: &mut Io<'_>, upstream: &UpstreamTls, server: &Server) {
        let mut hello = Vec::new();
        let started = server.tls_name.clone().and_then(|name| {
            let mut handshake = ClientHandshake::new(&upstream.config, name).ok()?;
            handshake.start(&mut hello).ok().map(|()| handshake)
        });
        match (started, &mut self.servers.leg) {
            (Some(handshake), Some(leg)) => {
                leg.state = LegState::Shaking(Box::new(handshake));
                leg.push(io, &hello);
            }
            _ => self.leg_failed(io, Failure::Tls),
        }
    }

    /// Bytes of a TLS leg: `scratch.input[..n]`, of which the first `held` were known.
    pub(crate) fn take_leg_records(&mut self, io: &mut Io<'_>, held: usize, n: usize) {
        if self.exchange.answering == ResponseState::Ended {
            return self.pass_over_server();
        }
        let mut input = std::mem::take(&mut io.scratch.input);
        if let Some(leg) = &mut self.servers.leg {
            leg.raw.clear();
            if let Some(remote) = self.remote.as_mut().filter(|_| leg.is_open()) {
                remote.server_input.retain(leg.id, leg.in_pos + held as u64, &input[held..n], None);
            }
        }
        self.take_leg_bytes(io, &mut input[..n]);
        io.scratch.input = input;
    }

    /// What was stashed of a restored leg's input: the backups have it. Places are noted on the way, as in
    /// [`Connection::take_stash`].
    pub(crate) fn take_leg_stash(&mut self, io: &mut Io<'_>, mut stashed: Vec<u8>) {
        let id = self.leg_id();
        for piece in stashed.chunks_mut(PAYLOAD_MAX) {
            if self.leg_id() != id {
                return;
            }
            let mut raw =
                self.servers.leg.as_mut().map(|leg| std::mem::take(&mut leg.raw)).unwrap_or_default();
            if raw.is_empty() {
                self.take_leg_bytes(io, piece);
            } else {
                raw.extend_from_slice(piece);
                self.take_leg_bytes(io, &mut raw);
            }
            self.note_server_point();
        }
    }

    /// Opens whole records and keeps the rest.
    fn take_leg_bytes(&mut self, io: &mut Io<'_>, data: &mut [u8]) {
        let id = self.leg_id();
        let mut at = 0;
        // When the leg breaks off, the remaining bytes belong to no leg, least of all to the next one.
        while at < data.len() && self.leg_id() == id {
            let used = self.take_leg_step(io, &mut data[at..]);
            if used == 0 {
                break;
            }
            at += used;
        }
        if let Some(leg) = self.servers.leg.as_mut().filter(|leg| Some(leg.id) == id) {
            leg.raw.extend_from_slice(&data[at..]);
            leg.behind = 0;
        }
    }

    fn take_leg_step(&mut self, io: &mut Io<'_>, data: &mut [u8]) -> usize {
        let Some(leg) = &mut self.servers.leg else { return data.len() };
        if matches!(leg.state, LegState::Shaking(_)) {
            self.shake_leg(io, data);
            return data.len();
        }
        let Some(head) = data.first_chunk::<5>() else { return 0 };
        let Ok(len) = evergate_tls::record_len(head) else {
            self.leg_failed(io, Failure::Tls);
            return data.len();
        };
        if data.len() < len {
            return 0;
        }
        leg.behind = data.len() - len;
        let Some(records) = &mut leg.records else { return data.len() };
        leg.in_pos += len as u64;
        records.forgive(seconds(io.now));
        match records.open(&mut data[..len]) {
            Ok(Opened::Data(range)) => self.take_response(io, &data[range]),
            Ok(Opened::KeyUpdate { requested: true }) => {
                let generation = records.rx().generation;
                self.answer_key_update(io, generation);
            }
            Ok(Opened::KeyUpdate { .. } | Opened::Renegotiation | Opened::Ignored) => {}
            Ok(Opened::Alert { fatal: false, description: 0 }) => self.end_of_server(io),
            Ok(Opened::Alert { fatal: false, .. }) => {}
            Ok(Opened::Alert { description, .. }) => {
                self.explain(error_text(&rustls::Error::AlertReceived(description.into())));
                self.server_broke(io, Failure::Tls);
            }
            Err(error) => {
                // With backups none of them knows the alert's position: another record could be sealed there.
                if let Some(description) = error.alert().filter(|_| self.remote.is_none() && !leg.up_ended) {
                    leg.up_ended = true;
                    let mut alert = Vec::new();
                    records.seal_alert(description, &mut alert);
                    self.alert_server(io, alert);
                }
                self.explain(error);
                self.server_broke(io, Failure::Tls);
            }
        }
        len
    }

    /// The leg fails with this alert (RFC 8446 section 6.2), unless bytes before it wait.
    fn alert_server(&self, io: &mut Io<'_>, alert: Vec<u8>) {
        if self.servers.outlet.is_empty() && io.effects.up.is_empty() {
            io.effects.last_up = alert;
        }
    }

    /// Advances the handshake. Its input may be acknowledged at once: another node makes another leg.
    fn shake_leg(&mut self, io: &mut Io<'_>, data: &[u8]) {
        let Some(leg) = &mut self.servers.leg else { return };
        let LegState::Shaking(handshake) = &mut leg.state else { return };
        let mut flight = Vec::new();
        let outcome = handshake.handle_input(data, &mut flight);
        leg.in_pos += data.len() as u64;
        if let Err(error) = outcome {
            self.alert_server(io, flight);
            self.explain(&error);
            return self.leg_failed(io, Failure::Tls);
        }
        leg.push(io, &flight);
        if let Some(remote) = &mut self.remote {
            leg.flight.extend_from_slice(&flight);
            if matches!(outcome, Ok(Progress::NeedInput)) {
                remote.release(Side::Server(leg.id), leg.in_pos);
            }
        }
        match outcome {
            Ok(Progress::Done) if leg.flight.len() <= FLIGHT_BYTES_MAX => self.finish_leg_handshake(io),
            Ok(Progress::Done) => self.leg_failed(io, Failure::Tls),
            _ => {}
        }
    }

    fn finish_leg_handshake(&mut self, io: &mut Io<'_>) {
        let Some(leg) = &mut self.servers.leg else { return };
        let LegState::Shaking(handshake) = std::mem::replace(&mut leg.state, LegState::Dialing) else {
            return;
        };
        let Ok(mut finished) = handshake.finish() else { return self.leg_failed(io, Failure::Tls) };
        leg.records = Some(Box::new(finished.records));
        leg.in_pos = finished.consumed;
        if let Some(remote) = &mut self.remote {
            remote.server_input.restore(leg.id, finished.consumed, &[]);
            remote.server_input.retain(leg.id, finished.consumed, &finished.leftover, None);
        }
        self.leg_ready(io);
        self.take_leg_bytes(io, &mut finished.leftover);
    }

    /// The leg is open: what of a restored one the server may lack comes first.
    pub(crate) fn resume_uplink(&mut self, io: &mut Io<'_>) {
        let Some(leg) = &mut self.servers.leg else { return };
        let flight = std::mem::take(&mut leg.flight);
        leg.push(io, &flight);
        match (&mut self.remote, &leg.records) {
            (Some(_), Some(_)) if leg.restored => {
                // Its end need not be read again.
                leg.ended |= self.exchange.answering == ResponseState::Ended;
            }
            (Some(remote), Some(_)) => remote.release(Side::Server(leg.id), leg.in_pos),
            _ => {}
        }
        self.repeat_up(io);
    }

    /// Seals bytes for a TLS server.
    pub(crate) fn seal_up(&mut self, io: &mut Io<'_>, data: &[u8]) {
        let Some(leg) = &mut self.servers.leg else { return };
        match &mut leg.replay {
            Some(replay) => {
                replay.hold.extend_from_slice(data);
                self.repeat_up(io);
            }
            None => self.seal_up_fresh(io, data),
        }
    }

    fn seal_up_fresh(&mut self, io: &mut Io<'_>, data: &[u8]) {
        for chunk in data.chunks(PAYLOAD_MAX) {
            if self.seal_up_record(io, chunk, false).is_none() {
                return self.end_abruptly(io, "record_layer");
            }
            let records = self.servers.leg.as_ref().and_then(|leg| leg.records.as_ref());
            if records.is_some_and(|records| records.wants_key_update()) {
                self.update_up_keys(io, 0, false);
            }
        }
    }

    /// Seals one record; its tag, or `None` when the key is used up. `decided`: the backups know its boundary.
    fn seal_up_record(&mut self, io: &mut Io<'_>, chunk: &[u8], decided: bool) -> Option<u64> {
        let leg = self.servers.leg.as_mut()?;
        let records = leg.records.as_mut().filter(|_| !leg.up_ended)?;
        let (layout, first) = (records.layout(), records.tx());
        let out = &mut io.scratch.up;
        let start = out.len();
        out.resize(start + layout.header + chunk.len() + layout.trailer, 0);
        out[start + layout.header..start + layout.header + chunk.len()].copy_from_slice(chunk);
        if records.seal(ContentType::ApplicationData, &mut out[start..]).is_err() {
            out.truncate(start);
            return None;
        }
        let tag = tag_of(&out[start..]);
        leg.pushed(io, start);
        if let Some(remote) = self.remote.as_mut().filter(|_| !decided) {
            remote.note_sealed_up(leg.id, first, RecordKind::Data, chunk.len(), tag);
        }
        Some(tag)
    }

    /// The server asks for new keys of ours.
    fn answer_key_update(&mut self, io: &mut Io<'_>, generation: u32) {
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| leg.answered_keys < generation) else {
            return;
        };
        match &mut leg.replay {
            Some(replay) => replay.owed = generation,
            None => self.update_up_keys(io, generation, false),
        }
    }

    fn update_up_keys(&mut self, io: &mut Io<'_>, answers: u32, decided: bool) {
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| !leg.up_ended) else { return };
        leg.answered_keys = leg.answered_keys.max(answers);
        let Some(records) = &mut leg.records else { return };
        let (first, start) = (records.tx(), io.scratch.up.len());
        records.seal_key_update(false, &mut io.scratch.up);
        self.note_up(io, first, start, RecordKind::KeyUpdate(answers), decided);
    }

    /// Our end of a TLS server's stream, once.
    pub(crate) fn seal_end_up(&mut self, io: &mut Io<'_>) {
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| leg.records.is_some() && !leg.up_ended) else {
            return;
        };
        match leg.replay {
            // The client sent more the first time: an alert now would reuse a nonce.
            Some(_) => self.end_abruptly(io, "response_replay_mismatch"),
            None => self.seal_alert_up(io, alert::CLOSE_NOTIFY, false),
        }
    }

    fn seal_alert_up(&mut self, io: &mut Io<'_>, description: u8, decided: bool) {
        let Some(leg) = &mut self.servers.leg else { return };
        let Some(records) = &mut leg.records else { return };
        let (first, start) = (records.tx(), io.scratch.up.len());
        records.seal_alert(description, &mut io.scratch.up);
        leg.up_ended = true;
        leg.notify_at = (description == alert::CLOSE_NOTIFY).then_some(leg.out_pos);
        self.note_up(io, first, start, RecordKind::Alert(description), decided);
    }

    /// A small record lies in the server-bound buffer from `start` on, unless the key was used up.
    fn note_up(&mut self, io: &mut Io<'_>, first: Position, start: usize, kind: RecordKind, decided: bool) {
        let Some(leg) = self.servers.leg.as_mut().filter(|_| start < io.scratch.up.len()) else { return };
        let tag = tag_of(&io.scratch.up[start..]);
        leg.pushed(io, start);
        if let Some(remote) = self.remote.as_mut().filter(|_| !decided) {
            let length = if matches!(kind, RecordKind::Alert(_)) { 2 } else { 0 };
            remote.note_sealed_up(leg.id, first, kind, length, tag);
        }
    }

    /// A restored leg: records that were decided before come first, exactly as decided.
    fn repeat_up(&mut self, io: &mut Io<'_>) {
        while let Some(replay) = self.servers.leg.as_mut().and_then(|leg| leg.replay.as_mut()) {
            let Some(boundary) = replay.forced.front() else { return self.after_replay_up(io) };
            if boundary.kind == RecordKind::Data {
                let whole = length_of(boundary);
                if whole > RUN_BYTES_MAX {
                    return self.end_abruptly(io, "replay_too_long"); // no node makes such a run
                }
                if replay.hold.len() < whole {
                    return;
                }
            }
            let Some(boundary) = replay.forced.pop_front() else { return };
            if self.servers.leg.as_ref().map(|leg| leg.uplink().tx) != Some(boundary.first) {
                return self.end_abruptly(io, "response_replay_mismatch");
            }
            match boundary.kind {
                RecordKind::Data => {
                    if self.repeat_run_up(io, &boundary).is_none() {
                        return self.end_abruptly(io, "response_replay_mismatch");
                    }
                }
                RecordKind::KeyUpdate(answers) => self.update_up_keys(io, answers, true),
                RecordKind::Alert(description) => self.seal_alert_up(io, description, true),
            }
        }
    }

    /// Seals one decided run, and checks before any of it leaves that it is what it was: a client that sent other bytes
    /// the second time must not make us use a nonce twice.
    fn repeat_run_up(&mut self, io: &mut Io<'_>, boundary: &RecordLayout) -> Option<()> {
        let mut digest = 0;
        for (length, count) in &boundary.lengths {
            for _ in 0..*count {
                let replay = self.servers.leg.as_mut()?.replay.as_mut()?;
                let chunk: Vec<u8> = replay.hold.drain(..usize::from(*length)).collect();
                digest = mix_digest(digest, self.seal_up_record(io, &chunk, true)?);
            }
        }
        // Checkpoints lie between runs, so that no run comes without its digest.
        (digest == boundary.digest).then_some(())
    }

    /// All decided output is repeated: waiting output follows.
    fn after_replay_up(&mut self, io: &mut Io<'_>) {
        let Some(leg) = &mut self.servers.leg else { return };
        let Some(replay) = leg.replay.take() else { return };
        if replay.owed > leg.answered_keys {
            self.update_up_keys(io, replay.owed, false);
        }
        self.seal_up_fresh(io, &replay.hold);
    }
}
