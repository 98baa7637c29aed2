//! Verifier of servers whose certificate itself is trusted.
//!
//! `openssl req -x509` makes certificates that are their own authority (basicConstraints). A chain must not end with
//! such a certificate (RFC 5280 section 6.1 asks for more than a match). Its entry in `ca` nevertheless states that it
//! is trusted. The verifier therefore also accepts a server whose certificate equals a trusted one byte for byte. A
//! trusted certificate that is not an authority is only valid for that.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::certificate::validity;
use crate::error::ConfigError;
use crate::trust_anchors::is_own_issuer;

/// Verifier of servers whose certificates lead to an authority, or are among the trusted ones.
#[derive(Debug)]
pub(crate) struct PinnedServerVerifier {
    /// `None` without an authority: no chain is then valid.
    chains: Option<Arc<WebPkiServerVerifier>>,
    trusted: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedServerVerifier {
    pub(crate) fn new(
        anchors: RootCertStore,
        trusted: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<PinnedServerVerifier>, ConfigError> {
        let algorithms = provider.signature_verification_algorithms;
        let chains = match anchors.is_empty() {
            true => None,
            false => Some(WebPkiServerVerifier::builder_with_provider(Arc::new(anchors), provider).build()),
        };
        let chains = chains.transpose().map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Arc::new(PinnedServerVerifier { chains, trusted, algorithms }))
    }
}

impl ServerCertVerifier for PinnedServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chains = match &self.chains {
            Some(chains) => {
                chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        if !self.trusted.contains(end_entity) {
            return chains.map_err(|error| name_self_signed(error, end_entity));
        }
        if chains.is_ok() {
            return chains;
        }
        check_validity(end_entity, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Error of a self-signed server certificate that is not trusted.
#[derive(Debug, thiserror::Error)]
#[error("self-signed certificate of unknown issuer: neither it nor its issuer is trusted")]
struct SelfSigned;

/// The error of a chain that cannot be valid, because its first certificate is its own issuer.
fn name_self_signed(error: Error, certificate: &[u8]) -> Error {
    let is_lost = match &error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        Error::InvalidCertificate(CertificateError::Other(why)) => why.to_string() == "CaUsedAsEndEntity",
        _ => false,
    };
    match is_lost && is_own_issuer(certificate) {
        true => CertificateError::Other(OtherError(Arc::new(SelfSigned))).into(),
        false => error,
    }
}

fn check_validity(certificate: &[u8], now: UnixTime) -> Result<(), Error> {
    let (from, until) = validity(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now_s < from {
        return Err(CertificateError::NotValidYet.into());
    }
    if now_s > until {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}
