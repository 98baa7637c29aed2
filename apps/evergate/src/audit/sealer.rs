//! A worker's sealing contexts: the present one, and that of the hour before for late handshakes.

use crate::audit::Audit;
use evergate_base::Micros;
use evergate_base::seed::SecretKind;
use evergate_connection::Birth;
use evergate_evidence::envelope::{Aad, epoch_of_ns};
use evergate_evidence::feed::Continuation;
use evergate_evidence::record::RequestRecord;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_seal::{CONTEXT_AGE_S_MAX, SealContext};
use evergate_worker::host::AuditedCapture;
use std::sync::Arc;

/// Most contexts of a worker: the present hour's, and the one before.
const CONTEXTS_MAX: usize = 2;
const NS_PER_S: u64 = 1_000_000_000;

/// A worker's end of audited capture.
#[derive(Debug)]
pub struct Sealer {
    audit: Arc<Audit>,
    contexts: Vec<(SealContext, Micros)>,
}

impl Sealer {
    /// A sealer without contexts.
    pub fn new(audit: Arc<Audit>) -> Sealer {
        Sealer { audit, contexts: Vec::with_capacity(CONTEXTS_MAX) }
    }

    fn try_seal(&mut self, birth: &Birth<'_>, now: Micros) -> Option<Vec<u8>> {
        let mut list = SecretList::default();
        for captured in &birth.secrets.secrets {
            list.set(label(captured.kind), &captured.secret).ok()?;
        }
        let sni = birth.sni.unwrap_or_default().as_bytes();
        let aad = Aad {
            switch: self.audit.feed.switch(),
            connection: birth.connection,
            born_ns: birth.secrets.accepted_unix_s * NS_PER_S,
            client: birth.client,
            local: birth.local,
            client_random: birth.secrets.client_random,
            server_random: birth.secrets.server_random,
            tls_version: if birth.is_tls13 { 0x0304 } else { 0x0303 },
            cipher_suite: birth.suite,
            feed_number: self.audit.feed.next_envelope(),
            sni: &sni[..sni.len().min(255)],
        };
        self.context(epoch_of_ns(aad.born_ns), now)?.seal(&aad, &list).ok()
    }

    /// A context of this epoch that is neither old nor used up.
    fn context(&mut self, epoch: u64, now: Micros) -> Option<&mut SealContext> {
        let age_max = Micros::from_ms(CONTEXT_AGE_S_MAX * 1000);
        self.contexts.retain(|(context, since)| context.left() > 0 && now.since(*since) < age_max);
        let known = self.contexts.iter().position(|(context, _)| context.epoch() == epoch);
        let index = match known {
            Some(index) => index,
            None => {
                if self.contexts.len() >= CONTEXTS_MAX {
                    self.contexts.remove(0);
                }
                self.contexts.push((self.audit.contexts.take(epoch)?, now));
                self.contexts.len() - 1
            }
        };
        Some(&mut self.contexts[index].0)
    }
}

impl AuditedCapture for Sealer {
    fn refuses(&self) -> bool {
        self.audit.refuses()
    }

    fn seal(&mut self, birth: &Birth<'_>, now: Micros) -> Option<Vec<u8>> {
        let envelope = self.try_seal(birth, now);
        self.audit.count_sealed(envelope.is_some());
        if envelope.is_none() {
            self.audit.feed.lose();
        }
        envelope
    }

    fn push_envelope(&self, envelope: &[u8]) {
        self.audit.feed.push_envelope(envelope);
    }

    fn push_request(&self, request: RequestRecord<'_>) {
        self.audit.feed.push_request(request);
    }

    fn push_continued(&self, continued: Continuation) {
        self.audit.feed.push_continued(continued);
    }
}

fn label(kind: SecretKind) -> Label {
    match kind {
        SecretKind::Master => Label::MasterSecret,
        SecretKind::ClientHandshake => Label::ClientHandshake,
        SecretKind::ServerHandshake => Label::ServerHandshake,
        SecretKind::ClientTraffic => Label::ClientTraffic,
        SecretKind::ServerTraffic => Label::ServerTraffic,
    }
}
