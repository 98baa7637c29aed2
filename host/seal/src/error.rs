//! Errors of sealing and of opening.

use crate::context::CONNECTIONS_MAX;
use evergate_evidence::cursor::Malformed;
use evergate_evidence::envelope::Layer;

/// Reason why secrets are not sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Bytes that are no public key of P-256.
    #[error("the {0:?} key of epoch {1} is no point of P-256: use the epochs that the Master published")]
    Key(Layer, u64),
    /// The context has sealed as many connections as it may.
    #[error("the context has sealed {CONNECTIONS_MAX} connections: make a new one")]
    Exhausted,
    /// Connection of another epoch than that of the context.
    #[error("the connection was born in epoch {found}, the context seals for epoch {expected}")]
    Epoch {
        /// Epoch of the connection.
        found: u64,
        /// Epoch of the context.
        expected: u64,
    },
    /// Secrets that open no session.
    #[error("the secrets are not those of one session of TLS 1.3 or TLS 1.2")]
    Incomplete,
    /// The library or the system's randomness failed.
    #[error("{0} failed")]
    Crypto(&'static str),
}

/// Reason why a layer stays closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is no private key of this epoch: it never was here, or it was destroyed.
    #[error("there is no {0:?} key of epoch {1}: it was destroyed, or is in another token")]
    NoKey(Layer, u64),
    /// The encapsulated key is no point of P-256.
    #[error("the encapsulated key is no point of P-256")]
    Point,
    /// The ciphertext is not from a context of this key, or was changed.
    #[error("the {0:?} layer does not open: it is of another key, or was changed")]
    Closed(Layer),
    /// What was sealed is no list of secrets.
    #[error("the envelope has no secrets: {0}")]
    Content(#[from] Malformed),
    /// The grant is for another key, or was changed.
    #[error("the grant does not open: it is for another key, or was changed")]
    Grant,
    /// The file or the HSM with the keys failed.
    #[error("{0}")]
    Keys(String),
}
