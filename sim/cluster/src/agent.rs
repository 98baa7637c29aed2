//! A model of the daemon's agent: what the cluster protocol concludes becomes owner words, holds, and instructions to the
//! worker; what the worker reports becomes calls of the protocol.

use crate::kernel::Kernel;
use evergate_base::Micros;
use evergate_membership::{Bucket, Event, HandoffId, Node, NodeId, NodePhase, OwnershipStart, Role, Term};
use std::collections::BTreeMap;

/// The length of a log, as the protocol compares them: mirrors are complete, or are not.
const COMPLETE: u64 = 1;

/// What the worker is told.
#[derive(Clone, Debug)]
pub(crate) enum Instruction {
    Roles(Vec<(Bucket, Role)>),
    Failover(Vec<(Bucket, Term)>),
    Void,
}

/// What the worker says.
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
    /// The copy at this node has a gap.
    Incomplete {
        bucket: Bucket,
        node: NodeId,
        term: Term,
    },
    /// A frame on this channel was not believed: the channel ends.
    Refused {
        node: NodeId,
        channel: u64,
    },
}

/// What it has told.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    known: BTreeMap<Bucket, Role>,
    /// Whether segments of unknown connections are answered by RST.
    pub(crate) resets_unknown: bool,
}

impl Agent {
    /// Takes roles for told.
    pub(crate) fn adopt(&mut self, roles: &[(Bucket, Role)]) {
        self.known = roles.iter().copied().collect();
    }

    /// Acts on what the protocol has concluded; what the worker is to be told.
    pub(crate) fn settle(
        &mut self,
        node: &mut Node,
        kernel: &mut Kernel,
        reported: &mut Vec<Event>,
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
                    instructions.push(Instruction::Void);
                }
                Event::Role { bucket, role } => {
                    self.play(node, kernel, *bucket, *role, &mut changed, &mut arrived)
                }
                Event::Phase(NodePhase::Active) => self.resets_unknown = true,
                Event::Phase(_) | Event::Installed { .. } | Event::Drained => {}
            }
            reported.push(event);
        }
        if !changed.is_empty() {
            instructions.push(Instruction::Roles(changed));
        }
        if !arrived.is_empty() {
            instructions.push(Instruction::Failover(arrived));
        }
        instructions
    }

    fn play(
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
            // It stays complete when a view or an owner changes: every commit has waited for it.
            node.handle_stored(bucket, term, COMPLETE);
        }
    }

    /// Takes in what the worker says. A channel that must be closed comes back.
    pub(crate) fn take(&mut self, node: &mut Node, now: Micros, report: Report) -> Option<(NodeId, u64)> {
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

/// Whether connections are to be continued here that lived elsewhere until now.
fn arrives(before: Role, now: Role) -> bool {
    let Role::Owner { term, begin: OwnershipStart::Failover | OwnershipStart::Handoff, .. } = now else {
        return false;
    };
    !matches!(before, Role::Owner { term: known, .. } if known == term)
}
