//! TLS between the nodes of a cluster: both ends use one key pair, derived from the cluster's secret.
//!
//! Nodes authenticate each other by having the same secret; no certificate must be issued, can expire or can be mixed
//! up. The raw public key (RFC 7250) of the other end must equal the node's own. TLS 1.3 only, without resumption.

use crate::ConfigError;
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, ServerConfig,
    SignatureScheme,
};
use std::sync::Arc;

/// Verifier that accepts exactly one public key.
#[derive(Debug)]
struct Same {
    key: SubjectPublicKeyInfoDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Same {
    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        if presented.as_ref() == self.key.as_ref() {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer))
        }
    }
}

/// Common methods of the verifiers of both sides: raw keys, TLS 1.3 only.
macro_rules! raw_keys_in_tls13 {
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
            presented: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(presented.as_ref());
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Same {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(presented).map(|()| ServerCertVerified::assertion())
    }

    raw_keys_in_tls13!();
}

impl ClientCertVerifier for Same {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(presented).map(|()| ClientCertVerified::assertion())
    }

    raw_keys_in_tls13!();
}

/// Configurations of both ends of replication channels under a cluster's secret. The secret must serve no other
/// purpose: derive it.
pub fn channel_configs(secret: &[u8; 32]) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), ConfigError> {
    let refused = |what: String| ConfigError::Tls(rustls::Error::General(format!("cluster channel: {what}")));
    let pair = Ed25519KeyPair::from_seed_unchecked(secret).map_err(|error| refused(error.to_string()))?;
    let private: Pkcs8V1Der<'static> = pair.as_der().map_err(|_| refused("private key".into()))?;
    let public: PublicKeyX509Der<'static> =
        pair.public_key().as_der().map_err(|_| refused("public key".into()))?;
    let key = SubjectPublicKeyInfoDer::from(public.as_ref().to_vec());
    let provider = crate::client_provider();
    let signing =
        rustls::crypto::aws_lc_rs::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(private.as_ref()))
            .map_err(|error| refused(error.to_string()))?;
    let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(key.as_ref().to_vec())], signing));
    let same = Arc::new(Same { key, provider: provider.clone() });
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| refused(error.to_string()))?
        .with_client_cert_verifier(same.clone())
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified.clone())));
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| refused(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(same)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
    client.resumption = rustls::client::Resumption::disabled();
    Ok((Arc::new(server), Arc::new(client)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> Result<(), Error> {
        let name = ServerName::try_from("10.0.0.1").unwrap();
        let mut client = rustls::ClientConnection::new(client, name).unwrap();
        let mut server = rustls::ServerConnection::new(server).unwrap();
        for _ in 0..6 {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut &wire[..]).unwrap();
            server.process_new_packets()?;
            let mut wire = Vec::new();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut &wire[..]).unwrap();
            client.process_new_packets()?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(())
    }

    #[test]
    fn only_nodes_with_the_same_secret_connect() {
        let (server, client) = channel_configs(&[1; 32]).unwrap();
        let (other_server, other_client) = channel_configs(&[2; 32]).unwrap();
        let (again, _) = channel_configs(&[1; 32]).unwrap();
        talk(again, client.clone()).unwrap();
        assert!(talk(other_server, client).is_err());
        assert!(talk(server, other_client).is_err());
    }
}
