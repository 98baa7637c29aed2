//! Which certificate a client gets: by exact name, then by wildcard of one label, then the default.
//!
//! Where several certificates have a name, the first that the client can verify is taken, elliptic curves before RSA.
//! The answer depends on the ClientHello alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::CertifiedName;

type Candidates = Vec<Arc<CertifiedKey>>;

/// Chooses certificates by server name.
#[derive(Debug)]
pub struct SniResolver {
    exact: BTreeMap<String, Candidates>,
    /// By what follows the `*.`.
    wildcard: BTreeMap<String, Candidates>,
    default: Candidates,
}

impl SniResolver {
    /// A resolver over `certificates`; the first, and those that share a name with it, are the default.
    pub fn new(certificates: &[CertifiedName]) -> SniResolver {
        let mut resolver =
            SniResolver { exact: BTreeMap::new(), wildcard: BTreeMap::new(), default: Vec::new() };
        let default_names = certificates.first().map(|first| first.names.as_slice()).unwrap_or_default();
        for (index, certificate) in certificates.iter().enumerate() {
            for name in &certificate.names {
                let candidates = match name.strip_prefix("*.") {
                    Some(parent) => resolver.wildcard.entry(parent.to_owned()).or_default(),
                    None => resolver.exact.entry(name.clone()).or_default(),
                };
                candidates.push(certificate.key.clone());
            }
            if index == 0 || certificate.names.iter().any(|name| default_names.contains(name)) {
                resolver.default.push(certificate.key.clone());
            }
        }
        let lists = resolver.exact.values_mut().chain(resolver.wildcard.values_mut());
        for candidates in lists.chain([&mut resolver.default]) {
            candidates.sort_by_key(|key| rank(key)); // stable: the order of configuration decides otherwise
        }
        resolver
    }

    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let name = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let exact = name.as_deref().and_then(|name| self.exact.get(name));
        let parent = name.as_deref().and_then(|name| name.split_once('.')).map(|(_, parent)| parent);
        let wildcard = parent.and_then(|parent| self.wildcard.get(parent));
        [exact, wildcard, Some(&self.default)]
            .into_iter()
            .flatten()
            .flatten()
            .find(|key| key.key.choose_scheme(schemes).is_some())
            .cloned()
    }
}

/// Cheap and short signatures first.
fn rank(key: &CertifiedKey) -> u8 {
    use SignatureScheme as S;
    let signs = |scheme| key.key.choose_scheme(&[scheme]).is_some();
    if signs(S::ECDSA_NISTP256_SHA256) {
        0
    } else if signs(S::ED25519) {
        1
    } else if signs(S::ECDSA_NISTP384_SHA384) {
        2
    } else {
        3
    }
}

impl ResolvesServerCert for SniResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.server_name(), hello.signature_schemes())
    }
}
