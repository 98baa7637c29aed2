//! Cache of TLS 1.2 sessions that clients without tickets resume by their ids (RFC 5246 section 7.3).
//!
//! Invariants: the size of the cache has a limit in bytes, and the oldest session is evicted first. No session is found
//! after it expires. A withdrawn session is not stored again by a late message, as long as its id is remembered. The
//! cache may lose a session: its client then makes a full handshake. Values are sealed; the handshake decides which
//! session may open one.

use std::collections::{BTreeMap, VecDeque};

use evergate_base::session::{KeptSession, SEALED_BYTES_MAX, Sealed, SessionId};

/// Longest lifetime of a session, in seconds. The sealed value has its own limit, which is equal.
pub const SESSION_LIFETIME_S_MAX: u64 = 12 * 3600;
/// Size of an entry besides its value, in bytes: id, time, its nodes in the map and in the queue.
const ENTRY_BYTES: usize = 192;

#[derive(Debug)]
struct Entry {
    until_unix_s: u64,
    /// `None` when the session was withdrawn.
    sealed: Option<Sealed>,
    /// Sequence number of the entry in the queue; a withdrawn entry also has an older one there.
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
    /// An empty cache of at most `bytes_max`; with 0 it stores nothing.
    pub fn new(bytes_max: usize) -> SessionCache {
        SessionCache { bytes_max, ..SessionCache::default() }
    }

    /// Changes the limit and evicts what exceeds it.
    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.make_room();
    }

    /// Stores a session. Returns false when it is too long, expired or withdrawn.
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

    /// The session stored under this id.
    pub fn find(&self, id: &SessionId, now_unix_s: u64) -> Option<&Sealed> {
        self.entries.get(id).filter(|entry| now_unix_s < entry.until_unix_s)?.sealed.as_ref()
    }

    /// Ends the resumption of a session. Its id is remembered for as long as a session may live.
    pub fn withdraw(&mut self, id: SessionId, now_unix_s: u64) {
        self.put(id, now_unix_s.saturating_add(SESSION_LIFETIME_S_MAX), None);
    }

    /// Removes expired sessions from the oldest on, up to the first that has not expired.
    fn expire(&mut self, now_unix_s: u64) {
        while let Some((place, id)) = self.queue.front().copied() {
            match self.entries.get(&id) {
                Some(entry) if entry.place == place && now_unix_s < entry.until_unix_s => return,
                _ => self.forget_oldest(),
            }
        }
    }

    /// Number of stored sessions.
    pub fn len(&self) -> usize {
        self.kept
    }

    /// Whether no session is stored.
    pub fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// Content for a node with an empty cache, newest first: sessions, and withdrawn ids.
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
        // Queue places of replaced entries count too: no peer may grow the queue by repeating one id.
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
    fn session_is_found_until_it_expires() {
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
    fn withdrawn_session_is_not_stored_again() {
        let mut cache = SessionCache::new(10_000);
        cache.withdraw([1; 32], NOW);
        assert!(!cache.keep(session(1, 10), NOW), "the news came in the other order");
        assert!(cache.keep(session(2, 10), NOW));
        cache.withdraw([2; 32], NOW);
        assert!(cache.find(&[2; 32], NOW).is_none() && cache.is_empty());
        assert!(!cache.keep(session(2, 10), NOW));
        let news: Vec<_> = cache.newest().collect();
        assert_eq!(news, [Err([2; 32]), Err([1; 32])], "an empty cache receives withdrawn ids");
    }

    #[test]
    fn oldest_sessions_are_evicted_first() {
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
        fn found_sessions_were_stored_and_not_withdrawn(
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
                            withdrawn.remove(&number); // so old that it was evicted
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
