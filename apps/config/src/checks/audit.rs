//! Checks of `[audit]`, and of the listeners that need it.

use super::context::Checks;
use crate::model::{Audit, Feed, Protocol};
use crate::problem::REFUSED;
use crate::raw::{RawAudit, RawConfig};
use crate::span::KeyPath;
use evergate_connection::AuditScope;

pub(crate) fn audit(config: &RawConfig, checks: &mut Checks<'_>) -> Option<Audit> {
    for (index, listener) in config.listeners.iter().enumerate().filter(|(_, listener)| listener.audit) {
        let at = KeyPath::root().key("listeners").index(index).key("audit");
        if listener.protocol.is_some_and(|protocol| !protocol.is_tls()) {
            checks.report.error_because(
                &at,
                "`audit` seals the secrets of TLS, which this listener does not terminate",
                format!("it would have no effect; {REFUSED}"),
                "remove it, or write `protocol = \"https\"` or \"tls\"",
            );
        }
        if config.audit.is_none() {
            checks.report.error_because(
                &at,
                "there is no `[audit]` table",
                format!("secrets could be sealed for no Revealer; {REFUSED}"),
                "add `[audit]` with `epochs` and `log_key`, or remove `audit`",
            );
        }
    }
    let raw = config.audit.as_ref()?;
    let at = KeyPath::root().key("audit");
    for (key, value) in [("epochs", &raw.epochs), ("log_key", &raw.log_key)] {
        if value.is_none() {
            let consequence = format!("no secret could be sealed; {REFUSED}");
            checks.report.missing(
                &at.key(key),
                &consequence,
                "docs/guide/audit.md shows where it comes from",
            );
        }
    }
    let feed = feed(raw, &at, checks);
    let (epochs, log_key) = (raw.epochs.as_ref()?, raw.log_key.clone()?);
    if let Err(error) = evergate_evidence::note::VerifyingKey::parse(&log_key) {
        checks.report.error(
            &at.key("log_key"),
            format!("this is no key of a log: {error}"),
            "write it as `evergate-master` prints it: NAME+ID+KEY",
        );
    }
    Some(Audit { epochs: checks.path(epochs), log_key, feed: feed?, on_loss: raw.on_loss })
}

fn feed(raw: &RawAudit, at: &KeyPath, checks: &mut Checks<'_>) -> Option<Feed> {
    if raw.feed.contains('/') || raw.feed.is_empty() {
        return Some(Feed::Unix(checks.path(&raw.feed)));
    }
    if raw.feed.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        checks.report.error(
            &at.key("feed"),
            "this is neither a path nor HOST:PORT",
            "write the path of a Unix socket, such as \"/run/evergate-audit/feed.sock\", or \"HOST:PORT\"",
        );
        return None;
    }
    for (key, value) in [("recorder", &raw.recorder), ("certificate", &raw.certificate), ("key", &raw.key)] {
        if value.is_none() {
            let consequence = format!("this switch and the Recorder could not know each other; {REFUSED}");
            checks.report.missing(&at.key(key), &consequence, "or use a Unix socket as `feed`");
        }
    }
    let text = raw.recorder.as_ref()?;
    let Some(recorder) = id(text) else {
        checks.report.error(
            &at.key("recorder"),
            "this is no id: it needs 64 hexadecimal digits",
            "write what `evergate-audit identity --store DIR` prints",
        );
        return None;
    };
    let (certificate, key) = (checks.path(raw.certificate.as_ref()?), checks.path(raw.key.as_ref()?));
    Some(Feed::Tls { address: raw.feed.clone(), recorder, certificate, key })
}

fn id(text: &str) -> Option<[u8; 32]> {
    let mut id = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (place, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(id)
}

/// What is recorded of a listener: all by its own key, or the requests that rules choose.
pub(crate) fn scope(config: &RawConfig, own: bool, protocol: Protocol) -> AuditScope {
    let is_chosen = protocol.is_http() && config.rules.iter().any(|rule| rule.audit);
    match (config.audit.is_some() && protocol.is_tls(), own, is_chosen) {
        (true, true, _) => AuditScope::AllRequests,
        (true, false, true) => AuditScope::ChosenRequests,
        _ => AuditScope::Nothing,
    }
}
