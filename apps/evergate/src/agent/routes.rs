//! This node's two networks, by the kernel's routes. A look-up of a route may block, so the agent does none.

use crate::control::console::{info, warning};
use evergate_membership::Path;
use evergate_sys::Route;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// IPv4 addresses that show the default route, in the order of their use: networks for documentation (RFC 5737), then a
/// server of the DNS root for hosts with routes of their own to such networks. The node sends nothing to these
/// addresses.
const SAMPLES_V4: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4)),
];

/// IPv6 addresses for the same purpose (RFC 3849, RFC 9637).
const SAMPLES_V6: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30)),
];

/// Bits of the longest prefix that counts as a default route: some hosts have 0.0.0.0/1 and 128.0.0.0/1, or 2000::/3.
const DEFAULT_BITS_MAX: u8 = 3;

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

    /// The network that the default route of a family leads over: that of the first sample with no route of its own.
    /// Fails where each sample has one.
    fn of_default(&self, samples: &[IpAddr]) -> io::Result<Option<Path>> {
        let mut refused = false;
        for sample in samples {
            match evergate_sys::route_prefix(*sample) {
                Ok(..=DEFAULT_BITS_MAX) => return self.to(*sample),
                Ok(_) => refused = false,
                Err(error) => match error.kind() {
                    io::ErrorKind::NetworkUnreachable => return Ok(None),
                    // `unreachable`, `prohibit` or `blackhole`, of this network or of all.
                    io::ErrorKind::HostUnreachable
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::InvalidInput => refused = true,
                    _ => return Err(error),
                },
            }
        }
        if refused { Ok(None) } else { Err(io::Error::other("each sample has a route of its own")) }
    }

    /// The network of the route's interface, even if the route prefers another address; of its address if both networks
    /// share an interface.
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

/// Whether an interface has this address. It may differ from the configured one, as a bridge that has it as a port.
fn is_of(address: IpAddr, interface: u32) -> bool {
    let names = evergate_sys::interfaces_with(address).unwrap_or_default();
    names.iter().any(|name| evergate_bpf::interface_index(name).is_ok_and(|index| index == interface))
}

/// Whether the default route over the outside network existed and is gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteLost(Arc<AtomicBool>);

impl RouteLost {
    pub(crate) fn is(&self, path: Path) -> bool {
        path == Path::Outside && self.0.load(Ordering::Relaxed)
    }
}

/// The default route of one address family.
struct DefaultRoute {
    family: &'static str,
    samples: &'static [IpAddr],
    /// The route led over the outside once.
    known: bool,
    leads: bool,
}

impl DefaultRoute {
    fn is_lost(&self) -> bool {
        self.known && !self.leads
    }
}

/// Watch over the default routes to the clients. Taking an interface down and up again removes its routes, and nothing
/// else shows it: the other nodes are on the link, and clients behind a router only get no answer. A route that never
/// was is not missed. The inside needs no such watch: servers have health checks.
pub(crate) struct DefaultRoutes {
    networks: Networks,
    routes: Vec<DefaultRoute>,
    route_lost: RouteLost,
}

impl DefaultRoutes {
    /// For clients of these addresses.
    pub(crate) fn new(networks: Networks, addresses: &[IpAddr]) -> DefaultRoutes {
        let families: [(_, &'static [IpAddr]); 2] = [("IPv4", &SAMPLES_V4), ("IPv6", &SAMPLES_V6)];
        let routes = families
            .into_iter()
            .filter(|(_, samples)| addresses.iter().any(|own| own.is_ipv4() == samples[0].is_ipv4()))
            .map(|(family, samples)| DefaultRoute { family, samples, known: false, leads: false })
            .collect();
        DefaultRoutes { networks, routes, route_lost: RouteLost::default() }
    }

    /// The result of the checks, for the agent.
    pub(crate) fn route_lost(&self) -> RouteLost {
        self.route_lost.clone()
    }

    /// Checks the routes. Whether none is lost.
    pub(crate) fn check(&mut self) -> bool {
        for route in &mut self.routes {
            // A look-up that fails changes nothing.
            let found = self.networks.of_default(route.samples);
            let leads = found.map_or(route.leads, |path| path == Some(Path::Outside));
            (route.known, route.leads) = (route.known || leads, leads);
        }
        let lost = self.routes.iter().find(|route| route.is_lost());
        if self.route_lost.0.swap(lost.is_some(), Ordering::Relaxed) != lost.is_some() {
            log_change(lost);
        }
        lost.is_none()
    }
}

fn log_change(lost: Option<&DefaultRoute>) {
    match lost {
        Some(route) => warning(format_args!(
            "cluster: this host's default route ({}) over the outside network is gone: clients behind a router receive \
             nothing from this node, which counts as cut off until the route is back. Taking an interface down removes \
             its routes, and setting it up does not restore them: let the network's own service do both",
            route.family
        )),
        None => info("cluster: this host's default route over the outside network is back"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_netns::{Card, Namespace};
    use std::io::Write;

    /// A host with the address 203.0.113.2 or 2001:db8::2 on the outside and another one on the inside, and its switch.
    fn host(v6: bool) -> Option<(Namespace, Namespace)> {
        let (host, switch) = match (Namespace::new(), Namespace::new()) {
            (Ok(host), Ok(switch)) => (host, switch),
            (Err(error), _) | (_, Err(error)) => {
                assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped: {error}");
                // Not by `eprintln!`, which the harness keeps for tests that fail.
                let _ = writeln!(std::io::stderr(), "skipped: needs root: {error}");
                return None;
            }
        };
        for setting in ["all", "default"] {
            host.sysctl(&format!("net.ipv6.conf.{setting}.accept_dad"), "0").unwrap();
        }
        for (name, mac, address) in
            [("out", "02:00:00:00:00:01", own(v6)), ("in", "02:00:00:00:00:02", inside(v6))]
        {
            switch.ip(&format!("link add {name} type bridge")).unwrap();
            switch.ip(&format!("link set {name} up")).unwrap();
            let port = format!("{name}1");
            let card = Card { name, mac, port: &port, address, prefix: if v6 { 32 } else { 24 } };
            host.plug(&card, &switch, name).unwrap();
        }
        Some((host, switch))
    }

    fn own(v6: bool) -> IpAddr {
        if v6 { "2001:db8::2" } else { "203.0.113.2" }.parse().unwrap()
    }

    fn inside(v6: bool) -> IpAddr {
        if v6 { "fd71::1" } else { "10.71.0.1" }.parse().unwrap()
    }

    /// Whether the default route is missed after each of these commands of `ip`.
    fn missed(v6: bool, steps: &[&str]) -> Option<Vec<bool>> {
        let (host, _switch) = host(v6)?;
        let mut beyond = host.run(move || {
            let card = |name| evergate_bpf::interface_index(name).unwrap();
            let own = vec![(Path::Inside, card("in"), inside(v6)), (Path::Outside, card("out"), own(v6))];
            DefaultRoutes::new(Networks::new(own), &[super::tests::own(v6)])
        });
        let (family, gateway, neighbour) =
            if v6 { ("-6", "2001:db8::fe", "fd71::fe") } else { ("-4", "203.0.113.254", "10.71.0.254") };
        let mut missed = Vec::new();
        for step in steps {
            let step = step.replace("GATEWAY", gateway).replace("NEIGHBOUR", neighbour);
            host.ip(&format!("{family} {step}")).unwrap();
            let found;
            (beyond, found) = host.run(move || {
                let found = beyond.check();
                (beyond, found)
            });
            missed.push(!found);
        }
        Some(missed)
    }

    #[test]
    fn default_route_is_missed_only_where_it_was() {
        for v6 in [false, true] {
            let cases: [(&[&str], &[bool]); 6] = [
                // The network for documentation is on the link, and no default route was ever there.
                (&["link set out up", "link set out down", "link set out up"], &[false; 3]),
                (&["route add default via GATEWAY", "route del default"], &[false, true]),
                (
                    &["route add default via GATEWAY", "link set out down", "link set out up"],
                    &[false, true, true],
                ),
                (
                    &[
                        "route add default via GATEWAY",
                        "route replace default via NEIGHBOUR",
                        "route replace default via GATEWAY",
                    ],
                    &[false, true, false],
                ),
                (
                    &["route add default via GATEWAY", "route del default", "route add unreachable default"],
                    &[false, true, true],
                ),
                (&["route add default via NEIGHBOUR", "route del default"], &[false; 2]),
            ];
            for (steps, expected) in cases {
                let Some(missed) = missed(v6, steps) else { return };
                assert_eq!(missed, expected, "IPv6 {v6}: {steps:?}");
            }
        }
    }

    /// Many hosts have `blackhole` routes for the networks of documentation.
    #[test]
    fn default_route_shows_beside_routes_of_samples() {
        let blackholes = |samples: &[IpAddr]| -> Vec<String> {
            samples.iter().map(|ip| format!("route add blackhole {ip}")).collect()
        };
        for (v6, samples) in [(false, &SAMPLES_V4[1..3]), (true, &SAMPLES_V6[1..2])] {
            let mut steps = blackholes(samples);
            steps.extend(["route add default via GATEWAY", "route del default"].map(String::from));
            let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
            let Some(missed) = missed(v6, &steps) else { return };
            let expected: Vec<bool> = (1..=steps.len()).map(|step| step == steps.len()).collect();
            assert_eq!(missed, expected, "IPv6 {v6}: {steps:?}");
        }
    }
}
