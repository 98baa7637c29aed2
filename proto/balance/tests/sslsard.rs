//! SSLSARD against its equations: examples computed by hand, and properties against the equations in their original
//! form.

use evergate_balance::{
    LoadEstimator, Node, Weights, balance_degree, balance_degree_after, place_new, place_resuming, utility,
};
use evergate_base::Micros;
use proptest::collection::vec;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;

fn nodes(work: &[f64], loads: &[f64], cached: Option<usize>) -> Vec<Node> {
    let node = |(index, (&work, &load))| Node { load, work, cached: cached == Some(index), eligible: true };
    work.iter().zip(loads).enumerate().map(node).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

/// Equations (2), (3) and (4), term by term.
fn deviation_as_written(nodes: &[Node], chosen: usize, span_s: f64) -> f64 {
    let after: Vec<f64> = nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.eligible)
        .map(|(i, node)| node.load + if i == chosen { node.work / span_s } else { 0.0 })
        .collect();
    let n = after.len() as f64;
    let mean = after.iter().sum::<f64>() / n;
    (after.iter().map(|l| (l - mean).abs().powi(2)).sum::<f64>() / n).sqrt()
}

/// Equation (7), term by term.
fn utility_as_written(nodes: &[Node], chosen: usize, span_s: f64, weights: &Weights) -> f64 {
    let eligible: Vec<usize> = (0..nodes.len()).filter(|&i| nodes[i].eligible).collect();
    let f1 = |i: usize| nodes[i].work;
    let f2 = |i: usize| deviation_as_written(nodes, i, span_s);
    let min = |f: &dyn Fn(usize) -> f64| eligible.iter().map(|&i| f(i)).fold(f64::INFINITY, f64::min);
    let term = |f: &dyn Fn(usize) -> f64, k: usize| {
        let (value, least) = (f(chosen), min(f));
        let excess = if value > 0.0 { (value - least) / value } else { 0.0 };
        weights.alpha[k] * excess.powf(weights.lambda[k])
    };
    term(&f1, 0) + term(&f2, 1)
}

/// The noninferior solutions of problem 2, by steps 1 to 4.
fn noninferior_as_written(nodes: &[Node], span_s: f64) -> Vec<usize> {
    let eligible: Vec<usize> = (0..nodes.len()).filter(|&i| nodes[i].eligible).collect();
    let key = |&i: &usize| (nodes[i].work, nodes[i].load);
    let Some(first) = eligible
        .iter()
        .copied()
        .filter(|&i| nodes[i].cached)
        .reduce(|a, b| if key(&b) < key(&a) { b } else { a })
    else {
        return Vec::new();
    };
    let benchmark = deviation_as_written(nodes, first, span_s);
    let better = |&i: &usize| {
        i != first && nodes[i].load < nodes[first].load && deviation_as_written(nodes, i, span_s) < benchmark
    };
    std::iter::once(first).chain(eligible.iter().copied().filter(better)).collect()
}

#[test]
fn equation_1_over_two_slices_and_a_silence() {
    let mut estimator = LoadEstimator::new(Micros(2 * SECOND), 2);
    assert_eq!(estimator.load(0), 0.0, "l_i(0) = 0");
    estimator.advance(Micros(SECOND / 2));
    estimator.add(0, 10.0);
    estimator.advance(Micros(SECOND));
    assert_eq!(estimator.load(0), 10.0 / 3.0, "(0 + 10) / (2 + 1)");
    estimator.advance(Micros(2 * SECOND));
    assert_eq!(estimator.load(0), 5.0, "(10 + 0) / (2 + 0): the slice has just begun");
    estimator.advance(Micros(3 * SECOND));
    estimator.add(0, 6.0);
    assert_eq!(estimator.load(0), 16.0 / 3.0, "(10 + 6) / (2 + 1)");
    assert_eq!(estimator.load(1), 0.0);
    estimator.advance(Micros(4 * SECOND));
    assert_eq!(estimator.load(0), 3.0, "(6 + 0) / 2: the first slice is forgotten");
    estimator.advance(Micros(6 * SECOND + SECOND / 2));
    assert_eq!(estimator.load(0), 0.0, "nothing was handed out in the slice from 4 to 6");
}

#[test]
fn problem_1_by_hand() {
    // ΔT + t − t_d = 2 s, p_new = (4, 6, 6), l = (10, 4, 1). Step 1: node 0. Step 2: nodes 1 and 2.
    // l' = (12, 4, 1): f² = 582/27; (10, 7, 1): f² = 14; (10, 4, 4): f² = 8.
    let example = nodes(&[4.0, 6.0, 6.0], &[10.0, 4.0, 1.0], None);
    for (node, squared) in [(0, 582.0 / 27.0), (1, 14.0), (2, 8.0)] {
        let f = balance_degree_after(&example, node, 2.0).unwrap();
        assert!(close(f * f, squared), "f² of node {node} is {}", f * f);
    }
    assert_eq!(place_new(&example, 2.0), Some(2));
    // Before the request: l = (10, 4, 1), mean 5, f² = (25 + 1 + 16) / 3 = 14.
    assert!(close(balance_degree(&example), 14f64.sqrt()));
}

#[test]
fn problem_1_prefers_the_fastest_node_at_equal_load() {
    // Node 1 would balance the load better, but it is not less loaded than node 0: step 2 leaves it out.
    let example = nodes(&[4.0, 6.0, 6.0], &[1.0, 1.0, 9.0], None);
    let f = |node| balance_degree_after(&example, node, 2.0).unwrap();
    assert!(f(1) < f(0));
    assert_eq!(place_new(&example, 2.0), Some(0));
    // Equally fast nodes: the least loaded of them is the solution of step 1.
    assert_eq!(place_new(&nodes(&[4.0, 4.0, 9.0], &[3.0, 1.0, 2.0], None), 2.0), Some(1));
}

#[test]
fn problem_2_by_hand_with_the_parameters_of_tables_1_and_2() {
    // s is cached on G4, which is by far the most loaded: l = (0, 0, 0, 100), span 2 s, p = (12.39, 14.92, 18.49,
    // 1.94). f2: G4 has 100.97·√3/4 = 43.7213; G1 42.4825; G2 42.3342; G3 42.1362, the least. U(G4) = 0 +
    // (1.5851/43.7213)² = 0.00131; U(G1) = 10·10.45/12.39 + (0.3463/42.4825)² = 8.43429.
    let example = nodes(&[12.39, 14.92, 18.49, 1.94], &[0.0, 0.0, 0.0, 100.0], Some(3));
    for (node, f2) in [(0, 42.4825), (1, 42.3342), (2, 42.1362), (3, 43.7213)] {
        let f = balance_degree_after(&example, node, 2.0).unwrap();
        assert!((f - f2).abs() < 1e-4, "f2 of G{} is {f}", node + 1);
    }
    let u = |node| utility(&example, node, 2.0, &Weights::default()).unwrap();
    assert!((u(3) - 0.00131).abs() < 1e-5 && (u(0) - 8.43429).abs() < 1e-5, "{} {}", u(3), u(0));
    assert_eq!(place_resuming(&example, 2.0, &Weights::default()), Some(3));
}

/// Reason why sessions never migrate in the paper's own system: no imbalance is worth a miss.
#[test]
fn miss_costs_more_than_any_imbalance_with_tables_1_and_2() {
    let new = [12.39, 14.92, 18.49, 24.73];
    let resumed = [1.0, 1.25, 1.4, 1.94];
    let mut least_miss = f64::INFINITY;
    for cached in 0..4 {
        for other in (0..4).filter(|&other| other != cached) {
            let mut work = new;
            work[cached] = resumed[cached];
            least_miss = least_miss.min(10.0 * (work[other] - work[cached]) / work[other]);
        }
    }
    // G4's session on G1. The second term of U is at most α2 = 1.
    assert!((least_miss - 8.4342).abs() < 1e-4, "{least_miss}");
}

#[test]
fn problem_2_migrates_where_a_miss_is_cheap() {
    // p = (1, 1.2), l = (2, 0), span 2 s, s cached on node 0. l' = (2.5, 0): f2 = 1.25; (2, 0.6): f2 = 0.7.
    // α = (1, 1), λ = (1, 2): U(0) = (0.55/1.25)² = 0.1936; U(1) = 0.2/1.2 = 0.1667.
    let example = nodes(&[1.0, 1.2], &[2.0, 0.0], Some(0));
    let weights = Weights { alpha: [1.0, 1.0], lambda: [1.0, 2.0] };
    let u = |node| utility(&example, node, 2.0, &weights).unwrap();
    assert!(close(u(0), 0.1936) && close(u(1), 0.2 / 1.2), "{} {}", u(0), u(1));
    assert_eq!(place_resuming(&example, 2.0, &weights), Some(1));
    // With twice the weight on little work, the session stays.
    let weights = Weights { alpha: [2.0, 1.0], lambda: [1.0, 2.0] };
    assert_eq!(place_resuming(&example, 2.0, &weights), Some(0));
}

#[test]
fn session_without_eligible_node_is_problem_1() {
    let mut example = nodes(&[4.0, 6.0, 1.0], &[10.0, 4.0, 0.0], Some(2));
    example[2].eligible = false;
    example[2].work = 6.0;
    assert_eq!(place_resuming(&example, 2.0, &Weights::default()), place_new(&example, 2.0));
    assert_eq!(place_resuming(&example, 2.0, &Weights::default()), Some(1));
    for node in &mut example {
        node.eligible = false;
    }
    assert_eq!(place_resuming(&example, 2.0, &Weights::default()), None);
    assert_eq!(place_new(&example, 2.0), None);
    assert_eq!(place_new(&[], 2.0), None);
}

fn any_node() -> impl Strategy<Value = Node> {
    let load = prop_oneof![3 => 0.0..2000.0f64, 1 => Just(0.0), 1 => 0.0..1.0f64];
    let work = prop_oneof![3 => 1.0..30.0f64, 1 => Just(1.0), 1 => 0.01..1.0f64];
    (load, work, prop::bool::weighted(0.3), prop::bool::weighted(0.85))
        .prop_map(|(load, work, cached, eligible)| Node { load, work, cached, eligible })
}

fn any_weights() -> impl Strategy<Value = Weights> {
    let lambda = || prop_oneof![Just(1.0), Just(2.0), 0.2..4.0f64];
    (0.0..20.0f64, 0.0..20.0f64, lambda(), lambda())
        .prop_map(|(a1, a2, l1, l2)| Weights { alpha: [a1, a2], lambda: [l1, l2] })
}

proptest! {
    #[test]
    fn linear_form_of_f_equals_equations_2_to_4(pool in vec(any_node(), 1..12), span_s in 2.0..4.0f64) {
        for i in (0..pool.len()).filter(|&i| pool[i].eligible) {
            let linear = balance_degree_after(&pool, i, span_s).unwrap();
            let written = deviation_as_written(&pool, i, span_s);
            prop_assert!((linear - written).abs() <= 1e-6 * written.max(1e-3), "node {i}: {linear} {written}");
        }
    }

    #[test]
    fn problem_1_minimises_f_among_fastest_and_less_loaded(
        pool in vec(any_node(), 1..12), span_s in 2.0..4.0f64,
    ) {
        let eligible: Vec<usize> = (0..pool.len()).filter(|&i| pool[i].eligible).collect();
        let Some(chosen) = place_new(&pool, span_s) else {
            prop_assert!(eligible.is_empty());
            return Ok(());
        };
        prop_assert!(pool[chosen].eligible);
        let key = |i: usize| (pool[i].work, pool[i].load);
        let fastest = eligible.iter().copied().reduce(|a, b| if key(b) < key(a) { b } else { a }).unwrap();
        let candidates = eligible.iter().copied().filter(|&i| i == fastest || pool[i].load < pool[fastest].load);
        let f = |i| deviation_as_written(&pool, i, span_s);
        prop_assert!(chosen == fastest || pool[chosen].load < pool[fastest].load);
        for other in candidates {
            prop_assert!(f(chosen) <= f(other) + 1e-6 * f(other).max(1e-3), "{chosen} {other}");
        }
    }

    #[test]
    fn problem_2_takes_the_least_u_among_the_noninferior(
        pool in vec(any_node(), 1..12), span_s in 2.0..4.0f64, weights in any_weights(),
    ) {
        let noninferior = noninferior_as_written(&pool, span_s);
        prop_assume!(!noninferior.is_empty());
        let chosen = place_resuming(&pool, span_s, &weights).unwrap();
        let u = |i| utility_as_written(&pool, i, span_s, &weights);
        prop_assert!(close(utility(&pool, chosen, span_s, &weights).unwrap(), u(chosen))
            || (utility(&pool, chosen, span_s, &weights).unwrap() - u(chosen)).abs() < 1e-5);
        // A node whose f2 equals the benchmark except for rounding may be in or out.
        let first = noninferior[0];
        let f = |i| deviation_as_written(&pool, i, span_s);
        prop_assert!(noninferior.contains(&chosen) || (f(chosen) - f(first)).abs() <= 1e-6 * f(first).max(1e-3));
        for other in noninferior {
            prop_assert!(u(chosen) <= u(other) + 1e-5, "{chosen}: {}, {other}: {}", u(chosen), u(other));
        }
    }

    /// Sums in another order round differently, so near ties are accepted by their values.
    #[test]
    fn permutation_of_the_nodes_permutes_the_answer(
        (pool, order) in vec(any_node(), 1..10).prop_flat_map(|pool| {
            let order: Vec<usize> = (0..pool.len()).collect();
            (Just(pool), Just(order).prop_shuffle())
        }),
        span_s in 2.0..4.0f64, weights in any_weights(),
    ) {
        let permuted: Vec<Node> = order.iter().map(|&i| pool[i]).collect();
        let (a, b) = (place_new(&pool, span_s), place_new(&permuted, span_s).map(|i| order[i]));
        if let (Some(a), Some(b)) = (a, b) {
            let f = |i| deviation_as_written(&pool, i, span_s);
            prop_assert!(a == b || (f(a) - f(b)).abs() <= 1e-6 * f(a).max(1e-3), "{a} {b}");
        } else {
            prop_assert_eq!(a, b);
        }
        let resuming = |pool: &[Node]| place_resuming(pool, span_s, &weights);
        let (a, b) = (resuming(&pool), resuming(&permuted).map(|i| order[i]));
        if let (Some(a), Some(b)) = (a, b) {
            let u = |i| utility_as_written(&pool, i, span_s, &weights);
            let f = |i| deviation_as_written(&pool, i, span_s);
            let near = (u(a) - u(b)).abs() < 1e-5 || (f(a) - f(b)).abs() <= 1e-6 * f(a).max(1e-3);
            prop_assert!(a == b || near, "{a} {b}");
        } else {
            prop_assert_eq!(a, b);
        }
    }

    /// Also when time goes back, and for invalid work.
    #[test]
    fn loads_are_never_negative_and_follow_equation_1(
        events in vec((0u64..5_000_000, 0usize..3, prop_oneof![4 => 0.0..30.0f64, 1 => any::<f64>()]), 1..60),
        slice_us in 1u64..3_000_000,
    ) {
        let mut estimator = LoadEstimator::new(Micros(slice_us), 3);
        let (mut now, mut log) = (0u64, Vec::new());
        for (step, node, work) in events {
            // Most steps go forward, some back; the estimator uses the latest time.
            let at = if step % 7 == 0 { now.saturating_sub(step) } else { now + step };
            now = now.max(at);
            estimator.advance(Micros(at));
            estimator.add(node, work);
            log.push((now, node, if work.is_finite() && work > 0.0 { work } else { 0.0 }));
            let slice_start = now / slice_us * slice_us;
            let from = slice_start.saturating_sub(slice_us);
            for i in 0..3 {
                let load = estimator.load(i);
                prop_assert!(load >= 0.0 && load.is_finite());
                let handed: f64 = log.iter().filter(|e| e.0 >= from && e.1 == i).map(|e| e.2).sum();
                let expected = handed / ((slice_us + now - slice_start) as f64 / 1e6);
                prop_assert!(!expected.is_finite() || (load - expected).abs() <= 1e-9 * expected.max(1.0));
            }
        }
    }
}
