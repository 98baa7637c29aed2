//! Player of audited capture: packets of one connection in, plaintext and HTTP messages out.
//!
//! [`Session`] composes the steps, each in its module: IP fragments are reassembled ([`fragments`]), TCP payload is put
//! in order with holes and contradictions named ([`stream`]), TLS records are opened with disclosed secrets ([`tls`]),
//! and HTTP/1.1 messages are read ([`http`]).
//!
//! # Guarantees
//! - The crate is pure: packets and secrets in, [`Event`]s out. Every byte of a packet is hostile.
//! - Plaintext of TLS is authentic: a record opens, or it is named as missing.
//! - No missing byte is silent. A hole has its place, its length as far as it is known, and its cause.
//! - [`Limits`] bound the memory. At a limit the player decides early and names what it lost.
//!
//! Not done here: files, the choice of connections, and redaction.

#![forbid(unsafe_code)]

mod event;
pub mod fragments;
pub mod http;
pub mod key_log;
mod limits;
mod session;
pub mod stream;
pub mod tls;

pub use event::{Event, HoleCause, MissingBytes, Note, Side};
pub use limits::Limits;
pub use session::{Ends, Report, SecretSource, Session, SideReport};
