//! Checks of a plan: every number has a range, and every name a meaning.
//!
//! The reader has already refused unknown keys and wrong types.

use crate::parameters::{
    ClientPlan, CostPlan, Costs, DistributorPlan, NodeEvent, NodePlan, Plan, SECOND_NS, SEEDS_MAX,
    SessionPlan, Surge,
};
use crate::problem::{Locator, PlanProblem};
use crate::raw::{RawEventKind, RawNode, RawPlan, RawSurge};
use crate::scheme::Scheme;
use evergate_balance::Weights;
use evergate_base::Micros;

/// Limits that prevent a mistyped number from filling the memory or taking a week.
const HORIZON_S_MAX: u64 = 7 * 24 * 3600;
const NEWCOMERS_MAX: u32 = 100_000;
const NODES_MAX: usize = 1000;
const LIST_MAX: usize = 100;
const DELAY_MS_MAX: u64 = HORIZON_S_MAX * 1000;
const SURGE_FACTOR_MAX: f64 = 100.0;
const WEIGHT_MAX: u32 = 1_000_000;

/// Checker that continues after a problem, so that all are reported at once.
pub(crate) struct Check<'a> {
    locator: Locator<'a>,
    /// Whether the costs come from the command line instead of the plan.
    costs_are_given: bool,
    /// The problems found.
    pub(crate) problems: Vec<PlanProblem>,
}

impl<'a> Check<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str, costs_are_given: bool) -> Check<'a> {
        Check { locator: Locator::new(file, text), costs_are_given, problems: Vec::new() }
    }

    fn problem(&mut self, at: &str, problem: String, remedy: impl Into<String>) {
        self.problems.push(self.locator.problem(at, problem, remedy.into()));
    }

    fn require(&mut self, holds: bool, at: &str, problem: impl FnOnce() -> String, remedy: &str) {
        if !holds {
            self.problem(at, problem(), remedy);
        }
    }

    /// The checked plan; valid only when there are no problems.
    pub(crate) fn plan(&mut self, raw: RawPlan) -> Plan {
        let run = &raw.run;
        let horizon_s = run.horizon_s;
        self.require(
            (1..=HORIZON_S_MAX).contains(&horizon_s),
            "run.horizon_s",
            || format!("{horizon_s} s cannot be simulated"),
            "give 1 s to a week, such as the paper's first 15 minutes: `horizon_s = 900`",
        );
        self.require(
            run.warmup_s < horizon_s,
            "run.warmup_s",
            || format!("nothing is left to measure after a warm-up of {} s of {horizon_s} s", run.warmup_s),
            "make it shorter than `horizon_s`; the paper has none: `warmup_s = 0`",
        );
        let policies = self.policies(&run.policies);
        self.rates("run.newcomers_per_s", &run.newcomers_per_s);
        for (index, rate) in run.courses_at.iter().enumerate() {
            self.require(
                run.newcomers_per_s.contains(rate),
                &format!("run.courses_at[{index}]"),
                || format!("{rate} is not among `newcomers_per_s`, so its course is not simulated"),
                "add it there, or remove it here",
            );
        }
        self.require(
            (1..=SEEDS_MAX).contains(&run.seeds),
            "run.seeds",
            || format!("{} seeds are out of range", run.seeds),
            "give 1 to 1000; with one there are no confidence intervals, the usual is 5",
        );
        let nodes = self.nodes(&raw);
        let events = self.events(&raw, horizon_s);
        self.surges(&raw);
        Plan {
            title: raw.title.clone(),
            about: raw.about.clone(),
            policies,
            newcomers_per_s: run.newcomers_per_s.clone(),
            courses_at: run.courses_at.clone(),
            seeds: run.seeds,
            seed: run.seed,
            horizon_ns: horizon_s.saturating_mul(SECOND_NS),
            warmup_ns: run.warmup_s.saturating_mul(SECOND_NS),
            clients: self.clients(&raw),
            surges: raw
                .surges
                .iter()
                .map(|surge| Surge { from_s: surge.from_s, until_s: surge.until_s, factor: surge.factor })
                .collect(),
            sessions: self.sessions(&raw),
            distributor: self.distributor(&raw),
            nodes,
            events,
            costs: raw.costs.map(|costs| CostPlan { costs, are_given: self.costs_are_given }),
        }
    }

    fn policies(&mut self, names: &[String]) -> Vec<Scheme> {
        self.require(
            !names.is_empty(),
            "run.policies",
            || "there is no policy to simulate".to_owned(),
            "name some, such as `policies = [\"wrr\", \"session_only\", \"sslsard\"]`",
        );
        let mut schemes: Vec<Scheme> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let at = format!("run.policies[{index}]");
            match Scheme::named(name) {
                None => self.problem(&at, format!("there is no policy \"{name}\""), Scheme::remedy(name)),
                Some(scheme) if schemes.contains(&scheme) => {
                    self.problem(&at, format!("\"{name}\" is named twice"), "remove one of them");
                }
                Some(scheme) => schemes.push(scheme),
            }
        }
        schemes
    }

    fn rates(&mut self, at: &str, rates: &[u32]) {
        let good = !rates.is_empty()
            && rates.len() <= LIST_MAX
            && rates.is_sorted_by(|a, b| a < b)
            && rates.iter().all(|rate| (1..=NEWCOMERS_MAX).contains(rate));
        self.require(
            good,
            at,
            || "these are not ascending numbers of new clients per second, from 1 to 100000".to_owned(),
            "write them like the paper's: `newcomers_per_s = [40, 50, 60, 70, 80]`",
        );
    }

    fn clients(&mut self, raw: &RawPlan) -> ClientPlan {
        let (requests, think) = (&raw.clients.requests, &raw.clients.think);
        self.require(
            requests.min <= 1_000_000,
            "clients.requests.min",
            || format!("{} requests of every client are out of range", requests.min),
            "give 0 to 1000000; the usual is 1: without a request there is no client",
        );
        self.require(
            (1..=1000).contains(&requests.r),
            "clients.requests.r",
            || format!("r = {} is not a number of successes", requests.r),
            "give 1 to 1000; Table III has `r = 1`",
        );
        self.require(
            requests.p >= 0.0001 && requests.p <= 1.0,
            "clients.requests.p",
            || format!("p = {} is not a probability, or clients would never leave", requests.p),
            "give 0.0001 to 1; Table III has `p = 0.023`, which is 42.5 requests more on average",
        );
        self.require(
            (0.0..1.0).contains(&think.k),
            "clients.think.k",
            || format!("k = {}: the think time would have no mean", think.k),
            "give a shape from 0 to below 1; Table III has `k = 0.714`",
        );
        self.require(
            (0.0..=86_400.0).contains(&think.sigma_s),
            "clients.think.sigma_s",
            || format!("σ = {} s is out of range", think.sigma_s),
            "give 0 to 86400 s; Table III has `sigma_s = 1.429`",
        );
        self.require(
            (0.0..=86_400.0).contains(&think.theta_s) && think.theta_s + think.sigma_s > 0.0,
            "clients.think.theta_s",
            || format!("θ = {} s: clients would not think, or for more than a day", think.theta_s),
            "give 0 to 86400 s, not 0 together with σ; Table III has `theta_s = 2.0`",
        );
        ClientPlan::from(&raw.clients)
    }

    fn surges(&mut self, raw: &RawPlan) {
        for (index, surge) in raw.surges.iter().enumerate() {
            self.require(
                surge.from_s < surge.until_s,
                &format!("surges[{index}].until_s"),
                || format!("the surge ends at {} s, before it begins at {} s", surge.until_s, surge.from_s),
                "make `until_s` larger than `from_s`",
            );
            self.require(
                (0.0..=SURGE_FACTOR_MAX).contains(&surge.factor),
                &format!("surges[{index}].factor"),
                || format!("{} times as many clients is out of range", surge.factor),
                "give 0 to 100; 3 stands for three times as many newcomers",
            );
        }
        self.overlaps(&raw.surges);
    }

    /// Surges at the same time multiply. The product changes only where a surge begins or ends.
    fn overlaps(&mut self, surges: &[RawSurge]) {
        if surges.iter().any(|surge| !(0.0..=SURGE_FACTOR_MAX).contains(&surge.factor)) {
            return; // already reported
        }
        for at_s in surges.iter().flat_map(|surge| [surge.from_s, surge.until_s]) {
            let is_there = |surge: &RawSurge| (surge.from_s..surge.until_s).contains(&at_s);
            let there = surges.iter().filter(|surge| is_there(surge));
            let factor: f64 = there.map(|surge| surge.factor).product();
            if factor > SURGE_FACTOR_MAX {
                let last = surges.iter().rposition(is_there).unwrap_or_default();
                return self.problem(
                    &format!("surges[{last}]"),
                    format!("with the surges around it, {factor} times as many clients come at {at_s} s"),
                    "surges at the same time multiply: let them give 100 together at most",
                );
            }
        }
    }

    fn sessions(&mut self, raw: &RawPlan) -> SessionPlan {
        let sessions = &raw.sessions;
        self.require(
            (1..=7 * 24 * 3600).contains(&sessions.lifetime_s),
            "sessions.lifetime_s",
            || format!("sessions of {} s are out of range", sessions.lifetime_s),
            "give 1 s to 7 days (RFC 8446 section 4.6.1); Table I has `lifetime_s = 300`",
        );
        self.require(
            (1..=100_000_000).contains(&sessions.remembered_max),
            "sessions.remembered_max",
            || format!("a table of {} sessions is out of range", sessions.remembered_max),
            "give 1 to 100000000; the usual is 200000",
        );
        SessionPlan {
            lifetime: Micros(sessions.lifetime_s.saturating_mul(1_000_000)),
            renewal: sessions.renewal,
            broadcast_delay: Micros::from_ms(sessions.broadcast_delay_ms),
            remembered_max: sessions.remembered_max,
        }
    }

    fn distributor(&mut self, raw: &RawPlan) -> DistributorPlan {
        let distributor = &raw.distributor;
        self.require(
            (1..=3_600_000).contains(&distributor.slice_ms),
            "distributor.slice_ms",
            || format!("a ΔT of {} ms is out of range", distributor.slice_ms),
            "give 1 ms to an hour; Table I has `slice_ms = 2000`",
        );
        let alpha = self.two("distributor.alpha", &distributor.alpha, "Table I has `alpha = [10, 1]`");
        let lambda = self.two("distributor.lambda", &distributor.lambda, "Table I has `lambda = [1, 2]`");
        for (index, value) in alpha.iter().enumerate() {
            self.require(
                (0.0..=1e6).contains(value),
                &format!("distributor.alpha[{index}]"),
                || format!("α{} = {value} is not a weight", index + 1),
                "give a number from 0 to 1000000; Table I has `alpha = [10, 1]`",
            );
        }
        for (index, value) in lambda.iter().enumerate() {
            self.require(
                *value > 0.0 && *value <= 100.0,
                &format!("distributor.lambda[{index}]"),
                || format!("λ{} = {value} is not a positive exponent", index + 1),
                "give a number above 0, up to 100; Table I has `lambda = [1, 2]`",
            );
        }
        self.require(
            distributor.lard_low <= distributor.lard_high,
            "distributor.lard_high",
            || format!("T_high = {} is below T_low", distributor.lard_high),
            "raise it to `lard_low` or above; the LARD paper has 25 and 65",
        );
        self.require(
            (100..=100_000).contains(&distributor.bounded_load_percent),
            "distributor.bounded_load_percent",
            || format!("{} % would leave requests without a node", distributor.bounded_load_percent),
            "give 100 to 100000; the usual is 125",
        );
        self.require(
            (1..=10_000_000).contains(&distributor.queue_max),
            "distributor.queue_max",
            || format!("a queue of {} requests is out of range", distributor.queue_max),
            "give 1 to 10000000; the paper's queues are long enough",
        );
        self.require(
            distributor.detection_ms <= DELAY_MS_MAX,
            "distributor.detection_ms",
            || format!("a death that is noticed after {} ms is out of range", distributor.detection_ms),
            "give 0 ms to a week (604800000); the usual is 1000",
        );
        DistributorPlan {
            slice: Micros::from_ms(distributor.slice_ms),
            weights: Weights { alpha, lambda },
            lard_low: distributor.lard_low,
            lard_high: distributor.lard_high,
            bounded_load_percent: distributor.bounded_load_percent,
            detection_ns: distributor.detection_ms.saturating_mul(1_000_000),
            queue_max: distributor.queue_max,
        }
    }

    /// Exactly two numbers; for any other number of them, two that pass every check.
    fn two(&mut self, at: &str, numbers: &[f64], remedy: &str) -> [f64; 2] {
        let two = <[f64; 2]>::try_from(numbers);
        self.require(
            two.is_ok(),
            at,
            || format!("equation (7) has two of these constants, not {}", numbers.len()),
            &format!("give two numbers; {remedy}"),
        );
        two.unwrap_or([1.0; 2])
    }

    fn nodes(&mut self, raw: &RawPlan) -> Vec<NodePlan> {
        self.require(
            (1..=NODES_MAX).contains(&raw.nodes.len()),
            "nodes",
            || format!("{} nodes are out of range", raw.nodes.len()),
            "give 1 to 1000 tables `[[nodes]]`, or none for those of Table II",
        );
        if let Some(costs) = raw.costs {
            self.costs(costs);
        }
        let mut nodes = Vec::new();
        for (index, node) in raw.nodes.iter().enumerate() {
            let at = format!("nodes[{index}]");
            let twice = raw.nodes.iter().take(index).any(|other| other.name == node.name);
            self.require(
                !twice,
                &format!("{at}.name"),
                || format!("there are two nodes \"{}\"", node.name),
                "give each node its own name",
            );
            self.require(
                !node.name.contains(is_unprintable),
                &format!("{at}.name"),
                || format!("{:?} has characters that no figure can show", node.name),
                "leave control characters out",
            );
            self.require(
                node.weight.is_none_or(|weight| (1..=WEIGHT_MAX).contains(&weight)),
                &format!("{at}.weight"),
                || format!("a weight of {} is out of range", node.weight.unwrap_or_default()),
                "give 1 to 1000000, or leave it out: the speed decides then; for no requests leave the node out",
            );
            let Some((new_s, resumed_s)) = self.service_times(raw, node, &at) else { continue };
            let horizon_s = raw.run.horizon_s.max(1);
            self.require(
                new_s <= horizon_s as f64,
                &at,
                || {
                    format!(
                        "node \"{}\" takes {new_s:.0} s for a full handshake, of {horizon_s} s",
                        node.name
                    )
                },
                "make it faster, or `horizon_s` longer: it would finish nothing",
            );
            let ns = |seconds: f64| libm::round(seconds * SECOND_NS as f64).clamp(1.0, 1e15) as u64;
            nodes.push((node, ns(new_s), ns(resumed_s)));
        }
        let fastest_ns = nodes.iter().map(|node| node.1).min().unwrap_or(1);
        let weight = |new_ns: u64| libm::round(100.0 * fastest_ns as f64 / new_ns as f64).max(1.0) as u32;
        nodes
            .into_iter()
            .map(|(node, new_ns, resumed_ns)| NodePlan {
                name: node.name.clone(),
                weight: node.weight.unwrap_or_else(|| weight(new_ns)),
                new_ns,
                resumed_ns,
            })
            .collect()
    }

    fn costs(&mut self, costs: Costs) {
        for (key, value) in [
            ("full_us", costs.full_us),
            ("resumed_us", costs.resumed_us),
            ("bulk_mbit_per_s", costs.bulk_mbit_per_s),
        ] {
            self.require(
                value > 0.0 && value <= 1e9,
                &format!("costs.{key}"),
                || format!("{value} is not a positive number"),
                "take what `evergate bench crypto` prints",
            );
        }
    }

    /// Seconds with a full handshake, and with a resumption: Table II's columns, or a speed relative to `[costs]`.
    fn service_times(&mut self, raw: &RawPlan, node: &RawNode, at: &str) -> Option<(f64, f64)> {
        let bits = raw.clients.content_bytes as f64 * 8.0;
        self.require(
            (1..=1_000_000_000).contains(&raw.clients.content_bytes),
            "clients.content_bytes",
            || format!("responses of {} bytes are out of range", raw.clients.content_bytes),
            "give 1 to 1000000000; the paper's 128 KB are `content_bytes = 128000`",
        );
        let good = |value: &f64| *value > 0.0 && *value <= 1e9;
        match (raw.costs, node.speed, node.private_key_per_s, node.bulk_mbit_per_s) {
            (Some(costs), speed, None, None) => {
                let speed = speed.unwrap_or(1.0);
                if !good(&speed) {
                    self.problem(
                        &format!("{at}.speed"),
                        format!("a speed of {speed} is not a positive number"),
                        "give 1 for a core that takes the times of `[costs]`, 2 for one twice as fast",
                    );
                    return None;
                }
                let bulk_us = bits / costs.bulk_mbit_per_s;
                Some(((costs.full_us + bulk_us) / 1e6 / speed, (costs.resumed_us + bulk_us) / 1e6 / speed))
            }
            (None, None, Some(keys), Some(bulk)) if good(&keys) && good(&bulk) => {
                let resumed = bits / (bulk * 1e6);
                Some((1.0 / keys + resumed, resumed))
            }
            _ if self.costs_are_given => {
                self.problem(
                    at,
                    format!("node \"{}\" has figures of its own, which `--costs` cannot replace", node.name),
                    "leave `--costs` out; or give each of `[[nodes]]` at most a `speed` relative to these costs, as in \
                     examples/simulate/tls12-rsa.toml",
                );
                None
            }
            _ => {
                self.problem(
                    at,
                    format!("it is not clear how fast node \"{}\" is", node.name),
                    "give it `private_key_per_s` and `bulk_mbit_per_s` (positive, as in Table II); or write a table \
                     `[costs]` and give the node at most a `speed` relative to it",
                );
                None
            }
        }
    }

    fn events(&mut self, raw: &RawPlan, horizon_s: u64) -> Vec<NodeEvent> {
        let mut events = Vec::new();
        let mut up = vec![true; raw.nodes.len()];
        let mut before_s = 0;
        for (index, event) in raw.events.iter().enumerate() {
            let at = format!("events[{index}]");
            self.require(
                event.at_s >= before_s && event.at_s < horizon_s,
                &format!("{at}.at_s"),
                || {
                    format!(
                        "{} s is before the event above it, or after the end at {horizon_s} s",
                        event.at_s
                    )
                },
                "list events in the order of time, within `horizon_s`",
            );
            before_s = event.at_s;
            let Some(node) = raw.nodes.iter().position(|node| node.name == event.node) else {
                let names: Vec<&str> = raw.nodes.iter().map(|node| node.name.as_str()).collect();
                self.problem(
                    &format!("{at}.node"),
                    format!("there is no node \"{}\"", event.node),
                    format!("name one of {}", names.join(", ")),
                );
                continue;
            };
            let dies = matches!(event.event, RawEventKind::Death);
            if let Some(is_up) = up.get_mut(node) {
                let possible = *is_up == dies;
                *is_up = !dies;
                self.require(
                    possible,
                    &format!("{at}.event"),
                    || format!("node \"{}\" is {} already", event.node, if dies { "dead" } else { "up" }),
                    "let a death be followed by a return, and a return by a death",
                );
            }
            events.push(NodeEvent { at_ns: event.at_s.saturating_mul(SECOND_NS), node, dies });
        }
        events
    }
}

/// Characters that XML 1.0 cannot represent (section 2.2), and other control characters.
fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')
}
