//! HTTP/1.1 messages for a reverse proxy: strict heads, body framing, rewriting.
//!
//! A message has exactly one interpretation, or this crate refuses it with a [`Refusal`]: request smuggling relies on
//! two implementations that read the same bytes differently. Every leniency that RFC 9112 allows a recipient (bare LF,
//! folded lines, repeated `Content-Length`, and so on) is therefore declined.
//!
//! Invariants:
//! * This crate allocates nothing per message. Heads borrow the receive buffer; rewriting appends to the caller's
//!   buffer.
//! * The verdict does not depend on how the bytes are split: heads are checked line by line in order, bodies byte by
//!   byte.
//! * No input makes this crate panic.
//!
//! This crate has no buffers, clock or sockets, and does not pair requests with responses; `evergate-connection` does.

mod authority;
mod body;
mod bytes;
mod chunked;
mod connection_auth;
mod error_response;
mod fields;
mod forwarded;
mod header;
mod limits;
mod path;
mod request;
mod response;
mod target;
mod write;

pub use authority::{HOST_BYTES_MAX, is_host};
pub use body::Body;
pub use chunked::Chunked;
pub use connection_auth::{ConnectionAuth, Field, connection_auth};
pub use error_response::{After, error_response, reason_phrase};
pub use forwarded::ForwardedTrust;
pub use header::{FOR_RULES_MAX, Header, HeaderIter, HeaderSlots, Headers, is_for_rules};
pub use limits::{Limits, Parsed, Refusal};
pub use path::canonical_path;
pub use request::{RequestFraming, RequestHead, Version, is_method, parse_request};
pub use response::{ResponseFraming, ResponseHead, parse_response};
pub use write::{RequestEdits, ResponseEdits, write_request_head, write_response_head};
