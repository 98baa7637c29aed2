//! A configuration with one listener and one server, for tests of workers over the memory host.

use evergate_base::net::Network;
use evergate_base::{Micros, Protocol};
use evergate_connection::{
    AuditScope, Limits, Listener, Pool, RequestKey, Server, Snapshot, Stickiness, Timeouts,
};
use evergate_memory_host::PoolOptions;
use evergate_rules::Ruleset;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn local() -> SocketAddr {
    ([198, 51, 100, 1], 443).into()
}

pub(crate) fn client() -> SocketAddr {
    ([192, 0, 2, 7], 40_000).into()
}

/// A configuration with one server and one TCP listener. With trusted proxies its connections begin with their PROXY
/// header.
pub(crate) fn snapshot(trusted_proxies: Option<Vec<Network>>) -> Snapshot {
    let listener = Listener {
        name: "tcp".to_owned(),
        protocol: Protocol::Tcp,
        tls: None,
        client_policy: None,
        audit: AuditScope::Nothing,
        pool: Some(0),
        asks_rules: false,
        trust_forwarded: Default::default(),
        trusted_proxies,
        redirect_to_https: None,
        limits: Limits::default(),
    };
    let pool = Pool {
        name: "a".to_owned(),
        stickiness: Stickiness::None,
        by_session: false,
        cookie: String::new(),
        tls: None,
        proxy_header: None,
        client_source: false,
        retries: 0,
        connect: Micros::from_ms(1000),
        response: Micros::from_ms(5000),
        servers: vec![Server { name: "a0".to_owned(), cookie: String::new(), tls_name: None }],
    };
    Snapshot {
        generation: 1,
        listeners: vec![listener],
        pools: vec![pool],
        rules: Arc::new(Ruleset::compile(&[], &Default::default()).unwrap()),
        rule_pools: Vec::new(),
        timeouts: Timeouts::default(),
        request_key: RequestKey([5, 7]),
    }
}

/// Settings of its pool.
pub(crate) fn pool_options() -> PoolOptions {
    PoolOptions {
        queue_max: 0,
        queue_timeout: Duration::ZERO,
        idle_max: 0,
        idle: Duration::ZERO,
        down_pool: None,
    }
}
