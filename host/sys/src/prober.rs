//! Asking the peer of a dead node's connection how much of the stream it has.
//!
//! A segment with one byte that the peer has long received makes it acknowledge at once what it has (an empty segment
//! would be answered at most every 500 ms). The byte lies before the last one that the peer is known to have: a segment
//! that ends where the peer's data end counts as one in place, and Linux then looks at its ACK first. An ACK as old as ours
//! is answered only once in 500 ms (RFC 5961 section 5.2). The peer's answer is recorded by the gate, which holds the
//! bucket meanwhile.

use crate::address::Raw;
use crate::repair::TcpFacts;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const TCP: u8 = 6;
const ACK: u8 = 0x10;

/// One question.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// What the peer is known to have: the probe repeats the last byte but one.
    pub acknowledged: u32,
    /// An ACK that tells the peer nothing new: well below what is mirrored. One at the mirrored position would spend
    /// the advance that the restored socket's first ACK must make.
    pub ack: u32,
    /// The window that the restored socket will offer, in bytes: never more.
    pub window: u32,
    /// Our timestamp, when agreed on.
    pub timestamp: Option<u32>,
}

/// Raw sockets of both families, opened beforehand. Needs `CAP_NET_RAW`.
#[derive(Debug)]
pub struct Prober {
    v4: OwnedFd,
    v6: OwnedFd,
}

fn raw_socket(family: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, kind, libc::IPPROTO_RAW) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and is owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Prober {
    /// Opens both sockets in the calling thread's network namespace.
    pub fn new() -> io::Result<Prober> {
        Ok(Prober { v4: raw_socket(libc::AF_INET)?, v6: raw_socket(libc::AF_INET6)? })
    }

    /// Sends one question. It never blocks; a full queue is an error, and the question can be repeated.
    pub fn ask(&self, facts: &TcpFacts, probe: &Probe) -> io::Result<()> {
        let segment = segment(facts, probe);
        match (facts.local.ip(), facts.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP, 0, 0]; // the kernel fills in the rest
                packet.extend(local.octets());
                packet.extend(remote.octets());
                packet.extend(segment);
                send(self.v4.as_raw_fd(), &packet, SocketAddr::new(remote.into(), 0))
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let mut packet = vec![0x60, 0, 0, 0];
                packet.extend((segment.len() as u16).to_be_bytes());
                packet.extend([TCP, 64]);
                packet.extend(local.octets());
                packet.extend(remote.octets());
                packet.extend(segment);
                send(self.v6.as_raw_fd(), &packet, SocketAddr::new(remote.into(), 0))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the ends of a flow are of two families")),
        }
    }
}

fn send(fd: RawFd, packet: &[u8], to: SocketAddr) -> io::Result<()> {
    let to = Raw::new(to);
    // SAFETY: pointers and lengths describe the packet and an initialised socket address.
    let sent =
        unsafe { libc::sendto(fd, packet.as_ptr().cast(), packet.len(), 0, to.pointer(), to.length()) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn segment(facts: &TcpFacts, probe: &Probe) -> Vec<u8> {
    let window = (probe.window >> facts.receive_scale()).min(65_535) as u16;
    let mut tcp = Vec::with_capacity(33);
    tcp.extend(facts.local.port().to_be_bytes());
    tcp.extend(facts.remote.port().to_be_bytes());
    tcp.extend(probe.acknowledged.wrapping_sub(2).to_be_bytes());
    tcp.extend(probe.ack.to_be_bytes());
    tcp.extend([if probe.timestamp.is_some() { 0x80 } else { 0x50 }, ACK]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0; 4]);
    if let Some(value) = probe.timestamp {
        tcp.extend([1, 1, 8, 10]);
        tcp.extend(value.to_be_bytes());
        tcp.extend([0; 4]);
    }
    tcp.push(0);
    let sum = checksum(&tcp, facts.local.ip(), facts.remote.ip());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    tcp
}

fn checksum(tcp: &[u8], local: IpAddr, remote: IpAddr) -> u16 {
    let words = |bytes: &[u8]| {
        let pairs =
            bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        pairs.sum::<u32>()
    };
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => words(&v4.octets()),
        IpAddr::V6(v6) => words(&v6.octets()),
    };
    let mut sum = words(tcp) + address(local) + address(remote) + u32::from(TCP) + tcp.len() as u32;
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
