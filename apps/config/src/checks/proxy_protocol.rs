//! Checks of the PROXY protocol: from proxies in front of listeners, and towards servers.

use evergate_base::net::Network;
use evergate_base::{ProxyHeader, ProxyVersion};

use super::context::Checks;
use crate::problem::REFUSED;
use crate::raw::{RawListener, RawPool};
use crate::span::KeyPath;

/// Fields that a header of version 2 can carry.
const TLVS: [&str; 3] = ["authority", "alpn", "unique_id"];

/// Networks whose PROXY headers begin each connection of a listener; `None` without such headers.
pub(crate) fn of_listener(raw: &RawListener, at: &KeyPath, checks: &mut Checks<'_>) -> Option<Vec<Network>> {
    let list = at.key("trusted_proxies");
    let networks = networks(&raw.trusted_proxies, &list, checks);
    if raw.proxy_protocol && raw.audit {
        checks.report.error_because(
            &at.key("proxy_protocol"),
            "audited capture cannot play connections that begin with a PROXY header",
            format!("a player would find no TLS at their beginning; {REFUSED}"),
            "remove `audit`, or `proxy_protocol`",
        );
    }
    match (raw.proxy_protocol, raw.trusted_proxies.is_empty()) {
        (true, true) => {
            checks.report.error_because(
                &at.key("proxy_protocol"),
                "`proxy_protocol` has no `trusted_proxies`",
                format!("any client could claim any address; {REFUSED}"),
                "add `trusted_proxies = [\"10.0.0.0/8\"]` with the networks of your own proxies",
            );
            None
        }
        (true, false) => Some(networks),
        (false, true) => None,
        (false, false) => {
            checks.report.warning(
                &list,
                "`trusted_proxies` has no effect without `proxy_protocol`",
                "the address of a proxy counts as its clients' address",
                "add `proxy_protocol = true`, or remove the key",
            );
            None
        }
    }
}

fn networks(texts: &[String], list: &KeyPath, checks: &mut Checks<'_>) -> Vec<Network> {
    let mut all = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        match text.parse() {
            Ok(network) => all.push(network),
            Err(_) => checks.report.error(
                &list.index(i),
                format!("`{text}` is not a network"),
                "write an address, or one with the length of its prefix, as \"10.0.0.0/8\" or \"2001:db8::/32\"",
            ),
        }
    }
    all
}

/// PROXY header towards the servers of a pool.
pub(crate) fn of_pool(raw: &RawPool, at: &KeyPath, checks: &mut Checks<'_>) -> Option<ProxyHeader> {
    let list = at.key("proxy_protocol_tlvs");
    for (i, name) in raw.proxy_protocol_tlvs.iter().enumerate() {
        if !TLVS.contains(&name.as_str()) {
            checks.report.error(
                &list.index(i),
                format!("`{name}` is not a field of a PROXY header here"),
                format!("write one of {}", TLVS.map(|name| format!("\"{name}\"")).join(", ")),
            );
        }
    }
    let has = |name: &str| raw.proxy_protocol_tlvs.iter().any(|known| known == name);
    if !raw.proxy_protocol_tlvs.is_empty() && raw.proxy_protocol != Some(ProxyVersion::V2) {
        checks.report.error_because(
            &list,
            "only a header of version 2 has fields",
            format!("servers would get none of them; {REFUSED}"),
            "add `proxy_protocol = \"v2\"`, or remove the key",
        );
    }
    Some(ProxyHeader {
        version: raw.proxy_protocol?,
        authority: has("authority"),
        alpn: has("alpn"),
        unique_id: has("unique_id"),
    })
}
