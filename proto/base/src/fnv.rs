//! The FNV-1a hash.

/// FNV-1a over bytes: the same on every node and in every version. It is no defence against chosen collisions.
pub fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the specification (draft-eastlake-fnv).
    #[test]
    fn hash_matches_the_published_values() {
        assert_eq!(fnv(std::iter::empty()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"a".iter().copied()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(b"foobar".iter().copied()), 0x8594_4171_f739_67e8);
    }
}
