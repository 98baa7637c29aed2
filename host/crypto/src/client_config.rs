//! Client configurations, for TLS to upstream servers.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::certificate::{belong_together, subject};
use crate::error::ConfigError;
use crate::pinned_server_verifier::PinnedServerVerifier;
use crate::provider::client_provider;
use crate::random::CaptureLog;
use crate::trust_anchors::{anchors, may_issue};
use crate::{KeyError, pem};

/// Usual locations of a system's trusted roots, each one PEM file.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Verification of an upstream server's certificate.
#[derive(Clone, Debug, Default)]
pub enum Verify {
    /// It must lead to an authority among these certificates, or be one of them.
    Roots(Vec<CertificateDer<'static>>),
    /// It must lead to a root that this system trusts.
    #[default]
    System,
    /// No verification: an attacker between node and server can read and change everything.
    InsecureNone,
}

/// Certificate that a node presents to upstream servers.
#[derive(Debug)]
pub struct ClientCertificate {
    /// Chain, the node's own certificate first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

impl ClientCertificate {
    /// Reads chain and key from PEM.
    pub fn from_pem(chain_pem: &[u8], key_pem: &[u8]) -> Result<ClientCertificate, KeyError> {
        Ok(ClientCertificate { chain: pem::chain(chain_pem)?, key: pem::private_key(key_pem)? })
    }

    /// Checks that the key belongs to the certificate and that both can be used. [`client_config`] checks this too, but
    /// with less precise errors.
    pub fn check(&self) -> Result<(), KeyError> {
        let Some(first) = self.chain.first() else { return Err(KeyError::Chain("empty".into())) };
        let subject = subject(first)?;
        let key = client_provider().key_provider.load_private_key(self.key.clone_key());
        let key = key.map_err(|error| KeyError::Key(error.to_string()))?;
        belong_together(&CertifiedKey::new(self.chain.clone(), key), &subject)
    }
}

/// TLS settings of a pool.
#[derive(Debug, Default)]
pub struct ClientSettings {
    /// Verification of servers.
    pub verify: Verify,
    /// Application protocols, the preferred one first.
    pub alpn: Vec<Vec<u8>>,
    /// Certificate to present when a server requests one.
    pub certificate: Option<ClientCertificate>,
}

/// Makes the configuration for [`evergate_tls::ClientHandshake`]. Sessions are resumed within it.
pub fn client_config(settings: ClientSettings) -> Result<Arc<ClientConfig>, ConfigError> {
    if let Some(name) = settings.alpn.iter().find(|name| !(1..=255).contains(&name.len())) {
        return Err(ConfigError::Alpn(name.len()));
    }
    let provider = client_provider();
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match settings.verify {
        Verify::Roots(roots) => {
            let trusted = PinnedServerVerifier::new(anchors(&roots)?, roots, provider)?;
            builder.dangerous().with_custom_certificate_verifier(trusted)
        }
        Verify::System => {
            let (anchors, others) = system_roots()?;
            let trusted = PinnedServerVerifier::new(anchors, others, provider)?;
            builder.dangerous().with_custom_certificate_verifier(trusted)
        }
        Verify::InsecureNone => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerifier(provider)))
        }
    };
    let mut config = match settings.certificate {
        Some(ClientCertificate { chain, key }) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = settings.alpn;
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(CaptureLog);
    Ok(Arc::new(config))
}

/// The trusted roots of the system, including locally added ones. Roots that `rustls` cannot use are skipped, as is
/// usual.
fn system_roots() -> Result<(RootCertStore, Vec<CertificateDer<'static>>), ConfigError> {
    let missing = || ConfigError::NoSystemRoots(SYSTEM_ROOTS.join(", "));
    let bytes = SYSTEM_ROOTS.iter().find_map(|path| std::fs::read(path).ok()).ok_or_else(missing)?;
    let all = pem::chain(&bytes).map_err(|_| missing())?;
    let (issuing, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|certificate| may_issue(certificate));
    let mut anchors = RootCertStore::empty();
    let (added, _) = anchors.add_parsable_certificates(issuing);
    if added == 0 { Err(missing()) } else { Ok((anchors, others)) }
}

/// Verifier that accepts every certificate, but still checks that the server has its key.
#[derive(Debug)]
struct NoVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
