//! A model of the replication layer: logs of tagged entries, sent whole, acknowledged, committed, emitted.
//!
//! It uses only the node's public interface, in the way that the shell has to.

use std::collections::BTreeMap;

use evergate_base::Micros;
use evergate_membership::{Bucket, DataEpoch, Event, Node, NodeId, OwnershipStart, Role, Term};

/// A frame of a replication channel. It carries the whole log, so that loss and reordering need no more code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Frame {
    Log { bucket: u16, term: Term, data_epoch: DataEpoch, log: Vec<u64> },
    Ack { bucket: u16, term: Term, index: u64 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LogReplica {
    pub(crate) log: Vec<u64>,
    pub(crate) term: Term,
    pub(crate) data_epoch: DataEpoch,
    /// As the owner: the positions that nodes acknowledged in this term.
    pub(crate) acked: BTreeMap<NodeId, u64>,
}

/// All replicas of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) logs: BTreeMap<u16, LogReplica>,
    /// Failovers and handoffs since the last poll.
    pub(crate) resumed: Vec<(u16, OwnershipStart)>,
}

impl Replica {
    /// Acts on an event. An error is a broken promise of the node.
    pub(crate) fn handle_event(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::StateDropped => self.logs.clear(),
            Event::Role { bucket, role } => self.handle_role(bucket.0, *role)?,
            Event::Installed { .. } | Event::Phase(_) | Event::Drained => {}
        }
        Ok(())
    }

    fn handle_role(&mut self, bucket: u16, role: Role) -> Result<(), String> {
        match role {
            Role::Outside { since, .. } => {
                if self.logs.get(&bucket).is_some_and(|replica| replica.term < since) {
                    self.logs.remove(&bucket);
                }
            }
            Role::Backup { term, data_epoch, in_sync, .. } => {
                let replica = self.logs.entry(bucket).or_default();
                if replica.data_epoch != data_epoch {
                    *replica = LogReplica { data_epoch, ..LogReplica::default() };
                }
                if !in_sync && replica.term.view != term.view {
                    replica.log.clear();
                    replica.term = Term::default();
                }
            }
            Role::Owner { term, data_epoch, begin, .. } => {
                let replica = self.logs.entry(bucket).or_default();
                if replica.term == term
                    && replica.data_epoch == data_epoch
                    && begin != OwnershipStart::Handoff
                {
                    return Ok(()); // only the sets changed
                }
                if begin == OwnershipStart::Empty {
                    if replica.data_epoch != data_epoch {
                        *replica = LogReplica { data_epoch, ..LogReplica::default() };
                    }
                } else if replica.data_epoch != data_epoch {
                    return Err(format!(
                        "bucket {bucket}: {begin:?} of {data_epoch:?} but holds {:?}",
                        replica.data_epoch
                    ));
                } else if replica.term != term && begin != OwnershipStart::Unchanged {
                    self.resumed.push((bucket, begin));
                }
                if replica.term != term {
                    replica.term = term;
                    replica.acked.clear();
                }
            }
        }
        Ok(())
    }

    /// Processes a frame of another node. Returns the answer.
    pub(crate) fn handle_frame(&mut self, node: &mut Node, from: NodeId, frame: Frame) -> Option<Frame> {
        match frame {
            Frame::Log { bucket, term, data_epoch, log } => {
                // Whatever this node has promised meanwhile: before it promises a view without the owner, the lease
                // that it granted has expired, so this answer lets nothing leave. A node that continues does so from
                // this log.
                if matches!(node.role(Bucket(bucket)), Role::Owner { .. }) {
                    return None;
                }
                let known = match node.role(Bucket(bucket)) {
                    Role::Backup { term, .. } => term,
                    _ => Term::default(),
                };
                let replica = self.logs.entry(bucket).or_default();
                if term < replica.term
                    || term < known
                    || (term == replica.term && log.len() < replica.log.len())
                {
                    return None;
                }
                *replica = LogReplica { log, term, data_epoch, acked: BTreeMap::new() };
                let index = replica.log.len() as u64;
                node.handle_stored(Bucket(bucket), term, index);
                Some(Frame::Ack { bucket, term, index })
            }
            Frame::Ack { bucket, term, index } => {
                let replica = self.logs.get_mut(&bucket)?;
                if replica.term == term {
                    let acked = replica.acked.entry(from).or_default();
                    *acked = (*acked).max(index);
                }
                None
            }
        }
    }

    /// The owner's frames and their receivers. On the way it catches up with new backups and freezes for handoffs.
    pub(crate) fn drive(&mut self, node: &mut Node, now: Micros) -> Vec<(NodeId, Frame)> {
        let mut frames = Vec::new();
        for (bucket, replica) in &mut self.logs {
            let Role::Owner { term, required, syncing, freeze_for, data_epoch, .. } =
                node.role(Bucket(*bucket))
            else {
                continue;
            };
            if replica.term != term {
                continue;
            }
            let end = replica.log.len() as u64;
            node.handle_stored(Bucket(*bucket), term, end);
            for id in syncing.iter() {
                // An empty log needs one round as well: the backup must report that it follows this term.
                if replica.acked.get(&id) == Some(&end) {
                    node.handle_caught_up(now, Bucket(*bucket), term, id, end);
                }
            }
            for id in required.union(syncing).iter().filter(|id| replica.acked.get(id) != Some(&end)) {
                let log = replica.log.clone();
                frames.push((id, Frame::Log { bucket: *bucket, term, data_epoch, log }));
            }
            if let Some(freeze) = freeze_for
                && replica.acked.get(&freeze.to) == Some(&end)
            {
                node.handle_frozen(now, Bucket(*bucket), term, freeze, end);
            }
        }
        frames
    }

    /// Number of committed entries, for an owner.
    pub(crate) fn committed(&self, node: &Node, bucket: u16) -> usize {
        let (Some(replica), Role::Owner { required, .. }) =
            (self.logs.get(&bucket), node.role(Bucket(bucket)))
        else {
            return 0;
        };
        let acked = required.iter().map(|id| replica.acked.get(&id).copied().unwrap_or(0));
        (acked.fold(replica.log.len() as u64, u64::min)) as usize
    }

    /// Whether the owner may append an entry.
    pub(crate) fn may_decide(&self, node: &Node, bucket: u16) -> bool {
        let role = node.role(Bucket(bucket));
        let Some(replica) = self.logs.get(&bucket) else { return false };
        matches!(role, Role::Owner { term, freeze_for: None, .. } if term == replica.term)
    }
}
