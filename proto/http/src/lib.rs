//! HTTP/1.1 messages for a reverse proxy: strict heads, body framing, rewriting.
//!
//! A message has one interpretation or it is refused with a [`Refusal`]: two implementations that read the same
//! bytes differently are what request smuggling is made of. Every leniency that RFC 9112 allows a recipient
//! (bare LF, folded lines, repeated `Content-Length`, and so on) is therefore declined here.
//!
//! Invariants:
//! * Nothing is allocated per message. Heads borrow the receive buffer; rewriting appends to the caller's buffer.
//! * Feeding a message byte by byte gives the verdict that feeding it at once gives: heads are judged line by
//!   line in order, bodies byte by byte.
//! * No input makes this crate panic.
//!
//! What it does not do: it holds no buffers, no clock and no sockets, and it does not pair requests with
//! responses. The connection does that.

mod authority;
mod body;
mod bytes;
mod chunked;
mod connection_auth;
mod error_response;
mod fields;
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
pub use header::{FOR_RULES_MAX, Header, HeaderIter, HeaderSlots, Headers, is_for_rules};
pub use limits::{Limits, Parsed, Refusal};
pub use path::canonical_path;
pub use request::{RequestFraming, RequestHead, Version, is_method, parse_request};
pub use response::{ResponseFraming, ResponseHead, parse_response};
pub use write::{RequestEdits, ResponseEdits, write_request_head, write_response_head};
