//! Reachability test by ICMP echo of both families, with a token that only a genuine reply carries.

use crate::address::Raw;
use crate::sockopt::{raise_send_buffer, set};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const SOL_RAW: i32 = 255;
const ICMP_FILTER: i32 = 1;
const ICMPV6_FILTER: i32 = 1;
const ECHO: [u8; 2] = [8, 128];
const ECHO_REPLY: [u8; 2] = [0, 129];
/// Length of a message: type, code, checksum, identifier, sequence number, token.
const MESSAGE: usize = 16;

/// An echo reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pong {
    /// Claimed sender. The address can be forged; only the token is proof.
    pub from: IpAddr,
    /// Token of the request.
    pub token: u64,
}

/// Raw ICMP sockets of both families. Needs `CAP_NET_RAW`.
#[derive(Debug)]
pub struct Pinger {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Pinger {
    /// Opens both sockets in the calling thread's network namespace.
    pub fn new() -> io::Result<Pinger> {
        let v4 = socket(libc::AF_INET, libc::IPPROTO_ICMP)?;
        let v6 = socket(libc::AF_INET6, libc::IPPROTO_ICMPV6)?;
        // The filter keeps all other packets to the host out of the queues.
        set(v4.as_raw_fd(), SOL_RAW, ICMP_FILTER, &!(1u32 << ECHO_REPLY[0]))?;
        let mut blocked = [u32::MAX; 8];
        blocked[usize::from(ECHO_REPLY[1]) / 32] &= !(1 << (ECHO_REPLY[1] % 32));
        set(v6.as_raw_fd(), libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &blocked)?;
        Ok(Pinger { v4, v6 })
    }

    /// The descriptor to wait for, by family.
    pub fn fd(&self, v6: bool) -> RawFd {
        if v6 { self.v6.as_raw_fd() } else { self.v4.as_raw_fd() }
    }

    /// Sends an echo request. It never blocks; a full queue or an unreachable network is an error.
    pub fn ask(&self, host: IpAddr, token: u64) -> io::Result<()> {
        let v6 = host.is_ipv6();
        let mut message = vec![ECHO[usize::from(v6)], 0, 0, 0, 0, 0, 0, 0];
        message.extend(token.to_be_bytes());
        if !v6 {
            let sum = checksum(&message); // the kernel fills in that of ICMPv6
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let to = Raw::new(SocketAddr::new(host, 0));
        // SAFETY: pointers and lengths describe the message and an initialised socket address.
        let sent = unsafe {
            libc::sendto(self.fd(v6), message.as_ptr().cast(), message.len(), 0, to.pointer(), to.length())
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The next reply in the queue of a family, to any request; `None` when the queue is empty.
    pub fn answer(&self, v6: bool) -> Option<Pong> {
        receive(self.fd(v6), v6)
    }
}

/// The next well-formed reply in the socket's queue.
fn receive(fd: RawFd, v6: bool) -> Option<Pong> {
    loop {
        let mut buffer = [0u8; 128];
        let mut from = Raw::empty();
        let (address, length) = from.pointer_mut();
        // SAFETY: pointers and lengths describe the buffer and the storage of an address.
        let got = unsafe { libc::recvfrom(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0, address, length) };
        let got = usize::try_from(got).ok()?; // nothing waits
        let packet = buffer.get(..got)?;
        if let Some(token) = token_of(packet, v6) {
            return Some(Pong { from: from.address().ip(), token });
        }
    }
}

/// The token of an echo reply. IPv4 raw sockets include the IP header, IPv6 ones do not.
fn token_of(packet: &[u8], v6: bool) -> Option<u64> {
    let header = if v6 { 0 } else { usize::from(packet.first()? & 0x0f) * 4 };
    let message = packet.get(header..header + MESSAGE)?;
    let reply = message.first() == ECHO_REPLY.get(usize::from(v6));
    reply.then(|| message.last_chunk().map(|token| u64::from_be_bytes(*token))).flatten()
}

fn socket(family: i32, protocol: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, kind, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and is owned here alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    raise_send_buffer(fd)?;
    Ok(socket)
}

fn checksum(message: &[u8]) -> u16 {
    let pairs = message.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = pairs.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_echo_replies_have_a_token() {
        let mut v4 = vec![0x45; 20];
        v4.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(token_of(&v4, false), Some(0x0102_0304_0506_0708));
        assert_eq!(token_of(&v4[..35], false), None);
        assert_eq!(token_of(&[], false), None);
        assert_eq!(token_of(&[0x4f; 24], false), None, "a header longer than the packet");
        v4[20] = 8;
        assert_eq!(token_of(&v4, false), None, "a question");
        let mut v6 = vec![129, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(token_of(&v6, true), Some(9));
        v6[0] = 128;
        assert_eq!(token_of(&v6, true), None);
    }

    #[test]
    fn checksum_makes_the_sum_of_all_words_zero() {
        let mut message = vec![8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 3, 4, 5, 6, 7, 8];
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(checksum(&message), 0);
    }
}
