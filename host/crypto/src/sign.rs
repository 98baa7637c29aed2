//! Private keys whose signatures of one message are always equal.
//!
//! ECDSA takes its nonce from RFC 6979, RSA-PSS its salt from a key derived from the private key; PKCS#1 v1.5 and
//! Ed25519 are deterministic by definition.

use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::sign::SigningKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::aws_lc::{HashKind, PKey, PKeyKind};
use crate::ecdsa::EcdsaKey;
use crate::error::KeyError;
use crate::rsa::RsaKey;

impl HashKind {
    pub(crate) fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            HashKind::Sha256 => &digest::SHA256,
            HashKind::Sha384 => &digest::SHA384,
            HashKind::Sha512 => &digest::SHA512,
        }
    }

    pub(crate) fn digest(self, message: &[u8]) -> digest::Digest {
        digest::digest(self.algorithm(), message)
    }
}

/// Loads a private key: PKCS#8, SEC1 or PKCS#1; ECDSA P-256, P-384 and P-521, RSA of 2048 to 4096 bits, Ed25519.
pub fn signing_key(der: PrivateKeyDer<'_>) -> Result<Arc<dyn SigningKey>, KeyError> {
    let bytes = der.secret_der();
    let Some(key) = PKey::parse_private(bytes) else {
        return Err(KeyError::Key("cannot be parsed".into()));
    };
    match key.kind() {
        PKeyKind::P256 => Ok(Arc::new(EcdsaKey::<32>::new(key)?)),
        PKeyKind::P384 => Ok(Arc::new(EcdsaKey::<48>::new(key)?)),
        PKeyKind::P521 => Ok(Arc::new(EcdsaKey::<66>::new(key)?)),
        PKeyKind::Rsa { bits: 2048..=4096 } => Ok(Arc::new(RsaKey::new(key)?)),
        PKeyKind::Rsa { bits } => Err(KeyError::Unsupported(format!("an RSA key of {bits} bits"))),
        PKeyKind::Ed25519 => any_eddsa_type(&PrivatePkcs8KeyDer::from(bytes))
            .map_err(|error| KeyError::Key(format!("Ed25519: {error}"))),
        PKeyKind::Other => Err(KeyError::Unsupported("its algorithm or curve".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::signature as verify;
    use rustls::SignatureScheme as S;
    use rustls_pki_types::pem::PemObject;

    /// One key in both encodings; made for this test.
    const SEC1: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIMQKNtdnusv2yKD9dy7eLARZPpyO7801AIzWq4HacKT0oAoGCCqGSM49
AwEHoUQDQgAEydjRgJw99FzKDYQfGcrxGKYuFhUgn07XMUclZFRRwUJXQn7Zi1ag
3Seui5a/GzYEokKxTexMjbMvOnuY6qVnPQ==
-----END EC PRIVATE KEY-----";
    const PKCS8: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgxAo212e6y/bIoP13
Lt4sBFk+nI7vzTUAjNargdpwpPShRANCAATJ2NGAnD30XMoNhB8ZyvEYpi4WFSCf
TtcxRyVkVFHBQldCftmLVqDdJ66Llr8bNgSiQrFN7EyNsy86e5jqpWc9
-----END PRIVATE KEY-----";

    /// On a curve without signatures in TLS 1.3; made for this test.
    const K256: &str = "-----BEGIN PRIVATE KEY-----
MIGEAgEAMBAGByqGSM49AgEGBSuBBAAKBG0wawIBAQQgKvE6vu1pETA0JjzJiYUd
Nc2xt+ZfFMai8V93qA38g1yhRANCAAQRINVBj4CNCHPcXQ7SZ3KnmL4CkZAw5ZRc
6pN3CAT1hFmEd76KISdecqQRREmAChHt3/vCVYJyguMwPovNGZ74
-----END PRIVATE KEY-----";

    fn sign(key: &Arc<dyn SigningKey>, scheme: S, message: &[u8]) -> Vec<u8> {
        let signer = key.choose_scheme(&[S::ML_DSA_44, scheme]).unwrap();
        assert_eq!(signer.scheme(), scheme);
        signer.sign(message).unwrap()
    }

    #[test]
    fn signatures_repeat_and_verify_for_every_scheme() {
        let rsa = |size| rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
        let (rsa2048, rsa3072) = (rsa(rcgen::RsaKeySize::_2048), rsa(rcgen::RsaKeySize::_3072));
        let p256 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let p521 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
        let ed = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut cases: Vec<(&rcgen::KeyPair, S, &dyn verify::VerificationAlgorithm)> = vec![
            (&p256, S::ECDSA_NISTP256_SHA256, &verify::ECDSA_P256_SHA256_ASN1),
            (&p384, S::ECDSA_NISTP384_SHA384, &verify::ECDSA_P384_SHA384_ASN1),
            (&p521, S::ECDSA_NISTP521_SHA512, &verify::ECDSA_P521_SHA512_ASN1),
            (&ed, S::ED25519, &verify::ED25519),
        ];
        for key in [&rsa2048, &rsa3072] {
            cases.extend([
                (
                    key,
                    S::RSA_PSS_SHA256,
                    &verify::RSA_PSS_2048_8192_SHA256 as &dyn verify::VerificationAlgorithm,
                ),
                (key, S::RSA_PSS_SHA384, &verify::RSA_PSS_2048_8192_SHA384),
                (key, S::RSA_PSS_SHA512, &verify::RSA_PSS_2048_8192_SHA512),
                (key, S::RSA_PKCS1_SHA256, &verify::RSA_PKCS1_2048_8192_SHA256),
                (key, S::RSA_PKCS1_SHA384, &verify::RSA_PKCS1_2048_8192_SHA384),
                (key, S::RSA_PKCS1_SHA512, &verify::RSA_PKCS1_2048_8192_SHA512),
            ]);
        }
        for (pair, scheme, algorithm) in cases {
            let load = || signing_key(PrivateKeyDer::try_from(pair.serialize_der()).unwrap()).unwrap();
            let (one, two) = (load(), load());
            for message in 0..20_u8 {
                let signature = sign(&one, scheme, &[message]);
                assert_eq!(sign(&two, scheme, &[message]), signature, "{scheme:?}");
                verify::UnparsedPublicKey::new(algorithm, pair.public_key_raw())
                    .verify(&[message], &signature)
                    .unwrap_or_else(|_| panic!("{scheme:?} {message}"));
            }
        }
    }

    /// RFC 6979 section A.2.5, "sample" with SHA-256: the whole signature, not only its nonce.
    #[test]
    fn ecdsa_signature_is_that_of_rfc_6979() {
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
        };
        let der = [
            hex("30770201010420"),
            hex("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721"),
            hex("a00a06082a8648ce3d030107a14403420004"),
            hex("60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6"),
            hex("7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299"),
        ]
        .concat();
        let key = signing_key(PrivateKeyDer::Sec1(der.into())).unwrap();
        let expected = [
            hex("3046022100"),
            hex("EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716"),
            hex("022100"),
            hex("F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8"),
        ]
        .concat();
        assert_eq!(sign(&key, S::ECDSA_NISTP256_SHA256, b"sample"), expected);
    }

    #[test]
    fn encodings_of_one_key_sign_alike() {
        let keys = [SEC1, PKCS8]
            .map(|pem| signing_key(PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap());
        let [one, two] = keys.map(|key| sign(&key, S::ECDSA_NISTP256_SHA256, b"x"));
        assert_eq!(one, two);
        let rsa =
            rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
        let pkcs8 = rsa.serialize_der();
        let pkcs1 = pkcs8[26..].to_vec(); // after version, algorithm and the octet string's header
        let keys = [PrivateKeyDer::try_from(pkcs8).unwrap(), PrivateKeyDer::Pkcs1(pkcs1.into())];
        let [one, two] = keys.map(|der| sign(&signing_key(der).unwrap(), S::RSA_PSS_SHA256, b"x"));
        assert_eq!(one, two);
    }

    #[test]
    fn keys_of_other_kinds_are_refused_with_advice() {
        let k256 = PrivateKeyDer::from_pem_slice(K256.as_bytes()).unwrap();
        let refused = |der: Vec<u8>| signing_key(PrivateKeyDer::Pkcs8(der.into())).unwrap_err();
        assert!(matches!(refused(k256.secret_der().to_vec()), KeyError::Unsupported(_)));
        assert!(matches!(refused(vec![0x30, 0]), KeyError::Key(_)));
        assert!(matches!(refused(Vec::new()), KeyError::Key(_)));
        let mut trailing = rcgen::KeyPair::generate().unwrap().serialize_der();
        trailing.push(0);
        assert!(matches!(refused(trailing), KeyError::Key(_)));
    }
}
