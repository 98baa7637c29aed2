//! State of the servers that a process, or a generation, passes to the next.

use super::OfferedServer;
use evergate_config::Config;
use evergate_worker::pools::{Generation, ServerRuntime};
use std::sync::atomic::Ordering;

/// State of the servers.
pub fn offered_servers(generation: &Generation) -> Vec<OfferedServer> {
    let mut all = Vec::new();
    for pool in &generation.pools {
        all.extend(pool.servers.iter().map(|server| OfferedServer {
            pool: pool.name.clone(),
            name: server.name.clone(),
            address: Some(server.address()),
            healthy: server.healthy.load(Ordering::Relaxed),
            draining: server.draining.load(Ordering::Relaxed),
            response_us: server.response_us.load(Ordering::Relaxed),
        }));
    }
    all
}

/// Keeps the address in use of every server whose host still has it. A resolver answers in any order, and a server must
/// not become another one because of that.
pub fn prefer_known(config: &mut Config, known: &[OfferedServer]) {
    for pool in &mut config.pools {
        for server in &mut pool.servers {
            let known = known.iter().find(|known| known.pool == pool.name && known.name == server.name);
            let in_use = known.and_then(|known| known.address);
            if let Some(index) = server.addresses.iter().position(|address| Some(*address) == in_use) {
                server.addresses[..=index].rotate_right(1);
            }
        }
    }
}

/// Adopts the old process's state of the servers. An operator's change follows the name, and a measurement follows the
/// address.
pub fn adopt_servers(generation: &Generation, known: &[OfferedServer]) {
    for (server, known) in namesakes(generation, known) {
        server.draining.store(known.draining, Ordering::Relaxed);
    }
    for (server, known) in adopted(generation, known) {
        server.healthy.store(known.healthy, Ordering::Relaxed);
        server.response_us.store(known.response_us, Ordering::Relaxed);
        server.measured_at.store(evergate_sys::monotonic_us(), Ordering::Relaxed);
    }
}

/// The servers that the old process used at the same address.
pub fn adopted<'a>(
    generation: &'a Generation,
    known: &'a [OfferedServer],
) -> impl Iterator<Item = (&'a ServerRuntime, &'a OfferedServer)> {
    let is_same = |(server, known): &(&ServerRuntime, &OfferedServer)| {
        known.address.is_none_or(|address| address == server.address())
    };
    namesakes(generation, known).filter(is_same)
}

fn namesakes<'a>(
    generation: &'a Generation,
    known: &'a [OfferedServer],
) -> impl Iterator<Item = (&'a ServerRuntime, &'a OfferedServer)> {
    let servers =
        generation.pools.iter().flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)));
    servers.filter_map(move |(pool, server)| {
        let known = known.iter().find(|known| known.pool == pool.name && known.name == server.name)?;
        Some((&**server, known))
    })
}
