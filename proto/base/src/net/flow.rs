//! A TCP flow by its ends.

use std::net::SocketAddr;

/// Both ends of a flow. IPv4 and its v4-mapped form are the same flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
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
    }
}
