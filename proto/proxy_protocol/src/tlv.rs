//! Type-length-value fields of a version 2 header (section 2.2 of the specification).

use crate::error::DecodeError;
use crate::wire;

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Its type.
    pub kind: u8,
    /// Its value.
    pub value: &'a [u8],
}

/// Fields of a header, borrowed from it. They are well-formed: [`decode`](crate::decode) has checked them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tlvs<'a>(&'a [u8]);

/// Content of PP2_TYPE_SSL (section 2.2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SslInfo<'a> {
    /// Whether the client connected over TLS (PP2_CLIENT_SSL).
    pub is_tls: bool,
    /// Whether the client sent a certificate over this connection (PP2_CLIENT_CERT_CONN).
    pub cert_in_connection: bool,
    /// Whether the client sent a certificate in this TLS session (PP2_CLIENT_CERT_SESS).
    pub cert_in_session: bool,
    /// Whether the client sent a certificate that was verified (`verify` is 0).
    pub is_verified: bool,
    /// TLS version as text, for example `TLSv1.3`.
    pub version: Option<&'a [u8]>,
    /// Common name of the client's certificate, in UTF-8.
    pub common_name: Option<&'a [u8]>,
}

impl<'a> Tlvs<'a> {
    /// The first field of a type; later ones are ignored.
    pub fn find(&self, kind: u8) -> Option<&'a [u8]> {
        self.iter().find(|tlv| tlv.kind == kind).map(|tlv| tlv.value)
    }

    /// All fields, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Tlv<'a>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (tlv, next) = split(rest)?;
            rest = next;
            Some(tlv)
        })
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Application protocol of the client's TLS connection.
    pub fn alpn(&self) -> Option<&'a [u8]> {
        self.find(wire::ALPN)
    }

    /// Host name that the client asked for.
    pub fn authority(&self) -> Option<&'a [u8]> {
        self.find(wire::AUTHORITY)
    }

    /// Id of the connection at the proxy, at most 128 bytes.
    pub fn unique_id(&self) -> Option<&'a [u8]> {
        self.find(wire::UNIQUE_ID)
    }

    /// TLS of the client's connection.
    pub fn ssl(&self) -> Option<SslInfo<'a>> {
        let (&[client, a, b, c, d], rest) = self.find(wire::SSL)?.split_first_chunk()?;
        let fields = Tlvs(rest);
        Some(SslInfo {
            is_tls: client & 1 != 0,
            cert_in_connection: client & 2 != 0,
            cert_in_session: client & 4 != 0,
            is_verified: client & 6 != 0 && [a, b, c, d] == [0; 4],
            version: fields.find(wire::SSL_VERSION),
            common_name: fields.find(wire::SSL_CN),
        })
    }
}

impl SslInfo<'_> {
    /// `client` and `verify` of PP2_TYPE_SSL.
    pub(crate) fn head(&self) -> [u8; wire::SSL_HEAD] {
        let bit = |set: bool, value: u8| if set { value } else { 0 };
        let client = bit(self.is_tls, 1) | bit(self.cert_in_connection, 2) | bit(self.cert_in_session, 4);
        [client, 0, 0, 0, u8::from(!self.is_verified || client & 6 == 0)]
    }
}

fn split(bytes: &[u8]) -> Option<(Tlv<'_>, &[u8])> {
    let (&[kind, hi, lo], rest) = bytes.split_first_chunk::<{ wire::TLV_HEAD }>()?;
    let (value, next) = rest.split_at_checked(usize::from(u16::from_be_bytes([hi, lo])))?;
    Some((Tlv { kind, value }, next))
}

/// Fields of a header of which `bytes` have arrived; `len` is the length of all fields.
///
/// Each fault belongs to the byte that causes it. Returns the fields once all bytes are there, and the range of the
/// checksum's value among them.
pub(crate) fn check(bytes: &[u8], len: usize) -> Result<Option<(Tlvs<'_>, Option<usize>)>, DecodeError> {
    let present = bytes.get(..len).unwrap_or(bytes);
    let (mut at, mut checksum) = (0, None);
    while at < len {
        if len - at < wire::TLV_HEAD {
            return Err(DecodeError::TlvCut);
        }
        let Some((&[kind, hi, lo], value)) =
            present.get(at..).and_then(<[u8]>::split_first_chunk::<{ wire::TLV_HEAD }>)
        else {
            break;
        };
        let size = usize::from(u16::from_be_bytes([hi, lo]));
        at += wire::TLV_HEAD;
        if !allows(kind, size) || size > len - at {
            return Err(DecodeError::Tlv { kind });
        }
        if matches!(len - at - size, 1..wire::TLV_HEAD) {
            return Err(DecodeError::TlvCut); // before the value arrives
        }
        if kind == wire::CRC32C && checksum.replace(at).is_some() {
            return Err(DecodeError::Checksum);
        }
        if kind == wire::SSL {
            check_ssl(value.get(..size).unwrap_or(value), size)?;
        }
        at += size;
    }
    Ok((present.len() == len).then_some((Tlvs(present), checksum)))
}

fn allows(kind: u8, size: usize) -> bool {
    match kind {
        wire::CRC32C => size == 4,
        wire::UNIQUE_ID => size <= wire::UNIQUE_ID_MAX,
        wire::SSL => size >= wire::SSL_HEAD,
        _ => true,
    }
}

/// Checks the sub-TLVs of a PP2_TYPE_SSL of `size` bytes, of which `present` have arrived.
fn check_ssl(present: &[u8], size: usize) -> Result<(), DecodeError> {
    let mut at = wire::SSL_HEAD;
    while at < size {
        let fault = DecodeError::Tlv { kind: wire::SSL };
        if size - at < wire::TLV_HEAD {
            return Err(fault);
        }
        let Some(&[_, hi, lo]) = present.get(at..).and_then(<[u8]>::first_chunk::<{ wire::TLV_HEAD }>) else {
            return Ok(());
        };
        at += wire::TLV_HEAD + usize::from(u16::from_be_bytes([hi, lo]));
        if at > size {
            return Err(fault);
        }
    }
    Ok(())
}
