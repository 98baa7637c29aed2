//! Servers whose very certificate is trusted.
//!
//! `openssl req -x509` makes certificates that are their own authority, and says so in them (basicConstraints). As the end of a chain
//! such a one is refused (RFC 5280 section 6.1 asks for more than a match), though whoever names it in `ca` means just it. So a server
//! that shows a certificate which is among the trusted ones byte for byte is taken for what it says that it is.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::certificate::validity;
use crate::error::ConfigError;

/// Takes servers whose certificates lead to one of the roots, or are one of them.
#[derive(Debug)]
pub(crate) struct Trusted {
    chains: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl Trusted {
    pub(crate) fn new(
        store: Arc<RootCertStore>,
        roots: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Trusted>, ConfigError> {
        let chains = WebPkiServerVerifier::builder_with_provider(store, provider).build();
        let chains = chains.map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Arc::new(Trusted { chains, roots }))
    }
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chains =
            self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        if chains.is_ok() || !self.roots.contains(end_entity) {
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
        self.chains.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
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
