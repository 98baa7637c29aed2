//! Load estimator of SSLSARD: equation (1), a discrete sliding window over the work assigned to each node.
//!
//! The distributor estimates the load from the work that it assigns, without reports from the nodes. Time is divided
//! into slices; the window covers the elapsed part of the current slice and the whole previous one. An estimate is
//! therefore current, and old work expires. Of several distributors with equal shares of the arrivals, each sees its
//! own share and multiplies it by their number.
//!
//! Invariants: loads are finite and never negative; time never goes back (an earlier `now` counts as the latest one).
//! The estimator does not know queues: the load of a node with a backlog is only its share of the arrivals; see
//! `docs/measurements/sslsard.md`.

use evergate_base::Micros;

/// Estimator of the load `l_i(t)` of each node.
#[derive(Clone, Debug)]
pub struct LoadEstimator {
    /// ΔT, never zero.
    slice: Micros,
    /// The latest time seen.
    now: Micros,
    /// t_d, the beginning of the current slice.
    slice_start: Micros,
    /// Work assigned in the previous slice: `l_i(t_d)`.
    former: Vec<f64>,
    /// Work assigned in this slice: `Δl_i(t)`.
    current: Vec<f64>,
    /// Number of distributors, at least one.
    distributors: u32,
}

impl LoadEstimator {
    /// An estimator for `nodes` nodes with slices of `slice` (ΔT; zero counts as one microsecond), all idle: `l_i(0) =
    /// 0`.
    pub fn new(slice: Micros, nodes: usize) -> LoadEstimator {
        LoadEstimator {
            slice: slice.max(Micros(1)),
            now: Micros(0),
            slice_start: Micros(0),
            former: vec![0.0; nodes],
            current: vec![0.0; nodes],
            distributors: 1,
        }
    }

    /// Number of distributors with an equal share of the arrivals, this one included; zero counts as one.
    pub fn set_distributors(&mut self, distributors: u32) {
        self.distributors = distributors.max(1);
    }

    /// See [`set_distributors`](Self::set_distributors).
    pub fn distributors(&self) -> u32 {
        self.distributors
    }

    /// Moves the window to `now` (t).
    pub fn advance(&mut self, now: Micros) {
        self.now = self.now.max(now);
        let slices_passed = self.now.since(self.slice_start).0 / self.slice.0;
        if slices_passed == 0 {
            return;
        }
        if slices_passed == 1 {
            std::mem::swap(&mut self.former, &mut self.current);
        } else {
            self.former.fill(0.0);
        }
        self.current.fill(0.0);
        self.slice_start = self.slice_start + Micros(slices_passed * self.slice.0);
    }

    /// Counts `work` (`p_{i,new}` or `p_{i,reu}`, in units of work) as assigned to a node at the time of the last
    /// [`advance`](Self::advance). Ignores a value that is not finite and positive, and an unknown node.
    pub fn add(&mut self, node: usize, work: f64) {
        if work.is_finite()
            && work > 0.0
            && let Some(current) = self.current.get_mut(node)
        {
            *current = (*current + work).min(f64::MAX);
        }
    }

    /// Clears the work assigned to a node that has lost it.
    pub fn clear(&mut self, node: usize) {
        for work in [&mut self.former, &mut self.current] {
            if let Some(work) = work.get_mut(node) {
                *work = 0.0;
            }
        }
    }

    /// The length of the window, ΔT + t − t_d, in seconds.
    pub fn span_s(&self) -> f64 {
        (self.slice.0 + self.now.since(self.slice_start).0) as f64 / 1e6
    }

    /// Equation (1): `l_i(t) = (l_i(t_d) + Δl_i(t)) / (ΔT + t − t_d)`, times the number of distributors, in units of
    /// work per second, at the time of the last [`advance`](Self::advance). Zero for a node that does not exist.
    pub fn load(&self, node: usize) -> f64 {
        let work = |of: &[f64]| of.get(node).copied().unwrap_or(0.0);
        self.scaled(work(&self.former) + work(&self.current), self.span_s())
    }

    /// Equation (1) for all nodes, in their order; see [`load`](Self::load).
    pub fn loads(&self) -> impl Iterator<Item = f64> {
        let span_s = self.span_s();
        let work = self.former.iter().zip(&self.current);
        work.map(move |(former, current)| self.scaled(former + current, span_s))
    }

    fn scaled(&self, work: f64, span_s: f64) -> f64 {
        (work / span_s * f64::from(self.distributors)).min(f64::MAX)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.current.len()
    }
}
