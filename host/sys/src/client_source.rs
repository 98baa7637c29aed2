//! Server connections from the addresses of clients (IP_TRANSPARENT), which are none of this machine's own.
//!
//! The kernel sends such a connection's segments like any other ones. What the server answers must be routed to this
//! machine and delivered here: see "source" in docs/guide/how-do-i.md.

use crate::feature::Missing;
use crate::port_range::{bind_without_port, start};
use crate::socket::stream_socket;
use crate::sockopt::set;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// `<linux/in6.h>`
const IPV6_TRANSPARENT: i32 = 75;

/// Starts connecting from `client` and a port that the kernel chooses; the socket becomes writable when connected, see
/// [`connect_error`](crate::connect_error). Needs `CAP_NET_RAW` or `CAP_NET_ADMIN`. The error is `AddrNotAvailable`
/// when this machine cannot use the address.
pub fn connect_as(client: IpAddr, remote: SocketAddr) -> io::Result<OwnedFd> {
    let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
    let socket = stream_socket(remote)?;
    allow(&socket, remote).map_err(|error| unusable(client, &error))?;
    bind_without_port(&socket, client).map_err(|error| unusable(client, &error))?;
    start(socket, remote).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => unusable(client, &error), // no route has such a source
        _ => error,
    })
}

fn unusable(client: IpAddr, error: &io::Error) -> io::Error {
    io::Error::new(
        io::ErrorKind::AddrNotAvailable,
        format!("source = \"client\": cannot use the address {client}: {error}"),
    )
}

/// Lets the socket have an address that is none of this machine's.
fn allow(socket: &OwnedFd, remote: SocketAddr) -> io::Result<()> {
    let (level, option) = match remote.is_ipv4() {
        true => (libc::SOL_IP, libc::IP_TRANSPARENT),
        false => (libc::SOL_IPV6, IPV6_TRANSPARENT),
    };
    set(socket.as_raw_fd(), level, option, &1i32)
}

/// What this process lacks to connect from clients' addresses, if anything. The trial changes nothing.
pub fn missing_client_source() -> Option<Missing> {
    let any: SocketAddr = ([0, 0, 0, 0], 0).into();
    let tried = stream_socket(any).and_then(|socket| allow(&socket, any));
    let missing =
        |error| Missing::new("connecting from clients' addresses", "2.6.28", Some("CAP_NET_RAW"), &error);
    tried.err().map(missing)
}
