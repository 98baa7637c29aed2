//! This node's two networks, as the kernel's routes lead over them. Asking for a route may take its time: not for the agent.

use crate::control::message::{info, warning};
use evergate_cluster::Path;
use evergate_sys::Route;
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

    /// The network that the kernel's route to an address leads over.
    pub(crate) fn to(&self, ip: IpAddr) -> Option<Path> {
        evergate_sys::route_to(ip).ok().and_then(|route| self.of(&route))
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

/// The networks whose way to the rest of the world was there and is gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strayed(Arc<[AtomicBool; 2]>);

impl Strayed {
    pub(crate) fn is(&self, path: Path) -> bool {
        self.0[path as usize].load(Ordering::Relaxed)
    }

    /// Whether that is news.
    fn set(&self, path: Path, gone: bool) -> bool {
        self.0[path as usize].swap(gone, Ordering::Relaxed) != gone
    }
}

/// Looks for the default routes. Whoever takes an interface down and up again takes them away, and nothing else shows it: the other
/// nodes are on the link, and the clients behind a router only get no answer. Where there never was one nothing is lacking.
pub(crate) struct Beyond {
    networks: Networks,
    /// Who stands for a family, and the network that led there.
    anybody: Vec<(IpAddr, Option<Path>)>,
    strayed: Strayed,
}

impl Beyond {
    pub(crate) fn new(networks: Networks) -> Beyond {
        let anybody = ANYBODY.iter().filter_map(|ip| ip.parse().ok()).map(|ip| (ip, None)).collect();
        Beyond { networks, anybody, strayed: Strayed::default() }
    }

    /// What it has found, for the agent.
    pub(crate) fn strayed(&self) -> Strayed {
        self.strayed.clone()
    }

    /// Looks. Whether nothing is gone.
    pub(crate) fn look(&mut self) -> bool {
        for (ip, known) in &mut self.anybody {
            *known = known.or_else(|| self.networks.to(*ip));
        }
        let mut all = true;
        for path in Path::ALL {
            let gone = |(ip, known): &(IpAddr, Option<Path>)| {
                *known == Some(path) && self.networks.to(*ip) != Some(path)
            };
            let lost = self.anybody.iter().find(|one| gone(one)).map(|one| one.0);
            all &= lost.is_none();
            if self.strayed.set(path, lost.is_some()) {
                tell(path, lost);
            }
        }
        all
    }
}

fn tell(path: Path, lost: Option<IpAddr>) {
    let net = net(path);
    match lost {
        Some(ip) => warning(format_args!(
            "cluster: this host's default route ({}) over the {net} network is gone: whoever is behind a router hears nothing from \
             this node, which counts as a pulled cable until the route is back. Taking an interface down removes its routes, \
             and setting it up does not bring them back: let the network's own service do both",
            if ip.is_ipv4() { "IPv4" } else { "IPv6" }
        )),
        None => info(format_args!("cluster: this host's default route over the {net} network is back")),
    }
}
