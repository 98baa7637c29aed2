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
mod aws_lc;
mod base64;
mod certificate;
mod client_cert_verifier;
mod client_config;
mod cluster_tls;
mod derive;
mod ecdsa;
mod error;
mod hkdf;
mod kx;
mod pem;
mod pinned_server_verifier;
mod provider;
mod random;
mod resolver;
mod rsa;
mod server_config;
mod session_store;
mod sha256;
mod sign;
mod tickets;
mod trust_anchors;
mod websocket;

pub use aead::fastest_aead;
pub use certificate::{CertifiedName, load_certificate, self_signed, validity};
pub use client_config::{ClientCertificate, ClientSettings, Verify, client_config};
pub use cluster_tls::channel_configs;
pub use derive::derive;
pub use error::{ConfigError, KeyError, PemError, TicketKeyError};
pub use pem::{pem_certificates, unmarked};
pub use provider::{client_provider, provider, warm_up};
pub use random::random_bytes;
pub use resolver::SniResolver;
pub use server_config::{ClientAuth, ServerSettings, client_policy, server_config};
pub use sign::signing_key;
pub use tickets::{TICKET_FORM, TICKET_LIFETIME_S, TicketHandle, TicketKeys};
pub use trust_anchors::{Authorities, authorities};
pub use websocket::websocket_accept;
