//! Private keys of epochs in memory, from a file: for trials only, because a copy of the file opens as well.
//!
//! A file has one line `EPOCH BASE64` for each epoch, with the private number of 32 bytes. Its owner rewrites the file
//! to destroy a key, which a file system may undo.

use crate::error::OpenError;
use crate::hpke::dh_of;
use crate::open::{Decapsulate, Shared};
use aws_lc_rs::agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree};
use aws_lc_rs::encoding::{AsBigEndian, EcPrivateKeyBin};
use evergate_evidence::base64;
use evergate_evidence::envelope::{Layer, Point};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// Most keys of a file: ten years of hours.
const KEYS_MAX: usize = 90_000;

/// Private keys of epochs.
#[derive(Default)]
pub struct FileKeys {
    keys: BTreeMap<u64, FileKey>,
}

struct FileKey {
    private: PrivateKey,
    public: Point,
}

impl FileKeys {
    /// Keys from the text of a file. An error has the number of the line.
    pub fn parse(text: &str) -> Result<FileKeys, OpenError> {
        let mut keys = FileKeys::default();
        for (index, line) in text.lines().enumerate() {
            let wrong =
                || OpenError::Keys(format!("line {} is no epoch with a key of P-256 in base64", index + 1));
            let (epoch, key) = line.split_once(' ').ok_or_else(wrong)?;
            let epoch: u64 = epoch.parse().map_err(|_| wrong())?;
            let key = base64::decode_array::<32>(key).map(Zeroizing::new).ok_or_else(wrong)?;
            let key = FileKey::new(&key[..]).ok_or_else(wrong)?;
            if keys.keys.len() == KEYS_MAX || keys.keys.insert(epoch, key).is_some() {
                return Err(OpenError::Keys(format!(
                    "line {} repeats an epoch, or is one too many",
                    index + 1
                )));
            }
        }
        Ok(keys)
    }

    /// Text that [`FileKeys::parse`] reads.
    pub fn to_text(&self) -> Result<Zeroizing<String>, OpenError> {
        let mut text = Zeroizing::new(String::with_capacity(self.keys.len() * 72));
        for (epoch, key) in &self.keys {
            let number: EcPrivateKeyBin<'_> =
                key.private.as_be_bytes().map_err(|_| OpenError::Keys("a key cannot be written".into()))?;
            let encoded = Zeroizing::new(base64::encode(number.as_ref()));
            text.push_str(&format!("{epoch} "));
            text.push_str(&encoded);
            text.push('\n');
        }
        Ok(text)
    }

    /// Makes the key of an epoch unless it is there, and returns the public key.
    pub fn create(&mut self, epoch: u64) -> Result<Point, OpenError> {
        if let Some(key) = self.keys.get(&epoch) {
            return Ok(key.public);
        }
        let failed = || OpenError::Keys("a key cannot be generated".into());
        let private = PrivateKey::generate(&ECDH_P256).map_err(|_| failed())?;
        let public = public_of(&private).ok_or_else(failed)?;
        self.keys.insert(epoch, FileKey { private, public });
        Ok(public)
    }

    /// Public key of an epoch.
    pub fn public(&self, epoch: u64) -> Option<Point> {
        self.keys.get(&epoch).map(|key| key.public)
    }

    /// Epochs whose keys are here, in ascending order.
    pub fn epochs(&self) -> impl Iterator<Item = u64> {
        self.keys.keys().copied()
    }

    /// Removes the key of an epoch; its owner then rewrites the file. Whether it was there.
    pub fn destroy(&mut self, epoch: u64) -> bool {
        self.keys.remove(&epoch).is_some()
    }
}

impl FileKey {
    fn new(number: &[u8]) -> Option<FileKey> {
        let private = PrivateKey::from_private_key(&ECDH_P256, number).ok()?;
        let public = public_of(&private)?;
        Some(FileKey { private, public })
    }
}

impl Decapsulate for FileKeys {
    fn shared(&mut self, layer: Layer, epoch: u64, enc: &Point) -> Result<Shared, OpenError> {
        let key = self.keys.get(&epoch).ok_or(OpenError::NoKey(layer, epoch))?;
        let secret = agree(&key.private, UnparsedPublicKey::new(&ECDH_P256, enc), (), dh_of);
        Ok(Shared { public: key.public, secret: secret.map_err(|()| OpenError::Point)? })
    }
}

fn public_of(private: &PrivateKey) -> Option<Point> {
    private.compute_public_key().ok()?.as_ref().try_into().ok()
}

impl std::fmt::Debug for FileKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.keys.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_text() {
        let mut keys = FileKeys::default();
        let publics = [keys.create(7).unwrap(), keys.create(5).unwrap()];
        let text = keys.to_text().unwrap();
        let again = FileKeys::parse(&text).unwrap();
        assert_eq!([again.public(7), again.public(5)], publics.map(Some));
        assert_eq!(again.epochs().collect::<Vec<u64>>(), [5, 7]);
        assert_eq!(again.to_text().unwrap(), text);
    }

    #[test]
    fn destroyed_key_is_gone() {
        let mut keys = FileKeys::default();
        let enc = keys.create(7).unwrap();
        assert!(keys.shared(Layer::Inner, 7, &enc).is_ok());
        assert!(keys.destroy(7) && !keys.destroy(7));
        assert_eq!(keys.shared(Layer::Inner, 7, &enc).err(), Some(OpenError::NoKey(Layer::Inner, 7)));
        assert_eq!(keys.public(7), None);
    }

    #[test]
    fn other_texts_are_refused_with_their_line() {
        let mut keys = FileKeys::default();
        keys.create(1).unwrap();
        let line = keys.to_text().unwrap().to_string();
        let zero = format!("2 {}\n", base64::encode(&[0; 32]));
        for wrong in ["x", "2", "2 AAAA", "x AAAA", &zero, &line] {
            let error = FileKeys::parse(&format!("{line}{wrong}\n")).err().unwrap().to_string();
            assert!(error.contains("line 2"), "{error}");
        }
    }
}
