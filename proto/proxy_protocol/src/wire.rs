//! Numbers of the binary header (section 2.2 of the specification), for decoder and encoder.

/// First 12 bytes of a version 2 header.
pub(crate) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, length.
pub(crate) const FIXED: usize = 16;

/// Version 2, command LOCAL.
pub(crate) const LOCAL: u8 = 0x20;
/// Version 2, command PROXY.
pub(crate) const PROXY: u8 = 0x21;

/// TCP over IPv4.
pub(crate) const TCP4: u8 = 0x11;
/// TCP over IPv6.
pub(crate) const TCP6: u8 = 0x21;

/// PP2_TYPE_ALPN.
pub(crate) const ALPN: u8 = 0x01;
/// PP2_TYPE_AUTHORITY.
pub(crate) const AUTHORITY: u8 = 0x02;
/// PP2_TYPE_CRC32C.
pub(crate) const CRC32C: u8 = 0x03;
/// PP2_TYPE_UNIQUE_ID.
pub(crate) const UNIQUE_ID: u8 = 0x05;
/// PP2_TYPE_SSL.
pub(crate) const SSL: u8 = 0x20;
/// PP2_SUBTYPE_SSL_VERSION.
pub(crate) const SSL_VERSION: u8 = 0x21;
/// PP2_SUBTYPE_SSL_CN.
pub(crate) const SSL_CN: u8 = 0x22;

/// Type and length of a TLV.
pub(crate) const TLV_HEAD: usize = 3;
/// Client flags and result of the verification, before the sub-TLVs of PP2_TYPE_SSL.
pub(crate) const SSL_HEAD: usize = 5;
/// Limit of PP2_TYPE_UNIQUE_ID, in bytes.
pub(crate) const UNIQUE_ID_MAX: usize = 128;
