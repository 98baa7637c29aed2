//! The workers' part of a configuration: pools with servers at made-up addresses.

use evergate_balance::PickRule;
use evergate_connection::{Pool, Snapshot};
use evergate_worker::pools::{
    Generation, PoolRuntime, Rates, ResponseCounts, RuleHits, ServerRuntime, WaitQueues,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Port of every server.
const SERVER_PORT: u16 = 80;

/// Properties of every pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Requests that may wait for a server.
    pub queue_max: usize,
    /// Longest wait there.
    pub queue_timeout: Duration,
    /// Idle connections kept per server.
    pub idle_max: usize,
    /// How long they are kept.
    pub idle: Duration,
    /// The pool whose servers are down, if any.
    pub down_pool: Option<u32>,
}

/// Address of a server.
fn server_address(pool: u32, server: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 10 + pool as u8, 1 + server as u8], SERVER_PORT))
}

/// A generation for the snapshot. Servers are chosen in turn.
pub fn generation(snapshot: &Arc<Snapshot>, options: &PoolOptions) -> Generation {
    let pools = (0..).zip(&snapshot.pools).map(|(index, pool)| pool_of(index, pool, options));
    Generation {
        snapshot: snapshot.clone(),
        pools: pools.map(Arc::new).collect(),
        listener_responses: snapshot.listeners.iter().map(|_| Arc::default()).collect(),
        rule_hits: RuleHits::new(&[], None, 0),
        rates: Arc::new(Rates::default()),
    }
}

fn pool_of(index: u32, pool: &Pool, options: &PoolOptions) -> PoolRuntime {
    let servers = (0..).zip(&pool.servers).map(|(server, of)| {
        let address = server_address(index, server);
        let id = u64::from(index) << 32 | u64::from(server + 1);
        let runtime = ServerRuntime { addresses: vec![address], ..ServerRuntime::new(id, &of.name) };
        if options.down_pool == Some(index) {
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
        queue_max: options.queue_max,
        queue_classes: Vec::new(),
        queue_timeout: options.queue_timeout,
        idle_max: options.idle_max,
        idle: options.idle,
        response: Duration::from_micros(pool.response.0),
        tls_fingerprint: u64::from(pool.tls.is_some()),
        client_responses: Arc::new(ResponseCounts::default()),
        unavailable: Arc::new(AtomicU64::new(0)),
    }
}
