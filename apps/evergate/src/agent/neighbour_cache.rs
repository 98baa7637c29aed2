//! Neighbours of mirrored connections: known to this node's kernel beforehand, so that a take-over need not ask for them.
//!
//! Only who is on the link is a neighbour; what goes to all others goes to a router, which the kernel knows from daily traffic.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// Neighbours, and routers, that are remembered at most.
const NEIGHBOURS_MAX: usize = 65_536;

/// What was made known, and to whom clients are not told apart.
#[derive(Debug, Default)]
pub struct Neighbours {
    /// With their Ethernet addresses.
    known: HashMap<IpAddr, [u8; 6]>,
    /// Ethernet addresses of routers: who comes by one is no neighbour, without asking again.
    routers: HashSet<[u8; 6]>,
}

impl Neighbours {
    /// Whether the kernel is to be told of `ip`, whose packets come from `next_hop`. `is_on_link` asks for its routes; `None`:
    /// there is none.
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

    /// The kernel knows it now.
    pub(crate) fn note(&mut self, ip: IpAddr, next_hop: [u8; 6]) {
        self.known.insert(ip, next_hop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_by_a_router_is_no_neighbour_and_is_asked_for_once() {
        let mut neighbours = Neighbours::default();
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        let (host, router, moved) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]);
        assert!(neighbours.wants(ip(1), host, || Some(true)));
        assert!(neighbours.wants(ip(1), host, || Some(true)), "the kernel did not take it");
        neighbours.note(ip(1), host);
        assert!(!neighbours.wants(ip(1), host, || unreachable!("it is known")));
        assert!(neighbours.wants(ip(1), moved, || Some(true)), "it has another card");
        assert!(!neighbours.wants(ip(2), moved, || None), "no route leads there");
        assert!(neighbours.wants(ip(2), moved, || Some(true)));
        assert!(!neighbours.wants(ip(3), router, || Some(false)));
        assert!(!neighbours.wants(ip(4), router, || unreachable!("it comes by a router")));
    }

    #[test]
    fn there_is_a_bound() {
        let mut neighbours = Neighbours::default();
        for number in 0..NEIGHBOURS_MAX as u32 {
            let ip = IpAddr::from(number.to_be_bytes());
            assert!(neighbours.wants(ip, [2; 6], || Some(true)));
            neighbours.note(ip, [2; 6]);
        }
        assert!(!neighbours.wants([255, 0, 0, 1].into(), [2; 6], || Some(true)));
    }
}
