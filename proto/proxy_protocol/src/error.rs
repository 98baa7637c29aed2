//! Reasons why bytes are no PROXY header.

use crate::header::{V1_BYTES_MAX, V2_BYTES_MAX};

/// Reason to close a connection whose PROXY header is missing or malformed. Each has a [`reason`](Self::reason) for
/// logs and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first bytes begin no header of either version.
    #[error("connection does not begin with a PROXY header")]
    Missing,
    /// A version 1 line with an impossible byte.
    #[error("PROXY line has an impossible byte at {at}")]
    Line {
        /// Index of the byte.
        at: usize,
    },
    /// A version 1 line without an end within the limit.
    #[error("PROXY line does not end within {V1_BYTES_MAX} bytes")]
    LineTooLong,
    /// A version or command that the specification does not assign.
    #[error("PROXY header has version and command {0:#04x}")]
    Command(u8),
    /// An address family or transport that the specification does not assign.
    #[error("PROXY header has family and transport {0:#04x}")]
    Family(u8),
    /// A version 2 header longer than the limit.
    #[error("PROXY header of {0} bytes is longer than {V2_BYTES_MAX}")]
    TooLong(usize),
    /// A version 2 header too short for its addresses.
    #[error("PROXY header has {len} bytes for addresses and needs {needed}")]
    Addresses {
        /// Bytes after the fixed part.
        len: usize,
        /// Bytes of the addresses of this family.
        needed: usize,
    },
    /// A TLV that does not fit, or a length that its type does not allow.
    #[error("PROXY header has a malformed TLV of type {kind:#04x}")]
    Tlv {
        /// Its type.
        kind: u8,
    },
    /// The rest of the header is too short for a TLV.
    #[error("PROXY header ends within a TLV")]
    TlvCut,
    /// The checksum does not match, or there are two.
    #[error("PROXY header has a wrong checksum")]
    Checksum,
}

impl DecodeError {
    /// Reason in logs and counters: a connection without a header, or one with a malformed header.
    pub fn reason(&self) -> &'static str {
        match self {
            DecodeError::Missing => "proxy_header_missing",
            _ => "proxy_header_malformed",
        }
    }
}
