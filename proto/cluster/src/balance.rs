//! Keeping the load even and the backups complete, inside a view.
//!
//! Every owner decides for its own buckets, from what all members say in their heartbeats; nobody leads. The pace is
//! bounded, and a node gives away only what still leaves it the more loaded one, so that nothing swings back.
//! What a bucket weighs is [`crate::load`]'s business.

use evergate_base::Micros;

use crate::rendezvous::score;
use crate::{Bucket, MemberSet, Node, NodeId};

impl Node {
    /// Gives all buckets away and takes no more; [`crate::Event::Drained`] tells when it is done. Undone by `false`.
    pub fn set_draining(&mut self, now: Micros, draining: bool) {
        self.note_now(now);
        self.draining = draining || self.config.weight == 0;
        self.drained_told = false;
        self.balance_at = self.now;
        self.due = true;
    }

    /// Sums the load up, for the heartbeats: several times between two looks at it.
    pub(crate) fn sum_load(&mut self, now: Micros) {
        let span = Micros(self.config.timing.balance.0 / 10);
        if self.load_at.is_none_or(|at| now.since(at) >= span) {
            (self.load, self.load_at) = (self.own_load(), Some(now));
        }
    }

    /// Looks at backups and load from time to time; more often while it is draining, or something of it has too few copies.
    pub(crate) fn advance_balance(&mut self, now: Micros) {
        let calm = self.established && self.pending.is_none() && self.lapsed_at.is_none();
        if !calm || now < self.balance_at {
            return;
        }
        let steady = self.steady();
        let mut room = Room::of(self);
        let interval = self.config.timing.balance;
        if now.since(self.smoothed_at) >= interval {
            self.smooth_loads();
        }
        // What was given away shows in the others' loads only a while later.
        if self.draining || now >= self.even_at {
            self.even_at = now + interval;
            self.even_load(steady, &mut room);
            if room.moves > 0 {
                self.forget_plans(steady);
            }
        }
        self.complete_backups(steady, &mut room);
        let hurries = self.draining || self.lacks_backups(steady);
        self.balance_at = now + if hurries { Micros(interval.0 / 10) } else { interval };
        let owns = self.offices.iter().any(|office| office.owner == Some(self.me.id));
        if self.draining && !owns && self.busy.is_empty() && !self.drained_told {
            self.drained_told = true;
            self.drained = true;
        }
    }

    /// Members that may get buckets and mirrors.
    fn steady(&self) -> MemberSet {
        let weights = self.weights(&self.members);
        weights.into_iter().filter(|(_, weight)| *weight > 0).map(|(id, _)| id).collect()
    }

    /// A bucket that was mirrored to be moved, and was not although it could be, is not needed there any more.
    fn forget_plans(&mut self, steady: MemberSet) {
        for office in &mut self.offices {
            let idle = office.owner == Some(self.me.id) && office.freezing.is_none();
            if idle && office.destined.is_some_and(|id| office.backups.contains(id) || !steady.contains(id)) {
                office.destined = None;
            }
        }
    }

    /// Whether a bucket owned here has fewer backups than it should have, those that are being filled among them.
    fn lacks_backups(&self, steady: MemberSet) -> bool {
        let others = steady.without(self.me.id);
        let wanted = usize::from(self.config.backups).min(others.len());
        let lacks = |office: &crate::bucket::Office| office.listed.minus(office.dropping).len() < wanted;
        self.offices.iter().any(|office| office.owner == Some(self.me.id) && lacks(office))
    }

    /// Every owned bucket gets the backups it lacks, then those that rank higher for it, and loses those it does not need.
    fn complete_backups(&mut self, steady: MemberSet, room: &mut Room) {
        let me = self.me.id;
        let weights = self.weights(&self.members);
        let liked = |bucket: u16, id: NodeId| score(bucket, id, weights.get(&id).copied().unwrap_or(0));
        let others = steady.without(me);
        let shunned: MemberSet =
            self.peers.iter().filter(|(_, peer)| peer.is_shunned(self.now)).map(|(id, _)| *id).collect();
        let wanted = usize::from(self.config.backups).min(others.len());
        for bucket in 0..self.config.buckets {
            let Some(office) = self.offices.get_mut(usize::from(bucket)) else { return };
            if office.owner != Some(me) || office.freezing.is_some() {
                continue;
            }
            // To whom nothing may be given in this term, it may be in the next one.
            let barred = !office.gone.intersection(others).minus(shunned).is_empty();
            let settled = office.destined.is_none() && !self.changed.contains(&bucket);
            if self.draining && barred && settled && office.renew(self.view, self.members.set().without(me)) {
                self.touch(Bucket(bucket));
                continue;
            }
            let destined = office.destined.map_or(MemberSet::EMPTY, MemberSet::of);
            let usable = office.listed.intersection(others).minus(office.dropping).minus(destined);
            if usable.len() < wanted && room.mirrors > 0 {
                let free = others.minus(office.listed);
                let (fresh, again) = (free.minus(office.gone), free.minus(shunned));
                let best = |of: MemberSet| of.iter().max_by_key(|id| liked(bucket, *id));
                // Of those that were dropped one is tried again when there is nobody else.
                let unread = self.changed.contains(&bucket);
                let best = best(fresh).or_else(|| {
                    best(again).filter(|_| !unread && office.renew(self.view, self.members.set().without(me)))
                });
                if best.is_some_and(|best| office.list(best)) {
                    room.mirrors -= 1;
                    self.touch(Bucket(bucket));
                }
                continue;
            }
            let in_sync = usable.intersection(office.backups);
            let spare = if in_sync.len() > wanted {
                in_sync.iter().min_by_key(|id| liked(bucket, *id))
            } else if in_sync.len() == wanted && wanted > 0 {
                // Also those that are on their way out.
                office.backups.minus(others).minus(office.dropping).minus(destined).iter().next()
            } else {
                None
            };
            if let Some(spare) = spare {
                self.begin_drop(Bucket(bucket), spare);
                continue;
            }
            // Copies follow a node that has joined: else those of a dead one would all be at the few that were there before.
            let better = others.minus(office.listed).minus(office.gone).minus(shunned);
            let better = better.iter().max_by_key(|id| liked(bucket, *id));
            let least = in_sync.iter().map(|id| liked(bucket, id)).min();
            let whole = in_sync == usable && office.destined.is_none() && !self.draining;
            if let Some(better) =
                better.filter(|id| whole && least.is_some_and(|least| liked(bucket, *id) > least))
                && room.mirrors > 0
                && office.list(better)
            {
                room.mirrors -= 1;
                self.touch(Bucket(bucket));
            }
        }
    }

    /// Moves buckets from here to the member with the least for its weight.
    fn even_load(&mut self, steady: MemberSet, room: &mut Room) {
        let me = self.me.id;
        let weights = self.weights(&self.members);
        let mut loads: Vec<(NodeId, u64, u64)> = Vec::new();
        for id in self.members.set().iter() {
            let load = if id == me {
                self.own_load()
            } else {
                self.peers.get(&id).and_then(|peer| peer.last).map_or(0, |last| last.load)
            };
            loads.push((id, load, u64::from(weights.get(&id).copied().unwrap_or(0))));
        }
        let total: u128 = loads.iter().map(|(_, load, _)| u128::from(*load)).sum();
        let weight: u128 = loads.iter().map(|(_, _, weight)| u128::from(*weight)).sum();
        // Rounded down, nothing swings back; a draining node takes nothing back, and shares that are rounded up have room for
        // all it has.
        let up = if self.draining { weight.saturating_sub(1) } else { 0 };
        let share = |own: u64| (total * u128::from(own) + up).checked_div(weight).map_or(0, |s| s as u64);
        let Some(mut mine) = loads.iter().find(|(id, ..)| *id == me).map(|(_, load, _)| *load) else {
            return;
        };
        let my_share = share(weights.get(&me).copied().map_or(0, u64::from));
        let tolerance = my_share.saturating_mul(u64::from(self.config.pace.tolerance_percent)) / 100;
        for (id, load, weight) in &mut loads {
            let fair = share(*weight);
            if *id == me || !steady.contains(*id) {
                continue;
            }
            while room.moves > 0 && mine > my_share.saturating_add(tolerance) && *load < fair {
                let gap = (mine - my_share).min(fair - *load);
                let Some(moved) = self.give(*id, gap, room) else { break };
                mine = mine.saturating_sub(moved);
                *load = load.saturating_add(moved);
            }
        }
    }

    /// Gives one bucket of at most `gap` load to a member: moves it if the member is in sync, else begins to mirror it
    /// there. The heaviest that fits goes first; a draining node gives whatever it has.
    fn give(&mut self, to: NodeId, gap: u64, room: &mut Room) -> Option<u64> {
        let me = self.me.id;
        let draining = self.draining;
        let assumed = self.assumed_work();
        let free = |office: &crate::bucket::Office| {
            office.owner == Some(me)
                && office.freezing.is_none()
                && office.adding.is_empty()
                && office.dropping.is_empty()
                && (draining || office.destined.is_none_or(|id| id == to))
                && (draining || office.weight(assumed) <= gap)
        };
        let ready = |office: &crate::bucket::Office| free(office) && office.backups.contains(to);
        let mirrorable = |office: &crate::bucket::Office| {
            free(office) && !office.listed.contains(to) && !office.gone.contains(to)
        };
        let heaviest = |fits: &dyn Fn(&crate::bucket::Office) -> bool| {
            let offices = (0u16..).zip(&self.offices).filter(|(_, office)| fits(office));
            offices
                .max_by_key(|(bucket, office)| (office.weight(assumed), std::cmp::Reverse(*bucket)))
                .map(|(bucket, _)| bucket)
        };
        let (bucket, moves) = match heaviest(&ready) {
            Some(bucket) => (bucket, true),
            None if room.mirrors > 0 => (heaviest(&mirrorable)?, false),
            None => return None,
        };
        let office = self.offices.get_mut(usize::from(bucket))?;
        office.destined = Some(to);
        let load = office.weight(assumed);
        if moves {
            room.moves -= 1;
            self.begin_move(Bucket(bucket), to);
        } else {
            room.mirrors -= 1;
            office.list(to);
            self.touch(Bucket(bucket));
        }
        Some(load)
    }
}

/// How much more may be begun now.
struct Room {
    mirrors: u16,
    moves: u16,
}

impl Room {
    fn of(node: &Node) -> Room {
        let mine = || node.offices.iter().filter(|office| office.owner == Some(node.me.id));
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let syncing = mine().filter(|office| !office.listed.minus(office.backups).is_empty()).count();
        let moving = mine().filter(|office| office.freezing.is_some()).count();
        Room {
            mirrors: node.config.pace.mirrors_max.saturating_sub(count(syncing)),
            moves: node.config.pace.moves_max.saturating_sub(count(moving)),
        }
    }
}
