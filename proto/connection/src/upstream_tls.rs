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
use crate::leg_records::length_of;
use crate::server_leg::{Failure, LegState};
use crate::{Io, Server, UpstreamTls};
use evergate_replication::{FLIGHT_BYTES_MAX, RUN_BYTES_MAX, RecordKind, RecordLayout, Side};
use evergate_tls::{
    ClientHandshake, ContentType, Opened, PAYLOAD_MAX, Position, Progress, alert, error_text,
};

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
            leg.tls.raw.clear();
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
                self.servers.leg.as_mut().map(|leg| std::mem::take(&mut leg.tls.raw)).unwrap_or_default();
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
            leg.tls.raw.extend_from_slice(&data[at..]);
            leg.tls.behind = 0;
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
        leg.tls.behind = data.len() - len;
        let Some(records) = &mut leg.tls.layer else { return data.len() };
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
                if let Some(description) =
                    error.alert().filter(|_| self.remote.is_none() && !leg.tls.up_ended)
                {
                    leg.tls.up_ended = true;
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
            leg.tls.flight.extend_from_slice(&flight);
            if matches!(outcome, Ok(Progress::NeedInput)) {
                remote.release(Side::Server(leg.id), leg.in_pos);
            }
        }
        match outcome {
            Ok(Progress::Done) if leg.tls.flight.len() <= FLIGHT_BYTES_MAX => self.finish_leg_handshake(io),
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
        leg.tls.layer = Some(Box::new(finished.records));
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
        let flight = std::mem::take(&mut leg.tls.flight);
        leg.push(io, &flight);
        match (&mut self.remote, &leg.tls.layer) {
            (Some(_), Some(_)) if leg.restored => {
                // Its end need not be read again.
                leg.response.ended |= self.exchange.answering == ResponseState::Ended;
            }
            (Some(remote), Some(_)) => remote.release(Side::Server(leg.id), leg.in_pos),
            _ => {}
        }
        self.repeat_up(io);
    }

    /// Seals bytes for a TLS server.
    pub(crate) fn seal_up(&mut self, io: &mut Io<'_>, data: &[u8]) {
        let Some(leg) = &mut self.servers.leg else { return };
        match &mut leg.tls.replay {
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
            let records = self.servers.leg.as_ref().and_then(|leg| leg.tls.layer.as_ref());
            if records.is_some_and(|records| records.wants_key_update()) {
                self.update_up_keys(io, 0, false);
            }
        }
    }

    /// Seals one record; its tag, or `None` when the key is used up. `decided`: the backups know its boundary.
    fn seal_up_record(&mut self, io: &mut Io<'_>, chunk: &[u8], decided: bool) -> Option<u64> {
        let leg = self.servers.leg.as_mut()?;
        let records = leg.tls.layer.as_mut().filter(|_| !leg.tls.up_ended)?;
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
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| leg.tls.answered_keys < generation) else {
            return;
        };
        match &mut leg.tls.replay {
            Some(replay) => replay.owed = generation,
            None => self.update_up_keys(io, generation, false),
        }
    }

    fn update_up_keys(&mut self, io: &mut Io<'_>, answers: u32, decided: bool) {
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| !leg.tls.up_ended) else { return };
        leg.tls.answered_keys = leg.tls.answered_keys.max(answers);
        let Some(records) = &mut leg.tls.layer else { return };
        let (first, start) = (records.tx(), io.scratch.up.len());
        records.seal_key_update(false, &mut io.scratch.up);
        self.note_up(io, first, start, RecordKind::KeyUpdate(answers), decided);
    }

    /// Our end of a TLS server's stream, once.
    pub(crate) fn seal_end_up(&mut self, io: &mut Io<'_>) {
        let Some(leg) = self.servers.leg.as_mut().filter(|leg| leg.tls.layer.is_some() && !leg.tls.up_ended)
        else {
            return;
        };
        match leg.tls.replay {
            // The client sent more the first time: an alert now would reuse a nonce.
            Some(_) => self.end_abruptly(io, "response_replay_mismatch"),
            None => self.seal_alert_up(io, alert::CLOSE_NOTIFY, false),
        }
    }

    fn seal_alert_up(&mut self, io: &mut Io<'_>, description: u8, decided: bool) {
        let Some(leg) = &mut self.servers.leg else { return };
        let Some(records) = &mut leg.tls.layer else { return };
        let (first, start) = (records.tx(), io.scratch.up.len());
        records.seal_alert(description, &mut io.scratch.up);
        leg.tls.up_ended = true;
        leg.tls.notify_at = (description == alert::CLOSE_NOTIFY).then_some(leg.out_pos);
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
        while let Some(replay) = self.servers.leg.as_mut().and_then(|leg| leg.tls.replay.as_mut()) {
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
            if self.servers.leg.as_ref().map(|leg| leg.tls.uplink().tx) != Some(boundary.first) {
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
                let replay = self.servers.leg.as_mut()?.tls.replay.as_mut()?;
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
        let Some(replay) = leg.tls.replay.take() else { return };
        if replay.owed > leg.tls.answered_keys {
            self.update_up_keys(io, replay.owed, false);
        }
        self.seal_up_fresh(io, &replay.hold);
    }
}
