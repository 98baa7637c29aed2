//! The map of a new view, from what its members hold. Only the proposer runs this; everyone else takes its result.
//!
//! Rule: a claim counts if it was made in the highest installed view, or if that view's map lists the claimant in sync.
//! A live owner keeps its bucket; else the longest log wins; else the bucket begins empty. Every valid holder stays
//! among those that a commit waits for.

use std::collections::BTreeMap;

use crate::message::{Assignment, Claim, ClaimedState, Holds, Promise};
use crate::rendezvous::score;
use crate::{DataEpoch, MemberSet, Members, NodeId, ViewId};

/// What a decision rests on.
pub(crate) struct AssignmentInput<'a> {
    pub(crate) view: ViewId,
    pub(crate) members: &'a Members,
    pub(crate) promises: &'a BTreeMap<NodeId, Promise>,
    pub(crate) buckets: u16,
    pub(crate) backups: u8,
    /// In majority mode: how many established members are needed to know the newest view.
    pub(crate) quorum: Option<usize>,
    pub(crate) weights: BTreeMap<NodeId, u16>,
}

/// Why no map can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// A node claims to own what a later view gave away: it must drop its state first.
    Outdated { loser: NodeId, than: ViewId },
    /// Too few members remember: a later view may exist among those that are missing.
    Forgotten,
}

/// A valid or invalid claim of one member.
#[derive(Clone, Copy)]
struct Candidate {
    id: NodeId,
    view: ViewId,
    claim: Claim,
}

pub(crate) fn decide(ground: &AssignmentInput<'_>) -> Result<Vec<Assignment>, Conflict> {
    let established: Vec<(NodeId, &ClaimedState)> =
        ground.promises.iter().filter_map(|(id, promise)| Some((*id, promise.held.as_ref()?))).collect();
    if ground.quorum.is_some_and(|quorum| !established.is_empty() && established.len() < quorum) {
        return Err(Conflict::Forgotten);
    }
    let base = established.iter().max_by_key(|(_, held)| held.view).map(|(_, held)| *held);
    let mut spread = Spread::new(ground);
    let mut map: Vec<Option<Assignment>> = Vec::with_capacity(usize::from(ground.buckets));
    for bucket in 0..usize::from(ground.buckets) {
        let held = match base {
            Some(base) => resume(ground, &established, base, bucket)?,
            None => None,
        };
        if let Some(held) = &held {
            spread.count(held.owner);
        }
        map.push(held);
    }
    Ok((0u16..).zip(map).map(|(bucket, held)| spread.complete(ground, bucket, held)).collect())
}

/// Who goes on with a bucket that somebody holds.
fn resume(
    ground: &AssignmentInput<'_>,
    established: &[(NodeId, &ClaimedState)],
    base: &ClaimedState,
    bucket: usize,
) -> Result<Option<Assignment>, Conflict> {
    let listed = base.claims.get(bucket).map(|claim| claim.base_in_sync).unwrap_or_default();
    let candidate = |(id, held): &(NodeId, &ClaimedState)| -> Option<Candidate> {
        let claim = held.claims.get(bucket).filter(|claim| claim.holds != Holds::Nothing)?;
        Some(Candidate { id: *id, view: held.view, claim: *claim })
    };
    let is_valid = |c: &Candidate| {
        let same_life = ground.members.0.get(&c.id) == base.members.0.get(&c.id);
        c.view == base.view || (listed.contains(c.id) && same_life)
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
    let generation = best.claim.generation;
    let same = valid.iter().filter(|c| c.id != best.id && c.claim.generation == generation);
    let in_sync: MemberSet = same.map(|c| c.id).collect();
    Ok(Some(Assignment { owner: best.id, in_sync, listed: in_sync, generation }))
}

/// How many buckets each member owns so far, so that empty ones even it out.
struct Spread {
    owned: BTreeMap<NodeId, u64>,
}

impl Spread {
    fn new(ground: &AssignmentInput<'_>) -> Spread {
        Spread { owned: ground.members.0.keys().map(|id| (*id, 0)).collect() }
    }

    fn count(&mut self, id: NodeId) {
        *self.owned.entry(id).or_default() += 1;
    }

    fn complete(
        &mut self,
        ground: &AssignmentInput<'_>,
        bucket: u16,
        held: Option<Assignment>,
    ) -> Assignment {
        let mut assignment = held.unwrap_or_else(|| {
            let owner = self.fresh_owner(ground, bucket);
            self.count(owner);
            Assignment { owner, generation: DataEpoch(ground.view), ..Assignment::default() }
        });
        let mut wanted: Vec<NodeId> =
            ground.members.set().without(assignment.owner).minus(assignment.listed).iter().collect();
        wanted.sort_by_key(|id| std::cmp::Reverse(score(bucket, *id, weight(ground, *id))));
        let missing = usize::from(ground.backups).saturating_sub(assignment.listed.len());
        assignment.listed = wanted.into_iter().take(missing).fold(assignment.listed, MemberSet::with);
        assignment
    }

    /// Weighted rendezvous among the members that own less than their share; any member when all weigh nothing.
    fn fresh_owner(&self, ground: &AssignmentInput<'_>, bucket: u16) -> NodeId {
        let total: u64 = ground.weights.values().map(|weight| u64::from(*weight)).sum();
        let has_room = |id: &NodeId| {
            let share = u64::from(weight(ground, *id)) * u64::from(ground.buckets);
            let owned = self.owned.get(id).copied().unwrap_or(0);
            owned * total < share
        };
        let by_score = |id: &NodeId| score(bucket, *id, weight(ground, *id));
        let members = || ground.members.0.keys().copied();
        let best = members().filter(has_room).max_by_key(by_score).or_else(|| members().max_by_key(by_score));
        best.unwrap_or(ground.view.proposer)
    }
}

fn weight(ground: &AssignmentInput<'_>, id: NodeId) -> u16 {
    ground.weights.get(&id).copied().unwrap_or(0)
}
