//! A seeded source of numbers: a run is a function of its seed.

use evergate_base::SplitMix64;

/// Random numbers of a seed.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// A source with this seed.
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64(seed ^ 0x5dee_ce66_d1ce_cafe))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `end`; 0 for an end of 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// True with this probability per thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of these values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
