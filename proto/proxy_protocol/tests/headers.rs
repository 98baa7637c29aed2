//! Headers of the specification, its limits, and what an encoder writes.

use std::net::SocketAddr;

use evergate_proxy_protocol::{
    Command, DecodeError, Decoded, EncodeError, Endpoints, Extras, Header, SslInfo, V1_BYTES_MAX,
    V2_BYTES_MAX, Version, decode, encode_v1, encode_v2,
};
use proptest::prelude::*;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn endpoints(source: &str, destination: &str) -> Endpoints {
    Endpoints::new(source.parse().unwrap(), destination.parse().unwrap())
}

fn header(bytes: &[u8]) -> Header<'_> {
    match decode(bytes) {
        Ok(Decoded::Header(header)) => header,
        other => panic!("{other:?} for {bytes:?}"),
    }
}

/// A version 2 header with this command, family and block.
fn binary(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    [SIGNATURE, &[command, family], &(block.len() as u16).to_be_bytes(), block].concat()
}

fn tcp4(fields: &[u8]) -> Vec<u8> {
    binary(0x21, 0x11, &[&[192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 4, 1, 0xbb], fields].concat())
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The verdict at each prefix: undecided, then one final verdict. Returns the length that decided.
fn decided_at(bytes: &[u8]) -> (usize, Result<Decoded<'_>, DecodeError>) {
    let first = (0..=bytes.len()).find(|&len| decode(&bytes[..len]) != Ok(Decoded::NeedMore));
    let Some(first) = first else { return (bytes.len(), Ok(Decoded::NeedMore)) };
    let verdict = decode(&bytes[..first]);
    for len in first..=bytes.len() {
        assert_eq!(decode(&bytes[..len]), verdict, "the verdict changed at {len}: {bytes:?}");
    }
    (first, verdict)
}

/// Section 2.1 has these lines.
#[test]
fn lines_of_the_specification_are_read() {
    let line = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n";
    let read = header(line);
    assert_eq!(read.endpoints, Some(endpoints("192.168.0.1:56324", "192.168.0.11:443")));
    assert_eq!((read.version, read.command, read.len), (Version::V1, Command::Proxy, 47));
    assert!(read.tlvs.is_empty());
    let longest = b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n";
    assert_eq!((header(longest).len, longest.len()), (56, 56));
    let full = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let longest = format!("PROXY TCP6 {full} {full} 65535 65535\r\n");
    assert_eq!(header(longest.as_bytes()).len, 104);
    for unknown in ["PROXY UNKNOWN\r\n".to_owned(), format!("PROXY UNKNOWN {full} {full} 65535 65535\r\n")] {
        let read = header(unknown.as_bytes());
        assert_eq!((read.endpoints, read.len), (None, unknown.len()));
    }
    let mapped = b"PROXY TCP6 ::ffff:c000:201 2001:DB8::1 1 2\r\n";
    assert_eq!(header(mapped).endpoints, Some(endpoints("192.0.2.1:1", "[2001:db8::1]:2")));
}

#[test]
fn malformed_line_is_refused_at_its_first_bad_byte() {
    for (line, at) in [
        ("PROXY TCP4 192.0.2.256 1.1.1.1 1 2\r\n", 21),
        ("PROXY TCP4 192.0.2.01 1.1.1.1 1 2\r\n", 20),
        ("PROXY TCP4 192.0.2 1.1.1.1 1 2\r\n", 18),
        ("PROXY TCP4  192.0.2.1 1.1.1.1 1 2\r\n", 11),
        ("PROXY TCP4 2001:db8::1 ::1 1 2\r\n", 14),
        ("PROXY TCP6 192.0.2.1 ::1 1 2\r\n", 14),
        ("PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", 21),
        ("PROXY TCP4 192.0.2.1 1.1.1.1 65536 2\r\n", 33),
        ("PROXY TCP4 192.0.2.1 1.1.1.1 01 2\r\n", 30),
        ("PROXY TCP4 192.0.2.1 1.1.1.1 1 2 \r\n", 32),
        ("PROXY TCP4 192.0.2.1 1.1.1.1 1 2\n", 32),
        ("PROXY TCP4 192.0.2.1 1.1.1.1 1 2\rx", 33),
        ("PROXY UNKNOWNx\r\n", 13),
        ("PROXY UNKNOWN\n", 13),
        ("PROXY UNKNOWN a\n", 15),
        ("PROXY UNKNOWN a\rb", 16),
    ] {
        let (len, verdict) = decided_at(line.as_bytes());
        assert_eq!((verdict, len), (Err(DecodeError::Line { at }), at + 1), "{line:?}");
    }
    for (bytes, len) in [(&b"GET / HTTP/1.1"[..], 1), (b"PROXX", 5), (b"PROXY TCP5", 10), (b"\r\n\r\nG", 5)] {
        assert_eq!(decided_at(bytes), (len, Err(DecodeError::Missing)), "{bytes:?}");
    }
    assert_eq!(DecodeError::Missing.reason(), "proxy_header_missing");
}

#[test]
fn line_ends_within_107_bytes() {
    let line = |len: usize| [b"PROXY UNKNOWN ", &vec![b'x'; len - 16][..], b"\r\n"].concat();
    assert_eq!(header(&line(V1_BYTES_MAX)).len, V1_BYTES_MAX);
    let long = line(V1_BYTES_MAX + 1);
    let (len, verdict) = decided_at(&long);
    assert_eq!(
        (len, verdict),
        (V1_BYTES_MAX - 1, Err(DecodeError::LineTooLong)),
        "no line end fits after it"
    );
    let mut bad = line(V1_BYTES_MAX);
    bad[V1_BYTES_MAX - 1] = b'x';
    assert!(decode(&bad).is_err());
}

/// Bytes derived from section 2.2 by hand; the checksum by another implementation.
#[test]
fn binary_header_has_the_bytes_of_the_specification() {
    let bytes = hex(concat!(
        "0d0a0d0a000d0a515549540a",
        "21110038",
        "c0000201",
        "c6336402",
        "dc0401bb",
        "0100026832",
        "020006612e74657374",
        "0500026964",
        "20000f0100000001",
        "210007544c5376312e33",
        "030004",
        "e61bf477"
    ));
    let ssl = SslInfo { is_tls: true, version: Some(b"TLSv1.3"), ..SslInfo::default() };
    let extras = Extras {
        alpn: Some(b"h2"),
        authority: Some(b"a.test"),
        unique_id: Some(b"id"),
        ssl: Some(ssl),
        checksum: true,
    };
    let ends = endpoints("192.0.2.1:56324", "198.51.100.2:443");
    let mut written = Vec::new();
    encode_v2(Some(&ends), &extras, &mut written).unwrap();
    assert_eq!(written, bytes);
    let read = header(&bytes);
    assert_eq!((read.version, read.command, read.len), (Version::V2, Command::Proxy, bytes.len()));
    assert_eq!(read.endpoints, Some(ends));
    assert_eq!((read.tlvs.alpn(), read.tlvs.authority()), (Some(&b"h2"[..]), Some(&b"a.test"[..])));
    assert_eq!((read.tlvs.unique_id(), read.tlvs.ssl()), (Some(&b"id"[..]), Some(ssl)));
    assert_eq!(read.tlvs.iter().map(|tlv| tlv.kind).collect::<Vec<_>>(), [1, 2, 5, 0x20, 3]);
    for at in 16..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let hides_checksum = at == bytes.len() - 7; // another type in place of the checksum's
        assert_eq!(decode(&damaged).is_ok(), hides_checksum, "byte {at}");
    }
}

#[test]
fn binary_ipv6_header_is_read() {
    let block =
        [&hex("20010db8000000000000000000000001"), &hex("20010db8000000000000000000000002")[..]].concat();
    let bytes = binary(0x21, 0x21, &[&block[..], &[0xdc, 4, 1, 0xbb]].concat());
    let ends = endpoints("[2001:db8::1]:56324", "[2001:db8::2]:443");
    assert_eq!((bytes.len(), header(&bytes).endpoints), (52, Some(ends)));
}

#[test]
fn local_command_discards_the_block() {
    for (family, block) in [(0, &b""[..]), (0x11, b"short"), (0xff, &[0xee; 300])] {
        let bytes = binary(0x20, family, block);
        let read = header(&bytes);
        assert_eq!((read.command, read.endpoints, read.len), (Command::Local, None, 16 + block.len()));
        assert!(read.tlvs.is_empty());
    }
    let mut bytes = Vec::new();
    encode_v2(None, &Extras { alpn: Some(b"h2"), ..Extras::default() }, &mut bytes).unwrap();
    assert_eq!(bytes, [SIGNATURE, &[0x20, 0, 0, 0]].concat());
}

#[test]
fn header_of_an_unsupported_family_names_no_endpoints() {
    for (family, block) in
        [(0, 0), (0, 9), (0x01, 40), (0x10, 12), (0x12, 12), (0x22, 36), (0x31, 216), (0x32, 216)]
    {
        let bytes = binary(0x21, family, &vec![7; block]);
        assert_eq!(header(&bytes).endpoints, None, "{family:#x}");
    }
}

#[test]
fn malformed_binary_header_is_refused_at_once() {
    let long = [SIGNATURE, &[0x21, 0x11, 0x0f, 0xf1]].concat();
    let tlv = |kind| DecodeError::Tlv { kind };
    for (bytes, len, error) in [
        (binary(0x11, 0x11, &[]), 13, DecodeError::Command(0x11)),
        (binary(0x22, 0x11, &[]), 13, DecodeError::Command(0x22)),
        (binary(0x21, 0x41, &[]), 14, DecodeError::Family(0x41)),
        (binary(0x21, 0x13, &[]), 14, DecodeError::Family(0x13)),
        (long, 16, DecodeError::TooLong(4097)),
        (binary(0x21, 0x11, &[0; 11]), 16, DecodeError::Addresses { len: 11, needed: 12 }),
        (binary(0x21, 0x21, &[0; 35]), 16, DecodeError::Addresses { len: 35, needed: 36 }),
        (binary(0x21, 0x31, &[0; 215]), 16, DecodeError::Addresses { len: 215, needed: 216 }),
        (tcp4(&[4, 0]), 16, DecodeError::TlvCut),
        (tcp4(&[4, 0, 1, 9, 4, 0]), 31, DecodeError::TlvCut),
        (tcp4(&[4, 0, 1]), 31, tlv(4)),
        (tcp4(&[3, 0, 3, 1, 2, 3]), 31, tlv(3)),
        (tcp4(&[&[5, 0, 129][..], &[0; 129]].concat()), 31, tlv(5)),
        (tcp4(&[0x20, 0, 4, 1, 0, 0, 0]), 31, tlv(0x20)),
        (tcp4(&[0x20, 0, 9, 1, 0, 0, 0, 0, 0x21, 0, 2, 0, 0]), 31, DecodeError::TlvCut),
        (tcp4(&[0x20, 0, 8, 1, 0, 0, 0, 0, 0x21, 0, 1]), 39, tlv(0x20)),
        (tcp4(&[0x20, 0, 7, 1, 0, 0, 0, 0, 0x21, 0]), 31, tlv(0x20)),
    ] {
        let (at, verdict) = decided_at(&bytes);
        assert_eq!(verdict, Err(error), "{bytes:?}");
        assert_eq!(at, len, "{bytes:?}");
    }
    let twice = tcp4(&[3, 0, 4, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0]);
    assert_eq!(decode(&twice), Err(DecodeError::Checksum));
}

#[test]
fn mixed_families_are_unknown_in_text_and_mapped_in_binary() {
    let ends = endpoints("192.0.2.1:5", "[2001:db8::1]:443");
    let (mut line, mut bytes) = (Vec::new(), Vec::new());
    encode_v1(Some(&ends), &mut line);
    assert_eq!(line, b"PROXY UNKNOWN\r\n");
    encode_v2(Some(&ends), &Extras::default(), &mut bytes).unwrap();
    assert_eq!((bytes[13], &bytes[16..32]), (0x21, &hex("00000000000000000000ffffc0000201")[..]));
    assert_eq!(header(&bytes).endpoints, Some(ends));
}

#[test]
fn encoder_refuses_fields_that_are_too_long() {
    let ends = endpoints("192.0.2.1:5", "192.0.2.2:6");
    let mut out = b"before".to_vec();
    let long = vec![b'x'; V2_BYTES_MAX];
    let id = Extras { unique_id: Some(&long[..129]), ..Extras::default() };
    assert_eq!(encode_v2(Some(&ends), &id, &mut out), Err(EncodeError::UniqueId(129)));
    let name = Extras { authority: Some(&long), ..Extras::default() };
    assert!(matches!(encode_v2(Some(&ends), &name, &mut out), Err(EncodeError::TooLong(_))));
    assert_eq!(out, b"before");
}

fn addresses() -> impl Strategy<Value = SocketAddr> {
    let v4 = (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from);
    let v6 = (any::<[u16; 8]>(), any::<u16>()).prop_map(SocketAddr::from);
    prop_oneof![v4, v6]
}

fn text(len: usize) -> impl Strategy<Value = Option<Vec<u8>>> {
    proptest::option::of(proptest::collection::vec(any::<u8>(), 0..len))
}

proptest! {
    #[test]
    fn written_header_is_read_in_any_segmentation(
        ends in (addresses(), addresses()),
        alpn in text(20), authority in text(300), id in text(129), version in text(9), name in text(80),
        flags in any::<[bool; 5]>(),
        rest in proptest::collection::vec(any::<u8>(), 0..30),
    ) {
        let ends = Endpoints::new(ends.0, ends.1);
        let is_verified = flags[2] && (flags[0] || flags[1]);
        let ssl = SslInfo {
            is_tls: true, cert_in_connection: flags[0], cert_in_session: flags[1], is_verified,
            version: version.as_deref(), common_name: name.as_deref(),
        };
        let ssl = flags[3].then_some(ssl);
        let (alpn, authority, unique_id) = (alpn.as_deref(), authority.as_deref(), id.as_deref());
        let extras = Extras { alpn, authority, unique_id, ssl, checksum: flags[4] };
        let mut bytes = Vec::new();
        encode_v2(Some(&ends), &extras, &mut bytes).unwrap();
        let len = bytes.len();
        bytes.extend_from_slice(&rest);
        let (at, verdict) = decided_at(&bytes);
        prop_assert_eq!(at, len);
        let Ok(Decoded::Header(header)) = verdict else { panic!("{verdict:?}") };
        prop_assert_eq!((header.endpoints, header.len), (Some(ends), len));
        let tlvs = header.tlvs;
        prop_assert_eq!((tlvs.alpn(), tlvs.authority(), tlvs.unique_id()), (alpn, authority, unique_id));
        prop_assert_eq!((tlvs.ssl(), tlvs.find(3).is_some()), (ssl, flags[4]));

        let mut line = Vec::new();
        encode_v1(Some(&ends), &mut line);
        let len = line.len();
        prop_assert!(len <= V1_BYTES_MAX);
        line.extend_from_slice(&rest);
        let (at, verdict) = decided_at(&line);
        prop_assert_eq!(at, len);
        let Ok(Decoded::Header(header)) = verdict else { panic!("{verdict:?}") };
        let mixed = ends.source().is_ipv4() != ends.destination().is_ipv4();
        prop_assert_eq!(header.endpoints, (!mixed).then_some(ends));
    }

    #[test]
    fn verdict_on_damaged_headers_does_not_depend_on_segments(
        ends in (addresses(), addresses()), binary in any::<bool>(), checksum in any::<bool>(),
        damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let ends = Endpoints::new(ends.0, ends.1);
        let mut bytes = Vec::new();
        if binary {
            let ssl = Some(SslInfo { version: Some(b"TLSv1.2"), ..SslInfo::default() });
            encode_v2(Some(&ends), &Extras { ssl, checksum, ..Extras::default() }, &mut bytes).unwrap();
        } else {
            encode_v1(Some(&ends), &mut bytes);
        }
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        prop_assert!(decided_at(&bytes).0 <= bytes.len());
    }
}
