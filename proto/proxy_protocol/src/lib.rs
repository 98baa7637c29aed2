//! PROXY protocol, versions 1 and 2: a header before a connection's bytes that names the client behind a proxy.
//!
//! The specification is HAProxy's `doc/proxy-protocol.txt`. [`decode`] reads what a peer sent, [`encode_v1`] and
//! [`encode_v2`] write a header for a server.
//!
//! Invariants: a verdict depends on the bytes and not on their segmentation; an error is reported at the first byte, or
//! length of two bytes, that no valid header can have; no header is longer than [`V1_BYTES_MAX`] or
//! [`V2_BYTES_MAX`]. This crate does not decide which peers may send a header: a listener accepts it from trusted
//! networks only.

#![forbid(unsafe_code)]

mod crc32c;
mod decode;
mod encode;
mod error;
mod header;
mod text_header;
mod tlv;
mod wire;

pub use decode::decode;
pub use encode::{EncodeError, Extras, encode_v1, encode_v2};
pub use error::DecodeError;
pub use header::{Command, Decoded, Endpoints, Header, V1_BYTES_MAX, V2_BYTES_MAX, Version};
pub use tlv::{SslInfo, Tlv, Tlvs};
