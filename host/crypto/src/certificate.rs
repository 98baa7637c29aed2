//! Certificates with their keys and the names that they are valid for.

use std::sync::Arc;

use rustls::InconsistentKeys;
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Version};

use crate::error::KeyError;
use crate::{pem, sign};

/// Certificate chain with its key and its properties.
#[derive(Clone, Debug)]
pub struct CertifiedName {
    /// Host names that it is valid for, in lower case, wildcards as `*.example.org`: the subject alternative names of
    /// type DNS, or the common name when there are none.
    pub names: Vec<String>,
    /// Chain and key in the format of the handshake.
    pub key: Arc<CertifiedKey>,
    /// Subject, as text.
    pub subject: String,
    /// Issuer, as text.
    pub issuer: String,
    /// Serial number in hexadecimal.
    pub serial: String,
    /// Start of validity, in seconds since 1970.
    pub not_before_unix_s: i64,
    /// End of validity, in seconds since 1970.
    pub not_after_unix_s: i64,
}

/// Loads a chain and its key from PEM and checks that they belong together.
///
/// The dates of validity are not checked, because a node must start even with an expired certificate; see
/// `not_after_unix_s`.
pub fn load_certificate(chain_pem: &[u8], key_pem: &[u8]) -> Result<CertifiedName, KeyError> {
    let chain = pem::chain(chain_pem)?;
    let key = sign::signing_key(pem::private_key(key_pem)?)?;
    let Some(first) = chain.first().cloned() else { return Err(KeyError::Chain("empty".into())) };
    let parsed = parsed(&first)?;
    let subject = parsed.subject().to_string();
    if parsed.version() != X509Version::V3 {
        return Err(KeyError::Version { subject, version: parsed.version().0.saturating_add(1) });
    }
    let key = CertifiedKey::new(chain, key);
    belong_together(&key, &subject)?;
    let names = names(&parsed);
    if names.is_empty() {
        return Err(KeyError::NoName { subject });
    }
    Ok(CertifiedName {
        names,
        key: Arc::new(key),
        subject,
        issuer: parsed.issuer().to_string(),
        serial: parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
        not_before_unix_s: parsed.validity().not_before.timestamp(),
        not_after_unix_s: parsed.validity().not_after.timestamp(),
    })
}

/// The subject of a certificate, as text.
pub(crate) fn subject(certificate: &[u8]) -> Result<String, KeyError> {
    parsed(certificate).map(|parsed| parsed.subject().to_string())
}

/// The first and the last second at which a certificate is valid, in seconds since 1970.
pub fn validity(certificate: &[u8]) -> Result<(i64, i64), KeyError> {
    let parsed = parsed(certificate)?;
    let validity = parsed.validity();
    Ok((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

fn parsed(certificate: &[u8]) -> Result<X509Certificate<'_>, KeyError> {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map(|(_, parsed)| parsed).map_err(|error| KeyError::Certificate(error.to_string()))
}

/// Checks that the key belongs to the certificate; other faults are returned as such.
pub(crate) fn belong_together(key: &CertifiedKey, subject: &str) -> Result<(), KeyError> {
    let subject = subject.to_owned();
    match key.keys_match() {
        Ok(()) => Ok(()),
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(out_of_order(key, &subject).unwrap_or(KeyError::Mismatch { subject }))
        }
        Err(error) => Err(KeyError::Unusable { subject, reason: error.to_string() }),
    }
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    if let Ok(Some(extension)) = certificate.subject_alternative_name() {
        for name in &extension.value.general_names {
            match name {
                GeneralName::DNSName(name) => names.push(name.to_ascii_lowercase()),
                // No client sends an address as server name; it is listed so that the certificate has a name.
                GeneralName::IPAddress(octets) => names.extend(address(octets)),
                _ => {}
            }
        }
    }
    if names.is_empty() {
        let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        names.extend(common.map(str::to_ascii_lowercase));
    }
    names
}

fn address(octets: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(octets).map(std::net::IpAddr::from);
    let v6 = <[u8; 16]>::try_from(octets).map(std::net::IpAddr::from);
    v4.or(v6).ok().map(|address| address.to_string())
}

/// Makes a self-signed ECDSA P-256 certificate: certificate and key in PEM. For a first start and for tests.
pub fn self_signed(names: &[String]) -> Result<(String, String), KeyError> {
    let failed =
        |error: rcgen::Error| KeyError::SelfSigned { names: names.join(", "), reason: error.to_string() };
    let mut params = rcgen::CertificateParams::new(names).map_err(failed)?;
    if let Some(name) = names.first() {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name.as_str());
    }
    let key = rcgen::KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// The error of a key that belongs to a later certificate: chains are often put together in the wrong order.
fn out_of_order(key: &CertifiedKey, first: &str) -> Option<KeyError> {
    let is_own = |certificate: &CertificateDer<'static>| {
        CertifiedKey::new(vec![certificate.clone()], key.key.clone()).keys_match().is_ok()
    };
    let (index, own) = key.cert.iter().enumerate().skip(1).find(|(_, certificate)| is_own(certificate))?;
    let own = subject(own).ok()?;
    Some(KeyError::Order { subject: first.to_owned(), own, number: index + 1 })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A certificate of version 1 for old.example, valid for 100 years, and its key; made for this test.
    pub(crate) const VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBKDCBzwIUZz4KnflG7M8FnWpgyMviCVj7ZFAwCgYIKoZIzj0EAwIwFjEUMBIG
A1UEAwwLb2xkLmV4YW1wbGUwIBcNMjYxMTI0MjE1NTU0WhgPMjEyNjEwMzEyMTU1
NTRaMBYxFDASBgNVBAMMC29sZC5leGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAElHKgNk4faZu9yG/+llLKOIfYUL3lUBEvvh5i4ZGIHVVrP41ZzyVCFwA4
e1EpvmODx6Vv6kI4d9Z2y0iPwlK/6jAKBggqhkjOPQQDAgNIADBFAiEA0ySOma06
OhLB70o5V4ynF1hB99lVYI2ujAbUJTxTZT0CIFPc7cGmyH+ixAsMlKl1PB0lGj+C
7PJfPodKRHA+H8FM
-----END CERTIFICATE-----
";
    const ITS_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgVEe0JwbTk4363rB6
3jr1nYF/2zMz7zJ3P33PJ0+IBkyhRANCAASUcqA2Th9pm73Ib/6WUso4h9hQveVQ
ES++HmLhkYgdVWs/jVnPJUIXADh7USm+Y4PHpW/qQjh31nbLSI/CUr/q
-----END PRIVATE KEY-----
";

    #[test]
    fn version_1_certificate_is_distinguished_from_a_wrong_key() {
        let error = load_certificate(VERSION_1.as_bytes(), ITS_KEY.as_bytes()).unwrap_err();
        assert!(matches!(&error, KeyError::Version { version: 1, .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("CN=old.example is of X.509 version 1") && text.contains("with extensions"),
            "{text}"
        );

        let names = ["new.example".to_owned()];
        let ((chain, _), (_, other_key)) = (self_signed(&names).unwrap(), self_signed(&names).unwrap());
        let error = load_certificate(chain.as_bytes(), other_key.as_bytes()).unwrap_err();
        assert!(matches!(error, KeyError::Mismatch { .. }), "{error}");
    }
}
