//! Ethernet frames, read as far as the Recorder needs: VLAN, addresses, ports, TCP.
//!
//! Every length is that of the frame's own bytes: a header that they do not hold makes the frame [`Content::Other`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Ethernet type of a VLAN tag (IEEE 802.1Q).
pub const VLAN_TAG: u16 = 0x8100;
/// Ethernet type of a service tag (IEEE 802.1ad, QinQ).
pub const SERVICE_TAG: u16 = 0x88a8;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
/// Most VLAN tags of a frame that are read.
const TAGS_MAX: usize = 4;
/// Most extension headers of an IPv6 packet that are read.
const EXTENSIONS_MAX: usize = 8;

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// VLAN id of the outermost tag; 0 without one.
    pub vlan: u16,
    /// Content behind the link layer.
    pub content: Content<'a>,
}

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A whole TCP segment.
    Tcp(Segment<'a>),
    /// A fragment of an IP packet, the first one included.
    Fragment,
    /// Anything else.
    Other,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Address and port of the sender.
    pub source: SocketAddr,
    /// Address and port of the receiver.
    pub destination: SocketAddr,
    /// Sequence number of the first byte of the payload, or of the SYN.
    pub seq: u32,
    /// Flags of the header.
    pub flags: TcpFlags,
    /// Length of the payload by the IP header, in bytes.
    pub payload_bytes: u32,
    /// Payload as far as it was captured.
    pub payload: &'a [u8],
}

/// Flags of a TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(u8);

impl TcpFlags {
    /// The flags of this byte.
    pub fn new(byte: u8) -> TcpFlags {
        TcpFlags(byte)
    }

    /// FIN.
    pub fn is_fin(self) -> bool {
        self.0 & 1 != 0
    }

    /// SYN.
    pub fn is_syn(self) -> bool {
        self.0 & 2 != 0
    }

    /// RST.
    pub fn is_rst(self) -> bool {
        self.0 & 4 != 0
    }

    /// ACK.
    pub fn is_ack(self) -> bool {
        self.0 & 16 != 0
    }
}

impl<'a> Frame<'a> {
    /// Reads a frame from its link layer on.
    pub fn read(bytes: &'a [u8]) -> Frame<'a> {
        let mut vlan = 0;
        let mut at = 12;
        for tags in 0..=TAGS_MAX {
            let Some(kind) = u16_at(bytes, at) else { break };
            if kind != VLAN_TAG && kind != SERVICE_TAG {
                let content = read_network(kind, bytes.get(at + 2..).unwrap_or_default());
                return Frame { vlan, content: content.unwrap_or(Content::Other) };
            }
            if tags == 0 {
                vlan = u16_at(bytes, at + 2).unwrap_or(0) & 0xfff;
            }
            at += 4;
        }
        Frame { vlan, content: Content::Other }
    }
}

fn read_network(kind: u16, bytes: &[u8]) -> Option<Content<'_>> {
    match kind {
        IPV4 => read_ipv4(bytes),
        IPV6 => read_ipv6(bytes),
        _ => None,
    }
}

fn read_ipv4(bytes: &[u8]) -> Option<Content<'_>> {
    const MORE_FRAGMENTS_AND_OFFSET: u16 = 0x3fff;
    let first = *bytes.first()?;
    let header = usize::from(first & 15) * 4;
    if first >> 4 != 4 || header < 20 {
        return None;
    }
    let total = usize::from(u16_at(bytes, 2)?);
    if u16_at(bytes, 6)? & MORE_FRAGMENTS_AND_OFFSET != 0 {
        return Some(Content::Fragment);
    }
    if *bytes.get(9)? != TCP {
        return None;
    }
    let address = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?)));
    // An aggregate of more than 65,535 bytes has the length 0.
    let length = if total == 0 { bytes.len() } else { total };
    read_tcp(address(12)?, address(16)?, bytes.get(header..)?, length.checked_sub(header)?)
}

fn read_ipv6(bytes: &[u8]) -> Option<Content<'_>> {
    const HEADER: usize = 40;
    if bytes.first()? >> 4 != 6 {
        return None;
    }
    let address = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*bytes.get(at..)?.first_chunk::<16>()?)));
    let (source, destination) = (address(8)?, address(24)?);
    let stated = usize::from(u16_at(bytes, 4)?);
    let length = if stated == 0 { bytes.len().checked_sub(HEADER)? } else { stated };
    let (mut next, mut at) = (*bytes.get(6)?, HEADER);
    for _ in 0..EXTENSIONS_MAX {
        let extension = bytes.get(at..)?;
        match next {
            TCP => return read_tcp(source, destination, extension, (HEADER + length).checked_sub(at)?),
            44 => return Some(Content::Fragment),
            0 | 43 | 60 => at += 8 + usize::from(*extension.get(1)?) * 8,
            51 => at += 8 + usize::from(*extension.get(1)?) * 4,
            _ => return None,
        }
        next = *extension.first()?;
    }
    None
}

/// `length`: bytes of the segment by the IP header.
fn read_tcp(source: IpAddr, destination: IpAddr, bytes: &[u8], length: usize) -> Option<Content<'_>> {
    let seq = u32::from_be_bytes(*bytes.get(4..)?.first_chunk::<4>()?);
    let header = usize::from(bytes.get(12)? >> 4) * 4;
    let flags = TcpFlags(*bytes.get(13)?);
    if header < 20 {
        return None;
    }
    let payload_bytes = length.checked_sub(header)?;
    let captured = bytes.get(header..).unwrap_or_default();
    Some(Content::Tcp(Segment {
        source: SocketAddr::new(source, u16_at(bytes, 0)?),
        destination: SocketAddr::new(destination, u16_at(bytes, 2)?),
        seq,
        flags,
        payload_bytes: u32::try_from(payload_bytes).ok()?,
        payload: &captured[..captured.len().min(payload_bytes)],
    }))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk::<2>()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame of a TCP segment over IPv4, with these VLAN tags.
    pub(crate) fn frame(
        tags: &[u16],
        source: (u8, u16),
        destination: (u8, u16),
        seq: u32,
        flags: u8,
        data: &[u8],
    ) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in tags {
            frame.extend_from_slice(&VLAN_TAG.to_be_bytes());
            frame.extend_from_slice(&tag.to_be_bytes());
        }
        frame.extend_from_slice(&IPV4.to_be_bytes());
        frame.extend_from_slice(&[0x45, 0]);
        frame.extend_from_slice(&(40 + data.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0x40, 0, 64, TCP, 0, 0]);
        frame.extend_from_slice(&[10, 0, 0, source.0, 10, 0, 0, destination.0]);
        frame.extend_from_slice(&source.1.to_be_bytes());
        frame.extend_from_slice(&destination.1.to_be_bytes());
        frame.extend_from_slice(&seq.to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame.extend_from_slice(data);
        frame
    }

    fn segment<'a>(frame: &Frame<'a>) -> Segment<'a> {
        let Content::Tcp(segment) = frame.content else { panic!("{frame:?}") };
        segment
    }

    #[test]
    fn tcp_over_ipv4_is_read_behind_vlan_tags() {
        for tags in [&[][..], &[5], &[7, 9]] {
            let bytes = frame(tags, (1, 1000), (2, 443), 77, 0x18, b"hello");
            let frame = Frame::read(&bytes);
            assert_eq!(frame.vlan, tags.first().copied().unwrap_or(0));
            let segment = segment(&frame);
            assert_eq!(segment.source, "10.0.0.1:1000".parse().unwrap());
            assert_eq!(segment.destination, "10.0.0.2:443".parse().unwrap());
            assert_eq!((segment.seq, segment.payload, segment.payload_bytes), (77, &b"hello"[..], 5));
        }
    }

    #[test]
    fn padding_of_short_frames_is_no_payload() {
        let mut bytes = frame(&[], (1, 1), (2, 2), 0, 16, b"");
        bytes.resize(60, 0);
        assert_eq!(segment(&Frame::read(&bytes)).payload_bytes, 0);
    }

    #[test]
    fn fragments_are_recognised() {
        let mut bytes = frame(&[], (1, 1), (2, 2), 0, 16, b"x");
        bytes[20] = 0x20; // more fragments
        assert_eq!(Frame::read(&bytes).content, Content::Fragment);
    }

    #[test]
    fn tcp_over_ipv6_is_read_behind_extension_headers() {
        let mut bytes = vec![2; 12];
        bytes.extend_from_slice(&IPV6.to_be_bytes());
        bytes.extend_from_slice(&[0x60, 0, 0, 0, 0, 32, 0, 64]); // 8 of options, 20 of TCP, 4 of data
        bytes.extend_from_slice(&[1; 16]);
        bytes.extend_from_slice(&[2; 16]);
        bytes.extend_from_slice(&[TCP, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&[0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(b"data");
        let frame = Frame::read(&bytes);
        let segment = segment(&frame);
        assert_eq!((segment.seq, segment.payload, segment.source.port()), (9, &b"data"[..], 1));
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, kind in 0usize..4) {
            let mut framed = vec![2; 12];
            framed.extend_from_slice([&[8, 0][..], &[0x86, 0xdd], &[0x81, 0], &[]][kind]);
            framed.extend_from_slice(&bytes);
            let _ = Frame::read(&framed);
        }
    }
}
