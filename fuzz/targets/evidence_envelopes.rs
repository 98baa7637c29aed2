//! Sealed secrets and keys of epochs: envelopes from a switch, lists of secrets from an opened layer, the published
//! file of epochs. What decodes encodes to the same bytes and keeps its bounds.
//!
//! The first byte selects the format.

#![no_main]

use evergate_evidence::envelope::{ENVELOPE_BYTES_MAX, Envelope, Layer, SEALED_BYTES_MAX, epoch_of_ns};
use evergate_evidence::epochs::{EPOCHS_MAX, EpochFile};
use evergate_evidence::note::NOTE_BYTES_MAX;
use evergate_evidence::secrets::{LIST_BYTES_MAX, SECRET_BYTES_MAX, SecretList};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&format, bytes)) = data.split_first() else { return };
    let written = match format % 3 {
        0 => Envelope::decode(bytes).ok().map(|envelope| of_envelope(&envelope)),
        1 => SecretList::decode(bytes).ok().map(|list| of_list(&list)),
        _ => std::str::from_utf8(bytes).ok().and_then(of_epochs),
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
