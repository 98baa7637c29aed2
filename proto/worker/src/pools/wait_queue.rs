//! Requests that wait for a server of a pool, in all workers together: the oldest goes first, whichever worker has
//! room.

use crate::shared::Shared;
use evergate_base::{Micros, Wake};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A worker that does not come although it is its turn is passed over for others after so long.
const COMES_WITHIN: Micros = Micros::from_ms(100);

/// The requests of a pool that wait, of one generation.
#[derive(Debug)]
pub struct WaitQueues {
    /// For any server.
    any: Arc<WaitQueue>,
    /// For this one, which knows their clients.
    servers: Vec<Arc<WaitQueue>>,
    /// The number of the next.
    next: AtomicU64,
}

/// Requests with the same wish.
#[derive(Debug, Default)]
struct WaitQueue {
    places: Mutex<Places>,
    /// How many there are; known without the lock.
    length: AtomicUsize,
}

#[derive(Debug, Default)]
struct Places {
    /// By rank and number: which worker holds the request.
    waiting: BTreeMap<(usize, u64), Arc<dyn Wake>>,
    /// Whose turn it is, and since when its worker knows.
    called: Option<((usize, u64), Micros)>,
}

/// A request's place in the queue; dropping it removes the request.
#[derive(Debug)]
pub struct WaitTicket {
    line: Arc<WaitQueue>,
    shared: Arc<Shared>,
    key: (usize, u64),
}

impl WaitQueues {
    /// Queues of a pool with `servers` servers.
    pub fn new(servers: usize) -> WaitQueues {
        let servers = (0..servers).map(|_| Arc::default()).collect();
        WaitQueues { any: Arc::default(), servers, next: AtomicU64::new(0) }
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.servers.iter().all(|line| line.is_empty())
    }

    /// Whether a request with this wish would be first.
    pub fn may_go(&self, wish: Option<u32>) -> bool {
        self.any.is_empty() && self.of(wish).is_empty()
    }

    /// Adds a request behind those of the same and of lower rank numbers. `waker` is woken at its turn.
    pub fn join(
        &self,
        wish: Option<u32>,
        rank: usize,
        waker: Arc<dyn Wake>,
        shared: &Arc<Shared>,
    ) -> WaitTicket {
        self.of(wish).join((rank, self.next.fetch_add(1, Ordering::Relaxed)), waker, shared)
    }

    /// Whether a request waits for this server that goes before all requests for any server.
    pub fn goes_first(&self, server: u32) -> bool {
        let line = self.of(Some(server));
        !line.is_empty()
            && line.first().is_some_and(|first| self.any.first().is_none_or(|other| first < other))
    }

    /// Whether `place`, the first of a worker's requests with this wish, is next when there is room. Otherwise wakes
    /// the worker whose turn it is, and gives it a moment to come.
    pub fn is_turn_of(&self, wish: Option<u32>, place: Option<&WaitTicket>, now: Micros) -> bool {
        self.of(wish).is_turn_of(place, now)
    }

    fn of(&self, wish: Option<u32>) -> &Arc<WaitQueue> {
        wish.and_then(|server| self.servers.get(server as usize)).unwrap_or(&self.any)
    }
}

impl WaitQueue {
    fn is_empty(&self) -> bool {
        self.length.load(Ordering::Relaxed) == 0
    }

    fn first(&self) -> Option<(usize, u64)> {
        self.lock().waiting.first_key_value().map(|(key, _)| *key)
    }

    fn join(
        self: &Arc<WaitQueue>,
        key: (usize, u64),
        waker: Arc<dyn Wake>,
        shared: &Arc<Shared>,
    ) -> WaitTicket {
        let mut places = self.lock();
        places.waiting.insert(key, waker);
        self.length.store(places.waiting.len(), Ordering::Relaxed);
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        WaitTicket { line: self.clone(), shared: shared.clone(), key }
    }

    fn is_turn_of(&self, place: Option<&WaitTicket>, now: Micros) -> bool {
        let mut places = self.lock();
        let Some((&first, waker)) = places.waiting.first_key_value() else { return false };
        if place.is_some_and(|place| place.key == first) {
            places.called = None;
            return true;
        }
        match places.called {
            Some((called, since)) if called == first => place.is_some() && now.since(since) >= COMES_WITHIN,
            _ => {
                waker.wake();
                places.called = Some((first, now));
                false
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        let mut places = self.line.lock();
        places.waiting.remove(&self.key);
        self.line.length.store(places.waiting.len(), Ordering::Relaxed);
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Still;

    impl Wake for Still {
        fn wake(&self) {}
    }

    #[test]
    fn oldest_request_goes_first_in_any_worker() {
        let (line, shared) = (WaitQueues::new(2), Arc::<Shared>::default());
        let wakers: [Arc<dyn Wake>; 2] = [Arc::new(Still), Arc::new(Still)];
        let now = Micros(1_000_000);
        assert!(line.is_empty() && !line.is_turn_of(None, None, now));
        let lesser = line.join(None, 1, wakers[0].clone(), &shared);
        let first = line.join(None, 0, wakers[1].clone(), &shared);
        let second = line.join(None, 0, wakers[0].clone(), &shared);
        assert!(!line.is_turn_of(None, Some(&second), now) && !line.is_turn_of(None, Some(&lesser), now));
        assert!(line.is_turn_of(None, Some(&first), now));
        drop(first);
        assert!(line.is_turn_of(None, Some(&second), now) && !line.is_turn_of(None, Some(&lesser), now));
        drop(second);
        assert!(line.is_turn_of(None, Some(&lesser), now));
        drop(lesser);
        assert!(line.is_empty());
        assert_eq!(shared.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn worker_that_does_not_come_is_passed_over_after_a_while() {
        let (line, shared) = (WaitQueues::new(2), Arc::<Shared>::default());
        let wakers: [Arc<dyn Wake>; 2] = [Arc::new(Still), Arc::new(Still)];
        let stuck = line.join(None, 0, wakers[0].clone(), &shared);
        let other = line.join(None, 0, wakers[1].clone(), &shared);
        let now = Micros(1_000_000);
        assert!(!line.is_turn_of(None, Some(&other), now), "called");
        assert!(!line.is_turn_of(None, Some(&other), now + Micros::from_ms(99)));
        assert!(line.is_turn_of(None, Some(&other), now + COMES_WITHIN));
        assert!(!line.is_turn_of(None, None, now + COMES_WITHIN), "a worker without requests takes no turn");
        drop((stuck, other));
    }

    #[test]
    fn request_for_a_server_is_ordered_by_age_among_those_for_any() {
        let (lines, shared) = (WaitQueues::new(2), Arc::<Shared>::default());
        let waker: Arc<dyn Wake> = Arc::new(Still);
        let now = Micros(1_000_000);
        let join = |wish| lines.join(wish, 0, waker.clone(), &shared);
        let first = join(Some(1));
        assert!(lines.may_go(None) && lines.may_go(Some(0)) && !lines.may_go(Some(1)));
        assert!(lines.goes_first(1) && !lines.goes_first(0) && !lines.is_empty());
        let any = join(None);
        let later = join(Some(0));
        assert!(!lines.may_go(Some(0)) && !lines.may_go(None));
        assert!(lines.goes_first(1) && !lines.goes_first(0), "the other is older");
        assert!(lines.is_turn_of(Some(0), Some(&later), now) && lines.is_turn_of(None, Some(&any), now));
        drop(any);
        assert!(lines.goes_first(0));
        drop((first, later));
        assert!(lines.is_empty() && shared.waiting.load(Ordering::Relaxed) == 0);
    }
}
