//! Policies of a pool by name, as a configuration file and the simulator's plans have them.

use crate::PickRule;
use serde::{Deserialize, Serialize};

/// How a pool chooses a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// In turn.
    RoundRobin,
    /// The server with the fewest outstanding requests.
    LeastOutstanding,
    /// The better of two random servers.
    PowerOfTwo,
    /// The server that should answer first.
    LeastExpectedCompletion,
    /// By session: the client's server; newcomers in turn.
    SessionOnly,
    /// By session: the client's server; newcomers to the server with the fewest outstanding requests.
    StickyLeastOutstanding,
    /// By session: the client's server unless it is overloaded (Pai et al. 1998).
    Lard,
    /// By session: consistent hashing with bounded loads.
    BoundedHash,
    /// By session: SSLSARD.
    Sslsard,
}

impl Policy {
    /// Whether it sends a client to the server that has the client's session.
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

    /// Rule of the pool's [`Picker`](crate::Picker). In a pool by session the [`Distributor`](crate::Distributor)
    /// chooses, and the picker is not asked.
    pub fn pick_rule(self) -> PickRule {
        match self {
            Self::RoundRobin => PickRule::RoundRobin,
            Self::LeastOutstanding => PickRule::LeastOutstanding,
            Self::LeastExpectedCompletion => PickRule::LeastExpectedCompletion,
            Self::PowerOfTwo
            | Self::SessionOnly
            | Self::StickyLeastOutstanding
            | Self::Lard
            | Self::BoundedHash
            | Self::Sslsard => PickRule::PowerOfTwo,
        }
    }

    /// The name in a configuration file.
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

/// How a client is known whose handshake offers no known session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionFallback {
    /// By its address.
    #[default]
    Address,
    /// By the server name that it asks for; by its address if it names none.
    Sni,
}

impl SessionFallback {
    /// The name in a configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Sni => "sni",
        }
    }
}

/// Source of the costs of handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// The configuration.
    #[default]
    Configured,
    /// Relayed handshakes, as soon as a server has finished enough of them.
    Measured,
}
