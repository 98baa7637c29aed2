//! Encoder of both versions.

use crate::crc32c::crc32c;
use crate::header::{Endpoints, V2_BYTES_MAX};
use crate::tlv::SslInfo;
use crate::wire;

/// Optional fields of a version 2 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras<'a> {
    /// Application protocol of the client's TLS connection.
    pub alpn: Option<&'a [u8]>,
    /// Host name that the client asked for, in UTF-8.
    pub authority: Option<&'a [u8]>,
    /// Id of the connection, at most 128 bytes.
    pub unique_id: Option<&'a [u8]>,
    /// TLS of the client's connection.
    pub ssl: Option<SslInfo<'a>>,
    /// Whether the header has a checksum.
    pub checksum: bool,
}

/// Reason why a header cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The id of the connection is longer than 128 bytes.
    #[error("unique id of {0} bytes is longer than {max}", max = wire::UNIQUE_ID_MAX)]
    UniqueId(usize),
    /// The header is longer than the limit.
    #[error("PROXY header of {0} bytes is longer than {V2_BYTES_MAX}")]
    TooLong(usize),
}

/// Appends a version 1 header. Without endpoints, or with addresses of different families, it is `PROXY UNKNOWN`.
pub fn encode_v1(endpoints: Option<&Endpoints>, out: &mut Vec<u8>) {
    let line = endpoints.and_then(|ends| {
        let ports = (ends.source().port(), ends.destination().port());
        match (ends.as_v4(), ends.as_v6()) {
            (Some([source, destination]), _) => {
                Some(format!("PROXY TCP4 {source} {destination} {} {}\r\n", ports.0, ports.1))
            }
            (_, Some([source, destination])) => {
                Some(format!("PROXY TCP6 {source} {destination} {} {}\r\n", ports.0, ports.1))
            }
            _ => None,
        }
    });
    out.extend_from_slice(line.as_deref().unwrap_or("PROXY UNKNOWN\r\n").as_bytes());
}

/// Appends a version 2 header.
///
/// Without endpoints the command is LOCAL, as for health checks, and `extras` are left out, because receivers discard
/// them. Of addresses of different families the IPv4 one is mapped into IPv6.
///
/// # Errors
/// A field or the header is too long; `out` is unchanged then.
pub fn encode_v2(
    endpoints: Option<&Endpoints>,
    extras: &Extras<'_>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let start = out.len();
    let result = write_v2(endpoints, extras, out);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn write_v2(
    endpoints: Option<&Endpoints>,
    extras: &Extras<'_>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(&wire::SIGNATURE);
    let Some(ends) = endpoints else {
        out.extend_from_slice(&[wire::LOCAL, 0, 0, 0]);
        return Ok(());
    };
    let v4 = ends.as_v4();
    out.extend_from_slice(&[wire::PROXY, if v4.is_some() { wire::TCP4 } else { wire::TCP6 }, 0, 0]);
    match v4 {
        Some(addresses) => addresses.iter().for_each(|ip| out.extend_from_slice(&ip.octets())),
        None => ends.mapped().iter().for_each(|ip| out.extend_from_slice(&ip.octets())),
    }
    out.extend_from_slice(&ends.source().port().to_be_bytes());
    out.extend_from_slice(&ends.destination().port().to_be_bytes());
    put_extras(extras, out)?;
    if extras.checksum {
        put_tlv(wire::CRC32C, &[&[0; 4]], out)?;
    }
    let total = out.len() - start;
    if total > V2_BYTES_MAX {
        return Err(EncodeError::TooLong(total));
    }
    if let Some(len) = out.get_mut(start + 14..start + wire::FIXED) {
        len.copy_from_slice(&((total - wire::FIXED) as u16).to_be_bytes());
    }
    if extras.checksum {
        let checksum = crc32c(out.iter().skip(start));
        if let Some(value) = out.last_chunk_mut::<4>() {
            *value = checksum.to_be_bytes();
        }
    }
    Ok(())
}

fn put_extras(extras: &Extras<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    if let Some(alpn) = extras.alpn {
        put_tlv(wire::ALPN, &[alpn], out)?;
    }
    if let Some(authority) = extras.authority {
        put_tlv(wire::AUTHORITY, &[authority], out)?;
    }
    if let Some(id) = extras.unique_id {
        if id.len() > wire::UNIQUE_ID_MAX {
            return Err(EncodeError::UniqueId(id.len()));
        }
        put_tlv(wire::UNIQUE_ID, &[id], out)?;
    }
    if let Some(ssl) = &extras.ssl {
        let mut fields = Vec::new();
        for (kind, value) in [(wire::SSL_VERSION, ssl.version), (wire::SSL_CN, ssl.common_name)] {
            if let Some(value) = value {
                put_tlv(kind, &[value], &mut fields)?;
            }
        }
        put_tlv(wire::SSL, &[&ssl.head(), &fields], out)?;
    }
    Ok(())
}

fn put_tlv(kind: u8, value: &[&[u8]], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let len = value.iter().map(|part| part.len()).sum();
    if len > V2_BYTES_MAX {
        return Err(EncodeError::TooLong(len));
    }
    out.push(kind);
    out.extend_from_slice(&(len as u16).to_be_bytes());
    value.iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}
