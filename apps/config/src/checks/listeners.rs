//! Checks of listeners: address, protocol, and the parts they refer to.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use evergate_base::net::Network;
use evergate_http::ForwardedTrust;

use super::audit::scope;
use super::certificates::HTTP_PROTOCOLS;
use super::context::Checks;
use super::node::listener_limits;
use super::proxy_protocol;
use crate::address;
use crate::model::{CertificateId, ListenAddress, Listener, ListenerTls, PoolId, Protocol, Sticky, TlsId};
use crate::problem::REFUSED;
use crate::raw::{RawConfig, RawListener, RawTrust};
use crate::span::KeyPath;
use evergate_rules::RuleSpec;

pub(crate) fn listeners(config: &RawConfig, checks: &mut Checks<'_>) -> Vec<Listener> {
    let list = KeyPath::root().key("listeners");
    if config.listeners.is_empty() && !checks.report.is_excused(&list) {
        checks.report.error_because(
            &list,
            "there is no listener",
            format!("no client could connect; {REFUSED}"),
            "add `[[listeners]]` with `name = \"public\"`, `address = \":443\"` and `protocol = \"https\"`",
        );
    }
    let mut seen = BTreeMap::new();
    let mut bound: Vec<(ListenAddress, KeyPath)> = Vec::new();
    let mut all = Vec::new();
    for (i, raw) in config.listeners.iter().enumerate() {
        let at = list.index(i);
        let name = checks.name(raw.name.as_deref(), &at, &mut seen, "public");
        let address = listen_address(raw, &at, &mut bound, checks);
        let protocol = protocol(raw, &at, checks);
        let pool = pool(config, raw, protocol, &at, checks);
        let tls = tls(config, raw, protocol, &at, checks);
        let redirect_to_https = redirect(config, raw, protocol, &at, checks);
        let trust_forwarded = forwarded_trust(raw, protocol, &at, checks);
        let own = raw.limits.clone().unwrap_or_default();
        let limits = listener_limits(&own, &config.limits, &at.key("limits"), checks);
        if let (Some(address), Some(protocol)) = (address, protocol) {
            warn_of_unusual_port(address, protocol, &at, checks);
        }
        if let (Some(name), Some(address), Some(protocol)) = (name, address, protocol) {
            all.push(Listener {
                name,
                address,
                protocol,
                tls,
                pool,
                trust_forwarded,
                trusted_proxies: proxy_protocol::of_listener(raw, &at, checks),
                audit: scope(config, raw.audit, protocol),
                redirect_to_https,
                limits,
            });
        }
    }
    all
}

fn listen_address(
    raw: &RawListener,
    at: &KeyPath,
    bound: &mut Vec<(ListenAddress, KeyPath)>,
    checks: &mut Checks<'_>,
) -> Option<ListenAddress> {
    let at = at.key("address");
    let Some(text) = &raw.address else {
        let consequence = format!("clients could not connect; {REFUSED}");
        checks.report.missing(&at, &consequence, "add `address = \":443\"` for port 443 of all addresses");
        return None;
    };
    let address = match address::listen(text) {
        Ok(address) => address,
        Err(wrong) => {
            checks.report.error(&at, wrong.what, wrong.remedy);
            return None;
        }
    };
    if let Some((_, other)) = bound.iter().find(|(other, _)| overlaps(*other, address)) {
        let other = other.parent().unwrap_or_default();
        checks.report.error_because(
            &at,
            format!("`{}` listens on that address already", other.as_str()),
            format!("a connection could not be assigned to one of them; {REFUSED}"),
            "give each listener its own port or address; to separate requests on one address, use rules",
        );
    }
    bound.push((address, at));
    Some(address)
}

/// Whether some rule routes connections of the listener.
fn is_routed(config: &RawConfig, raw: &RawListener) -> bool {
    let names = |rule: &&RuleSpec| raw.name.as_ref().is_some_and(|name| rule.listeners.contains(name));
    config.rules.iter().filter(names).any(|rule| rule.route.is_some())
}

/// Whether two listeners would compete for a connection. The kernel prefers a listener on one address to
/// a listener on all addresses, so only equal ones compete.
fn overlaps(a: ListenAddress, b: ListenAddress) -> bool {
    let all_addresses = |x: ListenAddress| x.socket.ip().is_unspecified();
    a.socket == b.socket
        || (a.socket.port() == b.socket.port()
            && all_addresses(a)
            && all_addresses(b)
            && (a.both_families || b.both_families))
}

fn protocol(raw: &RawListener, at: &KeyPath, checks: &mut Checks<'_>) -> Option<Protocol> {
    if raw.protocol.is_none() {
        checks.report.missing(
            &at.key("protocol"),
            REFUSED,
            "add `protocol = \"https\"`, \"http\", \"tls\" (terminated here, bytes passed on), \"tcp\" or \
             \"passthrough\"",
        );
    }
    raw.protocol
}

fn pool(
    config: &RawConfig,
    raw: &RawListener,
    protocol: Option<Protocol>,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> Option<PoolId> {
    let at = at.key("pool");
    let Some(name) = &raw.pool else {
        match protocol {
            Some(Protocol::Passthrough) if is_routed(config, raw) => {}
            Some(protocol) if protocol.is_raw() => {
                let consequence =
                    format!("a `{}` connection would have no server; {REFUSED}", protocol.as_str());
                checks.report.missing(
                    &at,
                    &consequence,
                    "add `pool` with the name of one of the `[[pools]]`",
                );
            }
            Some(_)
                if config.rules.is_empty() && !raw.redirect_to_https && !checks.report.is_excused(&at) =>
            {
                checks.report.warning(
                    &at,
                    "the listener has no pool and there are no rules",
                    "every request is answered with 404",
                    "add `pool` with the name of one of the `[[pools]]`, or add `[[rules]]`",
                );
            }
            _ => {}
        }
        return None;
    };
    let index = checks.pools.find(name, "pool", "[[pools]]", &at, &mut checks.report)?;
    let Some(protocol) = protocol.filter(|protocol| protocol.is_raw()) else { return Some(PoolId(index)) };
    let Some(pool) = config.pools.get(index) else { return Some(PoolId(index)) };
    super::connection_rules::tls_twice(protocol, name, pool, &at, checks);
    if pool.sticky == Sticky::Cookie {
        checks.report.error_because(
            &at,
            format!(
                "the pool {name:?} is sticky by cookie, but a `{}` listener sees no cookies",
                protocol.as_str()
            ),
            format!("clients would not return to their servers; {REFUSED}"),
            "write `sticky = \"source\"` in the pool, or use another pool",
        );
    }
    Some(PoolId(index))
}

fn tls(
    config: &RawConfig,
    raw: &RawListener,
    protocol: Option<Protocol>,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> Option<ListenerTls> {
    let Some(protocol) = protocol else {
        // Still look the names up, for the mistakes in them and to know that they are used.
        let certificates = raw.certificates.iter().flatten().enumerate();
        for (i, name) in certificates {
            let at = at.key("certificates").index(i);
            checks.certificates.find(name, "certificate", "[[certificates]]", &at, &mut checks.report);
        }
        if let Some(name) = &raw.tls {
            checks.tls.mark_used(name);
        }
        return None;
    };
    if !protocol.is_tls() {
        for (key, given) in [("certificates", raw.certificates.is_some()), ("tls", raw.tls.is_some())] {
            if given {
                checks.report.error_because(
                    &at.key(key),
                    match protocol {
                        Protocol::Passthrough => {
                            format!("`{key}` is given, but the servers terminate TLS here")
                        }
                        _ => format!(
                            "`{key}` is given, but a `{}` listener does not use TLS",
                            protocol.as_str()
                        ),
                    },
                    match protocol {
                        Protocol::Passthrough => format!("no client would ever see it; {REFUSED}"),
                        _ => format!("clients would be served without encryption; {REFUSED}"),
                    },
                    format!(
                        "write `protocol = \"{}\"`, or remove `{key}`",
                        if protocol == Protocol::Http { "https" } else { "tls" }
                    ),
                );
            }
        }
        for name in raw.certificates.iter().flatten() {
            checks.certificates.mark_used(name);
        }
        if let Some(name) = &raw.tls {
            checks.tls.mark_used(name);
        }
        return None;
    }
    let settings = match &raw.tls {
        None => Some(TlsId::BUILT_IN),
        Some(name) => {
            let at = at.key("tls");
            let found = checks.tls.find(name, "TLS settings", "[tls.NAME]", &at, &mut checks.report);
            if let (Some(_), Protocol::Https, Some(settings)) = (found, protocol, config.tls.get(name)) {
                alpn_of_https(name, &settings.alpn, &at, checks);
            }
            // Index 0 are the built-in settings.
            found.map(|index| TlsId(index + 1))
        }
    };
    let certificates = listener_certificates(config, raw, protocol, at, checks);
    Some(ListenerTls { settings: settings?, certificates: certificates? })
}

fn alpn_of_https(name: &str, alpn: &[String], at: &KeyPath, checks: &mut Checks<'_>) {
    for protocol in alpn.iter().filter(|p| !p.is_empty() && !HTTP_PROTOCOLS.contains(&p.as_str())) {
        checks.report.error_because(
            at,
            format!(
                "[tls.{name}] offers {protocol:?}, but an `https` listener supports \"http/1.1\" and \"http/1.0\" \
                 only"
            ),
            format!("clients that choose it would not be understood; {REFUSED}"),
            format!(
                "remove {protocol:?} from `alpn` in [tls.{name}], or use `protocol = \"tls\"` to forward the bytes"
            ),
        );
    }
}

fn listener_certificates(
    config: &RawConfig,
    raw: &RawListener,
    protocol: Protocol,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> Option<Vec<CertificateId>> {
    let key = at.key("certificates");
    match &raw.certificates {
        Some(names) if names.is_empty() => {
            checks.report.error_because(
                &key,
                "the list of certificates is empty",
                format!("no TLS handshake could succeed; {REFUSED}"),
                "name at least one, or remove the key to use all `[[certificates]]`",
            );
            None
        }
        Some(names) => {
            let mut ids = Vec::new();
            for (i, name) in names.iter().enumerate() {
                let at = key.index(i);
                let found = checks.certificates.find(
                    name,
                    "certificate",
                    "[[certificates]]",
                    &at,
                    &mut checks.report,
                );
                let Some(index) = found else { continue };
                if ids.contains(&CertificateId(index)) {
                    checks.report.error(&at, format!("{name:?} is in the list twice"), "remove one of them");
                }
                ids.push(CertificateId(index));
            }
            Some(ids)
        }
        None if checks.report.is_excused(&key) => None,
        None if config.certificates.is_empty() => {
            if !checks.report.is_excused(&KeyPath::root().key("certificates")) {
                checks.report.error_because(
                    &at.key("protocol"),
                    format!("the listener uses `{}`, but there is no certificate", protocol.as_str()),
                    format!("no TLS handshake could succeed; {REFUSED}"),
                    "add `[[certificates]]` with `name`, `chain` and `key`; for tests with `name = \"local\"` and \
                     `self_signed = [\"localhost\"]`",
                );
            }
            None
        }
        None => {
            for certificate in &config.certificates {
                if let Some(name) = &certificate.name {
                    checks.certificates.mark_used(name);
                }
            }
            Some((0..config.certificates.len()).map(CertificateId).collect())
        }
    }
}

/// Most networks of `trust_forwarded`: each request may be compared with all of them.
const TRUSTED_NETWORKS_MAX: usize = 256;

fn forwarded_trust(
    raw: &RawListener,
    protocol: Option<Protocol>,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> ForwardedTrust {
    let at = at.key("trust_forwarded");
    let trust = match &raw.trust_forwarded {
        RawTrust::All(false) => return ForwardedTrust::NoPeer,
        RawTrust::All(true) => ForwardedTrust::AllPeers,
        RawTrust::Networks(texts) => ForwardedTrust::Networks(trusted_networks(texts, &at, checks)),
    };
    if protocol.is_some_and(|protocol| !protocol.is_http()) {
        checks.report.error_because(
            &at,
            "`trust_forwarded` is about HTTP headers, which this listener does not read",
            format!("it would have no effect; {REFUSED}"),
            "remove it, or write `protocol = \"http\"` or \"https\"",
        );
    }
    trust
}

fn trusted_networks(texts: &[String], at: &KeyPath, checks: &mut Checks<'_>) -> Vec<Network> {
    if texts.is_empty() || texts.len() > TRUSTED_NETWORKS_MAX {
        checks.report.error(
            at,
            format!("`trust_forwarded` has {} networks", texts.len()),
            format!("list 1 to {TRUSTED_NETWORKS_MAX} networks, or write `trust_forwarded = false` for none"),
        );
    }
    let mut all = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        let at = at.index(i);
        match text.parse::<Network>() {
            Ok(network) if network.length() == 0 => checks.report.error_because(
                &at,
                format!("{text:?} has every address"),
                format!("any client could name any address as its own; {REFUSED}"),
                "list the networks of your own proxies",
            ),
            Ok(network) => all.push(network),
            Err(_) => checks.report.error(
                &at,
                format!("{text:?} is no network"),
                "write an address, or one with the length of its prefix, as \"10.0.0.0/8\" or \"2001:db8::/32\"",
            ),
        }
    }
    all
}

fn redirect(
    config: &RawConfig,
    raw: &RawListener,
    protocol: Option<Protocol>,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> Option<u16> {
    if !raw.redirect_to_https {
        return None;
    }
    let at = at.key("redirect_to_https");
    let protocol = protocol?;
    if protocol != Protocol::Http {
        checks.report.error_because(
            &at,
            format!("only `http` listeners redirect to https; this one is `{}`", protocol.as_str()),
            format!("it would redirect to itself or have no effect; {REFUSED}"),
            "remove the key, or write `protocol = \"http\"`",
        );
        return None;
    }
    let at_of = |raw: &RawListener| Some(address::listen(raw.address.as_deref()?).ok()?.socket);
    let own = at_of(raw).map(|at| at.ip());
    // One that this listener's clients can reach.
    let is_near = |https: &SocketAddr| {
        https.ip().is_unspecified()
            || own.is_none_or(|own| https.ip() == own || own.is_unspecified() && !https.ip().is_loopback())
    };
    let https = config.listeners.iter().filter(|raw| raw.protocol == Some(Protocol::Https));
    let ports: Vec<u16> = https.filter_map(at_of).filter(is_near).map(|at| at.port()).collect();
    let port = ports.iter().find(|p| **p == 443).or(ports.first()).copied();
    if port.is_none() {
        checks.report.warning(
            &at,
            "there is no `https` listener to redirect to at this listener's address",
            "clients are sent to port 443, where this node does not listen",
            "add an `https` listener, unless another machine serves it",
        );
    }
    if raw.pool.is_some() {
        checks.report.warning(
            &at,
            "the listener redirects every request, and has a pool",
            "the pool gets no requests from this listener",
            "remove `pool` or `redirect_to_https`",
        );
    }
    Some(port.unwrap_or(443))
}

fn warn_of_unusual_port(address: ListenAddress, protocol: Protocol, at: &KeyPath, checks: &mut Checks<'_>) {
    let port = address.socket.port();
    let (expected, other) = match (protocol, port) {
        (Protocol::Https, 80) => ("http", "443"),
        (Protocol::Http, 443) => ("https", "80"),
        _ => return,
    };
    checks.report.warning(
        &at.key("address"),
        format!("the listener uses `{}` on port {port}", protocol.as_str()),
        format!("clients expect `{expected}` there and fail to connect"),
        format!("use port {other}, or write `protocol = \"{expected}\"`"),
    );
}
