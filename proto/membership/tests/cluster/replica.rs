//! A model of the replication layer: logs of tagged entries, fed whole, acknowledged, committed, emitted.
//!
//! It uses nothing but the node's public interface, in the way the shell is told to.

use std::collections::BTreeMap;

use evergate_base::Micros;
use evergate_membership::{Bucket, DataEpoch, Event, Node, NodeId, OwnershipStart, Role, Term};

/// What travels on the mirror channel. Feeds carry the whole log, so that loss and reordering need no more code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Feed {
    Log { bucket: u16, term: Term, generation: DataEpoch, log: Vec<u64> },
    Ack { bucket: u16, term: Term, index: u64 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Copy {
    pub(crate) log: Vec<u64>,
    pub(crate) term: Term,
    pub(crate) generation: DataEpoch,
    /// As the owner: who acknowledged how much in this term.
    pub(crate) acked: BTreeMap<NodeId, u64>,
}

/// All copies of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) copies: BTreeMap<u16, Copy>,
    /// Take-overs and hand-overs seen since the last look.
    pub(crate) resumed: Vec<(u16, OwnershipStart)>,
}

impl Replica {
    /// Acts on an event. An error is a broken promise of the node.
    pub(crate) fn handle_event(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Voided => self.copies.clear(),
            Event::Role { bucket, role } => self.handle_role(bucket.0, *role)?,
            Event::Installed { .. } | Event::Standing(_) | Event::Drained => {}
        }
        Ok(())
    }

    fn handle_role(&mut self, bucket: u16, role: Role) -> Result<(), String> {
        match role {
            Role::Outside { since, .. } => {
                if self.copies.get(&bucket).is_some_and(|copy| copy.term < since) {
                    self.copies.remove(&bucket);
                }
            }
            Role::Backup { term, generation, in_sync, .. } => {
                let copy = self.copies.entry(bucket).or_default();
                if copy.generation != generation {
                    *copy = Copy { generation, ..Copy::default() };
                }
                if !in_sync && copy.term.view != term.view {
                    copy.log.clear();
                    copy.term = Term::default();
                }
            }
            Role::Owner { term, generation, begin, .. } => {
                let copy = self.copies.entry(bucket).or_default();
                if copy.term == term && copy.generation == generation && begin != OwnershipStart::Handoff {
                    return Ok(()); // only the sets changed
                }
                if begin == OwnershipStart::Empty {
                    if copy.generation != generation {
                        *copy = Copy { generation, ..Copy::default() };
                    }
                } else if copy.generation != generation {
                    return Err(format!(
                        "bucket {bucket}: {begin:?} of {generation:?} but holds {:?}",
                        copy.generation
                    ));
                } else if copy.term != term && begin != OwnershipStart::Unchanged {
                    self.resumed.push((bucket, begin));
                }
                if copy.term != term {
                    copy.term = term;
                    copy.acked.clear();
                }
            }
        }
        Ok(())
    }

    /// Takes in what another node sent. The answer goes back.
    pub(crate) fn handle_feed(&mut self, node: &mut Node, from: NodeId, feed: Feed) -> Option<Feed> {
        match feed {
            Feed::Log { bucket, term, generation, log } => {
                // Whatever this node has promised meanwhile: before it promises a view without the owner, the lease that it
                // gave has run out, so that nothing leaves any more because of this answer; and who goes on goes on from it.
                if matches!(node.role(Bucket(bucket)), Role::Owner { .. }) {
                    return None;
                }
                let known = match node.role(Bucket(bucket)) {
                    Role::Backup { term, .. } => term,
                    _ => Term::default(),
                };
                let copy = self.copies.entry(bucket).or_default();
                if term < copy.term || term < known || (term == copy.term && log.len() < copy.log.len()) {
                    return None;
                }
                *copy = Copy { log, term, generation, acked: BTreeMap::new() };
                let index = copy.log.len() as u64;
                node.handle_stored(Bucket(bucket), term, index);
                Some(Feed::Ack { bucket, term, index })
            }
            Feed::Ack { bucket, term, index } => {
                let copy = self.copies.get_mut(&bucket)?;
                if copy.term == term {
                    let acked = copy.acked.entry(from).or_default();
                    *acked = (*acked).max(index);
                }
                None
            }
        }
    }

    /// What an owner feeds, to whom; catches up with new backups and freezes for moves on the way.
    pub(crate) fn drive(&mut self, node: &mut Node, now: Micros) -> Vec<(NodeId, Feed)> {
        let mut feeds = Vec::new();
        for (bucket, copy) in &mut self.copies {
            let Role::Owner { term, required, syncing, freeze_for, generation, .. } =
                node.role(Bucket(*bucket))
            else {
                continue;
            };
            if copy.term != term {
                continue;
            }
            let end = copy.log.len() as u64;
            node.handle_stored(Bucket(*bucket), term, end);
            for id in syncing.iter() {
                // An empty log also needs one round: the backup must have said that it follows this term.
                if copy.acked.get(&id) == Some(&end) {
                    node.handle_caught_up(now, Bucket(*bucket), term, id, end);
                }
            }
            for id in required.union(syncing).iter().filter(|id| copy.acked.get(id) != Some(&end)) {
                let log = copy.log.clone();
                feeds.push((id, Feed::Log { bucket: *bucket, term, generation, log }));
            }
            if let Some(freeze) = freeze_for
                && copy.acked.get(&freeze.to) == Some(&end)
            {
                node.handle_frozen(now, Bucket(*bucket), term, freeze, end);
            }
        }
        feeds
    }

    /// How many entries are committed, for an owner.
    pub(crate) fn committed(&self, node: &Node, bucket: u16) -> usize {
        let (Some(copy), Role::Owner { required, .. }) =
            (self.copies.get(&bucket), node.role(Bucket(bucket)))
        else {
            return 0;
        };
        let acked = required.iter().map(|id| copy.acked.get(&id).copied().unwrap_or(0));
        (acked.fold(copy.log.len() as u64, u64::min)) as usize
    }

    /// Whether the owner may decide something new.
    pub(crate) fn may_decide(&self, node: &Node, bucket: u16) -> bool {
        let role = node.role(Bucket(bucket));
        let Some(copy) = self.copies.get(&bucket) else { return false };
        matches!(role, Role::Owner { term, freeze_for: None, .. } if term == copy.term)
    }
}
