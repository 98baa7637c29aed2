//! State that survives a reload and is shared by all workers: the servers with their load and health, and the
//! generations.

use super::rate_limit::Rates;
use super::response_counts::ResponseCounts;
use super::rule_hits::RuleHits;
use super::session_balancer::Sessions;
use super::wait_queue::WaitQueues;
use crate::latency_histogram::LatencyHistogram;
use evergate_balance::PickRule;
use evergate_base::Micros;
use evergate_connection::Snapshot;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// State of one server of a pool. Every generation that has the same pool, server and host shares it, as long as the
/// address in use is among the host's addresses.
#[derive(Debug)]
pub struct ServerRuntime {
    /// Distinguishes servers in a worker's table of idle connections; 0 for a server of no pool.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Host as the configuration writes it: the name for TLS verification, unless another one is configured.
    pub host: String,
    /// Addresses: the first is used, the others are further addresses of its name when this was created.
    pub addresses: Vec<SocketAddr>,
    /// Hash of the name: its identity for source stickiness.
    pub name_hash: u64,
    /// Share of the load.
    pub weight: AtomicU32,
    /// Bound on requests at a time; 0 is none.
    pub connections_max: AtomicU32,
    /// Result of the health checks; see [`ServerRuntime::handle_checked`].
    pub healthy: AtomicBool,
    /// How often they have found it dead.
    pub losses: AtomicU64,
    /// An operator has drained it; its requests continue.
    pub draining: AtomicBool,
    /// Requests (or tunnels) under way.
    pub outstanding: AtomicU32,
    /// Smoothed time from sending a request (or opening its connection) to the beginning of the response; 0 before the
    /// first. The rest of a response takes as long as the client needs, and hours in a tunnel.
    pub response_us: AtomicU32,
    /// When a request was last sent or a response last began; microseconds of the machine's clock.
    pub measured_at: AtomicU64,
    /// Histogram of that time for all responses since the process started.
    pub responses: LatencyHistogram,
    /// Requests sent to it.
    pub requests: AtomicU64,
    /// Connects refused or timed out, and responses lost.
    pub failures: AtomicU64,
}

/// Between these a server that cannot be reached looks twice as slow as the slowest of its pool, in microseconds.
const UNREACHABLE_US_MIN: u32 = 10_000;
const UNREACHABLE_US_MAX: u32 = 60_000_000;
/// How long a measured time counts whole when none follows.
const HALVED_EVERY: Micros = Micros::from_ms(10_000);

impl ServerRuntime {
    /// The address in use.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Identifies the destination and the TLS settings of its connections as one number: see
    /// [`PoolRuntime::tls_fingerprint`]. Equal in every process.
    pub fn way(&self, tls_fingerprint: u64) -> u64 {
        let reported = format!("{} {} {tls_fingerprint}", self.host, self.address());
        evergate_base::fnv(reported.bytes())
    }

    /// A server of which nothing is known yet: up, with one share of the load and no bound.
    pub fn new(id: u64, name: &str) -> ServerRuntime {
        ServerRuntime {
            id,
            name: name.to_owned(),
            host: String::new(),
            addresses: Vec::new(),
            name_hash: id,
            weight: AtomicU32::new(1),
            connections_max: AtomicU32::new(0),
            healthy: AtomicBool::new(true),
            losses: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            outstanding: AtomicU32::new(0),
            response_us: AtomicU32::new(0),
            measured_at: AtomicU64::new(0),
            responses: LatencyHistogram::default(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// A server of this name that the configuration has no more, or has otherwise: it is in no pool.
    pub fn of_before(&self) -> ServerRuntime {
        ServerRuntime {
            addresses: self.addresses.clone(),
            name_hash: self.name_hash,
            weight: AtomicU32::new(0),
            ..ServerRuntime::new(0, &self.name)
        }
    }

    /// Whether a new request may go there now.
    pub fn is_eligible(&self) -> bool {
        let max = self.connections_max.load(Ordering::Relaxed);
        self.is_up() && (max == 0 || self.outstanding.load(Ordering::Relaxed) < max)
    }

    /// Applies a change of the health checks. A lost server loses the sessions in its memory.
    pub fn handle_checked(&self, healthy: bool) {
        if !healthy {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        self.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Whether requests may go there when it has room.
    pub fn is_up(&self) -> bool {
        self.healthy.load(Ordering::Relaxed) && !self.draining.load(Ordering::Relaxed)
    }

    /// Counts a request in, unless that would pass the bound.
    pub fn enter(&self) -> bool {
        let max = self.connections_max.load(Ordering::Relaxed);
        if max == 0 {
            self.outstanding.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let more = |now: u32| (now < max).then_some(now + 1);
        self.outstanding.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts a request in that is under way already, whatever the bound.
    pub fn enter_resumed(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// Expected time to the response of a request sent now: the recent time for each request under way. A server
    /// without a response yet is tried first. The measurement halves every ten seconds without a request, so a server
    /// that was slow once is tried again.
    pub fn completion_us(&self, now: Micros) -> u64 {
        let requests = u64::from(self.outstanding.load(Ordering::Relaxed)) + 1;
        requests * u64::from(self.aged_us(now))
    }

    /// The measured time, reduced by its age.
    pub fn aged_us(&self, now: Micros) -> u32 {
        let age = now.since(Micros(self.measured_at.load(Ordering::Relaxed)));
        let measured = self.response_us.load(Ordering::Relaxed);
        (measured >> (age.0 / HALVED_EVERY.0).min(31)).max(measured.min(1))
    }

    /// Records a request. Until its response begins, the estimate stays as it is now.
    pub fn handle_request(&self, now: Micros) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.response_us.store(self.aged_us(now), Ordering::Relaxed);
        self.measured_at.store(now.0, Ordering::Relaxed);
    }

    /// Records the time until a response began, with a weight of an eighth. Of two workers at once one may count alone.
    ///
    /// Not `answered`: the connection ended, or was given up, without a response. A server that fails must not attract
    /// requests by failing fast, so the time counts as no shorter than those before.
    pub fn handle_response(&self, took: Micros, answered: bool, now: Micros) {
        self.measured_at.store(now.0, Ordering::Relaxed);
        if answered {
            self.responses.note(took);
        }
        let before = self.response_us.load(Ordering::Relaxed);
        let took = took.0.clamp(1, u64::from(u32::MAX)) as u32;
        let took = if answered { took } else { took.max(before) };
        let after = if before == 0 { took } else { before - before / 8 + took / 8 };
        self.response_us.store(after.max(1), Ordering::Relaxed);
    }

    /// Records a failed connection attempt that took `took`. A server without measurements would be tried first, so it
    /// counts as twice as slow as the slowest of its pool. The penalty halves with time, like every measurement.
    pub fn handle_unreachable(&self, took: Micros, slowest_us: u32, now: Micros) {
        let took = took.0.min(u64::from(u32::MAX)) as u32;
        let before = self.response_us.load(Ordering::Relaxed);
        let least = slowest_us.saturating_mul(2).max(UNREACHABLE_US_MIN);
        self.response_us
            .store(took.max(before).max(least).min(UNREACHABLE_US_MAX.max(took)), Ordering::Relaxed);
        self.measured_at.store(now.0, Ordering::Relaxed);
    }

    /// Counts a request out.
    pub fn leave(&self) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One pool of a generation.
#[derive(Debug)]
pub struct PoolRuntime {
    /// Its name.
    pub name: String,
    /// How a server is chosen unless `sessions` is there to do it.
    pub pick_rule: PickRule,
    /// Present for policies that go by session.
    pub sessions: Option<Arc<Sessions>>,
    /// Its servers, in the order of the snapshot's.
    pub servers: Vec<Arc<ServerRuntime>>,
    /// Bound on a server's share of the outstanding requests for clients that return by address, in percent.
    pub sticky_load_percent_max: Option<u32>,
    /// Requests of one worker that may wait for a server.
    pub queue_max: usize,
    /// Service classes in the order in which they leave the queue; other requests follow.
    pub queue_classes: Vec<String>,
    /// Longest wait there.
    pub queue_timeout: Duration,
    /// Idle connections kept per server and worker.
    pub idle_max: usize,
    /// How long they are kept.
    pub idle: Duration,
    /// How long a server may take nothing of a request and not answer.
    pub response: Duration,
    /// Distinguishes the TLS settings of connections to servers: other authorities, another certificate, TLS or none.
    pub tls_fingerprint: u64,
    /// Responses to clients for requests of the pool.
    pub client_responses: Arc<ResponseCounts>,
    /// Requests that no server could take; a reload counts on.
    pub unavailable: Arc<AtomicU64>,
    /// Requests that wait for a server, of all workers.
    pub lines: WaitQueues,
}

/// Everything that a reload replaces.
#[derive(Debug)]
pub struct Generation {
    /// The connections' part.
    pub snapshot: Arc<Snapshot>,
    /// The pools, in the order of the snapshot's.
    pub pools: Vec<Arc<PoolRuntime>>,
    /// Responses of each listener, in the order of the snapshot's.
    pub listener_responses: Vec<Arc<ResponseCounts>>,
    /// How often each rule matched.
    pub rule_hits: Arc<RuleHits>,
    /// Rate limits by rule index, shared by the workers.
    pub rates: Arc<Rates>,
}

impl Generation {
    /// Counts a response of a listener, and of a pool if the request had one; both are indexes into the snapshot's.
    pub fn count_response(&self, worker: usize, status: u16, listener: u32, pool: Option<u32>) {
        if let Some(counts) = self.listener_responses.get(listener as usize) {
            counts.add(worker, status);
        }
        if let Some(pool) = pool.and_then(|pool| self.pools.get(pool as usize)) {
            pool.client_responses.add(worker, status);
        }
    }

    /// A copy of the generation with its own snapshot, so that workers do not share its reference count.
    pub fn for_worker(&self) -> Generation {
        let source = &self.snapshot;
        let snapshot = Snapshot {
            generation: source.generation,
            listeners: source.listeners.iter().map(clone_listener).collect(),
            pools: source.pools.iter().map(clone_pool).collect(),
            rules: source.rules.clone(),
            rule_pools: source.rule_pools.clone(),
            timeouts: source.timeouts,
            request_key: source.request_key,
        };
        Generation {
            snapshot: Arc::new(snapshot),
            pools: self.pools.clone(),
            listener_responses: self.listener_responses.clone(),
            rule_hits: self.rule_hits.clone(),
            rates: self.rates.clone(),
        }
    }
}

fn clone_listener(listener: &evergate_connection::Listener) -> evergate_connection::Listener {
    evergate_connection::Listener {
        name: listener.name.clone(),
        protocol: listener.protocol,
        tls: listener.tls.clone(),
        client_policy: listener.client_policy,
        audit: listener.audit,
        pool: listener.pool,
        asks_rules: listener.asks_rules,
        trust_forwarded: listener.trust_forwarded.clone(),
        trusted_proxies: listener.trusted_proxies.clone(),
        redirect_to_https: listener.redirect_to_https,
        limits: listener.limits.clone(),
    }
}

fn clone_pool(pool: &evergate_connection::Pool) -> evergate_connection::Pool {
    evergate_connection::Pool {
        name: pool.name.clone(),
        stickiness: pool.stickiness,
        cookie: pool.cookie.clone(),
        by_session: pool.by_session,
        tls: pool.tls.clone(),
        proxy_header: pool.proxy_header,
        client_source: pool.client_source,
        retries: pool.retries,
        connect: pool.connect,
        response: pool.response,
        servers: pool
            .servers
            .iter()
            .map(|server| evergate_connection::Server {
                name: server.name.clone(),
                cookie: server.cookie.clone(),
                tls_name: server.tls_name.clone(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerRuntime {
        ServerRuntime::new(1, "one")
    }

    #[test]
    fn expected_completion_is_the_smoothed_time_per_open_request() {
        let (server, now) = (server(), Micros::from_ms(60_000));
        assert_eq!(server.completion_us(now), 0, "a server that has not answered yet is tried first");
        server.handle_response(Micros(800), true, now);
        assert_eq!(server.completion_us(now), 800);
        server.handle_response(Micros(1600), true, now);
        assert_eq!(server.completion_us(now), 900, "700 and an eighth of 1600");
        server.outstanding.store(2, Ordering::Relaxed);
        assert_eq!(server.completion_us(now), 2700);
        let later = now + Micros::from_ms(20_000);
        assert_eq!(server.completion_us(later), 675, "it is asked again in time");
        let requests = (0..1000).map(|number| later + Micros::from_ms(9_000 * number));
        requests.for_each(|at| server.handle_request(at));
        let last = later + Micros::from_ms(9_000 * 999);
        assert_eq!(server.completion_us(last), 675, "a server that does not answer looks no better for it");
        server.outstanding.store(0, Ordering::Relaxed);
        let much_later = last + Micros::from_ms(10_000_000);
        assert_eq!(server.completion_us(much_later), 1, "not like one that was never asked");
    }

    #[test]
    fn unreachable_server_attracts_no_requests_and_is_tried_again() {
        let (server, now) = (server(), Micros::from_ms(60_000));
        server.handle_unreachable(Micros(50), 0, now);
        assert_eq!(server.completion_us(now), 10_000, "nothing was measured of the others either");
        server.handle_unreachable(Micros(50), 30_000, now);
        assert_eq!(server.completion_us(now), 60_000);
        let many = (0..200).fold(0, |slowest, _| {
            server.handle_unreachable(Micros(50), slowest, now);
            server.aged_us(now)
        });
        assert_eq!(many, UNREACHABLE_US_MAX, "bounded, though it is the slowest itself");
        server.handle_unreachable(Micros(90_000_000), 0, now);
        assert_eq!(server.completion_us(now), 90_000_000, "as long as the connection was tried for");
        assert!(server.completion_us(now + Micros::from_ms(200_000)) < 1000);
    }

    #[test]
    fn server_does_not_look_faster_by_failing_fast() {
        let (server, now) = (server(), Micros::from_ms(60_000));
        server.handle_response(Micros(8000), true, now);
        for _ in 0..20 {
            server.handle_response(Micros(1), false, now);
        }
        assert_eq!(server.completion_us(now), 8000);
        server.handle_response(Micros(16_000), false, now);
        assert_eq!(server.completion_us(now), 9000);
    }
}
