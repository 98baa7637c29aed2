//! Ids of the parts of a configuration, and the addresses of its listeners.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Index into [`Config::pools`](super::Config::pools).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub usize);

/// Index into [`Config::certificates`](super::Config::certificates).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateId(pub usize);

/// Index into [`Config::tls`](super::Config::tls).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TlsId(pub usize);

impl TlsId {
    /// The settings of listeners that name none.
    pub const BUILT_IN: Self = Self(0);
}

/// Address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The address; `[::]` when `both_families`.
    pub socket: SocketAddr,
    /// Accept IPv4 on an IPv6 socket (`IPV6_V6ONLY` off). Where the machine has no IPv6, bind
    /// [`ipv4_fallback`](Self::ipv4_fallback) in its place. Without it, an IPv6 socket is IPv6 only.
    pub both_families: bool,
}

impl ListenAddress {
    /// All addresses of both families, as `":443"` in a file.
    pub fn any(port: u16) -> Self {
        Self { socket: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), both_families: true }
    }

    /// The IPv4 address to bind on a machine without IPv6, if the listener is meant for both families.
    pub fn ipv4_fallback(&self) -> Option<SocketAddr> {
        self.both_families.then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), self.socket.port()))
    }
}

/// The form in a configuration file.
impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.both_families { write!(f, ":{}", self.socket.port()) } else { self.socket.fmt(f) }
    }
}
