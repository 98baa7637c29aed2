//! Checks that concern several parts of the file: loops, competing addresses, unused entries.

use std::net::{IpAddr, SocketAddr};

use super::context::Checks;
use crate::model::{Config, ListenAddress};
use crate::problem::REFUSED;
use crate::raw::RawConfig;
use crate::span::KeyPath;

/// Looks for things that are defined and not used, by the references that earlier checks followed.
pub(crate) fn unused(raw: &RawConfig, checks: &mut Checks<'_>) {
    let root = KeyPath::root();
    let mut unused = Vec::new();
    for (i, pool) in raw.pools.iter().enumerate() {
        if let Some(name) = &pool.name
            && !checks.pools.is_used(name)
        {
            let remedy = "name it as `pool` of a listener or `route` of a rule, or remove it";
            unused.push((
                root.key("pools").index(i),
                format!("no listener or rule uses the pool {name:?}"),
                remedy,
            ));
        }
    }
    for (i, certificate) in raw.certificates.iter().enumerate() {
        if let Some(name) = &certificate.name
            && !checks.certificates.is_used(name)
        {
            let remedy = "add it to `certificates` of an `https` or `tls` listener, or remove it";
            let what = format!("no listener uses the certificate {name:?}");
            unused.push((root.key("certificates").index(i), what, remedy));
        }
    }
    for name in raw.tls.keys().filter(|name| !checks.tls.is_used(name)) {
        let remedy = "name it as `tls` of an `https` or `tls` listener, or remove it";
        unused.push((
            root.key("tls").key(name),
            format!("no listener uses the TLS settings {name:?}"),
            remedy,
        ));
    }
    for (at, what, remedy) in unused {
        checks.report.warning(&at, what, "it has no effect", remedy);
    }
}

/// Looks for servers and metrics that are in truth this node's own listeners.
///
/// Positions in `config` and in the file are the same only if every element was valid, so this runs last
/// and only then.
pub(crate) fn loops(config: &Config, checks: &mut Checks<'_>) {
    let root = KeyPath::root();
    for (p, pool) in config.pools.iter().enumerate() {
        for (s, server) in pool.servers.iter().enumerate() {
            let at = root.key("pools").index(p).key("servers").index(s).key("address");
            let found =
                config.listeners.iter().find(|l| server.addresses.iter().any(|a| reaches(*a, l.address)));
            if let Some(listener) = found {
                checks.report.error_because(
                    &at,
                    format!("the server is this node's own listener {:?}", listener.name),
                    format!("a request would go round until connections run out; {REFUSED}"),
                    "write the address of the server behind this node, or give the listener another port",
                );
            }
        }
    }
    if let Some(metrics) = config.admin.metrics_listen
        && let Some(listener) = config.listeners.iter().find(|listener| listener.address.meets(metrics))
    {
        checks.report.error_because(
            &root.key("admin").key("metrics_listen"),
            format!("the listener {:?} has that address already, \"{}\"", listener.name, listener.address),
            format!("the kernel gives it to one of them only; {REFUSED}"),
            "give the metrics a port of their own, such as \"127.0.0.1:9090\"",
        );
    }
}

/// Whether connecting to `server` surely reaches the listener. Other addresses of this machine are not
/// known here; a loop through them shows at run time.
fn reaches(server: SocketAddr, listener: ListenAddress) -> bool {
    if server.port() != listener.socket.port() {
        return false;
    }
    let (to, on) = (server.ip(), listener.socket.ip());
    let family = match (to, on) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => true,
        _ => listener.both_families,
    };
    to == on || (family && on.is_unspecified() && to.is_loopback())
}
