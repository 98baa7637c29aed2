//! Checkpoints of C2SP: origin, size and root of the log, signed as a note.
//!
//! Checkpoints here have exactly three lines. Extension lines are refused: witnesses do not agree on them.

use crate::base64;
use crate::merkle::Hash;
use crate::note::{Note, NoteError, SignatureVerifier, Verified, VerifyingKey, is_name};

/// Most bytes of an origin.
pub const ORIGIN_BYTES_MAX: usize = 255;

/// Reason why bytes are no checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The note itself is wrong.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// Line of the text that is wrong.
    #[error("checkpoint line {line} is no {what}")]
    Line {
        /// Number of the line, from 1.
        line: u8,
        /// What the line has by the format.
        what: &'static str,
    },
    /// Checkpoint of another log.
    #[error("checkpoint is of log '{found}', expected '{expected}'")]
    Origin {
        /// Origin of the checkpoint.
        found: String,
        /// Origin of the key.
        expected: String,
    },
}

/// Head of the log's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Name of the log: `name/year`.
    pub origin: String,
    /// Number of entries.
    pub size: u64,
    /// Root of the tree over them.
    pub root: Hash,
}

impl Checkpoint {
    /// Checkpoint from a note's text.
    pub fn parse(text: &str) -> Result<Checkpoint, CheckpointError> {
        let wrong = |line, what| CheckpointError::Line { line, what };
        let mut lines = text.strip_suffix('\n').ok_or(NoteError::NoLineEnd)?.split('\n');
        let origin = lines.next().filter(|origin| is_origin(origin)).ok_or(wrong(1, "origin"))?;
        let size = lines.next().and_then(parse_decimal).ok_or(wrong(2, "tree size"))?;
        let root = lines.next().and_then(base64::decode_array).ok_or(wrong(3, "root hash"))?;
        match lines.next() {
            Some(_) => Err(wrong(4, "line of a checkpoint: extensions are not used here")),
            None => Ok(Checkpoint { origin: origin.to_owned(), size, root }),
        }
    }

    /// Text that is signed.
    pub fn to_text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, base64::encode(&self.root))
    }
}

/// Checkpoint with its signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCheckpoint {
    checkpoint: Checkpoint,
    note: Note,
}

impl SignedCheckpoint {
    /// Checkpoint without signatures yet.
    pub fn new(checkpoint: Checkpoint) -> Result<SignedCheckpoint, CheckpointError> {
        let note = Note::new(checkpoint.to_text())?;
        Ok(SignedCheckpoint { checkpoint: Checkpoint::parse(note.text())?, note })
    }

    /// Signed checkpoint from exactly its bytes.
    pub fn parse(bytes: &[u8]) -> Result<SignedCheckpoint, CheckpointError> {
        let note = Note::parse(bytes)?;
        Ok(SignedCheckpoint { checkpoint: Checkpoint::parse(note.text())?, note })
    }

    /// The head of the tree.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The note.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// The note, for more signatures.
    pub fn note_mut(&mut self) -> &mut Note {
        &mut self.note
    }

    /// Bytes of the checkpoint file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.note.to_bytes()
    }

    /// Verifies the log's own signature and those of known witnesses. The first key must be the log's: its name is the
    /// origin, and its signature must be there.
    pub fn verify(
        &self,
        log: &VerifyingKey,
        witnesses: &[VerifyingKey],
        verifier: &dyn SignatureVerifier,
    ) -> Result<Verified, CheckpointError> {
        if self.checkpoint.origin != log.name() {
            return Err(CheckpointError::Origin {
                found: self.checkpoint.origin.clone(),
                expected: log.name().to_owned(),
            });
        }
        let keys: Vec<VerifyingKey> = std::iter::once(log).chain(witnesses).cloned().collect();
        let verified = self.note.verify(&keys, verifier)?;
        match verified.keys.iter().any(|&(index, _)| index == 0) {
            true => Ok(verified),
            false => Err(NoteError::Unsigned(log.to_vkey()).into()),
        }
    }
}

/// Whether this is an origin: a key's name of at most 255 bytes.
pub fn is_origin(origin: &str) -> bool {
    is_name(origin) && origin.len() <= ORIGIN_BYTES_MAX
}

/// Decimal number without leading zeros, signs or other characters.
pub(crate) fn parse_decimal(text: &str) -> Option<u64> {
    let is_canonical = text == "0" || !text.starts_with('0');
    match is_canonical && text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Example of the specification; its signature has another key type.
    const EXAMPLE: &str = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n\
        \u{2014} example.com/behind-the-sofa \
        Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n";

    #[test]
    fn example_of_the_specification_is_read() {
        let signed = SignedCheckpoint::parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(signed.checkpoint().origin, "example.com/behind-the-sofa");
        assert_eq!(signed.checkpoint().size, 20_852_163);
        assert_eq!(signed.to_bytes(), EXAMPLE.as_bytes());
    }

    #[test]
    fn other_texts_are_refused_with_their_line() {
        let root = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=";
        let line = |text: String| match Checkpoint::parse(&text) {
            Err(CheckpointError::Line { line, .. }) => line,
            other => panic!("{text:?}: {other:?}"),
        };
        assert_eq!(line(format!("\n1\n{root}\n")), 1);
        assert_eq!(line(format!("a b\n1\n{root}\n")), 1);
        for size in ["", "01", "-1", "+1", "1 ", "18446744073709551616", "x"] {
            assert_eq!(line(format!("a\n{size}\n{root}\n")), 2);
        }
        assert_eq!(line(format!("a\n1\n{}\n", &root[4..])), 3);
        assert_eq!(line("a\n1\n".into()), 3);
        assert_eq!(line(format!("a\n1\n{root}\nextension\n")), 4);
        assert_eq!(line(format!("a\n1\n{root}\n\n")), 4);
        assert!(Checkpoint::parse(&format!("a\n1\n{root}")).is_err());
    }

    proptest! {
        #[test]
        fn text_survives_both_ways(origin in "[a-z./0-9]{1,20}", size: u64, root: Hash) {
            let checkpoint = Checkpoint { origin, size, root };
            prop_assert_eq!(Checkpoint::parse(&checkpoint.to_text()), Ok(checkpoint));
        }
    }
}
