//! A model of the daemon's agent. Events of the membership protocol become owner words, holds, and instructions to the
//! worker. Reports of the worker become calls of the protocol.

use crate::kernel::Kernel;
use evergate_base::Micros;
use evergate_membership::{Bucket, Event, Node, NodePhase, Role, Term};
use evergate_worker::{FailoverOrder, Instruction, Report, arrives};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Length of a log for the protocol's comparison: a replica is complete or counts as nothing.
const COMPLETE: u64 = 1;

/// Roles that the worker knows.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    known: BTreeMap<Bucket, Role>,
    /// Failovers so far.
    failovers: u64,
}

impl Agent {
    /// Counts roles as known to the worker. Returns the instructions with which it knows them.
    pub(crate) fn adopt(&mut self, roles: Vec<(Bucket, Role)>) -> Vec<Instruction> {
        self.known = roles.iter().copied().collect();
        let arrived =
            roles.iter().filter_map(|(bucket, role)| Some((*bucket, arrival(Role::NOTHING, *role)?)));
        let arrived = arrived.collect();
        let mut instructions = vec![Instruction::Roles(roles)];
        instructions.extend(self.order(arrived));
        instructions
    }

    /// The order to continue connections of these buckets.
    fn order(&mut self, buckets: Vec<(Bucket, Term)>) -> Option<Instruction> {
        if buckets.is_empty() {
            return None;
        }
        self.failovers += 1;
        let order = FailoverOrder { number: self.failovers, buckets, silent: Micros(0) };
        Some(Instruction::Failover(Arc::new(order)))
    }

    /// Acts on the protocol's events. Returns the instructions to the worker.
    pub(crate) fn apply_events(
        &mut self,
        node: &mut Node,
        kernel: &mut Kernel,
        events: &mut Vec<Event>,
    ) -> Vec<Instruction> {
        let (mut changed, mut arrived, mut instructions) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(event) = node.poll_event() {
            match &event {
                Event::StateDropped => {
                    self.known.clear();
                    changed.clear();
                    arrived.clear();
                    kernel.words.held.clear();
                    kernel.words.closed.clear();
                    kernel.resets_unknown = false;
                    instructions.push(Instruction::Void);
                }
                Event::Role { bucket, role } => {
                    self.handle_role(node, kernel, *bucket, *role, &mut changed, &mut arrived)
                }
                Event::Phase(NodePhase::Active) => kernel.resets_unknown = true,
                Event::Phase(_) | Event::Installed { .. } | Event::Drained => {}
            }
            events.push(event);
        }
        if !changed.is_empty() {
            instructions.push(Instruction::Roles(changed));
        }
        instructions.extend(self.order(arrived));
        instructions
    }

    fn handle_role(
        &mut self,
        node: &mut Node,
        kernel: &mut Kernel,
        bucket: Bucket,
        role: Role,
        changed: &mut Vec<(Bucket, Role)>,
        arrived: &mut Vec<(Bucket, Term)>,
    ) {
        let before = self.known.insert(bucket, role).unwrap_or(Role::NOTHING);
        if let Some(term) = arrival(before, role) {
            kernel.words.held.insert(bucket);
            arrived.push((bucket, term));
        } else if !matches!(role, Role::Owner { .. }) {
            kernel.words.disown(bucket);
        }
        if before != role {
            changed.push((bucket, role));
        }
        if let Role::Backup { term, in_sync: true, .. } = role {
            // The replica stays complete when a view or an owner changes: every commit has waited for it.
            node.handle_stored(bucket, term, COMPLETE);
        }
    }

    /// Processes a report of the worker.
    pub(crate) fn handle_report(&mut self, node: &mut Node, now: Micros, report: Report) {
        match report {
            Report::CaughtUp { bucket, node: backup, term } => {
                node.handle_caught_up(now, bucket, term, backup, COMPLETE);
            }
            Report::Complete { bucket, term } => node.handle_stored(bucket, term, COMPLETE),
            Report::Frozen { bucket, term, freeze, .. } => {
                node.handle_frozen(now, bucket, term, freeze, COMPLETE);
            }
            Report::Incomplete { node: backup, buckets } => {
                for (bucket, term) in buckets {
                    node.drop_backup(now, bucket, term, backup);
                }
            }
            // Reports for operators and for balance.
            Report::ChannelLost { .. } | Report::Resumed(_) | Report::Worked(_) => {}
        }
    }
}

/// The term of a role that brings connections of another node, to be continued here.
fn arrival(before: Role, now: Role) -> Option<Term> {
    match now {
        Role::Owner { term, .. } if arrives(before, now) => Some(term),
        _ => None,
    }
}
