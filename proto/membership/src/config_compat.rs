//! Compatibility of configurations: the members that can continue this node's requests.
//!
//! A connection in the middle of a request continues only under its own generation. During a rollout, node after node,
//! buckets move only to members that have the new generation too. A draining node uses other members only when none has
//! it. The preference ends: nodes whose generations stay different share the work all the same.

use evergate_base::Micros;

use crate::{MemberSet, Node, NodeId};

/// Number of configurations that a node reports.
pub const CONFIGURATIONS: usize = 4;

/// Time for which no bucket moves to a node that lacks this one's configuration.
pub const ROLLOUT: Micros = Micros::from_ms(300_000);

impl Node {
    /// Sets this node's configurations, by names that are the same at all nodes, newest first; 0 for none.
    pub fn set_configurations(&mut self, now: Micros, configurations: [u64; CONFIGURATIONS]) {
        self.note_now(now);
        self.configurations = configurations;
        for peer in self.peers.values_mut() {
            peer.lacks_since = None; // the time begins again
        }
        self.update_lacks();
        self.clock.due = true;
    }

    /// A node's newest configuration, by its own report. `None` for a node that is not reachable, or without a name.
    pub fn configuration_of(&self, id: NodeId) -> Option<u64> {
        let newest = |of: &[u64; CONFIGURATIONS]| of.first().copied().filter(|name| *name != 0);
        if id == self.me.id {
            return newest(&self.configurations);
        }
        let last = self.peers.reachable_last(id, &self.clock);
        last.and_then(|last| newest(&last.configurations))
    }

    /// Whether a node reports that it has this node's newest configuration. `None` for a node that is not reachable.
    pub fn config_compatible(&self, id: NodeId) -> Option<bool> {
        if id == self.me.id {
            return Some(true);
        }
        let last = self.peers.reachable_last(id, &self.clock)?;
        Some(self.is_compatible(&last.configurations))
    }

    fn is_compatible(&self, configurations: &[u64; CONFIGURATIONS]) -> bool {
        let [ours, ..] = self.configurations;
        ours == 0 || configurations.contains(&ours)
    }

    /// Records since when peers have lacked this node's configuration.
    pub(crate) fn update_lacks(&mut self) {
        let ids: Vec<NodeId> = self.peers.ids().copied().collect();
        for id in ids {
            self.update_lack(id);
        }
    }

    pub(crate) fn update_lack(&mut self, id: NodeId) {
        let configurations = self.peers.last(id).map(|last| last.configurations);
        let (lacks, now) = (
            configurations.is_some_and(|configurations| !self.is_compatible(&configurations)),
            self.clock.now,
        );
        if let Some(peer) = self.peers.get_mut(id) {
            peer.lacks_since = lacks.then(|| peer.lacks_since.unwrap_or(now));
        }
    }

    /// The nodes of `steady` that may receive buckets.
    pub(crate) fn handoff_targets(&self, steady: MemberSet) -> MemberSet {
        let lacks = |id: &NodeId| {
            let since = self.peers.get(*id).and_then(|peer| peer.lacks_since);
            since.is_some_and(|since| self.clock.now.since(since) < ROLLOUT)
        };
        let able = steady.minus(steady.iter().filter(lacks).collect());
        if self.rebalancer.draining && able.is_empty() { steady } else { able }
    }
}
