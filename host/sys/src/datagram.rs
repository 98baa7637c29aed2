//! Datagram sockets whose packets have priority, and that separate urgent datagrams from the rest.

use crate::address::Raw;
use crate::sockopt::{check, raise_send_buffer, set};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// DSCP CS6, "network control", in the upper six bits of the traffic class (RFC 4594).
const NETWORK_CONTROL: i32 = 0xc0;
/// Band that pfifo_fast and prio qdiscs serve first.
const PRIORITY: i32 = 6;
/// Receive buffer for datagrams that arrive while the process does not run, in bytes.
const RECEIVE_BYTES: i32 = 1 << 20;

/// Two sockets bound to one address.
#[derive(Debug)]
pub struct Datagrams {
    /// Receives datagrams to be read at once, and sends.
    pub urgent: UdpSocket,
    /// Receives datagrams that may be read later; needs no wake-up.
    pub calm: UdpSocket,
}

impl Datagrams {
    /// Binds both sockets to `address`, which no other socket may have. They do not block. A datagram whose byte at
    /// `calm_at` is not zero goes to `calm`. Sent datagrams pass bulk traffic in the queues of this host and of
    /// networks that respect DSCP.
    pub fn bind(address: SocketAddr, calm_at: u32) -> io::Result<Datagrams> {
        // The first socket does not share the address: another process that has it is an error.
        let urgent = bound(address, false)?;
        let shares = 1i32;
        set(urgent.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, &shares)?;
        let calm = bound(address, true)?;
        select_by_byte(&urgent, calm_at)?;
        Ok(Datagrams { urgent, calm })
    }
}

fn bound(address: SocketAddr, shares: bool) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and is owned here alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    match family {
        libc::AF_INET => set(fd, libc::IPPROTO_IP, libc::IP_TOS, &NETWORK_CONTROL)?,
        _ => set(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &NETWORK_CONTROL)?,
    }
    set(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &PRIORITY)?;
    set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BYTES)?;
    raise_send_buffer(fd)?;
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &i32::from(shares))?;
    let raw = Raw::new(address);
    // SAFETY: pointer and length describe an initialised socket address.
    check(unsafe { libc::bind(socket.as_raw_fd(), raw.pointer(), raw.length()) })?;
    Ok(UdpSocket::from(socket))
}

/// Of the sockets that share an address, the kernel selects the one whose index this filter returns, in the order of
/// binding. A datagram that is too short for the byte ends the filter with 0.
fn select_by_byte(socket: &UdpSocket, at: u32) -> io::Result<()> {
    let statement =
        |code: u32, k: u32, unless: u8| libc::sock_filter { code: code as u16, jt: 0, jf: unless, k };
    let filter = [
        statement(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, 1, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // The kernel copies the filter and does not write to it.
    set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_selects_the_socket_of_a_datagram() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let free = UdpSocket::bind(any).unwrap().local_addr().unwrap();
            let datagrams = Datagrams::bind(free, 2).unwrap();
            let sender = UdpSocket::bind(any).unwrap();
            let cases: [(&[u8], bool); 6] = [
                (&[9, 9, 0, 9], false),
                (&[9, 9, 1, 9], true),
                (&[9, 9, 200], true),
                (&[9, 9, 0], false),
                (&[9, 9], false),
                (&[], false),
            ];
            for (datagram, calm) in cases {
                sender.send_to(datagram, free).unwrap();
                let mut buffer = [0; 16];
                let (right, wrong) = match calm {
                    true => (&datagrams.calm, &datagrams.urgent),
                    false => (&datagrams.urgent, &datagrams.calm),
                };
                let nothing = wrong.recv_from(&mut buffer).expect_err("the other one got it");
                assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
                assert_eq!(right.recv_from(&mut buffer).unwrap().0, datagram.len(), "{datagram:?}");
            }
        }
    }

    #[test]
    fn bind_fails_when_the_address_is_in_use() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let _first = Datagrams::bind(free, 2).unwrap();
        let error = Datagrams::bind(free, 2).expect_err("the address is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
