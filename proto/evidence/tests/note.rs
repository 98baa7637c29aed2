//! Signed notes: vectors of other implementations, strict parsing, verification with an injected verifier.

use evergate_evidence::note::{
    Algorithm, Note, NoteError, PublicKey, SIGNATURES_MAX, SignatureLine, SignatureVerifier, VerifyingKey,
};
use proptest::prelude::*;

/// Vector of the Go implementation `golang.org/x/mod/sumdb/note`.
const PETER: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
const NOTE: &str = "If you think cryptography is the answer to your problem,\n\
    then you don't know what your problem is.\n\
    \n\
    \u{2014} PeterNeumann \
    x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";

/// Verifier that accepts a signature that repeats the message.
struct Echo;

impl SignatureVerifier for Echo {
    fn is_valid(&self, _: Algorithm, _: &[u8], message: &[u8], signature: &[u8]) -> bool {
        message == signature
    }
}

fn key(name: &str) -> VerifyingKey {
    VerifyingKey::new(name, PublicKey::Ed25519([7; 32])).unwrap()
}

#[test]
fn vector_of_another_implementation_is_read() {
    let key = VerifyingKey::parse(PETER).unwrap();
    assert_eq!((key.name(), key.id()), ("PeterNeumann", 0xc74f20a3));
    assert_eq!(key.to_vkey(), PETER);
    let note = Note::parse(NOTE.as_bytes()).unwrap();
    assert_eq!(note.to_bytes(), NOTE.as_bytes());
    assert_eq!(note.signatures()[0].id, key.id());
    assert_eq!(note.text().lines().count(), 2);
}

#[test]
fn keys_of_another_form_are_refused() {
    let wrong_id = PETER.replace("c74f20a3", "c74f20a4");
    let upper = PETER.replace("c74f20a3", "C74F20A3");
    for wrong in
        ["", "a", "a+b", "a+c74f20a3+", "+c74f20a3+ARpc", &wrong_id, &upper, &PETER[..PETER.len() - 4]]
    {
        assert!(matches!(VerifyingKey::parse(wrong), Err(NoteError::Key(_))), "{wrong}");
    }
    for name in ["", "a b", "a+b", "a\u{a0}b", "a\n"] {
        assert!(VerifyingKey::new(name, PublicKey::Ed25519([0; 32])).is_err(), "{name:?}");
    }
    assert!(VerifyingKey::new("a", PublicKey::EcdsaP256([3; 65])).is_err());
}

#[test]
fn every_kind_of_key_survives_its_text() {
    for key in [PublicKey::Ed25519([1; 32]), PublicKey::EcdsaP256([4; 65]), PublicKey::Cosignature([2; 32])] {
        let key = VerifyingKey::new("example.com/log", key).unwrap();
        assert_eq!(VerifyingKey::parse(&key.to_vkey()), Ok(key));
    }
}

#[test]
fn malformed_notes_are_refused_by_reason() {
    let line = "\u{2014} a AAAAAAE=\n";
    let parse = |text: String| Note::parse(text.as_bytes());
    assert!(parse(format!("text\n\n{line}")).is_ok());
    assert!(parse(format!("\n\n{line}")).is_ok());
    assert_eq!(parse("text\n".into()), Err(NoteError::NoBlankLine));
    assert_eq!(parse("text\n\n".into()), Err(NoteError::Signature(3)));
    assert_eq!(parse(format!("text\n\n{line}\n")), Err(NoteError::Signature(5)));
    assert_eq!(parse(format!("text\n{line}")), Err(NoteError::NoBlankLine));
    assert_eq!(parse(format!("text\n\n{}", line.trim_end())), Err(NoteError::NoLineEnd));
    assert_eq!(parse(format!("text\n\n{line}x")), Err(NoteError::NoLineEnd));
    assert_eq!(parse(format!("text\n\n{line}{line}")), Err(NoteError::Duplicate("a".into())));
    for wrong in ["AAAAAAF=", "AAAAAAE", "AAAAAA==", "AAAA AAE=", "AAAAAAE= "] {
        assert_eq!(parse(format!("text\n\n\u{2014} a {wrong}\n")), Err(NoteError::Signature(3)), "{wrong}");
    }
    assert_eq!(parse("text\n\n- a AAAAAAE=\n".into()), Err(NoteError::Signature(3)));
    assert_eq!(parse(format!("te\rxt\n\n{line}")), Err(NoteError::NotText));
    assert_eq!(Note::parse(b"\xff\n\n"), Err(NoteError::NotText));
    assert_eq!(Note::parse(&[b'a'; 70_000]), Err(NoteError::Long));
}

#[test]
fn signatures_have_a_bound() {
    let mut note = Note::new("text\n".into()).unwrap();
    for index in 0..SIGNATURES_MAX {
        note.sign(SignatureLine { name: format!("n{index}"), id: 1, signature: vec![1] }).unwrap();
    }
    let one_more = SignatureLine { name: "last".into(), id: 1, signature: vec![1] };
    assert_eq!(note.sign(one_more), Err(NoteError::Long));
}

#[test]
fn wrong_line_of_a_known_key_refuses_the_note() {
    let mut note = Note::new("text\n".into()).unwrap();
    note.sign(SignatureLine::of(&key("log"), b"text\n".to_vec())).unwrap();
    note.sign(SignatureLine::of(&key("other"), b"else".to_vec())).unwrap();
    let verified = note.verify(&[key("log")], &Echo).unwrap();
    assert_eq!(verified.keys, [(0, None)]);
    assert_eq!(verified.foreign.len(), 1);
    assert_eq!(note.verify(&[key("log"), key("other")], &Echo), Err(NoteError::Wrong("other".into())));
    assert!(matches!(note.verify(&[key("third")], &Echo), Err(NoteError::Unsigned(_))));
}

#[test]
fn cosignature_covers_its_time() {
    let witness = VerifyingKey::new("w", PublicKey::Cosignature([1; 32])).unwrap();
    let mut note = Note::new("text\n".into()).unwrap();
    let signed = [&1_700_000_000_u64.to_be_bytes()[..], b"cosignature/v1\ntime 1700000000\ntext\n"].concat();
    note.sign(SignatureLine::of(&witness, signed.clone())).unwrap();
    assert_eq!(note.verify(std::slice::from_ref(&witness), &Echo).unwrap().keys, [(0, Some(1_700_000_000))]);
    let mut later = Note::new("text\n".into()).unwrap();
    let mut signed = signed;
    signed[7] += 1;
    later.sign(SignatureLine::of(&witness, signed)).unwrap();
    assert_eq!(later.verify(&[witness], &Echo), Err(NoteError::Wrong("w".into())));
}

proptest! {
    #[test]
    fn parsed_bytes_are_the_written_ones(at: usize, byte: u8, how in 0..3) {
        let mut bytes = NOTE.as_bytes().to_vec();
        let at = at % bytes.len();
        match how {
            0 => bytes[at] = byte,
            1 => bytes.insert(at, byte),
            _ => drop(bytes.remove(at)),
        }
        if let Ok(note) = Note::parse(&bytes) {
            prop_assert_eq!(note.to_bytes(), bytes);
        }
    }

    #[test]
    fn random_text_never_panics(text in "[a\n \u{2014}A=]{0,60}") {
        if let Ok(note) = Note::parse(text.as_bytes()) {
            prop_assert_eq!(note.to_bytes(), text.as_bytes());
        }
        let _ = VerifyingKey::parse(&text);
    }
}
