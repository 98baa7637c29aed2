//! Receipts: C2SP tlog-proof texts that prove an entry of the log to a reader without the log.
//!
//! [`Receipt::parse`] accepts exactly the bytes that [`Receipt::to_bytes`] writes. The optional `extra` line of the
//! format is refused: no signature covers it.

use crate::base64;
use crate::checkpoint::{CheckpointError, SignedCheckpoint, parse_decimal};
use crate::merkle::Hash;
use crate::merkle::proof::{PROOF_MAX, ProofError, verify_inclusion};
use crate::note::{SignatureVerifier, Verified, VerifyingKey};

const FIRST_LINE: &str = "c2sp.org/tlog-proof@v1";

/// Reason why bytes are no receipt, or prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// Line that is wrong: its number, from 1.
    #[error("receipt line {line} is no {what}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What the line has by the format.
        what: &'static str,
    },
    /// The checkpoint is wrong.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The path is wrong.
    #[error(transparent)]
    Proof(#[from] ProofError),
}

/// Proof that an entry is in the log of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Place of the entry in the log, from 0.
    pub index: u64,
    /// Hashes from the leaf's sibling upwards.
    pub path: Vec<Hash>,
    /// Checkpoint of a tree that has the entry.
    pub checkpoint: SignedCheckpoint,
}

impl Receipt {
    /// Receipt from exactly its bytes.
    pub fn parse(bytes: &[u8]) -> Result<Receipt, ReceiptError> {
        let mut rest = bytes;
        let mut line = || {
            let len = rest.iter().position(|&byte| byte == b'\n')?;
            let (line, behind) = rest.split_at(len);
            rest = &behind[1..];
            std::str::from_utf8(line).ok()
        };
        let wrong = |line, what| ReceiptError::Line { line, what };
        line().filter(|&line| line == FIRST_LINE).ok_or(wrong(1, "first line of a tlog-proof"))?;
        let index = line().and_then(|line| line.strip_prefix("index ")).and_then(parse_decimal);
        let index = index.ok_or(wrong(2, "index"))?;
        let mut path = Vec::new();
        loop {
            let number = path.len() + 3;
            match line().ok_or(wrong(number, "hash"))? {
                "" => break,
                _ if path.len() == PROOF_MAX => return Err(ProofError::Length.into()),
                text => path.push(base64::decode_array(text).ok_or(wrong(number, "hash"))?),
            }
        }
        Ok(Receipt { index, path, checkpoint: SignedCheckpoint::parse(rest)? })
    }

    /// The receipt's text.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = format!("{FIRST_LINE}\nindex {}\n", self.index);
        for hash in &self.path {
            out.push_str(&base64::encode(hash));
            out.push('\n');
        }
        out.push('\n');
        [out.into_bytes(), self.checkpoint.to_bytes()].concat()
    }

    /// Error unless the leaf is at the index in the tree of the checkpoint. Checks no signature.
    pub fn verify_leaf(&self, leaf: &Hash) -> Result<(), ReceiptError> {
        let checkpoint = self.checkpoint.checkpoint();
        Ok(verify_inclusion(leaf, self.index, checkpoint.size, &self.path, &checkpoint.root)?)
    }

    /// Error unless the log signed the checkpoint and the leaf is in it. Answers as
    /// [`SignedCheckpoint::verify`].
    pub fn verify(
        &self,
        leaf: &Hash,
        log: &VerifyingKey,
        witnesses: &[VerifyingKey],
        verifier: &dyn SignatureVerifier,
    ) -> Result<Verified, ReceiptError> {
        self.verify_leaf(leaf)?;
        Ok(self.checkpoint.verify(log, witnesses, verifier)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::merkle::proof::inclusion_proof;
    use crate::merkle::{leaf_hash, root};
    use crate::note::{Algorithm, PublicKey, SignatureLine};
    use proptest::prelude::*;

    struct Echo;

    impl SignatureVerifier for Echo {
        fn is_valid(&self, _: Algorithm, _: &[u8], message: &[u8], signature: &[u8]) -> bool {
            message == signature
        }
    }

    fn key() -> VerifyingKey {
        VerifyingKey::new("log.example/2026", PublicKey::Ed25519([5; 32])).unwrap()
    }

    fn leaves() -> Vec<Hash> {
        (0..11_u8).map(|index| leaf_hash(&[&[index]])).collect()
    }

    fn receipt(index: u64) -> Receipt {
        let leaves = leaves();
        let checkpoint = Checkpoint { origin: key().name().into(), size: 11, root: root(&leaves) };
        let mut checkpoint = SignedCheckpoint::new(checkpoint).unwrap();
        let text = checkpoint.note().text().as_bytes().to_vec();
        checkpoint.note_mut().sign(SignatureLine::of(&key(), text)).unwrap();
        Receipt { index, path: inclusion_proof(&leaves[..], index, 11).unwrap(), checkpoint }
    }

    #[test]
    fn receipt_proves_its_leaf_only() {
        let receipt = receipt(4);
        receipt.verify(&leaves()[4], &key(), &[], &Echo).unwrap();
        receipt.verify(&leaves()[5], &key(), &[], &Echo).unwrap_err();
        let other = VerifyingKey::new("log.example/2027", PublicKey::Ed25519([5; 32])).unwrap();
        receipt.verify(&leaves()[4], &other, &[], &Echo).unwrap_err();
        let other = VerifyingKey::new("log.example/2026", PublicKey::Ed25519([6; 32])).unwrap();
        receipt.verify(&leaves()[4], &other, &[], &Echo).unwrap_err();
    }

    #[test]
    fn other_texts_are_refused_with_their_line() {
        let good = String::from_utf8(receipt(4).to_bytes()).unwrap();
        assert!(Receipt::parse(good.as_bytes()).is_ok());
        let line = |text: String| match Receipt::parse(text.as_bytes()) {
            Err(ReceiptError::Line { line, .. }) => line,
            other => panic!("{other:?}"),
        };
        assert_eq!(line(good.replace("@v1", "@v2")), 1);
        assert_eq!(line(good.replace("index 4", "index 04")), 2);
        assert_eq!(line(good.replace("index 4", "extra AAAA\nindex 4")), 2);
        assert_eq!(line(good.replace("=\n", "\n")), 3);
        assert!(Receipt::parse(good.replace("\n\n", "\n").as_bytes()).is_err());
        let long = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n".repeat(65);
        let long = good.replacen("\n\n", &format!("\n{long}\n"), 1);
        assert!(Receipt::parse(long.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_found(index in 0_u64..11, at: usize, byte: u8, how in 0..3) {
            let receipt = receipt(index);
            let good = receipt.to_bytes();
            prop_assert_eq!(Receipt::parse(&good).unwrap(), receipt);
            let mut bytes = good.clone();
            let at = at % bytes.len();
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
            if bytes != good && let Ok(changed) = Receipt::parse(&bytes) {
                prop_assert_eq!(changed.to_bytes(), bytes);
                let verified = changed.verify(&leaves()[index as usize], &key(), &[], &Echo);
                prop_assert!(verified.is_err());
            }
        }
    }
}
