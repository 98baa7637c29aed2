//! Deterministic CryptoProvider, and the keys that it uses.
//!
//! `rustls` would draw randomness for a server's handshake from the operating system. This provider draws it from the
//! connection's seed (`evergate_base::seed`), so that any node with the seed writes the same bytes: key shares,
//! signatures, tickets, times. All unsafe code of the crate is in `aws_lc`: the few AWS-LC calls without a safe
//! variant.
//!
//! Invariants: a draw outside a seeded scope fails and never falls back to other randomness; private keys and ticket
//! keys are erased with their owners and never printed. This crate does not watch files, rotate keys on a timer or use
//! the network (see `apps/evergate`).

mod aead;
mod aws_lc;
pub mod base64;
mod certificate;
mod client_cert_verifier;
mod client_config;
mod cluster_tls;
mod derive;
mod ecdsa;
mod error;
mod evidence_keys;
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

pub use aead::fastest_aead;
pub use certificate::{CertifiedName, load_certificate, self_signed, validity};
pub use client_config::{ClientCertificate, ClientSettings, Verify, client_config};
pub use cluster_tls::channel_configs;
pub use derive::derive;
pub use error::{ConfigError, KeyError, PemError, TicketKeyError};
pub use evidence_keys::{EvidenceVerifier, LogKey, LogKeyKind, p256_signature_der, spki_hash};
pub use pem::{pem_certificates, unmarked};
pub use provider::{client_provider, provider, warm_up};
pub use random::{fill_random, random_bytes};
pub use resolver::SniResolver;
pub use server_config::{ClientAuth, ServerSettings, client_policy, server_config};
pub use sign::signing_key;
pub use tickets::{TICKET_FORM, TICKET_LIFETIME_S, TicketHandle, TicketKeys};
pub use trust_anchors::{Authorities, authorities};
