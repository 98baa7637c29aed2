//! Certificate and key of a Recorder or of the Master.

use evergate_crypto::{load_certificate, spki_hash};
use evergate_evidence::merkle::Hash;
use rustls::sign::CertifiedKey;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// Reason why a certificate or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// File that cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        error: std::io::Error,
    },
    /// Certificate or key that is wrong, or both do not belong together.
    #[error("certificate {certificate} with key {key}: {error}")]
    Key {
        /// File of the certificate.
        certificate: String,
        /// File of the key.
        key: String,
        /// The cause.
        error: evergate_crypto::KeyError,
    },
    /// Certificate that cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// Certificate chain with its key, and the id that peers know it by.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(crate) key: Arc<CertifiedKey>,
    id: Hash,
}

impl Identity {
    /// Identity from PEM files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Identity, IdentityError> {
        let read = |path: &Path| {
            std::fs::read(path)
                .map_err(|error| IdentityError::Read { path: path.display().to_string(), error })
        };
        Identity::parse(&read(certificate)?, &read(key)?).map_err(|error| IdentityError::Key {
            certificate: certificate.display().to_string(),
            key: key.display().to_string(),
            error,
        })
    }

    /// Identity from PEM texts.
    pub fn parse(certificate: &[u8], key: &[u8]) -> Result<Identity, evergate_crypto::KeyError> {
        let loaded = load_certificate(certificate, key)?;
        let id = spki_hash(loaded.key.cert.first().map_or(&[][..], |first| first))?;
        Ok(Identity { key: loaded.key, id })
    }

    /// New self-signed certificate and its key, in PEM: for pinned peers the name has no meaning.
    pub fn generate(name: &str) -> Result<(String, String), IdentityError> {
        let pair = rcgen::KeyPair::generate()?;
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()])?;
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2120, 1, 1);
        let certificate = parameters.self_signed(&pair)?;
        Ok((certificate.pem(), pair.serialize_pem()))
    }

    /// SHA-256 of the SPKI of the certificate.
    pub fn id(&self) -> Hash {
        self.id
    }
}

/// Id as 64 hexadecimal digits.
pub fn id_text(id: &Hash) -> String {
    id.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Id from 64 hexadecimal digits in lower case.
pub fn parse_id(text: &str) -> Option<Hash> {
    let digits = text.as_bytes();
    let is_hex = digits.len() == 64 && digits.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
    if !is_hex {
        return None;
    }
    let mut id = [0; 32];
    for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_text() {
        let (certificate, key) = Identity::generate("recorder-1").unwrap();
        let identity = Identity::parse(certificate.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(parse_id(&id_text(&identity.id())), Some(identity.id()));
        for wrong in ["", "0", &"g".repeat(64), &"A".repeat(64), &"0".repeat(63), &"0".repeat(66)] {
            assert_eq!(parse_id(wrong), None);
        }
    }

    #[test]
    fn key_of_another_certificate_is_refused() {
        let (certificate, _) = Identity::generate("a").unwrap();
        let (_, key) = Identity::generate("a").unwrap();
        assert!(Identity::parse(certificate.as_bytes(), key.as_bytes()).is_err());
    }
}
