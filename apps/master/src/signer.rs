//! Keys that sign the log.

use crate::config::SignerConfig;
use crate::pkcs11::HsmKey;
use crate::problem::{Problem, file_problem};
use evergate_crypto::LogKey;
use evergate_evidence::note::{SignatureLine, VerifyingKey};
use std::time::Duration;

/// Key that signs, with its name.
pub struct Signer {
    key: Key,
    vkey: VerifyingKey,
    /// Added to every signature: a slow HSM in tests.
    delay: Duration,
}

enum Key {
    File(LogKey),
    Hsm(Box<HsmKey>),
}

impl Signer {
    /// Key of the configuration, with the log's origin as its name. A trial signature shows that it works.
    pub fn open(config: &SignerConfig, origin: &str, delay: Duration) -> Result<Signer, Problem> {
        let (key, public) = match config {
            SignerConfig::File { key: path } => {
                let remedy = "make one with `evergate-master init`, or correct signer.key";
                let pem = std::fs::read(path).map_err(|error| file_problem(path, &error, remedy))?;
                let key = LogKey::parse(&pem).map_err(|error| {
                    Problem::new(path.display().to_string(), format!("signing key: {error}"), remedy)
                })?;
                let public = key.public_key();
                (Key::File(key), public)
            }
            SignerConfig::Pkcs11 { module, token, key, pin_file } => {
                let key = HsmKey::open(module, token, key, pin_file)?;
                let public = key.public_key();
                (Key::Hsm(Box::new(key)), public)
            }
        };
        let vkey = VerifyingKey::new(origin, public)
            .map_err(|error| Problem::new("signer", error.to_string(), "correct the origin"))?;
        let mut signer = Signer { key, vkey, delay };
        signer.check().map_err(|error| {
            let remedy = "use a key that may sign (CKA_SIGN), Ed25519 or ECDSA P-256";
            Problem::new("signer", format!("the key does not sign: {error}"), remedy)
        })?;
        Ok(signer)
    }

    fn check(&mut self) -> Result<(), String> {
        let text = "trial\n";
        let line = self.sign(text)?;
        let mut note = evergate_evidence::note::Note::new(text.into()).map_err(|error| error.to_string())?;
        note.sign(line).map_err(|error| error.to_string())?;
        note.verify(std::slice::from_ref(&self.vkey), &evergate_crypto::EvidenceVerifier)
            .map(|_| ())
            .map_err(|_| "its signature does not verify with the public key of the token".into())
    }

    /// Key for verification.
    pub fn vkey(&self) -> &VerifyingKey {
        &self.vkey
    }

    /// Whether the key is in a file.
    pub fn is_trial(&self) -> bool {
        matches!(self.key, Key::File(_))
    }

    /// Signature line over a note's text.
    pub fn sign(&mut self, text: &str) -> Result<SignatureLine, String> {
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        let signature = match &mut self.key {
            Key::File(key) => key.sign(text.as_bytes()).map_err(|error| error.to_string())?,
            Key::Hsm(key) => key.sign(text.as_bytes())?,
        };
        Ok(SignatureLine::of(&self.vkey, signature))
    }
}
