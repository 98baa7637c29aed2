//! Roles of buckets on their way from the protocol to the gate and the workers.
//!
//! Invariants: a recovered bucket is on hold in the gate before any worker gets it. It stays so, through other changes
//! of its role, until the workers release it. An owner's word lists every backup whose lease must be valid.
use evergate_base::Micros;
use evergate_bpf::{BACKUPS_MAX, Owner, Owners};
use evergate_membership::{Bucket, MemberSet, NodeId, Role, Term};
use evergate_worker::{FailoverOrder, arrives};

/// Placeholder in an owner's word for all members, where the word lacks space for the listed members: the last node of
/// the gate's lease table, far beyond [`evergate_membership::NODES_MAX`].
pub(crate) const ALL_MEMBERS: NodeId = NodeId(62);

/// Roles as last sent to the workers, and changes that are still to be sent.
pub(crate) struct Roles {
    me: NodeId,
    owners: Owners,
    known: Vec<Role>,
    changed: Vec<(Bucket, Role)>,
    arrived: Vec<(Bucket, Term)>,
}

/// Numbers of buckets by this node's role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) owned: u64,
    /// Owned buckets that lack a backup or have one that catches up.
    pub(crate) syncing: u64,
    /// Owned buckets without any complete backup.
    pub(crate) without_backup: u64,
    pub(crate) backup: u64,
    pub(crate) catching_up: u64,
    pub(crate) unowned: u64,
}

impl Roles {
    /// Roles at the start, where no node owns anything.
    pub(crate) fn new(me: NodeId, owners: Owners) -> Roles {
        let nothing = Role::NOTHING;
        owners.set_all(Owner::NONE);
        let known = vec![nothing; usize::from(evergate_membership::BUCKETS)];
        Roles { me, owners, known, changed: Vec::new(), arrived: Vec::new() }
    }

    /// Records a role and updates the gate. `listed`: members whose leases the gate must check.
    pub(crate) fn change(&mut self, bucket: Bucket, role: Role, listed: MemberSet) {
        let Some(known) = self.known.get_mut(usize::from(bucket.0)) else { return };
        let before = std::mem::replace(known, role);
        let arrived = arrives(before, role);
        let word = word(self.me, role, listed);
        self.owners.update(bucket, if arrived { word.on_hold() } else { word });
        if before != role {
            // Otherwise only the gate's word has changed.
            self.changed.push((bucket, role));
        }
        if let (true, Role::Owner { term, .. }) = (arrived, role) {
            self.arrived.push((bucket, term));
        }
    }

    /// Forgets all roles.
    pub(crate) fn reset(&mut self) {
        self.owners.set_all(Owner::NONE);
        self.known.fill(Role::NOTHING);
        self.changed.clear();
        self.arrived.clear();
    }

    /// Changes for the workers, and the failover of buckets that arrived.
    pub(crate) fn take_changes(&mut self) -> (Vec<(Bucket, Role)>, Option<FailoverOrder>) {
        let arrived = std::mem::take(&mut self.arrived);
        let order =
            (!arrived.is_empty()).then_some(FailoverOrder { number: 0, buckets: arrived, silent: Micros(0) });
        (std::mem::take(&mut self.changed), order)
    }

    /// Number of buckets that this node replicates to `backup`, or is about to.
    pub(crate) fn replicated_to(&self, backup: NodeId) -> usize {
        let replicates = |role: &Role| match role {
            Role::Owner { required, syncing, .. } => required.union(*syncing).contains(backup),
            _ => false,
        };
        self.known.iter().filter(|role| replicates(role)).count()
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for role in &self.known {
            match role {
                Role::Owner { required, syncing, .. } => {
                    tally.owned += 1;
                    tally.syncing += u64::from(!syncing.is_empty());
                    tally.without_backup += u64::from(required.is_empty());
                }
                Role::Backup { in_sync: true, .. } => tally.backup += 1,
                Role::Backup { in_sync: false, .. } => tally.catching_up += 1,
                Role::Outside { owner: None, .. } => tally.unowned += 1,
                Role::Outside { .. } => {}
            }
        }
        tally
    }
}

/// The gate's word for a role.
fn word(me: NodeId, role: Role, listed: MemberSet) -> Owner {
    let (owner, listed) = match role {
        Role::Owner { .. } => (Some(me), listed),
        // A backup is listed so that in flood mode it receives the peers' segments.
        Role::Backup { owner, .. } => (Some(owner), MemberSet::of(me)),
        Role::Outside { owner, .. } => (owner, MemberSet::EMPTY),
    };
    let listed: Vec<NodeId> = match listed.len() {
        0..=BACKUPS_MAX => listed.iter().collect(),
        _ => vec![ALL_MEMBERS],
    };
    owner.and_then(|owner| Owner::new(owner, &listed)).unwrap_or(Owner::NONE)
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
        assert_eq!(
            word(me, owner(term(1, 0), OwnershipStart::Unchanged), listed),
            Owner::new(NodeId(0), &[NodeId(1), NodeId(3)]).unwrap()
        );
        assert_eq!(word(me, backup(2), MemberSet::EMPTY), Owner::new(NodeId(2), &[NodeId(0)]).unwrap());
        let elsewhere = Role::Outside { owner: Some(NodeId(31)), since: term(1, 0) };
        assert_eq!(word(me, elsewhere, listed), Owner::new(NodeId(31), &[]).unwrap());
        assert_eq!(word(me, Role::NOTHING, listed), Owner::NONE);
        let many: MemberSet = (1..=7).map(NodeId).collect();
        let all = word(me, owner(term(1, 0), OwnershipStart::Unchanged), many);
        assert_eq!(all, Owner::new(NodeId(0), &[ALL_MEMBERS]).unwrap(), "more than fit");
    }
}
