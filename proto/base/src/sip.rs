//! SipHash (J.-P. Aumasson and D. J. Bernstein, INDOCRYPT 2012): a keyed hash; without the key its output cannot be
//! predicted or forced.

/// Running hash over words of eight bytes.
#[derive(Clone)]
pub struct Sip([u64; 4]);

impl Sip {
    /// Starts a hash with a key.
    pub fn new(key: [u64; 2]) -> Sip {
        Sip([
            0x736f_6d65_7073_6575 ^ key[0],
            0x646f_7261_6e64_6f6d ^ key[1],
            0x6c79_6765_6e65_7261 ^ key[0],
            0x7465_6462_7974_6573 ^ key[1],
        ])
    }

    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v3);
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.wrapping_add(*v3);
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.wrapping_add(*v1);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v2 = v2.rotate_left(32);
    }

    /// Adds a word in one round.
    pub fn word(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    /// Adds a word in two rounds.
    pub fn word_in_two_rounds(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    /// The hash after three final rounds.
    pub fn finish(self) -> u64 {
        self.finish_after(3)
    }

    /// Starts a hash of 128 bits with a key.
    fn new_128(key: [u64; 2]) -> Sip {
        let mut state = Sip::new(key);
        state.0[1] ^= 0xee;
        state
    }

    /// Both halves of a hash of 128 bits after `rounds` final rounds each.
    fn finish_128_after(mut self, rounds: usize) -> [u64; 2] {
        self.0[2] ^= 0xee;
        [0, 0xdd].map(|last| {
            self.0[1] ^= last;
            for _ in 0..rounds {
                self.round();
            }
            self.0.iter().fold(0, |all, word| all ^ word)
        })
    }

    /// The hash after `rounds` final rounds.
    pub fn finish_after(mut self, rounds: usize) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..rounds {
            self.round();
        }
        self.0.iter().fold(0, |all, word| all ^ word)
    }
}

/// SipHash-1-3 with 128 bits of output, of bytes that arrive in pieces.
#[derive(Clone)]
pub struct Sip128 {
    state: Sip,
    /// The bytes that fill no word yet, the first in the lowest bits.
    word: u64,
    len: u64,
}

impl Sip128 {
    /// Starts a hash with a key.
    pub fn new(key: [u64; 2]) -> Sip128 {
        Sip128 { state: Sip::new_128(key), word: 0, len: 0 }
    }

    /// Adds bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.len.is_multiple_of(8)
                && let Some((&word, rest)) = bytes.split_first_chunk()
            {
                self.state.word(u64::from_le_bytes(word));
                self.len += 8;
                bytes = rest;
                continue;
            }
            self.word |= u64::from(byte) << (self.len % 8 * 8);
            self.len += 1;
            if self.len.is_multiple_of(8) {
                self.state.word(std::mem::take(&mut self.word));
            }
            bytes = rest;
        }
    }

    /// Both halves of the hash.
    pub fn finish(mut self) -> [u64; 2] {
        self.state.word(self.len << 56 | self.word);
        self.state.finish_128_after(3)
    }
}

/// SipHash-1-3 of bytes.
pub fn sip_hash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut state = Sip::new(key);
    let mut words = bytes.chunks_exact(8);
    let as_word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    words.by_ref().map(as_word).for_each(|word| state.word(word));
    state.word((bytes.len() as u64) << 56 | as_word(words.remainder()));
    state.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{DefaultHasher, Hasher};

    #[test]
    fn hash_is_that_of_the_standard_library() {
        for length in 0..100 {
            let bytes: Vec<u8> = (0..length).map(|n: u8| n.wrapping_mul(7)).collect();
            let mut theirs = DefaultHasher::new(); // of a key of zeros
            theirs.write(&bytes);
            assert_eq!(sip_hash([0; 2], &bytes), theirs.finish(), "{length} bytes");
        }
    }

    /// Test vectors of the paper's authors: the key 00 01 .. 0f, the input 00 01 .. 0e.
    #[test]
    fn hash_is_that_of_its_authors() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let mut state = Sip::new(key);
        state.word_in_two_rounds(0x0706_0504_0302_0100);
        state.word_in_two_rounds(15 << 56 | 0x000e_0d0c_0b0a_0908);
        assert_eq!(state.finish_after(4), 0xa129_ca61_49be_45e5);
    }

    /// Vectors of the authors' reference implementation, SipHash-2-4 with 128 bits, for no byte and for one of value 0.
    #[test]
    fn long_hash_is_that_of_its_authors() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        for (len, hash) in [
            (0, [0xe6a8_25ba_047f_81a3, 0x9302_55c7_1472_f66d_u64]),
            (1, [0x44af_996b_d8c1_87da, 0x45fc_229b_1159_7634]),
        ] {
            let mut state = Sip::new_128(key);
            state.word_in_two_rounds(len << 56);
            assert_eq!(state.finish_128_after(4), hash, "{len} bytes");
        }
    }

    #[test]
    fn long_hash_does_not_depend_on_the_pieces() {
        let bytes: Vec<u8> = (0..60).collect();
        let hash = |pieces: &[&[u8]]| {
            let mut state = Sip128::new([1, 2]);
            pieces.iter().for_each(|piece| state.update(piece));
            state.finish()
        };
        let whole = hash(&[&bytes]);
        for at in 0..bytes.len() {
            let (first, rest) = bytes.split_at(at);
            let (second, third) = rest.split_at(rest.len() / 3);
            assert_eq!(hash(&[first, second, third]), whole);
            assert_ne!(hash(&[first]), whole);
        }
    }
}
