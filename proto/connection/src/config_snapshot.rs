//! The configuration as a connection sees it: one immutable generation, shared by all connections of a worker.

use crate::routing::hash_name;
use evergate_base::net::Network;
use evergate_base::session::SessionHasher;
use evergate_base::{Micros, Protocol, ProxyHeader};
use evergate_http::ForwardedTrust;
use evergate_replication::Route;
use evergate_rules::{RuleId, Ruleset};
use rustls_pki_types::ServerName;
use std::sync::Arc;

/// One listener of a generation.
#[derive(Debug)]
pub struct Listener {
    /// Its name, stable across generations.
    pub name: String,
    /// Protocol with clients.
    pub protocol: Protocol,
    /// Handshake configuration of a TLS protocol.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Fingerprint of the client-certificate policy and its trust anchors; `None` where clients need no certificate. A
    /// client that was admitted under another policy gets no request through.
    pub client_policy: Option<[u8; 32]>,
    /// What audited capture records of its connections.
    pub audit: AuditScope,
    /// Pool for what no rule routes, as an index into [`Snapshot::pools`].
    pub pool: Option<u32>,
    /// Whether rules decide about whole connections: some rule names the listener, which is no HTTP listener.
    pub asks_rules: bool,
    /// Peers whose X-Forwarded-For is kept and extended, and may name the client.
    pub trust_forwarded: ForwardedTrust,
    /// Networks of proxies whose PROXY header begins each connection; no other peer is admitted. `None`: no header.
    pub trusted_proxies: Option<Vec<Network>>,
    /// Answer every request with a redirect to https on this port.
    pub redirect_to_https: Option<u16>,
    /// Bounds on what clients send.
    pub limits: Limits,
}

/// What audited capture records of a listener's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditScope {
    /// Nothing: no secret is sealed.
    #[default]
    Nothing,
    /// The secrets of each connection, and the requests that rules choose.
    ChosenRequests,
    /// The secrets of each connection, and all requests.
    AllRequests,
}

impl AuditScope {
    /// Whether secrets are sealed.
    pub fn seals(self) -> bool {
        self != AuditScope::Nothing
    }
}

/// How a pool keeps a client on its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stickiness {
    /// Each request is placed on its own.
    #[default]
    None,
    /// A cookie of ours names the server.
    Cookie,
    /// The client's address decides.
    Source,
}

/// TLS towards the servers of a pool.
#[derive(Debug, Clone)]
pub struct UpstreamTls {
    /// Handshake configuration; the names are those of the servers.
    pub config: Arc<rustls::ClientConfig>,
}

/// One server of a pool.
#[derive(Debug)]
pub struct Server {
    /// Its name, stable across generations.
    pub name: String,
    /// Value of the stickiness cookie that names it.
    pub cookie: String,
    /// Name to send to the server and to verify, where its pool uses TLS: without a name no handshake starts.
    pub tls_name: Option<ServerName<'static>>,
}

/// One pool of a generation.
#[derive(Debug)]
pub struct Pool {
    /// Its name, stable across generations.
    pub name: String,
    /// Stickiness where the rule sets none.
    pub stickiness: Stickiness,
    /// Name of the stickiness cookie.
    pub cookie: String,
    /// Whether sessions of relayed handshakes choose the server, so that handshakes are read.
    pub by_session: bool,
    /// TLS towards its servers.
    pub tls: Option<UpstreamTls>,
    /// PROXY header that begins each connection to its servers, which then serves one client.
    pub proxy_header: Option<ProxyHeader>,
    /// Whether connections to its servers start from the client's address, and then serve one client.
    pub client_source: bool,
    /// How often a request may be tried again on another server.
    pub retries: u32,
    /// Bound on connecting, the TLS handshake included.
    pub connect: Micros,
    /// Bound on the wait for the response's head, and on pauses inside it.
    pub response: Micros,
    /// The servers.
    pub servers: Vec<Server>,
}

/// Bounds in time; each names what it bounds.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Accept to the end of the TLS handshake.
    pub handshake: Micros,
    /// First byte of a request head to its last.
    pub request_head: Micros,
    /// A request body without progress.
    pub request_body: Micros,
    /// Between requests.
    pub keep_alive: Micros,
    /// A tunnel or raw relay without a byte either way.
    pub tunnel: Micros,
    /// A peer that takes none of our bytes.
    pub write_stall: Micros,
    /// After our close, how long we wait for the peer's.
    pub linger: Micros,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            handshake: Micros::from_ms(10_000),
            request_head: Micros::from_ms(15_000),
            request_body: Micros::from_ms(30_000),
            keep_alive: Micros::from_ms(75_000),
            tunnel: Micros::from_ms(4 * 3_600_000),
            write_stall: Micros::from_ms(30_000),
            linger: Micros::from_ms(2_000),
        }
    }
}

/// Bounds in size; each has a named answer.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Head, header, target, trailer and chunk-line sizes.
    pub http: evergate_http::Limits,
    /// Longest ClientHello in bytes.
    pub hello_bytes_max: usize,
    /// Longest request body in bytes; 0 is no bound. Answer: 413.
    pub body_bytes_max: u64,
    /// How much of a body the rules may look at, in bytes.
    pub body_prefix_bytes: usize,
    /// Requests on one connection; 0 is no bound. The last response has `Connection: close`.
    pub requests_max: u32,
    /// Least average rate in bytes per second while a peer sends a body or takes a response; 0 is none.
    pub rate_min: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            http: evergate_http::Limits::default(),
            hello_bytes_max: 65_536,
            body_bytes_max: 0,
            body_prefix_bytes: 65_536,
            requests_max: 0,
            rate_min: 0,
        }
    }
}

impl Listener {
    /// Distinguishes listeners by their effect on requests and responses under way.
    pub(crate) fn shape(&self) -> u64 {
        let Limits {
            http,
            body_bytes_max,
            hello_bytes_max: _,
            body_prefix_bytes: _,
            requests_max: _,
            rate_min: _,
        } = &self.limits;
        let evergate_http::Limits {
            head_bytes_max,
            headers_max,
            trailer_bytes_max,
            chunk_line_bytes_max,
            target_bytes_max: _,
        } = http;
        let sizes = [head_bytes_max, headers_max, trailer_bytes_max, chunk_line_bytes_max];
        let sizes = sizes.map(|size| *size as u64).into_iter();
        let all = sizes.chain([*body_bytes_max, self.protocol as u64]);
        all.fold(0xcbf2_9ce4_8422_2325, |hash: u64, value| {
            (hash ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(29) // FNV-1a, a number at a time
        })
    }
}

/// Key of the hash over requests: another node recognises a repeated request by its hash. The key is a secret of the
/// cluster; else clients could forge a request with the same hash. Zeros without a cluster: no node compares then.
#[derive(Clone, Copy, Default)]
pub struct RequestKey(pub [u64; 2]);

impl std::fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestKey")
    }
}

/// One generation of the configuration.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts up with every reload.
    pub generation: u64,
    /// Listeners.
    pub listeners: Vec<Listener>,
    /// Pools; rules name them by index of [`Snapshot::rule_pools`].
    pub pools: Vec<Pool>,
    /// Content rules; shared between the workers' own copies of a snapshot.
    pub rules: Arc<Ruleset>,
    /// Index into `pools` for each index of the ruleset's own pool list.
    pub rule_pools: Vec<u32>,
    /// Bounds in time.
    pub timeouts: Timeouts,
    /// The same on all nodes.
    pub request_key: RequestKey,
}

impl Snapshot {
    /// Index of the listener with this name.
    pub fn listener_index(&self, name: &str) -> Option<u32> {
        self.listeners.iter().position(|listener| listener.name == name).map(|index| index as u32)
    }

    /// Hasher of the names of relayed TLS sessions: the same on all nodes of a cluster.
    pub fn session_hasher(&self) -> SessionHasher {
        SessionHasher::new(self.request_key.0)
    }

    /// Names a server of a pool, the same in all generations that have both.
    pub(crate) fn place(&self, pool: u32, server: u32) -> u64 {
        let names =
            self.pools.get(pool as usize).and_then(|pool| Some((pool, pool.servers.get(server as usize)?)));
        names.map_or(0, |(pool, server)| place_of(pool, server))
    }

    /// Names rules in all generations that have them.
    pub(crate) fn marks(&self, rules: &[RuleId]) -> Vec<u64> {
        rules.iter().map(|rule| self.rules.mark(*rule)).collect()
    }

    /// Whether the head of this request's response is the same here as where the request was decided, byte for byte,
    /// and the rest of the request passes here as it would there.
    pub fn makes_response(&self, listener: &str, route: &Route) -> bool {
        let listener = self.listener_index(listener).map(|index| &self.listeners[index as usize]);
        listener.is_some_and(|listener| listener.shape() == route.shape)
            && !route.flags.set_cookie
            && route.rules.iter().all(|mark| self.rules.marked(*mark).is_some())
    }

    /// Those of the rules that matched this request that are here too.
    pub(crate) fn find_rules(&self, route: &Route) -> Vec<RuleId> {
        route.rules.iter().filter_map(|mark| self.rules.marked(*mark)).collect()
    }

    /// The server at this place: its pool and its index there.
    pub fn find_place(&self, place: u64) -> Option<(u32, u32)> {
        (0..).zip(&self.pools).find_map(|(index, pool)| {
            let server = pool.servers.iter().position(|server| place_of(pool, server) == place)?;
            Some((index, server as u32))
        })
    }
}

/// Also covers whether the server uses TLS: a node that continues a connection to it has its records, or there are
/// none.
fn place_of(pool: &Pool, server: &Server) -> u64 {
    let hash = hash_name(pool.name.as_bytes()).rotate_left(7) ^ hash_name(server.name.as_bytes());
    hash ^ u64::from(pool.tls.is_some())
}
