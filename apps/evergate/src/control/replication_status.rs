//! Replication status: the workers' counters joined with the agent's status.

use super::published::Control;
use crate::agent::Handle;
use crate::agent::status::{ClusterStatus, LagStatus, ReplicationStatus, StallStatus};
use evergate_worker::TimesStatus;
use evergate_worker::{Count, Counters, Lag};
use std::collections::BTreeMap;
use std::sync::PoisonError;

impl Control {
    /// The cluster as this node sees it.
    pub(super) fn cluster_status(&self, cluster: &Handle) -> ClusterStatus {
        let sum =
            |of: fn(&Counters) -> &Count| self.workers.iter().map(|worker| of(&worker.counters).get()).sum();
        let (replicated_state, stalls) = (self.replication_status(), self.stalls());
        let (loss_notices, loss_notices_late) = (sum(|of| &of.loss_notices), sum(|of| &of.loss_notices_late));
        ClusterStatus {
            replication: replicated_state,
            stalls,
            loss_notices,
            loss_notices_late,
            ..cluster.status()
        }
    }

    fn replication_status(&self) -> ReplicationStatus {
        let mut all = ReplicationStatus::default();
        let mut lags: BTreeMap<u8, Lag> = BTreeMap::new();
        for worker in &self.workers {
            let of = worker.counters.replicated_state.lock().unwrap_or_else(PoisonError::into_inner);
            all.connections += of.own;
            all.replicated += of.replicated;
            all.replicas += of.held;
            for (node, lag) in &of.lags {
                let known = lags.entry(*node).or_default();
                *known = known.with(*lag);
            }
        }
        let status = |(node, Lag { frames, unsent_bytes, behind_us })| LagStatus {
            node,
            frames,
            unsent_bytes,
            behind_us,
        };
        ReplicationStatus { backups: lags.into_iter().map(status).collect(), ..all }
    }

    fn stalls(&self) -> StallStatus {
        let [busy, idle_connections] = [0, 1].map(|which| {
            let of = self.workers.iter().map(|worker| &worker.counters.stalls[which]);
            TimesStatus::of(&of.collect::<Vec<_>>())
        });
        StallStatus { active: busy, idle: idle_connections }
    }
}
