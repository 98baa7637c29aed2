//! In-memory `rustls` clients against the handshake, and replays of their bytes.
#![allow(dead_code, missing_docs, unreachable_pub)] // each test file uses its part

use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

use evergate_base::session::{Sealed, SessionId};
use evergate_crypto::{
    CertifiedName, ServerSettings, TicketHandle, TicketKeys, load_certificate, server_config,
};
use evergate_tls::{
    ContentType, Finished, Handshake, HandshakeError, HandshakeParams, Opened, Progress, Records, record_len,
};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

pub const NOW: u64 = 1_800_000_000;

/// PEM chain and key of each kind of key, made once.
pub struct Pems {
    pub p256: (String, String),
    pub p384: (String, String),
    pub p521: (String, String),
    pub ed25519: (String, String),
    pub rsa: (String, String),
}

pub static PEMS: LazyLock<Pems> = LazyLock::new(|| {
    let make = |key: rcgen::KeyPair| self_signed(&["localhost"], &key);
    let generate = |algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap();
    Pems {
        p256: make(generate(&rcgen::PKCS_ECDSA_P256_SHA256)),
        p384: make(generate(&rcgen::PKCS_ECDSA_P384_SHA384)),
        p521: make(generate(&rcgen::PKCS_ECDSA_P521_SHA512)),
        ed25519: make(generate(&rcgen::PKCS_ED25519)),
        rsa: make(
            rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap(),
        ),
    }
});

pub fn self_signed(names: &[&str], key: &rcgen::KeyPair) -> (String, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

pub fn load(pems: &(String, String)) -> CertifiedName {
    load_certificate(pems.0.as_bytes(), pems.1.as_bytes()).unwrap()
}

/// Ticket keys that every "node" of a test loads for itself.
pub fn shared_tickets() -> TicketHandle {
    static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| TicketKeys::random(0).to_file_bytes().to_vec());
    TicketHandle::new(TicketKeys::from_file_bytes(&FILE).unwrap())
}

/// A node's configuration: everything loaded again from the same files.
pub fn node(pems: &(String, String)) -> Arc<ServerConfig> {
    node_with(pems, |_| {})
}

pub fn node_with(pems: &(String, String), change: impl FnOnce(&mut ServerSettings)) -> Arc<ServerConfig> {
    let mut settings = ServerSettings {
        certificates: vec![load(pems)],
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        tickets: Some(shared_tickets()),
        ..ServerSettings::default()
    };
    change(&mut settings);
    server_config(settings).unwrap()
}

/// Properties of a client.
#[derive(Clone)]
pub struct ClientKind {
    pub version: &'static SupportedProtocolVersion,
    pub suites: Vec<SupportedCipherSuite>,
    pub groups: Vec<&'static dyn SupportedKxGroup>,
}

impl Default for ClientKind {
    fn default() -> ClientKind {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        ClientKind {
            version: &rustls::version::TLS13,
            suites: provider.cipher_suites,
            groups: provider.kx_groups,
        }
    }
}

impl ClientKind {
    pub fn provider(&self) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider {
            cipher_suites: self.suites.clone(),
            kx_groups: self.groups.clone(),
            ..rustls::crypto::aws_lc_rs::default_provider()
        })
    }

    /// Trusts every certificate, because the tests are about the server.
    pub fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::builder_with_provider(self.provider())
            .with_protocol_versions(&[self.version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(trust::Everyone(self.provider())))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }
}

pub fn params(byte: u8) -> HandshakeParams {
    HandshakeParams {
        secret: [byte; 32],
        accepted_unix_s: NOW,
        generation: 3,
        client: "192.0.2.7:40000".parse().unwrap(),
        local: "198.51.100.1:443".parse().unwrap(),
    }
}

/// A finished connection and all bytes of both directions.
pub struct Connected {
    pub client: ClientConnection,
    pub server: Finished,
    pub c2s: Vec<u8>,
    pub s2c: Vec<u8>,
    /// Bytes of the server that the client has not received.
    pub pending: Vec<u8>,
}

pub fn connect(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    params: &HandshakeParams,
) -> Result<Connected, (HandshakeError, Vec<u8>)> {
    connect_to("localhost", server, client, params)
}

pub fn connect_to(
    name: &str,
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    params: &HandshakeParams,
) -> Result<Connected, (HandshakeError, Vec<u8>)> {
    connect_from(name, server, client, params, |_| None)
}

/// Like [`connect_to`], with sessions that `find` returns by their ids.
pub fn connect_from(
    name: &str,
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    params: &HandshakeParams,
    find: impl Fn(&SessionId) -> Option<Sealed>,
) -> Result<Connected, (HandshakeError, Vec<u8>)> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client.clone(), name).unwrap();
    let mut server = Handshake::new(server, params).unwrap();
    let (mut c2s, mut s2c) = (Vec::new(), Vec::new());
    loop {
        let mut flight = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut flight).unwrap();
        }
        if c2s.is_empty()
            && let Some(found) = server.session_wanted(&flight).and_then(|id| find(&id))
        {
            server.resume_from(found);
        }
        c2s.extend_from_slice(&flight);
        let mut out = Vec::new();
        let progress = server.handle_input(&flight, &mut out);
        s2c.extend_from_slice(&out);
        if let Err(error) = progress {
            return Err((error, s2c));
        }
        // A client that refuses reports it in its next flight.
        let _ = feed(&mut client, &out);
        if progress.unwrap() == Progress::Done {
            let server = server.finish().map_err(|error| (error, s2c.clone()))?;
            return Ok(Connected { client, server, c2s, s2c, pending: Vec::new() });
        }
    }
}

/// Passes bytes to a client.
pub fn feed(client: &mut ClientConnection, mut bytes: &[u8]) -> Result<Vec<u8>, rustls::Error> {
    let mut plain = Vec::new();
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).unwrap();
        client.process_new_packets()?;
        let mut chunk = [0; 4096];
        while let Ok(len @ 1..) = client.reader().read(&mut chunk) {
            plain.extend_from_slice(&chunk[..len]);
        }
    }
    Ok(plain)
}

/// Bytes that a client has to send now.
pub fn take(client: &mut ClientConnection) -> Vec<u8> {
    let mut out = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut out).unwrap();
    }
    out
}

pub fn send(client: &mut ClientConnection, payload: &[u8]) -> Vec<u8> {
    client.writer().write_all(payload).unwrap();
    take(client)
}

/// Opens all records in `bytes`: data joined, and the other events.
pub fn open_all(records: &mut Records, bytes: &[u8]) -> (Vec<u8>, Vec<Opened>) {
    let (mut data, mut events) = (Vec::new(), Vec::new());
    let mut rest = bytes.to_vec();
    while !rest.is_empty() {
        let len = record_len(rest.first_chunk().unwrap()).unwrap();
        let mut record: Vec<u8> = rest.drain(..len).collect();
        match records.open(&mut record).unwrap() {
            Opened::Data(range) => data.extend_from_slice(&record[range]),
            event => events.push(event),
        }
    }
    (data, events)
}

pub fn seal(records: &mut Records, payload: &[u8]) -> Vec<u8> {
    let layout = records.layout();
    let mut slot = vec![0; layout.header];
    slot.extend_from_slice(payload);
    slot.resize(slot.len() + layout.trailer, 0);
    records.seal(ContentType::ApplicationData, &mut slot).unwrap();
    slot
}

/// A node's answer to recorded client bytes, in pieces of `chunk` bytes.
pub struct Replay {
    pub out: Vec<u8>,
    pub outcome: Result<Progress, String>,
    pub state: Option<Vec<u8>>,
    pub consumed: u64,
}

pub fn replay(server: &Arc<ServerConfig>, params: &HandshakeParams, c2s: &[u8], chunk: usize) -> Replay {
    replay_from(server, params, None, c2s, chunk)
}

/// Like [`replay`], for a session id that was found.
pub fn replay_from(
    server: &Arc<ServerConfig>,
    params: &HandshakeParams,
    found: Option<Sealed>,
    c2s: &[u8],
    chunk: usize,
) -> Replay {
    let mut handshake = Handshake::new(server, params).unwrap();
    if let Some(found) = found {
        handshake.resume_from(found);
    }
    let mut out = Vec::new();
    let mut outcome = Ok(Progress::NeedInput);
    for piece in c2s.chunks(chunk.max(1)) {
        outcome = handshake.handle_input(piece, &mut out).map_err(|error| error.to_string());
        if outcome.is_err() {
            break;
        }
    }
    let consumed = handshake.consumed();
    let state = match outcome {
        Ok(Progress::Done) => handshake.finish().ok().map(|finished| {
            let mut state = Vec::new();
            finished.records.export().encode(&mut state);
            state
        }),
        _ => None,
    };
    Replay { out, outcome, state, consumed }
}

pub mod trust {
    use std::sync::Arc;

    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    /// Accepts any certificate, but checks every signature.
    #[derive(Debug)]
    pub struct Everyone(pub Arc<CryptoProvider>);

    impl ServerCertVerifier for Everyone {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
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
}
