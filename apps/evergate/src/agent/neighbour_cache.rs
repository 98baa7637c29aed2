//! Neighbours of replicated connections. This node's kernel gets them beforehand, so a failover need not resolve them.
//!
//! Only a host on the link is a neighbour. All other packets go to a router, which the kernel knows from daily traffic.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// Bound on the remembered neighbours, and on the remembered routers.
const NEIGHBOURS_MAX: usize = 65_536;

/// Neighbours that the kernel has, and routers.
#[derive(Debug, Default)]
pub struct Neighbours {
    /// Neighbours with their Ethernet addresses.
    known: HashMap<IpAddr, [u8; 6]>,
    /// Ethernet addresses of routers: a host behind one is no neighbour, without another look-up.
    routers: HashSet<[u8; 6]>,
}

impl Neighbours {
    /// Whether the kernel needs an entry for `ip`, whose packets come from `next_hop`. `is_on_link` looks up the route;
    /// `None`: no route leads there.
    pub(crate) fn wants(
        &mut self,
        ip: IpAddr,
        next_hop: [u8; 6],
        is_on_link: impl FnOnce() -> Option<bool>,
    ) -> bool {
        if self.known.len() >= NEIGHBOURS_MAX
            || self.known.get(&ip) == Some(&next_hop)
            || self.routers.contains(&next_hop)
        {
            return false;
        }
        let on_link = is_on_link();
        if on_link == Some(false) && self.routers.len() < NEIGHBOURS_MAX {
            self.routers.insert(next_hop);
        }
        on_link == Some(true)
    }

    /// Records that the kernel has the entry.
    pub(crate) fn note(&mut self, ip: IpAddr, next_hop: [u8; 6]) {
        self.known.insert(ip, next_hop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_behind_a_router_is_no_neighbour_and_looked_up_once() {
        let mut neighbours = Neighbours::default();
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let (host, router, moved) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]);
        assert!(neighbours.wants(ip(1), host, || Some(true)));
        assert!(neighbours.wants(ip(1), host, || Some(true)), "the kernel did not take it");
        neighbours.note(ip(1), host);
        assert!(!neighbours.wants(ip(1), host, || unreachable!("it is recorded")));
        assert!(neighbours.wants(ip(1), moved, || Some(true)), "it has another card");
        assert!(!neighbours.wants(ip(2), moved, || None), "no route leads there");
        assert!(neighbours.wants(ip(2), moved, || Some(true)));
        assert!(!neighbours.wants(ip(3), router, || Some(false)));
        assert!(!neighbours.wants(ip(4), router, || unreachable!("it comes by a router")));
    }

    #[test]
    fn cache_is_bounded() {
        let mut neighbours = Neighbours::default();
        for number in 0..NEIGHBOURS_MAX as u32 {
            let ip = IpAddr::from(number.to_be_bytes());
            assert!(neighbours.wants(ip, [2; 6], || Some(true)));
            neighbours.note(ip, [2; 6]);
        }
        assert!(!neighbours.wants([255, 0, 0, 1].into(), [2; 6], || Some(true)));
    }
}
