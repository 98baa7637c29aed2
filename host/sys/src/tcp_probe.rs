//! Segments to the peer of a failed node's connection: a probe for its position in the stream, and a notice of lost
//! segments.
//!
//! A probe has one byte that the peer received long ago, so the peer acknowledges its position at once. An empty
//! segment would be answered at most every 500 ms. The byte lies before the last one that the peer is known to have. A
//! segment that ends where the peer's data end counts as in place: Linux then looks at its ACK first, and answers an
//! ACK as old as the probe's only once in 500 ms (RFC 5961 section 5.2). The gate holds the bucket meanwhile and
//! records the peer's answer.
//!
//! Segments that the peer sent while no node received are lost. The peer repeats them when its timer fires: 0.2 s and
//! more after its last segment. While its congestion window is full, it sends nothing else that could reveal the loss.
//! A [`Loss`] acknowledges the last segment selectively, so that the peer treats all earlier ones as lost at once (RFC
//! 8985). The last segment is lost as well. The peer may not discard it until it is acknowledged in order (RFC 2018,
//! 8), and sends it again when that does not happen. A peer that loses the repeated segments too receives further
//! notices with larger blocks (docs/decisions/0023).

use crate::address::Raw;
use crate::sockopt::raise_send_buffer;
use evergate_base::net::{Loss, Probe, TcpParams};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const TCP: u8 = 6;
const ACK: u8 = 0x10;
const FIXED_HEADER: usize = 20;
const NOP: u8 = 1;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

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
    // SAFETY: `fd` was just returned by the kernel and is owned here alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    raise_send_buffer(fd)?;
    Ok(socket)
}

impl Prober {
    /// Opens both sockets in the calling thread's network namespace.
    pub fn new() -> io::Result<Prober> {
        Ok(Prober { v4: raw_socket(libc::AF_INET)?, v6: raw_socket(libc::AF_INET6)? })
    }

    /// Sends one probe. It never blocks; a full queue is an error, and the probe can be repeated.
    pub fn ask(&self, params: &TcpParams, probe: &Probe) -> io::Result<()> {
        self.deliver(params, probe_segment(params, probe))
    }

    /// Sends a notice of the loss with a block that grows with the number of notices `before`. Returns false when a
    /// notice does not help: no more than one segment is lost, or the peer does not support selective acknowledgements.
    /// It never blocks.
    pub fn notify_loss(&self, params: &TcpParams, loss: &Loss, before: u32) -> io::Result<bool> {
        let Some(sack_block) = loss.sack_block(params, before) else { return Ok(false) };
        self.deliver(params, loss_segment(params, loss, sack_block)).map(|()| true)
    }

    fn deliver(&self, params: &TcpParams, segment: Vec<u8>) -> io::Result<()> {
        match (params.local.ip(), params.remote.ip()) {
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

fn probe_segment(params: &TcpParams, probe: &Probe) -> Vec<u8> {
    let mut options = Vec::with_capacity(12);
    if let Some(value) = probe.timestamp {
        options.extend(stamps(value, 0));
    }
    segment(params, [probe.acknowledged.wrapping_sub(2), probe.ack], probe.window, &options, &[0])
}

fn loss_segment(params: &TcpParams, loss: &Loss, (first, end): (u32, u32)) -> Vec<u8> {
    let mut options = Vec::with_capacity(24);
    if let Some((own, newest)) = loss.timestamps {
        options.extend(stamps(own, newest));
    }
    options.extend([NOP, NOP, SACK, 10]);
    options.extend(first.to_be_bytes());
    options.extend(end.to_be_bytes());
    segment(params, [loss.send, loss.receive], loss.window, &options, &[])
}

fn stamps(own: u32, echo: u32) -> impl Iterator<Item = u8> {
    [NOP, NOP, TIMESTAMPS, 10].into_iter().chain(own.to_be_bytes()).chain(echo.to_be_bytes())
}

/// A segment from its header on; `options` has a multiple of four bytes.
fn segment(params: &TcpParams, [seq, ack]: [u32; 2], window: u32, options: &[u8], data: &[u8]) -> Vec<u8> {
    let window = (window >> params.receive_scale()).min(65_535) as u16;
    let words = (FIXED_HEADER + options.len()) / 4;
    let mut tcp = Vec::with_capacity(FIXED_HEADER + options.len() + data.len());
    tcp.extend(params.local.port().to_be_bytes());
    tcp.extend(params.remote.port().to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([(words as u8) << 4, ACK]);
    tcp.extend(window.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(options);
    tcp.extend(data);
    let sum = checksum(&tcp, params.local.ip(), params.remote.ip());
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

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: TcpParams = TcpParams {
        local: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 443),
        remote: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 50_000),
        mss: 1460,
        window_scales: Some((7, 7)),
        sack: true,
        stamp: None,
    };

    fn loss(receive: u32, until: u32) -> Loss {
        Loss { send: 7, receive, until, window: 100_000, timestamps: Some((8, 9)) }
    }

    #[test]
    fn notice_needs_a_loss_before_the_last_segment() {
        let own = |receive: u32, lost: u32| loss(receive, receive.wrapping_add(lost)).sack_block(&PARAMS, 0);
        for receive in [0, 1000, u32::MAX - 2000, u32::MAX] {
            for none in [0, 1, 1460, 100_001, 1 << 31, u32::MAX] {
                assert_eq!(own(receive, none), None, "{none} from {receive}");
            }
            for lost in [1461, 20_000, 100_000] {
                let until = receive.wrapping_add(lost);
                assert_eq!(own(receive, lost), Some((until.wrapping_sub(1460), until)));
            }
        }
        assert_eq!(loss(0, 20_000).sack_block(&TcpParams { sack: false, ..PARAMS }, 0), None);
    }

    #[test]
    fn block_grows_with_each_notice_but_omits_the_first_segment() {
        let sack_block = |lost: u32, before| {
            loss(1000, 1000 + lost).sack_block(&PARAMS, before).map(|(first, end)| [first, end])
        };
        let last = [91_980, 93_440];
        let blocks = [0, 1, 2, 3].map(|before| sack_block(93_440, before).unwrap().map(|at| at - 1000));
        assert_eq!(blocks, [last, [23_360, 91_980], [5840, 23_360], [1460, 5840]]);
        let again = [4, 15, 16, 99].map(|before| sack_block(93_440, before).unwrap().map(|at| at - 1000));
        assert_eq!(again, [last; 4], "all but the first segment was acknowledged");
        assert_eq!([0, 1, 2].map(|before| sack_block(1461, before)), [Some([1001, 2461]); 3]);
        assert_eq!([0, 1, 9].map(|before| sack_block(1460, before)), [None; 3]);
        // Linux ignores a block in which no segment lies completely.
        let is_whole = |[from, to]: [u32; 2]| (from - 1000).next_multiple_of(1460) + 1460 <= to - 1000;
        for (lost, before) in (1461..9000).flat_map(|lost| (1..5).map(move |before| (lost, before))) {
            let block = sack_block(lost, before).unwrap();
            assert!(
                Some(block) == sack_block(lost, 0) || is_whole(block),
                "{lost} bytes, {before}: {block:?}"
            );
        }
    }

    #[test]
    fn notice_acknowledges_ordered_bytes_and_the_last_segment() {
        for timestamps in [Some((8, 9)), None] {
            let loss = Loss { timestamps, ..loss(1000, 21_000) };
            let segment = loss_segment(&PARAMS, &loss, loss.sack_block(&PARAMS, 0).unwrap());
            let stamps: &[u8] =
                if timestamps.is_some() { &[1, 1, 8, 10, 0, 0, 0, 8, 0, 0, 0, 9] } else { &[] };
            let block = [&[1, 1, 5, 10][..], &19_540u32.to_be_bytes(), &21_000u32.to_be_bytes()].concat();
            assert_eq!(segment[FIXED_HEADER..], [stamps, &block].concat());
            assert_eq!(usize::from(segment[12] >> 4) * 4, segment.len(), "no data");
            assert_eq!(segment[4..12], [[0, 0, 0, 7], 1000u32.to_be_bytes()].concat());
            assert_eq!(segment[13..16], [ACK, 3, 13], "a window of 100,000 bytes");
            assert_eq!(checksum(&segment, PARAMS.local.ip(), PARAMS.remote.ip()), 0);
        }
    }
}
