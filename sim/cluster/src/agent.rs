//! A model of the daemon's agent. Events of the membership protocol become owner words, holds, and instructions to the
//! worker. Reports of the worker become calls of the protocol.

use crate::kernel::Kernel;
use evergate_base::Micros;
use evergate_membership::{Bucket, Event, HandoffId, Node, NodeId, NodePhase, OwnershipStart, Role, Term};
use std::collections::BTreeMap;

/// Length of a log for the protocol's comparison: a replica is complete or counts as nothing.
const COMPLETE: u64 = 1;

/// Instruction to the worker.
#[derive(Clone, Debug)]
pub(crate) enum Instruction {
    Roles(Vec<(Bucket, Role)>),
    Failover(Vec<(Bucket, Term)>),
    DropState,
}

/// Report of the worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    CaughtUp {
        bucket: Bucket,
        node: NodeId,
        term: Term,
    },
    Complete {
        bucket: Bucket,
        term: Term,
    },
    Frozen {
        bucket: Bucket,
        term: Term,
        freeze: HandoffId,
    },
    /// This node's replica has a gap.
    Incomplete {
        bucket: Bucket,
        node: NodeId,
        term: Term,
    },
    /// A frame on this channel was invalid: the channel ends.
    Refused {
        node: NodeId,
        channel: u64,
    },
}

/// Roles that the worker knows.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    known: BTreeMap<Bucket, Role>,
    /// Whether segments of unknown connections are answered by RST.
    pub(crate) resets_unknown: bool,
}

impl Agent {
    /// Counts roles as known to the worker.
    pub(crate) fn adopt(&mut self, roles: &[(Bucket, Role)]) {
        self.known = roles.iter().copied().collect();
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
                    kernel.held.clear();
                    self.resets_unknown = false;
                    instructions.push(Instruction::DropState);
                }
                Event::Role { bucket, role } => {
                    self.handle_role(node, kernel, *bucket, *role, &mut changed, &mut arrived)
                }
                Event::Phase(NodePhase::Active) => self.resets_unknown = true,
                Event::Phase(_) | Event::Installed { .. } | Event::Drained => {}
            }
            events.push(event);
        }
        if !changed.is_empty() {
            instructions.push(Instruction::Roles(changed));
        }
        if !arrived.is_empty() {
            instructions.push(Instruction::Failover(arrived));
        }
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
        if let (true, Role::Owner { term, .. }) = (arrives(before, role), role) {
            kernel.held.insert(bucket);
            arrived.push((bucket, term));
        }
        if before != role {
            changed.push((bucket, role));
        }
        if let Role::Backup { term, in_sync: true, .. } = role {
            // The replica stays complete when a view or an owner changes: every commit has waited for it.
            node.handle_stored(bucket, term, COMPLETE);
        }
    }

    /// Processes a report of the worker. Returns a channel that must be closed.
    pub(crate) fn handle_report(
        &mut self,
        node: &mut Node,
        now: Micros,
        report: Report,
    ) -> Option<(NodeId, u64)> {
        match report {
            Report::CaughtUp { bucket, node: backup, term } => {
                node.handle_caught_up(now, bucket, term, backup, COMPLETE);
            }
            Report::Complete { bucket, term } => node.handle_stored(bucket, term, COMPLETE),
            Report::Frozen { bucket, term, freeze } => {
                node.handle_frozen(now, bucket, term, freeze, COMPLETE);
            }
            Report::Incomplete { bucket, node: peer, term } => {
                node.drop_backup(now, bucket, term, peer);
            }
            Report::Refused { node: peer, channel } => return Some((peer, channel)),
        }
        None
    }
}

/// Whether connections of another node are to be continued here.
fn arrives(before: Role, now: Role) -> bool {
    let Role::Owner { term, begin: OwnershipStart::Failover | OwnershipStart::Handoff, .. } = now else {
        return false;
    };
    !matches!(before, Role::Owner { term: known, .. } if known == term)
}
