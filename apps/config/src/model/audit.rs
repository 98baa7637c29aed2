//! `[audit]`: audited capture in the switch.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `[audit]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// File of the epochs' public keys.
    pub epochs: PathBuf,
    /// Key of the Master's log, as a vkey.
    pub log_key: String,
    /// Where a Recorder listens.
    pub feed: Feed,
    /// Behaviour when secrets or requests would be lost.
    pub on_loss: OnLoss,
}

/// Where a Recorder listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feed {
    /// A Unix socket.
    Unix(PathBuf),
    /// TLS with certificates on both ends.
    Tls {
        /// `HOST:PORT`.
        address: String,
        /// Id of the Recorder's certificate.
        recorder: [u8; 32],
        /// Certificate of the switch, in PEM.
        certificate: PathBuf,
        /// Its key, in PEM.
        key: PathBuf,
    },
}

/// Behaviour when secrets or requests would be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// Clients are served, and the record declares the loss.
    Continue,
    /// New connections of audited listeners are refused.
    Refuse,
}
