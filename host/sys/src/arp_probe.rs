//! Probes of an Ethernet address that is not the card's: ARP requests for a shared address, sent to its virtual MAC
//! alone.
//!
//! ARP passes where other frames may not, and asks for nothing that a host would not answer anyway (RFC 1122, 2.3.2.1).

use crate::sockopt::{check, set};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const ETH_P_ARP: u16 = 0x0806;
/// Ethernet header and ARP for IPv4.
const FRAME_BYTES: usize = 42;

/// An ARP frame that came to one station and not to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpFrame {
    /// To the virtual MAC, whatever it asks.
    ToVirtualMac,
    /// The answer for this address.
    Answer(Ipv4Addr),
    /// Another one.
    Other,
}

/// Sender of probes, and receiver of what comes to the virtual MAC. The socket gets ARP frames alone, behind the packet
/// filter, and no broadcasts. Needs `CAP_NET_RAW`.
#[derive(Debug)]
pub struct ArpProbe {
    socket: OwnedFd,
    interface: u32,
    own_mac: [u8; 6],
    virtual_mac: [u8; 6],
}

impl ArpProbe {
    /// A probe on an interface of the calling thread's network namespace, whose card has the address `own_mac`.
    pub fn new(interface: u32, own_mac: [u8; 6], virtual_mac: [u8; 6]) -> io::Result<ArpProbe> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed. Protocol 0: nothing is received before the socket is bound.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just returned by the kernel and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        refuse_broadcasts(fd)?;
        let at = link_address(interface);
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: pointer and length describe an initialised address.
        check(unsafe { libc::bind(fd, (&raw const at).cast(), length) })?;
        Ok(ArpProbe { socket, interface, own_mac, virtual_mac })
    }

    /// Asks the station with the virtual MAC for `shared`, as the host `own`. It never blocks.
    pub fn send(&self, own: Ipv4Addr, shared: Ipv4Addr) -> io::Result<()> {
        let frame = request(self.own_mac, own, self.virtual_mac, shared);
        let to = link_address(self.interface);
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let fd = self.socket.as_raw_fd();
        // SAFETY: pointers and lengths describe the frame and an initialised address.
        let sent = unsafe {
            libc::sendto(fd, frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), length)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The next frame that waits.
    pub fn receive(&self) -> Option<ArpFrame> {
        let mut frame = [0u8; FRAME_BYTES];
        // SAFETY: pointer and length describe the buffer; what is longer is cut.
        let got = unsafe {
            libc::recv(self.socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), libc::MSG_TRUNC)
        };
        let got = usize::try_from(got).ok()?; // nothing waits
        Some(if got < FRAME_BYTES { ArpFrame::Other } else { self.meaning(&frame) })
    }

    fn meaning(&self, frame: &[u8; FRAME_BYTES]) -> ArpFrame {
        let to = frame.first_chunk::<6>().copied();
        if to == Some(self.virtual_mac) {
            ArpFrame::ToVirtualMac
        } else if to == Some(self.own_mac) && frame[20..22] == [0, 2] {
            ArpFrame::Answer(Ipv4Addr::new(frame[28], frame[29], frame[30], frame[31]))
        } else {
            ArpFrame::Other
        }
    }
}

fn link_address(interface: u32) -> libc::sockaddr_ll {
    // SAFETY: sockaddr_ll is plain data for which all zero bytes are a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ETH_P_ARP.to_be();
    address.sll_ifindex = interface as i32;
    address.sll_halen = 6;
    address
}

/// A storm of broadcasts must not push out what is waited for.
fn refuse_broadcasts(fd: i32) -> io::Result<()> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0), // the first byte of the destination
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 1, 0, 1), // its group bit
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0xffff),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter) // the kernel copies the program
}

fn request(own_mac: [u8; 6], own: Ipv4Addr, to: [u8; 6], shared: Ipv4Addr) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend(own_mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]); // ARP, Ethernet, IPv4, request
    frame.extend(own_mac);
    frame.extend(own.octets());
    frame.extend(to);
    frame.extend(shared.octets());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const VIRTUAL: [u8; 6] = [2, 0, 0, 0, 0, 100];

    #[test]
    fn probe_is_an_arp_request_to_the_virtual_mac() {
        let frame = request(OWN, Ipv4Addr::new(10, 0, 0, 1), VIRTUAL, Ipv4Addr::new(10, 0, 0, 100));
        assert_eq!(frame.len(), FRAME_BYTES);
        assert_eq!((&frame[..6], &frame[6..12], &frame[20..22]), (&VIRTUAL[..], &OWN[..], &[0, 1][..]));
        assert_eq!((&frame[28..32], &frame[38..42]), (&[10, 0, 0, 1][..], &[10, 0, 0, 100][..]));
    }

    #[test]
    fn frames_differ_by_station_and_operation() {
        let (read, _write) = std::os::unix::net::UnixStream::pair().unwrap();
        let probe = ArpProbe { socket: read.into(), interface: 1, own_mac: OWN, virtual_mac: VIRTUAL };
        let shared = Ipv4Addr::new(10, 0, 0, 100);
        let mut frame: [u8; FRAME_BYTES] =
            request(OWN, shared, VIRTUAL, Ipv4Addr::LOCALHOST).try_into().unwrap();
        assert_eq!(probe.meaning(&frame), ArpFrame::ToVirtualMac);
        frame[..6].copy_from_slice(&OWN);
        assert_eq!(probe.meaning(&frame), ArpFrame::Other, "a request");
        frame[21] = 2;
        assert_eq!(probe.meaning(&frame), ArpFrame::Answer(shared));
        frame[5] = 9;
        assert_eq!(probe.meaning(&frame), ArpFrame::Other, "to another station");
    }
}
