//! Options that every command of the Revealer has: its state, its keys, its Master.

use super::wrong;
use crate::cli::Failure;
use crate::record::with_port;
use clap::Args;
use evergate_evidence::note::{PublicKey, VerifyingKey};
use evergate_submission::{Trust, parse_id};
use std::path::PathBuf;

/// Options of the Revealer.
#[derive(Clone, Debug, Args)]
pub(super) struct RevealerArgs {
    /// Folder of the Revealer's state: identity, pinned key, last checkpoint, journal of grants
    #[arg(long, value_name = "DIR")]
    pub(super) state: PathBuf,
    /// Master that logs requests
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(super) master: String,
    /// Id of the Master's certificate
    #[arg(long, value_name = "HEX", required_unless_present = "master_ca", conflicts_with = "master_ca")]
    pub(super) master_id: Option<String>,
    /// Authorities of the Master's certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub(super) master_ca: Option<PathBuf>,
    /// Key of the Master's log; without it the first one is pinned
    #[arg(long, value_name = "VKEY")]
    pub(super) log_key: Option<String>,
    /// Witness whose cosignature every proof needs
    #[arg(long, value_name = "VKEY")]
    pub(super) witness: Option<String>,
    /// Note of the policy
    #[arg(long, value_name = "FILE")]
    pub(super) policy: PathBuf,
    /// File with the inner keys: trials only
    #[arg(long, value_name = "FILE", required_unless_present = "module", conflicts_with = "module")]
    pub(super) keys: Option<PathBuf>,
    /// PKCS#11 library of the HSM with the inner keys
    #[arg(long, value_name = "FILE", requires_all = ["token", "pin_file"])]
    pub(super) module: Option<PathBuf>,
    /// Label of its token
    #[arg(long, value_name = "LABEL")]
    pub(super) token: Option<String>,
    /// File with the PIN of the token's user
    #[arg(long, value_name = "FILE")]
    pub(super) pin_file: Option<PathBuf>,
    /// Private RSA key of a server, in PEM, for sessions of TLS 1.2 with RSA key exchange; may repeat
    #[arg(long, value_name = "FILE")]
    pub(super) server_key: Vec<PathBuf>,
}

impl RevealerArgs {
    /// Address of the Master with its port.
    pub(super) fn address(&self) -> String {
        with_port(&self.master)
    }

    /// How the Master's certificate is known.
    pub(super) fn trust(&self) -> Result<Trust, Failure> {
        match (&self.master_id, &self.master_ca) {
            (Some(id), _) => {
                let id = parse_id(id);
                id.map(|id| Trust::Pinned(vec![id]))
                    .ok_or_else(|| wrong("--master-id is no id; it has 64 hexadecimal digits"))
            }
            (None, Some(file)) => std::fs::read(file).map(Trust::Authorities).map_err(|error| {
                wrong(format!("cannot read {}: {error}; correct --master-ca", file.display()))
            }),
            (None, None) => {
                Err(wrong("the Master's certificate is not known; give --master-id or --master-ca"))
            }
        }
    }

    /// Key that the options pin.
    pub(super) fn pinned(&self) -> Result<Option<VerifyingKey>, Failure> {
        self.log_key.as_deref().map(|text| vkey(text, "--log-key")).transpose()
    }

    /// Witnesses whose cosignatures every proof needs.
    pub(super) fn witnesses(&self) -> Result<Vec<VerifyingKey>, Failure> {
        let keys: Result<Vec<VerifyingKey>, Failure> =
            self.witness.iter().map(|text| vkey(text, "--witness")).collect();
        match keys? {
            keys if keys.iter().all(|key| matches!(key.key(), PublicKey::Cosignature(_))) => Ok(keys),
            _ => Err(wrong("--witness is no key of a witness (type 4)")),
        }
    }
}

fn vkey(text: &str, option: &str) -> Result<VerifyingKey, Failure> {
    VerifyingKey::parse(text).map_err(|error| wrong(format!("{option}: {error}")))
}
