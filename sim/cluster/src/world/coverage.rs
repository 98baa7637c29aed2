//! Events that really happened in a run: a planned fault may have no effect.

use super::World;
use crate::event_queue::Time;
use crate::model_host::StepCounts;
use evergate_membership::{Bucket, Role, TransitionSet};
use std::ops::AddAssign;

/// Counts of one run, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Processes that ended, with or without their machines.
    pub failures: u64,
    /// Of these, during a drain: the node still had buckets, or some had just arrived at another node.
    pub failures_amid_drain: u64,
    /// Of these, at the draining node, or just after its drain.
    pub failures_of_drained: u64,
    /// Of these, while a bucket was frozen for a handoff.
    pub failures_amid_move: u64,
    /// Processes that started during a drain.
    pub joins_amid_drain: u64,
    /// Replication channels that were closed because the backup was silent.
    pub channels_closed: u64,
    /// Turns after which frames waited for further ones.
    pub frames_batched: u64,
    /// Connections that resumed at another node and were idle.
    pub idle_resumed: u64,
    /// Of these, connections whose client sent the first segment.
    pub early_resumed: u64,
    /// Tickets that left because part of a request was acknowledged.
    pub tickets_with_acks: u64,
    /// Calls after which entries waited for later ones of their connection.
    pub entries_batched: u64,
    /// Processes and machines that stopped for a time and continued.
    pub resumptions: u64,
    /// Transitions of the phase that the membership protocol took.
    pub transitions: TransitionSet,
}

impl Coverage {
    /// Adds the steps of a process.
    pub(super) fn add_steps(&mut self, steps: StepCounts) {
        self.idle_resumed += steps.idle_resumed;
        self.early_resumed += steps.early_resumed;
        self.tickets_with_acks += steps.tickets_with_acks;
        self.entries_batched += steps.entries_batched;
    }
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, other: Coverage) {
        self.failures += other.failures;
        self.failures_amid_drain += other.failures_amid_drain;
        self.failures_of_drained += other.failures_of_drained;
        self.failures_amid_move += other.failures_amid_move;
        self.joins_amid_drain += other.joins_amid_drain;
        self.channels_closed += other.channels_closed;
        self.frames_batched += other.frames_batched;
        self.idle_resumed += other.idle_resumed;
        self.early_resumed += other.early_resumed;
        self.tickets_with_acks += other.tickets_with_acks;
        self.entries_batched += other.entries_batched;
        self.resumptions += other.resumptions;
        self.transitions = self.transitions.union(other.transitions);
    }
}

impl World {
    /// Counts so far.
    pub fn coverage(&self) -> Coverage {
        let mut coverage = self.coverage;
        for host in self.hosts.iter().filter(|host| host.process.is_some()) {
            coverage.add_steps(host.machine.borrow().steps.counts);
        }
        coverage
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = Bucket> + use<> {
        (0..self.template.config.buckets).map(Bucket)
    }

    /// First time since the start at which a draining node had no bucket and was no required backup.
    pub fn drained_at(&self) -> Option<Time> {
        self.drained_at.map(|at| at - self.started)
    }

    /// Records the end of a drain, after the agent of this node has acted.
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
            let process = self.hosts[host].process.as_ref();
            process.is_some_and(|process| self.buckets().any(|bucket| process.worker.is_recovering(bucket)))
        };
        let drains = self.hosts.iter().any(|host| host.draining && host.runs());
        (0..self.hosts.len()).any(|host| self.gives_away(host) || (drains && comes(host)))
    }

    /// Counts the imminent end of this node's process.
    pub(super) fn count_failure(&mut self, host: usize) {
        if self.hosts[host].process.is_none() {
            return;
        }
        let quiet = |bucket| {
            let role = |host: &super::Host| host.node.role(bucket);
            let freezes = |role| matches!(role, Role::Owner { freeze_for: Some(_), .. });
            self.hosts.iter().any(|host| host.runs() && freezes(role(host)))
        };
        let amid_move = self.buckets().any(quiet);
        let (amid_drain, drained) = (self.is_amid_drain(), self.hosts[host].draining);
        self.coverage.failures += 1;
        self.coverage.failures_amid_drain += u64::from(amid_drain);
        self.coverage.failures_of_drained += u64::from(drained);
        self.coverage.failures_amid_move += u64::from(amid_move);
    }

    /// Counts the start of a process.
    pub(super) fn count_join(&mut self) {
        self.coverage.joins_amid_drain += u64::from(self.is_amid_drain());
    }
}
