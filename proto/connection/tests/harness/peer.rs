//! Client endpoints: plain bytes, `rustls` with its ordinary provider, and our own record layer as a client, which can
//! make records and KeyUpdates that `rustls` would not.

use super::setup;
use evergate_base::seed::{Seed, scoped};
use evergate_tls::{ClientHandshake, ContentType, HandshakeError, Opened, Progress, Records, record_len};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::io::{Read, Write};
use std::sync::Arc;

pub(crate) enum Peer {
    Plain(Vec<u8>),
    Rustls(Box<rustls::ClientConnection>, Vec<u8>),
    Ours(Box<Ours>),
}

/// A client on our own record layer.
pub(crate) struct Ours {
    handshake: Option<ClientHandshake>,
    pub(crate) records: Option<Records>,
    raw: Vec<u8>,
    pub(crate) received: Vec<u8>,
    /// KeyUpdates that came from the server.
    pub(crate) key_updates: u32,
    pub(crate) closed: bool,
    pub(crate) alert: Option<u8>,
    /// Application data to send when the handshake is done.
    waiting: Vec<Vec<u8>>,
}

impl Peer {
    pub(crate) fn plain() -> Peer {
        Peer::Plain(Vec::new())
    }

    pub(crate) fn rustls(version: &'static rustls::SupportedProtocolVersion) -> Peer {
        Peer::rustls_with(&rustls_config(version))
    }

    /// A client that shares what it knows of sessions with others of this configuration.
    pub(crate) fn rustls_with(config: &Arc<rustls::ClientConfig>) -> Peer {
        let name = ServerName::try_from("test.example").unwrap();
        Peer::Rustls(Box::new(rustls::ClientConnection::new(config.clone(), name).unwrap()), Vec::new())
    }

    /// A client whose bytes depend on `seed` alone; its first flight comes with it.
    pub(crate) fn ours(version: &'static rustls::SupportedProtocolVersion, seed: u64) -> (Peer, Vec<u8>) {
        Peer::ours_with(&deterministic_config(version), seed)
    }

    /// The same with a configuration of its own.
    pub(crate) fn ours_with(config: &Arc<rustls::ClientConfig>, seed: u64) -> (Peer, Vec<u8>) {
        let mut key = [3; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut hello = Vec::new();
        let mut slot = Some(Seed::new(key, 1_700_000_000));
        let name = ServerName::try_from("test.example").unwrap();
        let handshake = scoped(&mut slot, || {
            let mut handshake = ClientHandshake::new(config, name).unwrap();
            handshake.start(&mut hello).unwrap();
            handshake
        });
        let ours = Ours {
            handshake: Some(handshake),
            records: None,
            raw: Vec::new(),
            received: Vec::new(),
            key_updates: 0,
            closed: false,
            alert: None,
            waiting: Vec::new(),
        };
        (Peer::Ours(Box::new(ours)), hello)
    }

    /// Application data; what comes back are bytes for the wire.
    pub(crate) fn send(&mut self, data: &[u8]) -> Vec<u8> {
        match self {
            Peer::Plain(_) => data.to_vec(),
            Peer::Rustls(conn, _) => {
                conn.set_buffer_limit(None);
                conn.writer().write_all(data).unwrap();
                drain(conn)
            }
            Peer::Ours(ours) => ours.send(data, 16_384),
        }
    }

    /// Ends the client's stream in order.
    pub(crate) fn close(&mut self) -> Vec<u8> {
        match self {
            Peer::Plain(_) => Vec::new(),
            Peer::Rustls(conn, _) => {
                conn.send_close_notify();
                drain(conn)
            }
            Peer::Ours(ours) => {
                let mut out = Vec::new();
                if let Some(records) = &mut ours.records {
                    records.seal_alert(0, &mut out);
                }
                out
            }
        }
    }

    /// Bytes from the wire; what comes back are bytes for the wire.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        match self {
            Peer::Plain(received) => {
                received.extend_from_slice(bytes);
                Vec::new()
            }
            Peer::Rustls(conn, received) => {
                while !bytes.is_empty() {
                    conn.read_tls(&mut bytes).unwrap();
                    conn.process_new_packets().unwrap();
                    let mut chunk = [0; 16_384];
                    while let Ok(n @ 1..) = conn.reader().read(&mut chunk) {
                        received.extend_from_slice(&chunk[..n]);
                    }
                }
                drain(conn)
            }
            Peer::Ours(ours) => ours.receive(bytes),
        }
    }

    pub(crate) fn received(&self) -> &[u8] {
        match self {
            Peer::Plain(received) | Peer::Rustls(_, received) => received,
            Peer::Ours(ours) => &ours.received,
        }
    }

    pub(crate) fn forget_received(&mut self) {
        match self {
            Peer::Plain(received) | Peer::Rustls(_, received) => received.clear(),
            Peer::Ours(ours) => ours.received.clear(),
        }
    }

    /// Whether the server's stream has ended in order; only TLS shows that.
    pub(crate) fn saw_close_notify(&mut self) -> bool {
        match self {
            Peer::Plain(_) => false,
            Peer::Rustls(conn, _) => conn.process_new_packets().unwrap().peer_has_closed(),
            Peer::Ours(ours) => ours.closed,
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        match self {
            Peer::Plain(_) => false,
            Peer::Rustls(conn, _) => conn.is_handshaking(),
            Peer::Ours(ours) => ours.records.is_none(),
        }
    }

    pub(crate) fn as_rustls(&mut self) -> &mut rustls::ClientConnection {
        match self {
            Peer::Rustls(conn, _) => conn,
            _ => panic!("not rustls"),
        }
    }

    pub(crate) fn as_ours(&mut self) -> &mut Ours {
        match self {
            Peer::Ours(ours) => ours,
            _ => panic!("not ours"),
        }
    }
}

pub(crate) fn drain(conn: &mut rustls::ClientConnection) -> Vec<u8> {
    let mut out = Vec::new();
    while conn.wants_write() {
        conn.write_tls(&mut out).unwrap();
    }
    out
}

impl Ours {
    /// Records of at most `record` bytes of payload; kept until the handshake is done.
    pub(crate) fn send(&mut self, data: &[u8], record: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in data.chunks(record) {
            match &mut self.records {
                Some(records) => seal(records, chunk, &mut out),
                None => self.waiting.push(chunk.to_vec()),
            }
        }
        out
    }

    pub(crate) fn key_update(&mut self, request: bool) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(records) = &mut self.records {
            records.rebase(records.tx(), records.rx());
            records.seal_key_update(request, &mut out);
        }
        out
    }

    /// A ClientHello inside the connection.
    pub(crate) fn request_renegotiation(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(records) = &mut self.records {
            let hello = [&[1, 0, 0, 40][..], &[3; 40]].concat();
            let layout = records.layout();
            out = [vec![0; layout.header], hello, vec![0; layout.trailer]].concat();
            records.seal(ContentType::Handshake, &mut out).unwrap();
        }
        out
    }

    pub(crate) fn warn(&mut self, description: u8) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(records) = &mut self.records {
            records.seal_alert(description, &mut out);
        }
        out
    }

    fn receive(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(mut handshake) = self.handshake.take() {
            let progress = match handshake.handle_input(bytes, &mut out) {
                Err(HandshakeError::Tls(rustls::Error::AlertReceived(alert))) => {
                    self.alert = Some(alert.into());
                    return out;
                }
                progress => progress.unwrap(),
            };
            if progress == Progress::NeedInput {
                self.handshake = Some(handshake);
                return out;
            }
            let finished = handshake.finish().unwrap();
            let mut records = finished.records;
            self.raw = finished.leftover;
            for data in self.waiting.drain(..) {
                seal(&mut records, &data, &mut out);
            }
            self.records = Some(records);
        } else {
            self.raw.extend_from_slice(bytes);
        }
        let Some(records) = &mut self.records else { return out };
        let mut at = 0;
        while let Some(head) = self.raw.get(at..).and_then(|rest| rest.first_chunk::<5>()) {
            let len = record_len(head).unwrap();
            let Some(record) = self.raw.get_mut(at..at + len) else { break };
            match records.open(record).unwrap() {
                Opened::Data(range) => self.received.extend_from_slice(&record[range]),
                Opened::KeyUpdate { .. } => {
                    self.key_updates += 1;
                    records.rebase(records.tx(), records.rx());
                }
                Opened::Alert { description: 0, .. } => self.closed = true,
                Opened::Alert { description, .. } => self.alert = Some(description),
                Opened::Renegotiation | Opened::Ignored => {}
            }
            at += len;
        }
        self.raw.drain(..at);
        out
    }
}

pub(crate) fn seal(records: &mut Records, data: &[u8], out: &mut Vec<u8>) {
    let layout = records.layout();
    let start = out.len();
    out.resize(start + layout.header + data.len() + layout.trailer, 0);
    out[start + layout.header..start + layout.header + data.len()].copy_from_slice(data);
    records.seal(ContentType::ApplicationData, &mut out[start..]).unwrap();
}

/// The ordinary client: checks certificates, resumes sessions.
pub(crate) fn rustls_config(version: &'static rustls::SupportedProtocolVersion) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(setup::root()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// A client configuration that draws from the scoped seed.
pub(crate) fn deterministic_config(
    version: &'static rustls::SupportedProtocolVersion,
) -> Arc<rustls::ClientConfig> {
    let mut provider = (*evergate_crypto::provider()).clone();
    provider.kx_groups.retain(|group| group.name() == rustls::NamedGroup::X25519);
    deterministic_config_with(provider, version)
}

fn deterministic_config_with(
    provider: CryptoProvider,
    version: &'static rustls::SupportedProtocolVersion,
) -> Arc<rustls::ClientConfig> {
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.enable_secret_extraction = true;
    config.key_log = setup::upstream_tls().config.key_log.clone();
    Arc::new(config)
}

/// The same for TLS 1.3, with a first key share of a group that we do not have: it is asked for another one.
pub(crate) fn with_strange_group() -> Arc<rustls::ClientConfig> {
    let config = deterministic_config(&rustls::version::TLS13);
    let mut provider = (**config.crypto_provider()).clone();
    provider.kx_groups.insert(0, rustls::crypto::aws_lc_rs::kx_group::SECP384R1);
    deterministic_config_with(provider, &rustls::version::TLS13)
}

/// The same for TLS 1.2, without tickets: sessions are resumed by their ids.
pub(crate) fn without_tickets() -> Arc<rustls::ClientConfig> {
    let mut config = (*deterministic_config(&rustls::version::TLS12)).clone();
    config.resumption = Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
    Arc::new(config)
}

/// Skips what the `rustls` client of other tests checks.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
