//! PEM files, with errors that describe the content of the file.

use rustls_pki_types::pem::{Error, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::{KeyError, PemError};

/// Names of blocks that errors may show. Any other label may be a key whose line ends were lost.
const LABELS: [&str; 8] = [
    "CERTIFICATE",
    "CERTIFICATE REQUEST",
    "PRIVATE KEY",
    "EC PRIVATE KEY",
    "RSA PRIVATE KEY",
    "EC PARAMETERS",
    "PUBLIC KEY",
    "X509 CRL",
];

/// The byte order mark (UTF-8) that some editors put in front of a text.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// A PEM file without the byte order mark in front of it, which would hide its first block.
pub fn unmarked(pem: &[u8]) -> &[u8] {
    pem.strip_prefix(MARK).unwrap_or(pem)
}

/// All certificates of a file, in order; none for a file of another kind.
pub fn pem_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let pem = whole(pem)?;
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| broken(&error))
}

/// A PEM file without hidden blocks. A concatenation of files with byte order marks has marks in its middle.
fn whole(pem: &[u8]) -> Result<&[u8], PemError> {
    let pem = unmarked(pem);
    match contains(pem, &[MARK, b"-----BEGIN "].concat()) {
        true => {
            Err(PemError("a byte order mark (U+FEFF) before a line `-----BEGIN` hides that block".to_owned()))
        }
        false => Ok(pem),
    }
}

/// The certificates of a chain file, in order.
pub(crate) fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let certificates =
        pem_certificates(pem).map_err(|error| KeyError::Chain(format!("broken PEM: {error}")))?;
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
    let whole = whole(pem).map_err(|error| KeyError::Key(error.to_string()))?;
    PrivateKeyDer::from_pem_slice(whole)
        .map_err(|error| KeyError::Key(format!("no usable key: {}, {}", broken(&error), holds(pem))))
}

/// The library's error. It never includes content of the file, which may be a private key.
fn broken(error: &Error) -> PemError {
    PemError(match error {
        Error::MissingSectionEnd { end_marker } => match known(end_marker) {
            Some(label) => {
                format!("the last block has no line `-----END {label}-----`, as in a file that is cut off")
            }
            None => "the last block has no end, as in a file that is cut off or whose line ends were lost".to_owned(),
        },
        Error::IllegalSectionStart { .. } => {
            "a line begins with `-----BEGIN ` and does not end with five dashes, as in a file whose line ends were lost"
                .to_owned()
        }
        other => other.to_string(),
    })
}

fn known(label: &[u8]) -> Option<&'static str> {
    LABELS.into_iter().find(|known| known.as_bytes() == label)
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
