//! TLS: hello reading, seeded handshake driver, record layer, exportable state.
//!
//! `rustls` makes the handshake. This crate decides the input and time of each of its steps. The server's flight is
//! therefore a pure function of (connection secret, parameters, client bytes) in any segmentation. After the handshake
//! `rustls` is no longer used: [`Records`] seals and opens in place. Its whole state fits in [`RecordsState`], from
//! which another node can continue.
//!
//! Handshakes that end elsewhere are only read: [`ClientHello`] to route one, [`SessionObserver`] to learn which
//! session its server made or resumed.
//!
//! Invariants: one nonce seals one plaintext (positions only move forward unless a caller seeks); no byte of a peer can
//! cause a panic; this crate draws no operating-system randomness. It has no sockets, timers or certificates (see
//! `host/crypto`), and does not decide where records begin and end.

mod aead;
pub mod alert;
mod alias;
mod captured;
mod client;
mod client_flight;
mod client_hello;
mod driver;
mod error;
mod error_text;
mod extract;
mod flight;
mod handshake;
mod hello;
mod hello_info;
mod keys;
mod message_stream;
mod observation;
mod opening;
mod reader;
mod records;
mod schedule;
mod server_hello;
mod session_cache;
mod session_observer;
mod session_offer;
mod state;

pub use aead::{AeadLibraries, AeadLibrary, Cipher, install_aead, installed_aead};
pub use captured::{CapturedDirection, MasterSeed, master_secret};
pub use client::{ClientHandshake, foreign_answer};
pub use client_hello::{ClientHello, HelloFault, PskOffer, is_host_name};
pub use error::{Blame, HandshakeError, RecordError, StateError};
pub use error_text::error_text;
pub use extract::{AuditSecrets, Finished, NamedSession, SessionFacts, suite_name};
pub use handshake::{Handshake, HandshakeParams, Progress, flight_digest, hello_error};
pub use hello::{HelloScan, HelloStatus, hello_status};
pub use hello_info::{HelloFacts, client_random, hello_message, read_hello, read_hello_message};
pub use keys::{Position, Role, Suite, Version};
pub use observation::{Completed, FailReason, Failed, NewSession, Observation, Timing};
pub use records::{ContentType, Layout, Opened, PAYLOAD_MAX, Records, record_len};
pub use server_hello::{
    ServerHello, ServerHelloSearch, ServerSessionId, find_server_hello, read_server_hello,
};
pub use session_cache::{SESSION_LIFETIME_S_MAX, SessionCache};
pub use session_observer::SessionObserver;
pub use session_offer::{PSK_IDENTITIES_MAX, SessionOffer};
pub use state::RecordsState;
