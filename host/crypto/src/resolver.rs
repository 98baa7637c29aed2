//! Choice of the certificate for a client: by exact name, then by wildcard of one label, then the default.
//!
//! If several certificates have the name, the first that the client can verify is used, elliptic curves before RSA. In
//! TLS 1.2 the client's groups also restrict the curves of keys (RFC 8422 section 5.1). The restriction is ignored if
//! no other certificate has the name: many clients list fewer curves than they verify. The choice depends on the
//! ClientHello alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use evergate_base::seed::with_current;
use evergate_tls::is_host_name;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{NamedGroup, SignatureScheme};

use crate::certificate::CertifiedName;

type Candidates = Vec<Arc<CertifiedKey>>;

/// Resolver of certificates by server name.
#[derive(Debug)]
pub struct SniResolver {
    exact: BTreeMap<String, Candidates>,
    /// By the part after `*.`.
    wildcard: BTreeMap<String, Candidates>,
    default: Candidates,
    /// Whether clients that support TLS 1.3 use it.
    uses_tls13: bool,
}

impl SniResolver {
    /// A resolver over `certificates`; the first, and those that share a name with it, are the default.
    pub fn new(certificates: &[CertifiedName], uses_tls13: bool) -> SniResolver {
        let (exact, wildcard) = (BTreeMap::new(), BTreeMap::new());
        let mut resolver = SniResolver { exact, wildcard, default: Vec::new(), uses_tls13 };
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
            candidates.sort_by_key(|key| rank(key)); // stable: equal ranks keep the order of configuration
        }
        resolver
    }

    fn choose(
        &self,
        name: Option<&str>,
        schemes: &[SignatureScheme],
        groups: Option<&[NamedGroup]>,
    ) -> Option<Arc<CertifiedKey>> {
        let name = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let exact = name.as_deref().and_then(|name| self.exact.get(name));
        let parent = name.as_deref().and_then(|name| name.split_once('.')).map(|(_, parent)| parent);
        let wildcard = parent.and_then(|parent| self.wildcard.get(parent));
        let listed = |key: &CertifiedKey| match (curve(key), groups) {
            (Some(curve), Some(groups)) => groups.contains(&curve),
            _ => true,
        };
        let best = |candidates: &Candidates| {
            let fit = || candidates.iter().filter(|key| key.key.choose_scheme(schemes).is_some());
            fit().find(|key| listed(key)).or_else(|| fit().next()).cloned()
        };
        [exact, wildcard, Some(&self.default)].into_iter().flatten().find_map(best)
    }

    /// The groups that restrict certificates: those of a client that will use TLS 1.2.
    fn groups<'a>(&self, hello: &ClientHello<'a>) -> Option<&'a [NamedGroup]> {
        let tls13 = self.uses_tls13 && with_current(|seed| seed.offers_tls13) == Some(true);
        hello.named_groups().filter(|_| !tls13)
    }
}

/// The curve of a key, if the client's groups restrict it.
fn curve(key: &CertifiedKey) -> Option<NamedGroup> {
    let curves = [
        (SignatureScheme::ECDSA_NISTP256_SHA256, NamedGroup::secp256r1),
        (SignatureScheme::ECDSA_NISTP384_SHA384, NamedGroup::secp384r1),
        (SignatureScheme::ECDSA_NISTP521_SHA512, NamedGroup::secp521r1),
    ];
    curves.into_iter().find(|(scheme, _)| key.key.choose_scheme(&[*scheme]).is_some()).map(|(_, curve)| curve)
}

/// Rank of a key: cheap and short signatures first.
fn rank(key: &CertifiedKey) -> u8 {
    use SignatureScheme as S;
    let signs = |scheme| key.key.choose_scheme(&[scheme]).is_some();
    if signs(S::ECDSA_NISTP256_SHA256) {
        0
    } else if signs(S::ED25519) {
        1
    } else if signs(S::ECDSA_NISTP384_SHA384) {
        2
    } else if signs(S::ECDSA_NISTP521_SHA512) {
        3
    } else {
        4
    }
}

impl ResolvesServerCert for SniResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // The client's own name, never the alias that `rustls` sees; an invalid host name counts as none.
        let own = with_current(|seed| seed.alias.as_ref().map(|alias| alias.real.clone())).flatten();
        let known = own.as_ref().map(|name| std::str::from_utf8(name).ok().filter(|_| is_host_name(name)));
        let name = known.unwrap_or(hello.server_name());
        self.choose(name, hello.signature_schemes(), self.groups(&hello))
    }
}
