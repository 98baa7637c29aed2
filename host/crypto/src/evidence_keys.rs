//! Keys of the Master's log: verification of signed notes, and keys in files for trials.
//!
//! `proto/evidence` parses notes and injects the cryptography from here. Keys in HSMs are in `apps/master`.

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    UnparsedPublicKey,
};
use evergate_evidence::note::{Algorithm, PublicKey, SignatureVerifier};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::KeyError;

/// Verifier of notes by AWS-LC.
#[derive(Clone, Copy, Debug, Default)]
pub struct EvidenceVerifier;

impl SignatureVerifier for EvidenceVerifier {
    fn is_valid(&self, algorithm: Algorithm, key: &[u8], message: &[u8], signature: &[u8]) -> bool {
        match algorithm {
            Algorithm::Ed25519 => UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok(),
            Algorithm::EcdsaP256 => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key).verify(message, signature).is_ok()
            }
        }
    }
}

/// Kind of a log's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKeyKind {
    /// Ed25519.
    Ed25519,
    /// ECDSA on P-256.
    EcdsaP256,
}

/// Key of a log in a file. For trials only: a copy of the file signs as well.
pub enum LogKey {
    /// Ed25519 key.
    Ed25519(Ed25519KeyPair),
    /// P-256 key.
    EcdsaP256(EcdsaKeyPair),
}

impl LogKey {
    /// New Ed25519 key, with its PKCS#8 form in PEM.
    pub fn generate() -> Result<(LogKey, String), KeyError> {
        let failed = || KeyError::Key("cannot be generated".into());
        let pair = Ed25519KeyPair::generate().map_err(|_| failed())?;
        let der: Pkcs8V1Der<'static> = pair.as_der().map_err(|_| failed())?;
        let pem = pem_of("PRIVATE KEY", der.as_ref());
        Ok((LogKey::Ed25519(pair), pem))
    }

    /// Key from PKCS#8 in PEM: Ed25519 or P-256.
    pub fn parse(pem: &[u8]) -> Result<LogKey, KeyError> {
        let der = match PrivateKeyDer::from_pem_slice(pem) {
            Ok(PrivateKeyDer::Pkcs8(der)) => der,
            Ok(_) => return Err(KeyError::Unsupported("its form: PKCS#8 is expected".into())),
            Err(error) => return Err(KeyError::Key(error.to_string())),
        };
        let der = der.secret_pkcs8_der();
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            return Ok(LogKey::Ed25519(pair));
        }
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der)
            .map(LogKey::EcdsaP256)
            .map_err(|_| KeyError::Unsupported("its algorithm: Ed25519 and ECDSA P-256 are possible".into()))
    }

    /// The public key.
    pub fn public_key(&self) -> PublicKey {
        match self {
            LogKey::Ed25519(pair) => {
                let mut key = [0; 32];
                key.copy_from_slice(pair.public_key().as_ref());
                PublicKey::Ed25519(key)
            }
            LogKey::EcdsaP256(pair) => {
                let mut point = [0; 65];
                point.copy_from_slice(pair.public_key().as_ref());
                PublicKey::EcdsaP256(point)
            }
        }
    }

    /// Signature in the form of notes.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        match self {
            LogKey::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            LogKey::EcdsaP256(pair) => pair
                .sign(&SystemRandom::new(), message)
                .map(|signature| signature.as_ref().to_vec())
                .map_err(|_| KeyError::Key("cannot sign".into())),
        }
    }
}

/// DER form of an ECDSA signature that PKCS#11 gives as two numbers of 32 bytes.
pub fn p256_signature_der(numbers: &[u8]) -> Option<Vec<u8>> {
    let (r, s) = numbers.split_at_checked(32).filter(|(_, s)| s.len() == 32)?;
    let mut body = Vec::with_capacity(70);
    for number in [r, s] {
        let zeros = number.iter().take_while(|&&byte| byte == 0).count().min(31);
        let number = &number[zeros..];
        let sign = usize::from(number[0] >= 0x80);
        body.extend_from_slice(&[2, (number.len() + sign) as u8]);
        body.resize(body.len() + sign, 0);
        body.extend_from_slice(number);
    }
    Some([&[0x30, body.len() as u8][..], &body].concat())
}

/// SHA-256 of the SPKI of a certificate: the id of a Recorder.
pub fn spki_hash(certificate: &[u8]) -> Result<[u8; 32], KeyError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| KeyError::Chain(error.to_string()))?;
    Ok(evergate_evidence::merkle::sha256(parsed.public_key().raw))
}

fn pem_of(label: &str, der: &[u8]) -> String {
    let text = crate::base64::encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_evidence::note::{Note, NoteError, SignatureLine, VerifyingKey};

    /// Vector of the Go implementation `golang.org/x/mod/sumdb/note`.
    #[test]
    fn note_of_another_implementation_verifies() {
        let key = VerifyingKey::parse("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
            .unwrap();
        let text = "If you think cryptography is the answer to your problem,\n\
            then you don't know what your problem is.\n\n\
            \u{2014} PeterNeumann \
            x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";
        let note = Note::parse(text.as_bytes()).unwrap();
        note.verify(std::slice::from_ref(&key), &EvidenceVerifier).unwrap();
        let changed = Note::parse(text.replace("don't", "do not").as_bytes()).unwrap();
        assert_eq!(changed.verify(&[key], &EvidenceVerifier), Err(NoteError::Wrong("PeterNeumann".into())));
    }

    #[test]
    fn keys_in_files_sign_notes() {
        let p256 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap().serialize_pem();
        for pem in [LogKey::generate().unwrap().1, p256] {
            let key = LogKey::parse(pem.as_bytes()).unwrap();
            let verifying = VerifyingKey::new("log", key.public_key()).unwrap();
            let mut note = Note::new("text\n".into()).unwrap();
            let signature = key.sign(note.text().as_bytes()).unwrap();
            note.sign(SignatureLine::of(&verifying, signature)).unwrap();
            note.verify(&[verifying], &EvidenceVerifier).unwrap();
        }
    }

    #[test]
    fn other_keys_are_refused() {
        let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap().serialize_pem();
        assert!(matches!(LogKey::parse(p384.as_bytes()), Err(KeyError::Unsupported(_))));
        assert!(matches!(LogKey::parse(b"text"), Err(KeyError::Key(_))));
    }

    #[test]
    fn numbers_of_signatures_become_canonical_der() {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let mut numbers = [0; 64];
        numbers[31] = 1;
        numbers[32] = 0x80;
        let der = p256_signature_der(&numbers).unwrap();
        assert_eq!(der[..8], [0x30, 38, 2, 1, 1, 2, 33, 0]);
        assert_eq!(p256_signature_der(&numbers[1..]), None);
        assert!(p256_signature_der(&[0; 64]).is_some());
        let plain = &aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = pair.to_pkcs8v1().unwrap();
        let fixed = EcdsaKeyPair::from_pkcs8(plain, pkcs8.as_ref()).unwrap();
        for message in 0..50_u8 {
            let numbers = fixed.sign(&SystemRandom::new(), &[message]).unwrap();
            let der = p256_signature_der(numbers.as_ref()).unwrap();
            let key = pair.public_key().as_ref();
            assert!(EvidenceVerifier.is_valid(Algorithm::EcdsaP256, key, &[message], &der));
        }
    }

    #[test]
    fn recorder_id_is_the_hash_of_its_public_key() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["a".into()]).unwrap().self_signed(&pair).unwrap();
        use rcgen::PublicKeyData;
        let spki = pair.subject_public_key_info();
        assert_eq!(spki_hash(certificate.der()).unwrap(), evergate_evidence::merkle::sha256(&spki));
        assert!(spki_hash(b"").is_err());
    }
}
