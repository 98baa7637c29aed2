//! Checkpoints of the client's stream: positions from which a restored connection can receive again.
//!
//! A client checkpoint may be queued when its server has acknowledged the output made from the bytes before it.

use crate::peer_acks::PeerAcks;
use evergate_replication::{ClientCheckpoint, Phase, RecordPosition};
use std::collections::VecDeque;

/// Candidates kept at most; beyond it the newest replaces the one before.
pub(crate) const POINTS_MAX: usize = 256;

/// Candidates for client checkpoints, and the newest that is queued.
#[derive(Debug, Default)]
pub(crate) struct ClientCheckpoints {
    points: VecDeque<ClientCheckpoint>,
    newest: Option<ClientCheckpoint>,
}

impl ClientCheckpoints {
    /// What a restored connection starts from.
    pub(crate) fn starting_at(newest: ClientCheckpoint) -> ClientCheckpoints {
        ClientCheckpoints { newest: Some(newest), ..ClientCheckpoints::default() }
    }

    /// The newest client checkpoint that is queued.
    pub(crate) fn newest(&self) -> Option<&ClientCheckpoint> {
        self.newest.as_ref()
    }

    /// A request may go to another server only while the client still holds all of it.
    pub(crate) fn may_reroute(&self, exchange: u32) -> bool {
        self.newest.as_ref().is_none_or(|point| {
            point.exchange < exchange || (point.exchange == exchange && point.phase == Phase::Head)
        })
    }

    /// Notes a candidate.
    pub(crate) fn push(&mut self, point: ClientCheckpoint) {
        let newest = self.points.back().or(self.newest.as_ref());
        if newest == Some(&point) {
            return; // no news
        }
        if self.points.len() >= POINTS_MAX {
            self.points.pop_back();
        }
        self.points.push_back(point);
    }

    /// The newest client checkpoint whose bytes have reached their server, to be queued. Legs up to `legs_done` do not
    /// matter any more.
    pub(crate) fn take_reached(&mut self, acks: &PeerAcks, legs_done: u32) -> Option<ClientCheckpoint> {
        let mut best = None;
        while let Some(point) = self.points.front() {
            if point.leg > legs_done && !acks.has_server(point.leg, point.output) {
                break;
            }
            best = self.points.pop_front();
        }
        let mut point = best?;
        if point.leg <= legs_done {
            (point.leg, point.output) = (0, 0);
            (point.tx, point.answered_keys, point.leg_ended) = (RecordPosition::default(), 0, false);
        }
        if self.newest.as_ref() == Some(&point) {
            return None;
        }
        self.newest = Some(point.clone());
        Some(point)
    }

    /// The request goes to another leg: what the old one acknowledged does not count.
    pub(crate) fn forget_leg(&mut self, leg: u32) {
        self.points.retain(|point| point.leg != leg);
    }
}
