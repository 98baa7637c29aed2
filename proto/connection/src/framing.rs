//! Plaintext becomes records: sealed where it lies, or copied when a restored connection must repeat records that were
//! decided, or planned.

use crate::Io;
use crate::client_leg::ClientTls;
use crate::close::ends;
use crate::connection::Connection;
use crate::exchange::ResponseState;
use crate::leg_records::length_of;
use evergate_replication::{RUN_BYTES_MAX, RecordKind, RecordLayout};
use evergate_tls::{ContentType, PAYLOAD_MAX, alert};
use std::ops::Range;

/// What a boundary's digest is folded from: the last eight bytes of a record, which are part of its tag.
pub(crate) fn tag_of(record: &[u8]) -> u64 {
    let mut tag = [0u8; 8];
    if let Some(end) = record.len().checked_sub(8) {
        tag.copy_from_slice(&record[end..]);
    }
    u64::from_le_bytes(tag)
}

/// Folds one more tag into a digest.
pub(crate) fn mix_digest(digest: u64, tag: u64) -> u64 {
    (digest.rotate_left(5) ^ tag).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Connection {
    /// Wire bytes after everything else: a handshake flight, or what is sealed already.
    pub(crate) fn send_wire(&mut self, io: &mut Io<'_>, bytes: &[u8]) {
        self.client.out_pos += bytes.len() as u64;
        io.scratch.down.extra().extend_from_slice(bytes);
    }

    /// Sealed records after everything else.
    pub(crate) fn send_sealed(&mut self, io: &mut Io<'_>, bytes: &[u8]) {
        self.send_wire(io, bytes);
        self.note_record_end();
    }

    /// Plaintext in order, by copying.
    pub(crate) fn frame(&mut self, io: &mut Io<'_>, mut data: &[u8]) {
        if let Some(remote) = &mut self.remote {
            if remote.replay.skip > 0 {
                let skip = remote.replay.skip.min(data.len() as u64) as usize;
                remote.replay.skip -= skip as u64;
                data = &data[skip..];
            }
            if remote.holds_back() {
                return self.frame_repeating(io, data);
            }
        }
        self.send_buffered(io);
        self.frame_fresh(io, data);
    }

    /// Plaintext for decided records: held until a run is complete, a batch at a time.
    fn frame_repeating(&mut self, io: &mut Io<'_>, mut data: &[u8]) {
        while !data.is_empty() && !self.end.is_closing() && !self.end.is_closed() && !self.end.is_sent() {
            let Some(remote) = self.remote.as_mut().filter(|remote| remote.holds_back()) else {
                return self.frame_fresh(io, data);
            };
            let room = RUN_BYTES_MAX.saturating_sub(remote.replay.hold.len());
            if room == 0 {
                return self.end_abruptly(io, "replay_too_long"); // no node makes such a run
            }
            let (now, later) = data.split_at(room.min(data.len()));
            remote.replay.hold.extend_from_slice(now);
            data = later;
            self.frame_decided(io);
        }
    }

    pub(crate) fn frame_fresh(&mut self, io: &mut Io<'_>, data: &[u8]) {
        if matches!(self.client.tls, ClientTls::Plain) {
            let end_at = self.remote.as_ref().and_then(|remote| remote.replay.end_at).unwrap_or(u64::MAX);
            let length = (data.len() as u64).min(end_at.saturating_sub(self.client.plain_pos));
            self.client.plain_pos += length;
            self.send_wire(io, &data[..length as usize]);
            if length > 0 {
                self.note_record_end();
            }
            if self.client.plain_pos == end_at && !self.end.is_closing() {
                self.end_after_alert(io, "");
            }
            return;
        }
        let mut left = data.len();
        for chunk in data.chunks(PAYLOAD_MAX) {
            left -= chunk.len();
            let planned = self.is_deterministic(chunk.len(), left == 0);
            if self.repeat_if(planned, |connection| connection.seal_copy(io, chunk)).is_none() {
                return;
            }
        }
    }

    /// Seals one record from a copy; its tag, or `None` when the record layer refuses.
    pub(crate) fn seal_copy(&mut self, io: &mut Io<'_>, chunk: &[u8]) -> Option<u64> {
        let ClientTls::Open(records) = &mut self.client.tls else { return None };
        let layout = records.layout();
        let first = records.tx();
        let out = io.scratch.down.extra();
        let start = out.len();
        out.resize(start + layout.header + chunk.len() + layout.trailer, 0);
        out[start + layout.header..start + layout.header + chunk.len()].copy_from_slice(chunk);
        if records.seal(ContentType::ApplicationData, &mut out[start..]).is_err() {
            out.truncate(start);
            self.end_abruptly(io, "record_layer");
            return None;
        }
        let tag = tag_of(&out[start..]);
        let sealed = (out.len() - start) as u64;
        self.sealed(io, first, chunk.len(), sealed, tag);
        Some(tag)
    }

    /// Seals the payload at `range` of the slots where it lies and makes it ready.
    pub(crate) fn seal_in_place(&mut self, io: &mut Io<'_>, range: Range<usize>) {
        if !range.is_empty() {
            let planned = self.is_deterministic(range.len(), true);
            self.repeat_if(planned, |connection| connection.seal_slot(io, range));
        }
    }

    fn seal_slot(&mut self, io: &mut Io<'_>, range: Range<usize>) {
        let length = range.len();
        match &mut self.client.tls {
            ClientTls::Open(records) => {
                let layout = records.layout();
                let first = records.tx();
                let slot = range.start - layout.header..range.end + layout.trailer;
                if records.seal(ContentType::ApplicationData, io.scratch.down.at_mut(slot.clone())).is_err() {
                    return self.end_abruptly(io, "record_layer");
                }
                let tag = if self.remote.is_some() { tag_of(io.scratch.down.at(slot.clone())) } else { 0 };
                let sealed = slot.len() as u64;
                io.scratch.down.publish(slot);
                self.sealed(io, first, length, sealed, tag);
            }
            _ => {
                io.scratch.down.publish(range);
                self.client.out_pos += length as u64;
                self.client.plain_pos += length as u64;
                self.note_record_end();
            }
        }
    }

    fn sealed(
        &mut self,
        io: &mut Io<'_>,
        first: evergate_tls::Position,
        length: usize,
        sealed: u64,
        tag: u64,
    ) {
        self.client.out_pos += sealed;
        self.client.plain_pos += length as u64;
        if let Some(remote) = &mut self.remote {
            remote.note_sealed(first, RecordKind::Data, length, tag);
        }
        self.note_record_end();
        let wants_update = matches!(&self.client.tls, ClientTls::Open(records) if records.wants_key_update());
        if wants_update && !self.remote.as_ref().is_some_and(|remote| remote.replay.is_repeating()) {
            self.repeat_if(false, |connection| connection.send_key_update(io, 0));
        }
    }

    /// A restored connection: records that were decided before come first, exactly as decided.
    pub(crate) fn frame_decided(&mut self, io: &mut Io<'_>) {
        loop {
            let next = self.next_record();
            let Some(remote) = &mut self.remote else { return };
            let Some(boundary) = remote.replay.forced.front() else {
                match self.is_still_resumed() {
                    true if self.repeat_deterministic(io) => continue,
                    true => return self.send_undecided(io),
                    false => break,
                }
            };
            let (first, kind) = (boundary.first, boundary.kind);
            if next.is_some_and(|next| next < first) && self.is_still_resumed() {
                match self.repeat_deterministic(io) {
                    true => continue,
                    false => return,
                }
            }
            let Some(remote) = &mut self.remote else { return };
            let Some(boundary) = remote.replay.forced.front() else { return };
            match kind {
                RecordKind::Data => {
                    let Some((length, _)) = boundary.lengths.first().copied() else {
                        remote.replay.forced.pop_front();
                        continue;
                    };
                    // With a digest the whole run is checked before any of it leaves.
                    let needed = if boundary.digest == 0 { usize::from(length) } else { length_of(boundary) };
                    if remote.replay.hold.len() < needed {
                        return;
                    }
                    let chunk: Vec<u8> = remote.replay.hold.drain(..usize::from(length)).collect();
                    if self.next_record() != Some(first) || self.repeat_record(io, &chunk).is_none() {
                        return self.end_abruptly(io, "response_replay_mismatch");
                    }
                }
                RecordKind::KeyUpdate(answers) => {
                    remote.replay.forced.pop_front();
                    if self.next_record() != Some(first) {
                        return self.end_abruptly(io, "response_replay_mismatch");
                    }
                    self.repeat(|connection| connection.send_key_update(io, answers));
                }
                RecordKind::Alert(description) if !ends(description) => {
                    remote.replay.forced.pop_front();
                    if self.next_record() != Some(first) {
                        return self.end_abruptly(io, "response_replay_mismatch");
                    }
                    self.repeat(|connection| connection.send_alert(io, description));
                }
                RecordKind::Alert(description) => {
                    remote.replay.forced.clear();
                    remote.replay.hold.clear();
                    return self.repeat_alert(io, description);
                }
            }
            if self.end.is_closed() {
                return;
            }
        }
        self.after_replay(io);
    }

    /// Makes records that the backups know already.
    pub(crate) fn repeat<R>(&mut self, step: impl FnOnce(&mut Connection) -> R) -> R {
        self.repeat_if(true, step)
    }

    /// Makes records that the backups know already, or must receive.
    pub(crate) fn repeat_if<R>(&mut self, known: bool, step: impl FnOnce(&mut Connection) -> R) -> R {
        let set = |connection: &mut Connection, known| {
            let remote = connection.remote.as_mut();
            remote.is_some_and(|remote| std::mem::replace(&mut remote.replay.repeating, known))
        };
        let before = set(self, known);
        let result = step(self);
        set(self, before);
        result
    }

    /// The end that was decided before: of the connection, or of a tunnel's one direction.
    fn repeat_alert(&mut self, io: &mut Io<'_>, description: u8) {
        let closed = self.remote.as_ref().is_some_and(|remote| remote.closed);
        let tunnel = matches!(self.exchange.answering, ResponseState::Tunnel | ResponseState::Ended);
        let half = description == alert::CLOSE_NOTIFY && tunnel && !closed;
        if half {
            self.exchange.answering = ResponseState::Ended;
        }
        self.repeat(|connection| connection.send_alert(io, description));
        if half {
            if let Some(remote) = &mut self.remote {
                remote.replay.skip = 0; // what the client has is all it gets
            }
            self.note_server_point();
            self.shutdown_client(io);
            self.after_replay(io);
        } else {
            self.end_after_alert(io, "");
        }
    }

    pub(crate) fn next_record(&self) -> Option<evergate_replication::RecordPosition> {
        match &self.client.tls {
            ClientTls::Open(records) => Some(crate::replication::position(records.tx())),
            _ => None,
        }
    }

    /// Seals one decided record and checks the run's digest at its end: a peer that sent other bytes the second time
    /// must not make us use a nonce twice.
    fn repeat_record(&mut self, io: &mut Io<'_>, chunk: &[u8]) -> Option<()> {
        let before = io.scratch.down.extra().len();
        let tag = self.repeat(|connection| connection.seal_copy(io, chunk))?;
        let remote = self.remote.as_mut()?;
        remote.replay.digest = mix_digest(remote.replay.digest, tag);
        let boundary = remote.replay.forced.front_mut()?;
        boundary.first.sequence += 1;
        let (_, count) = boundary.lengths.first_mut()?;
        *count -= 1;
        if *count == 0 {
            boundary.lengths.remove(0);
        }
        if boundary.lengths.is_empty() {
            let expected = boundary.digest;
            let computed = std::mem::take(&mut remote.replay.digest);
            remote.replay.forced.pop_front();
            if expected != 0 && expected != computed {
                io.scratch.down.extra().truncate(before);
                io.scratch.down.clear();
                return None;
            }
        }
        Some(())
    }

    /// All decided output is repeated: waiting output follows.
    pub(crate) fn after_replay(&mut self, io: &mut Io<'_>) {
        let Some(remote) = &mut self.remote else { return };
        let owed = std::mem::take(&mut remote.replay.owed);
        let hold = std::mem::take(&mut remote.replay.hold);
        let end = remote.replay.end_after_replay.take();
        if owed > self.client.answered_keys && !self.end.is_sent() {
            self.send_key_update(io, owed);
        }
        self.frame_fresh(io, &hold);
        if let Some((description, reason)) = end {
            self.end_with_alert(io, description, reason);
        }
    }
}

/// Adds one record to a run of boundaries.
pub(crate) fn extend(boundary: &mut RecordLayout, length: usize, tag: u64) {
    let length = length.min(PAYLOAD_MAX) as u16;
    match boundary.lengths.last_mut() {
        Some((last, count)) if *last == length => *count += 1,
        _ => boundary.lengths.push((length, 1)),
    }
    boundary.digest = mix_digest(boundary.digest, tag);
}
