//! Policies by name, as in a plan or on the command line.

use crate::parameters::DistributorPlan;
use crate::problem::did_you_mean;
use evergate_balance::{Policy, PolicyParameters, Scope, SessionPolicy};
use evergate_base::Micros;

/// Prefix of the policies whose nodes share ticket keys.
const SHARED_KEYS: &str = "shared_keys+";

/// A policy by name, with the scope of sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheme {
    /// Name in a plan, in JSON and on the command line.
    pub name: String,
    /// Name in a figure.
    pub label: String,
    /// Policy of the distributor.
    policy: Policy,
    /// Whether nodes broadcast their sessions, as in CSSL-SL.
    broadcasts: bool,
    /// Whether the nodes share ticket keys.
    shared_keys: bool,
}

/// Name, label, policy, and whether nodes broadcast their sessions.
const SCHEMES: [(&str, &str, Policy, bool); 10] = [
    ("wrr", "WRR", Policy::RoundRobin, false),
    ("session_only", "SSL_session_only", Policy::SessionOnly, false),
    ("sslsard", "SSLSARD", Policy::Sslsard, false),
    ("lard", "LARD", Policy::Lard, false),
    ("least_outstanding", "least outstanding", Policy::LeastOutstanding, false),
    ("least_expected_completion", "least expected completion", Policy::LeastExpectedCompletion, false),
    ("power_of_two", "power of two choices", Policy::PowerOfTwo, false),
    ("bounded_hash", "hashing, bounded loads", Policy::BoundedHash, false),
    ("sticky_least_outstanding", "sticky + least outstanding", Policy::StickyLeastOutstanding, false),
    ("cssl_sl", "CSSL-SL", Policy::RoundRobin, true),
];

impl Scheme {
    /// The policy of this name. Hyphens, capitals and a leading `ssl_` do not matter, as in SSL_session_only.
    pub fn named(name: &str) -> Option<Scheme> {
        let plain = name.trim().to_lowercase().replace('-', "_");
        let (shared_keys, rest) = match plain.strip_prefix(SHARED_KEYS) {
            Some(rest) => (true, rest),
            None => (false, plain.as_str()),
        };
        let (known, label, policy, broadcasts) =
            *SCHEMES.iter().find(|scheme| scheme.0 == rest || rest.strip_prefix("ssl_") == Some(scheme.0))?;
        let (name, label) = match shared_keys {
            true => (format!("{SHARED_KEYS}{known}"), format!("shared keys + {label}")),
            false => (known.to_owned(), label.to_owned()),
        };
        Some(Scheme { name, label, policy, broadcasts, shared_keys })
    }

    /// All names without their shared-keys variants.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SCHEMES.iter().map(|scheme| scheme.0)
    }

    /// The remedy for an unknown name.
    pub fn remedy(name: &str) -> String {
        let plain = name.trim().to_lowercase().replace('-', "_");
        let plain = plain.strip_prefix(SHARED_KEYS).unwrap_or(&plain);
        let names: Vec<&str> = Scheme::names().collect();
        format!(
            "{}use one of {}, or {SHARED_KEYS} and one of them",
            did_you_mean(plain, Scheme::names()),
            names.join(", ")
        )
    }

    /// Policy of the distributor.
    pub(crate) fn policy(&self, plan: &DistributorPlan) -> SessionPolicy {
        let parameters = PolicyParameters {
            weights: plan.weights,
            lard_low: plan.lard_low,
            lard_high: plan.lard_high,
            load_percent_max: plan.bounded_load_percent,
        };
        SessionPolicy::new(self.policy, &parameters)
    }

    /// Nodes on which a session can be resumed.
    pub(crate) fn scope(&self, broadcast_delay: Micros) -> Scope {
        match (self.shared_keys, self.broadcasts) {
            (true, _) => Scope::Shared,
            (false, true) => Scope::Broadcast { delay: broadcast_delay },
            (false, false) => Scope::Node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_alone_and_with_shared_keys() {
        for name in Scheme::names() {
            assert_eq!(Scheme::named(name).unwrap().name, name);
            let shared = Scheme::named(&format!("shared_keys+{name}")).unwrap();
            assert_eq!((shared.name, shared.shared_keys), (format!("shared_keys+{name}"), true));
        }
        assert_eq!(Scheme::named("SSL_session_only"), Scheme::named("session-only"));
        assert_eq!(Scheme::named("SSLSARD").unwrap().name, "sslsard");
        assert_eq!(Scheme::named("fastest"), None);
        assert_eq!(Scheme::named(""), None);
    }
}
