//! TLS 1.2 sessions that clients without tickets resume by their ids (RFC 5246 section 7.3).
//!
//! Invariants: what is kept stays within a bound of bytes, the oldest goes first; nothing is found after its time; a session
//! that was withdrawn is not kept again, whatever comes late, as long as its id is remembered. A cache may forget: then a
//! client makes a full handshake.
//! Values are sealed; who may open one is the handshake's affair, not this one's.

use std::collections::{BTreeMap, VecDeque};

use evergate_base::session::{KeptSession, SEALED_BYTES_MAX, Sealed, SessionId};

/// No session lives longer, in seconds. The sealed value has a bound of its own, which is the same.
pub const SESSION_LIFETIME_S_MAX: u64 = 12 * 3600;
/// What an entry takes beside its value, in bytes: id, time, its places in the map and in the queue.
const ENTRY_BYTES: usize = 192;

#[derive(Debug)]
struct Entry {
    until_unix_s: u64,
    /// Nothing when it was withdrawn.
    sealed: Option<Sealed>,
    /// Which place in the queue is the entry's: it has an older one when it was withdrawn.
    place: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.sealed.as_ref().map_or(0, |sealed| sealed.0.len())
    }
}

/// Sessions by their ids.
#[derive(Debug, Default)]
pub struct SessionCache {
    bytes_max: usize,
    bytes: usize,
    kept: usize,
    entries: BTreeMap<SessionId, Entry>,
    /// Oldest first.
    queue: VecDeque<(u64, SessionId)>,
    next: u64,
}

impl SessionCache {
    /// An empty cache of at most `bytes_max`; one of 0 keeps nothing.
    pub fn new(bytes_max: usize) -> SessionCache {
        SessionCache { bytes_max, ..SessionCache::default() }
    }

    /// Changes the bound; what is too much is forgotten.
    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.make_room();
    }

    /// Keeps a session. False when it is too long, over, or was withdrawn.
    pub fn keep(&mut self, session: KeptSession, now_unix_s: u64) -> bool {
        self.expire(now_unix_s);
        let KeptSession { id, until_unix_s, sealed } = session;
        let until_unix_s = until_unix_s.min(now_unix_s.saturating_add(SESSION_LIFETIME_S_MAX));
        let withdrawn = self.entries.get(&id).is_some_and(|entry| entry.sealed.is_none());
        if withdrawn || until_unix_s <= now_unix_s || sealed.0.len() > SEALED_BYTES_MAX {
            return false;
        }
        self.put(id, until_unix_s, Some(sealed));
        self.entries.contains_key(&id)
    }

    /// What is kept under this id.
    pub fn find(&self, id: &SessionId, now_unix_s: u64) -> Option<&Sealed> {
        self.entries.get(id).filter(|entry| now_unix_s < entry.until_unix_s)?.sealed.as_ref()
    }

    /// The session is resumed no more. Its id is remembered for as long as a session may live.
    pub fn withdraw(&mut self, id: SessionId, now_unix_s: u64) {
        self.put(id, now_unix_s.saturating_add(SESSION_LIFETIME_S_MAX), None);
    }

    /// Forgets what is over, oldest first, as far as the oldest is.
    fn expire(&mut self, now_unix_s: u64) {
        while let Some((place, id)) = self.queue.front().copied() {
            match self.entries.get(&id) {
                Some(entry) if entry.place == place && now_unix_s < entry.until_unix_s => return,
                _ => self.forget_oldest(),
            }
        }
    }

    /// Sessions kept.
    pub fn len(&self) -> usize {
        self.kept
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// What another node has to know that knows nothing, newest first: sessions, and ids that were withdrawn.
    pub fn newest(&self) -> impl Iterator<Item = Result<KeptSession, SessionId>> {
        self.queue.iter().rev().filter_map(|(place, id)| {
            let Entry { until_unix_s, sealed, .. } =
                self.entries.get(id).filter(|entry| entry.place == *place)?;
            Some(match sealed {
                Some(sealed) => {
                    Ok(KeptSession { id: *id, until_unix_s: *until_unix_s, sealed: sealed.clone() })
                }
                None => Err(*id),
            })
        })
    }

    fn put(&mut self, id: SessionId, until_unix_s: u64, sealed: Option<Sealed>) {
        self.remove(&id);
        let entry = Entry { until_unix_s, sealed, place: self.next };
        self.bytes += entry.bytes();
        self.kept += usize::from(entry.sealed.is_some());
        self.queue.push_back((self.next, id));
        self.next += 1;
        self.entries.insert(id, entry);
        self.make_room();
    }

    fn make_room(&mut self) {
        // Places of entries that were replaced count too: nobody must make the queue grow by saying one id again and again.
        while self.bytes > self.bytes_max || self.queue.len() * ENTRY_BYTES > self.bytes_max {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((place, id)) = self.queue.pop_front() else { return };
        if self.entries.get(&id).is_some_and(|entry| entry.place == place) {
            self.remove(&id);
        }
    }

    fn remove(&mut self, id: &SessionId) {
        if let Some(entry) = self.entries.remove(id) {
            self.bytes -= entry.bytes();
            self.kept -= usize::from(entry.sealed.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000;

    fn session(number: u8, bytes: usize) -> KeptSession {
        KeptSession { id: [number; 32], until_unix_s: NOW + 100, sealed: Sealed(vec![number; bytes]) }
    }

    #[test]
    fn a_session_is_found_until_its_time_is_over() {
        let mut cache = SessionCache::new(10_000);
        assert!(cache.keep(session(1, 300), NOW));
        assert_eq!(cache.find(&[1; 32], NOW + 99), Some(&Sealed(vec![1; 300])));
        assert_eq!((cache.find(&[1; 32], NOW + 100), cache.find(&[2; 32], NOW)), (None, None));
        cache.expire(NOW + 99);
        assert_eq!(cache.len(), 1);
        cache.expire(NOW + 100);
        assert!(cache.is_empty() && cache.queue.is_empty() && cache.bytes == 0);
        let far = KeptSession { until_unix_s: u64::MAX, ..session(2, 1) };
        assert!(cache.keep(far, NOW) && !cache.keep(session(3, 1), NOW + 100));
        assert!(cache.find(&[2; 32], NOW + SESSION_LIFETIME_S_MAX).is_none(), "no session lives longer");
    }

    #[test]
    fn a_withdrawn_session_stays_withdrawn_whatever_comes_late() {
        let mut cache = SessionCache::new(10_000);
        cache.withdraw([1; 32], NOW);
        assert!(!cache.keep(session(1, 10), NOW), "the news came in the other order");
        assert!(cache.keep(session(2, 10), NOW));
        cache.withdraw([2; 32], NOW);
        assert!(cache.find(&[2; 32], NOW).is_none() && cache.is_empty());
        assert!(!cache.keep(session(2, 10), NOW));
        let news: Vec<_> = cache.newest().collect();
        assert_eq!(news, [Err([2; 32]), Err([1; 32])], "who knows nothing is told so");
    }

    #[test]
    fn the_oldest_go_first_and_a_bound_of_nothing_keeps_nothing() {
        let mut cache = SessionCache::new(3 * (ENTRY_BYTES + 100));
        for number in 1..=4 {
            assert!(cache.keep(session(number, 100), NOW));
        }
        let numbers: Vec<u8> = cache.newest().map(|session| session.unwrap().id[0]).collect();
        assert_eq!(numbers, [4, 3, 2]);
        assert!(!cache.keep(session(5, SEALED_BYTES_MAX + 1), NOW), "too long");
        cache.set_bytes_max(ENTRY_BYTES + 100);
        assert_eq!(cache.len(), 1);
        cache.set_bytes_max(0);
        assert!(!cache.keep(session(6, 1), NOW));
        cache.withdraw([6; 32], NOW);
        assert!(cache.entries.is_empty() && cache.queue.is_empty());
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_what_is_found_was_kept_and_not_withdrawn(
            acts in proptest::collection::vec((0..12_u8, 0..4_u8, 0..400_usize, 0..50_u64), 1..300),
            bytes_max in 0..6000_usize,
        ) {
            let (mut cache, mut now) = (SessionCache::new(bytes_max), NOW);
            let mut withdrawn = std::collections::BTreeSet::new();
            for (number, act, bytes, later) in acts {
                now += later;
                match act {
                    0 => {
                        cache.withdraw([number; 32], now);
                        withdrawn.insert(number);
                    }
                    1 => cache.expire(now),
                    _ => {
                        let session = KeptSession { until_unix_s: now + 60, ..session(number, bytes) };
                        if cache.keep(session, now) {
                            prop_assert_eq!(cache.find(&[number; 32], now), Some(&Sealed(vec![number; bytes])));
                            withdrawn.remove(&number); // so old that it was forgotten
                        }
                    }
                }
                let bytes: usize = cache.entries.values().map(Entry::bytes).sum();
                prop_assert_eq!(bytes, cache.bytes);
                prop_assert!(bytes <= bytes_max && cache.queue.len() * ENTRY_BYTES <= bytes_max);
                prop_assert_eq!(cache.len(), cache.newest().filter(Result::is_ok).count());
                prop_assert!(withdrawn.iter().all(|number| cache.find(&[*number; 32], now).is_none()));
            }
        }
    }
}
