//! Leases as last written to the gate: only changes are written.

use crate::outside::Outside;
use evergate_base::Micros;
use evergate_membership::{NODES_MAX, Node, NodeId};

/// Leases as last written.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    own: Micros,
    granted: [Micros; NODES_MAX],
    all: Micros,
}

impl Default for LeaseTable {
    fn default() -> LeaseTable {
        LeaseTable { own: Micros(0), granted: [Micros(0); NODES_MAX], all: Micros(0) }
    }
}

impl LeaseTable {
    /// Ends all leases.
    pub(crate) fn revoke_all(&mut self, outside: &mut impl Outside) {
        *self = LeaseTable::default();
        outside.revoke_leases();
    }

    /// Writes the protocol's leases where they have changed.
    pub(crate) fn write(&mut self, node: &Node, outside: &mut impl Outside) {
        let leases = node.leases();
        if std::mem::replace(&mut self.own, leases.own) != leases.own {
            outside.set_own_lease(leases.own);
        }
        let members = node.members().set();
        let mut all = Micros(u64::MAX);
        for peer in node.config().nodes.without(node.me().id).iter() {
            let until = leases.member.get(usize::from(peer.0)).copied().unwrap_or_default();
            if members.contains(peer) {
                all = all.min(until);
            }
            self.write_lease(peer, until, outside);
        }
        if std::mem::replace(&mut self.all, all) != all {
            outside.set_lease_of_all(all);
        }
    }

    fn write_lease(&mut self, node: NodeId, until: Micros, outside: &mut impl Outside) {
        let Some(written) = self.granted.get_mut(usize::from(node.0)) else { return };
        if std::mem::replace(written, until) != until {
            outside.set_lease(node, until);
        }
    }
}
