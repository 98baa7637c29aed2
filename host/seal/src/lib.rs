//! Sealing of traffic secrets for audited capture, and the opening of one layer.
//!
//! A [`SealContext`] seals the secrets of at most 1,024 connections under the two public keys of an epoch. It makes one
//! HPKE context for each layer (RFC 9180, export-only), so that a connection costs two exports and two AES-256-GCM
//! calls. [`open_layer`] opens one layer of an envelope. Its ECDH is behind [`Decapsulate`]: keys in a
//! [file](FileKeys) for trials, or in an HSM (feature `pkcs11`).
//!
//! # Guarantees
//! - A key that leaves a context seals one connection in one layer; the pair of key and nonce never repeats.
//! - Keys, nonces and shared secrets are erased with their owners and never printed.
//! - No envelope, point or ciphertext makes a function panic.
//!
//! Not done here: clocks (the caller replaces a context after 60 s), files, and the policy of disclosure.

mod context;
mod error;
mod file_keys;
mod grant;
mod hpke;
mod key_store;
mod layer;
mod open;
#[cfg(feature = "pkcs11")]
mod pkcs11;
mod server_key;

pub use context::{CONNECTIONS_MAX, CONTEXT_AGE_S_MAX, SealContext};
pub use error::{OpenError, SealError};
pub use file_keys::FileKeys;
pub use grant::{RecipientKey, is_public_key, seal_grant};
pub use key_store::{KeyFile, KeyStore};
pub use open::{Decapsulate, Shared, open_layer, open_secrets};
#[cfg(feature = "pkcs11")]
pub use pkcs11::{HsmKeys, HsmPlace};
pub use server_key::ServerKey;
