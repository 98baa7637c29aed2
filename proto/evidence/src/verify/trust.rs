//! Trust file: the keys that a verification starts from. It comes from the verifier, never from the evidence.
//!
//! A key is for trials if `trial_keys` has its id, or if its name has a path component `trial`.

use crate::note::{PublicKey, VerifyingKey};
use serde::Deserialize;

/// Most bytes of a trust file.
pub const TRUST_BYTES_MAX: usize = 1 << 20;

/// Keys that a verification starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Keys of logs; at least one.
    pub logs: Vec<VerifyingKey>,
    /// Keys of witnesses.
    pub witnesses: Vec<VerifyingKey>,
    /// Witnesses that must have signed every checkpoint.
    pub witness_threshold: usize,
    /// Paths of the certificates of time-stamp authorities, relative to the trust file.
    pub tsa_certificates: Vec<String>,
    /// Ids of keys that are for trials: 8 hexadecimal digits each.
    pub trial_keys: Vec<String>,
}

/// Error in a trust file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// It is no JSON object of this form.
    #[error("{0}")]
    Form(String),
    /// It has no log.
    #[error("it has no key of a log")]
    NoLog,
    /// A key has the type of the other list.
    #[error("{0} belongs into the other list: logs have keys of type 1 or 2, witnesses of type 4")]
    Type(String),
    /// The threshold is above the number of witnesses.
    #[error("witness_threshold is above the number of witnesses")]
    Threshold,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    logs: Vec<String>,
    #[serde(default)]
    witnesses: Vec<String>,
    #[serde(default)]
    witness_threshold: usize,
    #[serde(default)]
    tsa_certificates: Vec<String>,
    #[serde(default)]
    trial_keys: Vec<String>,
}

impl Trust {
    /// Trust from the content of its file.
    pub fn parse(text: &[u8]) -> Result<Trust, TrustError> {
        let form = |error: &dyn std::fmt::Display| TrustError::Form(error.to_string());
        let raw: Raw = serde_json::from_slice(text).map_err(|error| form(&error))?;
        let keys = |vkeys: &[String], is_witness: bool| -> Result<Vec<VerifyingKey>, TrustError> {
            let key = |vkey: &String| {
                let key = VerifyingKey::parse(vkey).map_err(|error| form(&error))?;
                match matches!(key.key(), PublicKey::Cosignature(_)) == is_witness {
                    true => Ok(key),
                    false => Err(TrustError::Type(key.name().to_owned())),
                }
            };
            vkeys.iter().map(key).collect()
        };
        let (logs, witnesses) = (keys(&raw.logs, false)?, keys(&raw.witnesses, true)?);
        if logs.is_empty() {
            return Err(TrustError::NoLog);
        }
        if raw.witness_threshold > witnesses.len() {
            return Err(TrustError::Threshold);
        }
        let Raw { witness_threshold, tsa_certificates, trial_keys, .. } = raw;
        Ok(Trust { logs, witnesses, witness_threshold, tsa_certificates, trial_keys })
    }

    /// Whether a key is for trials.
    pub fn is_trial(&self, key: &VerifyingKey) -> bool {
        let id = format!("{:08x}", key.id());
        self.trial_keys.contains(&id) || key.name().split('/').any(|part| part == "trial")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vkey(name: &str, key: PublicKey) -> String {
        VerifyingKey::new(name, key).expect("name").to_vkey()
    }

    #[test]
    fn trust_file_names_its_keys() {
        let log = vkey("log.example/2026", PublicKey::Ed25519([1; 32]));
        let witness = vkey("witness.example", PublicKey::Cosignature([2; 32]));
        let text = format!(r#"{{"logs":["{log}"],"witnesses":["{witness}"],"witness_threshold":1}}"#);
        let trust = Trust::parse(text.as_bytes()).expect("valid");
        assert_eq!((trust.logs.len(), trust.witnesses.len()), (1, 1));
        assert!(!trust.is_trial(&trust.logs[0]));
        let swapped = format!(r#"{{"logs":["{witness}"]}}"#);
        assert_eq!(Trust::parse(swapped.as_bytes()), Err(TrustError::Type("witness.example".into())));
        let high = format!(r#"{{"logs":["{log}"],"witness_threshold":1}}"#);
        assert_eq!(Trust::parse(high.as_bytes()), Err(TrustError::Threshold));
        assert_eq!(Trust::parse(br#"{"logs":[]}"#), Err(TrustError::NoLog));
        assert!(matches!(Trust::parse(br#"{"logs":[],"x":1}"#), Err(TrustError::Form(_))));
    }

    #[test]
    fn trial_keys_are_known_by_id_and_by_name() {
        let by_name = vkey("log.example/trial/2026", PublicKey::Ed25519([1; 32]));
        let by_id = vkey("log.example/2026", PublicKey::Ed25519([3; 32]));
        let id = by_id.split('+').nth(1).expect("id").to_owned();
        let text = format!(r#"{{"logs":["{by_name}","{by_id}"],"trial_keys":["{id}"]}}"#);
        let trust = Trust::parse(text.as_bytes()).expect("valid");
        assert!(trust.logs.iter().all(|key| trust.is_trial(key)));
    }
}
