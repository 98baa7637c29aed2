//! Link layer: announces the owner of a virtual IP, and prepares entries of the neighbour table.

use crate::netlink;
use crate::socket::stream_socket;
use crate::sockopt::{check, set};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const SOL_PACKET: i32 = 263;
const PACKET_ADD_MEMBERSHIP: i32 = 1;
const PACKET_MR_UNICAST: u16 = 3;
const RTM_NEWADDR: u16 = 20;
const RTM_GETROUTE: u16 = 26;
/// Attribute with a router of the other family.
const RTA_VIA: u16 = 18;
/// Size of an rtmsg, in bytes.
const ROUTE: usize = 12;
/// Requests the route as configured, with its prefix, instead of the result of the lookup (Linux 4.13).
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NUD_STALE: u16 = 0x04;
/// Neighbour on a link without address resolution.
const NUD_NOARP: u16 = 0x40;
/// States without a known address: incomplete, failed or without address resolution.
const NUD_UNKNOWN: u16 = 0x01 | 0x20 | NUD_NOARP;
/// Entry from outside the kernel: the kernel may verify and change it, does not count it against the limit of the
/// table, and keeps it.
const NTF_EXT_LEARNED: u8 = 0x10;
const IFA_F_NODAD: u8 = 0x02;

/// The hardware address of an interface in the calling thread's network namespace.
pub fn card_address(interface: &str) -> io::Result<[u8; 6]> {
    let mut request = interface_request(interface)?;
    let socket = stream_socket(([0, 0, 0, 0], 0).into())?;
    // SAFETY: the kernel reads the name and writes the address inside the ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) })?;
    // SAFETY: SIOCGIFHWADDR has filled in this member.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
    Ok([data[0] as u8, data[1] as u8, data[2] as u8, data[3] as u8, data[4] as u8, data[5] as u8])
}

/// The MTU of an interface in the calling thread's network namespace: bytes with the IP header.
pub fn card_mtu(interface: &str) -> io::Result<u32> {
    let mut request = interface_request(interface)?;
    let socket = stream_socket(([0, 0, 0, 0], 0).into())?;
    // SAFETY: the kernel reads the name and writes the number inside the ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) })?;
    // SAFETY: SIOCGIFMTU has filled in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The index of an interface in the network namespace of `socket`.
pub fn card_index(socket: RawFd, interface: &str) -> io::Result<u32> {
    let mut request = interface_request(interface)?;
    // SAFETY: the kernel reads the name and writes the number inside the ifreq.
    check(unsafe { libc::ioctl(socket, libc::SIOCGIFINDEX as _, &raw mut request) })?;
    // SAFETY: SIOCGIFINDEX has filled in this member.
    let index = unsafe { request.ifr_ifru.ifru_ifindex };
    u32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The interfaces that have the address `ip`, in the calling thread's network namespace.
pub fn interfaces_with(ip: IpAddr) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    each_address(|name, address, _| {
        if address == ip {
            names.push(name.to_owned());
        }
    })?;
    Ok(names)
}

/// The networks of an interface's addresses, each with its prefix length in bits, in the calling thread's network
/// namespace.
pub fn networks_of(interface: &str) -> io::Result<BTreeSet<(IpAddr, u8)>> {
    let mut networks = BTreeSet::new();
    each_address(|name, address, mask| {
        let network = match (address, mask) {
            (IpAddr::V4(ip), Some(IpAddr::V4(mask))) => ((ip & mask).into(), mask.to_bits().count_ones()),
            (IpAddr::V6(ip), Some(IpAddr::V6(mask))) => ((ip & mask).into(), mask.to_bits().count_ones()),
            _ => return,
        };
        if name == interface {
            networks.insert((network.0, network.1 as u8)); // at most 128
        }
    })?;
    Ok(networks)
}

/// Calls `show` for every address with the name of its interface, the address, and the mask of its network.
fn each_address(mut show: impl FnMut(&str, IpAddr, Option<IpAddr>)) -> io::Result<()> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the C library writes one pointer.
    check(unsafe { libc::getifaddrs(&raw mut first) })?;
    let mut next = first;
    // SAFETY: the C library owns the list, which lives until it is freed below; its end is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the pointers are null, or to addresses as long as their family's.
        if let (Some(ip), mask) = unsafe { (ip_of(entry.ifa_addr), ip_of(entry.ifa_netmask)) } {
            // SAFETY: a string of the list. An IPv4 address may have a label, `eth0:1`.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
            show(name.split(':').next().unwrap_or_default(), ip, mask);
        }
        next = entry.ifa_next;
    }
    // SAFETY: getifaddrs made the list, and no reference to it remains.
    unsafe { libc::freeifaddrs(first) };
    Ok(())
}

/// The IP address of a socket address, if it has one.
///
/// # Safety
///
/// The pointer is null, or points to a socket address with all bytes of its family.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees the pointer; the reads do not assume alignment.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::from(address.sin6_addr.s6_addr))
            }
            _ => None,
        }
    }
}

/// Whether an interface has a carrier, in the network namespace of `socket`.
pub fn has_carrier(socket: RawFd, interface: &str) -> io::Result<bool> {
    let mut request = interface_request(interface)?;
    // SAFETY: the kernel reads the name and writes the flags inside the ifreq.
    check(unsafe { libc::ioctl(socket, libc::SIOCGIFFLAGS as _, &raw mut request) })?;
    // SAFETY: SIOCGIFFLAGS has filled in this member.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0)
}

fn interface_request(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data for which all zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = CString::new(interface).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let name = name.as_bytes_with_nul();
    if name.len() > request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

/// Adds the neighbour `ip` to an interface, so that a failover needs no address resolution. The kernel uses the entry
/// at once and verifies it later. An existing entry stays, because an operator or the neighbour itself set it, perhaps
/// after `mac` was recorded. Only for peers on the same link ([`is_on_link`]); regular traffic keeps the entry of the
/// gateway current. Needs `CAP_NET_ADMIN`.
pub fn set_neighbour(interface: u32, ip: IpAddr, mac: [u8; 6]) -> io::Result<()> {
    if neighbour_state(interface, ip)?.is_some_and(|(state, known)| state & NUD_NOARP != 0 || known.is_some())
    {
        return Ok(());
    }
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, 0, 0, 0]; // ndmsg
    body.extend(interface.to_ne_bytes());
    body.extend(NUD_STALE.to_ne_bytes());
    body.extend([NTF_EXT_LEARNED, 0]);
    attribute_ip(&mut body, 1, ip);
    netlink::attribute(&mut body, 2, &mac);
    let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    netlink::request(libc::NETLINK_ROUTE, RTM_NEWNEIGH, flags, &body)
}

/// Whether packets to `ip` on this interface go to it directly and not to a router, by the kernel's routes. Fails when
/// the kernel's route uses another interface, or does not exist.
pub fn is_on_link(interface: u32, ip: IpAddr) -> io::Result<bool> {
    let answer = ask_for_route(ip, 0)?;
    if attribute_of(&answer, libc::RTA_OIF) != Some(&interface.to_ne_bytes()) {
        return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
    }
    Ok(attribute_of(&answer, libc::RTA_GATEWAY).is_none() && attribute_of(&answer, RTA_VIA).is_none())
}

/// Route of packets to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface.
    pub interface: u32,
    /// Source address of packets whose socket has not chosen one.
    pub source: Option<IpAddr>,
}

/// The kernel's route to `ip`, in the calling thread's network namespace; sends nothing. May block while another
/// process changes routes or interfaces.
pub fn route_to(ip: IpAddr) -> io::Result<Route> {
    let answer = ask_for_route(ip, 0)?;
    let interface = attribute_of(&answer, libc::RTA_OIF).and_then(|bytes| bytes.try_into().ok());
    let source = attribute_of(&answer, libc::RTA_PREFSRC);
    Ok(Route {
        interface: interface
            .map(u32::from_ne_bytes)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?,
        source: source.and_then(|bytes| {
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
        }),
    })
}

/// Prefix length of the kernel's route to `ip`, in bits, in the calling thread's network namespace: 0 for a default
/// route. Fails without a route, and when the route is `unreachable`, `prohibit` or `blackhole`.
pub fn route_prefix(ip: IpAddr) -> io::Result<u8> {
    let answer = ask_for_route(ip, RTM_F_FIB_MATCH)?;
    answer.get(1).copied().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADMSG))
}

fn ask_for_route(ip: IpAddr, flags: u32) -> io::Result<Vec<u8>> {
    let (family, bits) = if ip.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
    let mut body = vec![family as u8, bits]; // rtmsg
    body.resize(ROUTE - 4, 0);
    body.extend(flags.to_ne_bytes());
    // The request names no interface: without a route on it, IPv4 would treat every address as a neighbour there.
    attribute_ip(&mut body, libc::RTA_DST, ip);
    netlink::ask(libc::NETLINK_ROUTE, RTM_GETROUTE, &body)
}

fn attribute_of(route: &[u8], kind: u16) -> Option<&[u8]> {
    netlink::find(route.get(ROUTE..)?, kind)
}

/// The Ethernet address of the neighbour `ip`, if this host's kernel knows it.
pub fn neighbour(interface: u32, ip: IpAddr) -> io::Result<Option<[u8; 6]>> {
    Ok(neighbour_state(interface, ip)?.and_then(|(_, mac)| mac))
}

/// The kernel's entry of a neighbour: its state, and its address if known.
fn neighbour_state(interface: u32, ip: IpAddr) -> io::Result<Option<(u16, Option<[u8; 6]>)>> {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, 0, 0, 0]; // ndmsg
    body.extend(interface.to_ne_bytes());
    body.extend([0; 4]);
    attribute_ip(&mut body, 1, ip);
    let answer = match netlink::ask(libc::NETLINK_ROUTE, RTM_GETNEIGH, &body) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        answer => answer?,
    };
    let state = answer.get(8..10).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes);
    let mac = answer.get(12..).and_then(|attributes| netlink::find(attributes, 2));
    let mac = mac.filter(|_| state & NUD_UNKNOWN == 0).and_then(|mac| mac.try_into().ok());
    Ok(Some((state, mac)))
}

/// Adds the address `ip` to an interface, without a network. Returns false when it has the address already. Needs
/// `CAP_NET_ADMIN`.
pub fn add_address(interface: u32, ip: IpAddr) -> io::Result<bool> {
    let (family, bits, flags) =
        if ip.is_ipv4() { (libc::AF_INET, 32, 0) } else { (libc::AF_INET6, 128, IFA_F_NODAD) };
    let mut body = vec![family as u8, bits, flags, 0]; // ifaddrmsg
    body.extend(interface.to_ne_bytes());
    attribute_ip(&mut body, 1, ip);
    attribute_ip(&mut body, 2, ip);
    match netlink::request(libc::NETLINK_ROUTE, RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &body) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

fn attribute_ip(body: &mut Vec<u8>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(v4) => netlink::attribute(body, kind, &v4.octets()),
        IpAddr::V6(v6) => netlink::attribute(body, kind, &v6.octets()),
    }
}

/// Announcer of a virtual address. Open it beforehand and keep it: closing such a socket takes milliseconds. While it
/// is open, the card accepts frames for the virtual MAC. Needs `CAP_NET_RAW`.
#[derive(Debug)]
pub struct Announcer {
    socket: OwnedFd,
    interface: u32,
    virtual_mac: [u8; 6],
    source_mac: [u8; 6],
}

impl Announcer {
    /// An announcer of `virtual_mac` on an interface. Frames come from `source_mac`. With the virtual MAC they update
    /// the switch's table; with the card's own MAC a switch that must flood the virtual MAC never learns it.
    pub fn new(interface: u32, virtual_mac: [u8; 6], source_mac: [u8; 6]) -> io::Result<Announcer> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed. Protocol 0: nothing is received.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just returned by the kernel and is owned here alone.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut address = [0u8; 8];
        address[..6].copy_from_slice(&virtual_mac);
        let request = libc::packet_mreq {
            mr_ifindex: interface as i32,
            mr_type: PACKET_MR_UNICAST,
            mr_alen: 6,
            mr_address: address,
        };
        set(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request)?;
        Ok(Announcer { socket, interface, virtual_mac, source_mac })
    }

    /// Sends a gratuitous ARP or an unsolicited neighbour advertisement for `ip`. The gate passes it only on the node
    /// that owns the address.
    pub fn announce(&self, ip: IpAddr) -> io::Result<()> {
        let frame = match ip {
            IpAddr::V4(v4) => arp(self.source_mac, self.virtual_mac, v4.octets()),
            IpAddr::V6(v6) => advertisement(self.source_mac, self.virtual_mac, v6.octets()),
        };
        // SAFETY: sockaddr_ll is plain data for which all zero bytes are a valid value.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.interface as i32;
        to.sll_halen = 6;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: pointers and lengths describe the frame and an initialised address.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                length,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn arp(source: [u8; 6], mac: [u8; 6], ip: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(source);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]); // ARP, Ethernet, IPv4, request
    frame.extend(mac);
    frame.extend(ip);
    frame.extend([0; 6]);
    frame.extend(ip);
    frame
}

fn advertisement(source: [u8; 6], mac: [u8; 6], ip: [u8; 16]) -> Vec<u8> {
    let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0]; // advertisement, override
    message.extend(ip);
    message.extend([2, 1]); // target link-layer address
    message.extend(mac);
    let pairs =
        |bytes: &[u8]| bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
    let mut sum = pairs(&message) + pairs(&ip) + pairs(&all_nodes) + message.len() as u32 + 58;
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(source);
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([58, 255]);
    frame.extend(ip);
    frame.extend(all_nodes);
    frame.extend(message);
    frame
}
