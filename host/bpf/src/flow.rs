//! A TCP flow as the gate's maps name it.

use crate::skeleton::types;
use std::net::{IpAddr, SocketAddr};

/// Both ends of a flow. IPv4 and its v4-mapped form are the same flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
}

/// An address in wire order; IPv4 as ::ffff:a.b.c.d.
pub(crate) fn words(ip: IpAddr) -> [u32; 4] {
    let v6 = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(v6.octets().chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

/// The reverse of [`words`].
pub(crate) fn address(words: [u32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (bytes, word) in octets.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    IpAddr::from(octets).to_canonical()
}

impl Flow {
    /// The flow between two addresses; v4-mapped ones become IPv4.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Flow {
        let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Flow { local: canonical(local), remote: canonical(remote) }
    }

    /// Whether packets of it are IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.remote.ip().to_canonical().is_ipv6()
    }

    pub(crate) fn key(&self) -> types::flow_key {
        types::flow_key {
            local_addr: words(self.local.ip()),
            remote_addr: words(self.remote.ip()),
            local_port: self.local.port().to_be(),
            remote_port: self.remote.port().to_be(),
            zone: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_ipv4() {
        let flow = |local: &str, remote: &str| Flow::new(local.parse().unwrap(), remote.parse().unwrap());
        let mapped = flow("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:2");
        assert_eq!(mapped, flow("10.0.0.1:1", "10.0.0.2:2"));
        assert!(!mapped.is_ipv6());
        assert!(flow("[fd00::1]:1", "[fd00::2]:2").is_ipv6());
        assert_eq!(words("10.0.0.1".parse().unwrap()), words("::ffff:10.0.0.1".parse().unwrap()));
        for ip in ["10.0.0.1", "fd00::1:2"].map(|ip| ip.parse().unwrap()) {
            assert_eq!(address(words(ip)), ip);
        }
    }
}
