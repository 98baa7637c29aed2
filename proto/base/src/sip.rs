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

    /// The hash after `rounds` final rounds.
    pub fn finish_after(mut self, rounds: usize) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..rounds {
            self.round();
        }
        self.0.iter().fold(0, |all, word| all ^ word)
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
}
