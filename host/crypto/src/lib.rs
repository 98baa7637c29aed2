//! The deterministic CryptoProvider and the keys it works with.
//!
//! What `rustls` would draw from the operating system during a server's handshake is drawn here from the connection's
//! seed (`evergate_base::seed`), so that any node with the seed writes the same bytes: key shares, signatures,
//! tickets, times. All unsafe code of the crate is in `aws`, the few calls of AWS-LC that have no safe form.
//!
//! Invariants: a draw outside a seeded scope fails, it never falls back to other randomness; private keys and ticket
//! keys are erased with their owners and never printed. What this crate does not do: watch files, rotate on a timer,
//! or talk to a network (see `apps/evergate`).

mod aead;
mod authority;
mod aws;
mod base64;
mod certificate;
mod channel;
mod client;
mod clients;
mod derive;
mod ecdsa;
mod error;
mod hash;
mod hkdf;
mod kx;
mod pem;
mod provider;
mod random;
mod resolver;
mod rsa;
mod server;
mod sessions;
mod sign;
mod tickets;
mod trusted;
mod websocket;

pub use aead::fastest_aead;
pub use authority::{Authorities, authorities};
pub use certificate::{CertifiedName, load_certificate, self_signed, validity};
pub use channel::channel_configs;
pub use client::{ClientCertificate, ClientSettings, Verify, client_config};
pub use derive::derive;
pub use error::{ConfigError, KeyError, PemError, TicketKeyError};
pub use pem::{pem_certificates, unmarked};
pub use provider::{client_provider, provider, warm_up};
pub use random::random_bytes;
pub use resolver::SniResolver;
pub use server::{ClientAuth, ServerSettings, client_policy, server_config};
pub use sign::signing_key;
pub use tickets::{TICKET_FORM, TICKET_LIFETIME_S, TicketHandle, TicketKeys};
pub use websocket::websocket_accept;
