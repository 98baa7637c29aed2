//! Bytes that both ends of a transfer derive from position and seed. Nothing has to be stored, and a byte that is lost,
//! doubled or moved shows wherever it happens.

use evergate_base::{GAMMA, spread};

/// Writes what stands from `position` on.
pub(super) fn fill(seed: u64, position: u64, buffer: &mut [u8]) {
    let mut at = position;
    let mut rest = buffer;
    while !rest.is_empty() {
        let word = word(seed, at / 8).to_le_bytes();
        let from = (at % 8) as usize;
        let length = rest.len().min(8 - from);
        let (now, later) = rest.split_at_mut(length);
        now.copy_from_slice(&word[from..from + length]);
        rest = later;
        at += length as u64;
    }
}

/// Number of bytes that differ from the content at `position`.
pub(super) fn differing(seed: u64, position: u64, bytes: &[u8]) -> u64 {
    let mut known = [0; 4096];
    let mut wrong = 0;
    for (index, chunk) in bytes.chunks(known.len()).enumerate() {
        let known = &mut known[..chunk.len()];
        fill(seed, position + (index * 4096) as u64, known);
        if known != chunk {
            wrong += known.iter().zip(chunk).filter(|(known, byte)| known != byte).count() as u64;
        }
    }
    wrong
}

/// The word number `index` of a seed's SplitMix64.
fn word(seed: u64, index: u64) -> u64 {
    spread(seed.wrapping_add(index.wrapping_mul(GAMMA)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_the_same_wherever_it_begins() {
        let mut whole = vec![0; 20_000];
        fill(7, 0, &mut whole);
        for (from, length) in [(0, 1), (3, 4), (5, 9000), (4095, 4098), (8, 8), (19_999, 1)] {
            let mut piece = vec![0; length];
            fill(7, from, &mut piece);
            assert_eq!(piece, whole[from as usize..from as usize + length]);
            assert_eq!(differing(7, from, &piece), 0);
        }
    }

    #[test]
    fn every_wrong_byte_is_counted_and_a_shift_is_seen() {
        let mut bytes = vec![0; 10_000];
        fill(7, 100, &mut bytes);
        for place in [0, 4095, 4096, 9999] {
            bytes[place] ^= 1;
        }
        assert_eq!(differing(7, 100, &bytes), 4);
        assert!(differing(7, 101, &bytes) > 9000);
        assert!(differing(8, 100, &bytes) > 9000);
    }
}
