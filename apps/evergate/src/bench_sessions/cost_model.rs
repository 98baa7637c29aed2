//! What dispatch by session can gain: from the costs of a connection, the reuse rate and the number of servers.

use serde::Serialize;

/// CPU time of a server for one connection, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// F: a connection with a full handshake.
    pub full_us: f64,
    /// R: a connection that resumes a session.
    pub resumed_us: f64,
}

impl Costs {
    /// Mean cost when each connection goes to any of `servers`: a session is found by chance, in one case of n.
    /// `reuse`: share of the connections that offer a session, 0 to 1.
    pub fn blind_us(&self, reuse: f64, servers: usize) -> f64 {
        let hit = 1.0 / servers.max(1) as f64;
        reuse * (hit * self.resumed_us + (1.0 - hit) * self.full_us) + (1.0 - reuse) * self.full_us
    }

    /// Mean cost when each offered session is resumed.
    pub fn aware_us(&self, reuse: f64) -> f64 {
        reuse * self.resumed_us + (1.0 - reuse) * self.full_us
    }

    /// Limit of the gain: [`blind_us`](Costs::blind_us) over [`aware_us`](Costs::aware_us).
    pub fn bound(&self, reuse: f64, servers: usize) -> f64 {
        self.blind_us(reuse, servers) / self.aware_us(reuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { full_us: 2000.0, resumed_us: 100.0 };

    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found}, expected {expected}");
    }

    #[test]
    fn bound_at_full_reuse_is_that_of_the_formula() {
        assert_near(COSTS.bound(1.0, 3), (100.0 / 3.0 + 2.0 / 3.0 * 2000.0) / 100.0);
        assert_near(COSTS.bound(1.0, 4), (25.0 + 1500.0) / 100.0);
    }

    #[test]
    fn bound_falls_with_the_reuse_rate() {
        assert_near(COSTS.blind_us(0.8, 3), 0.8 * (100.0 + 4000.0) / 3.0 + 0.2 * 2000.0);
        assert_near(COSTS.aware_us(0.8), 480.0);
        assert_near(COSTS.bound(0.8, 3), (0.8 * 4100.0 / 3.0 + 400.0) / 480.0);
        let bounds: Vec<f64> = (0..=10).map(|tenths| COSTS.bound(f64::from(tenths) / 10.0, 3)).collect();
        assert!(bounds.is_sorted(), "{bounds:?}");
    }

    #[test]
    fn one_server_or_no_reuse_gains_nothing() {
        for reuse in [0.0, 0.5, 1.0] {
            assert_near(COSTS.bound(reuse, 1), 1.0);
        }
        assert_near(COSTS.bound(0.0, 3), 1.0);
    }
}
