//! Roles of buckets on their way from the protocol to the gate and the workers.
//!
//! Invariants: a recovered bucket is on hold in the gate before any worker gets it. It stays so, through other changes
//! of its role, until the workers release it. An owner's word lists every backup whose lease must be valid.

use crate::outside::{Outside, OwnerWord};
use evergate_base::Micros;
use evergate_membership::{BUCKETS, Bucket, MemberSet, NodeId, Role, Term};
use evergate_worker::{FailoverOrder, arrives};

/// Roles as last sent to the workers, and changes that are still to be sent.
#[derive(Debug)]
pub struct Roles {
    me: NodeId,
    known: Vec<Role>,
    changed: Vec<(Bucket, Role)>,
    arrived: Vec<(Bucket, Term)>,
}

/// Numbers of buckets by this node's role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleCounts {
    /// Owned ones.
    pub owned: u64,
    /// Owned buckets that lack a backup or have one that catches up.
    pub syncing: u64,
    /// Owned buckets without any complete backup.
    pub without_backup: u64,
    /// Those whose complete replica this node has.
    pub backup: u64,
    /// Those whose replica here catches up.
    pub catching_up: u64,
    /// Those without an owner.
    pub unowned: u64,
}

impl Roles {
    /// Roles at the start, where no node owns anything.
    pub fn new(me: NodeId) -> Roles {
        let known = vec![Role::NOTHING; usize::from(BUCKETS)];
        Roles { me, known, changed: Vec::new(), arrived: Vec::new() }
    }

    /// Records a role and updates the gate. `listed`: members whose leases the gate must check.
    pub fn change(&mut self, bucket: Bucket, role: Role, listed: MemberSet, outside: &mut impl Outside) {
        let Some(known) = self.known.get_mut(usize::from(bucket.0)) else { return };
        let before = std::mem::replace(known, role);
        let arrived = arrives(before, role);
        let word = word(self.me, role, listed);
        outside.set_owner(bucket, OwnerWord { on_hold: arrived, ..word });
        if before != role {
            // Otherwise only the gate's word has changed.
            self.changed.push((bucket, role));
        }
        if let (true, Role::Owner { term, .. }) = (arrived, role) {
            self.arrived.push((bucket, term));
        }
    }

    /// Forgets all roles.
    pub fn reset(&mut self, outside: &mut impl Outside) {
        outside.clear_owners();
        self.known.fill(Role::NOTHING);
        self.changed.clear();
        self.arrived.clear();
    }

    /// Changes for the workers, and the failover of buckets that arrived.
    pub fn take_changes(&mut self) -> (Vec<(Bucket, Role)>, Option<FailoverOrder>) {
        let arrived = std::mem::take(&mut self.arrived);
        let order =
            (!arrived.is_empty()).then_some(FailoverOrder { number: 0, buckets: arrived, silent: Micros(0) });
        (std::mem::take(&mut self.changed), order)
    }

    /// Number of buckets that this node replicates to `backup`, or is about to.
    pub fn replicated_to(&self, backup: NodeId) -> usize {
        let replicates = |role: &Role| match role {
            Role::Owner { required, syncing, .. } => required.union(*syncing).contains(backup),
            _ => false,
        };
        self.known.iter().filter(|role| replicates(role)).count()
    }

    /// Numbers of buckets by role.
    pub fn counts(&self) -> RoleCounts {
        let mut counts = RoleCounts::default();
        for role in &self.known {
            match role {
                Role::Owner { required, syncing, .. } => {
                    counts.owned += 1;
                    counts.syncing += u64::from(!syncing.is_empty());
                    counts.without_backup += u64::from(required.is_empty());
                }
                Role::Backup { in_sync: true, .. } => counts.backup += 1,
                Role::Backup { in_sync: false, .. } => counts.catching_up += 1,
                Role::Outside { owner: None, .. } => counts.unowned += 1,
                Role::Outside { .. } => {}
            }
        }
        counts
    }
}

/// The gate's word for a role.
fn word(me: NodeId, role: Role, listed: MemberSet) -> OwnerWord {
    let (owner, listed) = match role {
        Role::Owner { .. } => (Some(me), listed),
        // A backup is listed so that in flood mode it receives the peers' segments.
        Role::Backup { owner, .. } => (Some(owner), MemberSet::of(me)),
        Role::Outside { owner, .. } => (owner, MemberSet::EMPTY),
    };
    OwnerWord { owner, listed, on_hold: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_membership::{DataEpoch, Incarnation, OwnershipStart, ViewId};

    fn term(epoch: u64, moves: u32) -> Term {
        Term { view: ViewId { epoch, proposer: NodeId(1), incarnation: Incarnation(7) }, moves }
    }

    fn owner(term: Term, begin: OwnershipStart) -> Role {
        Role::Owner {
            term,
            data_epoch: DataEpoch::default(),
            begin,
            required: MemberSet::EMPTY,
            syncing: MemberSet::EMPTY,
            freeze_for: None,
        }
    }

    fn backup(owner: u8) -> Role {
        Role::Backup {
            term: term(1, 0),
            owner: NodeId(owner),
            data_epoch: DataEpoch::default(),
            in_sync: true,
        }
    }

    #[test]
    fn bucket_from_another_node_arrives_once_per_term() {
        let outside = Role::NOTHING;
        let (first, second) = (term(1, 0), term(2, 0));
        assert!(arrives(backup(1), owner(first, OwnershipStart::Failover)));
        assert!(arrives(outside, owner(first, OwnershipStart::Handoff)));
        assert!(
            !arrives(owner(first, OwnershipStart::Failover), owner(first, OwnershipStart::Failover)),
            "sent again"
        );
        assert!(
            arrives(owner(first, OwnershipStart::Unchanged), owner(second, OwnershipStart::Failover)),
            "lost and regained between two polls"
        );
        assert!(!arrives(outside, owner(first, OwnershipStart::Empty)));
        assert!(!arrives(owner(first, OwnershipStart::Failover), owner(second, OwnershipStart::Unchanged)));
        assert!(!arrives(owner(first, OwnershipStart::Failover), backup(1)));
    }

    #[test]
    fn word_names_the_owner_and_each_backup_with_a_lease() {
        let me = NodeId(0);
        let listed = MemberSet::of(NodeId(1)).with(NodeId(3));
        let of = |owner, listed| OwnerWord { owner, listed, on_hold: false };
        assert_eq!(
            word(me, owner(term(1, 0), OwnershipStart::Unchanged), listed),
            of(Some(NodeId(0)), listed)
        );
        assert_eq!(word(me, backup(2), MemberSet::EMPTY), of(Some(NodeId(2)), MemberSet::of(me)));
        let elsewhere = Role::Outside { owner: Some(NodeId(31)), since: term(1, 0) };
        assert_eq!(word(me, elsewhere, listed), of(Some(NodeId(31)), MemberSet::EMPTY));
        assert_eq!(word(me, Role::NOTHING, listed), OwnerWord::default());
    }
}
