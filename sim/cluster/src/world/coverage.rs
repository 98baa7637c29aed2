//! What has really happened in a run: a fault that is planned need not find anything to hit.

use super::World;
use crate::event_queue::Time;
use evergate_membership::{Bucket, Role};
use std::ops::AddAssign;

/// Counts of one run, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Processes that ended, with their machines or without.
    pub deaths: u64,
    /// ... while a node gave its buckets away: it still had some, or some had just come to another.
    pub deaths_amid_drain: u64,
    /// ... of the node that gave them away, or had just done so.
    pub deaths_of_drained: u64,
    /// ... while a bucket was quiet and about to move.
    pub deaths_amid_move: u64,
    /// Processes that started while a node gave its buckets away.
    pub joins_amid_drain: u64,
    /// Mirror channels on which nobody answered.
    pub channels_given_up: u64,
    /// Turns after which frames waited for others.
    pub frames_held: u64,
    /// Connections that went on elsewhere while nothing of them was on its way.
    pub rested: u64,
    /// Those of them whose clients spoke first.
    pub knocked: u64,
    /// Tickets that left because part of a request was acknowledged.
    pub tickets_along: u64,
    /// Calls after which entries waited for later ones of their connection.
    pub entries_kept: u64,
    /// Processes, and machines, that stood still and went on.
    pub resumptions: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.deaths += other.deaths;
        self.deaths_amid_drain += other.deaths_amid_drain;
        self.deaths_of_drained += other.deaths_of_drained;
        self.deaths_amid_move += other.deaths_amid_move;
        self.joins_amid_drain += other.joins_amid_drain;
        self.channels_given_up += other.channels_given_up;
        self.frames_held += other.frames_held;
        self.rested += other.rested;
        self.knocked += other.knocked;
        self.tickets_along += other.tickets_along;
        self.entries_kept += other.entries_kept;
        self.resumptions += other.resumptions;
    }
}

impl World {
    /// What has happened until now.
    pub fn tally(&self) -> Tally {
        let mut tally = self.tally;
        for worker in self.hosts.iter().filter_map(|host| host.worker.as_ref()) {
            tally.rested += worker.rested;
            tally.knocked += worker.knocked;
            tally.tickets_along += worker.tickets_along;
            tally.entries_kept += worker.entries_kept;
        }
        tally
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = Bucket> + use<> {
        (0..self.template.config.buckets).map(Bucket)
    }

    /// When a node that gives its buckets away first had none and counted as nobody's backup, since the start.
    pub fn drained_at(&self) -> Option<Time> {
        self.drained_at.map(|at| at - self.started)
    }

    /// The agent of this node has acted.
    pub(super) fn note_drained(&mut self, host: usize) {
        let it = &self.hosts[host];
        let outside = |bucket| matches!(it.node.role(bucket), Role::Outside { .. });
        if it.draining && self.drained_at.is_none() && self.buckets().all(outside) {
            self.drained_at = Some(self.now);
        }
    }

    fn gives_away(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        it.draining && it.runs() && self.buckets().any(|bucket| it.owns(bucket))
    }

    fn is_amid_drain(&self) -> bool {
        let comes = |host: usize| {
            let worker = self.hosts[host].worker.as_ref();
            worker.is_some_and(|worker| self.buckets().any(|bucket| worker.is_taking(bucket)))
        };
        let drains = self.hosts.iter().any(|host| host.draining && host.runs());
        (0..self.hosts.len()).any(|host| self.gives_away(host) || (drains && comes(host)))
    }

    /// The process of this node is about to end.
    pub(super) fn count_death(&mut self, host: usize) {
        if self.hosts[host].worker.is_none() {
            return;
        }
        let quiet = |bucket| {
            let role = |host: &super::Host| host.node.role(bucket);
            let freezes = |role| matches!(role, Role::Owner { freeze_for: Some(_), .. });
            self.hosts.iter().any(|host| host.runs() && freezes(role(host)))
        };
        let amid_move = self.buckets().any(quiet);
        let (amid_drain, drained) = (self.is_amid_drain(), self.hosts[host].draining);
        self.tally.deaths += 1;
        self.tally.deaths_amid_drain += u64::from(amid_drain);
        self.tally.deaths_of_drained += u64::from(drained);
        self.tally.deaths_amid_move += u64::from(amid_move);
    }

    /// A process starts.
    pub(super) fn count_join(&mut self) {
        self.tally.joins_amid_drain += u64::from(self.is_amid_drain());
    }
}
