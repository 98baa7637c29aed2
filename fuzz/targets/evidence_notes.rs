//! Signed text of the Master's log, from a Master, a witness or an owner: notes, keys, checkpoints, receipts, trust
//! files. What parses formats as the same bytes. A signature counts only where the injected algorithm accepts it.
//!
//! The first byte selects the format.

#![no_main]

use evergate_evidence::base64;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::note::{
    Algorithm, NOTE_BYTES_MAX, Note, SIGNATURES_MAX, SignatureLine, SignatureVerifier, VerifyingKey,
};
use evergate_evidence::proof::Receipt;
use evergate_evidence::verify::Trust;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&format, bytes)) = data.split_first() else { return };
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let written = match format % 7 {
        0 => Note::parse(bytes).ok().map(|note| of_note(&note)),
        1 => VerifyingKey::parse(text).ok().map(|key| key.to_vkey().into_bytes()),
        2 => SignedCheckpoint::parse(bytes).ok().map(|checkpoint| of_checkpoint(&checkpoint)),
        3 => Receipt::parse(bytes).ok().map(|receipt| of_receipt(&receipt)),
        4 => of_base64(text, bytes),
        5 => SignatureLine::parse(text).map(|line| line.to_string().into_bytes()),
        _ => {
            trust(bytes);
            None
        }
    };
    if let Some(written) = written {
        assert_eq!(written, bytes);
    }
});

/// An algorithm that accepts every signature, or none.
struct Fixed(bool);

impl SignatureVerifier for Fixed {
    fn is_valid(&self, _: Algorithm, _: &[u8], _: &[u8], _: &[u8]) -> bool {
        self.0
    }
}

/// Keys that seeds have lines of.
fn keys() -> Vec<VerifyingKey> {
    let keys = ["PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"];
    keys.iter().map(|key| VerifyingKey::parse(key).expect("a key")).collect()
}

fn of_note(note: &Note) -> Vec<u8> {
    let written = note.to_bytes();
    assert!(written.len() <= NOTE_BYTES_MAX && note.signatures().len() <= SIGNATURES_MAX);
    assert!(note.verify(&keys(), &Fixed(false)).is_err());
    if let Ok(verified) = note.verify(&keys(), &Fixed(true)) {
        assert!(!verified.keys.is_empty());
        assert_eq!(verified.keys.len() + verified.foreign.len(), note.signatures().len());
    }
    let text = Note::new(note.text().to_owned()).expect("the text of a note");
    let mut again = text;
    note.signatures().iter().for_each(|line| again.sign(line.clone()).expect("one line of each key"));
    assert_eq!(&again, note);
    written
}

fn of_checkpoint(checkpoint: &SignedCheckpoint) -> Vec<u8> {
    assert_eq!(checkpoint.checkpoint().to_text(), checkpoint.note().text());
    of_note(checkpoint.note())
}

fn of_receipt(receipt: &Receipt) -> Vec<u8> {
    // A constant that no hash of the input leads to.
    assert!(receipt.verify_leaf(&[3; 32]).is_err());
    of_checkpoint(&receipt.checkpoint);
    receipt.to_bytes()
}

fn of_base64(text: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    assert_eq!(base64::decode(&base64::encode(bytes)).as_deref(), Some(bytes));
    base64::decode(text).map(|decoded| base64::encode(&decoded).into_bytes()).filter(|_| !text.is_empty())
}

fn trust(bytes: &[u8]) {
    let Ok(trust) = Trust::parse(bytes) else { return };
    assert!(!trust.logs.is_empty() && trust.witness_threshold <= trust.witnesses.len());
    for key in trust.logs.iter().chain(&trust.witnesses) {
        assert_eq!(VerifyingKey::parse(&key.to_vkey()).as_ref(), Ok(key));
        let _ = trust.is_trial(key);
    }
}
