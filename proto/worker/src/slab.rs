//! Slots with generations: a token of a slot that was reused finds nothing.

/// Names one occupant of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Number of the slot.
    pub index: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// Reuses of one slot after which generations wrap.
const GENERATION_BITS: u32 = 24;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    occupied: usize,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new(), occupied: 0 }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.occupied += 1;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.0 = (slot.0 + 1) & ((1 << GENERATION_BITS) - 1);
            slot.1 = Some(value);
            return Key { index, generation: slot.0 };
        }
        self.slots.push((0, Some(value)));
        Key { index: self.slots.len() as u32 - 1, generation: 0 }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.0 == key.generation { slot.1.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.0 == key.generation { slot.1.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.0 != key.generation {
            return None;
        }
        let value = slot.1.take()?;
        self.occupied -= 1;
        self.free.push(key.index);
        Some(value)
    }

    /// The key of what is in the slot of this index.
    pub(crate) fn key_of(&self, index: u32) -> Option<Key> {
        let (generation, value) = self.slots.get(index as usize)?;
        value.as_ref().map(|_| Key { index, generation: *generation })
    }

    pub(crate) fn len(&self) -> usize {
        self.occupied
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let all = (0..).zip(&self.slots);
        all.filter_map(|(index, (generation, value))| {
            Some((Key { index, generation: *generation }, value.as_ref()?))
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        let occupied = self.slots.iter().enumerate().filter(|(_, slot)| slot.1.is_some());
        occupied.map(|(index, slot)| Key { index: index as u32, generation: slot.0 }).collect()
    }
}

/// Kind of a registered descriptor; the top byte of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Commands have come.
    Waker,
    /// A listener, by its place in the worker.
    Listener(u32),
    /// A client's socket.
    Client(Key),
    /// A server's socket.
    Upstream(Key),
    /// The listener of replication channels.
    Channels,
    /// A replication channel from another node.
    Incoming(u32),
    /// The replication channel to a worker of another node.
    Outgoing(u8, u16),
    /// Events of the gate.
    Lane,
    /// A socket whose PROXY header is awaited.
    Arrival(Key),
    /// A descriptor of the program around the worker, by its number there.
    Shell(u32),
}

impl Source {
    /// The token of its events.
    pub fn token(self) -> u64 {
        let pack = |kind: u64, key: Key| kind << 56 | u64::from(key.generation) << 32 | u64::from(key.index);
        match self {
            Source::Waker => 0,
            Source::Listener(index) => 1 << 56 | u64::from(index),
            Source::Client(key) => pack(2, key),
            Source::Upstream(key) => pack(3, key),
            Source::Channels => 4 << 56,
            Source::Incoming(index) => 5 << 56 | u64::from(index),
            Source::Outgoing(node, worker) => 6 << 56 | u64::from(node) << 16 | u64::from(worker),
            Source::Lane => 7 << 56,
            Source::Shell(number) => 8 << 56 | u64::from(number),
            Source::Arrival(key) => pack(9, key),
        }
    }

    /// The source of a token.
    pub fn of(token: u64) -> Option<Source> {
        let key =
            Key { index: token as u32, generation: (token >> 32) as u32 & ((1 << GENERATION_BITS) - 1) };
        match token >> 56 {
            0 => Some(Source::Waker),
            1 => Some(Source::Listener(key.index)),
            2 => Some(Source::Client(key)),
            3 => Some(Source::Upstream(key)),
            4 => Some(Source::Channels),
            5 => Some(Source::Incoming(key.index)),
            6 => Some(Source::Outgoing((token >> 16) as u8, token as u16)),
            7 => Some(Source::Lane),
            8 => Some(Source::Shell(key.index)),
            9 => Some(Source::Arrival(key)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_key_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        assert_eq!(slab.key_of(first.index), Some(first));
        assert_eq!(slab.remove(first), Some('a'));
        assert_eq!((slab.key_of(first.index), slab.key_of(1)), (None, None));
        let second = slab.insert('b');
        assert_eq!(first.index, second.index);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!((slab.remove(first), slab.len()), (None, 1));
        assert_eq!(slab.get_mut(second), Some(&mut 'b'));
    }

    #[test]
    fn tokens_name_their_source() {
        let key = Key { index: 77, generation: 0xff_fffe };
        let sources = [
            Source::Waker,
            Source::Listener(3),
            Source::Client(key),
            Source::Upstream(key),
            Source::Channels,
            Source::Incoming(9),
            Source::Outgoing(31, 4000),
            Source::Lane,
            Source::Shell(1),
            Source::Arrival(key),
        ];
        for source in sources {
            assert_eq!(Source::of(source.token()), Some(source));
        }
        assert_eq!(Source::of(10 << 56), None);
    }
}
