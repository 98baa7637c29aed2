//! Who waits for a server of a pool, in all workers together: who came first goes first, whichever worker makes room.

use crate::worker::Shared;
use evergate_base::Micros;
use evergate_sys::Waker;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A worker that does not come although it is its turn is passed over for others after so long.
const COMES_WITHIN: Micros = Micros::from_ms(100);

/// The requests of a pool that wait, of one generation.
#[derive(Debug, Default)]
pub struct Line {
    places: Mutex<Places>,
    /// How many there are; known without the lock.
    length: AtomicUsize,
}

#[derive(Debug, Default)]
struct Places {
    /// By rank and number: which worker holds the request.
    waiting: BTreeMap<(usize, u64), Arc<Waker>>,
    next: u64,
    /// Whose turn it is, and since when its worker knows.
    called: Option<((usize, u64), Micros)>,
}

/// A request's place; it leaves the line when this is dropped.
#[derive(Debug)]
pub struct Place {
    line: Arc<Line>,
    shared: Arc<Shared>,
    key: (usize, u64),
}

impl Line {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.length.load(Ordering::Relaxed) == 0
    }

    /// A place behind those of the same rank and of lower ones. `waker` is woken when it is its turn.
    pub fn join(self: &Arc<Line>, rank: usize, waker: &Arc<Waker>, shared: &Arc<Shared>) -> Place {
        let mut places = self.lock();
        let key = (rank, places.next);
        places.next += 1;
        places.waiting.insert(key, waker.clone());
        self.length.store(places.waiting.len(), Ordering::Relaxed);
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        Place { line: self.clone(), shared: shared.clone(), key }
    }

    /// There is room at a server: whether `place`, the first of a worker's, is the next. If not, the worker whose turn it is
    /// is woken, and has a moment to come.
    pub fn is_turn_of(&self, place: Option<&Place>, now: Micros) -> bool {
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

impl Drop for Place {
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

    #[test]
    fn who_came_first_goes_first_whichever_worker_makes_room() {
        let (line, shared) = (Arc::new(Line::default()), Arc::<Shared>::default());
        let wakers: Vec<Arc<Waker>> = (0..2).map(|_| Arc::new(Waker::new().unwrap())).collect();
        let now = Micros(1_000_000);
        assert!(line.is_empty() && !line.is_turn_of(None, now));
        let lesser = line.join(1, &wakers[0], &shared);
        let first = line.join(0, &wakers[1], &shared);
        let second = line.join(0, &wakers[0], &shared);
        assert!(!line.is_turn_of(Some(&second), now) && !line.is_turn_of(Some(&lesser), now));
        assert!(line.is_turn_of(Some(&first), now));
        drop(first);
        assert!(line.is_turn_of(Some(&second), now) && !line.is_turn_of(Some(&lesser), now));
        drop(second);
        assert!(line.is_turn_of(Some(&lesser), now));
        drop(lesser);
        assert!(line.is_empty());
        assert_eq!(shared.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_worker_that_does_not_come_is_passed_over_after_a_while() {
        let (line, shared) = (Arc::new(Line::default()), Arc::<Shared>::default());
        let wakers: Vec<Arc<Waker>> = (0..2).map(|_| Arc::new(Waker::new().unwrap())).collect();
        let stuck = line.join(0, &wakers[0], &shared);
        let other = line.join(0, &wakers[1], &shared);
        let now = Micros(1_000_000);
        assert!(!line.is_turn_of(Some(&other), now), "called");
        assert!(!line.is_turn_of(Some(&other), now + Micros::from_ms(99)));
        assert!(line.is_turn_of(Some(&other), now + COMES_WITHIN));
        assert!(!line.is_turn_of(None, now + COMES_WITHIN), "who has nobody waiting takes no turn");
        drop((stuck, other));
    }
}
