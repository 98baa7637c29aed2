//! Random numbers that are equal on every machine: an own generator, and logarithms and powers from `libm`.
//!
//! Invariants: a [`Stream`] is a function of its seed. Streams of different purposes and clients are independent, so
//! that two policies under one seed have the same clients with the same think times.

use evergate_base::SplitMix64;

/// A stream of random numbers. Eight bytes, so that each client has its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(SplitMix64);

/// Purpose of a stream; part of its seed.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum Purpose {
    Newcomers = 1,
    Client,
    Policy,
}

impl Stream {
    /// Stream number `index` of a purpose.
    pub(crate) fn new(seed: u64, purpose: Purpose, index: u64) -> Stream {
        Stream(SplitMix64(mix(mix(mix(seed) ^ purpose as u64) ^ index)))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Uniform in (0, 1), never either.
    pub(crate) fn fraction(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Uniform below `bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Poisson with this mean: the number of exponential gaps that fit into it.
    pub(crate) fn poisson(&mut self, mean: f64) -> u64 {
        let (mut sum, mut count) = (-libm::log(self.fraction()), 0);
        while sum <= mean {
            sum -= libm::log(self.fraction());
            count += 1;
        }
        count
    }

    /// Negative binomial: failures (each with probability 1 − p) before the r-th success.
    pub(crate) fn negative_binomial(&mut self, r: u32, p: f64) -> u64 {
        let failure = libm::log(1.0 - p);
        (0..r).map(|_| if p < 1.0 { (libm::log(self.fraction()) / failure) as u64 } else { 0 }).sum()
    }

    /// Generalized Pareto with shape k, scale σ and location θ; in the unit of σ and θ. Exponential for k = 0.
    pub(crate) fn generalized_pareto(&mut self, k: f64, sigma: f64, theta: f64) -> f64 {
        let u = self.fraction();
        if k == 0.0 { theta - sigma * libm::log(u) } else { theta + sigma * (libm::pow(u, -k) - 1.0) / k }
    }
}

/// Spreads all bits of a value.
pub(crate) fn mix(value: u64) -> u64 {
    SplitMix64(value).bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    fn mean_and_variance(mut draw: impl FnMut(&mut Stream) -> f64) -> (f64, f64) {
        let mut stream = Stream::new(1, Purpose::Client, 0);
        let draws: Vec<f64> = (0..DRAWS).map(|_| draw(&mut stream)).collect();
        let mean = draws.iter().sum::<f64>() / DRAWS as f64;
        (mean, draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / DRAWS as f64)
    }

    /// Asserts that the mean is within five standard deviations.
    fn assert_mean(found: f64, expected: f64, variance: f64) {
        let tolerance = 5.0 * (variance / DRAWS as f64).sqrt();
        assert!((found - expected).abs() < tolerance, "mean {found}, expected {expected} ± {tolerance}");
    }

    #[test]
    fn the_distributions_have_their_means_and_variances() {
        let (mean, variance) = mean_and_variance(Stream::fraction);
        assert_mean(mean, 0.5, 1.0 / 12.0);
        assert!((variance * 12.0 - 1.0).abs() < 0.02);
        let (mean, variance) = mean_and_variance(|s| s.poisson(40.0) as f64);
        assert_mean(mean, 40.0, 40.0);
        assert!((variance / 40.0 - 1.0).abs() < 0.02);
        // Table III: r (1 − p) / p, and its variance r (1 − p) / p².
        let (mean, variance) = mean_and_variance(|s| s.negative_binomial(1, 0.023) as f64);
        assert_mean(mean, 0.977 / 0.023, 0.977 / 0.023 / 0.023);
        assert!((variance * 0.023 * 0.023 / 0.977 - 1.0).abs() < 0.05);
        let (mean, _) = mean_and_variance(|s| s.negative_binomial(3, 0.5) as f64);
        assert_mean(mean, 3.0, 6.0);
        let (mean, variance) = mean_and_variance(|s| s.generalized_pareto(0.0, 2.0, 1.0));
        assert_mean(mean, 3.0, 4.0);
        assert!((variance / 4.0 - 1.0).abs() < 0.05);
        let (mean, _) = mean_and_variance(|s| s.generalized_pareto(0.25, 3.0, 1.0));
        assert_mean(mean, 1.0 + 3.0 / 0.75, 9.0 / 0.75 / 0.75 / 0.5);
    }

    /// The think time of Table III has an infinite variance, so the test checks its quantiles.
    #[test]
    fn the_think_time_of_table_iii_has_its_quantiles() {
        let mut stream = Stream::new(2, Purpose::Client, 0);
        let mut draws: Vec<f64> = (0..DRAWS).map(|_| stream.generalized_pareto(0.714, 1.429, 2.0)).collect();
        draws.sort_by(f64::total_cmp);
        assert!(draws[0] >= 2.0);
        for (quantile, expected) in [(0.5, 3.2814), (0.9, 10.3571), (0.99, 53.6187)] {
            let found = draws[(quantile * DRAWS as f64) as usize];
            assert!((found / expected - 1.0).abs() < 0.03, "{quantile}: {found}, expected {expected}");
        }
    }

    #[test]
    fn streams_are_stable_and_differ_by_purpose_and_index() {
        let first = |purpose, index| Stream::new(7, purpose, index).bits();
        assert_eq!(first(Purpose::Newcomers, 0), 3_642_079_336_031_410_661);
        assert_ne!(first(Purpose::Client, 0), first(Purpose::Newcomers, 0));
        assert_ne!(first(Purpose::Client, 0), first(Purpose::Client, 1));
    }

    #[test]
    fn below_is_below() {
        let mut stream = Stream::new(3, Purpose::Policy, 0);
        assert!((0..1000).all(|i| stream.below(i + 1) <= i));
        assert_eq!(stream.below(0), 0);
    }
}
