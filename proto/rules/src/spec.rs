//! Rules as configured: what the daemon's TOML deserialises into, and the caps of the compiler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One rule: a condition and what to do when it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    /// Unique name, shown by `check`, `explain` and the metrics.
    pub name: String,
    /// The condition; empty or `true` always holds.
    #[serde(default)]
    pub when: String,
    /// Higher is tried first; rules of equal priority are tried in file order.
    #[serde(default)]
    pub priority: i64,
    /// Listeners that the rule applies to; empty means all, which a file says by leaving it away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<String>,
    /// Terminal action: send the request to this pool.
    #[serde(default)]
    pub route: Option<String>,
    /// With `route`: keep the client on the chosen server.
    #[serde(default)]
    pub sticky: Option<Sticky>,
    /// Terminal action: answer with this status (400 to 599).
    #[serde(default)]
    pub deny: Option<u16>,
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
    /// What a body value that cannot be decided does (past the cap, malformed body, encoded body).
    #[serde(default)]
    pub unknown: Unknown,
}

/// How a client is kept on its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sticky {
    /// Not kept: every request is balanced on its own.
    #[default]
    None,
    /// By a cookie that names the server.
    Cookie,
    /// By the client's address.
    Source,
}

/// A token bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Sustained rate.
    pub requests_per_s: u32,
    /// Requests that may come at once.
    pub burst: u32,
    /// What gets a bucket of its own.
    #[serde(default)]
    pub key: RateKey,
}

/// What a rate limit counts by.
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

/// What an undecidable condition does.
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

/// Caps of the compiler and of the body parsers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Rules in a set.
    pub rules_max: usize,
    /// Bytes of one condition.
    pub condition_bytes_max: usize,
    /// Nesting of parentheses and `!`.
    pub depth_max: usize,
    /// Comparisons in one condition.
    pub atoms_max: usize,
    /// Conjuncts of one condition's disjunctive normal form.
    pub conjuncts_max: usize,
    /// Compiled size of one regular expression, in bytes.
    pub regex_bytes_max: usize,
    /// Rules without an indexable condition from which a warning is given.
    pub residual_warn: usize,
    /// Nesting of a JSON or XML body; deeper is undecidable.
    pub body_depth_max: usize,
    /// Bytes of one body value; longer is undecidable.
    pub body_value_bytes_max: usize,
    /// Attributes of an XML element, or parts of a multipart body; more is undecidable.
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
