//! Properties of the node that do not change while it runs.

use crate::cluster_settings::ClusterSettings;
use evergate_base::Bucket;
use evergate_membership::{Incarnation, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// One of the node's two network interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number in this network namespace.
    pub index: u32,
    /// Ethernet address of its card.
    pub mac: [u8; 6],
}

/// Properties of the node that do not change while it runs.
pub struct Layout {
    /// This node.
    pub node: NodeId,
    /// This run of the node's process.
    pub incarnation: Incarnation,
    /// Workers of every node of the cluster.
    pub workers: usize,
    /// Other settings that must be equal on all nodes.
    pub settings: ClusterSettings,
    /// Movable addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Source addresses of server legs; they move too.
    pub sources: Vec<IpAddr>,
    /// Outside and inside interface.
    pub interfaces: [Interface; 2],
    /// Inside address of every other node.
    pub peers: BTreeMap<NodeId, IpAddr>,
    /// Port of worker 0's replication channels; worker 1 has the next port, and so on.
    pub replication_port: u16,
}

impl Layout {
    /// Address at which a worker of another node accepts replication channels.
    pub fn replication_address(&self, node: NodeId, worker: usize) -> Option<SocketAddr> {
        let port = u16::try_from(worker).ok().and_then(|worker| self.replication_port.checked_add(worker))?;
        self.peers.get(&node).map(|ip| SocketAddr::new(*ip, port))
    }

    /// The other node with this inside address.
    pub fn node_at(&self, ip: IpAddr) -> Option<NodeId> {
        self.peers.iter().find(|(_, of)| **of == ip).map(|(node, _)| *node)
    }

    /// Source addresses for a bucket's server legs to `server`, the first one to try first. Buckets begin at different
    /// addresses, so that all are used. Each address has its own ports.
    pub fn sources_for(&self, server: SocketAddr, bucket: Bucket) -> impl Iterator<Item = IpAddr> {
        let is_ipv4 = server.ip().to_canonical().is_ipv4();
        let fit = move || self.sources.iter().copied().filter(move |source| source.is_ipv4() == is_ipv4);
        let count = fit().count();
        let first = usize::from(bucket.0).checked_rem(count).unwrap_or_default();
        fit().cycle().skip(first).take(count)
    }

    /// This node's share of a bucket's ports. Servers may still have the pooled connections of a dead node. They refuse
    /// a new one from the same port at first, and it is tried again some milliseconds later. `None`: too few ports for
    /// all nodes.
    pub fn share_of(&self, ports: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
        let rank = self.peers.keys().filter(|id| **id < self.node).count();
        share(ports, rank, self.peers.len() + 1)
    }
}

/// Part `rank` of `ports`, cut into `parts` that differ by one at most; `None` when there are fewer ports than parts.
fn share(ports: &RangeInclusive<u16>, rank: usize, parts: usize) -> Option<RangeInclusive<u16>> {
    let before = |rank: usize| u16::try_from(ports.len() * rank / parts).ok();
    let (first, next) = (before(rank)?, before(rank + 1)?);
    (first < next).then(|| ports.start() + first..=ports.start() + (next - 1))
}

#[cfg(test)]
mod tests {
    use super::{Interface, Layout, share};
    use evergate_base::Bucket;
    use evergate_membership::{Incarnation, NodeId};
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{IpAddr, SocketAddr};

    #[test]
    fn buckets_use_all_sources_of_the_family() {
        let sources: Vec<IpAddr> =
            ["10.0.1.100", "fd00::100", "10.0.1.101", "10.0.1.102"].map(|ip| ip.parse().unwrap()).into();
        let layout = Layout {
            node: NodeId(0),
            incarnation: Incarnation(1),
            workers: 1,
            settings: BTreeMap::new(),
            addresses: BTreeSet::new(),
            sources,
            interfaces: [Interface { index: 1, mac: [0; 6] }; 2],
            peers: BTreeMap::new(),
            replication_port: 1,
        };
        let of = |server: &str, bucket| {
            let server: SocketAddr = server.parse().unwrap();
            let found = layout.sources_for(server, Bucket(bucket));
            found.map(|ip| ip.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of("10.0.1.1:80", 0), ["10.0.1.100", "10.0.1.101", "10.0.1.102"]);
        assert_eq!(of("[::ffff:10.0.1.1]:80", 4), ["10.0.1.101", "10.0.1.102", "10.0.1.100"]);
        for bucket in 0..7 {
            assert_eq!(of("[fd00::1]:80", bucket), ["fd00::100"]);
        }
        let layout = Layout { sources: vec!["fd00::100".parse().unwrap()], ..layout };
        assert_eq!(layout.sources_for("10.0.1.1:80".parse().unwrap(), Bucket(3)).count(), 0);
    }

    #[test]
    fn nodes_share_all_ports_of_a_bucket_and_none_twice() {
        for parts in 1..40 {
            let all: Vec<u16> =
                (0..parts).filter_map(|rank| share(&(1024..=1081), rank, parts)).flatten().collect();
            assert_eq!(all, (1024..=1081).collect::<Vec<u16>>(), "{parts} nodes");
        }
        assert_eq!(share(&(65_534..=65_535), 1, 2), Some(65_535..=65_535));
        assert_eq!(share(&(7..=8), 0, 3), None);
    }
}
