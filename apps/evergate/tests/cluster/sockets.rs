//! IPv4 TCP sockets of a namespace, as its kernel lists them (proc(5), `/proc/net/tcp`).

use evergate_netns::Namespace;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Number of TCP_ESTABLISHED in the kernel's list.
pub(crate) const ESTABLISHED: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) local: SocketAddrV4,
    pub(crate) remote: SocketAddrV4,
    pub(crate) state: u8,
}

pub(crate) fn sockets(namespace: &Namespace) -> Vec<Socket> {
    let text = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
    text.lines().skip(1).map(|line| parse(line).unwrap_or_else(|| panic!("{line:?}"))).collect()
}

fn parse(line: &str) -> Option<Socket> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
    Some(Socket { local, remote, state: u8::from_str_radix(fields.next()?, 16).ok()? })
}

/// Parses an address: the IP in hexadecimal, in memory order, and the port.
fn address(field: &str) -> Option<SocketAddrV4> {
    let (ip, port) = field.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(ip.to_ne_bytes()), u16::from_str_radix(port, 16).ok()?))
}
