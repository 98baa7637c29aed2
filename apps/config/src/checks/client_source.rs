//! Checks of pools whose servers see the addresses of clients (`source = "client"`).

use super::context::Checks;
use super::node;
use crate::model::ServerSource;
use crate::problem::REFUSED;
use crate::raw::RawConfig;
use crate::span::KeyPath;

/// Checks what such pools need of the node.
pub(crate) fn check(config: &RawConfig, checks: &mut Checks<'_>) {
    let Some(first) = config.pools.iter().position(|pool| pool.source == ServerSource::Client) else {
        return;
    };
    let at = KeyPath::root().key("pools").index(first).key("source");
    if config.cluster.is_some() {
        checks.report.error_because(
            &at,
            "a node of a cluster cannot connect to servers from the addresses of clients",
            format!(
                "other nodes continue connections from ports of `cluster.server_source` that belong to one node at a \
                 time, and a client's address has no such ports; {REFUSED}"
            ),
            "remove `source`, and let servers learn the address from `proxy_protocol = \"v2\"` or X-Forwarded-For",
        );
        return; // a cluster has its own finding about `node.user`
    }
    if config.node.user.is_some() {
        node::user_loses_rights(
            "a node with `source = \"client\"` cannot become another user",
            "it needs CAP_NET_RAW for every connection to a server",
            checks,
        );
    }
    if let Some(missing) = checks.world.lacks_client_source() {
        checks.report.warning(
            &at,
            format!("this process may not use the addresses of clients: {missing}"),
            "a node with the rights of this process refuses the configuration",
            "run the node as root, or give it the capability (systemd: `AmbientCapabilities=CAP_NET_RAW`)",
        );
    }
}
