//! Building and reading frames, checksums verified.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// A TCP segment in an Ethernet frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) to_mac: [u8; 6],
    pub(crate) from_mac: [u8; 6],
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) hops: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Segment {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr) -> Segment {
        Segment {
            to_mac: [0; 6],
            from_mac: [2, 0, 0, 0, 0, 9],
            from,
            to,
            hops: 64,
            seq: 0,
            ack: 0,
            flags: ACK,
            window: 1000,
            options: Vec::new(),
            data: Vec::new(),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut frame = [self.to_mac, self.from_mac].concat();
        let length = (20 + self.options.len() + self.data.len()) as u16;
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([8, 0]);
                let mut ip = vec![0x45, 0];
                ip.extend((length + 20).to_be_bytes());
                ip.extend([0, 0, 0x40, 0, self.hops, 6, 0, 0]);
                ip.extend(from.octets());
                ip.extend(to.octets());
                let sum = !fold(sum(&ip));
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(ip);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(length.to_be_bytes());
                frame.extend([6, self.hops]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            _ => panic!("two families in one segment"),
        }
        let start = frame.len();
        frame.extend(self.from.port().to_be_bytes());
        frame.extend(self.to.port().to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([((20 + self.options.len()) as u8 / 4) << 4, self.flags]);
        frame.extend(self.window.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(&self.options);
        frame.extend(&self.data);
        let check = !fold(sum(&frame[start..]) + pseudo(self.from.ip(), self.to.ip(), length));
        frame[start + 16..start + 18].copy_from_slice(&check.to_be_bytes());
        frame
    }

    /// Reads a frame back and verifies every checksum.
    pub(crate) fn read(frame: &[u8]) -> Segment {
        let (start, end) = bounds(frame);
        if frame[12] != 0x86 {
            assert_eq!(fold(sum(&frame[14..34])), 0xffff, "IP checksum");
        }
        let segment = Segment::read_unchecked(frame);
        let pseudo = pseudo(segment.from.ip(), segment.to.ip(), (end - start) as u16);
        assert_eq!(fold(sum(&frame[start..end]) + pseudo), 0xffff, "TCP checksum");
        segment
    }

    /// Reads a frame whose checksums may be left to the card.
    pub(crate) fn read_unchecked(frame: &[u8]) -> Segment {
        let v6 = frame[12] == 0x86;
        let (start, end) = bounds(frame);
        let ip = |at: usize| -> IpAddr {
            if v6 {
                IpAddr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap())
            } else {
                IpAddr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap())
            }
        };
        let (from, to) = if v6 { (ip(22), ip(38)) } else { (ip(26), ip(30)) };
        let header = usize::from(frame[start + 12] >> 4) * 4;
        let u32_at = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        Segment {
            to_mac: frame[..6].try_into().unwrap(),
            from_mac: frame[6..12].try_into().unwrap(),
            from: SocketAddr::new(from, u16_at(frame, start)),
            to: SocketAddr::new(to, u16_at(frame, start + 2)),
            hops: if v6 { frame[21] } else { frame[22] },
            seq: u32_at(start + 4),
            ack: u32_at(start + 8),
            flags: frame[start + 13],
            window: u16_at(frame, start + 14),
            options: frame[start + 20..start + header].to_vec(),
            data: frame[start + header..end].to_vec(),
        }
    }
}

/// Where the TCP segment of a frame starts and ends.
fn bounds(frame: &[u8]) -> (usize, usize) {
    match frame[12] {
        0x86 => (54, 54 + usize::from(u16_at(frame, 18))),
        _ => (34, 14 + usize::from(u16_at(frame, 16))),
    }
}

fn u16_at(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

pub(crate) fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

pub(crate) fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn pseudo(from: IpAddr, to: IpAddr, length: u16) -> u32 {
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    };
    address(from) + address(to) + 6 + u32::from(length)
}

/// Sends any frames from a card of the calling thread's network namespace.
pub(crate) struct Wire {
    socket: OwnedFd,
    card: i32,
}

impl Wire {
    pub(crate) fn of(card: &str) -> Wire {
        // SAFETY: no pointers are passed; a packet socket of no protocol receives nothing.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: `fd` was just returned by the kernel and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Wire { socket, card: evergate_bpf::interface_index(card).unwrap() as i32 }
    }

    pub(crate) fn send(&self, segment: &Segment) {
        self.put(&segment.bytes());
    }

    pub(crate) fn put(&self, frame: &[u8]) {
        // SAFETY: all zeros is a valid link address.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.card;
        let (data, address) = (frame.as_ptr().cast(), (&raw const to).cast());
        // SAFETY: pointers and lengths describe the frame and the address.
        let sent = unsafe {
            libc::sendto(self.socket.as_raw_fd(), data, frame.len(), 0, address, size_of_val(&to) as u32)
        };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }
}

/// Receives the frames that arrive at a card of the calling thread's network namespace from now on.
pub(crate) struct Tap(OwnedFd);

impl Tap {
    pub(crate) fn of(card: &str) -> Tap {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no pointers are passed; without a protocol nothing is received before it is bound to the card.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: `fd` was just returned by the kernel and has no other owner.
        let tap = Tap(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: all zeros is a valid link address.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_protocol = all;
        at.sll_ifindex = evergate_bpf::interface_index(card).unwrap() as i32;
        let wait = libc::timeval { tv_sec: 20, tv_usec: 0 }; // only ends a hang
        // SAFETY: pointers and lengths describe the address and the time.
        let results = unsafe {
            [
                libc::bind(fd, (&raw const at).cast(), size_of_val(&at) as u32),
                libc::setsockopt(
                    fd,
                    libc::SOL_SOCKET,
                    libc::SO_RCVTIMEO,
                    (&raw const wait).cast(),
                    size_of_val(&wait) as u32,
                ),
            ]
        };
        assert_eq!(results, [0; 2], "{}", std::io::Error::last_os_error());
        tap
    }

    /// The next frame.
    pub(crate) fn next(&self) -> Vec<u8> {
        let mut frame = vec![0; 2048];
        loop {
            // SAFETY: pointer and length describe the buffer.
            let read = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
            let error = std::io::Error::last_os_error();
            if read < 0 && error.kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            assert!(read > 0, "{error}");
            frame.truncate(read as usize);
            return frame;
        }
    }
}
