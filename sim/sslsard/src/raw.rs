//! Unchecked plan as written. Missing keys are those of the paper's Tables I to III; unknown ones are errors.

use evergate_balance::Renewal;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPlan {
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) about: String,
    #[serde(default)]
    pub(crate) run: RawRun,
    #[serde(default)]
    pub(crate) clients: RawClients,
    #[serde(default)]
    pub(crate) surges: Vec<RawSurge>,
    #[serde(default)]
    pub(crate) sessions: RawSessions,
    #[serde(default)]
    pub(crate) distributor: RawDistributor,
    #[serde(default)]
    pub(crate) costs: Option<Costs>,
    #[serde(default = "table_ii")]
    pub(crate) nodes: Vec<RawNode>,
    #[serde(default)]
    pub(crate) events: Vec<RawEvent>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRun {
    pub(crate) horizon_s: u64,
    pub(crate) warmup_s: u64,
    pub(crate) newcomers_per_s: Vec<u32>,
    pub(crate) courses_at: Vec<u32>,
    pub(crate) policies: Vec<String>,
    pub(crate) seeds: u32,
    pub(crate) seed: u64,
}

impl Default for RawRun {
    fn default() -> RawRun {
        RawRun {
            horizon_s: 900,
            warmup_s: 0,
            newcomers_per_s: (40..=80).step_by(5).collect(),
            courses_at: Vec::new(),
            policies: ["wrr", "session_only", "sslsard"].map(str::to_owned).to_vec(),
            seeds: 5,
            seed: 1,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawClients {
    pub(crate) requests: RawRequests,
    pub(crate) think: RawThink,
    pub(crate) content_bytes: u64,
}

impl Default for RawClients {
    fn default() -> RawClients {
        RawClients { requests: RawRequests::default(), think: RawThink::default(), content_bytes: 128_000 }
    }
}

/// Number of requests: negative binomial.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRequests {
    pub(crate) min: u64,
    pub(crate) r: u32,
    pub(crate) p: f64,
}

impl Default for RawRequests {
    fn default() -> RawRequests {
        RawRequests { min: 1, r: 1, p: 0.023 }
    }
}

/// Think time: generalized Pareto.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawThink {
    pub(crate) k: f64,
    pub(crate) sigma_s: f64,
    pub(crate) theta_s: f64,
}

impl Default for RawThink {
    fn default() -> RawThink {
        RawThink { k: 0.714, sigma_s: 1.429, theta_s: 2.0 }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSurge {
    pub(crate) from_s: u64,
    pub(crate) until_s: u64,
    pub(crate) factor: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSessions {
    pub(crate) lifetime_s: u64,
    pub(crate) renewal: Renewal,
    pub(crate) broadcast_delay_ms: u64,
    pub(crate) remembered_max: usize,
}

impl Default for RawSessions {
    fn default() -> RawSessions {
        RawSessions {
            lifetime_s: 300,
            renewal: Renewal::Fixed,
            broadcast_delay_ms: 10,
            remembered_max: 200_000,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawDistributor {
    pub(crate) slice_ms: u64,
    /// Two numbers each; an array type would silently drop further ones.
    pub(crate) alpha: Vec<f64>,
    pub(crate) lambda: Vec<f64>,
    pub(crate) lard_low: u32,
    pub(crate) lard_high: u32,
    pub(crate) bounded_load_percent: u32,
    pub(crate) detection_ms: u64,
    pub(crate) queue_max: usize,
}

impl Default for RawDistributor {
    fn default() -> RawDistributor {
        RawDistributor {
            slice_ms: 2000,
            alpha: vec![10.0, 1.0],
            lambda: vec![1.0, 2.0],
            lard_low: 25,
            lard_high: 65,
            bounded_load_percent: 125,
            detection_ms: 1000,
            queue_max: 1_000_000,
        }
    }
}

/// Cost of handshakes and encryption on one core, as measured by `evergate bench crypto`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// A full handshake, in microseconds of the server.
    pub full_us: f64,
    /// A resumption, in microseconds of the server.
    pub resumed_us: f64,
    /// Encrypting, in Mbit/s.
    pub bulk_mbit_per_s: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawNode {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) private_key_per_s: Option<f64>,
    #[serde(default)]
    pub(crate) bulk_mbit_per_s: Option<f64>,
    #[serde(default)]
    pub(crate) speed: Option<f64>,
    #[serde(default)]
    pub(crate) weight: Option<u32>,
}

fn table_ii() -> Vec<RawNode> {
    let rows =
        [("G1", 90.0, 1050.0, 6), ("G2", 75.0, 840.0, 5), ("G3", 60.0, 750.0, 4), ("G4", 45.0, 540.0, 3)];
    rows.into_iter()
        .map(|(name, keys, bulk, weight)| RawNode {
            name: name.to_owned(),
            private_key_per_s: Some(keys),
            bulk_mbit_per_s: Some(bulk),
            speed: None,
            weight: Some(weight),
        })
        .collect()
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawEvent {
    pub(crate) at_s: u64,
    pub(crate) node: String,
    pub(crate) event: RawEventKind,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawEventKind {
    Death,
    Return,
}
