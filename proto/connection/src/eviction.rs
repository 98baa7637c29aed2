//! Eviction order: which client connection of a worker makes room for a new one when a limit is reached.
//!
//! A connection is [`Activity::Silent`] until its client sends a byte, [`Activity::Idle`] between requests, and
//! [`Activity::Active`] in all other states. Active connections are never candidates. The order is:
//!
//! 1. connections silent for [`SILENT_GRACE`] or longer, longest first;
//! 2. idle connections, longest first;
//! 3. other silent connections, longest first, where the limit would otherwise refuse the new connection.
//!
//! Invariants: each connection is in exactly one list per group, or in none when it is active; each list is ordered by
//! the time of the change. All operations are O(1) in the number of connections. The queue closes nothing.

use crate::Io;
use crate::connection::Connection;
use crate::exchange::RequestState;
use evergate_base::Micros;

/// Time for the first bytes of a client: two retransmissions of a lost segment (1 s and 3 s, RFC 6298 section 2) fit.
pub const SILENT_GRACE: Micros = Micros::from_ms(5_000);

/// Groups that one connection can belong to: all connections of the worker, and those of two narrower limits.
pub const GROUPS_MAX: usize = 3;

const NONE: u32 = u32::MAX;

/// What a client connection does, as far as eviction is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// A handshake, request, response or tunnel is under way, or the connection is closing.
    Active,
    /// The client has sent no byte yet.
    Silent,
    /// Between requests, or between handshake and first request; nothing waits in either direction.
    Idle,
}

/// What happens to a new connection when nothing is evicted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// The connection is refused: young silent connections are candidates too.
    Refused,
    /// The connection waits in the kernel's queue: young silent connections keep their grace.
    Waits,
}

/// Connections that count against one limit, as far as one worker carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(u32);

impl GroupId {
    /// All connections of the worker.
    pub const ALL: GroupId = GroupId(0);
}

/// Evictable connections of one worker, by the limits that they count against. Connections are named by small numbers
/// (slots), which the caller uses again.
#[derive(Debug)]
pub struct EvictionQueue {
    entries: Vec<Entry>,
    groups: Vec<Group>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    activity: Activity,
    /// When the present activity began.
    since: Micros,
    links: [Link; GROUPS_MAX],
}

#[derive(Clone, Copy, Debug)]
struct Link {
    group: u32,
    before: u32,
    behind: u32,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    silent: List,
    idle: List,
    evictable: usize,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

const UNLINKED: Link = Link { group: NONE, before: NONE, behind: NONE };
const ABSENT: Entry = Entry { activity: Activity::Active, since: Micros(0), links: [UNLINKED; GROUPS_MAX] };
const EMPTY: List = List { first: NONE, last: NONE };
const EMPTY_GROUP: Group = Group { silent: EMPTY, idle: EMPTY, evictable: 0 };

impl Default for EvictionQueue {
    fn default() -> EvictionQueue {
        EvictionQueue { entries: Vec::new(), groups: vec![EMPTY_GROUP], free: Vec::new() }
    }
}

impl EvictionQueue {
    /// Number of evictable connections of a group in this worker.
    pub fn evictable(&self, group: GroupId) -> usize {
        self.groups[group.0 as usize].evictable
    }

    /// A new group without connections.
    pub fn add_group(&mut self) -> GroupId {
        if let Some(index) = self.free.pop() {
            self.groups[index as usize] = EMPTY_GROUP;
            return GroupId(index);
        }
        self.groups.push(EMPTY_GROUP);
        GroupId(self.groups.len() as u32 - 1)
    }

    /// Removes a group that no connection belongs to any more.
    pub fn remove_group(&mut self, group: GroupId) {
        debug_assert_eq!(self.evictable(group), 0);
        self.free.push(group.0);
    }

    /// Puts a connection into [`GroupId::ALL`] and `groups`, at most two. The connection is active until
    /// [`set`](Self::set) is called.
    pub fn insert(&mut self, slot: u32, groups: impl IntoIterator<Item = GroupId>) {
        let index = slot as usize;
        if self.entries.len() <= index {
            self.entries.resize(index + 1, ABSENT);
        }
        let entry = &mut self.entries[index];
        *entry = ABSENT;
        let groups = std::iter::once(GroupId::ALL).chain(groups);
        for (link, group) in entry.links.iter_mut().zip(groups) {
            link.group = group.0;
        }
    }

    /// Notes what a connection does from `now` on; returns what it did before.
    pub fn set(&mut self, slot: u32, activity: Activity, now: Micros) -> Activity {
        let Some(entry) = self.entries.get_mut(slot as usize) else { return Activity::Active };
        let before = std::mem::replace(&mut entry.activity, activity);
        if before == activity {
            return before;
        }
        entry.since = now;
        for at in 0..GROUPS_MAX {
            self.unlink(slot, at, before);
            self.link(slot, at, activity);
        }
        before
    }

    /// What a connection does, and since when.
    pub fn state(&self, slot: u32) -> (Activity, Micros) {
        let entry = self.entries.get(slot as usize).unwrap_or(&ABSENT);
        (entry.activity, entry.since)
    }

    /// Takes a connection out of all groups.
    pub fn remove(&mut self, slot: u32) {
        self.set(slot, Activity::Active, Micros(0));
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            *entry = ABSENT;
        }
    }

    /// The connection of `group` to evict next, and what it does.
    pub fn next(&self, group: GroupId, otherwise: Otherwise, now: Micros) -> Option<(u32, Activity)> {
        let Group { silent, idle, .. } = self.groups[group.0 as usize];
        let entry = |slot: u32| self.entries.get(slot as usize);
        let is_old = entry(silent.first).is_some_and(|first| now.since(first.since) >= SILENT_GRACE);
        let may_be_young = otherwise == Otherwise::Refused;
        let slot = match (is_old, idle.first) {
            (true, _) => silent.first,
            (false, NONE) if may_be_young => silent.first,
            (false, slot) => slot,
        };
        entry(slot).map(|entry| (slot, entry.activity))
    }

    fn link(&mut self, slot: u32, at: usize, activity: Activity) {
        let group = self.entries[slot as usize].links[at].group;
        let Some(list) = self.list(group, activity) else { return };
        let last = std::mem::replace(&mut list.last, slot);
        if last == NONE {
            list.first = slot;
        } else {
            self.link_of(last, group).behind = slot;
        }
        self.groups[group as usize].evictable += 1;
        let link = &mut self.entries[slot as usize].links[at];
        (link.before, link.behind) = (last, NONE);
    }

    fn unlink(&mut self, slot: u32, at: usize, activity: Activity) {
        let Link { group, before, behind } = self.entries[slot as usize].links[at];
        let Some(list) = self.list(group, activity) else { return };
        if before == NONE {
            list.first = behind;
        }
        if behind == NONE {
            list.last = before;
        }
        if before != NONE {
            self.link_of(before, group).behind = behind;
        }
        if behind != NONE {
            self.link_of(behind, group).before = before;
        }
        self.groups[group as usize].evictable -= 1;
    }

    fn list(&mut self, group: u32, activity: Activity) -> Option<&mut List> {
        let group = self.groups.get_mut(group as usize)?;
        match activity {
            Activity::Active => None,
            Activity::Silent => Some(&mut group.silent),
            Activity::Idle => Some(&mut group.idle),
        }
    }

    /// The link of a connection in a group that it belongs to.
    fn link_of(&mut self, slot: u32, group: u32) -> &mut Link {
        let links = &mut self.entries[slot as usize].links;
        let at = links.iter().position(|link| link.group == group).unwrap_or(0);
        &mut links[at]
    }
}

impl Connection {
    /// What the connection does, as far as eviction is concerned.
    pub fn activity(&self) -> Activity {
        let ends = self.end.is_closing() || self.end.is_closed() || self.client.ended;
        let waits = !self.client.outlet.is_empty() || !self.servers.outlet.is_empty();
        let repeats = self.remote.as_ref().is_some_and(|remote| remote.replay.is_repeating());
        if ends || waits || repeats || self.is_active() {
            return Activity::Active;
        }
        match self.exchange.receiving {
            RequestState::Greeting | RequestState::Head | RequestState::Tunnel if self.client.in_pos == 0 => {
                Activity::Silent
            }
            RequestState::Head if !self.is_handshaking() => Activity::Idle,
            _ => Activity::Active,
        }
    }

    /// Another connection needs the place of this one, which ends in order (close_notify, FIN) unless it is active.
    /// Returns whether it ends. No request is under way, so the access log has no line of it.
    pub fn handle_eviction(&mut self, io: &mut Io<'_>) -> bool {
        self.catch_up(io);
        let evicts = self.activity() != Activity::Active;
        if evicts {
            self.end_orderly(io, "");
        }
        self.finish_call(io);
        evicts
    }
}

#[cfg(test)]
mod tests {
    use super::Activity::{Active, Idle, Silent};
    use super::Otherwise::{Refused, Waits};
    use super::*;

    const fn ms(ms: u64) -> Micros {
        Micros::from_ms(ms)
    }

    /// Connections by slot: activity, and since when in milliseconds; the rest is what is to be evicted at 10 s.
    type Row = (&'static str, &'static [(Activity, u64)], Option<u32>, Option<u32>);

    #[test]
    fn eviction_order_follows_the_table() {
        let rows: [Row; 8] = [
            ("nothing", &[], None, None),
            ("active connections only", &[(Active, 0), (Active, 1)], None, None),
            ("longest idle", &[(Active, 0), (Idle, 3), (Idle, 4)], Some(1), Some(1)),
            ("old silent before longer idle", &[(Idle, 1), (Silent, 5000)], Some(1), Some(1)),
            ("idle before young silent", &[(Silent, 5001), (Idle, 9999)], Some(1), Some(1)),
            ("young silent where refused", &[(Silent, 9000), (Silent, 9999)], Some(0), None),
            ("longest silent", &[(Active, 0), (Silent, 10), (Silent, 11)], Some(1), Some(1)),
            ("closing and tunnels stay", &[(Active, 0), (Silent, 9990), (Active, 9991)], Some(1), None),
        ];
        for (name, connections, refused, waits) in rows {
            let mut queue = EvictionQueue::default();
            for (slot, (activity, since)) in (0..).zip(connections) {
                queue.insert(slot, []);
                queue.set(slot, *activity, ms(*since));
            }
            let next = |otherwise| queue.next(GroupId::ALL, otherwise, ms(10_000)).map(|(slot, _)| slot);
            assert_eq!((next(Refused), next(Waits)), (refused, waits), "{name}");
        }
    }

    #[test]
    fn group_evicts_its_own_connections_only() {
        let mut queue = EvictionQueue::default();
        let (one, other) = (queue.add_group(), queue.add_group());
        queue.insert(0, [one]);
        queue.insert(1, [other]);
        queue.insert(2, [other]);
        queue.set(0, Idle, ms(1));
        queue.set(1, Idle, ms(2));
        let next = |queue: &EvictionQueue, group| queue.next(group, Refused, ms(9)).map(|(slot, _)| slot);
        assert_eq!([GroupId::ALL, one, other].map(|group| next(&queue, group)), [Some(0), Some(0), Some(1)]);
        queue.set(1, Active, ms(3));
        assert_eq!([GroupId::ALL, one, other].map(|group| next(&queue, group)), [Some(0), Some(0), None]);
        queue.remove(0);
        queue.remove_group(one);
        assert_eq!(next(&queue, GroupId::ALL), None);
        assert_eq!(queue.add_group(), one);
        assert_eq!(queue.evictable(one), 0);
    }

    /// One connection of the model: its groups, its activity, and since when.
    type Modelled = Option<([usize; 2], Activity, Micros)>;

    fn expected(model: &[Modelled], group: usize, otherwise: Otherwise, now: Micros) -> Option<u32> {
        let all = |wanted: Activity| {
            let of_group = (0..).zip(model).filter_map(|(slot, one)| Some((slot, (*one)?)));
            let members = of_group.filter(move |(_, (groups, activity, _))| {
                *activity == wanted && (group == 0 || groups.contains(&group))
            });
            members.min_by_key(|(_, (_, _, since))| *since).map(|(slot, (_, _, since))| (slot, since))
        };
        let old = all(Silent).filter(|(_, since)| now.since(*since) >= SILENT_GRACE);
        let young = all(Silent).filter(|_| otherwise == Refused);
        old.or_else(|| all(Idle)).or(young).map(|(slot, _)| slot)
    }

    /// Random changes, compared with a scan over all connections; each change has a time of its own.
    #[test]
    fn random_changes_evict_as_a_scan_would() {
        for seed in 1..=64u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut pick = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let mut queue = EvictionQueue::default();
            let ids: Vec<GroupId> =
                std::iter::once(GroupId::ALL).chain((0..4).map(|_| queue.add_group())).collect();
            let mut model: Vec<Modelled> = vec![None; 24];
            let mut now = ms(0);
            for step in 0..800 {
                now = now + ms(1 + pick(400));
                let slot = pick(24) as usize;
                match (pick(8), model[slot]) {
                    (0, Some(_)) => {
                        queue.remove(slot as u32);
                        model[slot] = None;
                    }
                    (_, Some((groups, before, since))) => {
                        let activity = [Active, Silent, Idle][pick(3) as usize];
                        assert_eq!(queue.set(slot as u32, activity, now), before);
                        let since = if activity == before { since } else { now };
                        model[slot] = Some((groups, activity, since));
                    }
                    (_, None) => {
                        let groups = [1 + pick(2) as usize, 3 + pick(2) as usize];
                        queue.insert(slot as u32, groups.map(|group| ids[group]));
                        model[slot] = Some((groups, Active, now));
                    }
                }
                for (group, id) in ids.iter().enumerate() {
                    for otherwise in [Refused, Waits] {
                        let next = queue.next(*id, otherwise, now).map(|(slot, _)| slot);
                        assert_eq!(next, expected(&model, group, otherwise, now), "seed {seed}, step {step}");
                    }
                    let is_member = |one: &&Modelled| {
                        one.is_some_and(|(groups, activity, _)| {
                            activity != Active && (group == 0 || groups.contains(&group))
                        })
                    };
                    assert_eq!(queue.evictable(*id), model.iter().filter(is_member).count());
                }
            }
        }
    }
}
