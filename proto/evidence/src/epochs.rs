//! Epochs: hours, each with a pair of keys that seal the connections born in it.
//!
//! The Master logs the public keys of an epoch ahead of time (entry 4), and their destruction (entry 5). A switch reads
//! them from a [file](EpochFile) that the log's key signs, so that it trusts no channel and no server.

use crate::base64;
use crate::checkpoint::parse_decimal;
use crate::cursor::{Cursor, Malformed};
use crate::envelope::{POINT_BYTES, Point, point};
use crate::merkle::{Hash, sha256};
use crate::note::{Note, NoteError, P256_SPKI, SignatureVerifier, VerifyingKey};

/// Most epochs of a file: ten days and some hours.
pub const EPOCHS_MAX: usize = 256;
/// First line of the file.
const TITLE: &str = "evergate-audit/epochs@v1";

/// Public keys of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochKeys {
    /// Number of the hour since 1970.
    pub epoch: u64,
    /// The Revealer's key, for the inner layer.
    pub inner: Point,
    /// The Master's escrow key, for the outer layer.
    pub outer: Point,
}

/// Destruction of an epoch's private keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochDestroyed {
    /// Number of the hour since 1970.
    pub epoch: u64,
    /// SHA-256 of the SPKI of the Revealer's key.
    pub inner: Hash,
    /// SHA-256 of the SPKI of the Master's escrow key.
    pub outer: Hash,
}

/// SHA-256 of the SPKI of a key.
pub fn spki_digest(key: &Point) -> Hash {
    sha256(&[&P256_SPKI[..], key].concat())
}

impl EpochKeys {
    /// What entry 5 has once both private keys are destroyed.
    pub fn destroyed(&self) -> EpochDestroyed {
        EpochDestroyed { epoch: self.epoch, inner: spki_digest(&self.inner), outer: spki_digest(&self.outer) }
    }

    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<EpochKeys, Malformed> {
        Ok(EpochKeys { epoch: cursor.u64()?, inner: point(cursor)?, outer: point(cursor)? })
    }

    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.inner);
        out.extend_from_slice(&self.outer);
    }

    fn of_line(line: &str) -> Option<EpochKeys> {
        let mut parts = line.split(' ');
        let epoch = parse_decimal(parts.next()?)?;
        let mut point = || base64::decode_array::<POINT_BYTES>(parts.next()?).filter(|point| point[0] == 4);
        let keys = EpochKeys { epoch, inner: point()?, outer: point()? };
        parts.next().is_none().then_some(keys)
    }

    fn to_line(&self) -> String {
        format!("{} {} {}\n", self.epoch, base64::encode(&self.inner), base64::encode(&self.outer))
    }
}

impl EpochDestroyed {
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<EpochDestroyed, Malformed> {
        Ok(EpochDestroyed { epoch: cursor.u64()?, inner: cursor.array()?, outer: cursor.array()? })
    }

    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.inner);
        out.extend_from_slice(&self.outer);
    }
}

/// Reason why bytes are no file of epochs that the log signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpochFileError {
    /// The note itself is wrong, or the log did not sign it.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// First line of another format.
    #[error("epochs line 1 is not '{TITLE}'")]
    Title,
    /// Line that is no epoch with two keys: its number, from 1.
    #[error("epochs line {0} is no epoch with two keys of P-256 in base64")]
    Line(usize),
    /// Epoch that does not follow the one before: its line, from 1.
    #[error("epochs line {0} has an epoch that is not higher than the one before")]
    Order(usize),
    /// More epochs than the bound.
    #[error("epochs file has more than {EPOCHS_MAX} epochs")]
    Long,
}

/// Published keys of epochs in ascending order: text that the log's key signs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochFile {
    keys: Vec<EpochKeys>,
}

impl EpochFile {
    /// File with these keys, in ascending order of their epochs.
    pub fn new(keys: Vec<EpochKeys>) -> Result<EpochFile, EpochFileError> {
        if keys.len() > EPOCHS_MAX {
            return Err(EpochFileError::Long);
        }
        match keys.windows(2).position(|pair| pair[0].epoch >= pair[1].epoch) {
            // The second of the pair, behind the title.
            Some(first) => Err(EpochFileError::Order(first + 3)),
            None => Ok(EpochFile { keys }),
        }
    }

    /// File from the text of a note.
    pub fn parse_text(text: &str) -> Result<EpochFile, EpochFileError> {
        let mut lines = text.strip_suffix('\n').ok_or(NoteError::NoLineEnd)?.split('\n');
        if lines.next() != Some(TITLE) {
            return Err(EpochFileError::Title);
        }
        let mut keys = Vec::new();
        for (index, line) in lines.enumerate() {
            if index == EPOCHS_MAX {
                return Err(EpochFileError::Long);
            }
            keys.push(EpochKeys::of_line(line).ok_or(EpochFileError::Line(index + 2))?);
        }
        EpochFile::new(keys)
    }

    /// Text that the log's key signs.
    pub fn to_text(&self) -> String {
        self.keys.iter().fold(format!("{TITLE}\n"), |text, keys| text + &keys.to_line())
    }

    /// Note without signatures yet.
    pub fn to_note(&self) -> Result<Note, NoteError> {
        Note::new(self.to_text())
    }

    /// File from the bytes of a note that this log signed.
    pub fn open(
        bytes: &[u8],
        log: &VerifyingKey,
        verifier: &dyn SignatureVerifier,
    ) -> Result<EpochFile, EpochFileError> {
        let note = Note::parse(bytes)?;
        note.verify(std::slice::from_ref(log), verifier)?;
        EpochFile::parse_text(note.text())
    }

    /// Every epoch's keys in ascending order.
    pub fn keys(&self) -> &[EpochKeys] {
        &self.keys
    }

    /// Keys of an epoch.
    pub fn get(&self, epoch: u64) -> Option<&EpochKeys> {
        let place = self.keys.binary_search_by_key(&epoch, |keys| keys.epoch).ok()?;
        self.keys.get(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::{Algorithm, PublicKey, SignatureLine};
    use proptest::prelude::*;

    /// Verifier that accepts a signature that repeats the message.
    struct Echo;

    impl SignatureVerifier for Echo {
        fn is_valid(&self, _: Algorithm, _: &[u8], message: &[u8], signature: &[u8]) -> bool {
            message == signature
        }
    }

    fn keys(epoch: u64) -> EpochKeys {
        EpochKeys { epoch, inner: [4; 65], outer: [4; 65] }
    }

    fn log(name: &str) -> VerifyingKey {
        VerifyingKey::new(name, PublicKey::Ed25519([7; 32])).unwrap()
    }

    #[test]
    fn file_opens_for_the_log_that_signed_it() {
        let file = EpochFile::new(vec![keys(5), keys(6), keys(9)]).unwrap();
        let mut note = file.to_note().unwrap();
        note.sign(SignatureLine::of(&log("a/2026"), file.to_text().into_bytes())).unwrap();
        let bytes = note.to_bytes();
        let opened = EpochFile::open(&bytes, &log("a/2026"), &Echo).unwrap();
        assert_eq!(opened, file);
        assert_eq!(opened.get(6), Some(&keys(6)));
        assert_eq!(opened.get(7), None);
        let other = EpochFile::open(&bytes, &log("b/2026"), &Echo);
        assert!(matches!(other, Err(EpochFileError::Note(NoteError::Unsigned(_)))));
        let changed = String::from_utf8(bytes).unwrap().replacen("\n6 ", "\n7 ", 1);
        let changed = EpochFile::open(changed.as_bytes(), &log("a/2026"), &Echo);
        assert_eq!(changed, Err(EpochFileError::Note(NoteError::Wrong("a/2026".into()))));
    }

    #[test]
    fn most_epochs_fit_into_a_note() {
        let first = u64::MAX - EPOCHS_MAX as u64;
        let many: Vec<EpochKeys> = (first..u64::MAX).map(keys).collect();
        let note = EpochFile::new(many.clone()).unwrap().to_note().unwrap();
        assert_eq!(EpochFile::parse_text(note.text()).unwrap().keys(), many);
        let more: Vec<EpochKeys> = (first - 1..u64::MAX).map(keys).collect();
        assert_eq!(EpochFile::new(more.clone()), Err(EpochFileError::Long));
        let text = more.iter().fold(format!("{TITLE}\n"), |text, keys| text + &keys.to_line());
        assert_eq!(EpochFile::parse_text(&text), Err(EpochFileError::Long));
    }

    #[test]
    fn other_texts_are_refused_with_their_line() {
        let line = keys(5).to_line();
        let parse = |text: &str| EpochFile::parse_text(text);
        assert_eq!(parse(&format!("{TITLE}\n")), Ok(EpochFile::default()));
        assert_eq!(parse(&format!("evergate-audit/epochs@v2\n{line}")), Err(EpochFileError::Title));
        assert_eq!(parse(&format!("{TITLE}\n{line}{line}")), Err(EpochFileError::Order(3)));
        assert_eq!(parse(&format!("{TITLE}\n{line}\n")), Err(EpochFileError::Line(3)));
        for wrong in ["05 ", "5  ", "x ", "", " 5 "] {
            let text = format!("{TITLE}\n{}", line.replacen("5 ", wrong, 1));
            assert_eq!(parse(&text), Err(EpochFileError::Line(2)), "{text}");
        }
        assert_eq!(parse(&format!("{TITLE}\n{} x\n", line.trim_end())), Err(EpochFileError::Line(2)));
        assert_eq!(parse(TITLE), Err(EpochFileError::Note(NoteError::NoLineEnd)));
    }

    #[test]
    fn digest_of_a_key_is_that_of_its_spki() {
        let digest = spki_digest(&[4; 65]);
        assert_eq!(keys(1).destroyed(), EpochDestroyed { epoch: 1, inner: digest, outer: digest });
        assert_ne!(digest, sha256(&[4; 65]));
    }

    proptest! {
        #[test]
        fn text_survives_both_ways(epochs in proptest::collection::btree_set(any::<u64>(), 0..20), byte: u8) {
            let mut outer = [byte; 65];
            outer[0] = 4;
            let key = |epoch| EpochKeys { epoch, inner: [4; 65], outer };
            let file = EpochFile::new(epochs.into_iter().map(key).collect()).unwrap();
            prop_assert_eq!(EpochFile::parse_text(&file.to_text()), Ok(file));
        }
    }
}
