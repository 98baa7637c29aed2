//! TLS: hello reading, seeded handshake driver, record layer, exportable state.
//!
//! `rustls` makes the handshake; this crate decides *what it is fed and when*, so that the server's flight is a pure
//! function of (connection secret, parameters, client bytes) whatever the segmentation was. After the handshake
//! `rustls` is left behind: [`Records`] seals and opens in place, and its whole state fits in [`RecordsState`], which
//! another node can take over.
//!
//! Invariants: one nonce seals one plaintext (positions only move forward unless a caller seeks); no byte of a peer
//! can cause a panic; no operating-system randomness is drawn here. What this crate does not do: sockets, timers,
//! certificates (see `host/crypto`), and deciding where records begin and end.

mod aead;
pub mod alert;
mod alias;
mod client;
mod client_flight;
mod driver;
mod error;
mod error_text;
mod extract;
mod handshake;
mod hello;
mod hello_info;
mod keys;
mod records;
mod schedule;
mod session_cache;
mod state;

pub use aead::{AeadLibraries, AeadLibrary, Cipher, install_aead, installed_aead};
pub use client::{ClientHandshake, foreign_answer};
pub use error::{Blame, HandshakeError, RecordError, StateError};
pub use error_text::error_text;
pub use extract::{Finished, NamedSession, SessionFacts, suite_name};
pub use handshake::{Handshake, HandshakeParams, Progress, flight_digest, hello_error};
pub use hello::{HelloStatus, hello_status};
pub use hello_info::{HelloFacts, is_host_name, read_hello};
pub use keys::{Position, Role, Suite, Version};
pub use records::{ContentType, Layout, Opened, PAYLOAD_MAX, Records, record_len};
pub use session_cache::{SESSION_LIFETIME_S_MAX, SessionCache};
pub use state::RecordsState;
