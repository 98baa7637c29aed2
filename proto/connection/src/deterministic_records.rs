//! Records that need no entry, because every node makes them in the same way.
//!
//! A response whose head gives its length is *deterministic*: each of its records is full, or ends the response. A
//! restored connection makes the very same records from the bytes that the server resends, so the records leave without
//! a round to the backups. The same holds for the close_notify after a request with `Connection: close`. Every other
//! record is decided by an entry, also one inside such a response that could not wait until it is full.
//!
//! Law (`docs/internals/failover.md`): a record of a deterministic response that no entry names is full or the last,
//! and one of the response's first, or reserved. Consequence: within that range a restored connection sends nothing
//! else, because it does not know what was sent. Bodies without a length are not deterministic: a restored connection
//! might wait forever for the bytes of a record.

use crate::Io;
use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::exchange::ResponseState;
use crate::record_replay::RecordReplay;
use crate::replication::Replication;
use evergate_http::Body;
use evergate_replication::{ConnectionState, Entry, Log, RecordPosition};
use evergate_tls::PAYLOAD_MAX;

/// So many records from a response's beginning on may leave as planned without being reserved: short responses.
const FIRST_RECORDS: u64 = 6;
/// So many are reserved at a time.
const RESERVED_RECORDS: u64 = 256;

/// Which records of a response may leave without an entry.
#[derive(Debug, Default)]
pub(crate) struct DeterministicRecords {
    /// The response under way is planned: its head gives its length.
    pub(crate) planned: bool,
    /// Latest position of the records at the response's start.
    pub(crate) response_from: RecordPosition,
    /// How far the response's records may leave without an entry.
    reserved: RecordPosition,
    /// What is requested: the entry, and how far the records may leave when the backups hold it.
    reserving: Option<(u64, RecordPosition)>,
    /// The connection's end that is being written follows from the response before it.
    pub(crate) ends_as_planned: bool,
}

impl DeterministicRecords {
    /// What a restored connection starts from.
    pub(crate) fn of(state: &ConnectionState) -> DeterministicRecords {
        let server = &state.server;
        let reserved = state.reserved.filter(|(exchange, _)| *exchange == server.exchange);
        DeterministicRecords {
            response_from: state.response_from.unwrap_or(server.tx),
            reserved: reserved.unwrap_or_default().1,
            ..DeterministicRecords::default()
        }
    }

    /// Another response may begin with the record at `next`.
    fn begin_at(&mut self, next: RecordPosition) {
        (self.response_from, self.reserved, self.reserving) = (next, RecordPosition::default(), None);
    }

    /// Whether a record may leave as planned: one of the first of its response, or one that the backups expect.
    fn allow(&self, record: RecordPosition, log: &Log) -> bool {
        let reserved = match self.reserving {
            Some((entry, until)) if entry <= log.acknowledged() => until,
            _ => self.reserved,
        };
        let first = self.response_from.sequence.saturating_add(FIRST_RECORDS);
        record < RecordPosition { sequence: first, ..self.response_from } || record < reserved
    }

    /// Asks for more records that may leave as planned, well before they are used up.
    fn reserve(&mut self, log: &mut Log, exchange: u32, next: RecordPosition) {
        if let Some((entry, until)) = self.reserving {
            if entry > log.acknowledged() {
                return;
            }
            (self.reserved, self.reserving) = (until, None);
        }
        let left = match self.reserved.generation == next.generation {
            true => self.reserved.sequence.saturating_sub(next.sequence),
            false => 0,
        };
        if left < RESERVED_RECORDS / 2 {
            let sequence = next.sequence.saturating_add(RESERVED_RECORDS);
            let until = RecordPosition { sequence, ..next };
            self.reserving = Some((log.push(Entry::Reserve { exchange, until }), until));
        }
    }
}

impl Replication {
    /// Whether what is to be sent waits until it makes a record that was decided, or may have been sent as planned.
    pub(crate) fn holds_back(&self) -> bool {
        self.replay.replays() || (self.replay.resumed && self.deterministic.planned)
    }
}

impl Connection {
    /// A response begins; `framed`: its length is known.
    pub(crate) fn begin_deterministic(&mut self, framed: bool) {
        let sealed = matches!(self.client.tls, ClientTls::Open(_));
        let leg = self.servers.leg.as_ref().filter(|leg| !leg.is_tls()).map_or(0, |leg| leg.id);
        if let Some(remote) = &mut self.remote {
            remote.deterministic.planned = framed && sealed;
            // What is not planned was sent with entries or not at all.
            remote.replay.resumed &= remote.deterministic.planned;
            let passed_on = remote.deterministic.planned && !remote.replay.is_repeating();
            remote.server_input.pass_on(if passed_on { leg } else { 0 });
        }
    }

    /// A restored connection continues the response that its server leg carries.
    pub(crate) fn resume_deterministic(&mut self) {
        let sealed = matches!(self.client.tls, ClientTls::Open(_));
        let within = matches!(self.exchange.answering, ResponseState::Body(Body::Length { .. }));
        if let Some(remote) = &mut self.remote {
            remote.deterministic.planned = sealed && within;
            remote.replay.resumed = sealed && (within || self.exchange.answering == ResponseState::Head);
        }
    }

    /// Whether a record of so many bytes is as planned. `last`: nothing of what is in hand follows it.
    pub(crate) fn is_deterministic(&self, length: usize, last: bool) -> bool {
        let ends = last && self.exchange.answering == ResponseState::Body(Body::Done);
        (ends || length == PAYLOAD_MAX) && self.may_plan()
    }

    fn may_plan(&self) -> bool {
        let Some(remote) = self.remote.as_ref().filter(|remote| remote.deterministic.planned) else {
            return false;
        };
        self.next_record().is_some_and(|next| remote.deterministic.allow(next, &remote.log))
    }

    /// A fast response fills its records: more of them are to leave as planned.
    pub(crate) fn reserve_records(&mut self) {
        let (request, next) = (self.exchange.number(), self.next_record());
        let continues = self.exchange.body_left() > PAYLOAD_MAX as u64;
        if let (Some(remote), Some(next), true) = (&mut self.remote, next, continues)
            && remote.deterministic.planned
            && !remote.replay.is_repeating()
        {
            remote.deterministic.reserve(&mut remote.log, request, next);
        }
    }

    /// Another response may begin after the records so far.
    pub(crate) fn note_response_from(&mut self) {
        if let (Some(next), Some(remote)) = (self.next_record(), &mut self.remote) {
            remote.deterministic.begin_at(next);
        }
    }

    /// A restored connection: whether the node before may have sent the next record without an entry. If it cannot
    /// have, it cannot have sent a later record either.
    pub(crate) fn is_still_resumed(&mut self) -> bool {
        let next = self.next_record();
        let Some(remote) = self.remote.as_mut().filter(|remote| remote.replay.resumed) else { return false };
        remote.replay.resumed = next.is_some_and(|next| remote.deterministic.allow(next, &remote.log));
        remote.replay.resumed
    }

    /// Whether so many bytes, the newest of a body, are kept back until more fills their record.
    pub(crate) fn waits_for_more(&self, length: usize) -> bool {
        let continues = self.exchange.body_left() > length as u64;
        continues
            && self.may_plan()
            && self.remote.as_ref().is_some_and(|remote| !remote.replay.is_repeating())
    }

    /// What was kept back is sent as a record of its own; whether there was something.
    pub(crate) fn send_buffered(&mut self, io: &mut Io<'_>) -> bool {
        let held = match &mut self.remote {
            Some(remote) if !remote.replay.is_repeating() => std::mem::take(&mut remote.replay.hold),
            _ => return false,
        };
        if !held.is_empty() {
            self.seal_copy(io, &held);
        }
        !held.is_empty()
    }

    /// A restored connection: the next record as planned, if it is full; whether it was.
    pub(crate) fn repeat_deterministic(&mut self, io: &mut Io<'_>) -> bool {
        let Some(remote) = self.remote.as_mut().filter(|remote| remote.deterministic.planned) else {
            return false;
        };
        if remote.replay.hold.len() < PAYLOAD_MAX {
            return false;
        }
        let record: Vec<u8> = remote.replay.hold.drain(..PAYLOAD_MAX).collect();
        self.repeat(|connection| connection.seal_copy(io, &record)).is_some()
    }

    /// A restored connection: what comes before a response (100, 103) was sent with entries or not at all.
    pub(crate) fn send_undecided(&mut self, io: &mut Io<'_>) {
        if let Some(remote) = self.remote.as_mut().filter(|remote| !remote.deterministic.planned) {
            let held = std::mem::take(&mut remote.replay.hold);
            self.frame_fresh(io, &held);
        }
    }

    /// A restored connection, when nothing keeps it from sending any more: what waited for that.
    pub(crate) fn send_waiting(&mut self, io: &mut Io<'_>) {
        let waits = |replay: &RecordReplay| !replay.is_repeating() && replay.has_waiting();
        if self.remote.as_ref().is_some_and(|remote| waits(&remote.replay)) {
            self.after_replay(io);
        }
    }

    /// The response under way is whole; whether the end of the connection is planned to follow it.
    pub(crate) fn end_deterministic(&mut self, io: &mut Io<'_>) -> bool {
        self.is_still_resumed();
        let next = self.next_record();
        let closes = self.servers.leg.as_ref().is_some_and(|leg| leg.route.flags.close) && self.may_plan();
        let Some(remote) = &mut self.remote else { return false };
        let planned = std::mem::take(&mut remote.deterministic.planned);
        if !remote.replay.resumed {
            if !remote.replay.replays() {
                remote.replay.hold = Vec::new(); // an idle connection holds no buffer
            }
            return planned && closes;
        }
        remote.replay.resumed = false;
        let held = std::mem::take(&mut remote.replay.hold);
        let decided = remote.replay.forced.front().is_some_and(|boundary| Some(boundary.first) == next);
        if !held.is_empty() {
            if !planned || decided {
                self.end_abruptly(io, "response_replay_mismatch"); // the first time it was longer
                return false;
            }
            self.repeat(|connection| connection.seal_copy(io, &held));
        }
        if let Some(remote) = self.remote.as_mut().filter(|_| planned && closes) {
            (remote.replay.owed, remote.replay.end_after_replay) = (0, None); // its place is the end's
        }
        self.frame_decided(io);
        planned && closes
    }

    /// The connection ends after its last response.
    pub(crate) fn end_deterministically(&mut self, io: &mut Io<'_>, planned: bool) {
        if let Some(remote) = &mut self.remote {
            remote.deterministic.ends_as_planned = planned;
        }
        self.end_orderly(io, "");
        if let Some(remote) = &mut self.remote {
            remote.deterministic.ends_as_planned = false;
        }
    }

    /// The connection ends: nothing is kept back any more.
    pub(crate) fn forget_deterministic(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.replay.hold = Vec::new();
            (remote.deterministic.planned, remote.replay.resumed) = (false, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(generation: u32, sequence: u64) -> RecordPosition {
        RecordPosition { generation, sequence }
    }

    #[test]
    fn deterministic_records_are_bounded_by_what_backups_expect() {
        let (mut log, mut records) = (Log::default(), DeterministicRecords::default());
        records.begin_at(at(1, 10));
        assert!(records.allow(at(1, 15), &log) && !records.allow(at(1, 16), &log));
        records.reserve(&mut log, 0, at(1, 16));
        assert!(!records.allow(at(1, 16), &log), "not before they know");
        log.handle_acknowledged(1);
        assert!(records.allow(at(1, 271), &log) && !records.allow(at(1, 272), &log));
        records.reserve(&mut log, 0, at(1, 100));
        assert_eq!(log.last(), 1, "there is enough left");
        records.reserve(&mut log, 0, at(2, 0));
        log.handle_acknowledged(2);
        assert!(records.allow(at(2, 255), &log) && !records.allow(at(2, 256), &log));
        assert!(records.allow(at(1, 50), &log), "another node continues before the key update");
    }
}
