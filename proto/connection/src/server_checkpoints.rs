//! Checkpoints of the server's stream: positions from which a restored connection can parse again.
//!
//! A server checkpoint may be queued when the client has acknowledged whole records.

use crate::client_checkpoints::POINTS_MAX;
use evergate_replication::{ConnectionState, Phase, RecordPosition};
use std::collections::VecDeque;

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

/// Candidates for server checkpoints, and the newest that is queued.
#[derive(Debug, Default)]
pub(crate) struct ServerCheckpoints {
    points: VecDeque<ServerPoint>,
    /// The parser point of the newest queued server checkpoint.
    newest: Option<ServerPoint>,
    record_ends: VecDeque<RecordEnd>,
    /// What the newest server checkpoint covers.
    pub(crate) last_end: RecordEnd,
    /// Where the message under way to the client ends, until a checkpoint covers it.
    pub(crate) message_end: Option<u64>,
}

impl ServerCheckpoints {
    /// What a restored connection starts from.
    pub(crate) fn of(state: &ConnectionState) -> ServerCheckpoints {
        let server = &state.server;
        ServerCheckpoints {
            last_end: RecordEnd {
                output: server.output,
                tx: server.tx,
                plain: server.plain,
                answered_keys: server.answered_keys,
                last: false,
            },
            newest: Some(ServerPoint {
                leg: server.leg,
                input: server.input,
                rx: state.leg_tls(server.leg).map(|_| server.rx),
                plain: server.point_plain,
                exchange: server.exchange,
                phase: server.phase.clone(),
            }),
            ..ServerCheckpoints::default()
        }
    }

    /// The parser point of the newest queued server checkpoint.
    pub(crate) fn newest(&self) -> Option<&ServerPoint> {
        self.newest.as_ref()
    }

    /// Notes a candidate.
    pub(crate) fn push_point(&mut self, point: ServerPoint) {
        if self.points.back().or(self.newest.as_ref()) == Some(&point) {
            return;
        }
        if self.points.len() >= POINTS_MAX {
            self.points.pop_back();
        }
        self.points.push_back(point);
    }

    /// Notes the end of a record.
    pub(crate) fn push_record_end(&mut self, end: RecordEnd) {
        if self.record_ends.len() >= POINTS_MAX {
            self.record_ends.pop_back();
        }
        self.record_ends.push_back(end);
    }

    /// Whether the newest place in the server's stream is behind its end.
    fn has_place_at_end(&self) -> bool {
        let newest = self.points.back().or(self.newest.as_ref());
        newest.is_some_and(|point| point.phase == Phase::Ended)
    }

    /// Whether a candidate became known only after the client had acknowledged everything before it.
    pub(crate) fn has_late_point(&self) -> bool {
        self.points.front().is_some_and(|point| point.plain <= self.last_end.plain)
    }

    /// The newest record whose end the client has acknowledged with its output up to `acked`.
    pub(crate) fn take_record_end(&mut self, acked: u64) -> Option<RecordEnd> {
        let mut newest = None;
        while self
            .record_ends
            .front()
            .is_some_and(|end| end.output <= acked && (!end.last || self.has_place_at_end()))
        {
            newest = self.record_ends.pop_front();
        }
        newest
    }

    /// The parser point of a checkpoint at plaintext position `plain`, which is queued now.
    pub(crate) fn take_point(&mut self, plain: u64) -> ServerPoint {
        let mut point = None;
        while self.points.front().is_some_and(|point| point.plain <= plain) {
            point = self.points.pop_front();
        }
        let base = ServerPoint { leg: 0, input: 0, rx: None, plain: 0, exchange: 0, phase: Phase::Head };
        let point = point.or_else(|| self.newest.take()).unwrap_or(base);
        self.newest = Some(point.clone());
        point
    }
}
