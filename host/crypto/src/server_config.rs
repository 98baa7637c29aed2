//! Server configurations: one for each listener (or group of virtual hosts with the same policy).

use std::sync::Arc;

use aws_lc_rs::digest;
use evergate_tls::Version;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls_pki_types::CertificateDer;

use crate::certificate::CertifiedName;
use crate::client_cert_verifier::NotingClients;
use crate::error::ConfigError;
use crate::provider::{client_provider, provider};
use crate::random::{CaptureLog, SeedTime};
use crate::resolver::SniResolver;
use crate::session_store::PolicySessions;
use crate::tickets::{PolicyTickets, TicketHandle};
use crate::trust_anchors::{NAMES_BYTES_MAX, anchors, may_issue, names_bytes};

/// Whether clients have to show a certificate.
#[derive(Clone, Debug, Default)]
pub enum ClientAuth {
    /// Never asked for.
    #[default]
    None,
    /// Asked for; when one is shown it must lead to one of these roots. What is no authority's among them is passed over.
    Optional(Vec<CertificateDer<'static>>),
    /// Needed, and must lead to one of these roots.
    Required(Vec<CertificateDer<'static>>),
}

/// What a listener's TLS is made of.
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
    /// Keys that TLS 1.2 sessions are sealed with which clients without tickets resume by their ids, and how long they may,
    /// in seconds; without them no session gets an id.
    pub session_ids: Option<(TicketHandle, u32)>,
    /// Whether a client that puts ChaCha20-Poly1305 first gets it; everyone else gets AES-GCM.
    pub prefer_chacha_when_client_does: bool,
    /// Name of the listener or virtual host: sessions made under one name are not resumed under another, nor under
    /// other client authentication.
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

/// Makes the configuration that [`evergate_tls::Handshake`] takes.
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
        provider.cipher_suites.retain(|suite| suite.tls13().is_none()); // the driver sees by them what is spoken
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
            let is_reported = names_bytes(&anchors) <= NAMES_BYTES_MAX;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(anchors), client_provider());
            // Without names "the client MAY send any certificate" (RFC 5246 section 7.4.4; RFC 8446 section 4.2.4 is optional).
            let verifier = if is_reported { verifier } else { verifier.clear_root_hint_subjects() };
            let verifier = match settings.client_auth {
                ClientAuth::Optional(_) => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(Arc::new(NotingClients(verifier)))
        }
    };
    let uses_tls13 = settings.version_max == Version::Tls13;
    let mut config =
        builder.with_cert_resolver(Arc::new(SniResolver::new(&settings.certificates, uses_tls13)));
    config.alpn_protocols = settings.alpn;
    // The handshake driver looks at the order of a client that is not ignored, and at that of no other.
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

/// Names what clients have to show under these settings; nothing where they are not asked for a certificate.
pub fn client_policy(name: &str, auth: &ClientAuth) -> Option<[u8; 32]> {
    (!matches!(auth, ClientAuth::None)).then(|| policy_tag(name, auth))
}

/// What a ticket and a session with an id are bound to, so that a session never skips a check that its server would make (CVE-2025-23419).
/// Renewed certificates leave it as it is.
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
