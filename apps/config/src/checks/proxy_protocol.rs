//! Checks of the PROXY protocol from proxies in front of listeners.

use evergate_base::net::Network;

use super::context::Checks;
use crate::problem::REFUSED;
use crate::raw::RawListener;
use crate::span::KeyPath;

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
