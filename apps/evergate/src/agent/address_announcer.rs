//! Announcements of the movable addresses, while this node is the one that answers for them.
//!
//! In steer mode the switch learns the port of the virtual MAC from its frames, and only announcements and answers come
//! from it. In flood mode the switch must never learn it, so announcements come from the card's own address.

use evergate_base::Micros;
use evergate_sys::Announcer;
use evergate_worker::Interface;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};

/// Times after the start at which the announcement is sent, in milliseconds. The first may meet a gate that is just
/// opening, or get lost.
const REPEATS_MS: [u64; 4] = [0, 20, 100, 500];
/// Time between later announcements: well within the time after which switches forget an address.
const INTERVAL: Micros = Micros::from_ms(5000);

/// Sender of announcements on both interfaces.
pub(crate) struct AddressAnnouncer {
    places: Vec<(Announcer, Vec<IpAddr>)>,
    /// Keeps the multicast groups of the IPv6 addresses joined.
    _groups: Option<UdpSocket>,
    /// When this node began to answer for the addresses.
    since: Option<Micros>,
    /// Announcements since then.
    sent: usize,
    next_at: Micros,
}

impl AddressAnnouncer {
    /// `flood`: the switch must not learn where the virtual MAC lives.
    pub(crate) fn new(
        places: [(Interface, Vec<IpAddr>); 2],
        virtual_mac: [u8; 6],
        flood: bool,
    ) -> io::Result<AddressAnnouncer> {
        let groups = join_solicited_groups(&places)?;
        let open = |(interface, addresses): (Interface, Vec<IpAddr>)| {
            let source = if flood { interface.mac } else { virtual_mac };
            Ok((Announcer::new(interface.index, virtual_mac, source)?, addresses))
        };
        let places = places.into_iter().map(open).collect::<io::Result<Vec<_>>>()?;
        Ok(AddressAnnouncer { places, _groups: groups, since: None, sent: 0, next_at: Micros(0) })
    }

    /// When the next announcement is due; `None` while this node does not answer for the addresses.
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.since.map(|_| self.next_at)
    }

    /// Sends due announcements. `open`: whether this node's gate lets it answer for the addresses.
    pub(crate) fn poll(&mut self, now: Micros, open: bool) {
        if !open {
            self.since = None;
            return;
        }
        if self.since.is_none() {
            (self.since, self.sent, self.next_at) = (Some(now), 0, now);
        }
        if now < self.next_at {
            return;
        }
        for (announcer, addresses) in &self.places {
            for ip in addresses {
                // A lost announcement is repeated soon.
                let _ = announcer.announce(*ip);
            }
        }
        self.sent += 1;
        let since = self.since.unwrap_or(now);
        self.next_at = REPEATS_MS.get(self.sent).map_or(now + INTERVAL, |ms| since + Micros::from_ms(*ms));
    }
}

/// Joins the multicast groups of neighbour solicitations, which follow from the solicited address (RFC 4291, 2.7.1).
/// The kernel joins them only on the interface that has the address; here that is the loopback interface.
fn join_solicited_groups(places: &[(Interface, Vec<IpAddr>); 2]) -> io::Result<Option<UdpSocket>> {
    let mut socket = None;
    for (interface, addresses) in places {
        for ip in addresses {
            let IpAddr::V6(ip) = ip else { continue };
            let socket = match &mut socket {
                Some(socket) => socket,
                empty => empty.insert(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?),
            };
            match socket.join_multicast_v6(&solicited(*ip), interface.index) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {} // two addresses with one group
                joined => joined?,
            }
        }
    }
    Ok(socket)
}

fn solicited(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    let last = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solicited_group_has_the_last_three_bytes_of_the_address() {
        // The example of RFC 4291.
        let ip: Ipv6Addr = "4037::01:800:200e:8c6c".parse().unwrap();
        assert_eq!(solicited(ip), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
    }
}
