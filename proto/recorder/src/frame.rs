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
const FRAGMENT: u8 = 44;
const MORE_FRAGMENTS_AND_OFFSET: u16 = 0x3fff;
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
    /// Acknowledgement number; it counts with the flag ACK only.
    pub ack: u32,
    /// Flags of the header.
    pub flags: TcpFlags,
    /// Length of the payload by the IP header, in bytes.
    pub payload_bytes: u32,
    /// Payload as far as it was captured.
    pub payload: &'a [u8],
}

/// A fragment of an IP packet, the first one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Sender and receiver.
    pub ends: Ends,
    /// Number that all fragments of the packet share.
    pub id: u32,
    /// Protocol of the whole packet's content: of IPv6 the first header behind the fragment header.
    pub protocol: u8,
    /// Place of the data in the whole packet's content, in bytes.
    pub offset: usize,
    /// Whether another fragment follows.
    pub has_more: bool,
    /// Data of the fragment; never cut.
    pub data: &'a [u8],
}

/// Addresses of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ends {
    /// Sender.
    pub source: IpAddr,
    /// Receiver.
    pub destination: IpAddr,
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
        let Link { vlan, kind, content } = read_link(bytes);
        let content = match kind {
            IPV4 => read_ipv4(content),
            IPV6 => read_ipv6(content),
            _ => None,
        };
        Frame { vlan, content: content.unwrap_or(Content::Other) }
    }
}

impl<'a> Fragment<'a> {
    /// Reads a fragment from its link layer on; `None` for any other frame and for a cut one.
    pub fn read(bytes: &'a [u8]) -> Option<Fragment<'a>> {
        let Link { kind, content, .. } = read_link(bytes);
        match kind {
            IPV4 => read_ipv4_fragment(content),
            IPV6 => read_ipv6_fragment(content),
            _ => None,
        }
    }
}

impl Ends {
    /// The TCP segment of a whole IP packet's content.
    pub fn segment<'a>(&self, protocol: u8, content: &'a [u8]) -> Option<Segment<'a>> {
        let upper = walk_extensions(protocol, content, content.len())?;
        let is_tcp = upper.protocol == TCP;
        is_tcp.then(|| read_tcp(*self, upper.bytes, upper.length)).flatten()
    }
}

/// A frame behind its link layer.
struct Link<'a> {
    vlan: u16,
    /// Ethernet type; 0 if the frame has none.
    kind: u16,
    content: &'a [u8],
}

fn read_link(bytes: &[u8]) -> Link<'_> {
    let mut vlan = 0;
    let mut at = 12;
    for tags in 0..=TAGS_MAX {
        let Some(kind) = u16_at(bytes, at) else { break };
        if kind != VLAN_TAG && kind != SERVICE_TAG {
            return Link { vlan, kind, content: bytes.get(at + 2..).unwrap_or_default() };
        }
        if tags == 0 {
            vlan = u16_at(bytes, at + 2).unwrap_or(0) & 0xfff;
        }
        at += 4;
    }
    Link { vlan, kind: 0, content: &[] }
}

fn read_ipv4(bytes: &[u8]) -> Option<Content<'_>> {
    let header = read_ipv4_header(bytes)?;
    if header.fragment & MORE_FRAGMENTS_AND_OFFSET != 0 {
        return Some(Content::Fragment);
    }
    if header.protocol != TCP {
        return None;
    }
    read_tcp(header.ends?, bytes.get(header.bytes..)?, header.length.checked_sub(header.bytes)?)
        .map(Content::Tcp)
}

fn read_ipv4_fragment(bytes: &[u8]) -> Option<Fragment<'_>> {
    let header = read_ipv4_header(bytes)?;
    if header.fragment & MORE_FRAGMENTS_AND_OFFSET == 0 {
        return None;
    }
    Some(Fragment {
        ends: header.ends?,
        id: u32::from(u16_at(bytes, 4)?),
        protocol: header.protocol,
        offset: usize::from(header.fragment & 0x1fff) * 8,
        has_more: header.fragment & 0x2000 != 0,
        data: bytes.get(header.bytes..header.length)?,
    })
}

struct Ipv4Header {
    /// Length of the header in bytes.
    bytes: usize,
    /// Length of the packet in bytes, header included.
    length: usize,
    /// Flags and offset.
    fragment: u16,
    protocol: u8,
    /// `None` if the header is cut.
    ends: Option<Ends>,
}

fn read_ipv4_header(bytes: &[u8]) -> Option<Ipv4Header> {
    let first = *bytes.first()?;
    let header = usize::from(first & 15) * 4;
    if first >> 4 != 4 || header < 20 {
        return None;
    }
    let total = usize::from(u16_at(bytes, 2)?);
    let address = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?)));
    Some(Ipv4Header {
        bytes: header,
        length: if total == 0 { bytes.len() } else { total }, // an aggregate of more than 65,535 bytes has 0
        fragment: u16_at(bytes, 6)?,
        protocol: bytes.get(9).copied().unwrap_or(0),
        ends: address(12).zip(address(16)).map(|(source, destination)| Ends { source, destination }),
    })
}

fn read_ipv6(bytes: &[u8]) -> Option<Content<'_>> {
    let (ends, upper) = read_ipv6_header(bytes)?;
    match upper.protocol {
        TCP => read_tcp(ends, upper.bytes, upper.length).map(Content::Tcp),
        FRAGMENT => Some(Content::Fragment),
        _ => None,
    }
}

fn read_ipv6_fragment(bytes: &[u8]) -> Option<Fragment<'_>> {
    const HEADER: usize = 8;
    let (ends, upper) = read_ipv6_header(bytes)?;
    let place = u16_at(upper.bytes, 2).filter(|_| upper.protocol == FRAGMENT)?;
    Some(Fragment {
        ends,
        id: u32::from_be_bytes(*upper.bytes.get(4..)?.first_chunk::<4>()?),
        protocol: *upper.bytes.first()?,
        offset: usize::from(place & 0xfff8),
        has_more: place & 1 != 0,
        data: upper.bytes.get(HEADER..upper.length)?,
    })
}

fn read_ipv6_header(bytes: &[u8]) -> Option<(Ends, Upper<'_>)> {
    const HEADER: usize = 40;
    if bytes.first()? >> 4 != 6 {
        return None;
    }
    let address = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(*bytes.get(at..)?.first_chunk::<16>()?)));
    let ends = Ends { source: address(8)?, destination: address(24)? };
    let stated = usize::from(u16_at(bytes, 4)?);
    let length = if stated == 0 { bytes.len().checked_sub(HEADER)? } else { stated };
    Some((ends, walk_extensions(*bytes.get(6)?, bytes.get(HEADER..)?, length)?))
}

/// Content of an IPv6 packet behind extension headers that this module skips.
struct Upper<'a> {
    protocol: u8,
    bytes: &'a [u8],
    /// Length by the IP header, in bytes.
    length: usize,
}

fn walk_extensions(first: u8, bytes: &[u8], length: usize) -> Option<Upper<'_>> {
    let (mut protocol, mut at) = (first, 0);
    for _ in 0..EXTENSIONS_MAX {
        let extension = bytes.get(at..)?;
        match protocol {
            0 | 43 | 60 => at += 8 + usize::from(*extension.get(1)?) * 8,
            51 => at += 8 + usize::from(*extension.get(1)?) * 4,
            _ => return Some(Upper { protocol, bytes: extension, length: length.checked_sub(at)? }),
        }
        protocol = *extension.first()?;
    }
    None
}

/// `length`: bytes of the segment by the IP header.
fn read_tcp(ends: Ends, bytes: &[u8], length: usize) -> Option<Segment<'_>> {
    let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk::<4>()?));
    let header = usize::from(bytes.get(12)? >> 4) * 4;
    let flags = TcpFlags(*bytes.get(13)?);
    if header < 20 {
        return None;
    }
    let payload_bytes = length.checked_sub(header)?;
    let captured = bytes.get(header..).unwrap_or_default();
    Some(Segment {
        source: SocketAddr::new(ends.source, u16_at(bytes, 0)?),
        destination: SocketAddr::new(ends.destination, u16_at(bytes, 2)?),
        seq: word(4)?,
        ack: word(8)?,
        flags,
        payload_bytes: u32::try_from(payload_bytes).ok()?,
        payload: &captured[..captured.len().min(payload_bytes)],
    })
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

    #[test]
    fn fragments_of_a_segment_join_to_it() {
        let whole = frame(&[7, 9], (1, 1000), (2, 443), 77, 0x18, &[5; 100]);
        let header = 12 + 8 + 2;
        let mut content = Vec::new();
        for (offset, end, more) in [(0, 64, 0x20), (64, 120, 0)] {
            let mut bytes = whole[..header + 20].to_vec();
            bytes[header + 2..header + 4].copy_from_slice(&(20 + end as u16 - offset as u16).to_be_bytes());
            bytes[header + 6..header + 8].copy_from_slice(&[more, (offset / 8) as u8]);
            bytes.extend_from_slice(&whole[header + 20 + offset..header + 20 + end]);
            assert_eq!(Frame::read(&bytes).content, Content::Fragment);
            let fragment = Fragment::read(&bytes).unwrap();
            assert_eq!((fragment.offset, fragment.has_more, fragment.protocol), (offset, more != 0, TCP));
            assert_eq!(Fragment::read(&bytes[..bytes.len() - 1]), None, "a cut fragment");
            content.extend_from_slice(fragment.data);
        }
        let ends = Ends { source: "10.0.0.1".parse().unwrap(), destination: "10.0.0.2".parse().unwrap() };
        assert_eq!(ends.segment(TCP, &content), Some(segment(&Frame::read(&whole))));
        assert_eq!(Fragment::read(&whole), None);
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, kind in 0usize..4) {
            let mut framed = vec![2; 12];
            framed.extend_from_slice([&[8, 0][..], &[0x86, 0xdd], &[0x81, 0], &[]][kind]);
            framed.extend_from_slice(&bytes);
            let is_fragment = Fragment::read(&framed).is_some();
            assert!(!is_fragment || Frame::read(&framed).content == Content::Fragment);
        }
    }
}
