//! Replication state of a connection with backups: the log, and the parts that decide what is queued in it and when
//! output may leave.
//!
//! Laws kept here (`docs/internals/failover.md`): an ACK is released only when the entry that makes it safe is
//! acknowledged. A layout is queued before its record leaves. A checkpoint is queued only behind the layouts of the
//! records that it covers. The parts name what they keep; this file has what changes more than one of them.

use crate::Effect;
use crate::client_checkpoints::ClientCheckpoints;
use crate::client_input::ClientInput;
use crate::deterministic_records::DeterministicRecords;
use crate::effect::Effects;
use crate::leg_releases::LegReleases;
use crate::output_releases::OutputReleases;
use crate::peer_acks::PeerAcks;
use crate::record_replay::RecordReplay;
use crate::record_runs::RecordRuns;
use crate::server_checkpoints::{RecordEnd, ServerCheckpoints};
use crate::unacked_input::ServerInput;
use evergate_replication::{
    ConnectionState, Entry, Established, Log, Phase, RecordKind, RecordPosition, Route, ServerCheckpoint,
    Side,
};
use evergate_tls::Position;

pub(crate) fn position(at: Position) -> RecordPosition {
    RecordPosition { generation: at.generation, sequence: at.sequence }
}

/// State of a connection that its backups share.
#[derive(Debug, Default)]
pub(crate) struct Replication {
    pub(crate) log: Log,
    pub(crate) client_input: ClientInput,
    pub(crate) server_input: ServerInput,
    pub(crate) client_checkpoints: ClientCheckpoints,
    pub(crate) server_checkpoints: ServerCheckpoints,
    pub(crate) acks: PeerAcks,
    pub(crate) legs: LegReleases,
    pub(crate) outputs: OutputReleases,
    runs: RecordRuns,
    pub(crate) replay: RecordReplay,
    pub(crate) deterministic: DeterministicRecords,
    /// The end is replicated.
    pub(crate) closed: bool,
}

impl Replication {
    /// What a restored connection starts from.
    pub(crate) fn of(state: &ConnectionState) -> Replication {
        let server = &state.server;
        let mut remote = Replication {
            client_input: ClientInput::of(state),
            client_checkpoints: ClientCheckpoints::starting_at(state.client.clone()),
            server_checkpoints: ServerCheckpoints::of(state),
            acks: PeerAcks::starting_at(server.output),
            replay: RecordReplay::of(state),
            deterministic: DeterministicRecords::of(state),
            closed: state.closed.is_some(),
            ..Replication::default()
        };
        if let Some(route) = state.routes.get(&server.exchange) {
            let stash = state.server_stash.get(&route.leg).map_or(&[][..], |stash| &stash.bytes);
            remote.runs.routed = route.exchange;
            remote.server_input.restore(route.leg, state.leg_input(route.leg), stash);
            remote.release(Side::Server(route.leg), remote.server_input.end());
        }
        // Everything replicated may be acknowledged: the peers then send at once.
        remote.release(Side::Client, state.client_frontier());
        remote
    }

    /// Whether all output is known to have arrived, and the next request need not wait for a leg.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.server_checkpoints.message_end.is_none() && self.legs.allow_request(&self.acks)
    }

    /// The next request begins: legs that may carry it are given back now.
    pub(crate) fn release_legs_early(&mut self, effects: &mut Effects) {
        self.perform_released(effects); // what is known by now is no exception
        self.legs.release_early(effects);
    }

    /// Whether everything up to `output` has arrived at the client and nothing waits. A deterministic end does not wait
    /// for the backups: the client has its close_notify, and an RST of another node would add nothing.
    pub(crate) fn is_drained(&self, output: u64) -> bool {
        self.acks.client >= output && !self.outputs.has_effects()
    }

    /// No message follows soon: an idle connection holds no buffer.
    pub(crate) fn on_idle(&mut self) {
        self.client_input.retained.on_idle();
        self.server_input.rest();
    }

    /// Queues the decision on a request.
    pub(crate) fn push_route(&mut self, route: Route) {
        self.runs.routed = route.exchange;
        self.log.push(Entry::Route(route));
    }

    /// Queues the end of the server's stream.
    pub(crate) fn push_server_end(&mut self, leg: u32, position: u64) {
        self.log.push(Entry::ServerEnd { exchange: self.runs.routed, leg, position });
    }

    /// Queues a whole response of our own to the exchange.
    pub(crate) fn push_generated(&mut self, exchange: u32, bytes: Vec<u8>, close: bool) {
        let answered = self.client_input.answered;
        self.log.push(Entry::Generated { exchange, answered, bytes, close });
    }

    /// Queues the session of a client whose handshake is over.
    pub(crate) fn push_established(&mut self, established: Established) {
        self.log.push(Entry::Established(established));
    }

    /// Queues the end of the connection. No output waits for an end that follows from the response before it.
    pub(crate) fn push_close(&mut self, plain: u64, abort: bool) {
        self.flush_runs();
        self.closed = true;
        let close = Entry::Close { plain, abort };
        match self.deterministic.ends_as_planned {
            true => self.log.push_deterministic(close),
            false => self.log.push(close),
        };
    }

    /// How much is retained of both peers.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.client_input.retained.len() + self.server_input.len()
    }

    /// A record was sealed: it belongs to the run that is queued before the call ends.
    pub(crate) fn note_sealed(&mut self, first: Position, kind: RecordKind, length: usize, tag: u64) {
        if self.replay.repeating {
            return;
        }
        let as_planned = self.deterministic.ends_as_planned;
        if as_planned {
            self.flush_runs();
        }
        self.runs.note_client(&mut self.log, position(first), kind, length, tag);
        if as_planned {
            self.runs.flush_deterministic(&mut self.log);
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
        self.runs.note_server(&mut self.log, leg, position(first), kind, length, tag);
    }

    /// Queues the runs of boundaries.
    pub(crate) fn flush_runs(&mut self) {
        self.runs.flush(&mut self.log);
    }

    /// The ACK of this input may be released when the newest entry is acknowledged.
    pub(crate) fn release(&mut self, side: Side, at: u64) {
        self.outputs.release(self.log.last(), side, at);
    }

    /// The effect may be performed when every entry so far is acknowledged. An end that follows from the response
    /// before it waits for no more than the response does, and leaves with it.
    pub(crate) fn defer(&mut self, effect: Effect) {
        self.flush_runs();
        let as_planned = self.deterministic.ends_as_planned;
        let after = if as_planned { self.log.decided() } else { self.log.last() };
        self.outputs.defer(after, effect);
    }

    /// A checkpoint at plaintext position `plain` is queued: legs whose responses end before are free after it.
    pub(crate) fn free_legs(&mut self, plain: u64) {
        for (leg, input) in self.legs.free(plain, self.log.last()) {
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
        self.outputs.perform(acknowledged, effects);
        self.legs.perform(acknowledged, &self.acks, effects);
    }

    /// The connection is over: nothing of it waits any more.
    pub(crate) fn release_all(&mut self, effects: &mut Effects) {
        self.legs.release_all(&self.acks, effects);
        self.outputs.forget_effects();
    }

    /// Stashes the client's or the server's input up to `to`, so that it can be acknowledged.
    pub(crate) fn stash(&mut self, side: Side, to: u64) {
        loop {
            let next = match side {
                Side::Client => self.client_input.retained.next_stash(to),
                Side::Server(leg) => self.server_input.next_stash(leg, to),
            };
            let Some((position, bytes)) = next else { return };
            let end = position + bytes.len() as u64;
            let exchange = self.runs.routed;
            self.log.push(match side {
                Side::Client => Entry::Stash { position, bytes },
                Side::Server(leg) => Entry::LegStash { exchange, leg, position, bytes },
            });
            self.release(side, end);
        }
    }

    /// Queues the newest client checkpoint whose bytes have reached their server.
    pub(crate) fn checkpoint_client(&mut self) {
        let Some(point) = self.client_checkpoints.take_reached(&self.acks, self.legs.done) else { return };
        let input = point.input;
        self.client_input.retained.drop_before(input);
        if matches!(point.phase, Phase::Head | Phase::Ended) {
            self.client_input.retained.shrink();
        }
        self.log.push(Entry::Client(point));
        self.release(Side::Client, input);
    }

    /// Queues a server checkpoint when the client has acknowledged further records.
    pub(crate) fn checkpoint_server(&mut self) {
        self.checkpoint_server_at(None);
    }

    /// A position that became known only after the client had acknowledged everything before it. No further record
    /// makes it count, and the server may wait for this acknowledgement before it sends more.
    pub(crate) fn checkpoint_server_late(&mut self) {
        if self.server_checkpoints.has_late_point() {
            self.checkpoint_server_at(Some(self.server_checkpoints.last_end));
        }
    }

    fn checkpoint_server_at(&mut self, newest: Option<RecordEnd>) {
        let known = self.server_checkpoints.last_end;
        let mut newest = self.server_checkpoints.take_record_end(self.acks.client).or(newest);
        if newest.is_none() && self.legs.waits_at(known.plain) {
            newest = Some(known); // a message ended without a further byte
        }
        let Some(end) = newest else { return };
        self.server_checkpoints.last_end = end;
        self.flush_runs();
        let point = self.server_checkpoints.take_point(end.plain);
        self.server_input.drop_before(point.leg, point.input);
        self.legs.record_bound(&mut self.log, &mut self.acks, end.plain);
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
        let message_end = &mut self.server_checkpoints.message_end;
        if message_end.is_some_and(|plain| plain <= end.plain) && end.tx >= self.deterministic.response_from {
            *message_end = None;
        }
        self.free_legs(end.plain);
    }
}

/// The effects that the entries acknowledged so far allow.
#[cfg(test)]
pub(crate) fn performed(remote: &mut Replication) -> Vec<Effect> {
    let mut effects = Effects::default();
    remote.perform_released(&mut effects);
    effects.list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_checkpoints::ServerPoint;

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
    fn a_stash_always_leaves_room_in_a_frame() {
        let mut remote = Replication::default();
        remote.server_input.retain(1, 0, &vec![7; 3 << 20], None);
        remote.stash(Side::Server(1), u64::MAX);
        let stashed: usize = remote.log.drain().map(|entry| entry.encode().unwrap().len()).sum();
        assert!(stashed > 1 << 20 && stashed < evergate_replication::FRAME_BYTES_MAX / 2);
    }

    #[test]
    fn the_next_response_waits_until_its_first_record_is_known() {
        let at = |generation, sequence| RecordPosition { generation, sequence };
        // The last record of a response was followed by a KeyUpdate, which has no plaintext.
        let mut remote = Replication::default();
        (remote.server_checkpoints.message_end, remote.deterministic.response_from) = (Some(100), at(1, 0));
        remote.server_checkpoints.push_record_end(RecordEnd {
            output: 120,
            tx: at(0, 5),
            plain: 100,
            ..RecordEnd::default()
        });
        remote.server_checkpoints.push_record_end(RecordEnd {
            output: 142,
            tx: at(1, 0),
            plain: 100,
            ..RecordEnd::default()
        });
        remote.acks.client = 120;
        remote.checkpoint_server();
        assert_eq!((remote.log.last(), remote.is_between_messages()), (1, false));
        remote.acks.client = 142;
        remote.checkpoint_server();
        assert_eq!((remote.log.last(), remote.is_between_messages()), (2, true));
    }

    #[test]
    fn last_record_of_a_direction_needs_a_checkpoint_behind_it() {
        let mut remote = Replication::default();
        remote.server_checkpoints.push_record_end(RecordEnd {
            output: 10,
            plain: 10,
            ..RecordEnd::default()
        });
        remote.server_checkpoints.push_record_end(RecordEnd {
            output: 34,
            plain: 10,
            last: true,
            ..RecordEnd::default()
        });
        remote.acks.client = 34;
        remote.checkpoint_server();
        assert_eq!(remote.server_checkpoints.last_end.output, 10, "a restored connection repeats the end");
        let phase = Phase::Ended;
        remote.server_checkpoints.push_point(ServerPoint {
            leg: 1,
            input: 9,
            rx: None,
            plain: 10,
            exchange: 1,
            phase,
        });
        remote.checkpoint_server();
        assert_eq!(remote.server_checkpoints.last_end.output, 34);
    }

    /// After a failover, a server whose stash is full is read again only after the client has everything that is known.
    #[test]
    fn a_place_that_is_known_late_makes_room_for_the_stash() {
        let mut remote = Replication::default();
        remote.acks.client = 10;
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
        remote.server_checkpoints.push_record_end(RecordEnd {
            output: 10,
            plain: 10,
            ..RecordEnd::default()
        });
        remote.checkpoint_server();
        let (exchange, phase) = (1, Phase::Body(vec![1]));
        remote.server_checkpoints.push_point(ServerPoint {
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
