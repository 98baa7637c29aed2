//! This node's two networks, as the kernel's routes lead over them. Asking for a route may take its time: not for the agent.

use crate::control::message::{info, warning};
use evergate_cluster::Path;
use evergate_sys::Route;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Addresses that stand for whoever is not on a link (RFC 5737, RFC 3849): nothing but a default route leads there.
const ANYBODY: [&str; 2] = ["203.0.113.1", "2001:db8::1"];

/// A network's name for the operator.
pub(crate) fn net(path: Path) -> &'static str {
    match path {
        Path::Inside => "inside",
        Path::Outside => "outside",
    }
}

/// Where this node is on each network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Networks(Vec<(Path, u32, IpAddr)>);

impl Networks {
    /// Its interface and address on each.
    pub(crate) fn new(own: Vec<(Path, u32, IpAddr)>) -> Networks {
        Networks(own)
    }

    /// The network that the kernel's route to an address leads over, if there is one.
    pub(crate) fn to(&self, ip: IpAddr) -> io::Result<Option<Path>> {
        match evergate_sys::route_to(ip) {
            Ok(route) => Ok(self.of(&route)),
            Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// By the interface, which need not prefer this node's address; by that where both networks share one.
    fn of(&self, route: &Route) -> Option<Path> {
        let on = |(_, interface, address): &&(Path, u32, IpAddr)| {
            *interface == route.interface || is_of(*address, route.interface)
        };
        let found: Vec<Path> = self.0.iter().filter(on).map(|(path, ..)| *path).collect();
        let [path] = found[..] else {
            return self.0.iter().find(|own| Some(own.2) == route.source).map(|own| own.0);
        };
        Some(path)
    }
}

/// Whether an interface has this address; it may be another one than the file names, such as a bridge that that is a port of.
fn is_of(address: IpAddr, interface: u32) -> bool {
    let names = evergate_sys::interfaces_with(address).unwrap_or_default();
    names.iter().any(|name| evergate_bpf::interface_index(name).is_ok_and(|index| index == interface))
}

/// Whether the way to whoever is not on the outside's link was there and is gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strayed(Arc<AtomicBool>);

impl Strayed {
    pub(crate) fn is(&self, path: Path) -> bool {
        path == Path::Outside && self.0.load(Ordering::Relaxed)
    }
}

struct Anybody {
    ip: IpAddr,
    /// The way to him led over the outside once.
    known: bool,
    leads: bool,
}

/// Looks for the default routes to the clients. Whoever takes an interface down and up again takes its routes away, and nothing else
/// shows it: the other nodes are on the link, and clients behind a router only get no answer. Where there never was one nothing is
/// lacking. Of the inside it is not asked for: servers have their checks.
pub(crate) struct Beyond {
    networks: Networks,
    /// Who stands for each family.
    anybody: Vec<Anybody>,
    strayed: Strayed,
}

impl Beyond {
    /// For clients of these addresses.
    pub(crate) fn new(networks: Networks, addresses: &[IpAddr]) -> Beyond {
        let of_a_client = |ip: &IpAddr| addresses.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
        let anybody = ANYBODY.iter().filter_map(|ip| ip.parse().ok()).filter(of_a_client);
        let anybody = anybody.map(|ip| Anybody { ip, known: false, leads: false }).collect();
        Beyond { networks, anybody, strayed: Strayed::default() }
    }

    /// What it has found, for the agent.
    pub(crate) fn strayed(&self) -> Strayed {
        self.strayed.clone()
    }

    /// Looks. Whether nothing is gone.
    pub(crate) fn look(&mut self) -> bool {
        for one in &mut self.anybody {
            // A question that fails says nothing new.
            let leads = self.networks.to(one.ip).map_or(one.leads, |path| path == Some(Path::Outside));
            (one.known, one.leads) = (one.known || leads, leads);
        }
        let gone = self.anybody.iter().find(|one| one.known && !one.leads).map(|one| one.ip);
        if self.strayed.0.swap(gone.is_some(), Ordering::Relaxed) != gone.is_some() {
            tell(gone);
        }
        gone.is_none()
    }
}

fn tell(gone: Option<IpAddr>) {
    match gone {
        Some(ip) => warning(format_args!(
            "cluster: this host's default route ({}) over the outside network is gone: clients behind a router hear nothing from \
             this node, which counts as a pulled cable until the route is back. Taking an interface down removes its routes, \
             and setting it up does not bring them back: let the network's own service do both",
            if ip.is_ipv4() { "IPv4" } else { "IPv6" }
        )),
        None => info("cluster: this host's default route over the outside network is back"),
    }
}
