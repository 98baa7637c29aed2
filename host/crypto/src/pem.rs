//! PEM files, with errors that say what is in them instead of what was expected.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::KeyError;

/// The certificates of a chain file, in their order.
pub(crate) fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|error| KeyError::Chain(format!("broken PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(KeyError::Chain(format!("holds no certificate, {}", holds(pem))));
    }
    Ok(certificates)
}

/// The one private key of a file.
pub(crate) fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, KeyError> {
    if contains(pem, b"BEGIN ENCRYPTED PRIVATE KEY") || contains(pem, b"Proc-Type: 4,ENCRYPTED") {
        return Err(KeyError::Encrypted);
    }
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| KeyError::Key(format!("no usable key: {error}, {}", holds(pem))))
}

fn holds(pem: &[u8]) -> &'static str {
    if contains(pem, b"PRIVATE KEY-----") {
        "the file holds a private key"
    } else if contains(pem, b"BEGIN CERTIFICATE") {
        "the file holds a certificate"
    } else if pem.first() == Some(&0x30) {
        "the file looks like DER, not PEM"
    } else {
        "the file holds neither a certificate nor a key"
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
