//! Plan of a simulation. Missing values are those of the paper's Tables I to III.
//!
//! Invariants: a [`Plan`] has passed every check, so the simulator cannot fail; times are integers in nanoseconds; an
//! unknown key is an error.

use crate::check::Check;
use crate::problem::PlanError;
use crate::raw::RawPlan;
use crate::scheme::Scheme;
use evergate_balance::{Renewal, Weights};
use evergate_base::Micros;

pub use crate::raw::Costs;

/// One second, in the simulator's nanoseconds.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Limit of a plan's seeds.
pub(crate) const SEEDS_MAX: u32 = 1000;

/// A checked plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Heading of the report.
    pub title: String,
    /// Description in a few sentences.
    pub about: String,
    /// The policies, in the order of the figures.
    pub policies: Vec<Scheme>,
    /// Mean numbers of new clients per second, ascending.
    pub newcomers_per_s: Vec<u32>,
    /// The numbers of new clients whose course in time is drawn.
    pub courses_at: Vec<u32>,
    /// Number of seeds.
    pub seeds: u32,
    /// First seed.
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

/// Costs from which the service times of nodes with a speed are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CostPlan {
    pub(crate) costs: Costs,
    /// Whether they come from the command line instead of the plan.
    pub(crate) are_given: bool,
}

/// Clients: Table III.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientPlan {
    pub(crate) requests_min: u64,
    pub(crate) requests_r: u32,
    pub(crate) requests_p: f64,
    pub(crate) think_k: f64,
    pub(crate) think_sigma_s: f64,
    pub(crate) think_theta_s: f64,
}

/// A time with more clients.
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

/// Distributor: Table I, and the settings of the other policies.
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

/// Node: Table II, resolved to the costs of a request.
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
    /// Reads a plan from TOML; `file` is its name in messages. `costs` replaces the plan's `[costs]`.
    ///
    /// # Errors
    /// Every problem of the plan, each with its place, consequence and remedy.
    pub fn parse(file: &str, text: &str, costs: Option<Costs>) -> Result<Plan, PlanError> {
        let mut raw: RawPlan = toml::from_str(text).map_err(|error| PlanError::syntax(file, text, &error))?;
        if costs.is_some() {
            raw.costs = costs;
        }
        let mut check = Check::new(file, text, costs.is_some());
        let plan = check.plan(raw);
        if check.problems.is_empty() { Ok(plan) } else { Err(PlanError { problems: check.problems }) }
    }

    /// Replaces the plan's policies.
    pub fn with_policies(mut self, policies: Vec<Scheme>) -> Plan {
        if !policies.is_empty() {
            self.policies = policies;
        }
        self
    }

    /// Replaces the number of seeds, or the first one.
    pub fn with_seeds(mut self, seeds: Option<u32>, seed: Option<u64>) -> Plan {
        self.seeds = seeds.unwrap_or(self.seeds).clamp(1, SEEDS_MAX);
        self.seed = seed.unwrap_or(self.seed);
        self
    }

    /// The simulated time, in seconds.
    pub fn horizon_s(&self) -> u64 {
        self.horizon_ns / SECOND_NS
    }

    /// The unit of work: a resumed request on the fastest node, in nanoseconds.
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
