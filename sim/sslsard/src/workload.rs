//! Clients of Table III: their arrivals and think times, for the simulator and for experiments with real clients.
//!
//! Invariants: a [`Workload`] is a function of its seed. The simulator draws from the same functions, so both have the
//! same clients under one seed.

use crate::parameters::{ClientPlan, SECOND_NS};
use crate::random::{Purpose, Stream};
use crate::raw::RawClients;

/// Clients of Table III under one seed.
#[derive(Clone, Debug)]
pub struct Workload {
    clients: ClientPlan,
    seed: u64,
}

impl Workload {
    /// The workload of the paper.
    pub fn paper(seed: u64) -> Workload {
        Workload { clients: ClientPlan::from(&RawClients::default()), seed }
    }

    /// Arrivals of the first `count` clients in nanoseconds, ascending: a Poisson number in each second, each at a
    /// uniform time in it. A mean of less than 0.01 newcomers per second counts as 0.01.
    pub fn arrivals_ns(&self, newcomers_per_s: f64, count: usize) -> Vec<u64> {
        let mut arrivals = Vec::with_capacity(count);
        for second in 0.. {
            let missing = count - arrivals.len();
            if missing == 0 {
                break;
            }
            let mut newcomers: Vec<u64> =
                newcomers_ns(self.seed, second, newcomers_per_s.max(0.01)).take(missing).collect();
            newcomers.sort_unstable();
            arrivals.extend(newcomers.iter().map(|offset_ns| second * SECOND_NS + offset_ns));
        }
        arrivals
    }

    /// The random numbers of client number `number`.
    pub fn client(&self, number: u64) -> Visitor {
        Visitor { random: Stream::new(self.seed, Purpose::Client, number), clients: self.clients.clone() }
    }
}

/// One client of a workload.
#[derive(Clone, Debug)]
pub struct Visitor {
    random: Stream,
    clients: ClientPlan,
}

impl Visitor {
    /// Next think time in nanoseconds: generalized Pareto.
    pub fn think_ns(&mut self) -> u64 {
        self.clients.think_ns(&mut self.random)
    }

    /// Uniform in (0, 1), never either.
    pub fn fraction(&mut self) -> f64 {
        self.random.fraction()
    }
}

/// Times of the newcomers of one second, in nanoseconds after its beginning, in the order of their numbers.
pub(crate) fn newcomers_ns(seed: u64, second: u64, mean: f64) -> impl Iterator<Item = u64> {
    let mut random = Stream::new(seed, Purpose::Newcomers, second);
    let count = random.poisson(mean);
    (0..count).map(move |_| random.below(SECOND_NS))
}

impl ClientPlan {
    /// Next think time of a client, in nanoseconds.
    pub(crate) fn think_ns(&self, random: &mut Stream) -> u64 {
        let think_s = random.generalized_pareto(self.think_k, self.think_sigma_s, self.think_theta_s);
        (think_s * SECOND_NS as f64) as u64
    }
}

impl From<&RawClients> for ClientPlan {
    fn from(raw: &RawClients) -> ClientPlan {
        ClientPlan {
            requests_min: raw.requests.min,
            requests_r: raw.requests.r,
            requests_p: raw.requests.p,
            think_k: raw.think.k,
            think_sigma_s: raw.think.sigma_s,
            think_theta_s: raw.think.theta_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_and_ascend() {
        let arrivals = Workload::paper(1).arrivals_ns(40.0, 4000);
        assert!(arrivals.is_sorted() && arrivals.len() == 4000);
        let seconds = *arrivals.last().unwrap() as f64 / 1e9;
        assert!((95.0..105.0).contains(&seconds), "4000 arrivals in {seconds} s");
        assert_eq!(arrivals, Workload::paper(1).arrivals_ns(40.0, 4000));
        assert_ne!(arrivals, Workload::paper(2).arrivals_ns(40.0, 4000));
        assert!(Workload::paper(1).arrivals_ns(0.0, 0).is_empty());
    }

    #[test]
    fn think_times_are_those_of_table_iii() {
        let workload = Workload::paper(1);
        let mut times: Vec<u64> = (0..10_001).map(|number| workload.client(number).think_ns()).collect();
        times.sort_unstable();
        assert!(times[0] >= 2 * SECOND_NS);
        let median_s = times[5000] as f64 / 1e9;
        assert!((3.1..3.5).contains(&median_s), "{median_s}");
    }
}
