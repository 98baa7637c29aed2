//! Checks of pools that choose by session.

use std::time::Duration;

use super::connection_rules::is_reached;
use super::context::Checks;
use super::node::pick_given;
use crate::model::{CostSource, HandshakeCosts, Policy, Protocol, SessionFallback, Sessions, Sticky};
use crate::problem::{REFUSED, Report};
use crate::raw::{RawConfig, RawPool, RawServer};
use crate::span::KeyPath;

/// The policies that remember sessions.
const REMEMBERING: &[Policy] =
    &[Policy::SessionOnly, Policy::StickyLeastOutstanding, Policy::Lard, Policy::Sslsard];

/// The keys that only some policies look at.
const KEYS: [(&str, &[Policy]); 9] = [
    ("renewal", REMEMBERING),
    ("handshake_costs", &[Policy::Sslsard]),
    ("full_us", &[Policy::Sslsard]),
    ("resumed_us", &[Policy::Sslsard]),
    ("slice_ms", &[Policy::Sslsard]),
    ("alpha", &[Policy::Sslsard]),
    ("lambda", &[Policy::Sslsard]),
    ("lard_low", &[Policy::Lard]),
    ("lard_high", &[Policy::Lard]),
];

/// Session settings of a pool's policy; `None` for a policy without sessions.
pub(crate) fn sessions(pool: &RawPool, at: &KeyPath, checks: &mut Checks<'_>) -> Option<Sessions> {
    warn_of_unused(pool, at, &mut checks.report);
    if !pool.policy.is_by_session() {
        return None;
    }
    let (raw, at_sessions) = (pool.sessions.as_ref()?, at.key("sessions"));
    if pool.sticky != Sticky::None {
        let policy = pool.policy.as_str();
        checks.report.error_because(
            &at.key("sticky"),
            format!("`policy = {policy:?}` already sends a client back to its server"),
            format!("`sticky` would choose before the policy could, so it would have no effect; {REFUSED}"),
            "remove `sticky`, or choose a policy that does not go by session, such as \"least_outstanding\"",
        );
    }
    if raw.lard_low > raw.lard_high {
        checks.report.error_because(
            &pick_given(checks, &at_sessions, "lard_high", "lard_low"),
            format!("`lard_low` ({}) is above `lard_high` ({})", raw.lard_low, raw.lard_high),
            format!("clients would be moved to servers as busy as their own; {REFUSED}"),
            "make `lard_high` at least `lard_low`; the LARD paper has 25 and 65",
        );
    }
    Some(Sessions {
        lifetime: Duration::from_secs(raw.lifetime_s),
        fallback: raw.fallback,
        renewal: raw.renewal,
        remembered_max: raw.remembered_max as usize,
        cost_source: raw.handshake_costs,
        costs: HandshakeCosts { full_us: raw.full_us, resumed_us: raw.resumed_us },
        slice: Duration::from_millis(raw.slice_ms),
        alpha: raw.alpha,
        lambda: raw.lambda,
        lard_low: raw.lard_low,
        lard_high: raw.lard_high,
        bounded_load_percent: raw.bounded_load_percent,
    })
}

/// Keys of `[pools.sessions]` that the policy does not look at.
fn warn_of_unused(pool: &RawPool, at: &KeyPath, report: &mut Report<'_>) {
    let policy = pool.policy.as_str();
    let at_sessions = at.key("sessions");
    if !pool.policy.is_by_session() {
        if report.is_given(&at_sessions) {
            report.warning(
                &at_sessions,
                format!("`[pools.sessions]` is given, but `policy = {policy:?}` does not go by session"),
                "it has no effect",
                "choose a policy such as \"sticky_least_outstanding\", or remove the table",
            );
        }
        return;
    }
    let mut unused = |key: &str, policies: &[Policy]| {
        let at = at_sessions.key(key);
        if report.is_given(&at) && !policies.contains(&pool.policy) {
            let users: Vec<String> =
                policies.iter().map(|policy| format!("`policy = {:?}`", policy.as_str())).collect();
            report.warning(
                &at,
                format!("`{key}` is given, but `policy = {policy:?}` does not look at it"),
                "it has no effect",
                format!("it is for {}; remove it", users.join(" and ")),
            );
        }
    };
    for (key, policies) in KEYS {
        unused(key, policies);
    }
    unused("bounded_load_percent", &[Policy::BoundedHash]);
    unused("lifetime_s", REMEMBERING);
    unused("remembered_max", REMEMBERING);
}

/// Handshake costs of a server: both or neither, and for all servers of a pool or none.
pub(crate) fn costs(
    pool: &RawPool,
    server: &RawServer,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> Option<HandshakeCosts> {
    let absent = match (server.full_us, server.resumed_us) {
        (Some(full_us), Some(resumed_us)) => {
            if pool.policy != Policy::Sslsard {
                checks.report.warning(
                    &at.key("full_us"),
                    format!("`policy = {:?}` does not look at costs", pool.policy.as_str()),
                    "`full_us` and `resumed_us` have no effect",
                    "choose `policy = \"sslsard\"`, or remove them",
                );
            }
            return Some(HandshakeCosts { full_us, resumed_us });
        }
        (None, None) if pool.servers.iter().all(|other| other.full_us.is_none()) => return None,
        (None, _) => "full_us",
        (_, None) => "resumed_us",
    };
    let consequence = format!("its load could not be compared with that of other servers; {REFUSED}");
    checks.report.missing(
        &at.key(absent),
        &consequence,
        "give `full_us` and `resumed_us` to every server of the pool, or to none",
    );
    None
}

/// Warns of settings for relayed handshakes where no listener relays them to the pool.
pub(crate) fn warn_of_unrelayed(config: &RawConfig, checks: &mut Checks<'_>) {
    for (index, pool) in config.pools.iter().enumerate() {
        let Some(name) = pool.name.as_ref().filter(|_| pool.policy.is_by_session()) else { continue };
        let Some(sessions) = &pool.sessions else { continue };
        if is_reached(config, name, &[Protocol::Passthrough]) {
            continue;
        }
        let at = KeyPath::root().key("pools").index(index).key("sessions");
        let by_name = sessions.fallback == SessionFallback::Sni;
        let measured = sessions.handshake_costs == CostSource::Measured && pool.policy == Policy::Sslsard;
        for (key, value, effect) in [
            ("fallback", by_name.then_some("sni"), "the client's address decides"),
            ("handshake_costs", measured.then_some("measured"), "the configured costs stay in force"),
        ] {
            let Some(value) = value else { continue };
            checks.report.warning(
                &at.key(key),
                format!("`{key} = {value:?}` is given, but no `passthrough` listener leads to this pool"),
                format!("only relayed handshakes show sessions and server names: {effect}"),
                format!("write `protocol = \"passthrough\"` for a listener of this pool, or remove `{key}`"),
            );
        }
    }
}

/// Rules may not make clients of such a pool return in another way.
pub(crate) fn rules(config: &RawConfig, checks: &mut Checks<'_>) {
    let list = KeyPath::root().key("rules");
    for (i, rule) in config.rules.iter().enumerate() {
        let pool = rule.route.as_ref().and_then(|name| {
            let named = |pool: &&RawPool| pool.name.as_ref() == Some(name);
            config.pools.iter().find(named).filter(|pool| pool.policy.is_by_session())
        });
        let (Some(pool), Some(evergate_rules::Sticky::Cookie | evergate_rules::Sticky::Source)) =
            (pool, rule.sticky)
        else {
            continue;
        };
        checks.report.error_because(
            &list.index(i).key("sticky"),
            format!(
                "the pool's `policy = {:?}` already sends a client back to its server",
                pool.policy.as_str()
            ),
            format!("the two would send one client to two servers; {REFUSED}"),
            "remove `sticky` from the rule, or route to a pool that does not go by session",
        );
    }
}
