//! What of a cluster only shows when the whole file is read.

use std::net::IpAddr;

use evergate_connection::{UNDECIDED_MAX, undecided};

use super::cluster::BUCKETS;
use super::context::Checks;
use super::node::pick_given;
use crate::model::{Certificate, CertificateSource, Cluster, Config, ListenerLimits};
use crate::problem::REFUSED;
use crate::span::KeyPath;

/// Runs when there were no errors.
pub(crate) fn fits(config: &Config, checks: &mut Checks<'_>) {
    let Some(cluster) = &config.cluster else { return };
    let root = KeyPath::root();
    let carried = config
        .listeners
        .iter()
        .any(|l| l.address.socket.ip().is_unspecified() || cluster.moves(l.address.socket));
    if !carried {
        checks.report.warning(
            &root.key("cluster").key("addresses"),
            "no listener is on one of these addresses",
            "no connection outlives its node",
            format!(
                "let a listener have the address \"{}:443\"",
                cluster.addresses.first().map_or_else(String::new, ToString::to_string)
            ),
        );
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let Some(tls) = &listener.tls else { continue };
        let own =
            |certificate: &&Certificate| matches!(certificate.source, CertificateSource::SelfSigned { .. });
        if let Some(certificate) = tls.certificates.iter().map(|id| config.certificate(*id)).find(own) {
            checks.report.error_because(
                &root.key("listeners").index(index),
                format!("the certificate {:?} is made anew by each node", certificate.name),
                format!("another node could not go on with a handshake that this one began; {REFUSED}"),
                "give all nodes the same `chain` and `key` files",
            );
        }
    }
    listener_ports(config, cluster, checks);
    undecided_requests(config, checks);
    for (p, pool) in config.pools.iter().enumerate() {
        for (s, server) in pool.servers.iter().enumerate() {
            let family = |ip: IpAddr| ip.to_canonical().is_ipv4();
            let lacks = |server: &std::net::SocketAddr| {
                !cluster.server_source.iter().any(|source| family(*source) == family(server.ip()))
            };
            if server.addresses.iter().any(lacks) {
                checks.report.warning(
                    &root.key("pools").index(p).key("servers").index(s).key("address"),
                    "`cluster.server_source` has no address of this server's family",
                    "connections to it end with the node that carries them",
                    "add an address of that family to `cluster.server_source`",
                );
            }
        }
    }
}

/// A client of a listener on the port of a connection to a server would be taken for that server.
fn listener_ports(config: &Config, cluster: &Cluster, checks: &mut Checks<'_>) {
    let first = u32::from(cluster.server_ports_first);
    let last = first + u32::from(cluster.ports_per_bucket) * BUCKETS - 1;
    for (index, listener) in config.listeners.iter().enumerate() {
        let at = listener.address.socket;
        let starts_there = |ip: &IpAddr| {
            let anywhere =
                at.ip().is_unspecified() && (listener.address.both_families || ip.is_ipv4() == at.is_ipv4());
            *ip == at.ip() || (anywhere && cluster.addresses.contains(ip))
        };
        if (first..=last).contains(&u32::from(at.port())) && cluster.server_source.iter().any(starts_there) {
            checks.report.error(
                &KeyPath::root().key("listeners").index(index).key("address"),
                format!("connections to servers start from the ports {first} to {last} of the same address (`cluster.server_source`)"),
                "choose another port, or another `server_source`",
            );
        }
    }
}

/// Until rules have decided about a request, backups keep what was said of it, and they keep so much.
fn undecided_requests(config: &Config, checks: &mut Checks<'_>) {
    let root = KeyPath::root();
    let node = &config.limits.listener;
    let own = config
        .listeners
        .iter()
        .enumerate()
        .map(|(index, listener)| (root.key("listeners").index(index).key("limits"), &listener.limits));
    let own = own.filter(|(at, _)| {
        ["body_prefix_bytes", "head_bytes_max"].iter().any(|key| checks.report.is_given(&at.key(key)))
    });
    let all: Vec<_> = std::iter::once((root.key("limits"), node)).chain(own).collect();
    for (at, limits) in all {
        undecided_request(&at, limits, checks);
    }
}

fn undecided_request(at: &KeyPath, limits: &ListenerLimits, checks: &mut Checks<'_>) {
    let (head, prefix) = (limits.head_bytes_max, limits.body_prefix_bytes);
    let needed = undecided(head, prefix);
    if needed <= UNDECIDED_MAX {
        return;
    }
    let less = UNDECIDED_MAX.checked_sub(undecided(head, 0)).map(|left| left / 2);
    let remedy = match less {
        Some(less) => format!("write `body_prefix_bytes = {less}` or less"),
        None => "lower `head_bytes_max`, too".to_owned(),
    };
    checks.report.error_because(
        &pick_given(checks, at, "body_prefix_bytes", "head_bytes_max"),
        format!(
            "a head of {head} bytes (`head_bytes_max`) and what rules see of a body ({prefix}, and as much framing) are up to \
             {needed} bytes, and backups keep {UNDECIDED_MAX} of a request that is not decided"
        ),
        format!("longer requests would be waited for in vain, and answered with 408; {REFUSED}"),
        remedy,
    );
}
