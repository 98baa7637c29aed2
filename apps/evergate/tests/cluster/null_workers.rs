//! Workers without connections: they answer every instruction at once, as workers with nothing to replicate would.
//!
//! For tests of the agent alone.

use evergate::agent::Reporter;
use evergate_bpf::Owners;
use evergate_membership::{Bucket, Role};
use evergate_worker::host::Reports;
use evergate_worker::{FailoverOrder, Instruction, Report, Resumed};

/// All workers of a node.
pub(crate) struct Idle {
    owners: Owners,
    reporters: Vec<Reporter>,
}

impl Idle {
    /// One for each reporter.
    pub(crate) fn new(owners: Owners, reporters: Vec<Reporter>) -> Idle {
        Idle { owners, reporters }
    }

    /// One of them follows an instruction.
    pub(crate) fn follow(&self, worker: usize, instruction: &Instruction) {
        let Some(reporter) = self.reporters.get(worker) else { return };
        match instruction {
            Instruction::Roles(roles) => {
                for (bucket, role) in roles {
                    play(reporter, *bucket, *role, self.is_of(worker, *bucket));
                }
            }
            Instruction::Failover(round) => reporter.send(Report::Resumed(self.resume(worker, round))),
            Instruction::Void | Instruction::Keep(_) => {}
        }
    }

    fn is_of(&self, worker: usize, bucket: Bucket) -> bool {
        usize::from(bucket.0) % self.reporters.len().max(1) == worker
    }

    fn resume(&self, worker: usize, round: &FailoverOrder) -> Resumed {
        let mut resumed = Resumed { round: round.number, ..Resumed::default() };
        for (bucket, _) in round.buckets.iter().filter(|(bucket, _)| self.is_of(worker, *bucket)) {
            self.owners.release(*bucket);
            resumed.buckets += 1;
        }
        resumed
    }
}

/// `holds`: whether the worker holds copies of the bucket for others.
fn play(reporter: &Reporter, bucket: Bucket, role: Role, holds: bool) {
    match role {
        Role::Owner { term, syncing, freeze_for, .. } => {
            for node in syncing.iter() {
                reporter.send(Report::CaughtUp { bucket, node, term });
            }
            if let Some(freeze) = freeze_for {
                reporter.send(Report::Frozen { bucket, term, freeze, mine: Vec::new() });
            }
        }
        Role::Backup { term, .. } if holds => {
            reporter.send(Report::Complete { bucket, term });
        }
        Role::Backup { .. } | Role::Outside { .. } => {}
    }
}
