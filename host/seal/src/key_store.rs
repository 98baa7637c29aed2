//! Private keys of one layer, wherever they are: in a file for trials, or in an HSM.

use crate::error::OpenError;
use crate::file_keys::FileKeys;
use crate::open::{Decapsulate, Shared};
#[cfg(feature = "pkcs11")]
use crate::pkcs11::{HsmKeys, HsmPlace};
use evergate_evidence::envelope::{Layer, Point};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Private keys of one layer. A change is durable when the call returns.
pub enum KeyStore {
    /// Keys in a file: trials only.
    File(KeyFile),
    /// Keys in an HSM.
    #[cfg(feature = "pkcs11")]
    Hsm(Box<HsmKeys>),
}

/// File with keys of epochs.
pub struct KeyFile {
    path: PathBuf,
    keys: FileKeys,
}

impl KeyStore {
    /// Keys in a file, which need not exist yet.
    pub fn open_file(path: &Path) -> Result<KeyStore, OpenError> {
        let failed = |error: &dyn std::fmt::Display| OpenError::Keys(format!("{}: {error}", path.display()));
        let keys = match std::fs::read_to_string(path).map(Zeroizing::new) {
            Ok(text) => FileKeys::parse(&text).map_err(|error| failed(&error))?,
            Err(error) if error.kind() == ErrorKind::NotFound => FileKeys::default(),
            Err(error) => return Err(failed(&error)),
        };
        Ok(KeyStore::File(KeyFile { path: path.into(), keys }))
    }

    /// Keys in an HSM.
    #[cfg(feature = "pkcs11")]
    pub fn open_hsm(place: HsmPlace) -> Result<KeyStore, OpenError> {
        Ok(KeyStore::Hsm(Box::new(HsmKeys::open(place)?)))
    }

    /// Makes the key of an epoch unless it is there, and returns the public key.
    pub fn create(&mut self, epoch: u64) -> Result<Point, OpenError> {
        match self {
            KeyStore::File(file) => {
                let is_new = file.keys.public(epoch).is_none();
                let public = file.keys.create(epoch)?;
                if is_new {
                    file.write()?;
                }
                Ok(public)
            }
            #[cfg(feature = "pkcs11")]
            KeyStore::Hsm(keys) => keys.create(epoch),
        }
    }

    /// Public key of an epoch whose private key is here.
    pub fn public(&mut self, epoch: u64) -> Result<Option<Point>, OpenError> {
        match self {
            KeyStore::File(file) => Ok(file.keys.public(epoch)),
            #[cfg(feature = "pkcs11")]
            KeyStore::Hsm(keys) => keys.public(epoch),
        }
    }

    /// Epochs whose private keys are here, in ascending order.
    pub fn epochs(&mut self) -> Result<Vec<u64>, OpenError> {
        match self {
            KeyStore::File(file) => Ok(file.keys.epochs().collect()),
            #[cfg(feature = "pkcs11")]
            KeyStore::Hsm(keys) => keys.epochs(),
        }
    }

    /// Destroys the key of an epoch. Whether it was there.
    pub fn destroy(&mut self, epoch: u64) -> Result<bool, OpenError> {
        match self {
            KeyStore::File(file) => {
                let was_there = file.keys.destroy(epoch);
                if was_there {
                    file.write()?;
                }
                Ok(was_there)
            }
            #[cfg(feature = "pkcs11")]
            KeyStore::Hsm(keys) => keys.destroy(epoch),
        }
    }

    /// Whether a copy of the keys opens as well.
    pub fn is_trial(&self) -> bool {
        matches!(self, KeyStore::File(_))
    }
}

impl KeyFile {
    /// Writes all keys to a new file in place of the old one.
    fn write(&self) -> Result<(), OpenError> {
        let text = self.keys.to_text()?;
        self.replace(text.as_bytes())
            .map_err(|error| OpenError::Keys(format!("cannot write {}: {error}", self.path.display())))
    }

    fn replace(&self, bytes: &[u8]) -> std::io::Result<()> {
        let temporary = self.path.with_extension("tmp");
        let _ = std::fs::remove_file(&temporary);
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &self.path)?;
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    }
}

impl Decapsulate for KeyStore {
    fn shared(&mut self, layer: Layer, epoch: u64, enc: &Point) -> Result<Shared, OpenError> {
        match self {
            KeyStore::File(file) => file.keys.shared(layer, epoch, enc),
            #[cfg(feature = "pkcs11")]
            KeyStore::Hsm(keys) => keys.shared(layer, epoch, enc),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_of_a_file_survive_a_restart_until_destroyed() {
        let path = std::env::temp_dir().join(format!("evergate-seal-keys-{}", std::process::id()));
        let mut keys = KeyStore::open_file(&path).unwrap();
        let public = keys.create(5).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut again = KeyStore::open_file(&path).unwrap();
        assert_eq!((again.create(5), again.epochs()), (Ok(public), Ok(vec![5])));
        assert_eq!(again.destroy(5), Ok(true));
        let mut last = KeyStore::open_file(&path).unwrap();
        assert_eq!((last.public(5), last.destroy(5), last.is_trial()), (Ok(None), Ok(false), true));
        std::fs::remove_file(&path).unwrap();
    }
}
