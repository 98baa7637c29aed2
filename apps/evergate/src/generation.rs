//! From a checked configuration to a generation: certificates loaded, keys made, servers carried over.

mod pools;
mod recipe;

use crate::upgrade::{Offer, OfferedCertificate, OfferedTickets};
use anyhow::{Context, Result};
use evergate_base::{Micros, fnv};
use evergate_config::model::{
    CertificateSource, ClientCertificates, Config, Listener as ListenerConfig, PoolId, PoolTls,
    Server as ServerConfig, ServerSource, Sticky, Tickets, TlsSettings, TlsVersion,
};
use evergate_config::{Machine, World};
use evergate_connection::{
    Limits, Listener, Pool, RequestKey, Server, Snapshot, Stickiness, Timeouts, UpstreamTls,
};
use evergate_crypto::{
    CertifiedName, ClientAuth, ClientCertificate, ClientSettings, ServerSettings, TICKET_LIFETIME_S,
    TicketHandle, TicketKeys, Verify, client_config, client_policy, load_certificate, self_signed,
    server_config,
};
use evergate_rules::{Effect, RuleId, RuleSpec, Ruleset};
use evergate_tls::Version;
use evergate_worker::pools::Rates;
use evergate_worker::pools::ResponseCounts;
use evergate_worker::pools::RuleHits;
use evergate_worker::pools::{Generation, ServerRuntime};
use pools::pool_runtime;
use rustls_pki_types::{CertificateDer, ServerName};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zeroize::Zeroizing;

/// State that survives a reload.
#[derive(Debug, Default)]
pub struct CarriedState {
    /// Ticket keys by their file, or by the name of the TLS settings: a reload must not end sessions.
    tickets: HashMap<String, (TicketHandle, Option<PathBuf>, Duration)>,
    /// Self-signed certificates by their names: a reload must not change them.
    self_signed: HashMap<Vec<String>, (String, String)>,
    /// In a cluster: where the ticket keys of all nodes come from.
    shared_tickets: Option<Zeroizing<[u8; 32]>>,
    /// Key of the hashes of requests and of sessions: in a cluster that of all nodes, else a random one.
    request_key: RequestKey,
    next_server: u64,
    /// Number of the generation in force; 0 before the first.
    generation: u64,
    /// Changes that the last assembly needs, see [`CarriedState::commit`].
    pending: Vec<Change>,
    pending_generation: u64,
}

/// A change of something that the generation in force uses too: made only when the whole reload has succeeded.
#[derive(Debug)]
enum Change {
    Tickets(TicketHandle, TicketKeys),
    /// How often the keys of this name are rotated.
    Rotation(String, Duration),
    Server {
        server: Arc<ServerRuntime>,
        weight: u32,
        connections_max: u32,
        unchecked: bool,
    },
}

impl CarriedState {
    /// Applies the changes of the last assembly to the state that it shares with the generation before.
    pub fn commit(&mut self) {
        // Not earlier: a refused configuration must not use a number, or operators would search for that generation.
        self.generation = self.pending_generation;
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Tickets(handle, keys) => handle.replace(keys),
                Change::Rotation(name, every) => {
                    if let Some((_, _, rotate)) = self.tickets.get_mut(&name) {
                        *rotate = every;
                    }
                }
                Change::Server { server, weight, connections_max, unchecked } => {
                    server.weight.store(weight, Ordering::Relaxed);
                    server.connections_max.store(connections_max, Ordering::Relaxed);
                    if unchecked {
                        server.healthy.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// From now on ticket keys come from this secret and the wall clock, so that all nodes that have it have the same.
    pub fn share_tickets(&mut self, secret: [u8; 32]) {
        self.shared_tickets = Some(Zeroizing::new(secret));
    }

    /// From now on requests and sessions are hashed with this secret: that of all nodes, or of this process.
    pub fn set_request_key(&mut self, key: RequestKey) {
        self.request_key = key;
    }

    /// Whether ticket keys without a file are derived from the cluster's secret.
    pub fn has_shared_tickets(&self) -> bool {
        self.shared_tickets.is_some()
    }

    /// Puts the keys of the present epoch in force, where they come from the cluster.
    pub fn renew_shared_tickets(&self, now_unix_s: u64) {
        let Some(secret) = &self.shared_tickets else { return };
        for (handle, file, every) in self.tickets.values() {
            if file.is_none() {
                handle.replace(TicketKeys::of_epoch(secret, now_unix_s, every.as_secs()));
            }
        }
    }

    /// Adds state to the offer that no file holds: ticket keys, certificates that were generated at start.
    pub fn bequeath(&self, offer: &mut Offer, rotated_unix_s: &HashMap<String, u64>) {
        let of_no_file = self.tickets.iter().filter(|(_, (_, file, _))| file.is_none());
        let tickets = |(name, (handle, _, _)): (&String, &(TicketHandle, Option<PathBuf>, Duration))| {
            let bytes = handle.current().to_file_bytes();
            OfferedTickets {
                name: name.clone(),
                keys: String::from_utf8_lossy(&bytes).into_owned(),
                rotated_unix_s: rotated_unix_s.get(name).copied(),
            }
        };
        offer.tickets = of_no_file.map(tickets).collect();
        let made = |(names, (chain, key)): (&Vec<String>, &(String, String))| OfferedCertificate {
            names: names.clone(),
            chain: chain.clone(),
            key: key.clone(),
        };
        offer.self_signed = self.self_signed.iter().map(made).collect();
    }

    /// Adopts the state of the old process.
    pub fn inherit(&mut self, offer: &Offer) -> Result<()> {
        for OfferedTickets { name, keys, .. } in &offer.tickets {
            let keys = TicketKeys::from_file_bytes(keys.as_bytes());
            let keys = keys.with_context(|| format!("ticket keys of the process before ({name})"))?;
            self.tickets.insert(name.clone(), (TicketHandle::new(keys), None, Duration::MAX));
        }
        for OfferedCertificate { names, chain, key } in &offer.self_signed {
            self.self_signed.insert(names.clone(), (chain.clone(), key.clone()));
        }
        self.generation = offer.generation.saturating_sub(1);
        Ok(())
    }

    /// Ticket keys with their name, file and rotation period.
    pub fn tickets(&self) -> impl Iterator<Item = (&str, &(TicketHandle, Option<PathBuf>, Duration))> {
        self.tickets.iter().map(|(name, keys)| (name.as_str(), keys))
    }
}

/// A generation ready to serve.
#[derive(Debug)]
pub struct Assembled {
    /// The workers' part.
    pub generation: Arc<Generation>,
    /// Certificates by their name in the configuration, for the admin API.
    pub certificates: Vec<(String, CertifiedName)>,
}

/// Builds a generation; servers that `previous` knows by pool, name and address keep their load and health.
pub fn assemble(
    config: &Config,
    previous: Option<&Generation>,
    keep: &mut CarriedState,
) -> Result<Assembled> {
    keep.pending.clear();
    let certificates = load_certificates(config, keep)?;
    let listeners = config
        .listeners
        .iter()
        .map(|listener| assemble_listener(config, listener, &certificates, keep))
        .collect::<Result<Vec<_>>>()?;
    let pools = (0..config.pools.len()).map(|pool| assemble_pool(config, PoolId(pool)));
    let pools = pools.collect::<Result<Vec<_>>>()?;
    let rules = config.rules.ruleset.clone();
    let rule_pools = rules
        .pools()
        .iter()
        .map(|name| {
            config.pool_named(name).map(|id| id.0 as u32).context("a rule names a pool that does not exist")
        })
        .collect::<Result<Vec<_>>>()?;
    let runtimes = config.pools.iter().map(|pool| Arc::new(pool_runtime(pool, previous, keep))).collect();
    let rates = Arc::new(rates(&rules, previous));
    let counted = previous.map(|previous| &previous.rule_hits);
    let rule_hits = RuleHits::new(&config.rules.specs, counted, evergate_sys::wall_clock_s());
    keep.pending_generation = match config.cluster {
        // Nodes with the same configuration must give it the same number: connections name it when they move.
        Some(_) => fingerprint(config),
        None => keep.generation + 1,
    };
    let snapshot = Snapshot {
        generation: keep.pending_generation,
        listeners,
        pools,
        rules,
        rule_pools,
        timeouts: timeouts(config),
        request_key: keep.request_key,
    };
    let listener_responses = listener_responses(config, previous);
    let snapshot = Arc::new(snapshot);
    let generation = Generation { snapshot, pools: runtimes, listener_responses, rule_hits, rates };
    let names = config.certificates.iter().map(|certificate| certificate.name.clone());
    Ok(Assembled { generation: Arc::new(generation), certificates: names.zip(certificates).collect() })
}

/// The counts of each listener; a listener that `previous` knows by name keeps its counts.
fn listener_responses(config: &Config, previous: Option<&Generation>) -> Vec<Arc<ResponseCounts>> {
    let known = |name: &str| {
        let previous = previous?;
        let index = previous.snapshot.listener_index(name)?;
        previous.listener_responses.get(index as usize).cloned()
    };
    config.listeners.iter().map(|listener| known(&listener.name).unwrap_or_default()).collect()
}

fn rates(rules: &Ruleset, previous: Option<&Generation>) -> Rates {
    let effects = (0..rules.len() as u32).flat_map(|rule| rules.effects_of(RuleId(rule)));
    let limits = effects.filter_map(|effect| match effect {
        Effect::RateLimit(rule, limit) => Some((rule, rules.name(rule), limit)),
        _ => None,
    });
    Rates::new(limits, previous.map(|previous| &*previous.rates))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    Machine.read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn load_certificates(config: &Config, keep: &mut CarriedState) -> Result<Vec<CertifiedName>> {
    let load = |certificate: &evergate_config::model::Certificate| -> Result<CertifiedName> {
        match &certificate.source {
            CertificateSource::Files { chain, key } => load_certificate(&read(chain)?, &read(key)?)
                .with_context(|| format!("certificate \"{}\" ({})", certificate.name, chain.display())),
            CertificateSource::SelfSigned { names } => {
                if !keep.self_signed.contains_key(names) {
                    keep.self_signed.insert(names.clone(), self_signed(names)?);
                }
                let (chain, key) = &keep.self_signed[names];
                Ok(load_certificate(chain.as_bytes(), key.as_bytes())?)
            }
        }
    };
    config.certificates.iter().map(load).collect()
}

fn assemble_listener(
    config: &Config,
    listener: &ListenerConfig,
    certificates: &[CertifiedName],
    keep: &mut CarriedState,
) -> Result<Listener> {
    let (tls, client_policy) = match &listener.tls {
        None => (None, None),
        Some(tls) => {
            let settings = config.tls_settings(tls.settings);
            let chosen = tls.certificates.iter().map(|id| certificates[id.0].clone()).collect();
            let mut settings = settings.clone();
            if config.limits.session_cache_bytes_max == 0 {
                settings.session_id_lifetime_s = 0;
            }
            let made = listener_tls(&settings, chosen, &listener.name, keep);
            let (tls, policy) = made.with_context(|| format!("TLS of listener \"{}\"", listener.name))?;
            (Some(tls), policy)
        }
    };
    Ok(Listener {
        name: listener.name.clone(),
        protocol: listener.protocol,
        tls,
        client_policy,
        pool: listener.pool.map(|pool| pool.0 as u32),
        asks_rules: listener.protocol.is_raw()
            && config.rules.specs.iter().any(|rule| rule.listeners.contains(&listener.name)),
        trust_forwarded: listener.trust_forwarded.clone(),
        trusted_proxies: listener.trusted_proxies.clone(),
        audit: listener.audit,
        redirect_to_https: listener.redirect_to_https,
        limits: limits(listener),
    })
}

fn listener_tls(
    settings: &TlsSettings,
    certificates: Vec<CertifiedName>,
    policy: &str,
    keep: &mut CarriedState,
) -> Result<(Arc<rustls::ServerConfig>, Option<[u8; 32]>)> {
    let roots = match &settings.client_ca {
        Some(path) => pem_certificates(path)?,
        None => Vec::new(),
    };
    let version = |version: TlsVersion| match version {
        TlsVersion::V1_2 => Version::Tls12,
        TlsVersion::V1_3 => Version::Tls13,
    };
    let by_id = settings.session_id_lifetime_s > 0 && settings.min_version == TlsVersion::V1_2;
    let keys = match settings.tickets.is_some() || by_id {
        true => Some(ticket_keys(settings, keep)?),
        false => None,
    };
    let client_auth = match settings.client_certificates {
        ClientCertificates::None => ClientAuth::None,
        ClientCertificates::Optional => ClientAuth::Optional(roots),
        ClientCertificates::Required => ClientAuth::Required(roots),
    };
    let client_policy = client_policy(policy, &client_auth);
    let made = server_config(ServerSettings {
        certificates,
        alpn: settings.alpn.iter().map(|name| name.clone().into_bytes()).collect(),
        version_min: version(settings.min_version),
        version_max: version(settings.max_version),
        client_auth,
        tickets: keys.clone().filter(|_| settings.tickets.is_some()),
        session_ids: keys.filter(|_| by_id).map(|keys| (keys, settings.session_id_lifetime_s)),
        prefer_chacha_when_client_does: true,
        policy: policy.to_owned(),
    });
    Ok((made?, client_policy))
}

/// Ticket keys, and the store of sessions with an id; the latter also without the former.
fn ticket_keys(settings: &TlsSettings, keep: &mut CarriedState) -> Result<TicketHandle> {
    let without_tickets = Tickets { keys: None, rotate: Duration::from_secs(u64::from(TICKET_LIFETIME_S)) };
    let wanted = settings.tickets.as_ref().unwrap_or(&without_tickets);
    let from_file = match &wanted.keys {
        Some(path) => {
            let keys = TicketKeys::from_file_bytes(&read(path)?);
            Some(keys.with_context(|| format!("ticket keys in {}", path.display()))?)
        }
        None => None,
    };
    let name = match &wanted.keys {
        Some(path) => format!("file {}", path.display()),
        None => format!("settings {}", settings.name),
    };
    let now = evergate_sys::wall_clock_s();
    let shared = keep.shared_tickets.clone();
    let fresh = || {
        TicketHandle::new(match &shared {
            Some(secret) => TicketKeys::of_epoch(secret, now, wanted.rotate.as_secs()),
            None => TicketKeys::random(now),
        })
    };
    let entry =
        keep.tickets.entry(name.clone()).or_insert_with(|| (fresh(), wanted.keys.clone(), wanted.rotate));
    let handle = entry.0.clone();
    keep.pending.push(Change::Rotation(name, wanted.rotate));
    if let Some(keys) = from_file {
        keep.pending.push(Change::Tickets(handle.clone(), keys));
    }
    Ok(handle)
}

fn pem_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let found = evergate_crypto::pem_certificates(&bytes);
    found.with_context(|| format!("certificates in {}", path.display()))
}

fn limits(listener: &ListenerConfig) -> Limits {
    let from = &listener.limits;
    Limits {
        http: evergate_http::Limits {
            head_bytes_max: from.head_bytes_max,
            headers_max: from.headers_max,
            ..evergate_http::Limits::default()
        },
        body_bytes_max: from.body_bytes_max.map_or(0, |max| max.get()),
        body_prefix_bytes: from.body_prefix_bytes,
        requests_max: from.requests_per_connection_max.map_or(0, |max| max.get()),
        rate_min: from.bytes_per_s_min.map_or(0, |min| u64::from(min.get())),
        ..Limits::default()
    }
}

fn micros(span: Duration) -> Micros {
    Micros(span.as_micros().min(u128::from(u64::MAX / 2)) as u64)
}

fn timeouts(config: &Config) -> Timeouts {
    let from = &config.timeouts;
    Timeouts {
        handshake: micros(from.handshake),
        request_head: micros(from.request_head),
        request_body: micros(from.request_body),
        keep_alive: micros(from.keep_alive),
        tunnel: micros(from.tunnel_idle),
        write_stall: micros(from.write_stall),
        ..Timeouts::default()
    }
}

fn assemble_pool(config: &Config, id: PoolId) -> Result<Pool> {
    let pool = config.pool(id);
    let context = || format!("TLS of pool \"{}\"", pool.name);
    let alpn = if is_relayed_raw(config, id) { Vec::new() } else { vec![b"http/1.1".to_vec()] };
    let tls = match &pool.tls {
        None => None,
        Some(tls) => Some(pool_tls(tls, alpn).with_context(context)?),
    };
    let servers = pool.servers.iter().map(|server| {
        let tls_name = pool.tls.as_ref().map(|tls| tls_name(tls, server)).transpose()?;
        let cookie = format!("{:016x}", stable_hash(&[&pool.name, &server.name]));
        Ok(Server { name: server.name.clone(), cookie, tls_name })
    });
    let servers = servers.collect::<Result<Vec<_>>>().with_context(context)?;
    Ok(Pool {
        name: pool.name.clone(),
        stickiness: match pool.sticky {
            Sticky::None => Stickiness::None,
            Sticky::Cookie => Stickiness::Cookie,
            Sticky::Source => Stickiness::Source,
        },
        cookie: pool.sticky_cookie.clone(),
        by_session: pool.policy.is_by_session(),
        tls,
        proxy_header: pool.proxy_protocol,
        client_source: pool.source == ServerSource::Client,
        retries: pool.retries,
        connect: micros(pool.connect_timeout),
        response: micros(pool.response_timeout),
        servers,
    })
}

/// Whether only listeners without HTTP use the pool. Its connections may carry any protocol, so ALPN does not offer
/// HTTP to its servers: a server that knows the extension would have to select HTTP or refuse (RFC 7301 section 3.2).
fn is_relayed_raw(config: &Config, pool: PoolId) -> bool {
    let routing =
        |rule: &&RuleSpec| rule.route.as_ref().is_some_and(|name| config.pool_named(name) == Some(pool));
    let rules: Vec<&RuleSpec> = config.rules.specs.iter().filter(routing).collect();
    let of_requests = |rule: &&RuleSpec| rule.listeners.is_empty();
    if rules.iter().any(of_requests) {
        return false;
    }
    let uses = |listener: &&ListenerConfig| {
        listener.pool == Some(pool) || rules.iter().any(|rule| rule.listeners.contains(&listener.name))
    };
    let mut users = config.listeners.iter().filter(uses).peekable();
    users.peek().is_some() && users.all(|listener| listener.protocol.is_raw())
}

/// The name under which a server is asked for and verified: the configured one, or its own host.
fn tls_name(tls: &PoolTls, server: &ServerConfig) -> Result<ServerName<'static>> {
    let name = tls.server_name.as_ref().unwrap_or(&server.host);
    ServerName::try_from(name.clone()).with_context(|| format!("server name \"{name}\""))
}

/// TLS towards a pool's servers, offering these protocols.
fn pool_tls(tls: &PoolTls, alpn: Vec<Vec<u8>>) -> Result<UpstreamTls> {
    let verify = match (&tls.ca, tls.verify) {
        (_, false) => Verify::InsecureNone,
        (Some(path), true) => Verify::Roots(pem_certificates(path)?),
        (None, true) => Verify::System,
    };
    let certificate = match &tls.client {
        Some(identity) => Some(ClientCertificate::from_pem(&read(&identity.chain)?, &read(&identity.key)?)?),
        None => None,
    };
    Ok(UpstreamTls { config: client_config(ClientSettings { verify, alpn, certificate })? })
}

/// FNV-1a: the same on every node and in every version, because cookies carry it.
fn stable_hash(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain(std::iter::once(0)));
    let hash = fnv(bytes);
    (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Largest number up to which readers of JSON or metrics with floating point get the exact number.
const EXACT: u64 = (1 << 53) - 1;

/// Identifies the part of a configuration that decides about connections: equal on all nodes with the same version and
/// file, in any folder.
fn fingerprint(config: &Config) -> u64 {
    let mut pools = config.pools.clone();
    for server in pools.iter_mut().flat_map(|pool| &mut pool.servers) {
        server.addresses.sort_unstable(); // resolvers answer in any order
    }
    let decides = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        config.listeners,
        config.tls,
        config.certificates,
        pools,
        config.rules.specs,
        config.timeouts,
        config.limits
    );
    let folder = format!("{:?}", config.folder.join("")); // with the slash behind it, between quotes
    let decides = decides.replace(&folder[..folder.len() - 1], "\"");
    let number = fnv(decides.bytes()); // it only needs to distinguish what people write
    (number ^ number >> 53) & EXACT
}

#[cfg(test)]
mod tests;
