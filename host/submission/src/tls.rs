//! TLS configurations of both ends: version 1.3 only, certificates on both ends, no resumption.

use crate::Identity;
use evergate_crypto::{client_provider, spki_hash};
use evergate_evidence::merkle::Hash;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// Certificates that an end accepts from its peer.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Certificates with these ids, whatever their names and dates.
    Pinned(Vec<Hash>),
    /// Certificates of these authorities, in PEM. A Recorder also checks the Master's name.
    Authorities(Vec<u8>),
    /// Every certificate: the peer proves only that it has the key. The Master then looks its id up.
    AnyKey,
}

/// Verifier of peers by the ids of their certificates.
#[derive(Debug)]
struct ById {
    /// `None`: every id.
    ids: Option<Vec<Hash>>,
    provider: Arc<CryptoProvider>,
}

impl ById {
    fn check(&self, certificate: &[u8]) -> Result<(), Error> {
        let id = spki_hash(certificate).map_err(|_| CertificateError::BadEncoding)?;
        match self.ids.as_ref().is_none_or(|ids| ids.contains(&id)) {
            true => Ok(()),
            false => Err(CertificateError::UnknownIssuer.into()),
        }
    }
}

/// Common methods of the verifiers of both ends.
macro_rules! tls13_only {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for ById {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)?;
        if self.ids.is_none() {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    tls13_only!();
}

impl ClientCertVerifier for ById {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    tls13_only!();
}

impl Trust {
    fn by_id(&self, provider: &Arc<CryptoProvider>) -> Option<ById> {
        let ids = match self {
            Trust::Pinned(ids) => Some(ids.clone()),
            Trust::AnyKey => None,
            Trust::Authorities(_) => return None,
        };
        Some(ById { ids, provider: provider.clone() })
    }
}

fn general(error: impl std::fmt::Display) -> Error {
    Error::General(error.to_string())
}

fn anchors(pem: &[u8]) -> Result<Arc<rustls::RootCertStore>, Error> {
    let mut anchors = rustls::RootCertStore::empty();
    for certificate in evergate_crypto::pem_certificates(pem).map_err(general)? {
        anchors.add(certificate)?;
    }
    Ok(Arc::new(anchors))
}

/// Configuration of the Master's end.
pub fn server_config(identity: &Identity, recorders: &Trust) -> Result<Arc<ServerConfig>, Error> {
    let provider = client_provider();
    let verifier: Arc<dyn ClientCertVerifier> = match recorders {
        Trust::Authorities(pem) => {
            WebPkiClientVerifier::builder_with_provider(anchors(pem)?, provider.clone())
                .build()
                .map_err(general)?
        }
        other => Arc::new(other.by_id(&provider).ok_or_else(|| general("no trust"))?),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.key.clone())));
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Configuration of a Recorder's end.
pub fn client_config(identity: &Identity, master: &Trust) -> Result<Arc<ClientConfig>, Error> {
    let provider = client_provider();
    let verifier: Arc<dyn ServerCertVerifier> = match master {
        Trust::Authorities(pem) => {
            WebPkiServerVerifier::builder_with_provider(anchors(pem)?, provider.clone())
                .build()
                .map_err(general)?
        }
        other => Arc::new(other.by_id(&provider).ok_or_else(|| general("no trust"))?),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.key.clone())));
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}
