//! The map of a new view, from the claims of its members. Only the proposer computes it; the members use the result.
//!
//! A claim counts if it was made in the highest installed view, or if that view's map lists the claimant in sync. A
//! live owner keeps its bucket; otherwise the longest log wins; otherwise the bucket begins empty. Every valid holder
//! stays among the backups that a commit waits for.

use std::collections::BTreeMap;

use crate::message::{Assignment, Claim, ClaimedState, Holds, Promise};
use crate::rendezvous::score;
use crate::{DataEpoch, MemberSet, Members, NodeId, ViewId};

/// Input of a decision.
pub(crate) struct AssignmentInput<'a> {
    pub(crate) view: ViewId,
    pub(crate) members: &'a Members,
    pub(crate) promises: &'a BTreeMap<NodeId, Promise>,
    pub(crate) buckets: u16,
    pub(crate) backups: u8,
    /// In majority mode: the number of established members that must know the newest view.
    pub(crate) quorum: Option<usize>,
    pub(crate) weights: BTreeMap<NodeId, u16>,
}

/// Reason for which no map can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// A node claims to own a bucket that a later view gave away: it must drop its state first.
    Outdated { loser: NodeId, than: ViewId },
    /// Too few members remember a view: a later one may exist among the missing members.
    Forgotten,
}

/// A claim of one member, valid or not.
#[derive(Clone, Copy)]
struct Candidate {
    id: NodeId,
    view: ViewId,
    claim: Claim,
}

pub(crate) fn decide(input: &AssignmentInput<'_>) -> Result<Vec<Assignment>, Conflict> {
    let established: Vec<(NodeId, &ClaimedState)> =
        input.promises.iter().filter_map(|(id, promise)| Some((*id, promise.claimed.as_ref()?))).collect();
    if input.quorum.is_some_and(|quorum| !established.is_empty() && established.len() < quorum) {
        return Err(Conflict::Forgotten);
    }
    let base = established.iter().max_by_key(|(_, claimed)| claimed.view).map(|(_, claimed)| *claimed);
    let mut spread = Spread::new(input);
    let mut map: Vec<Option<Assignment>> = Vec::with_capacity(usize::from(input.buckets));
    for bucket in 0..usize::from(input.buckets) {
        let claimed = match base {
            Some(base) => resume(input, &established, base, bucket)?,
            None => None,
        };
        if let Some(claimed) = &claimed {
            spread.count(claimed.owner);
        }
        map.push(claimed);
    }
    Ok((0u16..).zip(map).map(|(bucket, claimed)| spread.complete(input, bucket, claimed)).collect())
}

/// The assignment of a bucket that some member holds.
fn resume(
    input: &AssignmentInput<'_>,
    established: &[(NodeId, &ClaimedState)],
    base: &ClaimedState,
    bucket: usize,
) -> Result<Option<Assignment>, Conflict> {
    let listed = base.claims.get(bucket).map(|claim| claim.base_in_sync).unwrap_or_default();
    let candidate = |(id, claimed): &(NodeId, &ClaimedState)| -> Option<Candidate> {
        let claim = claimed.claims.get(bucket).filter(|claim| claim.holds != Holds::Nothing)?;
        Some(Candidate { id: *id, view: claimed.view, claim: *claim })
    };
    let is_valid = |c: &Candidate| {
        let same_incarnation = input.members.0.get(&c.id) == base.members.0.get(&c.id);
        c.view == base.view || (listed.contains(c.id) && same_incarnation)
    };
    let (valid, stale): (Vec<_>, Vec<_>) = established.iter().filter_map(candidate).partition(is_valid);
    if let Some(loser) = stale.iter().find(|c| c.claim.holds == Holds::Owner) {
        return Err(Conflict::Outdated { loser: loser.id, than: base.view });
    }
    let mut owners = valid.iter().filter(|c| c.claim.holds == Holds::Owner);
    if let (Some(a), Some(b)) = (owners.next(), owners.next()) {
        let loser = if a.view < b.view { a.id } else { b.id };
        return Err(Conflict::Outdated { loser, than: base.view });
    }
    let rank = |c: &&Candidate| {
        let chance = score(bucket as u16, c.id, 1);
        (c.claim.holds, c.view, c.claim.moves, c.claim.index, chance)
    };
    let Some(best) = valid.iter().max_by_key(rank) else { return Ok(None) };
    let data_epoch = best.claim.data_epoch;
    let same = valid.iter().filter(|c| c.id != best.id && c.claim.data_epoch == data_epoch);
    let in_sync: MemberSet = same.map(|c| c.id).collect();
    Ok(Some(Assignment { owner: best.id, in_sync, listed: in_sync, data_epoch }))
}

/// Number of buckets that each member owns so far, so that empty buckets even it out.
struct Spread {
    owned: BTreeMap<NodeId, u64>,
}

impl Spread {
    fn new(input: &AssignmentInput<'_>) -> Spread {
        Spread { owned: input.members.0.keys().map(|id| (*id, 0)).collect() }
    }

    fn count(&mut self, id: NodeId) {
        *self.owned.entry(id).or_default() += 1;
    }

    fn complete(
        &mut self,
        input: &AssignmentInput<'_>,
        bucket: u16,
        claimed: Option<Assignment>,
    ) -> Assignment {
        let mut assignment = claimed.unwrap_or_else(|| {
            let owner = self.owner_of_empty(input, bucket);
            self.count(owner);
            Assignment { owner, data_epoch: DataEpoch(input.view), ..Assignment::default() }
        });
        let mut wanted: Vec<NodeId> =
            input.members.set().without(assignment.owner).minus(assignment.listed).iter().collect();
        wanted.sort_by_key(|id| std::cmp::Reverse(score(bucket, *id, weight(input, *id))));
        let missing = usize::from(input.backups).saturating_sub(assignment.listed.len());
        assignment.listed = wanted.into_iter().take(missing).fold(assignment.listed, MemberSet::with);
        assignment
    }

    /// Weighted rendezvous among the members that own less than their share; any member when all weights are 0.
    fn owner_of_empty(&self, input: &AssignmentInput<'_>, bucket: u16) -> NodeId {
        let total: u64 = input.weights.values().map(|weight| u64::from(*weight)).sum();
        let has_room = |id: &NodeId| {
            let share = u64::from(weight(input, *id)) * u64::from(input.buckets);
            let owned = self.owned.get(id).copied().unwrap_or(0);
            owned * total < share
        };
        let by_score = |id: &NodeId| score(bucket, *id, weight(input, *id));
        let members = || input.members.0.keys().copied();
        let best = members().filter(has_room).max_by_key(by_score).or_else(|| members().max_by_key(by_score));
        best.unwrap_or(input.view.proposer)
    }
}

fn weight(input: &AssignmentInput<'_>, id: NodeId) -> u16 {
    input.weights.get(&id).copied().unwrap_or(0)
}
