//! From a pool's configuration to the settings of its distributor.

use evergate_balance::{NodeCost, PolicyParameters, Scope, SessionPolicy, Settings, Weights};
use evergate_base::Micros;
use evergate_config::model::{HandshakeCosts, Policy, Pool, Sessions};
use evergate_worker::pools::{Recipe, ServerRuntime};
use std::sync::Arc;

/// The recipe of a pool with these servers; nothing for a policy that does not go by session.
pub(super) fn recipe_of(pool: &Pool, servers: &[Arc<ServerRuntime>]) -> Option<Recipe> {
    let sessions = pool.sessions.as_ref()?;
    let lifetime = Micros(sessions.lifetime.as_micros() as u64);
    let policy = session_policy(pool.policy, sessions)?;
    let settings = Settings {
        policy,
        scope: Scope::Node,
        slice: Micros(sessions.slice.as_micros() as u64),
        lifetime,
        renewal: sessions.renewal,
        affinity: lifetime,
        sessions_max: match policy {
            SessionPolicy::BoundedHash { .. } => 1, // the hash knows where a client belongs
            _ => sessions.remembered_max,
        },
    };
    let (costs, unit_us) = costs(pool, sessions, servers);
    Some(Recipe {
        settings,
        costs,
        servers: servers.iter().map(|server| server.id).collect(),
        fallback: sessions.fallback,
        cost_source: sessions.cost_source,
        unit_us,
    })
}

/// The distributor's policy; nothing for a policy that does not go by session.
fn session_policy(policy: Policy, sessions: &Sessions) -> Option<SessionPolicy> {
    let parameters = PolicyParameters {
        weights: Weights { alpha: sessions.alpha, lambda: sessions.lambda },
        lard_low: sessions.lard_low,
        lard_high: sessions.lard_high,
        load_percent_max: sessions.bounded_load_percent,
    };
    policy.is_by_session().then(|| SessionPolicy::new(policy, &parameters))
}

/// Table II of the paper: p_new and p_reu of each server, in units of a resumed request on the fastest server; and the
/// microseconds of such a unit.
fn costs(pool: &Pool, sessions: &Sessions, servers: &[Arc<ServerRuntime>]) -> (Vec<NodeCost>, f64) {
    let in_us = pool.servers.iter().map(|server| match server.costs {
        Some(HandshakeCosts { full_us, resumed_us }) => (f64::from(full_us), f64::from(resumed_us)),
        None => {
            let HandshakeCosts { full_us, resumed_us } = sessions.costs;
            let weight = f64::from(server.weight.max(1));
            (f64::from(full_us) / weight, f64::from(resumed_us) / weight)
        }
    });
    let unit_us = in_us.clone().map(|(_, resumed_us)| resumed_us).fold(f64::INFINITY, f64::min);
    let costs = servers
        .iter()
        .zip(in_us)
        .map(|(server, (full_us, resumed_us))| NodeCost {
            name: server.name_hash,
            new: full_us / unit_us,
            resumed: resumed_us / unit_us,
        })
        .collect();
    (costs, unit_us)
}
