//! Server legs that move: connects from a block of ports, and removes sockets that block a restored one.

use crate::address::Raw;
use crate::netlink;
use crate::socket::stream_socket;
use crate::sockopt::{check, set};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const IP_BIND_ADDRESS_NO_PORT: i32 = 24;
pub(crate) const IP_LOCAL_PORT_RANGE: i32 = 51;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// States in `inet_diag_msg`, and the range of the socket's cookie.
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;
const COOKIE: std::ops::Range<usize> = 44..52;

/// Starts connecting from `local` and a free port of `ports`; the socket becomes writable when connected, see
/// [`connect_error`](crate::connect_error). A port is free when no connection to the same `remote` uses it.
///
/// The kernel ignores ports outside the sysctl `net.ipv4.ip_local_port_range` and then takes any port. The caller
/// checks the sysctl at start, see [`local_port_range`]. Linux 6.3 or newer.
pub fn connect_from(local: IpAddr, ports: RangeInclusive<u16>, remote: SocketAddr) -> io::Result<OwnedFd> {
    connect_socket_from(stream_socket(remote)?, local, ports, remote)
}

/// Like [`connect_from`], with a socket that the caller has prepared.
pub fn connect_socket_from(
    socket: OwnedFd,
    local: IpAddr,
    ports: RangeInclusive<u16>,
    remote: SocketAddr,
) -> io::Result<OwnedFd> {
    let range = u32::from(*ports.end()) << 16 | u32::from(*ports.start());
    set(socket.as_raw_fd(), libc::SOL_IP, IP_LOCAL_PORT_RANGE, &range)?;
    bind_without_port(&socket, local)?;
    start(socket, remote)
}

/// Gives a socket its address. Its port is chosen when it connects: it need be free towards that peer only.
pub(crate) fn bind_without_port(socket: &OwnedFd, local: IpAddr) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    set(fd, libc::SOL_IP, IP_BIND_ADDRESS_NO_PORT, &1i32)?;
    let from = Raw::new(SocketAddr::new(local, 0));
    // SAFETY: pointer and length describe an initialised socket address.
    check(unsafe { libc::bind(fd, from.pointer(), from.length()) })
}

/// Starts connecting.
pub(crate) fn start(socket: OwnedFd, remote: SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket.as_raw_fd();
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32)?;
    let to = Raw::new(remote);
    // SAFETY: pointer and length describe an initialised socket address.
    match check(unsafe { libc::connect(fd, to.pointer(), to.length()) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// The ports that the kernel of this network namespace assigns to connecting sockets.
pub fn local_port_range() -> io::Result<RangeInclusive<u16>> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let mut ports = text.split_whitespace().map(str::parse);
    match (ports.next(), ports.next()) {
        (Some(Ok(first)), Some(Ok(last))) => Ok(first..=last),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("ip_local_port_range reads {text:?}"))),
    }
}

/// Closes a socket without sending a segment: the connection continues on another node, or the peer has already
/// received its end. Needs `CAP_NET_ADMIN`; if the kernel refuses, the socket is closed as usual and the error is
/// returned.
pub fn forget(socket: OwnedFd) -> io::Result<()> {
    forget_on_close(socket.as_raw_fd())
}

/// Stops the socket from sending, also when it is closed: see [`forget`].
pub fn forget_on_close(fd: RawFd) -> io::Result<()> {
    set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, &1i32)
}

/// Destroys the socket with these addresses, in any process; an orphan in FIN_WAIT1 would prevent restoring its
/// successor. The gate must withhold its RST. Returns false when there was none. Needs `CAP_NET_ADMIN`.
pub fn destroy(local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    destroy_if(local, remote, |state| state != LISTEN)
}

/// Ends TIME_WAIT of the connection with these addresses, so that its local port is free. A FIN that the peer repeats,
/// because our last ACK was lost, is answered by RST from then on. Returns false when there was none. Needs
/// `CAP_NET_ADMIN`; kernels that cannot do it refuse with `EOPNOTSUPP`.
pub fn end_time_wait(local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
    destroy_if(local, remote, |state| state == TIME_WAIT)
}

fn destroy_if(local: SocketAddr, remote: SocketAddr, wanted: impl Fn(u8) -> bool) -> io::Result<bool> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let address = |ip: IpAddr| {
        let mut bytes = [0u8; 16];
        match ip {
            IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => bytes = v6.octets(),
        }
        bytes
    };
    let mut request = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0]; // inet_diag_req_v2
    request.extend(u32::MAX.to_ne_bytes()); // in any state
    request.extend(local.port().to_be_bytes());
    request.extend(remote.port().to_be_bytes());
    request.extend(address(local.ip()));
    request.extend(address(remote.ip()));
    request.extend(0u32.to_ne_bytes()); // on any interface
    request.extend([0xff; 8]); // with any cookie
    // The cookie excludes a listener, which the kernel would find and close by the addresses alone if the socket is
    // gone.
    let found = match netlink::ask(libc::NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, &request) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
        found => found?,
    };
    let (Some(state), Some(cookie)) = (found.get(1), found.get(COOKIE)) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel describes a socket in too few bytes",
        ));
    };
    if !wanted(*state) {
        return Ok(false);
    }
    request.truncate(request.len() - cookie.len());
    request.extend(cookie);
    match netlink::request(libc::NETLINK_SOCK_DIAG, SOCK_DESTROY, 0, &request) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => Ok(false),
        Err(error) => Err(error),
    }
}
