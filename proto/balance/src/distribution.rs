//! Distribution of SSLSARD: equations (2) to (7), problems 1 and 2.
//!
//! The paper's cost is quadratic in the number of nodes, because each solution x needs the deviation over all nodes.
//! Here a decision is linear. Assigning work to node i adds δ = p_i / (ΔT + t − t_d) to l_i and δ/N to the mean. With
//! the deviations d_j = l_j − mean (which sum up to zero) equation (4) becomes `N·f(x_i)² = Σ d_j² + δ·(2·d_i + δ·(1 −
//! 1/N))`. The tests compare this with equations (2) to (4) in their original form.
//!
//! Invariants: the answer does not depend on the order of the nodes, except for exact ties. A tie goes to the node that
//! has the session, or to the first. Ineligible nodes do not count in N, in the mean, or in any minimum. No function
//! allocates. This module does not estimate loads ([`LoadEstimator`](crate::LoadEstimator)) or know sessions
//! ([`SessionTable`](crate::SessionTable)).

/// A node in one decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// `l_i(t)`, in units of work per second.
    pub load: f64,
    /// `p_i`, the work of the request on this node: `p_{i,reu}` if its session is cached there, otherwise `p_{i,new}`.
    /// In units of work, finite and positive.
    pub work: f64,
    /// Whether the node has the session s.
    pub cached: bool,
    /// Whether the request may be sent to this node.
    pub eligible: bool,
}

/// Constants of equation (7), without unit. They decide how much a miss may cost to balance the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// α1 and α2: the weight of object 1 (little work) and of object 2 (even load); not negative.
    pub alpha: [f64; 2],
    /// λ1 and λ2: their exponents, positive.
    pub lambda: [f64; 2],
}

impl Default for Weights {
    /// Table I of the paper.
    fn default() -> Weights {
        Weights { alpha: [10.0, 1.0], lambda: [1.0, 2.0] }
    }
}

/// Summary of the load vector that every f(x) needs.
#[derive(Clone, Copy, Debug)]
struct Spread {
    /// N, as a number.
    nodes: f64,
    mean: f64,
    /// 1 − 1/N.
    rest: f64,
    /// 1 / (ΔT + t − t_d).
    per_s: f64,
}

impl Spread {
    fn of(nodes: &[Node], span_s: f64) -> Option<Spread> {
        let (mut count, mut sum) = (0.0, 0.0);
        for node in nodes.iter().filter(|node| node.eligible) {
            count += 1.0;
            sum += node.load;
        }
        (count > 0.0).then(|| Spread {
            nodes: count,
            mean: sum / count,
            rest: 1.0 - 1.0 / count,
            per_s: 1.0 / span_s,
        })
    }

    /// d_j².
    fn square(&self, node: &Node) -> f64 {
        (node.load - self.mean) * (node.load - self.mean)
    }

    /// Σ d_j².
    fn squares(&self, nodes: &[Node]) -> f64 {
        nodes.iter().filter(|node| node.eligible).map(|node| self.square(node)).sum()
    }

    /// Growth of `N·f²` when `node` receives its work; the f of solutions are in the same order.
    fn growth(&self, node: &Node) -> f64 {
        let added = node.work * self.per_s;
        added * (2.0 * (node.load - self.mean) + added * self.rest)
    }

    /// f(x) from `N·f²`, in units of work per second.
    fn deviation(&self, squares: f64) -> f64 {
        (squares.max(0.0) / self.nodes).sqrt()
    }
}

/// Equations (3) and (4): the current load balance degree of the eligible nodes, in units of work per second.
pub fn balance_degree(nodes: &[Node]) -> f64 {
    Spread::of(nodes, 1.0).map_or(0.0, |spread| spread.deviation(spread.squares(nodes)))
}

/// f(x) of equations (2) to (4): the load balance degree after `node` received its work, in units of work per second.
/// `span_s` is ΔT + t − t_d in seconds. `None` when the node is not eligible.
pub fn balance_degree_after(nodes: &[Node], node: usize, span_s: f64) -> Option<f64> {
    let chosen = nodes.get(node).filter(|node| node.eligible)?;
    let spread = Spread::of(nodes, span_s)?;
    Some(spread.deviation(spread.squares(nodes) + spread.growth(chosen)))
}

/// Problem 1: the node for a request that negotiates a new session; `work` of each node is its `p_{i,new}`.
///
/// Step 1 selects the node with the least work (of several the least loaded). Step 2 selects all nodes with less load,
/// step 3 the one of these that minimises f(x). `None` when no node is eligible.
pub fn place_new(nodes: &[Node], span_s: f64) -> Option<usize> {
    let spread = Spread::of(nodes, span_s)?;
    let (fastest, least_loaded_below) = step_1(nodes, |_| true)?;
    let candidate = |index: usize, node: &Node| index == fastest || node.load < least_loaded_below;
    let mut best: Option<(usize, f64)> = None;
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| node.eligible) {
        if !candidate(index, node) {
            continue;
        }
        let growth = spread.growth(node);
        if best.is_none_or(|(_, least)| growth < least) {
            best = Some((index, growth));
        }
    }
    best.map(|(index, _)| index)
}

/// Problem 2: the node for a request that resumes a session cached on some nodes.
///
/// The noninferior solutions are the cached node with the least work (step 1) and some nodes with less load (step 2):
/// those with a smaller f2 (steps 3 and 4). Of these, the one that minimises U, equation (7), is chosen. Without an
/// eligible node that has the session this is problem 1. `None` when no node is eligible.
pub fn place_resuming(nodes: &[Node], span_s: f64, weights: &Weights) -> Option<usize> {
    let Some((cached, load)) = step_1(nodes, |node| node.cached) else { return place_new(nodes, span_s) };
    let spread = Spread::of(nodes, span_s)?;
    let (mut least_work, mut least_growth, mut squares) = (f64::INFINITY, f64::INFINITY, 0.0);
    for node in nodes.iter().filter(|node| node.eligible) {
        squares += spread.square(node);
        let growth = spread.growth(node);
        least_work = if node.work < least_work { node.work } else { least_work };
        least_growth = if growth < least_growth { growth } else { least_growth };
    }
    let least_deviation = spread.deviation(squares + least_growth);
    let utility = |node: &Node, growth: f64, bound: f64| {
        let work_term = weights.alpha[0] * power(excess(node.work, least_work), weights.lambda[0]);
        // Both terms are non-negative, so a large first term needs no second.
        if work_term >= bound {
            return bound;
        }
        let excess = excess(spread.deviation(squares + growth), least_deviation);
        work_term + weights.alpha[1] * power(excess, weights.lambda[1])
    };
    let home = nodes.get(cached)?;
    let benchmark = spread.growth(home);
    let (mut best, mut least) = (cached, utility(home, benchmark, f64::INFINITY));
    for (index, node) in nodes.iter().enumerate() {
        if !node.eligible || node.load >= load {
            continue;
        }
        let growth = spread.growth(node);
        if growth >= benchmark {
            continue;
        }
        let utility = utility(node, growth, least);
        if utility < least {
            (best, least) = (index, utility);
        }
    }
    Some(best)
}

/// U(x) of equation (7), without unit, for assigning the request to `node`; the minima of f1 and f2 are over all
/// eligible nodes. `None` when the node is not eligible.
pub fn utility(nodes: &[Node], node: usize, span_s: f64, weights: &Weights) -> Option<f64> {
    let chosen = nodes.get(node).filter(|node| node.eligible)?;
    let spread = Spread::of(nodes, span_s)?;
    let squares = spread.squares(nodes);
    let eligible = || nodes.iter().filter(|node| node.eligible);
    let least_work = eligible().map(|node| node.work).fold(f64::INFINITY, f64::min);
    let least_growth = eligible().map(|node| spread.growth(node)).fold(f64::INFINITY, f64::min);
    let deviation = |growth: f64| spread.deviation(squares + growth);
    let terms =
        [excess(chosen.work, least_work), excess(deviation(spread.growth(chosen)), deviation(least_growth))];
    let term = |k: usize| weights.alpha[k] * power(terms[k], weights.lambda[k]);
    Some(term(0) + term(1))
}

/// Step 1 of both problems: the node with the least work among those that satisfy `may`, ties to the least loaded; and
/// its load.
fn step_1(nodes: &[Node], may: impl Fn(&Node) -> bool) -> Option<(usize, f64)> {
    let mut best: Option<(usize, &Node)> = None;
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| node.eligible && may(node)) {
        let better =
            |other: &Node| node.work < other.work || (node.work == other.work && node.load < other.load);
        if best.is_none_or(|(_, other)| better(other)) {
            best = Some((index, node));
        }
    }
    best.map(|(index, node)| (index, node.load))
}

/// `(f − min f) / f`, between 0 and 1. An f of zero is the minimum.
fn excess(value: f64, least: f64) -> f64 {
    if value > 0.0 { ((value - least) / value).clamp(0.0, 1.0) } else { 0.0 }
}

/// `base` to a positive power. The standard library's `powf` may differ between platforms in the last digit.
fn power(base: f64, exponent: f64) -> f64 {
    match exponent {
        1.0 => base,
        2.0 => base * base,
        other => libm::pow(base, other),
    }
}
