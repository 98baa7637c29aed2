//! Checks of certificates and TLS settings.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use evergate_crypto::KeyError;

use super::certificate_dates::Concern;
use super::context::{Checks, Content};
use crate::address::is_host_name;
use crate::model::{Certificate, CertificateSource, ClientCertificates, Tickets, TlsSettings, TlsVersion};
use crate::problem::REFUSED;
use crate::raw::{RawCertificate, RawTls};
use crate::span::KeyPath;

pub(crate) fn certificates(raw: &[RawCertificate], checks: &mut Checks<'_>) -> Vec<Certificate> {
    let list = KeyPath::root().key("certificates");
    let mut seen = BTreeMap::new();
    let mut all = Vec::new();
    for (i, raw) in raw.iter().enumerate() {
        let at = list.index(i);
        let name = checks.name(raw.name.as_deref(), &at, &mut seen, "example");
        let source = source(raw, &at, checks);
        if let (Some(name), Some(source)) = (name, source) {
            all.push(Certificate { name, source });
        }
    }
    all
}

fn source(raw: &RawCertificate, at: &KeyPath, checks: &mut Checks<'_>) -> Option<CertificateSource> {
    if let Some(names) = &raw.self_signed {
        if raw.chain.is_some() || raw.key.is_some() {
            let consequence = format!("it is not clear which certificate clients shall see; {REFUSED}");
            checks.report.error_because(
                &at.key("self_signed"),
                "a certificate comes from files or is self-signed, not both",
                consequence,
                "remove `self_signed`, or `chain` and `key`",
            );
            return None;
        }
        return self_signed(names, &at.key("self_signed"), checks);
    }
    let chain = checks.optional_file(raw.chain.as_deref(), &at.key("chain"), Content::Certificates);
    let key = checks.optional_file(raw.key.as_deref(), &at.key("key"), Content::PrivateKey);
    let consequence = format!("there would be nothing to show to clients; {REFUSED}");
    match (&raw.chain, &raw.key) {
        (None, None) => {
            let given = |key| checks.report.is_excused(&at.key(key));
            if !["chain", "key", "self_signed"].into_iter().any(given) && !checks.report.is_excused(at) {
                checks.report.error_because(
                    at,
                    "the certificate has neither files nor names",
                    consequence,
                    "add `chain` and `key` with the paths of PEM files, or `self_signed = [\"localhost\"]` for tests",
                );
            }
        }
        (Some(_), None) => checks.report.missing(
            &at.key("key"),
            &consequence,
            "add `key` with the path of the private key's PEM file (the same file if it holds both)",
        ),
        (None, Some(_)) => checks.report.missing(
            &at.key("chain"),
            &consequence,
            "add `chain` with the path of the certificate's PEM file (the same file if it holds both)",
        ),
        _ => {}
    }
    let (chain, key) = (chain?, key?);
    pair(&chain, &key, at, checks);
    Some(CertificateSource::Files { chain, key })
}

/// Whether a chain and its key belong together, and are valid now.
fn pair(chain: &Path, key: &Path, at: &KeyPath, checks: &mut Checks<'_>) {
    // Both files were read before. A change since then is reported when they are loaded.
    let (Ok(chain), Ok(key)) = (checks.world.read(chain), checks.world.read(key)) else { return };
    match checks.world.validity(&chain, &key) {
        Ok(validity) => concern(validity.concern(checks.world.now_unix_s()), &at.key("chain"), checks),
        Err(error) => unfit(&error, &at.key("chain"), &at.key("key"), checks),
    }
}

/// Warns of a certificate that is not valid now, or not for long.
pub(crate) fn concern(concern: Option<Concern>, at: &KeyPath, checks: &mut Checks<'_>) {
    if let Some(Concern { what, consequence, remedy }) = concern {
        checks.report.warning(at, what, consequence, remedy);
    }
}

/// Reports a chain and a key that cannot be used together, at the key of the wrong one.
pub(crate) fn unfit(error: &KeyError, chain_at: &KeyPath, key_at: &KeyPath, checks: &mut Checks<'_>) {
    let of_key = matches!(
        error,
        KeyError::Key(_) | KeyError::Encrypted | KeyError::Unsupported(_) | KeyError::Mismatch { .. }
    );
    let text = error.to_string();
    let (what, remedy) = text.rsplit_once("; ").unwrap_or((&text, "name another file here"));
    checks.report.error(if of_key { key_at } else { chain_at }, what, remedy);
}

fn self_signed(names: &[String], at: &KeyPath, checks: &mut Checks<'_>) -> Option<CertificateSource> {
    if names.is_empty() {
        checks.report.error(at, "the list of names is empty", "write `self_signed = [\"localhost\"]`");
        return None;
    }
    let mut valid = true;
    for (i, name) in names.iter().enumerate() {
        let host = name.strip_prefix("*.").unwrap_or(name);
        if !is_host_name(host) && name.parse::<IpAddr>().is_err() {
            let what = format!("{name:?} is neither a host name nor an IP address");
            checks.report.error(
                &at.index(i),
                what,
                "write names as clients use them, without port, such as \"localhost\"",
            );
            valid = false;
        }
    }
    valid.then(|| CertificateSource::SelfSigned { names: names.to_vec() })
}

/// Application protocols of an `https` listener, preferred first (RFC 7301, section 6).
pub(crate) const HTTP_PROTOCOLS: [&str; 2] = ["http/1.1", "http/1.0"];

/// The built-in settings: the defaults of the schema with an empty name.
pub(crate) fn built_in() -> TlsSettings {
    TlsSettings {
        name: String::new(),
        min_version: TlsVersion::V1_2,
        max_version: TlsVersion::V1_3,
        alpn: HTTP_PROTOCOLS.map(str::to_owned).to_vec(),
        client_certificates: ClientCertificates::None,
        client_ca: None,
        tickets: Some(Tickets { keys: None, rotate: Duration::from_secs(43_200) }),
        session_id_lifetime_s: 3600,
    }
}

/// The built-in settings and those of the file, in the order of their names.
pub(crate) fn tls(raw: &BTreeMap<String, RawTls>, checks: &mut Checks<'_>) -> Vec<TlsSettings> {
    let mut all = vec![built_in()];
    for (name, raw) in raw {
        let at = KeyPath::root().key("tls").key(name);
        all.push(settings(name, raw, &at, checks));
    }
    all
}

fn settings(name: &str, raw: &RawTls, at: &KeyPath, checks: &mut Checks<'_>) -> TlsSettings {
    if raw.min_version > raw.max_version {
        let at = super::node::pick_given(checks, at, "min_version", "max_version");
        checks.report.error_because(
            &at,
            "`min_version` is newer than `max_version`",
            format!("no version would be left; {REFUSED}"),
            "leave `max_version` away, or write the versions the other way round",
        );
    }
    for (i, protocol) in raw.alpn.iter().enumerate() {
        if !(1..=255).contains(&protocol.len()) || !protocol.bytes().all(|b| b.is_ascii_graphic()) {
            let what = format!("{protocol:?} cannot be an application protocol");
            checks.report.error(&at.key("alpn").index(i), what, "write registered ids, such as \"http/1.1\"");
        }
        if raw.alpn.iter().take(i).any(|p| p == protocol) {
            let what = format!("{protocol:?} is in the list twice");
            checks.report.error(&at.key("alpn").index(i), what, "remove one of them");
        }
    }
    let client_ca = client_ca(raw, at, checks);
    let keys = checks.optional_file(raw.ticket_keys.as_deref(), &at.key("ticket_keys"), Content::TicketKeys);
    if !raw.tickets {
        for key in ["ticket_keys", "ticket_rotate_s"] {
            if checks.report.is_given(&at.key(key)) {
                checks.report.warning(
                    &at.key(key),
                    format!("`{key}` is given, but `tickets = false`"),
                    "it has no effect",
                    format!("remove `{key}`, or write `tickets = true`"),
                );
            }
        }
    }
    let tickets = raw.tickets.then(|| Tickets { keys, rotate: Duration::from_secs(raw.ticket_rotate_s) });
    TlsSettings {
        name: name.to_owned(),
        min_version: raw.min_version,
        max_version: raw.max_version,
        alpn: raw.alpn.clone(),
        client_certificates: raw.client_certificates,
        client_ca,
        tickets,
        session_id_lifetime_s: raw.session_id_lifetime_s,
    }
}

fn client_ca(raw: &RawTls, at: &KeyPath, checks: &mut Checks<'_>) -> Option<std::path::PathBuf> {
    let path = checks.optional_file(raw.client_ca.as_deref(), &at.key("client_ca"), Content::Certificates);
    let asked = raw.client_certificates != ClientCertificates::None;
    if asked && raw.client_ca.is_none() {
        checks.report.missing(
            &at.key("client_ca"),
            &format!("no client certificate could be verified; {REFUSED}"),
            "add `client_ca` with a PEM file of the authorities that issue client certificates",
        );
    }
    if !asked && raw.client_ca.is_some() {
        // Almost certainly a forgotten key, which would admit every client: an error, not a warning.
        checks.report.error_because(
            &at.key("client_ca"),
            "`client_ca` is given, but clients are not asked for a certificate",
            format!("every client would be served; {REFUSED}"),
            "add `client_certificates = \"required\"` (or \"optional\"), or remove `client_ca`",
        );
    }
    if let Some(path) = &path {
        authorities(path, &at.key("client_ca"), checks);
    }
    path
}

/// Checks that clients can be verified with the certificates of the file, and with all of them.
fn authorities(path: &Path, at: &KeyPath, checks: &mut Checks<'_>) {
    // The file was read before. A change since then is reported when it is loaded.
    let Ok(pem) = checks.world.read(path) else { return };
    let Some(found) = checks.world.authorities(&pem) else { return };
    let shown = path.display();
    if found.count == 0 {
        checks.report.error_because(
            at,
            format!(
                "no certificate in `{shown}` is an authority's (basicConstraints CA:TRUE, keyCertSign where there \
                 is a keyUsage)"
            ),
            format!("no client certificate could be verified; {REFUSED}"),
            "name the certificate of the authority that issues the clients' certificates, not one of these",
        );
        return;
    }
    if let Some((first, more)) = found.others.split_first() {
        let (and, are) = match more.len() {
            0 => (String::new(), "is no authority's certificate"),
            more => (format!(" and {more} more"), "are no authorities' certificates"),
        };
        checks.report.warning(
            at,
            format!(
                "\"{first}\"{and} in `{shown}` {are} (basicConstraints CA:TRUE, keyCertSign where there is a \
                 keyUsage)"
            ),
            "clients that show such a certificate itself, or one that its key has signed, are refused",
            "leave only the authorities that issue clients' certificates in the file",
        );
    }
    let (bytes, bytes_max) = found.names_bytes;
    if bytes > bytes_max {
        checks.report.warning(
            at,
            format!(
                "the names of the authorities in `{shown}` have {bytes} bytes, more than the {bytes_max} that \
                 clients receive"
            ),
            "clients are asked for a certificate without a list of authorities; a client with several certificates \
             may show another one",
            "leave only the authorities that issue clients' certificates in the file",
        );
    }
}
