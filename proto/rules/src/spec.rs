//! Rules as configured: the types that the daemon's TOML deserialises into, and the limits of the compiler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::deny::Deny;

/// One rule: a condition and its actions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    /// Unique name, shown by `check`, `explain` and the metrics.
    pub name: String,
    /// The condition; empty or `true` always holds.
    #[serde(default)]
    pub when: String,
    /// Rules of higher priority are tried first; rules of equal priority in file order.
    #[serde(default)]
    pub priority: i64,
    /// Listeners that the rule applies to; empty means all. A file leaves the key away for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<String>,
    /// Whether the listeners route whole connections. Not a key of files, either.
    #[serde(skip)]
    pub of_connections: bool,
    /// Terminal action: send the request to this pool.
    #[serde(default)]
    pub route: Option<String>,
    /// With `route`: keep the client on the chosen server.
    #[serde(default)]
    pub sticky: Option<Sticky>,
    /// Listeners that a rule without `listeners` does not apply to: they route whole connections. Not a key of files:
    /// the reader of the configuration knows the listeners.
    #[serde(skip)]
    pub except_listeners: Vec<String>,
    /// Terminal action: answer a request with a status (400 to 599), or end a connection.
    #[serde(default)]
    pub deny: Option<Deny>,
    /// Terminal action: answer with a redirect to this location; `${host}`, `${path}` and `${query}` are filled in.
    #[serde(default)]
    pub redirect: Option<String>,
    /// With `redirect`: 301, 302 (default), 303, 307 or 308.
    #[serde(default)]
    pub redirect_status: Option<u16>,
    /// Headers to set on the request; replaces existing lines of that name.
    #[serde(default)]
    pub set_request_headers: BTreeMap<String, String>,
    /// Headers to remove from the request.
    #[serde(default)]
    pub remove_request_headers: Vec<String>,
    /// Headers to set on the response.
    #[serde(default)]
    pub set_response_headers: BTreeMap<String, String>,
    /// Headers to remove from the response.
    #[serde(default)]
    pub remove_response_headers: Vec<String>,
    /// Requests that match are counted against this limit.
    #[serde(default)]
    pub rate_limit: Option<RateLimit>,
    /// Mark matching requests in the access log.
    #[serde(default)]
    pub audit: bool,
    /// Service class of matching requests.
    #[serde(default)]
    pub class: Option<String>,
    /// Effect of an undecidable body value (over the limit, malformed or encoded body).
    #[serde(default)]
    pub unknown: Unknown,
}

/// Stickiness of a client to its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sticky {
    /// Every request is balanced on its own.
    #[default]
    None,
    /// Sticky by a cookie that names the server.
    Cookie,
    /// Sticky by the client's address.
    Source,
}

/// A token bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Sustained rate.
    pub requests_per_s: u32,
    /// Requests that may arrive at once.
    pub burst: u32,
    /// Scope of a bucket.
    #[serde(default)]
    pub key: RateKey,
}

/// Scope of a rate limit's buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateKey {
    /// One bucket per client address.
    #[default]
    Source,
    /// One bucket per host.
    Host,
    /// One bucket for the rule.
    Global,
}

/// Effect of an undecidable condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// The rule does not match.
    #[default]
    NoMatch,
    /// The rule matches.
    Match,
    /// The request is denied: with the rule's `deny` status if it has one, else 403.
    Deny,
}

/// Limits of the compiler and of the body parsers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Number of rules in a set.
    pub rules_max: usize,
    /// Length of one condition, in bytes.
    pub condition_bytes_max: usize,
    /// Nesting of parentheses and `!`.
    pub depth_max: usize,
    /// Number of comparisons in one condition.
    pub atoms_max: usize,
    /// Number of conjuncts in the disjunctive normal form of one condition.
    pub conjuncts_max: usize,
    /// Compiled size of one regular expression, in bytes.
    pub regex_bytes_max: usize,
    /// Number of rules without an indexable condition from which a warning is issued.
    pub residual_warn: usize,
    /// Nesting of a JSON or XML body; a deeper one is undecidable.
    pub body_depth_max: usize,
    /// Length of one body value, in bytes; a longer one is undecidable.
    pub body_value_bytes_max: usize,
    /// Number of attributes of an XML element, or parts of a multipart body; more are undecidable.
    pub body_parts_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            rules_max: 1_000_000,
            condition_bytes_max: 4096,
            depth_max: 32,
            atoms_max: 256,
            conjuncts_max: 64,
            regex_bytes_max: 1 << 20,
            residual_warn: 64,
            body_depth_max: 64,
            body_value_bytes_max: 4096,
            body_parts_max: 256,
        }
    }
}
