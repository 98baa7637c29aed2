//! Bounded table of the TLS sessions of foreign servers: keyed hash of a session's name, server, expiry.
//!
//! Invariants: the table never has more entries than its capacity, and no expired entry is found. When the table is
//! full, the eviction looks at [`EVICTION_SCAN_MAX`] entries from the oldest on: an expired one is evicted first, else
//! the first that no client used since the last look (second chance). All memory is reserved at the start, so no later
//! call allocates. Keys are already keyed hashes: a peer can force neither a bucket nor the key of another session.
//!
//! Memory: 32 bytes per entry, and 4 to 8 bytes per entry of capacity for the buckets.

use evergate_base::Unix;
use evergate_base::session::{LearnedSession, SessionHash};

/// Limit of entries that one eviction looks at.
pub const EVICTION_SCAN_MAX: usize = 16;
/// Limit of entries that one insertion checks for expiry while the table has room.
const EXPIRED_PER_INSERTION: usize = 2;

/// An entry's index plus one; 0 is none.
type Link = u32;

/// Table of learned sessions; see the module.
#[derive(Clone, Debug)]
pub struct LearnedSessions {
    capacity: usize,
    entries: Vec<Entry>,
    /// First entry of each bucket; their number is a power of two.
    buckets: Vec<Link>,
    /// First unused entry, linked by `next`.
    free: Link,
    /// Index at which the next eviction starts, modulo their number: the oldest entry, if none was removed.
    oldest: usize,
    /// Where the next check for expired entries starts.
    next_check: usize,
    len: usize,
    evicted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: SessionHash,
    next: Link,
    server: u32,
    /// Seconds since 1970, up to the year 2106.
    expires_s: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Free,
    /// Not used since the last look of an eviction.
    Stored,
    Used,
}

impl LearnedSessions {
    /// The largest capacity.
    pub const CAPACITY_MAX: usize = 1 << 28;

    /// An empty table for `capacity` sessions, 1 to [`CAPACITY_MAX`](Self::CAPACITY_MAX).
    pub fn new(capacity: usize) -> LearnedSessions {
        let capacity = capacity.clamp(1, Self::CAPACITY_MAX);
        LearnedSessions {
            capacity,
            entries: Vec::with_capacity(capacity),
            buckets: vec![0; capacity.next_power_of_two()],
            free: 0,
            oldest: 0,
            next_check: 0,
            len: 0,
            evicted: 0,
        }
    }

    /// Server that has a session; `None` when it is unknown or has expired. The session gets a second chance at the
    /// next eviction.
    pub fn find(&mut self, hash: SessionHash, now: Unix) -> Option<u32> {
        let link = self.link_of(hash);
        let entry = self.entry_mut(link).filter(|entry| now.0 < u64::from(entry.expires_s))?;
        entry.state = State::Used;
        Some(entry.server)
    }

    /// Stores a session. It replaces one with the same hash; a session that has expired is not stored.
    pub fn insert(&mut self, session: LearnedSession<u32>, now: Unix) {
        let LearnedSession { hash, server, expires } = session;
        if expires <= now {
            return;
        }
        let expires_s = u32::try_from(expires.0).unwrap_or(u32::MAX);
        let link = self.link_of(hash);
        if let Some(entry) = self.entry_mut(link) {
            (entry.server, entry.expires_s) = (server, expires_s);
            return;
        }
        self.remove_expired(now);
        if self.len == self.capacity {
            self.evict(now);
        }
        let bucket = self.bucket(hash);
        let next = self.buckets.get(bucket).copied().unwrap_or(0);
        let link = self.store(Entry { hash, next, server, expires_s, state: State::Stored });
        if let Some(first) = self.buckets.get_mut(bucket) {
            *first = link;
        }
        self.len += 1;
    }

    /// Forgets a session. Returns whether it was known.
    pub fn remove(&mut self, hash: SessionHash) -> bool {
        let link = self.link_of(hash);
        self.remove_link(link)
    }

    /// Changes the servers' numbers: server i is `number(i)` from now on. Sessions of a server without a number are
    /// forgotten. It visits all entries.
    pub fn renumber(&mut self, number: impl Fn(u32) -> Option<u32>) {
        for link in 1..=self.entries.len() as Link {
            let Some(entry) = self.entry_mut(link).filter(|entry| entry.state != State::Free) else {
                continue;
            };
            match number(entry.server) {
                Some(server) => entry.server = server,
                None => _ = self.remove_link(link),
            }
        }
    }

    /// Server of a session without a second chance for it; see [`find`](Self::find).
    pub fn peek(&self, hash: SessionHash, now: Unix) -> Option<u32> {
        let entry = self.entry(self.link_of(hash))?;
        (now.0 < u64::from(entry.expires_s)).then_some(entry.server)
    }

    /// All sessions from the newest on, expired ones included. A session in the slot of a removed one comes as late as
    /// that one would.
    pub fn newest(&self) -> impl DoubleEndedIterator<Item = LearnedSession<u32>> + '_ {
        let (later, earlier) = self.entries.split_at(self.oldest.min(self.entries.len()));
        let stored = later.iter().rev().chain(earlier.iter().rev());
        stored.filter(|entry| entry.state != State::Free).map(|entry| LearnedSession {
            hash: entry.hash,
            server: entry.server,
            expires: Unix(u64::from(entry.expires_s)),
        })
    }

    /// Number of sessions, including expired ones that were not visited since.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory in use, in bytes: all buckets, and the entries that were ever used.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(self.entries.as_slice()) + size_of_val(self.buckets.as_slice())
    }

    /// Number of sessions that were evicted before their expiry.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Checks the links: every entry is in its bucket once. For tests.
    pub fn check_invariants(&self) -> Result<(), String> {
        let stored = self.entries.iter().filter(|entry| entry.state != State::Free);
        for entry in stored.clone() {
            let found = self.entry(self.link_of(entry.hash)).map(|found| std::ptr::eq(found, entry));
            if found != Some(true) {
                return Err(format!("entry is not in its bucket, or twice: {entry:?}"));
            }
        }
        let mut chained = 0;
        for &first in &self.buckets {
            let mut link = first;
            while let Some(entry) = self.entry(link)
                && chained <= self.len
            {
                (link, chained) = (entry.next, chained + 1);
            }
        }
        let count = stored.count();
        if count != self.len || chained != self.len || self.len > self.capacity {
            return Err(format!("{} entries, {count} stored, {chained} in buckets", self.len));
        }
        Ok(())
    }

    /// Removes a few expired sessions, so that a table with room forgets them, too.
    fn remove_expired(&mut self, now: Unix) {
        for _ in 0..EXPIRED_PER_INSERTION {
            self.next_check = if self.next_check < self.entries.len() { self.next_check } else { 0 };
            let link = self.next_check as Link + 1;
            self.next_check += 1;
            if self.entry(link).is_some_and(|entry| entry.has_expired(now)) {
                self.remove_link(link);
            }
        }
    }

    /// Makes room for one session in a full table.
    fn evict(&mut self, now: Unix) {
        let mut victim = None;
        for step in 0..EVICTION_SCAN_MAX.min(self.entries.len()) {
            let index = (self.oldest + step) % self.entries.len();
            let Some(entry) = self.entries.get_mut(index) else { break };
            match entry.state {
                State::Free => {}
                _ if entry.has_expired(now) => {
                    self.remove_link(index as Link + 1);
                    return;
                }
                State::Used if victim.is_none() => entry.state = State::Stored,
                _ => victim = victim.or(Some(index)),
            }
        }
        let index = victim.unwrap_or_else(|| self.oldest.checked_rem(self.entries.len()).unwrap_or(0));
        self.oldest = index + 1; // behind the last entry it means the first
        self.evicted += 1;
        self.remove_link(index as Link + 1);
    }

    fn remove_link(&mut self, link: Link) -> bool {
        let Some(entry) = self.entry(link).copied().filter(|entry| entry.state != State::Free) else {
            return false;
        };
        let bucket = self.bucket(entry.hash);
        let mut before = self.buckets.get(bucket).copied().unwrap_or(0);
        if before == link {
            if let Some(first) = self.buckets.get_mut(bucket) {
                *first = entry.next;
            }
        } else {
            while let Some(other) = self.entry_mut(before) {
                if other.next == link {
                    other.next = entry.next;
                    break;
                }
                before = other.next;
            }
        }
        let free = self.free;
        if let Some(entry) = self.entry_mut(link) {
            (entry.state, entry.next) = (State::Free, free);
        }
        self.free = link;
        self.len -= 1;
        true
    }

    /// Stores an entry in a free slot, or in a new one within the capacity.
    ///
    /// Entries stand in the order of their age from `oldest` on. In a slot elsewhere an entry gets a second chance, so
    /// that it is not evicted as if it were as old as its neighbours.
    fn store(&mut self, mut entry: Entry) -> Link {
        let (link, oldest) = (self.free, self.oldest);
        match self.entry_mut(link) {
            Some(slot) => {
                if link as usize != oldest {
                    entry.state = State::Used;
                }
                let next_free = slot.next;
                *slot = entry;
                self.free = next_free;
                link
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as Link
            }
        }
    }

    fn bucket(&self, hash: SessionHash) -> usize {
        hash.0[0] as usize & (self.buckets.len() - 1)
    }

    fn link_of(&self, hash: SessionHash) -> Link {
        let mut link = self.buckets.get(self.bucket(hash)).copied().unwrap_or(0);
        while let Some(entry) = self.entry(link) {
            if entry.hash == hash {
                return link;
            }
            link = entry.next;
        }
        0
    }

    fn entry(&self, link: Link) -> Option<&Entry> {
        self.entries.get((link as usize).wrapping_sub(1))
    }

    fn entry_mut(&mut self, link: Link) -> Option<&mut Entry> {
        self.entries.get_mut((link as usize).wrapping_sub(1))
    }
}

impl Entry {
    fn has_expired(&self, now: Unix) -> bool {
        self.state != State::Free && u64::from(self.expires_s) <= now.0
    }
}
