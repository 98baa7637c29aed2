//! Limits on client connections: counting, admission, and the limits of each connection.
//!
//! Counts are process-wide ([`Shared`](super::Shared)). A new connection at a limit gets the place of another one that
//! counts against the same limit ([`super::evict`]); without a candidate it is refused.
//!
//! Invariant: a connection counts against its limits from [`Worker::admit`] or [`Worker::acquire_limits`] until it is
//! dropped or evicted.

use crate::LimitKey;
use crate::Tally;
use crate::command::Settings;
use crate::evict::Outcome;
use crate::host::{Host, Listener};
use crate::pools::source_of;
use crate::slab::Key;
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_connection::{Activity, EvictionQueue, GroupId, Otherwise};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Share of a limit, as a divisor. Responses carry `Connection: close` when less of the limit is free or evictable.
const CROWDED_PART: usize = 64;
const CROWDED_MAX: usize = 64;
/// Most evictions for one new connection: for its source, its listener, and the process, and one more where another
/// worker was faster.
const EVICTIONS_PER_ADMISSION: usize = 4;

/// Connections of one worker, by the limits that they count against.
#[derive(Debug, Default)]
pub(super) struct Limits {
    pub(super) queue: EvictionQueue,
    /// Groups of the queue, with the number of their connections.
    pub(super) groups: HashMap<LimitKey, (GroupId, usize)>,
    /// Evicted connections that have not ended yet.
    pub(super) ending: usize,
}

/// Limits that one connection counts against.
#[derive(Debug)]
pub(super) enum Share {
    /// Limits of its listener and its source, beside the process's.
    Counted(Vec<Hold>),
    /// No limit any more: the connection was evicted, and is ending.
    Evicted,
}

/// Share of one connection in a limit.
#[derive(Debug)]
pub(super) struct Hold {
    held: LimitKey,
    max: usize,
    tally: Arc<Tally>,
    group: GroupId,
}

/// A limit that a new connection would count against.
#[derive(Clone, Debug)]
struct Limit {
    held: LimitKey,
    max: usize,
    reason: &'static str,
}

impl Share {
    pub(super) fn holds(&self) -> &[Hold] {
        match self {
            Share::Counted(holds) => holds,
            Share::Evicted => &[],
        }
    }
}

impl Hold {
    /// Whether the limit is nearly reached, and hardly any connection could be evicted.
    pub(super) fn is_crowded(&self) -> bool {
        let open = self.tally.open.load(Ordering::Relaxed);
        is_crowded(open, self.max, || self.tally.evictable.load(Ordering::Relaxed))
    }
}

/// Whether less than a [`CROWDED_PART`] of `max` connections is free, and less than that can be evicted.
pub(super) fn is_crowded(open: usize, max: usize, evictable: impl FnOnce() -> usize) -> bool {
    let margin = (max / CROWDED_PART).min(CROWDED_MAX);
    open + margin > max && evictable() < margin
}

impl<H: Host> Worker<H> {
    /// Counts one more connection from `source` if it fits the limits, or an eviction makes room for it.
    pub(super) fn admit(&mut self, listener: &str, source: IpAddr) -> Option<Share> {
        let wanted = self.limits_on(listener, source);
        let holds = match self.admit_within(wanted) {
            Ok(holds) => holds,
            Err(reason) => {
                self.counters.reason(reason);
                return None;
            }
        };
        let share = Share::Counted(holds);
        let is_full =
            self.shared.connections.fetch_add(1, Ordering::Relaxed) >= self.settings.connections_max;
        if is_full && self.make_room(None, Otherwise::Refused) == Outcome::None {
            self.give_back(&share);
            self.counters.reason("connections_max");
            return None;
        }
        Some(share)
    }

    /// Counts a connection against limits narrower than the process's, or returns the reason for its rejection.
    fn admit_within(&mut self, wanted: Vec<Limit>) -> Result<Vec<Hold>, &'static str> {
        let mut ordered = Vec::new();
        for _ in 0..EVICTIONS_PER_ADMISSION {
            let Some(limit) = self.first_reached(&wanted, &ordered) else { return Ok(self.hold(wanted)) };
            match self.make_room(Some(&limit.held), Otherwise::Refused) {
                Outcome::Evicted => {}
                Outcome::Ordered => ordered.push(limit.held),
                Outcome::None => return Err(limit.reason),
            }
        }
        match self.first_reached(&wanted, &ordered) {
            Some(limit) => Err(limit.reason),
            None => Ok(self.hold(wanted)),
        }
    }

    /// The first limit that is reached. A place that another worker is about to make is free already.
    fn first_reached(&self, wanted: &[Limit], ordered: &[LimitKey]) -> Option<Limit> {
        if wanted.is_empty() {
            return None;
        }
        let tallies = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_reached = |limit: &&Limit| {
            let open = tallies.get(&limit.held).map_or(0, |tally| tally.open.load(Ordering::Relaxed));
            open >= limit.max && !ordered.contains(&limit.held)
        };
        wanted.iter().find(is_reached).cloned()
    }

    /// Limits of a connection beside the process's, the narrowest first.
    fn limits_on(&self, listener: &str, source: IpAddr) -> Vec<Limit> {
        let Some(bounds) = self.settings.listeners.get(listener) else { return Vec::new() };
        let mut wanted = Vec::new();
        if bounds.per_source_max > 0 {
            wanted.push(Limit {
                held: LimitKey::Source(listener.into(), source_of(source)),
                max: bounds.per_source_max as usize,
                reason: "connections_per_source_max",
            });
        }
        if bounds.connections_max < self.settings.connections_max {
            wanted.push(Limit {
                held: LimitKey::Listener(listener.into()),
                max: bounds.connections_max,
                reason: "connections_max",
            });
        }
        wanted
    }

    /// Counts a connection that was admitted elsewhere, whatever the limits.
    pub(super) fn acquire_limits(&mut self, listener: &str, source: IpAddr) -> Share {
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let wanted = self.limits_on(listener, source);
        Share::Counted(self.hold(wanted))
    }

    fn hold(&mut self, wanted: Vec<Limit>) -> Vec<Hold> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let Limits { queue, groups, .. } = &mut self.limits;
        let mut tallies = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
        let hold = |Limit { held, max, .. }: Limit| {
            let tally = tallies.entry(held.clone()).or_default().clone();
            tally.open.fetch_add(1, Ordering::Relaxed);
            let (group, count) = groups.entry(held.clone()).or_insert_with(|| (queue.add_group(), 0));
            *count += 1;
            Hold { held, max, tally, group: *group }
        };
        wanted.into_iter().map(hold).collect()
    }

    /// Releases the limits of a connection. An evicted connection has released them before.
    pub(super) fn give_back(&mut self, share: &Share) {
        match share {
            Share::Counted(holds) => {
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
                self.release_holds(holds);
            }
            Share::Evicted => self.limits.ending -= 1,
        }
    }

    fn release_holds(&mut self, holds: &[Hold]) {
        if holds.is_empty() {
            return;
        }
        let mut tallies = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
        for hold in holds {
            if hold.tally.open.fetch_sub(1, Ordering::Relaxed) == 1 {
                tallies.remove(&hold.held);
            }
            let Some((group, count)) = self.limits.groups.get_mut(&hold.held) else { continue };
            *count -= 1;
            if *count == 0 {
                self.limits.queue.remove_group(*group);
                self.limits.groups.remove(&hold.held);
            }
        }
    }

    /// Adds a connection to the eviction queue; after its insertion among the clients.
    pub(super) fn list(&mut self, key: Key) {
        let Some(client) = self.clients.get(key) else { return };
        self.limits.queue.insert(key.index, client.share.holds().iter().map(|hold| hold.group));
        self.note_activity(key);
    }

    /// Removes a connection from the eviction queue; before its removal from the clients.
    pub(super) fn unlist(&mut self, key: Key) {
        if self.clients.get(key).is_some() {
            self.set_activity(key, Activity::Active);
            self.limits.queue.remove(key.index);
        }
    }

    /// Notes whether a connection could be evicted now.
    pub(super) fn note_activity(&mut self, key: Key) {
        let Some(client) = self.clients.get(key) else { return };
        let activity = match client.share {
            Share::Counted(_) => client.connection.activity(),
            Share::Evicted => Activity::Active,
        };
        self.set_activity(key, activity);
    }

    pub(super) fn set_activity(&mut self, key: Key, activity: Activity) {
        self.set_activity_since(key, activity, self.now);
    }

    fn set_activity_since(&mut self, key: Key, activity: Activity, since: Micros) {
        let before = self.limits.queue.set(key.index, activity, since);
        let (was, is) = (before != Activity::Active, activity != Activity::Active);
        if was == is {
            return;
        }
        self.counters.evictable.set(self.limits.queue.evictable(GroupId::ALL) as u64);
        let Some(client) = self.clients.get(key) else { return };
        for hold in client.share.holds() {
            match is {
                true => hold.tally.evictable.fetch_add(1, Ordering::Relaxed),
                false => hold.tally.evictable.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    /// Applies changed limits: existing connections count against them even beyond the maximum.
    pub(super) fn use_settings(&mut self, settings: Settings) {
        let same = self.settings.listeners == settings.listeners
            && self.settings.connections_max == settings.connections_max;
        let keepalive = self.settings.keepalive;
        self.settings = settings;
        if self.settings.keepalive != keepalive {
            for listener in self.listening.sockets.iter().flatten() {
                let _ = listener.socket.set_keepalive(self.settings.keepalive);
            }
        }
        if same {
            return;
        }
        let mut keys = self.clients.keys();
        keys.retain(
            |key| matches!(self.clients.get(*key), Some(client) if matches!(client.share, Share::Counted(_))),
        );
        // The longest idle one stays the longest idle one.
        keys.sort_by_key(|key| self.limits.queue.state(key.index).1);
        let states: Vec<_> = keys.iter().map(|key| self.limits.queue.state(key.index)).collect();
        keys.iter().for_each(|key| self.unlist(*key));
        for (key, (activity, since)) in keys.into_iter().zip(states) {
            let Some(client) = self.clients.get_mut(key) else { continue };
            let (listener, source) =
                (client.connection.listener_name().to_owned(), client.connection.client_address().ip());
            let before = std::mem::replace(&mut client.share, Share::Counted(Vec::new()));
            self.release_holds(before.holds());
            let wanted = self.limits_on(&listener, source);
            let share = Share::Counted(self.hold(wanted));
            if let Some(client) = self.clients.get_mut(key) {
                self.limits.queue.insert(key.index, share.holds().iter().map(|hold| hold.group));
                client.share = share;
            }
            self.set_activity_since(key, activity, since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_crowded;

    #[test]
    fn limit_is_crowded_when_free_and_evictable_run_out() {
        for (open, max, evictable, crowded) in [
            (640, 640, 9, true),
            (631, 640, 0, true),
            (630, 640, 0, false),
            (640, 640, 10, false),
            (1_000_000 - 64, 1_000_000, 0, false),
            (1_000_000 - 63, 1_000_000, 63, true),
            (63, 63, 0, false),
            (64, 64, 0, true),
        ] {
            assert_eq!(
                is_crowded(open, max, || evictable),
                crowded,
                "{open} of {max}, {evictable} evictable"
            );
        }
    }
}
