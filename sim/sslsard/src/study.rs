//! Study: every policy of a plan under every load and seed, and the means with their confidence intervals.
//!
//! Invariants: the result does not depend on the number of threads or their speed; under one seed all policies have the
//! same clients.

use crate::engine::simulate;
use crate::outcome::{Outcome, Part};
use crate::parameters::Plan;
use crate::scheme::Scheme;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One policy under one load: means over the seeds. `_ci` is half the 95 % confidence interval (Student's t), absent
/// for one seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the policy.
    pub policy: String,
    /// Mean number of new clients per second.
    pub newcomers_per_s: u32,
    /// SSL session resumption ratio: share of the served requests that resumed a session.
    pub resumption: f64,
    #[allow(missing_docs)]
    pub resumption_ci: Option<f64>,
    /// Requests served per second.
    pub throughput: f64,
    #[allow(missing_docs)]
    pub throughput_ci: Option<f64>,
    /// Load balance degree: mean over time of the standard deviation of the nodes' loads by equation (1), in units of
    /// work per second. One unit is a resumed request on the fastest node.
    pub load_std: f64,
    #[allow(missing_docs)]
    pub load_std_ci: Option<f64>,
    /// Mean over time of the standard deviation of the nodes' pending work, in milliseconds.
    pub backlog_std_ms: f64,
    #[allow(missing_docs)]
    pub backlog_std_ms_ci: Option<f64>,
    /// Mean wait from a request to its service, in milliseconds.
    pub wait_ms: f64,
    #[allow(missing_docs)]
    pub wait_ms_ci: Option<f64>,
    /// 99th percentile of the wait, in milliseconds.
    pub wait_p99_ms: f64,
    #[allow(missing_docs)]
    pub wait_p99_ms_ci: Option<f64>,
    /// Share of the nodes' time that they are busy.
    pub utilisation: f64,
    #[allow(missing_docs)]
    pub utilisation_ci: Option<f64>,
    /// Requests refused after the warm-up because a queue was full, per run.
    pub refused: f64,
}

/// A mean with half its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) mean: f64,
    pub(crate) ci: Option<f64>,
}

/// One policy against the plan's first one under one load: mean differences over the seeds. Both have the same clients
/// under one seed, so these intervals are mostly smaller than those of the rows.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    pub(crate) policy: String,
    pub(crate) newcomers_per_s: u32,
    pub(crate) resumption: Estimate,
    pub(crate) throughput: Estimate,
    pub(crate) load_std: Estimate,
    pub(crate) wait_ms: Estimate,
    pub(crate) wait_p99_ms: Estimate,
}

/// The course of one policy under one load, over time.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) scheme: Scheme,
    pub(crate) newcomers_per_s: u32,
    pub(crate) at_s: Vec<f64>,
    pub(crate) load_std: Vec<Estimate>,
    pub(crate) throughput: Vec<Estimate>,
    pub(crate) resumption: Vec<Estimate>,
    pub(crate) wait_ms: Vec<Estimate>,
}

/// Results of a plan's simulations.
#[derive(Clone, Debug)]
pub struct Study {
    /// The plan.
    pub plan: Plan,
    /// By policy and load, in the plan's order.
    pub rows: Vec<Row>,
    /// In the same order, without the first policy.
    pub(crate) differences: Vec<Difference>,
    pub(crate) courses: Vec<Course>,
}

/// Runs a plan on `threads` threads. `progress` is called after each simulation with its number, the total and its
/// name.
pub fn study(plan: &Plan, threads: NonZeroUsize, progress: impl Fn(usize, usize, &str) + Sync) -> Study {
    let jobs: Vec<(&Scheme, u32, u64)> = plan
        .policies
        .iter()
        .flat_map(|scheme| plan.newcomers_per_s.iter().map(move |&rate| (scheme, rate)))
        .flat_map(|(scheme, rate)| {
            (0..u64::from(plan.seeds)).map(move |i| (scheme, rate, plan.seed.wrapping_add(i)))
        })
        .collect();
    let outcomes: Vec<Mutex<Option<Outcome>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let (index, Some((scheme, rate, seed))) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            (index, jobs.get(index))
        } {
            let outcome = simulate(plan, scheme, *rate, *seed);
            if let Some(place) = outcomes.get(index) {
                *place.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(outcome);
            }
            let label = format!("{} at {rate}/s, seed {seed}", scheme.name);
            progress(ended.fetch_add(1, Ordering::Relaxed) + 1, jobs.len(), &label);
        }
    };
    std::thread::scope(|scope| {
        // The first worker is this thread.
        for _ in 1..threads.get().min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    let outcomes: Vec<Outcome> = outcomes
        .into_iter()
        .filter_map(|place| place.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
        .collect();
    let of_pair: Vec<&[Outcome]> = outcomes.chunks(plan.seeds.max(1) as usize).collect();
    let pairs =
        plan.policies.iter().flat_map(|scheme| plan.newcomers_per_s.iter().map(move |&rate| (scheme, rate)));
    let (mut rows, mut differences, mut courses) = (Vec::new(), Vec::new(), Vec::new());
    let of_first = of_pair.iter().take(plan.newcomers_per_s.len()).cycle();
    for (((scheme, rate), outcomes), first) in pairs.zip(&of_pair).zip(of_first) {
        rows.push(row(scheme, rate, outcomes));
        if rows.len() > plan.newcomers_per_s.len() {
            differences.push(difference(scheme, rate, outcomes, first));
        }
        if plan.courses_at.contains(&rate) {
            courses.push(course(scheme, rate, outcomes));
        }
    }
    Study { plan: plan.clone(), rows, differences, courses }
}

fn row(scheme: &Scheme, newcomers_per_s: u32, outcomes: &[Outcome]) -> Row {
    let of = |value: fn(&Outcome) -> f64| estimate(outcomes.iter().map(value));
    let (resumption, throughput) = (of(|o| o.resumption), of(|o| o.throughput));
    let (load_std, backlog_std_ms) = (of(|o| o.load_std), of(|o| o.backlog_std_ms));
    let (wait_ms, wait_p99_ms) = (of(|o| o.wait_ms), of(|o| o.wait_p99_ms));
    let utilisation = of(|o| o.utilisation);
    Row {
        policy: scheme.name.clone(),
        newcomers_per_s,
        resumption: resumption.mean,
        resumption_ci: resumption.ci,
        throughput: throughput.mean,
        throughput_ci: throughput.ci,
        load_std: load_std.mean,
        load_std_ci: load_std.ci,
        backlog_std_ms: backlog_std_ms.mean,
        backlog_std_ms_ci: backlog_std_ms.ci,
        wait_ms: wait_ms.mean,
        wait_ms_ci: wait_ms.ci,
        wait_p99_ms: wait_p99_ms.mean,
        wait_p99_ms_ci: wait_p99_ms.ci,
        utilisation: utilisation.mean,
        utilisation_ci: utilisation.ci,
        refused: of(|o| o.refused).mean,
    }
}

fn difference(scheme: &Scheme, newcomers_per_s: u32, outcomes: &[Outcome], first: &[Outcome]) -> Difference {
    let of = |value: fn(&Outcome) -> f64| {
        estimate(outcomes.iter().zip(first).map(|(ours, theirs)| value(ours) - value(theirs)))
    };
    Difference {
        policy: scheme.name.clone(),
        newcomers_per_s,
        resumption: of(|o| o.resumption),
        throughput: of(|o| o.throughput),
        load_std: of(|o| o.load_std),
        wait_ms: of(|o| o.wait_ms),
        wait_p99_ms: of(|o| o.wait_p99_ms),
    }
}

fn course(scheme: &Scheme, newcomers_per_s: u32, outcomes: &[Outcome]) -> Course {
    let parts = outcomes.first().map_or(0, |outcome| outcome.course.len());
    let of = |value: fn(&Part) -> f64| {
        (0..parts)
            .map(|part| estimate(outcomes.iter().filter_map(|outcome| outcome.course.get(part)).map(value)))
            .collect::<Vec<Estimate>>()
    };
    Course {
        scheme: scheme.clone(),
        newcomers_per_s,
        at_s: of(|part| part.at_s).iter().map(|estimate| estimate.mean).collect(),
        load_std: of(|part| part.load_std),
        throughput: of(|part| part.throughput),
        resumption: of(|part| part.resumption),
        wait_ms: of(|part| part.wait_ms),
    }
}

/// Rounded to six decimals: further digits have no information, and make bytes hard to compare by eye.
fn rounded(value: f64) -> f64 {
    libm::round(value * 1e6) / 1e6
}

fn estimate(values: impl Iterator<Item = f64>) -> Estimate {
    let values: Vec<f64> = values.collect();
    let n = values.len() as f64;
    if values.is_empty() {
        return Estimate { mean: 0.0, ci: None };
    }
    let mean = values.iter().sum::<f64>() / n;
    if values.len() == 1 {
        return Estimate { mean: rounded(mean), ci: None };
    }
    let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
    Estimate { mean: rounded(mean), ci: Some(rounded(student_t(values.len() - 1) * (variance / n).sqrt())) }
}

/// The 97.5 % quantile of Student's t distribution.
fn student_t(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    // Beyond the table by its expansion in 1/degrees, exact to 0.001.
    let tail = || 1.960 + 2.372 / degrees as f64;
    TABLE.get(degrees.wrapping_sub(1)).copied().unwrap_or_else(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_confidence_interval_is_students() {
        // Mean 3, standard deviation sqrt(2.5), t(4) = 2.776: 2.776 · 1.5811 / sqrt(5) = 1.9629.
        let five = estimate([1.0, 2.0, 3.0, 4.0, 5.0].into_iter());
        assert_eq!(five.mean, 3.0);
        assert!((five.ci.unwrap() - 1.9629).abs() < 1e-3);
        assert_eq!(estimate([7.0].into_iter()), Estimate { mean: 7.0, ci: None });
        for (degrees, t) in [(1, 12.706), (30, 2.042), (60, 2.000), (120, 1.980)] {
            assert!((student_t(degrees) - t).abs() < 2e-3, "{degrees}");
        }
    }
}
