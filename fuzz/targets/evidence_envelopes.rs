//! Sealed secrets and their disclosure: envelopes from a switch, lists of secrets from an opened layer, the published
//! file of epochs, requests, policies, orders, grants, messages of feeds. What decodes encodes to the same bytes and
//! keeps its bounds. No request is good without a signature.
//!
//! The first byte selects the format.

#![no_main]

use evergate_evidence::disclosure::grant::GRANT_BYTES_MAX;
use evergate_evidence::disclosure::policy::MEMBERS_MAX;
use evergate_evidence::disclosure::request::REQUEST_BYTES_MAX;
use evergate_evidence::disclosure::{DestroyOrder, Grant, Policy, Refusal, Request};
use evergate_evidence::envelope::{ENVELOPE_BYTES_MAX, Envelope, Layer, SEALED_BYTES_MAX, epoch_of_ns};
use evergate_evidence::epochs::{EPOCHS_MAX, EpochFile};
use evergate_evidence::feed::{FromFeed, ToFeed};
use evergate_evidence::note::{Algorithm, NOTE_BYTES_MAX, SignatureVerifier};
use evergate_evidence::secrets::{LIST_BYTES_MAX, SECRET_BYTES_MAX, SecretList};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&format, bytes)) = data.split_first() else { return };
    let written = match format % 9 {
        0 => Envelope::decode(bytes).ok().map(|envelope| of_envelope(&envelope)),
        1 => SecretList::decode(bytes).ok().map(|list| of_list(&list)),
        2 => std::str::from_utf8(bytes).ok().and_then(of_epochs),
        3 => of_request(bytes),
        4 => std::str::from_utf8(bytes).ok().and_then(of_policy),
        5 => DestroyOrder::parse(bytes).ok().map(|(order, note)| {
            assert_eq!(order.to_text(), note.text());
            note.to_bytes()
        }),
        7 => ToFeed::decode(bytes).ok().map(|message| message.to_frame()[4..].to_vec()),
        8 => FromFeed::decode(bytes).ok().map(|answer| answer.to_frame()[4..].to_vec()),
        _ => Grant::decode(bytes).ok().map(|grant| {
            assert!(grant.encode().len() <= GRANT_BYTES_MAX);
            grant.encode()
        }),
    };
    if let Some(written) = written {
        assert_eq!(written, bytes);
    }
});

fn of_envelope(envelope: &Envelope<'_>) -> Vec<u8> {
    let written = envelope.encode();
    assert!(written.len() <= ENVELOPE_BYTES_MAX && envelope.sealed.len() <= SEALED_BYTES_MAX);
    assert!(written.starts_with(&envelope.aad.encode()));
    assert_eq!(envelope.aad.epoch(), epoch_of_ns(envelope.aad.born_ns));
    for layer in [Layer::Inner, Layer::Outer] {
        assert_eq!(envelope.enc(layer)[0], 4);
    }
    written
}

fn of_list(list: &SecretList) -> Vec<u8> {
    let written = list.encode().to_vec();
    assert!(!list.is_empty() && written.len() <= LIST_BYTES_MAX);
    let mut again = SecretList::default();
    for (label, secret) in list.iter() {
        assert!((1..=SECRET_BYTES_MAX).contains(&secret.len()));
        again.set(label, secret).expect("a secret that was read");
    }
    assert_eq!(&again, list);
    written
}

fn of_epochs(text: &str) -> Option<Vec<u8>> {
    let file = EpochFile::parse_text(text).ok()?;
    assert!(file.keys().len() <= EPOCHS_MAX);
    assert!(file.keys().iter().all(|keys| file.get(keys.epoch) == Some(keys)));
    let written = file.to_text();
    assert!(written.len() < NOTE_BYTES_MAX);
    Some(written.into_bytes())
}

/// An algorithm that accepts every signature, or none.
struct Fixed(bool);

impl SignatureVerifier for Fixed {
    fn is_valid(&self, _: Algorithm, _: &[u8], _: &[u8], _: &[u8]) -> bool {
        self.0
    }
}

/// Policy of one person that requests, with the key of the seeds.
const POLICY: &str = "evergate-audit/policy@v1\nversion 1\nthreshold 1\nthreshold-beyond 0\nper-day 20\ndays 7\n\
    scope connection\ncredentials redact\n\
    member peter both PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW\n";

fn of_request(bytes: &[u8]) -> Option<Vec<u8>> {
    let (request, note) = Request::parse(bytes).ok()?;
    assert!(bytes.len() <= REQUEST_BYTES_MAX);
    assert_eq!(request.to_text(), note.text());
    let policy = Policy::parse_text(POLICY).expect("a policy");
    let now_s = request.created_s;
    assert!(policy.decide(&request, &note, now_s, 0, &Fixed(false)).is_err());
    // One key alone is never requester and approver.
    let refusal = policy.decide(&request, &note, now_s, 0, &Fixed(true)).expect_err("one person");
    assert!(!refusal.name().is_empty() && refusal != Refusal::NonceReplayed);
    Some(note.to_bytes())
}

fn of_policy(text: &str) -> Option<Vec<u8>> {
    let policy = Policy::parse_text(text).ok()?;
    assert!(policy.members.len() <= MEMBERS_MAX && policy.threshold > 0);
    Some(policy.to_text().into_bytes())
}
