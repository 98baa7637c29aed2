//! The index's hash: bytes are folded one at a time, so that all prefixes of a path cost one pass.
//!
//! Not resistant to chosen collisions, and need not be: only rules are stored, and a request that collides with one
//! merely makes it a candidate.

use evergate_base::name::folded;
use evergate_base::spread;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// What a key of the index stands for; part of its hash.
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

/// A running hash over bytes.
#[derive(Clone, Copy)]
pub(crate) struct Fold(u64);

impl Fold {
    pub(crate) fn new() -> Fold {
        Fold(OFFSET)
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
    }

    pub(crate) fn of(bytes: &[u8]) -> Fold {
        let mut fold = Fold::new();
        bytes.iter().for_each(|&byte| fold.push(byte));
        fold
    }

    /// Of the bytes from the last to the first: suffixes share one pass.
    pub(crate) fn of_reversed(bytes: &[u8]) -> Fold {
        let mut fold = Fold::new();
        bytes.iter().rev().for_each(|&byte| fold.push(byte));
        fold
    }

    /// Ends the hash with what the bytes stand for.
    #[inline]
    pub(crate) fn key(self, tag: Tag, field: u32) -> u64 {
        spread(self.0 ^ spread(u64::from(field) << 8 | tag as u64))
    }

    /// The key of a host together with a path or prefix.
    #[inline]
    pub(crate) fn with_host(self, host: Fold, tag: Tag) -> u64 {
        spread(self.0 ^ spread(host.0 ^ spread(tag as u64)))
    }
}

/// Keys are hashes already.
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

/// A map from finished keys.
pub(crate) type KeyMap<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

impl Default for Fold {
    fn default() -> Fold {
        Fold::new()
    }
}

impl Hasher for Fold {
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

/// Names of headers, parameters or cookies that a rule set looks at.
#[derive(Debug, Default)]
pub(crate) struct Names {
    ids: HashMap<Vec<u8>, u32, BuildHasherDefault<Fold>>,
    /// By the low bits of the first byte, the lengths that occur: most names of a request stop here.
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

    /// For names of headers, stored folded: one that a CGI-style server takes for another counts as that.
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
