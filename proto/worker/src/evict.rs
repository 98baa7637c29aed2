//! Evictions: a connection in which nothing is under way ends so that a new one has its place.
//!
//! [`EvictionQueue`](evergate_connection::EvictionQueue) selects the connection, for each worker. A worker without a
//! candidate of its own orders an eviction from the other workers. It admits the new connection at once, so a limit can
//! be exceeded by [`ORDERS_MAX`] connections for as long as the other worker takes to wake up.
//!
//! Invariants: the place of an evicted connection is free at once. Its socket is closed at once too, except where
//! backups have to learn of the end, or bytes still wait: at most [`ENDING_MAX`] such connections per worker.

use crate::host::{Host, Socket};
use crate::limits::Share;
use crate::slab::{Key, Source};
use crate::worker::Worker;
use crate::{LimitKey, ORDERS_MAX, Order};
use evergate_base::Micros;
use evergate_connection::{Activity, GroupId, Otherwise};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Evicted connections of a worker that have not ended yet, at most.
const ENDING_MAX: usize = 256;
/// Most candidates examined for one eviction: those that turn out to be active are skipped.
const CANDIDATES_MAX: usize = 64;
/// An order that no worker could follow is dropped after this time.
const ORDER_TIME: Micros = Micros::from_ms(1_000);

/// Outcome of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A connection of this worker was evicted.
    Evicted,
    /// Another worker is about to evict one.
    Ordered,
    /// No connection can be evicted.
    None,
}

impl<H: Host> Worker<H> {
    /// Evicts a connection that counts against this limit, of the process where none is named.
    pub(super) fn make_room(&mut self, limit: Option<&LimitKey>, otherwise: Otherwise) -> Outcome {
        let group = self.group_of(limit);
        if group.is_some_and(|group| self.evict_from(group, otherwise)) {
            return Outcome::Evicted;
        }
        if self.order(limit, otherwise) { Outcome::Ordered } else { Outcome::None }
    }

    fn group_of(&self, limit: Option<&LimitKey>) -> Option<GroupId> {
        match limit {
            None => Some(GroupId::ALL),
            Some(held) => self.limits.groups.get(held).map(|(group, _)| *group),
        }
    }

    /// Whether a descriptor is free for a client again, after an eviction where none was.
    pub(super) fn make_descriptor(&mut self) -> bool {
        if self.make_room(None, Otherwise::Waits) == Outcome::Evicted {
            self.shared.room.prolong(self.now);
        }
        self.check_fd_reserve();
        !self.shared.room.is_short()
    }

    /// Whether an eviction could free a descriptor now.
    pub(super) fn has_descriptor_to_make(&self) -> bool {
        let own = self.limits.queue.next(GroupId::ALL, Otherwise::Waits, self.now);
        (own.is_some() && self.limits.ending < ENDING_MAX) || self.evictable_elsewhere(None) > 0
    }

    pub(super) fn evict_from(&mut self, group: GroupId, otherwise: Otherwise) -> bool {
        for _ in 0..CANDIDATES_MAX {
            if self.limits.ending >= ENDING_MAX {
                return false;
            }
            let Some((slot, activity)) = self.limits.queue.next(group, otherwise, self.now) else {
                return false;
            };
            let Some(key) = self.clients.key_of(slot) else {
                self.limits.queue.remove(slot); // not reached: a connection leaves the queue with its slot
                continue;
            };
            if self.is_spoken_for(key) {
                self.set_activity(key, Activity::Active);
                self.mark_pending(key); // its turn shows its activity
            } else if self.evict(key, activity) {
                return true;
            }
        }
        false
    }

    /// Whether something has come of a connection that its state machine has not seen, or its bucket is frozen.
    fn is_spoken_for(&self, key: Key) -> bool {
        let Some(client) = self.clients.get(key) else { return false };
        client.broken || client.socket.has_input() || self.is_frozen(key)
    }

    fn evict(&mut self, key: Key, activity: Activity) -> bool {
        let mut evicted = false;
        self.guarded(Some(Source::Client(key)), |worker| {
            evicted = worker.with(key, |connection, io| connection.handle_eviction(io)).unwrap_or(false);
            if evicted {
                worker.count_evicted(key, activity);
            }
            worker.perform(key);
        });
        if !evicted {
            self.note_activity(key);
            return false;
        }
        let Some(client) = self.clients.get_mut(key) else { return true };
        let is_alone = client.replicated_state.is_none() && client.connection.down().is_empty();
        if is_alone && client.socket.is_drained() {
            self.forget(key); // the kernel sends the rest
        } else {
            self.schedule(key);
        }
        true
    }

    /// The place of an evicted connection is free from now on.
    fn count_evicted(&mut self, key: Key, activity: Activity) {
        self.set_activity(key, Activity::Active);
        let Some(client) = self.clients.get_mut(key) else { return };
        let share = std::mem::replace(&mut client.share, Share::Evicted);
        self.give_back(&share);
        self.limits.ending += 1;
        self.counters.reason("evicted");
        match activity {
            Activity::Silent => self.counters.evicted_silent.add(1),
            _ => self.counters.evicted_idle.add(1),
        }
    }

    /// Connections of the other workers that count against this limit and could be evicted.
    fn evictable_elsewhere(&self, limit: Option<&LimitKey>) -> usize {
        let all: usize = match limit {
            None => self.peers.iter().map(|peer| peer.counters.evictable.get() as usize).sum(),
            Some(held) => {
                let tallies = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
                tallies.get(held).map_or(0, |tally| tally.evictable.load(Ordering::Relaxed))
            }
        };
        let own = self.group_of(limit).map_or(0, |group| self.limits.queue.evictable(group));
        all.saturating_sub(own)
    }

    /// Orders an eviction from the other workers.
    fn order(&self, limit: Option<&LimitKey>, otherwise: Otherwise) -> bool {
        let until = self.now + ORDER_TIME;
        let order = Order { limit: limit.cloned(), otherwise, by: self.number, until };
        let is_added = self.shared.orders.add(order, self.evictable_elsewhere(limit), self.now);
        if is_added {
            let others = self.peers.iter().enumerate().filter(|(index, _)| *index != self.number);
            others.for_each(|(_, peer)| peer.waker.wake());
        }
        is_added
    }

    /// Follows orders of other workers for which this one has candidates.
    pub(super) fn follow_orders(&mut self) {
        for _ in 0..ORDERS_MAX {
            let config_compatible = |order: &Order| {
                let group = self.group_of(order.limit.as_ref());
                group.is_some_and(|group| self.limits.queue.next(group, order.otherwise, self.now).is_some())
            };
            let Some(order) = self.shared.orders.take(self.number, self.now, config_compatible) else {
                return;
            };
            let group = self.group_of(order.limit.as_ref());
            if !group.is_some_and(|group| self.evict_from(group, order.otherwise)) {
                self.shared.orders.add(order, usize::MAX, self.now); // perhaps another worker can
                return;
            }
            if self.shared.room.is_short() {
                self.check_fd_reserve();
            }
        }
    }
}
