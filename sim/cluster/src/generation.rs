//! The workers' part of a configuration: pools with the servers of the model.

use evergate_balance::PickRule;
use evergate_base::Micros;
use evergate_connection::{Pool, Snapshot};
use evergate_worker::pools::{
    Generation, PoolRuntime, Rates, ResponseCounts, RuleHits, ServerRuntime, WaitQueues,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Idle connections kept per server.
const IDLE_MAX: usize = 64;
/// How long they are kept: longer than any run.
const IDLE: Duration = Duration::from_secs(600);
/// Port of every server.
const SERVER_PORT: u16 = 80;

/// Address of a server.
fn server_address(pool: u32, server: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 10 + pool as u8, 1 + server as u8], SERVER_PORT))
}

/// A generation for the snapshot. The servers of `down_pool` are down.
pub(crate) fn generation(snapshot: &Arc<Snapshot>, down_pool: u32) -> Generation {
    let pools = (0..).zip(&snapshot.pools).map(|(index, pool)| pool_of(index, pool, index == down_pool));
    Generation {
        snapshot: snapshot.clone(),
        pools: pools.map(Arc::new).collect(),
        listener_responses: snapshot.listeners.iter().map(|_| Arc::default()).collect(),
        rule_hits: RuleHits::new(&[], None, 0),
        rates: Arc::new(Rates::default()),
    }
}

fn pool_of(index: u32, pool: &Pool, is_down: bool) -> PoolRuntime {
    let servers = (0..).zip(&pool.servers).map(|(server, of)| {
        let address = server_address(index, server);
        let id = u64::from(index) << 32 | u64::from(server + 1);
        let runtime = ServerRuntime { addresses: vec![address], ..ServerRuntime::new(id, &of.name) };
        if is_down {
            runtime.handle_checked(false);
        }
        Arc::new(runtime)
    });
    let servers: Vec<Arc<ServerRuntime>> = servers.collect();
    PoolRuntime {
        name: pool.name.clone(),
        pick_rule: PickRule::RoundRobin,
        sessions: None,
        lines: WaitQueues::new(servers.len()),
        servers,
        sticky_load_percent_max: None,
        queue_max: 0,
        queue_classes: Vec::new(),
        queue_timeout: Duration::ZERO,
        idle_max: IDLE_MAX,
        idle: IDLE,
        response: to_duration(pool.response),
        tls_fingerprint: u64::from(pool.tls.is_some()),
        client_responses: Arc::new(ResponseCounts::default()),
        unavailable: Arc::new(AtomicU64::new(0)),
    }
}

fn to_duration(span: Micros) -> Duration {
    Duration::from_micros(span.0)
}
