//! SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): numbers that are the
//! same on every machine, for uses in which a prediction is harmless. Numbers that a peer must not predict come from
//! [`crate::sip_hash`] or a seed.

/// Increment of the state of [`SplitMix64`]: 2^64 divided by the golden ratio.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads the bits of a value: each input bit flips each output bit with probability one half. Only 0 gives 0.
#[inline]
#[must_use]
pub const fn spread(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A stream of numbers that is a function of its seed.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        spread(self.0)
    }

    /// A number below `end`; 0 for an end of 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.bits() % end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of the generator's reference implementation.
    #[test]
    fn stream_is_that_of_the_reference() {
        let mut stream = SplitMix64(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([stream.bits(), stream.bits(), stream.bits()], expected);
    }

    #[test]
    fn below_is_below() {
        let mut stream = SplitMix64(3);
        assert!((1..1000).all(|end| stream.below(end) < end));
        assert_eq!(stream.below(0), 0);
    }
}
