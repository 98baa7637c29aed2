//! Checks of rules that decide about whole connections: each names a listener that reads no requests.

use evergate_rules::{Deny, FieldScope, RuleId, RuleSpec, Ruleset, Sticky};

use super::context::Checks;
use crate::model::Protocol;
use crate::problem::REFUSED;
use crate::raw::{RawConfig, RawListener, RawPool};
use crate::span::KeyPath;

/// The listeners without requests that a rule names.
fn raw_listeners<'c>(
    config: &'c RawConfig,
    rule: &'c RuleSpec,
) -> impl Iterator<Item = (&'c RawListener, Protocol)> {
    let is_named =
        |listener: &&RawListener| listener.name.as_ref().is_some_and(|name| rule.listeners.contains(name));
    let protocols = |listener: &'c RawListener| Some((listener, listener.protocol?));
    let named = config.listeners.iter().filter(is_named).filter_map(protocols);
    named.filter(|(_, protocol)| protocol.is_raw())
}

/// The rules for the compiler: one without `listeners` applies to requests only.
pub(super) fn scoped(config: &RawConfig) -> Vec<RuleSpec> {
    let mut asked: Vec<String> = Vec::new();
    for (listener, _) in config.rules.iter().flat_map(|rule| raw_listeners(config, rule)) {
        asked.extend(listener.name.clone());
    }
    asked.sort_unstable();
    asked.dedup();
    let mut specs = config.rules.clone();
    for spec in &mut specs {
        spec.except_listeners.clone_from(&asked);
        spec.of_connections = spec.listeners.iter().any(|name| asked.contains(name));
    }
    specs
}

/// Checks that a rule does to connections, or to requests, what can be done to them.
pub(super) fn actions(config: &RawConfig, rule: &RuleSpec, at: &KeyPath, checks: &mut Checks<'_>) {
    let Some((listener, protocol)) = raw_listeners(config, rule).next() else {
        if let Some(name) = rule.deny.and_then(Deny::name) {
            checks.report.error_because(
                &at.key("deny"),
                format!("`deny = {name:?}` ends connections, and the rule applies to requests"),
                format!("a request is answered with a status; {REFUSED}"),
                "write a status such as `deny = 403`, or name `tls`, `tcp` or `passthrough` listeners in `listeners`",
            );
        }
        return;
    };
    let shown = format!("{:?} is `{}`, which reads no requests", name_of(listener), protocol.as_str());
    let reads_requests = |name: &String| {
        let named = config.listeners.iter().find(|listener| listener.name.as_ref() == Some(name));
        named.and_then(|listener| listener.protocol).is_some_and(Protocol::is_http)
    };
    if rule.listeners.iter().any(reads_requests) {
        checks.report.error_because(
            &at.key("listeners"),
            format!("the rule is for requests and for connections: the listener {shown}"),
            format!("the same condition would mean different things; {REFUSED}"),
            "write two rules",
        );
        return;
    }
    let edits = [
        ("redirect", rule.redirect.is_some()),
        ("set_request_headers", !rule.set_request_headers.is_empty()),
        ("remove_request_headers", !rule.remove_request_headers.is_empty()),
        ("set_response_headers", !rule.set_response_headers.is_empty()),
        ("remove_response_headers", !rule.remove_response_headers.is_empty()),
    ];
    for (key, _) in edits.iter().filter(|(_, given)| *given) {
        checks.report.error_because(
            &at.key(key),
            format!("`{key}` needs requests, but the listener {shown}"),
            format!("it would have no effect; {REFUSED}"),
            "remove the key, or remove the listener from the rule",
        );
    }
    if rule.sticky == Some(Sticky::Cookie) {
        checks.report.error_because(
            &at.key("sticky"),
            format!("a cookie needs requests, but the listener {shown}"),
            format!("clients would not return to their servers; {REFUSED}"),
            "write `sticky = \"source\"`, or remove the key",
        );
    }
    denial(rule, at, checks, (listener, protocol));
}

fn denial(
    rule: &RuleSpec,
    at: &KeyPath,
    checks: &mut Checks<'_>,
    (listener, protocol): (&RawListener, Protocol),
) {
    let what = match rule.deny {
        Some(Deny::Status(status)) => format!("a connection has no answer with the status {status}"),
        Some(deny) if deny.is_alert() && protocol == Protocol::Tcp => {
            format!("{:?} is `tcp`, so its connections have no TLS alert", name_of(listener))
        }
        _ => return,
    };
    let remedy = match protocol {
        Protocol::Tcp => "write `deny = \"reset\"`",
        _ => "write `deny = \"access_denied\"`, \"unrecognized_name\" or \"reset\"",
    };
    let consequence = format!("connections could not be refused so; {REFUSED}");
    checks.report.error_because(&at.key("deny"), what, consequence, remedy);
}

fn name_of(listener: &RawListener) -> &str {
    listener.name.as_deref().unwrap_or_default()
}

/// What conditions can see of a connection.
fn scope_of(protocol: Protocol) -> FieldScope {
    match protocol {
        Protocol::Tcp => FieldScope::Connection,
        Protocol::Passthrough => FieldScope::Hello,
        Protocol::Tls => FieldScope::Handshake,
        Protocol::Https | Protocol::Http => FieldScope::Request,
    }
}

/// Refuses conditions on what the named listeners do not read.
pub(super) fn fields(config: &RawConfig, ruleset: &Ruleset, checks: &mut Checks<'_>) {
    for (i, rule) in (0..).zip(&config.rules) {
        let Some((scope, field)) = ruleset.widest_field(RuleId(i)) else { continue };
        let mut blind = raw_listeners(config, rule).filter(|(_, protocol)| scope > scope_of(*protocol));
        let Some((listener, protocol)) = blind.next() else { continue };
        let seen = match protocol {
            Protocol::Tcp => "client.ip, client.port, local.ip and local.port",
            Protocol::Passthrough => "these and tls.sni, tls.alpn and tls.version of the ClientHello",
            _ => "the addresses and the fields that begin with tls.",
        };
        checks.report.error_because(
            &KeyPath::root().key("rules").index(i as usize).key("when"),
            format!("{field} is not known on the `{}` listener {:?}", protocol.as_str(), name_of(listener)),
            format!("the condition would compare with nothing; {REFUSED}"),
            format!("compare what the listener reads ({seen}), or remove it from the rule"),
        );
    }
}

/// Whether a pool gets connections as they are: of `tcp` and `passthrough` listeners, by default or by a rule.
pub(super) fn is_relayed(config: &RawConfig, pool: &str) -> bool {
    is_reached(config, pool, &[Protocol::Tcp, Protocol::Passthrough])
}

/// Whether a listener with one of these protocols leads to a pool, by default or by a rule that names the listener.
pub(super) fn is_reached(config: &RawConfig, pool: &str, protocols: &[Protocol]) -> bool {
    let routed = |listener: &RawListener| {
        let names =
            |rule: &&RuleSpec| listener.name.as_ref().is_some_and(|name| rule.listeners.contains(name));
        config.rules.iter().filter(names).any(|rule| rule.route.as_deref() == Some(pool))
    };
    let among = |listener: &&RawListener| listener.protocol.is_some_and(|found| protocols.contains(&found));
    let mut listeners = config.listeners.iter().filter(among);
    listeners.any(|listener| listener.pool.as_deref() == Some(pool) || routed(listener))
}

/// Refuses a pool that would wrap the client's own TLS in another.
pub(super) fn tls_twice(
    protocol: Protocol,
    name: &str,
    pool: &RawPool,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) {
    if protocol == Protocol::Passthrough && pool.tls.is_some() {
        checks.report.error_because(
            at,
            format!(
                "the pool {name:?} uses TLS to its servers, and the client's TLS passes through unopened"
            ),
            format!("servers would receive TLS inside TLS; {REFUSED}"),
            "remove `tls` from the pool, or write `protocol = \"tls\"` to terminate TLS here",
        );
    }
}
