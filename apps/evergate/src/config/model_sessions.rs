//! How a pool chooses a server, and `[pools.sessions]`, validated.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a pool chooses a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// In turn.
    RoundRobin,
    /// The one with the fewest outstanding requests.
    LeastOutstanding,
    /// The better of two random ones.
    PowerOfTwo,
    /// The one that should answer first.
    LeastExpectedCompletion,
    /// By session: the client's server; newcomers in turn.
    SessionOnly,
    /// By session: the client's server; newcomers to the one with the fewest outstanding requests.
    StickyLeastOutstanding,
    /// By session: the client's server unless it is overloaded (Pai et al. 1998).
    Lard,
    /// By session: consistent hashing with bounded loads.
    BoundedHash,
    /// By session: SSLSARD.
    Sslsard,
}

impl Policy {
    /// Whether it sends a client to the server that has its session.
    pub fn is_by_session(self) -> bool {
        match self {
            Self::RoundRobin | Self::LeastOutstanding | Self::PowerOfTwo | Self::LeastExpectedCompletion => {
                false
            }
            Self::SessionOnly
            | Self::StickyLeastOutstanding
            | Self::Lard
            | Self::BoundedHash
            | Self::Sslsard => true,
        }
    }

    /// As written in a file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastOutstanding => "least_outstanding",
            Self::PowerOfTwo => "power_of_two",
            Self::LeastExpectedCompletion => "least_expected_completion",
            Self::SessionOnly => "session_only",
            Self::StickyLeastOutstanding => "sticky_least_outstanding",
            Self::Lard => "lard",
            Self::BoundedHash => "bounded_hash",
            Self::Sslsard => "sslsard",
        }
    }
}

/// `[pools.sessions]`; the meaning of each is in the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Sessions {
    /// How long a session can be resumed.
    pub lifetime: Duration,
    /// From when that counts.
    pub renewal: Renewal,
    /// Sessions remembered, at least one.
    pub remembered_max: usize,
    /// What handshakes cost a server of weight 1.
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

/// From when a session's lifetime counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewal {
    /// From the full handshake that made it.
    Fixed,
    /// From its last use.
    Sliding,
}

/// What a request costs a server, in microseconds of its processor; positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeCosts {
    /// With a full handshake.
    pub full_us: u32,
    /// With a resumed session.
    pub resumed_us: u32,
}
