//! Decoder of both versions.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use evergate_base::{is_proxy_header, may_be_proxy_header};

use crate::crc32c::crc32c;
use crate::error::DecodeError;
use crate::header::{Command, Decoded, Endpoints, Header, V2_BYTES_MAX, Version};
use crate::text_header::decode_line;
use crate::tlv::{self, Tlvs};
use crate::wire;

/// Reads the PROXY header at the start of `bytes`, all bytes that the peer has sent so far.
///
/// Call it again with more bytes after [`Decoded::NeedMore`]. It needs no state: a header has few bytes.
///
/// # Errors
/// The first byte or length that no valid header can have decides. An error is final: close the connection.
pub fn decode(bytes: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    if may_be_proxy_header(bytes) {
        return Ok(Decoded::NeedMore);
    }
    if !is_proxy_header(bytes) {
        return Err(DecodeError::Missing);
    }
    if bytes.starts_with(&wire::SIGNATURE) { decode_binary(bytes) } else { decode_line(bytes) }
}

/// Version 2 (section 2.2). The signature is checked.
fn decode_binary(bytes: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    let command = match bytes.get(12) {
        None => return Ok(Decoded::NeedMore),
        Some(&wire::LOCAL) => Command::Local,
        Some(&wire::PROXY) => Command::Proxy,
        Some(&other) => return Err(DecodeError::Command(other)),
    };
    let Some(&family) = bytes.get(13) else { return Ok(Decoded::NeedMore) };
    // LOCAL: "discard the protocol block including the family which is ignored".
    if command == Command::Proxy && (family >> 4 > 3 || family & 0xf > 2) {
        return Err(DecodeError::Family(family));
    }
    let Some(&[hi, lo]) = bytes.get(14..wire::FIXED) else { return Ok(Decoded::NeedMore) };
    let len = usize::from(u16::from_be_bytes([hi, lo]));
    let total = wire::FIXED + len;
    if total > V2_BYTES_MAX {
        return Err(DecodeError::TooLong(total));
    }
    let block = bytes.get(wire::FIXED..).unwrap_or_default();
    let mut header =
        Header { version: Version::V2, command, endpoints: None, tlvs: Tlvs::default(), len: total };
    let needed = match (command, family >> 4) {
        // A block without known addresses has no known place of TLVs.
        (Command::Local, _) | (Command::Proxy, 0) => {
            return Ok(if block.len() < len { Decoded::NeedMore } else { Decoded::Header(header) });
        }
        (Command::Proxy, 1) => 12,
        (Command::Proxy, 2) => 36,
        (Command::Proxy, _) => 216,
    };
    if len < needed {
        return Err(DecodeError::Addresses { len, needed });
    }
    let fields = block.get(needed..).unwrap_or_default();
    let Some((tlvs, checksum)) = tlv::check(fields, len - needed)? else { return Ok(Decoded::NeedMore) };
    let Some(addresses) = block.get(..needed) else { return Ok(Decoded::NeedMore) };
    if let Some(at) = checksum {
        check_checksum(bytes.get(..total).unwrap_or_default(), wire::FIXED + needed + at)?;
    }
    header.tlvs = tlvs;
    header.endpoints = match family {
        wire::TCP4 => endpoints_v4(addresses),
        wire::TCP6 => endpoints_v6(addresses),
        _ => None,
    };
    Ok(Decoded::Header(header))
}

/// Section 2.2.3: the checksum of the whole header, its own four bytes at `at` being zero.
fn check_checksum(header: &[u8], at: usize) -> Result<(), DecodeError> {
    let (before, rest) = header.split_at_checked(at).ok_or(DecodeError::Checksum)?;
    let (value, after) = rest.split_first_chunk::<4>().ok_or(DecodeError::Checksum)?;
    let computed = crc32c(before.iter().chain(&[0; 4]).chain(after));
    if computed == u32::from_be_bytes(*value) { Ok(()) } else { Err(DecodeError::Checksum) }
}

fn endpoints_v4(block: &[u8]) -> Option<Endpoints> {
    let (source, rest) = block.split_first_chunk::<4>()?;
    let (destination, ports) = rest.split_first_chunk::<4>()?;
    let [source_port, destination_port] = ports_of(ports)?;
    Some(Endpoints::new(
        SocketAddr::new(Ipv4Addr::from(*source).into(), source_port),
        SocketAddr::new(Ipv4Addr::from(*destination).into(), destination_port),
    ))
}

fn endpoints_v6(block: &[u8]) -> Option<Endpoints> {
    let (source, rest) = block.split_first_chunk::<16>()?;
    let (destination, ports) = rest.split_first_chunk::<16>()?;
    let [source_port, destination_port] = ports_of(ports)?;
    Some(Endpoints::new(
        SocketAddr::new(Ipv6Addr::from(*source).into(), source_port),
        SocketAddr::new(Ipv6Addr::from(*destination).into(), destination_port),
    ))
}

fn ports_of(bytes: &[u8]) -> Option<[u16; 2]> {
    let &[a, b, c, d] = bytes.first_chunk()?;
    Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}
