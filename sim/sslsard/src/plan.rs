//! A plan: what is simulated. What it leaves out is as in the paper's Tables I to III.
//!
//! Invariants: a [`Plan`] has passed every check, so that the simulator need not fail; times are integers in
//! nanoseconds; a key that does not exist is an error.

use crate::check::Check;
use crate::problem::PlanError;
use crate::raw::RawPlan;
use crate::scheme::Scheme;
use evergate_balance::{Renewal, Weights};
use evergate_base::Micros;

pub use crate::raw::Costs;

/// One second, in the simulator's nanoseconds.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Most seeds of a plan.
pub(crate) const SEEDS_MAX: u32 = 1000;

/// A checked plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Heading of the report.
    pub title: String,
    /// What it shows, in a few sentences.
    pub about: String,
    /// The policies, in the order of the figures.
    pub policies: Vec<Scheme>,
    /// Mean numbers of new clients per second, ascending.
    pub newcomers_per_s: Vec<u32>,
    /// Those of them whose course in time is drawn.
    pub courses_at: Vec<u32>,
    /// How many seeds, and the first.
    pub seeds: u32,
    /// See `seeds`.
    pub seed: u64,
    pub(crate) horizon_ns: u64,
    pub(crate) warmup_ns: u64,
    pub(crate) clients: ClientPlan,
    pub(crate) surges: Vec<Surge>,
    pub(crate) sessions: SessionPlan,
    pub(crate) distributor: DistributorPlan,
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) events: Vec<NodeEvent>,
    pub(crate) costs: Option<CostPlan>,
}

/// What the nodes' service times are made of, where they have a speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CostPlan {
    pub(crate) costs: Costs,
    /// Whether they were given beside the plan, in the place of its own.
    pub(crate) are_given: bool,
}

/// Table III.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientPlan {
    pub(crate) requests_min: u64,
    pub(crate) requests_r: u32,
    pub(crate) requests_p: f64,
    pub(crate) think_k: f64,
    pub(crate) think_sigma_s: f64,
    pub(crate) think_theta_s: f64,
}

/// A time when more clients come.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Surge {
    pub(crate) from_s: u64,
    pub(crate) until_s: u64,
    pub(crate) factor: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SessionPlan {
    pub(crate) lifetime: Micros,
    pub(crate) renewal: Renewal,
    pub(crate) broadcast_delay: Micros,
    pub(crate) remembered_max: usize,
}

/// Table I, and what the other policies need.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DistributorPlan {
    pub(crate) slice: Micros,
    pub(crate) weights: Weights,
    pub(crate) lard_low: u32,
    pub(crate) lard_high: u32,
    pub(crate) bounded_load_percent: u32,
    pub(crate) detection_ns: u64,
    pub(crate) queue_max: usize,
}

/// Table II, resolved: what a request costs on a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodePlan {
    pub(crate) name: String,
    pub(crate) weight: u32,
    /// Service time with a full handshake.
    pub(crate) new_ns: u64,
    /// Service time of a resumption.
    pub(crate) resumed_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeEvent {
    pub(crate) at_ns: u64,
    pub(crate) node: usize,
    pub(crate) dies: bool,
}

impl Plan {
    /// Reads a plan from TOML; `file` is its name in messages. `costs` takes the place of the plan's `[costs]`.
    ///
    /// # Errors
    /// Every problem of the plan, each with its place, what it would mean, and what to do.
    pub fn parse(file: &str, text: &str, costs: Option<Costs>) -> Result<Plan, PlanError> {
        let mut raw: RawPlan = toml::from_str(text).map_err(|error| PlanError::syntax(file, text, &error))?;
        if costs.is_some() {
            raw.costs = costs;
        }
        let mut check = Check::new(file, text, costs.is_some());
        let plan = check.plan(raw);
        if check.problems.is_empty() { Ok(plan) } else { Err(PlanError { problems: check.problems }) }
    }

    /// Puts these policies in the place of the plan's.
    pub fn with_policies(mut self, policies: Vec<Scheme>) -> Plan {
        if !policies.is_empty() {
            self.policies = policies;
        }
        self
    }

    /// Another number of seeds, or another first one.
    pub fn with_seeds(mut self, seeds: Option<u32>, seed: Option<u64>) -> Plan {
        self.seeds = seeds.unwrap_or(self.seeds).clamp(1, SEEDS_MAX);
        self.seed = seed.unwrap_or(self.seed);
        self
    }

    /// The simulated time, in seconds.
    pub fn horizon_s(&self) -> u64 {
        self.horizon_ns / SECOND_NS
    }

    /// The unit of work: a resumed request on the node where it takes least, in nanoseconds.
    pub(crate) fn unit_ns(&self) -> u64 {
        self.nodes.iter().map(|node| node.resumed_ns).min().unwrap_or(1).max(1)
    }

    /// `p_{i,new}` and `p_{i,reu}` of each node, in units of work, with its name: Table II.
    pub fn abilities(&self) -> Vec<(String, f64, f64)> {
        let unit = self.unit_ns() as f64;
        let ability =
            |node: &NodePlan| (node.name.clone(), node.new_ns as f64 / unit, node.resumed_ns as f64 / unit);
        self.nodes.iter().map(ability).collect()
    }
}
