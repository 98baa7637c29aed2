//! Private RSA keys of servers, for sessions of TLS 1.2 without forward secrecy.
//!
//! Encryption has the format of PKCS#1 v1.5 (RFC 8017 section 7.2), as RFC 5246 section 7.4.7.1 asks for.

use crate::error::OpenError;
use aws_lc_rs::rsa::{Pkcs1PrivateDecryptingKey, PrivateDecryptingKey};
use evergate_evidence::base64;
use zeroize::Zeroizing;

/// Length of a premaster secret in bytes.
const PREMASTER_BYTES: usize = 48;
const PKCS8: &str = "PRIVATE KEY";
const PKCS1: &str = "RSA PRIVATE KEY";
/// Version 0 and rsaEncryption of a PrivateKeyInfo (RFC 5958 section 2).
const RSA_INFO: [u8; 18] = [2, 1, 0, 0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];

/// Private RSA key of a server.
pub struct ServerKey {
    key: Pkcs1PrivateDecryptingKey,
}

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerKey").field("bits", &self.key.key_size_bits()).finish()
    }
}

impl ServerKey {
    /// Key from PEM: PKCS#8, or the older PKCS#1; not encrypted, 2,048 to 8,192 bits.
    pub fn parse(pem: &str) -> Result<ServerKey, OpenError> {
        let wrong = || OpenError::Keys("no RSA key of 2,048 to 8,192 bits in PEM, or it is encrypted".into());
        let info = [PKCS8, PKCS1].into_iter().find_map(|label| section(pem, label).map(|der| (label, der)));
        let (label, der) = info.ok_or_else(wrong)?;
        let der = if label == PKCS1 { Zeroizing::new(private_key_info(&der)) } else { der };
        let key = PrivateDecryptingKey::from_pkcs8(&der).map_err(|_| wrong())?;
        let key = Pkcs1PrivateDecryptingKey::new(key).map_err(|_| wrong())?;
        Ok(ServerKey { key })
    }

    /// Decrypts a premaster secret. `None` if it is not for this key.
    pub fn premaster(&self, encrypted: &[u8]) -> Option<Zeroizing<[u8; PREMASTER_BYTES]>> {
        if encrypted.len() != self.key.key_size_bytes() {
            return None;
        }
        let mut out = Zeroizing::new(vec![0; self.key.min_output_size()]);
        let premaster = self.key.decrypt(encrypted, &mut out).ok()?;
        Some(Zeroizing::new(<[u8; PREMASTER_BYTES]>::try_from(&*premaster).ok()?))
    }
}

/// Content of the first section with this label.
fn section(pem: &str, label: &str) -> Option<Zeroizing<Vec<u8>>> {
    let (_, rest) = pem.split_once(&format!("-----BEGIN {label}-----"))?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let text: Zeroizing<String> = Zeroizing::new(body.split_ascii_whitespace().collect());
    base64::decode(&text).map(Zeroizing::new)
}

/// PrivateKeyInfo around an RSAPrivateKey.
fn private_key_info(key: &[u8]) -> Vec<u8> {
    let octets = [&der_head(4, key.len())[..], key].concat();
    let length = RSA_INFO.len() + octets.len();
    [&der_head(0x30, length)[..], &RSA_INFO, &octets].concat()
}

/// Tag and length in DER, below 65,536 bytes.
fn der_head(tag: u8, length: usize) -> Vec<u8> {
    match length {
        0..0x80 => vec![tag, length as u8],
        0x80..0x100 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
    use aws_lc_rs::rsa::{KeySize, Pkcs1PublicEncryptingKey, PublicEncryptingKey};

    fn pem(label: &str, der: &[u8]) -> String {
        format!("text before\n-----BEGIN {label}-----\n{}\n-----END {label}-----\n", base64::encode(der))
    }

    fn encrypt(key: &PublicEncryptingKey, text: &[u8]) -> Vec<u8> {
        let key = Pkcs1PublicEncryptingKey::new(key.clone()).unwrap();
        let mut out = vec![0; key.ciphertext_size()];
        key.encrypt(text, &mut out).unwrap().to_vec()
    }

    #[test]
    fn both_forms_of_a_key_decrypt_and_another_key_does_not() {
        let [key, other] = [(); 2].map(|()| PrivateDecryptingKey::generate(KeySize::Rsa2048).unwrap());
        let pkcs8: Pkcs8V1Der<'_> = key.as_der().unwrap();
        let pkcs8 = pkcs8.as_ref();
        // PKCS#1 is what the octet string behind the algorithm has; its length takes two bytes.
        let at = pkcs8.windows(RSA_INFO.len()).position(|part| part == RSA_INFO).unwrap();
        let pkcs1 = &pkcs8[at + RSA_INFO.len() + 4..];
        assert_eq!(private_key_info(pkcs1), pkcs8);
        let premaster = [7; 48];
        let encrypted = encrypt(&key.public_key(), &premaster);
        for text in [pem(PKCS8, pkcs8), pem(PKCS1, pkcs1)] {
            let found = ServerKey::parse(&text).unwrap();
            assert_eq!(found.premaster(&encrypted).map(|found| *found), Some(premaster));
            assert!(found.premaster(&encrypted[1..]).is_none());
            assert!(found.premaster(&encrypt(&key.public_key(), &[7; 47])).is_none());
        }
        let other: Pkcs8V1Der<'_> = other.as_der().unwrap();
        let other = ServerKey::parse(&pem(PKCS8, other.as_ref())).unwrap();
        assert_ne!(other.premaster(&encrypted).map(|found| *found), Some(premaster));
    }

    #[test]
    fn text_without_a_key_is_refused() {
        for text in ["", "-----BEGIN PRIVATE KEY-----", &pem(PKCS8, &[1; 40]), &pem(PKCS1, &[0x30; 700])] {
            let error = ServerKey::parse(text).unwrap_err().to_string();
            assert!(error.contains("RSA key"), "{error}");
        }
    }
}
