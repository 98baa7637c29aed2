//! The pools of a generation as the workers use them, and the state that they carry over from the generation before.

use super::recipe::recipe_of;
use super::{CarriedState, Change, stable_hash};
use evergate_base::Micros;
use evergate_base::fnv;
use evergate_config::model::{Pool as PoolConfig, Server as ServerConfig};
use evergate_config::{Machine, World};
use evergate_worker::pools::Sessions;
use evergate_worker::pools::WaitQueues;
use evergate_worker::pools::{Generation, PoolRuntime, ServerRuntime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub(super) fn pool_runtime(
    pool: &PoolConfig,
    previous: Option<&Generation>,
    keep: &mut CarriedState,
) -> PoolRuntime {
    let known = previous.and_then(|previous| previous.pools.iter().find(|known| known.name == pool.name));
    let servers: Vec<_> =
        pool.servers.iter().map(|server| server_runtime(pool, server, known, keep)).collect();
    PoolRuntime {
        name: pool.name.clone(),
        pick_rule: pool.policy.pick_rule(),
        sessions: sessions(pool, &servers, known),
        servers,
        sticky_load_percent_max: pool.sticky_load_percent_max,
        queue_max: pool.queue_max,
        queue_timeout: pool.queue_timeout,
        queue_classes: pool.queue_classes.clone(),
        idle_max: pool.keep_alive_idle_max,
        idle: pool.keep_alive_idle,
        response: pool.response_timeout,
        tls_fingerprint: tls_fingerprint(pool),
        client_responses: known.map(|known| known.client_responses.clone()).unwrap_or_default(),
        unavailable: known.map(|known| known.unavailable.clone()).unwrap_or_default(),
        lines: WaitQueues::new(pool.servers.len()),
    }
}

/// Connections of before a reload serve on when this stays the same; 0 without TLS.
fn tls_fingerprint(pool: &PoolConfig) -> u64 {
    let Some(tls) = &pool.tls else { return 0 };
    let client = tls.client.iter().flat_map(|identity| [&identity.chain, &identity.key]);
    let reported = format!("{tls:?}").into_bytes();
    let files = tls.ca.iter().chain(client).map(|path| Machine.read(path).unwrap_or_default());
    fnv(std::iter::once(reported).chain(files).flatten()).max(1)
}

/// A reload keeps the sessions, unless it changes the policy.
fn sessions(
    pool: &PoolConfig,
    servers: &[Arc<ServerRuntime>],
    known: Option<&Arc<PoolRuntime>>,
) -> Option<Arc<Sessions>> {
    let recipe = recipe_of(pool, servers)?;
    let former = known.and_then(|known| Some((known, known.sessions.as_ref()?)));
    let now = Micros(evergate_sys::monotonic_us());
    Some(match former {
        Some((_, former)) if *former.recipe() == recipe => former.clone(),
        Some((known, former)) if former.recipe().has_policy_of(&recipe) => {
            Arc::new(Sessions::succeeding(recipe, servers, former, &known.servers, now))
        }
        _ => Arc::new(Sessions::new(recipe, servers)),
    })
}

fn server_runtime(
    pool: &PoolConfig,
    server: &ServerConfig,
    known: Option<&Arc<PoolRuntime>>,
    keep: &mut CarriedState,
) -> Arc<ServerRuntime> {
    let max = server.connections_max.map_or(0, |max| max.get());
    let known = known.and_then(|known| known.servers.iter().find(|known| known.name == server.name));
    let is_same =
        |known: &&Arc<ServerRuntime>| (&known.host, known.address()) == (&server.host, server.address());
    if let Some(known) = known.filter(is_same) {
        keep.pending.push(Change::Server {
            server: known.clone(),
            weight: server.weight,
            connections_max: max,
            unchecked: pool.health.is_none(),
        });
        return known.clone();
    }
    // A drain by an operator applies to the name, at any address.
    let draining = known.is_some_and(|known| known.draining.load(Ordering::Relaxed));
    keep.next_server += 1;
    Arc::new(ServerRuntime {
        host: server.host.clone(),
        addresses: server.addresses.clone(),
        name_hash: stable_hash(&[&pool.name, &server.name]),
        weight: AtomicU32::new(server.weight),
        connections_max: AtomicU32::new(max),
        draining: AtomicBool::new(draining),
        ..ServerRuntime::new(keep.next_server, &server.name)
    })
}
