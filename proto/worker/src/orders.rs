//! Evictions that workers of a process order from each other.
//!
//! A worker without a connection to evict admits a new client at once, and another worker makes the place. A limit can
//! be exceeded by [`ORDERS_MAX`] connections for as long as that worker takes to wake up.

use crate::counters::Counters;
use crate::shared::LimitKey;
use evergate_base::{Micros, Wake};
use evergate_connection::Otherwise;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most orders under way in a process.
pub const ORDERS_MAX: usize = 64;

/// Evictions that workers order from each other.
#[derive(Debug, Default)]
pub struct Orders {
    list: Mutex<VecDeque<Order>>,
    /// Length of the list, for workers that only look.
    count: AtomicUsize,
    workers: Mutex<Vec<Peer>>,
}

/// A worker of the process.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Ends its wait.
    pub waker: Arc<dyn Wake>,
    /// Its counters.
    pub counters: Arc<Counters>,
}

/// An eviction that a worker needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The limit; none is the process's.
    pub limit: Option<LimitKey>,
    /// What the new client gets otherwise.
    pub otherwise: Otherwise,
    /// The worker that needs the place.
    pub by: usize,
    /// When it is dropped.
    pub until: Micros,
}

impl Orders {
    /// Adds a worker; returns its number.
    pub fn enlist(&self, peer: Peer) -> usize {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.push(peer);
        workers.len() - 1
    }

    /// The workers in the order of their numbers.
    pub fn workers(&self) -> Vec<Peer> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Order>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is an order.
    pub fn are_there(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Adds an order if `evictable` connections count against its limit and fewer orders do.
    pub fn add(&self, order: Order, evictable: usize, now: Micros) -> bool {
        let mut list = self.list();
        list.retain(|other| other.until > now);
        let before = list.iter().filter(|other| other.limit == order.limit).count();
        let is_added = list.len() < ORDERS_MAX && before < evictable;
        if is_added {
            list.push_back(order);
        }
        self.count.store(list.len(), Ordering::Relaxed);
        is_added
    }

    /// Takes the first order of another worker that `config_compatible`.
    pub fn take(&self, me: usize, now: Micros, config_compatible: impl Fn(&Order) -> bool) -> Option<Order> {
        let mut list = self.list();
        list.retain(|order| order.until > now);
        let index = list.iter().position(|order| order.by != me && config_compatible(order));
        let order = index.and_then(|index| list.remove(index));
        self.count.store(list.len(), Ordering::Relaxed);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(by: usize, until: u64) -> Order {
        Order { limit: None, otherwise: Otherwise::Refused, by, until: Micros(until) }
    }

    #[test]
    fn orders_are_bounded_by_candidates_and_time() {
        let orders = Orders::default();
        let now = Micros(5);
        assert!(!orders.add(order(0, 10), 0, now), "no candidates");
        assert!(orders.add(order(0, 10), 1, now) && orders.are_there());
        assert!(!orders.add(order(1, 11), 1, now), "the one candidate is ordered already");
        assert!(orders.take(0, now, |_| true).is_none(), "a worker's own order");
        assert!(orders.take(1, now, |_| false).is_none());
        assert_eq!(orders.take(1, now, |_| true), Some(order(0, 10)));
        assert!(!orders.are_there());
        let added = (0..100).filter(|_| orders.add(order(0, 10), usize::MAX, now)).count();
        assert_eq!(added, ORDERS_MAX);
        assert!(orders.take(1, Micros(10), |_| true).is_none() && !orders.are_there(), "their time is over");
    }
}
