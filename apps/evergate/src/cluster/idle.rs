//! Workers without connections: they answer every instruction at once, as workers with nothing to mirror would.
//!
//! For tests of the agent, and for a node whose workers have no part in the cluster.

use super::Reporter;
use super::instruction::{Instruction, Round, office};
use super::{Report, Resumed};
use evergate_bpf::Owners;
use evergate_cluster::{Bucket, Role};

/// All workers of a node.
pub struct Idle {
    workers: usize,
    owners: Owners,
    reporter: Reporter,
}

impl Idle {
    /// `workers` of them.
    pub fn new(workers: usize, owners: Owners, reporter: Reporter) -> Idle {
        Idle { workers: workers.max(1), owners, reporter }
    }

    /// One of them follows an instruction.
    pub fn follow(&self, worker: usize, instruction: &Instruction) {
        match instruction {
            Instruction::Roles(roles) => {
                let own = roles.iter().filter(|(bucket, _)| self.is_of(worker, *bucket));
                own.for_each(|(bucket, role)| self.play(*bucket, *role));
            }
            Instruction::TakeOver(round) => self.resume(worker, round),
            Instruction::Void => {}
        }
    }

    fn is_of(&self, worker: usize, bucket: Bucket) -> bool {
        usize::from(bucket.0) % self.workers == worker
    }

    fn play(&self, bucket: Bucket, role: Role) {
        match role {
            Role::Owner { term, syncing, freeze_for, .. } => {
                let office = office(term);
                for node in syncing.iter() {
                    self.reporter.send(Report::CaughtUp { bucket, node, office });
                }
                if freeze_for.is_some() {
                    self.reporter.send(Report::Frozen { bucket, office });
                }
            }
            Role::Backup { term, .. } => {
                self.reporter.send(Report::Complete { bucket, office: office(term) })
            }
            Role::Outside { .. } => {}
        }
    }

    fn resume(&self, worker: usize, round: &Round) {
        let own = round.buckets.iter().filter(|(bucket, _)| self.is_of(worker, *bucket));
        let mut resumed = Resumed::default();
        for (bucket, _) in own {
            if let Some(bucket) = evergate_bpf::Bucket::new(usize::from(bucket.0)) {
                self.owners.release(bucket);
            }
            resumed.buckets += 1;
        }
        self.reporter.send(Report::Resumed(resumed));
    }
}
