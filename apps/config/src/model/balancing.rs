//! `[pools.sessions]`, validated.

use std::time::Duration;

pub use evergate_balance::{CostSource, Policy, Renewal, SessionFallback};

/// `[pools.sessions]`; the meaning of each is in the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Sessions {
    /// Time for which a session can be resumed, unless its server announces another.
    pub lifetime: Duration,
    /// What decides without a known session.
    pub fallback: SessionFallback,
    /// From when that counts.
    pub renewal: Renewal,
    /// Sessions remembered, at least one.
    pub remembered_max: usize,
    /// Source of the costs that the policy looks at.
    pub cost_source: CostSource,
    /// Handshake costs of a server of weight 1.
    pub costs: HandshakeCosts,
    /// ΔT of SSLSARD's equation (1).
    pub slice: Duration,
    /// α of its equation (7).
    pub alpha: [f64; 2],
    /// λ of its equation (7), positive.
    pub lambda: [f64; 2],
    /// T_low of LARD, in outstanding requests; at most `lard_high`.
    pub lard_low: u32,
    /// T_high of LARD, in outstanding requests.
    pub lard_high: u32,
    /// Bound on a server's share of the outstanding requests, in percent; at least 100.
    pub bounded_load_percent: u32,
}

/// Costs of a request at a server, in microseconds of its processor; positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeCosts {
    /// With a full handshake.
    pub full_us: u32,
    /// With a resumed session.
    pub resumed_us: u32,
}
