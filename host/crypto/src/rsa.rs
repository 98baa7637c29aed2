//! RSA: PSS with a derived salt (RFC 8017 section 8.1), PKCS#1 v1.5 for TLS 1.2.

use std::sync::Arc;

use aws_lc_rs::{digest, hmac};
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use zeroize::Zeroizing;

use crate::aws_lc::{HashKind, PKey, PKeyKind};
use crate::error::KeyError;

/// SHA-256 first: longer hashes cost time without more protection than the key size allows.
const SCHEMES: [SignatureScheme; 6] = [
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

/// An RSA key.
#[derive(Debug)]
pub(crate) struct RsaKey(Arc<Inner>);

struct Inner {
    key: PKey,
    bits: usize,
    /// Key that derives salts, so that salts reveal nothing about one another.
    salts: hmac::Key,
    public: Vec<u8>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(f)
    }
}

impl RsaKey {
    /// The key of the salts follows from a signature that is never sent: every node with the private key derives the
    /// same one, whatever the encoding of the private key.
    pub(crate) fn new(key: PKey) -> Result<RsaKey, KeyError> {
        let PKeyKind::Rsa { bits } = key.kind() else { return Err(KeyError::Unsupported("not RSA".into())) };
        let public = key.public_der().ok_or_else(|| KeyError::Key("RSA key without a public part".into()))?;
        let label = HashKind::Sha256.digest(b"evergate rsa-pss salt 1");
        let signature = key.rsa_pkcs1(HashKind::Sha256, label.as_ref()).map(Zeroizing::new);
        let signature =
            signature.ok_or_else(|| KeyError::Key("RSA key does not sign: it is damaged".into()))?;
        let salts = hmac::Key::new(hmac::HMAC_SHA512, HashKind::Sha512.digest(&signature).as_ref());
        Ok(RsaKey(Arc::new(Inner { key, bits: bits as usize, salts, public })))
    }
}

impl SigningKey for RsaKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = SCHEMES.into_iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RsaSigner { inner: self.0.clone(), scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(self.0.public.as_slice()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::RSA
    }
}

#[derive(Debug)]
struct RsaSigner {
    inner: Arc<Inner>,
    scheme: SignatureScheme,
}

impl Signer for RsaSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let (hash, pss) = match self.scheme {
            SignatureScheme::RSA_PSS_SHA256 => (HashKind::Sha256, true),
            SignatureScheme::RSA_PSS_SHA384 => (HashKind::Sha384, true),
            SignatureScheme::RSA_PSS_SHA512 => (HashKind::Sha512, true),
            SignatureScheme::RSA_PKCS1_SHA256 => (HashKind::Sha256, false),
            SignatureScheme::RSA_PKCS1_SHA384 => (HashKind::Sha384, false),
            SignatureScheme::RSA_PKCS1_SHA512 => (HashKind::Sha512, false),
            _ => return Err(Error::General("rsa cannot sign with this scheme".into())),
        };
        let digest = hash.digest(message);
        let signature = if pss {
            let salt = hmac::sign(&self.inner.salts, digest.as_ref());
            // RFC 8446 section 4.2.3: the salt is as long as the digest.
            let salt = salt.as_ref().get(..digest.as_ref().len()).unwrap_or_default();
            self.inner.key.rsa_raw(&emsa_pss(hash, digest.as_ref(), salt, self.inner.bits))
        } else {
            self.inner.key.rsa_pkcs1(hash, digest.as_ref())
        };
        signature.ok_or_else(|| Error::General("rsa signing failed".into()))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// EMSA-PSS-ENCODE (RFC 8017 section 9.1.1) with MGF1 of the same hash, padded to the modulus's length. Every hash fits
/// in a modulus of at least 2048 bits.
fn emsa_pss(hash: HashKind, digest: &[u8], salt: &[u8], modulus_bits: usize) -> Vec<u8> {
    let em_bits = modulus_bits - 1;
    let em_len = em_bits.div_ceil(8);
    let mut h = digest::Context::new(hash.algorithm());
    h.update(&[0; 8]);
    h.update(digest);
    h.update(salt);
    let h = h.finish();
    let db_len = em_len - h.as_ref().len() - 1;
    let mut db = vec![0; db_len - salt.len() - 1];
    db.push(1);
    db.extend_from_slice(salt);
    for (counter, chunk) in (0_u32..).zip(db.chunks_mut(h.as_ref().len())) {
        let mut mask = digest::Context::new(hash.algorithm());
        mask.update(h.as_ref());
        mask.update(&counter.to_be_bytes());
        chunk.iter_mut().zip(mask.finish().as_ref()).for_each(|(byte, mask)| *byte ^= mask);
    }
    if let Some(first) = db.first_mut() {
        *first &= 0xff >> (8 * em_len - em_bits);
    }
    let mut block = vec![0; modulus_bits.div_ceil(8) - em_len];
    block.extend_from_slice(&db);
    block.extend_from_slice(h.as_ref());
    block.push(0xbc);
    block
}
