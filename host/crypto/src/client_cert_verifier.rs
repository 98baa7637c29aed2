//! Verification of client certificates by `rustls`' verifier; records the end of validity, which bounds the session.
//!
//! A resumed session presents the certificate of its full handshake without another check. The session therefore ends
//! with the certificate: its end of validity goes into the handshake's slot, and from there into every ticket and
//! stored session. Only the client's own certificate counts; its authorities are checked again at the next full
//! handshake.

use std::sync::Arc;

use evergate_base::seed::with_current;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::sha256::with_own_bytes;
use crate::tickets::TICKET_LIFETIME_S;

/// Verifier that records the end of validity of each accepted certificate.
#[derive(Debug)]
pub(crate) struct RecordingClientVerifier(pub(crate) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for RecordingClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        // This handshake is a full one: the end recorded for a ticket does not apply.
        with_current(|seed| {
            let lifetime_ends = seed.unix_s.saturating_add(u64::from(TICKET_LIFETIME_S));
            seed.session.good_until_unix_s = Some(lifetime_ends.min(not_after_unix_s(end_entity)));
        });
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // The client has signed all messages so far, its own hello first.
        let mut own = Vec::new();
        with_own_bytes(message, |part| own.extend_from_slice(part));
        self.0.verify_tls12_signature(&own, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}

/// The last second at which a certificate is valid; 0, which prevents resumption, when it cannot be read.
fn not_after_unix_s(certificate: &[u8]) -> u64 {
    let parsed = X509Certificate::from_der(certificate).ok();
    let seconds = parsed.map(|(_, certificate)| certificate.validity().not_after.timestamp());
    seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0)
}
