//! The status that the agent publishes.

use super::{Agent, State, warnings};
use crate::agent::routes::net;
use crate::agent::status::{
    BucketStatus, ClusterCounts, Quorum, UnreachableAddress, ViewStatus, rejected_counts,
};
use evergate_base::Micros;
use evergate_membership::{NodeId, NodePhase, Path, Reach};

impl Agent {
    /// Brings the status up to date.
    pub(super) fn describe(&mut self, state: &mut State, now: Micros) {
        let cut_off = self.cut_off().filter(|_| self.node.phase() != NodePhase::Left);
        let node = &self.node;
        let members = node.members().set();
        let status = &mut self.status;
        status.phase = match node.phase() {
            NodePhase::Listening => "listening",
            NodePhase::Active => "active",
            NodePhase::Fenced => "fenced",
            NodePhase::Left => "left",
        }
        .to_owned();
        let active = node.phase() == NodePhase::Active;
        state.inactive_since = (!active).then(|| state.inactive_since.unwrap_or(now));
        status.inactive_ms = state.inactive_since.map(|since| now.since(since).as_ms());
        status.quorum = node.quorum().map(|(reachable, needed)| Quorum { reachable, needed });
        status.rejoin_delay_ms = node.rejoin_delay(now).filter(|_| cut_off.is_none()).map(Micros::as_ms);
        status.cut_off = cut_off;
        (status.draining, status.drained) = (state.draining, state.core.is_drained());
        status.view = node.view().map(|view| ViewStatus {
            epoch: view.epoch,
            proposer: view.proposer.0.saturating_add(1),
            members: members.iter().map(|id| id.0.saturating_add(1)).collect(),
            age_ms: now.since(state.installed_at).as_ms(),
        });
        let number = |id: NodeId| id.0.saturating_add(1);
        status.waits_for_view_ms = node.waits_for_view(now).map(Micros::as_ms);
        status.waits_for = node.awaited().iter().map(number).collect();
        let in_view = node.view().is_some();
        for peer in &mut status.nodes {
            let id = NodeId(peer.number.saturating_sub(1));
            let silence = |path| node.last_received_at(id, path).map(|at| now.since(at).as_ms());
            peer.member = in_view && members.contains(id);
            peer.silent_inside_ms = silence(Path::Inside);
            peer.silent_outside_ms = silence(Path::Outside);
            let lost = |path: &Path| node.reach_of(id, *path).is_some_and(|reach| reach != Reach::Works);
            peer.lost = Path::ALL.into_iter().filter(lost).map(|path| net(path).to_owned()).collect();
            peer.witnessed = node.witnessed(id);
            let timing = node.lease_of(id).and_then(crate::agent::timing::name_of_lease);
            peer.timing = timing.map(str::to_owned);
            peer.draining = node.drains(id);
            peer.load = node.work_of(id);
            peer.generation = node.configuration_of(id);
            peer.config_compatible = node.config_compatible(id);
        }
        let tally = state.core.role_counts();
        status.buckets = BucketStatus {
            owned: tally.owned,
            syncing: tally.syncing,
            without_backup: tally.without_backup,
            recovering: 0, // `Handle::status` reads it from the gate
            backup: tally.backup,
            catching_up: tally.catching_up,
            unowned: tally.unowned,
        };
        if let Some(witnesses) = &self.witnesses {
            for (shown, witness) in status.witnesses.iter_mut().zip(&witnesses.all) {
                shown.answered_ms = witness.answered_at.map(|at| now.since(at).as_ms());
                shown.answers = witness.answers;
                shown.network = witness.path().map(|path| net(path).to_owned());
            }
        }
        status.unreachable_addresses = self
            .probes
            .faults()
            .map(|(path, shared, fault)| UnreachableAddress {
                network: net(path).to_owned(),
                interface: self
                    .links
                    .iter()
                    .find(|link| link.path == path)
                    .map(|link| link.interface.clone())
                    .unwrap_or_default(),
                address: shared.to_string(),
                why: warnings::symptom(fault).to_owned(),
            })
            .collect();
        let done = state.core.failover_counts();
        status.counts = ClusterCounts {
            failovers: done.failovers,
            handoffs: done.handoffs,
            connections_continued: done.continued,
            connections_lost: done.lost,
            ..state.counts
        };
        status.failovers = state.core.failovers();
        status.rejected = rejected_counts(|reason| node.rejected(reason), state.unlisted);
    }
}
