//! Bounded table of sessions: the node that made each, and the time.
//!
//! Invariants: the table never has more entries than its capacity. When it is full, the entry that expires first is
//! evicted, and its session is then distributed like a new one. Entries are linked in the order of expiry, which is the
//! order of their last renewal, because all have the same lifetime. All memory is reserved at the start, so no later
//! call allocates. The table does not hash names: a [`SessionKey`] is already a keyed hash, so a peer with chosen
//! session ids can force neither a bucket nor another session's key.

use evergate_base::Micros;
use serde::{Deserialize, Serialize};

/// Key of a session, or a client: a hash of its identity. Uniform and not predictable by peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

/// Start of a session's lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewal {
    /// From the full handshake that made the session (RFC 5246 appendix F.1.4 and the paper).
    #[default]
    Fixed,
    /// From its last use.
    Sliding,
}

/// Origin of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The node that made it.
    pub node: usize,
    /// When it was made.
    pub since: Micros,
}

/// Table of sessions; see the module.
#[derive(Clone, Debug)]
pub struct SessionTable {
    lifetime: Micros,
    renewal: Renewal,
    capacity: usize,
    entries: Vec<Entry>,
    /// First entry of each bucket; their number is a power of two.
    buckets: Vec<Link>,
    /// First unused entry, linked by `next_in_bucket`.
    free: Link,
    first_to_expire: Link,
    last_to_expire: Link,
    len: usize,
    evicted: u64,
}

/// An entry's index plus one; 0 is none. A table of zeros is therefore empty, and its pages are touched only when used.
type Link = u32;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: SessionKey,
    origin: Origin,
    renewed: Micros,
    next_in_bucket: Link,
    earlier: Link,
    later: Link,
}

/// Limit of entries that one insertion checks for expiry, so that no decision is slow after a long idle time.
const EXPIRED_PER_INSERTION: usize = 2;

impl SessionTable {
    /// The largest capacity.
    pub const CAPACITY_MAX: usize = 1 << 28;

    /// An empty table for `capacity` sessions (1 to [`CAPACITY_MAX`](Self::CAPACITY_MAX)) with this lifetime.
    pub fn new(capacity: usize, lifetime: Micros, renewal: Renewal) -> SessionTable {
        let capacity = capacity.clamp(1, Self::CAPACITY_MAX);
        SessionTable {
            lifetime,
            renewal,
            capacity,
            entries: Vec::with_capacity(capacity),
            buckets: vec![0; capacity.next_power_of_two()],
            free: 0,
            first_to_expire: 0,
            last_to_expire: 0,
            len: 0,
            evicted: 0,
        }
    }

    /// Origin of a session; `None` when it is unknown or has expired.
    pub fn get(&self, key: SessionKey, now: Micros) -> Option<Origin> {
        let entry = self.entry(self.find(key))?;
        (now.since(entry.renewed) <= self.lifetime).then_some(entry.origin)
    }

    /// Records that the session was resumed. With [`Renewal::Sliding`] its lifetime restarts.
    pub fn renew(&mut self, key: SessionKey, now: Micros) {
        let link = self.find(key);
        if link == 0 || self.renewal == Renewal::Fixed {
            return;
        }
        self.unlink_age(link);
        let renewed = self.not_before_the_last(now);
        if let Some(entry) = self.entry_mut(link) {
            entry.renewed = renewed;
        }
        self.link_newest(link);
    }

    /// Records that a session was made on a node. It replaces one with the same key.
    pub fn insert(&mut self, key: SessionKey, node: usize, now: Micros) {
        for _ in 0..EXPIRED_PER_INSERTION {
            match self.entry(self.first_to_expire) {
                Some(first) if now.since(first.renewed) > self.lifetime => self.remove(first.key),
                _ => break,
            }
        }
        self.remove(key);
        self.add(key, Origin { node, since: now }, now);
    }

    /// Copies the sessions of another table: node i there is node `renumbered[i]` here; sessions of a node without a
    /// number here are left out.
    pub fn inherit(&mut self, former: &SessionTable, renumbered: &[Option<usize>]) {
        let mut link = former.first_to_expire;
        while let Some(entry) = former.entry(link) {
            link = entry.later;
            if let Some(node) = renumbered.get(entry.origin.node).copied().flatten()
                && self.find(entry.key) == 0
            {
                self.add(entry.key, Origin { node, ..entry.origin }, entry.renewed);
            }
        }
    }

    /// Adds an unknown session; when the table is full, the first to expire is evicted.
    fn add(&mut self, key: SessionKey, origin: Origin, renewed: Micros) {
        if self.len == self.capacity
            && let Some(first) = self.entry(self.first_to_expire).copied()
        {
            self.evicted += 1;
            self.remove(first.key);
        }
        let renewed = self.not_before_the_last(renewed);
        let bucket = self.bucket(key);
        let entry = Entry {
            key,
            origin,
            renewed,
            next_in_bucket: self.buckets.get(bucket).copied().unwrap_or(0),
            earlier: 0,
            later: 0,
        };
        let link = self.store(entry);
        if let Some(first) = self.buckets.get_mut(bucket) {
            *first = link;
        }
        self.link_newest(link);
        self.len += 1;
    }

    /// Removes a session.
    pub fn remove(&mut self, key: SessionKey) {
        let link = self.find(key);
        let Some(entry) = self.entry(link).copied() else { return };
        let bucket = self.bucket(key);
        let mut before = self.buckets.get(bucket).copied().unwrap_or(0);
        if before == link {
            if let Some(first) = self.buckets.get_mut(bucket) {
                *first = entry.next_in_bucket;
            }
        } else {
            while let Some(other) = self.entry_mut(before) {
                if other.next_in_bucket == link {
                    other.next_in_bucket = entry.next_in_bucket;
                    break;
                }
                before = other.next_in_bucket;
            }
        }
        self.unlink_age(link);
        let free = self.free;
        if let Some(entry) = self.entry_mut(link) {
            entry.next_in_bucket = free;
        }
        self.free = link;
        self.len -= 1;
    }

    /// Number of sessions, including expired ones that were not visited since.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of sessions that were evicted before their expiry.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Checks the links: every entry is in its bucket once and in the order of expiry once. For tests.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (mut count, mut link, mut earlier, mut renewed) = (0, self.first_to_expire, 0, Micros(0));
        while let Some(entry) = self.entry(link) {
            if entry.earlier != earlier || entry.renewed < renewed || self.find(entry.key) != link {
                return Err(format!("entry {link} is linked wrongly: {entry:?}"));
            }
            (earlier, renewed, link, count) = (link, entry.renewed, entry.later, count + 1);
            if count > self.len {
                return Err("the order of expiry has a loop".to_owned());
            }
        }
        let in_buckets: usize = self.buckets.iter().map(|&first| self.chain_len(first)).sum();
        if earlier != self.last_to_expire
            || count != self.len
            || in_buckets != self.len
            || self.len > self.capacity
        {
            return Err(format!("{} entries, {count} by age, {in_buckets} in buckets", self.len));
        }
        Ok(())
    }

    /// Keeps the order of expiry even for a caller whose time goes back.
    fn not_before_the_last(&self, now: Micros) -> Micros {
        self.entry(self.last_to_expire).map_or(now, |last| last.renewed.max(now))
    }

    fn chain_len(&self, first: Link) -> usize {
        let mut len = 0;
        let mut link = first;
        while let Some(entry) = self.entry(link)
            && len <= self.len
        {
            (len, link) = (len + 1, entry.next_in_bucket);
        }
        len
    }

    fn bucket(&self, key: SessionKey) -> usize {
        key.0 as usize & (self.buckets.len() - 1)
    }

    fn find(&self, key: SessionKey) -> Link {
        let mut link = self.buckets.get(self.bucket(key)).copied().unwrap_or(0);
        while let Some(entry) = self.entry(link) {
            if entry.key == key {
                return link;
            }
            link = entry.next_in_bucket;
        }
        0
    }

    fn entry(&self, link: Link) -> Option<&Entry> {
        self.entries.get((link as usize).wrapping_sub(1))
    }

    fn entry_mut(&mut self, link: Link) -> Option<&mut Entry> {
        self.entries.get_mut((link as usize).wrapping_sub(1))
    }

    /// Stores an entry in a free slot, or in a new one within the capacity.
    fn store(&mut self, entry: Entry) -> Link {
        let link = self.free;
        match self.entry_mut(link) {
            Some(place) => {
                let next_free = place.next_in_bucket;
                *place = entry;
                self.free = next_free;
                link
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as Link
            }
        }
    }

    fn link_newest(&mut self, link: Link) {
        let last = self.last_to_expire;
        if let Some(entry) = self.entry_mut(link) {
            (entry.earlier, entry.later) = (last, 0);
        }
        match self.entry_mut(last) {
            Some(entry) => entry.later = link,
            None => self.first_to_expire = link,
        }
        self.last_to_expire = link;
    }

    fn unlink_age(&mut self, link: Link) {
        let Some((earlier, later)) = self.entry(link).map(|entry| (entry.earlier, entry.later)) else {
            return;
        };
        match self.entry_mut(earlier) {
            Some(entry) => entry.later = later,
            None => self.first_to_expire = later,
        }
        match self.entry_mut(later) {
            Some(entry) => entry.earlier = earlier,
            None => self.last_to_expire = earlier,
        }
    }
}
