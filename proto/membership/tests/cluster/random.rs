//! A seeded source of numbers.

use evergate_base::SplitMix64;

pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(SplitMix64(seed ^ 0x5DEE_CE66_D1CE_CAFE))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// True `n` times in `of`.
    pub(crate) fn chance(&mut self, n: u64, of: u64) -> bool {
        self.below(of) < n
    }
}
