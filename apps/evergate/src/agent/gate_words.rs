//! The agent's words in the gate: owners of buckets, leases, and the answer to unknown connections.

use super::event_loop::Clock;
use evergate_agent::OwnerWord;
use evergate_base::Micros;
use evergate_bpf::{BACKUPS_MAX, GateError, Leases, Owner, Owners, PacketGate};
use evergate_membership::{Bucket, NodeId};
use std::sync::Arc;

/// Placeholder in an owner's word for all members, where the word lacks space for the listed members: the last node of
/// the gate's lease table, far beyond [`evergate_membership::NODES_MAX`].
pub(crate) const ALL_MEMBERS: NodeId = NodeId(62);

/// The gate's tables that the agent writes.
pub(crate) struct GateWords {
    gate: Arc<PacketGate>,
    owners: Owners,
    leases: Leases,
    clock: Clock,
    /// Why the gate did not take the last answer to unknown connections.
    error: Option<GateError>,
}

impl GateWords {
    pub(crate) fn new(gate: Arc<PacketGate>, clock: Clock) -> GateWords {
        GateWords { owners: gate.owners(), leases: gate.leases(), gate, clock, error: None }
    }

    pub(crate) fn set_owner(&mut self, bucket: Bucket, word: OwnerWord) {
        self.owners.update(bucket, packed(word));
    }

    pub(crate) fn clear_owners(&mut self) {
        self.owners.set_all(Owner::NONE);
    }

    pub(crate) fn answer_unknown(&mut self, allowed: bool) {
        self.error = self.gate.set_reset_unknown(allowed).err();
    }

    /// Why the gate did not take the last answer to unknown connections, once.
    pub(crate) fn take_error(&mut self) -> Option<GateError> {
        self.error.take()
    }

    pub(crate) fn set_own_lease(&mut self, until: Micros) {
        self.leases.set_own(self.clock.gate_ns(until));
    }

    pub(crate) fn set_lease(&mut self, node: NodeId, until: Micros) {
        self.leases.set(node, self.clock.gate_ns(until));
    }

    pub(crate) fn set_lease_of_all(&mut self, until: Micros) {
        let until_ns = if until == Micros(u64::MAX) { u64::MAX } else { self.clock.gate_ns(until) };
        self.leases.set(ALL_MEMBERS, until_ns);
    }

    pub(crate) fn revoke_leases(&mut self) {
        self.leases.revoke_all();
    }
}

/// A word in the gate's form.
fn packed(OwnerWord { owner, listed, on_hold }: OwnerWord) -> Owner {
    let listed: Vec<NodeId> = match listed.len() {
        0..=BACKUPS_MAX => listed.iter().collect(),
        _ => vec![ALL_MEMBERS],
    };
    let owner = owner.and_then(|owner| Owner::new(owner, &listed)).unwrap_or(Owner::NONE);
    if on_hold { owner.on_hold() } else { owner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_membership::MemberSet;

    #[test]
    fn word_without_space_for_all_backups_lists_all_members() {
        let of = |listed: MemberSet| OwnerWord { owner: Some(NodeId(0)), listed, on_hold: false };
        let few = MemberSet::of(NodeId(1)).with(NodeId(3));
        assert_eq!(packed(of(few)), Owner::new(NodeId(0), &[NodeId(1), NodeId(3)]).unwrap());
        assert!(packed(OwnerWord { on_hold: true, ..of(few) }).is_on_hold());
        let many: MemberSet = (1..=7).map(NodeId).collect();
        assert_eq!(packed(of(many)), Owner::new(NodeId(0), &[ALL_MEMBERS]).unwrap(), "more than fit");
        assert_eq!(packed(OwnerWord::default()), Owner::NONE);
    }
}
