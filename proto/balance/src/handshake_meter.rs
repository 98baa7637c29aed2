//! Costs of handshakes at a server, measured: p_new and p_reu of SSLSARD.
//!
//! A sample is the time in which the server had all bytes of the client. It has the server's work, its queue and the
//! way to it. A moving mean follows slow changes. One sample counts as at most four times the mean and at least its
//! quarter, so that a lost segment or a stalled server moves the mean little.
//!
//! Invariants: a cost is positive, finite and at most a minute; there is none before [`SAMPLES_MIN`] samples.

use evergate_base::Micros;

/// Samples before a measured cost counts.
pub const SAMPLES_MIN: u32 = 16;
/// Largest sample, in microseconds.
const COST_US_MAX: f64 = 60e6;
/// How far a sample counts from the mean, as a factor.
const OUTLIER: f64 = 4.0;
/// Weight of a sample once there are as many; the first ones are averaged.
const WINDOW: f64 = 32.0;

/// Robust moving mean of a cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MovingCost {
    mean_us: f64,
    samples: u32,
}

impl MovingCost {
    /// Adds a sample.
    pub fn add(&mut self, took: Micros) {
        let took_us = (took.0 as f64).clamp(1.0, COST_US_MAX);
        let samples = self.samples.saturating_add(1);
        self.mean_us = match self.samples {
            0 => took_us,
            _ => {
                let counted = took_us.clamp(self.mean_us / OUTLIER, self.mean_us * OUTLIER);
                self.mean_us + (counted - self.mean_us) / f64::from(samples).min(WINDOW)
            }
        };
        self.samples = samples;
    }

    /// The cost in microseconds; `None` before [`SAMPLES_MIN`] samples.
    pub fn cost_us(&self) -> Option<f64> {
        (self.samples >= SAMPLES_MIN).then_some(self.mean_us)
    }

    /// Number of samples so far.
    pub fn samples(&self) -> u32 {
        self.samples
    }
}

/// Measured costs of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HandshakeMeter {
    /// Full handshakes.
    pub full: MovingCost,
    /// Resumed ones.
    pub resumed: MovingCost,
}

impl HandshakeMeter {
    /// Records a finished handshake.
    pub fn add(&mut self, resumed: bool, took: Micros) {
        let kind = if resumed { &mut self.resumed } else { &mut self.full };
        kind.add(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(samples: &[u64]) -> MovingCost {
        let mut cost = MovingCost::default();
        samples.iter().for_each(|&us| cost.add(Micros(us)));
        cost
    }

    #[test]
    fn cost_needs_a_minimum_of_samples() {
        let few = vec![500; SAMPLES_MIN as usize - 1];
        assert_eq!((fed(&few).cost_us(), fed(&few).samples()), (None, SAMPLES_MIN - 1));
        assert_eq!(fed(&[few, vec![500]].concat()).cost_us(), Some(500.0));
    }

    #[test]
    fn one_outlier_moves_the_mean_little() {
        let steady = vec![500; 100];
        for (outlier, bound) in [(60_000_000, 550.0), (u64::MAX, 550.0), (0, 480.0)] {
            let mean = fed(&[steady.clone(), vec![outlier]].concat()).cost_us().unwrap();
            assert!((mean - 500.0).abs() <= f64::abs(bound - 500.0), "{outlier}: {mean}");
        }
    }

    #[test]
    fn mean_follows_a_server_that_becomes_slow() {
        let mean = fed(&[vec![500; 100], vec![5_000; 300]].concat()).cost_us().unwrap();
        assert!((4_900.0..=5_000.0).contains(&mean), "{mean}");
    }

    #[test]
    fn costs_of_both_kinds_are_apart() {
        let mut meter = HandshakeMeter::default();
        for _ in 0..SAMPLES_MIN {
            meter.add(false, Micros(400));
            meter.add(true, Micros(0));
        }
        assert_eq!((meter.full.cost_us(), meter.resumed.cost_us()), (Some(400.0), Some(1.0)));
    }
}
