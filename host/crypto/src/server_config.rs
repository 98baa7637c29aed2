//! Server configurations: one for each listener (or group of virtual hosts with the same policy).

use std::sync::Arc;

use aws_lc_rs::digest;
use evergate_tls::Version;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls_pki_types::CertificateDer;

use crate::certificate::CertifiedName;
use crate::client_cert_verifier::RecordingClientVerifier;
use crate::error::ConfigError;
use crate::provider::{client_provider, provider};
use crate::random::{CaptureLog, SeedTime};
use crate::resolver::SniResolver;
use crate::session_store::PolicySessions;
use crate::tickets::{PolicyTickets, TicketHandle};
use crate::trust_anchors::{NAMES_BYTES_MAX, anchors, may_issue, names_bytes};

/// Request for a client certificate.
#[derive(Clone, Debug, Default)]
pub enum ClientAuth {
    /// Not requested.
    #[default]
    None,
    /// Requested; a presented certificate must lead to one of these roots. Certificates without the right to issue are
    /// skipped.
    Optional(Vec<CertificateDer<'static>>),
    /// Required; must lead to one of these roots.
    Required(Vec<CertificateDer<'static>>),
}

/// TLS settings of a listener.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Certificates; the first is the default.
    pub certificates: Vec<CertifiedName>,
    /// Application protocols, the preferred one first.
    pub alpn: Vec<Vec<u8>>,
    /// Lowest version.
    pub version_min: Version,
    /// Highest version.
    pub version_max: Version,
    /// Client certificates.
    pub client_auth: ClientAuth,
    /// Keys of session tickets; without them no session is resumed by ticket.
    pub tickets: Option<TicketHandle>,
    /// Keys that seal TLS 1.2 sessions for clients that resume by session id instead of a ticket, and the lifetime of
    /// the sessions in seconds. `None`: no session receives an id.
    pub session_ids: Option<(TicketHandle, u32)>,
    /// Whether clients that prefer ChaCha20-Poly1305 use it; all others use AES-GCM.
    pub prefer_chacha_when_client_does: bool,
    /// Name of the listener or virtual host: a session is resumed only under the name, and with the client
    /// authentication, of its full handshake.
    pub policy: String,
}

impl Default for ServerSettings {
    fn default() -> ServerSettings {
        ServerSettings {
            certificates: Vec::new(),
            alpn: Vec::new(),
            version_min: Version::Tls12,
            version_max: Version::Tls13,
            client_auth: ClientAuth::None,
            tickets: None,
            session_ids: None,
            prefer_chacha_when_client_does: true,
            policy: String::new(),
        }
    }
}

/// Makes the configuration for [`evergate_tls::Handshake`].
pub fn server_config(settings: ServerSettings) -> Result<Arc<ServerConfig>, ConfigError> {
    if settings.certificates.is_empty() {
        return Err(ConfigError::NoCertificate);
    }
    if let Some(name) = settings.alpn.iter().find(|name| !(1..=255).contains(&name.len())) {
        return Err(ConfigError::Alpn(name.len()));
    }
    let versions: &[&rustls::SupportedProtocolVersion] = match (settings.version_min, settings.version_max) {
        (Version::Tls12, Version::Tls12) => &[&rustls::version::TLS12],
        (Version::Tls12, Version::Tls13) => &[&rustls::version::TLS13, &rustls::version::TLS12],
        (Version::Tls13, Version::Tls13) => &[&rustls::version::TLS13],
        (Version::Tls13, Version::Tls12) => return Err(ConfigError::Versions),
    };
    let policy = policy_tag(&settings.policy, &settings.client_auth);
    let mut provider = CryptoProvider::clone(&provider());
    if settings.version_max == Version::Tls12 {
        provider.cipher_suites.retain(|suite| suite.tls13().is_none()); // the driver derives the versions from them
    }
    let builder = ServerConfig::builder_with_details(Arc::new(provider), Arc::new(SeedTime))
        .with_protocol_versions(versions)?;
    let builder = match &settings.client_auth {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Optional(roots) | ClientAuth::Required(roots) => {
            let anchors = anchors(roots)?;
            if anchors.is_empty() {
                return Err(ConfigError::NoAuthority);
            }
            let lists_names = names_bytes(&anchors) <= NAMES_BYTES_MAX;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), client_provider());
            // Without names "the client MAY send any certificate" (RFC 5246 section 7.4.4; optional in RFC 8446 section
            // 4.2.4).
            let verifier = if lists_names { verifier } else { verifier.clear_root_hint_subjects() };
            let verifier = match settings.client_auth {
                ClientAuth::Optional(_) => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(Arc::new(RecordingClientVerifier(verifier)))
        }
    };
    let uses_tls13 = settings.version_max == Version::Tls13;
    let mut config =
        builder.with_cert_resolver(Arc::new(SniResolver::new(&settings.certificates, uses_tls13)));
    config.alpn_protocols = settings.alpn;
    // The handshake driver reads the client's order only if it is not ignored.
    config.ignore_client_order = !settings.prefer_chacha_when_client_does;
    config.session_storage = match settings.session_ids {
        Some((handle, lifetime_s)) => Arc::new(PolicySessions { handle, policy, lifetime_s }),
        None => Arc::new(NoServerSessionStorage {}),
    };
    match settings.tickets {
        Some(handle) => config.ticketer = Arc::new(PolicyTickets { handle, policy }),
        None => config.send_tls13_tickets = 0,
    }
    config.max_early_data_size = 0;
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(CaptureLog);
    Ok(Arc::new(config))
}

/// Tag of the client authentication under these settings; `None` if no certificate is requested.
pub fn client_policy(name: &str, auth: &ClientAuth) -> Option<[u8; 32]> {
    (!matches!(auth, ClientAuth::None)).then(|| policy_tag(name, auth))
}

/// Tag that binds tickets and sessions with an id, so that resumption never skips a check of the server
/// (CVE-2025-23419). Renewed certificates do not change it.
fn policy_tag(name: &str, auth: &ClientAuth) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"evergate ticket policy 1");
    context.update(&(name.len() as u64).to_be_bytes());
    context.update(name.as_bytes());
    let (kind, roots) = match auth {
        ClientAuth::None => (0, &[][..]),
        ClientAuth::Optional(roots) => (1, &roots[..]),
        ClientAuth::Required(roots) => (2, &roots[..]),
    };
    context.update(&[kind]);
    let issuing = roots.iter().filter(|root| may_issue(root));
    let mut digests: Vec<_> =
        issuing.map(|root| digest::digest(&digest::SHA256, root).as_ref().to_vec()).collect();
    digests.sort_unstable();
    digests.iter().for_each(|digest| context.update(digest));
    let mut tag = [0; 32];
    tag.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
    tag
}
