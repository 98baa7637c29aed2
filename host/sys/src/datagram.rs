//! Datagram sockets whose packets go before others.

use crate::address::Raw;
use crate::option::{check, set};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// DSCP CS6, "network control", in the upper six bits of the traffic class (RFC 4594).
const NETWORK_CONTROL: i32 = 0xc0;
/// The band that pfifo_fast and prio qdiscs serve first.
const PRIORITY: i32 = 6;
/// Room for datagrams that come while the process is not running.
const RECEIVE_BYTES: i32 = 1 << 20;

/// A socket that does not block, bound to `address`, for few and urgent datagrams: they pass bulk traffic in the queues of
/// this host and of networks that look at DSCP.
pub fn urgent_datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and is owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    match family {
        libc::AF_INET => set(fd, libc::IPPROTO_IP, libc::IP_TOS, &NETWORK_CONTROL)?,
        _ => set(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &NETWORK_CONTROL)?,
    }
    set(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &PRIORITY)?;
    set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BYTES)?;
    let raw = Raw::new(address);
    // SAFETY: pointer and length describe an initialised socket address.
    check(unsafe { libc::bind(socket.as_raw_fd(), raw.pointer(), raw.length()) })?;
    Ok(UdpSocket::from(socket))
}
