//! Header of the PROXY protocol, as read or to be written.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::tlv::Tlvs;

/// Limit of a version 1 header, its line end included, in bytes (section 2.1).
pub const V1_BYTES_MAX: usize = 107;
/// Limit of a version 2 header that [`decode`](crate::decode) accepts and [`encode_v2`](crate::encode_v2) writes, in
/// bytes. The format would allow 65,551.
pub const V2_BYTES_MAX: usize = 4096;

/// Format of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Meaning of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// The proxy itself opened the connection, for example for a health check: its real endpoints count.
    Local,
    /// The proxy relays a connection of another peer.
    Proxy,
}

/// Addresses of the relayed connection. IPv4-mapped IPv6 addresses are stored as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Endpoints {
    /// Endpoints of a connection; IPv4-mapped addresses become IPv4, flow labels and scopes are dropped.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Endpoints {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Endpoints { source: plain(source), destination: plain(destination) }
    }

    /// The client.
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// The address that the client connected to.
    pub fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// Both addresses, if both are IPv4.
    pub(crate) fn as_v4(&self) -> Option<[Ipv4Addr; 2]> {
        match (self.source, self.destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Some([*source.ip(), *destination.ip()]),
            _ => None,
        }
    }

    /// Both addresses, if both are IPv6.
    pub(crate) fn as_v6(&self) -> Option<[Ipv6Addr; 2]> {
        match (self.source, self.destination) {
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => Some([*source.ip(), *destination.ip()]),
            _ => None,
        }
    }

    /// Both addresses as IPv6; IPv4 ones are mapped (RFC 4291 section 2.5.5.2).
    pub(crate) fn mapped(&self) -> [Ipv6Addr; 2] {
        [self.source, self.destination].map(|end| match end {
            SocketAddr::V4(end) => end.ip().to_ipv6_mapped(),
            SocketAddr::V6(end) => *end.ip(),
        })
    }
}

/// A whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its format.
    pub version: Version,
    /// Its meaning.
    pub command: Command,
    /// Addresses of the relayed connection; `None` for [`Command::Local`], and when the header names no TCP endpoints
    /// (`UNKNOWN`, UNSPEC, Unix sockets, datagrams). The real endpoints of the connection count then.
    pub endpoints: Option<Endpoints>,
    /// Further facts; empty in version 1.
    pub tlvs: Tlvs<'a>,
    /// Length of the header in bytes: the client's bytes follow.
    pub len: usize,
}

/// Verdict of [`decode`](crate::decode) on valid bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// The bytes are valid so far; the header does not end in them.
    NeedMore,
    /// A whole header.
    Header(Header<'a>),
}
