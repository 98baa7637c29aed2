//! The little network: a client, a switch with two networks, nodes between them, and two servers.

use super::cleanup::namespace;
use anyhow::{Context, Result};
use evergate_netns::{Card, Namespace};
use std::net::{IpAddr, Ipv4Addr};

/// The address that moves between the nodes, and the one that servers see.
pub(super) const ADDRESS: IpAddr = outside(100);
pub(super) const SOURCE: IpAddr = inside(100);
/// Answers pings: proof for a node that it is not cut off.
pub(super) const WITNESS: IpAddr = outside(254);
/// Each server's name and address.
pub(super) const SERVERS: [(&str, IpAddr); 2] = [("server-1", inside(201)), ("server-2", inside(202))];

const CLIENT: u8 = 200;
const PREFIX: u8 = 24;

/// An address on the inside network.
pub(super) const fn inside(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 71, 0, host))
}

/// An address on the outside network.
pub(super) const fn outside(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 72, 0, host))
}

/// The namespaces; their names are gone with this value.
pub(super) struct Network {
    pub(super) client: Namespace,
    pub(super) nodes: Vec<Namespace>,
    pub(super) servers: Vec<Namespace>,
    _switch: Namespace,
}

impl Network {
    /// Builds it with nodes of these names.
    pub(super) fn build(nodes: &[String]) -> Result<Network> {
        let switch = host("switch")?;
        for (bridge, address) in [("in", inside(254)), ("out", WITNESS)] {
            switch.bridge(bridge, address, PREFIX).context("cannot make a bridge")?;
        }
        let client = host("client")?;
        plug(&client, "client", &switch, "out", outside(CLIENT))?;
        let mut servers = Vec::new();
        for (name, address) in SERVERS {
            let server = host(name)?;
            plug(&server, name, &switch, "in", address)?;
            servers.push(server);
        }
        let mut hosts = Vec::new();
        for (number, name) in (1..).zip(nodes) {
            let node = host(name)?;
            plug(&node, name, &switch, "out", outside(number))?;
            plug(&node, name, &switch, "in", inside(number))?;
            hosts.push(node);
        }
        Ok(Network { client, nodes: hosts, servers, _switch: switch })
    }
}

/// The names of all hosts, with nodes of these names.
pub(super) fn hosts(nodes: &[String]) -> impl Iterator<Item = &str> + Clone {
    let servers = SERVERS.iter().map(|(name, _)| *name);
    ["switch", "client"].into_iter().chain(servers).chain(nodes.iter().map(String::as_str))
}

fn host(name: &str) -> Result<Namespace> {
    let name = namespace(name);
    Namespace::named(&name).with_context(|| {
        format!("cannot make the network namespace {name}: in a container, start it with --privileged")
    })
}

/// Gives a host a card on one of the networks, which is called like it.
fn plug(host: &Namespace, name: &str, switch: &Namespace, bridge: &str, address: IpAddr) -> Result<()> {
    let IpAddr::V4(v4) = address else { anyhow::bail!("the network has IPv4 only") };
    let [_, net, _, number] = v4.octets();
    let mac = format!("02:00:00:00:{net:02x}:{number:02x}");
    let port = format!("{bridge}-{name}");
    let card = Card { name: bridge, mac: &mac, port: &port, address, prefix: PREFIX };
    host.plug(&card, switch, bridge).with_context(|| format!("cannot connect {name} to the network {bridge}"))
}
