//! Transition from `rustls`: traffic secrets become the record layer, and the properties of the session are recorded.

use evergate_base::seed::{Captured, SecretKind, SessionSlot};
use evergate_base::session::{KeptSession, SessionId};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::pki_types::CertificateDer;
use rustls::{
    CipherSuite, CommonState, ConnectionTrafficSecrets, ExtractedSecrets, HandshakeKind, ProtocolVersion,
};

use zeroize::Zeroize;

use crate::aead::installed_aead;
use crate::error::HandshakeError;
use crate::keys::{Base, Direction, Role, Suite, Version};
use crate::records::Records;
use crate::schedule::{Secret, traffic_keys};

/// Result of a finished handshake.
#[derive(Debug)]
pub struct Finished {
    /// The record layer, positioned after the handshake.
    pub records: Records,
    /// Raw bytes received after the handshake, not yet decrypted.
    pub leftover: Vec<u8>,
    /// Properties of the session.
    pub facts: SessionFacts,
    /// Number of raw bytes of the peer that belong to the handshake.
    pub consumed: u64,
    /// The session, if it has an id.
    pub session: Option<NamedSession>,
    /// Secrets of an audited connection, to be sealed.
    pub audit: Option<Box<AuditSecrets>>,
}

/// Secrets that open a captured connection, and the randoms that name it. They are erased on drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSecrets {
    /// Time of the accept in seconds since 1970.
    pub accepted_unix_s: u64,
    /// Random of the client's hello.
    pub client_random: [u8; 32],
    /// Random of the server's hello.
    pub server_random: [u8; 32],
    /// Secrets of the key log.
    pub secrets: Vec<Captured>,
}

impl Drop for AuditSecrets {
    fn drop(&mut self) {
        self.secrets.iter_mut().for_each(|captured| captured.secret.zeroize());
    }
}

/// A TLS 1.2 session that its client resumes by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedSession {
    /// A new session, to be stored.
    New(KeptSession),
    /// A resumed session, which is already stored.
    Resumed(SessionId),
}

impl NamedSession {
    /// The id.
    pub fn id(&self) -> SessionId {
        match self {
            NamedSession::New(kept) => kept.id,
            NamedSession::Resumed(id) => *id,
        }
    }

    /// The session that the handshake has left in the slot.
    pub(crate) fn of(slot: &mut SessionSlot, resumed: bool) -> Option<NamedSession> {
        let opened = slot.opened.filter(|_| resumed);
        slot.kept.take().map(NamedSession::New).or(opened.map(NamedSession::Resumed))
    }
}

/// Properties of a session for rules, logs and upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    /// Protocol version.
    pub version: Version,
    /// Cipher suite by its registered name, and number.
    pub suite: &'static str,
    /// Registered number of the cipher suite.
    pub suite_number: u16,
    /// The negotiated application protocol.
    pub alpn: Option<Vec<u8>>,
    /// The server name that the client requested, in lower case.
    pub sni: Option<String>,
    /// The peer's certificates, its own first: the client's (checked against the configured roots) or the server's.
    pub client_certificates: Vec<CertificateDer<'static>>,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
    /// The key exchange group; `None` when a resumption had none.
    pub group: Option<&'static str>,
}

impl SessionFacts {
    /// Reads the properties that `rustls` knows; the name comes from the hello, which `rustls` does not show here.
    pub(crate) fn read(conn: &CommonState, sni: Option<String>) -> Result<SessionFacts, HandshakeError> {
        let not_done = HandshakeError::State("not done");
        let (Some(version), Some(suite)) = (conn.protocol_version(), conn.negotiated_cipher_suite()) else {
            return Err(not_done);
        };
        let version = match version {
            ProtocolVersion::TLSv1_3 => Version::Tls13,
            ProtocolVersion::TLSv1_2 => Version::Tls12,
            _ => return Err(HandshakeError::Config("a version other than tls 1.2 and 1.3 is enabled")),
        };
        Ok(SessionFacts {
            version,
            suite: named(suite.suite()),
            suite_number: suite.suite().into(),
            alpn: conn.alpn_protocol().map(<[u8]>::to_vec),
            sni,
            client_certificates: conn.peer_certificates().map(<[_]>::to_vec).unwrap_or_default(),
            resumed: conn.handshake_kind() == Some(HandshakeKind::Resumed),
            group: conn.negotiated_key_exchange_group().and_then(|group| group.name().as_str()),
        })
    }
}

/// Builds the record layer from the extracted keys and, in TLS 1.3, the captured secrets from which they derive.
pub(crate) fn records(
    version: Version,
    role: Role,
    secrets: &ExtractedSecrets,
    captured: &[Captured],
    kernel: Option<KernelConnection<ClientConnectionData>>,
) -> Result<Records, HandshakeError> {
    let (tx_kind, rx_kind) = match role {
        Role::Server => (SecretKind::ServerTraffic, SecretKind::ClientTraffic),
        Role::Client => (SecretKind::ClientTraffic, SecretKind::ServerTraffic),
    };
    let (suite, tx) = direction(version, &secrets.tx, captured, tx_kind)?;
    let (_, rx) = direction(version, &secrets.rx, captured, rx_kind)?;
    Ok(Records::new(version, role, suite, tx, rx, kernel))
}

fn direction(
    version: Version,
    (sequence, traffic): &(u64, ConnectionTrafficSecrets),
    captured: &[Captured],
    kind: SecretKind,
) -> Result<(Suite, Direction), HandshakeError> {
    let (suite, key, iv) = match traffic {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Suite::Chacha20Poly1305, key, iv),
        _ => return Err(HandshakeError::Config("a cipher that this record layer does not know is enabled")),
    };
    let key = Secret::new(key.as_ref()).ok_or(HandshakeError::Internal("cipher key of a strange length"))?;
    let iv: [u8; 12] =
        iv.as_ref().try_into().map_err(|_| HandshakeError::Internal("cipher iv of a strange length"))?;
    let base = match version {
        Version::Tls12 => Base::Tls12 { key: key.clone(), iv },
        Version::Tls13 => {
            let found = captured.iter().find(|captured| captured.kind == kind);
            let found =
                found.ok_or(HandshakeError::Config("the key log does not capture traffic secrets"))?;
            let secret = Secret::new(&found.secret).filter(|s| s.as_slice().len() == suite.secret_len());
            let secret = secret.ok_or(HandshakeError::Internal("traffic secret of a strange length"))?;
            // A wrong secret would be detected only at the first KeyUpdate or failover, as lost connections.
            let (derived_key, derived_iv) = traffic_keys(suite, &secret);
            if (&derived_key, derived_iv) != (&key, iv) {
                return Err(HandshakeError::Internal("traffic keys do not follow from the captured secret"));
            }
            Base::Tls13(secret)
        }
    };
    let library = installed_aead().of(suite);
    let direction = Direction::with_keys(library, suite, base, *sequence, &key, iv);
    Ok((suite, direction.map_err(HandshakeError::Record)?))
}

/// The registered name of a cipher suite, by its number.
pub fn suite_name(number: u16) -> &'static str {
    named(CipherSuite::from(number))
}

/// The IANA name: `rustls` names the TLS 1.3 suites differently.
fn named(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        other => other.as_str().unwrap_or("unknown"),
    }
}
