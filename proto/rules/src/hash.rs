//! Hash of the index. Bytes are added one at a time, so that all prefixes of a path cost one pass.
//!
//! The hash does not resist chosen collisions. Only rules are stored, and a request that collides with one merely makes
//! the rule a candidate.

use evergate_base::name::folded;
use evergate_base::spread;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Kind of a key in the index; part of its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Tag {
    Equal = 1,
    Starts,
    Ends,
    Number,
    Exists,
    Net,
    PathPrefix,
    HostAndPath,
    HostAndPrefix,
}

/// Running hash over bytes.
#[derive(Clone, Copy)]
pub(crate) struct RunningHash(u64);

impl RunningHash {
    pub(crate) fn new() -> RunningHash {
        RunningHash(OFFSET)
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
    }

    pub(crate) fn of(bytes: &[u8]) -> RunningHash {
        let mut fold = RunningHash::new();
        bytes.iter().for_each(|&byte| fold.push(byte));
        fold
    }

    /// Hash of the bytes from the last to the first: all suffixes share one pass.
    pub(crate) fn of_reversed(bytes: &[u8]) -> RunningHash {
        let mut fold = RunningHash::new();
        bytes.iter().rev().for_each(|&byte| fold.push(byte));
        fold
    }

    /// Completes the hash with the kind of the bytes.
    #[inline]
    pub(crate) fn key(self, tag: Tag, field: u32) -> u64 {
        spread(self.0 ^ spread(u64::from(field) << 8 | tag as u64))
    }

    /// The key of a host together with a path or prefix.
    #[inline]
    pub(crate) fn with_host(self, host: RunningHash, tag: Tag) -> u64 {
        spread(self.0 ^ spread(host.0 ^ spread(tag as u64)))
    }
}

/// Hasher for keys that are hashes already.
#[derive(Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = spread(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// A map from completed keys.
pub(crate) type KeyMap<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

impl Default for RunningHash {
    fn default() -> RunningHash {
        RunningHash::new()
    }
}

impl Hasher for RunningHash {
    fn finish(&self) -> u64 {
        spread(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.push(byte));
    }

    fn write_usize(&mut self, length: usize) {
        self.push(length as u8);
    }
}

/// Names of headers, parameters or cookies that a rule set uses.
#[derive(Debug, Default)]
pub(crate) struct Names {
    ids: HashMap<Vec<u8>, u32, BuildHasherDefault<RunningHash>>,
    /// The lengths that occur, by the low bits of the first byte: the lookup of most names of a request ends here.
    lengths: [u64; 32],
}

impl Names {
    pub(crate) fn insert(&mut self, name: &[u8], id: u32) {
        let Some(&first) = name.first() else { return };
        self.lengths[usize::from(first & 31)] |= 1 << (name.len() & 63);
        self.ids.insert(name.to_vec(), id);
    }

    #[inline]
    pub(crate) fn get(&self, name: &[u8]) -> Option<u32> {
        let first = *name.first()?;
        if self.lengths[usize::from(first & 31)] & 1 << (name.len() & 63) == 0 {
            return None;
        }
        self.ids.get(name).copied()
    }

    /// Lookup for names of headers, stored folded: a name counts as every name that a CGI-style server mistakes it for.
    #[inline]
    pub(crate) fn get_header(&self, name: &[u8]) -> Option<u32> {
        let first = folded(*name.first()?);
        if self.lengths[usize::from(first & 31)] & 1 << (name.len() & 63) == 0 || name.len() > 256 {
            return None;
        }
        let mut plain = [0; 256];
        let plain = &mut plain[..name.len()];
        for (to, from) in plain.iter_mut().zip(name) {
            *to = folded(*from);
        }
        self.ids.get(&*plain).copied()
    }
}
