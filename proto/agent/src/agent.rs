//! The agent: carries the protocol's events to the gate and the workers, and the workers' reports to the protocol.
//!
//! Invariants: a bucket that this node recovers is on hold in the gate before a worker gets it. While connections
//! are recovered, the gate answers no segment of an unknown connection. Instructions to a worker stay in order.

use crate::failovers::{FailoverCounts, FailoverStatus, Failovers, Handoffs};
use crate::lease_table::LeaseTable;
use crate::outside::{Notice, Outside};
use crate::roles::{RoleCounts, Roles};
use crate::worker_barrier::WorkerBarrier;
use evergate_base::Micros;
use evergate_membership::{
    Bucket, Event, MemberSet, Members, Node, NodeId, NodePhase, OwnershipStart, Path, Role, ViewId,
};
use evergate_worker::{FailoverOrder, FrozenConnections, Instruction, Report};
use std::sync::Arc;

/// The length of a replication log, as the protocol compares them. Workers report only that a replica is complete.
/// Complete replicas are equal, because every commit waits for all of them.
const COMPLETE: u64 = 1;

/// The agent's state between the protocol, the gate and the workers.
#[derive(Debug)]
pub struct Agent {
    workers: usize,
    roles: Roles,
    barrier: WorkerBarrier,
    failovers: Failovers,
    leases: LeaseTable,
    /// Members of the view in force.
    members: MemberSet,
    /// How long the lost members of the newest view were silent, at most.
    silent: Micros,
    drained: bool,
}

impl Agent {
    /// An agent of a node with so many workers. Nothing is owned, and no lease is valid.
    pub fn new(me: NodeId, workers: usize, outside: &mut impl Outside) -> Agent {
        outside.clear_owners();
        outside.revoke_leases();
        Agent {
            workers,
            roles: Roles::new(me),
            barrier: WorkerBarrier::new(workers),
            failovers: Failovers::default(),
            leases: LeaseTable::default(),
            members: MemberSet::EMPTY,
            silent: Micros(0),
            drained: false,
        }
    }

    /// Applies the roles that the protocol has already, as of a simulated node that starts amid a run.
    pub fn adopt(
        &mut self,
        node: &mut Node,
        now: Micros,
        buckets: impl IntoIterator<Item = Bucket>,
        outside: &mut impl Outside,
    ) {
        self.members = node.members().set();
        for bucket in buckets {
            let role = node.role(bucket);
            self.handle_role(node, (bucket, role), outside);
        }
        self.apply_events(node, now, outside);
    }

    /// Applies the protocol's events. `now`: the agent's clock.
    pub fn apply_events(&mut self, node: &mut Node, now: Micros, outside: &mut impl Outside) {
        while let Some(event) = node.poll_event() {
            match event {
                Event::StateDropped => self.handle_state_dropped(outside),
                Event::Installed { view, members } => {
                    self.handle_view_installed(node, now, (view, members), outside)
                }
                Event::Role { bucket, role } => self.handle_role(node, (bucket, role), outside),
                Event::Phase(phase) => {
                    if phase == NodePhase::Active {
                        outside.answer_unknown(!self.failovers.is_running());
                    }
                    outside.note(Notice::Phase(phase));
                }
                Event::Drained => {
                    self.drained = true;
                    outside.note(Notice::Drained);
                }
            }
        }
        self.leases.write(node, outside);
        let (changed, order) = self.roles.take_changes();
        if !changed.is_empty() {
            self.send_roles(node, now, (changed, order), outside);
        }
    }

    fn handle_role(&mut self, node: &mut Node, (bucket, role): (Bucket, Role), outside: &mut impl Outside) {
        let listed = node.gate_listed(bucket).unwrap_or_default();
        self.roles.change(bucket, role, listed, outside);
        let (syncing, freeze) = match role {
            Role::Owner { term, syncing, freeze_for, .. } => {
                (syncing, freeze_for.map(|freeze| (term, freeze)))
            }
            _ => (MemberSet::EMPTY, None),
        };
        self.barrier.expect(bucket, syncing, freeze);
        if matches!(role, Role::Owner { .. }) && std::mem::take(&mut self.drained) {
            outside.note(Notice::DrainedNoMore);
        }
        if let Role::Backup { term, in_sync: true, .. } = role {
            // A replica stays complete when a view or an owner changes, since every commit waited for it. No worker
            // reports it again.
            node.handle_stored(bucket, term, COMPLETE);
        }
    }

    fn send_roles(
        &mut self,
        node: &Node,
        now: Micros,
        (changed, order): (Vec<(Bucket, Role)>, Option<FailoverOrder>),
        outside: &mut impl Outside,
    ) {
        if order.is_some() {
            // The peers of recovered connections may send before the sockets exist.
            outside.answer_unknown(false);
        }
        let order = order.map(|mut order| {
            let failed = |bucket: &Bucket| {
                matches!(node.role(*bucket), Role::Owner { begin: OwnershipStart::Failover, .. })
            };
            let failed_over = order.buckets.iter().filter(|(bucket, _)| failed(bucket)).count();
            let silent = if failed_over > 0 { std::mem::take(&mut self.silent) } else { Micros(0) };
            let unix_s = outside.wall_clock_s();
            self.failovers.begin(now, unix_s, &mut order, failed_over, silent, self.workers);
            Arc::new(order)
        });
        for worker in 0..self.workers {
            outside.instruct(worker, Instruction::Roles(changed.clone()));
        }
        // After all roles: the first worker that is done admits clients, which another worker may have to accept.
        for worker in 0..self.workers {
            if let Some(order) = &order {
                outside.instruct(worker, Instruction::Failover(order.clone()));
            }
        }
    }

    fn handle_state_dropped(&mut self, outside: &mut impl Outside) {
        self.leases.revoke_all(outside);
        self.roles.reset(outside);
        self.failovers.reset();
        self.barrier.clear();
        self.members = MemberSet::EMPTY;
        for worker in 0..self.workers {
            outside.instruct(worker, Instruction::Void);
        }
        outside.answer_unknown(false);
        outside.note(Notice::StateDropped);
    }

    fn handle_view_installed(
        &mut self,
        node: &Node,
        now: Micros,
        (view, members): (ViewId, Members),
        outside: &mut impl Outside,
    ) {
        self.leases.revoke_all(outside);
        let lost = std::mem::replace(&mut self.members, members.set()).minus(members.set());
        self.silent = lost.iter().filter_map(|id| silence(node, now, id)).max().unwrap_or_default();
        outside.note(Notice::ViewInstalled { view, members, lost });
    }

    /// Processes a report of a worker. `now`: the agent's clock.
    pub fn handle_report(
        &mut self,
        node: &mut Node,
        now: Micros,
        (worker, report): (usize, Report),
        outside: &mut impl Outside,
    ) {
        match report {
            Report::CaughtUp { bucket, node: backup, term } => {
                if self.barrier.caught_up(worker, bucket, backup, term) {
                    node.handle_caught_up(now, bucket, term, backup, COMPLETE);
                }
            }
            Report::Complete { bucket, term } => node.handle_stored(bucket, term, COMPLETE),
            Report::Frozen { bucket, term, freeze, mine } => {
                if !mine.is_empty() {
                    // Before the role that may follow: instructions to a worker stay in order.
                    let frozen = FrozenConnections { bucket, freeze, frames: mine };
                    let backup = usize::from(bucket.0) % self.workers;
                    outside.instruct(backup, Instruction::Keep(Arc::new(frozen)));
                }
                if self.barrier.frozen(worker, bucket, term, freeze) {
                    node.handle_frozen(now, bucket, term, freeze, COMPLETE);
                }
            }
            Report::Incomplete { node: backup, buckets } => {
                for (bucket, term) in buckets {
                    node.drop_backup(now, bucket, term, backup);
                }
            }
            Report::ChannelLost { node: peer, why } => {
                outside.note(Notice::ChannelLost { node: peer, why });
            }
            Report::Worked(work) => {
                work.into_iter().for_each(|(bucket, work)| node.handle_work(bucket, work));
            }
            Report::Resumed(part) => {
                let ended = self.failovers.resumed(now, &part);
                if !self.failovers.is_running() && node.phase() == NodePhase::Active {
                    outside.answer_unknown(true);
                }
                if let Some(ended) = ended {
                    outside.note(Notice::FailoverEnded(ended));
                }
            }
        }
    }

    /// The administrator starts or ends a drain.
    pub fn set_draining(&mut self, node: &mut Node, now: Micros, draining: bool) {
        self.drained = false;
        node.set_draining(now, draining);
    }

    /// Whether all buckets were handed off.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// Number of buckets that this node replicates to `backup`, or is about to.
    pub fn replicated_to(&self, backup: NodeId) -> usize {
        self.roles.replicated_to(backup)
    }

    /// Numbers of buckets by this node's role.
    pub fn role_counts(&self) -> RoleCounts {
        self.roles.counts()
    }

    /// Past and running failovers.
    pub fn failovers(&self) -> Vec<FailoverStatus> {
        self.failovers.list()
    }

    /// What failovers and handoffs have done so far.
    pub fn failover_counts(&self) -> FailoverCounts {
        self.failovers.counts()
    }

    /// The handoffs since the last log line, if a line is due.
    pub fn take_handoffs(&mut self, now: Micros) -> Option<Handoffs> {
        self.failovers.take_handoffs(now)
    }
}

/// How long a node has been silent; `None` if it never sent anything.
fn silence(node: &Node, now: Micros, id: NodeId) -> Option<Micros> {
    let received_at = Path::ALL.iter().filter_map(|path| node.last_received_at(id, *path)).max();
    received_at.map(|at| now.since(at))
}
