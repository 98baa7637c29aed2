//! Which members can go on with what is under way here.
//!
//! A connection in the middle of a request goes on only under the configuration that it began with. While a new one is
//! rolled out, node after node, buckets are given only to members that have it too; a node that drains gives to others only
//! when nobody has it. Not for ever: nodes whose configurations stay different share the work all the same.

use evergate_base::Micros;

use crate::{MemberSet, Node, NodeId};

/// How many configurations a node says that it has.
pub const CONFIGURATIONS: usize = 4;

/// For how long nothing is given to a node that lacks this one's configuration.
pub const ROLLOUT: Micros = Micros::from_ms(300_000);

impl Node {
    /// Which configurations this node has, by names that are the same at all nodes, newest first; 0 for none.
    pub fn set_configurations(&mut self, now: Micros, configurations: [u64; CONFIGURATIONS]) {
        self.note_now(now);
        self.configurations = configurations;
        for peer in self.peers.values_mut() {
            peer.lacks_since = None; // the time begins anew
        }
        self.note_lacks();
        self.due = true;
    }

    /// A node's newest configuration, as it says. `None` for a node that is not heard, or does not say.
    pub fn configuration_of(&self, id: NodeId) -> Option<u64> {
        let newest = |of: &[u64; CONFIGURATIONS]| of.first().copied().filter(|name| *name != 0);
        if id == self.me.id {
            return newest(&self.configurations);
        }
        let last = self.peers.get(&id)?.last.filter(|_| self.is_reachable(id));
        last.and_then(|last| newest(&last.configurations))
    }

    /// Whether a node says that it has this node's newest configuration. `None` for a node that is not heard.
    pub fn config_compatible(&self, id: NodeId) -> Option<bool> {
        if id == self.me.id {
            return Some(true);
        }
        let last = self.peers.get(&id)?.last.filter(|_| self.is_reachable(id))?;
        Some(self.is_had(&last.configurations))
    }

    fn is_had(&self, configurations: &[u64; CONFIGURATIONS]) -> bool {
        let [ours, ..] = self.configurations;
        ours == 0 || configurations.contains(&ours)
    }

    /// Notes since when others lack this node's configuration.
    pub(crate) fn note_lacks(&mut self) {
        let ids: Vec<NodeId> = self.peers.keys().copied().collect();
        for id in ids {
            self.note_lack(id);
        }
    }

    pub(crate) fn note_lack(&mut self, id: NodeId) {
        let reported = self.peers.get(&id).and_then(|peer| peer.last).map(|last| last.configurations);
        let (lacks, now) = (reported.is_some_and(|reported| !self.is_had(&reported)), self.now);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.lacks_since = lacks.then(|| peer.lacks_since.unwrap_or(now));
        }
    }

    /// Those of `steady` that buckets are given to.
    pub(crate) fn handoff_targets(&self, steady: MemberSet) -> MemberSet {
        let lacks = |id: &NodeId| {
            let since = self.peers.get(id).and_then(|peer| peer.lacks_since);
            since.is_some_and(|since| self.now.since(since) < ROLLOUT)
        };
        let able = steady.minus(steady.iter().filter(lacks).collect());
        if self.draining && able.is_empty() { steady } else { able }
    }
}
