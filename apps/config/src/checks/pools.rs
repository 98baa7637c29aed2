//! Checks of pools and their servers.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use evergate_rules::Sticky as RuleSticky;

use super::certificates;
use super::client_source;
use super::connection_rules;
use super::context::{Checks, Content};
use super::health::health;
use super::proxy_protocol;
use super::session_balancing;
use crate::address::{self, Host, is_host_name};
use crate::environment::World;
use crate::model::{ClientIdentity, Pool, PoolTls, Server, Sticky};
use crate::problem::REFUSED;
use crate::raw::{RawConfig, RawPool, RawPoolTls, RawServer};
use crate::span::KeyPath;

/// Text about a server that is in its pool already, after the name of the other one.
pub(crate) const SAME_SERVER: &str = "is the same server";

pub(crate) fn pools(config: &RawConfig, checks: &mut Checks<'_>) -> Vec<Pool> {
    let list = KeyPath::root().key("pools");
    let lookups = look_up(config, checks.world);
    let by_cookie = sticky_pools(config, Sticky::Cookie, RuleSticky::Cookie);
    let by_source = sticky_pools(config, Sticky::Source, RuleSticky::Source);
    client_source::check(config, checks);
    let mut seen = BTreeMap::new();
    let mut all = Vec::new();
    for (i, raw) in config.pools.iter().enumerate() {
        let at = list.index(i);
        let name = checks.name(raw.name.as_deref(), &at, &mut seen, "web");
        let is_relayed = connection_rules::is_relayed(config, raw.name.as_deref().unwrap_or_default());
        let servers = servers(raw, is_relayed, &lookups, &at, checks);
        sticky(raw, &by_cookie, &by_source, &at, checks);
        shared_cookie(config, i, &by_cookie, &at, checks);
        queue_classes(raw, &at, checks);
        let sessions = session_balancing::sessions(raw, &at, checks);
        warn_of_contradictions(raw, &at, checks);
        let tls = raw.tls.as_ref().and_then(|tls| pool_tls(tls, &at.key("tls"), checks));
        let health = raw.health.as_ref().and_then(|raw| health(raw, &at.key("health"), checks));
        let proxy_protocol = proxy_protocol::of_pool(raw, &at, checks);
        let ms = Duration::from_millis;
        let Some(name) = name else { continue };
        all.push(Pool {
            sticky_cookie: cookie_of(raw).into_owned(),
            name,
            policy: raw.policy,
            sticky: raw.sticky,
            sticky_load_percent_max: raw.sticky_load_percent_max,
            sessions,
            servers,
            queue_max: raw.queue_max as usize,
            queue_timeout: ms(raw.queue_timeout_ms),
            queue_classes: raw.queue_classes.clone(),
            keep_alive_idle_max: raw.keep_alive_idle_max as usize,
            keep_alive_idle: ms(raw.keep_alive_idle_ms),
            retries: raw.retries,
            proxy_protocol,
            source: raw.source,
            connect_timeout: ms(raw.connect_timeout_ms),
            response_timeout: ms(raw.response_timeout_ms.unwrap_or(config.timeouts.response_ms)),
            tls,
            health,
        });
    }
    all
}

/// Addresses of each host name of the servers, with its port.
type Lookups<'c> = BTreeMap<(&'c str, u16), io::Result<Vec<SocketAddr>>>;

fn look_up<'c>(config: &'c RawConfig, world: &dyn World) -> Lookups<'c> {
    let servers = config.pools.iter().flat_map(|pool| &pool.servers);
    let named = servers.filter_map(|server| match address::server(server.address.as_deref()?) {
        Ok((Host::Name(name), port)) => Some((name, port)),
        _ => None,
    });
    let names: Vec<_> = named.collect::<BTreeSet<_>>().into_iter().collect();
    let found = world.resolve_all(&names);
    names.into_iter().zip(found).collect()
}

fn servers(
    pool: &RawPool,
    is_relayed: bool,
    lookups: &Lookups<'_>,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> Vec<Server> {
    let list = at.key("servers");
    if pool.servers.is_empty() && !checks.report.is_excused(&list) {
        checks.report.error_because(
            at,
            "the pool has no servers",
            format!("every request to it would fail; {REFUSED}"),
            "add `[[pools.servers]]` with `address = \"127.0.0.1:8080\"` after the pool's own keys",
        );
    }
    let mut names = BTreeMap::new();
    let mut addresses: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    let mut all = Vec::new();
    for (i, raw) in pool.servers.iter().enumerate() {
        let at = list.index(i);
        let name = match &raw.name {
            Some(name) => checks.name(Some(name), &at, &mut names, "web-1"),
            None => raw.address.clone(),
        };
        let Some((host, resolved)) = server_address(raw, lookups, &at.key("address"), checks) else {
            continue;
        };
        if let Some(other) = resolved.first().and_then(|a| addresses.get(a)) {
            let other = list.index(*other);
            checks.report.error_because(
                &at.key("address"),
                format!("`{}` {SAME_SERVER}", other.as_str()),
                format!("it would be checked and counted twice; {REFUSED}"),
                "remove one of them; a larger share of the load is given by `weight`",
            );
        }
        if let Some(first) = resolved.first() {
            addresses.insert(*first, i);
            warn_of_plain_https(pool, is_relayed, *first, &at.key("address"), checks);
        }
        let connections_max = NonZeroU32::new(raw.connections_max);
        let costs = session_balancing::costs(pool, raw, &at, checks);
        let Some(name) = name else { continue };
        all.push(Server { name, host, addresses: resolved, weight: raw.weight, connections_max, costs });
    }
    all
}

/// The host as written and what it resolves to, at least one address.
fn server_address(
    raw: &RawServer,
    lookups: &Lookups<'_>,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> Option<(String, Vec<SocketAddr>)> {
    let Some(text) = &raw.address else {
        let consequence = format!("there would be nothing to connect to; {REFUSED}");
        checks.report.missing(at, &consequence, "add `address = \"127.0.0.1:8080\"`");
        return None;
    };
    let (host, port) = match address::server(text) {
        Ok(found) => found,
        Err(wrong) => {
            checks.report.error(at, wrong.what, wrong.remedy);
            return None;
        }
    };
    let name = match host {
        Host::Ip(ip) => return Some((ip.to_string(), vec![SocketAddr::new(ip, port)])),
        Host::Name(name) => name,
    };
    let failure = match lookups.get(&(name, port)) {
        Some(Ok(addresses)) if !addresses.is_empty() => return Some((name.to_owned(), addresses.clone())),
        Some(Err(error)) => error.to_string(),
        _ => "it has no addresses".to_owned(),
    };
    checks.report.error_for_now(
        at,
        format!("the host name `{name}` does not resolve: {failure}"),
        "check the spelling and the resolver of this machine (`getent hosts NAME`), or write the IP address",
    );
    None
}

/// Usual ports of servers with TLS.
const TLS_PORTS: [u16; 2] = [443, 8443];

fn warn_of_plain_https(
    pool: &RawPool,
    is_relayed: bool,
    address: SocketAddr,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) {
    // The servers of a relay, or of a pool that chooses by session, terminate the clients' own TLS.
    let passes_tls_on = is_relayed || pool.policy.is_by_session();
    if pool.tls.is_none() && !passes_tls_on && TLS_PORTS.contains(&address.port()) {
        checks.report.warning(
            at,
            format!("the server is on port {}, but the pool has no `[pools.tls]`", address.port()),
            "bytes are sent to it as they are; a server that expects TLS answers 400 or closes",
            "add an empty table `[pools.tls]` if the server uses TLS",
        );
    }
}

/// The pools whose clients are kept in a way that they or rules which route to them ask for.
fn sticky_pools(config: &RawConfig, of_pools: Sticky, of_rules: RuleSticky) -> BTreeSet<&str> {
    let own = config.pools.iter().filter(|pool| pool.sticky == of_pools);
    let routed = config.rules.iter().filter(|rule| rule.sticky == Some(of_rules));
    let routed = routed.filter_map(|rule| rule.route.as_deref());
    own.filter_map(|pool| pool.name.as_deref()).chain(routed).collect()
}

fn is_among(pool: &RawPool, names: &BTreeSet<&str>) -> bool {
    pool.name.as_deref().is_some_and(|name| names.contains(name))
}

/// Name of the cookie by which clients of the pool return to their server. The default has the pool's name: a browser
/// keeps one cookie per name and site, so two pools with one name would replace each other's.
fn cookie_of(pool: &RawPool) -> Cow<'_, str> {
    match &pool.sticky_cookie {
        Some(cookie) => Cow::Borrowed(cookie),
        None => Cow::Owned(format!("EVERGATE_{}", pool.name.as_deref().unwrap_or_default())),
    }
}

/// A client has one cookie of a name: that of the pool that it was at last.
fn shared_cookie(
    config: &RawConfig,
    index: usize,
    by_cookie: &BTreeSet<&str>,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) {
    let is_sticky = |pool: &&RawPool| is_among(pool, by_cookie);
    let Some(raw) = config.pools.get(index).filter(is_sticky) else { return };
    let mut earlier = config.pools[..index].iter().filter(is_sticky);
    let cookie = cookie_of(raw);
    let Some(other) = earlier.find(|pool| cookie_of(pool) == cookie) else { return };
    checks.report.warning(
        at,
        format!("the cookie {cookie:?} is also that of pool {:?}", other.name.as_deref().unwrap_or_default()),
        "a client that alternates between them is placed again each time",
        "give one of them a `sticky_cookie` of its own",
    );
}

fn sticky(
    raw: &RawPool,
    by_cookie: &BTreeSet<&str>,
    by_source: &BTreeSet<&str>,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) {
    let key = at.key("sticky_cookie");
    if let Some(cookie) = raw.sticky_cookie.as_deref().filter(|cookie| !is_token(cookie)) {
        checks.report.error(
            &key,
            format!("{cookie:?} cannot be the name of a cookie"),
            "use letters, digits, `-` and `_` (a token of RFC 9110), such as \"EVERGATE\"",
        );
    }
    if raw.name.is_none() {
        return; // no rule can route to it: reported already
    }
    if raw.sticky_cookie.is_some() && !is_among(raw, by_cookie) {
        checks.report.warning(
            &key,
            "`sticky_cookie` is given, but neither the pool nor a rule that routes to it is sticky by cookie",
            "it has no effect",
            "add `sticky = \"cookie\"` to one of them, or remove it",
        );
    }
    if raw.sticky_load_percent_max.is_some() && !is_among(raw, by_source) {
        checks.report.warning(
            &at.key("sticky_load_percent_max"),
            "`sticky_load_percent_max` is given, but neither the pool nor a rule that routes to it is sticky by \
             address",
            "it has no effect",
            "add `sticky = \"source\"` to one of them, or remove it",
        );
    }
}

fn queue_classes(pool: &RawPool, at: &KeyPath, checks: &mut Checks<'_>) {
    for (i, class) in pool.queue_classes.iter().enumerate() {
        if pool.queue_classes[..i].contains(class) {
            checks.report.error_because(
                &at.key("queue_classes").index(i),
                format!("the class {class:?} is in the list already"),
                format!("its place in the queue would have two meanings; {REFUSED}"),
                "remove one of them",
            );
        }
    }
}

/// A token of RFC 9110 section 5.6.2, of at most 128 bytes; RFC 6265 requires one as a cookie's name.
fn is_token(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn warn_of_contradictions(raw: &RawPool, at: &KeyPath, checks: &mut Checks<'_>) {
    let unlimited = raw.servers.iter().any(|s| s.connections_max == 0);
    for key in ["queue_max", "queue_timeout_ms", "queue_classes"] {
        let at = at.key(key);
        if checks.report.is_given(&at) && unlimited && !raw.servers.is_empty() {
            checks.report.warning(
                &at,
                format!("`{key}` is given, but a server of the pool has no `connections_max`"),
                "that server takes every request, so none ever waits",
                "add `connections_max` to every server of the pool, or remove the key",
            );
        }
    }
    let idle = at.key("keep_alive_idle_ms");
    if raw.keep_alive_idle_max == 0 && checks.report.is_given(&idle) {
        checks.report.warning(
            &idle,
            "`keep_alive_idle_ms` is given, but `keep_alive_idle_max` is 0",
            "no idle connection is kept, so it has no effect",
            "raise `keep_alive_idle_max`, or remove it",
        );
    }
}

fn pool_tls(raw: &RawPoolTls, at: &KeyPath, checks: &mut Checks<'_>) -> Option<PoolTls> {
    if let Some(name) = &raw.server_name
        && !is_host_name(name)
        && name.parse::<IpAddr>().is_err()
    {
        let what = format!("{name:?} is neither a host name nor an IP address");
        checks.report.error(
            &at.key("server_name"),
            what,
            "write the name in the servers' certificate, without port",
        );
    }
    if !raw.verify {
        if raw.ca.is_some() {
            checks.report.error_because(
                &at.key("ca"),
                "`ca` is given, but `verify = false`",
                format!("certificates would not be checked against it; {REFUSED}"),
                "remove `verify = false` to check certificates against `ca`, or remove `ca`",
            );
        } else {
            checks.report.warning(
                &at.key("verify"),
                "the servers' certificates are not verified",
                "an attacker on the path to the servers can read and change the connections",
                "name the authority in `ca` and remove `verify = false`",
            );
        }
    }
    let ca = checks.optional_file(raw.ca.as_deref(), &at.key("ca"), Content::Certificates);
    if let Some(Ok(pem)) = ca.as_ref().map(|ca| checks.world.read(ca)) {
        let validity = checks.world.authority_validity(&pem);
        let concern = validity.concern_of_authority(checks.world.now_unix_s());
        certificates::concern(concern, &at.key("ca"), checks);
    }
    let chain =
        checks.optional_file(raw.client_chain.as_deref(), &at.key("client_chain"), Content::Certificates);
    let key = checks.optional_file(raw.client_key.as_deref(), &at.key("client_key"), Content::PrivateKey);
    let consequence = format!("the certificate could not be shown to the servers; {REFUSED}");
    match (&raw.client_chain, &raw.client_key) {
        (Some(_), None) => {
            checks.report.missing(
                &at.key("client_key"),
                &consequence,
                "add `client_key` with the path of its private key",
            );
        }
        (None, Some(_)) => {
            checks.report.missing(
                &at.key("client_chain"),
                &consequence,
                "add `client_chain` with the path of its certificate",
            );
        }
        _ => {}
    }
    let client = chain.zip(key).map(|(chain, key)| ClientIdentity { chain, key });
    if let Some(client) = &client {
        identity(client, at, checks);
    }
    Some(PoolTls { verify: raw.verify, server_name: raw.server_name.clone(), ca, client })
}

/// Whether what servers are shown belongs together, and is valid now.
fn identity(client: &ClientIdentity, at: &KeyPath, checks: &mut Checks<'_>) {
    let (chain_at, key_at) = (at.key("client_chain"), at.key("client_key"));
    // Both files were read before. A change since then is reported when they are loaded.
    let (Ok(chain), Ok(key)) = (checks.world.read(&client.chain), checks.world.read(&client.key)) else {
        return;
    };
    match checks.world.client_validity(&chain, &key) {
        Ok(validity) => {
            certificates::concern(validity.concern_of_client(checks.world.now_unix_s()), &chain_at, checks)
        }
        Err(error) => certificates::unfit(&error, &chain_at, &key_at, checks),
    }
}
