//! Selection of the authorities among the certificates of a file.
//!
//! `rustls` keeps a name and a key of a trust anchor, and checks no other property of its certificate. The certificate
//! of a server or client in such a file would make any certificate valid that its key has signed. Anchors are therefore
//! made only of certificates that are marked as issuers.

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

use crate::error::ConfigError;

/// Limit of the authorities' names that a server sends to clients, in bytes. The list's length has 2 bytes in both
/// versions, and `rustls` would wrap a longer one. Some clients accept no message longer than one record; the
/// difference leaves space for the rest of the message.
pub(crate) const NAMES_BYTES_MAX: usize = (1 << 14) - 256;

/// Summary of a file of authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorities {
    /// Number of certificates that may issue others.
    pub count: usize,
    /// Subjects of all other certificates.
    pub others: Vec<String>,
    /// Length of the authorities' names in a handshake, and its limit for sending them to clients, in bytes.
    pub names_bytes: (usize, usize),
}

/// Summary of the certificates in a file of authorities.
pub fn authorities(certificates: &[CertificateDer<'_>]) -> Authorities {
    let (issuing, others): (Vec<_>, Vec<_>) =
        certificates.iter().partition(|certificate| may_issue(certificate));
    let subject = |certificate: &CertificateDer<'_>| {
        crate::certificate::subject(certificate).unwrap_or_else(|_| "an illegible certificate".to_owned())
    };
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(issuing.iter().map(|certificate| (**certificate).clone()));
    Authorities {
        count: issuing.len(),
        others: others.into_iter().map(subject).collect(),
        names_bytes: (names_bytes(&store), NAMES_BYTES_MAX),
    }
}

/// Length of these anchors' names in a CertificateRequest, in bytes: 2 bytes precede each (RFC 5246 section 7.4.4, RFC
/// 8446 section 4.2.4).
pub(crate) fn names_bytes(anchors: &RootCertStore) -> usize {
    anchors.subjects().iter().map(|name| 2 + name.as_ref().len()).sum()
}

/// Whether a certificate is marked as one whose key signs others (RFC 5280 sections 4.2.1.9 and 4.2.1.3).
///
/// A certificate of version 1 has no field for this. As a root, issued by itself, it counts as an authority, as in
/// OpenSSL (`check_ca`), and `webpki` makes an anchor of it. Some private authorities are that old. It cannot be the
/// certificate of a server or client, because TLS requires version 3 for these.
pub(crate) fn may_issue(certificate: &[u8]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    if certificate.version() == X509Version::V1 {
        return issues_itself(&certificate);
    }
    let is_ca = matches!(certificate.basic_constraints(), Ok(Some(constraints)) if constraints.value.ca);
    let signs = match certificate.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
        Err(_) => false,
    };
    is_ca && signs
}

/// Whether a certificate names itself as its issuer (RFC 5280 section 3.2: self-issued).
pub(crate) fn is_own_issuer(certificate: &[u8]) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| issues_itself(&certificate))
}

fn issues_itself(certificate: &X509Certificate<'_>) -> bool {
    certificate.subject().as_raw() == certificate.issuer().as_raw()
}

/// The anchors among these certificates, possibly none; `rustls` must be able to read each certificate.
pub(crate) fn anchors(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, ConfigError> {
    if certificates.is_empty() {
        return Err(ConfigError::NoRoots);
    }
    let (mut anchors, mut others) = (RootCertStore::empty(), RootCertStore::empty());
    for (index, certificate) in certificates.iter().enumerate() {
        let store = if may_issue(certificate) { &mut anchors } else { &mut others };
        let added = store.add(certificate.clone());
        added.map_err(|error| ConfigError::Root { index, reason: error.to_string() })?;
    }
    Ok(anchors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::tests::VERSION_1;

    #[test]
    fn version_1_certificate_may_issue_when_self_issued() {
        let root = crate::pem_certificates(VERSION_1.as_bytes()).unwrap().remove(0);
        assert!(may_issue(&root));
        let mut issued = root.to_vec();
        let issuer = issued.windows(3).position(|bytes| bytes == b"old").unwrap();
        issued[issuer] = b'c';
        assert!(!may_issue(&issued));
        let all = [root, issued.into(), vec![1, 2, 3].into()];
        let others = vec!["CN=old.example".to_owned(), "an illegible certificate".to_owned()];
        let names_bytes = (2 + 24, NAMES_BYTES_MAX);
        assert_eq!(authorities(&all), Authorities { count: 1, others, names_bytes });
        assert_eq!(anchors(&all[..2]).unwrap().len(), 1);
    }
}
